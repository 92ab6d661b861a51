"""The backend as SGLang calls it, over pools of plain memory: both layouts, hybrid pools, ranks, a server that is gone."""

import ctypes
import dataclasses
import os
import pathlib
import sys
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "stand_ins"))

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy

import kv_store_wasm as kv_store
from conftest import Redis
from kv_store_wasm.sglang import Storage

PAGE = 4
"""Tokens of a page."""
LAYERS = 3
TOKEN = 64
"""Bytes of a token in one layer's K, or V."""


class Tensor:
    """Bytes of a tensor, with what the adapter asks of one."""

    def __init__(self, data: bytes) -> None:
        self.memory = ctypes.create_string_buffer(data, len(data))

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)

    def numel(self) -> int:
        return len(self.memory)

    def element_size(self) -> int:
        return 1

    def contiguous(self) -> "Tensor":
        return self


class Pool:
    """A host pool: `[K and V][layers][tokens]`, or `[K and V][tokens][layers]` where the layout is page_first."""

    dtype = "bfloat16"
    page_size = PAGE

    def __init__(self, layout: str, tokens: int = 64) -> None:
        self.layout, self.tokens = layout, tokens
        self.half = LAYERS * tokens * TOKEN
        self.memory = (ctypes.c_ubyte * (2 * self.half))()
        self.kv_buffer = self.memory

    def pieces(self, index: int) -> list[tuple[int, int]]:
        base = ctypes.addressof(self.memory)
        if self.layout == "page_first":
            return [(base + half * self.half + index * LAYERS * TOKEN, PAGE * LAYERS * TOKEN) for half in (0, 1)]
        places = [(half, layer) for layer in range(LAYERS) for half in (0, 1)]
        return [(base + half * self.half + (layer * self.tokens + index) * TOKEN, PAGE * TOKEN) for half, layer in places]

    def get_page_buffer_meta(self, indices: list[int]) -> tuple[list[int], list[int]]:
        if self.layout == "flat":
            raise ValueError("Unsupported layout: flat")
        pieces = [piece for index in indices[::PAGE] for piece in self.pieces(index)]
        return [address for address, _ in pieces], [size for _, size in pieces]

    def get_data_page(self, index: int, flat: bool = True) -> Tensor:
        return Tensor(self.page(index))

    def get_dummy_flat_data_page(self) -> Tensor:
        return Tensor(bytes(2 * PAGE * LAYERS * TOKEN))

    def set_from_flat_data_page(self, index: int, page: Tensor) -> None:
        self.fill(index, page.memory.raw)

    def page(self, index: int) -> bytes:
        return b"".join(ctypes.string_at(address, size) for address, size in self.pieces(index))

    def fill(self, index: int, data: bytes) -> None:
        for address, size in self.pieces(index):
            ctypes.memmove(address, data[:size], size)
            data = data[size:]


@dataclasses.dataclass
class Config:
    extra_config: dict[str, Any]
    tp_rank: int = 0
    tp_size: int = 2
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    model_name: str = "a/model"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dcp_size: int = 1
    dcp_rank: int = 0


@dataclasses.dataclass
class Transfer:
    name: str
    keys: list[str] | None
    host_indices: list[int] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


def storage(uri: str, pool: Pool, **config: Any) -> Storage:
    extra = {"uri": uri, "timeout": 20, **config.pop("extra", {})}
    made = Storage(Config(extra, **config), {})
    made.register_mem_pool_host(pool)
    return made


def indices(*pages: int) -> list[int]:
    return [page * PAGE + token for page in pages for token in range(PAGE)]


@pytest.mark.parametrize("layout", ["page_first", "layer_first", "flat"])
def test_pages_go_from_one_pool_to_another(uri: str, layout: str) -> None:
    source, target = Pool(layout), Pool(layout)
    names = [f"hash{n}" for n in range(4)]
    pages = [os.urandom(2 * PAGE * LAYERS * TOKEN) for _ in names]
    for number, page in enumerate(pages):
        source.fill(number * 2 * PAGE, page)
    writer, reader = storage(uri, source), storage(uri, target)
    assert writer.batch_set_v1(names, indices(0, 2, 4, 6)) == [True] * 4
    assert reader.batch_exists([*names, "hash4"]) == 4 and reader.exists("hash3") and not reader.exists("hash4")
    assert reader.batch_exists(["hash4", *names]) == 0
    assert reader.batch_get_v1([names[0], "hash4", names[2]], indices(5, 6, 7)) == [True, False, True]
    assert target.page(5 * PAGE) == pages[0] and target.page(7 * PAGE) == pages[2]
    counts = reader.counters.snapshot()
    assert (counts["hits"], counts["misses"], counts["failures"]) == (2, 1, 0)


def test_flat_pages_are_stored_and_fetched(uri: str) -> None:
    made = storage(uri, Pool("layer_first"))
    pages = [Tensor(os.urandom(96)) for _ in range(2)]
    assert made.batch_set(["a", "b"], pages) and made.set("c", pages[0])
    targets = [Tensor(bytes(96)), Tensor(bytes(95)), Tensor(bytes(96))]
    found = made.batch_get(["a", "b", "d"], targets)
    assert found == [targets[0], None, None] and targets[0].memory.raw == pages[0].memory.raw
    assert made.get("c", targets[2]) is targets[2] and made.get("c") is None
    assert not made.set("e")
    made.clear()
    assert made.exists("a")
    made.get_stats()


