/*
 * kv_store_describe.h - what the values of a store are, as served by libkv_store_wasm.so beside kv_store_abi.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A checksum tells that a value is the one that was put. It does not tell that the value means to its reader what it meant to its
 * writer: KV of another model, layout or rank may have the right size. An engine that says what its values are, once on each
 * handle, never reads others:
 *
 *     const kv_store_describe_vtable_t *describe = kv_store_describe_get_vtable();
 *     kv_store_v1 *store = vtable->open(uri);
 *     kv_store_descriptor_t said = {.size = sizeof said, .model = "sha256:9f86d081...", .dtype = "bfloat16", .rank = "0"};
 *     if (describe->describe(store, &said) < 0) ...
 *
 * Statuses, `size`, `version` and `last_error` are as in kv_store_status.h. A library without this header's symbol serves as before.
 *
 * WHAT IT DOES. What is put on the handle afterwards lies under the descriptor: what is said here, and what the operator says of the
 * store in the config. A value that lies under another descriptor is missing for the handle (KV_STORE_MISSING of a batch, a negative
 * answer of kv_store_v1), is counted as such (unanswered_total, reason "descriptor") and stays where it is. A put over it is
 * KV_STORE_MISMATCH, also with KV_STORE_REPLACE, and so is a manifest over another's; of a chunk that waits in the write buffer
 * the manifest says it. A value without a descriptor is answered, and may be put over.
 *
 * WHAT HAS A DESCRIPTOR. Manifests, and chunks in envelopes (docs/envelope.md). Chunks whose key is the hash of their content, and
 * values that check themselves, have none: the manifest that names them has, and they serve whoever has their key.
 *
 * WHAT EXISTS. A backend says that a chunk exists and not what it is. exists_many answers KV_STORE_MISSING for a chunk that this process
 * knows to be another's, and KV_STORE_OK for one of which it knows nothing: ask before a load, and treat the load itself as what
 * decides. A put that is told that a chunk exists reads it, once in 10 minutes for each chunk at most.
 */
#ifndef KV_STORE_DESCRIBE_H
#define KV_STORE_DESCRIBE_H

#include <stdint.h>

#include "kv_store_abi.h"
#include "kv_store_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the vtable described here. */
#define KV_STORE_DESCRIBE_VTABLE_VERSION 1u

/* The symbol that the library exports, for dlsym. */
#define KV_STORE_DESCRIBE_GET_VTABLE_SYMBOL "kv_store_describe_get_vtable"

/* Bytes of a descriptor's digest. */
#define KV_STORE_DESCRIPTOR_BYTES 16u

/*
 * What values are. Set it to zero, then `size`, then what is known. Each text is UTF-8 of 1 to 512 bytes without control
 * characters, and is compared byte by byte: write each the same way wherever the same values are meant, and a digest of what is
 * longer. NULL: not said. "none": there is none. A member that only a later version of this header has must be NULL for a
 * library of this version.
 */
typedef struct kv_store_descriptor {
    uint32_t size;            /* sizeof(kv_store_descriptor_t) */
    uint32_t reserved;        /* 0 */
    const char *model;        /* the digest of the weights, or the model's revision; a name is not enough */
    const char *architecture; /* the architecture of the model */
    const char *layout;       /* the layout of a value, and the order of its dimensions */
    const char *dtype;        /* the type of the elements */
    const char *scales;       /* how quantised elements are scaled, and where the scales lie */
    const char *block_tokens; /* tokens of one value */
    const char *layers;       /* how many layers, or which */
    const char *heads;        /* KV heads and the elements of each: "8x128" */
    const char *rank;         /* which part of the model this process has */
    const char *ranks;        /* into how many parts the model is divided, and how */
    const char *rope;         /* how positions are encoded */
    const char *adapters;     /* the adapters (LoRA) that are applied, where the keys do not tell them apart */
    const char *engine;       /* the engine that makes the values */
    const char *format;       /* the version of the engine's format */
} kv_store_descriptor_t;

/* The functions of the library. Static. Later versions only add members at the end: check `size` before you use one. */
typedef struct kv_store_describe_vtable {
    uint32_t size;    /* sizeof(kv_store_describe_vtable_t) of the library */
    uint32_t version; /* 1 */

    /*
     * Say what the values of a handle are, before its first put, get or question. It holds until the handle is closed, for its saves and
     * queues too. Other handles on the same URI may say something else. The texts are the caller's, and are not used after the call.
     * Does no I/O.
     *
     * Returns 0, also where the same is said again; KV_STORE_INVALID if a text is none, the operator says something else of a member in
     * the config, or the handle was used or described otherwise before; KV_STORE_DENIED if the config has require_descriptor and
     * neither says all of it: puts are refused then, and nothing is found; KV_STORE_EXHAUSTED if 4,096 descriptors were said on
     * handles of this store; KV_STORE_UNSUPPORTED if a member is set that this library does not know. After a failure that is not
     * KV_STORE_DENIED nothing is said, and the handle works as one that nobody described: close it, unless that is meant.
     */
    int (*describe)(kv_store_v1 *self, const kv_store_descriptor_t *descriptor);

    /*
     * The digest that the envelopes of the handle's values have (docs/envelope.md): KV_STORE_DESCRIPTOR_BYTES, zeros if nothing is
     * said by engine or operator. Returns 0, or a negative code.
     */
    int (*digest)(kv_store_v1 *self, uint8_t *out);

    /* Why the last failed call of this thread failed, for a person. Never NULL; valid until the thread's next failure. */
    const char *(*last_error)(void);
} kv_store_describe_vtable_t;

/* The vtable. Never NULL; safe to call from any thread. */
const kv_store_describe_vtable_t *kv_store_describe_get_vtable(void);

/* The type of kv_store_describe_get_vtable, for the result of dlsym. */
typedef const kv_store_describe_vtable_t *(*kv_store_describe_get_vtable_fn)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KV_STORE_DESCRIBE_H */
