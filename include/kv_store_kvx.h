/*
 * kv_store_kvx.h - sequences straight between an engine's paged KV cache and
 * a store: libkv_store_wasm.so's bridge from kvx_abi.h to kv_store_abi.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     kvx_cache_desc_t caches[32];
 *     for (int layer = 0; layer < 32; layer++)
 *         caches[layer] = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_NHD, KVX_DTYPE_F16,
 *             num_blocks, block_size, heads, head_dim, k[layer], v[layer]);
 *     kv_store_kvx_save_t save = {0};
 *     save.size = sizeof save;
 *     save.name = "conversation-7";
 *     save.model = "some-model, revision 3, rank 0 of 2";
 *     save.layers = caches;
 *     save.num_layers = 32;
 *     save.blocks = block_ids;            // of the sequence, in order
 *     save.block_dtype = KVX_DTYPE_S32;
 *     save.num_blocks = 7;
 *     save.num_tokens = 100;
 *     const kv_store_kvx_vtable_t *kvx = kv_store_kvx_get_vtable();
 *     if (kvx->save(store, &save, NULL) < 0) ...not saved...
 *
 * A save gathers the tokens of all layers out of the pages into memory that
 * the store takes over, and hashes them on the way. It puts them as chunks, and
 * publishes a manifest under `name`. A restore fetches the chunks, checks them,
 * and scatters them into pages from the memory that they were received in.
 * Each byte is copied once in either direction. Write-through backends
 * (local-fs, memory) need no gathered copy if tokens are dense in the pages:
 * NHD, stored unconverted, 4 KiB or more of K and of V in a block of each
 * layer. Then local-fs writes directly from the pages, and memory makes the
 * one copy that it keeps.
 *
 * A chunk has some tokens of all layers, and its bytes depend on the values of
 * these tokens only: not on layouts, block sizes or block ids. So sequences
 * with a common prefix share its chunks, if they are saved with the same
 * `chunk_tokens`, also across engines. Chunks are keyed by XXH3-64 of their
 * content, and the manifest has 64 more bits; docs/kvx-manifest.md describes
 * its format, and what these 128 bits are good for and what not.
 *
 * Only libkv_store_wasm.so has these functions. They take a handle that this
 * library's kv_store_v1 opened.
 *
 * DESCRIPTORS start with `size`, the sizeof of the struct. The size of an
 * earlier version of the struct is taken, with 0 for the fields that it did not
 * have; any other smaller one is refused, and a larger one is a later
 * version's. Arrays of descriptors have all elements of one `size`. Fields
 * without meaning are not looked at, so zero does for them.
 *
 * RETURNS. 0, or one of these codes of kv_store_status.h. A failure but
 * KV_STORE_MISSING is also one line on standard error, at once for each store
 * and cause and then once a minute at most, with a count. With a `result`, its
 * message says the same of each; so does last_error.
 *   UNAVAILABLE  the server is not reachable, is busy, or did not answer in time
 *   DENIED       the operator, or the storage system, does not allow it
 *   EXHAUSTED    no room: a limit of the host or the store, or no memory
 *   INVALID      what was passed makes no sense or contradicts itself, layers of
 *                a restore share memory, or a chunk is larger than the store takes
 *   CORRUPT      manifest or chunk are damaged. A damaged chunk has been removed
 *                from the store, as get_chunk of kv_store_abi.h does it: the next
 *                save, by whichever process, stores it again. A damaged manifest
 *                is replaced by the next save
 *   UNSUPPORTED  well-formed, but not offered here: device memory, a conversion
 *                that the kernels do not have; or the handle is that of a parent
 *                process
 *   COMPONENT    the backend's component failed; the next call gets a new one
 *   MISMATCH     saved of another model, geometry, layout, dtype or number of
 *                tokens
 *   CANCELLED    the call was cancelled by its owner
 *   VERSION      saved by a later version, whose manifest this library does not
 *                read
 *   MISSING      nothing was saved under the name, or a chunk of it is gone:
 *                prefill
 *   OTHER        none of the others
 *
 * TIME. A call is several calls of the backend, one after another (the
 * manifest, then batches of chunks), and each has the operator's deadline: 10 s
 * and a second for each 8 MiB unless the config says otherwise. Where a server
 * does not answer, a restore ends after the first of them, and a save after two
 * at most. `timeout_ms` bounds all of them together: when the time is over, the
 * call fails with KV_STORE_UNAVAILABLE, at most half a second later. It
 * does not bound the copying in this process. A call that ends by `timeout_ms`
 * does not count as a failure for the circuit breaker. `describe` is one call of
 * the backend.
 *
 * MEMORY. A save holds one chunk for each of its threads, or none where it
 * lends the pages; where the backend is not written through, also a write
 * buffer of its own, 64 MiB at most, in which chunks wait for the manifest. A
 * restore holds what `max_bytes` says, or 256 MiB, and keeps up to 64 MiB of it
 * in the process for the next one.
 *
 * THREADS, FORK: as in kv_store_abi.h; no handle is kept after the call.
 * A call runs on its caller's thread, and on up to `threads` - 1 of the
 * library's own, of which there is at most one for each core. Those block all
 * signals, are kept for the next call, and use nothing of the caller's once it
 * has returned. During a save nobody may write the blocks that are saved, and
 * during a restore nobody may use the slots that are written. HOST and UNIFIED
 * memory.
 */
