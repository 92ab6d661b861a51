/*
 * The header alone, as C11 and as C++17: it compiles without another include before it, and its layout is the ABI's.
 * Consumers are built against a copy of it, so a member that moves breaks every one of them without a word.
 */
#include "kv_store_abi.h"

#include <stddef.h>

#ifdef __cplusplus
#define SAME(left, right) static_assert((left) == (right), #left " is not " #right)
#else
#define SAME(left, right) _Static_assert((left) == (right), #left " is not " #right)
#endif

/* A pointer to a function is as wide as one to data wherever dlsym works. */
#define WORD sizeof(void *)

SAME(offsetof(kv_store_vtable, version), 0);
SAME(sizeof(uint32_t), 4);
SAME(offsetof(kv_store_vtable, open), 1 * WORD);
SAME(offsetof(kv_store_vtable, close), 2 * WORD);
SAME(offsetof(kv_store_vtable, put_chunk), 3 * WORD);
SAME(offsetof(kv_store_vtable, get_chunk), 4 * WORD);
SAME(offsetof(kv_store_vtable, put_manifest), 5 * WORD);
SAME(offsetof(kv_store_vtable, get_manifest), 6 * WORD);
SAME(offsetof(kv_store_vtable, delete_manifest), 7 * WORD);
SAME(offsetof(kv_store_vtable, prefetch_chunks), 8 * WORD);
SAME(sizeof(kv_store_vtable), 9 * WORD);
SAME(KV_STORE_VTABLE_VERSION, 2u);
SAME(KV_STORE_WASM_MAX_VALUE_BYTES, 1073741824u);

/* The types too: each of these stops compiling if an argument or a result changes. */
static kv_store_v1 *stub_open(const char *uri) { (void)uri; return NULL; }
static void stub_close(kv_store_v1 *self) { (void)self; }
static int stub_put_chunk(kv_store_v1 *self, const uint8_t *hash, size_t hash_len, const uint8_t *data, size_t data_len)
{
    (void)self, (void)hash, (void)hash_len, (void)data, (void)data_len;
    return -1;
}
static int stub_get_chunk(kv_store_v1 *self, const uint8_t *hash, size_t hash_len, uint8_t **out_data, size_t *out_len)
{
    (void)self, (void)hash, (void)hash_len, (void)out_data, (void)out_len;
    return -1;
}
static int stub_put_manifest(kv_store_v1 *self, const char *name, const uint8_t *data, size_t data_len)
{
    (void)self, (void)name, (void)data, (void)data_len;
    return -1;
}
static int stub_get_manifest(kv_store_v1 *self, const char *name, uint8_t **out_data, size_t *out_len)
{
    (void)self, (void)name, (void)out_data, (void)out_len;
    return -1;
}
static int stub_delete_manifest(kv_store_v1 *self, const char *name)
{
    (void)self, (void)name;
    return -1;
}
static int stub_prefetch_chunks(kv_store_v1 *self, const uint8_t *hashes, size_t hash_len, size_t n_hashes)
{
    (void)self, (void)hashes, (void)hash_len, (void)n_hashes;
    return -1;
}

static const kv_store_vtable STUBS = {
    KV_STORE_VTABLE_VERSION, stub_open,         stub_close,           stub_put_chunk,       stub_get_chunk,
    stub_put_manifest,       stub_get_manifest, stub_delete_manifest, stub_prefetch_chunks,
};

int main(void)
{
    const char symbol[] = KV_STORE_GET_VTABLE_SYMBOL;
    kv_store_get_vtable_fn get = NULL;
    return sizeof symbol == 20 && get == NULL && STUBS.version == 2 ? 0 : 1;
}
