/*
 * rows.h - the token-exact cache of kv_cache.h, loaded with dlopen.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * This is all that an engine needs of that library: find the row that saves
 * most of the prefill, ask what to save, save.
 */
#ifndef LLAMA_KV_ROWS_H
#define LLAMA_KV_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "kv_cache.h"

struct rows {
    void *library;
    kv_cache_t *cache;
    kv_cache_identity_t identity;
    const kv_cache_vtable_t *of;
};

/* A row's state: malloc'd, the caller frees it. */
struct row {
    uint8_t *state;   /* NULL: there is no row */
    size_t size;
    uint32_t tokens;  /* how many of the prompt's it covers */
    const char *kind; /* a static text */
};

/*
 * Load the library at `path` and open the cache of the file `config`, for states
 * of the model. Returns KV_OK or KV_CANNOT_RUN. rows_close is allowed after
 * either.
 */
int rows_open(struct rows *r, const char *path, const char *config, const char *model);

/*
 * The row that saves most of the prefill of these tokens. A row that turns out
 * damaged is said, and the next best is taken; that there is none is no failure.
 * No state is believed that is larger than `max_bytes`.
 */
int rows_find(struct rows *r, const int32_t *tokens, uint32_t n, uint64_t max_bytes,
              struct row *row);

/* Up to which token to prefill before a cold save of a prompt of n; 0: no save. */
int rows_cold_boundary(struct rows *r, uint32_t n, uint32_t *boundary);

/* Save the state of n tokens. `prompt` is the length of the whole prompt for a
 * cold save. `*stored` counts the saves that are on their way. */
int rows_save(struct rows *r, uint32_t reason, const int32_t *tokens, uint32_t n, uint32_t prompt,
              const uint8_t *state, size_t size, int64_t *stored);

/* Wait until all is stored. */
int rows_flush(struct rows *r);

void rows_close(struct rows *r);

#endif /* LLAMA_KV_ROWS_H */
