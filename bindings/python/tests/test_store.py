"""Store, Save, key: what each call answers, which memory it takes, when the GIL is free."""

import array
import ctypes
import hashlib
import importlib.metadata
import os
import pathlib
import struct
import subprocess
import sys
import threading
import time

import pytest

import kv_store_wasm as kv
from kv_store_wasm import Status


def test_the_version_is_that_of_the_package() -> None:
    assert kv.__version__ == importlib.metadata.version("kv-store-wasm")


def test_a_batch_is_put_found_fetched_and_deleted(store: kv.Store) -> None:
    keys = kv.keys([str(n) for n in range(50)], "a model")
    values = [os.urandom(n * 37) for n in range(50)]
    assert store.put_many(keys, values, sealed=True) == [Status.OK] * 50
    assert store.put_many(keys[:2], values[:2], sealed=True) == [Status.EXISTED] * 2
    absent = [kv.key("absent")]
    assert store.exists_many(keys + absent, sealed=True) == [len(value) for value in values] + [Status.MISSING]
    memory = [bytearray(len(value)) for value in values]
    assert store.get_many_into(keys, memory, sealed=True) == [len(value) for value in values]
    assert memory == values
    assert store.get_many_into(absent, [bytearray(8)], sealed=True) == [Status.MISSING]
    assert store.get_many_into(keys[9:10], [bytearray(9)], sealed=True) == [Status.TOO_LONG]
    assert store.delete_many(keys + absent) == [Status.OK] * 51
    assert store.exists_many(keys, sealed=True) == [Status.MISSING] * 50


def test_values_are_buffers_and_addresses_and_lists_of_them(store: kv.Store) -> None:
    floats = array.array("f", [1.0, 2.0])
    raw = ctypes.create_string_buffer(b"at an address", 13)
    place = (ctypes.addressof(raw), 13)
    values: list[kv.Value] = [floats, place, (b"a ", bytearray(b"list of "), place), memoryview(bytes(6)).cast("B", (2, 3)), b""]
    keys = kv.keys(["1", "2", "3", "4", "5"])
    assert store.put_many(keys, values) == [0] * 5
    parts = [bytearray(1), bytearray(22)]
    first, second = bytearray(8), bytearray(13)
    assert store.get_many_into(keys, [first, second, parts, bytearray(6), bytearray(0)]) == [8, 13, 23, 6, 0]
    assert first == floats.tobytes() and second == b"at an address"
    assert b"".join(parts) == b"a list of at an address"
    room = ctypes.create_string_buffer(13)
    assert store.get_many_into(keys[1:2], [(ctypes.addressof(room), 13)]) == [13]
    assert room.raw == b"at an address"


