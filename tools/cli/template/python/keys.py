"""Hashes and names as keys that any storage system takes."""

from wit_world.imports.payloads import Part_Bytes, sha256
from wit_world.imports.store_types import Hashes

LONGEST = 200
DIGEST = 2 + 64
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")


def split(hashes: Hashes) -> list[bytes]:
    """The hashes of a batch."""
    return [hashes.bytes[at : at + hashes.width] for at in range(0, len(hashes.bytes), hashes.width)]


def escape(name: str) -> str:
    """The key of a manifest's name, at most 200 of `a-z 0-9 _ - . %`.

    Two names never meet, also where the storage system ignores case, and no key begins with a dot. Any other byte is `%` and two hex
    digits. A longer key is cut, and ends in `%-` and the SHA-256 of the name.
    """
    key, cut = "", 0
    for at, byte in enumerate(name.encode()):
        plain = byte in PLAIN or (byte == ord(".") and at > 0)
        key += chr(byte) if plain else f"%{byte:02x}"
        if len(key) <= LONGEST - DIGEST:
            cut = len(key)
    if len(key) <= LONGEST:
        return key
    return key[:cut] + "%-" + sha256([Part_Bytes(name.encode())]).hex()
