"""What the adapter uses of `vllm.v1.kv_offload.file_mapper` 0.33.0."""

from typing import Any


class FileMapper:
    def __init__(self, fields: dict[str, Any], rank: int) -> None:
        self.fields, self.rank = fields, rank

    @classmethod
    def from_offloading_spec(
        cls, root_dir: str, offloading_spec: Any, blocks_per_file: int = 1, parallel_agnostic: bool = False
    ) -> "FileMapper":
        return cls({"model_name": offloading_spec.model, "blocks_per_file": blocks_per_file}, offloading_spec.rank)

    def get_run_config(self) -> dict[str, Any]:
        return dict(self.fields)
