/*
 * replay.c - llama-replay: runs again, in plain libllama, what recorder.c wrote of the side "back". Every state and all logits must have the
 * hashes that were written down.
 *
 *   llama-replay MODEL N_CTX N_BATCH N_UBATCH N_SEQ UNIFIED THREADS FILE...
 *
 * The files are those of processes that shared a store, in the order in which they ran: a state that one of them put must have been got by
 * it or by a former one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>

#include "hash.h"

struct state {
    uint64_t hash;
    size_t bytes;
    uint8_t *data;
};

static struct state *states;
static size_t n_states;
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

static void process(struct llama_context *ctx, struct llama_batch_ext *batch, const char *line)
{
    int status, n, used;
    if (sscanf(line, "%d %d%n", &status, &n, &used) != 2 || n < 0) fail("a batch that was not followed", line);
    llama_batch_ext_clear(batch);
    const char *at = line + used;
    for (int i = 0; i < n; i++) {
        int token, seq, pos, output;
        if (sscanf(at, "%d %d %d %d%n", &token, &seq, &pos, &output, &used) != 4) fail("a short line", line);
        at += used;
        int index = llama_batch_ext_add_token(batch, seq, token);
        if (index != i || !llama_batch_ext_set_pos(batch, index, &pos)) fail("a row was refused", line);
        if (output) llama_batch_ext_set_output_logits(batch, index, true);
    }
    if (llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch) != status) fail("another status", line);
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
    states = realloc(states, (n_states + 1) * sizeof(*states));
    if (!states) fail("no memory", line);
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

static void replay(struct llama_context *ctx, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) fail("cannot be read", path);
    struct llama_batch_ext *batch = llama_batch_ext_init(ctx);
    llama_memory_t mem = llama_get_memory(ctx);
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    char *line = NULL;
    size_t room = 0;
    int a, b, c, d, used;
    unsigned long long wanted;
    while (getline(&line, &room, file) >= 0) {
        char what[16];
        if (sscanf(line, "back %15s%n", what, &used) != 1) continue;
        const char *rest = line + used;
        if (!strcmp(what, "process")) {
            process(ctx, batch, rest);
        } else if (!strcmp(what, "logits") && sscanf(rest, "%d %llx", &a, &wanted) == 2) {
            const float *logits = llama_get_logits_ith(ctx, a);
            if ((logits ? hash(logits, sizeof(float) * (size_t)n_vocab) : 0) != wanted) fail("other logits", line);
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
    llama_batch_ext_free(batch);
}

int main(int argc, char **argv)
{
    if (argc < 9) {
        fprintf(stderr, "usage: llama-replay MODEL N_CTX N_BATCH N_UBATCH N_SEQ UNIFIED THREADS FILE...\n");
        return 2;
    }
    llama_log_set(drop_log, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) fail("cannot be loaded", argv[1]);
    for (int i = 8; i < argc; i++) {
        struct llama_context_params params = llama_context_default_params();
        params.n_ctx = (uint32_t)atoi(argv[2]);
        params.n_batch = (uint32_t)atoi(argv[3]);
        params.n_ubatch = (uint32_t)atoi(argv[4]);
        params.n_seq_max = (uint32_t)atoi(argv[5]);
        params.kv_unified = atoi(argv[6]) != 0;
        params.n_threads = params.n_threads_batch = atoi(argv[7]);
        params.swa_full = false;
        struct llama_context *ctx = llama_init_from_model(model, params);
        if (!ctx) fail("no context", argv[1]);
        replay(ctx, argv[i]);
        llama_free(ctx);
    }
    printf("{\"logits\": %lu, \"states\": %lu, \"put\": %lu, \"tokens\": %lu}\n", logits_compared, states_compared, states_put, processed);
    llama_model_free(model);
    return 0;
}