def test_calls_that_make_no_sense_raise_and_store_nothing(store: kv.Store) -> None:
    key = kv.key("k")
    with pytest.raises(ValueError, match="1 keys, but 2 values"):
        store.put_many([key], [b"a", b"b"])
    with pytest.raises(TypeError, match="a key is bytes"):
        store.put_many(["text"], [b"a"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a list of bytes, not one"):
        store.exists_many(key)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.put_many([key], ["text"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"\(address, length\)"):
        store.put_many([key], [((1, 2, 3),)])  # type: ignore[list-item]
    with pytest.raises(BufferError, match="read-only"):
        store.get_many_into([key], [bytes(4)])
    with pytest.raises(BufferError, match="contiguous"):
        store.put_many([key], [memoryview(bytes(8))[::2]])
    for timeout in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            store.exists_many([key], timeout=timeout)
    assert store.exists_many([key]) == [Status.MISSING]
    assert store.exists_many([]) == []


def test_a_key_without_sense_is_an_outcome(store: kv.Store) -> None:
    assert store.put_many([b"", b"k" * 65, b"k" * 64], [b"x"] * 3) == [Status.INVALID, Status.INVALID, Status.OK]
    assert store.put_many([b"k"], [(0, 5)]) == [Status.INVALID]


def test_memory_is_lent_until_the_call_returns_and_no_longer(store: kv.Store) -> None:
    memory, key = bytearray(4), kv.key("k")
    store.put_many([key], [memory])
    store.get_many_into([key], [memory])
    # An export that was left would make this a BufferError.
    memory.extend(b"more")


def test_sealed_values_tell_wrong_bytes(store: kv.Store, uri: str) -> None:
    key, value = kv.key("k"), os.urandom(4096)
    store.put_many([key], [value], sealed=True)
    chunks = [path for path in pathlib.Path(uri.removeprefix("local-fs://")).rglob("*") if path.is_file()]
    chunks = [path for path in chunks if path.stat().st_size >= 4096]
    assert len(chunks) == 1
    with chunks[0].open("r+b") as file:
        file.seek(100)
        file.write(bytes(16))
    assert store.get_many_into([key], [bytearray(4096)], sealed=True) == [Status.MISSING]
    assert store.put_many([key], [value], sealed=True) == [Status.OK]
    memory = bytearray(4096)
    assert store.get_many_into([key], [memory], sealed=True) == [4096] and memory == value


def test_the_defaults_of_a_store_are_those_of_its_calls(uri: str) -> None:
    # The XXH3-64 of the value: it lies as it is unless it is sealed, and then with 64 bytes more.
    key, value = bytes.fromhex("751ccf1c95400518"), b"chunk"
    chunks = pathlib.Path(uri.removeprefix("local-fs://")) / "chunks"

    def stored() -> list[int]:
        return sorted(file.stat().st_size for file in chunks.rglob("*") if file.is_file())

    with kv.open(uri, sealed=True, timeout=20.0) as store:
        store.put_many([key], [value])
        assert stored() == [69]
        store.put_many([key], [value], sealed=False)
        assert stored() == [5, 69]


def test_a_save_publishes_its_manifest_with_its_block(store: kv.Store) -> None:
    keys = kv.keys(["a", "b"])
    with store.save("conversation", b"two chunks") as save:
        assert store.get_manifest("conversation") is None
        store.put_many(keys, [b"x", b"y"], save=save)
        save.manifest = b"two chunks, later"
    assert save.status == Status.OK and save.lost == []
    assert store.get_manifest("conversation") == b"two chunks, later"
    refused = store.save("another", b"m")
    with pytest.raises(KeyError):
        with refused:
            raise KeyError
    assert refused.status is None and store.get_manifest("another") is None
    assert store.delete_manifest("conversation") == Status.OK
    assert store.get_manifest("conversation") is None


def test_a_save_tells_which_chunks_are_lost(store: kv.Store) -> None:
    key = kv.key("a")
    with store.save("conversation", b"m") as save:
        store.put_many([key], [b"x"], save=save)
        store.delete_many([key])
    assert save.status == Status.LOST and save.lost == [key]
    store.put_many([key], [b"x"], save=save)
    assert save.commit("conversation", b"m") == Status.OK


def test_durable_puts_are_refused_where_nothing_lasts(store: kv.Store) -> None:
    assert store.put_many([kv.key("k")], [b"v"], durable=True) == [Status.OK]
    with kv.open("memory://python-durable") as memory:
        assert memory.put_many([kv.key("k")], [b"v"], durable=True) == [Status.UNSUPPORTED]
        assert "durable" in kv.last_error()


def test_an_open_that_fails_says_why_in_one_line() -> None:
    for uri, why in (("no-such-scheme://x", "no component for the scheme"), ("local-fs://relative", ""), ("a\0b", "NUL")):
        with pytest.raises(kv.Error) as raised:
            kv.open(uri)
        assert why in str(raised.value) and len(str(raised.value).splitlines()) == 1


def test_a_closed_store_says_so(uri: str) -> None:
    with kv.open(uri) as store:
        assert repr(store) == f"<kv_store_wasm.Store {uri}>" and not store.closed
        queue = store.queue(2)
    assert store.closed and repr(store) == f"<kv_store_wasm.Store {uri} (closed)>"
    with pytest.raises(ValueError, match="closed"):
        store.exists_many([kv.key("k")])
    store.close()
    # A queue keeps what it needs open.
    assert queue.submit_exists([kv.key("k")]) == 1
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        queue.drain()
    assert repr(queue) == "<kv_store_wasm.Queue (closed)>"


def test_info_and_registration(store: kv.Store) -> None:
    info = store.info
    assert info.durable and info.deletes and info.max_value_bytes > 1 << 20 and "durable=True" in repr(info)
    assert store.register_memory(0, 1 << 40) is None and store.unregister_memory(0) is None  # type: ignore[func-returns-value]
    assert store.metrics().startswith("# HELP")


def test_key_hashes_parts_behind_their_lengths() -> None:
    parts = [b"model", "tenant-ü".encode(), b""]
    expected = hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()
    assert kv.key("model", "tenant-ü", b"") == kv.key(bytearray(b"model"), memoryview(parts[1]), "") == expected
    # What is stored is found by it: this value stays.
    assert expected.hex() == "39460685bfa22cd515c5e7425ac2c96ce16458edc6a440b05b622050acd5b009"
    assert kv.key("ab", "c") != kv.key("a", "bc") != kv.key("abc")
    assert kv.keys(["x", b"y"], "a", "b") == [kv.key("a", "b", "x"), kv.key("a", "b", "y")]
    with pytest.raises(TypeError):
        kv.key(7)  # type: ignore[arg-type]
    with pytest.raises(UnicodeEncodeError):
        kv.key("\ud800")


def test_the_gil_is_free_while_a_batch_runs(store: kv.Store) -> None:
    keys, values = kv.keys([str(n) for n in range(8)]), [bytes(1 << 20)] * 8
    counted, stop, ran = [0], threading.Event(), threading.Event()

    def others() -> None:
        while not stop.is_set():
            counted[0] += 1
            ran.set()
            time.sleep(0)

    thread = threading.Thread(target=others)
    # The other thread gets the GIL only when this one gives it away.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        thread.start()
        ran.wait()
        before, calls = counted[0], 0
        while counted[0] == before and calls < 200:
            store.put_many(keys, values, replace=True)
            calls += 1
        after = counted[0]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert after > before


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_get_writes_no_byte_twice(store: kv.Store, pieces: int) -> None:
    """Bytes that the library holds in memory of its own are none: values go from the file to where they belong."""
    keys = kv.keys([str(n) for n in range(4)])
    memory = [[bytearray((1 << 22) // pieces) for _ in range(pieces)] for _ in keys]
    store.put_many(keys, memory, sealed=True)
    peak_of_this_process()
    before = peak_of_this_process()
    for _ in range(4):
        assert store.get_many_into(keys, memory, sealed=True) == [1 << 22] * 4
    assert peak_of_this_process() - before < 1 << 20


def peak_of_this_process() -> int:
    """The most memory that it has had, in bytes, since this was last asked."""
    text = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return int(text.split("VmHWM:")[1].split()[0]) << 10


def test_a_child_cannot_use_what_its_parent_opened(uri: str) -> None:
    program = f"""
import os, kv_store_wasm as kv
store = kv.open({uri!r})
queue = store.queue(4)
key = kv.key("k")
assert store.put_many([key], [b"value"]) == [0]
queue.submit_get([key], [bytearray(5)])
child = os.fork()
if child == 0:
    U = kv.Status.UNSUPPORTED
    assert store.put_many([key], [b"x"]) == [U] and store.exists_many([key]) == [U], store.exists_many([key])
    assert "fork" in kv.last_error()
    assert queue.submit_exists([key]) == U
    assert queue.drain() == []
    try:
        store.save("m")
        os._exit(3)
    except kv.Error as error:
        assert "fork" in str(error)
    queue.close()
    store.close()
    with kv.open({uri!r}) as own:
        memory = bytearray(5)
        assert own.get_many_into([key], [memory]) == [5] and memory == b"value"
    os._exit(42)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 42, status
assert store.exists_many([key]) == [5]
"""
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


def test_the_commands(uri: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "kv_store_wasm", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    told = run("doctor", "--probe", uri)
    assert told.returncode == 0 and "component" in told.stdout, told.stderr
    helper = next(line.split(None, 1)[1] for line in told.stdout.splitlines() if line.startswith("compiler"))
    assert pathlib.Path(helper).parent == pathlib.Path(kv.__file__).resolve().parent
    assert run("doctor", "no-such-scheme://x").returncode == 1
    assert run("doctor", "--json", uri).stdout.startswith("{")
    measured = run("bench", uri, "--size", "4096", "--items", "4", "--rounds", "2")
    assert measured.returncode == 0 and "x a copy in memory" in measured.stdout, measured.stderr
    assert run("bench", "no-such-scheme://x").returncode == 2


def test_a_value_of_another_descriptor_is_missed_and_not_put_over(uri: str) -> None:
    said: dict[str, str | int | None] = {"model": "sha256:1f0c", "dtype": "bfloat16", "rank": 0, "rope": None}
    names, memory = [kv.key("a hash of tokens")], [bytearray(5)]
    with kv.open(uri, descriptor=said) as one, kv.open(uri, descriptor={**said, "rank": 1}) as two, kv.open(uri) as unset:
        assert one.descriptor is not None and one.descriptor != two.descriptor and unset.descriptor is None
        assert len(one.descriptor) == 32
        assert one.put_many(names, [b"value"]) == [Status.OK]
        assert two.get_many_into(names, memory) == [Status.MISSING] and two.exists_many(names) == [Status.MISSING]
        for replace in (False, True):
            assert two.put_many(names, [b"other"], replace=replace) == [Status.MISMATCH]
        assert "descriptor" in kv.last_error()
        assert one.get_many_into(names, memory) == [5] and unset.get_many_into(names, memory) == [5]
        assert one.put_many(names, [b"value"]) == [Status.EXISTED]
        with one.save("conversation", b"manifest") as save:
            pass
        assert save.status == Status.OK and two.get_manifest("conversation") is None
        with two.save("conversation", b"other") as save:
            pass
        assert save.status == Status.MISMATCH and one.get_manifest("conversation") == b"manifest"
    assert 'reason="descriptor"' in kv.metrics()


def test_a_descriptor_has_known_names_and_texts(uri: str) -> None:
    with pytest.raises(ValueError, match="there is no colour; there are model, architecture"):
        kv.open(uri, descriptor={"colour": "red"})
    for wrong in ("", "two\nlines", "x" * 513):
        with pytest.raises(kv.Error, match="model"):
            kv.open(uri, descriptor={"model": wrong})
