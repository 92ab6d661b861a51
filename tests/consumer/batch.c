/*
 * An engine's batches, saves and queue, against the store at URI.
 *
 *     batch all URI            every call as its header has it; says what the store cannot do
 *     batch lose URI PATH      a save of which the file PATH is removed before its commit
 *     batch flip URI PATH      a sealed value of which a bit is flipped in the file PATH
 *     batch cancel URI -       a put of many items that is cancelled while the backend works on it
 *     batch hung URI -         a request with little time on a backend that does not answer: it is told `hang` and `go on` by a line on
 *                              standard output, and says by a line on standard input that it is done
 */
#include "consumer.h"

#include <errno.h>
#include <poll.h>
#include <sys/wait.h>

#include "kv_store_batch.h"

enum { ITEMS = 100, BYTES = 5000 };

static const kv_store_vtable *kv;
static const kv_store_batch_vtable_t *batch;

static kv_store_call_t with(uint32_t flags, kv_store_save_t *save)
{
    kv_store_call_t call = {.size = sizeof call, .flags = flags, .save = save};
    return call;
}

static void fill(uint8_t *bytes, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(fnv(seed, &i, sizeof i) >> 7);
}

static kv_store_item_t item_of(const void *hash, size_t hash_len, const kv_store_piece_t *pieces, size_t n_pieces)
{
    kv_store_item_t item = {.hash = hash, .hash_len = hash_len, .pieces = pieces, .n_pieces = n_pieces, .status = 77};
    return item;
}

