/*
 * state.h - where to cut the state of a llama.cpp sequence.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A state is what llama_state_seq_get_data writes (llama-kv-cache.cpp,
 * llama_kv_cache::state_write, in the version that xtask/src/llama.rs pins).
 * All numbers little-endian:
 *
 *     u32 magic 0xaf143cd8, i32 seq_id        once
 *     u32 streams (1), u32 cells              once
 *     i32 pos, u32 n_seq_id (1), i32 seq_id   for each cell
 *     u32 v_transposed, u32 layers            once
 *     i32 type, u64 row_bytes, cells rows     K of each layer
 *     i32 type, u64 row_bytes, cells rows     V of each layer
 *
 * Rows are in the order of positions, and a row depends on nothing that comes
 * after its token. So a piece of K or V that covers a fixed range of positions
 * is the same bytes in the state of any longer conversation with the same
 * beginning, which is what makes a second save cheap. The numbers around the
 * rows are a few bytes for each cell; they stay inline in the manifest. The
 * pieces of one range of positions, of layers that follow one another, make a
 * chunk together.
 *
 * With V transposed (no flash attention) each row of V runs over the tokens and
 * grows with them: no cut of it is stable. That, and every layout that is not
 * the above (sliding windows, recurrent models), is cut at fixed sizes.
 */
#ifndef LLAMA_KV_STATE_H
#define LLAMA_KV_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest piece; the ABI's stores take values of up to 1 GiB. */
#define MAX_PIECE_BYTES ((size_t)1 << 30)

/* The most tokens in a piece, and the longest K or V row of one token that is
 * believed: their product is MAX_PIECE_BYTES. */
#define MAX_CHUNK_TOKENS 4096u
#define MAX_ROW_BYTES ((uint64_t)1 << 18)

/* Pieces of a state whose layout is not known: small enough to share a
 * beginning, large enough to keep the chunks few. */
#define FIXED_PIECE_BYTES ((size_t)256 << 10)

/* Pieces of neighbouring layers share a chunk up to this size: a store does more
 * with few chunks than with many. One piece alone may be longer. */
#define GROUPED_CHUNK_BYTES ((uint64_t)1 << 20)

/* The most chunks of a state: a manifest numbers them with 24 bits. */
#define MAX_CHUNKS (1u << 24)

/* How a state was cut. The values are in manifests: never change one. */
enum layout { LAYOUT_ROWS = 1, LAYOUT_FIXED = 2 };

/* One range of the state. Ranges are in order and cover it without gaps. */
struct piece {
    size_t offset;   /* bytes from the start of the state */
    size_t length;   /* bytes, 1..MAX_PIECE_BYTES */
    bool is_chunk;   /* stored in a chunk; otherwise inline in the manifest */
    uint32_t chunk;  /* which chunk; a chunk is its pieces, one after another */
    uint64_t hash;   /* XXH3-64 of the whole chunk; filled in by the saver */
};

struct cut {
    enum layout layout;
    const char *note;    /* why LAYOUT_FIXED was taken, static; NULL otherwise */
    uint32_t cells;      /* cells (tokens) in the state; 0 if not known */
    struct piece *pieces;/* owned: free with cut_free */
    size_t count, room;
    uint32_t chunks;     /* how many chunks the pieces make */
};

/*
 * Cut `state` every `chunk_tokens` (1..MAX_CHUNK_TOKENS) rows. Returns NULL, or
 * a static text: the state begins like one of the known layout, but its lengths
 * lead past its end, or memory ran out. `cut` then holds nothing. Nothing
 * outside the `size` bytes is read, whatever they are.
 */
const char *cut_state(const uint8_t *state, size_t size, uint32_t chunk_tokens,
                      struct cut *cut);

void cut_free(struct cut *cut);

#endif /* LLAMA_KV_STATE_H */
