"""Rows `engines/lmcache/*`: LMCache's own measurement of an L2 adapter, ours beside its native ones."""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Sequence

from lmcache.cli.commands.bench.l2_adapter_bench import data, runner
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from rows import in_turns, quick, row, wanted

KEYS = 32


class Side:
    """An adapter, and one round of each operation by LMCache's own functions."""

    def __init__(self, spec: dict, size: int) -> None:
        self.size = size
        config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)]))
        self.buffer = data.make_aligned_tensor(2 * KEYS * size)
        self.adapter = create_l2_adapter(config.adapters[0], data.create_l1_memory_desc(self.buffer))
        self.stored = data.make_memory_objects(self.buffer, KEYS, size, 0)
        self.loaded = data.make_memory_objects(self.buffer, KEYS, size, KEYS * size, fill_offset=1)

    def round(self, number: int) -> Sequence[float]:
        keys = data.make_object_keys(KEYS, key_offset=number * KEYS)
        say = lambda *_: None  # noqa: E731
        store = runner.bench_store(self.adapter, 1, KEYS, self.size, 1, lambda _: [keys], lambda _: [self.stored], say)
        lookup = runner.bench_lookup(self.adapter, 1, KEYS, 1, lambda _: [keys], say)
        load = runner.bench_load(self.adapter, 1, KEYS, self.size, 1, lambda _: [keys], lambda _: [self.loaded], say)
        for result in (store, lookup, load):
            assert result.success_counts == [KEYS], f"{result.operation}: {result.success_counts} of {KEYS}, {self.adapter.report_status()}"
        assert data.verify_round_trip(keys, self.stored, self.loaded, say), "other bytes than were stored"
        self.adapter.submit_unlock(keys)
        # A full run would leave gigabytes behind.
        self.adapter.delete(keys)
        return [result.round_durations[0] for result in (store, lookup, load)]


def measure(name: str, ours: dict, peer: dict, size: int, goals: Sequence[float], rounds: int) -> None:
    if not any(wanted(f"engines/lmcache/{name}/{operation}") for operation in ("put", "lookup", "get")):
        return
    sides = Side(ours, size), Side(peer, size)
    taken = in_turns(sides[0].round, sides[1].round, rounds)
    for operation, goal, mine, theirs in zip(("put", "lookup", "get"), goals, *taken):
        amount = 0 if operation == "lookup" else KEYS * size / 1e6
        row(f"engines/lmcache/{name}/{operation}", mine, theirs, amount, "MB/s" if amount else "us", goal)
    for side in sides:
        side.adapter.close()


def plugin(uri: str, size: str) -> dict:
    # LMCache's keys are the same for each size, and a key that is there stays as it is.
    return {
        "type": "native_plugin",
        "module_path": "kv_store_wasm.lmcache",
        "class_name": "Client",
        "adapter_params": {"uri": uri, "salt": size},
    }


def main() -> None:
    rounds = 5 if quick() else 21
    # Speeds: a lookup that takes 1.2 times as long is 0.83 as fast.
    sizes = (("1MiB", 1 << 20, None), ("4MiB", 1 << 22, (1.0, 0.83, 1.0)), ("64KiB", 1 << 16, (1.0, 0.83, 1.0)))
    redis = os.environ.get("KV_STORE_BENCH_REDIS")
    for label, size, goals in sizes:
        folder = tempfile.mkdtemp(dir=os.environ.get("KV_STORE_BENCH_FOLDER"))
        for name in ("ours", "peer"):
            os.mkdir(f"{folder}/{name}")
        peer = {"type": "fs_native", "base_path": f"{folder}/peer"}
        measure(f"fs/{label}", plugin(f"local-fs://{folder}/ours", label), peer, size, goals or (1.0, 0.83, 1.0), rounds)
        shutil.rmtree(folder)
        if redis:
            port = int(redis)
            peer = {"type": "resp", "host": "127.0.0.1", "port": port}
            ours = plugin(f"redis://127.0.0.1:{port}/1", label)
            measure(f"redis/{label}", ours, peer, size, goals or (1.5, 0.83, 1.2), rounds)


if __name__ == "__main__":
    main()
