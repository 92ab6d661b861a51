/* c-fs:///DIR: a backend in C that keeps its files with what POSIX and WASI's libc offer.
 *
 * Chunks lie at /chunks/<first hex digit>/<hex>, manifests at /manifests/<hex of the SHA-256 of the name>, what is being
 * written in /tmp; / is the URI's directory. A file appears by rename. A manifest is published when the fresh chunks were
 * synced. This libc, which speaks WASI 0.1, cannot sync a directory, so that is left to the contract's `files`.
 *
 * What comes in belongs to the function that it comes to, and what goes out to the host: the bindings do not free the former.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend.h"

/* From <unistd.h>, but for this POSIX. */
int getentropy(void *buffer, size_t len);

typedef exports_kv_store_backend_store_error_t error_t;
typedef exports_kv_store_backend_store_hashes_t hashes_t;
typedef kv_store_backend_payloads_own_payload_t payload_t;

/* Bytes of a value that are in this component's memory at once. */
#define PIECE (1u << 20)
#define MAX_PATH 256
/* Paths in one call to the host. */
#define SYNC_BATCH 256

/* The URI's directory. */
static kv_store_backend_files_own_directory_t root;

static void *allocate(size_t size)
{
    void *memory = malloc(size ? size : 1);
    if (!memory)
        abort();
    return memory;
}

static bool fail(error_t *err, const char *what)
{
    char text[512];
    int number = errno;
    snprintf(text, sizeof text, "%s: %s", what, strerror(number));
    err->kind = number == EACCES || number == EPERM || number == EROFS ? KV_STORE_BACKEND_TYPES_ERROR_KIND_DENIED
              : number == ENOSPC || number == EDQUOT                   ? KV_STORE_BACKEND_TYPES_ERROR_KIND_EXHAUSTED
                                                                       : KV_STORE_BACKEND_TYPES_ERROR_KIND_OTHER;
    backend_string_dup(&err->message, text);
    err->code.is_some = false;
    return false;
}

static bool refuse(error_t *err, const char *what)
{
    err->kind = KV_STORE_BACKEND_TYPES_ERROR_KIND_INVALID;
    backend_string_dup(&err->message, what);
    err->code.is_some = false;
    return false;
}

static char *append_hex(char *to, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        to += sprintf(to, "%02x", bytes[i]);
    return to;
}

/* How many hashes there are. The host has none of width 0. */
static size_t count_of(const hashes_t *hashes)
{
    return hashes->bytes.len / hashes->width;
}

/* Where a chunk lies, and its directory. A hash has at most 64 bytes. */
static void chunk_path(const hashes_t *hashes, size_t i, char path[MAX_PATH], char directory[MAX_PATH])
{
    char hex[129];
    append_hex(hex, hashes->bytes.ptr + i * hashes->width, hashes->width);
    snprintf(directory, MAX_PATH, "/chunks/%c", hex[0]);
    snprintf(path, MAX_PATH, "%s/%s", directory, hex);
}

/* Where a manifest lies: the host computes the digest. */
static bool manifest_path(const backend_string_t *name, char path[MAX_PATH], error_t *err)
{
    kv_store_backend_payloads_part_t part = {.tag = KV_STORE_BACKEND_PAYLOADS_PART_BYTES};
    part.val.bytes.ptr = name->ptr;
    part.val.bytes.len = name->len;
    kv_store_backend_payloads_list_part_t parts = {&part, 1};
    backend_list_u8_t digest;
    if (!kv_store_backend_payloads_sha256(&parts, &digest, err))
        return false;
    append_hex(path + sprintf(path, "/manifests/"), digest.ptr, digest.len);
    backend_list_u8_free(&digest);
    return true;
}

static bool make_directory(const char *path, error_t *err)
{
    return mkdir(path, 0700) == 0 || errno == EEXIST || fail(err, path);
}

/* Make files durable, with the directories on the way. The contract's paths are relative. */
static bool sync_paths(char (*paths)[MAX_PATH], size_t count, error_t *err)
{
    backend_string_t names[SYNC_BATCH];
    for (size_t i = 0; i < count; i++)
        backend_string_set(&names[i], paths[i] + 1);
    backend_list_string_t list = {names, count};
    return kv_store_backend_files_method_directory_sync(kv_store_backend_files_borrow_directory(root), &list, err);
}

