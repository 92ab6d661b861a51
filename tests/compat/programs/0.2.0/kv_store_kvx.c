/* kv_store_kvx.h: kv_store_kvx URI. Linked with -lkv_store_wasm. */
#include "program.h"

#include "kv_store_kvx.h"

enum { BLOCKS = 6, BLOCK = 4, HEADS = 2, DIM = 8, LAYERS = 2, TOKENS = 10, ELEMENTS = BLOCKS * BLOCK * HEADS * DIM };

static uint16_t from[LAYERS][2][ELEMENTS], to[LAYERS][2][ELEMENTS];
static uint8_t codes[LAYERS][2][ELEMENTS];
static kvx_cache_desc_t from_caches[LAYERS], to_caches[LAYERS], code_caches[LAYERS];
static kv_store_kvx_result_t result = {.size = sizeof result};

/* The elements of NHD that are where they were saved from, of HND: the tokens' slots are given. */
static int right(const int64_t *slots, const int32_t *blocks)
{
    int found = 0;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int side = 0; side < 2; side++)
            for (int t = 0; t < TOKENS; t++)
                for (int at = 0; at < HEADS * DIM; at++) {
                    int64_t source = ((int64_t)blocks[t / BLOCK] * BLOCK + t % BLOCK) * HEADS * DIM + at;
                    int64_t block = slots[t] / BLOCK, token = slots[t] % BLOCK, head = at / DIM;
                    int64_t target = ((block * HEADS + head) * BLOCK + token) * DIM + at % DIM;
                    found += slots[t] >= 0 && from[layer][side][source] == to[layer][side][target];
                }
    return found;
}

int main(int argc, char **argv)
{
    static const int32_t blocks[] = {5, 1, 3};
    int64_t slots[TOKENS];
    const kv_store_vtable *kv = kv_store_get_vtable();
    MUST(argc == 2);
    kv_store_v1 *store = kv->open(argv[1]);
    MUST(store);
    fill(from, sizeof from, 5);
    fill(codes, sizeof codes, 6);
    for (int layer = 0; layer < LAYERS; layer++) {
        from_caches[layer] = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_NHD, KVX_DTYPE_F16, BLOCKS, BLOCK, HEADS, DIM, from[layer][0], from[layer][1]);
        to_caches[layer] = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_HND, KVX_DTYPE_F16, BLOCKS, BLOCK, HEADS, DIM, to[layer][0], to[layer][1]);
        code_caches[layer] = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_NHD, KVX_DTYPE_F8_E4M3, BLOCKS, BLOCK, HEADS, DIM, codes[layer][0], codes[layer][1]);
    }
    kv_store_kvx_save_t save = {.size = sizeof save, .num_layers = LAYERS, .layers = from_caches, .name = "sequence", .model = "model",
                                .blocks = blocks, .block_dtype = KVX_DTYPE_S32, .num_blocks = 3, .num_tokens = TOKENS,
                                .chunk_tokens = BLOCK, .threads = 2};
    SHOW(kv_store_kvx_save(store, &save, &result));
    SHOW(result.tokens);
    SHOW(result.saved_tokens);
    SHOW(result.chunks);
    SHOW(result.existed);
    SHOW(result.bytes);
    SHOW(*result.message);
    save.flags = KV_STORE_KVX_VERIFY, save.timeout_ms = 60000;
    SHOW(kv_store_kvx_save(store, &save, &result));
    SHOW(result.existed);
    /* As it was before `flags`. */
    save.size = offsetof(kv_store_kvx_save_t, flags), save.flags = 77;
    SHOW(kv_store_kvx_save(store, &save, NULL));
    save.size = sizeof save - 4;
    SHOW(kv_store_kvx_save(store, &save, &result));
    SHOW(*result.message != 0);
    save.size = sizeof save + 8, save.flags = 0;
    SHOW(kv_store_kvx_save(store, &save, &result));
    save.size = sizeof save, save.num_tokens = 0;
    SHOW(kv_store_kvx_save(store, &save, &result));
    save.num_tokens = TOKENS;
    SHOW(kv_store_kvx_save(NULL, &save, &result));
    SHOW(kv_store_kvx_save(store, NULL, &result));

    kv_store_kvx_info_t info = {.size = sizeof info};
    SHOW(kv_store_kvx_describe(store, "sequence", &info));
    SHOW(info.tokens);
    SHOW(info.chunk_tokens);
    SHOW(info.num_layers);
    SHOW(info.block_size);
    SHOW(info.dtype);
    SHOW(info.bytes);
    SHOW(kv_store_kvx_describe(store, "absent", &info));
    info.size = 4;
    SHOW(kv_store_kvx_describe(store, "sequence", &info));

    kv_store_kvx_restore_t restore = {.size = sizeof restore, .num_layers = LAYERS, .layers = to_caches, .name = "sequence", .model = "model",
                                      .threads = 1, .max_bytes = 1 << 20, .timeout_ms = 60000};
    static const int32_t others[] = {0, 4, 2};
    restore.slots = kv_store_kvx_slots(slots, TOKENS, others, BLOCK);
    slots[7] = -1;
    SHOW(kv_store_kvx_restore(store, &restore, &result));
    SHOW(*result.message != 0);
    restore.flags = KV_STORE_KVX_CONVERT_LAYOUT;
    SHOW(kv_store_kvx_restore(store, &restore, &result));
    SHOW(result.tokens);
    SHOW(right(slots, blocks));
    restore.size = offsetof(kv_store_kvx_restore_t, timeout_ms), restore.reserved = 9;
    SHOW(kv_store_kvx_restore(store, &restore, NULL));
    restore.size = sizeof restore, restore.reserved = 0;
    restore.model = "another model";
    SHOW(kv_store_kvx_restore(store, &restore, &result));
    restore.model = "model", restore.name = "absent";
    SHOW(kv_store_kvx_restore(store, &restore, &result));
    restore.name = "sequence", to_caches[1].v.memory = KVX_MEMORY_DEVICE;
    SHOW(kv_store_kvx_restore(store, &restore, &result));
    to_caches[1].v.memory = KVX_MEMORY_HOST;

    /* FP8, dequantised by scales, and quantised again. */
    static const float half = 0.5f;
    kvx_scale_desc_t scales[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++)
        scales[layer] = (kvx_scale_desc_t){.size = sizeof *scales, .dtype = KVX_DTYPE_F32, .granularity = KVX_SCALE_PER_TENSOR, .data = &half};
    save.name = "codes", save.layers = code_caches, save.stored_dtype = KVX_DTYPE_F32;
    SHOW(kv_store_kvx_save(store, &save, &result));
    save.k_scales = scales, save.v_scales = scales;
    SHOW(kv_store_kvx_save(store, &save, &result));
    SHOW(result.bytes);
    restore.name = "codes", restore.layers = code_caches, restore.flags = KV_STORE_KVX_CONVERT_DTYPE;
    restore.k_scales = scales, restore.v_scales = scales;
    slots[7] = 4 * BLOCK + 3;
    SHOW(kv_store_kvx_restore(store, &restore, &result));
    SHOW(fnv(codes, sizeof codes) >> 1);
    kv->close(store);
    return 0;
}
