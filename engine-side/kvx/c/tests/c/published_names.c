/*
 * A consumer that was written for the published header: every tag, KVX_API before functions of its own, and nothing of
 * ours. It is only compiled, in every language from C99 and C++98 on.
 */
struct kvx_cache_desc;
struct kvx_write_desc;

/* As an engine's own header may do, before it includes that of the ABI. */
#ifdef __cplusplus
extern "C" {
#endif
int engine_write(const struct kvx_cache_desc *cache, const struct kvx_write_desc *write);
#ifdef __cplusplus
}
#endif

#include "kvx_abi.h"

KVX_API kvx_status_t engine_launch_write(const kvx_cache_desc_t *cache, const kvx_write_desc_t *write, void *stream);

KVX_API kvx_status_t engine_launch_write(const kvx_cache_desc_t *cache, const kvx_write_desc_t *write, void *stream) {
    return kvx_write_kv(cache, write, stream);
}

int engine_write(const struct kvx_cache_desc *cache, const struct kvx_write_desc *write) {
    enum kvx_status status = engine_launch_write(cache, write, NULL);
    return (int)status;
}

/* A tag and its typedef name one type, or these do not compile. */
struct engine_descriptors {
    struct kvx_version *version;
    struct kvx_tensor_desc *tensor;
    struct kvx_pool_desc *pool;
    struct kvx_block_table *table;
    struct kvx_slot_mapping *slots;
    struct kvx_seq_lens *lens;
    struct kvx_kv_io_desc *io;
    struct kvx_scale_desc *scale;
    struct kvx_gather_desc *gather;
    enum kvx_dtype dtype;
    enum kvx_memory_type memory;
    enum kvx_layout layout;
    enum kvx_block_table_format format;
    enum kvx_block_table_flags flags;
    enum kvx_scale_granularity granularity;
};

void engine_read(struct engine_descriptors *d);

void engine_read(struct engine_descriptors *d) {
    static kvx_version_t version;
    static kvx_tensor_desc_t tensor;
    static kvx_pool_desc_t pool;
    static kvx_block_table_t table;
    static kvx_slot_mapping_t slots;
    static kvx_seq_lens_t lens;
    static kvx_kv_io_desc_t io;
    static kvx_scale_desc_t scale;
    static kvx_gather_desc_t gather;
    d->version = &version;
    d->tensor = &tensor;
    d->pool = &pool;
    d->table = &table;
    d->slots = &slots;
    d->lens = &lens;
    d->io = &io;
    d->scale = &scale;
    d->gather = &gather;
    d->dtype = tensor.dtype;
    d->memory = tensor.memory;
    d->layout = tensor.layout;
    d->format = table.format;
    d->flags = KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX;
    d->granularity = scale.granularity;
    tensor.shape[KVX_MAX_TENSOR_DIMS - 1] = 1;
}
