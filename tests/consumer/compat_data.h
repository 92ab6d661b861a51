/*
 * What the programs compat_*.c share. Each writes a part of the data of a version, or reads it with another version and checks every byte:
 *
 *     compat_stores write|read PART URI      chunks, manifests, sealed values, sequences
 *     compat_blocks write|read blocks URI    values of the block cache
 *     compat_llama write|read llama URI      states of llama.cpp
 *     compat_rows write|read rows DIRECTORY  rows of the token-exact cache
 *
 * The content is made again from seeds. A part never changes once a version was released with it: what is new gets a part of its own.
 * tests/compat/data/README.md has the rest.
 */
#ifndef COMPAT_DATA_H
#define COMPAT_DATA_H

#include "consumer.h"

/* Bytes of a seed: a row of 61 again and again, each with its number. They pack well, and none of them can change place unseen. */
static inline uint8_t *bytes_of(uint64_t seed, size_t len)
{
    enum { ROW = 61 };
    uint8_t *bytes = malloc(len ? len : 1), row[ROW];
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u;
    CHECK(bytes);
    for (size_t i = 0; i < ROW; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        row[i] = (uint8_t)(x >> 32);
    }
    for (size_t i = 0; i < len; i++)
        bytes[i] = i % ROW < 2 ? (uint8_t)(row[i % ROW] + (i / ROW >> 8 * (i % ROW))) : row[i % ROW];
    return bytes;
}

static inline int is_of(uint64_t seed, const void *data, size_t len)
{
    uint8_t *expected = bytes_of(seed, len);
    int same = memcmp(expected, data, len) == 0;
    free(expected);
    return same;
}

/* The numbers in the tensor of the model. */
enum { MODEL_ELEMENTS = 128 };

/* A little-endian number of a file. */
static inline void write_number(FILE *to, uint64_t value, size_t len)
{
    CHECK(fwrite(&value, 1, len, to) == len);
}

static inline void write_text(FILE *to, const char *text)
{
    write_number(to, strlen(text), 8);
    CHECK(fwrite(text, 1, strlen(text), to) == strlen(text));
}

/* A model: a GGUF file of one tensor. */
static inline void write_model(const char *path)
{
    uint8_t *tensor = bytes_of(55, MODEL_ELEMENTS * 4);
    FILE *to = fopen(path, "wb");
    CHECK(to && fwrite("GGUF", 1, 4, to) == 4);
    write_number(to, 3, 4), write_number(to, 1, 8), write_number(to, 1, 8);
    write_text(to, "general.architecture"), write_number(to, 8, 4), write_text(to, "llama");
    write_text(to, "output.weight");
    write_number(to, 2, 4), write_number(to, 32, 8), write_number(to, MODEL_ELEMENTS / 32, 8), write_number(to, 0, 4), write_number(to, 0, 8);
    while (ftell(to) % 32 != 0)
        write_number(to, 0, 1);
    CHECK(fwrite(tensor, 4, MODEL_ELEMENTS, to) == MODEL_ELEMENTS && fclose(to) == 0);
    free(tensor);
}

/* A function of the library that a variable names. */
static inline void *function_of(const char *variable, const char *symbol)
{
    const char *path = getenv(variable);
    CHECK(path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail(__FILE__, __LINE__, dlerror());
    void *found = dlsym(library, symbol);
    CHECK(found);
    return found;
}

/* Whether to write. */
static inline int writes(int argc, char **argv)
{
    CHECK(argc == 4 && (!strcmp(argv[1], "write") || !strcmp(argv[1], "read")));
    return !strcmp(argv[1], "write");
}

#endif
