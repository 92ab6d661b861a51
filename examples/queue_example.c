/*
 * An engine's loop: saves blocks while it computes, and restores the leading blocks of a prompt, with a queue of
 * kv_store_batch.h whose eventfd the engine's own poll() waits for.
 *
 *     cc -std=c11 -Iinclude examples/queue_example.c -o queue_example -ldl && ./queue_example local-fs:///tmp/kv
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_store_batch.h"

#define CHECK(ok) ((ok) ? (void)0 : (fprintf(stderr, "failed: %s\n", #ok), exit(1)))

/* 32 blocks of 16 tokens. A request carries 8 of them, so 4 requests are under way at once. */
enum { BLOCKS = 32, BLOCK_BYTES = 65536, IN_REQUEST = 8, REQUESTS = BLOCKS / IN_REQUEST };

/* What an engine has anyway: its pool, and for each block a hash over all tokens up to the block's end. */
static uint8_t pool[BLOCKS][BLOCK_BYTES];
static char hashes[BLOCKS][40];

static kv_store_piece_t pieces[BLOCKS];
static kv_store_item_t items[BLOCKS];

static const kv_store_batch_vtable_t *batch;

static void fill_items(void)
{
    memset(items, 0, sizeof items);
    for (int i = 0; i < BLOCKS; i++) {
        /* The name of model, dtype and rank belongs into the key: other engines may share the store. */
        snprintf(hashes[i], sizeof hashes[i], "model-7b/bf16/rank0/prompt-1/%d", i);
        pieces[i] = (kv_store_piece_t){pool[i], BLOCK_BYTES};
        items[i].hash = (const uint8_t *)hashes[i];
        items[i].hash_len = strlen(hashes[i]);
        items[i].pieces = &pieces[i];
        items[i].n_pieces = 1;
    }
}

/* Submits all requests, goes on with its own work, and drains completions as they come. */
static void carry_out(kv_store_queue_t *queue, uint32_t operation, const kv_store_call_t *call)
{
    for (uint64_t n = 0; n < REQUESTS; n++)
        CHECK(batch->queue_submit(queue, n, operation, &items[n * IN_REQUEST], IN_REQUEST, call) == 0);
    for (int done = 0; done < REQUESTS;) {
        struct pollfd ready = {.fd = batch->queue_fd(queue), .events = POLLIN};
        CHECK(poll(&ready, 1, 30000) == 1); /* the engine's own descriptors stand beside it */
        kv_store_completion_t completions[REQUESTS];
        int64_t drained = batch->queue_drain(queue, completions, REQUESTS);
        CHECK(drained >= 0);
        for (int64_t i = 0; i < drained; i++)
            if (completions[i].status < 0)
                fprintf(stderr, "request %d: status %d\n", (int)completions[i].cookie, (int)completions[i].status);
        done += (int)drained;
    }
}

static int save(kv_store_v1 *store, kv_store_queue_t *queue)
{
    kv_store_save_t *save = batch->save_begin(store);
    if (!save)
        return -1;
    kv_store_call_t call = {.size = sizeof call, .flags = KV_STORE_SEALED, .save = save};
    int status = KV_STORE_LOST;
    /* LOST: the storage system evicted chunks before the commit. Put them again, once. */
    for (int attempt = 0; attempt < 2 && status == KV_STORE_LOST; attempt++) {
        fill_items();
        carry_out(queue, KV_STORE_PUT, &call);
        status = batch->save_commit(save, "prompt-1", NULL, 0, NULL, NULL);
    }
    batch->save_end(save);
    return status; /* below 0: nothing was published, and the engine goes on without it */
}

/* How many leading blocks came. The rest is prefilled: a miss is normal. */
static int restore(kv_store_queue_t *queue)
{
    fill_items();
    kv_store_call_t call = {.size = sizeof call, .flags = KV_STORE_SEALED, .timeout_ms = 10000};
    carry_out(queue, KV_STORE_GET, &call);
    int leading = 0;
    while (leading < BLOCKS && items[leading].status == KV_STORE_OK && items[leading].len == BLOCK_BYTES)
        leading++;
    return leading;
}

int main(int argc, char **argv)
{
    void *lib = dlopen("libkv_store_wasm.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(argc == 2 && lib);
    kv_store_get_vtable_fn get_vtable;
    kv_store_batch_get_vtable_fn get_batch;
    CHECK((*(void **)&get_vtable = dlsym(lib, KV_STORE_GET_VTABLE_SYMBOL)));
    CHECK((*(void **)&get_batch = dlsym(lib, KV_STORE_BATCH_GET_VTABLE_SYMBOL)));
    const kv_store_vtable *kv = get_vtable();
    batch = get_batch();
    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);
    kv_store_queue_t *queue = batch->queue_open(store, 64);
    CHECK(queue);

    printf("restored %d of %d blocks\n", restore(queue), BLOCKS);
    for (int i = 0; i < BLOCKS; i++)
        memset(pool[i], i + 1, BLOCK_BYTES); /* prefill */
    CHECK(save(store, queue) == 0);
    memset(pool, 0, sizeof pool);
    printf("restored %d of %d blocks\n", restore(queue), BLOCKS);
    for (int i = 0; i < BLOCKS; i++)
        CHECK(pool[i][0] == i + 1 && pool[i][BLOCK_BYTES - 1] == i + 1);

    batch->queue_close(queue);
    kv->close(store);
    return 0;
}
