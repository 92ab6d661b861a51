/*
 * slots.c - llama-slots: a program that keeps its slots in files by llama.cpp's own functions, as llama-server does. It
 * knows nothing of a store: what it prints must be the same with libkv_store_llama.so loaded before libllama.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>

#include "kv_store_llama.h"

static const char HELP[] =
    "Decode, save and restore sequences of a model, in the order of the steps.\n"
    "\n"
    "  llama-slots [--no-mmap] [--no-flash] [--adapter] [--api LIB URI NAME] MODEL STEP...\n"
    "\n"
    "  prompt:SEQ:N          begin SEQ (0 or 1) with the first N tokens of a text\n"
    "  other:SEQ:SHARED:N    with SHARED tokens of it, then those of another text\n"
    "  generate:SEQ:N        N tokens at temperature 0; they are printed\n"
    "  save:SEQ:FILE, restore:SEQ:FILE\n"
    "  room:SEQ:N:FILE       restore with room for N tokens\n"
    "  api-save:SEQ:NAME, api-restore:SEQ:NAME  by kv_store_llama.h, with --api\n"
    "\n"
    "--adapter sets a control vector (of zeros). --api opens URI with the library LIB; NAME names the model, - for none.\n"
    "The last token of a sequence waits to be decoded with the next step.\n";

enum { SEQUENCES = 2, ROOM = 4096, BATCH = 512 };

struct slot {
    llama_token tokens[ROOM];
    int n; /* the last one is not decoded yet */
};

struct api {
    const kv_store_llama_vtable_t *of;
    kv_store_llama_t *states;
};

static struct llama_model *model;
static struct llama_context *context;
static struct slot slots[SEQUENCES];
static struct api api;

static void fail(const char *what)
{
    fprintf(stderr, "llama-slots: %s\n", what);
    exit(2);
}

static void drop_log(enum ggml_log_level level, const char *text, void *unused)
{
    (void)level;
    (void)text;
    (void)unused;
}

/* Decode tokens at their places; the logits of the last one are made. */
static void decode(int seq, int from, int to)
{
    while (from < to) {
        int end = (from / BATCH + 1) * BATCH < to ? (from / BATCH + 1) * BATCH : to;
        struct llama_batch batch = llama_batch_init(end - from, 0, 1);
        batch.n_tokens = end - from;
        for (int i = from; i < end; i++) {
            batch.token[i - from] = slots[seq].tokens[i];
            batch.pos[i - from] = i;
            batch.n_seq_id[i - from] = 1;
            batch.seq_id[i - from][0] = seq;
            batch.logits[i - from] = i + 1 == end;
        }
        if (llama_decode(context, batch) != 0) {
            fail("llama_decode fails");
        }
        llama_batch_free(batch);
        from = end;
    }
}

/* Tokens of numbered lines, behind those that are there. */
static void extend(struct slot *slot, int n, const char *line)
{
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    static char text[1 << 15];
    static llama_token tokens[1 << 17];
    size_t length = 0;
    for (int i = slot->n; length < sizeof text - 256; i++) {
        length += (size_t)snprintf(text + length, 128, line, i);
    }
    int found = llama_tokenize(vocab, text, (int)length, tokens, 1 << 17, slot->n == 0, false);
    for (int i = 0; i < found && slot->n < n; i++) {
        slot->tokens[slot->n++] = tokens[i];
    }
    if (slot->n != n) {
        fail("the text has too few tokens");
    }
}

static void prompt(int seq, int shared, int n)
{
    llama_memory_seq_rm(llama_get_memory(context), seq, -1, -1);
    slots[seq].n = 0;
    extend(&slots[seq], shared, "%d: The quick brown fox jumps over the lazy dog.\n");
    if (n > shared) {
        extend(&slots[seq], n, "%d: Franz jagt im komplett verwahrlosten Taxi quer durch Bayern.\n");
    }
    decode(seq, 0, slots[seq].n - 1);
}

static void generate(int seq, int n)
{
    struct slot *slot = &slots[seq];
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    printf("generate %d:", seq);
    while (n-- > 0 && slot->n > 0 && slot->n < ROOM) {
        decode(seq, slot->n - 1, slot->n);
        const float *logits = llama_get_logits_ith(context, -1);
        int best = 0;
        for (int i = 1; i < vocab; i++) {
            best = logits[i] > logits[best] ? i : best;
        }
        slot->tokens[slot->n++] = best;
        printf(" %d", best);
    }
    printf("\n");
}

static uint32_t sum(const struct slot *slot)
{
    uint32_t sum = 0;
    for (int i = 0; i < slot->n; i++) {
        sum = sum * 31 + (uint32_t)slot->tokens[i];
    }
    return sum;
}

/* The bytes that a call of the table answers; 0 as libllama has it where that is a status. */
static size_t bytes_of(int64_t answer)
{
    return answer > 0 ? (size_t)answer : 0;
}

