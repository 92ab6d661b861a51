"""The worker's half of vLLM's connector over tensors: pages that lie apart, buffers that hold few blocks, blocks that do not come.

Where PyTorch has an accelerator, each test runs on it too.
"""

import dataclasses
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import kv_store_wasm as kv
from kv_store_wasm._vllm_plan import Block, Job
from kv_store_wasm._vllm_worker import Ended, Layer, Worker

BLOCKS = 24
PREFIX = ("test", "rank=0", "")


DEVICE = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
ON_A_DEVICE = pytest.param("device", marks=pytest.mark.skipif(DEVICE is None, reason="PyTorch has no accelerator here"))


@dataclasses.dataclass
class Side:
    """A worker with pages of its own: a group of two layers, and one of a layer whose keys and values lie apart."""

    worker: Worker
    tensors: list[torch.Tensor]

    def until(self, ended: int) -> Ended:
        found, deadline = Ended(), time.monotonic() + 60
        while len(found.saved) + len(found.loaded) < ended:
            assert time.monotonic() < deadline
            new = self.worker.poll()
            found.saved.update(new.saved)
            found.loaded |= new.loaded
            found.failed |= new.failed
            found.missing |= new.missing
            time.sleep(0.001)
        return found


@pytest.fixture(params=["direct", "staged", ON_A_DEVICE])
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[tuple[Worker, kv.Store]] = []

    def side(uri: str) -> Side:
        device = DEVICE if request.param == "device" else torch.device("cpu")
        assert device is not None
        apart = torch.randn(2, BLOCKS, 4, 16, device=device).transpose(0, 1)
        tensors = [torch.randn(BLOCKS, 8, 32, device=device), torch.randn(BLOCKS * 2, 4, 32, device=device).to(torch.bfloat16), apart]
        layers = [Layer(tensor, BLOCKS) for tensor in tensors]
        assert [len(layer.runs) for layer in layers] == [1, 1, 2]
        store = kv.open(uri, sealed=True, timeout=5.0)
        staged = request.param != "direct"
        # A buffer holds three blocks of the first group, and there are two buffers.
        size = 3 * (layers[0].bytes + layers[1].bytes)
        worker = Worker(store.queue(64), [layers[:2], layers[2:]], device, staged, 2, size)
        made.append((worker, store))
        return Side(worker, tensors)

    yield side
    for worker, store in made:
        worker.close()
        store.close()


def blocks(*numbers: int, names: int = 0) -> list[Block]:
    return [Block(group, number, f"{names + index}".encode() + bytes([group])) for group in (0, 1) for index, number in enumerate(numbers)]


def page(tensor: torch.Tensor, number: int) -> torch.Tensor:
    return tensor.unflatten(0, (BLOCKS, -1))[number]


def test_blocks_are_saved_and_loaded_elsewhere(make: Any, uri: str) -> None:
    one, other = make(uri), make(uri)
    one.worker.start([Job(1, "a", blocks(1, 2, 3, 4, 5, 6, 7), 5.0)], True, PREFIX)
    assert one.until(1).saved == {1: True}
    before = [tensor.clone() for tensor in other.tensors]
    other.worker.start([Job(2, "b", blocks(20, 3, 9, 11, 0, 8, 13), 5.0)], False, PREFIX)
    ended = other.until(1)
    assert ended.loaded == {"b"} and not ended.failed and not ended.missing
    loaded = {20: 1, 3: 2, 9: 3, 11: 4, 0: 5, 8: 6, 13: 7}
    for mine, theirs, old in zip(one.tensors, other.tensors, before):
        for number in range(BLOCKS):
            wanted = page(mine, loaded[number]) if number in loaded else page(old, number)
            assert torch.equal(page(theirs, number), wanted), number
    counts = other.worker.counters.snapshot()
    assert counts["hits"] == 14 and counts["misses"] == 0


def test_what_does_not_come_is_named_and_the_rest_is_there(make: Any, uri: str) -> None:
    one, other = make(uri), make(uri)
    one.worker.start([Job(1, "a", blocks(1, 2, 3), 5.0)], True, PREFIX)
    one.until(1)
    other.worker.start([Job(2, "b", blocks(4, 5, 6, 7, 8), 5.0), Job(3, "c", [], 5.0)], False, PREFIX)
    ended = other.until(2)
    assert ended.loaded == {"b", "c"} and ended.failed == {"b"} and ended.missing == {7, 8}
    for mine, theirs in zip(one.tensors, other.tensors):
        assert torch.equal(page(theirs, 6), page(mine, 3))
    # Another rank's blocks are not its own.
    other.worker.start([Job(4, "d", blocks(1), 5.0)], False, ("test", "rank=1", ""))
    assert other.until(1).failed == {"d"}


