"""Stores of KV state, each as its engine opens it, behind two calls: put and get of the value of a number.

`python compared_stores.py NAME PLACE` is a process that has one open and does what lines of JSON on its standard input say. compare.py
starts such processes, kills them, and damages what they stored.
"""

import argparse
import ctypes
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

SIZE = 256 << 10
"""Bytes of a value."""

PATIENCE = 30.0
"""Seconds in which an engine is given up here, where it does not give up itself."""


def value(number: int, writer: int = 0) -> bytes:
    """The value of a number. That of another writer has other bytes, as KV that was computed in another batch has."""
    import numpy

    return numpy.random.default_rng([number, writer]).bytes(SIZE)


class Subject(Protocol):
    """A store. Each raises for what its engine takes as an error."""

    def put(self, number: int, writer: int) -> bool:
        """Whether it was acknowledged."""

    def get(self, number: int) -> bytes | None:
        """None: a miss."""

    def close(self) -> None:
        """As its engine does when it ends."""


class Ours:
    """This library through its wheel; a put is acknowledged when its save is."""

    def __init__(self, place: str) -> None:
        import kv_store_wasm

        self.library = kv_store_wasm
        self.store = kv_store_wasm.open(place)

    def key(self, number: int) -> bytes:
        return self.library.key("compare", str(number))

    def put(self, number: int, writer: int) -> bool:
        save = self.store.save()
        [answer] = self.store.put_many([self.key(number)], [value(number, writer)], replace=writer != 0, save=save)
        if answer < 0 or save.commit() != 0:
            raise OSError(self.library.last_error())
        return True

    def get(self, number: int) -> bytes | None:
        memory = bytearray(SIZE)
        [answer] = self.store.get_many_into([self.key(number)], [memory])
        return bytes(memory[:answer]) if answer >= 0 else None

    def close(self) -> None:
        self.store.close()


class LMCache:
    """An L2 adapter of LMCache."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from lmcache.cli.commands.bench.l2_adapter_bench import data
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter
        from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config

        self.data = data
        config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)]))
        self.buffer = data.make_aligned_tensor(SIZE, 4096)
        self.adapter = create_l2_adapter(config.adapters[0], data.create_l1_memory_desc(self.buffer))
        self.objects = data.make_memory_objects(self.buffer, 1, SIZE, 0)
        if serde := config.adapters[0].serde_config:
            # Its own allocator says these of what it allocates.
            meta = self.objects[0].meta
            meta.shapes, meta.dtypes = [meta.shape], [meta.dtype]
            self.adapter = self.with_serde(self.adapter, serde)

    @staticmethod
    def with_serde(adapter: Any, serde: Any) -> Any:
        """As its storage manager does it: what is serialized passes through memory of the level above."""
        from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
        from lmcache.v1.distributed.l1_manager import L1Manager
        from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper
        from lmcache.v1.distributed.serde import create_serde_processor

        memory = L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False, shm_name="")
        return SerdeL2AdapterWrapper(adapter, create_serde_processor(serde), L1Manager(L1ManagerConfig(memory)))

    def put(self, number: int, writer: int) -> bool:
        from lmcache.cli.commands.bench.l2_adapter_bench import runner

        keys = self.data.make_object_keys(1, key_offset=number)
        ctypes.memmove(self.buffer.data_ptr(), value(number, writer), SIZE)
        result = runner.bench_store(self.adapter, 1, 1, SIZE, 1, lambda _: [keys], lambda _: [self.objects], print)
        return result.success_counts == [1]

    def get(self, number: int) -> bytes | None:
        from lmcache.cli.commands.bench.l2_adapter_bench import runner

        keys = self.data.make_object_keys(1, key_offset=number)
        self.buffer.zero_()
        found = runner.bench_lookup(self.adapter, 1, 1, 1, lambda _: [keys], print)
        if found.success_counts != [1]:
            return None
        loaded = runner.bench_load(self.adapter, 1, 1, SIZE, 1, lambda _: [keys], lambda _: [self.objects], print)
        self.adapter.submit_unlock(keys)
        return ctypes.string_at(self.buffer.data_ptr(), SIZE) if loaded.success_counts == [1] else None

    def close(self) -> None:
        self.adapter.close()


def encrypted() -> dict[str, Any]:
    """LMCache's encryption, with which a value is refused that was changed. It reads its key from a file."""
    file = os.memfd_create("key")
    os.write(file, bytes(range(32)))
    return {"serde": {"type": "aesgcm", "master_key_path": f"/proc/self/fd/{file}"}}


