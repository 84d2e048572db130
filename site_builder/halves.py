"""Work on both cores: a child process takes its share of it, since Python does one thing at a time."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
# With less than this, the child costs more than it saves.
WORTH_IT = 100
# As many as one byte can number.
BLOCKS = 50


def both(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The result of each item, in their order; whatever befalls the child, all is done."""
    # a fork copies no other thread, but the locks that it holds
    if len(items) < WORTH_IT or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return [work(item) for item in items]
    blocks = [items[number * len(items) // BLOCKS : (number + 1) * len(items) // BLOCKS] for number in range(BLOCKS)]
    next_block, put = os.pipe()  # whoever has time takes the next number from here
    os.write(put, bytes(range(BLOCKS)))
    os.close(put)
    receive, send = os.pipe()
    try:
        child = os.fork()
    except OSError:  # no room for another process
        for end in (next_block, receive, send):
            os.close(end)
        return [work(item) for item in items]
    if child == 0:
        give(work, blocks, next_block, send)
    os.close(send)
    try:
        with os.fdopen(receive, "rb") as pipe:
            done = {number: [work(item) for item in blocks[number]] for number in numbers(next_block)}
            done.update(take(pipe.read()))
    finally:
        os.close(next_block)
        os.waitpid(child, 0)
    return [result for number in range(BLOCKS) for result in done.get(number) or map(work, blocks[number])]


def numbers(pipe: int) -> Iterator[int]:
    """The numbers of the blocks that nobody has taken yet."""
    while number := os.read(pipe, 1):
        yield number[0]


def give(work: Callable[[Item], Result], blocks: Sequence[Sequence[Item]], next_block: int, send: int) -> None:
    """In the child: send what comes of its blocks, and end, whatever happens."""
    try:
        done = {number: [work(item) for item in blocks[number]] for number in numbers(next_block)}
        with os.fdopen(send, "wb") as pipe:
            pickle.dump(done, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)


def take(content: bytes) -> dict[int, list[Any]]:
    """What the child sent; nothing if it did not come to its end."""
    try:
        done: dict[int, list[Any]] = pickle.loads(content)  # noqa: S301 our own child
    except Exception:  # it was killed, or out of memory
        return {}
    return done
