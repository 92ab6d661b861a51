"""Storage backends for KV caches, as sandboxed WebAssembly components.

`open` gives a `Store`; its batches move many values a call, straight out of and into the caller's memory, with the GIL
released. A batch answers a list with one int for each key: 0 or more is success, a negative one a `Status` that says why
not. Data-path calls raise only where the call itself makes no sense (other types, other lengths of lists, a closed store);
what a backend does or fails to do is an outcome. `open` raises `Error` with the reason in one line.
"""

from enum import IntEnum

from ._lib import (
    LEN_UNKNOWN,
    Error,
    Queue,
    Save,
    Store,
    StoreInfo,
    __version__,
    doctor,
    key,
    keys,
    last_error,
    metrics,
    open,
)
from ._types import Piece, Value

__all__ = [
    "LEN_UNKNOWN",
    "Error",
    "Piece",
    "Queue",
    "Save",
    "Status",
    "Store",
    "StoreInfo",
    "Value",
    "__version__",
    "doctor",
    "key",
    "keys",
    "last_error",
    "metrics",
    "open",
]


class Status(IntEnum):
    """What became of an item or a call. The numbers are those of `kv_store_batch.h`."""

    OK = 0
    """put: stored. delete: gone. A get answers the length in bytes, exists the length or `LEN_UNKNOWN`."""
    EXISTED = 1
    """put: it was there already."""
    UNAVAILABLE = -1
    """Not reachable, late, busy: the same call may work later."""
    DENIED = -2
    """Not granted, or refused by the storage system for want of rights."""
    EXHAUSTED = -3
    """No room now: a full queue, a limit of the library, a full disk, a full server."""
    INVALID = -4
    """The request makes no sense as it stands, or the value is larger than the store takes."""
    CORRUPT = -5
    """What was found is not what must be there."""
    UNSUPPORTED = -6
    """The backend cannot do this at all; or the store was opened before a fork."""
    COMPONENT = -7
    """The component trapped or broke its contract; the next call gets a new instance."""
    OTHER = -8
    """None of the others."""
    MISMATCH = -10
    """put: a value of another descriptor lies under the key."""
    CANCELLED = -11
    """Cancelled by `Queue.cancel` or `Queue.close`."""
    MISSING = -100
    """There is none, or what is there is not what was put."""
    TOO_LONG = -101
    """get: the value is longer than the memory for it."""
    LOST = -102
    """Of a save's commit: chunks of the save are not in the store any more."""
