/* store.c - see store.h. SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "store.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

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
    return KV_OK;
}

int store_put(struct store *s, uint64_t hash, const uint8_t *data, size_t size,
              int *known)
{
    uint8_t key[KEY_BYTES];
    write_key(key, hash);
    int answer = s->kv->put_chunk(s->handle, key, sizeof key, data, size);
    *known = answer == 1;
    if (answer < 0) {
        return report(KV_FAILED, "the store does not take chunk %016" PRIx64 " of %zu bytes; "
                      "its own message is above", hash, size);
    }
    return KV_OK;
}

int store_get(struct store *s, uint64_t hash, size_t size, bool trusting,
              uint8_t **data)
{
    uint8_t key[KEY_BYTES];
    size_t got = 0;
    *data = NULL;
    write_key(key, hash);
    if (s->kv->get_chunk(s->handle, key, sizeof key, data, &got) != 0 || !*data) {
        *data = NULL;
        return report(KV_FAILED, "chunk %016" PRIx64 " is missing or cannot be read; save the "
                      "state again", hash);
    }
    const char *wrong = got != size ? "is of another length than its manifest says"
                        : !trusting && XXH3_64bits(*data, got) != hash ? "has other bytes than were saved"
                                                          : NULL;
    if (wrong) {
        free(*data);
        *data = NULL;
        return report(KV_FAILED, "chunk %016" PRIx64 " %s; remove it and save the state again",
                      hash, wrong);
    }
    return KV_OK;
}

int store_publish(struct store *s, const char *name, const uint8_t *data,
                  size_t size)
{
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
    if (s->handle) {
        s->kv->close(s->handle);
    }
    if (s->library) {
        dlclose(s->library);
    }
    *s = (struct store){0};
}
