/*
 * store.h - a store behind the C ABI kv_store_v1, loaded with dlopen.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * This is all that an engine needs of the ABI. Nothing in it is about one
 * library or one backend.
 */
#ifndef LLAMA_KV_STORE_H
#define LLAMA_KV_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv_store_abi.h"

struct store {
    void *library;
    const kv_store_vtable *kv;
    kv_store_v1 *handle;
};

/*
 * Load the library at `path` and open `uri`. Returns KV_OK or KV_CANNOT_RUN.
 * store_close is allowed after either.
 */
int store_open(struct store *s, const char *path, const char *uri);

/* Put a chunk. `*known` is 1 if the store says that it had it, else 0. */
int store_put(struct store *s, uint64_t hash, const uint8_t *data, size_t size,
              int *known);

/*
 * Get the chunk under `hash` and check that it is `size` bytes with that hash;
 * the length alone if `trusting`. The caller frees *data; it is NULL after a
 * failure.
 */
int store_get(struct store *s, uint64_t hash, size_t size, bool trusting,
              uint8_t **data);

/* Publish a manifest. */
int store_publish(struct store *s, const char *name, const uint8_t *data,
                  size_t size);

/* Get a manifest. The caller frees *data; it is NULL after a failure. */
int store_manifest(struct store *s, const char *name, uint8_t **data,
                   size_t *size);

/*
 * Say which chunks will be asked for: `n` keys of KEY_BYTES each. Returns 1 if
 * the store takes such hints and took this one, else 0; either way store_get
 * works.
 */
int store_prefetch(struct store *s, const uint8_t *keys, size_t n);

void store_close(struct store *s);

#endif /* LLAMA_KV_STORE_H */
