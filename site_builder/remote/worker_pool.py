"""Work on many hosts at once, each with its own time limit."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

MAX_PARALLEL_HOSTS = 20

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
