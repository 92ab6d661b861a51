"""Rows `engines/vllm/first-token/*`: SmolLM2 in a running vLLM on a CPU, the seconds until a prompt's first token. Ours loads the prompt's
blocks from files; the peers compute it, or load it by vLLM's own `ExampleConnector`. `nothing-found` is a prompt that no store has, beside a
vLLM without a connector."""

import os
import pathlib
import random
import shutil
import statistics
import tempfile
from typing import Any

from rows import quick, row, wanted
from test_vllm_running import Vllm

BLOCK = 32
LENGTHS = {"1k": 1024, "3k": 3072}


def main() -> None:
    peers = ("computed", "example", "nothing-found")
    lengths = {label: length for label, length in LENGTHS.items() if any(wanted(f"engines/vllm/first-token/{label}/{peer}") for peer in peers)}
    if not lengths:
        return
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("KV_STORE_BENCH_FOLDER")))
    drawn = random.Random(1)

    def prompt(length: int) -> list[int]:
        # One token more than whole blocks: all before it can be loaded.
        return [drawn.randrange(100, 49000) for _ in range(length + 1)]

    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "example")},
    }
    (folder / "ours").mkdir()
    sides: dict[str, dict[str, Any]] = {
        "ours": {"connector": {"uri": f"local-fs://{folder}/ours"}},
        "example": {"connector": None, "transfer": example, "disable_hybrid_kv_cache_manager": True},
        "plain": {"connector": None},
    }
    rounds = 2 if quick() else 5
    engines: dict[str, Vllm] = {}
    for name, side in sides.items():
        engines[name] = Vllm()
        options = dict(side, dtype="bfloat16", max_model_len=4096, max_num_batched_tokens=4096, block_size=BLOCK)
        made = engines[name].make("smollm2", options.pop("connector"), options.pop("transfer", None), **options)
        assert made == {"ready": True}, made

    def first_token(name: str, asked: list[int]) -> float:
        """vLLM has forgotten its own prefix cache before."""
        [seconds] = engines[name].run([asked], tokens=1, reset=True)["seconds"]
        return float(seconds)

    for label, length in lengths.items():
        warm = prompt(length)
        for name in sides:
            first_token(name, warm)
        computed: dict[str, list[float]] = {name: [] for name in sides}
        loaded: dict[str, list[float]] = {"ours": [], "example": []}
        for number in range(rounds):
            asked = prompt(length)
            order = list(sides) if number % 2 else list(reversed(sides))
            for name in order:
                computed[name].append(first_token(name, asked))
            for name in order:
                if name in loaded:
                    loaded[name].append(first_token(name, asked))
        for peer, ours, theirs, goal in (
            ("computed", loaded["ours"], computed["plain"], 10.0),
            ("example", loaded["ours"], loaded["example"], 3.0),
            ("nothing-found", computed["ours"], computed["plain"], 0.98),
        ):
            row(f"engines/vllm/first-token/{label}/{peer}", ours, theirs, 0, "us", goal)
            print(label, peer, statistics.median(ours), statistics.median(theirs))
    for engine in engines.values():
        engine.end()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
