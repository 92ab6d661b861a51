/* kv_store_wasm.h: what libkv_store_wasm.so offers beyond kv_store_abi.h.
 *
 * Licence: Apache-2.0.
 */
#ifndef KV_STORE_WASM_H
#define KV_STORE_WASM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The counters of this process, as text in the Prometheus format: calls, errors by kind, bytes, traps, timeouts, chunks that
 * were there already or came back wrong, hits of the caches, connections; for each backend and each tenant. They begin at 0
 * with the process, and in a child that was forked off. docs/operator-guide.md says what each counts.
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

#ifdef __cplusplus
}
#endif

#endif
