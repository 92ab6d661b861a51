/*
 * recorder.c - a library that writes down what happens to the contexts of a program, for check_auto.py and replay.c. It is preloaded twice,
 * before and behind libkv_store_llama.so: what the program asked for (front), and what was run for it (back).
 *
 * Built with -DSIDE='"front"' or '"back"'. KV_RECORD names the file. A line is written at once: a program that is killed leaves what it did.
 * CTX is the number of the context, in the order of their making.
 *
 * What libllama calls of itself, and what the library calls inside of a call, is no line of the side before it.
 *
 *   SIDE CTX context PARAMETERS MODEL      the bytes of llama_context_params, the model's file
 *   SIDE CTX process STATUS N (TOKEN SEQ POS OUTPUT)...
 *   SIDE CTX logits INDEX HASH             what the index has
 *   SIDE CTX clear | SIDE CTX rm SEQ P0 P1 DONE | SIDE CTX cp A B P0 P1 | SIDE CTX add SEQ P0 P1 DELTA
 *   SIDE CTX get SEQ FLAGS BYTES HASH | SIDE CTX set SEQ FLAGS BYTES HASH READ
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <llama.h>

#include "hash.h"

#define NEXT(name)                                                             \
    static __typeof__(&name) next;                                             \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* How many calls of this side this thread is inside of. */
static __thread int depth;
/* Do something that may call functions of this file. */
#define INNER(call) do { depth++; call; depth--; } while (0)

enum { ROWS = 1 << 14, BATCHES = 8, CONTEXTS = 32, MODELS = 8 };

struct row {
    llama_token token;
    llama_seq_id seq;
    llama_pos pos;
    bool output;
};

struct rows {
    int n;
    struct row rows[ROWS];
};

static struct { const struct llama_context *of; llama_memory_t memory; } contexts[CONTEXTS];
static int n_contexts;
static struct { const struct llama_model *of; char path[1024]; } models[MODELS];
static int n_models;
static int file = -1;

/* The number of a context: the latest at this address. */
static int context(const struct llama_context *ctx)
{
    int i = n_contexts - 1;
    while (i >= 0 && contexts[i].of != ctx) i--;
    return i;
}

static int of_memory(llama_memory_t memory)
{
    int i = n_contexts - 1;
    while (i >= 0 && contexts[i].memory != memory) i--;
    return i;
}

static void say(int number, const char *format, ...)
{
    static char text[ROWS * 40];
    if (depth > 0 || number < 0) return;
    if (file < 0) {
        const char *path = getenv("KV_RECORD");
        if (!path || (file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0) return;
    }
    int begun = snprintf(text, 32, SIDE " %d ", number);
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text + begun, sizeof(text) - 34, format, list);
    va_end(list);
    if (n < 0 || n >= (int)sizeof(text) - 34) abort();
    n += begun;
    text[n++] = '\n';
    if (write(file, text, (size_t)n) != n) abort();
}

struct llama_model *llama_model_load_from_file(const char *path, struct llama_model_params params)
{
    NEXT(llama_model_load_from_file);
    struct llama_model *made = next(path, params);
    if (n_models == MODELS) abort();
    models[n_models].of = made;
    snprintf(models[n_models++].path, sizeof(models[0].path), "%s", path);
    return made;
}

struct llama_context *llama_init_from_model(struct llama_model *model, struct llama_context_params params)
{
    NEXT(llama_init_from_model);
    struct llama_context *made;
    INNER(made = next(model, params));
    if (!made || depth > 0) return made;
    if (n_contexts == CONTEXTS) abort();
    contexts[n_contexts].of = made;
    contexts[n_contexts].memory = llama_get_memory(made);
    const char *path = "?";
    for (int i = 0; i < n_models; i++)
        if (models[i].of == model) path = models[i].path;
    /* Pointers mean nothing in another process. */
    params.cb_eval = NULL;
    params.cb_eval_user_data = NULL;
    params.abort_callback = NULL;
    params.abort_callback_data = NULL;
    params.samplers = NULL;
    params.n_samplers = 0;
    params.ctx_other = NULL;
    char hex[2 * sizeof(params) + 1];
    for (size_t i = 0; i < sizeof(params); i++) snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)&params)[i]);
    say(n_contexts++, "context %s %s", hex, path);
    return made;
}

