/* kvx_abi.h: kvx. Linked with -lkv_store_wasm. */
#include "program.h"

#include "kvx_abi.h"

enum { BLOCKS = 8, BLOCK = 4, HEADS = 2, DIM = 8, TOKENS = 12, ROW = HEADS * DIM };

static float key[TOKENS * ROW], value[TOKENS * ROW];
static float k[BLOCKS * BLOCK * ROW], v[BLOCKS * BLOCK * ROW], key_out[TOKENS * ROW], value_out[TOKENS * ROW];
static uint8_t k_codes[BLOCKS * BLOCK * ROW], v_codes[BLOCKS * BLOCK * ROW];
static uint16_t pool[BLOCKS][2][BLOCK * ROW], key_halves[TOKENS * ROW], value_halves[TOKENS * ROW];

static kvx_tensor_desc_t tensor(kvx_layout_t layout, kvx_dtype_t dtype, uint32_t ndim, const int64_t *shape, void *data)
{
    kvx_tensor_desc_t desc = {.size = sizeof desc, .dtype = dtype, .layout = layout, .memory = KVX_MEMORY_HOST, .ndim = ndim, .data = data};
    int64_t step = 1;
    for (uint32_t i = ndim; i-- > 0; step *= shape[i])
        desc.shape[i] = shape[i], desc.stride[i] = step;
    return desc;
}

static kvx_cache_desc_t cache_of(kvx_layout_t layout, kvx_dtype_t dtype, void *k, void *v)
{
    int64_t nhd[4] = {BLOCKS, BLOCK, HEADS, DIM}, hnd[4] = {BLOCKS, HEADS, BLOCK, DIM}, packed[5] = {BLOCKS, HEADS, DIM / 4, BLOCK, 4};
    const int64_t *shape = layout == KVX_LAYOUT_BLOCK_HND ? hnd : layout == KVX_LAYOUT_BLOCK_HND_PACKED ? packed : nhd;
    uint32_t ndim = layout == KVX_LAYOUT_BLOCK_HND_PACKED ? 5 : 4;
    kvx_cache_desc_t cache = {.size = sizeof cache, .num_blocks = BLOCKS, .block_size = BLOCK, .num_kv_heads = HEADS, .head_dim = DIM};
    cache.k = tensor(layout, dtype, ndim, shape, k);
    cache.v = tensor(layout, dtype, ndim, shape, v);
    return cache;
}

static kvx_kv_io_desc_t io_of(kvx_dtype_t dtype, uint32_t ndim, const int64_t *shape, void *key, void *value)
{
    kvx_kv_io_desc_t io = {.size = sizeof io, .num_tokens = TOKENS, .num_kv_heads = HEADS, .head_dim = DIM};
    io.key = tensor(KVX_LAYOUT_INVALID, dtype, ndim, shape, key);
    io.value = tensor(KVX_LAYOUT_INVALID, dtype, ndim, shape, value);
    return io;
}

