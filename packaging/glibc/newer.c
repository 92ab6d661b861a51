/* Functions that the C library has had since 2.30 (gettid) and 2.33, over those that it had before and has still. 1 is the layout of `struct stat`
 * on x86-64. See xtask/src/package/older_glibc.rs. */

#include <sys/syscall.h>

struct stat64;
extern long syscall(long number, ...);

#define HIDDEN __attribute__((visibility("hidden")))
#define LAYOUT 1

extern int __xstat64(int layout, const char *path, struct stat64 *out);
extern int __lxstat64(int layout, const char *path, struct stat64 *out);
extern int __fxstat64(int layout, int file, struct stat64 *out);
extern int __fxstatat64(int layout, int folder, const char *path, struct stat64 *out, int flags);

HIDDEN int stat64(const char *path, struct stat64 *out)
{
    return __xstat64(LAYOUT, path, out);
}

HIDDEN int lstat64(const char *path, struct stat64 *out)
{
    return __lxstat64(LAYOUT, path, out);
}

HIDDEN int fstat64(int file, struct stat64 *out)
{
    return __fxstat64(LAYOUT, file, out);
}

HIDDEN int fstatat64(int folder, const char *path, struct stat64 *out, int flags)
{
    return __fxstatat64(LAYOUT, folder, path, out, flags);
}

/* The same layout, so the same functions, for C. */
HIDDEN int stat(const char *path, struct stat64 *out)
{
    return __xstat64(LAYOUT, path, out);
}

HIDDEN int fstat(int file, struct stat64 *out)
{
    return __fxstat64(LAYOUT, file, out);
}

HIDDEN int lstat(const char *path, struct stat64 *out)
{
    return __lxstat64(LAYOUT, path, out);
}

HIDDEN int gettid(void)
{
    return (int)syscall(SYS_gettid);
}
