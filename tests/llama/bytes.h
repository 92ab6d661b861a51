/*
 * bytes.h - little-endian numbers in byte strings, and the chunk key.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The accessors do no bounds check: each caller checks a whole record once,
 * then reads its fields.
 */
#ifndef LLAMA_KV_BYTES_H
#define LLAMA_KV_BYTES_H

#include <stdint.h>

/* A chunk's key in the store: XXH3-64 of its bytes, big-endian, so that its hex
 * is how that hash is usually printed. */
#define KEY_BYTES 8u

static inline uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

static inline uint64_t read_u64(const uint8_t *p)
{
    return (uint64_t)read_u32(p) | (uint64_t)read_u32(p + 4) << 32;
}

static inline uint8_t *write_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> 8 * i);
    }
    return p + 4;
}

static inline uint8_t *write_u64(uint8_t *p, uint64_t v)
{
    return write_u32(write_u32(p, (uint32_t)v), (uint32_t)(v >> 32));
}

static inline void write_key(uint8_t key[KEY_BYTES], uint64_t hash)
{
    for (unsigned i = 0; i < KEY_BYTES; i++) {
        key[i] = (uint8_t)(hash >> 8 * (KEY_BYTES - 1 - i));
    }
}

#endif /* LLAMA_KV_BYTES_H */
