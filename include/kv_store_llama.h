/*
 * kv_store_llama.h - states of llama.cpp's sequences in a store, as served by libkv_store_llama.so.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Loaded before libllama (LD_PRELOAD, or linked) the library needs none of this: it takes the place of
 * llama_state_seq_save_file and llama_state_seq_load_file wherever they are called through a shared libllama, as
 * llama-server does. docs/llama-server.md tells how. The functions here are the same for programs that would rather call:
 *
 *     const kv_store_llama_vtable_t *kv = kv_store_llama_get_vtable();
 *     kv_store_llama_t *states = kv->open("redis://cache:6379/0", NULL);
 *     kv->save(states, ctx, "conversation-7", seq, tokens, n_tokens);
 *
 *     size_t n = 0;                                            in this process or another one
 *     if (kv->load(states, ctx, "conversation-7", seq, tokens, room, &n) < 0)
 *         fprintf(stderr, "%s\n", kv->last_error());
 *
 * Statuses, `size`, `version` and `last_error` are as in kv_store_status.h.
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

#include "kv_store_status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context;

/* The version of the vtable described here. */
#define KV_STORE_LLAMA_VTABLE_VERSION 1u

/* The symbol that the library exports, for dlsym. */
#define KV_STORE_LLAMA_GET_VTABLE_SYMBOL "kv_store_llama_get_vtable"

/* A store of states. Opaque; made by open, ended by close. */
typedef struct kv_store_llama kv_store_llama_t;

/* The functions of the library. Static. Later versions only add members at the end: check `size` before you use one. */
typedef struct kv_store_llama_vtable {
    uint32_t size;    /* sizeof(kv_store_llama_vtable_t) of the library */
    uint32_t version; /* 1 */

    /*
     * Open the store at `uri`, as kv_store_abi.h describes it. `model` names the model in place of its GGUF file's content, or is
     * NULL. Both are copied. NULL: failed, see last_error.
     */
    kv_store_llama_t *(*open)(const char *uri, const char *model);

    /*
     * Keep the state of a sequence, and `n_tokens` tokens with it, under a name of at most 4,000 bytes. A state that was there is
     * replaced. Returns the bytes that llama_state_seq_save_file would have written. Below 0: nothing is published;
     * KV_STORE_INVALID for an argument that makes no sense, else KV_STORE_OTHER.
     */
    int64_t (*save)(const kv_store_llama_t *self, struct llama_context *ctx, const char *name, int32_t seq_id,
                    const int32_t *tokens, size_t n_tokens);

    /*
     * Load a state into a sequence, in place of what it has, and its tokens into memory for `room` of them; `*n_tokens` is how
     * many there are. Returns the bytes that llama_state_seq_load_file would have read. With NULL for `tokens` nothing is
     * loaded, and `*n_tokens` is set: this costs one manifest.
     *
     * Below 0: failed. KV_STORE_CORRUPT: the state could not be fetched whole, is damaged, or libllama refused it, and the
     * sequence is empty. With any other code the sequence is as it was: KV_STORE_MISSING (there is no such state),
     * KV_STORE_TOO_LONG (no room for its tokens; `*n_tokens` is not set), KV_STORE_INVALID, KV_STORE_OTHER.
     */
    int64_t (*load)(const kv_store_llama_t *self, struct llama_context *ctx, const char *name, int32_t seq_id,
                    int32_t *tokens, size_t room, size_t *n_tokens);

    /* Close a store; NULL is allowed. What was saved stays. */
    void (*close)(kv_store_llama_t *self);

    /* Why the last failed call of this thread failed, for a person. Never NULL; valid until the thread's next failure. */
    const char *(*last_error)(void);
} kv_store_llama_vtable_t;

/* The vtable. Never NULL; safe to call from any thread. */
const kv_store_llama_vtable_t *kv_store_llama_get_vtable(void);

/* The type of kv_store_llama_get_vtable, for the result of dlsym. */
typedef const kv_store_llama_vtable_t *(*kv_store_llama_get_vtable_fn)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef KV_STORE_NO_DEPRECATED
#include "kv_store_deprecated.h"
#endif

#endif /* KV_STORE_LLAMA_H */
