"""The library's log in `logging`: which lines arrive and how, in children that were forked off, at the end of a process, and when handlers block.

Each test is a process of its own, because the log is the process's.
"""

import os
import re
import subprocess
import sys
import time

import pytest

KEPT = """
import logging, os, sys, threading, time
import kv_store_wasm as kv

class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
    def emit(self, record):
        self.lines.append((record.name, record.levelname, record.getMessage()))

def wait(for_what):
    end = time.monotonic() + 30
    while not for_what():
        assert time.monotonic() < end, kept.lines
        time.sleep(0.01)

def said(level, text):
    return any(line[1] == level and text in line[2] for line in kept.lines)

def fail(number=0):
    try:
        kv.open(f"local-fs:///nowhere/at/all/{number}")
    except kv.Error:
        pass

kept = Kept()
log = logging.getLogger("kv_store_wasm")
log.setLevel(logging.INFO)
"""


def ran(script: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """What the script says. It ends by itself, in a minute."""
    known = {name: value for name, value in os.environ.items() if name != "KV_STORE_WASM_LOG"}
    command = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", KEPT + script]
    done = subprocess.run(command, env={**known, **environment}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def test_lines_arrive_with_level_and_text_and_not_on_standard_error() -> None:
    done = ran(
        """
log.addHandler(kept)
with kv.open("memory://log"):
    wait(lambda: said("INFO", "opened memory://log"))
fail()
wait(lambda: said("ERROR", "local-fs:///nowhere/at/all/0"))
assert {line[0] for line in kept.lines} == {"kv_store_wasm"}
"""
    )
    assert done.stderr == ""


def test_lines_of_rows_have_a_logger_of_their_own() -> None:
    done = ran(
        """
from kv_store_wasm import rows
log.addHandler(kept)
try:
    rows.open(ram_bytes=1 << 20, directory="/proc/nowhere", disk_bytes=1 << 20)
except kv.Error:
    pass
wait(lambda: any(line[:2] == ("kv_store_wasm.rows", "WARNING") and "/proc/nowhere" in line[2] for line in kept.lines))
"""
    )
    assert done.stderr == ""


def test_debug_lines_are_said_where_a_logger_wants_them() -> None:
    ran(
        """
log.addHandler(kept)
from kv_store_wasm import _lib
with kv.open("memory://log"):
    assert not _log.wants_debug()
log.setLevel(logging.DEBUG)
assert _log.wants_debug()
""".replace("from kv_store_wasm import _lib", "from kv_store_wasm import _log")
    )


def test_who_configured_no_logging_sees_warnings_on_standard_error_as_before() -> None:
    done = ran("fail()")
    assert re.fullmatch(r"kv-store-wasm: error: .*/nowhere/at/all/0.*\n", done.stderr), done.stderr


@pytest.mark.parametrize("level, lines", [("info", 2), ("error", 1), ("off", 0)])
def test_who_sets_the_variable_has_the_lines_on_standard_error(level: str, lines: int) -> None:
    script = """
log.addHandler(kept)
kv.open("memory://log").close()
fail()
assert kept.lines == [] and threading.active_count() == 1
"""
    done = ran(script, KV_STORE_WASM_LOG=level)
    assert len(re.findall("kv-store-wasm: (?:info: opened memory|error: .*nowhere)", done.stderr)) == lines, done.stderr


def test_a_child_that_was_forked_off_logs_too() -> None:
    done = ran(
        """
log.addHandler(kept)
store = kv.open("memory://log")
wait(lambda: said("INFO", "opened memory://log"))
child = os.fork()
if not child:
    kept.lines.clear()
    # Of its parent's store, before it opens one of its own, and after.
    assert store.exists_many([kv.key("k")]) == [kv.Status.UNSUPPORTED]
    wait(lambda: said("ERROR", "fork"))
    kv.open("memory://child")
    wait(lambda: said("INFO", "opened memory://child"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
fail()
wait(lambda: said("ERROR", "/nowhere"))
"""
    )
    assert done.stderr == ""


def test_a_fork_in_the_middle_of_many_lines_ends_well() -> None:
    ran(
        """
log.addHandler(kept)
kv.open("memory://log")
over = threading.Event()
def many():
    number = 0
    while not over.is_set():
        number += 1
        kv.open(f"memory://many{number}").close()
threads = [threading.Thread(target=many) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(20):
    child = os.fork()
    if not child:
        kept.lines.clear()
        kv.open(f"memory://child{number}")
        wait(lambda: said("INFO", f"opened memory://child{number}"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
over.set()
for thread in threads:
    thread.join()
"""
    )


def test_the_last_lines_of_a_process_arrive() -> None:
    done = ran(
        """
class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(0.02)
        print(record.getMessage(), flush=True)
log.addHandler(Slow())
log.setLevel(logging.ERROR)
for number in range(40):
    fail(number)
"""
    )
    assert len(re.findall("/nowhere/at/all/[0-9]+", done.stdout)) >= 40 and done.stderr == ""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_last_lines_of_a_child_of_multiprocessing_arrive(method: str, tmp_path: object) -> None:
    script = tmp_path / "child.py"  # type: ignore[operator]
    script.write_text(
        """
import logging, multiprocessing, sys
import kv_store_wasm as kv
def child():
    logging.basicConfig(filename=sys.argv[2], level=logging.ERROR)
    try:
        kv.open("local-fs:///nowhere/at/all")
    except kv.Error:
        pass
if __name__ == "__main__":
    kv.open("memory://log").close()
    one = multiprocessing.get_context(sys.argv[1]).Process(target=child)
    one.start()
    one.join()
"""
    )
    log = tmp_path / "log"  # type: ignore[operator]
    command = [sys.executable, "-P", str(script), method, str(log)]
    known = {name: value for name, value in os.environ.items() if name != "KV_STORE_WASM_LOG"}
    for _ in range(5):
        subprocess.run(command, env=known, check=True, timeout=60)
    assert log.read_text().count("ERROR:kv_store_wasm:") == 5


def test_a_handler_that_never_returns_does_not_hold_up_the_end() -> None:
    begun = time.monotonic()
    done = ran(
        """
class NoLock:
    def acquire(self):
        pass
    release = __enter__ = acquire
    def __exit__(self, *_):
        pass
class Stuck(logging.Handler):
    def createLock(self):
        # At its end `logging` itself waits for the locks of handlers.
        self.lock = NoLock()
    def emit(self, record):
        print("stuck", flush=True)
        threading.Event().wait()
log.addHandler(Stuck())
for number in range(10):
    fail(number)
"""
    )
    assert time.monotonic() - begun < 20
    # One is in the handler; the rest was not lost.
    assert done.stdout == "stuck\n"
    assert len(re.findall("kv-store-wasm: error: .*/nowhere/at/all/", done.stderr)) == 9, done.stderr


def test_what_a_full_queue_has_no_room_for_is_counted_and_said() -> None:
    ran(
        """
free = threading.Event()
class Waits(Kept):
    def emit(self, record):
        free.wait()
        super().emit(record)
kept = Waits()
log.addHandler(kept)
for number in range(1100):
    kv.open(f"memory://log{number}").close()
free.set()
wait(lambda: said("WARNING", "lines were dropped"))
fail()
wait(lambda: said("ERROR", "/nowhere"))
[dropped] = [int(line[2].split()[0]) for line in kept.lines if "lines were dropped" in line[2]]
opened = sum("opened memory://log" in line[2] for line in kept.lines)
assert opened <= 1030 and opened + dropped >= 1100, (opened, dropped)
"""
    )


def test_a_filter_that_raises_loses_no_line() -> None:
    done = ran(
        """
def broken(record):
    raise ValueError("of a filter")
log.addHandler(kept)
log.addFilter(broken)
fail(1)
fail(2)
"""
    )
    assert "/nowhere/at/all/1" in done.stderr and "/nowhere/at/all/2" in done.stderr, done.stderr


def test_a_subinterpreter_does_not_disturb_the_log() -> None:
    """One may come before the main interpreter or after it, and go."""
    done = ran(
        """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
log.addHandler(kept)
for number in range(3):
    other = interpreters.create()
    try:
        interpreters.run_string(other, f"import kv_store_wasm as kv; kv.open('memory://other{number}').close()")
    except Exception:
        pass
    kv.open(f"memory://between{number}").close()
    wait(lambda: said("INFO", f"opened memory://between{number}"))
    interpreters.destroy(other)
    fail(number)
    wait(lambda: said("ERROR", f"/nowhere/at/all/{number}"))
"""
    )
    assert done.stderr == ""
