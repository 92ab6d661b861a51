/*
 * Puts the blocks of a prompt into a block cache, and finds them again: copied, as pointers, and from another cache over the same
 * store.
 *
 *     cc -std=c11 -Iinclude examples/blocks_example.c -o blocks_example -ldl && ./blocks_example local-fs:///tmp/kv
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_blocks.h"

#define CHECK(ok) ((ok) ? (void)0 : (fprintf(stderr, "failed: %s\n", #ok), exit(1)))

enum { BLOCKS = 24, BLOCK_TOKENS = 16, BLOCK_BYTES = 65536 };

static uint8_t pool[BLOCKS][BLOCK_BYTES], restored[BLOCKS][BLOCK_BYTES];

int main(int argc, char **argv)
{
    void *lib = dlopen("libkv_store_wasm.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(argc == 2 && lib);
    kv_blocks_get_vtable_fn get_vtable;
    CHECK((*(void **)&get_vtable = dlsym(lib, KV_BLOCKS_GET_VTABLE_SYMBOL)));
    const kv_blocks_vtable_t *kv = get_vtable();
    CHECK(kv->version == KV_BLOCKS_VTABLE_VERSION && kv->size >= sizeof *kv);

    char config[1024];
    snprintf(config, sizeof config,
             "[l1]\ncapacity_gb = 0.01\n[l2]\nbackend = '%s'\ningestion_type = 'ALL'\nper_token_timeout_ms = 1000", argv[1]);
    kv_blocks_spec_t spec = {.size = sizeof spec, .block_tokens = BLOCK_TOKENS, .block_bytes = BLOCK_BYTES, .model = "example"};
    kv_blocks_t *cache = kv->open(config, &spec);
    CHECK(cache);

    int32_t tokens[BLOCKS * BLOCK_TOKENS + 5];
    for (int i = 0; i < BLOCKS * BLOCK_TOKENS + 5; i++)
        tokens[i] = i * 7;
    const void *from[BLOCKS];
    void *into[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        memset(pool[i], i + 1, BLOCK_BYTES);
        from[i] = pool[i];
        into[i] = restored[i];
    }
    /* The 5 tokens at the end are no whole block. */
    kv_blocks_query_t prompt = {.query = tokens, .n_query = sizeof tokens / sizeof *tokens};
    CHECK(kv->put(cache, &prompt, from, BLOCKS) == BLOCKS * BLOCK_TOKENS);
    CHECK(kv->get(cache, &prompt, into, BLOCKS) == BLOCKS * BLOCK_TOKENS);
    CHECK(!memcmp(pool, restored, sizeof pool));

    /* What follows the first block: pointers, and no copy. */
    kv_blocks_query_t rest = {tokens, BLOCK_TOKENS, tokens + BLOCK_TOKENS, (BLOCKS - 1) * BLOCK_TOKENS};
    const void *view[BLOCKS];
    kv_blocks_acquired_t *acquired;
    CHECK(kv->acquire(cache, &rest, view, BLOCKS, &acquired) == (BLOCKS - 1) * BLOCK_TOKENS && acquired);
    for (int i = 0; i < BLOCKS - 1; i++)
        CHECK(!memcmp(view[i], pool[i + 1], BLOCK_BYTES));
    kv->close(cache);
    CHECK(!memcmp(view[0], pool[1], BLOCK_BYTES)); /* still there */
    kv->give_back(acquired);

    /* Another cache over the same store has them; one of another model has not. */
    cache = kv->open(config, &spec);
    CHECK(cache && kv->exists(cache, &prompt) == BLOCKS * BLOCK_TOKENS);
    memset(restored, 0, sizeof restored);
    CHECK(kv->get(cache, &prompt, into, BLOCKS) == BLOCKS * BLOCK_TOKENS);
    CHECK(!memcmp(pool, restored, sizeof pool));
    char metrics[16384];
    CHECK(kv->metrics(cache, metrics, sizeof metrics) > 0);
    CHECK(strstr(metrics, "kv_blocks_fetched_tokens_total{level=\"l2\",op=\"get\"} 384\n"));
    CHECK(kv->remove(cache, &rest) == (BLOCKS - 1) * BLOCK_TOKENS);
    CHECK(kv->exists(cache, &prompt) == BLOCK_TOKENS && kv->flush(cache) == 0);
    kv->close(cache);
    spec.model = "another";
    cache = kv->open(config, &spec);
    CHECK(cache && kv->exists(cache, &prompt) == 0);

    /* Mistakes are told. */
    rest.n_prefix = 3;
    CHECK(kv->exists(cache, &rest) == -4 && strstr(kv->last_error(), "whole number of blocks"));
    CHECK(!kv->open("[l2]\nop_bach = 3", &spec) && strstr(kv->last_error(), "op_bach"));
    CHECK(kv->get(NULL, &prompt, into, BLOCKS) < 0);
    kv->close(cache);
    return 0;
}
