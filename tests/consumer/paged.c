/*
 * An engine with a paged KV cache of two layers: it saves a sequence and restores it into other pages, and is told what
 * is wrong with what it passes.
 *
 *     paged URI
 */
#include "consumer.h"

#include "kv_store_kvx.h"

enum { BLOCKS = 6, BLOCK = 4, HEADS = 2, DIM = 8, LAYERS = 2, TOKENS = 10, ROW = HEADS * DIM };

/* K and V of each layer, of one engine. */
typedef struct {
    uint16_t values[LAYERS][2][BLOCKS * BLOCK * ROW];
    kvx_cache_desc_t caches[LAYERS];
} engine;

static engine saver, taker, untouched;

static kvx_tensor_desc_t tensor(kvx_layout_t layout, void *data)
{
    kvx_tensor_desc_t desc = {.size = sizeof desc, .dtype = KVX_DTYPE_F16, .layout = layout};
    int64_t shape[4] = {BLOCKS, BLOCK, HEADS, DIM};
    if (layout == KVX_LAYOUT_BLOCK_HND)
        shape[1] = HEADS, shape[2] = BLOCK;
    desc.memory = KVX_MEMORY_HOST;
    desc.ndim = 4;
    int64_t step = 1;
    for (int i = 4; i-- > 0; step *= shape[i])
        desc.shape[i] = shape[i], desc.stride[i] = step;
    desc.data = data;
    return desc;
}

static void describe(engine *of, kvx_layout_t layout)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        kvx_cache_desc_t cache = {.size = sizeof cache, .num_blocks = BLOCKS, .block_size = BLOCK};
        cache.num_kv_heads = HEADS;
        cache.head_dim = DIM;
        cache.k = tensor(layout, of->values[layer][0]);
        cache.v = tensor(layout, of->values[layer][1]);
        of->caches[layer] = cache;
    }
}

static int same_tensor(const kvx_tensor_desc_t *one, const kvx_tensor_desc_t *other)
{
    int same = one->size == other->size && one->dtype == other->dtype && one->layout == other->layout;
    same = same && one->memory == other->memory && one->ndim == other->ndim && one->data == other->data;
    for (uint32_t i = 0; i < (uint32_t)one->ndim; i++)
        same = same && one->shape[i] == other->shape[i] && one->stride[i] == other->stride[i];
    return same;
}

