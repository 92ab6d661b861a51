"""Blocks between pages on a device and a store, by the worker's half of vLLM's connector: `python bench_vllm_worker.py [FOLDER]`.

Pages of 32 layers as vLLM's FlashAttention has them (keys and values, 16 tokens, 8 heads of 128, 16 bits): a block is 2 MiB in 64 pieces. The
peers are the same bytes between the device and pinned memory in one copy, and between pinned memory and the store without a device; the sum of
their times is what a way without overlap takes. Medians of 9 rounds in turns.
"""

import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch

import kv_store_wasm as kv
from kv_store_wasm._vllm_plan import Block, Job
from kv_store_wasm._vllm_worker import Layer, Worker

LAYERS, BLOCKS, MOVED, ROUNDS = 32, 512, 128, 9
PREFIX = ("bench", "", "")


def timed(what: Callable[[], None]) -> float:
    torch.accelerator.synchronize()
    start = time.perf_counter()
    what()
    torch.accelerator.synchronize()
    return time.perf_counter() - start


def until(worker: Worker) -> None:
    while True:
        ended = worker.poll()
        if ended.saved or ended.loaded:
            assert not ended.failed and all(ended.saved.values())
            return


def main(folder: pathlib.Path) -> None:
    device = torch.accelerator.current_accelerator()
    if device is None:
        sys.exit("PyTorch has no accelerator here")
    tensors = [torch.randn(2, BLOCKS, 16, 8, 128, device=device, dtype=torch.bfloat16) for _ in range(LAYERS)]
    layers = [Layer(tensor.transpose(0, 1), BLOCKS) for tensor in tensors]
    size = sum(layer.bytes for layer in layers)
    with kv.open(f"local-fs://{folder}", sealed=True, timeout=60.0) as store:
        worker = Worker(store.queue(64), [layers], device, True, 8, 32 << 20)
        pinned = torch.empty(MOVED * size, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(MOVED * size, dtype=torch.uint8, device=device)
        values = [[(pinned.data_ptr() + number * size, size)] for number in range(MOVED)]
        times: dict[str, list[float]] = {}
        for round in range(ROUNDS):
            names = [Block(0, 3 * number % BLOCKS, f"{round}/{number}".encode()) for number in range(MOVED)]
            plain = kv.keys([f"plain {round}/{number}".encode() for number in range(MOVED)], *PREFIX)

            def moved(save: bool) -> None:
                worker.start([Job(round, "a", names, 60.0)], save, PREFIX)
                until(worker)

            measured = {
                "save": lambda: moved(True),
                "load": lambda: moved(False),
                "device to pinned": lambda: pinned.copy_(there),
                "pinned to device": lambda: there.copy_(pinned),
                "put": lambda: store.put_many(plain, values),
                "get": lambda: store.get_many_into(plain, values),
            }
            for name, what in measured.items():
                times.setdefault(name, []).append(timed(what))
        worker.close()
    took = {name: statistics.median(of) for name, of in times.items()}
    for name, seconds in took.items():
        print(f"{name:<18} {MOVED * size / seconds / 1e9:6.2f} GB/s")
    print(f"save: {(took['device to pinned'] + took['put']) / took['save']:.2f} of its parts after one another")
    print(f"load: {(took['pinned to device'] + took['get']) / took['load']:.2f} of its parts after one another")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(pathlib.Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(pathlib.Path(made))
