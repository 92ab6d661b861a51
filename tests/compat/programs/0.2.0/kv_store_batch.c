/* kv_store_batch.h: kv_store_batch URI PATH, where PATH is the file of the chunk "lost key". The library is loaded by dlopen. */
#include "program.h"

#include <poll.h>
#include <unistd.h>

#include "kv_store_batch.h"

enum { ITEMS = 40, BYTES = 3000 };

static const kv_store_vtable *kv;
static const kv_store_batch_vtable *batch;
static kv_store_v1 *store;
static uint8_t value[ITEMS][BYTES], got[ITEMS][BYTES], key[ITEMS][32];
static kv_store_item items[ITEMS];
static kv_store_piece pieces[ITEMS][2];

/* Items over values, or over the memory for them, in two pieces each. */
static void set(uint8_t memory[ITEMS][BYTES], size_t room)
{
    for (size_t i = 0; i < ITEMS; i++) {
        size_t len = room ? room : i * 70;
        pieces[i][0] = (kv_store_piece){memory[i], len / 3};
        pieces[i][1] = (kv_store_piece){memory[i] + len / 3, len - len / 3};
        items[i] = (kv_store_item){.hash = key[i], .hash_len = i % 2 ? 8 : 32, .pieces = pieces[i], .n_pieces = 2, .status = 77};
    }
}

static int with_status(int status)
{
    int found = 0;
    for (int i = 0; i < ITEMS; i++)
        found += items[i].status == status;
    return found;
}

static int right(void)
{
    int found = 0;
    for (size_t i = 0; i < ITEMS; i++)
        found += items[i].status == 0 && items[i].len == i * 70 && !memcmp(got[i], value[i], i * 70);
    return found;
}

static void batches(uint32_t flags)
{
    kv_store_call call = {.size = sizeof call, .flags = flags, .timeout_ms = 60000};
    kv_store_call allocate = {.size = sizeof allocate, .flags = flags | KV_STORE_ALLOCATE};
    kv_store_call replace = {.size = sizeof replace, .flags = flags | KV_STORE_REPLACE | KV_STORE_DURABLE};
    for (size_t i = 0; i < ITEMS; i++) {
        fill(value[i], BYTES, i * 10 + flags);
        fill(key[i], 32, i * 1000 + flags);
    }
    set(value, 0);
    SHOW(batch->exists_many(store, items, ITEMS, &call));
    SHOW(with_status(KV_STORE_MISSING));
    SHOW(batch->put_many(store, items, ITEMS, &call));
    SHOW(with_status(KV_STORE_OK));
    SHOW(batch->put_many(store, items, ITEMS, &call));
    SHOW(with_status(KV_STORE_EXISTED));
    SHOW(batch->exists_many(store, items, ITEMS, &call));
    SHOW(with_status(KV_STORE_OK));
    SHOW(items[3].len == 210 || items[3].len == KV_STORE_LEN_UNKNOWN);
    set(got, BYTES);
    SHOW(batch->get_many(store, items, ITEMS, &call));
    SHOW(right());
    set(got, 700);
    SHOW(batch->get_many(store, items, ITEMS, &call));
    SHOW(with_status(KV_STORE_TOO_LONG));
    SHOW(items[ITEMS - 1].len);
    set(got, 0);
    for (int i = 0; i < ITEMS; i++)
        items[i].pieces = NULL, items[i].n_pieces = 0;
    SHOW(batch->get_many(store, items, ITEMS, &allocate));
    SHOW(items[9].len == 630 && !memcmp(items[9].data, value[9], 630));
    for (int i = 0; i < ITEMS; i++)
        free(items[i].data);
    set(value, 900);
    SHOW(batch->put_many(store, items, ITEMS, &replace));
    SHOW(with_status(KV_STORE_OK));
    set(got, BYTES);
    SHOW(batch->get_many(store, &items[5], 1, &call));
    SHOW(items[5].status == 0 && items[5].len == 900 && !memcmp(got[5], value[5], 900));
    SHOW(batch->delete_many(store, items, ITEMS / 2, NULL));
    SHOW(with_status(KV_STORE_OK));
    SHOW(batch->get_many(store, items, ITEMS, &call));
    SHOW(with_status(KV_STORE_MISSING));
}

static void saves(void)
{
    kv_store_save *save, *other;
    kv_store_hash *lost = (kv_store_hash *)items;
    size_t n_lost = 9, len;
    uint8_t *data;
    SHOW((save = batch->save_begin(store)) != NULL);
    SHOW((other = batch->save_begin(store)) != NULL);
    kv_store_call call = {.size = sizeof call, .save = save}, of_other = {.size = sizeof of_other, .save = other};
    for (size_t i = 0; i < ITEMS; i++)
        fill(key[i], 32, i + 77);
    set(value, 0);
    SHOW(batch->put_many(store, items, ITEMS / 2, &call));
    SHOW(batch->put_many(store, items + ITEMS / 2, ITEMS / 2, &of_other));
    SHOW(with_status(KV_STORE_OK));
    SHOW(batch->save_commit(save, "by a save", (const uint8_t *)"twenty", 6, &lost, &n_lost));
    SHOW(lost == NULL && n_lost == 0);
    SHOW(batch->save_commit(other, NULL, NULL, 0, NULL, NULL));
    SHOW(kv->get_manifest(store, "by a save", &data, &len));
    SHOW(len == 6 && !memcmp(data, "twenty", 6));
    free(data);
    batch->save_end(save);
    batch->save_end(other);
    batch->save_end(NULL);
}

