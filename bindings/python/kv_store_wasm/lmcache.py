"""A client for LMCache's `native_plugin` L2 adapter. `docs/engines/lmcache.md` has the configuration.

LMCache calls it from two threads and under a lock, so nothing here waits: batches go to a queue, whose eventfd LMCache polls. Its
keys name model, rank, group, token hash and salt. What else decides what bytes mean LMCache tells no client: `descriptor` says it.
"""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable

from . import Status, keys
from ._adapter import LOOKUP_TIMEOUT, TIMEOUT, Counters, Said, load_timeout, namespace, open_store
from ._metrics import opentelemetry
from ._versions import check

__all__ = ["Client"]

Completion = tuple[int, bool, str, list[bool] | None]


class Client:
    """`adapter_params` of the configuration are its arguments.

    uri: the store. salt: a further part of each key (a tenant, a dtype, a version of the model). depth: requests that may wait; a
    further one fails at once. timeout: seconds that a batch may take. lookup_timeout: seconds that a lookup may take, from its submit
    on. descriptor: what the values are, by the names of `kv_store_wasm.open`: dtype, layout and the like. compute_rate: bytes of KV a second that the engine computes; a load ends when computing its bytes would have taken as long.
    """

    def __init__(
        self,
        uri: str,
        salt: str = "",
        depth: int = 1024,
        timeout: float = TIMEOUT,
        lookup_timeout: float = LOOKUP_TIMEOUT,
        compute_rate: float | None = None,
        descriptor: Said | None = None,
    ) -> None:
        # The server has its own metrics there, and shows them all together.
        self.counters = Counters(opentelemetry("lmcache_mp.kv_store_wasm_", "chunks"))
        self._timeout, self._lookup_timeout, self._compute_rate = timeout, min(timeout, lookup_timeout), compute_rate
        self._prefix = namespace("lmcache", salt=salt)
        check("lmcache.Client", "lmcache")
        self._store = open_store(uri, timeout, descriptor, engine="lmcache")
        self._queue = self._store.queue(depth)
        self._fd = self._queue.fileno()
        self._numbers = itertools.count(1)
        # Of each ticket: LMCache's number, and what makes its completion.
        self._pending: dict[int, tuple[int, Callable[[int, list[int]], Completion]]] = {}
        self._refused: deque[Completion] = deque()
        self._closed = False
        # A completion may be drained before its submit has returned: whoever drains waits for the table.
        self._lock = threading.Lock()

    def event_fd(self) -> int:
        return self._fd

    def submit_batch_set(self, names: list[str], values: list[memoryview]) -> int:
        sizes = [value.nbytes for value in values]

        def put(number: int, outcomes: list[int]) -> Completion:
            self.counters.put(outcomes, sizes)
            worst = min(outcomes, default=0)
            return number, worst >= 0, "" if worst >= 0 else Status(worst).name, None

        return self._submit(lambda: self._queue.submit_put(keys(names, *self._prefix), values), put)

    def submit_batch_get(self, names: list[str], values: list[memoryview]) -> int:
        lengths = [value.nbytes for value in values]

        def got(number: int, outcomes: list[int]) -> Completion:
            # A value of another length than its memory is of another layout.
            found = [outcome == length for outcome, length in zip(outcomes, lengths)]
            self.counters.got(outcomes, found)
            return number, True, "", found

        timeout = load_timeout(self._timeout, self._compute_rate, sum(lengths))
        return self._submit(lambda: self._queue.submit_get(keys(names, *self._prefix), values, timeout=timeout), got)

    def submit_batch_exists(self, names: list[str]) -> int:
        timeout = self._lookup_timeout
        return self._submit(lambda: self._queue.submit_exists(keys(names, *self._prefix), timeout=timeout), self._exists)

    def submit_batch_delete(self, names: list[str]) -> int:
        return self._submit(lambda: self._queue.submit_delete(keys(names, *self._prefix)), self._deleted)

    def drain_completions(self) -> list[Completion]:
        completions: list[Completion] = []
        with self._lock:
            if self._closed:
                return completions
            # The queue's own drain clears the descriptor, so it comes before the look at what was refused.
            for ticket, outcomes in self._queue.drain(256):
                number, make = self._pending.pop(ticket)
                completions.append(make(number, outcomes))
            while self._refused:
                completions.append(self._refused.popleft())
        return completions

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._queue.close()
        self._store.close()

    def _submit(self, submit: Callable[[], int], make: Callable[[int, list[int]], Completion]) -> int:
        number = next(self._numbers)
        with self._lock:
            try:
                ticket = Status.CANCELLED if self._closed else submit()
            except (TypeError, ValueError, BufferError) as error:
                return self._refuse(number, str(error))
            if ticket < 0:
                return self._refuse(number, Status(ticket).name)
            self._pending[ticket] = (number, make)
        return number

    def _refuse(self, number: int, why: str) -> int:
        self.counters.add("refused", 1)
        if not self._closed:
            self._refused.append((number, False, why, None))
            os.eventfd_write(self._fd, 1)
        return number

    def _exists(self, number: int, outcomes: list[int]) -> Completion:
        return number, True, "", [outcome >= 0 for outcome in outcomes]

    def _deleted(self, number: int, outcomes: list[int]) -> Completion:
        found = [outcome >= 0 for outcome in outcomes]
        self.counters.add("deleted", sum(found))
        return number, all(found), "", found
