/*
 * original.c - reads rows as the software does that the format comes from, then rewrites them in place as it does: the hit
 * count (4 bytes at 12) at each use, and with -u the time of the last use (8 bytes at 32). Written from the format's text
 * alone; it knows nothing of the seal, whose record it passes over. Exits with 1 at the first file that it cannot read.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s: line %d: not so: %s\n", path, __LINE__, #condition); \
            return 1;                                                           \
        }                                                                       \
    } while (0)

static uint64_t number(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0) {
        value = value << 8 | at[bytes];
    }
    return value;
}

static uint32_t crc32c(const uint8_t *bytes, uint64_t length)
{
    uint32_t crc = 0xffffffffu;
    for (uint64_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    return ~crc;
}

/* The quantisations that it has names for. */
enum { KNOWN_QUANTS = 30 };

static int use(const char *path, int last_used)
{
    struct stat stat;
    uint8_t hits[4], time[8];
    unsigned seen = 0;
    int file = open(path, O_RDWR);
    CHECK(file >= 0 && fstat(file, &stat) == 0 && stat.st_size >= 80);
    uint64_t size = (uint64_t)stat.st_size;
    uint8_t *row = (uint8_t *)malloc(size);
    CHECK(row != NULL && pread(file, row, size, 0) == stat.st_size);
    CHECK(memcmp(row, "KVC\1", 4) == 0 && row[5] <= 5);
    uint64_t offset = number(row + 48, 8), length = number(row + 56, 8);
    CHECK(number(row + 40, 8) == length && offset <= size && size - offset == length);
    uint64_t prompt = number(row + 72, 4);
    CHECK(prompt <= size - 80);
    const uint8_t *at = row + 80 + prompt;
    uint64_t left = number(at - 4, 4);
    CHECK(at + left == row + offset);
    while (left > 0) {
        CHECK(left >= 5);
        uint64_t value = number(at + 1, 4);
        CHECK(value <= left - 5);
        switch (at[0]) {
        case 1: case 4: CHECK(value == 32); break;
        case 2: CHECK(value == 1 && at[5] <= 2); break;
        case 3: CHECK(value == 1 && at[5] < KNOWN_QUANTS); break;
        case 9: CHECK(value == 4 * number(row + 8, 4)); break;
        }
        seen |= at[0] < 32 ? 1u << at[0] : 0;
        at += 5 + value;
        left -= 5 + value;
    }
    CHECK((seen & 0x21e) == 0x21e); /* 1, 2, 3, 4, 9 */
    CHECK(crc32c(row + offset, length) == (uint32_t)number(row + 64, 4));

    uint64_t count = number(row + 12, 4) + 1, now = number(row + 24, 8) + 12345;
    for (int i = 0; i < 8; i++) {
        hits[i & 3] = (uint8_t)(count >> 8 * (i & 3));
        time[i] = (uint8_t)(now >> 8 * i);
    }
    CHECK(pwrite(file, hits, 4, 12) == 4);
    if (last_used) {
        CHECK(pwrite(file, time, 8, 32) == 8);
    }
    free(row);
    close(file);
    return 0;
}

int main(int argc, char **argv)
{
    int last_used = argc > 1 && strcmp(argv[1], "-u") == 0;
    for (int i = 1 + last_used; i < argc; i++) {
        if (use(argv[i], last_used)) {
            return 1;
        }
    }
    return 0;
}
