/*
 * kv_store_status.h - what the headers of kv-store-wasm have in common: one list of statuses, one way to find functions,
 * one way to the text of a failure. kv_store_abi.h and kvx_abi.h are published ABIs with conventions of their own.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * FUNCTIONS. A header PREFIX.h has one function, PREFIX_get_vtable, which the library exports: kv_store_batch_get_vtable,
 * kv_blocks_get_vtable. It answers a static table of all others, a PREFIX_vtable_t, never NULL. A program that is linked
 * with the library calls it; one that loads the library finds it by dlsym under PREFIX_GET_VTABLE_SYMBOL, and its type is
 * PREFIX_get_vtable_fn. Each table begins with `size`, its sizeof in the library, and `version`. Later versions only add
 * members at its end: check `size` before you use one that the first version did not have.
 *
 * STATUS. A call that can fail returns 0 or more for success and one of the codes below for failure; `int`, or `int64_t`
 * where it counts. A call that makes an object returns NULL where it fails. A call that writes a text into a buffer returns
 * the text's length as snprintf does, and 0 where it fails.
 *
 * LAST ERROR. The member `last_error` of each table answers why the last failed call of the calling thread failed, for a
 * person: never NULL, "" if none has failed, valid until the thread's next failure. The tables of one library share the
 * text, and failures of kv_store_v1 are in it too.
 *
 * NAMES. Types end in `_t`, types of functions in `_fn`. The names of 0.2 are in kv_store_deprecated.h, which each header
 * includes unless KV_STORE_NO_DEPRECATED is defined, and which goes with 0.4; the functions under them stay as long as the
 * library is libkv_store_wasm.so.1.
 */
#ifndef KV_STORE_STATUS_H
#define KV_STORE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum kv_store_status {
    KV_STORE_OK = 0,            /* put: stored. get: found. exists: present. delete: gone. */
    KV_STORE_EXISTED = 1,       /* put: it was there already */
    KV_STORE_UNAVAILABLE = -1,  /* not reachable, late, busy: the same call may work later */
    KV_STORE_DENIED = -2,       /* not granted, or refused by the storage system for want of rights */
    KV_STORE_EXHAUSTED = -3,    /* no room now: a limit of the library, a full disk, a full server */
    KV_STORE_INVALID = -4,      /* the request makes no sense as it stands, or the value is larger than the store takes */
    KV_STORE_CORRUPT = -5,      /* the stored data is damaged */
    KV_STORE_UNSUPPORTED = -6,  /* the backend, or the library, cannot do this at all */
    KV_STORE_COMPONENT = -7,    /* the component trapped or broke its contract; the next call gets a new instance */
    KV_STORE_OTHER = -8,        /* none of the others */
    KV_STORE_MISMATCH = -10,    /* saved of another model, geometry, layout, dtype or number of tokens. put: there is a value of another
                                   descriptor */
    KV_STORE_CANCELLED = -11,   /* cancelled by its caller, or what it was asked of has been shut down */
    KV_STORE_VERSION = -12,     /* saved by a later version, which this library does not read */
    KV_STORE_MISSING = -100,    /* there is none, or it is damaged */
    KV_STORE_TOO_LONG = -101,   /* the value is longer than the memory for it */
    KV_STORE_LOST = -102        /* save_commit: chunks of the save are not in the store any more */
};

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KV_STORE_STATUS_H */
