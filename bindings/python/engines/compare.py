"""The same histories for every store of KV state: a kill, a flipped bit, a truncated value, a power loss, a full disk, a frozen server, two
writers. `cargo xtask compare` runs it, and writes what it prints into docs/proof-compare.md.

One JSON object a row: store, history, how many values were acknowledged, how many gets answered wrong bytes, how many acknowledged values
were not answered, the longest call in seconds, and what the engine saw.
"""

import collections
import datetime
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis as redis_client
from compared_stores import PATIENCE, SIZE, SUBJECTS

QUICK = "--quick" in sys.argv
SEED = 1
VALUES = 16
HERE = pathlib.Path(__file__).parent
STRACE = ["strace", "-f", "-y", "-xx", "-qqq", "-s", "4194304"]


class Process:
    """A process that has a store open."""

    def __init__(self, store: "Store", around: tuple[str, ...] = ()) -> None:
        command = [*around, store.python, str(HERE / "compared_stores.py"), store.name, store.place]
        pipe = subprocess.PIPE
        log = open(store.scratch / "log", "ab")
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, bufsize=0, env={**os.environ, **store.environment})
        self.heard, self.answered = b"", -1
        opened = self.answer(120)
        self.refused = opened.get("open")
        store.version = opened.get("version", store.version)

    def send(self, **asked: Any) -> None:
        assert self.child.stdin
        try:
            self.child.stdin.write(json.dumps(asked).encode() + b"\n")
        except OSError:
            pass

    def answer(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """The answer to what was asked next. One that does not come is told as such, and dropped if it comes later."""
        self.answered += 1
        end = time.monotonic() + seconds
        while True:
            answer = self.line(end, seconds)
            if answer.get("number", self.answered) == self.answered:
                return answer

    def line(self, end: float, seconds: float) -> dict[str, Any]:
        assert self.child.stdout
        while b"\n" not in self.heard:
            if not select.select([self.child.stdout], [], [], max(0, end - time.monotonic()))[0]:
                return {"ok": False, "got": "refused", "why": f"no answer in {seconds:.0f} s", "seconds": seconds}
            more = self.child.stdout.read(1 << 16)
            if not more:
                return {"ok": False, "got": "refused", "open": "its process died", "why": "its process died"}
            self.heard += more
        line, self.heard = self.heard.split(b"\n", 1)
        return json.loads(line)

    def ask(self, **asked: Any) -> dict[str, Any]:
        if self.refused:
            return {"ok": False, "got": "refused", "why": self.refused}
        self.send(**asked)
        return self.answer()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """As an engine ends: it closes what it has open."""
        assert self.child.stdin
        try:
            self.child.stdin.close()
            self.child.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()


class Store:
    """A store in a folder, or on a server, of its own."""

    def __init__(self, name: str, scratch: pathlib.Path, place: pathlib.Path | None = None, *options: str) -> None:
        self.name, self.scratch, self.version = name, scratch, ""
        self.folder = place or scratch / "store"
        self.folder.mkdir(exist_ok=True)
        self.python, self.environment = sys.executable, dict[str, str]()
        if "llama.cpp" in name:
            self.python = os.environ["KV_COMPARE_LLAMA_PYTHON"]
            self.environment["PYTHONPATH"] = os.environ["KV_COMPARE_LLAMA_PACKAGE"]
            # It aborts on some torn files, and would run a debugger for seconds each time.
            self.environment["GGML_NO_BACKTRACE"] = "1"
        self.server = Server(scratch, *options) if "redis" in name else None
        self.place = str(self.server.port) if self.server else str(self.folder)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        if self.server:
            self.server.stop()


class Server:
    """A redis-server that keeps nothing on disk."""

    def __init__(self, scratch: pathlib.Path, *options: str) -> None:
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(scratch)]
        log = open(scratch / "redis.log", "wb")
        self.child = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        self.clients = [redis_client.Redis(port=self.port, db=db) for db in (0, 1)]
        end = time.monotonic() + 20
        while True:
            try:
                self.clients[0].ping()
                return
            except redis_client.ConnectionError:
                assert time.monotonic() < end, "redis-server does not start"
                time.sleep(0.02)

    def values(self) -> Iterator[tuple[redis_client.Redis, bytes]]:
        """Where the values lie."""
        for client in self.clients:
            for key in client.scan_iter():
                if client.type(key) == b"string" and client.strlen(key) >= SIZE // 2:
                    yield client, key

    def stop(self) -> None:
        self.child.send_signal(signal.SIGCONT)
        self.child.kill()
        self.child.wait()


