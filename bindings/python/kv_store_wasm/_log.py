"""The library's log as records of `logging`, from when the first store is opened. `docs/integrate/python.md` is the documentation.

A thread of its own waits for lines without the GIL and hands each to a logger, so no thread of the library ever waits for Python. It ends before
the interpreter does; lines that handlers have not taken by then, and later ones, go to standard error. A child that was forked off gets its own.
"""

import atexit
import logging
import os
import sys
import threading

from ._lib import log_begin, log_end, log_next, log_rest

__all__ = ["start"]

VARIABLE = "KV_STORE_WASM_LOG"
"""Who sets it wants the lines on standard error, where it says which are written."""

LOGGERS = (logging.getLogger("kv_store_wasm"), logging.getLogger("kv_store_wasm.rows"))
"""In the order of the library's numbers."""

PATIENCE = 2.0
"""Seconds that the end of the process waits for handlers."""


class Pump:
    """The thread that hands lines to loggers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._over = False
        # The process whose end ends the thread.
        self._process = 0

    def start(self) -> None:
        if os.environ.get(VARIABLE):
            return
        with self._lock:
            if self._over:
                return
            self._begin()
            if self._thread is not None and self._process != os.getpid():
                self._process = os.getpid()
                atexit.register(self.stop)
                # A child of `multiprocessing` that was forked off ends without the functions of `atexit`.
                processes = sys.modules.get("multiprocessing.process")
                if processes is not None and processes.parent_process() is not None:
                    sys.modules["multiprocessing.util"].Finalize(None, self.stop, exitpriority=-100)

    def _begin(self) -> None:
        # Of several interpreters in a process the first one to open a store has the lines.
        if not log_begin(wants_debug()):
            return
        thread = threading.Thread(target=run, name="kv_store_wasm.log", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is ending, or is one that may have no such threads. Lines stay on standard error.
            log_end()
            log_rest()
            self._over = True
            return
        self._thread = thread

    def forked(self) -> None:
        if self._thread is not None:
            self._lock, self._thread = threading.RLock(), None
            self._begin()

    def stop(self) -> None:
        with self._lock:
            thread, self._thread, self._over = self._thread, None, True
        if thread is not None:
            log_end()
            thread.join(PATIENCE)
            log_rest()


def run() -> None:
    while (line := log_next(wants_debug())) is not None:
        level, number, text = line
        logger = LOGGERS[number]
        if not logger.hasHandlers():
            # Python prints nothing but the text then, and on standard error a line says whose it is.
            text = f"kv-store-wasm: {logging.getLevelName(level).lower()}: {text}"
        try:
            logger.log(level, "%s", text)
        except Exception as error:
            # Of a filter: those of handlers are caught.
            print(f"{text} (logging failed: {error})", file=sys.stderr)


def wants_debug() -> bool:
    return LOGGERS[0].isEnabledFor(logging.DEBUG)


pump = Pump()
start = pump.start
os.register_at_fork(after_in_child=pump.forked)