int main(void)
{
    static const int64_t rows[3] = {TOKENS, HEADS, DIM}, sequences[4] = {2, 6, HEADS, DIM};
    static int32_t slots[TOKENS] = {5, 4, 3, 2, 1, 0, 31, 30, 29, -1, 28, 6};
    static const float scale = 0.125f;
    kvx_version_t version;
    SHOW(kvx_get_version(&version));
    SHOW(kvx_get_version(NULL));
    SHOW(version.size >= sizeof version && version.abi_major == KVX_ABI_VERSION_MAJOR && version.abi_minor >= KVX_ABI_VERSION_MINOR);
    for (int i = 0; i < TOKENS * ROW; i++)
        key[i] = (float)(i * 37 % 101) / 8 - 6, value[i] = (float)(i * 53 % 97) / 4 - 12;

    /* Floats, by slots, in each layout; and back by both kinds of tables. */
    static const kvx_layout_t layouts[] = {KVX_LAYOUT_BLOCK_NHD, KVX_LAYOUT_BLOCK_HND, KVX_LAYOUT_BLOCK_HND_PACKED};
    kvx_cache_desc_t cache;
    kvx_write_desc_t write = {.size = sizeof write, .io = io_of(KVX_DTYPE_F32, 3, rows, key, value)};
    write.slots = (kvx_slot_mapping_t){sizeof write.slots, KVX_DTYPE_S32, TOKENS, -1, slots};
    static const int32_t packed[] = {1, 0, 7, 0}, ragged[] = {1, 1, 0, 0, 7, 7}, starts[] = {0, 4, 6};
    static const int32_t lengths[] = {4, 2};
    kvx_gather_desc_t gather = {.size = sizeof gather, .io = io_of(KVX_DTYPE_F32, 4, sequences, key_out, value_out), .max_seq_len = 6};
    gather.seq_lens = (kvx_seq_lens_t){sizeof gather.seq_lens, KVX_DTYPE_S32, 2, lengths};
    for (int i = 0; i < 3; i++) {
        memset(k, 0, sizeof k), memset(v, 0, sizeof v), memset(key_out, 0, sizeof key_out), memset(value_out, 0, sizeof value_out);
        cache = cache_of(layouts[i], KVX_DTYPE_F32, k, v);
        SHOW(kvx_validate_cache_desc(&cache));
        SHOW(kvx_write_kv(&cache, &write, NULL));
        SHOW(fnv(k, sizeof k) >> 1);
        SHOW(fnv(v, sizeof v) >> 1);
        gather.block_table = (kvx_block_table_t){.size = sizeof gather.block_table, .format = KVX_BLOCK_TABLE_PACKED, .index_dtype = KVX_DTYPE_S32,
                                                 .seq_count = 2, .beam_width = 1, .max_blocks_per_seq = 2, .indices = packed, .indices_count = 4};
        SHOW(kvx_gather_kv(&cache, &gather, NULL));
        SHOW(fnv(key_out, sizeof key_out) >> 1);
        gather.block_table = (kvx_block_table_t){.size = sizeof gather.block_table, .format = KVX_BLOCK_TABLE_RAGGED, .index_dtype = KVX_DTYPE_S32,
                                                 .indptr_dtype = KVX_DTYPE_S32, .seq_count = 2, .beam_width = 1, .indices = ragged,
                                                 .indptr = starts, .indices_count = 6, .indptr_count = 3};
        SHOW(kvx_gather_kv(&cache, &gather, NULL));
        SHOW(fnv(value_out, sizeof value_out) >> 1);
    }

    /* Quantised, in both formats. */
    write.k_scale = &scale;
    write.v_scale_desc = (kvx_scale_desc_t){.size = sizeof write.v_scale_desc, .dtype = KVX_DTYPE_F32, .granularity = KVX_SCALE_PER_TENSOR, .data = &scale};
    for (kvx_dtype_t dtype = KVX_DTYPE_F8_E4M3; dtype <= KVX_DTYPE_F8_E5M2; dtype++) {
        cache = cache_of(KVX_LAYOUT_BLOCK_NHD, dtype, k_codes, v_codes);
        SHOW(kvx_write_kv(&cache, &write, NULL));
        SHOW(fnv(k_codes, sizeof k_codes) >> 1);
        SHOW(fnv(v_codes, sizeof v_codes) >> 1);
    }

    /* Offsets into a pool of one layer, K and V beside each other. */
    fill(pool, sizeof pool, 4);
    static const int32_t offsets[] = {2, 6, 3, 7, 10, 0, 11, 1};
    int64_t stride[4] = {2 * BLOCK * ROW, ROW, DIM, 1};
    cache = cache_of(KVX_LAYOUT_BLOCK_CUSTOM, KVX_DTYPE_F16, pool[0][0], pool[0][1]);
    memcpy(cache.k.stride, stride, sizeof stride), memcpy(cache.v.stride, stride, sizeof stride);
    cache.pool = (kvx_pool_desc_t){sizeof cache.pool, KVX_MEMORY_HOST, BLOCK * ROW * 2, pool, NULL};
    gather.io = io_of(KVX_DTYPE_F16, 4, sequences, key_halves, value_halves);
    gather.block_table = (kvx_block_table_t){.size = sizeof gather.block_table, .format = KVX_BLOCK_TABLE_KV_OFFSETS, .index_dtype = KVX_DTYPE_S32,
                                             .seq_count = 2, .beam_width = 1, .max_blocks_per_seq = 2, .indices = offsets, .indices_count = 8,
                                             .flags = KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX};
    SHOW(kvx_gather_kv(&cache, &gather, NULL));
    SHOW(fnv(key_halves, sizeof key_halves) >> 1);
    SHOW(fnv(value_halves, sizeof value_halves) >> 1);

    /* Each status. */
    gather.block_table.flags = KVX_BLOCK_TABLE_FLAG_NONE;
    SHOW(kvx_gather_kv(&cache, &gather, NULL));
    cache = cache_of(KVX_LAYOUT_BLOCK_NHD, KVX_DTYPE_F32, k, v);
    SHOW(kvx_validate_cache_desc(NULL));
    SHOW(kvx_write_kv(&cache, NULL, NULL));
    SHOW(kvx_gather_kv(&cache, NULL, NULL));
    slots[0] = BLOCKS * BLOCK;
    SHOW(kvx_write_kv(&cache, &write, NULL));
    cache.k.memory = cache.v.memory = KVX_MEMORY_DEVICE;
    SHOW(kvx_validate_cache_desc(&cache));
    cache.k.memory = cache.v.memory = KVX_MEMORY_HOST;
    cache.size -= 8;
    SHOW(kvx_validate_cache_desc(&cache));
    cache.size += 16;
    SHOW(kvx_validate_cache_desc(&cache));
    return 0;
}
