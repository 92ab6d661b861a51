"""The tier as vLLM's scheduler calls it: lookups that answer RETRY, jobs that finish later, a server that is gone."""

import dataclasses
import os
import pathlib
import sys
import time
import types
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "stand_ins"))

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadingEvent
from vllm.v1.kv_offload.tiering.base import JobResult

import kv_store_wasm.vllm
from conftest import Redis
from kv_store_wasm.vllm import Tier

CHUNK = 4096
CHUNKS = 16


@dataclasses.dataclass
class Events:
    enable_kv_cache_events: bool = True


@dataclasses.dataclass
class Spec:
    model: str = "a/model"
    rank: int = 0
    blocks_per_chunk: int = 1
    kv_events_config: Events = dataclasses.field(default_factory=Events)


@dataclasses.dataclass
class Request:
    req_id: str


@dataclasses.dataclass
class Job:
    job_id: int
    keys: list[bytes]
    chunk_ids: list[int]


def tier(uri: str, spec: Spec | None = None, **options: Any) -> tuple[Tier, bytearray]:
    memory = bytearray(CHUNK * CHUNKS)
    view = memoryview(memory).cast("B", (CHUNKS, CHUNK))
    return Tier(spec or Spec(), view, "Tier", uri=uri, timeout=5.0, **options), memory


def name(number: int) -> bytes:
    return bytes([number]) * 32 + (0).to_bytes(4, "big")


def finished(made: Tier) -> list[JobResult]:
    made.drain_jobs()
    return list(made.get_finished_jobs())


def verdicts(made: Tier, request: Request, names: list[bytes]) -> list[LookupResult]:
    first = [made.lookup(key, request) for key in names]
    assert set(first) == {LookupResult.RETRY} and made.has_pending_work()
    made.on_schedule_end(None)
    deadline = time.monotonic() + 60
    while LookupResult.RETRY in (found := [made.lookup(key, request) for key in names]):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


def test_chunks_are_stored_looked_up_and_loaded(uri: str) -> None:
    made, memory = tier(uri)
    memory[:] = os.urandom(len(memory))
    original = bytes(memory)
    made.submit_store(Job(7, [name(1), name(2)], [3, 5]))
    assert finished(made) == [JobResult(7, True, transfer_bytes=2 * CHUNK)] and not made.has_pending_work()
    request = Request("one")
    made.on_new_request(request)
    hit, miss = LookupResult.HIT, LookupResult.MISS
    assert verdicts(made, request, [name(1), name(2), name(3)]) == [hit, hit, miss]
    memory[:] = bytes(len(memory))
    made.submit_load(Job(8, [name(2), name(3), name(1)], [0, 1, 2]))
    [result] = finished(made)
    assert (result.job_id, result.success, list(result.successful_keys or [])) == (8, False, [name(2), name(1)])
    assert memory[:CHUNK] == original[5 * CHUNK : 6 * CHUNK] and memory[2 * CHUNK : 3 * CHUNK] == original[3 * CHUNK : 4 * CHUNK]
    made.on_request_finished(request)
    made.shutdown()


def test_what_could_not_be_loaded_is_not_promised_again(uri: str) -> None:
    made, _ = tier(uri)
    made.submit_store(Job(1, [name(1)], [0]))
    finished(made)
    request = Request("one")
    assert verdicts(made, request, [name(1)]) == [LookupResult.HIT]
    # Another process removes it meanwhile.
    for path in pathlib.Path(uri.removeprefix("local-fs://")).rglob("*"):
        if path.is_file() and path.stat().st_size >= CHUNK:
            path.unlink()
    made.submit_load(Job(2, [name(1)], [1]))
    assert [(result.success, list(result.successful_keys or [])) for result in finished(made)] == [(False, [])]
    assert made.lookup(name(1), request) == LookupResult.MISS
    made.shutdown()


def test_another_model_rank_or_salt_is_another_cache(uri: str) -> None:
    made, _ = tier(uri)
    made.submit_store(Job(1, [name(1)], [0]))
    finished(made)
    for other in (tier(uri, Spec(model="b")), tier(uri, Spec(rank=1)), tier(uri, salt="tenant")):
        assert verdicts(other[0], Request("one"), [name(1)]) == [LookupResult.MISS]
        other[0].shutdown()
    made.shutdown()


