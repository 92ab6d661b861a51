/* The parts of compat_data.h that are of kv_store_abi.h, kv_store_batch.h and kv_store_kvx.h. */
#include "compat_data.h"

#include "kv_store_batch.h"
#include "kv_store_kvx.h"

static const kv_store_vtable *kv;
static kv_store_v1 *store;

struct chunk {
    size_t key_len, len;
    uint64_t key; /* of 8 bytes; else the key is the bytes of the seed */
};

/* Keys of 8 bytes that are no hash of the content, of 32 and of the least and the most bytes; nothing, and much. */
static const struct chunk opaque[] = {{8, 100, 0x0123456789abcdef}, {8, 0, 0xfedcba9876543210}, {32, 5000, 0}, {1, 17, 0},
                                      {64, 4096, 0}, {32, 0, 0}, {16, 200000, 0}, {9, 1, 0}};
/* The keys are XXH3-64 (seed 0) of the content, big-endian. */
static const struct chunk content[] = {{8, 100, 0x73144eaf3006249c}, {8, 0, 0x2d06800538d394c2}, {8, 1, 0xf7042be43fb80714},
                                       {8, 250, 0x60b9e6f863b8b1c6}, {8, 70000, 0xa587d45d3c5c68d6}};

enum { OPAQUE = sizeof opaque / sizeof *opaque, CONTENT = sizeof content / sizeof *content };

/* The key of chunk `number`; free() it. */
static uint8_t *key_of(const struct chunk *chunk, uint64_t seed)
{
    uint8_t *key = bytes_of(seed + 5000, chunk->key_len);
    for (int i = 0; chunk->key && i < 8; i++)
        key[i] = (uint8_t)(chunk->key >> (56 - 8 * i));
    return key;
}

static void put_manifest(const char *name, const void *data, size_t len)
{
    CHECK(kv->put_manifest(store, name, data, len) == 0);
}

static void check_manifest(const char *name, const void *expected, size_t expected_len)
{
    uint8_t *data;
    size_t len;
    CHECK(kv->get_manifest(store, name, &data, &len) == 0);
    CHECK(len == expected_len && !memcmp(data, expected, len));
    free(data);
}

/* Names of any characters, and manifests of nothing and of some bytes. */
static const char *const names[] = {"prompt", "a/b/../c.d", "Gr\xc3\xbc\xc3\x9f" "e 100% \xe2\x82\xac", ".", "UPPER:lower?*", "long"};

static void manifests(int writing, uint64_t seed)
{
    char name[600];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        /* The last one is longer than the name of a file may be. */
        snprintf(name, sizeof name, "%s", names[i]);
        if (!strcmp(name, "long"))
            memset(name, 'n', 500), name[500] = 0;
        uint8_t *data = bytes_of(seed + i, i * 1000);
        if (writing)
            put_manifest(name, data, i * 1000);
        else
            check_manifest(name, data, i * 1000);
        free(data);
    }
}

static void chunks(int writing, const struct chunk *chunk, size_t n, uint64_t seed)
{
    if (!writing)
        manifests(0, seed);
    for (size_t i = 0; i < n; i++) {
        uint8_t *key = key_of(&chunk[i], seed + i), *data = bytes_of(seed + i, chunk[i].len), *got;
        size_t len;
        if (writing) {
            CHECK(kv->put_chunk(store, key, chunk[i].key_len, data, chunk[i].len) == 0);
        } else {
            CHECK(kv->get_chunk(store, key, chunk[i].key_len, &got, &len) == 0);
            CHECK(len == chunk[i].len && !memcmp(got, data, len));
            free(got);
            CHECK(kv->put_chunk(store, key, chunk[i].key_len, data, chunk[i].len) >= 0); /* 0 where it is buffered */
        }
        free(key), free(data);
    }
    if (writing)
        manifests(1, seed);
    else
        put_manifest("prompt", "", 0);
}

enum { SEALED = 12 };