static bool write_bytes(int file, const backend_list_u8_t *bytes)
{
    for (size_t at = 0; at < bytes->len;) {
        ssize_t count = write(file, bytes->ptr + at, bytes->len - at);
        if (count < 0 && errno != EINTR)
            return false;
        at += count < 0 ? 0 : (size_t)count;
    }
    return true;
}

/* Some bytes of an item of the running call, in this component's memory. */
static bool read_item(uint32_t item, uint64_t at, uint32_t len, backend_list_u8_t *bytes, error_t *err)
{
    kv_store_backend_payloads_part_t part = {.tag = KV_STORE_BACKEND_PAYLOADS_PART_ITEM_RANGE};
    part.val.item_range = (kv_store_backend_payloads_item_range_t){item, at, len};
    kv_store_backend_payloads_list_part_t parts = {&part, 1};
    payload_t piece;
    if (!kv_store_backend_payloads_static_payload_from_parts(&parts, &piece, err))
        return false;
    kv_store_backend_payloads_borrow_payload_t borrowed = kv_store_backend_payloads_borrow_payload(piece);
    bool read = kv_store_backend_payloads_method_payload_read(borrowed, 0, len, bytes, err);
    kv_store_backend_payloads_payload_drop_own(piece);
    return read;
}

static bool write_item(int file, const char *path, uint32_t item, uint64_t len, bool durable, error_t *err)
{
    for (uint64_t at = 0; at < len; at += PIECE) {
        backend_list_u8_t bytes;
        uint32_t piece = len - at < PIECE ? (uint32_t)(len - at) : PIECE;
        if (!read_item(item, at, piece, &bytes, err))
            return false;
        bool written = write_bytes(file, &bytes) || fail(err, path);
        backend_list_u8_free(&bytes);
        if (!written)
            return false;
    }
    return !durable || fsync(file) == 0 || fail(err, path);
}

/* Write a file whole: under a name of its own, then renamed into its directory. */
static bool write_file(const char *path, const char *directory, uint32_t item, uint64_t len, bool durable,
                       error_t *err)
{
    uint64_t number;
    char temporary[MAX_PATH];
    if (getentropy(&number, sizeof number) != 0)
        return fail(err, "getentropy");
    snprintf(temporary, sizeof temporary, "/tmp/%016llx", (unsigned long long)number);
    int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file < 0)
        return fail(err, temporary);
    bool written = write_item(file, temporary, item, len, durable, err);
    close(file);
    if (written && rename(temporary, path) != 0)
        written = errno == ENOENT && make_directory(directory, err) ? rename(temporary, path) == 0 || fail(err, path)
                                                                    : fail(err, path);
    if (!written)
        unlink(temporary);
    return written;
}

/* A file's bytes, in the host's memory and piece by piece on the way. `found` says whether there is such a file. */
static bool read_file(const char *path, bool *found, payload_t *data, error_t *err)
{
    int file = open(path, O_RDONLY);
    *found = file >= 0;
    if (file < 0)
        return errno == ENOENT || fail(err, path);
    struct stat about;
    if (fstat(file, &about) != 0) {
        close(file);
        return fail(err, path);
    }
    size_t room = (size_t)(about.st_size / PIECE) + 1, count = 0;
    payload_t *pieces = allocate(room * sizeof *pieces);
    kv_store_backend_payloads_part_t *parts = allocate(room * sizeof *parts);
    backend_list_u8_t bytes = {allocate(PIECE), 0};
    bool good = true;
    for (uint64_t at = 0; good && at < (uint64_t)about.st_size; at += bytes.len) {
        uint64_t left = (uint64_t)about.st_size - at;
        for (bytes.len = 0; good && bytes.len < PIECE && bytes.len < left;) {
            size_t want = left < PIECE ? (size_t)left : PIECE;
            ssize_t some = read(file, bytes.ptr + bytes.len, want - bytes.len);
            errno = some == 0 ? EIO : errno;
            good = some > 0 || fail(err, path);
            bytes.len += some > 0 ? (size_t)some : 0;
        }
        good = good && kv_store_backend_payloads_static_payload_from_bytes(&bytes, &pieces[count], err);
        if (good) {
            parts[count].tag = KV_STORE_BACKEND_PAYLOADS_PART_PAYLOAD;
            parts[count].val.payload = kv_store_backend_payloads_borrow_payload(pieces[count]);
            count++;
        }
    }
    kv_store_backend_payloads_list_part_t list = {parts, count};
    good = good && kv_store_backend_payloads_static_payload_from_parts(&list, data, err);
    while (count > 0)
        kv_store_backend_payloads_payload_drop_own(pieces[--count]);
    free(bytes.ptr);
    free(parts);
    free(pieces);
    close(file);
    return good;
}

