/* kv_blocks.h: kv_blocks URI. The library is loaded by dlopen; the second half is configured by variables alone. */
#include "program.h"

#include "kv_blocks.h"
#include "kv_store_batch.h" /* the codes */

enum { BLOCKS = 6, TOKENS = 16, BYTES = 4096 };

static const kv_blocks_vtable *kv;
static uint8_t pool[BLOCKS][BYTES], room[BLOCKS][BYTES];
static const void *from[BLOCKS], *views[BLOCKS];
static void *into[BLOCKS];
static int32_t tokens[BLOCKS * TOKENS];
static kv_blocks *cache;
static const kv_blocks_query all = {.query = tokens, .n_query = BLOCKS * TOKENS};
static const kv_blocks_query rest = {.prefix = tokens, .n_prefix = 2 * TOKENS, .query = tokens + 2 * TOKENS, .n_query = 4 * TOKENS};

static int right(void)
{
    int same = 0;
    for (int i = 0; i < BLOCKS; i++)
        same += !memcmp(room[i], pool[i], BYTES);
    memset(room, 0, sizeof room);
    return same;
}

static void calls(void)
{
    kv_blocks_acquired *acquired;
    kv_blocks_info info = {.size = sizeof info};
    static char text[1 << 17];
    SHOW(kv->info(cache, &info));
    SHOW(info.block_tokens);
    SHOW(info.block_bytes);
    SHOW(kv->exists(cache, &all));
    SHOW(kv->get(cache, &all, into, BLOCKS));
    SHOW(kv->put(cache, &all, from, 3));
    SHOW(kv->put(cache, &rest, from + 2, 4));
    SHOW(kv->flush(cache));
    SHOW(kv->exists(cache, &all));
    SHOW(kv->get(cache, &all, into, BLOCKS));
    SHOW(right());
    SHOW(kv->acquire(cache, &rest, views, 3, &acquired));
    SHOW(acquired && !memcmp(views[0], pool[2], BYTES) && !memcmp(views[2], pool[4], BYTES) && (uintptr_t)views[1] % 64 == 0);
    kv->give_back(acquired);
    kv->give_back(NULL);
    SHOW(kv->prefetch(cache, &all));
    SHOW(kv->metrics(cache, NULL, 0) > 0);
    SHOW(kv->metrics(cache, text, sizeof text) < sizeof text);
    SHOW(strstr(text, "kv_blocks_") != NULL);
}

static void refused(kv_blocks_spec spec)
{
    kv_blocks_acquired *acquired;
    kv_blocks_info info = {.size = 4};
    SHOW(kv->exists(NULL, &all));
    SHOW(*kv->last_error() != 0);
    SHOW(kv->get(cache, NULL, into, 1));
    SHOW(kv->put(cache, &all, NULL, 1));
    SHOW(kv->acquire(cache, &all, views, 1, NULL));
    SHOW(kv->acquire(cache, NULL, views, 1, &acquired));
    SHOW(acquired == NULL);
    SHOW(kv->info(cache, &info));
    SHOW(kv->flush(NULL) == KV_STORE_INVALID);
    SHOW(kv->open("no = 'such key'", &spec) == NULL);
    SHOW(kv->open(NULL, NULL) == NULL);
    spec.dtype = "float";
    SHOW(kv->open(NULL, &spec) == NULL);
    spec.dtype = NULL, spec.size = 8;
    SHOW(kv->open(NULL, &spec) == NULL);
    SHOW(kv->metrics(NULL, NULL, 0));
    kv->close(NULL);
}

int main(int argc, char **argv)
{
    kv_blocks_get_vtable_fn get;
    char config[4400];
    MUST(argc == 2);
    *(void **)&get = function(KV_BLOCKS_GET_VTABLE_SYMBOL);
    SHOW((kv = get()) != NULL);
    SHOW(kv->size >= sizeof *kv && kv->version >= KV_BLOCKS_VTABLE_VERSION);
    fill(pool, sizeof pool, 8);
    for (int i = 0; i < BLOCKS; i++)
        from[i] = pool[i], into[i] = room[i];
    for (int i = 0; i < BLOCKS * TOKENS; i++)
        tokens[i] = i * 7919 % 32000;
    kv_blocks_spec spec = {.size = sizeof spec, .block_tokens = TOKENS, .block_bytes = BYTES, .model = "model bf16", .layout = "NCLD", .dtype = "bf16",
                           .first_layer = 4, .end_layer = 8, .first_head = 2, .end_head = 4, .rank = 1, .ranks = 4};
    snprintf(config, sizeof config,
             "[l1]\ncapacity_gb = 0.01\n[l2]\nbackend = '%s'\nnamespace = 'toml'\ningestion_type = 'ALL'\nper_token_timeout_ms = 1000", argv[1]);
    SHOW((cache = kv->open(config, &spec)) != NULL);
    calls();
    refused(spec);
    kv->close(cache);
    SHOW((cache = kv->open(config, &spec)) != NULL);
    SHOW(kv->get(cache, &all, into, BLOCKS));
    SHOW(right());
    SHOW(kv->remove(cache, &rest));
    SHOW(kv->exists(cache, &all));
    kv->close(cache);
    spec.rank = 2;
    SHOW((cache = kv->open(config, &spec)) != NULL);
    SHOW(kv->exists(cache, &all));
    kv->close(cache);

    /* The same by variables; the former name of each stands behind the latter. */
    setenv("AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB", "0.01", 1);
    setenv("AIBRIX_KV_CACHE_OL_L2_CACHE_NAMESPACE", "another", 1);
    setenv("AIBRIX_KV_CACHE_OL_L2_CACHE_INGESTION_TYPE", "ALL", 1);
    setenv("KV_CACHE_L2_CACHE_BACKEND", argv[1], 1);
    setenv("KV_CACHE_L2_CACHE_NAMESPACE", "toml", 1);
    setenv("KV_CACHE_L2_CACHE_PER_TOKEN_TIMEOUT_MS", "1000", 1);
    spec.rank = 1;
    SHOW((cache = kv->open(NULL, &spec)) != NULL);
    SHOW(kv->get(cache, &all, into, BLOCKS));
    SHOW(right());
    SHOW(kv->remove(cache, &all));
    kv->close(cache);
    SHOW((cache = kv->open(NULL, &spec)) != NULL);
    calls();
    kv->close(cache);
    setenv("KV_CACHE_BLOCK_SIZE", "32", 1);
    spec.block_bytes = 2 * BYTES;
    SHOW((cache = kv->open(NULL, &spec)) != NULL);
    kv_blocks_info info = {.size = sizeof info};
    SHOW(kv->info(cache, &info));
    SHOW(info.block_tokens);
    kv->close(cache);
    setenv("KV_CACHE_L1_CACHE_EVICTION_POLICY", "none such", 1);
    SHOW(kv->open(NULL, &spec) == NULL);
    return 0;
}
