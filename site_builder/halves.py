"""Work on both cores: a child process does half of it, since Python does one thing at a time."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
# With less than this, the child costs more than it saves.
WORTH_IT = 100


def both(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The result of each item, in their order; whatever befalls the child, its half is done all the same."""
    # a fork copies no other thread, but the locks that it holds
    if len(items) < WORTH_IT or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return [work(item) for item in items]
    half = len(items) // 2
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        give(work, items[half:], send)
    os.close(send)
    try:
        with os.fdopen(receive, "rb") as pipe:
            first = [work(item) for item in items[:half]]
            second: list[Result] | None = take(pipe.read())
    finally:
        os.waitpid(child, 0)
    return first + (second if second is not None else [work(item) for item in items[half:]])


def give(work: Callable[[Item], Result], items: Sequence[Item], send: int) -> None:
    """In the child: send what comes of these items, and end, whatever happens."""
    try:
        with os.fdopen(send, "wb") as pipe:
            pickle.dump([work(item) for item in items], pipe, protocol=pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)


def take(content: bytes) -> list[Any] | None:
    """What the child sent; None if it did not come to its end."""
    try:
        found: list[Any] = pickle.loads(content)  # noqa: S301 our own child
    except Exception:  # it was killed, or out of memory
        return None
    return found
