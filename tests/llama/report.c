/* report.c - see report.h. SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

int report(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("llama-kv: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
