/*
 * kv_store_batch.h - batches, saves and queues over the handles of kv_store_abi.h, as served by libkv_store_wasm.so.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * kv_store_v1 moves one chunk a call, into memory that the library allocates. An engine that moves 16 to 4,096 blocks at
 * once, in memory of its own, uses this interface beside it, on the same handle:
 *
 *     kv_store_batch_get_vtable_fn get;
 *     *(void **)&get = dlsym(lib, KV_STORE_BATCH_GET_VTABLE_SYMBOL);
 *     const kv_store_batch_vtable_t *batch = get();
 *
 *     kv_store_piece_t piece = {block, block_bytes};
 *     kv_store_item_t item = {.hash = key, .hash_len = 16, .pieces = &piece, .n_pieces = 1};
 *     batch->put_many(store, &item, 1, NULL);
 *
 * Statuses, `size`, `version` and `last_error` are as in kv_store_status.h; whatever else this page leaves open is as in
 * kv_store_abi.h.
 *
 * BATCHES. A batch is an array of items. Each item has a status of its own. A call returns 0 when every item has its
 * status, and a negative KV_STORE_* code when nothing was done (a NULL handle, a contradiction in the call); the items are
 * untouched then. A hash that occurs twice in one batch is put, or asked for, once. Large batches are cut and carried out side
 * by side where the backend can serve that.
 *
 * VISIBLE, DURABLE. What put_many answers as stored or existed is readable by every client of the store, at once and on
 * every backend. (Only put_chunk of kv_store_v1 is buffered.) It survives a power loss when the commit of its save has
 * answered 0, or when it was put with KV_STORE_DURABLE; on backends that are not durable, never.
 *
 * CHECKS. A value whose key is not its content hash lies in an envelope in the backend, with a checksum over key, length and bytes
 * (docs/envelope.md). What does not match is a miss, and the next put of the key replaces it. Lengths are the caller's
 * everywhere. A get may overwrite all of an item's memory, also behind the value.
 *
 * SAVES. A save collects the chunks that are put with it (kv_store_call_t.save) and ends in a commit, which publishes a
 * manifest over them. Each save has its own ledger: two saves on one handle never fail for each other's chunks, and
 * put_manifest of kv_store_v1 does not cover chunks of a save. A put without a save is in no ledger.
 *
 * MEMORY. Items, pieces and hashes belong to the caller. The library uses them until the call returns or, for a queue, from
 * submit until the completion is drained. Until then they must stay valid, and the caller must not touch them. Outputs that
 * the library allocates come from malloc; the caller frees them.
 *
 * THREADS. Any function may be called from any number of threads at once, except that queue_close, save_end and close are
 * the last calls on what they end. A save or a queue keeps its store open: the handle may be closed before them.
 *
 * FORK. In a child process every call on an object of the parent fails, before it touches a descriptor; queue_close and
 * save_end free nothing there.
 *
 * ERRORS. A status below 0 other than KV_STORE_MISSING is logged, one line for the first of a batch: at once for each store and
 * cause, and then once a minute at most, with how many more there were. last_error has the text of each.
 */
#ifndef KV_STORE_BATCH_H
#define KV_STORE_BATCH_H

#include "kv_store_abi.h"
#include "kv_store_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the vtable described here. */
#define KV_STORE_BATCH_VTABLE_VERSION 1u

/* The symbol that the library exports, for dlsym. */
#define KV_STORE_BATCH_GET_VTABLE_SYMBOL "kv_store_batch_get_vtable"

/* kv_store_item_t.len where the backend does not know it. */
#define KV_STORE_LEN_UNKNOWN UINT64_MAX

/* A piece of memory. put reads it, get writes it. `data` may be NULL if `len` is 0. */
typedef struct kv_store_piece {
    void *data;
    size_t len;
} kv_store_piece_t;

/* An item of a batch. Set it to zero, then the members that are marked "in". */
typedef struct kv_store_item {
    const uint8_t *hash;            /* in: 1 to 64 bytes */
    size_t hash_len;                /* in */
    const kv_store_piece_t *pieces; /* in: the value, or the memory for it, one piece after another */
    size_t n_pieces;                /* in: at most 65,536 */
    uint64_t len;                   /* out: get, exists: the value's length in bytes, where its status is 0 or TOO_LONG */
    void *data;                     /* out: get with KV_STORE_ALLOCATE: the value, for free(); else NULL */
    int32_t status;                 /* out: KV_STORE_* */
    uint32_t reserved;              /* 0 */
} kv_store_item_t;