bool exports_kv_store_backend_store_open(backend_string_t *uri, backend_list_tuple2_string_string_t *options,
                                         exports_kv_store_backend_store_features_t *ret, error_t *err)
{
    size_t given = options->len;
    bool has_query = memchr(uri->ptr, '?', uri->len) != NULL;
    backend_list_tuple2_string_string_free(options);
    backend_string_free(uri);
    if (given > 0)
        return refuse(err, "c-fs takes no options");
    if (has_query)
        return refuse(err, "c-fs takes no parameters in its URI");
    backend_string_t grant;
    backend_string_set(&grant, "");
    if (!kv_store_backend_files_open_directory(&grant, &root, err))
        return false;
    if (!make_directory("/chunks", err) || !make_directory("/manifests", err) || !make_directory("/tmp", err))
        return false;
    memset(ret, 0, sizeof *ret);
    backend_string_dup(&ret->label, "files through libc");
    ret->properties = KV_STORE_BACKEND_STORE_TYPES_PROPERTIES_DURABLE
                      | KV_STORE_BACKEND_STORE_TYPES_PROPERTIES_SHARED
                      | KV_STORE_BACKEND_STORE_TYPES_PROPERTIES_CHEAP_REPEAT
                      | KV_STORE_BACKEND_STORE_TYPES_PROPERTIES_WRITE_THROUGH;
    return true;
}

bool exports_kv_store_backend_store_exists(hashes_t *hashes, exports_kv_store_backend_store_list_presence_t *ret,
                                           error_t *err)
{
    (void)err;
    ret->len = count_of(hashes);
    ret->ptr = allocate(ret->len * sizeof *ret->ptr);
    for (size_t i = 0; i < ret->len; i++) {
        char path[MAX_PATH], directory[MAX_PATH];
        struct stat about;
        chunk_path(hashes, i, path, directory);
        if (stat(path, &about) == 0 && S_ISREG(about.st_mode)) {
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_PRESENCE_PRESENT;
            ret->ptr[i].val.present.is_some = true;
            ret->ptr[i].val.present.val = (uint64_t)about.st_size;
        } else {
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_PRESENCE_ABSENT;
        }
    }
    exports_kv_store_backend_store_hashes_free(hashes);
    return true;
}

bool exports_kv_store_backend_store_put_chunks(hashes_t *hashes, backend_list_u64_t *lens, bool replace,
                                               exports_kv_store_backend_store_list_put_outcome_t *ret, error_t *err)
{
    (void)err;
    ret->len = lens->len;
    ret->ptr = allocate(lens->len * sizeof *ret->ptr);
    for (size_t i = 0; i < lens->len; i++) {
        char path[MAX_PATH], directory[MAX_PATH];
        struct stat about;
        uint64_t len = lens->ptr[i];
        chunk_path(hashes, i, path, directory);
        /* Another length is what a power cut left. */
        if (!replace && stat(path, &about) == 0 && (uint64_t)about.st_size == len)
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_PUT_OUTCOME_EXISTED;
        else if (write_file(path, directory, (uint32_t)i, len, false, &ret->ptr[i].val.failed))
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_PUT_OUTCOME_STORED;
        else
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_PUT_OUTCOME_FAILED;
    }
    exports_kv_store_backend_store_hashes_free(hashes);
    backend_list_u64_free(lens);
    return true;
}

bool exports_kv_store_backend_store_get_chunks(hashes_t *hashes, exports_kv_store_backend_store_list_get_outcome_t *ret,
                                               error_t *err)
{
    (void)err;
    ret->len = count_of(hashes);
    ret->ptr = allocate(ret->len * sizeof *ret->ptr);
    for (size_t i = 0; i < ret->len; i++) {
        char path[MAX_PATH], directory[MAX_PATH];
        bool found;
        payload_t data;
        chunk_path(hashes, i, path, directory);
        if (!read_file(path, &found, &data, &ret->ptr[i].val.failed)) {
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_GET_OUTCOME_FAILED;
        } else if (found) {
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_GET_OUTCOME_FOUND;
            ret->ptr[i].val.found = data;
        } else {
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_GET_OUTCOME_MISSING;
        }
    }
    exports_kv_store_backend_store_hashes_free(hashes);
    return true;
}

