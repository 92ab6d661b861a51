/*
 * replay.c - llama-replay: runs again, in plain libllama, what recorder.c wrote of the side "back". Every state and all logits must have the
 * hashes that were written down.
 *
 *   llama-replay FILE...
 *
 * The files are those of processes that shared a store, in the order in which they ran: a state that one of them put must have been got by
 * it or by a former one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <llama.h>

#include "hash.h"

struct state {
    uint64_t hash;
    size_t bytes;
    uint8_t *data;
};

static struct state *states;
static size_t n_states, room_for_states;
static unsigned long logits_compared, states_compared, states_put, processed;

static void fail(const char *what, const char *line)
{
    fprintf(stderr, "llama-replay: %s: %.120s\n", what, line);
    exit(1);
}

static void drop_log(enum ggml_log_level level, const char *text, void *unused)
{
    (void)level;
    (void)text;
    (void)unused;
}

enum { CONTEXTS = 32, MODELS = 8 };

static struct { char path[1024]; struct llama_model *model; } models[MODELS];
static int n_models;
static struct { struct llama_context *ctx; int n_vocab; } contexts[CONTEXTS];

static struct llama_model *model_of(const char *path)
{
    int i = 0;
    while (i < n_models && strcmp(models[i].path, path)) i++;
    if (i < n_models) return models[i].model;
    if (i == MODELS) fail("too many models", path);
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model) fail("cannot be loaded", path);
    snprintf(models[n_models].path, sizeof(models[0].path), "%s", path);
    models[n_models++].model = model;
    return model;
}

static void make(int number, const char *line)
{
    struct llama_context_params params;
    int used;
    for (size_t i = 0; i < sizeof(params); i++) {
        unsigned byte;
        if (sscanf(line + 2 * i + 1, "%2x", &byte) != 1) fail("a short line", line);
        ((unsigned char *)&params)[i] = (unsigned char)byte;
    }
    char path[1024];
    if (sscanf(line + 2 * sizeof(params) + 1, " %1023[^\n]%n", path, &used) != 1) fail("no model", line);
    struct llama_model *model = model_of(path);
    contexts[number].ctx = llama_init_from_model(model, params);
    contexts[number].n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (!contexts[number].ctx) fail("no context", path);
}

static void process(struct llama_context *ctx, const char *line)
{
    int status, n, used;
    if (sscanf(line, "%d %d%n", &status, &n, &used) != 2 || n < 0) fail("a batch that was not followed", line);
    struct llama_batch batch = llama_batch_init(n ? n : 1, 0, 1);
    const char *at = line + used;
    for (int i = 0; i < n; i++) {
        int output;
        if (sscanf(at, "%d %d %d %d%n", &batch.token[i], &batch.seq_id[i][0], &batch.pos[i], &output, &used) != 4) fail("a short line", line);
        at += used;
        batch.n_seq_id[i] = 1;
        batch.logits[i] = (int8_t)output;
    }
    batch.n_tokens = n;
    if (llama_decode(ctx, batch) != status) fail("another status", line);
    llama_batch_free(batch);
    processed += (unsigned long)n;
}

static void get(struct llama_context *ctx, const char *line)
{
    int seq;
    unsigned flags;
    size_t bytes;
    unsigned long long wanted;
    if (sscanf(line, "%d %u %zu %llx", &seq, &flags, &bytes, &wanted) != 4) fail("a short line", line);
    if (flags & LLAMA_STATE_SEQ_FLAGS_ON_DEVICE) fail("a state that stays on a device", line);
    size_t size = llama_state_seq_get_size_ext(ctx, seq, flags);
    uint8_t *data = malloc(size ? size : 1);
    if (!data) fail("no memory", line);
    size = llama_state_seq_get_data_ext(ctx, data, size, seq, flags);
    if (size != bytes || hash(data, size) != wanted) fail("another state", line);
    states_compared++;
    for (size_t i = 0; i < n_states; i++)
        if (states[i].hash == wanted && states[i].bytes == size) {
            free(data);
            return;
        }
    if (n_states == room_for_states) {
        room_for_states = 2 * room_for_states + 64;
        states = realloc(states, room_for_states * sizeof(*states));
        if (!states) fail("no memory", line);
    }
    states[n_states++] = (struct state){wanted, size, data};
}

static void set(struct llama_context *ctx, const char *line)
{
    int seq;
    unsigned flags;
    size_t bytes, read;
    unsigned long long wanted;
    if (sscanf(line, "%d %u %zu %llx %zu", &seq, &flags, &bytes, &wanted, &read) != 5) fail("a short line", line);
    for (size_t i = 0; i < n_states; i++)
        if (states[i].hash == wanted && states[i].bytes == bytes) {
            if (llama_state_seq_set_data_ext(ctx, states[i].data, bytes, seq, flags) != read) fail("another answer", line);
            states_put++;
            return;
        }
    fail("a state that nobody has got", line);
}

static void replay(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) fail("cannot be read", path);
    char *line = NULL;
    size_t room = 0;
    int number, a, b, c, d, used;
    unsigned long long wanted;
    while (getline(&line, &room, file) >= 0) {
        char what[16];
        if (sscanf(line, "back %d %15s%n", &number, what, &used) != 2) continue;
        if (number < 0 || number >= CONTEXTS) fail("too many contexts", line);
        const char *rest = line + used;
        if (!strcmp(what, "context")) {
            make(number, rest);
            continue;
        }
        struct llama_context *ctx = contexts[number].ctx;
        if (!ctx) fail("no context", line);
        llama_memory_t mem = llama_get_memory(ctx);
        if (!strcmp(what, "process")) {
            process(ctx, rest);
        } else if (!strcmp(what, "logits") && sscanf(rest, "%d %llx", &a, &wanted) == 2) {
            const float *logits = llama_get_logits_ith(ctx, a);
            if ((logits ? hash(logits, sizeof(float) * (size_t)contexts[number].n_vocab) : 0) != wanted) fail("other logits", line);
            logits_compared++;
        } else if (!strcmp(what, "clear")) {
            llama_memory_clear(mem, true);
        } else if (!strcmp(what, "rm") && sscanf(rest, "%d %d %d %d", &a, &b, &c, &d) == 4) {
            if (llama_memory_seq_rm(mem, a, b, c) != d) fail("another answer", line);
        } else if (!strcmp(what, "cp") && sscanf(rest, "%d %d %d %d", &a, &b, &c, &d) == 4) {
            llama_memory_seq_cp(mem, a, b, c, d);
        } else if (!strcmp(what, "add") && sscanf(rest, "%d %d %d %d", &a, &b, &c, &d) == 4) {
            llama_memory_seq_add(mem, a, b, c, d);
        } else if (!strcmp(what, "get")) {
            get(ctx, rest);
        } else if (!strcmp(what, "set")) {
            set(ctx, rest);
        } else {
            fail("an unknown line", line);
        }
    }
    free(line);
    fclose(file);
    for (int i = 0; i < CONTEXTS; i++) {
        if (contexts[i].ctx) llama_free(contexts[i].ctx);
        contexts[i].ctx = NULL;
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: llama-replay FILE...\n");
        return 2;
    }
    llama_log_set(drop_log, NULL);
    /* Its backends are files of their own where Debian built it. */
    ggml_backend_load_all();
    llama_backend_init();
    for (int i = 1; i < argc; i++) replay(argv[i]);
    printf("{\"logits\": %lu, \"states\": %lu, \"put\": %lu, \"tokens\": %lu}\n", logits_compared, states_compared, states_put, processed);
    for (int i = 0; i < n_models; i++) llama_model_free(models[i].model);
    return 0;
}
