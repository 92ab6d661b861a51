/*
 * hash.h - the hash by which recorder.c writes bytes down and replay.c finds them again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef LLAMA_KV_HASH_H
#define LLAMA_KV_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a over words: it tells bytes apart, and is no secret. */
static uint64_t hash(const void *from, size_t bytes)
{
    uint64_t sum = 14695981039346656037u;
    const unsigned char *at = from;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        sum = (sum ^ word) * 1099511628211u;
        sum ^= sum >> 29;
    }
    while (bytes--) sum = (sum ^ *at++) * 1099511628211u;
    return sum;
}

#endif
