/*
 * The counters, after a few calls whose numbers are known:
 *
 *     metrics URI
 *
 * prints them. On the way it holds the function to what its header says.
 */
#include "consumer.h"
#include "kv_store_wasm.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const kv_store_vtable *kv;
    void *lib = load_library(&kv);
    kv_store_wasm_get_vtable_fn get;
    CHECK((*(void **)&get = dlsym(lib, KV_STORE_WASM_GET_VTABLE_SYMBOL)));
    CHECK(get()->size == sizeof(kv_store_wasm_vtable_t) && get()->version == KV_STORE_WASM_VTABLE_VERSION);
    size_t (*metrics)(char *, size_t) = get()->metrics;
    CHECK(metrics(NULL, 0) > 0); /* before any open */

    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);
    const uint8_t *key = (const uint8_t *)"key", *other = (const uint8_t *)"other", *data = (const uint8_t *)"12345";
    CHECK(kv->put_chunk(store, key, 3, data, 5) == 0);
    CHECK(kv->put_chunk(store, key, 3, data, 5) == 1);
    CHECK(kv->put_manifest(store, "m", data, 5) == 0);
    uint8_t *out;
    size_t len;
    CHECK(kv->get_chunk(store, key, 3, &out, &len) == 0);
    free(out);
    CHECK(kv->get_chunk(store, other, 5, &out, &len) < 0);
    CHECK(kv->get_chunk(store, other, 0, &out, &len) < 0); /* invalid, and no miss */

    size_t whole = metrics(NULL, 7);
    CHECK(whole > 100);
    char *text = malloc(whole + 1);
    CHECK(text);
    CHECK(metrics(text, whole + 1) == whole && strlen(text) == whole);

    char cut[10];
    memset(cut, '#', sizeof cut);
    CHECK(metrics(cut, sizeof cut - 1) == whole);
    CHECK(strlen(cut) == sizeof cut - 2 && memcmp(cut, text, sizeof cut - 2) == 0);
    CHECK(cut[sizeof cut - 1] == '#'); /* not a byte more than it may write */
    CHECK(metrics(cut, 1) == whole && cut[0] == '\0');
    cut[0] = '#';
    CHECK(metrics(cut, 0) == whole && cut[0] == '#');

    fputs(text, stdout);
    free(text);
    kv->close(store);
    return 0;
}
