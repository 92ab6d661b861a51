/*
 * fuzz.c - llama-kv-fuzz: hostile bytes for the two parsers of llama-kv.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Meant to be built with -fsanitize=address,undefined. Every input lies in
 * memory of exactly its size, so that one byte too far is seen. The random
 * numbers are seeded: a failure comes again.
 *
 * Usage: llama-kv-fuzz [ROUNDS [SEED]]. Exit codes: 0 all is well, 1 a parser
 * broke a promise (or a sanitizer stopped it), 2 wrong usage.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bytes.h"
#include "manifest.h"
#include "state.h"

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "llama-kv-fuzz: round %lu, line %d: not so: %s\n", \
                    current_round, __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

static unsigned long current_round;
static uint64_t random_state;

/* SplitMix64. */
static uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t n)
{
    return n ? (size_t)(next_random() % n) : 0;
}

static void *need(void *memory)
{
    if (!memory) {
        fputs("llama-kv-fuzz: there is no memory\n", stderr);
        exit(2);
    }
    return memory;
}

/* A state as llama.cpp writes it. The content of a row depends only on its
 * layer and its token, as in a model. */
static uint8_t *make_state(uint32_t cells, uint32_t layers, uint32_t row,
                           bool with_v, size_t *size)
{
    uint32_t sections = with_v ? layers * 2 : layers;
    *size = 24 + 12 * (size_t)cells + sections * (12 + (size_t)row * cells);
    uint8_t *state = need(malloc(*size)), *at = state;
    at = write_u32(at, 0xaf143cd8u);
    at = write_u32(at, 0);
    at = write_u32(at, 1);
    at = write_u32(at, cells);
    for (uint32_t i = 0; i < cells; i++) {
        at = write_u32(at, i);
        at = write_u32(at, 1);
        at = write_u32(at, 0);
    }
    at = write_u32(at, 0);
    at = write_u32(at, layers);
    for (uint32_t s = 0; s < sections; s++) {
        at = write_u32(at, 1);
        at = write_u64(at, row);
        for (uint32_t i = 0; i < cells; i++) {
            memset(at, (int)(s * 31 + i), row);
            at += row;
        }
    }
    CHECK(at == state + *size);
    return state;
}

/* Pieces cover the state in order and without gaps, whatever is in it. */
static void check_cover(const struct cut *cut, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < cut->count; i++) {
        CHECK(cut->pieces[i].offset == at);
        CHECK(cut->pieces[i].length >= 1);
        CHECK(cut->pieces[i].length <= size - at);
        CHECK(!cut->pieces[i].is_chunk || cut->pieces[i].chunk < cut->chunks);
        at += cut->pieces[i].length;
    }
    CHECK(at == size);
    CHECK((cut->layout == LAYOUT_FIXED) == (cut->note != NULL));
}

/* Each chunk has the hash of its pieces, one after another. */
static void hash_pieces(struct cut *cut, const uint8_t *state)
{
    uint8_t *bytes = need(malloc(cut->count ? cut->pieces[cut->count - 1].offset +
                                              cut->pieces[cut->count - 1].length : 1));
    for (uint32_t chunk = 0; chunk < cut->chunks; chunk++) {
        size_t n = 0;
        for (size_t i = 0; i < cut->count; i++) {
            struct piece *p = &cut->pieces[i];
            if (p->is_chunk && p->chunk == chunk) {
                memcpy(bytes + n, state + p->offset, p->length);
                n += p->length;
            }
        }
        CHECK(n > 0);
        for (size_t i = 0; i < cut->count; i++) {
            struct piece *p = &cut->pieces[i];
            p->hash = p->is_chunk && p->chunk == chunk ? XXH3_64bits(bytes, n) : p->hash;
        }
    }
    free(bytes);
}

/* Walk a manifest and touch all that it points to. */
static void check_segments(const struct manifest *m, const uint8_t *bytes, size_t size)
{
    struct segment_cursor at = {0};
    struct segment segment;
    uint64_t total = 0, chunks = 0;
    while (manifest_next(m, &at, &segment)) {
        CHECK(segment.length >= 1 && segment.length <= MAX_PIECE_BYTES);
        total += segment.length;
        chunks = segment.is_chunk && segment.chunk >= chunks ? segment.chunk + 1 : chunks;
        if (!segment.is_chunk) {
            CHECK(segment.data >= bytes);
            CHECK(segment.length <= (size_t)(bytes + size - segment.data));
            volatile uint64_t sum = XXH3_64bits(segment.data, segment.length);
            (void)sum;
        }
    }
    CHECK(total == m->facts.state_bytes && total <= MAX_STATE_BYTES);
    CHECK(chunks == m->chunks && chunks <= m->segments);
}

/* A changed copy, in memory of exactly its size: cut short or made longer, some
 * bytes flipped, some numbers set to values that break sums and products. */
static uint8_t *mutate(const uint8_t *bytes, size_t size, size_t header, size_t *new_size)
{
    static const uint32_t extremes[] = {0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff0};
    *new_size = size;
    if (below(3) == 0) {
        *new_size = below(2) ? below(size + 1) : size + below(40);
    }
    uint8_t *copy = need(malloc(*new_size ? *new_size : 1));
    size_t kept = *new_size < size ? *new_size : size;
    memcpy(copy, bytes, kept);
    memset(copy + kept, (int)below(256), *new_size - kept);
    for (size_t n = below(4); n > 0 && *new_size > 4; n--) {
        size_t room = below(4) && header < *new_size ? header : *new_size;
        size_t at = below(room);
        if (below(2)) {
            copy[at] ^= (uint8_t)(1u << below(8));
        } else {
            at = at & ~(size_t)3;
            at = at > *new_size - 4 ? *new_size - 4 : at;
            write_u32(copy + at, extremes[below(sizeof extremes / sizeof *extremes)]);
        }
    }
    return copy;
}

