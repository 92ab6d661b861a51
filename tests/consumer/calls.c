/*
 * Single calls, from the command line, and what each answered, a line for each:
 *
 *     calls URI [put HEX TEXT | get HEX | prefetch LEN HEX | publish NAME TEXT | read NAME | delete NAME | wait]...
 *
 * HEX is a hash; of `prefetch`, hashes of LEN bytes one after another. What was fetched is printed in hex. `wait` says
 * so and reads a line from standard input, so that a test can change what lies on the disk in between.
 */
#include "consumer.h"

/* Memory of the right size, so that a checker of memory sees a read past the end. */
static uint8_t *from_hex(const char *hex, size_t *len)
{
    *len = strlen(hex) / 2;
    uint8_t *bytes = malloc(*len + (*len == 0));
    CHECK(bytes);
    for (size_t i = 0; i < *len; i++) {
        unsigned byte;
        CHECK(sscanf(hex + 2 * i, "%2x", &byte) == 1);
        bytes[i] = (uint8_t)byte;
    }
    return bytes;
}

static void fetched(const char *what, int answer, uint8_t *data, size_t len)
{
    printf("%s %d", what, answer);
    if (answer == 0) {
        printf(" ");
        for (size_t i = 0; i < len; i++)
            printf("%02x", data[i]);
        free(data);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    const kv_store_vtable *kv;
    load_library(&kv);
    kv_store_v1 *store = kv->open(argv[1]);
    printf("open %s\n", store ? "ok" : "NULL");
    if (!store)
        return 0;

    for (char **at = argv + 2; *at;) {
        const char *what = *at++;
        uint8_t *data = NULL;
        size_t len = 0;
        if (strcmp(what, "wait") == 0) {
            printf("wait\n");
            fflush(stdout);
            CHECK(getchar() != EOF);
            continue;
        }
        CHECK(*at);
        if (strcmp(what, "put") == 0) {
            CHECK(at[1]);
            uint8_t *hash = from_hex(*at++, &len);
            printf("put %d\n", kv->put_chunk(store, hash, len, (const uint8_t *)*at, strlen(*at)));
            at++;
            free(hash);
        } else if (strcmp(what, "get") == 0) {
            size_t out_len;
            uint8_t *hash = from_hex(*at++, &len);
            int answer = kv->get_chunk(store, hash, len, &data, &out_len);
            fetched("get", answer, data, out_len);
            free(hash);
        } else if (strcmp(what, "prefetch") == 0) {
            CHECK(at[1]);
            size_t each = strtoul(*at++, NULL, 10);
            uint8_t *hashes = from_hex(*at++, &len);
            printf("prefetch %d\n", kv->prefetch_chunks(store, hashes, each, len / each));
            free(hashes);
        } else if (strcmp(what, "publish") == 0) {
            CHECK(at[1]);
            printf("publish %d\n", kv->put_manifest(store, at[0], (const uint8_t *)at[1], strlen(at[1])));
            at += 2;
        } else if (strcmp(what, "read") == 0) {
            int answer = kv->get_manifest(store, *at++, &data, &len);
            fetched("read", answer, data, len);
        } else if (strcmp(what, "delete") == 0) {
            printf("delete %d\n", kv->delete_manifest(store, *at++));
        } else {
            CHECK(!"a call that is known");
        }
    }
    kv->close(store);
    return 0;
}