/* Sealed values, of one piece and of two, in a save. */
static void sealed(int writing, const kv_store_batch_vtable *batch)
{
    uint8_t *keys[SEALED], *values[SEALED];
    kv_store_piece pieces[SEALED][2];
    kv_store_item items[SEALED];
    memset(items, 0, sizeof items);
    for (size_t i = 0; i < SEALED; i++) {
        size_t len = i * i * 50;
        keys[i] = bytes_of(i + 7000, 32);
        values[i] = writing ? bytes_of(i + 8000, len) : calloc(1, len + 16);
        CHECK(values[i]);
        pieces[i][0] = (kv_store_piece){values[i], len / 3};
        pieces[i][1] = (kv_store_piece){values[i] + len / 3, len - len / 3};
        items[i].hash = keys[i], items[i].hash_len = i % 3 ? 32 : 8;
        items[i].pieces = pieces[i], items[i].n_pieces = 2;
    }
    kv_store_call call = {.size = sizeof call, .flags = KV_STORE_SEALED};
    if (writing) {
        CHECK((call.save = batch->save_begin(store)));
        CHECK(batch->put_many(store, items, SEALED, &call) == 0);
        CHECK(batch->save_commit(call.save, "sealed", (const uint8_t *)"twelve", 6, NULL, NULL) == 0);
        batch->save_end(call.save);
    } else {
        check_manifest("sealed", "twelve", 6);
        CHECK(batch->exists_many(store, items, SEALED, &call) == 0);
        for (size_t i = 0; i < SEALED; i++)
            CHECK(items[i].status == 0 && (items[i].len == i * i * 50 || items[i].len == KV_STORE_LEN_UNKNOWN));
        CHECK(batch->get_many(store, items, SEALED, &call) == 0);
    }
    for (size_t i = 0; i < SEALED; i++) {
        CHECK(items[i].status == 0 && (writing || (items[i].len == i * i * 50 && is_of(i + 8000, values[i], i * i * 50))));
        free(keys[i]), free(values[i]);
    }
}

enum { BLOCKS = 8, BLOCK = 16, HEADS = 2, DIM = 16, LAYERS = 3, TOKENS = 100, ELEMENTS = BLOCKS * BLOCK * HEADS * DIM };

