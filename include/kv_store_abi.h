/*
 * kv_store_abi.h - the C ABI `kv_store_v1` between an inference engine and a
 * store of KV state, as served by libkv_store_wasm.so.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The engine ("consumer") keeps the KV state of a prompt as chunks, which are
 * immutable bytes under a binary hash, and manifests, which are mutable bytes
 * under a name. What is in them is the consumer's business.
 *
 *     #include <dlfcn.h>
 *     #include "kv_store_abi.h"
 *
 *     void *lib = dlopen("libkv_store_wasm.so", RTLD_NOW | RTLD_LOCAL);
 *     kv_store_get_vtable_fn get;
 *     *(void **)&get = dlsym(lib, KV_STORE_GET_VTABLE_SYMBOL);
 *     const kv_store_vtable *kv = get();
 *     kv_store_v1 *store = kv->open("wasm://local-fs:///var/cache/kv");
 *
 * Any library that follows the ABI can be used through this header. Where a
 * paragraph starts with "Here:", it says what libkv_store_wasm.so does beyond
 * what the ABI asks of every library.
 *
 * Saving:    put_chunk for each chunk, then put_manifest.
 * Restoring: get_manifest, prefetch_chunks (if there), get_chunk for each.
 *
 * RETURNS. 0 is success. put_chunk answers 1 where the chunk was there
 * already. Every negative value is a failure; which one has no meaning. After
 * a failure the store goes on working: the consumer prefills instead.
 * Here: a failure but a plain miss is one line on standard error that names
 * the operation, the backend and the cause, and never a secret: the first of
 * its store and cause at once, then one a minute with a count, while it lasts.
 * Warnings and errors of a process have at most 1 MiB in an hour. No call waits
 * for a reader: what a full pipe does not take is dropped, and with
 * KV_STORE_WASM_LOG=off nothing is written. kv_store_wasm_set_log of
 * kv_store_wasm.h has the lines go to a function instead.
 *
 * MEMORY. Input (hash, data, name, uri) is borrowed for the call and not kept.
 * Output is made with the C library's malloc; the consumer calls free() on it.
 * On success an output pointer is never NULL, also when its length is 0. On
 * failure the outputs are NULL and 0 (where the pointers to them are valid).
 * Here: an output is aligned to 16 bytes.
 *
 * THREADS. Any function may be called on one handle from any number of threads
 * at once, except that close must be the last call on its handle.
 * Here: calls run on the caller's thread, also when that thread is inside an
 * asynchronous runtime. The library's own threads block all signals, and it
 * installs no signal handler; a thread's alternate signal stack stays what it
 * was, until the thread ends.
 *
 * FORK. Here: in a child process made by fork(), every call on a handle that
 * was opened in the parent fails; close frees nothing and returns. The child
 * may open stores of its own.
 *
 * UNLOADING. Here: the library stays in the process after dlclose().
 *
 * LIMITS. A hash has 1 to 64 bytes; a name has 1 to 4096 bytes of UTF-8, of any
 * characters but NUL. A chunk or a manifest may be empty.
 * Here: a value has at most 1 GiB (KV_STORE_WASM_MAX_VALUE_BYTES), less where
 * the backend says so. Of that, 64 bytes go to the envelope of a manifest, and
 * of a chunk whose hash is not its content's.
 */
#ifndef KV_STORE_ABI_H
#define KV_STORE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the vtable described here. */
#define KV_STORE_VTABLE_VERSION 2u

/* The one symbol that a library exports, for dlsym. */
#define KV_STORE_GET_VTABLE_SYMBOL "kv_store_get_vtable"

/* Here: the longest chunk or manifest, in bytes, with its envelope. */
#define KV_STORE_WASM_MAX_VALUE_BYTES ((uint64_t)1 << 30)

/* One opened store. Opaque; made by open, ended by close. */
typedef struct kv_store_v1 kv_store_v1;

/*
 * The functions of a library. Static: valid as long as the library is loaded.
 * Later versions only add members at the end, so a consumer checks `version`
 * before it uses a member that version 1 did not have.
 */
