"""`python -m kv_store_wasm doctor URI` and `python -m kv_store_wasm bench URI`."""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from . import Error, doctor, keys, last_error, open


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kv_store_wasm")
    commands = parser.add_subparsers(dest="command", required=True)
    told = commands.add_parser("doctor", help="what an open of a URI would load, grant and reach, and what is wrong")
    told.add_argument("uri")
    depth = told.add_mutually_exclusive_group()
    depth.add_argument("--probe", action="store_const", dest="depth", const="probe", help="also run the component")
    depth.add_argument("--offline", action="store_const", dest="depth", const="offline", help="connect to nothing")
    told.add_argument("--json", action="store_true", help="one JSON object, everything in it")
    measured = commands.add_parser("bench", help="put, exists, get and delete values of a size, and say how long each took")
    measured.add_argument("uri")
    measured.add_argument("--size", type=int, default=1 << 20, help="bytes of a value")
    measured.add_argument("--items", type=int, default=32, help="values of a batch")
    measured.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args(arguments)
    if given.command == "doctor":
        return tell(given.uri, given.depth or "connect", given.json)
    return bench(given.uri, given.size, given.items, given.rounds)


def tell(uri: str, depth: Any, as_json: bool) -> int:
    text = doctor(uri, depth)
    found = json.loads(text)
    if as_json:
        print(text)
    else:
        reaches = found["reaches"]
        for name, value in (
            ("store", found["uri"] or uri),
            ("component", found["component"]),
            ("directory", reaches["directory"]),
            ("servers", ", ".join(reaches["servers"])),
            ("config", found["config"]),
            ("compiler", found["compile_helper"]),
            ("label", found["label"]),
        ):
            if value:
                print(f"{name:10}{value}")
        for server in found["servers"]:
            print(f"{'reached':10}{server['server']}: {server['reached'] or server['why']}")
        for problem in found["problems"]:
            print(f"{'problem' if problem['fatal'] else 'warning':10}{problem['what']}; {problem['remedy']}")
        for what in found["not_tried"]:
            print(f"{'not tried':10}{what}")
    return 1 if any(problem["fatal"] for problem in found["problems"]) else 0


def bench(uri: str, size: int, items: int, rounds: int) -> int:
    if min(size, items, rounds) < 1:
        print("error: --size, --items and --rounds are 1 or more", file=sys.stderr)
        return 2
    try:
        store = open(uri, sealed=True)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    block = memoryview(bytearray(os.urandom(min(size, 1 << 20)) * (size // min(size, 1 << 20) + 1)))
    values = [bytearray(block[n % 97 : n % 97 + size]) for n in range(items)]
    memory = [bytearray(size) for _ in range(items)]
    taken: dict[str, list[float]] = {name: [] for name in ("copy", "put", "exists", "get", "delete")}

    def timed(name: str, run: Callable[[], list[int]]) -> None:
        start = time.perf_counter()
        outcomes = run()
        taken[name].append(time.perf_counter() - start)
        failed = [outcome for outcome in outcomes if outcome < 0]
        if failed:
            raise Failed(f"{name}: {len(failed)} of {items} values failed with {failed[0]}: {last_error()}")

    def copy() -> list[int]:
        for to, value in zip(memory, values):
            to[:] = value
        return []

    with store:
        try:
            for number in range(rounds):
                named = keys([f"{n}" for n in range(items)], "kv_store_wasm bench", str(os.getpid()), str(number))
                timed("copy", copy)
                for blank in memory:
                    blank[:] = bytes(size)
                timed("put", lambda: store.put_many(named, values))
                timed("exists", lambda: store.exists_many(named))
                timed("get", lambda: store.get_many_into(named, memory))
                if memory != values:
                    raise Failed("get: other bytes than were put")
                if store.info.deletes:
                    timed("delete", lambda: store.delete_many(named))
        except Failed as failed:
            print(f"error: {failed}", file=sys.stderr)
            return 1
    print(f"{uri}: {items} sealed values of {size} bytes a batch, median of {rounds} rounds")
    base = statistics.median(taken["copy"])
    for name, times in taken.items():
        if times:
            middle = statistics.median(times)
            line = f"{name:7}{middle * 1e3:9.3f} ms  {middle / items * 1e6:8.1f} us a value"
            # What moves no values has no bytes a second.
            if name in ("copy", "put", "get"):
                line += f"  {items * size / middle / 1e6:9.0f} MB/s  {middle / base:6.2f} x a copy in memory"
            print(line)
    return 0


class Failed(Exception):
    """A round that cannot be counted."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
