"""What adapters count, and that it reaches the metrics of their engines: stand-ins for prometheus_client, OpenTelemetry and SGLang's collector."""

import asyncio
import concurrent.futures
import dataclasses
import importlib
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "stand_ins"))

import test_aibrix
import test_lmcache
import test_sglang
from kv_store_wasm import _metrics
from kv_store_wasm._adapter import Counters
from kv_store_wasm.lmcache import Client

Shown = dict[str, dict[tuple[tuple[str, str], ...], int]]
"""Of each counter, what it has by its labels."""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    """What the registry of a prometheus_client has."""
    registry: Shown = {}

    class Counter:
        def __init__(self, name: str, documentation: str, labelnames: list[str]) -> None:
            assert name not in registry, f"Duplicated timeseries: {name}"
            assert documentation.endswith(".")
            self.name, self.names = name, labelnames
            registry[name] = {}

        def labels(self, **labels: str) -> Any:
            assert list(labels) == self.names and all(isinstance(value, str) for value in labels.values())
            values, of_these = registry[self.name], tuple(labels.items())
            values.setdefault(of_these, 0)

            def inc(count: int) -> None:
                values[of_these] += count

            return types.SimpleNamespace(inc=inc)

    module = types.ModuleType("prometheus_client")
    setattr(module, "Counter", Counter)
    monkeypatch.setitem(sys.modules, "prometheus_client", module)
    monkeypatch.setattr(_metrics, "_made", {})
    yield registry


def only(shown: Shown, name: str) -> int:
    [value] = shown[name].values()
    return value


def test_everything_that_is_counted_is_documented() -> None:
    assert set(Counters().snapshot()) == set(_metrics.COUNTS)
    assert _metrics.documented("hits", "pages") == "Pages that were loaded"
    assert _metrics.documented("saved_bytes", "pages") == "Bytes of pages that were stored"


