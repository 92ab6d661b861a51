"""A remote connector for LMCache inside the engine's process (`remote_storage_plugins`). `docs/engines/lmcache.md` has the configuration.

A value is the bytes of a chunk as LMCache has them in memory. Their number says how many tokens a last chunk has; shape and dtype are LMCache's
own for its model, and are said of the store's values, so that those of another shape are misses. LMCache calls it on its event loop, where nothing
waits, and asks for chunks from other threads, which wait for `lookup_timeout` at most.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lmcache.v1.storage_backend.connector import ConnectorAdapter, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from . import Status, keys
from ._adapter import LOOKUP_TIMEOUT, TIMEOUT, Counters, load_timeout, namespace, open_store
from ._metrics import prometheus
from ._versions import check
from .aio import AsyncQueue

__all__ = ["Adapter", "Connector"]

PLUGIN = "kv_store_wasm"
"""The name of the plugin in `remote_storage_plugins`; or `kv_store_wasm.NAME`, of which there may be several."""

FORMAT = "1"
DEPTH = 256
"""Batches of a connector that run at a time; further ones wait for their turn."""

SETTINGS = ("uri", "salt", "timeout", "lookup_timeout", "compute_rate", "descriptor")


class Adapter(ConnectorAdapter):
    """What LMCache makes for the plugin's class, and asks for a connector."""

    def __init__(self) -> None:
        super().__init__(f"plugin://{PLUGIN}")

    def can_parse(self, url: str) -> bool:
        scheme, _, name = url.partition("://")
        return scheme == "plugin" and extract_plugin_type(name) == PLUGIN

    def create_connector(self, context: Any) -> "Connector":
        extra, name = dict(context.config.extra_config or {}), context.plugin_name or PLUGIN
        given = {setting: extra[f"remote_storage_plugin.{name}.{setting}"] for setting in SETTINGS if f"remote_storage_plugin.{name}.{setting}" in extra}
        if "uri" not in given:
            raise ValueError(f"kv_store_wasm.lmcache_remote: extra_config has no remote_storage_plugin.{name}.uri")
        return Connector(context.config, context.metadata, context.local_cpu_backend, **given)


