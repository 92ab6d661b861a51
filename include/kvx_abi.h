/*
 * kvx_abi.h - the KVX C ABI, version 1.1: paged KV caches, written by slot
 * and gathered by block table.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A KV cache is two tensors, K and V. Each is a pool of `num_blocks` blocks of
 * `block_size` tokens; a token has `num_kv_heads` heads of `head_dim` elements.
 * Slot s is token s % block_size of block s / block_size.
 *
 *     kvx_status_t kvx_write_kv(cache, write, NULL);    tokens -> slots
 *     kvx_status_t kvx_gather_kv(cache, gather, NULL);  sequences -> tokens
 *
 * This text describes the ABI and, where a paragraph starts with "Here:", what
 * this library does where the ABI leaves it open.
 *
 * DESCRIPTORS. Each struct starts with `size`, which the caller sets to the
 * sizeof of that struct, nested structs included. A smaller size is
 * INVALID_ARGUMENT; a larger one is a later minor version's, and accepted.
 * Fields without meaning for a call are not looked at, so zero does for them.
 * A call reads descriptors where they are: nobody may write them meanwhile.
 *
 * ALL OR NOTHING. A call is checked as a whole, slots and table entries
 * included, before its first byte is written. A status other than OK means
 * that nothing was written (but for INTERNAL_ERROR, which says nothing).
 *
 * MEMORY. The caller owns every buffer; none is kept after the call. Strides
 * are in elements, pointers may have any alignment. The stride of a dimension
 * of extent 1 is not looked at (but for stride[0] of k and v with KV_OFFSETS,
 * see kvx_pool_desc_t).
 * Here: HOST and UNIFIED memory. DEVICE is UNSUPPORTED, which the first such
 * call also says on standard error, unless KV_STORE_WASM_LOG is off. Large
 * calls are fastest where the buffers start on 64 bytes. Buffers that are
 * written must not overlap each other or those that are read
 * (INVALID_ARGUMENT); K and V may share one buffer as long as no element of the
 * one overlaps one of the other and their strides are equal.
 *
 * THREADS. Any function may be called from any number of threads at once, on
 * one cache too, as long as no slot is written by one call and used by another.
 * Here: a call runs on its caller's thread. With KVX_THREADS=n in the
 * environment (read at the first call; default 1) a call that moves 8 MiB or
 * more may use up to n threads, which have ended when it returns.
 * `stream` is for devices and not used.
 *
 * STATUS. Where more than one of these applies, it is any of them:
 *   INVALID_ARGUMENT  a descriptor is NULL, malformed or contradicts another
 *   UNSUPPORTED       well-formed, but this library does not do it
 *   OUT_OF_RANGE      a slot, block id, KV offset, indptr entry or length
 *                     points outside of its bounds
 *   INTERNAL_ERROR    a bug, or out of memory
 *   INCOMPATIBLE      for consumers: what to answer when a provider's major
 *                     version differs; no function here returns it
 */
#ifndef KVX_ABI_H
#define KVX_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVX_ABI_VERSION_MAJOR 1
#define KVX_ABI_VERSION_MINOR 1

/* Stands before each function of the ABI, and may stand before a consumer's own. Here: empty. */
#ifndef KVX_API
#define KVX_API
#endif

/* Dimensions of the largest tensor. */
#define KVX_MAX_TENSOR_DIMS 5

typedef enum kvx_status {
    KVX_STATUS_OK = 0,
    KVX_STATUS_INVALID_ARGUMENT = 1,
    KVX_STATUS_UNSUPPORTED = 2,
    KVX_STATUS_OUT_OF_RANGE = 3,
    KVX_STATUS_INCOMPATIBLE = 4,
    KVX_STATUS_INTERNAL_ERROR = 5
} kvx_status_t;

/*
 * Caches and tokens are F16, BF16, F32, F8_E4M3 or F8_E5M2 (OCP FP8: E4M3 has
 * NaN and no infinity, its largest value is 448; E5M2 has both, 57344).
 * Indices are S32 or S64. The others are reserved.
 */
typedef enum kvx_dtype {
    KVX_DTYPE_INVALID = 0,
    KVX_DTYPE_F16 = 1,
    KVX_DTYPE_BF16 = 2,
    KVX_DTYPE_F32 = 3,
    KVX_DTYPE_F8_E4M3 = 4,
    KVX_DTYPE_F8_E5M2 = 5,
    KVX_DTYPE_S32 = 6,
    KVX_DTYPE_S64 = 7,
    KVX_DTYPE_U32 = 8,
    KVX_DTYPE_U64 = 9,
    KVX_DTYPE_U8 = 10
} kvx_dtype_t;

