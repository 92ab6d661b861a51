/*
 * chunks.h - the chunks of a state that was cut, with their pieces in memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef LLAMA_KV_CHUNKS_H
#define LLAMA_KV_CHUNKS_H

#include "manifest.h"
#include "state.h"
#include "store.h"

struct chunk_list {
    struct store_chunk *chunks; /* `n` of them, by their numbers */
    kv_store_piece_t *pieces;
    size_t n;
};

/* The chunks of a cut of `state`, or of a manifest whose state is to lie there;
 * NULL there, if only hashes and sizes are wanted.
 * Returns KV_OK or KV_CANNOT_RUN; chunk_list_free is allowed after either. */
int chunks_of_cut(const struct cut *cut, const uint8_t *state, struct chunk_list *list);
int chunks_of_manifest(const struct manifest *m, uint8_t *state, struct chunk_list *list);

void chunk_list_free(struct chunk_list *list);

#endif /* LLAMA_KV_CHUNKS_H */
