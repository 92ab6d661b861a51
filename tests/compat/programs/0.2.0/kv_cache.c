/* kv_cache.h: kv_cache DIRECTORY. Linked with -lkv_cache. */
#include "program.h"

#include "kv_cache.h"

enum { TOKENS = 3000, PAYLOAD = 20000 };

static uint32_t tokens[TOKENS];
static uint8_t payload[PAYLOAD], buffer[PAYLOAD];
static kv_cache_t *cache;
static kv_cache_hit_t *hit;
static kv_cache_query_t query = {.size = sizeof query};
static kv_cache_save_t save = {.size = sizeof save};
static kv_cache_hit_info_t info = {.size = sizeof info};
static int lines;

static void take(void *user, const char *line)
{
    lines += user == &lines && *line && !strchr(line, '\n');
}

static void hexadecimal(const char *name, const uint8_t bytes[32])
{
    printf("%s ", name);
    for (int i = 0; i < 32; i++)
        printf("%02x", bytes[i]);
    printf("\n");
}

static void keys_and_gates(void)
{
    uint8_t key[32];
    uint64_t keep;
    SHOW(kv_cache_key(&query.identity, tokens, TOKENS, key));
    hexadecimal("key of all tokens", key);
    SHOW(kv_cache_key(&query.identity, tokens, 2048, key));
    hexadecimal("key of 2048 tokens", key);
    SHOW(kv_cache_key(NULL, tokens, 1, key));
    SHOW(kv_cache_plan(cache, KV_CACHE_REASON_COLD, 2080, 0, &keep));
    SHOW(keep);
    SHOW(kv_cache_plan(cache, KV_CACHE_REASON_COLD, 2079, 0, &keep));
    SHOW(keep);
    SHOW(kv_cache_plan(cache, KV_CACHE_REASON_CONTINUED, 4000, 1952, &keep));
    SHOW(keep);
    SHOW(kv_cache_plan(cache, KV_CACHE_REASON_EVICT, 1, 0, &keep));
    SHOW(keep);
    SHOW(kv_cache_plan(cache, 0, 1, 0, &keep));
}

static void saves(void)
{
    kv_cache_saved_t saved;
    uint64_t dropped;
    save.identity = query.identity;
    save.tokens = tokens, save.n_tokens = 2048, save.payload = payload, save.payload_bytes = PAYLOAD;
    save.reason = KV_CACHE_REASON_COLD, save.prompt_tokens = 2080, save.prompt = "once upon a time", save.context_size = 4096;
    SHOW(kv_cache_save(cache, &save, &saved));
    SHOW(saved);
    SHOW(kv_cache_flush(cache, 60000));
    SHOW(kv_cache_save(cache, &save, &saved));
    SHOW(saved);
    save.reason = KV_CACHE_REASON_FINISH, save.n_tokens = 100;
    SHOW(kv_cache_save(cache, &save, &saved));
    SHOW(saved);
    save.reason = KV_CACHE_REASON_CONTINUED, save.n_tokens = 2500, save.last_saved = 2048;
    SHOW(kv_cache_save(cache, &save, &saved));
    SHOW(saved);
    save.reason = KV_CACHE_REASON_EVICT, save.n_tokens = TOKENS, save.payload_bytes = 9000, save.quant_bits = 16, save.detail = "by hand";
    SHOW(kv_cache_save(cache, &save, &saved));
    SHOW(saved);
    save.tier = KV_CACHE_TIER_RAM, save.n_tokens = 5;
    SHOW(kv_cache_save(cache, &save, &saved));
    SHOW(saved);
    save.tier = KV_CACHE_TIER_RAM_FILE;
    SHOW(kv_cache_save(cache, &save, &saved));
    SHOW(saved);
    save.tier = KV_CACHE_TIER_DEFAULT, save.size = sizeof save - 1;
    SHOW(kv_cache_save(cache, &save, &saved));
    save.size = sizeof save + 16;
    SHOW(kv_cache_save(cache, &save, &saved));
    save.size = sizeof save;
    SHOW(kv_cache_relieve(cache, 1, 100, &dropped));
    SHOW(dropped);
}

static void look(size_t n)
{
    const uint8_t *data;
    size_t size;
    query.n_tokens = n;
    SHOW(kv_cache_lookup(cache, &query, &hit, &info));
    SHOW(hit != NULL);
    SHOW(info.kind);
    SHOW(info.tier);
    SHOW(info.tokens);
    SHOW(info.payload_bytes);
    if (!hit)
        return;
    hexadecimal("key", info.key);
    SHOW(kv_cache_load(hit, buffer, info.payload_bytes));
    SHOW(memcmp(buffer, payload, info.payload_bytes));
    SHOW(kv_cache_load(hit, buffer, 1));
    SHOW(kv_cache_view(hit, &data, &size));
    SHOW(size == info.payload_bytes && !memcmp(data, payload, size));
    kv_cache_release(hit);
}

