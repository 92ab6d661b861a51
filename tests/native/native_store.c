/*
 * native_store.c - libkv_store_native.so: a store of the ABI kv_store_v1 in
 * plain C, on a local directory.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * It is the peer that benchmarks compare with, so it does what a careful C
 * program would and no more: one write for a put, one read for a get, straight
 * from and to the consumer's memory. It also shows that the tests of the ABI ask
 * for nothing that only our library does.
 *
 * URI: local-fs:///directory, with or without wasm:// before it. The directory
 * is made if it is not there. In it:
 *
 *     <escaped name>                manifests
 *     chunks/<first digit>/<hex>    chunks, 16 directories
 *
 * A file appears under its name only when it is complete (temporary file, then
 * rename). put_manifest makes the chunks of this handle durable first, then the
 * manifest. A chunk that was there already is trusted to have been made durable
 * by whoever put it.
 *
 * Build: cc -std=c11 -O2 -fPIC -shared -fvisibility=hidden -pthread -Iinclude
 *           -o libkv_store_native.so native_store.c native_files.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv_store_abi.h"
#include "native_files.h"

#define MAX_HASH_BYTES 64u

/* A chunk that this handle wrote and that may not be durable yet. */
struct fresh {
    char path[CHUNK_PATH_ROOM];
};

struct kv_store_v1 {
    int root;   /* the directory */
    int chunks; /* its directory of chunks */
    /* One put_manifest at a time: a second one must not publish while the first
     * is still making the chunks of both durable. */
    pthread_mutex_t barrier;
    pthread_mutex_t list; /* guards the members below */
    struct fresh *fresh;
    size_t n_fresh, room;
};

static int failed(const char *operation, const char *what)
{
    fprintf(stderr, "kv_store native: %s %s: %s\n", operation, what, strerror(errno));
    return -1;
}

static int refused(const char *operation, const char *why)
{
    fprintf(stderr, "kv_store native: %s: %s\n", operation, why);
    return -1;
}

static bool hash_is_valid(const uint8_t *hash, size_t length)
{
    return hash && length >= 1 && length <= MAX_HASH_BYTES;
}

/* "a/a1b2..." relative to the directory of chunks. */
static void chunk_path(const uint8_t *hash, size_t length, char out[CHUNK_PATH_ROOM])
{
    static const char digits[] = "0123456789abcdef";
    char *at = out;
    *at++ = digits[hash[0] >> 4];
    *at++ = '/';
    for (size_t i = 0; i < length; i++) {
        *at++ = digits[hash[i] >> 4];
        *at++ = digits[hash[i] & 15];
    }
    *at = '\0';
}

static void native_close(kv_store_v1 *self)
{
    if (!self) {
        return;
    }
    if (self->chunks >= 0) {
        close(self->chunks);
    }
    if (self->root >= 0) {
        close(self->root);
    }
    pthread_mutex_destroy(&self->barrier);
    pthread_mutex_destroy(&self->list);
    free(self->fresh);
    free(self);
}

static kv_store_v1 *native_open(const char *uri)
{
    static const char ours[] = "local-fs://";
    if (!uri) {
        refused("open", "the URI is NULL");
        return NULL;
    }
    const char *path = uri;
    if (strncmp(path, "wasm://", 7) == 0) {
        path += 7;
    }
    /* A host between "//" and "/" would be another machine's directory. */
    if (strncmp(path, ours, sizeof ours - 1) != 0 || path[sizeof ours - 1] != '/') {
        refused("open", "the URI must be local-fs:///directory");
        return NULL;
    }
    path += sizeof ours - 1;

    kv_store_v1 *self = calloc(1, sizeof *self);
    if (!self) {
        failed("open", uri);
        return NULL;
    }
    pthread_mutex_init(&self->barrier, NULL);
    pthread_mutex_init(&self->list, NULL);
    self->chunks = -1;
    self->root = open_directory(path);
    if (self->root >= 0) {
        self->chunks = open_subdirectory(self->root, "chunks");
    }
    if (self->chunks < 0) {
        failed("open", path);
        native_close(self);
        return NULL;
    }
    return self;
}

