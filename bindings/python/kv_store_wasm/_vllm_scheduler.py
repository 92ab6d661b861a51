"""The half of vLLM's connector that runs in its scheduler: what of a prompt is in the store, and which blocks a step loads and saves.

Nothing here waits. A request's blocks are all asked for in one batch as soon as vLLM knows the request, and until the answer is there the
connector says so. Blocks that are saved get references of their own in vLLM's pool, so neither the end of the request nor its preemption
makes a save wait or cuts it short.
"""

import dataclasses
import secrets
import time
from collections.abc import Sequence
from typing import Any

from . import Queue, Status, keys
from ._adapter import Counters, load_timeout
from ._vllm_plan import Block, Group, Job, Prefix, block_name, longest

__all__ = ["Scheduler", "Settings", "Stored"]

BELIEVED = 1.0
"""Seconds for which an answer of the store is used. A request that waits longer for its turn is asked for again."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the operator says; `docs/engines/vllm.md` has the meaning of each."""

    timeout: float
    lookup_timeout: float
    compute_rate: float | None
    save_bytes: int


@dataclasses.dataclass(frozen=True)
class Stored:
    """A block that is in the store now: its tokens, and vLLM's hashes of it and of the block before."""

    group: int
    digest: bytes
    parent: bytes | None
    tokens: list[int]
    request: Any


@dataclasses.dataclass(eq=False)
class _Request:
    request: Any
    # Of each group, how many of its blocks were looked at for a save.
    seen: list[int]
    # Of each group, which of its blocks the store has, and when it said so.
    present: list[list[bool]]
    answered: float | None = None
    ticket: int | None = None
    asked: list[int] = dataclasses.field(default_factory=list)
    # How many tokens are local, and how many there are with those that are offered.
    offer: tuple[int, int] | None = None
    loading: bool = False
    # A load has failed: what the store says of this prompt is not believed again.
    failed: bool = False


@dataclasses.dataclass(eq=False)
class _Save:
    numbers: list[int]
    names: list[bytes]
    stored: list[Stored]
    bytes: int
    ranks: int
    good: bool = True