typedef enum kvx_memory_type {
    KVX_MEMORY_UNKNOWN = 0, /* INVALID_ARGUMENT */
    KVX_MEMORY_HOST = 1,
    KVX_MEMORY_DEVICE = 2,
    KVX_MEMORY_UNIFIED = 3
} kvx_memory_type_t;

/*
 * The shape of K and V. Strides of the first three are those of a dense
 * row-major tensor of that shape; others are UNSUPPORTED. K and V have the same
 * layout; `pack` and CUSTOM strides may differ.
 *
 *   NHD         [num_blocks, block_size, num_kv_heads, head_dim]
 *   HND         [num_blocks, num_kv_heads, block_size, head_dim]
 *   HND_PACKED  [num_blocks, num_kv_heads, head_dim / pack, block_size, pack],
 *               where pack = shape[4] divides head_dim
 *   CUSTOM      Here: the shape of NHD with any strides that nest: from the
 *               smallest up, each passes the farthest offset that the smaller
 *               ones reach together (dimensions of extent 1 have no say). Any
 *               order of dimensions, with or without gaps, does. Others, and
 *               negative ones, are INVALID_ARGUMENT.
 */
typedef enum kvx_layout {
    KVX_LAYOUT_INVALID = 0,
    KVX_LAYOUT_BLOCK_NHD = 1,
    KVX_LAYOUT_BLOCK_HND = 2,
    KVX_LAYOUT_BLOCK_HND_PACKED = 3,
    KVX_LAYOUT_BLOCK_CUSTOM = 15
} kvx_layout_t;

typedef enum kvx_block_table_format {
    KVX_BLOCK_TABLE_INVALID = 0,
    KVX_BLOCK_TABLE_PACKED = 1,
    KVX_BLOCK_TABLE_RAGGED = 2,
    KVX_BLOCK_TABLE_KV_OFFSETS = 3
} kvx_block_table_format_t;

typedef enum kvx_block_table_flags {
    KVX_BLOCK_TABLE_FLAG_NONE = 0,
    KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX = 1
} kvx_block_table_flags_t;

typedef enum kvx_scale_granularity {
    KVX_SCALE_NONE = 0,
    KVX_SCALE_PER_TENSOR = 1,
    KVX_SCALE_PER_BLOCK = 2,
    KVX_SCALE_PER_HEAD = 3,
    KVX_SCALE_PER_BLOCK_HEAD = 4
} kvx_scale_granularity_t;

/* The version of a library. A consumer rejects another abi_major than its own. */
typedef struct kvx_version {
    uint32_t size;
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t abi_patch;
} kvx_version_t;

/* A tensor in memory: K or V of a cache, or key or value of tokens. */
typedef struct kvx_tensor_desc {
    uint32_t size;
    kvx_dtype_t dtype;
    kvx_layout_t layout; /* of a cache; not looked at for tokens */
    kvx_memory_type_t memory;
    uint32_t ndim; /* must be that of the layout */
    int64_t shape[KVX_MAX_TENSOR_DIMS];
    int64_t stride[KVX_MAX_TENSOR_DIMS]; /* in elements */
    void *data;
} kvx_tensor_desc_t;

/*
 * What the offsets of a KV_OFFSETS table count in. Only a gather with such a
 * table looks at it; it then reads blocks from here and not from k.data and
 * v.data, whose layout still says how a block looks inside.
 *
 * UNIT. An offset counts units of bytes_per_block bytes from the base of its
 * pool. A unit holds one block of K, or one block of V, of one layer.
 * TensorRT-LLM's pools are [blocks, layers, 2 (K, V)] units. With `primary` at
 * the first unit of a layer, pool + layer * 2 * bytes_per_block, K of block b
 * is offset b * 2 * layers and V of it is one more; so one table serves every
 * layer.
 *
 * Here: BOUND. The ABI gives pools no size, so the cache bounds the offsets of
 * K by the strides of k, and those of V by the strides of v. With
 *   s = stride[0] in bytes / bytes_per_block, rounded down and at least 1,
 * an offset is valid below (num_blocks - 1) * s + min(s, 2). That is:
 *   - stride[0] is 2 * layers units (CUSTOM, whose other strides say how a
 *     unit looks inside): num_blocks counts blocks, and the last valid offset
 *     is V of the last block;
 *   - stride[0] is one unit or less (NHD, HND, HND_PACKED): num_blocks counts
 *     units, 2 * layers * blocks of them from the start of a pool, and
 *     2 * layer fewer from the first unit of a layer.
 * Both pools share the bound. Where they differ in size, num_blocks is that of
 * the smaller; offsets past it are OUT_OF_RANGE in the larger, too.
 */
