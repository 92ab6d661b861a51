"""The adapters in the engines themselves: LMCache's own benchmark with verification and its eviction, AIBrix's manager whole, the
factories of SGLang and vLLM; and the stand-ins of the other tests beside the classes that they stand in for. `cargo xtask test --engines` runs it."""

import ast
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest
from conftest import free_port
from sglang_alone import import_sglang
from vllm_alone import import_vllm, offloading_spec

TESTS = pathlib.Path(__file__).parent.parent / "tests"
DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"


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
        enable_storage_metrics=False,
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