def test_sglang_has_pages_in_its_registry_and_batches_in_its_histograms(
    uri: str, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass
    class StorageMetrics:
        prefetch_pgs: list[int] = dataclasses.field(default_factory=list)
        backup_pgs: list[int] = dataclasses.field(default_factory=list)
        prefetch_bandwidth: list[float] = dataclasses.field(default_factory=list)
        backup_bandwidth: list[float] = dataclasses.field(default_factory=list)

    collector = types.ModuleType("sglang.srt.observability.metrics_collector")
    setattr(collector, "StorageMetrics", StorageMetrics)
    monkeypatch.setitem(sys.modules, "sglang.srt.observability", types.ModuleType("sglang.srt.observability"))
    monkeypatch.setitem(sys.modules, collector.__name__, collector)
    # `importlib` also looks for the package above.
    assert importlib.import_module(collector.__name__) is collector
    pool = test_sglang.Pool("page_first")
    monkeypatch.setattr(test_sglang.Config, "enable_storage_metrics", True, raising=False)
    made = test_sglang.storage(uri, pool, tp_rank=1)
    names = [f"hash{number}" for number in range(3)]
    assert made.batch_set_v1(names, test_sglang.indices(0, 1, 2)) == [True] * 3
    assert made.batch_set_v1(names, test_sglang.indices(0, 1, 2)) == [True] * 3
    assert made.batch_get_v1([*names[:2], "absent"], test_sglang.indices(3, 4, 5)) == [True, True, False]
    page = 2 * test_sglang.PAGE * test_sglang.LAYERS * test_sglang.TOKEN
    labels = (("model_name", "a/model"), ("tp_rank", "1"), ("pp_rank", "0"))
    assert shown["sglang:kv_store_wasm_hits"] == {labels: 2}
    counts = {name: only(shown, f"sglang:kv_store_wasm_{name}") for name in _metrics.COUNTS}
    assert counts == made.counters.snapshot()
    assert (counts["stored"], counts["existed"], counts["misses"]) == (3, 3, 1)
    assert (counts["saved_bytes"], counts["loaded_bytes"]) == (3 * page, 2 * page)
    stats = made.get_stats()
    # What was there already moved no bytes.
    assert (stats.prefetch_pgs, stats.backup_pgs) == ([2], [3])
    assert [0 < each < 1000 for each in stats.prefetch_bandwidth + stats.backup_bandwidth] == [True, True]
    assert made.get_stats() == StorageMetrics()
    # Another rank of the same process has labels of its own.
    other = test_sglang.storage(uri, pool, tp_rank=0)
    assert len(shown["sglang:kv_store_wasm_hits"]) == 2
    made.close()
    other.close()


def test_sglang_that_wants_no_metrics_has_none(uri: str, shown: Shown) -> None:
    made = test_sglang.storage(uri, test_sglang.Pool("page_first"))
    assert made.get_stats() is None and shown == {}
    made.close()


def test_a_page_of_another_descriptor_is_refused_and_counted_as_that(uri: str) -> None:
    pool = test_sglang.Pool("page_first")
    one = test_sglang.storage(uri, pool, extra={"descriptor": {"model": "sha256:00"}})
    other = test_sglang.storage(uri, pool, extra={"descriptor": {"model": "sha256:01"}})
    assert one.batch_set_v1(["hash"], test_sglang.indices(0)) == [True]
    assert other.batch_set_v1(["hash"], test_sglang.indices(0)) == [False]
    counts = other.counters.snapshot()
    assert (counts["mismatched"], counts["failures"], counts["saved_bytes"]) == (1, 0, 0)
    one.close()
    other.close()


def test_lmcache_server_has_chunks_in_its_meters(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, int] = {}

    def create_counter(name: str, description: str) -> Any:
        assert description
        counts[name] = 0

        def add(count: int, attributes: dict[str, str]) -> None:
            assert attributes == {}
            counts[name] += count

        return types.SimpleNamespace(add=add)

    package, metrics = types.ModuleType("opentelemetry"), types.ModuleType("opentelemetry.metrics")
    setattr(metrics, "get_meter", lambda name: types.SimpleNamespace(create_counter=create_counter))
    setattr(package, "metrics", metrics)
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", metrics)
    client = Client(uri)
    test_lmcache.done(client, client.submit_batch_set(["a", "b"], test_lmcache.views([bytes(64), bytes(36)])))
    test_lmcache.done(client, client.submit_batch_get(["a", "c"], test_lmcache.views([bytearray(64), bytearray(64)])))
    assert {name.removeprefix("lmcache_mp.kv_store_wasm_"): count for name, count in counts.items()} == client.counters.snapshot()
    assert counts["lmcache_mp.kv_store_wasm_saved_bytes"] == 100 and counts["lmcache_mp.kv_store_wasm_loaded_bytes"] == 64
    client.close()


def test_aibrix_has_blocks_in_the_registry(uri: str, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        made = test_aibrix.connector(monkeypatch, test_aibrix.Config(executor), uri)

        async def run() -> None:
            await made.mput([b"one", b"two"], [test_aibrix.Region(bytes(100)), test_aibrix.Region(bytes(50))])
            await made.mget([b"one", b"three"], [test_aibrix.Region(bytes(100)), test_aibrix.Region(bytes(100))])

        asyncio.run(run())
        made.close()
    assert {name: only(shown, f"aibrix:kv_store_wasm_{name}") for name in _metrics.COUNTS} == made.counters.snapshot()
    assert only(shown, "aibrix:kv_store_wasm_saved_bytes") == 150 and only(shown, "aibrix:kv_store_wasm_misses") == 1
    [labels] = shown["aibrix:kv_store_wasm_hits"]
    assert labels == (("connection", "aibrix_h0_8_l0_32_LCND16roc"),)


@pytest.mark.parametrize("package", ["prometheus_client", "opentelemetry"])
def test_neither_package_is_needed(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    make = _metrics.prometheus if package == "prometheus_client" else _metrics.opentelemetry
    assert make("prefix_", "pages") is None
    counters = Counters(make("prefix_", "pages"))
    counters.add("hits", 1)
    assert counters.snapshot()["hits"] == 1
