/*
 * kv_store_llama.h - states of llama.cpp's sequences in a store, as served by libkv_store_llama.so.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Loaded before libllama (LD_PRELOAD, or linked) the library needs none of this: it takes the place of
 * llama_state_seq_save_file and llama_state_seq_load_file wherever they are called through a shared libllama, as
 * llama-server does. docs/llama-server.md tells how. The functions here are the same for programs that would rather call:
 *
 *     kv_store_llama *states = kv_store_llama_open("redis://cache:6379/0", NULL);
 *     kv_store_llama_save(states, ctx, "conversation-7", seq, tokens, n_tokens);
 *
 *     size_t n = 0;                                            in this process or another one
 *     if (kv_store_llama_load(states, ctx, "conversation-7", seq, tokens, room, &n) == 0)
 *         fprintf(stderr, "%s\n", kv_store_llama_last_error());
 *
 * WHICH STATES. A state is found under its name and a fingerprint of what made it: the content of the model's GGUF file
 * (sampled: all of its metadata, both ends of each tensor, its length), the model's shape, the version of libllama's
 * sequence files, and the words of the command line that change rope (--rope-*, --yarn-*, --override-kv, --grp-attn-*; also
 * as LLAMA_ARG_* variables). The file is found through the process's memory mappings. Where it cannot be (no mmap, two
 * models of one shape), `model` must say what the model is, or saves and loads fail: llama.cpp takes the state of
 * another model of the same shape, and answers wrong from it. A program that sets rope through llama_context_params, or that
 * loads LoRA adapters or control vectors, must give a `model` that names them too.
 *
 * WHAT IS STORED. K and V of each layer in runs of 64 tokens, under the hash of their bytes, so that a longer conversation
 * shares what it begins with; and a manifest. A load checks every byte. A sequence is given the whole state, or none of it.
 *
 * THREADS. As for libllama: a context is used by one thread at a time. Different contexts may use one store at once.
 */
#ifndef KV_STORE_LLAMA_H
#define KV_STORE_LLAMA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context;

/* A store of states. Opaque. */
typedef struct kv_store_llama kv_store_llama;

/*
 * Open the store at `uri`, as kv_store_abi.h describes it. `model` names the model in place of its GGUF file's content, or is
 * NULL. Both are copied. NULL: failed, see kv_store_llama_last_error.
 */
kv_store_llama *kv_store_llama_open(const char *uri, const char *model);

/*
 * Keep the state of a sequence, and `n_tokens` tokens with it, under a name of at most 4,000 bytes. A state that was there is
 * replaced. Returns the bytes that llama_state_seq_save_file would have written; 0: failed, nothing is published.
 */
size_t kv_store_llama_save(const kv_store_llama *states, struct llama_context *ctx, const char *name, int32_t seq_id,
                           const int32_t *tokens, size_t n_tokens);

/*
 * Load a state into a sequence, in place of what it has, and its tokens into memory for `room` of them; `*n_tokens` is how
 * many there are. Returns the bytes that llama_state_seq_load_file would have read. With NULL for `tokens` nothing is loaded,
 * and `*n_tokens` is set: this costs one manifest.
 *
 * 0: failed. If there is no such state, or no room for its tokens, the sequence is as it was; if it is damaged, or libllama
 * refuses it, the sequence is empty.
 */
size_t kv_store_llama_load(const kv_store_llama *states, struct llama_context *ctx, const char *name, int32_t seq_id,
                           int32_t *tokens, size_t room, size_t *n_tokens);

/* Close a store; NULL is allowed. What was saved stays. */
void kv_store_llama_close(kv_store_llama *states);

/* Why the last call of this thread that failed did so, for a person. Never NULL; valid until the thread's next failure. */
const char *kv_store_llama_last_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KV_STORE_LLAMA_H */
