/*
 * fork(): the child cannot use what the parent opened and can open for itself; the parent does not notice.
 *
 *     forks idle URI            one thread, one fork, and a fork of the child's own
 *     forks busy URI            other threads are inside calls while the process forks, again and again
 *     forks opening URI         other threads open and close stores meanwhile
 *     forks compile URI OTHER   OTHER's component was compiled before the fork, URI's the child must compile
 *     forks compiling URI OTHER MICROSECONDS   the same, with another thread inside OTHER's open, so long, at the fork
 *     forks paused URI VARIABLE the fork meets another thread of the first open where it reads that variable
 *     forks buffered URI        a store that buffers: the child neither flushes nor discards what the parent put
 */
#include "consumer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

static const kv_store_vtable *kv;
static kv_store_v1 *store;
static const char *uri;
static atomic_int stop, calls;

static void save_and_restore(kv_store_v1 *on, const char *name, uint64_t seed)
{
    uint64_t found = 0;
    size_t size = 0;
    CHECK(save(kv, on, name, seed, 200000) == 0);
    CHECK(restore(kv, on, name, &found, &size) == 0 && found == seed && size == 200000);
}

/* Every call on what the parent opened is negative, and close returns. */
static void refuse(kv_store_v1 *inherited)
{
    const uint8_t *hash = (const uint8_t *)"0123456789abcdef";
    uint8_t *data = (uint8_t *)1;
    size_t len = 1;
    CHECK(kv->put_chunk(inherited, hash, 16, hash, 16) < 0);
    CHECK(kv->get_chunk(inherited, hash, 16, &data, &len) < 0 && !data && len == 0);
    CHECK(kv->put_manifest(inherited, "child", hash, 16) < 0);
    data = (uint8_t *)1, len = 1;
    CHECK(kv->get_manifest(inherited, "of the parent", &data, &len) < 0 && !data && len == 0);
    CHECK(kv->delete_manifest(inherited, "of the parent") < 0);
    CHECK(kv->prefetch_chunks(inherited, hash, 16, 1) < 0);
    CHECK(kv->prefetch_chunks(inherited, NULL, 16, 0) < 0);
    kv->close(inherited);
}

static void open_own(const char *name)
{
    kv_store_v1 *own = kv->open(uri);
    CHECK(own);
    save_and_restore(own, name, (uint64_t)getpid());
    kv->close(own);
}

/* The child leaves by exit, as an engine's does: what the library left to run there would run. */
static void forked(void (*child)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        child();
        exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void grandchild(void)
{
    open_own("grandchild");
}

static void child_alone(void)
{
    refuse(store);
    kv_store_v1 *own = kv->open(uri);
    CHECK(own);
    save_and_restore(own, "child", 2);
    store = own;
    forked(grandchild);
    save_and_restore(own, "child", 3);
    kv->close(own);
}

static void child_of_many(void)
{
    refuse(store);
    open_own("child");
}

static void child_opens(void)
{
    open_own("child");
}

static void child_refuses(void)
{
    refuse(store);
}

static void *save_on(void *number)
{
    char name[32];
    snprintf(name, sizeof name, "thread-%d", (int)(intptr_t)number);
    for (uint64_t seed = 0; !stop; seed++, calls++)
        save_and_restore(store, name, seed);
    return NULL;
}

static void *open_on(void *number)
{
    char other[4096];
    for (int round = 0; !stop; round++, calls++) {
        snprintf(other, sizeof other, "%s/%d-%d", uri, (int)(intptr_t)number, round % 5);
        kv_store_v1 *opened = kv->open(other);
        CHECK(opened);
        kv->close(opened);
    }
    return NULL;
}

static void *compile_on(void *other)
{
    calls++;
    kv_store_v1 *opened = kv->open(other);
    CHECK(opened);
    kv->close(opened);
    return NULL;
}

/* The library's getenv, too: it finds the program's own first. Holds up the thread that asks for one variable. */
static const char *pause_at;
static atomic_int paused, go_on, opened;

char *getenv(const char *name)
{
    extern char **environ;
    size_t len = strlen(name);
    char *found = NULL;
    if (pause_at && strcmp(name, pause_at) == 0 && gettid() != getpid() && !paused) {
        paused = 1;
        while (!go_on)
            usleep(100);
    }
    for (char **at = environ; at && *at && !found; at++)
        if (strncmp(*at, name, len) == 0 && (*at)[len] == '=')
            found = *at + len + 1;
    return found;
}

static void *open_first(void *unused)
{
    (void)unused;
    open_own("of the parent");
    opened = 1;
    return NULL;
}

static void fork_at(const char *variable)
{
    pthread_t thread;
    pause_at = variable;
    CHECK(pthread_create(&thread, NULL, open_first, NULL) == 0);
    /* It need not read the variable: then there is nothing to be caught in. */
    while (!paused && !opened)
        usleep(100);
    forked(child_opens);
    go_on = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    printf(paused ? "paused\n" : "not read\n");
    open_own("of the parent");
}

/* Fork again and again while the threads work; each time after they got on, so that they are caught in other places. */
static void with_threads(void *(*work)(void *), void (*child)(void), int forks)
{
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < forks; i++) {
        int before = calls;
        while (calls == before)
            usleep(100);
        forked(child);
    }
    stop = 1;
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    load_library(&kv);
    const char *mode = argv[1];
    uri = argv[2];
    if (strncmp(mode, "compil", 6) == 0) {
        CHECK(argc == 5 || (argc == 4 && strcmp(mode, "compile") == 0));
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, compile_on, argv[3]) == 0);
        if (strcmp(mode, "compile") == 0)
            CHECK(pthread_join(thread, NULL) == 0);
        while (!calls)
            usleep(100);
        usleep(strcmp(mode, "compiling") == 0 ? (useconds_t)atoi(argv[4]) : 0);
        forked(child_opens);
        if (strcmp(mode, "compiling") == 0)
            CHECK(pthread_join(thread, NULL) == 0);
        open_own("of the parent");
        return 0;
    }

    if (strcmp(mode, "paused") == 0) {
        CHECK(argc == 4);
        fork_at(argv[3]);
        return 0;
    }

    store = kv->open(uri);
    CHECK(store);
    kv_store_v1 *mine = store;
    if (strcmp(mode, "buffered") == 0) {
        uint8_t *data;
        size_t len;
        CHECK(kv->put_chunk(store, (const uint8_t *)"parent", 6, (const uint8_t *)"buffered", 8) == 0);
        forked(child_refuses);
        CHECK(kv->put_manifest(store, "of the parent", (const uint8_t *)"parent", 6) == 0);
        CHECK(kv->get_chunk(store, (const uint8_t *)"parent", 6, &data, &len) == 0 && len == 8);
        free(data);
    } else {
        save_and_restore(store, "of the parent", 1);
        if (strcmp(mode, "idle") == 0)
            forked(child_alone);
        else if (strcmp(mode, "busy") == 0)
            with_threads(save_on, child_of_many, 20);
        else if (strcmp(mode, "opening") == 0)
            with_threads(open_on, child_opens, 20);
        else
            CHECK(!"a mode that is known");
        uint64_t seed = 0;
        size_t size;
        CHECK(restore(kv, mine, "of the parent", &seed, &size) == 0 && seed == 1);
        save_and_restore(mine, "of the parent", 4);
    }
    kv->close(mine);
    return 0;
}
