/*
 * store.h - a store behind the C ABI kv_store_v1, loaded with dlopen.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * This is all that an engine needs of the ABI. Nothing in it is about one
 * library or one backend. A library that has the batches of kv_store_batch.h
 * too is given many chunks at once, from and into the engine's memory, in a
 * save of its own; one that has not, a chunk a call.
 */
#ifndef LLAMA_KV_STORE_H
#define LLAMA_KV_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv_store_abi.h"
#include "kv_store_batch.h"

struct store {
    void *library;
    const kv_store_vtable *kv;
    kv_store_v1 *handle;
    const kv_store_batch_vtable_t *batch; /* NULL if the library has no batches */
    kv_store_save_t *save;                /* of the chunks that were put; NULL without batches */
};

/* A chunk to put or to get. */
struct store_chunk {
    uint64_t hash;          /* XXH3-64 of its bytes: put fills it in */
    kv_store_piece_t *pieces; /* the caller's memory: put reads it, get fills it */
    size_t n_pieces;
    size_t size;            /* of the pieces together */
    int known;              /* put: 1 if the store says that it had it, else 0 */
};

/* XXH3-64 of what is in a chunk's memory. */
uint64_t store_chunk_hash(const struct store_chunk *chunk);

/*
 * Load the library at `path` and open `uri`. Returns KV_OK or KV_CANNOT_RUN.
 * store_close is allowed after either.
 */
int store_open(struct store *s, const char *path, const char *uri);

/* Put chunks; the next store_publish covers them. */
int store_put(struct store *s, struct store_chunk *chunks, size_t n);

/*
 * Get chunks, and check that each is `size` bytes with that hash; if `trusting`,
 * only the library checks the hash.
 */
int store_get(struct store *s, struct store_chunk *chunks, size_t n, bool trusting);

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
