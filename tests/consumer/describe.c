/*
 * Handles on one store whose values are of two meanings:
 *
 *     describe URI
 *
 * Each finds its own, and neither reads the other's nor puts over it. On the way the functions are held to what their header says.
 */
#include "consumer.h"
#include "kv_store_batch.h"
#include "kv_store_describe.h"

static const kv_store_vtable *kv;
static const kv_store_batch_vtable_t *batch;
static const kv_store_describe_vtable_t *describe;

static kv_store_v1 *open_as(const char *uri, const char *model, const char *rank)
{
    kv_store_v1 *store = kv->open(uri);
    CHECK(store);
    kv_store_descriptor_t said = {.size = sizeof said, .model = model, .dtype = "bfloat16", .rank = rank};
    CHECK(describe->describe(store, &said) == 0);
    CHECK(describe->describe(store, &said) == 0); /* the same again */
    return store;
}

static int put(kv_store_v1 *store, const char *value, uint32_t flags)
{
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%s", value);
    kv_store_piece_t piece = {bytes, strlen(bytes)};
    kv_store_item_t item = {.hash = (const uint8_t *)"tokens", .hash_len = 6, .pieces = &piece, .n_pieces = 1};
    kv_store_call_t call = {.size = sizeof call, .flags = flags};
    CHECK(batch->put_many(store, &item, 1, &call) == 0);
    return item.status;
}

static int get(kv_store_v1 *store, const char *value)
{
    char bytes[32] = "";
    kv_store_piece_t piece = {bytes, sizeof bytes};
    kv_store_item_t item = {.hash = (const uint8_t *)"tokens", .hash_len = 6, .pieces = &piece, .n_pieces = 1};
    CHECK(batch->get_many(store, &item, 1, NULL) == 0);
    CHECK(item.status != 0 || (item.len == strlen(value) && !memcmp(bytes, value, item.len)));
    return item.status;
}

static void refusals(const char *uri, kv_store_v1 *used)
{
    struct {
        kv_store_descriptor_t known;
        const char *later;
    } said = {.known = {.size = sizeof said, .model = "m"}};
    char longer[600];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    kv_store_v1 *store = kv->open(uri);
    CHECK(store);
    CHECK(describe->describe(NULL, &said.known) == KV_STORE_INVALID && describe->describe(store, NULL) == KV_STORE_INVALID);
    CHECK(describe->digest(store, NULL) == KV_STORE_INVALID);
    said.later = "something";
    CHECK(describe->describe(store, &said.known) == KV_STORE_UNSUPPORTED && strstr(describe->last_error(), "later version"));
    said.known.size = 8;
    CHECK(describe->describe(store, &said.known) == KV_STORE_INVALID && strstr(describe->last_error(), "size"));
    const char *wrong[] = {"", "two\nlines", "\xff", longer};
    said.known.size = sizeof said.known;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        said.known.model = wrong[i];
        CHECK(describe->describe(store, &said.known) == KV_STORE_INVALID && strstr(describe->last_error(), "model"));
    }
    /* Nothing was said so far; and what is used cannot be described any more. */
    said.known.model = "m";
    said.later = NULL;
    said.known.size = sizeof said;
    CHECK(describe->describe(store, &said.known) == 0);
    said.known.model = "n";
    CHECK(describe->describe(store, &said.known) == KV_STORE_INVALID);
    CHECK(describe->describe(used, &said.known) == KV_STORE_INVALID && strstr(describe->last_error(), "before"));
    kv->close(store);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    void *lib = load_library(&kv);
    kv_store_batch_get_vtable_fn get_batch;
    kv_store_describe_get_vtable_fn get_describe;
    CHECK((*(void **)&get_batch = dlsym(lib, KV_STORE_BATCH_GET_VTABLE_SYMBOL)));
    CHECK((*(void **)&get_describe = dlsym(lib, KV_STORE_DESCRIBE_GET_VTABLE_SYMBOL)));
    batch = get_batch();
    describe = get_describe();
    CHECK(describe->size == sizeof *describe && describe->version == KV_STORE_DESCRIBE_VTABLE_VERSION);

    kv_store_v1 *one = open_as(argv[1], "sha256:1f0c", "0"), *two = open_as(argv[1], "sha256:1f0c", "1");
    kv_store_v1 *unset = kv->open(argv[1]);
    CHECK(unset);
    uint8_t digests[3][KV_STORE_DESCRIPTOR_BYTES], zeros[KV_STORE_DESCRIPTOR_BYTES] = {0};
    CHECK(describe->digest(one, digests[0]) == 0 && describe->digest(two, digests[1]) == 0);
    CHECK(describe->digest(unset, digests[2]) == 0);
    CHECK(memcmp(digests[0], digests[1], sizeof zeros) && memcmp(digests[0], zeros, sizeof zeros));
    CHECK(!memcmp(digests[2], zeros, sizeof zeros));

    CHECK(put(one, "one's", 0) == KV_STORE_OK && put(one, "one's", 0) == KV_STORE_EXISTED);
    CHECK(get(two, "one's") == KV_STORE_MISSING && get(one, "one's") == 0);
    CHECK(put(two, "two's", 0) == KV_STORE_MISMATCH && strstr(batch->last_error(), "descriptor"));
    CHECK(put(two, "two's", KV_STORE_REPLACE) == KV_STORE_MISMATCH);
    CHECK(get(one, "one's") == 0 && get(unset, "one's") == 0);

    const uint8_t *data = (const uint8_t *)"manifest";
    uint8_t *out;
    size_t len;
    CHECK(kv->put_manifest(one, "m", data, 8) == 0 && kv->put_manifest(one, "m", data, 8) == 0);
    CHECK(kv->get_manifest(two, "m", &out, &len) < 0 && kv->put_manifest(two, "m", data, 8) < 0);
    CHECK(kv->get_manifest(one, "m", &out, &len) == 0 && len == 8);
    free(out);

    refusals(argv[1], one);
    kv->close(one);
    kv->close(two);
    kv->close(unset);
    puts("ok");
    return 0;
}