#ifndef KV_STORE_KVX_H
#define KV_STORE_KVX_H

#include "kv_store_abi.h"
#include "kv_store_status.h"
#include "kvx_abi.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the vtable described here. */
#define KV_STORE_KVX_VTABLE_VERSION 1u

/* The symbol that the library exports, for dlsym. */
#define KV_STORE_KVX_GET_VTABLE_SYMBOL "kv_store_kvx_get_vtable"

/* The longest `model`. */
#define KV_STORE_KVX_MAX_MODEL 256
/* The most layers. */
#define KV_STORE_KVX_MAX_LAYERS 1024

/* What came of a call. */
typedef struct kv_store_kvx_result_t {
    uint32_t size; /* set by the caller */
    /*
     * Save: tokens saved; 0 after a failure.
     * Restore: that many tokens, from the first on, are in their slots in all
     * layers. After a failure the slots of all others are as they were.
     */
    uint32_t tokens;
    uint32_t saved_tokens; /* tokens under the name; 0 after a failure */
    uint32_t chunks;       /* put, or fetched; 0 after a failure */
    uint32_t existed;      /* save: of those, the store is known to have had */
    uint32_t reserved;
    uint64_t bytes;        /* of these chunks */
    char message[256];     /* NUL-terminated; empty after success */
} kv_store_kvx_result_t;

/*
 * Read the chunks that the store has already, and store damaged ones again;
 * costs about as much as a restore of them. Without this flag existing chunks
 * are trusted.
 */
#define KV_STORE_KVX_VERIFY 1u

/* A save of one sequence, all layers of it. */
typedef struct kv_store_kvx_save_t {
    uint32_t size;
    uint32_t num_layers;
    /*
     * A cache for each layer; `pool` is not looked at. They have the same
     * block_size; heads, head_dim, layout and dtype may differ.
     */
    const kvx_cache_desc_t *layers;
    const char *name; /* of the manifest */
    /*
     * Identifies the values: everything by which values of the same shape can
     * differ, such as the model, its revision, the rank of a split model. A
     * restore with another text is refused. NULL: "".
     */
    const char *model;
    /*
     * The sequence's block ids in order, S32 or S64, the same in every layer:
     * token t is token t % block_size of block blocks[t / block_size]. None
     * that num_tokens reach may be negative.
     */
    const void *blocks;
    kvx_dtype_t block_dtype;
    uint32_t num_blocks;
    uint32_t num_tokens; /* above zero */
    /* Tokens of a chunk, a multiple of block_size; 0: 256, rounded up to one. */
    uint32_t chunk_tokens;
    /*
     * KVX_DTYPE_INVALID: store what the caches hold, as it is. F16, BF16 or
     * F32: dequantise FP8 caches, with k_scales and v_scales.
     */
    kvx_dtype_t stored_dtype;
    uint32_t threads; /* the most to use, the caller's included; 0 is 1 */
    /* num_layers of them, or NULL; those of layers that are stored as they are
       have a `size` only. Where no layer is converted they are not looked at. */
    const kvx_scale_desc_t *k_scales;
    const kvx_scale_desc_t *v_scales;
    uint32_t flags;      /* KV_STORE_KVX_VERIFY */
    uint32_t timeout_ms; /* see TIME; 0: none */
} kv_store_kvx_save_t;

