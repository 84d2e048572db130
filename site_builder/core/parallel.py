"""Share work with a child process, since Python threads run on one core."""

from __future__ import annotations

import math
import os
import pickle
import queue
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
# With fewer items, the child costs more than it saves.
MIN_PARALLEL_ITEMS = 100
# One byte can number them, and they are small: neither process waits long for the last block of the other.
BLOCK_COUNT = 200


def map_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the result of each item, in their order, even if the child fails."""
    # a fork copies the locks of other threads, but not the threads
    if len(items) < MIN_PARALLEL_ITEMS or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return [work(item) for item in items]
    bounds = [number * len(items) // BLOCK_COUNT for number in range(BLOCK_COUNT + 1)]
    blocks = [items[start:end] for start, end in zip(bounds, bounds[1:])]
    next_block, write_end = os.pipe()  # both processes take the number of their next block from here
    os.write(write_end, bytes(range(BLOCK_COUNT)))
    os.close(write_end)
    with create_parallel_shared_file() as shared, os.fdopen(next_block, "rb", buffering=0) as queue:
        block_numbers = (byte[0] for byte in iter(partial(queue.read, 1), b""))
        try:
            child = os.fork()
        except OSError:  # no memory for another process
            return [work(item) for item in items]
        if child == 0:
            try:
                for number in block_numbers:
                    pickle.dump((number, [work(item) for item in blocks[number]]), shared, pickle.HIGHEST_PROTOCOL)
                shared.flush()
            finally:
                os._exit(0)
        try:
            done = {number: [work(item) for item in blocks[number]] for number in block_numbers}
        finally:
            os.waitpid(child, 0)
        shared.seek(0)
        with suppress(Exception):  # the end of the file, or the child was killed or out of memory
            while True:
                number, results = pickle.load(shared)  # noqa: S301 our own child
                done[number] = results
    return [result for number in range(BLOCK_COUNT) for result in done.get(number) or map(work, blocks[number])]


def create_parallel_shared_file() -> IO[bytes]:
    """Open a file that parent and child share, in memory if possible."""
    # not every Python has memfd_create; into a pipe the child could not put more than we take out at once
    return os.fdopen(os.memfd_create("gpuboard"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


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
                key, task, timeout_s = self.waiting.popleft()
                # nobody waits for it at the end
                thread = threading.Thread(target=self.run_task, args=(key, task), daemon=True)
                self.running[key] = thread, time.monotonic() + timeout_s
                thread.start()
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

    def run_task(self, key: Key, task: Callable[[], Value]) -> None:
        self.finished.put((key, threading.current_thread(), task()))
