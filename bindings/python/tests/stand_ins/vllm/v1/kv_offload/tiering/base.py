"""What the adapter uses of `vllm.v1.kv_offload.tiering.base` 0.33.0."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.v1.kv_offload.base import Medium, OffloadingEvent


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Collection[bytes] | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager(ABC):
    medium: ClassVar[Medium | None] = None

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None
    ) -> None:
        assert primary_kv_view.strides is not None
        self.block_size_bytes: int = primary_kv_view.strides[0]
        self.tier_type = tier_type
        self.locality: Any = None

    @abstractmethod
    def lookup(self, key: Any, req_context: Any) -> Any: ...
    @abstractmethod
    def submit_store(self, job_metadata: Any) -> None: ...
    @abstractmethod
    def submit_load(self, job_metadata: Any) -> None: ...
    @abstractmethod
    def get_finished_jobs(self) -> Any: ...
    def has_pending_work(self) -> bool:
        return False

    def take_events(self) -> Iterable[OffloadingEvent]:
        return ()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return {}

    def get_stats(self) -> Any: ...
    @abstractmethod
    def on_new_request(self, req_context: Any) -> Any: ...
    def on_request_finished(self, req_context: Any) -> None: ...
    def on_schedule_end(self, context: Any) -> None: ...
    @abstractmethod
    def drain_jobs(self) -> None: ...
    def shutdown(self) -> None: ...
