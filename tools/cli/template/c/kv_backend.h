/* A backend in C. `kv-store build` writes this file beside backend.h, whose exports it defines.
 *
 * Include it in one file of the backend, and define the functions that are declared below. Where a batch is better answered
 * as a whole, as by a server that is asked once for all of it, define KV_BATCHES before, and those exports of backend.h that take
 * batches: exists, put-chunks, get-chunks, delete-chunks, commit.
 *
 * What a function is given is lent until it returns; nothing of it is freed. A payload that is answered is the host's from then
 * on. Who answers KV_FAILED or false has filled `err`: most helpers below do that. */
#ifndef KV_BACKEND_H
#define KV_BACKEND_H

#include <stdlib.h>
#include <string.h>

#include "backend.h"

typedef types_error_t kv_error;
typedef exports_store_features_t kv_features;
/* A handle on bytes that the host holds. Dropped once, or answered. */
typedef payloads_own_payload_t kv_payload;

/* A hash, a name, a URI. */
typedef struct {
    const uint8_t *ptr;
    size_t len;
} kv_bytes;

typedef enum { KV_NO, KV_YES, KV_FAILED } kv_answer;

/* Names of 0.2. */
#define EXPORTS_STORE_PROPERTIES_DURABLE STORE_TYPES_PROPERTIES_DURABLE
#define EXPORTS_STORE_PROPERTIES_SHARED STORE_TYPES_PROPERTIES_SHARED
#define EXPORTS_STORE_PROPERTIES_CHEAP_REPEAT STORE_TYPES_PROPERTIES_CHEAP_REPEAT
#define EXPORTS_STORE_PROPERTIES_WRITE_THROUGH STORE_TYPES_PROPERTIES_WRITE_THROUGH
#define EXPORTS_STORE_PROPERTIES_HOLDS_DATA STORE_TYPES_PROPERTIES_HOLDS_DATA
#define EXPORTS_STORE_PROPERTIES_WANTS_FRESH STORE_TYPES_PROPERTIES_WANTS_FRESH
#define EXPORTS_STORE_PROPERTIES_EVICTS STORE_TYPES_PROPERTIES_EVICTS

/* The store at `uri`. `features` is all 0. */
bool kv_open(kv_bytes uri, const backend_list_tuple2_string_string_t *options, kv_features *features, kv_error *err);
#ifndef KV_BATCHES
bool kv_has_chunk(kv_bytes hash);
/* Store item `item` of the call. KV_NO: it was there, and `replace` is not asked for. */
kv_answer kv_put_chunk(kv_bytes hash, uint32_t item, bool replace, kv_error *err);
kv_answer kv_get_chunk(kv_bytes hash, kv_payload *found, kv_error *err);
/* A chunk that was absent is gone, too. */
bool kv_delete_chunk(kv_bytes hash, kv_error *err);
/* Make what was stored before durable, where the backend can. */
bool kv_sync(kv_error *err);
/* Store item `item` of the call as a manifest, in place of the former one. */
bool kv_put_manifest(kv_bytes name, uint32_t item, kv_error *err);
#endif
kv_answer kv_get_manifest(kv_bytes name, kv_payload *found, kv_error *err);
bool kv_delete_manifest(kv_bytes name, kv_error *err);

/* Fail. Returns false. */
static inline bool kv_fail(kv_error *err, types_error_kind_t kind, const char *message)
{
    memset(err, 0, sizeof *err);
    err->kind = kind;
    backend_string_dup(&err->message, message);
    return false;
}

/* Memory, or the end of this instance: the host makes another one. */
static inline void *kv_memory(void *memory)
{
    return memory ? memory : (abort(), NULL);
}

/* Logs a warning about a URI with a query, for a backend that takes no parameters. With 1.0 of the contract, `kv_open` refuses it. */
static inline void kv_warn_of_query(kv_bytes uri)
{
    static const char text[] = " has no effect: this backend takes no parameters in its URI, and later versions refuse them";
    const uint8_t *query = memchr(uri.ptr, '?', uri.len);
    if (!query)
        return;
    size_t len = uri.len - (size_t)(query - uri.ptr);
    backend_string_t line = {kv_memory(malloc(len + sizeof text)), len + sizeof text - 1};
    memcpy(line.ptr, query, len);
    memcpy(line.ptr + len, text, sizeof text);
    system_log(SYSTEM_LEVEL_WARN, &line);
    backend_string_free(&line);
}

/* A copy that is the caller's to free. */
static inline kv_bytes kv_copy(kv_bytes bytes)
{
    uint8_t *copy = kv_memory(malloc(bytes.len + 1));
    memcpy(copy, bytes.ptr, bytes.len);
    return (kv_bytes){copy, bytes.len};
}

