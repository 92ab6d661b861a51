/*
 * The process ends while threads are inside calls: nothing of the library may be torn down under them.
 *
 *     exits return|exit|thread URI WAITING MICROSECONDS
 *
 * Four threads save to URI, one opens stores below it, one waits inside a call to the probe at WAITING. After the given
 * time main returns, main calls exit, or another thread does.
 */
#include "consumer.h"

#include <pthread.h>

/* Not main's own: they outlive its return. */
static const kv_store_vtable *kv;
static kv_store_v1 *store, *waiting;
static char uri[4096];
static pthread_barrier_t all_there;

static void *save_on(void *number)
{
    char name[32];
    snprintf(name, sizeof name, "thread-%d", (int)(intptr_t)number);
    pthread_barrier_wait(&all_there);
    for (uint64_t seed = 0;; seed++)
        CHECK(save(kv, store, name, seed, 150000) == 0);
    return NULL;
}

static void *open_on(void *number)
{
    char other[4200];
    (void)number;
    pthread_barrier_wait(&all_there);
    for (int round = 0;; round++) {
        snprintf(other, sizeof other, "%s/%d", uri, round % 10);
        kv_store_v1 *opened = kv->open(other);
        CHECK(opened);
        kv->close(opened);
    }
    return NULL;
}

static void *wait_on(void *number)
{
    uint8_t *data;
    size_t len;
    (void)number;
    pthread_barrier_wait(&all_there);
    for (;;)
        CHECK(kv->get_manifest(waiting, "do:nap", &data, &len) < 0);
    return NULL;
}

static void *exit_on(void *after)
{
    pthread_barrier_wait(&all_there);
    usleep((useconds_t)(uintptr_t)after);
    exit(0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 5);
    const char *how = argv[1];
    void *after = (void *)(uintptr_t)strtoul(argv[4], NULL, 10);
    load_library(&kv);
    snprintf(uri, sizeof uri, "%s", argv[2]);
    store = kv->open(uri);
    waiting = kv->open(argv[3]);
    CHECK(store && waiting);

    void *(*const work[])(void *) = {save_on, save_on, save_on, save_on, open_on, wait_on};
    CHECK(pthread_barrier_init(&all_there, NULL, 7) == 0);
    pthread_t thread;
    for (intptr_t i = 0; i < 6; i++)
        CHECK(pthread_create(&thread, NULL, work[i], (void *)i) == 0);
    if (strcmp(how, "thread") == 0) {
        CHECK(pthread_create(&thread, NULL, exit_on, after) == 0);
        for (;;)
            pause();
    }
    pthread_barrier_wait(&all_there);
    usleep((useconds_t)(uintptr_t)after);
    if (strcmp(how, "exit") == 0)
        exit(0);
    return 0;
}
