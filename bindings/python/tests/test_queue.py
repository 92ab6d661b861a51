"""Queue and AsyncQueue: bounded, each request completes once, memory is kept until it is drained."""

import asyncio
import gc
import os
import random
import select
import threading
import weakref

import pytest

import kv_store_wasm as kv
from kv_store_wasm import Status
from kv_store_wasm.aio import AsyncQueue


def completions(queue: kv.Queue, count: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    while len(found) < count:
        readable, _, _ = select.select([queue], [], [], 60)
        assert readable, "the descriptor is not readable"
        found.update(queue.drain())
    return found


def test_requests_complete_and_the_descriptor_tells(store: kv.Store) -> None:
    with store.queue(8) as queue:
        keys, values = kv.keys(["a", "b"]), [b"first", b"second"]
        assert select.select([queue], [], [], 0)[0] == []
        put = queue.submit_put(keys, values, sealed=True)
        assert put >= 1 and completions(queue, 1) == {put: [0, 0]}
        memory = [bytearray(5), bytearray(6), bytearray(1)]
        get = queue.submit_get([*keys, kv.key("c")], memory, sealed=True)
        exists = queue.submit_exists(keys, sealed=True)
        assert completions(queue, 2) == {get: [5, 6, Status.MISSING], exists: [5, 6]}
        assert memory[:2] == values
        delete = queue.submit_delete(keys)
        assert completions(queue, 1) == {delete: [0, 0]} and len(queue) == 0


def test_a_full_queue_is_an_outcome(store: kv.Store) -> None:
    with store.queue(2) as queue:
        tickets = [queue.submit_exists([kv.key("k")]) for _ in range(3)]
        assert tickets[2] == Status.EXHAUSTED and len(queue) == 2
        assert set(completions(queue, 2)) == set(tickets[:2])
        assert queue.submit_exists([kv.key("k")]) >= 1
    with pytest.raises(kv.Error, match="depth"):
        store.queue(0)


def test_memory_is_kept_until_the_completion_is_drained(store: kv.Store) -> None:
    class Memory(bytearray):
        """A bytearray that can be referred to weakly."""

    with store.queue(2) as queue:
        memory = Memory(b"value")
        kept = weakref.ref(memory)
        ticket = queue.submit_put([kv.key("k")], [memory])
        with pytest.raises(BufferError):
            memory.extend(b"more")
        del memory
        gc.collect()
        assert kept() is not None
        completions(queue, 1)
        gc.collect()
        assert kept() is None and ticket >= 1


def test_a_queue_that_is_dropped_lets_go_of_its_memory(store: kv.Store) -> None:
    memory = bytearray(1 << 20)
    queue = store.queue(64)
    for name in kv.keys([str(n) for n in range(64)]):
        queue.submit_put([name], [memory])
    del queue
    memory.extend(b"more")


def test_cancelled_requests_complete_as_such(store: kv.Store) -> None:
    with store.queue(64) as queue:
        memory = bytes(1 << 20)
        tickets = [queue.submit_put([name], [memory]) for name in kv.keys([str(n) for n in range(64)])]
        for ticket in tickets:
            queue.cancel(ticket)
        found = completions(queue, 64)
        assert set(found) == set(tickets)
        assert {outcome for outcomes in found.values() for outcome in outcomes} <= {0, Status.CANCELLED}


def test_a_commit_waits_for_submitted_puts(store: kv.Store) -> None:
    with store.queue(32) as queue:
        keys = kv.keys([str(n) for n in range(32)])
        with store.save("all", b"32") as save:
            for name in keys:
                queue.submit_put([name], [os.urandom(1 << 16)], save=save)
        assert save.status == 0
        assert store.exists_many(keys) == [1 << 16] * 32
        completions(queue, 32)


def test_every_request_of_a_busy_queue_completes_once_with_right_bytes(store: kv.Store) -> None:
    threads, requests = 4, 60
    seen: dict[int, int] = {}
    expected: dict[int, list[tuple[int, bytearray]]] = {}
    lock = threading.Lock()
    failures: list[str] = []

    def value(number: int) -> bytes:
        return random.Random(number).randbytes(number * 251 % 9000)

    with store.queue(16) as queue:

        def submit(thread: int) -> None:
            chosen = random.Random(thread)
            for _ in range(requests):
                numbers = chosen.sample(range(40), 4)
                names = kv.keys([str(n) for n in numbers])
                while True:
                    with lock:
                        if chosen.random() < 0.5:
                            ticket = queue.submit_put(names, [value(n) for n in numbers], sealed=True)
                        else:
                            memory = [bytearray(9000) for _ in numbers]
                            ticket = queue.submit_get(names, memory, sealed=True)
                            if ticket > 0:
                                expected[ticket] = list(zip(numbers, memory))
                    if ticket > 0:
                        break
                    select.select([queue], [], [], 0.01)

        def drain() -> None:
            while len(seen) < threads * requests:
                select.select([queue], [], [], 1)
                with lock:
                    for ticket, outcomes in queue.drain(3):
                        seen[ticket] = seen.get(ticket, 0) + 1
                        for (number, memory), length in zip(expected.pop(ticket, []), outcomes):
                            if length >= 0 and memory[:length] != value(number):
                                failures.append(f"wrong bytes of {number}")
                            if length < 0 and length != Status.MISSING:
                                failures.append(f"{number}: {length}")

        working = [threading.Thread(target=submit, args=(n,)) for n in range(threads)]
        working.append(threading.Thread(target=drain))
        for thread in working:
            thread.start()
        for thread in working:
            thread.join(120)
        assert not any(thread.is_alive() for thread in working)
    assert failures == [] and set(seen.values()) == {1} and len(seen) == threads * requests


def test_awaitables(store: kv.Store) -> None:
    async def run() -> None:
        async with AsyncQueue(store, depth=3) as queue:
            keys = kv.keys([str(n) for n in range(20)])
            values = [os.urandom(4096) for _ in keys]
            # More at once than the queue is deep.
            put = [queue.put_many([name], [value]) for name, value in zip(keys, values)]
            assert await asyncio.gather(*put) == [[0]] * 20
            memory = [bytearray(4096) for _ in keys]
            assert await queue.get_many_into(keys, memory) == [4096] * 20
            assert memory == values
            assert await queue.exists_many(keys[:2]) == [4096] * 2
            task = asyncio.ensure_future(queue.get_many_into(keys, memory))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TypeError):
                await queue.exists_many(["text"])  # type: ignore[list-item]
            assert await queue.delete_many(keys) == [0] * 20

    asyncio.run(run())


def test_awaitables_of_a_queue_that_is_closed_end(store: kv.Store) -> None:
    async def run() -> list[int]:
        queue = AsyncQueue(store)
        keys = kv.keys([str(n) for n in range(8)])
        waiting = asyncio.ensure_future(queue.put_many(keys, [bytes(1 << 20)] * 8))
        await asyncio.sleep(0)
        queue.close()
        queue.close()
        return await waiting

    assert set(asyncio.run(run())) == {Status.CANCELLED}
