/* native_files.c - see native_files.h. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "native_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv_store_abi.h"

#define MAX_NAME_BYTES 4096u

int open_subdirectory(int parent, const char *name)
{
    if (mkdirat(parent, name, 0777) != 0 && errno != EEXIST) {
        return -1;
    }
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int open_directory(const char *path)
{
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0 || errno != ENOENT) {
        return directory;
    }
    char *copy = strdup(path);
    if (!copy) {
        return -1;
    }
    for (char *at = copy + 1; *at; at++) {
        if (*at == '/') {
            *at = '\0';
            mkdir(copy, 0777); /* A failure shows in the open below. */
            *at = '/';
        }
    }
    mkdir(copy, 0777);
    directory = open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    return directory;
}

static int write_all(int file, const uint8_t *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = write(file, data + done, size - done);
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* A name for a temporary file beside `path`, with a first dot: no chunk and no
 * manifest has one. Another container may have the same process number, so
 * that it is free is only known once the file is made. */
static void temporary_name(const char *path, char out[MANIFEST_NAME_ROOM])
{
    static atomic_ulong counter;
    const char *slash = strrchr(path, '/');
    snprintf(out, MANIFEST_NAME_ROOM, "%.*s.tmp-%ld-%lu",
             slash ? (int)(slash - path + 1) : 0, path, (long)getpid(),
             atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed));
}

/* Make a temporary file for `path`; its name is left in `temporary`. */
static int create(int directory, const char *path, bool make_parent,
                  char temporary[MANIFEST_NAME_ROOM])
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    const char *slash = strchr(path, '/');
    for (int tries = 0; tries < 1000; tries++) {
        temporary_name(path, temporary);
        int file = openat(directory, temporary, flags, 0666);
        if (file >= 0) {
            return file;
        }
        if (errno == ENOENT && make_parent && slash) {
            char parent[CHUNK_PATH_ROOM];
            snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
            if (mkdirat(directory, parent, 0777) != 0 && errno != EEXIST) {
                return -1;
            }
        } else if (errno != EEXIST) {
            return -1;
        }
    }
    return -1;
}

int write_file(int directory, const char *path, bool make_parent,
               const uint8_t *data, size_t size, bool durable)
{
    char temporary[MANIFEST_NAME_ROOM];
    int file = create(directory, path, make_parent, temporary);
    if (file < 0) {
        return -1;
    }
    int answer = write_all(file, data, size);
    if (answer == 0 && durable) {
        answer = fsync(file);
    }
    int error = errno;
    if (close(file) != 0 && answer == 0) {
        answer = -1;
        error = errno;
    }
    if (answer == 0 && renameat(directory, temporary, directory, path) != 0) {
        answer = -1;
        error = errno;
    }
    if (answer != 0) {
        unlinkat(directory, temporary, 0);
        errno = error;
    }
    return answer;
}

static int read_open_file(int file, uint8_t **data, size_t *size)
{
    struct stat st;
    if (fstat(file, &st) != 0) {
        return -1;
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > KV_STORE_WASM_MAX_VALUE_BYTES) {
        errno = S_ISREG(st.st_mode) ? EFBIG : EINVAL;
        return -1;
    }
    size_t length = (size_t)st.st_size, done = 0;
    uint8_t *bytes = malloc(length ? length : 1);
    if (!bytes) {
        return -1;
    }
    while (done < length) {
        ssize_t n = read(file, bytes + done, length - done);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            errno = n == 0 ? EIO : errno; /* It got shorter while we read it. */
            free(bytes);
            return -1;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    *data = bytes;
    *size = length;
    return 0;
}

int read_file(int directory, const char *path, uint8_t **data, size_t *size)
{
    /* O_NONBLOCK: a FIFO in a file's place must not hang the consumer. */
    int file = openat(directory, path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    int answer = read_open_file(file, data, size);
    int error = errno;
    close(file);
    errno = error;
    return answer;
}

int64_t read_into(int directory, const char *path, uint8_t *data, size_t room)
{
    int file = openat(directory, path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    struct stat there;
    int64_t answer = -1;
    if (fstat(file, &there) == 0) {
        size_t size = (size_t)there.st_size, done = 0;
        if (!S_ISREG(there.st_mode) || size > room) {
            errno = EMSGSIZE;
        } else {
            while (done < size) {
                ssize_t count = pread(file, data + done, size - done, (off_t)done);
                if (count <= 0 && !(count < 0 && errno == EINTR)) {
                    break;
                }
                done += count > 0 ? (size_t)count : 0;
            }
            answer = done == size ? (int64_t)size : -1;
        }
    }
    int error = errno;
    close(file);
    errno = error;
    return answer;
}

void start_writing(int directory, const char *path)
{
    int file = openat(directory, path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file >= 0) {
        sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE);
        close(file);
    }
}

int sync_file(int directory, const char *path)
{
    int file = openat(directory, path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    int answer = fsync(file);
    int error = errno;
    close(file);
    errno = error;
    return answer;
}

void read_ahead(int directory, const char *path)
{
    int file = openat(directory, path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file >= 0) {
        posix_fadvise(file, 0, 0, POSIX_FADV_WILLNEED);
        close(file);
    }
}

/* Length of the UTF-8 character at `s`, NUL-terminated; 0 if it is none: a
 * stray or missing byte, a longer form than needed, a surrogate, past U+10FFFF. */
static size_t utf8_length(const unsigned char *s)
{
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2
                  : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) { /* True of the NUL: no reading past it. */
            return 0;
        }
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) {
        return 0;
    }
    return length;
}

static bool name_is_valid(const char *name)
{
    const unsigned char *at = (const unsigned char *)name;
    size_t total = 0;
    while (at[total]) {
        size_t n = utf8_length(at + total);
        total += n;
        if (n == 0 || total > MAX_NAME_BYTES) {
            return false;
        }
    }
    return total > 0;
}

static bool is_plain(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '_' || c == '-';
}

bool escape_name(const char *name, char out[MANIFEST_NAME_ROOM])
{
    if (!name_is_valid(name)) {
        return false;
    }
    bool reserved = name[0] == '.' || strcmp(name, "chunks") == 0;
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        bool plain = is_plain(*c) && !(reserved && c == (const unsigned char *)name);
        if (n + (plain ? 1 : 3) >= MANIFEST_NAME_ROOM) {
            XXH128_hash_t hash = XXH3_128bits(name, strlen(name));
            snprintf(out, MANIFEST_NAME_ROOM, "%%~%016llx%016llx",
                     (unsigned long long)hash.high64, (unsigned long long)hash.low64);
            return true;
        }
        if (plain) {
            out[n++] = (char)*c;
        } else {
            n += (size_t)snprintf(out + n, 4, "%%%02X", *c);
        }
    }
    out[n] = '\0';
    return true;
}

void clear_output(uint8_t **data, size_t *size)
{
    if (data) {
        *data = NULL;
    }
    if (size) {
        *size = 0;
    }
}
