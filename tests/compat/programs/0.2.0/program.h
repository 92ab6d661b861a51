/*
 * What these programs share. Each prints a transcript: a line for each call, which is the call's text and what came of it. The
 * transcript of the library that the programs were built with is beside each of them.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOW(expression) (printf("%s = %lld\n", #expression, (long long)(expression)), fflush(stdout))

/* Without it the program cannot go on. */
#define MUST(ok) ((ok) ? (void)0 : (printf("failed: %s\n", #ok), exit(1)))

/* The function of a library, which is loaded as the headers say. */
static inline void *function(const char *symbol)
{
    static void *library;
    const char *path = getenv("KV_STORE_LIBRARY");
    if (!library)
        library = dlopen(path ? path : "libkv_store_wasm.so", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        printf("%s\n", dlerror()), exit(1);
    void *found = dlsym(library, symbol);
    if (!found)
        printf("no %s\n", symbol), exit(1);
    return found;
}

static inline uint64_t fnv(const void *data, size_t len)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const uint8_t *at = data; len > 0; at++, len--)
        hash = (hash ^ *at) * 0x100000001b3u;
    return hash;
}

/* Bytes of a seed. */
static inline void fill(void *bytes, size_t len, uint64_t seed)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u;
    for (uint8_t *at = bytes; len > 0; at++, len--) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        *at = (uint8_t)(x >> 32);
    }
}

#endif
