/* engine.c - see engine.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "report.h"

/* What the prompt is made of. Each line is numbered, so that no two pieces of
 * the state are alike by accident. */
#define LINE_FORMAT "%u: The quick brown fox jumps over the lazy dog.\n"
#define LINE_ROOM 64u
/* Where a text is cut short, its last tokens may differ from those of a longer
 * text. This many are left over. */
#define SPARE_TOKENS 64u
/* The longest prompt; it bounds the text below. */
#define MAX_TOKENS (1u << 20)
#define MIB ((size_t)1 << 20)

static const llama_seq_id SEQUENCE = 0;

static void drop_log(enum ggml_log_level level, const char *text, void *unused)
{
    (void)level;
    (void)text;
    (void)unused;
}

static int identify_model(struct engine *e, const char *path)
{
    uint8_t *part = malloc(2 * MIB);
    FILE *file = fopen(path, "rb");
    long size = -1;
    size_t n = 0;
    if (part && file && fseek(file, 0, SEEK_END) == 0) {
        size = ftell(file);
    }
    if (size >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        n = fread(part, 1, MIB, file);
        if (size > (long)MIB && fseek(file, size - (long)MIB, SEEK_SET) == 0) {
            n += fread(part + n, 1, MIB, file);
        }
    }
    bool failed = size < 0 || ferror(file);
    int code = KV_OK;
    if (failed) {
        code = report(KV_CANNOT_RUN, "cannot read the model %s: %s; give a GGUF file with --model",
                      path, strerror(errno));
    } else {
        e->model_id = XXH3_64bits_withSeed(part, n, (uint64_t)size);
    }
    if (file) {
        fclose(file);
    }
    free(part);
    return code;
}

/* The tokens of a text of `lines` lines; 0 if they do not fit in `room`. */
static uint32_t tokenize_lines(const struct llama_vocab *vocab, uint32_t lines,
                               char *text, llama_token *tokens, uint32_t room)
{
    size_t length = 0;
    for (uint32_t i = 1; i <= lines; i++) {
        length += (size_t)snprintf(text + length, LINE_ROOM, LINE_FORMAT, i);
    }
    int32_t n = llama_tokenize(vocab, text, (int32_t)length, tokens,
                               (int32_t)room, true, false);
    return n < 0 ? 0 : (uint32_t)n;
}

static int make_prompt(struct engine *e)
{
    const struct llama_vocab *vocab = llama_model_get_vocab(e->model);
    /* No token is less than a byte, but for a few at the beginning. */
    const uint32_t max_lines = e->n_tokens / 8 + SPARE_TOKENS;
    const uint32_t room = max_lines * LINE_ROOM + 8;
    char *text = malloc((size_t)max_lines * LINE_ROOM);
    e->tokens = malloc((size_t)room * sizeof *e->tokens);
    uint32_t n = 0;
    if (text && e->tokens) {
        /* A tokenizer of words makes far fewer tokens of a line than one of
         * bytes: go on until it is enough. */
        uint32_t lines = e->n_tokens / 32 + 4;
        while (n < e->n_tokens + SPARE_TOKENS && lines <= max_lines) {
            n = tokenize_lines(vocab, lines, text, e->tokens, room);
            lines *= 2;
        }
    }
    free(text);
    if (n < e->n_tokens) {
        return report(KV_CANNOT_RUN, "cannot make a prompt of %u tokens with this model; "
                      "ask for fewer with --tokens", e->n_tokens);
    }
    e->prompt_id = XXH3_64bits(e->tokens, e->n_tokens * sizeof *e->tokens);
    return KV_OK;
}

/* Decode the tokens from `from` up to `to`, at their places in the prompt, as
 * one batch. Only the last one's logits are made. */
static int decode_batch(struct engine *e, uint32_t from, uint32_t to)
{
    struct llama_batch batch = llama_batch_init((int32_t)(to - from), 0, 1);
    batch.n_tokens = (int32_t)(to - from);
    for (uint32_t i = from; i < to; i++) {
        batch.token[i - from] = e->tokens[i];
        batch.pos[i - from] = (llama_pos)i;
        batch.n_seq_id[i - from] = 1;
        batch.seq_id[i - from][0] = SEQUENCE;
        batch.logits[i - from] = i + 1 == to;
    }
    int answer = llama_decode(e->context, batch);
    llama_synchronize(e->context);
    llama_batch_free(batch);
    if (answer != 0) {
        return report(KV_CANNOT_RUN, "llama_decode answers %d at token %u; try fewer --tokens, "
                      "or --verbose for llama.cpp's own messages", answer, from);
    }
    return KV_OK;
}

int engine_prefill(struct engine *e, uint32_t from, uint32_t to)
{
    int code = KV_OK;
    for (uint32_t at = from; code == KV_OK && at < to;) {
        uint32_t next = (at / ENGINE_BATCH + 1) * ENGINE_BATCH;
        next = next < to ? next : to;
        code = decode_batch(e, at, next);
        at = next;
    }
    return code;
}

