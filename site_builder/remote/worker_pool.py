"""Many hosts at once, each with a time limit of its own: one that is slow delays nobody."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from site_builder.remote.target_syntax import Target
from site_builder.remote.writer import NotPulled, Way
from site_builder.snapshots.envelope import one_line

AT_ONCE = 20
# How much later than its own time limit a way may tell why: it knows better than we do.
GRACE = 1.0
# How long we wait for all connections to end.
FAREWELL = 3.0


class Outcome(NamedTuple):
    """What came from a host, or why nothing did."""

    name: str
    found: dict[str, bytes]
    problem: str | None = None


class Crew:
    """Fetches again and again; the ways stay open in between, but for those that somebody forgets."""

    def __init__(self, targets: Iterable[Target], way_of: Callable[[Target], Way], limit: float) -> None:
        """Nobody is asked yet."""
        self.targets = list(targets)
        self.way_of = way_of
        self.limit = limit
        self.waiting: deque[Target] = deque()
        self.ways: dict[str, Way] = {}
        self.running: dict[str, tuple[Way, float]] = {}
        self.done: queue.SimpleQueue[tuple[Way, Outcome]] = queue.SimpleQueue()

    def begin_round(self) -> None:
        """Whoever is still busy with the last one is left alone."""
        busy = {target.name for target in self.waiting} | self.running.keys()
        self.waiting += [target for target in self.targets if target.name not in busy]

    def outcomes(self, until: float) -> Iterator[Outcome]:
        """As they come; until a moment on the monotonic clock, or until nobody is left to wait for."""
        while True:
            while self.waiting and len(self.running) < AT_ONCE:
                self.start(self.waiting.popleft())
            if not self.running:
                return
            wake = min([until, *(deadline for _, deadline in self.running.values())])
            try:
                way, outcome = self.done.get(timeout=max(0.0, wake - time.monotonic()))
            except queue.Empty:
                now = time.monotonic()
                yield from [self.give_up(name) for name, (_, end) in list(self.running.items()) if end <= now]
                if now >= until:
                    return
                continue
            if self.running.get(outcome.name, (None,))[0] is way:  # what comes too late does not count
                del self.running[outcome.name]
                yield outcome

    def start(self, target: Target) -> None:
        """A thread of its own, which nobody waits for at the end."""
        way = self.ways.get(target.name)
        if way is None:
            way = self.ways[target.name] = self.way_of(target)
        deadline = time.monotonic() + self.limit
        self.running[target.name] = way, deadline + GRACE
        threading.Thread(target=self.fetch, args=(target.name, way, deadline), daemon=True).start()

    def fetch(self, name: str, way: Way, deadline: float) -> None:
        """In the thread."""
        try:
            outcome = Outcome(name, way.fetch(deadline))
        except NotPulled as why:
            outcome = Outcome(name, {}, str(why))
        except Exception as error:  # a thread that dies in silence would be a host that hangs
            outcome = Outcome(name, {}, f"nobody foresaw this: {type(error).__name__}: {one_line(error)}")
        self.done.put((way, outcome))

    def give_up(self, name: str) -> Outcome:
        """End the connection under the thread: time limits of libraries do not help against a byte a minute."""
        del self.running[name]
        return Outcome(name, {}, f"no whole answer within {self.limit:.0f} s")

    def forget_way(self, name: str) -> None:
        """End the connection to a host of which something went wrong; the next round begins anew."""
        way = self.ways.pop(name, None)
        if way:
            threading.Thread(target=way.close, daemon=True).start()

    def close(self) -> None:
        """End all connections, all at once: each takes a moment."""
        threads = [threading.Thread(target=way.close, daemon=True) for way in self.ways.values()]
        for thread in threads:
            thread.start()
        end = time.monotonic() + FAREWELL
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
