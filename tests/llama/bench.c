/* bench.c - llama-kv bench: saves and restores through the store, in turns with
 * llama.cpp's own state files. SPDX-License-Identifier: Apache-2.0
 *
 * A save is from the engine's memory to the last byte that either side writes; a
 * restore from there to a sequence that can be decoded. What is timed on our
 * side is what `save` and `restore` do, but that the memory of the state is kept
 * between rounds, and that each chunk is checked once, by the library;
 * llama.cpp's file has no checksum. Both sides begin a save with nothing of it
 * on the disk.
 */
#define _XOPEN_SOURCE 700
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"
#include "report.h"
#include "store.h"

struct bench {
    const struct options *o;
    struct engine engine;
    struct store store;
    uint8_t *state;
    size_t size;
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

static int save_here(struct bench *b)
{
    struct result r = result_none();
    int code = engine_copy_state(&b->engine, b->state, b->size);
    return code == KV_OK ? save_state(&b->store, b->o, &b->engine, b->state, b->size, &r) : code;
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
    struct result r = result_none();
    size_t size;
    int code = fetch_state(&b->store, b->o, &b->engine, &b->state, b->size, &size, &r);
    return code == KV_OK ? engine_set_state(&b->engine, b->state, size) : code;
}

static int restore_there(struct bench *b)
{
    return engine_load_file(&b->engine, b->o->file);
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

static void print_row(const char *name, double *ours, double *peer, uint32_t n, double goal)
{
    double here = median(ours, n), there = median(peer, n);
    printf("{\"name\": \"%s\", \"ours\": %.3f, \"peer\": %.3f, \"ratio\": %.4f, "
           "\"unit\": \"ms\", \"better\": \"lower\", \"goal\": %.1f}\n",
           name, here, there, there / here, goal);
}

static int run_rounds(struct bench *b, double *times[4])
{
    int code = KV_OK;
    /* The first round is not counted. */
    for (uint32_t i = 0; code == KV_OK && i <= b->o->rounds; i++) {
        uint32_t at = i ? i - 1 : 0;
        code = forget(b->o);
        bool turn = i % 2;
        for (int side = 0; code == KV_OK && side < 2; side++) {
            bool ours = (side == 0) == turn;
            code = timed(ours ? save_here : save_there, b, &times[ours ? 0 : 1][at]);
        }
        for (int side = 0; code == KV_OK && side < 2; side++) {
            bool ours = (side == 0) == turn;
            code = timed(ours ? restore_here : restore_there, b, &times[ours ? 2 : 3][at]);
        }
    }
    return code;
}

/* After all the saves and restores the next token is still the same. */
static int check_logits(struct bench *b)
{
    const float *logits;
    int code = restore_there(b);
    if (code == KV_OK) {
        code = engine_decode_last(&b->engine, &logits);
    }
    size_t bytes = b->engine.n_logits * sizeof *logits;
    float *expected = malloc(bytes);
    if (code == KV_OK && !expected) {
        code = report(KV_CANNOT_RUN, "there is no memory for the logits");
    }
    if (code == KV_OK) {
        memcpy(expected, logits, bytes);
        code = restore_here(b);
    }
    if (code == KV_OK) {
        code = engine_decode_last(&b->engine, &logits);
    }
    if (code == KV_OK && memcmp(expected, logits, bytes) != 0) {
        code = report(KV_FAILED, "the logits differ between the two ways to restore");
    }
    free(expected);
    return code;
}

int command_bench(const struct options *o)
{
    struct bench b = {.o = o};
    double *times[4] = {NULL};
    int code = engine_open(&b.engine, o->model, o->tokens, o->threads, o->verbose);
    if (code == KV_OK) {
        code = store_open(&b.store, o->lib, o->uri);
    }
    if (code == KV_OK) {
        code = engine_prefill(&b.engine, 0, b.engine.n_tokens - 1);
    }
    if (code == KV_OK) {
        code = engine_get_state(&b.engine, &b.state, &b.size);
    }
    for (int i = 0; code == KV_OK && i < 4; i++) {
        times[i] = calloc(o->rounds, sizeof *times[i]);
        if (!times[i]) {
            code = report(KV_CANNOT_RUN, "there is no memory for the times");
        }
    }
    if (code == KV_OK) {
        code = run_rounds(&b, times);
    }
    if (code == KV_OK) {
        code = check_logits(&b);
    }
    if (code == KV_OK) {
        print_row(o->save_row, times[0], times[1], o->rounds, 0.9);
        print_row(o->restore_row, times[2], times[3], o->rounds, 1.0);
    }
    for (int i = 0; i < 4; i++) {
        free(times[i]);
    }
    free(b.state);
    store_close(&b.store);
    engine_close(&b.engine);
    return code;
}
