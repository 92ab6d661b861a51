/* state.c - see state.h. SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <stdlib.h>

#include "bytes.h"

#define STATE_MAGIC 0xaf143cd8u
#define CELL_BYTES 12u
#define SECTION_HEADER_BYTES 12u

static const char TOO_SHORT[] = "its lengths lead past its end";
static const char NO_MEMORY[] = "there is no memory for the list of its pieces";

/* A walk over the state. Bytes from `done` to `at` are passed over but in no
 * piece yet: they become one inline piece when the next chunk begins. */
struct walk {
    const uint8_t *state;
    size_t size, at, done;
    struct cut *cut;
    uint32_t group;       /* the first chunk of the layers that share chunks now */
    uint64_t group_bytes; /* of one of its chunks, so far */
};

static size_t left(const struct walk *w)
{
    return w->size - w->at;
}

static const char *add(struct cut *cut, size_t offset, size_t length, bool is_chunk,
                       uint32_t chunk)
{
    if (cut->count == cut->room) {
        size_t room = cut->room ? cut->room * 2 : 64;
        struct piece *grown = realloc(cut->pieces, room * sizeof *grown);
        if (!grown) {
            return NO_MEMORY;
        }
        cut->pieces = grown;
        cut->room = room;
    }
    cut->pieces[cut->count++] = (struct piece){
        .offset = offset, .length = length, .is_chunk = is_chunk, .chunk = chunk};
    return NULL;
}

static const char *end_inline(struct walk *w)
{
    const char *wrong = NULL;
    /* What is inline is small, but its size comes from the state. */
    while (!wrong && w->done < w->at) {
        size_t n = w->at - w->done;
        n = n < MAX_PIECE_BYTES ? n : MAX_PIECE_BYTES;
        wrong = add(w->cut, w->done, n, false, 0);
        w->done += n;
    }
    return wrong;
}

/* Cut the range from `at` to `at + length` into pieces of `step` bytes, for the
 * chunks from `chunk` on. */
static const char *add_pieces(struct walk *w, size_t length, size_t step, uint32_t chunk)
{
    const char *wrong = end_inline(w);
    size_t end = w->at + length;
    while (!wrong && w->at < end) {
        size_t n = end - w->at < step ? end - w->at : step;
        wrong = add(w->cut, w->at, n, true, chunk++);
        w->at += n;
        w->done = w->at;
    }
    return wrong;
}

static const char *cut_fixed(const uint8_t *state, size_t size, const char *note,
                             struct cut *cut)
{
    struct walk w = {.state = state, .size = size, .cut = cut};
    cut->count = 0;
    cut->cells = 0;
    cut->chunks = (uint32_t)((size - 1) / FIXED_PIECE_BYTES + 1);
    cut->layout = LAYOUT_FIXED;
    cut->note = note;
    return add_pieces(&w, size, FIXED_PIECE_BYTES, 0);
}

/* Pass over the cells. `*unknown` is set when they are not the plain ones:
 * some models write more for each. */
static const char *skip_cells(struct walk *w, uint32_t cells, uint32_t seq_id,
                              const char **unknown)
{
    if (left(w) / CELL_BYTES < cells) {
        return TOO_SHORT;
    }
    int64_t before = -1;
    for (uint32_t i = 0; i < cells; i++, w->at += CELL_BYTES) {
        const uint8_t *cell = w->state + w->at;
        int32_t pos = (int32_t)read_u32(cell);
        if (read_u32(cell + 4) != 1 || read_u32(cell + 8) != seq_id) {
            *unknown = "the state's cells are not of the known form";
            return NULL;
        }
        /* Out of order, the rows of a piece would depend on how the cache was
         * filled, and on what comes after. */
        if (pos <= before) {
            *unknown = "the state's cells are not in the order of positions";
            return NULL;
        }
        before = pos;
    }
    return NULL;
}

/* Cut one layer's K or V. */
static const char *cut_section(struct walk *w, uint32_t cells,
                               uint32_t chunk_tokens, const char **unknown)
{
    if (left(w) < SECTION_HEADER_BYTES) {
        return TOO_SHORT;
    }
    uint64_t row = read_u64(w->state + w->at + 4);
    w->at += SECTION_HEADER_BYTES;
    if (row == 0 || row > MAX_ROW_BYTES) {
        *unknown = "the state has rows of an unlikely size";
        return NULL;
    }
    /* No overflow: 2^32 cells of 2^18 bytes. size_t may be shorter, so the
     * product is compared before it is narrowed. */
    uint64_t bytes = row * cells;
    if (bytes > left(w)) {
        return TOO_SHORT;
    }
    uint64_t step = row * chunk_tokens;
    if (w->cut->chunks == 0 || w->group_bytes + step > GROUPED_CHUNK_BYTES) {
        w->group = w->cut->chunks;
        w->group_bytes = 0;
        w->cut->chunks += (cells - 1) / chunk_tokens + 1;
        if (w->cut->chunks > MAX_CHUNKS) {
            *unknown = "the state has more chunks than a manifest can name";
            return NULL;
        }
    }
    w->group_bytes += step;
    return add_pieces(w, (size_t)bytes, (size_t)step, w->group);
}

/* Cut a state of the known layout; `*unknown` says why it is another. */
static const char *cut_rows(struct walk *w, uint32_t chunk_tokens,
                            const char **unknown)
{
    if (left(w) < 16) {
        return TOO_SHORT;
    }
    if (read_u32(w->state) != STATE_MAGIC) {
        *unknown = "the state does not begin with the known number";
        return NULL;
    }
    uint32_t seq_id = read_u32(w->state + 4);
    uint32_t streams = read_u32(w->state + 8);
    uint32_t cells = read_u32(w->state + 12);
    w->at = 16;
    if (streams != 1 || cells == 0) {
        *unknown = streams != 1 ? "the state has more than one stream"
                                : "the state is empty";
        return NULL;
    }
    const char *wrong = skip_cells(w, cells, seq_id, unknown);
    if (wrong || *unknown) {
        return wrong;
    }
    if (left(w) < 8) {
        return TOO_SHORT;
    }
    uint32_t transposed = read_u32(w->state + w->at);
    uint32_t layers = read_u32(w->state + w->at + 4);
    w->at += 8;
    if (transposed) {
        *unknown = "the state's V is transposed (no flash attention)";
        return NULL;
    }
    for (uint64_t i = 0; !wrong && !*unknown && i < (uint64_t)layers * 2; i++) {
        if (i == layers && left(w) == 0) {
            break; /* Some models keep no V at all. */
        }
        wrong = cut_section(w, cells, chunk_tokens, unknown);
    }
    if (wrong || *unknown) {
        return wrong;
    }
    if (left(w) != 0) {
        *unknown = "the state goes on after its last layer";
        return NULL;
    }
    w->cut->cells = cells;
    return end_inline(w);
}

const char *cut_state(const uint8_t *state, size_t size, uint32_t chunk_tokens,
                      struct cut *cut)
{
    *cut = (struct cut){.layout = LAYOUT_ROWS};
    struct walk w = {.state = state, .size = size, .cut = cut};
    const char *unknown = NULL;
    const char *wrong = cut_rows(&w, chunk_tokens, &unknown);
    if (!wrong && unknown) {
        wrong = cut_fixed(state, size, unknown, cut);
    }
    if (wrong) {
        cut_free(cut);
    }
    return wrong;
}

void cut_free(struct cut *cut)
{
    free(cut->pieces);
    *cut = (struct cut){0};
}
