/*
 * Saves the blocks of a paged KV cache in one batch and restores them into other memory, with kv_store_batch.h.
 *
 *     cc -std=c11 -Iinclude examples/batch_example.c -o batch_example -ldl && ./batch_example local-fs:///tmp/kv
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_store_batch.h"

#define CHECK(ok) ((ok) ? (void)0 : (fprintf(stderr, "failed: %s\n", #ok), exit(1)))

enum { BLOCKS = 64, BLOCK_BYTES = 65536 };

int main(int argc, char **argv)
{
    void *lib = dlopen("libkv_store_wasm.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(argc == 2 && lib);
    kv_store_get_vtable_fn get_vtable;
    kv_store_batch_get_vtable_fn get_batch;
    CHECK((*(void **)&get_vtable = dlsym(lib, KV_STORE_GET_VTABLE_SYMBOL)));
    CHECK((*(void **)&get_batch = dlsym(lib, KV_STORE_BATCH_GET_VTABLE_SYMBOL)));
    const kv_store_vtable *kv = get_vtable();
    const kv_store_batch_vtable_t *batch = get_batch();
    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);

    static uint8_t pool[BLOCKS][BLOCK_BYTES], restored[BLOCKS][BLOCK_BYTES];
    char keys[BLOCKS][32];
    kv_store_piece_t from[BLOCKS], into[BLOCKS];
    kv_store_item_t items[BLOCKS] = {0};
    for (int i = 0; i < BLOCKS; i++) {
        memset(pool[i], i + 1, BLOCK_BYTES);
        snprintf(keys[i], sizeof keys[i], "model/rank0/prompt-1/%d", i);
        from[i] = (kv_store_piece_t){pool[i], BLOCK_BYTES};
        into[i] = (kv_store_piece_t){restored[i], BLOCK_BYTES};
        items[i] = (kv_store_item_t){.hash = (uint8_t *)keys[i], .hash_len = strlen(keys[i]), .pieces = &from[i], .n_pieces = 1};
    }
    /* The keys are names and no content hashes: SEALED has the library check what it answers. */
    kv_store_save_t *save = batch->save_begin(store);
    kv_store_call_t call = {.size = sizeof call, .flags = KV_STORE_SEALED, .save = save};
    CHECK(save && batch->put_many(store, items, BLOCKS, &call) == 0);
    for (int i = 0; i < BLOCKS; i++)
        CHECK(items[i].status == KV_STORE_OK || items[i].status == KV_STORE_EXISTED);
    CHECK(batch->save_commit(save, "prompt-1", NULL, 0, NULL, NULL) == 0); /* now all of them are durable */
    batch->save_end(save);

    for (int i = 0; i < BLOCKS; i++)
        items[i].pieces = &into[i];
    call.save = NULL;
    CHECK(batch->get_many(store, items, BLOCKS, &call) == 0);
    for (int i = 0; i < BLOCKS; i++)
        CHECK(items[i].status == KV_STORE_OK && items[i].len == BLOCK_BYTES);
    CHECK(!memcmp(pool, restored, sizeof pool));
    kv->close(store);
    return 0;
}
