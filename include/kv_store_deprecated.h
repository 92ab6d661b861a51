/*
 * kv_store_deprecated.h - the names that 0.2 had and that have others now, for programs that were written for it. Each header
 * includes it for its own names; do not include it by hand. Define KV_STORE_NO_DEPRECATED to find what still uses them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The header goes with 0.4. What the libraries export under these names stays as long as they are libkv_store_wasm.so.1,
 * libkv_cache.so and libkv_store_llama.so, so a program that was built for 0.2 runs. CHANGELOG.md has the table from old to
 * new.
 */
#ifdef __cplusplus
extern "C" {
#endif

#if defined(KV_STORE_BATCH_H) && !defined(KV_STORE_DEPRECATED_BATCH_H)
#define KV_STORE_DEPRECATED_BATCH_H
typedef struct kv_store_piece kv_store_piece;
typedef struct kv_store_item kv_store_item;
typedef struct kv_store_save kv_store_save;
typedef struct kv_store_queue kv_store_queue;
typedef struct kv_store_call kv_store_call;
typedef struct kv_store_completion kv_store_completion;
typedef struct kv_store_hash kv_store_hash;
typedef struct kv_store_info kv_store_info;
typedef struct kv_store_batch_vtable kv_store_batch_vtable;
#define KV_STORE_GET_BATCH_VTABLE_SYMBOL "kv_store_get_batch_vtable"
const kv_store_batch_vtable *kv_store_get_batch_vtable(void);
typedef const kv_store_batch_vtable *(*kv_store_get_batch_vtable_fn)(void);
#endif

#if defined(KV_BLOCKS_H) && !defined(KV_STORE_DEPRECATED_BLOCKS_H)
#define KV_STORE_DEPRECATED_BLOCKS_H
typedef struct kv_blocks kv_blocks;
typedef struct kv_blocks_acquired kv_blocks_acquired;
typedef struct kv_blocks_spec kv_blocks_spec;
typedef struct kv_blocks_query kv_blocks_query;
typedef struct kv_blocks_info kv_blocks_info;
typedef struct kv_blocks_vtable kv_blocks_vtable;
#endif

#if defined(KV_STORE_KVX_H) && !defined(KV_STORE_DEPRECATED_KVX_H)
#define KV_STORE_DEPRECATED_KVX_H
#define KV_STORE_KVX_UNAVAILABLE (-1)
#define KV_STORE_KVX_DENIED (-2)
#define KV_STORE_KVX_EXHAUSTED (-3)
#define KV_STORE_KVX_INVALID (-4)
#define KV_STORE_KVX_CORRUPT (-5)
#define KV_STORE_KVX_UNSUPPORTED (-6)
#define KV_STORE_KVX_COMPONENT (-7)
#define KV_STORE_KVX_OTHER (-8)
#define KV_STORE_KVX_MISMATCH (-10)
#define KV_STORE_KVX_CANCELLED (-11)
#define KV_STORE_KVX_VERSION (-12)
#define KV_STORE_KVX_MISSING (-100)
int kv_store_kvx_save(kv_store_v1 *store, const kv_store_kvx_save_t *save, kv_store_kvx_result_t *result);
int kv_store_kvx_restore(kv_store_v1 *store, const kv_store_kvx_restore_t *restore, kv_store_kvx_result_t *result);
int kv_store_kvx_describe(kv_store_v1 *store, const char *name, kv_store_kvx_info_t *info);
typedef int (*kv_store_kvx_save_fn)(kv_store_v1 *, const kv_store_kvx_save_t *, kv_store_kvx_result_t *);
typedef int (*kv_store_kvx_restore_fn)(kv_store_v1 *, const kv_store_kvx_restore_t *, kv_store_kvx_result_t *);
typedef int (*kv_store_kvx_describe_fn)(kv_store_v1 *, const char *, kv_store_kvx_info_t *);
#endif

#if defined(KV_STORE_WASM_H) && !defined(KV_STORE_DEPRECATED_WASM_H)
#define KV_STORE_DEPRECATED_WASM_H
#define KV_STORE_WASM_METRICS_SYMBOL "kv_store_wasm_metrics"
typedef size_t (*kv_store_wasm_metrics_fn)(char *buffer, size_t len);
size_t kv_store_wasm_metrics(char *buffer, size_t len);
#define KV_STORE_WASM_SET_LOG_SYMBOL "kv_store_wasm_set_log"
typedef int32_t (*kv_store_wasm_set_log_fn)(kv_store_wasm_log_fn function, void *context, int32_t level);
int32_t kv_store_wasm_set_log(kv_store_wasm_log_fn function, void *context, int32_t level);
#endif

#if defined(KV_STORE_LLAMA_H) && !defined(KV_STORE_DEPRECATED_LLAMA_H)
#define KV_STORE_DEPRECATED_LLAMA_H
/* save and load return 0 where they fail. */
typedef struct kv_store_llama kv_store_llama;
kv_store_llama *kv_store_llama_open(const char *uri, const char *model);
size_t kv_store_llama_save(const kv_store_llama *states, struct llama_context *ctx, const char *name, int32_t seq_id,
                           const int32_t *tokens, size_t n_tokens);
size_t kv_store_llama_load(const kv_store_llama *states, struct llama_context *ctx, const char *name, int32_t seq_id,
                           int32_t *tokens, size_t room, size_t *n_tokens);
void kv_store_llama_close(kv_store_llama *states);
const char *kv_store_llama_last_error(void);
#endif

#if defined(KV_CACHE_H) && !defined(KV_STORE_DEPRECATED_CACHE_H)
#define KV_STORE_DEPRECATED_CACHE_H
typedef enum kv_cache_status_t {
    KV_CACHE_OK = 0,
    KV_CACHE_MISS = 1,
    KV_CACHE_INVALID_ARGUMENT = 2,
    KV_CACHE_BUSY = 3,
    KV_CACHE_FULL = 4,
    KV_CACHE_TIMEOUT = 5,
    KV_CACHE_CLOSED = 6,
    KV_CACHE_IO = 7,
    KV_CACHE_INTERNAL = 8
} kv_cache_status_t;
typedef kv_cache_log_fn kv_cache_log_t;
const char *kv_cache_version(void);
const char *kv_cache_last_error(void);
void kv_cache_set_log(kv_cache_log_t log, void *user);
kv_cache_status_t kv_cache_open(const char *path, kv_cache_t **out);
kv_cache_status_t kv_cache_open_toml(const char *toml, kv_cache_t **out);
void kv_cache_close(kv_cache_t *cache);
kv_cache_status_t kv_cache_fingerprint(const char *path, uint32_t mode, uint8_t out[32]);
kv_cache_status_t kv_cache_key(const kv_cache_identity_t *identity, const uint32_t *tokens,
                               size_t n_tokens, uint8_t out[32]);
kv_cache_status_t kv_cache_plan(const kv_cache_t *cache, uint32_t reason, uint64_t n_tokens,
                                uint64_t last_saved, uint64_t *keep);
kv_cache_status_t kv_cache_lookup(const kv_cache_t *cache, const kv_cache_query_t *query,
                                  kv_cache_hit_t **out, kv_cache_hit_info_t *info);
kv_cache_status_t kv_cache_load(const kv_cache_hit_t *hit, uint8_t *buffer, size_t size);
kv_cache_status_t kv_cache_view(const kv_cache_hit_t *hit, const uint8_t **data, size_t *size);
void kv_cache_release(kv_cache_hit_t *hit);
kv_cache_status_t kv_cache_save(const kv_cache_t *cache, const kv_cache_save_t *save,
                                kv_cache_saved_t *saved);
kv_cache_status_t kv_cache_evict(const kv_cache_t *cache, const uint8_t key[32], uint32_t *tiers);
kv_cache_status_t kv_cache_evict_bytes(const kv_cache_t *cache, uint32_t tier, uint64_t bytes,
                                       uint64_t *freed);
kv_cache_status_t kv_cache_relieve(const kv_cache_t *cache, uint64_t used, uint64_t total,
                                   uint64_t *freed);
kv_cache_status_t kv_cache_gc(const kv_cache_t *cache, kv_cache_gc_t *out);
kv_cache_status_t kv_cache_flush(const kv_cache_t *cache, uint64_t timeout_ms);
kv_cache_status_t kv_cache_shutdown(const kv_cache_t *cache, uint64_t timeout_ms,
                                    uint64_t *dropped);
kv_cache_status_t kv_cache_stats(const kv_cache_t *cache, kv_cache_stats_t *out);
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif
