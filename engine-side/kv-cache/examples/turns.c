/*
 * turns.c - two turns of a conversation through the cache: the second prefills
 * only what is new. C11 and C++17. The "engine" here makes a state of four bytes
 * for each token, so that one can see whether a state is the right one.
 *
 *     cc -std=c11 -Iinclude turns.c -o turns -lkv_cache && ./turns /tmp/kv-rows
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kv_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                     \
    do {                                                                                \
        int status_ = (call);                                                           \
        if (status_ != KV_STORE_OK) {                                                   \
            fprintf(stderr, "%s: %d: %s\n", #call, status_, kv->last_error());          \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static const kv_cache_vtable_t *kv;

enum { FIRST = 2200, SECOND = 2600 };

static uint32_t tokens[SECOND];
static uint32_t state[SECOND]; /* what the engine has computed */
static unsigned prefilled;     /* how much work that was */

static void prefill(size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        state[i] = tokens[i] * 2654435761u + (i ? state[i - 1] : 0);
        prefilled++;
    }
}

static void save(kv_cache_t *cache, const kv_cache_identity_t *who, uint32_t reason, size_t n,
                 size_t prompt)
{
    kv_cache_save_t row;
    kv_cache_saved_t saved;
    memset(&row, 0, sizeof row);
    row.size = sizeof row;
    row.reason = reason;
    row.identity = *who;
    row.tokens = tokens;
    row.n_tokens = n;
    row.payload = (const uint8_t *)state;
    row.payload_bytes = n * sizeof *state;
    row.prompt_tokens = prompt;
    CHECK(kv->save(cache, &row, &saved));
    printf("  saved %zu tokens: %s\n", n,
           saved == KV_CACHE_QUEUED ? "queued" : saved == KV_CACHE_KNOWN ? "known" : "not wanted");
}

/* What an engine does with a prompt of n tokens. */
static void turn(kv_cache_t *cache, const kv_cache_identity_t *who, size_t n)
{
    kv_cache_query_t query;
    kv_cache_hit_info_t info;
    kv_cache_hit_t *hit;
    size_t done = 0;
    uint64_t keep;
    memset(&query, 0, sizeof query);
    memset(&info, 0, sizeof info);
    query.size = sizeof query;
    query.identity = *who;
    query.tokens = tokens;
    query.n_tokens = n;
    info.size = sizeof info;
    memset(state, 0, sizeof state);
    prefilled = 0;
    if (kv->lookup(cache, &query, &hit, &info) == KV_STORE_OK) {
        /* A row that turns out damaged is a miss: then all is prefilled. */
        if (kv->load(hit, (uint8_t *)state, (size_t)info.payload_bytes) == KV_STORE_OK) {
            done = (size_t)info.tokens;
        }
        kv->release(hit);
    }
    CHECK(kv->plan(cache, KV_CACHE_REASON_COLD, n, 0, &keep));
    if (keep > done) {
        prefill(done, (size_t)keep);
        done = (size_t)keep;
        save(cache, who, KV_CACHE_REASON_COLD, done, n);
    }
    prefill(done, n);
    printf("  prefilled %u of %zu tokens, last state %08x\n", prefilled, n, state[n - 1]);
    save(cache, who, KV_CACHE_REASON_FINISH, n, n);
}

int main(int argc, char **argv)
{
    char config[4400];
    kv_cache_t *cache;
    kv_cache_identity_t who;
    kv_cache_stats_t stats;
    if (argc != 2 || argv[1][0] != '/' || strlen(argv[1]) > 4096) {
        fprintf(stderr, "usage: turns /AN/ABSOLUTE/DIRECTORY\n");
        return 2;
    }
    for (uint32_t i = 0; i < SECOND; i++) {
        tokens[i] = i * i % 32000;
    }
    kv = kv_cache_get_vtable();
    memset(&who, 0, sizeof who);
    memset(who.fingerprint, 7, sizeof who.fingerprint); /* really: kv->fingerprint */
    snprintf(config, sizeof config, "[disk]\npath = '%s'\nbudget = '1 GiB'\n", argv[1]);

    CHECK(kv->open_toml(config, &cache));
    puts("first turn");
    turn(cache, &who, FIRST);
    CHECK(kv->flush(cache, 10000));
    puts("second turn");
    turn(cache, &who, SECOND);
    CHECK(kv->flush(cache, 10000));
    puts("the second turn again");
    turn(cache, &who, SECOND);

    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    CHECK(kv->stats(cache, &stats));
    printf("hits: %llu exact, %llu longest prefix; misses: %llu\n", (unsigned long long)stats.hits_exact,
           (unsigned long long)stats.hits_longest_prefix, (unsigned long long)stats.misses);
    kv->close(cache);
    return 0;
}
