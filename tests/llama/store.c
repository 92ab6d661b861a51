/* store.c - see store.h, and batch.c for the batches. SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "store.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "batch.h"
#include "bytes.h"
#include "report.h"

int store_open(struct store *s, const char *path, const char *uri)
{
    *s = (struct store){0};
    s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!s->library) {
        return report(KV_CANNOT_RUN, "cannot load the library: %s; give its path with --lib",
                      dlerror());
    }
    /* ISO C has no cast from an object pointer to a function pointer; POSIX
     * says that the bytes are the same. */
    void *symbol = dlsym(s->library, KV_STORE_GET_VTABLE_SYMBOL);
    kv_store_get_vtable_fn get_vtable = NULL;
    memcpy(&get_vtable, &symbol, sizeof get_vtable);
    s->kv = get_vtable ? get_vtable() : NULL;
    if (!s->kv || s->kv->version < 1 || !s->kv->open || !s->kv->close ||
        !s->kv->put_chunk || !s->kv->get_chunk || !s->kv->put_manifest ||
        !s->kv->get_manifest) {
        return report(KV_CANNOT_RUN, "%s has no complete " KV_STORE_GET_VTABLE_SYMBOL "; give a "
                      "library of the ABI kv_store_v1 with --lib", path);
    }
    s->handle = s->kv->open(uri);
    if (!s->handle) {
        return report(KV_CANNOT_RUN, "the library does not open %s; its own message is above",
                      uri);
    }
    s->batch = batch_find(s->library);
    return KV_OK;
}

uint64_t store_chunk_hash(const struct store_chunk *chunk)
{
    XXH3_state_t state;
    if (chunk->n_pieces == 1) {
        return XXH3_64bits(chunk->pieces[0].data, chunk->pieces[0].len);
    }
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (size_t i = 0; i < chunk->n_pieces; i++) {
        XXH3_64bits_update(&state, chunk->pieces[i].data, chunk->pieces[i].len);
    }
    return XXH3_64bits_digest(&state);
}

/* This ABI takes a chunk in one piece. */
static int put_one(struct store *s, struct store_chunk *chunk)
{
    uint8_t key[KEY_BYTES];
    uint8_t *data = malloc(chunk->size + 1);
    if (!data) {
        return report(KV_CANNOT_RUN, "there is no memory for a chunk of %zu bytes", chunk->size);
    }
    for (size_t i = 0, at = 0; i < chunk->n_pieces; at += chunk->pieces[i++].len) {
        memcpy(data + at, chunk->pieces[i].data, chunk->pieces[i].len);
    }
    chunk->hash = XXH3_64bits(data, chunk->size);
    write_key(key, chunk->hash);
    int answer = s->kv->put_chunk(s->handle, key, sizeof key, data, chunk->size);
    free(data);
    chunk->known = answer == 1;
    if (answer < 0) {
        return report(KV_FAILED, "the store does not take chunk %016" PRIx64 " of %zu bytes; "
                      "its own message is above", chunk->hash, chunk->size);
    }
    return KV_OK;
}

static int get_one(struct store *s, const struct store_chunk *chunk)
{
    uint8_t key[KEY_BYTES];
    uint8_t *data = NULL;
    size_t got = 0;
    write_key(key, chunk->hash);
    if (s->kv->get_chunk(s->handle, key, sizeof key, &data, &got) != 0 || !data) {
        return report(KV_FAILED, "chunk %016" PRIx64 " is missing or cannot be read; save the "
                      "state again", chunk->hash);
    }
    if (got != chunk->size) {
        free(data);
        return report(KV_FAILED, "chunk %016" PRIx64 " is of another length than its manifest "
                      "says; remove it and save the state again", chunk->hash);
    }
    for (size_t i = 0, at = 0; i < chunk->n_pieces; at += chunk->pieces[i++].len) {
        memcpy(chunk->pieces[i].data, data + at, chunk->pieces[i].len);
    }
    free(data);
    return KV_OK;
}

int store_put(struct store *s, struct store_chunk *chunks, size_t n)
{
    if (s->batch) {
        return batch_put(s, chunks, n);
    }
    int code = KV_OK;
    for (size_t i = 0; code == KV_OK && i < n; i++) {
        code = put_one(s, &chunks[i]);
    }
    return code;
}

int store_get(struct store *s, struct store_chunk *chunks, size_t n, bool trusting)
{
    int code = s->batch ? batch_get(s, chunks, n) : KV_OK;
    for (size_t i = 0; code == KV_OK && i < n; i++) {
        code = s->batch ? KV_OK : get_one(s, &chunks[i]);
        if (code == KV_OK && !trusting &&
            store_chunk_hash(&chunks[i]) != chunks[i].hash) {
            code = report(KV_FAILED, "chunk %016" PRIx64 " has other bytes than were saved; remove it "
                          "and save the state again", chunks[i].hash);
        }
    }
    return code;
}

int store_publish(struct store *s, const char *name, const uint8_t *data,
                  size_t size)
{
    if (s->save) {
        return batch_publish(s, name, data, size);
    }
    if (s->kv->put_manifest(s->handle, name, data, size) != 0) {
        return report(KV_FAILED, "the store does not publish the manifest '%s'; its own message "
                      "is above", name);
    }
    return KV_OK;
}

int store_manifest(struct store *s, const char *name, uint8_t **data,
                   size_t *size)
{
    *data = NULL;
    *size = 0;
    if (s->kv->get_manifest(s->handle, name, data, size) != 0 || !*data) {
        *data = NULL;
        return report(KV_FAILED, "the store has no manifest '%s', or cannot read it; save a state "
                      "under this name first", name);
    }
    return KV_OK;
}

int store_prefetch(struct store *s, const uint8_t *keys, size_t n)
{
    /* The member is not even there in a vtable of version 1. */
    return s->kv->version >= 2 && s->kv->prefetch_chunks &&
           s->kv->prefetch_chunks(s->handle, keys, KEY_BYTES, n) == 0;
}

void store_close(struct store *s)
{
    if (s->save) {
        s->batch->save_end(s->save);
    }
    if (s->handle) {
        s->kv->close(s->handle);
    }
    if (s->library) {
        dlclose(s->library);
    }
    *s = (struct store){0};
}
