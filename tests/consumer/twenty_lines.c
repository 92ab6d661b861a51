/*
 * The smallest honest consumer: save two chunks and a manifest, get them back, compare.
 *
 *     cc -Iinclude twenty_lines.c -o twenty_lines -ldl && ./twenty_lines local-fs:///var/cache/kv
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_store_abi.h"

#define CHECK(ok) ((ok) ? (void)0 : (fprintf(stderr, "failed: %s\n", #ok), exit(1)))

int main(int argc, char **argv)
{
    kv_store_get_vtable_fn get_vtable;
    void *lib = dlopen("libkv_store_wasm.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(argc == 2 && lib && (*(void **)&get_vtable = dlsym(lib, KV_STORE_GET_VTABLE_SYMBOL)));
    const kv_store_vtable *kv = get_vtable();
    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);

    const char *keys[] = {"key of one", "key of two"}, *chunks[] = {"the first chunk", "the second"};
    for (int i = 0; i < 2; i++) /* 0: stored, 1: it was there */
        CHECK(kv->put_chunk(store, (const uint8_t *)keys[i], 10, (const uint8_t *)chunks[i], strlen(chunks[i])) >= 0);
    CHECK(kv->put_manifest(store, "prompt-1", (const uint8_t *)"two chunks", 10) == 0); /* now both are durable */

    uint8_t *data;
    size_t len;
    CHECK(kv->get_manifest(store, "prompt-1", &data, &len) == 0 && len == 10 && !memcmp(data, "two chunks", len));
    free(data);
    for (int i = 0; i < 2; i++) {
        CHECK(kv->get_chunk(store, (const uint8_t *)keys[i], 10, &data, &len) == 0);
        CHECK(len == strlen(chunks[i]) && !memcmp(data, chunks[i], len));
        free(data);
    }
    kv->close(store);
    return 0;
}