static void save(int seq, const char *file, bool by_api)
{
    struct slot *slot = &slots[seq];
    size_t bytes = by_api ? bytes_of(api.of->save(api.states, context, file, seq, slot->tokens, (size_t)slot->n))
                          : llama_state_seq_save_file(context, file, seq, slot->tokens, (size_t)slot->n);
    printf("save %d: %zu bytes\n", seq, bytes);
}

/* As llama-server does: ask for the number of tokens, then for all. */
static void restore(int seq, const char *file, int room, bool by_api)
{
    struct slot *slot = &slots[seq];
    size_t n = 0;
    size_t asked = by_api ? bytes_of(api.of->load(api.states, context, file, seq, NULL, 0, &n))
                          : llama_state_seq_load_file(context, file, seq, NULL, 0, &n);
    printf("restore %d: asked %zu, %zu tokens;", seq, asked, n);
    size_t bytes = by_api
                       ? bytes_of(api.of->load(api.states, context, file, seq, slot->tokens, (size_t)room, &n))
                       : llama_state_seq_load_file(context, file, seq, slot->tokens, (size_t)room, &n);
    if (bytes > 0) {
        slot->n = (int)n;
    }
    printf(" %zu bytes, %d tokens, sum %u, last position %d\n", bytes, slot->n, sum(slot),
           llama_memory_seq_pos_max(llama_get_memory(context), seq));
    if (by_api && bytes == 0) {
        printf("error: %s\n", api.of->last_error());
    }
}

static void set_adapter(void)
{
    int layers = llama_model_n_layer(model), embd = llama_model_n_embd(model);
    size_t n = (size_t)layers * (size_t)embd;
    float *zeros = calloc(n, sizeof *zeros);
    if (!zeros || llama_set_adapter_cvec(context, zeros, n, embd, 1, layers - 1) != 0) {
        fail("llama.cpp takes no control vector");
    }
    free(zeros);
}

static void open_api(const char *path, const char *uri, const char *name)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fail(dlerror());
    }
    kv_store_llama_get_vtable_fn get;
    *(void **)&get = dlsym(library, KV_STORE_LLAMA_GET_VTABLE_SYMBOL);
    if (!get) {
        fail(KV_STORE_LLAMA_GET_VTABLE_SYMBOL);
    }
    api.of = get();
    api.states = api.of->open(uri, strcmp(name, "-") == 0 ? NULL : name);
    if (!api.states) {
        fail(api.of->last_error());
    }
}

static void step(const char *text)
{
    char what[16], rest[4096];
    int seq, n, more;
    if (sscanf(text, "prompt:%d:%d", &seq, &n) == 2) {
        prompt(seq, n, n);
    } else if (sscanf(text, "other:%d:%d:%d", &seq, &n, &more) == 3) {
        prompt(seq, n, more);
    } else if (sscanf(text, "generate:%d:%d", &seq, &n) == 2) {
        generate(seq, n);
    } else if (sscanf(text, "room:%d:%d:%4095[^\n]", &seq, &n, rest) == 3) {
        restore(seq, rest, n, false);
    } else if (sscanf(text, "%15[a-z-]:%d:%4095[^\n]", what, &seq, rest) == 3) {
        bool by_api = strncmp(what, "api-", 4) == 0;
        const char *plain = by_api ? what + 4 : what;
        if (strcmp(plain, "save") == 0) {
            save(seq, rest, by_api);
        } else if (strcmp(plain, "restore") == 0) {
            restore(seq, rest, ROOM, by_api);
        } else {
            fail(text);
        }
    } else {
        fail(text);
    }
}

int main(int argc, char **argv)
{
    struct llama_model_params of_model = llama_model_default_params();
    struct llama_context_params of_context = llama_context_default_params();
    of_context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    int at = 1;
    bool adapter = false;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--no-mmap") == 0) {
            of_model.load_mode = LLAMA_LOAD_MODE_NONE;
        } else if (strcmp(argv[at], "--no-flash") == 0) {
            of_context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        } else if (strcmp(argv[at], "--adapter") == 0) {
            adapter = true;
        } else if (strcmp(argv[at], "--api") == 0 && at + 3 < argc) {
            open_api(argv[at + 1], argv[at + 2], argv[at + 3]);
            at += 3;
        } else {
            fputs(HELP, stdout);
            return strcmp(argv[at], "--help") == 0 ? 0 : 2;
        }
    }
    if (at >= argc) {
        fail("no model is given; see --help");
    }
    llama_log_set(drop_log, NULL);
    llama_backend_init();
    of_model.n_gpu_layers = 0;
    model = llama_model_load_from_file(argv[at], of_model);
    of_context.n_ctx = SEQUENCES * 1024;
    of_context.n_batch = of_context.n_ubatch = BATCH;
    of_context.n_seq_max = SEQUENCES;
    of_context.n_threads = of_context.n_threads_batch = 1;
    context = model ? llama_init_from_model(model, of_context) : NULL;
    if (!context) {
        fail("llama.cpp does not load the model");
    }
    if (adapter) {
        set_adapter();
    }
    for (at++; at < argc; at++) {
        step(argv[at]);
    }
    if (api.of) {
        api.of->close(api.states);
    }
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