/* One save. Opaque; made by save_begin, ended by save_end. */
typedef struct kv_store_save kv_store_save_t;

/* One queue. Opaque; made by queue_open, ended by queue_close. */
typedef struct kv_store_queue kv_store_queue_t;

/* Flags of a call. A flag that the operation does not name is KV_STORE_INVALID. */
enum {
    /* put: each item is answered only when it survives a power loss. KV_STORE_UNSUPPORTED where the backend is not durable. */
    KV_STORE_DURABLE = 1,
    /* put: store also what exists. */
    KV_STORE_REPLACE = 2,
    /*
     * put, get, exists: values lie in an envelope, with a checksum over key, length and bytes, also where keys of 8 bytes are
     * content hashes. (All others do in any case: see CHECKS.) A value that version 0.2 or before has stored without this flag
     * is KV_STORE_MISSING under it; the next put with it stores the value anew. A get removes nothing because of this flag.
     */
    KV_STORE_SEALED = 4,
    /* get: the value goes into memory that the library allocates: `data`. The item has no pieces: KV_STORE_INVALID. */
    KV_STORE_ALLOCATE = 8,
    /*
     * get: hashes of 8 bytes are XXH3-64 (seed 0) of the value, in either byte order. Other bytes are a miss, and are not
     * removed for it.
     */
    KV_STORE_XXH3_KEYS = 16,
    /*
     * put, get, exists: values check themselves: the caller compares each with a checksum that it carries or that is known of it. They
     * lie as they are, without an envelope, and a get hands out what lies there. Give them keys that no other values have: a call without
     * the flag may miss them, or answer them as values of version 0.2. Not together with KV_STORE_SEALED.
     */
    KV_STORE_SELF_CHECKED = 32
};

/* Options of a call. NULL instead of a pointer to it means all members 0. */
typedef struct kv_store_call {
    uint32_t size;         /* sizeof(kv_store_call_t) */
    uint32_t flags;        /* KV_STORE_DURABLE ... */
    uint64_t timeout_ms;   /* time limit of the batch from the call or submit on; 0, or more than the operator's deadline: the deadline */
    kv_store_save_t *save; /* put: the save that the chunks belong to, or NULL */
} kv_store_call_t;

/* Operations, for queue_submit. */
enum {
    KV_STORE_PUT = 1,
    KV_STORE_GET = 2,
    KV_STORE_EXISTS = 3,
    KV_STORE_DELETE = 4
};

/* What queue_drain answers. */
typedef struct kv_store_completion {
    uint64_t cookie;
    int32_t status;    /* 0: every item has its status. Negative: why the request was not carried out; so for every item */
    uint32_t reserved; /* 0 */
} kv_store_completion_t;

/* A hash, as save_commit answers it. */
typedef struct kv_store_hash {
    uint8_t len;
    uint8_t bytes[64];
} kv_store_hash_t;

/* What a store is. */
typedef struct kv_store_info {
    uint32_t size;            /* in: sizeof(kv_store_info_t) */
    uint8_t durable;          /* what was committed survives a restart of the storage system */
    uint8_t shared;           /* other processes that open the same URI see the same store */
    uint8_t deletes;          /* delete_many is supported */
    uint8_t write_through;    /* put_chunk of kv_store_v1 is not buffered */
    uint64_t max_value_bytes; /* the longest value, whatever its hash is */
    uint64_t batch_items;     /* items of a batch that the backend serves in one go */
    uint64_t batch_bytes;     /* bytes of such a batch */
} kv_store_info_t;