typedef struct kvx_pool_desc {
    uint32_t size;
    kvx_memory_type_t memory;
    uint32_t bytes_per_block; /* of a unit; at least what a block reaches */
    void *primary;            /* as many units as are valid offsets */
    void *secondary;          /* the same, or NULL */
} kvx_pool_desc_t;

/* A cache. All four dimensions are above zero; K and V have the same dtype. */
typedef struct kvx_cache_desc {
    uint32_t size;
    uint32_t num_blocks;
    uint32_t block_size;
    uint32_t num_kv_heads;
    uint32_t head_dim;
    kvx_tensor_desc_t k;
    kvx_tensor_desc_t v;
    kvx_pool_desc_t pool;
} kvx_cache_desc_t;

/*
 * Where the blocks of each sequence are. For all: entries beyond a sequence's
 * length are not read.
 *
 * PACKED: indices is [seq_count, max_blocks_per_seq], a block id each;
 *   indices_count is the product. Token t of a sequence is token
 *   t % block_size of block indices[seq][t / block_size].
 * RAGGED: indices has a block id for each cached token, indices_count in all;
 *   token t of sequence s is token t % block_size of block
 *   indices[indptr[s] + t]. indptr has seq_count + 1 entries, starts at 0,
 *   never falls, and ends at indices_count.
 * KV_OFFSETS: indices is [seq_count, beam_width, 2 (K, V),
 *   max_blocks_per_seq], S32; indices_count is the product. The top bit of an
 *   entry selects the secondary pool; the rest counts units of bytes_per_block
 *   from that pool's base, see kvx_pool_desc_t. flags is
 *   KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX: without it INVALID_ARGUMENT, with
 *   others beside it UNSUPPORTED. block_size is a power of two, cache.pool
 *   filled in.
 *
 * But for RAGGED, indptr is NULL and indptr_count 0. But for KV_OFFSETS,
 * beam_width is 1.
 *
 * A negative block id leaves its part of the output as it was. An id that is
 * not below num_blocks is OUT_OF_RANGE, and so is an offset that is not below
 * the bound of kvx_pool_desc_t, or into a secondary pool that is NULL.
 */
typedef struct kvx_block_table {
    uint32_t size;
    kvx_block_table_format_t format;
    kvx_dtype_t index_dtype;  /* S32 or S64; KV_OFFSETS: S32 */
    kvx_dtype_t indptr_dtype; /* RAGGED: S32 or S64 */
    uint32_t seq_count;
    uint32_t beam_width;
    uint32_t max_blocks_per_seq; /* not looked at for RAGGED */
    const void *indices;
    const void *indptr;
    uint32_t indices_count;
    uint32_t indptr_count;
    uint32_t flags; /* KV_OFFSETS: see above; not looked at otherwise */
} kvx_block_table_t;

/*
 * A slot for each token of a write. A negative slot, or `invalid_slot`, writes
 * nothing. A slot past the cache is OUT_OF_RANGE. Where a slot comes twice, the
 * later token stays.
 */
typedef struct kvx_slot_mapping {
    uint32_t size;
    kvx_dtype_t dtype;    /* S32 or S64 */
    uint32_t token_count; /* io.num_tokens */
    int64_t invalid_slot; /* usually -1 */
    const void *slots;
} kvx_slot_mapping_t;

/* Cached tokens of each sequence. Negative is OUT_OF_RANGE. */
typedef struct kvx_seq_lens {
    uint32_t size;
    kvx_dtype_t dtype;  /* the table's index_dtype */
    uint32_t seq_count; /* the table's seq_count */
    const void *lengths;
} kvx_seq_lens_t;