/* A batch was computed. */
static void processed(const struct llama_context *ctx, int status, const struct rows *all)
{
    static char text[ROWS * 36];
    int n = 0;
    for (int i = 0; all && i < all->n; i++) {
        const struct row *r = &all->rows[i];
        n += snprintf(text + n, sizeof(text) - (size_t)n, " %d %d %d %d", r->token, r->seq, r->pos, r->output);
    }
    text[n] = 0;
    say(context(ctx), "process %d %d%s", status, all ? all->n : -1, text);
}

int32_t llama_decode(struct llama_context *ctx, struct llama_batch batch)
{
    NEXT(llama_decode);
    int32_t status;
    INNER(status = next(ctx, batch));
    static struct rows all;
    if (batch.n_tokens > ROWS) abort();
    all.n = batch.n_tokens;
    for (int i = 0; i < batch.n_tokens; i++)
        all.rows[i] = (struct row){
            batch.token ? batch.token[i] : -1,
            batch.seq_id ? batch.seq_id[i][0] : 0,
            batch.pos ? batch.pos[i] : -1,
            batch.logits ? batch.logits[i] : i + 1 == batch.n_tokens,
        };
    processed(ctx, status, batch.token ? &all : NULL);
    return status;
}

static struct batch { const struct llama_batch_ext *of; struct rows rows; } batches[BATCHES];

static struct batch *batch_of(const struct llama_batch_ext *of)
{
    for (int i = 0; i < BATCHES; i++)
        if (batches[i].of == of) return &batches[i];
    return NULL;
}

struct llama_batch_ext *llama_batch_ext_init(struct llama_context *ctx)
{
    NEXT(llama_batch_ext_init);
    struct llama_batch_ext *made = next(ctx);
    struct batch *b = batch_of(NULL);
    if (!b) abort();
    b->of = made;
    b->rows.n = 0;
    return made;
}

void llama_batch_ext_free(struct llama_batch_ext *batch)
{
    NEXT(llama_batch_ext_free);
    struct batch *b = batch_of(batch);
    if (b && batch) b->of = NULL;
    next(batch);
}

void llama_batch_ext_clear(struct llama_batch_ext *batch)
{
    NEXT(llama_batch_ext_clear);
    struct batch *b = batch_of(batch);
    if (b) b->rows.n = 0;
    next(batch);
}

int32_t llama_batch_ext_add_token(struct llama_batch_ext *batch, llama_seq_id seq, llama_token token)
{
    NEXT(llama_batch_ext_add_token);
    int32_t index = next(batch, seq, token);
    struct batch *b = batch_of(batch);
    if (b && index >= 0) {
        if (index != b->rows.n || b->rows.n >= ROWS) abort();
        b->rows.rows[b->rows.n++] = (struct row){token, seq, -1, false};
    }
    return index;
}

bool llama_batch_ext_set_output_logits(struct llama_batch_ext *batch, int32_t index, bool value)
{
    NEXT(llama_batch_ext_set_output_logits);
    struct batch *b = batch_of(batch);
    if (b && index >= 0 && index < b->rows.n) b->rows.rows[index].output = value;
    return next(batch, index, value);
}

bool llama_batch_ext_set_pos(struct llama_batch_ext *batch, int32_t index, const llama_pos *pos)
{
    NEXT(llama_batch_ext_set_pos);
    struct batch *b = batch_of(batch);
    if (b && index >= 0 && index < b->rows.n) b->rows.rows[index].pos = *pos;
    return next(batch, index, pos);
}

int32_t llama_process(struct llama_context *ctx, enum llama_process_type type, struct llama_batch_ext *batch)
{
    NEXT(llama_process);
    int32_t status;
    INNER(status = next(ctx, type, batch));
    struct batch *b = batch_of(batch);
    processed(ctx, status, b ? &b->rows : NULL);
    return status;
}

