/* The part of compat_data.h that is of kv_blocks.h: values of the far level, by each way to make a key. */
#include "compat_data.h"

#include "kv_blocks.h"

enum { BLOCKS = 3, TOKENS = 8, BYTES = 300 };

static const char *const builders[] = {"RAW", "SIMPLE_HASH", "ROLLING_HASH"}, *const hashes[] = {"xxh3", "sha256", "farm128"};

/* Two specs: the least that is needed, and all that there is. */
static const kv_blocks_spec specs[] = {
    {.size = sizeof *specs, .block_tokens = TOKENS, .block_bytes = BYTES, .model = "a model"},
    {.size = sizeof *specs, .block_tokens = TOKENS, .block_bytes = BYTES, .model = "a model", .layout = "NCLHD", .dtype = "fp8_e4m3",
     .first_layer = 4, .end_layer = 12, .first_head = 2, .end_head = 6, .rank = 1, .ranks = 4},
};

int main(int argc, char **argv)
{
    int writing = writes(argc, argv);
    kv_blocks_get_vtable_fn get;
    char config[4400];
    int32_t tokens[BLOCKS * TOKENS];
    *(void **)&get = function_of("KV_STORE_LIBRARY", KV_BLOCKS_GET_VTABLE_SYMBOL);
    const kv_blocks_vtable *kv = get();
    for (int32_t i = 0; i < BLOCKS * TOKENS; i++)
        tokens[i] = i * 7919 % 32000;
    for (uint64_t way = 0; way < 3 * 3 * 2 * 2; way++) {
        const char *builder = builders[way % 3], *hash = hashes[way / 3 % 3], *validated = way / 9 % 2 ? "true" : "false";
        snprintf(config, sizeof config,
                 "token_validation = %s\ndouble_get_threshold = [1, 0.0]\n[l1]\nenabled = false\n[l2]\nbackend = '%s'\n"
                 "namespace = '%s/%s/%s'\nkey_builder = '%s'\nkey_hash = '%s'\ningestion_type = 'ALL'\nper_token_timeout_ms = 10000",
                 validated, argv[3], builder, hash, validated, builder, hash);
        kv_blocks *cache = kv->open(config, &specs[way / 18]);
        if (!cache)
            fail(__FILE__, __LINE__, kv->last_error());
        uint8_t *blocks[BLOCKS], room[BLOCKS][BYTES];
        const void *from[BLOCKS];
        void *into[BLOCKS];
        for (uint64_t i = 0; i < BLOCKS; i++)
            from[i] = blocks[i] = bytes_of(way * 10 + i + 400, BYTES), into[i] = room[i];
        /* The last block by its prefix. */
        const kv_blocks_query first = {.query = tokens, .n_query = 2 * TOKENS};
        const kv_blocks_query rest = {.prefix = tokens, .n_prefix = 2 * TOKENS, .query = tokens + 2 * TOKENS, .n_query = TOKENS};
        const kv_blocks_query all = {.query = tokens, .n_query = BLOCKS * TOKENS};
        if (writing) {
            CHECK(kv->put(cache, &first, from, 2) == 2 * TOKENS && kv->put(cache, &rest, from + 2, 1) == TOKENS);
            CHECK(kv->flush(cache) == 0);
        } else {
            CHECK(kv->exists(cache, &all) == BLOCKS * TOKENS);
            CHECK(kv->get(cache, &all, into, BLOCKS) == BLOCKS * TOKENS);
            for (int i = 0; i < BLOCKS; i++)
                CHECK(!memcmp(room[i], blocks[i], BYTES));
            memset(room, 0, sizeof room);
            CHECK(kv->get(cache, &rest, into, 1) == TOKENS && !memcmp(room[0], blocks[2], BYTES));
        }
        for (int i = 0; i < BLOCKS; i++)
            free(blocks[i]);
        kv->close(cache);
    }
    return 0;
}
