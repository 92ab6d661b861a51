"""Four threads, random sizes and keys, absent keys, a store that is opened again, a server that is killed in the middle: no wrong
byte, no exception, no call past its deadline."""

import os
import random
import threading
import time

import kv_store_wasm as kv
from conftest import Redis
from kv_store_wasm import Status

THREADS = 4
ROUNDS = 120
NUMBERS = 200
# Of a call. What is asserted leaves room for a machine that stands still for seconds.
TIMEOUT = 5.0
PATIENCE = 60.0


def value(number: int) -> bytes:
    return random.Random(number).randbytes(number * 7919 % 60_000)


def test_stress(redis: Redis) -> None:
    values = [value(number) for number in range(NUMBERS)]
    names = kv.keys([str(number) for number in range(NUMBERS)], "stress")
    failures: list[str] = []
    outcomes: dict[int, int] = {}
    rounds = [0]
    lock = threading.Lock()

    def work(thread: int) -> None:
        chosen = random.Random(thread)
        store = kv.open(redis.uri, sealed=True, timeout=TIMEOUT)
        for number in range(ROUNDS):
            some = chosen.sample(range(NUMBERS), chosen.randint(1, 24))
            keys = [names[n] for n in some]
            start = time.monotonic()
            kind = chosen.random()
            if kind < 0.4:
                answers = store.put_many(keys, [values[n] for n in some])
            elif kind < 0.8:
                memory = [bytearray(len(values[n])) for n in some]
                answers = store.get_many_into(keys, memory)
                for n, data, length in zip(some, memory, answers):
                    if length >= 0 and data != values[n]:
                        failures.append(f"wrong bytes under {n}")
            elif kind < 0.9:
                answers = store.exists_many(keys)
                if any(length >= 0 and length not in (len(values[n]), kv.LEN_UNKNOWN) for n, length in zip(some, answers)):
                    failures.append("a wrong length")
            else:
                answers = store.delete_many(keys)
            if time.monotonic() - start > PATIENCE:
                failures.append(f"a call took {time.monotonic() - start:.1f} s")
            with lock:
                rounds[0] += 1
                for answer in answers:
                    kept = min(answer, 0)
                    outcomes[kept] = outcomes.get(kept, 0) + 1
            if number % 50 == 49 and redis.process is not None:
                try:
                    again = kv.open(redis.uri, sealed=True, timeout=TIMEOUT)
                except kv.Error:
                    # The server was killed meanwhile.
                    continue
                store.close()
                store = again
        store.close()

    def checked(thread: int) -> None:
        try:
            work(thread)
        except BaseException as error:
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=checked, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    while rounds[0] < THREADS * ROUNDS // 3 and any(thread.is_alive() for thread in threads):
        time.sleep(0.01)
    redis.kill()
    while rounds[0] < THREADS * ROUNDS // 2 and any(thread.is_alive() for thread in threads):
        time.sleep(0.01)
    redis.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    # All of it happened: calls that went well, keys that were absent, a server that was gone.
    assert {0, Status.MISSING} <= set(outcomes) and set(outcomes) - {0, Status.MISSING}, outcomes


def held() -> tuple[int, int]:
    """Descriptors of this process, and bytes of its memory that no file has."""
    with open("/proc/self/smaps_rollup") as rollup:
        [anonymous] = [int(line.split()[1]) << 10 for line in rollup if line.startswith("Anonymous:")]
    return len(os.listdir("/proc/self/fd")), anonymous


def test_restarts_of_the_server_leave_nothing_behind(redis: Redis) -> None:
    data = random.Random(1).randbytes(1 << 16)
    keys = kv.keys([str(number) for number in range(8)], "restarts")
    memory = [bytearray(len(data)) for _ in keys]
    after = []
    with kv.open(redis.uri, sealed=True, timeout=TIMEOUT) as store:

        def until(wanted: bool) -> None:
            deadline = time.monotonic() + PATIENCE
            while (store.put_many(keys[:1], [data])[0] >= 0) != wanted:
                assert time.monotonic() < deadline
                time.sleep(0.002)

        for _ in range(16):
            redis.kill()
            until(False)
            redis.start()
            until(True)
            for _ in range(20):
                assert min(store.put_many(keys, [data] * len(keys))) >= 0
                assert store.get_many_into(keys, memory) == [len(data)] * len(keys)
            after.append(held())
    # The first ones bring what is kept: connections, buffers, threads.
    (descriptors, anonymous), (later_descriptors, later) = after[5], after[-1]
    assert later_descriptors <= descriptors, after
    assert later <= anonymous + (2 << 20), after
