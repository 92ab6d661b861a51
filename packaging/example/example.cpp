// Saves two chunks and a manifest, and restores them, linked with the library in place of loading it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <kv_store_abi.h>

static void check(bool ok, const char *what)
{
    if (!ok) {
        std::fprintf(stderr, "failed: %s\n", what);
        std::exit(1);
    }
}

int main(int argc, char **argv)
{
    check(argc == 2, "one argument, the URI of a store");
    const kv_store_vtable *kv = kv_store_get_vtable();
    kv_store_v1 *store = kv->open(argv[1]);
    check(store != nullptr, "open");
    const std::string keys[] = {"key of one", "key of two"}, chunks[] = {"the first chunk", "the second"};
    auto bytes = [](const std::string &text) { return reinterpret_cast<const uint8_t *>(text.data()); };
    for (int i = 0; i < 2; i++)
        check(kv->put_chunk(store, bytes(keys[i]), keys[i].size(), bytes(chunks[i]), chunks[i].size()) >= 0, "put_chunk");
    const std::string manifest = "two chunks";
    check(kv->put_manifest(store, "prompt-1", bytes(manifest), manifest.size()) == 0, "put_manifest");
    for (int i = 0; i < 2; i++) {
        uint8_t *data = nullptr;
        size_t len = 0;
        check(kv->get_chunk(store, bytes(keys[i]), keys[i].size(), &data, &len) == 0, "get_chunk");
        check(len == chunks[i].size() && !std::memcmp(data, chunks[i].data(), len), "the same bytes");
        std::free(data);
    }
    kv->close(store);
    std::puts("saved and restored");
    return 0;
}