class Scheduler:
    """groups: in vLLM's order. block_bytes: of a block of each group, of one rank. step: hits are multiples of so many tokens.
    hash_tokens: tokens for each of vLLM's hashes. ranks: how many workers have a part of each block."""

    def __init__(
        self,
        queue: Queue,
        settings: Settings,
        groups: Sequence[Group],
        block_bytes: Sequence[int],
        step: int,
        hash_tokens: int,
        ranks: int,
        *,
        loads: bool = True,
        saves: bool = True,
        events: bool = False,
    ) -> None:
        self.counters = Counters()
        self._queue, self._settings = queue, settings
        self._groups, self._block_bytes = groups, block_bytes
        self._step, self._hash_tokens, self._ranks = step, hash_tokens, ranks
        self._wants_loads, self._wants_saves, self._wants_events = loads, saves, events
        self._pool: Any = None
        self._most = 0
        # One for each rank, as its worker has said.
        self._prefixes: list[Prefix] = []
        self.generation = ""
        self._requests: dict[str, _Request] = {}
        self._asked: dict[int, _Request] = {}
        self._jobs = 0
        self._loads: list[Job] = []
        self._new_saves: list[Job] = []
        self._saves: dict[int, _Save] = {}
        self._saving: set[bytes] = set()
        self._saving_bytes = 0
        self._stored: list[Stored] = []

    def bind(self, pool: Any) -> None:
        self._pool = pool
        # vLLM goes on with what is left if the store does not answer.
        self._most = max(1, len(pool.blocks) // 4)

    def ranks_are(self, prefixes: list[Prefix]) -> None:
        if len(prefixes) != self._ranks:
            raise ValueError(f"kv_store_wasm.vllm.Connector: {len(prefixes)} of {self._ranks} workers have said what they store")
        self._prefixes = prefixes

    def reset(self) -> None:
        """The weights are others: nothing that was stored is found again, and what comes is named otherwise."""
        self.generation = secrets.token_hex(16)
        for state in self._requests.values():
            self._forget(state)

    # Lookups

    def arrived(self, request: Any) -> None:
        self._drain()
        state = _Request(request, [0] * len(self._groups), [[] for _ in self._groups])
        self._requests[request.request_id] = state
        self._ask(state)

    def matched(self, request: Any, local: int) -> int | None:
        """How many tokens can be loaded after so many; None: it is not known yet."""
        if request.request_id not in self._requests:
            self.arrived(request)
        state = self._requests[request.request_id]
        state.offer = None
        if not self._wants_loads or state.failed or request.skip_reading_prefix_cache or local % self._step:
            return 0
        self._drain()
        if state.ticket is None and (state.answered is None or time.monotonic() - state.answered > BELIEVED):
            self._ask(state)
        if state.ticket is not None:
            return None
        # The last token is always computed.
        tokens = longest(self._groups, state.present, local, request.num_tokens - 1, self._step)
        if tokens > local:
            state.offer = (local, tokens)
        return tokens - local

    def _ask(self, state: _Request) -> None:
        names: list[bytes] = []
        state.asked = []
        for number, group in enumerate(self._groups):
            hashes = group.block_tokens // self._hash_tokens
            digests = state.request.block_hashes[hashes - 1 :: hashes]
            names += [block_name(digest, number) for digest in digests]
            state.asked.append(len(digests))
        asked = [name for prefix in self._prefixes for name in keys(names, *prefix, self.generation)]
        ticket = self._queue.submit_exists(asked, timeout=self._settings.lookup_timeout) if asked else 0
        if ticket >= 1:
            state.ticket, self._asked[ticket] = ticket, state
            return
        self.counters.add("refused", int(ticket < 0))
        state.present, state.answered = [[] for _ in self._groups], time.monotonic()

    def _drain(self) -> None:
        for ticket, outcomes in self._queue.drain(256):
            state = self._asked.pop(ticket, None)
            if state is None or state.ticket != ticket:
                continue
            failed = any(outcome < 0 and outcome != Status.MISSING for outcome in outcomes)
            self.counters.add("failed_lookups", int(failed))
            self.counters.add("lookups", 1)
            self.counters.add("lookup_tokens", state.request.num_tokens)
            count, start = sum(state.asked), 0
            # A block is there if all ranks have their part of it.
            there = [all(outcome >= 0 for outcome in outcomes[index::count]) for index in range(count)]
            state.present = []
            for blocks in state.asked:
                state.present.append(there[start : start + blocks])
                start += blocks
            state.ticket, state.answered = None, time.monotonic()

    def _forget(self, state: _Request) -> None:
        state.present, state.answered, state.ticket = [[] for _ in self._groups], None, None
        state.seen = [0] * len(self._groups)

    # Loads

    def allocated(self, request: Any, blocks: Sequence[Sequence[Any]], tokens: int) -> None:
        """vLLM has blocks for a request, of each group, and wants so many tokens loaded into them."""
        state = self._requests.get(request.request_id)
        if state is None or state.offer is None:
            return
        (local, end), state.offer = state.offer, None
        # Should the request be preempted, the store is asked anew.
        state.answered = None
        if tokens == 0:
            return
        end = min(end, local + tokens)
        wanted = [
            Block(number, block.block_id, block_name(self._digest(request, number, index), number))
            for number, group in enumerate(self._groups)
            for index, block in enumerate(blocks[number][: end // group.block_tokens])
            if index >= local // group.block_tokens and not block.is_null
        ]
        self._jobs += 1
        timeout = load_timeout(self._settings.timeout, self._settings.compute_rate, end - local)
        self._loads.append(Job(self._jobs, request.request_id, wanted, timeout))
        self.counters.add("found_tokens", end - local)
        state.loading = True

    def _digest(self, request: Any, group: int, index: int) -> bytes:
        hashes = self._groups[group].block_tokens // self._hash_tokens
        digest: bytes = request.block_hashes[(index + 1) * hashes - 1]
        return digest

    # Saves

    def step(self, scheduled: dict[str, int], tables: Any) -> tuple[list[Job], list[Job]]:
        """The loads and saves of a step. scheduled: of each request, how many tokens the step computes. tables: gives the numbers of a
        request's blocks, of each group."""
        for request_id, tokens in scheduled.items():
            state = self._requests.get(request_id)
            if state is None:
                continue
            state.loading = False
            computed = state.request.num_computed_tokens + tokens
            if self._is_new(state, computed):
                self._save(state, computed, tables(request_id))
        loads, self._loads = self._loads, []
        saves, self._new_saves = self._new_saves, []
        return loads, saves

    def finished(self, request: Any, tables: Sequence[Sequence[int]]) -> None:
        """Called before a request's blocks are given back."""
        state = self._requests.pop(request.request_id, None)
        if state is None or state.loading:
            return
        # Whether its last token was computed, nobody says.
        computed = min(request.num_computed_tokens, request.num_tokens - 1)
        if self._is_new(state, computed):
            self._save(state, computed, tables)
            if self._is_new(state, computed):
                self.counters.add("shed", 1)

    def pending(self) -> bool:
        return bool(self._new_saves or self._saves)

    def ended(self, saved: dict[int, tuple[int, bool]], failed: set[str]) -> None:
        """What the workers have said: of each save how many ranks ended it and whether they stored all; whose loads failed."""
        for number, (ranks, good) in saved.items():
            save = self._saves.get(number)
            if save is None:
                continue
            save.ranks -= ranks
            save.good = save.good and good
            if save.ranks > 0:
                continue
            del self._saves[number]
            self._saving.difference_update(save.names)
            self._saving_bytes -= save.bytes
            self._pool.free_blocks([self._pool.blocks[block] for block in save.numbers])
            if save.good:
                self._stored += save.stored
        for request_id in failed:
            state = self._requests.get(request_id)
            if state is not None:
                # What it computes in place of what did not come is stored.
                self._forget(state)
                state.failed = True

    def take_stored(self) -> list[Stored]:
        stored, self._stored = self._stored, []
        return stored

    def close(self) -> None:
        self._queue.close()

    def _ready(self, state: _Request, computed: int) -> int:
        """The tokens whose state is, or will be after this step, what their hashes say."""
        return min(computed, len(state.request.block_hashes) * self._hash_tokens)

    def _is_new(self, state: _Request, computed: int) -> bool:
        ready = self._ready(state, computed)
        return self._wants_saves and bool(self._prefixes) and any(
            ready // group.block_tokens > seen for group, seen in zip(self._groups, state.seen)
        )

    def _save(self, state: _Request, computed: int, tables: Sequence[Sequence[int]]) -> None:
        ready, request = self._ready(state, computed), state.request
        blocks: list[Block] = []
        stored: list[Stored] = []
        size = 0
        for number, group in enumerate(self._groups):
            present, table = state.present[number], tables[number]
            for index in range(state.seen[number], min(ready // group.block_tokens, len(table))):
                each = self._block_bytes[number]
                if self._saving_bytes + size + each > self._settings.save_bytes or len(self._saving) + len(blocks) >= self._most:
                    # The rest waits for the next step, as long as the request lives.
                    break
                state.seen[number] = index + 1
                digest = self._digest(request, number, index)
                block = Block(number, table[index], block_name(digest, number))
                known = index < len(present) and present[index]
                if known or block.name in self._saving or self._pool.blocks[block.number].is_null:
                    continue
                blocks.append(block)
                size += each
                if self._wants_events:
                    tokens = request.all_token_ids[index * group.block_tokens : (index + 1) * group.block_tokens]
                    parent = self._digest(request, number, index - 1) if index else None
                    stored.append(Stored(number, digest, parent, list(tokens), request))
        if not blocks:
            return
        self._jobs += 1
        names, numbers = [block.name for block in blocks], [block.number for block in blocks]
        self._pool.touch([self._pool.blocks[block] for block in numbers])
        self._saving.update(names)
        self._saving_bytes += size
        self._saves[self._jobs] = _Save(numbers, names, stored, size, self._ranks)
        self._new_saves.append(Job(self._jobs, request.request_id, blocks, self._settings.timeout))
