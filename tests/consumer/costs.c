/*
 * What operations cost: costs URI WHAT COUNT SIZE
 *
 * Between two writes to descriptor -1, which a trace of system calls shows, it does one of these with COUNT chunks of
 * SIZE bytes, and then prints how many bytes were copied in that time, by the library or anything else in the process:
 *
 *     put       puts them, new           publish   publishes the manifest that follows them
 *     get       gets them                again     puts them, and publishes, a second time
 *     prefetch  prefetches them          hit       gets them when they were prefetched
 */
#include "consumer.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>

/* Copies of less are headers, keys, lists, and what a call has to remember while it waits. */
enum { LARGE = 2048 };

static atomic_size_t copied;

static void *copy(void *to, const void *from, size_t len)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    if (len >= LARGE)
        atomic_fetch_add(&copied, len);
    if (t <= f || t >= f + len) {
        __asm__ volatile("rep movsb" : "+D"(t), "+S"(f), "+c"(len) : : "memory");
    } else {
        t += len - 1, f += len - 1;
        __asm__ volatile("std; rep movsb; cld" : "+D"(t), "+S"(f), "+c"(len) : : "memory");
    }
    return to;
}

/* In place of the C library's, for all of the process. */
void *memmove(void *to, const void *from, size_t len)
{
    return copy(to, from, len);
}

void *memcpy(void *restrict to, const void *restrict from, size_t len)
{
    return copy(to, from, len);
}

/* A system call, so that the trace shows it. Otherwise the kernel answers without one. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
    return (int)syscall(SYS_clock_gettime, clock, time);
}

static const kv_store_vtable *kv;
static kv_store_v1 *store;
static size_t count, size;
static uint8_t *bytes;

static void key_of(uint8_t key[KEY], char kind, size_t n)
{
    for (int i = 0; i < KEY; i++)
        key[i] = (uint8_t)(i < 8 ? n >> (8 * i) : (size_t)kind);
    key[15] = key[0];
}

static void put_all(char kind, int answer)
{
    uint8_t key[KEY];
    for (size_t n = 0; n < count; n++) {
        key_of(key, kind, n);
        CHECK(kv->put_chunk(store, key, KEY, bytes, size) == answer);
    }
}

static void publish(void)
{
    CHECK(kv->put_manifest(store, "costs", (const uint8_t *)"x", 1) == 0);
}

static void get_all(char kind)
{
    uint8_t key[KEY];
    for (size_t n = 0; n < count; n++) {
        uint8_t *data;
        size_t len;
        key_of(key, kind, n);
        CHECK(kv->get_chunk(store, key, KEY, &data, &len) == 0 && len == size && memcmp(data, bytes, len) == 0);
        free(data);
    }
}

static void prefetch_all(char kind)
{
    uint8_t *keys = malloc(count * KEY);
    CHECK(keys);
    for (size_t n = 0; n < count; n++)
        key_of(keys + n * KEY, kind, n);
    CHECK(kv->prefetch_chunks(store, keys, KEY, count) == 0);
    free(keys);
}

static void mark(void)
{
    CHECK(write(-1, "mark", 4) < 0);
}

static void act(const char *what, char kind, bool marked)
{
    bool put = strcmp(what, "put") == 0, publishes = strcmp(what, "publish") == 0;
    if (!put)
        put_all(kind, 0);
    if (!put && !publishes)
        publish();
    if (strcmp(what, "hit") == 0)
        prefetch_all(kind);
    if (marked)
        mark();
    size_t before = atomic_load(&copied);
    if (put)
        put_all(kind, 0);
    else if (publishes)
        publish();
    else if (strcmp(what, "again") == 0)
        put_all(kind, 1), publish();
    else if (strcmp(what, "prefetch") == 0)
        prefetch_all(kind);
    else if (strcmp(what, "get") == 0 || strcmp(what, "hit") == 0)
        get_all(kind);
    else
        CHECK(!"no such thing to do");
    size_t after = atomic_load(&copied);
    if (marked) {
        mark();
        printf("%zu\n", after - before);
    }
    publish();
}

int main(int argc, char **argv)
{
    CHECK(argc == 5);
    count = (size_t)atol(argv[3]), size = (size_t)atol(argv[4]);
    bytes = malloc(size);
    CHECK(bytes && count);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 251);
    load_library(&kv);
    store = kv->open(argv[1]);
    CHECK(store);
    /* What is made the first time is not what an operation costs. */
    act(argv[2], 'w', false);
    act(argv[2], 'v', false);
    act(argv[2], 'm', true);
    kv->close(store);
    return 0;
}
