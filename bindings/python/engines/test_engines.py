"""The adapters in the engines themselves: LMCache's own benchmark with verification and its eviction, AIBrix's manager whole, the
factories of SGLang and vLLM; and the stand-ins of the other tests beside the classes that they stand in for. `cargo xtask test --engines` runs it."""

import ast
import asyncio
import inspect
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import pytest
from conftest import free_port
from sglang_alone import import_sglang
from vllm_alone import import_vllm, offloading_spec

TESTS = pathlib.Path(__file__).parent.parent / "tests"
DOCS = pathlib.Path(__file__).parents[3] / "docs"


def shown(name: str, **labels: str) -> float:
    """What the default registry of prometheus_client has, where engines in this process have their own metrics."""
    from prometheus_client import REGISTRY

    value = REGISTRY.get_sample_value(f"{name}_total", labels)
    assert value is not None, name
    return value


def test_torch_says_that_there_is_no_cuda() -> None:
    """transformers asks before each step of a model. In a process of its own: where a stub answers a number for a text, torch reads at that address."""
    script = "import torch\ntry:\n    torch.cuda.is_current_stream_capturing()\nexcept RuntimeError as error:\n    print(error)"
    ran = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and "there is no CUDA here" in ran.stdout, (ran.returncode, ran.stderr)


def lmcache_spec(uri: str, **more: Any) -> dict[str, Any]:
    plugin = {"type": "native_plugin", "module_path": "kv_store_wasm.lmcache", "class_name": "Client"}
    return {**plugin, "adapter_params": {"uri": uri}, **more}


@pytest.mark.parametrize("backend", ["local-fs", "redis"])
def test_lmcache_measures_and_verifies(backend: str, uri: str, request: pytest.FixtureRequest) -> None:
    where = uri if backend == "local-fs" else request.getfixturevalue("redis").uri
    command = [os.path.join(os.path.dirname(sys.executable), "lmcache"), "bench", "l2"]
    command += ["--l2-adapter", json.dumps(lmcache_spec(where)), "--num-keys", "16", "--data-size-kb", "256"]
    command += ["--rounds", "3", "--lookup-max-hit-rate", "1.0", "--no-skip-verify"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "data verified OK" in ran.stdout
    successes = [int(line.split()[-1]) for line in ran.stdout.splitlines() if line.startswith("Total success")]
    assert successes == [48, 48, 48], ran.stdout


def test_lmcache_evicts(uri: str) -> None:
    """A removal through LMCache frees the room in the store, and LMCache's own account follows."""
    import argparse

    from lmcache.cli.commands.bench.l2_adapter_bench import data, runner
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config

    spec = lmcache_spec(uri, max_capacity_gb=1)
    config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)]))
    buffer = data.make_aligned_tensor(4 << 16)
    adapter = create_l2_adapter(config.adapters[0], data.create_l1_memory_desc(buffer))
    keys, objects = data.make_object_keys(4), data.make_memory_objects(buffer, 4, 1 << 16, 0)
    stored = runner.bench_store(adapter, 1, 4, 1 << 16, 1, lambda _: [keys], lambda _: [objects], print)
    assert stored.success_counts == [4]
    adapter.delete(keys[:3])
    found = runner.bench_lookup(adapter, 1, 4, 1, lambda _: [keys], print)
    assert found.success_counts == [1]
    adapter.close()


def test_lmcache_server_shows_what_the_client_counts(uri: str) -> None:
    """In a process of its own: a meter provider is set once."""
    script = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import test_engines
from lmcache.v1.mp_observability import otel_init
import prometheus_client
prometheus_client.start_http_server = lambda *_, **__: None
otel_init.init_otel_metrics(prometheus_port=1)
test_engines.test_lmcache_evicts({uri!r})
for line in prometheus_client.generate_latest().decode().splitlines():
    if "kv_store_wasm" in line and not line.startswith("#"):
        print(line)
