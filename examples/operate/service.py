"""What an engine's process does for many tenants: each saves the blocks of its prompts and restores their beginnings, again and again.

The tenants are those of the library's config: `KV_STORE_WASM_CONFIG=kv-store.toml python3 service.py`
"""

import itertools
import os
import sys
import threading
import time
import tomllib

import engine
import kv_store_wasm as kv

PROMPTS = 50
"""Prompts that a tenant goes through."""
PAUSE = 0.1


def serve(uri: str) -> None:
    """A store that is away is nothing to end for: the engine prefills until it is back."""
    store = None
    for number in itertools.count():
        time.sleep(PAUSE)
        prompt = [number % PROMPTS] * (4 * engine.BLOCK_TOKENS)
        keys = engine.block_keys(prompt)
        blocks = [bytearray(engine.BLOCK_BYTES) for _ in keys]
        try:
            store = store or kv.open(uri, sealed=True)
            if engine.restore(store, keys, blocks) < len(keys):
                engine.save(store, keys, blocks)
        except kv.Error as error:
            print(f"{uri}: {error}", file=sys.stderr, flush=True)
            time.sleep(1)


def main() -> None:
    with open(os.environ["KV_STORE_WASM_CONFIG"], "rb") as file:
        tenants = tomllib.load(file)["tenant"]
    threads = [threading.Thread(target=serve, args=(tenant["uri"],), daemon=True) for tenant in tenants]
    for thread in threads:
        thread.start()
    threads[0].join()


if __name__ == "__main__":
    main()