class SGLang:
    """SGLang's storage backend `file`."""

    def __init__(self, place: str) -> None:
        # First: it would find what stands in for SGLang's utilities.
        import torch
        from sglang_alone import import_sglang

        import_sglang()
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
        from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

        self.torch = torch
        settings = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1)
        settings |= dict(is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=True, model_name="m")
        config = HiCacheStorageConfig(**settings, extra_config={"file_storage_path": place})
        self.storage = StorageBackendFactory.create_backend("file", config, None)

    def put(self, number: int, writer: int) -> bool:
        page = self.torch.frombuffer(bytearray(value(number, writer)), dtype=self.torch.uint8)
        return bool(self.storage.set(f"{number:064x}", page))

    def get(self, number: int) -> bytes | None:
        page = self.torch.zeros(SIZE, dtype=self.torch.uint8)
        name = f"{number:064x}"
        if not self.storage.exists(name):
            return None
        found = self.storage.get(name, page)
        return None if found is None else bytes(found.numpy().tobytes())

    def close(self) -> None:
        """It holds nothing open."""


class Vllm:
    """vLLM's secondary tier `fs`."""

    def __init__(self, place: str) -> None:
        from vllm_alone import import_vllm, offloading_spec

        import_vllm()
        import mmap

        import numpy
        from vllm.v1.kv_offload.base import ReqContext
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

        # Pages of their own, as vLLM's region has them: it reads and writes around the page cache.
        self.memory = numpy.frombuffer(mmap.mmap(-1, SIZE), dtype=numpy.uint8).reshape(1, SIZE)
        spec = offloading_spec(SIZE)
        tier = {"type": "fs", "root_dir": place}
        self.tier = SecondaryTierFactory.create_secondary_tier(tier, memoryview(self.memory), spec)
        self.context = ReqContext(req_id="compare")
        self.tier.on_new_request(self.context)

    def job(self, submit: Callable[[Any], None], number: int, load: bool) -> bool:
        import numpy
        from vllm.v1.kv_offload.base import make_offload_key
        from vllm.v1.kv_offload.tiering.base import TransferJob

        key = make_offload_key(number.to_bytes(32, "big"), 0)
        submit(TransferJob(1, [key], numpy.arange(1), load, self.context))
        self.tier.drain_jobs()
        [result] = self.tier.get_finished_jobs()
        return bool(result.success)

    def put(self, number: int, writer: int) -> bool:
        ctypes.memmove(self.memory.ctypes.data, value(number, writer), SIZE)
        return self.job(self.tier.submit_store, number, False)

    def get(self, number: int) -> bytes | None:
        from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext, make_offload_key

        key = make_offload_key(number.to_bytes(32, "big"), 0)
        end = time.monotonic() + PATIENCE
        while (found := self.tier.lookup(key, self.context)) is LookupResult.RETRY:
            self.tier.on_schedule_end(ScheduleEndContext((), ()))
            time.sleep(1e-3)
            if time.monotonic() > end:
                raise TimeoutError("the lookup is not answered")
        if found is not LookupResult.HIT:
            return None
        self.memory[:] = 0
        return self.memory.tobytes() if self.job(self.tier.submit_load, number, True) else None

    def close(self) -> None:
        self.tier.shutdown()


class RocksDB:
    """RocksDB by AIBrix's connector."""

    def __init__(self, place: str) -> None:
        os.environ["AIBRIX_KV_CACHE_OL_ROCKSDB_ROOT"] = place
        from concurrent.futures import ThreadPoolExecutor

        from aibrix_kvcache.l2.connectors.rocksdb import RocksDBConnector

        self.connector = RocksDBConnector.from_envs("compare", ThreadPoolExecutor(1))
        self.check(self.connector.open())

    class Region:
        """The memory of a block, as far as the connector uses it."""

        def __init__(self, data: bytes = b"") -> None:
            self.data = data

        def tobytes(self) -> bytes:
            return self.data

        def fill(self, data: bytes) -> None:
            self.data = bytes(data)

    def check(self, status: Any) -> Any:
        if not status.is_ok() and not status.is_not_found():
            raise OSError(str(status))
        return status

    def put(self, number: int, writer: int) -> bool:
        return bool(self.check(self.connector._put(b"%064x" % number, self.Region(value(number, writer)))).is_ok())

    def get(self, number: int) -> bytes | None:
        region = self.Region()
        return region.data if self.check(self.connector._get(b"%064x" % number, region)).is_ok() else None

    def close(self) -> None:
        self.check(self.connector.close())


