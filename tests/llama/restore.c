/* restore.c - llama-kv restore and chunks. SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bytes.h"
#include "chunks.h"
#include "engine.h"
#include "manifest.h"
#include "report.h"
#include "store.h"

/* Get and decode a manifest; `*bytes` is what it points into, for the caller to
 * free. */
static int fetch_manifest(struct store *s, const char *name, uint8_t **bytes,
                          size_t *size, struct manifest *m)
{
    int code = store_manifest(s, name, bytes, size);
    if (code != KV_OK) {
        return code;
    }
    const char *wrong = manifest_decode(*bytes, *size, m);
    if (wrong) {
        free(*bytes);
        *bytes = NULL;
        return report(KV_FAILED, "the manifest '%s' is corrupt: %s; save the state again", name,
                      wrong);
    }
    return KV_OK;
}

static int check_facts(const struct manifest *m, const struct engine *e,
                       const char *name)
{
    if (m->facts.model_id != e->model_id) {
        return report(KV_FAILED, "'%s' was saved from another model; give that one with --model",
                      name);
    }
    if (m->facts.tokens != e->n_tokens || m->facts.prompt_id != e->prompt_id) {
        return report(KV_FAILED, "'%s' holds another prompt, of %" PRIu32 " tokens; give that "
                      "number with --tokens", name, m->facts.tokens);
    }
    if (m->facts.state_bytes > e->max_state_bytes) {
        return report(KV_FAILED, "'%s' promises a state of %" PRIu64 " bytes, more than this prompt "
                      "can have; save the state again", name, m->facts.state_bytes);
    }
    return KV_OK;
}

static int prefetch(struct store *s, const struct manifest *m, struct result *r)
{
    uint8_t *keys = calloc((size_t)m->chunks + 1, KEY_BYTES);
    if (!keys) {
        return report(KV_CANNOT_RUN, "there is no memory for %" PRIu32 " keys", m->chunks);
    }
    struct segment segment;
    for (struct segment_cursor at = {0}; manifest_next(m, &at, &segment);) {
        if (segment.is_chunk) {
            write_key(keys + (size_t)KEY_BYTES * segment.chunk, segment.hash);
        }
    }
    r->prefetched = store_prefetch(s, keys, m->chunks) ? ANSWER_YES : ANSWER_NO;
    free(keys);
    return KV_OK;
}

/* Put the state together; `state` has room for the manifest's state_bytes. */
static int join(struct store *s, const struct manifest *m, uint8_t *state,
                const struct options *o)
{
    struct chunk_list list;
    int code = chunks_of_manifest(m, state, &list);
    size_t done = 0;
    struct segment segment;
    for (struct segment_cursor at = {0}; manifest_next(m, &at, &segment);) {
        if (!segment.is_chunk) {
            memcpy(state + done, segment.data, segment.length);
        }
        done += segment.length;
    }
    if (code == KV_OK) {
        code = store_get(s, list.chunks, list.n, o->trusting);
    }
    chunk_list_free(&list);
    /* Each chunk was right; this says that they are the right ones. */
    if (code == KV_OK && !o->trusting && XXH3_64bits(state, done) != m->facts.state_hash) {
        return report(KV_FAILED, "the state put together from '%s' is not the one that was saved; "
                      "save it again", o->name);
    }
    return code;
}

int fetch_state(struct store *s, const struct options *o, const struct engine *e,
                uint8_t **state, size_t room, size_t *size, struct result *r)
{
    uint8_t *bytes;
    struct manifest m;
    size_t manifest_size;
    int code = fetch_manifest(s, o->name, &bytes, &manifest_size, &m);
    if (code != KV_OK) {
        return code;
    }
    r->manifest_bytes = (int64_t)manifest_size;
    r->state_bytes = (int64_t)m.facts.state_bytes;
    r->state_tokens = (int64_t)m.facts.tokens - 1;
    r->layout = m.facts.layout == LAYOUT_ROWS ? "rows" : "fixed";
    r->chunk_tokens = m.facts.chunk_tokens;
    r->chunks = m.chunks;
    r->inline_bytes = (int64_t)m.inline_bytes;
    code = check_facts(&m, e, o->name);
    /* A batch says all that it wants at once. */
    if (code == KV_OK && !s->batch && !o->no_hint) {
        code = prefetch(s, &m, r);
    }
    if (code == KV_OK) {
        *size = (size_t)m.facts.state_bytes;
        if (!*state || room < *size) {
            free(*state);
            *state = malloc(*size);
        }
        code = *state ? join(s, &m, *state, o)
                      : report(KV_CANNOT_RUN, "there is no memory for a state of %zu bytes", *size);
    }
    free(bytes);
    return code;
}

