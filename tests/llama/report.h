/*
 * report.h - what the client tells its caller: exit codes, errors, times.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every function of the client that can fail says why itself, in one line on
 * standard error, and answers an exit code; its caller only passes that on. So
 * a failure has exactly one message, written where the cause is known.
 */
#ifndef LLAMA_KV_REPORT_H
#define LLAMA_KV_REPORT_H

/* The exit codes of llama-kv, which are also what its functions return. */
enum {
    KV_OK = 0,
    /* The store failed, or what it gave back is missing, corrupt or different. */
    KV_FAILED = 1,
    /* Wrong usage, or the library, the store or the model could not be used. */
    KV_CANNOT_RUN = 2
};

/* Print "llama-kv: <message>" to standard error and return `code`. */
int report(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Milliseconds on a clock that only goes forward, from an arbitrary start. */
double now_ms(void);

#endif /* LLAMA_KV_REPORT_H */
