/*
 * command.h - the commands of llama-kv, their options and their results.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef LLAMA_KV_COMMAND_H
#define LLAMA_KV_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As given on the command line; the strings live as long as the process. */
struct options {
    const char *lib, *uri, *name;
    const char *config;      /* of the cache; NULL but for cached */
    const char *model;       /* NULL for chunks */
    const char *logits;      /* file of raw float32 numbers; may be NULL */
    uint32_t tokens;
    uint32_t chunk_tokens;
    int threads;
    bool compare_prefill;
    bool verbose;
    /* For bench. */
    const char *file;        /* where llama.cpp's own state file goes */
    const char *chunks;      /* the folder of the store's chunks, emptied between rounds */
    const char *rows, *row_size; /* what the names of the rows begin and end with */
    const char *llama_lib;   /* libkv_store_llama.so in place of the store; or NULL */
    uint32_t rounds;
    bool sync;
    /* Leave the checks to the library, which knows chunks by their hash too, and
     * to the manifest's own checksum. */
    bool trusting;
    /* Give no hint of what will be asked for: where the files are in the page
     * cache, each is there as fast as it can be, and what was fetched ahead
     * would wait in memory that is new to the process. */
    bool no_hint;
};

enum answer { ANSWER_NONE, ANSWER_NO, ANSWER_YES };

/* What a run found out. What a command does not measure stays UNKNOWN, and is
 * printed as null. Times are in milliseconds, sizes in bytes. README.md says
 * what each time covers. */
#define UNKNOWN (-1)
struct result {
    int64_t abi_version;
    int64_t state_tokens, state_bytes;
    const char *layout, *layout_note;
    int64_t chunk_tokens;
    int64_t chunks, chunks_new, chunks_known, bytes_new;
    int64_t inline_bytes, manifest_bytes;
    enum answer prefetched;
    const char *hit; /* what the cache found */
    int64_t matched_tokens, prefilled_tokens, rows_saved;
    double load_ms, open_ms, prefill_ms, get_state_ms, save_ms;
    double restore_ms, set_state_ms, decode_ms, full_prefill_ms;
    enum answer logits_identical, prefill_logits_identical;
};

/* All unknown. */
struct result result_none(void);

/* Each returns an exit code of report.h, having said on standard error what was
 * wrong, and fills `r` as far as it came. */
int command_save(const struct options *o, struct result *r);
int command_restore(const struct options *o, struct result *r);
int command_cached(const struct options *o, struct result *r);

/* The logits file, of n numbers; `*logits` is malloc'd. */
int write_logits(const char *path, const float *logits, size_t n);
int read_logits(const char *path, size_t n, float **logits);

/* Time saves and restores beside llama.cpp's own state files, in turns, and
 * print a row of JSON for each. */
int command_bench(const struct options *o);

/* Print a manifest's chunks: hash in hex, length, one line each, in order. */
int command_chunks(const struct options *o);

struct engine;
struct store;

/* The steps of the commands. Open the model and the store; `*e` and `*s` are for
 * the caller to close after either outcome. */
int open_both(const struct options *o, struct engine *e, struct store *s,
              struct result *r);

/* Put the state and its manifest into the store. */
int save_state(struct store *s, const struct options *o,
               const struct engine *e, const uint8_t *state, size_t size,
               struct result *r);

/* From the name to the whole, checked state: into `*state`, if that has `room`
 * for it, or else into new memory in its place; the caller frees it. */
int fetch_state(struct store *s, const struct options *o, const struct engine *e,
                uint8_t **state, size_t room, size_t *size, struct result *r);

#endif /* LLAMA_KV_COMMAND_H */
