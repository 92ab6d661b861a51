"""Rows for `cargo xtask bench --engines`: two sides measured in turns, one JSON object a row."""

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence

# What engines print goes to standard error: only rows are for standard output.
ROWS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

Timed = Callable[[], float]


def wanted(name: str) -> bool:
    """Whether a row was asked for: the first argument of the program is a part of its name."""
    return len(sys.argv) < 2 or sys.argv[1] in name


def quick() -> bool:
    return "--quick" in sys.argv


def in_turns(ours: Callable[[int], Sequence[float]], peer: Callable[[int], Sequence[float]], rounds: int) -> tuple[
    list[list[float]], list[list[float]]
]:
    """A round of ours, a round of the peer, the next time the other way round. A round answers seconds for each operation."""
    taken: tuple[list[Sequence[float]], list[Sequence[float]]] = ([], [])
    for number in range(-1, rounds):
        order = (0, 1) if number % 2 else (1, 0)
        for side in order:
            seconds = (ours, peer)[side](number + 1)
            # The first round warms both up.
            if number >= 0:
                taken[side].append(seconds)
    return [list(map(list, zip(*side))) for side in taken]  # type: ignore[return-value]


def row(name: str, ours: Sequence[float], peer: Sequence[float], amount: float, unit: str, goal: float | None) -> None:
    """A row of medians. amount: what a second is divided into, for a speed; 0: the figure is time, in unit."""
    middle, other = statistics.median(ours), statistics.median(peer)
    show = (lambda seconds: amount / seconds) if amount else (lambda seconds: seconds * 1e6)
    if wanted(name):
        found = {"name": name, "ours": show(middle), "peer": show(other), "ratio": other / middle, "unit": unit}
        print(json.dumps({**found, "goal": goal}), file=ROWS, flush=True)
