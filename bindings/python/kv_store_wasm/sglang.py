"""A storage backend for SGLang's HiCache (`--hicache-storage-backend dynamic`). `docs/engines/sglang.md` has the configuration.

Pages go straight between the host pool and the store: a page is one value, whose pieces are the addresses that the pool names (K and
V, or one for each layer). Pools that name none are copied page by page. Calls come from SGLang's background threads, and wait.
"""

import importlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult

from . import Status, keys
from ._adapter import TIMEOUT, Counters, namespace, open_store
from ._metrics import prometheus
from ._versions import check

__all__ = ["Storage"]

logger = logging.getLogger(__name__)

KV = "kv"

RANKS = ("tp", "pp", "attn_cp", "dcp")

COLLECTOR = "sglang.srt.observability.metrics_collector"
"""Where SGLang has the class of what it takes from a storage backend for its own metrics."""

BATCHES = 1024
"""Batches of one kind that are kept for SGLang, which asks for them in each of its steps."""

Pieces = list[tuple[int, int]]


class Storage(HiCacheStorage):
    """`extra_config`: uri, the store; salt, a further part of each key; timeout, seconds that a batch may take; descriptor, what the pages
    are, by the names of `kv_store_wasm.open`: the model's revision and the like, which SGLang tells no storage."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        labels = {"model_name": storage_config.model_name, "tp_rank": storage_config.tp_rank, "pp_rank": getattr(storage_config, "pp_rank", 0)}
        measured = bool(getattr(storage_config, "enable_storage_metrics", False))
        self.counters = Counters(prometheus("sglang:kv_store_wasm_", "pages", **labels) if measured else None)
        self._statistics = statistics() if measured else None
        # Of each batch the pages, the bytes and the seconds.
        self._loads: deque[tuple[int, int, float]] = deque(maxlen=BATCHES)
        self._saves: deque[tuple[int, int, float]] = deque(maxlen=BATCHES)
        self._config = storage_config
        self._salt = str(extra.get("salt", ""))
        check("sglang.Storage", "sglang")
        ranks = {name: f"{getattr(storage_config, f'{name}_rank', 0)}/{getattr(storage_config, f'{name}_size', 1)}" for name in RANKS}
        self._store = open_store(
            extra["uri"],
            float(extra.get("timeout", TIMEOUT)),
            extra.get("descriptor"),
            engine="sglang",
            model=storage_config.model_name,
            # What MLA keeps is the same on each rank of tensor parallelism.
            ranks=", ".join(f"{name} {part}" for name, part in ranks.items() if name != "tp" or not storage_config.is_mla_model),
        )
        self._namespaces: dict[str, tuple[str, ...]] = {}
        self.mem_pool_host: Any = None
        self.registered_pools: dict[str, Any] = {}

    # Pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host
        self._namespaces.clear()

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: str) -> None:
        self.registered_pools[str(host_pool_name)] = host_pool
        self._namespaces.clear()

    # The KV pool

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        return leading(self._exists(KV, keys))

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._get_pages(KV, self.mem_pool_host, keys, host_indices)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._set_pages(KV, self.mem_pool_host, keys, host_indices)

    # All pools of a hybrid model

    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        anchored = getattr(self.mem_pool_host, "kv_buffer", self) is None
        pages = len(keys) if anchored else self.batch_exists(keys)
        hits: dict[Any, int] = {KV: pages} if pages else {}
        restorable = list(range(1, pages + 1))
        for transfer in pool_transfers or []:
            if not restorable:
                break
            found = self._exists(str(transfer.name), keys[:pages])
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                usable = set(range(1, leading(found) + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(transfer.keys or ()))
                usable = {end for end in range(1, pages + 1) if all(found[max(0, end - window) : end])}
            else:
                # A second form of the pages, which never bounds the hit: it is not kept here.
                continue
            if usable:
                hits[transfer.name] = max(usable)
            restorable = [end for end in restorable if end in usable]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._transfer(transfer, self._get_pages) for transfer in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._transfer(transfer, self._set_pages) for transfer in transfers}

    # Flat pages, for `interface_v1: 0`

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        pages = list(target_locations or [])
        if len(pages) != len(keys) or any(page is None for page in pages):
            return [None] * len(keys)
        found = self._fetch(KV, keys, [[place(page)] for page in pages])
        return [page if here else None for page, here in zip(pages, found)]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        if values is None or any(value is None for value in values):
            return False
        pages = [value.contiguous() for value in values]
        return all(self._store_values(KV, keys, [[place(page)] for page in pages]))

    def exists(self, key: str) -> bool:
        return self._exists(KV, [key])[0]

    def clear(self) -> None:
        """Nothing: other engines may use the store, and its keys are not listed."""
        logger.warning("kv-store-wasm: clear() leaves the store as it is")

    def get_stats(self) -> Any:
        """Of the batches since the last call the pages, and GiB a second, as SGLang's histograms take them."""
        if self._statistics is None:
            return None
        stats = self._statistics()
        for batches, pages, bandwidth in (
            (self._loads, stats.prefetch_pgs, stats.prefetch_bandwidth),
            (self._saves, stats.backup_pgs, stats.backup_bandwidth),
        ):
            while batches:
                count, size, seconds = batches.popleft()
                pages.append(count)
                bandwidth.append(size / seconds / (1 << 30))
        return stats

    def close(self) -> None:
        self._store.close()

    # What all have in common

    def _transfer(self, transfer: Any, move: Callable[[str, Any, Sequence[str], Any], list[bool]]) -> list[bool]:
        name = str(transfer.name)
        pool = self.registered_pools.get(name, self.mem_pool_host if name == KV else None)
        return move(name, pool, transfer.keys or [], transfer.host_indices)

    def _get_pages(self, name: str, pool: Any, page_keys: Sequence[str], host_indices: Any) -> list[bool]:
        try:
            pieces = addresses(pool, len(page_keys), host_indices)
            if pieces is not None:
                return self._fetch(name, page_keys, pieces)
            pages = [pool.get_dummy_flat_data_page() for _ in page_keys]
            found = self._fetch(name, page_keys, [[place(page)] for page in pages])
            for number, (page, here) in enumerate(zip(pages, found)):
                if here:
                    pool.set_from_flat_data_page(first_of(pool, host_indices, number), page)
            return found
        except Exception:
            return self._failed(name, page_keys)

    def _set_pages(self, name: str, pool: Any, page_keys: Sequence[str], host_indices: Any) -> list[bool]:
        try:
            pieces = addresses(pool, len(page_keys), host_indices)
            if pieces is not None:
                return self._store_values(name, page_keys, pieces)
            pages = [
                pool.get_data_page(first_of(pool, host_indices, number), flat=True).contiguous()
                for number in range(len(page_keys))
            ]
            return self._store_values(name, page_keys, [[place(page)] for page in pages])
        except Exception:
            return self._failed(name, page_keys)

    def _failed(self, name: str, page_keys: Sequence[str]) -> list[bool]:
        logger.exception("kv-store-wasm: pages of the pool %s cannot be moved", name)
        self.counters.add("refused", len(page_keys))
        return [False] * len(page_keys)

    def _exists(self, name: str, page_keys: Sequence[str]) -> list[bool]:
        return [outcome >= 0 for outcome in self._store.exists_many(keys(page_keys, *self._namespace(name)))]

    def _fetch(self, name: str, page_keys: Sequence[str], pieces: list[Pieces]) -> list[bool]:
        begun = time.perf_counter()
        outcomes = self._store.get_many_into(keys(page_keys, *self._namespace(name)), pieces)
        # A page of another length is one of another layout.
        sizes = [sum(size for _, size in page) for page in pieces]
        found = [outcome == size for outcome, size in zip(outcomes, sizes)]
        self.counters.got(outcomes, found)
        if any(found):
            self._loads.append((sum(found), sum(size for size, here in zip(sizes, found) if here), time.perf_counter() - begun))
        return found

    def _store_values(self, name: str, page_keys: Sequence[str], pieces: list[Pieces]) -> list[bool]:
        begun = time.perf_counter()
        outcomes = self._store.put_many(keys(page_keys, *self._namespace(name)), pieces)
        sizes = [sum(size for _, size in page) for page in pieces]
        self.counters.put(outcomes, sizes)
        stored = [size for outcome, size in zip(outcomes, sizes) if outcome == Status.OK]
        if stored:
            self._saves.append((len(stored), sum(stored), time.perf_counter() - begun))
        return [outcome >= 0 for outcome in outcomes]

    def _namespace(self, name: str) -> tuple[str, ...]:
        known = self._namespaces.get(name)
        if known is not None:
            return known
        config, pool = self._config, self.registered_pools.get(name, self.mem_pool_host)
        # What MLA keeps is the same on each rank of tensor parallelism; Mamba's states never are, and a draft model may be none.
        sharded = not config.is_mla_model or name == "mamba"
        if name.startswith("draft") and "MLA" not in type(pool).__name__:
            sharded = True
        ranks = [("pp", "pp_rank", "pp_size"), ("cp", "attn_cp_rank", "attn_cp_size"), ("dcp", "dcp_rank", "dcp_size")]
        if sharded:
            ranks.append(("tp", "tp_rank", "tp_size"))
        found = namespace(
            "sglang",
            model=config.model_name,
            pool=name,
            dtype=getattr(pool, "dtype", None),
            layout=getattr(pool, "layout", None),
            page=getattr(pool, "page_size", None),
            heads=config.tp_lcm_size if getattr(config, "should_split_heads", False) else None,
            salt=self._salt,
            **{label: f"{getattr(config, rank, 0)}/{getattr(config, size, 1)}" for label, rank, size in ranks},
        )
        self._namespaces[name] = found
        return found


