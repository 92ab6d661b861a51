/*
 * The edges of the block cache's calls, against the store at URI: what is refused, what is nothing, what is brought near.
 *
 *     blocks URI
 */
#include "consumer.h"

#include <stddef.h>

#include "kv_blocks.h"

/* The layouts of version 1. */
_Static_assert(sizeof(void *) != 8 || sizeof(kv_blocks_spec_t) == 64, "kv_blocks_spec");
_Static_assert(offsetof(kv_blocks_spec_t, block_tokens) == 4 && offsetof(kv_blocks_spec_t, block_bytes) == 8, "kv_blocks_spec");
_Static_assert(sizeof(void *) != 8 || offsetof(kv_blocks_spec_t, first_layer) == 40, "kv_blocks_spec");
_Static_assert(sizeof(void *) != 8 || offsetof(kv_blocks_spec_t, ranks) == 60, "kv_blocks_spec");
_Static_assert(sizeof(void *) != 8 || sizeof(kv_blocks_query_t) == 32, "kv_blocks_query");
_Static_assert(sizeof(kv_blocks_info_t) == 16 && offsetof(kv_blocks_info_t, block_bytes) == 8, "kv_blocks_info");
_Static_assert(sizeof(void *) != 8 || sizeof(kv_blocks_vtable_t) == 8 + 13 * sizeof(void *), "kv_blocks_vtable");
_Static_assert(offsetof(kv_blocks_vtable_t, open) == 8, "kv_blocks_vtable");

enum { BLOCKS = 6, TOKENS = 16, BYTES = 4096, INVALID = -4 };

static const kv_blocks_vtable_t *kv;
static uint8_t pool[BLOCKS][BYTES], room[BLOCKS][BYTES];
static const void *from[BLOCKS];
static void *into[BLOCKS];
static int32_t tokens[BLOCKS * TOKENS];

static void refused(int64_t answer, const char *said)
{
    if (answer != INVALID || !strstr(kv->last_error(), said)) {
        printf("%lld: expected %s: %s\n", (long long)answer, said, kv->last_error());
        exit(1);
    }
}

static void not_opened(const char *config, const kv_blocks_spec_t *spec, const char *said)
{
    CHECK(!kv->open(config, spec));
    refused(INVALID, said);
}

/* Each layout and dtype of the header opens, what is none does not, and blocks of two never meet. */
static void specs(const char *config, kv_blocks_spec_t spec)
{
    static const char *const layouts[] = {NULL, "LCND", "NCLD", "LCNHD", "D"}, *const no_layouts[] = {"", "LLND", "XCND", "lcnd", "LCNHDL"};
    static const char *const dtypes[] = {NULL, "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "i8", "i4"}, *const no_dtypes[] = {"", "F16", "float"};
    const kv_blocks_query_t prompt = {.query = tokens, .n_query = TOKENS};
    const kv_blocks_spec_t plain = spec;
    size_t equal = 0;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        for (size_t j = 0; j < sizeof dtypes / sizeof *dtypes; j++) {
            spec.layout = layouts[i], spec.dtype = dtypes[j];
            kv_blocks_t *cache = kv->open(config, &spec);
            CHECK(cache);
            /* The defaults by their names are the defaults. */
            int64_t there = kv->exists(cache, &prompt);
            CHECK(there == 0 || there == TOKENS);
            equal += there != 0;
            CHECK(kv->put(cache, &prompt, from, 1) == TOKENS && kv->flush(cache) == 0);
            kv->close(cache);
        }
    }
    /* "LCND" of each dtype but f16 after NULL; "f16" after NULL, in each layout; "LCND" after NULL with both f16. */
    CHECK(equal == 8 + 4);
    for (size_t i = 0; i < sizeof no_layouts / sizeof *no_layouts; i++) {
        spec = plain, spec.layout = no_layouts[i];
        not_opened(config, &spec, "layout");
    }
    for (size_t i = 0; i < sizeof no_dtypes / sizeof *no_dtypes; i++) {
        spec = plain, spec.dtype = no_dtypes[i];
        not_opened(config, &spec, "variant");
    }
    not_opened(config, NULL, "spec is NULL");
    spec = plain, spec.size = sizeof spec - 1;
    not_opened(config, &spec, "spec's size is 63");
    spec = plain, spec.size = 0;
    not_opened(config, &spec, "spec's size is 0");
    spec = plain, spec.model = NULL;
    not_opened(config, &spec, "model");
    spec = plain, spec.model = "";
    not_opened(config, &spec, "model");
    spec = plain, spec.block_bytes = 0;
    not_opened(config, &spec, "block");
    spec = plain, spec.block_bytes = UINT64_MAX;
    not_opened(config, &spec, "block");
    spec = plain, spec.block_tokens = 0;
    not_opened(config, &spec, "block has 0 tokens");
    spec = plain, spec.first_layer = 3, spec.end_layer = 2;
    not_opened(config, &spec, "layers");
    spec = plain, spec.rank = 2, spec.ranks = 2;
    not_opened(config, &spec, "rank");
    /* A later version's spec is longer. */
    spec = plain, spec.size = sizeof spec + 64;
    kv_blocks_t *cache = kv->open(config, &spec);
    CHECK(cache);
    kv->close(cache);
}

