/*
 * A library that takes descriptors and does nothing with them, over the real one (KV_STORE_LIBRARY): what the suite of
 * `kv-store check` must find.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "kv_store_batch.h"
#include "kv_store_describe.h"

static void *real(const char *symbol) {
    static void *library;
    if (!library)
        library = dlopen(getenv("KV_STORE_LIBRARY"), RTLD_NOW);
    void *found = library ? dlsym(library, symbol) : NULL;
    if (!found) {
        fprintf(stderr, "%s: %s\n", symbol, dlerror());
        abort();
    }
    return found;
}

const kv_store_vtable *kv_store_get_vtable(void) {
    kv_store_get_vtable_fn get;
    *(void **)&get = real(KV_STORE_GET_VTABLE_SYMBOL);
    return get();
}

const kv_store_batch_vtable_t *kv_store_batch_get_vtable(void) {
    kv_store_batch_get_vtable_fn get;
    *(void **)&get = real(KV_STORE_BATCH_GET_VTABLE_SYMBOL);
    return get();
}

static int describe(kv_store_v1 *self, const kv_store_descriptor_t *descriptor) {
    (void)self;
    (void)descriptor;
    return 0;
}

const kv_store_describe_vtable_t *kv_store_describe_get_vtable(void) {
    static kv_store_describe_vtable_t table;
    kv_store_describe_get_vtable_fn get;
    *(void **)&get = real(KV_STORE_DESCRIBE_GET_VTABLE_SYMBOL);
    table = *get();
    table.describe = describe;
    return &table;
}
