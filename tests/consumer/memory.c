/*
 * Outputs are the C library's memory: free() takes them, they are aligned, and little is wasted.
 *
 *     memory URI
 */
#include "consumer.h"

#include <malloc.h>

static const size_t SIZES[] = {0, 1, 15, 16, 17, 100, 1000, 4095, 4096, 65537, 131072, 1 << 20, (1 << 20) + 1, 5000001};

static void check_output(uint8_t *data, size_t len, size_t want, uint8_t fill)
{
    CHECK(data && len == want);
    CHECK((uintptr_t)data % 16 == 0);
    size_t usable = malloc_usable_size(data);
    /* Besides a quarter: malloc's own smallest block, and a page where it maps one. */
    CHECK(usable >= len && usable <= len + len / 4 + (len < 65536 ? 32 : 4096 + 32));
    for (size_t i = 0; i < len; i++)
        CHECK(data[i] == fill);
    /* It is the consumer's: to write to, to make longer, to free. */
    memset(data, 0, len);
    data = realloc(data, len + 1000);
    CHECK(data);
    free(data);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const kv_store_vtable *kv;
    load_library(&kv);
    kv_store_v1 *store = kv->open(argv[1]);
    CHECK(store);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        size_t size = SIZES[i], len;
        uint8_t *data, fill = (uint8_t)(i + 1), key[] = {'k', fill};
        uint8_t *bytes = malloc(size + 1);
        CHECK(bytes);
        memset(bytes, fill, size);
        CHECK(kv->put_chunk(store, key, sizeof key, bytes, size) == 0);
        /* From a write buffer, where the backend has one. */
        CHECK(kv->get_chunk(store, key, sizeof key, &data, &len) == 0);
        check_output(data, len, size, fill);
        CHECK(kv->put_manifest(store, "manifest", bytes, size) == 0);
        free(bytes);

        CHECK(kv->get_manifest(store, "manifest", &data, &len) == 0);
        check_output(data, len, size, fill);
        CHECK(kv->get_chunk(store, key, sizeof key, &data, &len) == 0);
        check_output(data, len, size, fill);
        CHECK(kv->prefetch_chunks(store, key, sizeof key, 1) == 0);
        CHECK(kv->get_chunk(store, key, sizeof key, &data, &len) == 0);
        check_output(data, len, size, fill);
        /* The former was handed over once, and freed; this must be other memory with the same bytes. */
        CHECK(kv->get_chunk(store, key, sizeof key, &data, &len) == 0);
        check_output(data, len, size, fill);
    }
    kv->close(store);
    return 0;
}
