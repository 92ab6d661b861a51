/*
 * kv_blocks.h - the two-level block cache, as served by libkv_store_wasm.so. docs/blocks.md has its semantics and its config.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     kv_blocks_get_vtable_fn get;
 *     *(void **)&get = dlsym(lib, KV_BLOCKS_GET_VTABLE_SYMBOL);
 *     const kv_blocks_vtable_t *kv = get();
 *
 *     kv_blocks_spec_t spec = {.size = sizeof spec, .block_tokens = 16, .block_bytes = 1 << 20, .model = "llama-3-8b"};
 *     kv_blocks_t *cache = kv->open("[l2]\nbackend = 'redis://127.0.0.1:6379/3'", &spec);
 *     kv_blocks_query_t query = {.query = tokens, .n_query = n};
 *     int64_t found = kv->get(cache, &query, blocks, n / 16);
 *
 * CALLS take a prefix of whole blocks and a query, the tokens after it. They return how many leading tokens of the query were
 * handled: they stop at the first block that was not, and ignore a partial block at the end. Below 0: a code of kv_store_status.h
 * (KV_STORE_INVALID ...), and nothing was done. A miss, a late answer and a far level that fails are no errors: fewer tokens.
 *
 * MEMORY. Tokens and blocks are the caller's, and are used until the call returns. A block has block_bytes bytes.
 *
 * THREADS. Any function may be called from any number of threads at once, except that close and give_back are the last calls on what
 * they end.
 *
 * FORK. In a child process every call on a cache of the parent fails, and close frees nothing.
 *
 * ERRORS. A code below 0 is logged in one line, at once for each cause and then once a minute at most, with a count; last_error has the
 * text of each.
 */
#ifndef KV_BLOCKS_H
#define KV_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "kv_store_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the vtable described here. */
#define KV_BLOCKS_VTABLE_VERSION 1u

/* The symbol that the library exports, for dlsym. */
#define KV_BLOCKS_GET_VTABLE_SYMBOL "kv_blocks_get_vtable"

/* A cache of the blocks of one spec. Opaque; made by open, ended by close. */
typedef struct kv_blocks kv_blocks_t;

/* Blocks that were acquired. Opaque; made by acquire, ended by give_back. */
typedef struct kv_blocks_acquired kv_blocks_acquired_t;

/*
 * What a block is. All of it is part of every key: blocks of two specs never meet. Set it to zero, then what is needed.
 */
typedef struct kv_blocks_spec {
    uint32_t size;         /* sizeof(kv_blocks_spec_t) */
    uint32_t block_tokens; /* the engine's; used where the config says block_size = -1 */
    uint64_t block_bytes;  /* of all its tokens, layers and heads, keys and values */
    const char *model;     /* the model, and whatever else of it decides what the values are; 1 to 1,024 bytes */
    const char *layout;    /* the order of the dimensions by their letters (L, C, N, H, D); NULL: "LCND" */
    const char *dtype;     /* "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "i8", "i4"; NULL: "f16" */
    uint32_t first_layer;  /* the layers that this rank holds, up to end_layer; 0, 0: all */
    uint32_t end_layer;
    uint32_t first_head;   /* the heads that this rank holds, up to end_head; 0, 0: all */
    uint32_t end_head;
    uint32_t rank;         /* the tensor-parallel rank, below ranks; 0, 0: there is one */
    uint32_t ranks;
} kv_blocks_spec_t;

/* Tokens. The prefix is a whole number of blocks; it may be empty. */
typedef struct kv_blocks_query {
    const int32_t *prefix;
    size_t n_prefix;
    const int32_t *query;
    size_t n_query;
} kv_blocks_query_t;

/* What a cache is. */
typedef struct kv_blocks_info {
    uint32_t size;         /* in: sizeof(kv_blocks_info_t) */
    uint32_t block_tokens;
    uint64_t block_bytes;
} kv_blocks_info_t;

/* The functions of the library. Static. Later versions only add members at the end: check `size` before you use one. */
typedef struct kv_blocks_vtable {
    uint32_t size;    /* sizeof(kv_blocks_vtable_t) of the library */
    uint32_t version; /* 1 */

    /*
     * Open a cache. `toml` is its config, or NULL; the variables KV_BLOCKS_* and AIBRIX_KV_CACHE_OL_* of the process come on top.
     * NULL: failed, see last_error.
     */
    kv_blocks_t *(*open)(const char *toml, const kv_blocks_spec_t *spec);

    /* Put blocks, one for each of the query's, `n_blocks` at most. Returns tokens taken: fewer where no memory is free. */
    int64_t (*put)(kv_blocks_t *self, const kv_blocks_query_t *query, const void *const *blocks, size_t n_blocks);

    /* Copy the leading blocks into the caller's memory; blocks must not overlap. Memory for blocks after these is undefined. */
    int64_t (*get)(kv_blocks_t *self, const kv_blocks_query_t *query, void *const *blocks, size_t n_blocks);

    /*
     * The leading blocks, `n_blocks` at most, as pointers to the cache's own memory: read only, aligned to 64 bytes, and valid until
     * *out_acquired is given back, also after close. Where there is none, *out_acquired is NULL.
     */
    int64_t (*acquire)(kv_blocks_t *self, const kv_blocks_query_t *query, const void **out_blocks, size_t n_blocks,
                       kv_blocks_acquired_t **out_acquired);

    /* Give acquired blocks back; NULL is allowed. */
    void (*give_back)(kv_blocks_acquired_t *acquired);

    /* How many leading tokens are in either level. */
    int64_t (*exists)(kv_blocks_t *self, const kv_blocks_query_t *query);

    /* Remove blocks from both levels. Returns how many leading tokens are gone from both; that there were none is success. A block of which a
     * write may still be carried out is not gone: fewer tokens. */
    int64_t (*remove)(kv_blocks_t *self, const kv_blocks_query_t *query);

    /* Have blocks brought into the near level. Does not wait. Returns how many leading tokens are near or on their way. */
    int64_t (*prefetch)(kv_blocks_t *self, const kv_blocks_query_t *query);

    /* Wait for the writes that are under way. Returns 0, or KV_STORE_UNAVAILABLE if they were not done in their time. */
    int (*flush)(kv_blocks_t *self);

    /* What the cache is. Returns 0, or a negative code. */
    int (*info)(kv_blocks_t *self, kv_blocks_info_t *out);

    /* Its counters as text in the format of Prometheus, as snprintf writes it. Returns the text's length. */
    size_t (*metrics)(kv_blocks_t *self, char *buffer, size_t len);

    /* Finish the writes that are under way, in the time for their tokens, and end the cache; NULL is allowed. */
    void (*close)(kv_blocks_t *self);

    /* Why the last failed call of this thread failed, for a person. Never NULL; valid until the thread's next failure. */
    const char *(*last_error)(void);
} kv_blocks_vtable_t;

/* The vtable. Never NULL; safe to call from any thread. */
const kv_blocks_vtable_t *kv_blocks_get_vtable(void);

/* The type of kv_blocks_get_vtable, for the result of dlsym. */
typedef const kv_blocks_vtable_t *(*kv_blocks_get_vtable_fn)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef KV_STORE_NO_DEPRECATED
#include "kv_store_deprecated.h"
#endif

#endif /* KV_BLOCKS_H */