"""
    ran = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found = {name: float(value) for name, value in re.findall(r"lmcache_mp_kv_store_wasm_(\w+?)_total\{.*\} (\S+)", ran.stdout)}
    assert found == {"stored": 4, "saved_bytes": 4 << 16, "deleted": 3}, ran.stdout


class InProcess:
    """LMCache's remote backend as an engine's process has it, with the connector as its plugin, and what it gives back."""

    def __init__(self, uri: str, **settings: Any) -> None:
        import torch
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.remote_backend import RemoteBackend

        named = {"module_path": "kv_store_wasm.lmcache_remote", "class_name": "Adapter", "uri": uri, **settings}
        extra = {f"remote_storage_plugin.kv_store_wasm.{name}": value for name, value in named.items()}
        self.config = LMCacheEngineConfig.from_defaults(
            chunk_size=16, local_cpu=False, max_local_cpu_size=0.1, remote_storage_plugins=["kv_store_wasm"], extra_config=extra
        )
        self.config.remote_serde = "naive"
        self.metadata = LMCacheMetadata("model", 1, 1, 0, 0, torch.bfloat16, (4, 2, 16, 2, 8), chunk_size=16)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.memory = LocalCPUBackend(self.config, self.metadata, "cpu", memory_allocator=HostMemoryAllocator(64 << 20))
        self.backend = RemoteBackend(self.config, self.metadata, self.loop, self.memory, "cpu", plugin_name="kv_store_wasm")
        assert self.backend.connection is not None
        self.connector = self.backend.connection.getWrappedConnector()

    def key(self, number: int) -> Any:
        import torch
        from lmcache.utils import CacheEngineKey

        return CacheEngineKey("model", 1, 0, number, torch.bfloat16)

    def chunk(self, tokens: int, seed: int) -> Any:
        import torch

        shape = torch.Size([2, 4, tokens, 16])
        made = self.memory.allocate([shape], self.connector.meta_dtypes, self.connector.meta_fmt)
        assert made is not None
        made.tensor.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
        return made

    def put(self, numbers: list[int], chunks: list[Any]) -> None:
        self.backend.batched_submit_put_task([self.key(number) for number in numbers], chunks)
        deadline = time.monotonic() + 60
        while sum(self.connector.counters.snapshot()[name] for name in ("stored", "existed", "failures", "refused")) < len(numbers):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)


@pytest.mark.parametrize("backend", ["local-fs", "redis"])
def test_lmcache_in_process_stores_and_loads_chunks(backend: str, uri: str, request: pytest.FixtureRequest) -> None:
    import torch

    where = uri if backend == "local-fs" else request.getfixturevalue("redis").uri
    one, other = InProcess(where), InProcess(where)
    # The last chunk of a prompt has fewer tokens.
    chunks = [one.chunk(16 if number < 3 else 5, number) for number in range(4)]
    numbers = [*range(4)]
    assert other.backend.batched_contains([other.key(number) for number in numbers]) == 0
    one.put(numbers, chunks)
    assert one.connector.counters.snapshot()["stored"] == 4
    assert other.backend.batched_contains([other.key(number) for number in [*numbers, 9]]) == 4
    assert other.backend.contains(other.key(2)) and not other.backend.contains(other.key(9))
    found = other.backend.batched_get_blocking([other.key(number) for number in [*numbers, 9]])
    assert found[4] is None
    for mine, theirs in zip(chunks, found):
        assert theirs.get_shape() == mine.get_shape() and torch.equal(theirs.tensor, mine.tensor)
    assert torch.equal(other.backend.get_blocking(other.key(3)).tensor, chunks[3].tensor)
    labels = {"model_name": "model", "worker_id": "0"}
    counts = other.connector.counters.snapshot()
    assert counts["loaded_bytes"] == sum(chunk.get_size() for chunk in chunks) + chunks[3].get_size()
    assert shown("lmcache:kv_store_wasm_stored", **labels) >= 4 and shown("lmcache:kv_store_wasm_loaded_bytes", **labels) >= counts["loaded_bytes"]
    # The run up to a hole, as its asynchronous lookups want it; and removal.
    assert one.backend.remove(one.key(1))
    wanted = [other.key(number) for number in numbers]
    loaded = asyncio.run_coroutine_threadsafe(other.backend.batched_get_non_blocking("id", wanted), other.loop).result(60)
    assert len(loaded) == 1
    contained = asyncio.run_coroutine_threadsafe(other.backend.batched_async_contains("id", wanted), other.loop).result(60)
    assert contained == 1
    # Of other weights under this name nothing is found.
    third = InProcess(where, descriptor={"model": "sha256:9f86d081"})
    assert third.backend.get_blocking(third.key(0)) is None
    for made in (one, other, third):
        made.close()


def test_lmcache_in_process_is_held_up_by_no_frozen_server(redis: Any) -> None:
    made = InProcess(redis.uri, timeout=2.0, compute_rate=1 << 20)
    chunk = made.chunk(16, 1)
    made.put([1], [chunk])
    redis.process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    assert not made.backend.contains(made.key(1))
    looked = time.monotonic()
    assert made.backend.batched_get_blocking([made.key(1)]) == [None]
    loaded = time.monotonic()
    redis.process.send_signal(signal.SIGCONT)
    # 8 KiB at 1 MiB a second are computed sooner than the shortest load ends.
    assert looked - begun < 1.5 and loaded - looked < 1.0
    deadline = time.monotonic() + 60
    while not made.backend.contains(made.key(1)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert made.backend.get_blocking(made.key(1)) is not None
    made.close()


def test_lmcache_in_process_gets_memory_back_when_the_store_has_let_go_of_it(redis: Any) -> None:
    made = InProcess(redis.uri, timeout=3.0)
    made.put([1], [made.chunk(16, 1)])
    given: list[Any] = []
    allocate = made.memory.allocate
    made.memory.allocate = lambda *asked: given.append(allocate(*asked)) or given[-1]
    made.config.blocking_timeout_secs = 0.3
    redis.process.send_signal(signal.SIGSTOP)
    assert made.backend.get_blocking(made.key(1)) is None
    assert [chunk.get_ref_count() for chunk in given] == [1], "the answer may still come into it"
    redis.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 60
    while given[0].get_ref_count():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    made.close()


def test_lmcache_in_process_refuses_what_it_cannot_keep(uri: str) -> None:
    from lmcache.v1.storage_backend.connector import CreateConnector

    made = InProcess(uri)
    for name, value, said in (("use_layerwise", True, "use_layerwise"), ("remote_serde", "cachegen", "naive")):
        before = getattr(made.config, name)
        setattr(made.config, name, value)
        with pytest.raises(ValueError, match=said):
            CreateConnector("plugin://kv_store_wasm", made.loop, made.memory, made.config, made.metadata, plugin_name="kv_store_wasm")
        setattr(made.config, name, before)
    del made.config.extra_config["remote_storage_plugin.kv_store_wasm.uri"]
    with pytest.raises(ValueError, match="uri"):
        CreateConnector("plugin://kv_store_wasm", made.loop, made.memory, made.config, made.metadata, plugin_name="kv_store_wasm")
    made.close()


@pytest.mark.parametrize("page", ["start/lmcache.md", "engines/lmcache.md"])
def test_lmcache_starts_as_its_pages_say(page: str, uri: str, tmp_path: pathlib.Path) -> None:
    text = (DOCS / page).read_text()
    [command] = [block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "lmcache server" in block]
    command = command[command.index("lmcache server") :].strip()
    [named] = re.findall(r'"uri": "([^"]*)"', command)
    ports = [free_port() for _ in range(3)]
    options = "--port {} --http-port {} --prometheus-port {}".format(*ports)
    command = command.replace(named, uri).replace("lmcache server", f"exec lmcache server {options}")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    log = tmp_path / "log"
    with open(log, "wb") as written:
        server = subprocess.Popen(["sh", "-c", command], stdout=written, stderr=written, env={**os.environ, "PATH": path})
    try:
        end = time.monotonic() + 120
        while True:
            assert server.poll() is None and time.monotonic() < end, log.read_text()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/openapi.json", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        assert "native_plugin" in log.read_text(), log.read_text()
    finally:
        server.terminate()
        server.wait(60)


def test_aibrix_puts_and_gets_through_its_manager(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND": "KV_STORE_WASM",
        "AIBRIX_KV_CACHE_OL_L2_CACHE_INGESTION_TYPE": "ALL",
        "AIBRIX_KV_CACHE_OL_L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS": "0",
        "AIBRIX_KV_CACHE_OL_L1_CACHE_ENABLED": "0",
        "AIBRIX_KV_CACHE_OL_DEVICE": "cpu",
        "AIBRIX_KV_CACHE_OL_L2_CACHE_PER_TOKEN_TIMEOUT_MS": "2000",
        "KV_STORE_AIBRIX_URI": uri,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    import torch
    from aibrix_kvcache import cache_manager, config, spec
    from aibrix_kvcache.cache_hashable import TokenListView

    import kv_store_wasm.aibrix  # noqa: F401

    monkeypatch.setattr(cache_manager, "TESTING_DISABLE_PIN_MEMORY", True)
    tensor = spec.KVCacheTensorSpec(heads=[0, 1], layers=[0, 1], head_size=16)
    block = spec.KVCacheBlockSpec(16, torch.bfloat16, spec.KVCacheBlockLayout.LCND, tensor)
    settings = config.KVCacheConfig(block_spec=block, model_spec=spec.ModelSpec(max_model_len=1024))
    tokens = TokenListView(tuple(range(256)))

    def manager() -> Any:
        return cache_manager.BaseKVCacheManager(settings)

    first = manager()
    made = first.allocate_for(None, tokens)
    assert made.is_ok(), made
    handle = made.get()
    blocks = handle.to_tensors()
    for number, tensor_of_block in enumerate(blocks):
        tensor_of_block.copy_(torch.full_like(tensor_of_block, number + 1))
    kept = [tensor_of_block.clone() for tensor_of_block in blocks]
    assert first.put(None, tokens, handle).is_ok()
    first.flush()
    first.close()

    second = manager()
    deadline = time.monotonic() + 60
    while True:
        acquired = second.acquire(None, tokens)
        if acquired.is_ok() and acquired.get()[0] == len(tokens):
            break
        assert time.monotonic() < deadline, acquired
    _, found = acquired.get()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found.to_tensors(), kept))
    found.release()
    second.close()
    # Each manager has a connection; these are of one name.
    [connection] = {labels["connection"] for labels in connections()}
    assert shown("aibrix:kv_store_wasm_stored", connection=connection) == shown("aibrix:kv_store_wasm_hits", connection=connection) == 16


def connections() -> list[dict[str, str]]:
    from prometheus_client import REGISTRY

    metrics = [metric for metric in REGISTRY.collect() if metric.name == "aibrix:kv_store_wasm_stored"]
    return [sample.labels for metric in metrics for sample in metric.samples]


def test_sglang_makes_the_backend_and_moves_pages(uri: str) -> None:
    import_sglang()
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    class Pool:
        layout, page_size, dtype = "page_first", 1, torch.uint8

        def __init__(self) -> None:
            self.kv_buffer = torch.randint(0, 256, (2, 8, 4096), dtype=torch.uint8)

        def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
            places = [self.kv_buffer[half, int(index)].data_ptr() for index in indices for half in (0, 1)]
            return places, [4096] * len(places)

    extra = {"backend_name": "kv", "module_path": "kv_store_wasm.sglang", "class_name": "Storage", "interface_v1": 1}
    ranks = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1)
    config = HiCacheStorageConfig(
        **ranks,
        is_mla_model=False,
        enable_storage_metrics=True,
        is_page_first_layout=True,
        model_name="model",
        extra_config={**extra, "uri": uri},
    )
    pool = Pool()
    backend = StorageBackendFactory.create_backend("dynamic", config, pool)
    backend.register_mem_pool_host(pool)
    names, before = [f"{n:064x}" for n in range(4)], pool.kv_buffer.clone()
    assert backend.batch_set_v1(names, torch.arange(4)) == [True] * 4
    pool.kv_buffer.zero_()
    assert backend.batch_exists([*names, "absent"]) == 4
    assert backend.batch_get_v1(names, torch.arange(4)) == [True] * 4
    assert torch.equal(pool.kv_buffer[:, :4], before[:, :4])
    assert backend.batch_exists_v2(names).kv_hit_pages == 4
    labels = {"model_name": "model", "tp_rank": "0", "pp_rank": "0"}
    assert shown("sglang:kv_store_wasm_stored", **labels) == shown("sglang:kv_store_wasm_hits", **labels) == 4
    assert shown("sglang:kv_store_wasm_saved_bytes", **labels) == shown("sglang:kv_store_wasm_loaded_bytes", **labels) == 4 * 8192
    from sglang.srt.observability.metrics_collector import StorageMetrics

    stats = backend.get_stats()
    assert type(stats) is StorageMetrics and stats.prefetch_pgs == stats.backup_pgs == [4]
    assert len(stats.prefetch_bandwidth) == len(stats.backup_bandwidth) == 1


def test_vllm_makes_the_tier_and_moves_chunks(uri: str) -> None:
    import_vllm()
    import numpy
    from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
    from vllm.v1.kv_offload.tiering.base import TransferJob
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    memory = numpy.random.default_rng(1).integers(0, 256, (8, 4096), dtype=numpy.uint8)
    before, view = memory.copy(), memoryview(memory)
    named = {"type": "Tier", "module_path": "kv_store_wasm.vllm", "uri": uri}
    tier = SecondaryTierFactory.create_secondary_tier(named, view, offloading_spec(4096))
    keys = [make_offload_key(bytes([number]) * 32, 0) for number in range(3)]
    request = ReqContext(req_id="one")

    def found(made: Any, asked: list[Any]) -> list[LookupResult]:
        deadline = time.monotonic() + 60
        while LookupResult.RETRY in (answers := [made.lookup(key, request) for key in asked]):
            assert time.monotonic() < deadline
            made.on_schedule_end(ScheduleEndContext((), ()))
            time.sleep(0.001)
        return answers

    tier.on_new_request(request)
    tier.submit_store(TransferJob(1, keys[:2], numpy.array([3, 5]), False, request))
    tier.drain_jobs()
    [stored] = tier.get_finished_jobs()
    assert stored.job_id == 1 and stored.success
    assert found(tier, keys) == [LookupResult.HIT, LookupResult.HIT, LookupResult.MISS]
    tier.submit_load(TransferJob(2, keys[:2], numpy.array([0, 7]), True, request))
    tier.drain_jobs()
    [loaded] = tier.get_finished_jobs()
    assert loaded.job_id == 2 and loaded.success
    assert (memory[0] == before[3]).all() and (memory[7] == before[5]).all()
    tier.on_request_finished(request)
    tier.shutdown()
    # Their chunks are not this model's.
    other = SecondaryTierFactory.create_secondary_tier(named, view, offloading_spec(4096, model="another"))
    assert found(other, keys[:1]) == [LookupResult.MISS]
    other.shutdown()


STAND_INS = sorted(
    path.relative_to(TESTS / "stand_ins")
    for path in (TESTS / "stand_ins").rglob("*.py")
    if path.stat().st_size > 0
)


@pytest.mark.parametrize("path", STAND_INS, ids=str)
def test_a_stand_in_has_what_the_original_has(path: pathlib.Path) -> None:
    """Each class, each member of an enum, each method and each of its parameters; and no abstract method is left out."""
    import importlib

    if path.parts[0] == "sglang":
        import_sglang()
    if path.parts[0] == "vllm":
        import_vllm()
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    original = importlib.import_module(name)
    tree = ast.parse((TESTS / "stand_ins" / path).read_text())
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        real = getattr(original, node.name)
        methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
        for method, definition in methods.items():
            if method == "__init__":
                continue
            found = inspect.getattr_static(real, method)
            if isinstance(found, property):
                continue
            taken = set(inspect.signature(getattr(real, method)).parameters)
            ours = [argument.arg for argument in definition.args.args if argument.arg not in ("self", "cls")]
            assert set(ours) <= taken, f"{name}.{node.name}.{method}{taken}"
        assert set(getattr(real, "__abstractmethods__", ())) <= set(methods), f"{name}.{node.name}"
        values = [part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
        values += [target.id for part in node.body if isinstance(part, ast.Assign) for target in part.targets if isinstance(target, ast.Name)]
        fields = set(dir(real)) | set(getattr(real, "__dataclass_fields__", ()))
        assert set(values) <= fields, f"{name}.{node.name}: {set(values) - fields}"