int main(int argc, char **argv)
{
    char config[4400], model[4200];
    uint8_t fingerprint[32];
    uint32_t tiers;
    uint64_t number;
    kv_cache_stats_t stats = {.size = sizeof stats};
    kv_cache_gc_t gc = {.size = sizeof gc};
    MUST(argc == 2);
    SHOW(*kv_cache_version() >= '0' && *kv_cache_version() <= '9');
    SHOW(*kv_cache_last_error());
    kv_cache_set_log(take, &lines);
    SHOW(kv_cache_open_toml("nonsense", &cache));
    SHOW(cache == NULL && *kv_cache_last_error() != 0);
    SHOW(kv_cache_open("/no/such/file", &cache));
    SHOW(kv_cache_open_toml("[ram]\nbudget = 1\n[disk]\npath = '/dev/null/rows'\nbudget = 1\n", &cache));
    SHOW(lines > 0);
    kv_cache_close(cache);

    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = i * 2654435761u % 32000;
    fill(payload, sizeof payload, 3);
    fill(query.identity.fingerprint, 32, 1);
    fill(query.identity.context_hash, 32, 2);
    query.identity.fingerprint_mode = KV_CACHE_FINGERPRINT_GGUF_CHUNKED;
    query.identity.quant = 1;
    query.tokens = tokens;
    snprintf(config, sizeof config, "save_to = 'disk'\n[ram]\nbudget = '1 MiB'\n[disk]\npath = '%s/rows'\nbudget = '1 MiB'\n", argv[1]);
    SHOW(kv_cache_open_toml(config, &cache));
    keys_and_gates();
    look(TOKENS);
    saves();
    look(TOKENS);
    look(2048);
    look(2049);
    look(5);
    look(4);
    query.size--;
    SHOW(kv_cache_lookup(cache, &query, &hit, NULL));
    query.size++;
    info.size = 8;
    SHOW(kv_cache_lookup(cache, &query, &hit, &info));
    info.size = sizeof info;
    SHOW(kv_cache_gc(cache, &gc));
    SHOW(gc.rows_lost + gc.adopted + gc.evicted + gc.later_left + gc.misnamed_left);
    gc.size = offsetof(kv_cache_gc_t, later_left);
    SHOW(kv_cache_gc(cache, &gc));
    SHOW(kv_cache_stats(cache, &stats));
    SHOW(stats.hits_exact);
    SHOW(stats.hits_longest_prefix);
    SHOW(stats.misses);
    SHOW(stats.loads);
    SHOW(stats.loaded_bytes);
    SHOW(stats.saves[KV_CACHE_REASON_COLD] + 10 * stats.saves[KV_CACHE_REASON_EVICT]);
    SHOW(stats.saves_gated);
    SHOW(stats.saves_known);
    SHOW(stats.tiers[2].rows + 10 * stats.tiers[0].rows);
    SHOW(stats.tiers[2].budget);
    SHOW(stats.tiers_failed);
    stats.size = offsetof(kv_cache_stats_t, misnamed_files);
    SHOW(kv_cache_stats(cache, &stats));
    stats.size -= 1;
    SHOW(kv_cache_stats(cache, &stats));
    SHOW(kv_cache_key(&query.identity, tokens, TOKENS, fingerprint));
    SHOW(kv_cache_evict(cache, fingerprint, &tiers));
    SHOW(tiers);
    SHOW(kv_cache_evict_bytes(cache, KV_CACHE_TIER_RAM, 1, &number));
    SHOW(number > 0);
    SHOW(kv_cache_shutdown(cache, 60000, &number));
    SHOW(number);
    SHOW(kv_cache_lookup(cache, &query, &hit, NULL));
    kv_cache_close(cache);
    kv_cache_close(NULL);
    kv_cache_release(NULL);

    /* What was saved is there for the next one; by a config in a file. */
    snprintf(model, sizeof model, "%s/config.toml", argv[1]);
    FILE *file = fopen(model, "wb");
    MUST(file && fputs(config, file) >= 0 && fclose(file) == 0);
    SHOW(kv_cache_open(model, &cache));
    look(2048);
    look(TOKENS);
    kv_cache_close(cache);

    snprintf(model, sizeof model, "%s/model", argv[1]);
    file = fopen(model, "wb");
    MUST(file && fwrite(payload, 1, sizeof payload, file) == sizeof payload && fclose(file) == 0);
    SHOW(kv_cache_fingerprint(model, KV_CACHE_FINGERPRINT_SAFE, fingerprint));
    hexadecimal("fingerprint", fingerprint);
    SHOW(kv_cache_fingerprint(model, KV_CACHE_FINGERPRINT_GGUF_CHUNKED, fingerprint) != KV_CACHE_OK);
    SHOW(kv_cache_fingerprint(model, 3, fingerprint));
    kv_cache_set_log(NULL, NULL);
    return 0;
}
