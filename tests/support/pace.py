"""Limits on time that tell of our code: a machine that is slow just now is allowed as much more."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]
wall: Clock = time.monotonic  # for what waits: for a lock, a server, a time limit of its own
own: Clock = time.process_time  # for what this process works
REFERENCE = 0.03  # seconds that `work` takes on the machine of the budgets (bench/) in a quiet hour
ROUNDS = 5


def children() -> float:
    """A clock that goes only while a command that we started works; it is told when that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def work() -> int:
    """What our code does most: texts made, taken apart and looked up again."""
    cells_by_name: dict[str, list[str]] = {}
    for number in range(17_000):
        line = f"gpu{number % 997:04}, {number}, {number * 0.37:.2f} W, alice"
        name, *cells = line.split(", ")
        cells_by_name.setdefault(name, []).append(cells[-1].upper())
    return sum(len(", ".join(cells)) for cells in cells_by_name.values())


def took(action: Callable[[], object], clock: Clock = own, rounds: int = 1) -> float:
    """The seconds that it takes; the fewest of so many rounds, since others work on this machine too."""
    times = []
    for _ in range(rounds):
        began = clock()
        action()
        times.append(clock() - began)
    return min(times)


def slowness(clock: Clock = own) -> float:
    """How many times longer than on a quiet machine all takes just now, on the average; never less than 1."""
    spent = took(lambda: [work() for _ in range(ROUNDS)], wall if clock is wall else own)
    return max(1.0, spent / ROUNDS / REFERENCE)


def check(seconds: float, limit: float, clock: Clock = own) -> None:
    """Fail if that is more than the limit, as it is on this machine just now."""
    if seconds > limit:  # only then is it worth to measure the machine
        allowed = limit * slowness(clock)
        assert seconds <= allowed, f"it took {seconds:.3f} s; {limit} s is the limit, {allowed:.3f} s on this machine"


@contextmanager
def within(limit: float, clock: Clock = own) -> Iterator[None]:
    """What is done here must not take longer."""
    began = clock()
    yield
    check(clock() - began, limit, clock)
