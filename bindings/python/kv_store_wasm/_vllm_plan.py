"""What vLLM's connector decides and what its two halves tell each other, without vLLM: how many tokens of a prompt can be loaded,
where the bytes of a block lie, what a step has to load and save.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

__all__ = ["Block", "Group", "Job", "Prefix", "Tables", "block_name", "longest", "runs"]

Prefix = tuple[str, ...]
"""What comes before the name of a block in the keys of one rank."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Layers that share a table of blocks. window: how many tokens before the next one are used; None: all of them."""

    block_tokens: int
    window: int | None = None

    def first_needed(self, tokens: int) -> int:
        """The first block that is needed to go on after so many tokens."""
        return 0 if self.window is None else max(0, tokens - self.window) // self.block_tokens


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a group: its number in vLLM's pages, and its name in keys."""

    group: int
    number: int
    name: bytes


@dataclasses.dataclass(frozen=True)
class Job:
    """Blocks to be loaded for a request, or saved, in one batch. timeout: seconds that it may take."""

    number: int
    request: str
    blocks: list[Block]
    timeout: float


def block_name(digest: bytes, group: int) -> bytes:
    """vLLM's hash of a block is one of all tokens up to its end; blocks of several groups may end there."""
    return digest + group.to_bytes(4, "big")


def longest(groups: Sequence[Group], present: Sequence[Sequence[bool]], local: int, limit: int, step: int) -> int:
    """How many tokens, a multiple of `step` and at most `limit`, can be had if `local` of them are there and the rest is loaded:
    `local` if nothing can. present: of each group, which of its blocks the store has. All groups go that far, or none does."""
    ends = [limit]
    # Of each group with a window, how many blocks up to and with this one are there without a gap.
    unbroken: list[list[int]] = []
    for group, there in zip(groups, present):
        first = local // group.block_tokens
        # The blocks of the local tokens are there.
        runs_to, length = list(range(1, first + 1)), first
        for found in there[first:]:
            length = length + 1 if found else 0
            runs_to.append(length)
        unbroken.append(runs_to)
        end = len(there)
        if group.window is None:
            end = next((index for index in range(first, len(there)) if not there[index]), len(there))
        ends.append(end * group.block_tokens)
    for tokens in range(min(ends) // step * step, local, -step):
        if all(
            group.window is None
            or unbroken[index][tokens // group.block_tokens - 1] >= tokens // group.block_tokens - group.first_needed(tokens)
            for index, group in enumerate(groups)
        ):
            return tokens
    return local


def runs(shape: Sequence[int], strides: Sequence[int], item: int) -> list[tuple[int, int]]:
    """The pieces of memory that a tensor covers, in the order of their addresses: offset and length in bytes. strides: in items."""
    sizes = sorted((stride, size) for size, stride in zip(shape, strides) if size != 1)
    length = 1
    while sizes and sizes[0][0] == length:
        length *= sizes.pop(0)[1]
    starts = [0]
    for stride, size in sizes:
        starts = [start + index * stride for start in starts for index in range(size)]
    return [(start * item, length * item) for start in sorted(starts)]


class Tables:
    """The numbers of each request's blocks, as far as the outputs of vLLM's scheduler tell them: what releases before 0.30 have no other word for.

    They are right where no block leaves a table as long as its request runs: with full attention alone."""

    def __init__(self) -> None:
        self._tables: dict[str, list[list[int]]] = {}

    def follow(self, output: Any) -> None:
        """Called once for each step."""
        for request in output.finished_req_ids:
            self._tables.pop(request, None)
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = [list(table) for table in new.block_ids]
        cached = output.scheduled_cached_reqs
        for request, blocks in zip(cached.req_ids, cached.new_block_ids):
            if request in cached.resumed_req_ids:
                self._tables[request] = [list(table) for table in blocks]
            elif blocks is not None:
                for table, more in zip(self._tables[request], blocks):
                    table.extend(more)

    def of(self, request: str) -> list[list[int]]:
        return self._tables[request]