/* The functions of the library. Static. Later versions only add members at the end: check `size` before you use one. */
typedef struct kv_store_batch_vtable {
    uint32_t size;    /* sizeof(kv_store_batch_vtable_t) of the library */
    uint32_t version; /* 1 */

    /*
     * Store values at once, from the caller's memory. Chunks are immutable: a hash that is there changes nothing, unless
     * with KV_STORE_REPLACE. Status of an item: KV_STORE_OK, KV_STORE_EXISTED, or why it was not stored.
     */
    int (*put_many)(kv_store_v1 *self, kv_store_item_t *items, size_t n_items, const kv_store_call_t *call);

    /*
     * Fetch values. Status: KV_STORE_OK with `len`, KV_STORE_MISSING, KV_STORE_TOO_LONG with `len`, or why it failed. If an
     * item is not KV_STORE_OK, what is in its pieces is undefined. Chunks that wait in the write buffer of this handle are
     * found. The keys of a batch tell the library nothing about other users' keys.
     */
    int (*get_many)(kv_store_v1 *self, kv_store_item_t *items, size_t n_items, const kv_store_call_t *call);

    /* Ask which chunks exist. Status: KV_STORE_OK with `len` or KV_STORE_LEN_UNKNOWN, KV_STORE_MISSING, or why it failed. */
    int (*exists_many)(kv_store_v1 *self, kv_store_item_t *items, size_t n_items, const kv_store_call_t *call);

    /*
     * Remove chunks. Status: KV_STORE_OK, also if there was none; KV_STORE_UNSUPPORTED; or why it failed. A manifest that
     * names a removed chunk stays.
     */
    int (*delete_many)(kv_store_v1 *self, kv_store_item_t *items, size_t n_items, const kv_store_call_t *call);

    /* Begin a save. NULL: failed, see last_error. */
    kv_store_save_t *(*save_begin)(kv_store_v1 *self);

    /*
     * Wait for the puts of the save that were submitted before, make its chunks durable where the backend can, then publish
     * `data` under `name`. With a NULL name it only makes them durable.
     *
     * Returns 0; KV_STORE_LOST if chunks of the save are not in the store any more, with their hashes in *out_lost (free()
     * it) and their number in *out_n_lost, which may both be NULL; or why it failed. Nothing is published unless it
     * returns 0. The save goes on: put the chunks again, and commit again. After a commit it is empty and can be used anew.
     * Where the backend is not durable and evicts nothing by itself, chunks that another process removes, or the server
     * loses, within 2 s before the commit or during it may be missing under the manifest; those that this process removed
     * before the commit never are.
     */
    int (*save_commit)(kv_store_save_t *save, const char *name, const uint8_t *data, size_t data_len,
                       kv_store_hash_t **out_lost, size_t *out_n_lost);

    /* End a save; NULL is allowed. What it stored stays stored. */
    void (*save_end)(kv_store_save_t *save);

    /* Make a queue for at most `depth` requests (1 to 65,536) that are not drained. NULL: failed, see last_error. */
    kv_store_queue_t *(*queue_open)(kv_store_v1 *self, size_t depth);

    /*
     * The queue's eventfd: non-blocking and close-on-exec. It is readable while completions wait to be drained. After reading
     * it call queue_drain: it becomes readable again only by a new completion, or by a queue_drain that leaves some. Negative:
     * KV_STORE_*. The queue closes it.
     */
    int (*queue_fd)(kv_store_queue_t *queue);

    /*
     * Have an operation (KV_STORE_PUT ...) carried out. Never waits for I/O. Returns 0: a completion with this cookie will come.
     * KV_STORE_EXHAUSTED: the queue is full; drain it. Other negative codes: not accepted.
     */
    int (*queue_submit)(kv_store_queue_t *queue, uint64_t cookie, uint32_t operation, kv_store_item_t *items, size_t n_items,
                        const kv_store_call_t *call);

    /*
     * Take at most `most` completions; does not wait. Returns how many, or a negative code. A completion comes only when no
     * thread and no system call uses the request's memory, also if it was cancelled or late.
     */
    int64_t (*queue_drain)(kv_store_queue_t *queue, kv_store_completion_t *completions, size_t most);

    /*
     * Cancel the requests with a cookie. Those that wait complete as KV_STORE_CANCELLED; one that runs stops between its
     * batches, and its items that were not reached are KV_STORE_CANCELLED. Returns how many there were, or a negative code.
     */
    int64_t (*queue_cancel)(kv_store_queue_t *queue, uint64_t cookie);

    /* Cancel what is left, wait until no request's memory is in use, and end the queue; NULL is allowed. */
    void (*queue_close)(kv_store_queue_t *queue);

    /* What a store is. Returns 0, or a negative code. */
    int (*info)(kv_store_v1 *self, kv_store_info_t *out);

    /* Why the last failed call of this thread failed, for a person. Never NULL; valid until the thread's next failure. */
    const char *(*last_error)(void);
} kv_store_batch_vtable_t;

/* The vtable. Never NULL; safe to call from any thread. */
const kv_store_batch_vtable_t *kv_store_batch_get_vtable(void);

/* The type of kv_store_batch_get_vtable, for the result of dlsym. */
typedef const kv_store_batch_vtable_t *(*kv_store_batch_get_vtable_fn)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef KV_STORE_NO_DEPRECATED
#include "kv_store_deprecated.h"
#endif

#endif /* KV_STORE_BATCH_H */