bool exports_kv_store_backend_store_delete_chunks(hashes_t *hashes,
                                                  exports_kv_store_backend_store_list_delete_outcome_t *ret,
                                                  error_t *err)
{
    (void)err;
    ret->len = count_of(hashes);
    ret->ptr = allocate(ret->len * sizeof *ret->ptr);
    for (size_t i = 0; i < ret->len; i++) {
        char path[MAX_PATH], directory[MAX_PATH];
        chunk_path(hashes, i, path, directory);
        if (unlink(path) == 0 || errno == ENOENT || fail(&ret->ptr[i].val.failed, path))
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_DELETE_OUTCOME_GONE;
        else
            ret->ptr[i].tag = KV_STORE_BACKEND_STORE_TYPES_DELETE_OUTCOME_FAILED;
    }
    exports_kv_store_backend_store_hashes_free(hashes);
    return true;
}

/* Take out of a list the hashes of chunks that are there: what is left is gone. */
static void keep_absent(hashes_t *hashes)
{
    size_t gone = 0, width = hashes->width;
    for (size_t i = 0; i < count_of(hashes); i++) {
        char path[MAX_PATH], directory[MAX_PATH];
        struct stat about;
        chunk_path(hashes, i, path, directory);
        if (stat(path, &about) != 0)
            memmove(hashes->bytes.ptr + gone++ * width, hashes->bytes.ptr + i * width, width);
    }
    hashes->bytes.len = gone * width;
}

static bool sync_chunks(const hashes_t *fresh, error_t *err)
{
    static char paths[SYNC_BATCH][MAX_PATH];
    char directory[MAX_PATH];
    for (size_t done = 0; done < count_of(fresh);) {
        size_t count = 0;
        while (count < SYNC_BATCH && done < count_of(fresh))
            chunk_path(fresh, done++, paths[count++], directory);
        if (!sync_paths(paths, count, err))
            return false;
    }
    return true;
}

bool exports_kv_store_backend_store_commit(exports_kv_store_backend_store_list_hashes_t *fresh,
                                           exports_kv_store_backend_store_manifest_t *manifest,
                                           exports_kv_store_backend_store_commit_outcome_t *ret, error_t *err)
{
    char path[1][MAX_PATH];
    bool good = true;
    ret->tag = KV_STORE_BACKEND_STORE_TYPES_COMMIT_OUTCOME_PUBLISHED;
    for (size_t i = 0; good && i < fresh->len; i++)
        good = sync_chunks(&fresh->ptr[i], err);
    if (!good && err->kind == KV_STORE_BACKEND_TYPES_ERROR_KIND_INVALID) {
        /* Some chunk is not there. */
        for (size_t i = 0; i < fresh->len; i++) {
            keep_absent(&fresh->ptr[i]);
            good |= fresh->ptr[i].bytes.len > 0;
        }
        if (good) {
            exports_kv_store_backend_store_error_free(err);
            ret->tag = KV_STORE_BACKEND_STORE_TYPES_COMMIT_OUTCOME_ABSENT;
            ret->val.absent.ptr = fresh->ptr;
            ret->val.absent.len = fresh->len;
            fresh->len = 0;
        }
    } else if (good && manifest) {
        good = manifest_path(&manifest->name, path[0], err) &&
               write_file(path[0], "/manifests", 0, manifest->len, true, err) && sync_paths(path, 1, err);
    }
    if (manifest)
        exports_kv_store_backend_store_manifest_free(manifest);
    if (fresh->len > 0)
        exports_kv_store_backend_store_list_hashes_free(fresh);
    return good;
}

bool exports_kv_store_backend_store_get_manifest(backend_string_t *name,
                                                 exports_kv_store_backend_store_option_own_payload_t *ret, error_t *err)
{
    char path[MAX_PATH];
    bool good = manifest_path(name, path, err) && read_file(path, &ret->is_some, &ret->val, err);
    backend_string_free(name);
    return good;
}

bool exports_kv_store_backend_store_delete_manifest(backend_string_t *name, error_t *err)
{
    char path[MAX_PATH];
    bool good = manifest_path(name, path, err) && (unlink(path) == 0 || errno == ENOENT || fail(err, path));
    backend_string_free(name);
    return good;
}