static void fuzz_state(const uint8_t *state, size_t size, uint32_t chunk_tokens)
{
    size_t bad_size;
    uint8_t *bad = mutate(state, size, 64, &bad_size);
    struct cut cut;
    if (!cut_state(bad, bad_size, chunk_tokens, &cut)) {
        check_cover(&cut, bad_size);
    } else {
        CHECK(cut.pieces == NULL && cut.count == 0);
    }
    cut_free(&cut);
    free(bad);
}

static void fuzz_manifest(const uint8_t *bytes, size_t size)
{
    size_t bad_size;
    uint8_t *bad = mutate(bytes, size, size < 400 ? size : 400, &bad_size);
    bool changed = bad_size != size || memcmp(bad, bytes, size) != 0;
    struct manifest m;
    CHECK(!changed || manifest_decode(bad, bad_size, &m) != NULL);
    /* Whoever writes a hostile manifest gets its checksum right. */
    if (bad_size >= 8) {
        write_u64(bad + bad_size - 8, XXH3_64bits(bad, bad_size - 8));
    }
    if (!manifest_decode(bad, bad_size, &m)) {
        check_segments(&m, bad, bad_size);
    }
    free(bad);
}

/* What goes in comes out; returns the manifest, to break it. */
static uint8_t *round_trip(const uint8_t *state, size_t size, uint32_t chunk_tokens,
                           size_t *manifest_size)
{
    struct cut cut;
    CHECK(cut_state(state, size, chunk_tokens, &cut) == NULL);
    CHECK(cut.layout == LAYOUT_ROWS);
    check_cover(&cut, size);
    hash_pieces(&cut, state);
    struct manifest_facts facts = {.layout = cut.layout, .cells = cut.cells, .tokens = cut.cells,
                                   .chunk_tokens = chunk_tokens, .state_bytes = size,
                                   .state_hash = XXH3_64bits(state, size)};
    uint8_t *bytes = need(manifest_encode(&facts, &cut, state, manifest_size));
    struct manifest m;
    CHECK(manifest_decode(bytes, *manifest_size, &m) == NULL);
    check_segments(&m, bytes, *manifest_size);
    struct segment_cursor at = {0};
    struct segment segment;
    for (size_t i = 0; i < cut.count; i++) {
        CHECK(manifest_next(&m, &at, &segment));
        CHECK(segment.is_chunk == cut.pieces[i].is_chunk);
        CHECK(segment.length == cut.pieces[i].length);
        CHECK(!segment.is_chunk || (segment.hash == cut.pieces[i].hash &&
                                    segment.chunk == cut.pieces[i].chunk));
        CHECK(segment.is_chunk ||
              memcmp(segment.data, state + cut.pieces[i].offset, segment.length) == 0);
    }
    CHECK(!manifest_next(&m, &at, &segment));
    cut_free(&cut);
    return bytes;
}

/* A longer conversation has every full piece of a shorter one. */
static void check_growth(const uint8_t *state, size_t size, uint32_t cells,
                         const uint8_t *longer, size_t longer_size, uint32_t chunk_tokens)
{
    struct cut a, b;
    CHECK(!cut_state(state, size, chunk_tokens, &a));
    CHECK(!cut_state(longer, longer_size, chunk_tokens, &b));
    hash_pieces(&a, state);
    hash_pieces(&b, longer);
    size_t known = 0, full = 0;
    for (size_t i = 0; i < a.count; i++) {
        bool found = false;
        for (size_t j = 0; j < b.count && !found && a.pieces[i].is_chunk; j++) {
            found = b.pieces[j].is_chunk && b.pieces[j].hash == a.pieces[i].hash;
        }
        known += found;
        full += a.pieces[i].is_chunk;
    }
    /* All but the last piece of each section, if that one is not full. */
    size_t sections = full / ((cells + chunk_tokens - 1) / chunk_tokens);
    CHECK(known >= sections * (cells / chunk_tokens));
    cut_free(&a);
    cut_free(&b);
}

static void one_round(void)
{
    uint32_t cells = 1 + (uint32_t)below(40), layers = 1 + (uint32_t)below(3);
    uint32_t row = 1 + (uint32_t)below(40), chunk_tokens = 1 + (uint32_t)below(20);
    bool with_v = below(8) != 0;
    size_t size, longer_size, manifest_size;
    uint8_t *state = make_state(cells, layers, row, with_v, &size);
    uint8_t *longer = make_state(cells + (uint32_t)below(40), layers, row, with_v, &longer_size);
    uint8_t *manifest = round_trip(state, size, chunk_tokens, &manifest_size);
    check_growth(state, size, cells, longer, longer_size, chunk_tokens);
    for (int i = 0; i < 16; i++) {
        fuzz_state(state, size, chunk_tokens);
        fuzz_manifest(manifest, manifest_size);
    }
    free(manifest);
    free(longer);
    free(state);
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 2000;
    random_state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    if (argc > 3 || rounds == 0) {
        fputs("usage: llama-kv-fuzz [ROUNDS [SEED]]\n", stderr);
        return 2;
    }
    for (current_round = 1; current_round <= rounds; current_round++) {
        one_round();
    }
    printf("%lu rounds, %lu mutated states and as many manifests: all refused or harmless\n",
           rounds, rounds * 16);
    return 0;
}
