"""Saves the blocks of a prompt and restores the leading ones, from Python.

    python3 examples/engine.py local-fs:///tmp/kv
"""

import hashlib
import struct
import sys

import kv_store_wasm as kv

BLOCK_TOKENS = 16
BLOCK_BYTES = 32768
# Whatever makes the same tokens mean other bytes belongs into the key.
SCOPE = ("model-7b", "bf16", "rank 0 of 1")


def block_keys(tokens: list[int]) -> list[bytes]:
    """A key for each whole block, over all tokens up to its end."""
    chain, hashes = hashlib.sha256(), []
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chain.update(struct.pack(f"<{BLOCK_TOKENS}I", *tokens[start : start + BLOCK_TOKENS]))
        hashes.append(chain.digest())
    return kv.keys(hashes, *SCOPE)


def save(store: kv.Store, keys: list[bytes], blocks: list[bytearray]) -> bool:
    """Whether all blocks are stored, and durable where the backend can."""
    with store.save() as pending:
        statuses = store.put_many(keys, blocks, save=pending)
    return min(statuses) >= 0 and pending.status == kv.Status.OK


def restore(store: kv.Store, keys: list[bytes], blocks: list[bytearray]) -> int:
    """Fills the leading blocks that the store has, and answers how many: the engine prefills the rest."""
    lengths = store.get_many_into(keys, blocks, timeout=10.0)
    leading = 0
    while leading < len(lengths) and lengths[leading] == BLOCK_BYTES:
        leading += 1
    return leading


def main(uri: str) -> int:
    prompt = list(range(8 * BLOCK_TOKENS))
    keys = block_keys(prompt)
    blocks = [bytearray([number + 1]) * BLOCK_BYTES for number in range(len(keys))]
    with kv.open(uri, sealed=True) as store:
        if not save(store, keys, blocks):
            print(f"not saved: {kv.last_error()}", file=sys.stderr)
            return 1
        # Another prompt, which shares half of its tokens.
        other = block_keys(prompt[: 4 * BLOCK_TOKENS] + [7] * (4 * BLOCK_TOKENS))
        restored = [bytearray(BLOCK_BYTES) for _ in other]
        found = restore(store, other, restored)
    print(f"restored {found} of {len(other)} blocks")
    return 0 if found == 4 and restored[:4] == blocks[:4] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
