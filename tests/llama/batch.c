/* batch.c - see batch.h. SPDX-License-Identifier: Apache-2.0
 *
 * Chunks go to a queue in groups, so that the library moves one group while the
 * next one is hashed here, and more than one where there are processors for it.
 */
#define _POSIX_C_SOURCE 200809L
#include "batch.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "report.h"

/* Bytes of a group: what was hashed is still in a cache of the processor when
 * the library copies it. */
#define GROUP_BYTES ((size_t)4 << 20)

/* What the library needs of the chunks, until their completions are drained. */
struct request {
    kv_store_item_t *items;
    uint8_t *keys;
};

const kv_store_batch_vtable_t *batch_find(void *library)
{
    void *symbol = dlsym(library, KV_STORE_BATCH_GET_VTABLE_SYMBOL);
    kv_store_batch_get_vtable_fn get = NULL;
    memcpy(&get, &symbol, sizeof get);
    const kv_store_batch_vtable_t *batch = get ? get() : NULL;
    return batch && batch->size >= sizeof *batch ? batch : NULL;
}

static void fill(const struct request *r, struct store_chunk *chunks, size_t i, bool put)
{
    struct store_chunk *chunk = &chunks[i];
    uint8_t *key = r->keys + KEY_BYTES * i;
    if (put) {
        chunk->hash = store_chunk_hash(chunk);
    }
    write_key(key, chunk->hash);
    r->items[i] = (kv_store_item_t){.hash = key, .hash_len = KEY_BYTES,
                                  .pieces = chunk->pieces, .n_pieces = chunk->n_pieces};
}

/* Wait for one of the `running` groups, and take all that are done. */
static int drain(struct store *s, kv_store_queue_t *queue, size_t *running)
{
    kv_store_completion_t done[16];
    struct pollfd ready = {.fd = s->batch->queue_fd(queue), .events = POLLIN};
    poll(&ready, 1, -1);
    int64_t n = s->batch->queue_drain(queue, done, 16);
    for (int64_t i = 0; i < n; i++) {
        if (done[i].status < 0) {
            return report(KV_FAILED, "the store fails (%d); its own message is above",
                          done[i].status);
        }
        *running -= 1;
    }
    return n < 0 ? report(KV_FAILED, "the queue fails: %s", s->batch->last_error()) : KV_OK;
}

/* Submit all chunks in groups, and wait for them. */
static int run(struct store *s, kv_store_queue_t *queue, uint32_t operation,
               const struct request *r, struct store_chunk *chunks, size_t n,
               const kv_store_call_t *call)
{
    size_t running = 0, first = 0, bytes = 0;
    for (size_t i = 0; i < n; i++) {
        fill(r, chunks, i, operation == KV_STORE_PUT);
        bytes += chunks[i].size;
        if (bytes < GROUP_BYTES && i + 1 < n) {
            continue;
        }
        int code;
        while ((code = s->batch->queue_submit(queue, i, operation, r->items + first,
                                              i + 1 - first, call)) == KV_STORE_EXHAUSTED) {
            code = drain(s, queue, &running);
            if (code != KV_OK) {
                return code;
            }
        }
        if (code != 0) {
            return report(KV_FAILED, "the queue takes nothing: %s", s->batch->last_error());
        }
        running++;
        first = i + 1;
        bytes = 0;
    }
    int code = KV_OK;
    while (code == KV_OK && running > 0) {
        code = drain(s, queue, &running);
    }
    return code;
}

static int check(const struct request *r, struct store_chunk *chunks, size_t n, bool put)
{
    for (size_t i = 0; i < n; i++) {
        int32_t status = r->items[i].status;
        uint64_t hash = chunks[i].hash;
        chunks[i].known = status == KV_STORE_EXISTED;
        if (put && status < 0) {
            return report(KV_FAILED, "the store does not take chunk %016" PRIx64 " of %zu bytes "
                          "(%d); its own message is above", hash, chunks[i].size, status);
        }
        if (!put && status != KV_STORE_OK && status != KV_STORE_TOO_LONG) {
            return report(KV_FAILED, "chunk %016" PRIx64 " is missing or cannot be read (%d); save "
                          "the state again", hash, status);
        }
        if (!put && r->items[i].len != chunks[i].size) {
            return report(KV_FAILED, "chunk %016" PRIx64 " is of another length than its manifest "
                          "says; remove it and save the state again", hash);
        }
    }
    return KV_OK;
}

static int carry_out(struct store *s, uint32_t operation, struct store_chunk *chunks, size_t n,
                     const kv_store_call_t *call)
{
    struct request r = {.items = malloc((n + 1) * sizeof *r.items),
                        .keys = malloc((n + 1) * KEY_BYTES)};
    kv_store_queue_t *queue = NULL;
    int code = KV_OK;
    if (!r.items || !r.keys) {
        code = report(KV_CANNOT_RUN, "there is no memory for a batch of %zu chunks", n);
    } else if (!(queue = s->batch->queue_open(s->handle, 256))) {
        code = report(KV_FAILED, "the library opens no queue: %s", s->batch->last_error());
    } else {
        code = run(s, queue, operation, &r, chunks, n, call);
    }
    /* After this the library uses none of the memory, whatever failed. */
    s->batch->queue_close(queue);
    if (code == KV_OK) {
        code = check(&r, chunks, n, operation == KV_STORE_PUT);
    }
    free(r.items);
    free(r.keys);
    return code;
}

int batch_put(struct store *s, struct store_chunk *chunks, size_t n)
{
    if (!s->save && !(s->save = s->batch->save_begin(s->handle))) {
        return report(KV_FAILED, "the library begins no save: %s", s->batch->last_error());
    }
    kv_store_call_t call = {.size = sizeof call, .save = s->save};
    return carry_out(s, KV_STORE_PUT, chunks, n, &call);
}

int batch_get(struct store *s, struct store_chunk *chunks, size_t n)
{
    /* The library checks the bytes, and removes a chunk that is damaged. */
    kv_store_call_t call = {.size = sizeof call, .flags = KV_STORE_XXH3_KEYS};
    return carry_out(s, KV_STORE_GET, chunks, n, &call);
}

int batch_publish(struct store *s, const char *name, const uint8_t *data, size_t size)
{
    int code = s->batch->save_commit(s->save, name, data, size, NULL, NULL);
    s->batch->save_end(s->save);
    s->save = NULL;
    if (code == KV_STORE_LOST) {
        return report(KV_FAILED, "the store has lost chunks of '%s'; save the state again", name);
    }
    return code == 0 ? KV_OK
                     : report(KV_FAILED, "the store does not publish the manifest '%s': %s", name,
                              s->batch->last_error());
}
