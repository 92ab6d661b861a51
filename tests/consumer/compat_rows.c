/* The part of compat_data.h that is of kv_cache.h: a directory of rows. */
#include "compat_data.h"

#include "kv_cache.h"

enum { TOKENS = 4096 };

/*
 * Rows of the first tokens of one prompt, by another identity each but for two. The second is found as the longest prefix, too. FAST_UNSAFE
 * is the caller's own fingerprint; the others are those of a file.
 */
static const struct row {
    size_t tokens, payload;
    uint8_t mode, quant, context;
    const char *prompt, *detail;
} rows[] = {
    {1, 1, KV_CACHE_FINGERPRINT_SAFE, 0, 1, NULL, NULL},
    {2048, 30000, KV_CACHE_FINGERPRINT_GGUF_CHUNKED, 7, 2, "Once upon a time", "saved by hand"},
    {3000, 4096, KV_CACHE_FINGERPRINT_GGUF_CHUNKED, 7, 2, "Once upon a time there was", NULL},
    {17, 100, KV_CACHE_FINGERPRINT_FAST_UNSAFE, 29, 3, "Gr\xc3\xbc\xc3\x9f" "e\nand a second line", "\xe2\x82\xac"},
    {16, 70000, KV_CACHE_FINGERPRINT_SAFE, 200, 4, "", ""},
};

#define FUNCTION(name)                \
    __typeof__(&kv_cache_##name) name; \
    *(void **)&name = function_of("KV_CACHE_LIBRARY", "kv_cache_" #name)

int main(int argc, char **argv)
{
    int writing = writes(argc, argv);
    char config[4400];
    uint32_t tokens[TOKENS];
    kv_cache_t *cache;
    FUNCTION(open_toml);
    FUNCTION(close);
    FUNCTION(save);
    FUNCTION(lookup);
    FUNCTION(load);
    FUNCTION(release);
    FUNCTION(stats);
    FUNCTION(fingerprint);
    write_model("compat-model.gguf");
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = i * 2654435761u % 128000;
    snprintf(config, sizeof config, "[disk]\npath = '%s'\nbudget = '16 MiB'\n", argv[3]);
    CHECK(open_toml(config, &cache) == KV_CACHE_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kv_cache_identity_t who;
        memset(&who, 0, sizeof who);
        memset(who.fingerprint, rows[i].context + 16, sizeof who.fingerprint);
        if (rows[i].mode != KV_CACHE_FINGERPRINT_FAST_UNSAFE)
            CHECK(fingerprint("compat-model.gguf", rows[i].mode, who.fingerprint) == KV_CACHE_OK);
        memset(who.context_hash, rows[i].context, sizeof who.context_hash);
        who.fingerprint_mode = rows[i].mode, who.quant = rows[i].quant;
        uint8_t *payload = bytes_of(i + 300, rows[i].payload);
        if (writing) {
            kv_cache_save_t row = {.size = sizeof row, .reason = KV_CACHE_REASON_EVICT, .context_size = 8192, .identity = who, .tokens = tokens,
                                   .n_tokens = rows[i].tokens, .payload = payload, .payload_bytes = rows[i].payload, .prompt = rows[i].prompt,
                                   .detail = rows[i].detail, .quant_bits = 16};
            kv_cache_saved_t saved;
            CHECK(save(cache, &row, &saved) == KV_CACHE_OK && saved == KV_CACHE_STORED);
        } else {
            kv_cache_query_t query = {.size = sizeof query, .identity = who, .tokens = tokens, .n_tokens = rows[i].tokens};
            kv_cache_hit_info_t info = {.size = sizeof info};
            kv_cache_hit_t *hit;
            /* One token more than a boundary has: the row of the boundary. */
            for (size_t more = 0; more < (rows[i].tokens == 2048 ? 2 : 1); more++) {
                query.n_tokens = rows[i].tokens + more;
                CHECK(lookup(cache, &query, &hit, &info) == KV_CACHE_OK);
                CHECK(info.kind == (more ? KV_CACHE_HIT_LONGEST_PREFIX : KV_CACHE_HIT_EXACT) && info.tier == KV_CACHE_TIER_DISK);
                CHECK(info.tokens == rows[i].tokens && info.payload_bytes == rows[i].payload);
                uint8_t *got = malloc(rows[i].payload);
                CHECK(got && load(hit, got, rows[i].payload) == KV_CACHE_OK && !memcmp(got, payload, rows[i].payload));
                free(got);
                release(hit);
            }
        }
        free(payload);
    }
    kv_cache_stats_t found = {.size = sizeof found};
    CHECK(stats(cache, &found) == KV_CACHE_OK && found.tiers[2].rows == sizeof rows / sizeof *rows);
    CHECK(found.corrupt_files + found.foreign_files + found.newer_files + found.misnamed_files + found.truncated_files == 0);
    close(cache);
    return 0;
}
