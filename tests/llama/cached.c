/* cached.c - llama-kv cached. SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"
#include "report.h"
#include "rows.h"

/* Begin with the longest state that the cache has; `*done` tokens of it. */
static int begin(struct rows *rows, struct engine *e, uint32_t *done, struct result *r)
{
    struct row row;
    double start = now_ms();
    int code = rows_find(rows, e->tokens, e->n_tokens - 1, e->max_state_bytes, &row);
    r->restore_ms = now_ms() - start;
    r->hit = row.kind;
    if (code == KV_OK && row.state) {
        start = now_ms();
        code = engine_set_state(e, row.state, row.size);
        r->set_state_ms = now_ms() - start;
    }
    *done = row.tokens;
    r->matched_tokens = row.tokens;
    free(row.state);
    return code;
}

static int prefill(struct engine *e, uint32_t *done, uint32_t to, struct result *r)
{
    double start = now_ms();
    int code = engine_prefill(e, *done, to);
    r->prefill_ms += now_ms() - start;
    r->prefilled_tokens += to - *done;
    *done = to;
    return code;
}

static int save(struct rows *rows, struct engine *e, uint32_t reason, uint32_t tokens,
                struct result *r)
{
    uint8_t *state;
    size_t size;
    int code = engine_get_state(e, &state, &size);
    if (code == KV_OK) {
        double start = now_ms();
        code = rows_save(rows, reason, e->tokens, tokens, e->n_tokens - 1, state, size,
                         &r->rows_saved);
        r->save_ms += now_ms() - start;
        r->state_bytes = (int64_t)size;
        free(state);
    }
    return code;
}

/* All tokens but the last are in the sequence afterwards, and saved. */
static int prefill_what_is_new(struct rows *rows, struct engine *e, struct result *r)
{
    const uint32_t end = e->n_tokens - 1;
    uint32_t done, boundary;
    r->prefill_ms = r->save_ms = 0;
    r->prefilled_tokens = r->rows_saved = 0;
    int code = begin(rows, e, &done, r);
    if (code == KV_OK) {
        code = rows_cold_boundary(rows, end, &boundary);
    }
    if (code == KV_OK && boundary > done) {
        code = prefill(e, &done, boundary, r);
        if (code == KV_OK) {
            code = save(rows, e, KV_CACHE_REASON_COLD, boundary, r);
        }
    }
    if (code == KV_OK && done < end) {
        code = prefill(e, &done, end, r);
        if (code == KV_OK) {
            code = save(rows, e, KV_CACHE_REASON_FINISH, end, r);
        }
    }
    return code == KV_OK ? rows_flush(rows) : code;
}

static int decode(struct engine *e, float *logits, double *ms)
{
    const float *decoded;
    double start = now_ms();
    int code = engine_decode_last(e, &decoded);
    *ms = now_ms() - start;
    if (code == KV_OK) {
        memcpy(logits, decoded, e->n_logits * sizeof *logits);
    }
    return code;
}

/* Compare with those of a file, or write them there if there is none yet. */
static int check_file(const char *path, const float *logits, size_t n, struct result *r)
{
    float *expected = NULL;
    if (access(path, F_OK) != 0) {
        return write_logits(path, logits, n);
    }
    int code = read_logits(path, n, &expected);
    if (code == KV_OK) {
        bool same = memcmp(logits, expected, n * sizeof *logits) == 0;
        r->logits_identical = same ? ANSWER_YES : ANSWER_NO;
        if (!same) {
            code = report(KV_FAILED, "the logits differ from those in %s; they must come from the "
                          "same model, prompt and machine", path);
        }
    }
    free(expected);
    return code;
}

/* Once more without the cache. */
static int compare_prefill(struct engine *e, const float *logits, float *other, struct result *r)
{
    double unused;
    engine_clear(e);
    double start = now_ms();
    int code = engine_prefill(e, 0, e->n_tokens - 1);
    r->full_prefill_ms = now_ms() - start;
    if (code == KV_OK) {
        code = decode(e, other, &unused);
    }
    if (code == KV_OK) {
        bool same = memcmp(logits, other, e->n_logits * sizeof *logits) == 0;
        r->prefill_logits_identical = same ? ANSWER_YES : ANSWER_NO;
        if (!same) {
            code = report(KV_FAILED, "the logits differ from those after a full prefill; use a cache "
                          "with boundary_align_tokens at a multiple of %u", ENGINE_BATCH);
        }
    }
    return code;
}

static int run(const struct options *o, struct rows *rows, struct engine *e, struct result *r)
{
    float *logits = malloc(2 * e->n_logits * sizeof *logits);
    if (!logits) {
        return report(KV_CANNOT_RUN, "there is no memory for the logits");
    }
    int code = prefill_what_is_new(rows, e, r);
    if (code == KV_OK) {
        code = decode(e, logits, &r->decode_ms);
    }
    if (code == KV_OK && o->logits) {
        code = check_file(o->logits, logits, e->n_logits, r);
    }
    if (code == KV_OK && o->compare_prefill) {
        code = compare_prefill(e, logits, logits + e->n_logits, r);
    }
    free(logits);
    return code;
}

int command_cached(const struct options *o, struct result *r)
{
    struct engine engine;
    struct rows rows = {0};
    double start = now_ms();
    int code = engine_open(&engine, o->model, o->tokens, o->threads, o->verbose);
    r->load_ms = now_ms() - start;
    r->state_tokens = (int64_t)o->tokens - 1;
    if (code == KV_OK) {
        start = now_ms();
        code = rows_open(&rows, o->lib, o->config, o->model);
        r->open_ms = now_ms() - start;
    }
    if (code == KV_OK) {
        code = run(o, &rows, &engine, r);
    }
    rows_close(&rows);
    engine_close(&engine);
    return code;
}
