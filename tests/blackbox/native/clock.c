/*
 * Preloaded into a process of a test: its wall clock is off by what the file says that TESTS_CLOCK names, nanoseconds as an int64_t
 * that others may change at any time. What is counted from the start of the machine is left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    *(void **)&real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *name = getenv("TESTS_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return;
    }
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    offset = mapped == MAP_FAILED ? NULL : mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!real_gettime) {
        begin();
    }
    int answer = real_gettime(clock, time);
    if (answer == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t sum = time->tv_nsec + *offset % 1000000000;
        time->tv_sec += *offset / 1000000000 + (sum < 0 ? -1 : sum / 1000000000);
        time->tv_nsec = sum < 0 ? sum + 1000000000 : sum % 1000000000;
    }
    return answer;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return -1;
    }
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return (time_t)-1;
    }
    if (out) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}