@pytest.mark.parametrize("how", ["removed", "torn"])
def test_whichever_part_is_gone_the_request_is_not_loaded(how: str, make: Any, tmp_path: pathlib.Path) -> None:
    """A prompt's blocks of all groups and layers are useful together only: with any of them gone after the lookup the load has failed."""
    uri = f"local-fs://{tmp_path}/store"
    one, other = make(uri), make(uri)
    parts = blocks(1, 2, 3, 4)
    one.worker.start([Job(0, "a", parts, 5.0)], True, PREFIX)
    assert one.until(1).saved == {0: True}
    with kv.open(uri, sealed=True) as store:
        for number, part in enumerate(parts, 1):
            [key] = kv.keys([part.name], *PREFIX)
            before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and key.hex() in path.name}
            assert len(before) == 1
            for path, stored in before.items():
                path.unlink() if how == "removed" else path.write_bytes(stored[: len(stored) // 2])
            other.worker.start([Job(number, "b", parts, 5.0)], False, PREFIX)
            ended = other.until(1)
            assert ended.loaded == ended.failed == {"b"} and ended.missing == {part.number}, part
            one.worker.start([Job(number, "a", parts, 5.0)], True, PREFIX)
            assert one.until(1).saved == {number: True}
            [outcome] = store.exists_many([key])
            assert outcome >= 0
        other.worker.start([Job(99, "b", parts, 5.0)], False, PREFIX)
        assert not other.until(1).failed


def test_a_server_that_does_not_answer_ends_loads_and_saves(make: Any, redis: Any) -> None:
    one = make(redis.uri)
    one.worker.start([Job(1, "a", blocks(1, 2, 3, 4, 5, 6, 7), 5.0)], True, PREFIX)
    assert one.until(1).saved == {1: True}
    redis.process.send_signal(signal.SIGSTOP)
    one.worker.start([Job(2, "b", blocks(8, 9, 10, 11, 12, 13, 14), 0.3)], False, PREFIX)
    one.worker.start([Job(3, "c", blocks(1, 2, 3, 4, 5, 6, 7, names=100), 0.3)], True, PREFIX)
    ended = one.until(2)
    redis.process.send_signal(signal.SIGCONT)
    assert ended.saved == {3: False} and ended.loaded == ended.failed == {"b"}
    assert ended.missing == {8, 9, 10, 11, 12, 13, 14}
    redis.kill()
    one.worker.start([Job(4, "d", blocks(8), 0.3)], False, PREFIX)
    assert one.until(1).failed == {"d"}


@pytest.mark.skipif(DEVICE is None, reason="PyTorch has no accelerator here")
def test_a_save_takes_what_the_steps_before_it_compute_and_a_load_is_seen_by_those_after_it(uri: str) -> None:
    """A step has only submitted its kernels when its pages are to be saved: the copies wait for them, and the engine's thread does not."""
    assert DEVICE is not None
    busy = torch.randn(4096, 4096, device=DEVICE)
    pages = [torch.zeros(BLOCKS, 1 << 18, device=DEVICE) for _ in range(2)]
    with kv.open(uri, sealed=True, timeout=30.0) as store:
        workers = [Worker(store.queue(64), [[Layer(of, BLOCKS)]], DEVICE, True, 2, 3 << 20) for of in pages]
        one, other = (Side(worker, [of]) for worker, of in zip(workers, pages))
        for round in range(1, 6):
            for _ in range(200):
                busy = (busy @ busy).clamp(-1, 1)
            pages[0].fill_(float(round))
            step = torch.accelerator.current_stream(DEVICE).record_event()
            names = [Block(0, number, f"{round}/{number}".encode()) for number in range(BLOCKS)]
            one.worker.start([Job(round, "a", names, 30.0)], True, PREFIX)
            one.worker.poll()
            # The first allocation of pinned memory and the loading of kernels wait for the device.
            assert round == 1 or not step.query(), "the engine's thread has waited for the step"
            assert one.until(1).saved == {round: True}
            other.worker.start([Job(round, "b", names, 30.0)], False, PREFIX)
            assert not other.until(1).failed
            assert torch.equal(pages[1], torch.full_like(pages[1], float(round))), round
        for worker in workers:
            worker.close()


def test_pages_that_are_no_whole_number_for_each_block_are_refused() -> None:
    with pytest.raises(ValueError, match="no whole number"):
        Layer(torch.zeros(BLOCKS + 1, 4), BLOCKS)