/* Many items, each in three pieces, of lengths and hash lengths that differ; and back, into other pieces. */
static void many(kv_store_v1 *store, uint32_t sealed, uint64_t seed)
{
    static uint8_t value[ITEMS][BYTES], got[ITEMS][BYTES + 16], hash[ITEMS][24];
    kv_store_piece_t in[ITEMS][3], out[ITEMS][2];
    kv_store_item_t items[ITEMS];
    for (int i = 0; i < ITEMS; i++) {
        size_t len = (size_t)i * 47, cut = len / 3;
        fill(value[i], BYTES, seed + (uint64_t)i);
        fill(hash[i], sizeof hash[i], seed * 1000 + (uint64_t)i);
        in[i][0] = (kv_store_piece_t){value[i], cut};
        in[i][1] = (kv_store_piece_t){NULL, 0};
        in[i][2] = (kv_store_piece_t){value[i] + cut, len - cut};
        items[i] = item_of(hash[i], 8 + (size_t)i % 17, in[i], 3);
    }
    kv_store_call_t put = with(sealed, NULL);
    for (int again = 0; again < 2; again++) {
        CHECK(batch->put_many(store, items, ITEMS, &put) == 0);
        for (int i = 0; i < ITEMS; i++)
            CHECK(items[i].status == (again ? KV_STORE_EXISTED : KV_STORE_OK));
    }
    CHECK(batch->exists_many(store, items, ITEMS, &put) == 0);
    for (int i = 0; i < ITEMS; i++)
        CHECK(items[i].status == 0 && (items[i].len == KV_STORE_LEN_UNKNOWN || items[i].len == (uint64_t)i * 47));
    for (int i = 0; i < ITEMS; i++) {
        out[i][0] = (kv_store_piece_t){got[i], 1000};
        out[i][1] = (kv_store_piece_t){got[i] + 1000, BYTES - 1000};
        items[i] = item_of(hash[i], 8 + (size_t)i % 17, out[i], 2);
    }
    CHECK(batch->get_many(store, items, ITEMS, &put) == 0);
    for (int i = 0; i < ITEMS; i++)
        CHECK(items[i].status == 0 && items[i].len == (uint64_t)i * 47 && !memcmp(got[i], value[i], (size_t)i * 47));
    /* Too short by one byte; absent; named twice; allocated. */
    kv_store_piece_t little = {got[0], 46}, room = {got[1], BYTES};
    kv_store_item_t odd[4] = {item_of(hash[1], 9, &little, 1), item_of("absent", 6, &room, 1), item_of(hash[2], 10, &room, 1),
                            item_of(hash[2], 10, &room, 1)};
    CHECK(batch->get_many(store, odd, 4, &put) == 0);
    CHECK(odd[0].status == KV_STORE_TOO_LONG && odd[0].len == 47 && odd[1].status == KV_STORE_MISSING);
    CHECK(odd[2].status == 0 && odd[3].status == 0 && odd[3].len == 94 && !memcmp(got[1], value[2], 94));
    kv_store_call_t allocate = with(sealed | KV_STORE_ALLOCATE, NULL);
    CHECK(batch->get_many(store, odd, 4, &allocate) == KV_STORE_INVALID && strstr(batch->last_error(), "pieces"));
    /* Named twice, once with too little room: each is answered by its own. */
    kv_store_item_t rooms[2] = {item_of(hash[2], 10, &little, 1), item_of(hash[2], 10, &room, 1)};
    CHECK(batch->get_many(store, rooms, 2, &put) == 0 && rooms[0].status == KV_STORE_TOO_LONG && rooms[0].len == 94);
    CHECK(rooms[1].status == 0 && rooms[1].len == 94 && !memcmp(got[1], value[2], 94));
    kv_store_item_t two[2] = {item_of(hash[9], 17, NULL, 0), item_of("absent", 6, NULL, 0)};
    CHECK(batch->get_many(store, two, 2, &allocate) == 0);
    CHECK(two[0].status == 0 && two[0].len == 423 && !memcmp(two[0].data, value[9], 423));
    CHECK(two[1].status == KV_STORE_MISSING && two[1].data == NULL);
    free(two[0].data);
    /* Replaced. */
    kv_store_call_t replace = with(sealed | KV_STORE_REPLACE, NULL);
    kv_store_piece_t other = {value[50], 300};
    kv_store_item_t replaced = item_of(hash[7], 15, &other, 1);
    CHECK(batch->put_many(store, &replaced, 1, &replace) == 0 && replaced.status == KV_STORE_OK);
    replaced = item_of(hash[7], 15, &room, 1);
    CHECK(batch->get_many(store, &replaced, 1, &put) == 0 && replaced.status == 0 && replaced.len == 300);
    CHECK(!memcmp(got[1], value[50], 300));
    /* Gone, also what was absent. */
    kv_store_item_t gone[2] = {item_of(hash[3], 11, NULL, 0), item_of("absent", 6, NULL, 0)};
    CHECK(batch->delete_many(store, gone, 2, NULL) == 0);
    if (gone[0].status == KV_STORE_UNSUPPORTED)
        printf("deletes nothing\n");
    else
        CHECK(gone[0].status == 0 && gone[1].status == 0);
    CHECK(batch->exists_many(store, gone, 2, NULL) == 0 && gone[1].status == KV_STORE_MISSING);
}

/* Which of many are there: all of a stretch, none of one, and every third. */
static void holes(kv_store_v1 *store)
{
    static uint8_t hash[ITEMS][16];
    kv_store_piece_t value = {"value", 5};
    kv_store_item_t items[ITEMS];
    int there[ITEMS], some = 0;
    for (int i = 0; i < ITEMS; i++) {
        fill(hash[i], sizeof hash[i], 77000 + (uint64_t)i);
        there[i] = i < 40 || (i >= 60 && i % 3 == 0);
        if (there[i])
            items[some++] = item_of(hash[i], sizeof hash[i], &value, 1);
    }
    CHECK(batch->put_many(store, items, (size_t)some, NULL) == 0);
    for (int i = 0; i < ITEMS; i++)
        items[i] = item_of(hash[i], sizeof hash[i], NULL, 0);
    CHECK(batch->exists_many(store, items, ITEMS, NULL) == 0);
    for (int i = 0; i < ITEMS; i++)
        CHECK(items[i].status == (there[i] ? KV_STORE_OK : KV_STORE_MISSING));
}

