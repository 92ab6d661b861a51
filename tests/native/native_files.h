/*
 * native_files.h - the files of native_store.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every function that fails answers -1 (or false) and leaves the reason in
 * errno. Paths are relative to an open directory, so that a store stays where it
 * was opened, wherever the process goes.
 */
#ifndef NATIVE_FILES_H
#define NATIVE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "a/" and the hex of 64 bytes. */
#define CHUNK_PATH_ROOM (2 + 128 + 1)
/* The longest file name of Linux. */
#define MANIFEST_NAME_ROOM (255 + 1)

/* Open a directory, made together with those above it if it is not there. */
int open_directory(const char *path);

/* The same for one directory in another. */
int open_subdirectory(int parent, const char *name);

/*
 * Write a file under a temporary name beside it, then rename it. `make_parent`:
 * make the directory in `path` if it is missing. `durable`: fsync before the
 * rename; the directory's own fsync is up to the caller.
 */
int write_file(int directory, const char *path, bool make_parent,
               const uint8_t *data, size_t size, bool durable);

/* Read a whole regular file into malloc'd memory, never NULL on success. */
int read_file(int directory, const char *path, uint8_t **data, size_t *size);

/* Read a whole regular file into memory of the caller's; its size, or -1. A file
 * that is longer than `room` fails with EMSGSIZE. */
int64_t read_into(int directory, const char *path, uint8_t *data, size_t room);

/* Let the disk begin to write a file; no promise, no error. */
void start_writing(int directory, const char *path);

/* fsync of a file or a directory. */
int sync_file(int directory, const char *path);

/* Let the disk begin to read a file; no promise, no error. */
void read_ahead(int directory, const char *path);

/*
 * The file name of a manifest. Different names give different file names, none
 * of which begins with a dot, holds a slash or is "chunks": a byte that is not a
 * letter, a digit or one of "._-" becomes %XX, and so does a first dot and the
 * first letter of "chunks". What gets too long is folded to "%~" and a 128-bit
 * hash of the name, which no escaped name looks like. False: the name is not 1
 * to 4096 bytes of UTF-8.
 */
bool escape_name(const char *name, char out[MANIFEST_NAME_ROOM]);

/* Set the outputs of a get to NULL and 0, where they are not NULL themselves. */
void clear_output(uint8_t **data, size_t *size);

#endif /* NATIVE_FILES_H */