class Connector(RemoteConnector):
    """uri: the store. salt: a further part of each key. timeout: seconds that a batch may take. lookup_timeout: seconds that a lookup may take.
    compute_rate: bytes of KV a second that the engine computes; a load ends when computing its bytes would have taken as long. descriptor: what
    else the values are, by the names of `kv_store_wasm.open`."""

    def __init__(
        self,
        config: Any,
        metadata: Any,
        local_cpu_backend: Any,
        uri: str,
        salt: str = "",
        timeout: float = TIMEOUT,
        lookup_timeout: float = LOOKUP_TIMEOUT,
        compute_rate: float | None = None,
        descriptor: Any = None,
    ) -> None:
        super().__init__(config, metadata)
        check("lmcache_remote", "lmcache")
        if config.use_layerwise:
            raise ValueError("kv_store_wasm.lmcache_remote: use_layerwise is not supported: chunks of single layers have other shapes")
        if config.remote_serde not in (None, "naive"):
            raise ValueError(f"kv_store_wasm.lmcache_remote: remote_serde is {config.remote_serde}; only naive is supported")
        labels = {"model_name": metadata.model_name, "worker_id": metadata.worker_id}
        self.counters = Counters(prometheus("lmcache:kv_store_wasm_", "chunks", **labels))
        self._timeout, self._compute_rate = float(timeout), None if compute_rate is None else float(compute_rate)
        self._lookup_timeout = min(self._timeout, float(lookup_timeout))
        self._memory = local_cpu_backend
        self._prefix = namespace("lmcache-remote", format=FORMAT, salt=salt)
        # Of all ranks alike: with MLA they read those of one. The key of each chunk names its rank.
        self._store = open_store(
            uri,
            self._timeout,
            descriptor,
            engine="lmcache",
            format=f"remote {FORMAT}",
            model=metadata.model_name,
            dtype=" ".join(str(dtype) for dtype in self.meta_dtypes),
            layout=f"{self.meta_fmt.name} " + " ".join(str(tuple(shape)) for shape in self.meta_shapes),
            block_tokens=metadata.chunk_size,
            ranks=metadata.world_size,
        )
        # Of LMCache's loop, on which it is made.
        self._made: AsyncQueue | None = None

    # Lookups

    async def exists(self, key: Any) -> bool:
        return await self.batched_async_contains("", [key]) == 1

    def exists_sync(self, key: Any) -> bool:
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        return self._leading(self._store.exists_many(self._keys(keys), timeout=self._lookup_timeout))

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any], pin: bool = False) -> int:
        return self._leading(await self._queue().exists_many(self._keys(keys), timeout=self._lookup_timeout))

    # Loads

    async def get(self, key: Any) -> Any:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: Sequence[Any]) -> list[Any]:
        chunks = [self._memory.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt) for _ in keys]
        asked = [number for number, chunk in enumerate(chunks) if chunk is not None]
        self.counters.add("refused", len(chunks) - len(asked))
        room = [chunks[number] for number in asked]
        timeout = load_timeout(self._timeout, self._compute_rate, self.full_chunk_size_bytes * len(asked))
        names = self._keys([keys[number] for number in asked])
        outcomes = await self._holding(room, lambda: self._queue().get_many_into(names, [chunk.byte_array for chunk in room], timeout=timeout))
        found = [self._found(chunk, outcome) for chunk, outcome in zip(room, outcomes)]
        self.counters.got(outcomes, [chunk is not None for chunk in found])
        for chunk, kept in zip(room, found):
            if kept is None:
                chunk.ref_count_down()
        answer: list[Any] = [None] * len(keys)
        for number, chunk in zip(asked, found):
            answer[number] = chunk
        return answer

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> list[Any]:
        """The run of chunks that came, from the first on."""
        found = await self.batched_get(keys)
        run = found.index(None) if None in found else len(found)
        for chunk in found[run:]:
            if chunk is not None:
                chunk.ref_count_down()
        return found[:run]

    def _found(self, chunk: Any, outcome: int) -> Any:
        """The chunk, cut to the tokens that it has; None: there is none of this shape."""
        if outcome <= 0 or outcome > self.full_chunk_size_bytes or outcome % self.single_token_size:
            return None
        return self.reshape_partial_chunk(chunk, outcome)

    # Saves

    async def put(self, key: Any, memory_obj: Any) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        whole = [number for number, chunk in enumerate(memory_objs) if self._is_one(chunk)]
        self.counters.add("refused", len(memory_objs) - len(whole))
        chunks = [memory_objs[number] for number in whole]
        for chunk in chunks:
            chunk.ref_count_up()
        names = self._keys([keys[number] for number in whole])
        outcomes = await self._holding(chunks, lambda: self._queue().put_many(names, [chunk.byte_array for chunk in chunks], timeout=self._timeout))
        self.counters.put(outcomes, [chunk.get_size() for chunk in chunks])
        give_back(chunks)

    def _is_one(self, chunk: Any) -> bool:
        size: int = chunk.get_size()
        of_this_format: bool = chunk.get_memory_format() == self.meta_fmt
        return of_this_format and 0 < size <= self.full_chunk_size_bytes and size % self.single_token_size == 0

    # The rest

    def remove_sync(self, key: Any) -> bool:
        outcomes = self._store.delete_many(self._keys([key]), timeout=self._lookup_timeout)
        self.counters.add("deleted", outcomes.count(Status.OK))
        return outcomes == [Status.OK]

    async def list(self) -> Any:
        """None: keys in a store are hashes."""
        return []

    async def close(self) -> None:
        if self._made is not None:
            self._made.close()
        self._store.close()

    def _keys(self, named: Sequence[Any]) -> Any:
        return keys([key.to_string() for key in named], *self._prefix)

    def _leading(self, outcomes: Sequence[int]) -> int:
        return next((number for number, outcome in enumerate(outcomes) if outcome < 0), len(outcomes))

    def _queue(self) -> AsyncQueue:
        if self._made is None:
            self._made = AsyncQueue(self._store, DEPTH)
        return self._made

    async def _holding(self, chunks: Sequence[Any], call: Callable[[], Any]) -> Any:
        """The outcomes of a batch over the chunks' memory. Where LMCache waits no more, the memory is given back when the store has let go of it."""
        if not chunks:
            return []
        running = asyncio.ensure_future(call())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda _: give_back(chunks))
            raise
        except Exception:
            give_back(chunks)
            raise


def give_back(chunks: Sequence[Any]) -> None:
    for chunk in chunks:
        chunk.ref_count_down()
