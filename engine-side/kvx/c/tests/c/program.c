/* A consumer that knows nothing but kvx_abi.h. C11 and C++17. Exits with the line that failed. */
#include "kvx_abi.h"

#include <string.h>

#define CHECK(condition)         \
    do {                         \
        if (!(condition)) {      \
            return __LINE__ % 255 + 1; \
        }                        \
    } while (0)

enum { BLOCKS = 3, BLOCK = 2, HEADS = 2, DIM = 4, TOKENS = 3, ROW = HEADS * DIM };

static float k_pool[BLOCKS * BLOCK * ROW], v_pool[BLOCKS * BLOCK * ROW];
static float key[TOKENS * ROW], value[TOKENS * ROW];
static float key_out[4 * ROW], value_out[4 * ROW];

static kvx_tensor_desc_t tensor(kvx_layout_t layout, uint32_t ndim, const int64_t *shape,
                                void *data) {
    kvx_tensor_desc_t t;
    int64_t step = 1;
    uint32_t i;
    memset(&t, 0, sizeof t);
    t.size = (uint32_t)sizeof t;
    t.dtype = KVX_DTYPE_F32;
    t.layout = layout;
    t.memory = KVX_MEMORY_HOST;
    t.ndim = ndim;
    for (i = ndim; i-- > 0;) {
        t.shape[i] = shape[i];
        t.stride[i] = step;
        step *= shape[i];
    }
    t.data = data;
    return t;
}

static kvx_kv_io_desc_t tokens(uint32_t ndim, const int64_t *shape, uint32_t count, void *k, void *v) {
    kvx_kv_io_desc_t io;
    memset(&io, 0, sizeof io);
    io.size = (uint32_t)sizeof io;
    io.key = tensor(KVX_LAYOUT_BLOCK_CUSTOM, ndim, shape, k);
    io.value = tensor(KVX_LAYOUT_BLOCK_CUSTOM, ndim, shape, v);
    io.num_tokens = count;
    io.num_kv_heads = HEADS;
    io.head_dim = DIM;
    return io;
}

int main(void) {
    const int64_t pool_shape[4] = {BLOCKS, HEADS, BLOCK, DIM};
    const int64_t token_shape[3] = {TOKENS, HEADS, DIM};
    const int64_t out_shape[4] = {1, 4, HEADS, DIM};
    const int64_t slots[TOKENS] = {4, 5, 1};
    const int32_t blocks[2] = {2, 0};
    const int32_t length = 4;
    kvx_version_t version;
    kvx_cache_desc_t cache;
    kvx_write_desc_t write;
    kvx_gather_desc_t gather;
    int i;

    CHECK(kvx_get_version(&version) == KVX_STATUS_OK);
    CHECK(version.size == sizeof version);
    CHECK(version.abi_major == KVX_ABI_VERSION_MAJOR && version.abi_minor == KVX_ABI_VERSION_MINOR);

    memset(&cache, 0, sizeof cache);
    cache.size = (uint32_t)sizeof cache;
    cache.num_blocks = BLOCKS;
    cache.block_size = BLOCK;
    cache.num_kv_heads = HEADS;
    cache.head_dim = DIM;
    cache.k = tensor(KVX_LAYOUT_BLOCK_HND, 4, pool_shape, k_pool);
    cache.v = tensor(KVX_LAYOUT_BLOCK_HND, 4, pool_shape, v_pool);
    CHECK(kvx_validate_cache_desc(&cache) == KVX_STATUS_OK);
    cache.k.stride[0]++;
    CHECK(kvx_validate_cache_desc(&cache) == KVX_STATUS_UNSUPPORTED);
    cache.k.stride[0]--;

    for (i = 0; i < TOKENS * ROW; i++) {
        key[i] = (float)(i + 1);
        value[i] = (float)(-i - 1);
    }
    memset(&write, 0, sizeof write);
    write.size = (uint32_t)sizeof write;
    write.io = tokens(3, token_shape, TOKENS, key, value);
    write.slots.size = (uint32_t)sizeof write.slots;
    write.slots.dtype = KVX_DTYPE_S64;
    write.slots.token_count = TOKENS;
    write.slots.invalid_slot = -1;
    write.slots.slots = slots;
    CHECK(kvx_write_kv(&cache, &write, NULL) == KVX_STATUS_OK);

    memset(&gather, 0, sizeof gather);
    gather.size = (uint32_t)sizeof gather;
    gather.io = tokens(4, out_shape, 4, key_out, value_out);
    gather.block_table.size = (uint32_t)sizeof gather.block_table;
    gather.block_table.format = KVX_BLOCK_TABLE_PACKED;
    gather.block_table.index_dtype = KVX_DTYPE_S32;
    gather.block_table.seq_count = 1;
    gather.block_table.beam_width = 1;
    gather.block_table.max_blocks_per_seq = 2;
    gather.block_table.indices = blocks;
    gather.block_table.indices_count = 2;
    gather.seq_lens.size = (uint32_t)sizeof gather.seq_lens;
    gather.seq_lens.dtype = KVX_DTYPE_S32;
    gather.seq_lens.seq_count = 1;
    gather.seq_lens.lengths = &length;
    gather.max_seq_len = 4;
    CHECK(kvx_gather_kv(&cache, &gather, NULL) == KVX_STATUS_OK);

    /* Block 2 has tokens 0 and 1; block 0 nothing, then token 2. */
    for (i = 0; i < ROW; i++) {
        CHECK(key_out[i] == key[i] && key_out[ROW + i] == key[ROW + i]);
        CHECK(key_out[2 * ROW + i] == 0 && key_out[3 * ROW + i] == key[2 * ROW + i]);
        CHECK(value_out[3 * ROW + i] == value[2 * ROW + i]);
    }
    return 0;
}