/* Two texts as one, to be freed. */
static inline backend_string_t kv_join(const char *first, const char *second)
{
    const size_t len = strlen(first), rest = strlen(second);
    backend_string_t joined = {kv_memory(malloc(len + rest + 1)), len + rest};
    memcpy(joined.ptr, first, len);
    memcpy(joined.ptr + len, second, rest);
    return joined;
}

/* Room for what kv_hex or kv_escape makes, with its NUL. */
#define KV_KEY 201
static const char kv_digits[] = "0123456789abcdef";

/* A hash, or anything else of up to 100 bytes, as lower-case hex digits. */
static inline void kv_hex(kv_bytes bytes, char key[KV_KEY])
{
    for (size_t i = 0; i < bytes.len && i < (KV_KEY - 1) / 2; i++) {
        *key++ = kv_digits[bytes.ptr[i] >> 4];
        *key++ = kv_digits[bytes.ptr[i] & 15];
    }
    *key = 0;
}

/* A manifest's name as a key that any storage system takes: `a-z 0-9 _ - . %`. Two names never meet, also where the storage system ignores
 * case, and no key begins with a dot. Any other byte is `%` and two hex digits. A longer key is cut, and ends in `%-` and the SHA-256 of
 * the name. */
static inline bool kv_escape(kv_bytes name, char key[KV_KEY], kv_error *err)
{
    const size_t digest = 2 + 64;
    size_t len = 0, cut = 0;
    for (size_t i = 0; i < name.len; i++) {
        const uint8_t byte = name.ptr[i];
        const bool plain = (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '_' || byte == '-' ||
                           (byte == '.' && i > 0);
        if (len + (plain ? 1 : 3) > KV_KEY - 1) {
            payloads_part_t whole = {.tag = PAYLOADS_PART_BYTES, .val.bytes = {(uint8_t *)name.ptr, name.len}};
            backend_list_u8_t sum;
            if (!payloads_sha256(&(payloads_list_part_t){&whole, 1}, &sum, err))
                return false;
            memcpy(key + cut, "%-", 2);
            kv_hex((kv_bytes){sum.ptr, sum.len}, key + cut + 2);
            backend_list_u8_free(&sum);
            return true;
        }
        if (plain) {
            key[len++] = (char)byte;
        } else {
            key[len++] = '%';
            key[len++] = kv_digits[byte >> 4];
            key[len++] = kv_digits[byte & 15];
        }
        if (len <= KV_KEY - 1 - digest)
            cut = len;
    }
    key[len] = 0;
    return true;
}

/* An item of the running call as the only part of something, to be freed with it. */
static inline payloads_part_t *kv_item(uint32_t item)
{
    payloads_part_t *part = kv_memory(malloc(sizeof *part));
    *part = (payloads_part_t){.tag = PAYLOADS_PART_ITEM, .val.item = item};
    return part;
}

/* The bytes of an item of the running call, which stay in the host. */
static inline bool kv_take(uint32_t item, kv_payload *taken, kv_error *err)
{
    payloads_part_t part = {.tag = PAYLOADS_PART_ITEM, .val.item = item};
    return payloads_static_payload_from_parts(&(payloads_list_part_t){&part, 1}, taken, err);
}

/* A second handle on the bytes of a payload, to be answered. */
static inline kv_answer kv_share(kv_payload payload, kv_payload *shared, kv_error *err)
{
    return payloads_method_payload_share(payloads_borrow_payload(payload), shared, err) ? KV_YES : KV_FAILED;
}

/* Before the first byte of the change of an item is sent that the storage system may carry out late: a put of a hash that is not 8 bytes
 * wide or that replaces, a manifest (item 0). The host then holds the next change of the same key if this one fails. */
static inline void kv_begin_change(uint32_t item)
{
    backend_list_list_u8_t former;
    changes_begin(&(backend_list_u32_t){&item, 1}, &(backend_list_u8_t){NULL, 0}, &former);
    backend_list_list_u8_free(&former);
}

/* The change of an item was not carried out and will not be. */
static inline void kv_not_done(uint32_t item)
{
    changes_not_done(&(backend_list_u32_t){&item, 1});
}

/* How many hashes a batch has, hash `i` of it, and so many outcomes: one for each hash, or for the first ones, and the host asks again
 * for the rest. */
#define KV_COUNT(hashes) ((hashes)->bytes.len / (hashes)->width)
#define KV_HASH(hashes, i) ((kv_bytes){(hashes)->bytes.ptr + (i) * (hashes)->width, (hashes)->width})
#define KV_OUTCOMES(ret, count) \
    ((ret)->len = (count), (ret)->ptr = kv_memory(calloc((ret)->len, sizeof *(ret)->ptr)))

bool exports_store_open(backend_string_t *uri, backend_list_tuple2_string_string_t *options, kv_features *ret, kv_error *err)
{
    memset(ret, 0, sizeof *ret);
    bool good = kv_open((kv_bytes){uri->ptr, uri->len}, options, ret, err);
    backend_list_tuple2_string_string_free(options);
    backend_string_free(uri);
    return good;
}

#ifndef KV_BATCHES
bool exports_store_exists(exports_store_hashes_t *hashes, exports_store_list_presence_t *ret, kv_error *err)
{
    (void)err;
    KV_OUTCOMES(ret, KV_COUNT(hashes));
    for (size_t i = 0; i < ret->len; i++)
        ret->ptr[i].tag = kv_has_chunk(KV_HASH(hashes, i)) ? STORE_TYPES_PRESENCE_PRESENT : STORE_TYPES_PRESENCE_ABSENT;
    exports_store_hashes_free(hashes);
    return true;
}

bool exports_store_put_chunks(exports_store_hashes_t *hashes, backend_list_u64_t *lens, bool replace,
                              exports_store_list_put_outcome_t *ret, kv_error *err)
{
    static const uint8_t tags[] = {[KV_NO] = STORE_TYPES_PUT_OUTCOME_EXISTED,
                                   [KV_YES] = STORE_TYPES_PUT_OUTCOME_STORED,
                                   [KV_FAILED] = STORE_TYPES_PUT_OUTCOME_FAILED};
    (void)err;
    KV_OUTCOMES(ret, KV_COUNT(hashes));
    for (size_t i = 0; i < ret->len; i++)
        ret->ptr[i].tag = tags[kv_put_chunk(KV_HASH(hashes, i), (uint32_t)i, replace, &ret->ptr[i].val.failed)];
    exports_store_hashes_free(hashes);
    backend_list_u64_free(lens);
    return true;
}

bool exports_store_get_chunks(exports_store_hashes_t *hashes, exports_store_list_get_outcome_t *ret, kv_error *err)
{
    static const uint8_t tags[] = {[KV_NO] = STORE_TYPES_GET_OUTCOME_MISSING,
                                   [KV_YES] = STORE_TYPES_GET_OUTCOME_FOUND,
                                   [KV_FAILED] = STORE_TYPES_GET_OUTCOME_FAILED};
    (void)err;
    KV_OUTCOMES(ret, KV_COUNT(hashes));
    for (size_t i = 0; i < ret->len; i++) {
        kv_payload found;
        kv_answer answer = kv_get_chunk(KV_HASH(hashes, i), &found, &ret->ptr[i].val.failed);
        ret->ptr[i].tag = tags[answer];
        if (answer == KV_YES)
            ret->ptr[i].val.found = found;
    }
    exports_store_hashes_free(hashes);
    return true;
}

bool exports_store_delete_chunks(exports_store_hashes_t *hashes, exports_store_list_delete_outcome_t *ret, kv_error *err)
{
    (void)err;
    KV_OUTCOMES(ret, KV_COUNT(hashes));
    for (size_t i = 0; i < ret->len; i++)
        ret->ptr[i].tag = kv_delete_chunk(KV_HASH(hashes, i), &ret->ptr[i].val.failed) ? STORE_TYPES_DELETE_OUTCOME_GONE
                                                                                      : STORE_TYPES_DELETE_OUTCOME_FAILED;
    exports_store_hashes_free(hashes);
    return true;
}

bool exports_store_commit(exports_store_list_hashes_t *fresh, exports_store_manifest_t *manifest,
                          exports_store_commit_outcome_t *ret, kv_error *err)
{
    /* The manifest is the only item of the call. */
    bool good = kv_sync(err) &&
                (!manifest || kv_put_manifest((kv_bytes){manifest->name.ptr, manifest->name.len}, 0, err));
    ret->tag = STORE_TYPES_COMMIT_OUTCOME_PUBLISHED;
    exports_store_list_hashes_free(fresh);
    if (manifest)
        exports_store_manifest_free(manifest);
    return good;
}

#endif

bool exports_store_get_manifest(backend_string_t *name, exports_store_option_own_payload_t *ret, kv_error *err)
{
    kv_answer answer = kv_get_manifest((kv_bytes){name->ptr, name->len}, &ret->val, err);
    ret->is_some = answer == KV_YES;
    backend_string_free(name);
    return answer != KV_FAILED;
}

bool exports_store_delete_manifest(backend_string_t *name, kv_error *err)
{
    bool good = kv_delete_manifest((kv_bytes){name->ptr, name->len}, err);
    backend_string_free(name);
    return good;
}

#endif
