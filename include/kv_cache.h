/*
 * kv_cache.h - a token-exact cache of KV state over three tiers.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A ROW is the KV state of a sequence of tokens, as bytes that only the engine
 * understands. Its KEY is a SHA-256 over the model's fingerprint, its
 * quantisation, a hash of the context's parameters, and the tokens: so a row
 * is found by exactly the tokens that made it. Rows lie in TIERS: `ram` (this
 * process), `ram_file` (a directory on a tmpfs) and `disk`, each with a budget
 * and its own order of use. docs/cache.md tells the whole story.
 *
 *     static const char config[] =        a path is absolute; the directory is made
 *         "save_to = 'disk'\n"            where saves go that name no tier
 *         "[ram]\n"
 *         "budget = '4 GiB'\n"
 *         "[disk]\n"
 *         "path = '/var/cache/kv'\n"
 *         "budget = '200 GiB'\n";
 *     const kv_cache_vtable_t *kv = kv_cache_get_vtable();
 *     kv->open_toml(config, &cache);
 *     for each prompt:
 *         if (kv->lookup(cache, &query, &hit, &info) == KV_STORE_OK) {
 *             kv->load(hit, state, info.payload_bytes);   or view
 *             kv->release(hit);
 *             ... set the state, prefill tokens from info.tokens on
 *         }
 *         kv->plan(cache, KV_CACHE_REASON_COLD, n_tokens, 0, &keep);
 *         if (keep > 0)
 *             ... prefill up to `keep`, save
 *         ... prefill the rest, generate
 *     kv->close(cache);
 *
 * GATES. A save that the policy does not want is no failure: `plan`
 * answers 0 for it, and `save` TOO_SHORT, TOO_LONG or TOO_SOON. With the
 * defaults (all are keys of [policy] in the config):
 *   COLD       a prompt of 2,080 to 30,000 tokens. 32 are left out at its end
 *              (boundary_trim_tokens), and a multiple of 2,048 is kept
 *              (boundary_align_tokens); at most cold_max_tokens = 30,000. For
 *              shorter prompts make boundary_align_tokens smaller: then
 *              cold_min_tokens = 512 and min_tokens = 512 of what is kept count.
 *   CONTINUED  2,048 tokens after the last save (continued_interval), min_tokens.
 *   FINISH     min_tokens.
 *   EVICT, SHUTDOWN  no gate.
 *
 * QUANTISATIONS. `quant` is part of the key. Where other software of the row
 * format is to read the rows, or may open the directory, take its numbers; it
 * deletes rows of others when it opens a directory. (A save of 30 or more to
 * `ram_file` or `disk` is logged once.)
 *    0 f32     6 q8_0     12 q8_k    18 iq2_xs   24 iq3_m
 *    1 f16     7 q4_k_m   13 q2_k    19 iq2_s    25 iq1_s
 *    2 q4_0    8 q4_k_s   14 q3_k_s  20 iq2_m    26 iq1_m
 *    3 q4_1    9 q5_k_m   15 q3_k_m  21 iq3_xxs  27 iq4_nl
 *    4 q5_0   10 q5_k_s   16 q3_k_l  22 iq3_xs   28 iq4_xs
 *    5 q5_1   11 q6_k     17 iq2_xxs 23 iq3_s    29 bf16
 *
 * ANSWERS. Statuses, `size`, `version` and `last_error` are as in
 * kv_store_status.h. Every call that can fail returns 0 or one of
 *   KV_STORE_MISSING      no such row, or it is damaged: prefill
 *   KV_STORE_INVALID      NULL, a wrong size or number, a config that makes no sense
 *   KV_STORE_UNAVAILABLE  a directory belongs to another process, or the time is
 *                         over; what was begun may still end well
 *   KV_STORE_EXHAUSTED    no room: larger than the budget, all rows in use, the
 *                         disk is full
 *   KV_STORE_MISMATCH     save: the row in its place is of another descriptor
 *                         ([descriptor] of the config), and stays
 *   KV_STORE_CANCELLED    after shutdown, or in a forked child
 *   KV_STORE_OTHER        the system refused, or a bug in the library
 * A call that fails sets its output pointers to NULL and its output numbers to 0;
 * a kv_cache_saved_t to KV_CACHE_FAILED; a struct with a valid `size` to 0,
 * except `size` itself. (After a load that fails, the buffer is undefined.)
 *
 * A MISS is no error: prefill, as without a cache. Damaged rows are misses too
 * (counted; their files are set aside). No byte of a file is handed out that
 * was not checked against its row's checksum.
 *
 * STRUCTS that begin with `size`: set it to the sizeof of the struct before
 * each call, also where the library fills the rest. A smaller size than that
 * of version 0.1.0 is INVALID; a larger one than the library's is a later
 * version's. Reserved fields are 0; in a query, a save or an identity
 * another value is INVALID.
 *
 * THREADS. Any call may be made from any thread at any time, on one cache too;
 * only close and release must be the last use of what they end. A lookup never
 * waits for a save, but for the one of its own `parent`.
 *
 * MEMORY. The caller's memory is read during the call and not kept. Outputs
 * belong to the library; each call names the function that releases them.
 *
 * FORK. A cache is of the process that opened it: in a child every call answers
 * CANCELLED, and close and release do nothing but free memory. A child that runs
 * on without exec keeps the parent's directories locked until it ends.
 */