/*
 * Restore into caches of another layout than was saved from. Block sizes may
 * differ in any case: slots say where tokens go.
 */
#define KV_STORE_KVX_CONVERT_LAYOUT 1u
/* Quantise what was saved as F16, BF16 or F32 into FP8 caches, with scales. */
#define KV_STORE_KVX_CONVERT_DTYPE 2u

/* A restore of one sequence, or of its first tokens, all layers of it. */
typedef struct kv_store_kvx_restore_t {
    uint32_t size;
    uint32_t num_layers;
    /*
     * As in a save. No layer has a byte in common with another one, or its K
     * with its V. They may lie interleaved in one buffer, with equal shapes and
     * strides.
     */
    const kvx_cache_desc_t *layers;
    const char *name;
    const char *model;
    /*
     * A slot for each token, from the first on; at most as many as were saved.
     * Tokens with a negative slot, or invalid_slot, are left out, and chunks of
     * which no token has a slot are not fetched: an engine that has a prefix in
     * its pages already pays for the rest only.
     */
    kvx_slot_mapping_t slots;
    uint32_t flags;
    uint32_t threads;
    /*
     * The most payload bytes to hold at once; 0: 256 MiB. A sequence that fits
     * is restored as a whole or not at all. A larger one is restored in order,
     * in parts of this size (at least one chunk), each as a whole or not at
     * all, after all chunks were found to exist.
     */
    uint64_t max_bytes;
    /* Of these caches, as in a save; only FP8 caches need any, and those that
       are restored as they were saved can have `data` NULL. */
    const kvx_scale_desc_t *k_scales;
    const kvx_scale_desc_t *v_scales;
    uint32_t timeout_ms; /* see TIME; 0: none */
    uint32_t reserved;   /* 0 */
} kv_store_kvx_restore_t;

/* What was saved under a name. */
typedef struct kv_store_kvx_info_t {
    uint32_t size; /* set by the caller */
    uint32_t tokens;
    uint32_t chunk_tokens;
    uint32_t num_layers;
    uint32_t block_size; /* where it was saved */
    kvx_dtype_t dtype;   /* of the first layer's values, as stored */
    uint64_t bytes;      /* of all chunks */
} kv_store_kvx_info_t;

/* The functions of the library. Static. Later versions only add members at the end: check `size` before you use one. */
typedef struct kv_store_kvx_vtable {
    uint32_t size;    /* sizeof(kv_store_kvx_vtable_t) of the library */
    uint32_t version; /* 1 */

    /*
     * Save a sequence. When it returns 0, all is as durable as after
     * put_manifest. It is a save of its own: chunks that were put on this
     * handle by put_chunk still wait for a put_manifest, and one that is lost
     * does not fail this call. After a failure the former manifest is
     * untouched, with the exceptions of put_manifest. `result` may be NULL.
     */
    int (*save)(kv_store_v1 *self, const kv_store_kvx_save_t *save, kv_store_kvx_result_t *result);

    /*
     * Restore a sequence. Descriptors, slots, scales and the manifest are
     * checked before a chunk is fetched, and chunks before a page is written.
     * `result` may be NULL.
     */
    int (*restore)(kv_store_v1 *self, const kv_store_kvx_restore_t *restore, kv_store_kvx_result_t *result);

    /* Look up what was saved under a name, without its chunks. */
    int (*describe)(kv_store_v1 *self, const char *name, kv_store_kvx_info_t *info);

    /* Why the last failed call of this thread failed, for a person. Never NULL; valid until the thread's next failure. */
    const char *(*last_error)(void);
} kv_store_kvx_vtable_t;

/* The vtable. Never NULL; safe to call from any thread. */
const kv_store_kvx_vtable_t *kv_store_kvx_get_vtable(void);

/* The type of kv_store_kvx_get_vtable, for the result of dlsym. */
typedef const kv_store_kvx_vtable_t *(*kv_store_kvx_get_vtable_fn)(void);

