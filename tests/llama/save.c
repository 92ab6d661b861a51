/* save.c - llama-kv save. SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "chunks.h"
#include "engine.h"
#include "manifest.h"
#include "report.h"
#include "state.h"
#include "store.h"

/* Put the chunks of the state, and count what was new. */
static int put_pieces(struct store *s, const uint8_t *state, struct cut *cut,
                      struct result *r)
{
    struct chunk_list list;
    int code = chunks_of_cut(cut, state, &list);
    if (code == KV_OK) {
        code = store_put(s, list.chunks, list.n);
    }
    r->chunks = (int64_t)cut->chunks;
    r->chunks_new = r->chunks_known = r->bytes_new = r->inline_bytes = 0;
    for (size_t i = 0; code == KV_OK && i < list.n; i++) {
        r->chunks_known += list.chunks[i].known;
        r->chunks_new += !list.chunks[i].known;
        r->bytes_new += list.chunks[i].known ? 0 : (int64_t)list.chunks[i].size;
    }
    for (size_t i = 0; code == KV_OK && i < cut->count; i++) {
        struct piece *p = &cut->pieces[i];
        if (p->is_chunk) {
            p->hash = list.chunks[p->chunk].hash;
        } else {
            r->inline_bytes += (int64_t)p->length;
        }
    }
    chunk_list_free(&list);
    return code;
}

static int publish(struct store *s, const struct options *o,
                   const struct engine *e, const uint8_t *state, size_t size,
                   const struct cut *cut, struct result *r)
{
    struct manifest_facts facts = {.layout = cut->layout,
                                   .tokens = e->n_tokens,
                                   .cells = cut->cells,
                                   .chunk_tokens = o->chunk_tokens,
                                   .state_bytes = size,
                                   .state_hash = o->trusting ? 0 : XXH3_64bits(state, size),
                                   .model_id = e->model_id,
                                   .prompt_id = e->prompt_id};
    size_t manifest_size;
    uint8_t *manifest = manifest_encode(&facts, cut, state, &manifest_size);
    if (!manifest) {
        return report(KV_CANNOT_RUN, "there is no memory for the manifest of %zu pieces",
                      cut->count);
    }
    int code = store_publish(s, o->name, manifest, manifest_size);
    r->manifest_bytes = (int64_t)manifest_size;
    free(manifest);
    return code;
}

int save_state(struct store *s, const struct options *o,
               const struct engine *e, const uint8_t *state, size_t size,
               struct result *r)
{
    struct cut cut;
    double start = now_ms();
    const char *wrong = cut_state(state, size, o->chunk_tokens, &cut);
    if (wrong) {
        return report(KV_FAILED, "the state of llama.cpp cannot be cut: %s; use the version of "
                      "llama.cpp that this program was written for", wrong);
    }
    r->state_bytes = (int64_t)size;
    r->state_tokens = (int64_t)e->n_tokens - 1;
    r->layout = cut.layout == LAYOUT_ROWS ? "rows" : "fixed";
    r->layout_note = cut.note;
    r->chunk_tokens = o->chunk_tokens;
    int code = put_pieces(s, state, &cut, r);
    if (code == KV_OK) {
        code = publish(s, o, e, state, size, &cut, r);
    }
    r->save_ms = now_ms() - start;
    cut_free(&cut);
    return code;
}

int write_logits(const char *path, const float *logits, size_t n)
{
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(logits, sizeof *logits, n, file) == n;
    if (file && fclose(file) != 0) {
        written = false;
    }
    return written ? KV_OK
                   : report(KV_CANNOT_RUN, "cannot write the logits to %s: %s; give another file "
                            "with --logits", path, strerror(errno));
}

static int save_prompt(const struct options *o, struct engine *e,
                       struct store *s, struct result *r)
{
    double start = now_ms();
    int code = engine_prefill(e, 0, e->n_tokens - 1);
    r->prefill_ms = now_ms() - start;
    if (code != KV_OK) {
        return code;
    }
    uint8_t *state;
    size_t size;
    start = now_ms();
    code = engine_get_state(e, &state, &size);
    r->get_state_ms = now_ms() - start;
    if (code != KV_OK) {
        return code;
    }
    code = save_state(s, o, e, state, size, r);
    free(state);
    if (code != KV_OK) {
        return code;
    }
    /* After the save: decoding adds this token to the sequence. */
    const float *logits;
    start = now_ms();
    code = engine_decode_last(e, &logits);
    r->decode_ms = now_ms() - start;
    if (code == KV_OK && o->logits) {
        code = write_logits(o->logits, logits, e->n_logits);
    }
    return code;
}

int open_both(const struct options *o, struct engine *e, struct store *s,
              struct result *r)
{
    *s = (struct store){0};
    double start = now_ms();
    int code = engine_open(e, o->model, o->tokens, o->threads, o->verbose);
    r->load_ms = now_ms() - start;
    if (code == KV_OK) {
        start = now_ms();
        code = store_open(s, o->lib, o->uri);
        r->open_ms = now_ms() - start;
    }
    if (code == KV_OK) {
        r->abi_version = s->kv->version;
    }
    return code;
}

int command_save(const struct options *o, struct result *r)
{
    struct engine engine;
    struct store store;
    int code = open_both(o, &engine, &store, r);
    if (code == KV_OK) {
        code = save_prompt(o, &engine, &store, r);
    }
    store_close(&store);
    engine_close(&engine);
    return code;
}
