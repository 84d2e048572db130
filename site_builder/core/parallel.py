"""Share work with a child process, since Python threads run on one core."""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import FileIO
from typing import IO, Any, NoReturn, TypeVar

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
    blocks = [
        items[number * len(items) // BLOCK_COUNT : (number + 1) * len(items) // BLOCK_COUNT]
        for number in range(BLOCK_COUNT)
    ]
    next_block, write_end = os.pipe()  # both processes take the number of their next block from here
    os.write(write_end, bytes(range(BLOCK_COUNT)))
    os.close(write_end)
    with create_parallel_shared_file() as shared, os.fdopen(next_block, "rb", buffering=0) as queue:
        try:
            child = os.fork()
        except OSError:  # no memory for another process
            return [work(item) for item in items]
        if child == 0:
            run_parallel_child(work, blocks, queue, shared)
        try:
            done = {number: [work(item) for item in blocks[number]] for number in take_parallel_block_numbers(queue)}
        finally:
            os.waitpid(child, 0)
        done.update(read_parallel_results(shared))
    return [result for number in range(BLOCK_COUNT) for result in done.get(number) or map(work, blocks[number])]


def create_parallel_shared_file() -> IO[bytes]:
    """Open a file that parent and child share, in memory if possible."""
    # not every Python has memfd_create; into a pipe the child could not put more than we take out at once
    return os.fdopen(os.memfd_create("gpuboard"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def take_parallel_block_numbers(queue: FileIO) -> Iterator[int]:
    while number := queue.read(1):
        yield number[0]


def run_parallel_child(
    work: Callable[[Item], Result], blocks: Sequence[Sequence[Item]], queue: FileIO, shared: IO[bytes]
) -> NoReturn:
    """Write the results of the blocks taken to the shared file, and exit whatever happens."""
    try:
        for number in take_parallel_block_numbers(queue):
            pickle.dump((number, [work(item) for item in blocks[number]]), shared, protocol=pickle.HIGHEST_PROTOCOL)
        shared.flush()
    finally:
        os._exit(0)


def read_parallel_results(shared: IO[bytes]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the blocks that the child has finished."""
    shared.seek(0)
    with suppress(Exception):  # the end of the file, or the child was killed or out of memory
        while True:
            number, results = pickle.load(shared)  # noqa: S301 our own child
            yield number, results