#ifndef KV_CACHE_H
#define KV_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "kv_store_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the vtable described here. */
#define KV_CACHE_VTABLE_VERSION 1u

/* The symbol that the library exports, for dlsym. */
#define KV_CACHE_GET_VTABLE_SYMBOL "kv_cache_get_vtable"

typedef struct kv_cache kv_cache_t;
typedef struct kv_cache_hit kv_cache_hit_t;

typedef enum kv_cache_tier_t {
    KV_CACHE_TIER_DEFAULT = 0, /* the config's save_to */
    KV_CACHE_TIER_RAM = 1,
    KV_CACHE_TIER_RAM_FILE = 2,
    KV_CACHE_TIER_DISK = 3
} kv_cache_tier_t;

typedef enum kv_cache_hit_kind_t {
    KV_CACHE_HIT_EXACT = 1,         /* the row is of exactly the tokens */
    KV_CACHE_HIT_RESUME = 2,        /* the row is the parent's */
    KV_CACHE_HIT_LONGEST_PREFIX = 3 /* the row is of the longest prefix at a boundary */
} kv_cache_hit_kind_t;

/*
 * Why a row is saved.
 *   COLD       after the prefill of a new prompt, at the boundary that
 *              plan names. Queued.
 *   CONTINUED  while a sequence grows. Queued.
 *   FINISH     a sequence is complete, prompt and reply. Queued.
 *   EVICT      the holder has to let go: stored when the call returns, from the
 *              caller's memory. No gate.
 *   SHUTDOWN   the engine goes down: the same, from a copy, and the call takes
 *              at most evict_save_timeout_ms. No gate.
 * A row larger than its tier's budget is EXHAUSTED at once, whatever the reason.
 */
typedef enum kv_cache_reason_t {
    KV_CACHE_REASON_COLD = 1,
    KV_CACHE_REASON_CONTINUED = 2,
    KV_CACHE_REASON_EVICT = 3,
    KV_CACHE_REASON_SHUTDOWN = 4,
    KV_CACHE_REASON_FINISH = 5
} kv_cache_reason_t;

/* What became of a save. None of them is a failure. */
typedef enum kv_cache_saved_t {
    KV_CACHE_STORED = 0,    /* on disk: synchronised, also by name; a power cut does not take the row */
    KV_CACHE_QUEUED = 1,    /* a copy is in the queue; a power cut may take the row, never leave a part */
    KV_CACHE_KNOWN = 2,     /* it was there, or is on its way */
    KV_CACHE_DROPPED = 3,   /* the queue is full */
    KV_CACHE_TOO_SHORT = 4, /* the policy does not want it: see plan */
    KV_CACHE_TOO_LONG = 5,
    KV_CACHE_TOO_SOON = 6,
    KV_CACHE_FAILED = 7     /* the call failed: its status says how */
} kv_cache_saved_t;