class Row:
    """What came of a history."""

    def __init__(self, store: str, history: str) -> None:
        self.store, self.history = store, history
        self.acknowledged = self.asked = self.right = self.wrong = self.lost = 0
        self.longest, self.version = 0.0, ""
        self.saw: collections.Counter[str] = collections.Counter()

    def put(self, answer: dict[str, Any]) -> bool:
        self.longest = max(self.longest, answer.get("seconds", 0.0))
        if answer["ok"]:
            self.acknowledged += 1
        else:
            self.saw["put: " + answer.get("why", "not stored")] += 1
        return bool(answer["ok"])

    def got(self, answer: dict[str, Any], acknowledged: bool = True) -> None:
        self.asked += 1
        self.longest = max(self.longest, answer.get("seconds", 0.0))
        self.right += answer["got"] == "right"
        self.wrong += answer["got"] == "wrong"
        self.lost += acknowledged and answer["got"] in ("miss", "refused")
        if answer["got"] == "refused":
            self.saw["get: " + answer.get("why", "failed")] += 1

    def say(self) -> None:
        figures = {key: value for key, value in vars(self).items() if key != "saw"}
        # Sums and offsets differ from call to call.
        alike: collections.Counter[str] = collections.Counter()
        for what, times in self.saw.items():
            alike[re.sub(r"\d{4,}", "N", what)] += times
        saw = [what for what, _ in alike.most_common(2)]
        print(json.dumps({**figures, "saw": saw, "date": datetime.date.today().isoformat()}), flush=True)


def filled(store: Store, row: Row, values: int = VALUES) -> list[int]:
    with Process(store) as process:
        return [number for number in range(values) if row.put(process.ask(do="put", number=number))]


def read(store: Store, row: Row, acknowledged: list[int], others: list[int] | None = None) -> None:
    with Process(store) as process:
        for number in acknowledged + (others or []):
            row.got(process.ask(do="get", number=number), number in acknowledged)
            if process.child.poll() is not None:
                row.saw["get: its process died"] += 1
                return


def kill(store: Store, row: Row, chance: random.Random) -> None:
    """SIGKILL while it stores. A value that was acknowledged lies in the page cache, which outlives the process."""
    number = 0
    for _ in range(3 if QUICK else 20):
        process, acknowledged = Process(store), []
        end = time.monotonic() + chance.uniform(0.05, 1.0)
        first = number
        while time.monotonic() < end:
            if row.put(process.ask(do="put", number=number)):
                acknowledged.append(number)
            number += 1
        process.send(do="put", number=number)
        time.sleep(chance.uniform(0, 0.002))
        process.kill()
        number += 1
        read(store, row, acknowledged, [one for one in range(first, number) if one not in acknowledged])


def damaged(harm_file: Callable[[pathlib.Path], None], harm_value: Callable[[Any, bytes], None]) -> Any:
    def history(store: Store, row: Row, _: random.Random) -> None:
        acknowledged = filled(store, row)
        if store.server:
            for client, key in list(store.server.values()):
                harm_value(client, key)
        else:
            # What is long enough to hold a value.
            for path in sorted(store.folder.rglob("*")):
                if path.is_file() and path.stat().st_size >= SIZE // 2:
                    harm_file(path)
        read(store, row, acknowledged)
        # Damage loses what it meets: whether it is answered is what counts.
        row.lost = 0

    return history


def flip_in_file(path: pathlib.Path) -> None:
    """A bit in each stretch as long as a value."""
    length = path.stat().st_size
    chance = random.Random(SEED)
    with open(path, "r+b") as file:
        for start in range(0, length, SIZE):
            at = start + chance.randrange(min(SIZE, length - start))
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def flip_in_value(client: Any, key: bytes) -> None:
    bit = random.Random(SEED).randrange(8 * client.strlen(key))
    client.setbit(key, bit, 1 - client.getbit(key, bit))