/* The chunk of a save is removed behind the library's back. */
static void lost(const char *path)
{
    kv_store_save *save = batch->save_begin(store);
    kv_store_call call = {.size = sizeof call, .save = save};
    kv_store_hash *lost;
    size_t n_lost;
    kv_store_item item = {.hash = (const uint8_t *)"lost key", .hash_len = 8, .pieces = pieces[3], .n_pieces = 2};
    MUST(save);
    SHOW(batch->put_many(store, &item, 1, &call));
    MUST(unlink(path) == 0);
    SHOW(batch->save_commit(save, "lost", NULL, 0, &lost, &n_lost));
    SHOW(n_lost == 1 && lost[0].len == 8 && !memcmp(lost[0].bytes, "lost key", 8));
    free(lost);
    SHOW(batch->put_many(store, &item, 1, &call));
    SHOW(item.status);
    SHOW(batch->save_commit(save, "lost", NULL, 0, NULL, NULL));
    batch->save_end(save);
}

/* Completions of a cookie whose status is 0, once there are `want` completions. */
static int drained(kv_store_queue *queue, int want, uint64_t cookie)
{
    kv_store_completion done[4];
    int found = 0;
    while (want > 0) {
        struct pollfd waits = {.fd = batch->queue_fd(queue), .events = POLLIN};
        MUST(poll(&waits, 1, 120000) == 1);
        int64_t count = batch->queue_drain(queue, done, 4);
        MUST(count >= 0);
        want -= (int)count;
        for (int64_t i = 0; i < count; i++)
            found += done[i].cookie == cookie && done[i].status == 0;
    }
    return found;
}

static void queues(void)
{
    kv_store_queue *queue;
    for (size_t i = 0; i < ITEMS; i++)
        fill(key[i], 32, i + 7777);
    set(value, 0);
    SHOW(batch->queue_open(store, 0) == NULL);
    SHOW((queue = batch->queue_open(store, 3)) != NULL);
    SHOW(batch->queue_submit(queue, 5, KV_STORE_PUT, items, 10, NULL));
    SHOW(batch->queue_submit(queue, 5, KV_STORE_PUT, items + 10, 10, NULL));
    SHOW(batch->queue_submit(queue, 6, KV_STORE_PUT, items + 20, 20, NULL));
    SHOW(batch->queue_submit(queue, 7, KV_STORE_PUT, items, 1, NULL));
    SHOW(drained(queue, 3, 5));
    SHOW(with_status(KV_STORE_OK));
    SHOW(batch->queue_submit(queue, 7, 99, items, 1, NULL));
    set(got, BYTES);
    SHOW(batch->queue_submit(queue, 8, KV_STORE_EXISTS, items, ITEMS, NULL));
    SHOW(drained(queue, 1, 8));
    SHOW(with_status(KV_STORE_OK));
    SHOW(batch->queue_submit(queue, 8, KV_STORE_GET, items, ITEMS, NULL));
    SHOW(drained(queue, 1, 8));
    SHOW(right());
    SHOW(batch->queue_submit(queue, 9, KV_STORE_DELETE, items, ITEMS, NULL));
    SHOW(drained(queue, 1, 9));
    SHOW(with_status(KV_STORE_OK));
    SHOW(batch->queue_cancel(queue, 12345));
    batch->queue_close(queue);
    batch->queue_close(NULL);
}

static void refused(void)
{
    kv_store_call small = {.size = 4}, unknown = {.size = sizeof unknown, .flags = 1u << 30};
    kv_store_call durable = {.size = sizeof durable, .flags = KV_STORE_DURABLE};
    kv_store_call keyed = {.size = sizeof keyed, .flags = KV_STORE_XXH3_KEYS};
    kv_store_info info = {.size = 8};
    set(value, 100);
    SHOW(batch->put_many(NULL, items, 1, NULL));
    SHOW(*batch->last_error() != 0);
    SHOW(batch->put_many(store, NULL, 1, NULL));
    SHOW(batch->put_many(store, items, 1, &small));
    SHOW(batch->put_many(store, items, 1, &unknown));
    SHOW(batch->get_many(store, items, 1, &durable));
    SHOW(items[0].status);
    items[0].hash_len = 0;
    SHOW(batch->put_many(store, items, 1, NULL));
    SHOW(items[0].status);
    items[1].hash = (const uint8_t *)"no XXH3!";
    SHOW(batch->put_many(store, &items[1], 1, NULL));
    SHOW(batch->get_many(store, &items[1], 1, NULL));
    SHOW(items[1].status);
    SHOW(batch->get_many(store, &items[1], 1, &keyed));
    SHOW(items[1].status);
    SHOW(batch->save_begin(NULL) == NULL);
    SHOW(batch->info(store, &info));
    info.size = sizeof info;
    SHOW(batch->info(store, &info));
    SHOW(info.durable + info.shared + info.deletes + info.write_through);
    SHOW(info.max_value_bytes >= 1 << 20 && info.batch_items > 0 && info.batch_bytes > 0);
}

int main(int argc, char **argv)
{
    kv_store_get_vtable_fn get;
    kv_store_get_batch_vtable_fn get_batch;
    MUST(argc == 3);
    *(void **)&get = function(KV_STORE_GET_VTABLE_SYMBOL);
    *(void **)&get_batch = function(KV_STORE_GET_BATCH_VTABLE_SYMBOL);
    SHOW((kv = get()) != NULL && (batch = get_batch()) != NULL);
    SHOW(batch->size >= sizeof *batch && batch->version >= KV_STORE_BATCH_VTABLE_VERSION);
    MUST((store = kv->open(argv[1])));
    batches(0);
    batches(KV_STORE_SEALED);
    saves();
    lost(argv[2]);
    queues();
    refused();
    kv->close(store);
    return 0;
}