/* How a model's fingerprint is made. */
typedef enum kv_cache_fingerprint_mode_t {
    KV_CACHE_FINGERPRINT_SAFE = 0,         /* the whole file; reads all of it */
    KV_CACHE_FINGERPRINT_GGUF_CHUNKED = 1, /* metadata, both ends of each tensor, length; a moment */
    KV_CACHE_FINGERPRINT_FAST_UNSAFE = 2   /* path, length, time of change; or the caller's own */
} kv_cache_fingerprint_mode_t;

/* Whose state a row is. Everything but the mode is part of the key. */
typedef struct kv_cache_identity_t {
    uint8_t fingerprint[32];  /* of the model: fingerprint, or the caller's own */
    uint8_t context_hash[32]; /* a hash of the parameters that shape the state: cache types, window,
                                 RoPE scaling, the engine's version where its states differ */
    uint8_t fingerprint_mode; /* kv_cache_fingerprint_mode_t */
    uint8_t quant;            /* a number for the quantisation that never changes its meaning: see the
                                 table of QUANTISATIONS above */
    uint8_t reserved[6];
} kv_cache_identity_t;

typedef struct kv_cache_query_t {
    uint32_t size;
    uint32_t reserved;
    kv_cache_identity_t identity;
    const uint32_t *tokens; /* at most 2^24 */
    size_t n_tokens;
    const uint8_t *parent;  /* 32 bytes: the key of the row that the prompt goes on from; or NULL. A
                               hint: of use only if it is the key of a beginning of these tokens */
} kv_cache_query_t;

typedef struct kv_cache_hit_info_t {
    uint32_t size;
    uint32_t kind;          /* kv_cache_hit_kind_t */
    uint32_t tier;          /* kv_cache_tier_t */
    uint32_t reserved;
    uint64_t tokens;        /* how many of the query's tokens the row covers */
    uint64_t payload_bytes;
    uint8_t key[32];        /* the parent of a later query */
} kv_cache_hit_info_t;

typedef struct kv_cache_save_t {
    uint32_t size;
    uint32_t reason;        /* kv_cache_reason_t */
    uint32_t tier;          /* kv_cache_tier_t */
    uint32_t context_size;  /* tokens that the context has room for; written into the row */
    kv_cache_identity_t identity;
    const uint32_t *tokens; /* exactly those that made the payload: 1 to 2^24 */
    size_t n_tokens;
    const uint8_t *payload; /* the state after them; not empty */
    size_t payload_bytes;
    uint64_t prompt_tokens; /* COLD: tokens of the whole prompt */
    uint64_t last_saved;    /* CONTINUED: tokens at this sequence's last save, 0 for none */
    const char *prompt;     /* UTF-8 for people who look into files, stored as it is; or NULL */
    const char *detail;     /* more on the reason, for people; or NULL */
    uint32_t quant_bits;    /* bits of the quantisation, for people; at most 255 */
    uint32_t reserved;
} kv_cache_save_t;

/* What gc did. */
typedef struct kv_cache_gc_t {
    uint32_t size;
    uint32_t reserved;
    uint64_t rows_lost;         /* rows whose file was gone */
    uint64_t adopted;           /* good files that no row was known of */
    uint64_t temporaries;       /* temporary files of dead writers */
    uint64_t set_aside_removed; /* damaged files that had been set aside; also those removed since the
                                   last call because there were too many */
    uint64_t evicted;           /* rows, for the budget */
    uint64_t evicted_bytes;
    uint64_t later_left;        /* row files of a later version, or of another descriptor, which are left alone */
    uint64_t misnamed_left;     /* files named *.kvc like no row, which are left alone */
} kv_cache_gc_t;

typedef struct kv_cache_tier_stats_t {
    uint64_t rows;
    uint64_t bytes;          /* of the budget, taken by rows */
    uint64_t reserved_bytes; /* of the budget, set apart for saves that are being written */
    uint64_t budget;         /* 0: the tier is not there */
    uint64_t queued;         /* saves */
} kv_cache_tier_stats_t;