def test_a_full_queue_is_failed_jobs_and_misses(uri: str) -> None:
    made, _ = tier(uri, depth=1)
    for job in range(4):
        made.submit_store(Job(job, [name(job)], [job]))
    results = finished(made)
    assert {result.job_id for result in results} == {0, 1, 2, 3}
    assert {result.job_id for result in results if not result.success} == {1, 2, 3}
    assert made.counters.snapshot()["refused"] == 3
    made.shutdown()


def test_what_may_wait_to_be_stored_is_bounded(uri: str) -> None:
    made, _ = tier(uri, save_bytes=2 * CHUNK)
    # One job may be over it alone: it would never be stored else.
    made.submit_store(Job(0, [name(0), name(1), name(2)], [0, 1, 2]))
    made.submit_store(Job(1, [name(3)], [3]))
    assert {(result.job_id, result.success) for result in finished(made)} == {(0, True), (1, False)}
    for job in range(2, 5):
        made.submit_store(Job(job, [name(job + 2)], [job]))
    results = {result.job_id: result for result in finished(made)}
    assert [results[job].success for job in range(2, 5)] == [True, True, False] and results[4].transfer_bytes == 0
    assert made.counters.snapshot()["shed"] == 2
    assert verdicts(made, Request("one"), [name(3), name(4)]) == [LookupResult.MISS, LookupResult.HIT]
    made.shutdown()


def test_stored_chunks_are_announced_where_vllm_publishes_events(uri: str) -> None:
    announcing, _ = tier(uri, enable_kv_events=True, locality="LOCAL")
    silent = [tier(uri)[0], tier(uri, Spec(kv_events_config=Events(False)), enable_kv_events=True)[0]]
    for made in (announcing, *silent):
        made.submit_store(Job(1, [name(1), name(2)], [0, 1]))
        finished(made)
    event = OffloadingEvent([name(1), name(2)], Medium.STORAGE, removed=False, locality=Locality.LOCAL)
    assert list(announcing.take_events()) == [event]
    assert not list(announcing.take_events()) and not any(list(made.take_events()) for made in silent)
    for made in (announcing, *silent):
        made.shutdown()


def test_metrics_are_the_counts_since_the_last_time(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class OffloadingConnectorStats(dict[tuple[str, tuple[str, ...]], int]):
        def increase_counter(self, name: str, count: int, labels: tuple[str, ...]) -> None:
            self[name, labels] = count

    module = types.ModuleType("vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics")
    module.OffloadingConnectorStats = OffloadingConnectorStats  # type: ignore[attr-defined]
    parts = module.__name__.split(".")
    for end in range(2, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made, _ = tier(uri)
    assert made.get_stats() is None
    made.submit_store(Job(1, [name(1), name(2)], [0, 1]))
    finished(made)
    stored, saved = (f"vllm:kv_store_wasm_tier_{count}" for count in ("stored", "saved_bytes"))
    assert made.get_stats() == {(stored, ("Tier",)): 2, (saved, ("Tier",)): 2 * CHUNK} and made.get_stats() is None
    defined = Tier.build_metric_definitions({})
    assert all(metric.labelnames == ("tier",) for metric in defined.values())
    assert {metric.removeprefix("vllm:kv_store_wasm_tier_") for metric in defined} >= set(made.counters.snapshot()) - {"deleted"}
    made.shutdown()


def test_a_server_that_is_gone_is_misses(redis: Redis) -> None:
    made, _ = tier(redis.uri)
    made.submit_store(Job(1, [name(1)], [0]))
    assert finished(made)[0].success
    redis.kill()
    assert verdicts(made, Request("one"), [name(1)]) == [LookupResult.MISS]
    made.submit_load(Job(2, [name(1)], [0]))
    made.submit_store(Job(3, [name(2)], [0]))
    assert {(result.job_id, result.success) for result in finished(made)} == {(2, False), (3, False)}
    made.shutdown()


def test_a_vllm_that_lacks_what_the_connector_needs_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "kv_store_wasm._vllm_connector", raising=False)
    with pytest.raises(ImportError, match=r"^kv_store_wasm.vllm.Connector cannot be loaded into this vLLM, which lacks what it needs: .*torch.*$"):
        kv_store_wasm.vllm.__getattr__("Connector")
