"""The connector as AIBrix's L2 cache calls it."""

import asyncio
import concurrent.futures
import ctypes
import dataclasses
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "stand_ins"))

from aibrix_kvcache.l2.connectors import Connector
from aibrix_kvcache.status import StatusCodes

from conftest import Redis
from kv_store_wasm import aibrix


class Region:
    """A memory region."""

    def __init__(self, data: bytes) -> None:
        self.memory, self.length = ctypes.create_string_buffer(data, len(data)), len(data)

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)


@dataclasses.dataclass
class Config:
    executor: concurrent.futures.Executor
    backend_name: str = aibrix.NAME
    namespace: str = "aibrix"
    partition_id: str = "h0_8_l0_32"
    block_spec_signature: str = "LCND16"
    key_builder_signature: str = "ro"
    layout_signature: str = "c"


@pytest.fixture
def executor() -> Iterator[concurrent.futures.Executor]:
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        yield executor


def connector(monkeypatch: pytest.MonkeyPatch, config: Config, uri: str, **environment: str) -> Any:
    monkeypatch.setenv("KV_STORE_AIBRIX_URI", uri)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = Connector.create(config)
    assert made.open().is_ok() and made.open().is_ok()
    return made


def codes(statuses: list[Any]) -> list[StatusCodes]:
    return [status.error_code for status in statuses]


OK, NOT_FOUND = StatusCodes.OK, StatusCodes.NOT_FOUND


def test_blocks_are_put_fetched_and_removed(
    monkeypatch: pytest.MonkeyPatch, executor: concurrent.futures.Executor, uri: str
) -> None:
    made = connector(monkeypatch, Config(executor), uri)
    names = [bytes([n]) * 16 for n in range(8)]
    values = [os.urandom(3000) for _ in names]

    async def run() -> None:
        assert made.register_slabs([]).is_ok() and made.feature.mput_mget
        assert codes(await made.mput(names, [Region(value) for value in values])) == [OK] * 8
        memory = [Region(bytes(3000)) for _ in names]
        assert codes(await made.mget(names, memory)) == [OK] * 8
        assert [region.memory.raw for region in memory] == values
        # GDR passes a block in several regions.
        split = [Region(bytes(1000)), Region(bytes(2000))]
        assert (await made.get(names[3], split)).is_ok()
        assert split[0].memory.raw + split[1].memory.raw == values[3]
        assert (await made.exists(names[5])).is_ok()
        assert (await made.delete(names[5])).is_ok()
        assert (await made.exists(names[5])).error_code == NOT_FOUND
        # AIBrix counts successes: what lies behind the hole must not be one.
        assert codes(await made.mget(names, memory)) == [OK] * 5 + [NOT_FOUND] * 3
        assert (await made.get(names[0], Region(bytes(2999)))).error_code == NOT_FOUND

    asyncio.run(run())
    batches = made.get_batches(names, values, 2)
    assert [len(batch) for batch in batches] == [8] and made.get_batches([], [], 2) == []
    assert made.close().is_ok() and made.close().is_ok()
    assert codes(asyncio.run(made.mget(names[:1], [Region(bytes(8))]))) == [StatusCodes.TIMEOUT]


def test_other_backends_are_left_to_aibrix(executor: concurrent.futures.Executor) -> None:
    aibrix.register()
    with pytest.raises(ValueError, match="Unknown connector type: ROCKSDB"):
        Connector.create(Config(executor, backend_name="ROCKSDB"))


def test_another_layout_or_salt_is_another_cache(
    monkeypatch: pytest.MonkeyPatch, executor: concurrent.futures.Executor, uri: str
) -> None:
    made = connector(monkeypatch, Config(executor), uri)
    others = [
        connector(monkeypatch, Config(executor, block_spec_signature="NCLD16"), uri),
        connector(monkeypatch, Config(executor, partition_id="h8_16_l0_32"), uri),
        connector(monkeypatch, Config(executor), uri, KV_STORE_AIBRIX_SALT="fp8"),
    ]

    async def run() -> None:
        assert (await made.put(b"block", Region(b"value"))).is_ok()
        assert codes([await other.exists(b"block") for other in others]) == [NOT_FOUND] * 3

    asyncio.run(run())


def test_a_server_that_is_gone_is_an_error_and_no_exception(
    monkeypatch: pytest.MonkeyPatch, executor: concurrent.futures.Executor, redis: Redis
) -> None:
    made = connector(monkeypatch, Config(executor), redis.uri, KV_STORE_AIBRIX_TIMEOUT="5")

    async def run() -> None:
        assert (await made.put(b"block", Region(b"value"))).is_ok()
        redis.kill()
        assert codes(await made.mget([b"block", b"other"], [Region(bytes(5))] * 2)) == [StatusCodes.TIMEOUT, NOT_FOUND]
        assert not (await made.put(b"other", Region(b"value"))).is_ok()
        assert not (await made.exists(b"block")).is_ok()

    asyncio.run(run())


def test_a_store_that_cannot_be_opened_is_a_status(
    monkeypatch: pytest.MonkeyPatch, executor: concurrent.futures.Executor
) -> None:
    monkeypatch.setenv("KV_STORE_AIBRIX_URI", "no-such-scheme://x")
    assert Connector.create(Config(executor)).open().error_code == StatusCodes.ERROR


def test_the_plugin_registers_where_the_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = [
        point for point in importlib.metadata.entry_points(group="vllm.general_plugins") if point.name.startswith("kv_store")
    ]
    register = found.load()
    original = Connector.create
    monkeypatch.setattr(Connector, "create", staticmethod(lambda config, **kwargs: "AIBrix's own"))
    monkeypatch.delenv("AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND", raising=False)
    register()
    assert not hasattr(Connector.create, "of_kv_store_wasm")
    monkeypatch.setenv("AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND", "kv_store_wasm")
    register()
    assert hasattr(Connector.create, "of_kv_store_wasm") and Connector.create is not original