/* Read the logits that a save kept: exactly `n` numbers, for the caller to
 * free. */
int read_logits(const char *path, size_t n, float **logits)
{
    FILE *file = fopen(path, "rb");
    *logits = malloc(n * sizeof **logits);
    int code = KV_OK;
    if (!file || !*logits) {
        code = report(KV_CANNOT_RUN, "cannot read the logits from %s: %s; give the file of the save "
                      "with --logits", path, strerror(errno));
    } else if (fread(*logits, sizeof **logits, n, file) != n || fgetc(file) != EOF) {
        code = report(KV_FAILED, "%s does not hold %zu logits; give the file of the save with "
                      "--logits", path, n);
    }
    if (file) {
        fclose(file);
    }
    return code;
}

/* Decode the last token and compare its logits with `expected`, bit for bit. */
static int decode_and_compare(struct engine *e, const float *expected,
                              double *decode_ms, enum answer *same)
{
    const float *logits;
    double start = now_ms();
    int code = engine_decode_last(e, &logits);
    *decode_ms = now_ms() - start;
    if (code == KV_OK && expected) {
        *same = memcmp(logits, expected, e->n_logits * sizeof *logits) == 0 ? ANSWER_YES
                                                                            : ANSWER_NO;
    }
    return code;
}

static int compare_prefill(struct engine *e, const float *expected,
                           struct result *r)
{
    double unused;
    engine_clear(e);
    double start = now_ms();
    int code = engine_prefill(e, 0, e->n_tokens - 1);
    r->prefill_ms = now_ms() - start;
    if (code == KV_OK) {
        code = decode_and_compare(e, expected, &unused, &r->prefill_logits_identical);
    }
    return code;
}

static int restore_prompt(const struct options *o, struct engine *e,
                          struct store *s, const float *expected,
                          struct result *r)
{
    uint8_t *state = NULL;
    size_t size;
    double start = now_ms();
    int code = fetch_state(s, o, e, &state, 0, &size, r);
    r->restore_ms = now_ms() - start;
    if (code == KV_OK) {
        start = now_ms();
        code = engine_set_state(e, state, size);
        r->set_state_ms = now_ms() - start;
    }
    free(state);
    if (code == KV_OK) {
        code = decode_and_compare(e, expected, &r->decode_ms, &r->logits_identical);
    }
    if (code == KV_OK && o->compare_prefill) {
        code = compare_prefill(e, expected, r);
    }
    if (code == KV_OK && r->logits_identical == ANSWER_NO) {
        code = report(KV_FAILED, "the logits after the restore differ from those in %s; they must "
                      "come from the same model, prompt and machine", o->logits);
    }
    if (code == KV_OK && r->prefill_logits_identical == ANSWER_NO) {
        code = report(KV_FAILED, "the logits after a full prefill differ from those in %s; use the "
                      "same --threads on the same machine", o->logits);
    }
    return code;
}

int command_restore(const struct options *o, struct result *r)
{
    struct engine engine;
    struct store store;
    float *expected = NULL;
    int code = open_both(o, &engine, &store, r);
    if (code == KV_OK && o->logits) {
        code = read_logits(o->logits, engine.n_logits, &expected);
    }
    if (code == KV_OK) {
        code = restore_prompt(o, &engine, &store, expected, r);
    }
    free(expected);
    store_close(&store);
    engine_close(&engine);
    return code;
}

int command_chunks(const struct options *o)
{
    struct store store;
    struct manifest m;
    uint8_t *bytes = NULL;
    size_t size;
    int code = store_open(&store, o->lib, o->uri);
    if (code == KV_OK) {
        code = fetch_manifest(&store, o->name, &bytes, &size, &m);
    }
    struct chunk_list list = {0};
    if (code == KV_OK) {
        code = chunks_of_manifest(&m, NULL, &list);
    }
    for (size_t i = 0; code == KV_OK && i < list.n; i++) {
        printf("%016" PRIx64 " %zu\n", list.chunks[i].hash, list.chunks[i].size);
    }
    chunk_list_free(&list);
    free(bytes);
    store_close(&store);
    return code;
}
