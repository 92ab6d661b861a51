"""The half of vLLM's connector that runs in each worker: it moves blocks between vLLM's pages and the store.

On a CPU the store reads and writes the pages themselves. On a device blocks go through buffers in pinned memory, in batches: a gather
of each layer's pages on a stream of its own, then one batch of the store, and the other way round for loads. The engine's thread only
submits and polls; nothing here waits for the store or for the device but `close`.

What keeps the pages valid: those of a save have references of their own in vLLM's pool until the scheduler's half is told that the
save has ended, and those of a load belong to a request that waits for it.
"""

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from . import Queue, Status, keys
from ._adapter import Counters
from ._vllm_plan import Block, Job, Prefix, runs

__all__ = ["Ended", "Layer", "Worker"]

logger = logging.getLogger(__name__)


class Layer:
    """Where a layer's blocks lie: block n begins n strides after the first, and covers the pieces `runs`."""

    def __init__(self, pages: torch.Tensor, blocks: int) -> None:
        if pages.shape[0] % blocks:
            raise ValueError(f"a layer of shape {tuple(pages.shape)} has no whole number of pages for each of {blocks} blocks")
        pages = pages.unflatten(0, (blocks, pages.shape[0] // blocks))
        item = pages.element_size()
        self.address = pages.data_ptr()
        self.stride = pages.stride(0) * item
        self.runs = runs(pages.shape[1:], pages.stride()[1:], item)
        self.bytes = sum(length for _, length in self.runs)
        first = pages.storage_offset() * item
        # Each piece of all blocks, as bytes.
        self.rows = [
            torch.empty(0, dtype=torch.uint8, device=pages.device).set_(
                pages.untyped_storage(), first + offset, (blocks, length), (self.stride, 1)
            )
            for offset, length in self.runs
        ]
        self.described = f"{pages.dtype} {tuple(pages.shape[1:])} {tuple(pages.stride()[1:])}"

    def pieces(self, block: int) -> list[tuple[int, int]]:
        start = self.address + block * self.stride
        return [(start + offset, length) for offset, length in self.runs]


@dataclasses.dataclass
class Ended:
    """What became of jobs since it was last asked."""

    saved: dict[int, bool] = dataclasses.field(default_factory=dict)
    """Of each save that ended, whether all its blocks are in the store."""
    loaded: set[str] = dataclasses.field(default_factory=set)
    """Requests whose load ended, well or not."""
    failed: set[str] = dataclasses.field(default_factory=set)
    """Those of them with a block that did not come."""
    missing: set[int] = dataclasses.field(default_factory=set)
    """The numbers of the blocks that did not come."""


@dataclasses.dataclass(eq=False)
class _Part:
    """Blocks of one group that go in one batch of the store."""

    job: "_Running"
    blocks: list[Block]
    buffer: "_Buffer | None" = None
    event: Any = None
    good: list[bool] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class _Running:
    job: Job
    save: bool
    prefix: Prefix
    left: int
    until: float
    good: bool = True


class _Buffer:
    """A part's blocks in host memory, one layer after another."""

    def __init__(self, size: int, pinned: bool) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

    def rows(self, layers: Sequence[Layer], count: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each piece of the layers: its bytes in the pages, and those of so many blocks in this buffer."""
        start = 0
        for layer in layers:
            for row in layer.rows:
                size = count * row.shape[1]
                yield row, self.memory[start : start + size].view(count, row.shape[1])
                start += size


class Worker:
    """groups: of each group its layers. staged: whether blocks go through buffers, `buffers` of `buffer_bytes` each."""

    def __init__(
        self, queue: Queue, groups: list[list[Layer]], device: torch.device, staged: bool, buffers: int, buffer_bytes: int
    ) -> None:
        self.counters = Counters()
        self._queue = queue
        self._groups = groups
        self._block_bytes = [sum(layer.bytes for layer in layers) for layers in groups]
        self._device = device
        self._staged = staged
        self._buffers: list[_Buffer] = []
        if staged:
            size = max(buffer_bytes, *self._block_bytes)
            self._buffers = [_Buffer(size, device.type != "cpu") for _ in range(buffers)]
            self._most = [size // each for each in self._block_bytes]
        self._stream = torch.Stream(device) if device.type != "cpu" else None
        self._waiting: deque[_Part] = deque()
        self._copying: list[_Part] = []
        self._submitted: dict[int, _Part] = {}
        self._ended = Ended()

    # What a step asks for

    def start(self, jobs: list[Job], save: bool, prefix: Prefix) -> None:
        for job in jobs:
            running = _Running(job, save, prefix, len(job.blocks), time.monotonic() + job.timeout)
            if not job.blocks:
                self._over(running)
            for group in range(len(self._groups)):
                of_group = [block for block in job.blocks if block.group == group]
                most = self._most[group] if self._staged else max(1, len(of_group))
                parts = [_Part(running, of_group[at : at + most]) for at in range(0, len(of_group), most)]
                # A load is waited for, a save is not.
                self._waiting.extend(parts) if save else self._waiting.extendleft(reversed(parts))
        self._begin()

    def poll(self) -> Ended:
        """What has ended since the last call."""
        for ticket, outcomes in self._queue.drain(256):
            part = self._submitted.pop(ticket, None)
            if part is not None:
                self._answered(part, outcomes)
        copying, self._copying = self._copying, []
        for part in copying:
            self._copied(part)
        self._begin()
        ended, self._ended = self._ended, Ended()
        return ended

    def close(self) -> None:
        """Waits until no page is in use by the store."""
        self._queue.close()
        if self._stream is not None:
            self._stream.synchronize()
        self._submitted.clear()
        self._waiting.clear()

    # The way of a part: to a buffer, to the store; or to the store, from a buffer

    def _begin(self) -> None:
        while self._waiting and (self._buffers or not self._staged):
            part = self._waiting.popleft()
            if self._staged:
                part.buffer = self._buffers.pop()
            if part.job.save and self._staged:
                self._copy(part)
                self._copying.append(part)
            else:
                self._submit(part)

    def _submit(self, part: _Part) -> None:
        left = part.job.until - time.monotonic()
        outcome = Status.UNAVAILABLE.value
        if left > 0:
            names = keys([block.name for block in part.blocks], *part.job.prefix)
            submit = self._queue.submit_put if part.job.save else self._queue.submit_get
            outcome = submit(names, self._values(part), timeout=left)
        if outcome >= 1:
            self._submitted[outcome] = part
            return
        self.counters.add("refused", len(part.blocks))
        self._answered(part, [outcome] * len(part.blocks))

    def _values(self, part: _Part) -> list[list[tuple[int, int]]]:
        layers = self._groups[part.blocks[0].group]
        if part.buffer is None:
            return [[piece for layer in layers for piece in layer.pieces(block.number)] for block in part.blocks]
        pieces: list[list[tuple[int, int]]] = [[] for _ in part.blocks]
        for _, memory in part.buffer.rows(layers, len(part.blocks)):
            start, length = memory.data_ptr(), memory.shape[1]
            for index, value in enumerate(pieces):
                value.append((start + index * length, length))
        return pieces

    def _answered(self, part: _Part, outcomes: list[int]) -> None:
        size = self._block_bytes[part.blocks[0].group]
        if part.job.save:
            part.good = [outcome >= 0 for outcome in outcomes]
            self.counters.put(outcomes, [size] * len(outcomes))
            self._done(part)
            return
        # A value of another length is one of another layout.
        part.good = [outcome == size for outcome in outcomes]
        self.counters.got(outcomes, part.good)
        if part.buffer is not None and any(part.good):
            self._copy(part)
            self._copying.append(part)
        else:
            self._done(part)

    def _copied(self, part: _Part) -> None:
        if part.event is not None and not part.event.query():
            self._copying.append(part)
        elif part.job.save:
            self._submit(part)
        else:
            self._done(part)

    def _done(self, part: _Part) -> None:
        if part.buffer is not None:
            self._buffers.append(part.buffer)
            part.buffer = None
        running, ended = part.job, self._ended
        running.left -= len(part.blocks)
        missing = [block.number for block, good in zip(part.blocks, part.good) if not good]
        running.good = running.good and not missing
        if not running.save:
            ended.missing.update(missing)
        if not running.left:
            self._over(running)

    def _over(self, running: _Running) -> None:
        ended = self._ended
        if running.save:
            ended.saved[running.job.number] = running.good
        else:
            ended.loaded.add(running.job.request)
            if not running.good:
                ended.failed.add(running.job.request)

    def _copy(self, part: _Part) -> None:
        """Between the pages and the part's buffer; on a device in a stream of its own, after what the step has computed."""
        if self._stream is None:
            self._copy_rows(part)
            return
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with self._stream:
            self._copy_rows(part)
            part.event = self._stream.record_event()

    def _copy_rows(self, part: _Part) -> None:
        assert part.buffer is not None
        layers = self._groups[part.blocks[0].group]
        if part.job.save:
            index = self._there([block.number for block in part.blocks])
            for pages, memory in part.buffer.rows(layers, len(part.blocks)):
                memory.copy_(pages.index_select(0, index), non_blocking=True)
            return
        # Only what came is written: the rest of the buffer is undefined.
        came = [number for number, good in enumerate(part.good) if good]
        index = self._there([part.blocks[number].number for number in came])
        rows = self._there(came)
        for pages, memory in part.buffer.rows(layers, len(part.blocks)):
            pages.index_copy_(0, index, memory.to(self._device, non_blocking=True).index_select(0, rows))

    def _there(self, numbers: list[int]) -> torch.Tensor:
        """On the device, from pinned memory: a copy from other memory would wait for the step that computes."""
        return torch.tensor(numbers, pin_memory=self._device.type != "cpu").to(self._device, non_blocking=True)