/*
 * Tokens outside of the cache. key and value have the same dtype and are
 * dense row-major of this shape:
 *   [num_tokens, num_kv_heads, head_dim]
 * or, for a gather, with num_tokens = seq_count * max_seq_len,
 *   [seq_count, max_seq_len, num_kv_heads, head_dim]
 * Here: with KV_OFFSETS, num_tokens = seq_count * beam_width * max_seq_len, and
 *   [seq_count, beam_width, max_seq_len, num_kv_heads, head_dim] or
 *   [seq_count * beam_width, max_seq_len, num_kv_heads, head_dim].
 * Here: tokens may be farther apart than they are long, as in a slice of a
 * fused QKV projection: the stride of the last dimension before num_kv_heads
 * is num_kv_heads * head_dim or more, and the ones before it are those of a
 * dense tensor of such rows. key and value may lie in each other's gaps where
 * their strides are equal. Otherwise the gaps count as part of the tokens when
 * buffers must not overlap. A gather leaves gaps as they were. Other strides
 * are UNSUPPORTED.
 * Without tokens, data may be NULL and no stride is looked at; shape, dtype
 * and memory are.
 *
 * dtype is the cache's, and bytes are copied; or the cache is FP8 and the
 * tokens of a write are F16, BF16 or F32, and are quantised. Other pairs are
 * INVALID_ARGUMENT.
 */
typedef struct kvx_kv_io_desc {
    uint32_t size;
    kvx_tensor_desc_t key;
    kvx_tensor_desc_t value;
    uint32_t num_tokens;
    uint32_t num_kv_heads; /* the cache's */
    uint32_t head_dim;     /* the cache's */
} kvx_kv_io_desc_t;

/*
 * Scales of an FP8 cache: stored = x / scale, the quotient in F32, rounded to
 * nearest even; what is too large (infinities too) becomes the largest value,
 * NaN stays NaN, signs stay.
 *
 *   PER_TENSOR      one element: ndim 0, or every shape[] 1
 *   PER_BLOCK       [num_blocks]
 *   PER_HEAD        [num_kv_heads]
 *   PER_BLOCK_HEAD  [num_blocks, num_kv_heads]
 *
 * Strides are in elements, zero or more. dtype is F32; F16 and BF16 are
 * UNSUPPORTED. The scales that a write uses must be finite and above zero, or
 * it is INVALID_ARGUMENT: those of PER_TENSOR and PER_HEAD by every write that
 * quantises, even of no tokens; those of a block by one that has a token for
 * it. Those of other blocks may hold anything.
 */
typedef struct kvx_scale_desc {
    uint32_t size;
    kvx_dtype_t dtype;
    kvx_scale_granularity_t granularity;
    uint32_t ndim;
    int64_t shape[KVX_MAX_TENSOR_DIMS];
    int64_t stride[KVX_MAX_TENSOR_DIMS];
    const void *data; /* NULL: k_scale or v_scale is used instead */
} kvx_scale_desc_t;

/*
 * A write. Scales are looked at only where tokens are quantised; then K and V
 * each need one: a scale desc with data, or else k_scale / v_scale, which
 * point to one F32 for the whole tensor.
 */
typedef struct kvx_write_desc {
    uint32_t size;
    kvx_kv_io_desc_t io;
    kvx_slot_mapping_t slots;
    const void *k_scale;
    const void *v_scale;
    kvx_scale_desc_t k_scale_desc;
    kvx_scale_desc_t v_scale_desc;
} kvx_write_desc_t;

/*
 * A gather. Row t of sequence s gets token t, for t below the sequence's
 * length and below max_seq_len; other rows stay as they were. A length that
 * the table has no entries for (the part below max_seq_len with PACKED and
 * KV_OFFSETS, all of it with RAGGED) is OUT_OF_RANGE.
 * Here: seq_count, max_seq_len, max_blocks_per_seq and every length may be 0.
 * A gather that has nothing to do and is otherwise well-formed is OK.
 */
typedef struct kvx_gather_desc {
    uint32_t size;
    kvx_kv_io_desc_t io;
    kvx_block_table_t block_table;
    kvx_seq_lens_t seq_lens;
    uint32_t max_seq_len;
} kvx_gather_desc_t;

/* Fills *out, `size` included; what it held is not read. NULL: INVALID_ARGUMENT. */
KVX_API kvx_status_t kvx_get_version(kvx_version_t *out);

/*
 * Checks a cache descriptor, `pool` excepted, without touching K and V. A write
 * checks the same by itself. So does a gather, but that K and V share no byte
 * (see MEMORY): it only reads them, or, with KV_OFFSETS, not even that.
 */
KVX_API kvx_status_t kvx_validate_cache_desc(const kvx_cache_desc_t *cache);

/* Writes tokens to slots. */
KVX_API kvx_status_t kvx_write_kv(const kvx_cache_desc_t *cache, const kvx_write_desc_t *write,
                                  void *stream);

/* Gathers sequences into tokens. */
KVX_API kvx_status_t kvx_gather_kv(const kvx_cache_desc_t *cache, const kvx_gather_desc_t *gather,
                                   void *stream);

