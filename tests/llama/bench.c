/* bench.c - llama-kv bench: saves and restores through the store, in turns with
 * llama.cpp's own state files. SPDX-License-Identifier: Apache-2.0
 *
 * A save is from the engine's memory to the last byte that either side writes; a
 * restore from there to a sequence that can be decoded. Our side is what `save`
 * and `restore` do, but that the memory of the state is kept between rounds and
 * that each chunk is checked once, by the library; or, with --llama-lib, what
 * llama-server does with that library loaded. llama.cpp's file has no checksum.
 * Both sides begin a save with nothing of it on the disk; that of a conversation
 * which has grown by a tenth, with what was saved before it grew.
 */
#define _XOPEN_SOURCE 700
#include "command.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine.h"
#include "kv_store_llama.h"
#include "report.h"
#include "store.h"

/* What is timed. Each round does all of them, ours and the peer's in turns. */
enum { SAVE, RESTORE, RESTORE_HASHED, GROWN, STEPS };

static const struct {
    const char *name;
    double goal, synced_goal;
} STEP[STEPS] = {{"save", 0.75, 0.8},
                 {"restore", 0.8, 0.8},
                 {"restore-hashed", 0.95, 0.95},
                 {"save-grown", 1.4, 2.0}};
/* Of the state's bytes, as few as this are written again when it has grown. */
#define GROWN_BYTES_GOAL (1 / 0.15)
/* Of a state file before its tokens, and of a state in memory before that in a file. */
#define FILE_HEADER_BYTES 12u
#define MEMORY_HEADER_BYTES 8u

struct api {
    void *library;
    const kv_store_llama_vtable_t *of;
    kv_store_llama_t *states;
};

struct bench {
    const struct options *o;
    struct engine engine;
    struct store store;
    struct api api;      /* in place of the store, with --llama-lib */
    uint8_t *state;      /* of all tokens but the last; the memory of each save */
    size_t size;
    uint8_t *shorter;    /* of a tenth less */
    size_t shorter_size;
    uint8_t *file;       /* memory for llama.cpp's file */
    double grown_bytes;  /* written when the conversation had grown */
};

static int remove_file(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)at;
    return kind == FTW_F ? unlink(path) : 0;
}

/* Nothing that was saved is there any more. */
static int forget(const struct options *o)
{
    if ((unlink(o->file) != 0 && errno != ENOENT) ||
        (nftw(o->chunks, remove_file, 16, FTW_PHYS) != 0 && errno != ENOENT)) {
        return report(KV_CANNOT_RUN, "cannot remove what was saved: %s", strerror(errno));
    }
    return KV_OK;
}

static double folder_bytes;

static int add_bytes(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)path;
    (void)at;
    folder_bytes += kind == FTW_F ? (double)st->st_size : 0;
    return 0;
}

/* The bytes of all chunks that are stored. */
static double stored_bytes(const struct options *o)
{
    folder_bytes = 0;
    nftw(o->chunks, add_bytes, 16, FTW_PHYS);
    return folder_bytes;
}

static int open_api(struct api *api, const struct options *o)
{
    api->library = dlopen(o->llama_lib, RTLD_NOW | RTLD_LOCAL);
    kv_store_llama_get_vtable_fn get = NULL;
    if (api->library) {
        *(void **)&get = dlsym(api->library, KV_STORE_LLAMA_GET_VTABLE_SYMBOL);
    }
    if (!get) {
        return report(KV_CANNOT_RUN, "cannot use %s; give libkv_store_llama.so with --llama-lib",
                      o->llama_lib);
    }
    api->of = get();
    api->states = api->of->open(o->uri, NULL);
    return api->states ? KV_OK : report(KV_CANNOT_RUN, "the library does not open %s", o->uri);
}

static int save_here(struct bench *b)
{
    const struct engine *e = &b->engine;
    if (b->api.states) {
        return b->api.of->save(b->api.states, e->context, b->o->name, 0, e->tokens, e->n_tokens - 1) > 0
                   ? KV_OK
                   : report(KV_FAILED, "the library does not save; its own message is above");
    }
    struct result r = result_none();
    int code = engine_copy_state(&b->engine, b->state, b->size);
    return code == KV_OK ? save_state(&b->store, b->o, e, b->state, b->size, &r) : code;
}

static int sync_path(const char *path, int flags)
{
    int file = open(path, flags);
    bool synced = file >= 0 && fsync(file) == 0;
    if (file >= 0) {
        close(file);
    }
    return synced ? KV_OK
                  : report(KV_CANNOT_RUN, "cannot sync %s: %s", path, strerror(errno));
}

