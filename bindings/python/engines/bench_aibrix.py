"""Rows `engines/aibrix/*`: 16 blocks of 1 MiB through AIBrix's manager, over our connector beside its own: local-fs beside RocksDB, memory
beside its mock, which keeps blocks in a dict."""

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence

from rows import in_turns, quick, row, wanted

BLOCKS = 16
TOKENS = 16
SETTINGS = {
    # The connector and what is above it, and no near level before it.
    "L1_CACHE_ENABLED": "0",
    "L1_CACHE_CAPACITY_GB": "0.25",
    "L2_CACHE_INGESTION_TYPE": "ALL",
    "L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS": "0",
    "L2_CACHE_PER_TOKEN_TIMEOUT_MS": "2000",
    "DEVICE": "cpu",
    "TIME_MEASUREMENT_ENABLED": "0",
    "BREAKDOWN_MEASUREMENT_ENABLED": "0",
}


def setting(name: str, value: str) -> None:
    os.environ[f"AIBRIX_KV_CACHE_OL_{name}"] = value


class Side:
    """A manager over a backend, and one round of each operation."""

    def __init__(self, backend: str, environment: Mapping[str, str]) -> None:
        import torch
        from aibrix_kvcache import cache_manager, config, spec

        setting("L2_CACHE_BACKEND", backend)
        os.environ.update(environment)
        tensor = spec.KVCacheTensorSpec(heads=list(range(8)), layers=list(range(16)), head_size=128)
        block = spec.KVCacheBlockSpec(TOKENS, torch.bfloat16, spec.KVCacheBlockLayout.LCND, tensor)
        model = spec.ModelSpec(max_model_len=BLOCKS * TOKENS)
        self.manager = cache_manager.BaseKVCacheManager(config.KVCacheConfig(block_spec=block, model_spec=model))
        # An engine pins this memory, so all of it is there before the first block is.
        for slab in self.manager._allocator.slabs:
            slab.zero_()
        self.source = [torch.randint(-128, 128, (block.block_nbytes,), dtype=torch.int8) for _ in range(BLOCKS)]
        self.bytes = torch.int8

    def round(self, number: int) -> Sequence[float]:
        from aibrix_kvcache.cache_hashable import TokenListView

        tokens = TokenListView(tuple(range(number * BLOCKS * TOKENS, (number + 1) * BLOCKS * TOKENS)))
        given = self.manager.allocate_for(None, tokens).get()
        for place, source in zip(given.to_tensors(), self.source, strict=True):
            place.view(self.bytes).view(-1).copy_(source)
        start = time.perf_counter()
        stored = self.manager.put(None, tokens, given)
        taken = [time.perf_counter() - start]
        assert stored.is_ok() and stored.get() == len(tokens), stored
        start = time.perf_counter()
        found = self.manager.acquire(None, tokens)
        taken.append(time.perf_counter() - start)
        assert found.is_ok(), found
        length, loaded = found.get()
        assert length == len(tokens), length
        for place, source in zip(loaded.to_tensors(), self.source, strict=True):
            assert place.view(self.bytes).view(-1).equal(source), "other bytes than were put"
        loaded.release()
        self.manager.delete(None, tokens)
        return taken


def measure(name: str, ours: str, peer: str, environment: Mapping[str, str], goal: float, rounds: int) -> None:
    if not any(wanted(f"engines/aibrix/{name}/{operation}") for operation in ("put", "get")):
        return
    sides = Side("KV_STORE_WASM", {"KV_STORE_AIBRIX_URI": ours}), Side(peer, environment)
    taken = in_turns(sides[0].round, sides[1].round, rounds)
    for operation, mine, theirs in zip(("put", "get"), *taken):
        row(f"engines/aibrix/{name}/{operation}", mine, theirs, BLOCKS * (1 << 20) / 1e6, "MB/s", goal)
    for side in sides:
        side.manager.close()


def main() -> None:
    if not any(wanted(f"engines/aibrix/{name}/{operation}") for name in ("rocksdb", "mock") for operation in ("put", "get")):
        return
    for name, value in SETTINGS.items():
        setting(name, value)
    from aibrix_kvcache import cache_manager

    import kv_store_wasm.aibrix  # noqa: F401

    cache_manager.TESTING_DISABLE_PIN_MEMORY = True
    rounds = 5 if quick() else 21
    folder = tempfile.mkdtemp(dir=os.environ.get("KV_STORE_BENCH_FOLDER"))
    os.mkdir(f"{folder}/ours")
    rocksdb = {"AIBRIX_KV_CACHE_OL_ROCKSDB_ROOT": f"{folder}/rocksdb"}
    measure("rocksdb", f"local-fs://{folder}/ours", "ROCKSDB", rocksdb, 1.5, rounds)
    measure("mock", "memory://", "MOCK", {}, 1.0, rounds)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
