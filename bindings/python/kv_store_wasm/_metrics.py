"""An adapter's counts where its engine shows its own: as counters of `prometheus_client`, or of OpenTelemetry. Neither is needed.

vLLM takes counts from its connectors and tiers itself: see `_vllm_connector` and `_vllm_tier`.
"""

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["opentelemetry", "prometheus"]

COUNTS = {
    "stored": "{} that were stored",
    "existed": "{} that were there when they were to be stored",
    "hits": "{} that were loaded",
    "misses": "{} that were to be loaded and were not there",
    "failures": "{} that the store failed to store or load",
    "mismatched": "{} that were not stored, because one of another descriptor is there",
    "refused": "{} or calls that were not passed to the store",
    "deleted": "{} that were removed",
    "loaded_bytes": "Bytes of {} that were loaded",
    "saved_bytes": "Bytes of {} that were stored",
}
"""What is counted, of the adapter's kind of values."""

Add = Callable[[str, int], None]

_lock = threading.Lock()
_made: dict[str, Any] = {}


def documented(name: str, values: str) -> str:
    text = COUNTS[name]
    return text.format(values.capitalize() if text.startswith("{}") else values)


def prometheus(prefix: str, values: str, **labels: object) -> Add | None:
    """Counters `PREFIXNAME_total` of the default registry, which the engine's own metrics are in. None: prometheus_client is not installed.

    A counter belongs to the process: adapters of one engine differ by their labels."""
    try:
        import prometheus_client
    except ImportError:
        return None
    with _lock:
        for name in COUNTS:
            if prefix + name not in _made:
                _made[prefix + name] = prometheus_client.Counter(prefix + name, documented(name, values) + ".", list(labels))
    # Those of a name that none has counted yet are shown too, as 0.
    counters = {name: _made[prefix + name].labels(**{label: str(value) for label, value in labels.items()}) for name in COUNTS}
    return lambda name, count: counters[name].inc(count)


def opentelemetry(prefix: str, values: str, **attributes: str) -> Add | None:
    """Counters `PREFIXNAME` of the process's meter provider, also of one that is set later. None: OpenTelemetry is not installed."""
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    meter = metrics.get_meter("kv_store_wasm")
    counters = {name: meter.create_counter(prefix + name, description=documented(name, values)) for name in COUNTS}
    return lambda name, count: counters[name].add(count, attributes)
