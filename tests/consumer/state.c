/*
 * An engine's saves and restores, across processes.
 *
 *     state save URI NAME SIZE       bytes that depend on NAME, as chunks and a manifest
 *     state restore URI NAME SIZE    in another process: the same bytes, bit for bit
 *     state put URI NAME SIZE        chunks only; says "put" and waits to be killed
 *     state rounds URI SEED COUNT    saves of random size under NAMES names; says "saved NAME SEED" after each
 *     state audit URI                each of these names: absent or whole; says "there NAME SEED"
 */
#include "consumer.h"

enum { NAMES = 3 };

static uint64_t seed_of(const char *name)
{
    return fnv(7, name, strlen(name));
}

static void rounds(const kv_store_vtable *kv, kv_store_v1 *store, uint64_t seed, int count)
{
    for (int round = 0; round < count; round++) {
        char name[32];
        uint64_t x = fnv(seed, &round, sizeof round);
        snprintf(name, sizeof name, "state-%d", (int)(x % NAMES));
        /* 0 to about 9 chunks, mostly with a short last one. */
        CHECK(save(kv, store, name, x, x / NAMES % 450000) == 0);
        printf("saved %s %llu\n", name, (unsigned long long)x);
        fflush(stdout);
    }
}

static void audit(const kv_store_vtable *kv, kv_store_v1 *store)
{
    for (int i = 0; i < NAMES; i++) {
        char name[32];
        uint64_t seed = 0;
        size_t size;
        snprintf(name, sizeof name, "state-%d", i);
        int answer = restore(kv, store, name, &seed, &size);
        fflush(stdout);
        CHECK(answer >= 0);
        if (answer == 0)
            printf("there %s %llu\n", name, (unsigned long long)seed);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    const kv_store_vtable *kv;
    load_library(&kv);
    kv_store_v1 *store = kv->open(argv[2]);
    CHECK(store);
    const char *command = argv[1];
    if (strcmp(command, "audit") == 0) {
        audit(kv, store);
    } else {
        CHECK(argc == 5);
        const char *name = argv[3];
        size_t size = strtoul(argv[4], NULL, 10);
        if (strcmp(command, "save") == 0) {
            CHECK(save(kv, store, name, seed_of(name), size) == 0);
        } else if (strcmp(command, "restore") == 0) {
            uint64_t seed = 0;
            size_t found = 0;
            CHECK(restore(kv, store, name, &seed, &found) == 0);
            CHECK(seed == seed_of(name) && found == size);
        } else if (strcmp(command, "put") == 0) {
            size_t len;
            /* Another seed than `save` has, so that what it puts is not there already. */
            manifest *m = put_chunks(kv, store, seed_of(name) + 1, size, &len);
            CHECK(m);
            puts("put");
            fflush(stdout);
            for (;;)
                pause();
        } else if (strcmp(command, "rounds") == 0) {
            rounds(kv, store, strtoull(name, NULL, 10), (int)size);
        } else {
            CHECK(!"a command that is known");
        }
    }
    kv->close(store);
    return 0;
}