/* Counted since the cache was opened; times are in nanoseconds. */
typedef struct kv_cache_stats_t {
    uint32_t size;
    uint32_t reserved;
    uint64_t hits_exact;
    uint64_t hits_resume;
    uint64_t hits_longest_prefix;
    uint64_t misses;
    uint64_t resume_waits;       /* lookups that waited for their parent's save */
    uint64_t prefix_walks;
    uint64_t prefix_probes;      /* keys that those looked up */
    uint64_t prefix_nanos;       /* hashing and walking */
    uint64_t loads;
    uint64_t loaded_bytes;
    uint64_t load_nanos;
    uint64_t load_misses;        /* the row was damaged or gone; its lookup was counted as a hit */
    uint64_t pack_nanos;         /* storing rows */
    uint64_t saves[6];           /* stored, by kv_cache_reason_t; 0 is not used */
    uint64_t saves_gated;
    uint64_t saves_known;
    uint64_t saves_dropped;
    uint64_t saves_abandoned;    /* lost their reservation */
    uint64_t saves_failed;
    uint64_t adopted;            /* good files of other writers that became rows: found in a save's
                                    place, in place of a file that was loaded, or by gc */
    uint64_t evictions;
    uint64_t evicted_bytes;
    uint64_t pressure_evictions; /* because of memory pressure alone */
    uint64_t corrupt_files;
    uint64_t truncated_files;
    uint64_t foreign_files;      /* with a row's name, but no row files */
    uint64_t newer_files;        /* of a later version of the format; left alone */
    uint64_t temporaries_reaped;
    kv_cache_tier_stats_t tiers[3]; /* ram, ram_file, disk */
    uint64_t misnamed_files;     /* named *.kvc like no row when the cache was opened; left alone */
    uint64_t tiers_failed;       /* could not be used when the cache was opened */
} kv_cache_stats_t;

/* Takes a line of the log; see set_log. */
typedef void (*kv_cache_log_fn)(void *user, const char *line);