/* The ABI is these sizes and offsets on 64-bit targets. Checked from C11 and C++11 on; older
 * languages have no static assertion. */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define KVX_ASSERT_(condition) static_assert(condition, #condition)
#elif !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define KVX_ASSERT_(condition) _Static_assert(condition, #condition)
#endif
#if defined(KVX_ASSERT_) && UINTPTR_MAX == UINT64_MAX
KVX_ASSERT_(sizeof(kvx_status_t) == 4);
KVX_ASSERT_(sizeof(kvx_version_t) == 16);
KVX_ASSERT_(sizeof(kvx_tensor_desc_t) == 112);
KVX_ASSERT_(offsetof(kvx_tensor_desc_t, ndim) == 16);
KVX_ASSERT_(offsetof(kvx_tensor_desc_t, shape) == 24);
KVX_ASSERT_(offsetof(kvx_tensor_desc_t, stride) == 64);
KVX_ASSERT_(offsetof(kvx_tensor_desc_t, data) == 104);
KVX_ASSERT_(sizeof(kvx_pool_desc_t) == 32);
KVX_ASSERT_(offsetof(kvx_pool_desc_t, bytes_per_block) == 8);
KVX_ASSERT_(offsetof(kvx_pool_desc_t, primary) == 16);
KVX_ASSERT_(offsetof(kvx_pool_desc_t, secondary) == 24);
KVX_ASSERT_(sizeof(kvx_cache_desc_t) == 280);
KVX_ASSERT_(offsetof(kvx_cache_desc_t, head_dim) == 16);
KVX_ASSERT_(offsetof(kvx_cache_desc_t, k) == 24);
KVX_ASSERT_(offsetof(kvx_cache_desc_t, v) == 136);
KVX_ASSERT_(offsetof(kvx_cache_desc_t, pool) == 248);
KVX_ASSERT_(sizeof(kvx_block_table_t) == 64);
KVX_ASSERT_(offsetof(kvx_block_table_t, seq_count) == 16);
KVX_ASSERT_(offsetof(kvx_block_table_t, indices) == 32);
KVX_ASSERT_(offsetof(kvx_block_table_t, indptr) == 40);
KVX_ASSERT_(offsetof(kvx_block_table_t, indices_count) == 48);
KVX_ASSERT_(offsetof(kvx_block_table_t, flags) == 56);
KVX_ASSERT_(sizeof(kvx_slot_mapping_t) == 32);
KVX_ASSERT_(offsetof(kvx_slot_mapping_t, invalid_slot) == 16);
KVX_ASSERT_(offsetof(kvx_slot_mapping_t, slots) == 24);
KVX_ASSERT_(sizeof(kvx_seq_lens_t) == 24);
KVX_ASSERT_(offsetof(kvx_seq_lens_t, lengths) == 16);
KVX_ASSERT_(sizeof(kvx_kv_io_desc_t) == 248);
KVX_ASSERT_(offsetof(kvx_kv_io_desc_t, key) == 8);
KVX_ASSERT_(offsetof(kvx_kv_io_desc_t, value) == 120);
KVX_ASSERT_(offsetof(kvx_kv_io_desc_t, num_tokens) == 232);
KVX_ASSERT_(sizeof(kvx_scale_desc_t) == 104);
KVX_ASSERT_(offsetof(kvx_scale_desc_t, shape) == 16);
KVX_ASSERT_(offsetof(kvx_scale_desc_t, stride) == 56);
KVX_ASSERT_(offsetof(kvx_scale_desc_t, data) == 96);
KVX_ASSERT_(sizeof(kvx_write_desc_t) == 512);
KVX_ASSERT_(offsetof(kvx_write_desc_t, slots) == 256);
KVX_ASSERT_(offsetof(kvx_write_desc_t, k_scale) == 288);
KVX_ASSERT_(offsetof(kvx_write_desc_t, k_scale_desc) == 304);
KVX_ASSERT_(offsetof(kvx_write_desc_t, v_scale_desc) == 408);
KVX_ASSERT_(sizeof(kvx_gather_desc_t) == 352);
KVX_ASSERT_(offsetof(kvx_gather_desc_t, block_table) == 256);
KVX_ASSERT_(offsetof(kvx_gather_desc_t, seq_lens) == 320);
KVX_ASSERT_(offsetof(kvx_gather_desc_t, max_seq_len) == 344);
#endif
#undef KVX_ASSERT_

#ifdef __cplusplus
}
#endif

#endif /* KVX_ABI_H */
