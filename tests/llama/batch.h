/*
 * batch.h - the part of store.c that uses kv_store_batch.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef LLAMA_KV_BATCH_H
#define LLAMA_KV_BATCH_H

#include "store.h"

/* The batches of a library; NULL if it has none. */
const kv_store_batch_vtable_t *batch_find(void *library);

/* As store_put, store_get and store_publish. A put begins a save if there is
 * none, a publish ends it. */
int batch_put(struct store *s, struct store_chunk *chunks, size_t n);
int batch_get(struct store *s, struct store_chunk *chunks, size_t n);
int batch_publish(struct store *s, const char *name, const uint8_t *data, size_t size);

#endif /* LLAMA_KV_BATCH_H */
