/* kv_store_abi.h and kv_store_wasm.h: kv_store_abi URI. The library is loaded by dlopen. */
#include "program.h"

#include "kv_store_abi.h"
#include "kv_store_wasm.h"

static const kv_store_vtable *kv;
static kv_store_v1 *store;
static uint8_t *data;
static size_t len;

static const uint8_t *bytes(const char *text)
{
    return (const uint8_t *)text;
}

/* Lines of the log by level, and whether each was one line of text. */
struct lines {
    int of[5], wrong;
};

static void take(void *context, int32_t level, const char *line)
{
    struct lines *lines = context;
    if (level < 1 || level > 4 || !*line || strchr(line, '\n'))
        lines->wrong++;
    else
        lines->of[level]++;
}

static void log_and_counters(void)
{
    static struct lines lines;
    static char text[1 << 18];
    kv_store_wasm_set_log_fn set_log;
    kv_store_wasm_metrics_fn metrics;
    *(void **)&set_log = function(KV_STORE_WASM_SET_LOG_SYMBOL);
    *(void **)&metrics = function(KV_STORE_WASM_METRICS_SYMBOL);
    SHOW(set_log(take, &lines, 9) < 0);
    SHOW(set_log(take, &lines, KV_STORE_WASM_LOG_ERROR));
    SHOW(kv->open("no-such-scheme://x") == NULL);
    SHOW(kv->open("no scheme at all") == NULL);
    SHOW(lines.of[KV_STORE_WASM_LOG_ERROR] >= 2);
    SHOW(lines.of[KV_STORE_WASM_LOG_INFO] + lines.of[KV_STORE_WASM_LOG_DEBUG]);
    SHOW(lines.wrong);
    SHOW(set_log(NULL, NULL, KV_STORE_WASM_LOG_OFF));
    SHOW(metrics(NULL, 0) > 0);
    SHOW(metrics(text, sizeof text) < sizeof text);
    SHOW(strstr(text, "kv_store_") != NULL);
    SHOW(metrics(text, 9) >= 9 && strlen(text) == 8);
}

static void chunks(void)
{
    static uint8_t large[300000];
    uint8_t key[65];
    fill(large, sizeof large, 1);
    fill(key, sizeof key, 2);
    SHOW(kv->put_chunk(store, bytes("8 bytes!"), 8, bytes("a chunk"), 7));
    SHOW(kv->put_chunk(store, bytes("8 bytes!"), 8, bytes("a chunk"), 7));
    SHOW(kv->put_chunk(store, bytes("of nothing"), 10, NULL, 0));
    SHOW(kv->put_chunk(store, key, 32, large, sizeof large));
    SHOW(kv->put_chunk(store, key, 64, large, 5));
    SHOW(kv->put_chunk(store, key, 1, large, 6));
    SHOW(kv->put_chunk(store, key, 65, large, 5) < 0);
    SHOW(kv->put_chunk(store, key, 0, large, 5) < 0);
    SHOW(kv->put_chunk(NULL, key, 8, large, 5) < 0);
    SHOW(kv->put_manifest(store, "prompt/1", bytes("five chunks"), 11));
    SHOW(kv->put_manifest(store, "empty", NULL, 0));
    SHOW(kv->put_manifest(store, "", bytes("x"), 1) < 0);
    SHOW(kv->put_manifest(store, "prompt/1", bytes("the same five"), 13));
}

static void read_back(void)
{
    static uint8_t large[300000], keys[64];
    fill(large, sizeof large, 1);
    fill(keys, sizeof keys, 2);
    SHOW(kv->get_manifest(store, "prompt/1", &data, &len));
    SHOW(len == 13 && !memcmp(data, "the same five", len));
    free(data);
    SHOW(kv->get_manifest(store, "empty", &data, &len));
    SHOW(data != NULL && len == 0);
    free(data);
    SHOW(kv->get_manifest(store, "absent", &data, &len) < 0);
    SHOW(data == NULL && len == 0);
    SHOW(kv->prefetch_chunks(store, keys, 32, 2));
    SHOW(kv->prefetch_chunks(store, NULL, 32, 0));
    SHOW(kv->get_chunk(store, keys, 32, &data, &len));
    SHOW(len == sizeof large && !memcmp(data, large, len) && (uintptr_t)data % 16 == 0);
    free(data);
    SHOW(kv->get_chunk(store, keys, 64, &data, &len));
    SHOW(len == 5 && !memcmp(data, large, len));
    free(data);
    SHOW(kv->get_chunk(store, keys, 1, &data, &len));
    SHOW(len == 6 && !memcmp(data, large, len));
    free(data);
    SHOW(kv->get_chunk(store, bytes("of nothing"), 10, &data, &len));
    SHOW(data != NULL && len == 0);
    free(data);
    len = 5;
    SHOW(kv->get_chunk(store, bytes("absent"), 6, &data, &len) < 0);
    SHOW(data == NULL && len == 0);
    SHOW(kv->get_chunk(store, bytes("absent"), 6, NULL, &len) < 0);
}

int main(int argc, char **argv)
{
    kv_store_get_vtable_fn get;
    char uri[4200];
    MUST(argc == 2);
    *(void **)&get = function(KV_STORE_GET_VTABLE_SYMBOL);
    SHOW((kv = get()) != NULL);
    SHOW(kv->version >= KV_STORE_VTABLE_VERSION);
    log_and_counters();
    SHOW((store = kv->open(argv[1])) != NULL);
    chunks();
    read_back();
    kv->close(store);
    kv->close(NULL);
    /* By the URI's other spelling, what is there is there. */
    snprintf(uri, sizeof uri, "wasm://%s/", argv[1]);
    SHOW((store = kv->open(uri)) != NULL);
    SHOW(kv->put_chunk(store, bytes("8 bytes!"), 8, bytes("a chunk"), 7));
    read_back();
    SHOW(kv->delete_manifest(store, "prompt/1"));
    SHOW(kv->delete_manifest(store, "prompt/1"));
    SHOW(kv->get_manifest(store, "prompt/1", &data, &len) < 0);
    SHOW(kv->get_chunk(store, bytes("8 bytes!"), 8, &data, &len));
    free(data);
    kv->close(store);
    return 0;
}
