/* kv_store_wasm.h: what libkv_store_wasm.so offers beyond kv_store_abi.h.
 *
 * Licence: Apache-2.0.
 */
#ifndef KV_STORE_WASM_H
#define KV_STORE_WASM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The counters of this process, as text in the Prometheus format: calls, errors by kind, bytes, traps, timeouts, chunks that
 * were there already or came back wrong, hits of the caches, connections; for each backend and each tenant. They begin at 0
 * with the process, and in a child that was forked off. docs/metrics.md says what each counts.
 *
 * Writes at most len bytes to buffer, a NUL at the end included, and returns how long the whole text is, without the NUL: if
 * that is len or more, the text was cut. buffer may be NULL, or len 0, to ask for the length. The counters go on while
 * they are read, so leave room: a text can be longer a moment later. Returns 0 on failure.
 *
 * Any thread may call it at any time, also before the first open. It does no I/O and calls no backend.
 */
#define KV_STORE_WASM_METRICS_SYMBOL "kv_store_wasm_metrics"
typedef size_t (*kv_store_wasm_metrics_fn)(char *buffer, size_t len);
size_t kv_store_wasm_metrics(char *buffer, size_t len);

/* Levels of a line of the log. */
#define KV_STORE_WASM_LOG_OFF 0
#define KV_STORE_WASM_LOG_ERROR 1
#define KV_STORE_WASM_LOG_WARN 2
#define KV_STORE_WASM_LOG_INFO 3
#define KV_STORE_WASM_LOG_DEBUG 4

/* Takes one line of the log, as it would be on standard error without "kv-store-wasm: level: " before it and without a newline:
 * UTF-8, no control characters, at most 1027 bytes and a NUL. The line is valid until the function returns.
 *
 * Any thread may call it at any time, several at once, and in the middle of a call of this library: it must not wait for long,
 * must not call this library, and must not be left by an exception or a longjmp. It is not called in a child that was forked
 * off: there the lines go to standard error, until the child sets a function of its own.
 */
typedef void (*kv_store_wasm_log_fn)(void *context, int32_t level, const char *line);

/* Has the lines of the log go to a function, in place of standard error: those of `level` and of the levels with lower numbers.
 * A function of NULL has them go to standard error again, where the variable KV_STORE_WASM_LOG says which are written; the level
 * must be one of those above all the same. The log is the process's: it is that of all stores, and the last call holds.
 *
 * Returns 0, or a negative number and changes nothing if the level is none. When it returns, another thread may still be in the
 * former function, so a function and its context must stay valid until the process ends. Any thread may call it, also before
 * the first open.
 */
#define KV_STORE_WASM_SET_LOG_SYMBOL "kv_store_wasm_set_log"
typedef int32_t (*kv_store_wasm_set_log_fn)(kv_store_wasm_log_fn function, void *context, int32_t level);
int32_t kv_store_wasm_set_log(kv_store_wasm_log_fn function, void *context, int32_t level);

#ifdef __cplusplus
}
#endif

#endif
