/* rows.c - see rows.h. SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "rows.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* How long a flush may take. */
#define FLUSH_MS 60000u
/* Rows that may turn out damaged before the prompt is prefilled as a whole. */
#define ATTEMPTS 4

/* What of the context shapes a state: engine.c uses these and no others. */
static const char CONTEXT[32] = "flash attention, K f16, V f16";

int rows_open(struct rows *r, const char *path, const char *config, const char *model)
{
    *r = (struct rows){0};
    r->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!r->library) {
        return report(KV_CANNOT_RUN, "cannot load the library: %s; give its path with --lib",
                      dlerror());
    }
    kv_cache_get_vtable_fn get;
    /* ISO C has no cast from an object pointer to a function pointer; POSIX says that the bytes are the same. */
    *(void **)&get = dlsym(r->library, KV_CACHE_GET_VTABLE_SYMBOL);
    if (!get) {
        return report(KV_CANNOT_RUN, "the library has no %s; give libkv_cache.so with --lib",
                      KV_CACHE_GET_VTABLE_SYMBOL);
    }
    r->of = get();
    r->identity.fingerprint_mode = KV_CACHE_FINGERPRINT_GGUF_CHUNKED;
    memcpy(r->identity.context_hash, CONTEXT, sizeof CONTEXT);
    if (r->of->fingerprint(model, r->identity.fingerprint_mode, r->identity.fingerprint) ||
        r->of->open(config, &r->cache)) {
        return report(KV_CANNOT_RUN, "%s", r->of->last_error());
    }
    return KV_OK;
}

/* One lookup. A miss leaves the row without a state; `*again` says that it was
 * a damaged row. */
static int find_once(struct rows *r, const int32_t *tokens, uint32_t n, uint64_t max_bytes,
                     struct row *row, int *again)
{
    kv_cache_query_t query = {.size = sizeof query, .identity = r->identity, .n_tokens = n};
    kv_cache_hit_info_t info = {.size = sizeof info};
    kv_cache_hit_t *hit;
    query.tokens = (const uint32_t *)tokens;
    *again = 0;
    int status = r->of->lookup(r->cache, &query, &hit, &info);
    if (status == KV_STORE_MISSING) {
        return KV_OK;
    }
    if (status != KV_STORE_OK) {
        return report(KV_FAILED, "%s", r->of->last_error());
    }
    static const char *const kinds[] = {"none", "exact", "resume", "longest_prefix"};
    row->size = info.payload_bytes <= max_bytes ? (size_t)info.payload_bytes : 0;
    row->state = row->size ? malloc(row->size) : NULL;
    if (row->state && info.kind < sizeof kinds / sizeof *kinds &&
        r->of->load(hit, row->state, row->size) == KV_STORE_OK) {
        row->tokens = (uint32_t)info.tokens;
        row->kind = kinds[info.kind];
    } else {
        report(KV_OK, "%s", row->state ? r->of->last_error() : "a row has a state of an unlikely size");
        *again = row->state != NULL;
        free(row->state);
        row->state = NULL;
    }
    r->of->release(hit);
    return KV_OK;
}

int rows_find(struct rows *r, const int32_t *tokens, uint32_t n, uint64_t max_bytes,
              struct row *row)
{
    int code = KV_OK, again = 1;
    *row = (struct row){.kind = "none"};
    for (int i = 0; code == KV_OK && again && i < ATTEMPTS; i++) {
        code = find_once(r, tokens, n, max_bytes, row, &again);
    }
    return code;
}

int rows_cold_boundary(struct rows *r, uint32_t n, uint32_t *boundary)
{
    uint64_t keep;
    if (r->of->plan(r->cache, KV_CACHE_REASON_COLD, n, 0, &keep)) {
        return report(KV_FAILED, "%s", r->of->last_error());
    }
    *boundary = (uint32_t)keep;
    return KV_OK;
}

int rows_save(struct rows *r, uint32_t reason, const int32_t *tokens, uint32_t n, uint32_t prompt,
              const uint8_t *state, size_t size, int64_t *stored)
{
    kv_cache_save_t save = {.size = sizeof save, .reason = reason, .identity = r->identity,
                            .n_tokens = n, .payload = state, .payload_bytes = size,
                            .prompt_tokens = prompt};
    kv_cache_saved_t saved;
    save.tokens = (const uint32_t *)tokens;
    if (r->of->save(r->cache, &save, &saved)) {
        return report(KV_FAILED, "%s", r->of->last_error());
    }
    *stored += saved == KV_CACHE_STORED || saved == KV_CACHE_QUEUED;
    return KV_OK;
}

int rows_flush(struct rows *r)
{
    return r->of->flush(r->cache, FLUSH_MS) ? report(KV_FAILED, "%s", r->of->last_error()) : KV_OK;
}

void rows_close(struct rows *r)
{
    if (r->cache) {
        r->of->close(r->cache);
    }
    if (r->library) {
        dlclose(r->library);
    }
    *r = (struct rows){0};
}