/* Remember a chunk until the next put_manifest. */
static int remember(kv_store_v1 *self, const struct fresh *chunks, size_t n)
{
    int answer = 0;
    pthread_mutex_lock(&self->list);
    if (self->n_fresh + n > self->room) {
        size_t room = (self->n_fresh + n) * 2 + 64;
        struct fresh *grown = realloc(self->fresh, room * sizeof *grown);
        if (grown) {
            self->fresh = grown;
            self->room = room;
        } else {
            answer = -1;
        }
    }
    if (answer == 0) {
        memcpy(self->fresh + self->n_fresh, chunks, n * sizeof *chunks);
        self->n_fresh += n;
    }
    pthread_mutex_unlock(&self->list);
    return answer;
}

static int native_put_chunk(kv_store_v1 *self, const uint8_t *hash, size_t hash_len,
                            const uint8_t *data, size_t data_len)
{
    struct fresh chunk;
    struct stat there;
    if (!self || !hash_is_valid(hash, hash_len) || (!data && data_len) ||
        data_len > KV_STORE_WASM_MAX_VALUE_BYTES) {
        return refused("put_chunk", "a NULL, a hash not of 1 to 64 bytes, or more than 1 GiB");
    }
    chunk_path(hash, hash_len, chunk.path);
    /* A file of another length is no chunk of ours that was completed: it is
     * replaced. */
    if (fstatat(self->chunks, chunk.path, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(there.st_mode) && (uint64_t)there.st_size == data_len) {
        return 1;
    }
    if (write_file(self->chunks, chunk.path, true, data, data_len, false) != 0) {
        return failed("put_chunk", chunk.path);
    }
    if (remember(self, &chunk, 1) != 0) {
        /* It could not be made durable later; so it must not be found. */
        unlinkat(self->chunks, chunk.path, 0);
        return failed("put_chunk", chunk.path);
    }
    return 0;
}

static int native_get_chunk(kv_store_v1 *self, const uint8_t *hash, size_t hash_len,
                            uint8_t **out_data, size_t *out_len)
{
    char path[CHUNK_PATH_ROOM];
    clear_output(out_data, out_len);
    if (!self || !hash_is_valid(hash, hash_len) || !out_data || !out_len) {
        return refused("get_chunk", "a NULL, or a hash not of 1 to 64 bytes");
    }
    chunk_path(hash, hash_len, path);
    if (read_file(self->chunks, path, out_data, out_len) != 0) {
        return errno == ENOENT ? -1 : failed("get_chunk", path);
    }
    return 0;
}

/* Beyond the ABI, as the peer of the batches: a chunk straight into memory of the
 * caller's. Its length, or -1. */
__attribute__((visibility("default"))) int64_t native_get_into(kv_store_v1 *self, const uint8_t *hash,
                                                               size_t hash_len, uint8_t *data, size_t room);

int64_t native_get_into(kv_store_v1 *self, const uint8_t *hash, size_t hash_len, uint8_t *data, size_t room)
{
    char path[CHUNK_PATH_ROOM];
    if (!self || !hash_is_valid(hash, hash_len) || (!data && room)) {
        return refused("get_into", "a NULL, or a hash not of 1 to 64 bytes");
    }
    chunk_path(hash, hash_len, path);
    return read_into(self->chunks, path, data, room);
}

/*
 * Make `*n` chunks durable. First all are handed to the disk, then each is waited
 * for: so they are written side by side, not one after another.
 *
 * A chunk that cannot be made durable is removed, and taken off the list: Linux
 * tells of a lost write once, and the file may look well afterwards. The
 * manifest fails; the next put of that chunk writes it anew.
 */
static int sync_chunks(kv_store_v1 *self, struct fresh *chunks, size_t *n)
{
    bool touched[16] = {false};
    for (size_t i = 0; i < *n; i++) {
        start_writing(self->chunks, chunks[i].path);
    }
    for (size_t i = 0; i < *n; i++) {
        const char *path = chunks[i].path;
        if (sync_file(self->chunks, path) != 0) {
            failed("put_manifest", path);
            unlinkat(self->chunks, path, 0);
            chunks[i] = chunks[--*n];
            return -1;
        }
        touched[path[0] <= '9' ? path[0] - '0' : path[0] - 'a' + 10] = true;
    }
    for (unsigned i = 0; i < 16; i++) {
        char name[2] = {"0123456789abcdef"[i], '\0'};
        if (touched[i] && sync_file(self->chunks, name) != 0) {
            return failed("put_manifest", name);
        }
    }
    return *n && fsync(self->chunks) != 0 ? failed("put_manifest", "chunks") : 0;
}

/* Make every chunk durable that was put before. After a failure the chunks are
 * remembered for the next put_manifest. */
static int flush(kv_store_v1 *self)
{
    pthread_mutex_lock(&self->list);
    struct fresh *chunks = self->fresh;
    size_t n = self->n_fresh;
    self->fresh = NULL;
    self->n_fresh = self->room = 0;
    pthread_mutex_unlock(&self->list);

    int answer = sync_chunks(self, chunks, &n);
    if (answer != 0 && remember(self, chunks, n) != 0) {
        /* Forgotten chunks must not be found, or a later manifest would count
         * on them. */
        for (size_t i = 0; i < n; i++) {
            unlinkat(self->chunks, chunks[i].path, 0);
        }
    }
    free(chunks);
    return answer;
}

static int native_put_manifest(kv_store_v1 *self, const char *name,
                               const uint8_t *data, size_t data_len)
{
    char path[MANIFEST_NAME_ROOM];
    if (!self || !name || (!data && data_len) || data_len > KV_STORE_WASM_MAX_VALUE_BYTES ||
        !escape_name(name, path)) {
        return refused("put_manifest", "a NULL, a name not of 1 to 4096 bytes of UTF-8, or more "
                       "than 1 GiB");
    }
    pthread_mutex_lock(&self->barrier);
    int answer = flush(self);
    if (answer == 0 && (write_file(self->root, path, false, data, data_len, true) != 0 ||
                        fsync(self->root) != 0)) {
        answer = failed("put_manifest", path);
    }
    pthread_mutex_unlock(&self->barrier);
    return answer;
}

static int native_get_manifest(kv_store_v1 *self, const char *name, uint8_t **out_data,
                               size_t *out_len)
{
    char path[MANIFEST_NAME_ROOM];
    clear_output(out_data, out_len);
    if (!self || !name || !out_data || !out_len || !escape_name(name, path)) {
        return refused("get_manifest", "a NULL, or a name not of 1 to 4096 bytes of UTF-8");
    }
    if (read_file(self->root, path, out_data, out_len) != 0) {
        return errno == ENOENT ? -1 : failed("get_manifest", path);
    }
    return 0;
}

static int native_delete_manifest(kv_store_v1 *self, const char *name)
{
    char path[MANIFEST_NAME_ROOM];
    if (!self || !name || !escape_name(name, path)) {
        return refused("delete_manifest", "a NULL, or a name not of 1 to 4096 bytes of UTF-8");
    }
    if (unlinkat(self->root, path, 0) != 0) {
        return errno == ENOENT ? 0 : failed("delete_manifest", path);
    }
    return fsync(self->root) != 0 ? failed("delete_manifest", path) : 0;
}

/* Ask the kernel to read ahead: it works on many files while the consumer still
 * takes the first. */
static int native_prefetch_chunks(kv_store_v1 *self, const uint8_t *hashes, size_t hash_len,
                                  size_t n_hashes)
{
    static const uint8_t none[1];
    if (!self || !hash_is_valid(n_hashes ? hashes : none, hash_len)) {
        return refused("prefetch_chunks", "a NULL, or hashes not of 1 to 64 bytes");
    }
    if (n_hashes > PTRDIFF_MAX / hash_len) {
        return refused("prefetch_chunks", "more hashes than memory can hold");
    }
    for (size_t i = 0; i < n_hashes; i++) {
        char path[CHUNK_PATH_ROOM];
        chunk_path(hashes + i * hash_len, hash_len, path);
        read_ahead(self->chunks, path);
    }
    return 0;
}

static const kv_store_vtable VTABLE = {
    .version = KV_STORE_VTABLE_VERSION,
    .open = native_open,
    .close = native_close,
    .put_chunk = native_put_chunk,
    .get_chunk = native_get_chunk,
    .put_manifest = native_put_manifest,
    .get_manifest = native_get_manifest,
    .delete_manifest = native_delete_manifest,
    .prefetch_chunks = native_prefetch_chunks,
};

__attribute__((visibility("default"))) const kv_store_vtable *kv_store_get_vtable(void)
{
    return &VTABLE;
}
