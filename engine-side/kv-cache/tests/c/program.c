/* What only C can get wrong: null, sizes, numbers, the order of ends. C11 and C++17. Exits with the line that failed. */
#include "kv_cache.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)             \
    do {                             \
        if (!(condition)) {          \
            fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #condition, kv->last_error()); \
            return 1;                \
        }                            \
    } while (0)

static const kv_cache_vtable_t *kv;

static int in_child(kv_cache_t *cache, kv_cache_hit_t *hit, const kv_cache_query_t *query)
{
    kv_cache_hit_t *other;
    uint8_t byte;
    CHECK(kv->lookup(cache, query, &other, NULL) == KV_STORE_CANCELLED && other == NULL);
    CHECK(strstr(kv->last_error(), "fork"));
    CHECK(kv->load(hit, &byte, 1) != KV_STORE_OK);
    CHECK(kv->gc(cache, NULL) == KV_STORE_CANCELLED);
    kv->release(hit);
    kv->close(cache);
    return 0;
}

/* Counts the lines that have the text that is looked for. */
struct lines {
    const char *wanted;
    int found;
};

static void count(void *user, const char *line)
{
    struct lines *lines = (struct lines *)user;
    lines->found += strstr(line, lines->wanted) != NULL && strchr(line, '\n') == NULL;
}

/* A cache whose disk cannot be used says so, to whom it was told to. */
static int of_the_log(void)
{
    static const char config[] = "[ram]\nbudget = 1\n[disk]\npath = '/dev/null/rows'\nbudget = 1\n";
    struct lines lines = {"runs without the tier", 0};
    kv_cache_t *cache;
    kv_cache_stats_t stats;
    kv->set_log(count, &lines);
    CHECK(kv->open_toml(config, &cache) == KV_STORE_OK && lines.found == 1);
    stats.size = sizeof stats;
    CHECK(kv->stats(cache, &stats) == KV_STORE_OK && stats.tiers_failed == 1);
    kv->close(cache);
    kv->set_log(NULL, NULL);
    CHECK(kv->open_toml(config, &cache) == KV_STORE_OK && lines.found == 1);
    kv->close(cache);
    return 0;
}

/* The places of answers after calls that fail. */
static int after_failures(kv_cache_t *cache, const kv_cache_query_t *query)
{
    kv_cache_saved_t saved = KV_CACHE_STORED;
    kv_cache_save_t save;
    kv_cache_hit_t *hit = (kv_cache_hit_t *)&save;
    kv_cache_hit_info_t info;
    kv_cache_gc_t gc;
    kv_cache_stats_t stats;
    uint8_t key[32];
    uint32_t tiers = 9;
    uint64_t number = 9;
    const uint8_t zeros[sizeof stats] = {0};
    memset(&save, 0, sizeof save);
    memset(&info, 9, sizeof info);
    memset(&gc, 9, sizeof gc);
    memset(&stats, 9, sizeof stats);
    memset(key, 9, sizeof key);
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_INVALID && saved == KV_CACHE_FAILED);
    saved = KV_CACHE_QUEUED;
    CHECK(kv->save(NULL, &save, &saved) == KV_STORE_INVALID && saved == KV_CACHE_FAILED);
    CHECK(kv->evict(cache, NULL, &tiers) == KV_STORE_INVALID && tiers == 0);
    tiers = 9;
    CHECK(kv->evict(NULL, key, &tiers) == KV_STORE_INVALID && tiers == 0);
    CHECK(kv->evict_bytes(cache, KV_CACHE_TIER_DEFAULT, 1, &number) == KV_STORE_INVALID && number == 0);
    number = 9;
    CHECK(kv->relieve(NULL, 1, 1, &number) == KV_STORE_INVALID && number == 0);
    number = 9;
    CHECK(kv->shutdown(NULL, 1, &number) == KV_STORE_INVALID && number == 0);
    number = 9;
    CHECK(kv->plan(NULL, KV_CACHE_REASON_COLD, 1, 0, &number) == KV_STORE_INVALID && number == 0);
    CHECK(kv->fingerprint(NULL, 0, key) == KV_STORE_INVALID && memcmp(key, zeros, 32) == 0);
    info.size = sizeof info;
    CHECK(kv->lookup(cache, query, &hit, &info) == KV_STORE_MISSING && hit == NULL);
    CHECK(info.size == sizeof info && memcmp((char *)&info + 4, zeros, sizeof info - 4) == 0);
    gc.size = sizeof gc;
    CHECK(kv->gc(NULL, &gc) == KV_STORE_INVALID);
    CHECK(gc.size == sizeof gc && memcmp((char *)&gc + 4, zeros, sizeof gc - 4) == 0);
    stats.size = sizeof stats;
    CHECK(kv->stats(NULL, &stats) == KV_STORE_INVALID);
    CHECK(stats.size == sizeof stats && memcmp((char *)&stats + 4, zeros, sizeof stats - 4) == 0);
    return 0;
}