/* The functions of the library. Static. Later versions only add members at the end: check `size` before you use one. */
typedef struct kv_cache_vtable_t {
    uint32_t size;    /* sizeof(kv_cache_vtable_t) of the library */
    uint32_t version; /* 1 */

    /* The version of the library, such as "0.2.0". */
    const char *(*library_version)(void);

    /*
     * Open a cache from a config file, or from its text (TOML, see docs/cache.md). Takes the locks of its
     * directories, and indexes what is in them: seconds for 100,000 rows. A tier whose directory cannot be used is
     * left out, logged, and has the budget 0 in stats; OTHER or EXHAUSTED where no tier is left. End it with close.
     * INVALID, UNAVAILABLE (a directory belongs to another process), EXHAUSTED, OTHER.
     */
    int (*open)(const char *path, kv_cache_t **out);
    int (*open_toml)(const char *toml, kv_cache_t **out);

    /*
     * Wait for queued saves, at most evict_save_timeout_ms, and end the cache. Hits stay good until they are
     * released, and keep its directories locked. NULL is allowed.
     */
    void (*close)(kv_cache_t *cache);

    /*
     * The fingerprint of a model file. `mode`: kv_cache_fingerprint_mode_t; `out`: 32 bytes.
     * INVALID, OTHER.
     */
    int (*fingerprint)(const char *path, uint32_t mode, uint8_t out[32]);

    /* The key of exactly these tokens. `out`: 32 bytes. */
    int (*key)(const kv_cache_identity_t *identity, const uint32_t *tokens, size_t n_tokens, uint8_t out[32]);

    /*
     * How many tokens a save of this reason keeps, by the policy (GATES above); 0 for none.
     * COLD: `n_tokens` is the length of the prompt, and the answer the boundary up to which to prefill before the
     * save. CONTINUED: `last_saved` as in the save.
     */
    int (*plan)(const kv_cache_t *cache, uint32_t reason, uint64_t n_tokens, uint64_t last_saved, uint64_t *keep);

    /*
     * Find the row that saves most of the prefill: of exactly the tokens; else the parent's, if they extend it and
     * no longer row is at a boundary (a multiple of boundary_align_tokens); else the longest row at a boundary.
     * Where the parent's is the one and its save is on its way, waits for it, at most session_resume_wait_ms. Rows
     * at no boundary are found by exactly their tokens or as a parent alone. `info` may be NULL.
     * While the hit lives its row is not evicted. End it with release.
     * MISSING, INVALID, CANCELLED.
     */
    int (*lookup)(const kv_cache_t *cache, const kv_cache_query_t *query, kv_cache_hit_t **out,
                  kv_cache_hit_info_t *info);

    /*
     * Copy the payload into a buffer of exactly info.payload_bytes, checked on the way; what is in the buffer before
     * is not read. MISSING: the row turned out damaged or gone; look up again, or prefill. After a failure the
     * buffer may have anything in it.
     */
    int (*load)(const kv_cache_hit_t *hit, uint8_t *buffer, size_t size);

    /*
     * The payload in place, checked: memory of `ram`, or the mapped file. It stands until the hit is released.
     * Failures as for load.
     */
    int (*view)(const kv_cache_hit_t *hit, const uint8_t **data, size_t *size);

    /* End a hit, and its view. NULL is allowed. */
    void (*release)(kv_cache_hit_t *hit);

    /*
     * Save a row, as its reason says. `saved` may be NULL.
     * INVALID (also a COLD save that is not at its boundary), EXHAUSTED, UNAVAILABLE (late), CANCELLED, OTHER.
     * Queued saves that fail are counted in saves_failed.
     */
    int (*save)(const kv_cache_t *cache, const kv_cache_save_t *save, kv_cache_saved_t *saved);

    /*
     * Evict a row from all tiers, unless it is in use. `tiers`, which may be NULL, gets the number of tiers that let
     * it go.
     */
    int (*evict)(const kv_cache_t *cache, const uint8_t key[32], uint32_t *tiers);

    /* Evict a tier's oldest rows until `bytes` are freed, or those left are in use. `freed` may be NULL. */
    int (*evict_bytes)(const kv_cache_t *cache, uint32_t tier, uint64_t bytes, uint64_t *freed);

    /*
     * For a caller that knows better than the system how much memory is used (a GPU, a container): from
     * pressure.high on, evicts the oldest rows of `ram`, then of `ram_file`, until less than pressure.low would be.
     * `freed` may be NULL.
     */
    int (*relieve)(const kv_cache_t *cache, uint64_t used, uint64_t total, uint64_t *freed);

    /*
     * Bring all tiers in order; see kv_cache_gc_t. Payloads are not read: their damage is found by the load, or by
     * `kv-store cache gc`. Saves wait meanwhile, lookups do not. `out` may be NULL.
     */
    int (*gc)(const kv_cache_t *cache, kv_cache_gc_t *out);

    /* Wait until no save is queued. UNAVAILABLE: some still are. */
    int (*flush)(const kv_cache_t *cache, uint64_t timeout_ms);

    /*
     * Close the cache and keep the handle: waits for queued saves, drops those left after the time, and counts them
     * (`dropped` may be NULL). Returns within the time even if a disk stalls. Lookups and saves are CANCELLED from
     * now on; hits and stats stay good. close ends it.
     */
    int (*shutdown)(const kv_cache_t *cache, uint64_t timeout_ms, uint64_t *dropped);

    /* What happened, and what is held. Waits for nothing. */
    int (*stats)(const kv_cache_t *cache, kv_cache_stats_t *out);

    /*
     * Hand the lines that an operator should see (damaged files, saves that fail, tiers that are left out) to a
     * function, for all caches of the process; `log` = NULL writes them to standard error again, which is the default.
     * A line is UTF-8 without a line end, and the function's for the time of the call. The function is called by any
     * thread, also by threads of the library, and must not call the library. It may still get a line whose writing
     * began before this returns.
     */
    void (*set_log)(kv_cache_log_fn log, void *user);

    /* Why the last failed call of this thread failed, UTF-8. Never NULL; valid until the thread's next failure. */
    const char *(*last_error)(void);
} kv_cache_vtable_t;

