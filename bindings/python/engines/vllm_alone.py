"""vLLM's tiers without the rest of vLLM, whose own packages bring in what runs models.

`python vllm_alone.py WHEEL FOLDER` takes the tiers out of vLLM's wheel: 5 MB of its 840.
"""

import dataclasses
import importlib.util
import logging
import os
import sys
import types
import zipfile
from typing import Any

PARTS = ("vllm/v1/", "vllm/fs_io_C")
"""Its scheduler with the tiers, and the C functions of the tier `fs`."""


def import_vllm() -> None:
    """`vllm.v1.kv_offload` can be imported after this."""
    if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
        return
    root = os.path.join(sys.prefix, "vllm-tiers/vllm")
    assert os.path.isdir(root), f"{root} is missing"
    package("vllm", root)
    package("vllm.v1", os.path.join(root, "v1"))
    package("vllm.v1.metrics", os.path.join(root, "v1/metrics"))
    logger = logging.getLogger("vllm")
    for name in ("info_once", "warning_once", "debug_once"):
        setattr(logger, name, lambda *_, **__: None)
    module("vllm.logger").init_logger = lambda _: logger  # type: ignore[attr-defined]
    # For layouts of attention kernels, which no test has.
    above = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"
    for end in range(2, above.count(".") + 2):
        package(".".join(above.split(".")[:end]), "")
    module(f"{above}.canonical_mapping").canonical_format_id = str  # type: ignore[attr-defined]


def offloading_spec(chunk_bytes: int, model: str = "model", rank: int = 0) -> Any:
    """What vLLM gives to a tier of chunks of so many bytes: one group of layers, one worker."""
    from vllm.v1.kv_offload import config
    from vllm.v1.kv_offload.base import OffloadingSpec

    class Spec(OffloadingSpec):
        def get_manager(self) -> Any: ...
        def get_worker(self, kv_caches: Any) -> Any: ...

    sizes = dict.fromkeys(("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size", "data_parallel_size"), 1)
    parallel = config.OffloadingParallelConfig(
        rank=rank, **sizes, data_parallel_index=0, data_parallel_rank_local=None, is_parallelism_agnostic=True
    )
    return Spec(
        config.OffloadingConfig(
            # Its last field came with 0.30.
            groups=(config.OffloadingGroupConfig(*(16, ("0",), 0)[: len(dataclasses.fields(config.OffloadingGroupConfig))]),),
            worker_kv_bytes_per_block=chunk_bytes,
            enable_kv_cache_events=False,
            extra_config={},
            engine_id="engine",
            model=config.OffloadingModelConfig(model, "bfloat16"),
            cache=config.OffloadingCacheConfig(16, 1),
            parallel=parallel,
        )
    )


def module(name: str) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.util.spec_from_loader(name, None)
    return sys.modules.setdefault(name, made)


def package(name: str, folder: str) -> None:
    module(name).__path__ = [folder]


def main() -> None:
    wheel, folder = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(PARTS)])


if __name__ == "__main__":
    main()
