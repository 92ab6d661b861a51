"""The entry point `vllm.general_plugins`: registers the connector for AIBrix where its configuration names it, and else imports nothing."""

import os


def register() -> None:
    if os.environ.get("AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND", "").strip().upper() == "KV_STORE_WASM":
        from .aibrix import register as wrap

        wrap()
