"""What the adapter uses of `aibrix_kvcache.l2.connectors` 0.8.0."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any


@dataclass
class ConnectorFeature:
    mput_mget: bool = False
    prefetch: bool = False
    rdma: bool = False
    gdr_put: bool = False
    gdr_get: bool = False
    zero_copy: bool = False


class Connector(ABC):
    @staticmethod
    def create(config: Any, **kwargs: Any) -> Any:
        raise ValueError(f"Unknown connector type: {config.backend_name}")

    @classmethod
    @abstractmethod
    def from_envs(cls, conn_id: str, executor: Executor, **kwargs: Any) -> Any: ...
    @property
    @abstractmethod
    def name(self) -> str: ...
    @property
    @abstractmethod
    def feature(self) -> ConnectorFeature: ...
    @abstractmethod
    def open(self) -> Any: ...
    @abstractmethod
    def close(self) -> Any: ...
    @abstractmethod
    async def exists(self, key: Any) -> Any: ...
    @abstractmethod
    async def get(self, key: Any, mr: Any) -> Any: ...
    @abstractmethod
    async def put(self, key: Any, mr: Any) -> Any: ...
    def register_slabs(self, slabs: Any) -> Any: ...
    def get_batches(self, keys: Sequence[Any], mrs: Sequence[Any], batch_size: int) -> Any: ...
    async def mget(self, keys: Any, mrs: Any) -> Any: ...
    async def mput(self, keys: Any, mrs: Any) -> Any: ...
    @abstractmethod
    async def delete(self, key: Any) -> Any: ...
