"""What the adapters share: a store that never raises after it is open, and what it counts."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from . import Status, Store, open
from ._metrics import COUNTS

__all__ = ["LOOKUP_TIMEOUT", "TIMEOUT", "Counters", "Said", "described", "load_timeout", "namespace", "open_store"]

TIMEOUT = 10.0
"""Seconds that a batch may take, unless the configuration says otherwise."""

LOOKUP_TIMEOUT = 1.0
"""Seconds that a lookup may take, unless the configuration says otherwise: a request waits for it."""

MAX_TEXT = 512
"""Bytes of what is said of one field of a descriptor."""

Said = Mapping[str, object]
"""What a configuration says of values, by the names of a descriptor's fields."""

SHORTEST = 0.05
"""Seconds that any load may take: below that a rate says little."""


class Counters:
    """Counts of what became of items and calls, for people and for metrics. also: is told each count, where an engine has metrics of its own."""

    def __init__(self, also: Callable[[str, int], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._also = also
        self._taken: dict[str, int] = {}
        self._counts: dict[str, int] = dict.fromkeys(COUNTS, 0)

    def add(self, name: str, count: int) -> None:
        if not count:
            return
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count
        if self._also is not None:
            self._also(name, count)

    def put(self, outcomes: Sequence[int], sizes: Iterable[int] = ()) -> None:
        """sizes: of each item its bytes, where they are counted."""
        mismatched = outcomes.count(Status.MISMATCH)
        self.add("stored", outcomes.count(Status.OK))
        self.add("existed", outcomes.count(Status.EXISTED))
        self.add("mismatched", mismatched)
        self.add("failures", sum(outcome < 0 for outcome in outcomes) - mismatched)
        self.add("saved_bytes", sum(size for outcome, size in zip(outcomes, sizes) if outcome == Status.OK))

    def got(self, outcomes: Sequence[int], found: Sequence[bool]) -> None:
        """found: of each item, whether its outcome, a length, is that of what was asked for."""
        hits = sum(found)
        failures = sum(outcome < 0 and outcome not in (Status.MISSING, Status.TOO_LONG) for outcome in outcomes)
        self.add("hits", hits)
        self.add("failures", failures)
        self.add("misses", len(outcomes) - hits - failures)
        self.add("loaded_bytes", sum(outcome for outcome, here in zip(outcomes, found) if here))

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def take(self) -> dict[str, int]:
        """What came since this was called last, without what did not."""
        with self._lock:
            new = {name: count - self._taken.get(name, 0) for name, count in self._counts.items()}
            self._taken = dict(self._counts)
        return {name: count for name, count in new.items() if count}


def open_store(uri: str, timeout: float | None, descriptor: Said | None = None, **known: object) -> Store:
    """Keys of engines are hashes of tokens and not of bytes, so values are sealed. known: what the adapter knows of its values;
    descriptor: what its configuration adds to that, or says in place of it. Raises `Error`: an engine that is configured
    with a URI that cannot be opened ends at its start, and not with a cache that never hits."""
    return open(uri, sealed=True, timeout=timeout, descriptor=described(descriptor, **known))


def described(descriptor: Said | None = None, **known: object) -> dict[str, str | int | None]:
    """What is said of values, in texts that a store takes: of one that is too long its digest is said."""
    said = {name: value for name, value in {**known, **(descriptor or {})}.items() if value not in (None, "")}
    return {name: text(value) for name, value in said.items()}


def text(value: object) -> str:
    """One line of at most 512 bytes."""
    shown = str(value)
    if len(shown.encode()) <= MAX_TEXT and shown.isprintable():
        return shown
    return "sha256:" + hashlib.sha256(shown.encode()).hexdigest()


def namespace(engine: str, **parts: object) -> tuple[str, ...]:
    """What comes before the engine's own key: model, dtype, layout, rank, tenant, whichever are known."""
    named = [f"{name}={value}" for name, value in sorted(parts.items()) if value not in (None, "")]
    return (engine, *named)


def load_timeout(timeout: float, compute_rate: float | None, amount: int) -> float:
    """Seconds that a load may take: no longer than computing the same amount would, where the engine's rate is known."""
    return timeout if compute_rate is None else min(timeout, max(SHORTEST, amount / compute_rate))
