"""The client as LMCache calls it: submits under a lock, completions over the descriptor, failures as completions."""

import os
import pathlib
import select
import signal

import pytest

import kv_store_wasm as kv
from conftest import Redis
from kv_store_wasm._adapter import load_timeout, namespace
from kv_store_wasm.lmcache import Client, Completion


def completions(client: Client, count: int = 1) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    while len(found) < count:
        assert select.select([client.event_fd()], [], [], 60)[0], "the descriptor is not readable"
        found.update((done[0], done) for done in client.drain_completions())
    return found


def done(client: Client, number: int) -> tuple[bool, str, list[bool] | None]:
    return completions(client)[number][1:]


def views(values: list[bytes] | list[bytearray]) -> list[memoryview]:
    return [memoryview(value) for value in values]


def test_chunks_are_stored_looked_up_loaded_and_deleted(uri: str) -> None:
    client = Client(uri)
    names = [f"model@00000000@0@{n:064x}" for n in range(8)]
    values = [os.urandom(5000) for _ in names]
    assert done(client, client.submit_batch_set(names, views(values))) == (True, "", None)
    assert done(client, client.submit_batch_exists([*names, "another"])) == (True, "", [True] * 8 + [False])
    memory = [bytearray(5000) for _ in names]
    assert done(client, client.submit_batch_get(names, views(memory))) == (True, "", [True] * 8)
    assert memory == values
    # LMCache's eviction frees nothing without it.
    assert done(client, client.submit_batch_delete(names[:3])) == (True, "", [True] * 3)
    assert done(client, client.submit_batch_exists(names)) == (True, "", [False] * 3 + [True] * 5)
    assert done(client, client.submit_batch_get(names[2:4], views(memory[2:4]))) == (True, "", [False, True])
    counts = client.counters.snapshot()
    assert (counts["stored"], counts["hits"], counts["misses"], counts["deleted"]) == (8, 9, 1, 3)
    client.close()


def test_golden_key_of_a_chunk_in_process() -> None:
    """What `lmcache_remote` stores a chunk under. Computed with hashlib: parts behind their lengths, the last of them LMCache's key."""
    prefix = namespace("lmcache-remote", format="1", salt="s")
    [made] = kv.keys(["model@1@0@2a@bfloat16"], *prefix)
    assert made.hex() == "431441212224a8f903f8278a308da6cdec0f02e6b147784ef419ae2eb18920aa"


def test_a_value_of_another_length_is_a_miss(uri: str) -> None:
    client = Client(uri)
    done(client, client.submit_batch_set(["name"], views([bytes(64)])))
    for length in (63, 65):
        assert done(client, client.submit_batch_get(["name"], views([bytearray(length)]))) == (True, "", [False])
    client.close()


def test_another_salt_is_another_cache(uri: str) -> None:
    one, other = Client(uri, salt="tenant-1"), Client(uri, salt="tenant-2")
    done(one, one.submit_batch_set(["name"], views([b"secret"])))
    assert done(other, other.submit_batch_exists(["name"])) == (True, "", [False])
    assert done(one, one.submit_batch_exists(["name"])) == (True, "", [True])
    one.close()
    other.close()


def test_another_dtype_is_a_miss_and_stays(uri: str) -> None:
    one, other = (Client(uri, descriptor={"dtype": dtype}) for dtype in ("bfloat16", "float16"))
    assert done(one, one.submit_batch_set(["name"], views([b"KV"])))[0]
    memory = [bytearray(2)]
    assert done(other, other.submit_batch_get(["name"], views(memory))) == (True, "", [False])
    assert done(other, other.submit_batch_exists(["name"])) == (True, "", [False])
    assert done(other, other.submit_batch_set(["name"], views([b"kv"]))) == (False, "MISMATCH", None)
    assert done(one, one.submit_batch_get(["name"], views(memory))) == (True, "", [True]) and memory == [b"KV"]
    one.close()
    other.close()


def test_a_full_queue_is_a_failed_completion(uri: str) -> None:
    client = Client(uri, depth=2)
    numbers = [client.submit_batch_exists(["name"]) for _ in range(6)]
    found = completions(client, 6)
    assert set(found) == set(numbers)
    failed = [number for number in numbers if not found[number][1]]
    assert failed == numbers[2:] and {found[number][2] for number in failed} == {"EXHAUSTED"}
    # What was refused leaves nothing behind.
    assert done(client, client.submit_batch_exists(["name"])) == (True, "", [False])
    client.close()


def test_a_server_that_is_gone_is_misses_and_failed_puts(redis: Redis) -> None:
    client = Client(redis.uri, timeout=5.0)
    assert done(client, client.submit_batch_set(["name"], views([b"value"])))[0]
    redis.kill()
    assert done(client, client.submit_batch_set(["other"], views([b"value"])))[:2] == (False, "UNAVAILABLE")
    assert done(client, client.submit_batch_exists(["name"])) == (True, "", [False])
    assert done(client, client.submit_batch_get(["name"], views([bytearray(5)]))) == (True, "", [False])
    assert done(client, client.submit_batch_delete(["name"])) == (False, "", [False])
    assert client.counters.snapshot()["failures"] >= 2
    client.close()


def test_after_close_nothing_raises(uri: str) -> None:
    client = Client(uri)
    client.submit_batch_exists(["name"])
    client.close()
    assert client.submit_batch_set(["name"], views([b"x"])) > 0 and client.drain_completions() == []
    client.close()


def test_an_open_that_fails_raises(tmp_path: pathlib.Path) -> None:
    with pytest.raises(kv.Error):
        Client(f"no-such-scheme://{tmp_path}")


def test_a_frozen_server_holds_up_no_lookup_and_no_load(redis: Redis) -> None:
    """What a request waits for ends before a batch that was submitted earlier."""
    client = Client(redis.uri, lookup_timeout=0.2, compute_rate=1e6)
    assert done(client, client.submit_batch_set(["name"], views([bytes(1000)])))[0]
    assert done(client, client.submit_batch_get(["name"], views([bytearray(1000)]))) == (True, "", [True])
    assert redis.process is not None
    redis.process.send_signal(signal.SIGSTOP)
    put = client.submit_batch_set(["another"], views([bytes(1000)]))
    lookup = client.submit_batch_exists(["name"])
    load = client.submit_batch_get(["name"], views([bytearray(1000)]))
    ended = completions(client, 3)
    redis.process.send_signal(signal.SIGCONT)
    assert list(ended)[-1] == put and not ended[put][1]
    assert ended[lookup][3] == [False] and ended[load][3] == [False]
    client.close()


def test_a_load_may_take_as_long_as_computing() -> None:
    assert load_timeout(10.0, None, 1 << 30) == 10.0
    assert load_timeout(10.0, 1e6, 2_000_000) == 2.0
    assert load_timeout(10.0, 1e6, 1 << 30) == 10.0
    assert load_timeout(10.0, 1e6, 1) == 0.05
