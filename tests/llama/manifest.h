/*
 * manifest.h - the record of one saved state: which chunks, in which order.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The bytes are described in README.md. Decoding treats them as hostile: they
 * come back from a store that anyone may have written to.
 */
#ifndef LLAMA_KV_MANIFEST_H
#define LLAMA_KV_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "state.h"

/* The largest state that a manifest may promise, and so the most memory that a
 * restore asks for on a manifest's word. */
#define MAX_STATE_BYTES ((uint64_t)1 << 36)

/* What was saved, and from what. */
struct manifest_facts {
    uint32_t layout;       /* enum layout */
    uint32_t tokens;       /* length of the prompt, its last token included */
    uint32_t cells;        /* cells in the state; 0 if not known */
    uint32_t chunk_tokens; /* rows in a full chunk */
    uint64_t state_bytes;
    uint64_t state_hash;   /* XXH3-64 of the whole state */
    uint64_t model_id;     /* see engine.h */
    uint64_t prompt_id;    /* see engine.h */
};

/* A decoded manifest. It points into the bytes that it was decoded from. */
struct manifest {
    struct manifest_facts facts;
    uint32_t segments;
    uint32_t chunks;             /* the highest number of a chunk, and one */
    size_t inline_bytes;
    const uint8_t *records;      /* one of 16 bytes for each segment */
    const uint8_t *inline_data;
};

/* One segment: the state is all of them, one after another. */
struct segment {
    bool is_chunk;           /* a piece of a chunk, which is its pieces one after another */
    uint32_t chunk;          /* which */
    size_t length;           /* bytes */
    uint64_t hash;           /* of the whole chunk */
    const uint8_t *data;     /* of an inline segment; NULL for a chunk */
};

/* A position in a manifest; start with all zero. */
struct segment_cursor {
    uint32_t index;
    size_t inline_at;
};

/*
 * Write the manifest of a state that was cut, with each chunk's hash filled in.
 * Returns malloc'd bytes, which the caller frees, or NULL: no memory, more than
 * 2^32 - 1 pieces, or more than MAX_CHUNKS chunks.
 */
uint8_t *manifest_encode(const struct manifest_facts *facts,
                         const struct cut *cut, const uint8_t *state,
                         size_t *size);

/*
 * Check everything and fill `out`. Returns NULL, or a static text that says what
 * is wrong with the bytes. Allocates nothing.
 */
const char *manifest_decode(const uint8_t *bytes, size_t size,
                            struct manifest *out);

/* The next segment; false at the end. `m` must be decoded. */
bool manifest_next(const struct manifest *m, struct segment_cursor *at,
                   struct segment *out);

#endif /* LLAMA_KV_MANIFEST_H */