static void refusals(kv_store_v1 *store)
{
    kv_store_item_t item = item_of("hash", 4, NULL, 0), before = item;
    kv_store_call_t small = {.size = 4}, flags = with(64, NULL), durable = with(KV_STORE_DURABLE, NULL);
    CHECK(batch->put_many(NULL, &item, 1, NULL) == KV_STORE_INVALID && strstr(batch->last_error(), "handle"));
    CHECK(batch->put_many(store, NULL, 1, NULL) == KV_STORE_INVALID);
    CHECK(batch->put_many(store, &item, 1, &small) == KV_STORE_INVALID);
    CHECK(batch->get_many(store, &item, 1, &flags) == KV_STORE_INVALID && strstr(batch->last_error(), "0x40"));
    CHECK(batch->get_many(store, &item, 1, &durable) == KV_STORE_INVALID);
    CHECK(!memcmp(&item, &before, sizeof item));
    CHECK(batch->put_many(store, NULL, 0, NULL) == 0);
    kv_store_item_t hashless[2] = {item_of(NULL, 0, NULL, 0), item_of("ok", 2, NULL, 0)};
    CHECK(batch->put_many(store, hashless, 2, NULL) == 0);
    CHECK(hashless[0].status == KV_STORE_INVALID && hashless[1].status >= 0);
    kv_store_info_t info = {.size = 8};
    CHECK(batch->info(store, &info) == KV_STORE_INVALID);
    info.size = sizeof info;
    CHECK(batch->info(store, &info) == 0 && info.max_value_bytes > 0 && info.batch_items > 0);
    kv_store_item_t one = item_of("durable", 7, NULL, 0);
    int answer = batch->put_many(store, &one, 1, &durable);
    CHECK(info.durable ? answer == 0 && one.status >= 0 : answer == KV_STORE_UNSUPPORTED);
    batch->save_end(NULL);
    batch->queue_close(NULL);
    CHECK(batch->queue_open(store, 0) == NULL && batch->save_begin(NULL) == NULL);
}

/* Two saves on one handle, with chunks of their own. */
static void saves(kv_store_v1 *store)
{
    kv_store_save_t *first = batch->save_begin(store), *second = batch->save_begin(store);
    CHECK(first && second);
    uint8_t value[300];
    kv_store_piece_t piece = {value, sizeof value};
    for (int i = 0; i < 20; i++) {
        char hash[16];
        snprintf(hash, sizeof hash, "of a save %d", i);
        kv_store_item_t item = item_of(hash, strlen(hash), &piece, 1);
        kv_store_call_t call = with(0, i % 2 ? first : second);
        fill(value, sizeof value, (uint64_t)i);
        CHECK(batch->put_many(store, &item, 1, &call) == 0 && item.status >= 0);
    }
    CHECK(batch->save_commit(first, "first", (const uint8_t *)"ten", 3, NULL, NULL) == 0);
    CHECK(batch->save_commit(second, NULL, NULL, 0, NULL, NULL) == 0);
    uint8_t *data;
    size_t len;
    CHECK(kv->get_manifest(store, "first", &data, &len) == 0 && len == 3 && !memcmp(data, "ten", 3));
    free(data);
    CHECK(kv->get_manifest(store, "second", &data, &len) < 0);
    batch->save_end(first);
    batch->save_end(second);
}

static int readable(int fd)
{
    struct pollfd waits = {.fd = fd, .events = POLLIN};
    return poll(&waits, 1, 0) == 1;
}

/* Wait for completions, and count those of a status. */
static int drained(kv_store_queue_t *queue, int want, int status)
{
    kv_store_completion_t done[3];
    int found = 0;
    for (int seen = 0; seen < want;) {
        struct pollfd waits = {.fd = batch->queue_fd(queue), .events = POLLIN};
        CHECK(poll(&waits, 1, 60000) == 1);
        int64_t count = batch->queue_drain(queue, done, 3);
        CHECK(count >= 0);
        seen += (int)count;
        for (int i = 0; i < count; i++)
            found += done[i].status == status;
    }
    return found;
}