float *llama_get_logits_ith(struct llama_context *ctx, int32_t index)
{
    NEXT(llama_get_logits_ith);
    float *logits;
    INNER(logits = next(ctx, index));
    const struct llama_vocab *vocab = llama_model_get_vocab(llama_get_model(ctx));
    size_t bytes = sizeof(float) * (size_t)llama_vocab_n_tokens(vocab);
    say(context(ctx), "logits %d %016llx", index, logits ? (unsigned long long)hash(logits, bytes) : 0ull);
    return logits;
}

void llama_memory_clear(llama_memory_t mem, bool data)
{
    NEXT(llama_memory_clear);
    INNER(next(mem, data));
    say(of_memory(mem), "clear");
}

bool llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq, llama_pos p0, llama_pos p1)
{
    NEXT(llama_memory_seq_rm);
    bool done;
    INNER(done = next(mem, seq, p0, p1));
    say(of_memory(mem), "rm %d %d %d %d", seq, p0, p1, done);
    return done;
}

void llama_memory_seq_cp(llama_memory_t mem, llama_seq_id a, llama_seq_id b, llama_pos p0, llama_pos p1)
{
    NEXT(llama_memory_seq_cp);
    INNER(next(mem, a, b, p0, p1));
    say(of_memory(mem), "cp %d %d %d %d", a, b, p0, p1);
}

void llama_memory_seq_add(llama_memory_t mem, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta)
{
    NEXT(llama_memory_seq_add);
    INNER(next(mem, seq, p0, p1, delta));
    say(of_memory(mem), "add %d %d %d %d", seq, p0, p1, delta);
}

static size_t got(const struct llama_context *ctx, llama_seq_id seq, unsigned flags, const uint8_t *data, size_t bytes)
{
    say(context(ctx), "get %d %u %zu %016llx", seq, flags, bytes, (unsigned long long)hash(data, bytes));
    return bytes;
}

static size_t put(const struct llama_context *ctx, llama_seq_id seq, unsigned flags, const uint8_t *data, size_t bytes, size_t read)
{
    say(context(ctx), "set %d %u %zu %016llx %zu", seq, flags, bytes, (unsigned long long)hash(data, bytes), read);
    return read;
}

size_t llama_state_seq_get_data(struct llama_context *ctx, uint8_t *to, size_t size, llama_seq_id seq)
{
    NEXT(llama_state_seq_get_data);
    INNER(size = next(ctx, to, size, seq));
    return got(ctx, seq, 0, to, size);
}

size_t llama_state_seq_get_data_ext(struct llama_context *ctx, uint8_t *to, size_t size, llama_seq_id seq, llama_state_seq_flags flags)
{
    NEXT(llama_state_seq_get_data_ext);
    INNER(size = next(ctx, to, size, seq, flags));
    return got(ctx, seq, flags, to, size);
}

size_t llama_state_seq_set_data(struct llama_context *ctx, const uint8_t *from, size_t size, llama_seq_id seq)
{
    NEXT(llama_state_seq_set_data);
    size_t read;
    INNER(read = next(ctx, from, size, seq));
    return put(ctx, seq, 0, from, size, read);
}

size_t llama_state_seq_set_data_ext(struct llama_context *ctx, const uint8_t *from, size_t size, llama_seq_id seq, llama_state_seq_flags flags)
{
    NEXT(llama_state_seq_set_data_ext);
    size_t read;
    INNER(read = next(ctx, from, size, seq, flags));
    return put(ctx, seq, flags, from, size, read);
}

/* These are no lines, but the library may do something inside of them. */
#define PASSED(type, name, parameters, arguments)                              \
    type name parameters                                                       \
    {                                                                          \
        NEXT(name);                                                            \
        type answer;                                                           \
        INNER(answer = next arguments);                                        \
        return answer;                                                         \
    }

PASSED(llama_pos, llama_memory_seq_pos_min, (llama_memory_t mem, llama_seq_id seq), (mem, seq))
PASSED(llama_pos, llama_memory_seq_pos_max, (llama_memory_t mem, llama_seq_id seq), (mem, seq))
PASSED(size_t, llama_state_seq_get_size, (struct llama_context *ctx, llama_seq_id seq), (ctx, seq))
PASSED(size_t, llama_state_seq_get_size_ext, (struct llama_context *ctx, llama_seq_id seq, llama_state_seq_flags flags), (ctx, seq, flags))