/* The file, and with --sync its name too, as the store does it. */
static int save_there(struct bench *b)
{
    int code = engine_save_file(&b->engine, b->o->file);
    if (code == KV_OK && b->o->sync) {
        char folder[4096];
        const char *slash = strrchr(b->o->file, '/');
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - b->o->file) : 1,
                 slash ? b->o->file : ".");
        code = sync_path(b->o->file, O_RDONLY);
        if (code == KV_OK) {
            code = sync_path(folder, O_RDONLY | O_DIRECTORY);
        }
    }
    return code;
}

static int restore_here(struct bench *b)
{
    struct engine *e = &b->engine;
    if (b->api.states) {
        size_t n = 0;
        engine_clear(e); /* as the other ways do */
        int32_t *tokens = malloc(e->n_tokens * sizeof *tokens);
        int64_t read = tokens ? b->api.of->load(b->api.states, e->context, b->o->name, 0, tokens,
                                                e->n_tokens, &n)
                              : 0;
        free(tokens);
        return read > 0 ? KV_OK : report(KV_FAILED, "the library does not load the state");
    }
    struct result r = result_none();
    size_t size;
    int code = fetch_state(&b->store, b->o, e, &b->state, b->size, &size, &r);
    return code == KV_OK ? engine_set_state(e, b->state, size) : code;
}

static int restore_there(struct bench *b)
{
    return engine_load_file(&b->engine, b->o->file);
}

/* llama.cpp's file, each byte of it read into memory and hashed, then set. */
static int restore_hashed(struct bench *b)
{
    size_t before = FILE_HEADER_BYTES + (b->engine.n_tokens - 1) * sizeof *b->engine.tokens;
    size_t size = before + b->size - MEMORY_HEADER_BYTES, done = 0;
    int file = open(b->o->file, O_RDONLY);
    for (ssize_t n = 1; file >= 0 && done < size && n > 0; done += n > 0 ? (size_t)n : 0) {
        n = read(file, b->file + done, size - done);
    }
    if (file >= 0) {
        close(file);
    }
    if (done != size) {
        return report(KV_CANNOT_RUN, "cannot read %s", b->o->file);
    }
    volatile uint64_t hash = XXH3_64bits(b->file, size);
    (void)hash;
    /* The memory's header lies over the last token. */
    memcpy(b->file + before - MEMORY_HEADER_BYTES, b->state, MEMORY_HEADER_BYTES);
    return engine_set_state(&b->engine, b->file + before - MEMORY_HEADER_BYTES, b->size);
}