static void queues(kv_store_v1 *store, const char *uri)
{
    enum { DEPTH = 8, BLOCK = 100000 };
    static uint8_t value[DEPTH][BLOCK], got[DEPTH][BLOCK];
    char hash[DEPTH][16];
    kv_store_piece_t in[DEPTH], out[DEPTH];
    kv_store_item_t puts[DEPTH + 1], gets[DEPTH];
    kv_store_v1 *own = kv->open(uri);
    kv_store_queue_t *queue = batch->queue_open(own, DEPTH);
    kv_store_save_t *save = batch->save_begin(own);
    CHECK(queue && save && !readable(batch->queue_fd(queue)));
    /* They keep the store open. */
    kv->close(own);
    kv_store_call_t call = with(0, save);
    for (int i = 0; i < DEPTH; i++) {
        snprintf(hash[i], sizeof hash[i], "queued %d", i);
        fill(value[i], BLOCK, (uint64_t)i + 5);
        in[i] = (kv_store_piece_t){value[i], BLOCK};
        out[i] = (kv_store_piece_t){got[i], BLOCK};
        puts[i] = item_of(hash[i], 8, &in[i], 1);
        gets[i] = item_of(hash[i], 8, &out[i], 1);
        CHECK(batch->queue_submit(queue, (uint64_t)i, KV_STORE_PUT, &puts[i], 1, &call) == 0);
    }
    puts[DEPTH] = puts[0];
    CHECK(batch->queue_submit(queue, 99, KV_STORE_PUT, &puts[DEPTH], 1, &call) == KV_STORE_EXHAUSTED);
    CHECK(batch->queue_submit(queue, 99, 9, &puts[DEPTH], 1, &call) == KV_STORE_INVALID);
    /* Waits for all of them. */
    CHECK(batch->save_commit(save, "queued", (const uint8_t *)"x", 1, NULL, NULL) == 0);
    for (int i = 0; i < DEPTH; i++)
        CHECK(puts[i].status >= 0 && puts[i].status <= 1);
    CHECK(drained(queue, DEPTH, 0) == DEPTH && !readable(batch->queue_fd(queue)));
    for (int i = 0; i < DEPTH; i++)
        CHECK(batch->queue_submit(queue, 5, KV_STORE_GET, &gets[i], 1, NULL) == 0);
    CHECK(drained(queue, DEPTH, 0) == DEPTH);
    for (int i = 0; i < DEPTH; i++)
        CHECK(gets[i].status == 0 && gets[i].len == BLOCK && !memcmp(got[i], value[i], BLOCK));
    /* A part that is drained leaves the descriptor readable for the rest, also if somebody else has read it. */
    uint64_t count;
    for (int i = 0; i < 4; i++)
        CHECK(batch->queue_submit(queue, 6, KV_STORE_EXISTS, &gets[i], 1, NULL) == 0);
    kv_store_completion_t done[4];
    for (int seen = 0; seen < 4; seen++) {
        struct pollfd waits = {.fd = batch->queue_fd(queue), .events = POLLIN};
        CHECK(poll(&waits, 1, 60000) == 1);
        CHECK(read(batch->queue_fd(queue), &count, sizeof count) == sizeof count);
        while (batch->queue_drain(queue, done, 1) != 1)
            usleep(1000);
    }
    CHECK(!readable(batch->queue_fd(queue)) && read(batch->queue_fd(queue), &count, sizeof count) < 0 && errno == EAGAIN);
    /* What is cancelled completes too, and so does what is late. */
    for (int i = 0; i < DEPTH; i++)
        CHECK(batch->queue_submit(queue, 8, KV_STORE_GET, &gets[i], 1, NULL) == 0);
    CHECK(batch->queue_cancel(queue, 8) >= 0 && batch->queue_cancel(queue, 12345) == 0);
    CHECK(drained(queue, DEPTH, 77) == 0);
    for (int i = 0; i < DEPTH; i++)
        CHECK(gets[i].status == 0 || gets[i].status == KV_STORE_CANCELLED);
    /* In a child nothing works, and close frees nothing. */
    pid_t child = fork();
    if (child == 0) {
        CHECK(batch->queue_fd(queue) < 0 && batch->queue_drain(queue, done, 4) < 0);
        CHECK(batch->queue_submit(queue, 1, KV_STORE_GET, gets, 1, NULL) < 0);
        CHECK(batch->save_commit(save, "child", NULL, 0, NULL, NULL) < 0);
        batch->queue_close(queue);
        batch->save_end(save);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* A close with requests under way returns when their memory is free. */
    for (int i = 0; i < DEPTH; i++)
        CHECK(batch->queue_submit(queue, 9, KV_STORE_GET, &gets[i], 1, NULL) == 0);
    batch->queue_close(queue);
    memset(got, 0, sizeof got);
    batch->save_end(save);
    (void)store;
}

/* Chunks that wait for put_manifest are found by batches on the same handle. */
static void waiting(kv_store_v1 *store)
{
    uint8_t got[10];
    kv_store_piece_t piece = {got, sizeof got};
    CHECK(kv->put_chunk(store, (const uint8_t *)"it waits", 8, (const uint8_t *)"for it", 6) == 0);
    kv_store_item_t item = item_of("it waits", 8, &piece, 1);
    CHECK(batch->exists_many(store, &item, 1, NULL) == 0 && item.status == 0);
    CHECK(batch->get_many(store, &item, 1, NULL) == 0 && item.status == 0 && item.len == 6 && !memcmp(got, "for it", 6));
    CHECK(kv->put_manifest(store, "waited", NULL, 0) == 0);
}

/* Bytes that are not those of their key are a miss for who says that keys are XXH3; a batch never finds that out by itself. */
static void content_keys(kv_store_v1 *store)
{
    uint8_t value[1000], got[1000];
    fill(value, sizeof value, 99);
    kv_store_piece_t in = {value, sizeof value}, out = {got, sizeof got};
    kv_store_call_t keyed = with(KV_STORE_XXH3_KEYS, NULL);
    kv_store_item_t item = item_of("no XXH3!", 8, &in, 1);
    CHECK(batch->put_many(store, &item, 1, NULL) == 0 && item.status >= 0);
    item = item_of("no XXH3!", 8, &out, 1);
    CHECK(batch->get_many(store, &item, 1, NULL) == 0 && item.status == 0 && !memcmp(got, value, sizeof got));
    CHECK(batch->get_many(store, &item, 1, &keyed) == 0 && item.status == KV_STORE_MISSING);
    /* A flag that does not match removes nothing. */
    CHECK(batch->get_many(store, &item, 1, NULL) == 0 && item.status == 0 && !memcmp(got, value, sizeof got));
    CHECK(batch->put_many(store, &item, 1, &keyed) == KV_STORE_INVALID);
}

/* Values that check themselves lie as they are, and no envelope is found. */
static void self_checked(kv_store_v1 *store)
{
    uint8_t value[1000], got[1000];
    fill(value, sizeof value, 7);
    kv_store_piece_t in = {value, sizeof value}, out = {got, sizeof got};
    kv_store_call_t own = with(KV_STORE_SELF_CHECKED, NULL), sealed = with(KV_STORE_SEALED, NULL);
    kv_store_call_t both = with(KV_STORE_SELF_CHECKED | KV_STORE_SEALED, NULL);
    kv_store_item_t item = item_of("checks itself", 13, &in, 1);
    CHECK(batch->put_many(store, &item, 1, &own) == 0 && item.status == 0);
    CHECK(batch->put_many(store, &item, 1, &own) == 0 && item.status == KV_STORE_EXISTED);
    item = item_of("checks itself", 13, &out, 1);
    CHECK(batch->get_many(store, &item, 1, &own) == 0 && item.status == 0 && item.len == sizeof got && !memcmp(got, value, sizeof got));
    CHECK(batch->exists_many(store, &item, 1, &own) == 0 && item.status == 0);
    CHECK(batch->get_many(store, &item, 1, &sealed) == 0 && item.status == KV_STORE_MISSING);
    CHECK(batch->get_many(store, &item, 1, &both) == KV_STORE_INVALID && strstr(batch->last_error(), "exclude"));
    CHECK(batch->delete_many(store, &item, 1, &own) == KV_STORE_INVALID);
}

static void cancel(kv_store_v1 *store, const char *unused)
{
    enum { COUNT = 20 };
    kv_store_item_t items[COUNT], first = item_of("\1", 1, NULL, 0);
    static const uint8_t keys[COUNT] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    for (int i = 0; i < COUNT; i++)
        items[i] = item_of(&keys[i], 1, NULL, 0);
    kv_store_queue_t *queue = batch->queue_open(store, 1);
    CHECK(queue && batch->queue_submit(queue, 7, KV_STORE_PUT, items, COUNT, NULL) == 0);
    do
        CHECK(batch->exists_many(store, &first, 1, NULL) == 0);
    while (first.status == KV_STORE_MISSING);
    CHECK(batch->queue_cancel(queue, 7) == 1);
    kv_store_completion_t done;
    struct pollfd waits = {.fd = batch->queue_fd(queue), .events = POLLIN};
    CHECK(poll(&waits, 1, 60000) == 1 && batch->queue_drain(queue, &done, 1) == 1 && done.cookie == 7);
    CHECK(items[0].status == 0 && items[COUNT - 1].status == KV_STORE_CANCELLED);
    batch->queue_close(queue);
    (void)unused;
}

static void hung(kv_store_v1 *store, const char *unused)
{
    uint8_t value[100] = {1}, got[2][100];
    kv_store_piece_t in = {value, sizeof value}, out[2] = {{got[0], 100}, {got[1], 100}};
    kv_store_item_t item = item_of("hung", 4, &in, 1), gets[2] = {item_of("hung", 4, &out[0], 1), item_of("hung", 4, &out[1], 1)};
    CHECK(batch->put_many(store, &item, 1, NULL) == 0 && item.status == 0);
    printf("hang\n");
    CHECK(fflush(stdout) == 0 && getchar() == '\n');
    kv_store_queue_t *queue = batch->queue_open(store, 2);
    kv_store_call_t little = {.size = sizeof little, .timeout_ms = 200};
    CHECK(queue && batch->queue_submit(queue, 1, KV_STORE_GET, &gets[0], 1, &little) == 0);
    CHECK(batch->queue_submit(queue, 2, KV_STORE_GET, &gets[1], 1, NULL) == 0);
    /* The one with little time is over, and its memory is free; the other one waits on. */
    kv_store_completion_t done[2];
    struct pollfd waits = {.fd = batch->queue_fd(queue), .events = POLLIN};
    CHECK(poll(&waits, 1, 60000) == 1 && batch->queue_drain(queue, done, 2) == 1 && done[0].cookie == 1);
    CHECK(done[0].status == KV_STORE_UNAVAILABLE || gets[0].status == KV_STORE_UNAVAILABLE);
    memset(got[0], 77, sizeof got[0]);
    printf("go on\n");
    CHECK(fflush(stdout) == 0 && getchar() == '\n');
    CHECK(poll(&waits, 1, 60000) == 1 && batch->queue_drain(queue, done, 2) == 1 && done[0].cookie == 2);
    CHECK(gets[1].status == 0 && !memcmp(got[1], value, sizeof value));
    for (size_t i = 0; i < sizeof got[0]; i++)
        CHECK(got[0][i] == 77);
    batch->queue_close(queue);
    (void)unused;
}

static void lose(kv_store_v1 *store, const char *path)
{
    kv_store_save_t *save = batch->save_begin(store), *other = batch->save_begin(store);
    kv_store_call_t call = with(0, save), of_other = with(0, other);
    uint8_t value[100] = {1};
    kv_store_piece_t piece = {value, sizeof value};
    kv_store_item_t item = item_of("a", 1, &piece, 1), good = item_of("b", 1, &piece, 1);
    CHECK(batch->put_many(store, &item, 1, &call) == 0 && item.status == 0);
    CHECK(batch->put_many(store, &good, 1, &of_other) == 0 && good.status == 0);
    CHECK(unlink(path) == 0);
    kv_store_hash_t *lost;
    size_t n_lost;
    for (int again = 0; again < 2; again++) {
        CHECK(batch->save_commit(save, "m", value, 1, &lost, &n_lost) == KV_STORE_LOST);
        CHECK(n_lost == 1 && lost[0].len == 1 && lost[0].bytes[0] == 'a');
        free(lost);
    }
    CHECK(batch->save_commit(other, "other", value, 1, &lost, &n_lost) == 0 && lost == NULL && n_lost == 0);
    CHECK(batch->put_many(store, &item, 1, &call) == 0 && item.status == 0);
    CHECK(batch->save_commit(save, "m", value, 1, NULL, NULL) == 0);
    batch->save_end(save);
    batch->save_end(other);
}

static void flip(kv_store_v1 *store, const char *path)
{
    uint8_t value[100] = {1}, got[100];
    kv_store_piece_t in = {value, sizeof value}, out = {got, sizeof got};
    kv_store_item_t item = item_of("a", 1, &in, 1);
    kv_store_call_t sealed = with(KV_STORE_SEALED, NULL);
    CHECK(batch->put_many(store, &item, 1, &sealed) == 0 && item.status == 0);
    FILE *file = fopen(path, "r+b");
    CHECK(file && fseek(file, 50, SEEK_SET) == 0 && fputc(0x40, file) == 0x40 && fclose(file) == 0);
    item = item_of("a", 1, &out, 1);
    CHECK(batch->get_many(store, &item, 1, &sealed) == 0 && item.status == KV_STORE_MISSING);
    item = item_of("a", 1, &in, 1);
    CHECK(batch->put_many(store, &item, 1, &sealed) == 0 && item.status == 0);
    item = item_of("a", 1, &out, 1);
    CHECK(batch->get_many(store, &item, 1, &sealed) == 0 && item.status == 0 && !memcmp(got, value, sizeof got));
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    void *lib = load_library(&kv);
    kv_store_batch_get_vtable_fn get;
    *(void **)&get = dlsym(lib, KV_STORE_BATCH_GET_VTABLE_SYMBOL);
    CHECK(get);
    batch = get();
    CHECK(batch->size == sizeof *batch && batch->version == KV_STORE_BATCH_VTABLE_VERSION);
    kv_store_v1 *store = kv->open(argv[2]);
    CHECK(store);
    if (strcmp(argv[1], "all") == 0) {
        many(store, 0, 1);
        many(store, KV_STORE_SEALED, 2);
        holes(store);
        waiting(store);
        queues(store, argv[2]);
        refusals(store);
        saves(store);
        content_keys(store);
        self_checked(store);
    } else {
        static const struct {
            const char *name;
            void (*run)(kv_store_v1 *store, const char *path);
        } modes[] = {{"lose", lose}, {"flip", flip}, {"cancel", cancel}, {"hung", hung}};
        size_t mode = 0;
        while (mode < 4 && strcmp(argv[1], modes[mode].name) != 0)
            mode++;
        CHECK(argc == 4 && mode < 4);
        modes[mode].run(store, argv[3]);
    }
    kv->close(store);
    printf("done\n");
    return 0;
}