static void arguments(kv_blocks_t *cache)
{
    const kv_blocks_query_t prompt = {.query = tokens, .n_query = BLOCKS * TOKENS};
    const void *views[BLOCKS];
    kv_blocks_acquired_t *acquired = (kv_blocks_acquired_t *)views;
    /* No handle. */
    refused(kv->put(NULL, &prompt, from, BLOCKS), "handle is NULL");
    refused(kv->get(NULL, &prompt, into, BLOCKS), "handle is NULL");
    refused(kv->acquire(NULL, &prompt, views, BLOCKS, &acquired), "handle is NULL");
    CHECK(!acquired);
    refused(kv->exists(NULL, &prompt), "handle is NULL");
    refused(kv->remove(NULL, &prompt), "handle is NULL");
    refused(kv->prefetch(NULL, &prompt), "handle is NULL");
    refused(kv->flush(NULL), "handle is NULL");
    refused(kv->info(NULL, NULL), "handle is NULL");
    CHECK(kv->metrics(NULL, NULL, 0) == 0);
    kv->close(NULL);
    kv->give_back(NULL);
    /* No query, and none of what one names. */
    refused(kv->put(cache, NULL, from, BLOCKS), "query is NULL");
    refused(kv->get(cache, NULL, into, BLOCKS), "query is NULL");
    refused(kv->acquire(cache, NULL, views, BLOCKS, &acquired), "query is NULL");
    refused(kv->exists(cache, NULL), "query is NULL");
    refused(kv->remove(cache, NULL), "query is NULL");
    refused(kv->prefetch(cache, NULL), "query is NULL");
    const kv_blocks_query_t bad[] = {
        {NULL, 0, NULL, TOKENS},
        {NULL, TOKENS, tokens, TOKENS},
        {tokens, 1, tokens, TOKENS},
        {NULL, 0, tokens, SIZE_MAX},
        {NULL, 0, (const int32_t *)((const char *)tokens + 1), TOKENS},
    };
    const char *const said[] = {"the query is NULL, its length 16", "the prefix is NULL, its length 16", "whole number of blocks",
                                "the query has a length of", "the query is not aligned"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refused(kv->put(cache, &bad[i], from, 1), said[i]);
        refused(kv->get(cache, &bad[i], into, 1), said[i]);
        refused(kv->acquire(cache, &bad[i], views, 1, &acquired), said[i]);
        refused(kv->exists(cache, &bad[i]), said[i]);
        refused(kv->remove(cache, &bad[i]), said[i]);
        refused(kv->prefetch(cache, &bad[i]), said[i]);
    }
    /* No blocks where some are named. */
    const void *hole[2] = {from[0], NULL};
    void *room_with_hole[2] = {into[0], NULL};
    refused(kv->put(cache, &prompt, NULL, 1), "list of blocks is NULL");
    refused(kv->get(cache, &prompt, NULL, 1), "list of blocks is NULL");
    refused(kv->put(cache, &prompt, hole, 2), "a block is NULL");
    refused(kv->get(cache, &prompt, room_with_hole, 2), "a block is NULL");
    refused(kv->acquire(cache, &prompt, NULL, 1, &acquired), "out_blocks is NULL");
    refused(kv->acquire(cache, &prompt, views, 1, NULL), "out_acquired is NULL");
    /* Structs of another size. */
    kv_blocks_info_t info = {.size = sizeof info - 1};
    refused(kv->info(cache, &info), "info's size is 15");
    refused(kv->info(cache, NULL), "info is NULL");
    info.size = sizeof info;
    CHECK(kv->info(cache, &info) == 0 && info.block_tokens == TOKENS && info.block_bytes == BYTES);
    CHECK(kv->exists(cache, &prompt) == 0);
}

