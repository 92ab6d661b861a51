/*
 * What has come of a call when it has answered: promises URI
 *
 * Prints a line for each call, `call: word`:
 *   buffered     this handle reads the value, and no other client
 *   visible      every client reads it
 *   durable      the same, and the call makes durable what the store says it can
 *   unsupported  it was refused for what the backend is
 *
 * Another client is another process where the store is shared, else another handle: promises URI look CHUNK|- MANIFEST|-
 * exits with 0 if it reads both, and with 3 if not.
 */
#include "consumer.h"

#include <spawn.h>
#include <sys/wait.h>

#include "kv_store_batch.h"

extern char **environ;

static const kv_store_vtable *kv;
static const kv_store_batch_vtable_t *batch;
static const char *program, *uri;
static kv_store_info_t info;

static int reads(kv_store_v1 *store, const char *chunk, const char *manifest)
{
    uint8_t *data = NULL;
    size_t len = 0;
    int found = 1;
    if (strcmp(chunk, "-") != 0) {
        found = kv->get_chunk(store, (const uint8_t *)chunk, strlen(chunk), &data, &len) == 0;
        if (found)
            free(data);
    }
    if (found && strcmp(manifest, "-") != 0) {
        found = kv->get_manifest(store, manifest, &data, &len) == 0;
        if (found)
            free(data);
    }
    return found;
}

static int another_reads(const char *chunk, const char *manifest)
{
    if (!info.shared) {
        kv_store_v1 *other = kv->open(uri);
        CHECK(other);
        int found = reads(other, chunk, manifest);
        kv->close(other);
        return found;
    }
    char *arguments[] = {(char *)program, (char *)uri, "look", (char *)chunk, (char *)manifest, NULL};
    pid_t pid;
    int status;
    CHECK(posix_spawn(&pid, program, NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3));
    return WEXITSTATUS(status) == 0;
}

/* What is said of a call that has stored a chunk, or published a manifest, or both. */
static void say(const char *call, kv_store_v1 *store, int answered, const char *chunk, const char *manifest, int makes_durable)
{
    if (answered == KV_STORE_UNSUPPORTED) {
        CHECK(!another_reads(chunk, manifest));
        printf("%s: unsupported\n", call);
        return;
    }
    CHECK(answered == 0 && reads(store, chunk, manifest));
    int visible = another_reads(chunk, manifest);
    CHECK(visible || !makes_durable);
    printf("%s: %s\n", call, !visible ? "buffered" : makes_durable && info.durable ? "durable" : "visible");
}

static int put(kv_store_v1 *store, const char *key, uint32_t flags, kv_store_save_t *save)
{
    kv_store_piece_t piece = {"a value", 7};
    kv_store_item_t item = {.hash = (const uint8_t *)key, .hash_len = strlen(key), .pieces = &piece, .n_pieces = 1};
    kv_store_call_t call = {.size = sizeof call, .flags = flags, .save = save};
    int answered = batch->put_many(store, &item, 1, &call);
    return answered ? answered : item.status;
}

int main(int argc, char **argv)
{
    void *lib = load_library(&kv);
    CHECK(argc == 2 || argc == 5);
    program = argv[0];
    uri = argv[1];
    kv_store_v1 *store = kv->open(uri);
    CHECK(store);
    if (argc == 5) {
        int found = reads(store, argv[3], argv[4]);
        kv->close(store);
        return found ? 0 : 3;
    }
    kv_store_batch_get_vtable_fn get;
    *(void **)&get = dlsym(lib, KV_STORE_BATCH_GET_VTABLE_SYMBOL);
    CHECK(get);
    batch = get();
    info.size = sizeof info;
    CHECK(batch->info(store, &info) == 0);

    int answered = kv->put_chunk(store, (const uint8_t *)"single", 6, (const uint8_t *)"a value", 7);
    say("put_chunk", store, answered, "single", "-", 0);
    answered = kv->put_manifest(store, "of-single", (const uint8_t *)"m", 1);
    say("put_manifest", store, answered, "single", "of-single", 1);
    say("put_many", store, put(store, "loose", 0, NULL), "loose", "-", 0);
    say("put_many, DURABLE", store, put(store, "durable", KV_STORE_DURABLE, NULL), "durable", "-", 1);

    kv_store_save_t *save = batch->save_begin(store);
    CHECK(save);
    say("put_many of a save", store, put(store, "saved", 0, save), "saved", "-", 0);
    kv_store_hash_t *lost = NULL;
    size_t n_lost = 0;
    answered = batch->save_commit(save, NULL, NULL, 0, &lost, &n_lost);
    say("save_commit without a name", store, answered, "saved", "-", 1);
    CHECK(put(store, "named", 0, save) == 0);
    answered = batch->save_commit(save, "of-save", (const uint8_t *)"m", 1, &lost, &n_lost);
    say("save_commit", store, answered, "named", "of-save", 1);
    batch->save_end(save);
    kv->close(store);
    return 0;
}