def statistics() -> Any:
    """SGLang's class of what it takes from `get_stats`. None: this release has none there."""
    try:
        return importlib.import_module(COLLECTOR).StorageMetrics
    except (ImportError, AttributeError) as error:
        logger.warning("kv-store-wasm: SGLang's histograms have no pages of the store: %s", error)
        return None


def leading(found: Sequence[bool]) -> int:
    """How many are there before the first that is not."""
    return next((index for index, here in enumerate(found) if not here), len(found))


def place(page: Any) -> tuple[int, int]:
    """Where a tensor's bytes lie."""
    return page.data_ptr(), page.numel() * page.element_size()


def first_of(pool: Any, host_indices: Any, number: int) -> int:
    """The index of the first token of a page."""
    return int(host_indices[number * (getattr(pool, "page_size", 1) or 1)])


def addresses(pool: Any, pages: int, host_indices: Any) -> list[Pieces] | None:
    """The memory of each page, piece by piece. None: the pool cannot name it in the layout that it has."""
    try:
        pointers, sizes = pool.get_page_buffer_meta(host_indices)
    except (AttributeError, NotImplementedError, ValueError):
        return None
    flat: Pieces = []
    for pointer, size in zip(pointers, sizes):
        # Some pools name several pieces at once.
        flat.extend(zip(pointer, size) if isinstance(pointer, list | tuple) else [(pointer, size)])
    if pages == 0 or len(flat) % pages:
        raise ValueError(f"{len(flat)} pieces of memory for {pages} pages")
    each = len(flat) // pages
    return [flat[start : start + each] for start in range(0, len(flat), each)]