int main(int argc, char **argv)
{
    static const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const uint8_t payload[5] = {'s', 't', 'a', 't', 'e'};
    char config[4400];
    uint8_t key[32], other_key[32], buffer[8];
    const uint8_t *data;
    size_t size;
    uint64_t number;
    uint32_t tiers;
    int status;
    pid_t child;
    kv_cache_t *cache, *second;
    kv_cache_hit_t *hit;
    kv_cache_identity_t who;
    kv_cache_query_t query;
    kv_cache_save_t save;
    kv_cache_saved_t saved;
    kv_cache_hit_info_t info;
    kv_cache_gc_t gc;
    kv_cache_stats_t stats;

    kv = kv_cache_get_vtable();
    CHECK(argc == 2 && kv->size == sizeof *kv && kv->version == KV_CACHE_VTABLE_VERSION);
    CHECK(of_the_log() == 0);
    CHECK(strcmp(kv->library_version(), KV_CACHE_EXPECTED_VERSION) == 0 && kv->last_error()[0] == 0); /* none has failed yet */
    CHECK(kv->open_toml(NULL, &cache) == KV_STORE_INVALID && cache == NULL);
    CHECK(kv->open_toml("[ram]\nbudget = 1\n", NULL) == KV_STORE_INVALID);
    CHECK(kv->open_toml("nonsense", &cache) == KV_STORE_INVALID);
    CHECK(kv->open_toml("\xff", &cache) == KV_STORE_INVALID);
    CHECK(kv->open("/does/not/exist", &cache) == KV_STORE_OTHER);
    snprintf(config, sizeof config, "[disk]\npath = '%s'\nbudget = 100000\n[ram]\nbudget = 100000\n", argv[1]);
    CHECK(kv->open_toml(config, &cache) == KV_STORE_OK);
    CHECK(kv->open_toml(config, &second) == KV_STORE_UNAVAILABLE && second == NULL);
    CHECK(strstr(kv->last_error(), "belongs to another cache"));

    memset(&who, 0, sizeof who);
    CHECK(kv->fingerprint("/proc/self/exe", KV_CACHE_FINGERPRINT_SAFE, who.fingerprint) == KV_STORE_OK);
    CHECK(kv->fingerprint("/proc/self/exe", 3, key) == KV_STORE_INVALID);
    CHECK(kv->fingerprint(NULL, 0, key) == KV_STORE_INVALID);
    CHECK(kv->key(&who, tokens, 8, key) == KV_STORE_OK);
    CHECK(kv->key(NULL, tokens, 8, other_key) == KV_STORE_INVALID);
    CHECK(kv->key(&who, NULL, 8, other_key) == KV_STORE_INVALID);
    CHECK(kv->key(&who, tokens, (size_t)-1, other_key) == KV_STORE_INVALID);
    CHECK(kv->key(&who, (const uint32_t *)(const void *)((const char *)tokens + 1), 4, other_key) ==
          KV_STORE_INVALID);

    CHECK(kv->plan(cache, KV_CACHE_REASON_COLD, 2080, 0, &number) == KV_STORE_OK && number == 2048);
    CHECK(kv->plan(cache, KV_CACHE_REASON_COLD, 2079, 0, &number) == KV_STORE_OK && number == 0);
    CHECK(kv->plan(cache, KV_CACHE_REASON_FINISH, 512, 0, &number) == KV_STORE_OK && number == 512);
    CHECK(kv->plan(cache, KV_CACHE_REASON_CONTINUED, 4000, 1953, &number) == KV_STORE_OK && number == 0);
    CHECK(kv->plan(cache, KV_CACHE_REASON_EVICT, 1, 0, &number) == KV_STORE_OK && number == 1);
    CHECK(kv->plan(cache, 0, 1, 0, &number) == KV_STORE_INVALID);
    CHECK(kv->plan(NULL, KV_CACHE_REASON_EVICT, 1, 0, &number) == KV_STORE_INVALID);

    memset(&query, 0, sizeof query);
    query.identity = who;
    query.tokens = tokens;
    query.n_tokens = 8;
    CHECK(kv->lookup(cache, &query, &hit, NULL) == KV_STORE_INVALID); /* no size */
    CHECK(strstr(kv->last_error(), "sizeof"));
    query.size = sizeof query;
    CHECK(kv->lookup(cache, &query, &hit, NULL) == KV_STORE_MISSING && hit == NULL);
    CHECK(kv->lookup(cache, NULL, &hit, NULL) == KV_STORE_INVALID);
    query.reserved = 1;
    CHECK(kv->lookup(cache, &query, &hit, NULL) == KV_STORE_INVALID);
    query.reserved = 0;
    query.identity.reserved[5] = 1;
    CHECK(kv->lookup(cache, &query, &hit, NULL) == KV_STORE_INVALID);
    CHECK(strstr(kv->last_error(), "reserved"));
    CHECK(kv->key(&query.identity, tokens, 8, other_key) == KV_STORE_INVALID);
    query.identity.reserved[5] = 0;
    CHECK(after_failures(cache, &query) == 0);

    memset(&save, 0, sizeof save);
    save.size = sizeof save;
    save.reason = KV_CACHE_REASON_EVICT;
    save.identity = who;
    save.tokens = tokens;
    save.n_tokens = 8;
    save.payload_bytes = sizeof payload;
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_INVALID); /* no payload */
    save.payload = payload;
    save.reserved = 1;
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_INVALID);
    CHECK(strstr(kv->last_error(), "reserved"));
    save.reserved = 0;
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_OK && saved == KV_CACHE_STORED);
    CHECK(kv->save(cache, &save, NULL) == KV_STORE_OK);
    save.reason = KV_CACHE_REASON_FINISH;
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_OK && saved == KV_CACHE_TOO_SHORT);
    save.tier = 4;
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_INVALID);
    save.tier = KV_CACHE_TIER_RAM_FILE;
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_INVALID); /* not in the config */
    save.tier = KV_CACHE_TIER_RAM;
    save.reason = KV_CACHE_REASON_SHUTDOWN;
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_OK && saved == KV_CACHE_STORED);
    save.identity.fingerprint_mode = 3;
    CHECK(kv->save(cache, &save, &saved) == KV_STORE_INVALID);

    memset(&info, 0, sizeof info);
    CHECK(kv->lookup(cache, &query, &hit, &info) == KV_STORE_INVALID && hit == NULL);
    info.size = sizeof info;
    CHECK(kv->lookup(cache, &query, &hit, &info) == KV_STORE_OK);
    CHECK(info.size == sizeof info && info.kind == KV_CACHE_HIT_EXACT && info.tier == KV_CACHE_TIER_RAM);
    CHECK(info.tokens == 8 && info.payload_bytes == 5 && memcmp(info.key, key, 32) == 0);
    kv->release(hit);
    CHECK(kv->evict_bytes(cache, KV_CACHE_TIER_RAM, 1, &number) == KV_STORE_OK && number == 517);
    CHECK(kv->evict_bytes(cache, KV_CACHE_TIER_DEFAULT, 1, NULL) == KV_STORE_INVALID);
    CHECK(kv->lookup(cache, &query, &hit, &info) == KV_STORE_OK && info.tier == KV_CACHE_TIER_DISK);
    CHECK(kv->load(hit, buffer, 4) == KV_STORE_INVALID);
    CHECK(kv->load(hit, NULL, 5) == KV_STORE_INVALID);
    CHECK(kv->load(hit, buffer, 5) == KV_STORE_OK && memcmp(buffer, payload, 5) == 0);
    CHECK(kv->view(NULL, &data, &size) == KV_STORE_INVALID && data == NULL && size == 0);
    CHECK(kv->view(hit, &data, &size) == KV_STORE_OK && size == 5 && memcmp(data, payload, 5) == 0);
    CHECK(kv->evict(cache, key, &tiers) == KV_STORE_OK && tiers == 0); /* in use */

    fflush(NULL);
    child = fork();
    if (child == 0) {
        _exit(in_child(cache, hit, &query));
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    CHECK(kv->relieve(cache, 1, 2, &number) == KV_STORE_OK && number == 0);
    memset(&gc, 0, sizeof gc);
    CHECK(kv->gc(cache, &gc) == KV_STORE_INVALID);
    gc.size = sizeof gc;
    CHECK(kv->gc(cache, &gc) == KV_STORE_OK && gc.size == sizeof gc && gc.evicted == 0);
    /* The sizes of version 0.1.0: what came later is not touched. */
    gc.size = 56;
    gc.later_left = 7;
    CHECK(kv->gc(cache, &gc) == KV_STORE_OK && gc.size == 56 && gc.later_left == 7);
    stats.size = 391;
    CHECK(kv->stats(cache, &stats) == KV_STORE_INVALID);
    stats.size = 392;
    stats.misnamed_files = 7;
    CHECK(kv->stats(cache, &stats) == KV_STORE_OK && stats.size == 392 && stats.misnamed_files == 7);
    stats.size = sizeof stats;
    CHECK(kv->stats(cache, &stats) == KV_STORE_OK && stats.size == sizeof stats);
    CHECK(stats.misnamed_files == 0 && stats.tiers_failed == 0);
    CHECK(stats.tiers[0].budget == 100000 && stats.tiers[1].budget == 0 && stats.tiers[2].rows == 1);
    CHECK(stats.saves[KV_CACHE_REASON_EVICT] == 1 && stats.saves[KV_CACHE_REASON_SHUTDOWN] == 1);
    CHECK(stats.saves_gated == 1 && stats.hits_exact == 2 && stats.misses == 2 && stats.loads == 2);
    CHECK(kv->flush(cache, UINT64_MAX) == KV_STORE_OK);
    CHECK(kv->shutdown(cache, 10000, &number) == KV_STORE_OK && number == 0);
    tiers = 9;
    number = 9;
    CHECK(kv->evict(cache, key, &tiers) == KV_STORE_CANCELLED && tiers == 0);
    CHECK(kv->evict_bytes(cache, KV_CACHE_TIER_DISK, 1, &number) == KV_STORE_CANCELLED && number == 0);
    CHECK(kv->save(cache, &save, &saved) != KV_STORE_OK && saved == KV_CACHE_FAILED);
    CHECK(kv->stats(cache, &stats) == KV_STORE_OK);
    kv->close(cache);
    kv->close(NULL);
    CHECK(data[0] == 's' && kv->load(hit, buffer, 5) == KV_STORE_OK); /* the hit outlives its cache */
    kv->release(hit);
    kv->release(NULL);
    CHECK(kv->open_toml(config, &cache) == KV_STORE_OK); /* and then the lock is free */
    CHECK(kv->evict(cache, key, &tiers) == KV_STORE_OK && tiers == 1);
    kv->close(cache);
    return 0;
}