static int timed(int (*step)(struct bench *), struct bench *b, double *ms)
{
    double start = now_ms();
    int code = step(b);
    *ms = now_ms() - start;
    return code;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void print_row(const struct options *o, const char *step, double ours, double peer,
                      const char *unit, double goal)
{
    printf("{\"name\": \"%s/%s%s/%s\", \"ours\": %.3f, \"peer\": %.3f, \"ratio\": %.4f, "
           "\"unit\": \"%s\", \"better\": \"lower\", \"goal\": %.2f}\n",
           o->rows, step, o->sync ? "-synced" : "", o->row_size, ours, peer, peer / ours, unit, goal);
}

/* The times of one step: ours and the peer's, in turns. */
static int turns(struct bench *b, bool ours_first, int (*ours)(struct bench *),
                 int (*peer)(struct bench *), double *ours_ms, double *peer_ms)
{
    int code = ours_first ? timed(ours, b, ours_ms) : timed(peer, b, peer_ms);
    if (code == KV_OK) {
        code = ours_first ? timed(peer, b, peer_ms) : timed(ours, b, ours_ms);
    }
    return code;
}

/* Save the shorter conversation, then, timed, the one that it has become. */
static int grow(struct bench *b, bool ours_first, double *ours_ms, double *peer_ms)
{
    uint8_t *whole = b->state;
    size_t size = b->size;
    int code = forget(b->o);
    if (code == KV_OK) {
        code = engine_set_state(&b->engine, b->shorter, b->shorter_size);
    }
    if (code == KV_OK) {
        /* The memory of a save; the whole state is put back from the file's. */
        memcpy(b->file, whole, size);
        b->size = b->shorter_size;
        code = save_here(b);
        b->size = size;
        memcpy(whole, b->file, size);
    }
    double before = stored_bytes(b->o);
    if (code == KV_OK) {
        code = engine_set_state(&b->engine, whole, size);
    }
    if (code == KV_OK) {
        code = turns(b, ours_first, save_here, save_there, ours_ms, peer_ms);
    }
    b->grown_bytes = stored_bytes(b->o) - before;
    return code;
}

static int run_rounds(struct bench *b, double *ours[STEPS], double *peer[STEPS])
{
    int code = KV_OK;
    /* The first round is not counted. */
    for (uint32_t i = 0; code == KV_OK && i <= b->o->rounds; i++) {
        uint32_t at = i ? i - 1 : 0;
        bool first = i % 2;
        code = forget(b->o);
        if (code == KV_OK) {
            code = turns(b, first, save_here, save_there, &ours[SAVE][at], &peer[SAVE][at]);
        }
        if (code == KV_OK) {
            code = turns(b, first, restore_here, restore_there, &ours[RESTORE][at],
                         &peer[RESTORE][at]);
        }
        if (code == KV_OK) {
            code = turns(b, first, restore_here, restore_hashed, &ours[RESTORE_HASHED][at],
                         &peer[RESTORE_HASHED][at]);
        }
        if (code == KV_OK) {
            code = grow(b, first, &ours[GROWN][at], &peer[GROWN][at]);
        }
    }
    return code;
}

/* After all the saves and restores the next token is still the same, whichever
 * way the state came back. */
static int check_logits(struct bench *b)
{
    int (*const ways[])(struct bench *) = {restore_there, restore_here, restore_hashed};
    const float *logits;
    size_t bytes = b->engine.n_logits * sizeof *logits;
    float *expected = malloc(bytes);
    int code = expected ? KV_OK : report(KV_CANNOT_RUN, "there is no memory for the logits");
    for (size_t i = 0; code == KV_OK && i < sizeof ways / sizeof *ways; i++) {
        code = ways[i](b);
        if (code == KV_OK) {
            code = engine_decode_last(&b->engine, &logits);
        }
        if (code == KV_OK && i > 0 && memcmp(expected, logits, bytes) != 0) {
            code = report(KV_FAILED, "the logits differ between the ways to restore");
        }
        if (code == KV_OK) {
            memcpy(expected, logits, bytes);
        }
    }
    free(expected);
    return code;
}

/* The two states: of a tenth less tokens, and of all but the last. */
static int make_states(struct bench *b)
{
    uint32_t whole = b->engine.n_tokens - 1, shorter = (uint32_t)(whole / 1.1);
    int code = engine_prefill(&b->engine, 0, shorter);
    if (code == KV_OK) {
        code = engine_get_state(&b->engine, &b->shorter, &b->shorter_size);
    }
    if (code == KV_OK) {
        code = engine_prefill(&b->engine, shorter, whole);
    }
    if (code == KV_OK) {
        code = engine_get_state(&b->engine, &b->state, &b->size);
    }
    if (code == KV_OK && !(b->file = malloc(b->size + FILE_HEADER_BYTES + whole * sizeof(int32_t)))) {
        code = report(KV_CANNOT_RUN, "there is no memory for a second state");
    }
    return code;
}

int command_bench(const struct options *o)
{
    struct bench b = {.o = o};
    double *ours[STEPS] = {NULL}, *peer[STEPS] = {NULL};
    int code = engine_open(&b.engine, o->model, o->tokens, o->threads, o->verbose);
    if (code == KV_OK) {
        code = o->llama_lib ? open_api(&b.api, o) : store_open(&b.store, o->lib, o->uri);
    }
    if (code == KV_OK) {
        code = make_states(&b);
    }
    for (int i = 0; code == KV_OK && i < STEPS; i++) {
        ours[i] = calloc(o->rounds, sizeof *ours[i]);
        peer[i] = calloc(o->rounds, sizeof *peer[i]);
        if (!ours[i] || !peer[i]) {
            code = report(KV_CANNOT_RUN, "there is no memory for the times");
        }
    }
    if (code == KV_OK) {
        code = run_rounds(&b, ours, peer);
    }
    if (code == KV_OK) {
        code = check_logits(&b);
    }
    for (int i = 0; code == KV_OK && i < STEPS; i++) {
        print_row(o, STEP[i].name, median(ours[i], o->rounds), median(peer[i], o->rounds), "ms",
                  o->sync ? STEP[i].synced_goal : STEP[i].goal);
    }
    if (code == KV_OK) {
        print_row(o, "grown-bytes", b.grown_bytes / 1e6, (double)b.size / 1e6, "MB", GROWN_BYTES_GOAL);
    }
    for (int i = 0; i < STEPS; i++) {
        free(ours[i]);
        free(peer[i]);
    }
    free(b.state);
    free(b.shorter);
    free(b.file);
    if (b.api.states) {
        b.api.of->close(b.api.states);
    }
    store_close(&b.store);
    engine_close(&b.engine);
    return code;
}
