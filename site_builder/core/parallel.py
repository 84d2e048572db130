"""Work on both cores: a child process takes its share of it, since Python does one thing at a time."""

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
# With less than this, the child costs more than it saves.
MIN_PARALLEL_ITEMS = 100
# As many as one byte can number, and small: neither of the two waits long for the last one of the other.
BLOCK_COUNT = 200


def map_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The result of each item, in their order; whatever befalls the child, all is done."""
    # a fork copies no other thread, but the locks that it holds
    if len(items) < MIN_PARALLEL_ITEMS or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return [work(item) for item in items]
    blocks = [
        items[number * len(items) // BLOCK_COUNT : (number + 1) * len(items) // BLOCK_COUNT]
        for number in range(BLOCK_COUNT)
    ]
    next_block, put = os.pipe()  # whoever has time takes the next number from here
    os.write(put, bytes(range(BLOCK_COUNT)))
    os.close(put)
    with create_shared_file() as shared, os.fdopen(next_block, "rb", buffering=0) as queue:
        try:
            child = os.fork()
        except OSError:  # no room for another process
            return [work(item) for item in items]
        if child == 0:
            run_child(work, blocks, queue, shared)
        try:
            done = {number: [work(item) for item in blocks[number]] for number in take_block_numbers(queue)}
        finally:
            os.waitpid(child, 0)
        done.update(read_child_results(shared))
    return [result for number in range(BLOCK_COUNT) for result in done.get(number) or map(work, blocks[number])]


def create_shared_file() -> IO[bytes]:
    """Where the child leaves what it has done: into a pipe it could not put more than the parent takes out at once."""
    # not every Python has been built with the first
    return os.fdopen(os.memfd_create("gpuboard"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def take_block_numbers(queue: FileIO) -> Iterator[int]:
    """The numbers of the blocks that nobody has taken yet."""
    while number := queue.read(1):
        yield number[0]


def run_child(
    work: Callable[[Item], Result], blocks: Sequence[Sequence[Item]], queue: FileIO, shared: IO[bytes]
) -> NoReturn:
    """In the child: leave what comes of its blocks, and end, whatever happens."""
    try:
        for number in take_block_numbers(queue):
            pickle.dump((number, [work(item) for item in blocks[number]]), shared, protocol=pickle.HIGHEST_PROTOCOL)
        shared.flush()
    finally:
        os._exit(0)


def read_child_results(shared: IO[bytes]) -> Iterator[tuple[int, list[Any]]]:
    """The blocks that the child has done, as far as it came."""
    shared.seek(0)
    with suppress(Exception):  # the end; or it was killed, or out of memory
        while True:
            number, results = pickle.load(shared)  # noqa: S301 our own child
            yield number, results