/* Of nothing, nothing: no tokens, less than a block, no blocks, no room. */
static void nothing(kv_blocks_t *cache)
{
    const kv_blocks_query_t prompt = {.query = tokens, .n_query = BLOCKS * TOKENS};
    const kv_blocks_query_t empty[] = {{NULL, 0, NULL, 0}, {.query = tokens, .n_query = TOKENS - 1}, {tokens, TOKENS, NULL, 0}};
    const void *views[BLOCKS];
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        kv_blocks_acquired_t *acquired = (kv_blocks_acquired_t *)views;
        CHECK(kv->put(cache, &empty[i], from, BLOCKS) == 0 && kv->get(cache, &empty[i], into, BLOCKS) == 0);
        CHECK(kv->acquire(cache, &empty[i], views, BLOCKS, &acquired) == 0 && !acquired);
        CHECK(kv->exists(cache, &empty[i]) == 0 && kv->remove(cache, &empty[i]) == 0 && kv->prefetch(cache, &empty[i]) == 0);
    }
    CHECK(kv->put(cache, &prompt, from, BLOCKS) == BLOCKS * TOKENS);
    kv_blocks_acquired_t *acquired = (kv_blocks_acquired_t *)views;
    CHECK(kv->put(cache, &prompt, NULL, 0) == 0 && kv->get(cache, &prompt, NULL, 0) == 0);
    CHECK(kv->acquire(cache, &prompt, NULL, 0, &acquired) == 0 && !acquired);
    /* More room than there are blocks, and less. */
    CHECK(kv->acquire(cache, &prompt, views, 2, &acquired) == 2 * TOKENS && acquired);
    CHECK(!memcmp(views[1], pool[1], BYTES));
    kv->give_back(acquired);
    /* What is acquired twice is given back twice, in any order. */
    kv_blocks_acquired_t *again;
    CHECK(kv->acquire(cache, &prompt, views, BLOCKS, &acquired) == BLOCKS * TOKENS);
    CHECK(kv->acquire(cache, &prompt, views, BLOCKS, &again) == BLOCKS * TOKENS && again != acquired);
    kv->give_back(acquired);
    CHECK(!memcmp(views[BLOCKS - 1], pool[BLOCKS - 1], BYTES));
    kv->give_back(again);
    /* A text that is cut ends in a NUL, and its length is that of all of it. */
    char text[8] = "zzzzzzz";
    size_t len = kv->metrics(cache, NULL, 0);
    CHECK(len > sizeof text && kv->metrics(cache, text, sizeof text) > sizeof text && strlen(text) == sizeof text - 1);
    CHECK(kv->metrics(cache, text, 1) > 1 && !text[0]);
}

/* The near level of a cache that is new has nothing: what a prefetch has brought is found there, and the store is not asked again. */
static void prefetched(const char *config, const kv_blocks_spec_t *spec)
{
    const kv_blocks_query_t prompt = {.query = tokens, .n_query = BLOCKS * TOKENS};
    kv_blocks_t *cache = kv->open(config, spec);
    CHECK(cache && kv->put(cache, &prompt, from, BLOCKS) == BLOCKS * TOKENS && kv->flush(cache) == 0);
    kv->close(cache);
    cache = kv->open(config, spec);
    CHECK(cache && kv->prefetch(cache, &prompt) == BLOCKS * TOKENS);
    static char metrics[1 << 16];
    for (int tries = 0;; tries++) {
        CHECK(kv->metrics(cache, metrics, sizeof metrics) < sizeof metrics);
        char near[64];
        snprintf(near, sizeof near, "kv_blocks_near_blocks %d\n", BLOCKS);
        if (strstr(metrics, near))
            break;
        CHECK(tries < 3000);
        usleep(10000);
    }
    memset(room, 0, sizeof room);
    CHECK(kv->get(cache, &prompt, into, BLOCKS) == BLOCKS * TOKENS && !memcmp(room, pool, sizeof room));
    kv->metrics(cache, metrics, sizeof metrics);
    CHECK(!strstr(metrics, "kv_blocks_num_ops_total{level=\"l2\",op=\"get\"} 1\n"));
    /* What is nowhere is not waited for: as many tokens as are on their way. */
    const kv_blocks_query_t other = {.query = tokens + TOKENS, .n_query = TOKENS};
    CHECK(kv->prefetch(cache, &other) >= 0 && kv->get(cache, &other, into, 1) == 0);
    kv->close(cache);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const kv_store_vtable *store;
    void *lib = load_library(&store);
    kv_blocks_get_vtable_fn get;
    *(void **)&get = dlsym(lib, KV_BLOCKS_GET_VTABLE_SYMBOL);
    CHECK(get && (kv = get()) && kv->version == KV_BLOCKS_VTABLE_VERSION && kv->size == sizeof *kv);
    for (int i = 0; i < BLOCKS; i++) {
        memset(pool[i], i + 1, BYTES);
        from[i] = pool[i], into[i] = room[i];
    }
    for (int i = 0; i < BLOCKS * TOKENS; i++)
        tokens[i] = i;
    char config[1024];
    snprintf(config, sizeof config,
             "[l1]\ncapacity_gb = 0.01\n[l2]\nbackend = '%s'\ningestion_type = 'ALL'\nper_token_timeout_ms = 1000", argv[1]);
    kv_blocks_spec_t spec = {.size = sizeof spec, .block_tokens = TOKENS, .block_bytes = BYTES, .model = "edges"};
    kv_blocks_t *cache = kv->open(config, &spec);
    CHECK(cache);
    arguments(cache);
    nothing(cache);
    kv->close(cache);
    spec.model = "prefetched";
    prefetched(config, &spec);
    spec.model = "specs";
    specs(config, spec);
    printf("all held\n");
    return 0;
}
