/*
 * The library leaves signals to the consumer.
 *
 *     signals dispositions URI PROBE   opening, calls and a guest's trap change no signal's handler
 *     signals before URI PROBE         the consumer's own SIGSEGV handler, installed before the library is loaded,
 *     signals after URI PROBE          or after the first traps, catches the consumer's own fault
 *     signals stack URI PROBE          the alternate stack of the consumer's thread, or that it has none, stays
 *     signals threads URI PROBE        every thread that is not the consumer's has all signals blocked, and a signal
 *                                      sent to the process waits for the consumer's own thread
 */
#include "consumer.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static const kv_store_vtable *kv;
static kv_store_v1 *store, *probe;

static void trap(void)
{
    uint8_t *data;
    size_t len;
    CHECK(kv->get_manifest(probe, "do:trap", &data, &len) < 0);
    CHECK(kv->get_manifest(probe, "do:recurse", &data, &len) < 0);
    CHECK(kv->get_manifest(probe, "do:loop", &data, &len) < 0);
}

static void use(char **argv)
{
    uint64_t seed;
    size_t size;
    load_library(&kv);
    store = kv->open(argv[2]);
    probe = kv->open(argv[3]);
    CHECK(store && probe);
    CHECK(save(kv, store, "state", 1, 300000) == 0);
    CHECK(restore(kv, store, "state", &seed, &size) == 0);
    trap();
    CHECK(save(kv, store, "state", 2, 300000) == 0);
}

static void dispositions(char **argv)
{
    static struct sigaction before[65], after;
    for (int s = 1; s < 65; s++)
        sigaction(s, NULL, &before[s]);
    use(argv);
    for (int s = 1; s < 65; s++) {
        int known = sigaction(s, NULL, &after) == 0;
        if (known && (after.sa_handler != before[s].sa_handler || after.sa_flags != before[s].sa_flags)) {
            printf("the handler of signal %d was changed\n", s);
            CHECK(!"the signal is as it was");
        }
    }
}

static void *use_without(void *argv)
{
    stack_t stack;
    CHECK(sigaltstack(NULL, &stack) == 0 && (stack.ss_flags & SS_DISABLE));
    use(argv);
    CHECK(sigaltstack(NULL, &stack) == 0 && (stack.ss_flags & SS_DISABLE));
    return NULL;
}

/* A consumer's crash reporter has a stack of its own for handlers, and may look at it or free it. */
static void stack(char **argv)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, use_without, argv) == 0);
    CHECK(pthread_join(thread, NULL) == 0);

    stack_t mine, found;
    memset(&mine, 0, sizeof mine);
    mine.ss_size = 65536;
    mine.ss_sp = malloc(mine.ss_size);
    CHECK(mine.ss_sp && sigaltstack(&mine, NULL) == 0);
    use(argv);
    CHECK(sigaltstack(NULL, &found) == 0 && found.ss_sp == mine.ss_sp && found.ss_size == mine.ss_size);
}

static sigjmp_buf back;
static volatile uint8_t *volatile forbidden;
static void *volatile fault_at;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    fault_at = info->si_addr;
    siglongjmp(back, 1);
}

static void install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    for (const int *s = (const int[]){SIGSEGV, SIGBUS, SIGILL, SIGFPE, 0}; *s; s++)
        CHECK(sigaction(*s, &action, NULL) == 0);
}

static void own_fault(void)
{
    forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)forbidden != MAP_FAILED);
    fault_at = NULL;
    if (sigsetjmp(back, 1) == 0) {
        *forbidden = 1;
        CHECK(!"the write faults");
    }
    CHECK(fault_at == (void *)forbidden);
}

/* The bits of SigBlk, signal 1 first, of one thread. */
static uint64_t blocked(const char *task)
{
    char path[300], line[256];
    unsigned long long mask = 0;
    int found = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *status = fopen(path, "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        found |= sscanf(line, "SigBlk: %llx", &mask) == 1;
    fclose(status);
    CHECK(found);
    return mask;
}

static volatile sig_atomic_t taken_by;

static void on_user(int number)
{
    (void)number;
    taken_by = gettid();
}

static void threads(char **argv)
{
    sigset_t before;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
    use(argv);
    int others = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
            continue;
        others++;
        uint64_t mask = blocked(entry->d_name);
        for (int s = 1; s <= SIGRTMAX; s++) {
            /* Two cannot be blocked, and the two below SIGRTMIN are the C library's own. */
            if (s == SIGKILL || s == SIGSTOP || (s >= 32 && s < SIGRTMIN) || (mask >> (s - 1) & 1))
                continue;
            printf("thread %s takes signal %d\n", entry->d_name, s);
            CHECK(!"a thread of the library blocks every signal");
        }
    }
    closedir(tasks);
    CHECK(others >= 2);
    sigset_t mask;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0);
    for (int s = 1; s <= SIGRTMAX; s++)
        CHECK(sigismember(&mask, s) == sigismember(&before, s));

    /* While the consumer's thread blocks the signal it must stay pending: nobody else may take it. */
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_user;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    sigset_t user, pending;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    for (int round = 0; round < 20; round++) {
        taken_by = 0;
        CHECK(sigprocmask(SIG_BLOCK, &user, NULL) == 0);
        CHECK(kill(getpid(), SIGUSR1) == 0);
        CHECK(save(kv, store, "state", (uint64_t)round, 100000) == 0);
        CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) && !taken_by);
        CHECK(sigprocmask(SIG_UNBLOCK, &user, NULL) == 0);
        CHECK(taken_by == getpid());
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    const char *mode = argv[1];
    if (strcmp(mode, "dispositions") == 0) {
        dispositions(argv);
    } else if (strcmp(mode, "threads") == 0) {
        threads(argv);
    } else if (strcmp(mode, "stack") == 0) {
        stack(argv);
    } else {
        CHECK(strcmp(mode, "before") == 0 || strcmp(mode, "after") == 0);
        if (strcmp(mode, "before") == 0)
            install();
        use(argv);
        if (strcmp(mode, "after") == 0)
            install();
        own_fault();
        trap();
        own_fault();
        CHECK(save(kv, store, "state", 3, 300000) == 0);
    }
    kv->close(probe);
    kv->close(store);
    return 0;
}