/* Where an element is, in elements. */
static size_t place(kvx_layout_t layout, int64_t slot, int head, int dim)
{
    size_t block = (size_t)slot / BLOCK, token = (size_t)slot % BLOCK;
    if (layout == KVX_LAYOUT_BLOCK_HND)
        return ((block * HEADS + (size_t)head) * BLOCK + token) * DIM + (size_t)dim;
    return ((block * BLOCK + token) * HEADS + (size_t)head) * DIM + (size_t)dim;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const kv_store_vtable *kv;
    void *lib = load_library(&kv);
    kv_store_kvx_get_vtable_fn get;
    CHECK((*(void **)&get = dlsym(lib, KV_STORE_KVX_GET_VTABLE_SYMBOL)));
    const kv_store_kvx_vtable_t *kvx = get();
    CHECK(kvx->size == sizeof *kvx && kvx->version == KV_STORE_KVX_VTABLE_VERSION);
    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);

    for (int i = 0; i < (int)(sizeof saver.values / 2); i++)
        ((uint16_t *)saver.values)[i] = (uint16_t)(i * 40503u >> 3);
    memset(taker.values, 0xEE, sizeof taker.values);
    describe(&saver, KVX_LAYOUT_BLOCK_NHD);
    describe(&taker, KVX_LAYOUT_BLOCK_HND);
    const int32_t from[] = {5, 1, 3};
    int64_t to[TOKENS];
    for (int t = 0; t < TOKENS; t++)
        to[t] = t == 6 ? -1 : (TOKENS - t) * 2;

    kv_store_kvx_save_t saving = {.size = sizeof saving, .num_layers = LAYERS, .layers = saver.caches};
    saving.name = "sequence";
    saving.model = "model";
    saving.blocks = from;
    saving.block_dtype = KVX_DTYPE_S32;
    saving.num_blocks = 3;
    saving.num_tokens = TOKENS;
    saving.chunk_tokens = BLOCK;
    saving.threads = 2;
    kv_store_kvx_result_t result = {.size = sizeof result};
    CHECK(kvx->save(store, &saving, &result) == 0);
    CHECK(result.tokens == TOKENS && result.chunks == 3 && result.existed == 0 && result.message[0] == '\0');
    CHECK(result.bytes == (uint64_t)TOKENS * ROW * 2 * 2 * LAYERS);
    CHECK(kvx->save(store, &saving, NULL) == 0);
    CHECK(kvx->save(store, &saving, &result) == 0 && result.existed == 3);

    kv_store_kvx_info_t info = {.size = sizeof info};
    CHECK(kvx->describe(store, "sequence", &info) == 0);
    CHECK(info.tokens == TOKENS && info.chunk_tokens == BLOCK && info.num_layers == LAYERS && info.block_size == BLOCK);
    CHECK(info.dtype == KVX_DTYPE_F16 && info.bytes == result.bytes);

    kv_store_kvx_restore_t restoring = {.size = sizeof restoring, .num_layers = LAYERS, .layers = taker.caches};
    restoring.name = "sequence";
    restoring.model = "model";
    restoring.slots = (kvx_slot_mapping_t){sizeof restoring.slots, KVX_DTYPE_S64, TOKENS, -1, to};
    restoring.threads = 2;

    /* Refused, with the reason, and no page written. */
    memcpy(&untouched, &taker, sizeof taker);
    CHECK(kvx->restore(store, &restoring, &result) == KV_STORE_MISMATCH);
    CHECK(result.tokens == 0 && strstr(result.message, "layout"));
    restoring.flags = 4;
    CHECK(kvx->restore(store, &restoring, &result) == KV_STORE_INVALID && strstr(result.message, "flags"));
    restoring.flags = KV_STORE_KVX_CONVERT_LAYOUT;
    restoring.model = "another";
    CHECK(kvx->restore(store, &restoring, &result) == KV_STORE_MISMATCH && strstr(result.message, "another"));
    restoring.model = "model";
    restoring.num_layers = 1;
    CHECK(kvx->restore(store, &restoring, &result) == KV_STORE_MISMATCH && strstr(result.message, "2 layers"));
    restoring.num_layers = LAYERS;
    to[3] = BLOCKS * BLOCK;
    CHECK(kvx->restore(store, &restoring, &result) == KV_STORE_INVALID && strstr(result.message, "slot 24"));
    to[3] = 14;
    restoring.name = "none";
    CHECK(kvx->restore(store, &restoring, &result) == KV_STORE_MISSING && result.message[0] != '\0');
    CHECK(kvx->describe(store, "none", &info) == KV_STORE_MISSING && strstr(kvx->last_error(), "nothing was saved"));
    restoring.name = "sequence";
    taker.caches[1].k.memory = KVX_MEMORY_DEVICE;
    CHECK(kvx->restore(store, &restoring, &result) < 0 && strstr(result.message, "layer 1"));
    CHECK(kvx->restore(store, &restoring, NULL) < 0);
    taker.caches[1].k.memory = KVX_MEMORY_HOST;
    CHECK(memcmp(&untouched, &taker, sizeof taker) == 0);

    /* Nonsense is a negative answer. */
    CHECK(kvx->save(NULL, &saving, &result) == KV_STORE_INVALID && strstr(result.message, "handle"));
    CHECK(kvx->save(store, NULL, &result) == KV_STORE_INVALID && kvx->restore(store, NULL, NULL) == KV_STORE_INVALID);
    CHECK(kvx->describe(store, "sequence", NULL) < 0 && kvx->describe(store, NULL, &info) < 0);
    saving.size--;
    CHECK(kvx->save(store, &saving, &result) == KV_STORE_INVALID && strstr(result.message, "size"));
    saving.size++;
    result.size--;
    memset(result.message, 'x', sizeof result.message);
    CHECK(kvx->save(store, &saving, &result) == KV_STORE_INVALID && result.message[0] == 'x');
    result.size++;
    info.size = 4;
    CHECK(kvx->describe(store, "sequence", &info) < 0);
    saving.layers = NULL;
    CHECK(kvx->save(store, &saving, &result) == KV_STORE_INVALID);
    saving.layers = saver.caches;
    saving.num_layers = KV_STORE_KVX_MAX_LAYERS + 1;
    CHECK(kvx->save(store, &saving, &result) == KV_STORE_INVALID);
    saving.num_layers = LAYERS;
    saving.blocks = NULL;
    CHECK(kvx->save(store, &saving, &result) == KV_STORE_INVALID);
    saving.blocks = from;
    saver.caches[1].size = saver.caches[0].size + 8;
    CHECK(kvx->save(store, &saving, &result) == KV_STORE_INVALID && strstr(result.message, "differ in size"));
    saver.caches[1].size = saver.caches[0].size;

    /* Scales that no conversion needs are not looked at; of those that one needs, the layer is named. */
    kvx_scale_desc_t scales[2][LAYERS] = {{{0}}};
    saving.k_scales = scales[0];
    saving.v_scales = scales[1];
    CHECK(kvx->save(store, &saving, &result) == 0 && result.existed == 3);
    float one = 1;
    kvx_cache_desc_t codes[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        codes[layer] = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_NHD, KVX_DTYPE_F8_E4M3, BLOCKS, BLOCK, HEADS, DIM,
                                          saver.values[layer][0], saver.values[layer][1]);
        for (int side = 0; side < 2; side++) {
            kvx_scale_desc_t scale = {.size = sizeof scale, .dtype = KVX_DTYPE_F32, .data = &one};
            scale.granularity = KVX_SCALE_PER_TENSOR;
            scales[side][layer] = scale;
        }
    }
    kv_store_v1 *other = kv->open("memory://codes");
    CHECK(other);
    saving.layers = codes;
    saving.name = "codes";
    saving.stored_dtype = KVX_DTYPE_F16;
    CHECK(kvx->save(other, &saving, &result) == 0);
    scales[1][1].data = NULL;
    CHECK(kvx->save(other, &saving, &result) == KV_STORE_INVALID);
    CHECK(strstr(result.message, "layer 1") && strstr(result.message, "V has no data"));
    scales[1][1].data = &one;
    scales[0][1].dtype = KVX_DTYPE_S32;
    CHECK(kvx->save(other, &saving, &result) == KV_STORE_INVALID);
    CHECK(strstr(result.message, "layer 1") && strstr(result.message, "scale of K"));
    saving.stored_dtype = KVX_DTYPE_INVALID;
    CHECK(kvx->save(other, &saving, &result) == 0);
    kv->close(other);
    saving.k_scales = saving.v_scales = NULL;
    saving.layers = saver.caches;
    saving.name = "sequence";

    /* A save may read what is there, and has a flag for that; the former version of the struct had no flags. */
    saving.flags = KV_STORE_KVX_VERIFY;
    saving.timeout_ms = 60000;
    CHECK(kvx->save(store, &saving, &result) == 0 && result.existed == 3);
    saving.flags = 2;
    CHECK(kvx->save(store, &saving, &result) == KV_STORE_INVALID && strstr(result.message, "flags"));
    saving.size = 80;
    CHECK(kvx->save(store, &saving, &result) == 0 && result.existed == 3);
    saving.size = sizeof saving;
    saving.flags = 0;

    /* Layers of a restore are apart. */
    kvx_cache_desc_t apart = taker.caches[1];
    taker.caches[1] = taker.caches[0];
    CHECK(kvx->restore(store, &restoring, &result) == KV_STORE_INVALID);
    CHECK(strstr(result.message, "layers 0 and 1 share memory"));
    taker.caches[1] = apart;
    taker.caches[1].v.data = &taker.values[0][0][BLOCKS * BLOCK * ROW - 1];
    CHECK(kvx->restore(store, &restoring, &result) == KV_STORE_INVALID && strstr(result.message, "share memory"));
    taker.caches[1] = apart;
    CHECK(memcmp(&untouched, &taker, sizeof taker) == 0);

    /* The helpers of the header describe what was described by hand. */
    kvx_cache_desc_t by_hand = saver.caches[1];
    kvx_cache_desc_t helped = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_NHD, KVX_DTYPE_F16, BLOCKS, BLOCK, HEADS, DIM,
                                                 saver.values[1][0], saver.values[1][1]);
    CHECK(same_tensor(&helped.k, &by_hand.k) && same_tensor(&helped.v, &by_hand.v));
    helped = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_HND, KVX_DTYPE_F16, BLOCKS, BLOCK, HEADS, DIM, taker.values[1][0],
                                taker.values[1][1]);
    CHECK(same_tensor(&helped.k, &apart.k) && same_tensor(&helped.v, &apart.v));
    int64_t all_slots[TOKENS];
    kvx_slot_mapping_t mapping = kv_store_kvx_slots(all_slots, TOKENS, from, BLOCK);
    for (int t = 0; t < TOKENS; t++)
        CHECK(all_slots[t] == from[t / BLOCK] * BLOCK + t % BLOCK);
    CHECK(mapping.token_count == TOKENS && mapping.slots == all_slots && mapping.dtype == KVX_DTYPE_S64);
    static engine again;
    kvx_cache_desc_t caches[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++)
        caches[layer] = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_NHD, KVX_DTYPE_F16, BLOCKS, BLOCK, HEADS, DIM,
                                           again.values[layer][0], again.values[layer][1]);
    kv_store_kvx_restore_t whole = {.size = 96, .num_layers = LAYERS, .layers = caches, .slots = mapping};
    whole.name = "sequence";
    whole.model = "model";
    CHECK(kvx->restore(store, &whole, &result) == 0 && result.tokens == TOKENS);
    CHECK(memcmp(again.values[1][1] + from[0] * BLOCK * ROW, saver.values[1][1] + from[0] * BLOCK * ROW,
                 BLOCK * ROW * sizeof(uint16_t)) == 0);
    whole.size = sizeof whole;
    whole.reserved = 1;
    CHECK(kvx->restore(store, &whole, &result) == KV_STORE_INVALID);

    /* And what was saved is there, in the other layout; the token without a slot is not. */
    CHECK(kvx->restore(store, &restoring, &result) == 0);
    CHECK(result.tokens == TOKENS && result.saved_tokens == TOKENS && result.chunks == 3);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int side = 0; side < 2; side++)
            for (int t = 0; t < TOKENS; t++)
                for (int i = 0; i < ROW && t != 6; i++) {
                    int64_t slot = from[t / BLOCK] * BLOCK + t % BLOCK;
                    size_t there = place(KVX_LAYOUT_BLOCK_NHD, slot, i / DIM, i % DIM);
                    size_t here = place(KVX_LAYOUT_BLOCK_HND, to[t], i / DIM, i % DIM);
                    CHECK(taker.values[layer][side][here] == saver.values[layer][side][there]);
                    here = place(KVX_LAYOUT_BLOCK_HND, 8, i / DIM, i % DIM);
                    CHECK(taker.values[layer][side][here] == 0xEEEE);
                }
    kv->close(store);
    printf("ok\n");
    return 0;
}
