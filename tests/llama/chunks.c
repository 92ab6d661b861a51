/* chunks.c - see chunks.h. SPDX-License-Identifier: Apache-2.0 */
#include "chunks.h"

#include <stdlib.h>

#include "report.h"

static int make(struct chunk_list *list, size_t chunks, size_t pieces)
{
    *list = (struct chunk_list){.chunks = calloc(chunks + 1, sizeof *list->chunks),
                                .pieces = calloc(pieces + 1, sizeof *list->pieces),
                                .n = chunks};
    return list->chunks && list->pieces
               ? KV_OK
               : report(KV_CANNOT_RUN, "there is no memory for a list of %zu chunks", chunks);
}

/* The pieces have been counted: give each chunk its part of the array. */
static void share_pieces(struct chunk_list *list)
{
    kv_store_piece_t *next = list->pieces;
    for (size_t i = 0; i < list->n; i++) {
        list->chunks[i].pieces = next;
        next += list->chunks[i].n_pieces;
        list->chunks[i].n_pieces = 0;
    }
}

static void add(struct chunk_list *list, uint32_t chunk, uint64_t hash, uint8_t *data, size_t size)
{
    struct store_chunk *c = &list->chunks[chunk];
    c->hash = hash;
    c->size += size;
    c->pieces[c->n_pieces++] = (kv_store_piece_t){data, size};
}

int chunks_of_cut(const struct cut *cut, const uint8_t *state, struct chunk_list *list)
{
    int code = make(list, cut->chunks, cut->count);
    for (size_t i = 0; code == KV_OK && i < cut->count; i++) {
        list->chunks[cut->pieces[i].chunk].n_pieces += cut->pieces[i].is_chunk;
    }
    if (code == KV_OK) {
        share_pieces(list);
    }
    for (size_t i = 0; code == KV_OK && i < cut->count; i++) {
        const struct piece *p = &cut->pieces[i];
        if (p->is_chunk) {
            /* Who puts the chunks only reads them. */
            add(list, p->chunk, 0, (uint8_t *)(uintptr_t)(state + p->offset), p->length);
        }
    }
    return code;
}

int chunks_of_manifest(const struct manifest *m, uint8_t *state, struct chunk_list *list)
{
    struct segment segment;
    int code = make(list, m->chunks, m->segments);
    if (code != KV_OK) {
        return code;
    }
    for (struct segment_cursor at = {0}; manifest_next(m, &at, &segment);) {
        list->chunks[segment.is_chunk ? segment.chunk : 0].n_pieces += segment.is_chunk;
    }
    share_pieces(list);
    size_t done = 0;
    for (struct segment_cursor at = {0}; manifest_next(m, &at, &segment);) {
        if (segment.is_chunk) {
            add(list, segment.chunk, segment.hash, state ? state + done : NULL, segment.length);
        }
        done += segment.length;
    }
    return KV_OK;
}

void chunk_list_free(struct chunk_list *list)
{
    free(list->chunks);
    free(list->pieces);
    *list = (struct chunk_list){0};
}
