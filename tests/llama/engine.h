/*
 * engine.h - the part of the client that is an inference engine: libllama, one
 * model, one context, one deterministic prompt.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The prompt of n tokens is the beginning of the prompt of any larger n, as one
 * conversation goes on. It is decoded in batches of ENGINE_BATCH tokens, so that
 * every token but those of the last batch is computed in the same company
 * whatever n is. Where a computation does depend on its company, the bits of the
 * last batch may differ between prompts; then fewer chunks are shared, and
 * nothing else changes.
 */
#ifndef LLAMA_KV_ENGINE_H
#define LLAMA_KV_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tokens in a batch: llama.cpp's usual size. */
#define ENGINE_BATCH 512u

struct engine {
    struct llama_model *model;
    struct llama_context *context;
    int32_t *tokens;        /* the prompt, `n_tokens` of them */
    uint32_t n_tokens;
    size_t n_logits;        /* tokens in the vocabulary */
    /* XXH3-64 of the model file's size, its first and its last MiB. A state that
     * another model made has the right shape more often than not, and llama.cpp
     * takes it; only the answers are wrong. */
    uint64_t model_id;
    uint64_t prompt_id;     /* XXH3-64 of the prompt's tokens, as 4 bytes each */
    uint64_t max_state_bytes; /* no state of this prompt is larger */
};

/*
 * Load a model, with a context for `n_tokens` (2 or more) tokens on `threads`
 * threads; llama.cpp's own messages are shown only if `verbose`. Returns KV_OK
 * or KV_CANNOT_RUN. engine_close is allowed after either.
 */
int engine_open(struct engine *e, const char *model_path, uint32_t n_tokens,
                int threads, bool verbose);

/* Decode the prompt's tokens from `from` up to `to`, into a memory that has those
 * before. Batches end at multiples of ENGINE_BATCH, wherever this begins. */
int engine_prefill(struct engine *e, uint32_t from, uint32_t to);

/* Decode the last token. The logits, `n_logits` numbers, belong to the engine
 * and are valid until its next call. */
int engine_decode_last(struct engine *e, const float **logits);

/* The state of the sequence, malloc'd: the caller frees it. */
int engine_get_state(struct engine *e, uint8_t **state, size_t *size);

/* Replace the sequence by a state. KV_FAILED: llama.cpp does not take it. */
int engine_set_state(struct engine *e, const uint8_t *state, size_t size);

/* The same into memory of `room` bytes. */
int engine_copy_state(struct engine *e, uint8_t *state, size_t room);

/* llama.cpp's own way: the sequence and its tokens to a file, and back. */
int engine_save_file(struct engine *e, const char *path);
int engine_load_file(struct engine *e, const char *path);

/* Forget the sequence. */
void engine_clear(struct engine *e);

void engine_close(struct engine *e);

#endif /* LLAMA_KV_ENGINE_H */
