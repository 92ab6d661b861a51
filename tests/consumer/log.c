/*
 * Lines of the log in a function of the program's:
 *
 *     log URI
 *
 * prints "LEVEL: LINE" for each. On the way it holds set_log to what its header says; what is left on standard
 * error is for the test to look at.
 */
#include "consumer.h"

#include <sys/wait.h>

#include "kv_store_wasm.h"

typedef struct lines {
    int taken;
    int least_mattering;
} lines;

static void take(void *context, int32_t level, const char *line)
{
    lines *taken = context;
    CHECK(level >= KV_STORE_WASM_LOG_ERROR && level <= KV_STORE_WASM_LOG_DEBUG);
    CHECK(strlen(line) <= 1027);
    taken->taken++;
    taken->least_mattering = level > taken->least_mattering ? level : taken->least_mattering;
    printf("%d: %s\n", level, line);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const kv_store_vtable *kv;
    void *lib = load_library(&kv);
    kv_store_wasm_get_vtable_fn get;
    CHECK((*(void **)&get = dlsym(lib, KV_STORE_WASM_GET_VTABLE_SYMBOL)));
    int (*set_log)(kv_store_wasm_log_fn, void *, int32_t) = get()->set_log;
    lines taken = {0, 0};

    CHECK(set_log(take, &taken, 9) == KV_STORE_INVALID); /* no level: the line about it is on standard error */
    CHECK(strstr(get()->last_error(), "level"));
    CHECK(taken.taken == 0);
    CHECK(set_log(take, &taken, KV_STORE_WASM_LOG_INFO) == 0); /* before any open */
    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);
    CHECK(taken.taken > 0 && taken.least_mattering == KV_STORE_WASM_LOG_INFO);
    CHECK(kv->put_chunk(store, (const uint8_t *)"", 0, NULL, 0) < 0);

    taken = (lines){0, 0};
    CHECK(set_log(take, &taken, KV_STORE_WASM_LOG_ERROR) == 0);
    kv_store_v1 *other = kv->open("memory://log"); /* an open says a line of information */
    CHECK(other && taken.taken == 0);
    CHECK(kv->put_chunk(other, (const uint8_t *)"", 0, NULL, 0) < 0);
    CHECK(taken.taken == 1 && taken.least_mattering == KV_STORE_WASM_LOG_ERROR);

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK(kv->put_chunk(store, (const uint8_t *)"key", 3, NULL, 0) < 0); /* the parent's handle */
        _exit(taken.taken == 1 ? 0 : 1);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);

    CHECK(set_log(NULL, NULL, KV_STORE_WASM_LOG_OFF) == 0);
    CHECK(kv->put_chunk(other, (const uint8_t *)"", 0, NULL, 0) < 0);
    CHECK(taken.taken == 1);
    kv->close(other);
    kv->close(store);
    return 0;
}
