"""Row `engines/python/get`: `get_many_into` of 64 values of 64 KiB, beside the C call on the same library with everything prepared."""

import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Sequence

from rows import in_turns, quick, row, wanted

import kv_store_wasm as kv
from kv_store_wasm import _lib

ITEMS = 64
SIZE = 64 << 10
SEALED = 4


class Piece(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Item(ctypes.Structure):
    _fields_ = [
        ("hash", ctypes.c_void_p),
        ("hash_len", ctypes.c_size_t),
        ("pieces", ctypes.POINTER(Piece)),
        ("n_pieces", ctypes.c_size_t),
        ("len", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("status", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
    ]


class Call(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("timeout_ms", ctypes.c_uint64), ("save", ctypes.c_void_p)]


def function(table: int, offset: int, result: type, *arguments: type):
    """A function of a vtable, by its place in bytes."""
    return ctypes.CFUNCTYPE(result, *arguments)(ctypes.c_void_p.from_address(table + offset).value)


def main() -> None:
    if not wanted("engines/python/get"):
        return
    folder = tempfile.mkdtemp(dir=os.environ.get("KV_STORE_BENCH_FOLDER"))
    library = ctypes.CDLL(_lib.__file__)
    for name in ("kv_store_get_vtable", "kv_store_batch_get_vtable"):
        getattr(library, name).restype = ctypes.c_void_p
    handles, batches = library.kv_store_get_vtable(), library.kv_store_batch_get_vtable()
    # Behind its version an open; behind size, version and put_many a get_many.
    handle = function(handles, 8, ctypes.c_void_p, ctypes.c_char_p)(f"local-fs://{folder}".encode())
    get_many = function(
        batches, 16, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Item), ctypes.c_size_t, ctypes.POINTER(Call)
    )
    store = kv.open(f"local-fs://{folder}", sealed=True)
    keys = kv.keys([str(number) for number in range(ITEMS)])
    values = [os.urandom(SIZE) for _ in keys]
    assert store.put_many(keys, values) == [0] * ITEMS
    memory = [bytearray(SIZE) for _ in keys]
    held = [ctypes.create_string_buffer(name, len(name)) for name in keys]
    items = (Item * ITEMS)()
    for item, name, place in zip(items, held, memory):
        piece = Piece(ctypes.addressof(ctypes.c_char.from_buffer(place)), SIZE)
        item.hash, item.hash_len, item.n_pieces = ctypes.addressof(name), len(name), 1
        item.pieces = ctypes.pointer(piece)
    call = Call(ctypes.sizeof(Call), SEALED, 0, None)

    def ours(_: int) -> Sequence[float]:
        start = time.perf_counter()
        outcomes = store.get_many_into(keys, memory)
        taken = time.perf_counter() - start
        assert outcomes == [SIZE] * ITEMS
        return [taken]

    def peer(_: int) -> Sequence[float]:
        start = time.perf_counter()
        status = get_many(handle, items, ITEMS, ctypes.byref(call))
        taken = time.perf_counter() - start
        assert status == 0 and all(item.status == 0 and item.len == SIZE for item in items)
        return [taken]

    taken = in_turns(ours, peer, 101 if quick() else 1001)
    assert memory == values
    row("engines/python/get", taken[0][0], taken[1][0], ITEMS * SIZE / 1e6, "MB/s", 0.95)
    store.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
