/*
 * What the test programs share: loading the library, bytes that can be made again, and saving and restoring as an
 * engine does. A state is cut into chunks, each under a key made of its content; the manifest lists the keys.
 */
#ifndef CONSUMER_H
#define CONSUMER_H

/* C11 alone has no usleep, barriers or gettid. Therefore this header comes before any other. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv_store_abi.h"

/* What a failed check says goes to standard output: standard error is the library's, and tests read it. _exit, because
 * a failure in a forked child or beside running threads must not run the parent's exit handlers. */
#define CHECK(ok) ((ok) ? (void)0 : fail(__FILE__, __LINE__, #ok))

static inline void fail(const char *file, int line, const char *what)
{
    char text[512];
    int len = snprintf(text, sizeof text, "%s:%d: failed: %s\n", file, line, what);
    if (write(STDOUT_FILENO, text, (size_t)len) < 0) { /* nowhere to say it */
    }
    _exit(1);
}

/* The library that KV_STORE_LIBRARY names, else the one that the loader finds. */
static inline void *load_library(const kv_store_vtable **kv)
{
    const char *path = getenv("KV_STORE_LIBRARY");
    void *lib = dlopen(path ? path : "libkv_store_wasm.so", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        fail(__FILE__, __LINE__, dlerror());
    kv_store_get_vtable_fn get;
    *(void **)&get = dlsym(lib, KV_STORE_GET_VTABLE_SYMBOL);
    CHECK(get);
    *kv = get();
    CHECK(*kv && (*kv)->version >= 1);
    return lib;
}

static inline uint64_t fnv(uint64_t hash, const void *data, size_t len)
{
    for (const uint8_t *at = data; len > 0; at++, len--)
        hash = (hash ^ *at) * 0x100000001b3u;
    return hash;
}

enum { KEY = 16, CHUNK = 48 * 1024 };

/* The key of a chunk: FNV-1a of its content from two starts, 16 bytes, big-endian. consumer.rs has the same. */
static inline void content_key(uint8_t key[KEY], const void *data, size_t len)
{
    uint64_t halves[2] = {fnv(0xcbf29ce484222325u, data, len), fnv(0x9e3779b97f4a7c15u, data, len)};
    for (int i = 0; i < KEY; i++)
        key[i] = (uint8_t)(halves[i / 8] >> (56 - 8 * (i % 8)));
}

/* The bytes of a state, the same in every process. Every other chunk is the same in all states, as shared prompts
 * are; the rest differs with the seed. */
static inline uint8_t *make_state(uint64_t seed, size_t size)
{
    uint8_t *bytes = malloc(size ? size : 1); /* no byte more: a checker of memory sees a read past it */
    CHECK(bytes);
    for (size_t at = 0; at < size; at++) {
        static _Thread_local uint64_t x;
        if (at % CHUNK == 0)
            x = (at / CHUNK + 1) * 0x9e3779b97f4a7c15u + (at / CHUNK % 2 ? seed * 0xbf58476d1ce4e5b9u : 0);
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        bytes[at] = (uint8_t)(x >> 32);
    }
    return bytes;
}

/* A manifest: seed, size, the keys in order, a sum over all of it. Whole or not is seen from the sum. */
typedef struct manifest {
    uint64_t seed, size;
    uint8_t keys[][KEY];
} manifest;

static inline size_t chunks_of(uint64_t size)
{
    return (size_t)((size + CHUNK - 1) / CHUNK);
}

/* Put the chunks, and answer the manifest (free() it) with its length. NULL: a put failed. */
static inline manifest *put_chunks(const kv_store_vtable *kv, kv_store_v1 *store, uint64_t seed, size_t size,
                                   size_t *len)
{
    size_t n = chunks_of(size), body = sizeof(manifest) + n * KEY;
    manifest *m = malloc(body + sizeof(uint64_t));
    uint8_t *bytes = make_state(seed, size);
    CHECK(m);
    m->seed = seed, m->size = size;
    int wrong = 0;
    for (size_t i = 0; i < n && !wrong; i++) {
        const uint8_t *chunk = bytes + i * CHUNK;
        size_t chunk_len = size - i * CHUNK < CHUNK ? size - i * CHUNK : CHUNK;
        content_key(m->keys[i], chunk, chunk_len);
        wrong = kv->put_chunk(store, m->keys[i], KEY, chunk, chunk_len) < 0;
    }
    free(bytes);
    uint64_t sum = fnv(0, m, body);
    memcpy((uint8_t *)m + body, &sum, sizeof sum);
    *len = body + sizeof sum;
    if (wrong) {
        free(m);
        return NULL;
    }
    return m;
}

/* 0, or -1. */
static inline int save(const kv_store_vtable *kv, kv_store_v1 *store, const char *name, uint64_t seed, size_t size)
{
    size_t len;
    manifest *m = put_chunks(kv, store, seed, size, &len);
    int answer = m ? kv->put_manifest(store, name, (const uint8_t *)m, len) : -1;
    free(m);
    return answer == 0 ? 0 : -1;
}

/* What the manifest says is there, bit for bit: 0, with the seed and the size. 1: no such manifest. -1: there is one and
 * something of it is missing or wrong, which it says on standard output. */
static inline int restore(const kv_store_vtable *kv, kv_store_v1 *store, const char *name, uint64_t *seed, size_t *size)
{
    uint8_t *data;
    size_t len;
    if (kv->get_manifest(store, name, &data, &len) < 0)
        return 1;
    const manifest *m = (const manifest *)(const void *)data;
    uint64_t sum = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* what is said here must be out before a CHECK ends the process */
    if (len >= sizeof(manifest) + sizeof sum)
        memcpy(&sum, data + len - sizeof sum, sizeof sum);
    if (len < sizeof(manifest) + sizeof sum || len != sizeof(manifest) + chunks_of(m->size) * KEY + sizeof sum ||
        sum != fnv(0, data, len - sizeof sum)) {
        printf("manifest %s of %zu bytes is not whole\n", name, len);
        return -1;
    }
    size_t n = chunks_of(m->size);
    if (kv->version >= 2)
        CHECK(kv->prefetch_chunks(store, n ? m->keys[0] : NULL, KEY, n) == 0);
    uint8_t *expected = make_state(m->seed, m->size);
    int wrong = 0;
    for (size_t i = 0; i < n && !wrong; i++) {
        uint8_t *chunk;
        size_t chunk_len, want = m->size - i * CHUNK < CHUNK ? m->size - i * CHUNK : CHUNK;
        if (kv->get_chunk(store, m->keys[i], KEY, &chunk, &chunk_len) < 0) {
            printf("manifest %s: chunk %zu is missing\n", name, i);
            wrong = 1;
            break;
        }
        if (chunk_len != want || memcmp(chunk, expected + i * CHUNK, want) != 0) {
            printf("manifest %s: chunk %zu differs\n", name, i);
            wrong = 1;
        }
        free(chunk);
    }
    *seed = m->seed, *size = m->size;
    free(expected);
    free(data);
    return wrong ? -1 : 0;
}

#endif