int engine_decode_last(struct engine *e, const float **logits)
{
    int code = decode_batch(e, e->n_tokens - 1, e->n_tokens);
    if (code == KV_OK && !(*logits = llama_get_logits_ith(e->context, -1))) {
        code = report(KV_CANNOT_RUN, "llama.cpp has no logits for the last token; "
                      "use a model that generates text");
    }
    return code;
}

static int open_context(struct engine *e, int threads)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = e->n_tokens + SPARE_TOKENS;
    params.n_batch = ENGINE_BATCH;
    params.n_ubatch = ENGINE_BATCH;
    params.n_seq_max = 1;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    /* On, not automatic: it keeps V untransposed, see state.h. */
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    e->context = llama_init_from_model(e->model, params);
    if (!e->context) {
        return report(KV_CANNOT_RUN, "llama.cpp makes no context of %u tokens; try fewer "
                      "--tokens, or --verbose for its own messages", params.n_ctx);
    }
    return KV_OK;
}

/* Decode one token and forget it. So the first call that is timed finds the
 * weights in memory, in a process that saves and in one that restores; and the
 * size of a state of one cell, header included, bounds that of n cells. */
static int warm_up(struct engine *e)
{
    int code = decode_batch(e, 0, 1);
    if (code == KV_OK) {
        size_t one = llama_state_seq_get_size(e->context, SEQUENCE);
        e->max_state_bytes = (uint64_t)one * e->n_tokens;
        engine_clear(e);
    }
    return code;
}

int engine_open(struct engine *e, const char *model_path, uint32_t n_tokens,
                int threads, bool verbose)
{
    *e = (struct engine){.n_tokens = n_tokens};
    if (n_tokens < 2 || n_tokens > MAX_TOKENS) {
        return report(KV_CANNOT_RUN, "--tokens takes 2 to %u", MAX_TOKENS);
    }
    int code = identify_model(e, model_path);
    if (code != KV_OK) {
        return code;
    }
    if (!verbose) {
        llama_log_set(drop_log, NULL);
    }
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0; /* The same bits on every machine of a kind. */
    e->model = llama_model_load_from_file(model_path, params);
    if (!e->model) {
        return report(KV_CANNOT_RUN, "llama.cpp does not load %s; give a GGUF file of a known "
                      "architecture, or --verbose for its own messages", model_path);
    }
    int32_t limit = llama_model_n_ctx_train(e->model);
    if (limit > 0 && n_tokens > (uint32_t)limit) {
        return report(KV_CANNOT_RUN, "the model takes %d tokens, --tokens asks for %u; use fewer",
                      limit, n_tokens);
    }
    e->n_logits = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(e->model));
    code = make_prompt(e);
    if (code == KV_OK) {
        code = open_context(e, threads);
    }
    return code == KV_OK ? warm_up(e) : code;
}

int engine_get_state(struct engine *e, uint8_t **state, size_t *size)
{
    *size = llama_state_seq_get_size(e->context, SEQUENCE);
    *state = *size ? malloc(*size) : NULL;
    if (!*state) {
        return report(KV_CANNOT_RUN, "there is no memory for a state of %zu bytes", *size);
    }
    int code = engine_copy_state(e, *state, *size);
    if (code != KV_OK) {
        free(*state);
        *state = NULL;
    }
    return code;
}

int engine_copy_state(struct engine *e, uint8_t *state, size_t room)
{
    size_t size = llama_state_seq_get_data(e->context, state, room, SEQUENCE);
    return size == room ? KV_OK
                        : report(KV_CANNOT_RUN, "llama.cpp does not give out its state; --verbose "
                                 "shows its own messages");
}

int engine_save_file(struct engine *e, const char *path)
{
    return llama_state_seq_save_file(e->context, path, SEQUENCE, e->tokens, e->n_tokens - 1)
               ? KV_OK
               : report(KV_CANNOT_RUN, "llama.cpp does not save its state to %s", path);
}

int engine_load_file(struct engine *e, const char *path)
{
    size_t n = 0;
    llama_token *tokens = malloc(e->n_tokens * sizeof *tokens);
    engine_clear(e);
    size_t size = tokens ? llama_state_seq_load_file(e->context, path, SEQUENCE, tokens,
                                                     e->n_tokens, &n)
                         : 0;
    free(tokens);
    return size > 0 && n == e->n_tokens - 1
               ? KV_OK
               : report(KV_CANNOT_RUN, "llama.cpp does not load its state from %s", path);
}

int engine_set_state(struct engine *e, const uint8_t *state, size_t size)
{
    engine_clear(e);
    if (llama_state_seq_set_data(e->context, state, size, SEQUENCE) != size) {
        return report(KV_FAILED, "llama.cpp does not take the restored state: another version or "
                      "other settings made it; save it anew");
    }
    return KV_OK;
}

void engine_clear(struct engine *e)
{
    llama_memory_clear(llama_get_memory(e->context), true);
}

void engine_close(struct engine *e)
{
    if (e->context) {
        llama_free(e->context);
    }
    if (e->model) {
        llama_model_free(e->model);
        llama_backend_free();
    }
    free(e->tokens);
    *e = (struct engine){0};
}
