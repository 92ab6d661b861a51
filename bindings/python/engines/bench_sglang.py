"""Rows `engines/sglang/*`: 16 pages of 8 MiB through SGLang's factory, beside its HiCacheFile."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence

import torch
from rows import in_turns, quick, row, wanted
from sglang_alone import import_sglang

PAGES = 16
PAGE = 8 << 20


class Pool:
    """A host pool of pages in the layout page_first, one token a page: K, then V."""

    layout, page_size, dtype = "page_first", 1, torch.uint8

    def __init__(self) -> None:
        self.kv_buffer = torch.zeros((2, PAGES, PAGE // 2), dtype=torch.uint8)

    def get_page_buffer_meta(self, indices):
        places = [(half, int(index)) for index in indices for half in (0, 1)]
        return [self.kv_buffer[half, index].data_ptr() for half, index in places], [PAGE // 2] * len(places)

    def get_data_page(self, index, flat=True):
        return self.kv_buffer[:, index].flatten()

    def get_dummy_flat_data_page(self):
        return torch.zeros(PAGE, dtype=torch.uint8)

    def set_from_flat_data_page(self, index, page):
        self.kv_buffer[:, index] = page.reshape(2, -1)


def main() -> None:
    if not any(wanted(f"engines/sglang/{name}") for name in ("set", "get", "exists")):
        return
    import_sglang()
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    folder = tempfile.mkdtemp(dir=os.environ.get("KV_STORE_BENCH_FOLDER"))
    for name in ("ours", "peer"):
        os.mkdir(f"{folder}/{name}")
    plugin = {"backend_name": "kv", "module_path": "kv_store_wasm.sglang", "class_name": "Storage", "interface_v1": 1}
    settings = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1)
    settings |= dict(is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=True, model_name="bench")

    def made(backend: str, extra: dict):
        pool = Pool()
        config = HiCacheStorageConfig(**settings, extra_config=extra)
        storage = StorageBackendFactory.create_backend(backend, config, pool)
        storage.register_mem_pool_host(pool)
        return storage, pool

    ours, pool = made("dynamic", {**plugin, "uri": f"local-fs://{folder}/ours"})
    peer, other = made("file", {"file_storage_path": f"{folder}/peer"})
    source = torch.randint(0, 256, (2, PAGES, PAGE // 2), dtype=torch.uint8)
    indices = torch.arange(PAGES)

    def timed(run) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def round_of(pool, steps, number: int) -> Sequence[float]:
        names = [f"{number:032x}{page:032x}" for page in range(PAGES)]
        pool.kv_buffer.copy_(source)
        taken = [timed(lambda: steps[0](names))]
        taken.append(timed(lambda: steps[1](names)))
        pool.kv_buffer.zero_()
        taken.append(timed(lambda: steps[2](names)))
        assert torch.equal(pool.kv_buffer, source), "other bytes than were set"
        return taken

    def check(value, expected) -> None:
        assert value == expected, value

    # As the controller calls them: a v1 backend with the pages' addresses, any other with flat tensors.
    def peer_get(names: list[str]) -> None:
        pages = peer.batch_get(names, [other.get_dummy_flat_data_page() for _ in names])
        for index, page in enumerate(pages):
            other.set_from_flat_data_page(index, page)

    my_steps = (
        lambda names: check(ours.batch_set_v1(names, indices), [True] * PAGES),
        lambda names: check(ours.batch_exists(names), PAGES),
        lambda names: check(ours.batch_get_v1(names, indices), [True] * PAGES),
    )
    their_steps = (
        lambda names: check(peer.batch_set(names, [other.get_data_page(index) for index in range(PAGES)]), True),
        lambda names: check(peer.batch_exists(names), PAGES),
        peer_get,
    )
    taken = in_turns(
        lambda number: round_of(pool, my_steps, number),
        lambda number: round_of(other, their_steps, number),
        3 if quick() else 11,
    )
    # A time of 1.5 times theirs is 0.67 as fast.
    names = (("set", 1.5), ("exists", 0.67), ("get", 3.0))
    for (operation, goal), mine, theirs in zip(names, *taken):
        amount = 0 if operation == "exists" else PAGES * PAGE / 1e6
        row(f"engines/sglang/{operation}", mine, theirs, amount, "MB/s" if amount else "us", goal)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
