/*
 * Saves that outrun a bound: bounded URI write SAVES CHUNKS [PROCESS]
 *                            bounded URI read SAVES CHUNKS [PROCESS]
 *                            bounded URI hold
 *
 * write  publishes saves of so many chunks of 64 KiB each, no two alike, and prints how many were: `saved N`. A save ends with the
 *        first put that is refused.
 * read   prints how many of them are whole, and how many name a chunk that is gone: `whole N`, `dangling N`. A wrong byte fails.
 * hold   opens the store, and closes it when standard input ends.
 */
#include "consumer.h"

enum { SIZE = 64 * 1024 };

static const kv_store_vtable *kv;
static uint8_t content[SIZE];

static void fill(unsigned long process, unsigned long save, unsigned long chunk)
{
    uint64_t state = (process * 1000003 + save) * 1000003 + chunk + 1;
    for (size_t at = 0; at < SIZE; at += 8) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(content + at, &state, 8);
    }
}

static int write_save(kv_store_v1 *store, unsigned long process, unsigned long save, unsigned long chunks, uint8_t *keys,
                      const char *name)
{
    for (unsigned long chunk = 0; chunk < chunks; chunk++) {
        fill(process, save, chunk);
        content_key(keys + chunk * KEY, content, SIZE);
        if (kv->put_chunk(store, keys + chunk * KEY, KEY, content, SIZE) < 0)
            return 0;
    }
    return kv->put_manifest(store, name, keys, chunks * KEY) == 0;
}

/* 1: it is whole; 0: there is none; -1: a chunk is gone. */
static int read_save(kv_store_v1 *store, unsigned long process, unsigned long save, unsigned long chunks, const char *name)
{
    uint8_t *keys = NULL, *found = NULL;
    size_t len = 0;
    if (kv->get_manifest(store, name, &keys, &len) < 0)
        return 0;
    CHECK(len == chunks * KEY);
    int whole = 1;
    for (unsigned long chunk = 0; chunk < chunks; chunk++) {
        size_t bytes = 0;
        if (kv->get_chunk(store, keys + chunk * KEY, KEY, &found, &bytes) < 0) {
            whole = -1;
            break;
        }
        fill(process, save, chunk);
        CHECK(bytes == SIZE && memcmp(found, content, SIZE) == 0);
        free(found);
    }
    free(keys);
    return whole;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    load_library(&kv);
    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);
    if (strcmp(argv[2], "hold") == 0) {
        char byte;
        while (read(STDIN_FILENO, &byte, 1) > 0) {
        }
        kv->close(store);
        return 0;
    }
    CHECK(argc >= 5);
    unsigned long saves = strtoul(argv[3], NULL, 10), chunks = strtoul(argv[4], NULL, 10);
    unsigned long process = argc > 5 ? strtoul(argv[5], NULL, 10) : 0, saved = 0, whole = 0, dangling = 0;
    uint8_t *keys = malloc(chunks * KEY + 1);
    CHECK(keys);
    for (unsigned long save = 0; save < saves; save++) {
        char name[64];
        snprintf(name, sizeof name, "save-%lu-%lu", process, save);
        if (strcmp(argv[2], "write") == 0) {
            saved += (unsigned long)write_save(store, process, save, chunks, keys, name);
        } else {
            int found = read_save(store, process, save, chunks, name);
            whole += found == 1, dangling += found < 0;
        }
    }
    free(keys);
    kv->close(store);
    if (strcmp(argv[2], "write") == 0)
        printf("saved %lu\n", saved);
    else
        printf("whole %lu\ndangling %lu\n", whole, dangling);
    return 0;
}