def cut_file(path: pathlib.Path) -> None:
    """To half of what is written: a file may have room set aside behind that."""
    with open(path, "r+b") as file:
        end = 0
        while end < path.stat().st_size:
            try:
                end = os.lseek(file.fileno(), os.lseek(file.fileno(), end, os.SEEK_DATA), os.SEEK_HOLE)
            except OSError:
                break
        file.truncate(end // 2)


def cut_value(client: Any, key: bytes) -> None:
    client.set(key, client.getrange(key, 0, client.strlen(key) // 2 - 1))


def power_loss(store: Store, row: Row, _: random.Random) -> None:
    """States that the disk may be in after a power loss, by the model of `cargo xtask torture`: what was not synced is there, torn or not."""
    torture = os.environ["KV_COMPARE_TORTURE"]
    if "segments" in store.name:
        # A state of the disk has whole files, and a segment has 256 MiB.
        config = store.scratch / "config.toml"
        config.write_text("[backend.segments]\noptions = { segment_bytes = '2 MiB' }\n")
        store.environment["KV_STORE_WASM_CONFIG"] = str(config)
    log, images = store.scratch / "trace", store.scratch / "images"
    calls = subprocess.run([torture, "images", "--calls"], capture_output=True, text=True, check=True).stdout.strip()
    with Process(store, (*STRACE, "-e", calls, "-o", str(log))) as process:
        for number in range(6):
            row.put(process.ask(do="put", number=number))
    # What counts is what each state should have.
    row.acknowledged = 0
    many = "16" if QUICK else "120"
    command = [torture, "images", "--trace", log, "--folder", store.folder, "--into", images, "--states", many]
    made = subprocess.run([*map(str, command), "--seed", str(SEED)], capture_output=True, text=True)
    if made.returncode:
        row.saw["not run: " + made.stderr.strip().splitlines()[-1][:160]] += 1
        return
    reader = Process(store)
    for line in made.stdout.splitlines():
        image = json.loads(line)
        reader.send(do="reopen", place=image["folder"])
        opened = reader.answer()
        acknowledged = [int(said.split()[1]) for said in image["said"]]
        row.acknowledged += len(acknowledged)
        if opened.get("open"):
            row.saw["open: " + opened["open"]] += 1
            row.lost += len(acknowledged)
        else:
            for number in range(6):
                answer = reader.ask(do="get", number=number)
                row.got(answer, number in acknowledged)
                if answer.get("why") == "its process died":
                    # It is started again, for what else is there.
                    reader.kill()
                    reader = Process(store)
                    reader.send(do="reopen", place=image["folder"])
                    reader.answer()
        shutil.rmtree(image["folder"])
    reader.end()


@contextmanager
def small_disk(scratch: pathlib.Path) -> Iterator[pathlib.Path]:
    place = scratch / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={20 * SIZE}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def full_disk(store: Store, row: Row, _: random.Random) -> None:
    """Twice as much as there is room for, and then a look at what was acknowledged."""
    read(store, row, filled(store, row, 40))


def frozen_server(store: Store, row: Row, _: random.Random) -> None:
    """SIGSTOP of the server, a put and a get, SIGCONT, and a look at what was acknowledged."""
    assert store.server
    acknowledged = filled(store, row)
    process = Process(store)
    process.ask(do="get", number=0)
    store.server.child.send_signal(signal.SIGSTOP)
    for asked in ({"do": "get", "number": 0}, {"do": "put", "number": VALUES}):
        answer = process.ask(**asked)
        row.longest = max(row.longest, answer.get("seconds", 0.0))
        row.saw[f"{asked['do']}: {answer.get('why') or answer.get('got') or answer['ok']}"] += 1
    process.kill()
    store.server.child.send_signal(signal.SIGCONT)
    read(store, row, acknowledged)


def two_writers(store: Store, row: Row, _: random.Random) -> None:
    """Two processes store other bytes under the same keys, and a third one reads meanwhile."""
    writers = [Process(store), Process(store)]
    reader = Process(store)
    end = time.monotonic() + (2 if QUICK else 10)
    refused = [process.refused for process in (*writers, reader) if process.refused]
    if refused:
        row.saw["open: " + refused[0]] += 1
    acknowledged: set[int] = set()
    first = 0
    while time.monotonic() < end and not refused:
        numbers = range(first, first + 4)
        for who, writer in enumerate(writers):
            for number in numbers:
                writer.send(do="put", number=number, writer=who)
        for number in numbers:
            row.got(reader.ask(do="get", number=number), False)
        for writer in writers:
            acknowledged.update(number for number in numbers if row.put(writer.answer()))
        first += 4
    for process in (*writers, reader):
        process.end()
    read(store, row, sorted(acknowledged))


HISTORIES: dict[str, Any] = {
    "kill": kill,
    "flipped bit": damaged(flip_in_file, flip_in_value),
    "truncated value": damaged(cut_file, cut_value),
    "power loss": power_loss,
    "full disk": full_disk,
    "frozen server": frozen_server,
    "two writers": two_writers,
}


def fits(history: str, store: str) -> bool:
    on_a_server = "redis" in store
    return {"frozen server": on_a_server, "power loss": not on_a_server}.get(history, True)


def run(history: str, name: str) -> None:
    row = Row(name, history)
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        options = ("--maxmemory", str(16 * SIZE), "--maxmemory-policy", "noeviction") if history == "full disk" else ()
        chance = random.Random(f"{SEED} {history} {name}")
        if history == "full disk" and "redis" not in name:
            if os.geteuid():
                row.saw["not run: only root can mount a small disk"] += 1
                row.say()
                return
            with small_disk(scratch) as disk, Store(name, scratch, disk / "store") as store:
                HISTORIES[history](store, row, chance)
                row.version = store.version
        else:
            with Store(name, scratch, None, *options) as store:
                HISTORIES[history](store, row, chance)
                row.version = store.version
    row.say()


def main() -> None:
    only = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    stores = [name for name in SUBJECTS if "llama.cpp" not in name or "KV_COMPARE_LLAMA_PYTHON" in os.environ]
    for history in HISTORIES:
        for name in stores:
            if fits(history, name) and all(part in f"{history} {name}" for part in only):
                run(history, name)


if __name__ == "__main__":
    main()
