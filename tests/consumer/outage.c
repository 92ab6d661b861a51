/*
 * Calls as fast as they go while the server is away:
 *
 *     outage URI CALLS [callback]
 *
 * opens the store, says "ready" and waits for the end of standard input. Then it makes so many calls of each kind, and prints how
 * many failed: `failed N`. callback: lines of the log go to a function, which counts them: `lines N`, `bytes N`.
 */
#include "consumer.h"

#include "kv_store_batch.h"
#include "kv_store_wasm.h"

static unsigned long lines, bytes;

static void take(void *context, int32_t level, const char *line)
{
    (void)context, (void)level;
    lines++;
    bytes += strlen(line);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 || argc == 4);
    const kv_store_vtable *kv;
    void *lib = load_library(&kv);
    kv_store_wasm_get_vtable_fn process;
    CHECK((*(void **)&process = dlsym(lib, KV_STORE_WASM_GET_VTABLE_SYMBOL)));
    kv_store_batch_get_vtable_fn batches;
    CHECK((*(void **)&batches = dlsym(lib, KV_STORE_BATCH_GET_VTABLE_SYMBOL)));
    if (argc == 4)
        CHECK(process()->set_log(take, NULL, KV_STORE_WASM_LOG_WARN) == 0);
    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);
    printf("ready\n");
    fflush(stdout);
    CHECK(getchar() == EOF);

    unsigned long failed = 0;
    for (unsigned long call = 0; call < strtoul(argv[2], NULL, 10); call++) {
        uint8_t *found = NULL;
        size_t len = 0;
        failed += kv->get_chunk(store, (const uint8_t *)"no chunk", 8, &found, &len) < 0;
        kv_store_item_t item = {0};
        item.hash = (const uint8_t *)"no chunk";
        item.hash_len = 8;
        batches()->delete_many(store, &item, 1, NULL);
        failed += item.status < 0;
        failed += kv->put_manifest(store, "name", (const uint8_t *)"x", 1) < 0;
    }
    printf("failed %lu\nlines %lu\nbytes %lu\n", failed, lines, bytes);
    kv->close(store);
    return 0;
}
