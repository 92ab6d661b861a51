/* kv_store_wasm.h - what libkv_store_wasm.so offers to the process, whatever stores are open: its counters and its log.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     kv_store_wasm_get_vtable_fn get;
 *     *(void **)&get = dlsym(lib, KV_STORE_WASM_GET_VTABLE_SYMBOL);
 *     size_t len = get()->metrics(buffer, sizeof buffer);
 *
 * Statuses, `size`, `version` and `last_error` are as in kv_store_status.h. Any thread may call any function at any time, also
 * before the first open.
 */
#ifndef KV_STORE_WASM_H
#define KV_STORE_WASM_H

#include <stddef.h>
#include <stdint.h>

#include "kv_store_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the vtable described here. */
#define KV_STORE_WASM_VTABLE_VERSION 1u

/* The symbol that the library exports, for dlsym. */
#define KV_STORE_WASM_GET_VTABLE_SYMBOL "kv_store_wasm_get_vtable"

/* Levels of a line of the log. */
#define KV_STORE_WASM_LOG_OFF 0
#define KV_STORE_WASM_LOG_ERROR 1
#define KV_STORE_WASM_LOG_WARN 2
#define KV_STORE_WASM_LOG_INFO 3
#define KV_STORE_WASM_LOG_DEBUG 4

/* Takes one line of the log, as it would be on standard error (a failure that lasts once a minute with a count; warnings and errors
 * at most 1 MiB in an hour) without "kv-store-wasm: level: " before it and without a newline:
 * UTF-8, no control characters, at most 1027 bytes and a NUL. The line is valid until the function returns.
 *
 * Any thread may call it at any time, several at once, and in the middle of a call of this library: it must not wait for long,
 * must not call this library, and must not be left by an exception or a longjmp. It is not called in a child that was forked
 * off: there the lines go to standard error, until the child sets a function of its own.
 */
typedef void (*kv_store_wasm_log_fn)(void *context, int32_t level, const char *line);

/* The functions of the library. Static. Later versions only add members at the end: check `size` before you use one. */
typedef struct kv_store_wasm_vtable {
    uint32_t size;    /* sizeof(kv_store_wasm_vtable_t) of the library */
    uint32_t version; /* 1 */

    /*
     * The counters of this process, as text in the Prometheus format: calls, errors by kind, bytes, traps, timeouts, chunks that
     * were there already or came back wrong, hits of the caches, connections; for each backend and each tenant. They begin at 0
     * with the process, and in a child that was forked off. docs/metrics.md says what each counts.
     *
     * Writes at most len bytes to buffer, a NUL at the end included, and returns how long the whole text is, without the NUL: if
     * that is len or more, the text was cut. buffer may be NULL, or len 0, to ask for the length. The counters go on while
     * they are read, so leave room: a text can be longer a moment later. Returns 0 on failure. It does no I/O and calls no
     * backend.
     */
    size_t (*metrics)(char *buffer, size_t len);

    /*
     * Has the lines of the log go to a function, in place of standard error: those of `level` and of the levels with lower
     * numbers. A function of NULL has them go to standard error again, where the variable KV_STORE_WASM_LOG says which are
     * written; the level must be one of those above all the same. The log is the process's: it is that of all stores, and the
     * last call holds.
     *
     * Returns 0; KV_STORE_INVALID if the level is none, and nothing changes. When it returns, another thread may still be in the
     * former function, so a function and its context must stay valid until the process ends.
     */
    int (*set_log)(kv_store_wasm_log_fn function, void *context, int32_t level);

    /* Why the last failed call of this thread failed, for a person. Never NULL; valid until the thread's next failure. */
    const char *(*last_error)(void);
} kv_store_wasm_vtable_t;

/* The vtable. Never NULL; safe to call from any thread. */
const kv_store_wasm_vtable_t *kv_store_wasm_get_vtable(void);

/* The type of kv_store_wasm_get_vtable, for the result of dlsym. */
typedef const kv_store_wasm_vtable_t *(*kv_store_wasm_get_vtable_fn)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef KV_STORE_NO_DEPRECATED
#include "kv_store_deprecated.h"
#endif

#endif /* KV_STORE_WASM_H */
