"""What vLLM loads by its name, out of tree: `Connector`, a KV connector, and `Tier`, a secondary tier of its tiered offloading.

Each is imported when it is first asked for: the parts of vLLM that one of them needs may be missing where the other runs.
`docs/engines/vllm.md` has the configuration.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._vllm_connector import Connector
    from ._vllm_tier import Tier

__all__ = ["Connector", "Tier"]


def __getattr__(name: str) -> Any:
    try:
        if name == "Connector":
            from ._vllm_connector import Connector

            return Connector
        if name == "Tier":
            from ._vllm_tier import Tier

            return Tier
    except (AttributeError, ImportError) as error:
        raise ImportError(f"kv_store_wasm.vllm.{name} cannot be loaded into this vLLM, which lacks what it needs: {error}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