/*
 * The descriptor of a layer whose K and V are dense in host memory: NHD is
 * [num_blocks, block_size, num_kv_heads, head_dim], HND has the two in the
 * middle the other way round. Pools of another form are described by hand; of
 * another layout this makes a descriptor that calls refuse.
 */
static inline kvx_cache_desc_t kv_store_kvx_cache(kvx_layout_t layout, kvx_dtype_t dtype, uint32_t num_blocks,
                                                  uint32_t block_size, uint32_t num_kv_heads, uint32_t head_dim,
                                                  void *k, void *v)
{
    kvx_cache_desc_t cache;
    kvx_tensor_desc_t tensor;
    int nhd = layout == KVX_LAYOUT_BLOCK_NHD;
    memset(&cache, 0, sizeof cache);
    memset(&tensor, 0, sizeof tensor);
    tensor.size = sizeof tensor;
    tensor.dtype = dtype;
    tensor.layout = layout;
    tensor.memory = KVX_MEMORY_HOST;
    tensor.ndim = 4;
    tensor.shape[0] = num_blocks;
    tensor.shape[1] = nhd ? block_size : num_kv_heads;
    tensor.shape[2] = nhd ? num_kv_heads : block_size;
    tensor.shape[3] = head_dim;
    tensor.stride[3] = 1;
    tensor.stride[2] = tensor.shape[3];
    tensor.stride[1] = tensor.shape[2] * tensor.stride[2];
    tensor.stride[0] = tensor.shape[1] * tensor.stride[1];
    cache.size = sizeof cache;
    cache.num_blocks = num_blocks;
    cache.block_size = block_size;
    cache.num_kv_heads = num_kv_heads;
    cache.head_dim = head_dim;
    cache.k = cache.v = tensor;
    cache.k.data = k;
    cache.v.data = v;
    return cache;
}

/*
 * The slots of the first `num_tokens` tokens of a sequence in its blocks, for a
 * restore: token t goes to token t % block_size of block
 * blocks[t / block_size]. `slots` has room for num_tokens, and is what the
 * mapping points to. -1 is the slot of a token to be left out.
 */
static inline kvx_slot_mapping_t kv_store_kvx_slots(int64_t *slots, uint32_t num_tokens, const int32_t *blocks,
                                                    uint32_t block_size)
{
    kvx_slot_mapping_t mapping;
    uint32_t t;
    for (t = 0; t < num_tokens; t++)
        slots[t] = (int64_t)blocks[t / block_size] * block_size + t % block_size;
    memset(&mapping, 0, sizeof mapping);
    mapping.size = sizeof mapping;
    mapping.dtype = KVX_DTYPE_S64;
    mapping.token_count = num_tokens;
    mapping.invalid_slot = -1;
    mapping.slots = slots;
    return mapping;
}

/* The ABI is these sizes and offsets on 64-bit targets. */
#if UINTPTR_MAX == UINT64_MAX
#ifdef __cplusplus
#define KV_STORE_KVX_ASSERT_(condition) static_assert(condition, #condition)
#else
#define KV_STORE_KVX_ASSERT_(condition) _Static_assert(condition, #condition)
#endif
KV_STORE_KVX_ASSERT_(sizeof(kv_store_kvx_result_t) == 288);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_result_t, bytes) == 24);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_result_t, message) == 32);
KV_STORE_KVX_ASSERT_(sizeof(kv_store_kvx_save_t) == 88);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_save_t, layers) == 8);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_save_t, blocks) == 32);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_save_t, num_tokens) == 48);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_save_t, threads) == 60);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_save_t, v_scales) == 72);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_save_t, flags) == 80);
KV_STORE_KVX_ASSERT_(sizeof(kv_store_kvx_restore_t) == 104);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_restore_t, slots) == 32);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_restore_t, flags) == 64);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_restore_t, max_bytes) == 72);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_restore_t, v_scales) == 88);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_restore_t, timeout_ms) == 96);
KV_STORE_KVX_ASSERT_(sizeof(kv_store_kvx_info_t) == 32);
KV_STORE_KVX_ASSERT_(offsetof(kv_store_kvx_info_t, bytes) == 24);
#undef KV_STORE_KVX_ASSERT_
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef KV_STORE_NO_DEPRECATED
#include "kv_store_deprecated.h"
#endif

#endif /* KV_STORE_KVX_H */
