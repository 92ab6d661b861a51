// Saves the blocks of a prompt and restores them, from C++17: handles as unique_ptr, failures as exceptions.
//
//     c++ -std=c++17 -Iinclude examples/engine.cpp -o engine -ldl && ./engine local-fs:///tmp/kv
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv_store_batch.h"

namespace kv {

// The library. It stays in the process, so this is never undone.
struct Library {
    const kv_store_vtable *v1;
    const kv_store_batch_vtable_t *batch;

    explicit Library(const char *path)
    {
        void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!lib)
            throw std::runtime_error(dlerror());
        v1 = symbol<kv_store_get_vtable_fn>(lib, KV_STORE_GET_VTABLE_SYMBOL)();
        batch = symbol<kv_store_batch_get_vtable_fn>(lib, KV_STORE_BATCH_GET_VTABLE_SYMBOL)();
    }

private:
    template <typename Function> static Function symbol(void *lib, const char *name)
    {
        void *found = dlsym(lib, name);
        if (!found)
            throw std::runtime_error(std::string("the library has no ") + name);
        return reinterpret_cast<Function>(found);
    }
};

using Block = std::vector<unsigned char>;

class Store {
public:
    Store(const Library &library, const std::string &uri)
        : batch_(library.batch), handle_(library.v1->open(uri.c_str()), library.v1->close)
    {
        if (!handle_)
            throw std::runtime_error("cannot open " + uri + ": the reason is a line on standard error");
    }

    // Publishes `name` over the blocks, or throws; then nothing was published.
    void save(const std::string &name, const std::vector<std::string> &keys, std::vector<Block> &blocks)
    {
        std::unique_ptr<kv_store_save_t, void (*)(kv_store_save_t *)> save(batch_->save_begin(handle_.get()), batch_->save_end);
        if (!save)
            throw std::runtime_error(batch_->last_error());
        kv_store_call_t call{};
        call.size = sizeof call;
        call.flags = KV_STORE_SEALED;
        call.save = save.get();
        Items items(keys, blocks);
        check(batch_->put_many(handle_.get(), items.data(), items.size(), &call));
        for (const kv_store_item_t &item : items)
            check(item.status);
        check(batch_->save_commit(save.get(), name.c_str(), nullptr, 0, nullptr, nullptr));
    }

    // Fills the leading blocks that the store has, and answers how many. Late or damaged blocks are misses.
    std::size_t restore(const std::vector<std::string> &keys, std::vector<Block> &blocks, unsigned timeout_ms)
    {
        kv_store_call_t call{};
        call.size = sizeof call;
        call.flags = KV_STORE_SEALED;
        call.timeout_ms = timeout_ms;
        Items items(keys, blocks);
        check(batch_->get_many(handle_.get(), items.data(), items.size(), &call));
        std::size_t leading = 0;
        while (leading < items.size() && items[leading].status == KV_STORE_OK && items[leading].len == blocks[leading].size())
            leading++;
        return leading;
    }

private:
    // Items over keys and blocks, which must outlive them.
    struct Items : std::vector<kv_store_item_t> {
        Items(const std::vector<std::string> &keys, std::vector<Block> &blocks) : std::vector<kv_store_item_t>(keys.size())
        {
            pieces.reserve(keys.size());
            for (std::size_t i = 0; i < keys.size(); i++) {
                pieces.push_back({blocks.at(i).data(), blocks.at(i).size()});
                kv_store_item_t &item = (*this)[i];
                item.hash = reinterpret_cast<const uint8_t *>(keys[i].data());
                item.hash_len = keys[i].size();
                item.pieces = &pieces[i];
                item.n_pieces = 1;
            }
        }
        std::vector<kv_store_piece_t> pieces;
    };

    void check(int status) const
    {
        if (status < 0)
            throw std::runtime_error(batch_->last_error());
    }

    const kv_store_batch_vtable_t *batch_;
    std::unique_ptr<kv_store_v1, void (*)(kv_store_v1 *)> handle_;
};

} // namespace kv

int main(int argc, char **argv)
{
    if (argc != 2) {
        std::fprintf(stderr, "usage: engine URI\n");
        return 2;
    }
    try {
        kv::Library library("libkv_store_wasm.so");
        kv::Store store(library, argv[1]);
        std::vector<std::string> keys;
        std::vector<kv::Block> blocks, restored;
        for (int i = 0; i < 16; i++) {
            keys.push_back("model-7b/bf16/rank0/prompt-2/" + std::to_string(i));
            blocks.emplace_back(32768, static_cast<unsigned char>(i + 1));
            restored.emplace_back(32768);
        }
        store.save("prompt-2", keys, blocks);
        std::size_t found = store.restore(keys, restored, 10000);
        std::printf("restored %zu of %zu blocks\n", found, keys.size());
        return found == keys.size() && restored == blocks ? 0 : 1;
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
}