/* The vtable. Never NULL; safe to call from any thread. */
const kv_cache_vtable_t *kv_cache_get_vtable(void);

/* The type of kv_cache_get_vtable, for the result of dlsym. */
typedef const kv_cache_vtable_t *(*kv_cache_get_vtable_fn)(void);

/* The layout is the ABI: the library asserts the same. An assertion that fails is
 * an array of a negative size, whose name says what is wrong. */
#define KV_CACHE_NAME_(name, line) kv_cache_##name##_in_line_##line
#define KV_CACHE_NAME(name, line) KV_CACHE_NAME_(name, line)
#define KV_CACHE_CHECK(name, what) typedef char KV_CACHE_NAME(name, __LINE__)[(what) ? 1 : -1]

/* Not with -fshort-enums: the library writes 4 bytes. */
#define KV_CACHE_ENUM(type) KV_CACHE_CHECK(enums_have_4_bytes, sizeof(type) == 4)
KV_CACHE_ENUM(enum kv_store_status);
KV_CACHE_ENUM(kv_cache_tier_t);
KV_CACHE_ENUM(kv_cache_hit_kind_t);
KV_CACHE_ENUM(kv_cache_reason_t);
KV_CACHE_ENUM(kv_cache_saved_t);
KV_CACHE_ENUM(kv_cache_fingerprint_mode_t);
#undef KV_CACHE_ENUM

#if UINTPTR_MAX == UINT64_MAX
#define KV_CACHE_ASSERT(what) KV_CACHE_CHECK(the_layout_is_the_librarys, what)
#define KV_CACHE_AT(type, field, at) KV_CACHE_ASSERT(offsetof(type, field) == (at))
KV_CACHE_ASSERT(sizeof(kv_cache_identity_t) == 72);
KV_CACHE_AT(kv_cache_identity_t, fingerprint_mode, 64);
KV_CACHE_AT(kv_cache_identity_t, quant, 65);
KV_CACHE_ASSERT(sizeof(kv_cache_query_t) == 104);
KV_CACHE_AT(kv_cache_query_t, tokens, 80);
KV_CACHE_AT(kv_cache_query_t, parent, 96);
KV_CACHE_ASSERT(sizeof(kv_cache_hit_info_t) == 64);
KV_CACHE_AT(kv_cache_hit_info_t, tokens, 16);
KV_CACHE_AT(kv_cache_hit_info_t, key, 32);
KV_CACHE_ASSERT(sizeof(kv_cache_save_t) == 160);
KV_CACHE_AT(kv_cache_save_t, identity, 16);
KV_CACHE_AT(kv_cache_save_t, tokens, 88);
KV_CACHE_AT(kv_cache_save_t, payload, 104);
KV_CACHE_AT(kv_cache_save_t, prompt_tokens, 120);
KV_CACHE_AT(kv_cache_save_t, prompt, 136);
KV_CACHE_AT(kv_cache_save_t, quant_bits, 152);
KV_CACHE_ASSERT(sizeof(kv_cache_gc_t) == 72);
KV_CACHE_AT(kv_cache_gc_t, misnamed_left, 64);
KV_CACHE_ASSERT(sizeof(kv_cache_tier_stats_t) == 40);
KV_CACHE_AT(kv_cache_tier_stats_t, queued, 32);
KV_CACHE_ASSERT(sizeof(kv_cache_stats_t) == 408);
KV_CACHE_AT(kv_cache_stats_t, saves, 112);
KV_CACHE_AT(kv_cache_stats_t, temporaries_reaped, 264);
KV_CACHE_AT(kv_cache_stats_t, tiers, 272);
KV_CACHE_AT(kv_cache_stats_t, tiers_failed, 400);
#undef KV_CACHE_AT
#undef KV_CACHE_ASSERT
#endif
#undef KV_CACHE_CHECK
#undef KV_CACHE_NAME
#undef KV_CACHE_NAME_

#ifdef __cplusplus
}
#endif

#ifndef KV_STORE_NO_DEPRECATED
#include "kv_store_deprecated.h"
#endif

#endif /* KV_CACHE_H */