typedef struct kv_store_vtable {
    /* 1, or 2 if prefetch_chunks is there. Here: 2. */
    uint32_t version;

    /*
     * Open the store that `uri` names: "local-fs:///var/cache/kv",
     * "redis://cache.svc:6379/3". One leading "wasm://" is taken off. The text
     * before "://" picks the backend. A trailing "/" has no meaning.
     *
     * Returns a handle, or NULL: no such backend, not reachable, a URI that
     * makes no sense, a password in the URI (they belong in the environment,
     * see the operator's documentation).
     *
     * Here: the URI is the grant. The backend's component reaches the directory
     * or the server that the URI names, and nothing else.
     */
    kv_store_v1 *(*open)(const char *uri);

    /*
     * End a handle. NULL is allowed. No other call may be under way on the
     * handle, and none may follow.
     *
     * Here: chunks that were put and not yet published by put_manifest may be
     * discarded; close does no input or output.
     */
    void (*close)(kv_store_v1 *self);

    /*
     * Store `data_len` bytes under a hash. `data` may be NULL if `data_len` is
     * 0. Chunks are immutable: putting a hash that is there changes nothing.
     *
     * Returns 0: accepted. 1: this chunk was there already. Negative: not
     * accepted.
     *
     * The chunk may be buffered; it is sure to be readable and durable once a
     * put_manifest that began after this call returned has answered 0.
     *
     * Here: local-fs takes a stored chunk of another length than `data_len` for
     * one that a power cut has torn, and writes it again.
     *
     * Here: the library detects 8-byte hashes that are XXH3-64 (seed 0) of the
     * content, in either byte order; get_chunk then checks what it fetches. A
     * chunk under any other hash lies in an envelope with a checksum, which
     * get_chunk checks. A chunk that was found damaged is stored again by the
     * next put of it in this process. (A put does not read the existing chunk:
     * if that is damaged and was not fetched yet, put_chunk answers 1.)
     */
    int (*put_chunk)(kv_store_v1 *self,
                     const uint8_t *hash, size_t hash_len,
                     const uint8_t *data, size_t data_len);

    /*
     * Fetch the bytes stored under a hash.
     *
     * Returns 0 with *out_data (free() it) and *out_len. Negative: missing, or
     * failed; a miss is normal, and nothing is logged for it.
     *
     * Here: bytes that do not match their checksum, or, in a store whose
     * hashes are XXH3-64 of the content, their hash, are never answered: the
     * call fails. Reading removes nothing by itself: the next put in this
     * process replaces the chunk. Only when the same wrong bytes are found
     * again, seconds later and over another connection, is it removed from the
     * backend, for the next put, of whichever process, to store it again.
     */
    int (*get_chunk)(kv_store_v1 *self,
                     const uint8_t *hash, size_t hash_len,
                     uint8_t **out_data, size_t *out_len);

    /*
     * Publish `data` under `name` (NUL-terminated), replacing what was there.
     * A reader sees the former bytes or these, never a part. When it returns 0,
     * every chunk whose put_chunk on this handle had returned before this call
     * began, in any thread, is readable, and as durable as the backend can
     * make it, and so is the manifest. Excepted are chunks whose loss an
     * earlier answer has reported, see below.
     *
     * Negative: the former manifest is untouched, except where the outcome can
     * not be known: the server did not answer in time, or the new manifest is
     * there and could not be made durable.
     *
     * Here: chunks that could not be stored for a temporary reason are kept for
     * the next put_manifest. A chunk is lost if it was accepted, and the backend
     * then refused it for good or has lost it since. A lost chunk fails every
     * put_manifest on this handle, in any thread, until it is put again, and
     * for 5 seconds at most after the loss was first reported, by a negative
     * put_manifest or put_chunk. After a negative answer put the chunks again,
     * then retry. A chunk that the backend refuses for good is refused again:
     * put_chunk is negative, so the chunk is not accepted, and does not count
     * as lost. The loss of a chunk after a put_manifest has named it is not
     * reported; the next put of it stores it again.
     *
     * Here: what was published stays until it is deleted, unless the operator
     * has bounded the store (max_bytes, ttl_s, evict), or the backend evicts by
     * itself. Such a store evicts what was not used for longest, manifests
     * before chunks; what is gone is a miss. Chunks that were put and not yet
     * published are spared for save_grace_s. A put is refused where a bound,
     * keep_free or a quota leaves no room.
     */
    int (*put_manifest)(kv_store_v1 *self,
                        const char *name,
                        const uint8_t *data, size_t data_len);

    /* Fetch the manifest under `name`; returns and memory as get_chunk. */
    int (*get_manifest)(kv_store_v1 *self,
                        const char *name,
                        uint8_t **out_data, size_t *out_len);

    /*
     * Remove the manifest under `name`. Returns 0 also if there was none.
     * Chunks stay: other manifests may refer to them.
     */
    int (*delete_manifest)(kv_store_v1 *self, const char *name);

    /*
     * Since version 2. Say that get_chunk will be called soon for `n_hashes`
     * hashes of `hash_len` bytes each, which lie one after another at `hashes`
     * (it may be NULL if `n_hashes` is 0).
     *
     * Returns 0, also if not all of them were there or could be kept;
     * negative: it failed on the way. get_chunk works all the same.
     *
     * Here: they are fetched in few calls of the backend into a bounded cache,
     * from which get_chunk hands each over once.
     */
    int (*prefetch_chunks)(kv_store_v1 *self,
                           const uint8_t *hashes,
                           size_t hash_len, size_t n_hashes);
} kv_store_vtable;

/* The vtable of the library. Never NULL; safe to call from any thread. */
const kv_store_vtable *kv_store_get_vtable(void);

/* The type of kv_store_get_vtable, for the result of dlsym. */
typedef const kv_store_vtable *(*kv_store_get_vtable_fn)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KV_STORE_ABI_H */