/* What a sequence of 3 layers is saved from, and restored into: halves, and codes of FP8 that are stored as they are or as halves. */
static void sequences(int writing, void *library)
{
    static const struct {
        const char *name;
        kvx_dtype_t dtype, stored;
        uint32_t chunk_tokens;
    } kinds[] = {{"halves", KVX_DTYPE_F16, KVX_DTYPE_INVALID, 32},
                 {"floats", KVX_DTYPE_F32, KVX_DTYPE_INVALID, 0},
                 {"codes", KVX_DTYPE_F8_E4M3, KVX_DTYPE_INVALID, 16},
                 {"dequantised", KVX_DTYPE_F8_E5M2, KVX_DTYPE_F16, 64}};
    static const int32_t blocks[] = {6, 1, 4, 3, 0, 7, 2};
    static const float scale = 0.5f;
    kv_store_kvx_save_fn save;
    kv_store_kvx_restore_fn restore;
    kv_store_kvx_describe_fn describe;
    *(void **)&save = dlsym(library, "kv_store_kvx_save");
    *(void **)&restore = dlsym(library, "kv_store_kvx_restore");
    *(void **)&describe = dlsym(library, "kv_store_kvx_describe");
    CHECK(save && restore && describe);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        kvx_dtype_t dtype = kinds[kind].dtype;
        size_t width = dtype == KVX_DTYPE_F16 ? 2 : dtype == KVX_DTYPE_F32 ? 4 : 1, len = ELEMENTS * width;
        uint8_t *saved[LAYERS][2], *pages[LAYERS][2];
        kvx_cache_desc_t caches[LAYERS];
        kvx_scale_desc_t scales[LAYERS];
        int64_t slots[TOKENS];
        for (size_t layer = 0; layer < LAYERS; layer++) {
            for (size_t side = 0; side < 2; side++) {
                saved[layer][side] = bytes_of(kind * 100 + layer * 10 + side + 9000, len);
                /* Values of E5M2 that no conversion changes: none is NaN or an infinity. */
                for (size_t i = 0; dtype == KVX_DTYPE_F8_E5M2 && i < len; i++)
                    saved[layer][side][i] = (uint8_t)(saved[layer][side][i] % 17 + 0x30);
                pages[layer][side] = writing ? saved[layer][side] : calloc(1, len);
                CHECK(pages[layer][side]);
            }
            caches[layer] = kv_store_kvx_cache(KVX_LAYOUT_BLOCK_NHD, dtype, BLOCKS, BLOCK, HEADS, DIM, pages[layer][0], pages[layer][1]);
            memset(&scales[layer], 0, sizeof *scales);
            scales[layer].size = sizeof *scales, scales[layer].dtype = KVX_DTYPE_F32;
            scales[layer].granularity = KVX_SCALE_PER_TENSOR, scales[layer].data = &scale;
        }
        kv_store_kvx_result_t result = {.size = sizeof result};
        if (writing) {
            kv_store_kvx_save_t call = {.size = sizeof call, .num_layers = LAYERS, .layers = caches, .name = kinds[kind].name, .model = "a model",
                                        .blocks = blocks, .block_dtype = KVX_DTYPE_S32, .num_blocks = 7, .num_tokens = TOKENS,
                                        .chunk_tokens = kinds[kind].chunk_tokens, .stored_dtype = kinds[kind].stored,
                                        .k_scales = scales, .v_scales = scales};
            if (save(store, &call, &result) != 0)
                fail(__FILE__, __LINE__, result.message);
        } else {
            kv_store_kvx_info_t info = {.size = sizeof info};
            uint32_t chunk_tokens = kinds[kind].chunk_tokens ? kinds[kind].chunk_tokens : 256;
            CHECK(describe(store, kinds[kind].name, &info) == 0);
            CHECK(info.tokens == TOKENS && info.chunk_tokens == chunk_tokens && info.num_layers == LAYERS && info.block_size == BLOCK);
            CHECK(info.dtype == (kinds[kind].stored ? kinds[kind].stored : dtype));
            kv_store_kvx_restore_t call = {.size = sizeof call, .num_layers = LAYERS, .layers = caches, .name = kinds[kind].name, .model = "a model",
                                           .slots = kv_store_kvx_slots(slots, TOKENS, blocks, BLOCK), .flags = KV_STORE_KVX_CONVERT_DTYPE,
                                           .k_scales = scales, .v_scales = scales};
            if (restore(store, &call, &result) != 0)
                fail(__FILE__, __LINE__, result.message);
            CHECK(result.tokens == TOKENS);
        }
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (size_t side = 0; side < 2; side++) {
                for (size_t t = 0; t < TOKENS; t++) {
                    size_t row = HEADS * DIM * width, at = ((size_t)blocks[t / BLOCK] * BLOCK + t % BLOCK) * row;
                    CHECK(!memcmp(pages[layer][side] + at, saved[layer][side] + at, row));
                }
                if (!writing)
                    free(pages[layer][side]);
                free(saved[layer][side]);
            }
    }
}

int main(int argc, char **argv)
{
    int writing = writes(argc, argv);
    void *library = load_library(&kv);
    CHECK((store = kv->open(argv[3])));
    if (!strcmp(argv[2], "opaque")) {
        chunks(writing, opaque, OPAQUE, 1000);
    } else if (!strcmp(argv[2], "content")) {
        chunks(writing, content, CONTENT, 2000);
    } else if (!strcmp(argv[2], "sealed")) {
        kv_store_get_batch_vtable_fn get;
        *(void **)&get = dlsym(library, KV_STORE_GET_BATCH_VTABLE_SYMBOL);
        CHECK(get);
        sealed(writing, get());
    } else {
        CHECK(!strcmp(argv[2], "sequences"));
        sequences(writing, library);
    }
    kv->close(store);
    return 0;
}