class Llama:
    """llama.cpp's files of a sequence, which are those of llama-server's slots."""

    TOKENS = 256

    def __init__(self, place: str) -> None:
        import llama_cpp

        self.place = place
        self.cpp = llama_cpp
        model = os.environ["KV_COMPARE_LLAMA_MODEL"]
        self.llama = llama_cpp.Llama(model_path=model, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, seed=1)

    def state(self) -> bytes:
        length = self.cpp.llama_state_seq_get_size(self.llama.ctx, 0)
        memory = (ctypes.c_uint8 * length)()
        written = self.cpp.llama_state_seq_get_data(self.llama.ctx, memory, length, 0)
        return bytes(memory)[:written]

    def compute(self, number: int) -> list[int]:
        tokens = [3 + (number * 7919 + place * 31) % 200 for place in range(self.TOKENS)]
        self.llama.reset()
        self.llama._ctx.kv_cache_clear()
        self.llama.eval(tokens)
        return tokens

    def path(self, number: int) -> bytes:
        return os.path.join(self.place, f"{number}.bin").encode()

    def put(self, number: int, _writer: int) -> bool:
        tokens = self.compute(number)
        array = (self.cpp.llama_token * len(tokens))(*tokens)
        return bool(self.cpp.llama_state_seq_save_file(self.llama.ctx, self.path(number), 0, array, len(tokens)))

    def get(self, number: int) -> bytes | None:
        self.llama._ctx.kv_cache_clear()
        tokens, count = (self.cpp.llama_token * 512)(), ctypes.c_size_t()
        length = self.cpp.llama_state_seq_load_file(self.llama.ctx, self.path(number), 0, tokens, 512, ctypes.byref(count))
        return self.state() + bytes(memoryview(tokens)[: count.value]) if length else None

    def expected(self, number: int) -> bytes:
        tokens = self.compute(number)
        return self.state() + bytes((self.cpp.llama_token * len(tokens))(*tokens))

    def close(self) -> None:
        self.llama.close()


SUBJECTS: dict[str, Callable[[str], Subject]] = {
    "kv-store-wasm, local-fs": lambda place: Ours(f"local-fs://{place}"),
    "kv-store-wasm, segments": lambda place: Ours(f"segments://{place}"),
    "kv-store-wasm, redis": lambda port: Ours(f"redis://127.0.0.1:{port}/1"),
    "LMCache, fs_native": lambda place: LMCache({"type": "fs_native", "base_path": place}),
    "LMCache, fs_native, AES-GCM": lambda place: LMCache({"type": "fs_native", "base_path": place} | encrypted()),
    "LMCache, resp (redis)": lambda port: LMCache({"type": "resp", "host": "127.0.0.1", "port": int(port)}),
    "SGLang, file": SGLang,
    "vLLM, fs": Vllm,
    "AIBrix, RocksDB": RocksDB,
    "llama.cpp, slot files": Llama,
}
"""By name, and opened at a folder or at the port of a Redis server."""

WRITERS = 2


def version(name: str) -> str:
    """What is compared, with the versions of its parts."""
    installed = importlib.metadata.version
    if name.startswith("kv-store-wasm"):
        of = f"kv-store-wasm {installed('kv-store-wasm')}"
    elif name.startswith("LMCache"):
        of = f"LMCache {installed('lmcache')}"
    elif name.startswith("SGLang"):
        of = f"SGLang {installed('sglang')}"
    elif name.startswith("vLLM"):
        of = os.environ["KV_COMPARE_VLLM"].replace("vllm==", "vLLM ")
    elif name.startswith("AIBrix"):
        of = f"AIBrix {installed('aibrix-kvcache')} with rocksdict {installed('rocksdict')}"
    else:
        of = f"llama.cpp of llama-cpp-python {sys.modules['llama_cpp'].__version__}"
    return of


def judge(subject: Subject, number: int) -> dict[str, Any]:
    """What a get answers: right, wrong, miss, or refused with what the engine saw."""
    try:
        found = subject.get(number)
    except Exception as error:
        return {"got": "refused", "why": short(error)}
    if found is None:
        return {"got": "miss"}
    known = [subject.expected(number)] if isinstance(subject, Llama) else [value(number, who) for who in range(WRITERS)]
    return {"got": "right" if found in known else "wrong"}


def put(subject: Subject, number: int, writer: int) -> dict[str, Any]:
    try:
        return {"ok": subject.put(number, writer)}
    except Exception as error:
        return {"ok": False, "why": short(error)}


def short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def main() -> None:
    # What engines print goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    asked_so_far = 0

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps({"number": asked_so_far, **answer}), file=answers, flush=True)

    def opened(place: str) -> Subject | None:
        try:
            subject = SUBJECTS[name](place)
        except Exception as error:
            say({"open": short(error)})
            return None
        say({"open": None, "version": version(name)})
        return subject

    name, place = sys.argv[1:]
    subject = opened(place)
    for line in sys.stdin:
        asked = json.loads(line)
        asked_so_far += 1
        start = time.monotonic()
        if asked["do"] == "reopen":
            if subject:
                subject.close()
            subject = opened(asked["place"])
        elif not subject:
            say({"ok": False, "got": "refused", "why": "it is not open"})
        elif asked["do"] == "get":
            say({**judge(subject, asked["number"]), "seconds": time.monotonic() - start})
        else:
            answer = put(subject, asked["number"], asked.get("writer", 0))
            if answer["ok"]:
                # For who reads the system calls: it is acknowledged from here on.
                os.write(1, f"mark done {asked['number']}\n".encode())
            say({**answer, "seconds": time.monotonic() - start})
    if subject:
        subject.close()
    # What torch does at its end takes seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
