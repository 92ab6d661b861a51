"""A connector for AIBrix's KV cache, behind the backend name `KV_STORE_WASM`. `docs/engines/aibrix.md` has the configuration.

AIBrix has no registry of connectors, so importing this module wraps `Connector.create`. A batch is one call of the store on AIBrix's
executor. `mget` answers the run of blocks that were fetched from the first on and calls the rest missing, because AIBrix counts
successes: a block behind a hole would be taken for the one in the hole.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from aibrix_kvcache.l2.connectors import Connector, ConnectorFeature
from aibrix_kvcache.status import Status, StatusCodes

from . import Status as Outcome
from . import Store, key, keys
from ._adapter import TIMEOUT, Counters, namespace, open_store
from ._metrics import prometheus
from ._versions import check

__all__ = ["NAME", "StoreConnector", "register"]

NAME = "KV_STORE_WASM"
"""For `AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND`."""

CODES = {
    Outcome.MISSING: StatusCodes.NOT_FOUND,
    Outcome.TOO_LONG: StatusCodes.NOT_FOUND,
    Outcome.UNAVAILABLE: StatusCodes.TIMEOUT,
    Outcome.DENIED: StatusCodes.DENIED,
    Outcome.EXHAUSTED: StatusCodes.OUT_OF_MEMORY,
    Outcome.INVALID: StatusCodes.INVALID,
    Outcome.CANCELLED: StatusCodes.CANCELLED,
}


class StoreConnector(Connector):
    """`KV_STORE_AIBRIX_URI` is the store; `KV_STORE_AIBRIX_SALT` a further part of each key; `KV_STORE_AIBRIX_TIMEOUT` seconds that
    a batch may take."""

    def __init__(self, conn_id: str, executor: Executor, uri: str, salt: str = "", timeout: float = TIMEOUT) -> None:
        self.counters = Counters(prometheus("aibrix:kv_store_wasm_", "blocks", connection=conn_id))
        self._uri, self._timeout, self._executor = uri, timeout, executor
        self._prefix = namespace("aibrix", connection=conn_id, salt=salt)
        self._connection = conn_id
        self._store: Store | None = None

    @classmethod
    def from_envs(cls, conn_id: str, executor: Executor, **kwargs: Any) -> "StoreConnector":
        environ = os.environ
        timeout = float(environ.get("KV_STORE_AIBRIX_TIMEOUT", TIMEOUT))
        return cls(conn_id, executor, environ["KV_STORE_AIBRIX_URI"], environ.get("KV_STORE_AIBRIX_SALT", ""), timeout)

    @property
    def name(self) -> str:
        return "kv-store-wasm"

    @property
    def feature(self) -> ConnectorFeature:
        return ConnectorFeature(mput_mget=True)

    def open(self) -> Status:
        check("aibrix", "aibrix-kvcache")
        try:
            # The connection's name is AIBrix's account of what makes its blocks differ.
            self._store = self._store or open_store(self._uri, self._timeout, engine="aibrix", layout=self._connection)
        except Exception as error:
            return Status(StatusCodes.ERROR, error)
        return Status.ok()

    def close(self) -> Status:
        if self._store is not None:
            self._store.close()
            self._store = None
        return Status.ok()

    def register_slabs(self, slabs: list[Any]) -> Status:
        """Accepted: nothing has to be registered."""
        return Status.ok()

    def get_batches(self, keys: Sequence[Any], mrs: Sequence[Any], batch_size: int) -> list[list[tuple[Any, Any]]]:
        # One batch, whatever its size: AIBrix adds up the counts of several, past a hole in one of them too.
        pairs = list(zip(keys, mrs))
        return [pairs] if pairs else []

    async def exists(self, key: bytes) -> Status:
        return status(await self._run(lambda store: store.exists_many([self._key(key)])[0]))

    async def get(self, key: bytes, mr: Any) -> Status:
        return (await self.mget([key], [mr]))[0]

    async def put(self, key: bytes, mr: Any) -> Status:
        return (await self.mput([key], [mr]))[0]

    async def delete(self, key: bytes) -> Status:
        outcome = await self._run(lambda store: store.delete_many([self._key(key)])[0])
        self.counters.add("deleted", int(outcome == Outcome.OK))
        return status(outcome)

    async def mget(self, keys: Sequence[bytes], mrs: Sequence[Any]) -> list[Status]:
        regions = [pieces(mr) for mr in mrs]
        outcomes = await self._batch(len(keys), lambda store: store.get_many_into(self._keys(keys), regions))
        # A value of another length is one of another layout.
        lengths = [sum(length for _, length in region) for region in regions]
        found = [outcome == length for outcome, length in zip(outcomes, lengths)]
        self.counters.got(outcomes, found)
        run = found.index(False) if False in found else len(found)
        missing = [status(outcome if outcome < 0 else Outcome.MISSING) for outcome in outcomes[run : run + 1]]
        return [Status.ok()] * run + missing + [status(Outcome.MISSING)] * (len(found) - run - len(missing))

    async def mput(self, keys: Sequence[bytes], mrs: Sequence[Any]) -> list[Status]:
        regions = [pieces(mr) for mr in mrs]
        outcomes = await self._batch(len(keys), lambda store: store.put_many(self._keys(keys), regions))
        self.counters.put(outcomes, [sum(length for _, length in region) for region in regions])
        return [status(outcome) for outcome in outcomes]

    def _key(self, name: bytes) -> bytes:
        return key(*self._prefix, name)

    def _keys(self, names: Sequence[bytes]) -> list[bytes]:
        return keys(names, *self._prefix)

    async def _batch(self, items: int, call: Callable[[Store], list[int]]) -> list[int]:
        outcomes = await self._run(call)
        return outcomes if isinstance(outcomes, list) else [outcomes] * items

    async def _run(self, call: Callable[[Store], Any]) -> Any:
        store = self._store
        if store is None:
            return Outcome.UNAVAILABLE
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call, store)
        except (ValueError, TypeError, BufferError, RuntimeError):
            # Closed meanwhile, or memory that makes no sense.
            self.counters.add("refused", 1)
            return Outcome.INVALID


def pieces(mr: Any) -> list[tuple[int, int]]:
    """Where a memory region's bytes lie; GDR passes several for one value."""
    regions = mr if isinstance(mr, list | tuple) else [mr]
    return [(region.data_ptr(), region.length) for region in regions]


def status(outcome: int) -> Status:
    """AIBrix's status of an item."""
    if outcome >= 0:
        return Status.ok()
    return Status(CODES.get(Outcome(outcome), StatusCodes.ERROR), Outcome(outcome).name)


def register() -> None:
    """Have `Connector.create` make this connector for `NAME`. Called when the module is imported; once is enough."""
    original = Connector.create
    if getattr(original, "of_kv_store_wasm", False):
        return

    def create(config: Any, **kwargs: Any) -> Any:
        if config.backend_name != NAME:
            return original(config, **kwargs)
        signatures = f"{config.block_spec_signature}{config.key_builder_signature}{config.layout_signature}"
        conn_id = "_".join(part for part in (config.namespace, config.partition_id, signatures) if part)
        return StoreConnector.from_envs(conn_id, config.executor, **kwargs)

    setattr(create, "of_kv_store_wasm", True)
    setattr(Connector, "create", staticmethod(create))


register()
