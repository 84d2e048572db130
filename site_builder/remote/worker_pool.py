"""Work on many hosts at once, each with its own time limit."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from site_builder.core.terminal_text import clean_excerpt
from site_builder.remote.fetch import PullError, SnapshotFetcher
from site_builder.remote.targets import Target

MAX_PARALLEL_HOSTS = 20
# How much later than its own time limit a fetcher may say why: it knows better than we do.
REPORT_GRACE_S = 1.0
# How long we wait for all connections to end.
CLOSE_TIMEOUT_S = 3.0

Key = TypeVar("Key")
Value = TypeVar("Value")


class WorkerPool(Generic[Key, Value]):
    """Run tasks in threads, at most MAX_PARALLEL_HOSTS at a time, and give up on those that take too long."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Key, Callable[[], Value], float]] = deque()
        self.running: dict[Key, tuple[threading.Thread, float]] = {}
        self.finished: queue.SimpleQueue[tuple[Key, threading.Thread, Value]] = queue.SimpleQueue()

    @property
    def pending(self) -> set[Key]:
        return {key for key, *_ in self.waiting} | self.running.keys()

    def add(self, key: Key, task: Callable[[], Value], timeout_s: float = math.inf) -> None:
        """Queue a task, which must not raise."""
        self.waiting.append((key, task, timeout_s))

    def iterate_results(self, until: float) -> Iterator[tuple[Key, Value | None]]:
        """Yield each key with its result, or None after its timeout, until `until` or until all are done."""
        while True:
            while self.waiting and len(self.running) < MAX_PARALLEL_HOSTS:
                self.start_thread(*self.waiting.popleft())
            if not self.running:
                return
            wake = min([until, *(deadline for _, deadline in self.running.values())])
            try:
                key, thread, value = self.finished.get(timeout=max(0.0, wake - time.monotonic()))
            except queue.Empty:
                now = time.monotonic()
                for key in [key for key, (_, deadline) in self.running.items() if deadline <= now]:
                    del self.running[key]
                    yield key, None
                if now >= until:
                    return
                continue
            if self.running.get(key, (None,))[0] is thread:  # a result that comes after its timeout does not count
                del self.running[key]
                yield key, value

    def start_thread(self, key: Key, task: Callable[[], Value], timeout_s: float) -> None:
        """Run the task in a thread that nobody waits for at the end."""

        def run_task() -> None:
            self.finished.put((key, thread, task()))

        thread = threading.Thread(target=run_task, daemon=True)
        self.running[key] = thread, time.monotonic() + timeout_s
        thread.start()


class FetchOutcome(NamedTuple):
    host: str
    files: dict[str, bytes]
    problem: str | None = None


class FetchPool:
    """Fetch from all targets, round after round; connections stay open in between."""

    def __init__(
        self, targets: Iterable[Target], create_fetcher: Callable[[Target], SnapshotFetcher], timeout_s: float
    ) -> None:
        self.targets = list(targets)
        self.create_fetcher = create_fetcher
        self.timeout_s = timeout_s
        self.fetchers: dict[str, SnapshotFetcher] = {}
        self.pool: WorkerPool[str, FetchOutcome] = WorkerPool()

    def start_round(self) -> None:
        """Queue a fetch for each host but those that are still busy with the last one."""
        busy = self.pool.pending
        for target in self.targets:
            if target.name in busy:
                continue
            if target.name not in self.fetchers:
                self.fetchers[target.name] = self.create_fetcher(target)
            task = partial(self.run_fetch, target.name, self.fetchers[target.name])
            self.pool.add(target.name, task, self.timeout_s + REPORT_GRACE_S)

    def iterate_outcomes(self, until: float) -> Iterator[FetchOutcome]:
        """Yield outcomes as they come, until a monotonic time or until nobody is left to wait for."""
        for name, outcome in self.pool.iterate_results(until):
            # time limits of libraries do not help against a byte a minute
            yield outcome or FetchOutcome(name, {}, f"no whole answer within {self.timeout_s:.0f} s")

    def run_fetch(self, name: str, fetcher: SnapshotFetcher) -> FetchOutcome:
        """Fetch the files of one host, in its thread."""
        try:
            return FetchOutcome(name, fetcher.fetch(time.monotonic() + self.timeout_s))
        except PullError as error:
            return FetchOutcome(name, {}, str(error))
        except Exception as error:  # a thread that dies in silence would be a host that hangs
            return FetchOutcome(name, {}, f"nobody foresaw this: {type(error).__name__}: {clean_excerpt(error)}")

    def drop_fetcher(self, name: str) -> None:
        """Close the connection to a host at which something went wrong; the next round opens another."""
        fetcher = self.fetchers.pop(name, None)
        if fetcher:
            threading.Thread(target=fetcher.close, daemon=True).start()

    def close(self) -> None:
        """Close all connections at once: each takes a moment."""
        threads = [threading.Thread(target=fetcher.close, daemon=True) for fetcher in self.fetchers.values()]
        for thread in threads:
            thread.start()
        end = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
