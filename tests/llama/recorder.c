/*
 * recorder.c - writes down what a program does with libllama. Loaded twice, before libkv_store_llama.so and behind it, it tells what the
 * program asked for and what was really run; check_auto.py compares the two, and llama-replay runs the second again.
 *
 * Built with -DSIDE='"front"' or '"back"'. KV_RECORD names the file. A line is written at once: a program that is killed leaves what it did.
 *
 * What libllama calls of itself, and what the library calls inside of a call, is no line of the side before it.
 *
 *   SIDE process STATUS N (TOKEN SEQ POS OUTPUT)...
 *   SIDE logits INDEX HASH          what the index has
 *   SIDE clear | SIDE rm SEQ P0 P1 DONE | SIDE cp A B P0 P1 | SIDE odd WHAT
 *   SIDE get SEQ FLAGS BYTES HASH | SIDE set SEQ FLAGS BYTES HASH READ
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

enum { ROWS = 1 << 14, BATCHES = 8 };

struct row {
    llama_token token;
    llama_seq_id seq;
    llama_pos pos;
    bool output;
};

struct batch {
    const struct llama_batch_ext *of;
    int n;
    struct row rows[ROWS];
};

static struct batch batches[BATCHES];
static int file = -1;

static void say(const char *format, ...)
{
    static char text[ROWS * 40];
    if (depth > 0) return;
    if (file < 0) {
        const char *path = getenv("KV_RECORD");
        if (!path || (file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0) return;
    }
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof(text) - 1, format, list);
    va_end(list);
    if (n < 0 || n >= (int)sizeof(text) - 1) abort();
    text[n++] = '\n';
    if (write(file, text, (size_t)n) != n) abort();
}

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
    b->n = 0;
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
    if (b) b->n = 0;
    next(batch);
}

int32_t llama_batch_ext_add_token(struct llama_batch_ext *batch, llama_seq_id seq, llama_token token)
{
    NEXT(llama_batch_ext_add_token);
    int32_t index = next(batch, seq, token);
    struct batch *b = batch_of(batch);
    if (b && index >= 0) {
        if (index != b->n || b->n >= ROWS) abort();
        b->rows[b->n++] = (struct row){token, seq, -1, false};
    }
    return index;
}

bool llama_batch_ext_set_output_logits(struct llama_batch_ext *batch, int32_t index, bool value)
{
    NEXT(llama_batch_ext_set_output_logits);
    struct batch *b = batch_of(batch);
    if (b && index >= 0 && index < b->n) b->rows[index].output = value;
    return next(batch, index, value);
}

bool llama_batch_ext_set_pos(struct llama_batch_ext *batch, int32_t index, const llama_pos *pos)
{
    NEXT(llama_batch_ext_set_pos);
    struct batch *b = batch_of(batch);
    if (b && index >= 0 && index < b->n) b->rows[index].pos = *pos;
    return next(batch, index, pos);
}

int32_t llama_process(struct llama_context *ctx, enum llama_process_type type, struct llama_batch_ext *batch)
{
    static char text[ROWS * 36];
    NEXT(llama_process);
    int32_t status;
    INNER(status = next(ctx, type, batch));
    struct batch *b = batch_of(batch);
    int n = 0;
    for (int i = 0; b && i < b->n; i++) {
        const struct row *r = &b->rows[i];
        n += snprintf(text + n, sizeof(text) - (size_t)n, " %d %d %d %d", r->token, r->seq, r->pos, r->output);
    }
    text[n] = 0;
    say(SIDE " process %d %d%s", status, b ? b->n : -1, text);
    return status;
}

float *llama_get_logits_ith(struct llama_context *ctx, int32_t index)
{
    NEXT(llama_get_logits_ith);
    float *logits;
    INNER(logits = next(ctx, index));
    const struct llama_vocab *vocab = llama_model_get_vocab(llama_get_model(ctx));
    size_t bytes = sizeof(float) * (size_t)llama_vocab_n_tokens(vocab);
    say(SIDE " logits %d %016llx", index, logits ? (unsigned long long)hash(logits, bytes) : 0ull);
    return logits;
}

void llama_memory_clear(llama_memory_t mem, bool data)
{
    NEXT(llama_memory_clear);
    INNER(next(mem, data));
    say(SIDE " clear");
}

bool llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq, llama_pos p0, llama_pos p1)
{
    NEXT(llama_memory_seq_rm);
    bool done;
    INNER(done = next(mem, seq, p0, p1));
    say(SIDE " rm %d %d %d %d", seq, p0, p1, done);
    return done;
}

void llama_memory_seq_cp(llama_memory_t mem, llama_seq_id a, llama_seq_id b, llama_pos p0, llama_pos p1)
{
    NEXT(llama_memory_seq_cp);
    INNER(next(mem, a, b, p0, p1));
    say(SIDE " cp %d %d %d %d", a, b, p0, p1);
}

void llama_memory_seq_add(llama_memory_t mem, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta)
{
    NEXT(llama_memory_seq_add);
    INNER(next(mem, seq, p0, p1, delta));
    say(SIDE " add %d %d %d %d", seq, p0, p1, delta);
}

static size_t got(llama_seq_id seq, unsigned flags, const uint8_t *data, size_t bytes)
{
    say(SIDE " get %d %u %zu %016llx", seq, flags, bytes, (unsigned long long)hash(data, bytes));
    return bytes;
}

static size_t put(llama_seq_id seq, unsigned flags, const uint8_t *data, size_t bytes, size_t read)
{
    say(SIDE " set %d %u %zu %016llx %zu", seq, flags, bytes, (unsigned long long)hash(data, bytes), read);
    return read;
}

size_t llama_state_seq_get_data(struct llama_context *ctx, uint8_t *to, size_t size, llama_seq_id seq)
{
    NEXT(llama_state_seq_get_data);
    INNER(size = next(ctx, to, size, seq));
    return got(seq, 0, to, size);
}

size_t llama_state_seq_get_data_ext(struct llama_context *ctx, uint8_t *to, size_t size, llama_seq_id seq, llama_state_seq_flags flags)
{
    NEXT(llama_state_seq_get_data_ext);
    INNER(size = next(ctx, to, size, seq, flags));
    return got(seq, flags, to, size);
}

size_t llama_state_seq_set_data(struct llama_context *ctx, const uint8_t *from, size_t size, llama_seq_id seq)
{
    NEXT(llama_state_seq_set_data);
    size_t read;
    INNER(read = next(ctx, from, size, seq));
    return put(seq, 0, from, size, read);
}

size_t llama_state_seq_set_data_ext(struct llama_context *ctx, const uint8_t *from, size_t size, llama_seq_id seq, llama_state_seq_flags flags)
{
    NEXT(llama_state_seq_set_data_ext);
    size_t read;
    INNER(read = next(ctx, from, size, seq, flags));
    return put(seq, flags, from, size, read);
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
