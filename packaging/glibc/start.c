/* The start of a program where the C library is older than 2.34: it calls the constructors only if it is handed a function that does, and the
 * start files of a newer system hand it none. The version is that of x86-64. See xtask/src/package/older_glibc.rs. */

typedef void constructor(int argc, char **argv, char **environment);
typedef int program(int argc, char **argv, char **environment);

#define HIDDEN __attribute__((visibility("hidden")))

extern int former_start(program *main, int argc, char **argv, constructor *init, void (*fini)(void), void (*loader_fini)(void),
                        void *stack_end);
__asm__(".symver former_start, __libc_start_main@GLIBC_2.2.5");

/* What the linker and crti.o define. */
extern void _init(void) HIDDEN;
extern constructor *__init_array_start[] HIDDEN;
extern constructor *__init_array_end[] HIDDEN;

static void construct(int argc, char **argv, char **environment)
{
    _init();
    for (constructor **next = __init_array_start; next < __init_array_end; next++)
        (*next)(argc, argv, environment);
}

/* Called by Scrt1.o. What is destructed at the end is the loader's to call. */
HIDDEN int __libc_start_main(program *main, int argc, char **argv, constructor *init, void (*fini)(void), void (*loader_fini)(void),
                             void *stack_end)
{
    (void)init;
    return former_start(main, argc, argv, construct, fini, loader_fini, stack_end);
}
