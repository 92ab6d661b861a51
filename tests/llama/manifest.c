/* manifest.c - see manifest.h. SPDX-License-Identifier: Apache-2.0 */
#include "manifest.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bytes.h"

static const uint8_t MAGIC[8] = {'l', 'l', 'a', 'm', 'a', '-', 'k', 'v'};

#define VERSION 2u
#define HEADER_BYTES 64u
#define RECORD_BYTES 16u
#define TRAILER_BYTES 8u

enum { SEGMENT_INLINE = 0, SEGMENT_CHUNK = 1 };

uint8_t *manifest_encode(const struct manifest_facts *facts,
                         const struct cut *cut, const uint8_t *state,
                         size_t *size)
{
    if (cut->count > UINT32_MAX || cut->chunks > MAX_CHUNKS) {
        return NULL;
    }
    /* No overflow: the pieces are in memory and larger than their records, and
     * the inline ones are part of the state. */
    size_t total = HEADER_BYTES + cut->count * RECORD_BYTES + TRAILER_BYTES;
    for (size_t i = 0; i < cut->count; i++) {
        total += cut->pieces[i].is_chunk ? 0 : cut->pieces[i].length;
    }
    uint8_t *bytes = malloc(total);
    if (!bytes) {
        return NULL;
    }

    memcpy(bytes, MAGIC, sizeof MAGIC);
    uint8_t *at = bytes + sizeof MAGIC;
    at = write_u32(at, VERSION);
    at = write_u32(at, facts->layout);
    at = write_u32(at, facts->tokens);
    at = write_u32(at, facts->cells);
    at = write_u32(at, facts->chunk_tokens);
    at = write_u32(at, (uint32_t)cut->count);
    at = write_u64(at, facts->state_bytes);
    at = write_u64(at, facts->state_hash);
    at = write_u64(at, facts->model_id);
    at = write_u64(at, facts->prompt_id);

    uint8_t *data = at + cut->count * RECORD_BYTES;
    for (size_t i = 0; i < cut->count; i++) {
        const struct piece *p = &cut->pieces[i];
        at = write_u32(at, p->is_chunk ? SEGMENT_CHUNK | p->chunk << 8 : SEGMENT_INLINE);
        at = write_u32(at, (uint32_t)p->length);
        at = write_u64(at, p->is_chunk ? p->hash : 0);
        if (!p->is_chunk) {
            memcpy(data, state + p->offset, p->length);
            data += p->length;
        }
    }
    write_u64(data, XXH3_64bits(bytes, total - TRAILER_BYTES));
    *size = total;
    return bytes;
}

/* Check the records; they are known to lie within the bytes. */
static const char *check_records(struct manifest *m, size_t inline_room)
{
    /* No overflow: fewer than 2^32 lengths, each below 2^32. */
    uint64_t state_bytes = 0, inline_bytes = 0;
    for (uint32_t i = 0; i < m->segments; i++) {
        const uint8_t *record = m->records + (size_t)i * RECORD_BYTES;
        uint32_t kind = read_u32(record) & 0xff;
        uint32_t number = read_u32(record) >> 8;
        uint32_t length = read_u32(record + 4);
        if (kind != SEGMENT_INLINE && kind != SEGMENT_CHUNK) {
            return "a segment is of an unknown kind";
        }
        if (length == 0 || length > MAX_PIECE_BYTES) {
            return "a segment is empty or larger than 1 GiB";
        }
        /* Whoever makes a list of the chunks makes none longer than this one. */
        if (number >= m->segments) {
            return "a segment is of a chunk with too high a number";
        }
        state_bytes += length;
        if (kind == SEGMENT_CHUNK) {
            m->chunks = number >= m->chunks ? number + 1 : m->chunks;
        } else {
            inline_bytes += length;
        }
    }
    if (inline_bytes != inline_room) {
        return "its length is not what its segments add up to";
    }
    if (state_bytes != m->facts.state_bytes) {
        return "its segments do not add up to the state";
    }
    m->inline_bytes = inline_room;
    return NULL;
}

const char *manifest_decode(const uint8_t *bytes, size_t size,
                            struct manifest *out)
{
    memset(out, 0, sizeof *out);
    if (size < HEADER_BYTES + TRAILER_BYTES) {
        return "it is too short";
    }
    if (memcmp(bytes, MAGIC, sizeof MAGIC) != 0) {
        return "it does not begin with the text llama-kv";
    }
    if (read_u32(bytes + 8) != VERSION) {
        return "it is of a version that this program does not know";
    }
    if (read_u64(bytes + size - TRAILER_BYTES) !=
        XXH3_64bits(bytes, size - TRAILER_BYTES)) {
        return "its checksum is wrong: it was cut short or changed";
    }

    struct manifest m = {.facts = {.layout = read_u32(bytes + 12),
                                   .tokens = read_u32(bytes + 16),
                                   .cells = read_u32(bytes + 20),
                                   .chunk_tokens = read_u32(bytes + 24),
                                   .state_bytes = read_u64(bytes + 32),
                                   .state_hash = read_u64(bytes + 40),
                                   .model_id = read_u64(bytes + 48),
                                   .prompt_id = read_u64(bytes + 56)},
                         .segments = read_u32(bytes + 28),
                         .records = bytes + HEADER_BYTES};
    if (m.facts.layout != LAYOUT_ROWS && m.facts.layout != LAYOUT_FIXED) {
        return "it is of an unknown layout";
    }
    if (m.facts.state_bytes == 0 || m.facts.state_bytes > MAX_STATE_BYTES ||
        m.facts.state_bytes > SIZE_MAX) {
        return "the state is empty or larger than 64 GiB";
    }
    size_t body = size - HEADER_BYTES - TRAILER_BYTES;
    if (m.segments > body / RECORD_BYTES) {
        return "it has more segments than bytes for them";
    }
    size_t records = (size_t)m.segments * RECORD_BYTES;
    m.inline_data = m.records + records;
    const char *wrong = check_records(&m, body - records);
    if (!wrong) {
        *out = m;
    }
    return wrong;
}

bool manifest_next(const struct manifest *m, struct segment_cursor *at,
                   struct segment *out)
{
    if (at->index >= m->segments) {
        return false;
    }
    const uint8_t *record = m->records + (size_t)at->index * RECORD_BYTES;
    *out = (struct segment){.is_chunk = (read_u32(record) & 0xff) == SEGMENT_CHUNK,
                            .chunk = read_u32(record) >> 8,
                            .length = read_u32(record + 4),
                            .hash = read_u64(record + 8)};
    if (!out->is_chunk) {
        out->data = m->inline_data + at->inline_at;
        at->inline_at += out->length;
    }
    at->index++;
    return true;
}
