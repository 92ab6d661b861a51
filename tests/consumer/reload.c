/*
 * dlclose, with the library's threads alive and a handle open, and dlopen again.
 *
 *     reload URI
 */
#include "consumer.h"

#include <dirent.h>
#include <pthread.h>

/* Those that the library makes once. Helpers come when they are wanted: up to 4, and up to 32 that read files. */
static int own_threads(void)
{
    char path[300], name[32];
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *comm = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!comm)
            continue;
        count += fgets(name, sizeof name, comm) && strncmp(name, "kv-store", 8) == 0 && strncmp(name, "kv-store-helper", 15) != 0;
        fclose(comm);
    }
    closedir(tasks);
    return count;
}

static const kv_store_vtable *kv;
static kv_store_v1 *kept;

static void *save_on(void *unused)
{
    (void)unused;
    for (uint64_t seed = 0; seed < 50; seed++)
        CHECK(save(kv, kept, "thread", seed, 100000) == 0);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    uint64_t seed = 0;
    size_t size = 0;
    void *lib = load_library(&kv);
    kv_store_v1 *store = kv->open(argv[1]);
    kept = kv->open(argv[1]);
    CHECK(store && kept);
    CHECK(save(kv, store, "before", 5, 300000) == 0);
    kv->close(store);
    int threads = own_threads();
    CHECK(threads > 0);

    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, save_on, NULL) == 0);
    /* As often as it was opened, so that an ordinary library is gone now. */
    CHECK(dlclose(lib) == 0);
    /* Time for the library's threads to wake up in code that may be gone. */
    usleep(50000);
    CHECK(pthread_join(thread, NULL) == 0);
    /* The one that compiled may have ended meanwhile. */
    int now = own_threads();
    if (now + 1 < threads || now > threads) {
        fprintf(stderr, "%d threads, where there were %d\n", now, threads);
        return 1;
    }
    CHECK(restore(kv, kept, "before", &seed, &size) == 0 && seed == 5);

    for (int round = 0; round < 5; round++) {
        const kv_store_vtable *again;
        lib = load_library(&again);
        CHECK(again == kv);
        store = again->open(argv[1]);
        CHECK(store);
        CHECK(restore(again, store, "before", &seed, &size) == 0 && seed == 5 && size == 300000);
        CHECK(save(again, store, "after", (uint64_t)round, 300000) == 0);
        again->close(store);
        CHECK(dlclose(lib) == 0);
    }
    /* A library that was loaded anew would bring its own. */
    CHECK(own_threads() <= threads);
    kv->close(kept);
    return 0;
}