def test_what_differs_in_model_rank_layout_or_tenant_never_meets(uri: str) -> None:
    pool = Pool("page_first")
    storage(uri, pool).batch_set_v1(["hash"], indices(0))
    assert storage(uri, pool).exists("hash")
    others = [
        storage(uri, Pool("layer_first")),
        storage(uri, pool, model_name="another"),
        storage(uri, pool, tp_rank=1),
        storage(uri, pool, tp_size=4),
        storage(uri, pool, pp_size=2),
        storage(uri, pool, extra={"salt": "tenant"}),
    ]
    eight = Pool("page_first")
    eight.dtype = "float8"
    assert [other.exists("hash") for other in [*others, storage(uri, eight)]] == [False] * 7
    # Each rank of a model with MLA holds the same.
    storage(uri, pool, is_mla_model=True).batch_set_v1(["latent"], indices(0))
    assert storage(uri, pool, is_mla_model=True, tp_rank=1).exists("latent")


def test_pools_of_hybrid_models(uri: str) -> None:
    kv, state = Pool("page_first"), Pool("page_first")
    made = storage(uri, kv)
    made.register_mem_host_pool_v2(state, "mamba")
    names = [f"hash{n}" for n in range(5)]
    state.fill(0, b"s" * 2 * PAGE * LAYERS * TOKEN)
    wrote = made.batch_set_v2([Transfer("kv", names, indices(0, 1, 2, 3, 4)), Transfer("mamba", names[1:3], indices(0, 1))])
    assert wrote == {"kv": [True] * 5, "mamba": [True] * 2}

    def found(policy: PoolHitPolicy, keys: list[str]) -> tuple[int, dict[str, int], list[int] | None]:
        result = made.batch_exists_v2([*names, "hash5"], [Transfer("mamba", keys, None, policy)])
        return result.kv_hit_pages, result.extra_pool_hit_pages, result.restorable_prefix_pages

    assert found(PoolHitPolicy.TRAILING_PAGES, ["last"]) == (3, {"kv": 5, "mamba": 3}, [2, 3])
    assert found(PoolHitPolicy.TRAILING_PAGES, ["two", "last"]) == (3, {"kv": 5, "mamba": 3}, [3])
    assert found(PoolHitPolicy.ALL_PAGES, names) == (0, {"kv": 5}, [])
    assert found(PoolHitPolicy.BLOCK_GROUPS, names) == (5, {"kv": 5}, [1, 2, 3, 4, 5])
    got = made.batch_get_v2([Transfer("mamba", [names[1], names[4]], indices(6, 7))])
    assert got == {"mamba": [True, False]} and state.page(6 * PAGE) == b"s" * 2 * PAGE * LAYERS * TOKEN


def test_whichever_page_of_a_hybrid_model_is_gone_no_longer_prefix_is_offered(uri: str) -> None:
    """Pages of all pools are useful together only: what lacks one is no hit, and a page that goes after the question is named by the load."""
    pools = {"kv": Pool("page_first"), "indexer": Pool("page_first")}
    made = storage(uri, pools["kv"])
    made.register_mem_host_pool_v2(pools["indexer"], "indexer")
    names = [f"hash{n}" for n in range(4)]
    pages = indices(0, 1, 2, 3)
    both = [Transfer(pool, names, pages) for pool in pools]
    assert made.batch_set_v2(both) == {pool: [True] * 4 for pool in pools}
    with kv_store.open(uri) as store:
        for pool in pools:
            for number, name in enumerate(names):
                [key] = kv_store.keys([name], *made._namespace(pool))
                assert store.delete_many([key]) == [0]
                asked = made.batch_exists_v2(names, [Transfer("indexer", names)])
                assert asked.kv_hit_pages == number, (pool, name)
                got = made.batch_get_v2(both)
                assert got[pool] == [name != other for other in names]
                assert all(all(found) for other, found in got.items() if other != pool)
                made.batch_set_v2(both)
    assert made.batch_exists_v2(names, [Transfer("indexer", names)]).kv_hit_pages == 4


def test_calls_that_make_no_sense_are_failures_and_do_not_raise(uri: str) -> None:
    made = storage(uri, Pool("page_first"))
    assert made.batch_set_v1(["a", "b", "c"], indices(0)) == [False] * 3
    assert made.batch_get_v2([Transfer("unknown", ["a"], indices(0))]) == {"unknown": [False]}
    assert made.counters.snapshot()["refused"] == 4


def test_a_server_that_is_gone_is_misses(redis: Redis) -> None:
    pool = Pool("page_first")
    made = storage(redis.uri, pool, extra={"timeout": 5})
    assert made.batch_set_v1(["a"], indices(0)) == [True]
    redis.kill()
    assert made.batch_exists(["a"]) == 0
    assert made.batch_get_v1(["a"], indices(1)) == [False]
    assert made.batch_set_v1(["b"], indices(0)) == [False]
    assert made.counters.snapshot()["failures"] >= 2
