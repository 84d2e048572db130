"""Locks that the kernel frees, however their holders end: one builder at a time, one bot, one who writes a file."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOK_EVERY = 0.05
SAY_AFTER = 1.0
BOT = "slack.lock"


class Held(Exception):
    """Another builder had the lock for all the time that there was; the message says which."""


@contextmanager
def held(state: Path, until: float, say: Callable[[str], None]) -> Iterator[None]:
    """Wait for the lock until a moment on the monotonic clock; a longer wait is told."""
    handle = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not wait(handle, min(until, time.monotonic() + SAY_AFTER)):
            if time.monotonic() < until:
                say(f"waiting for another builder (process {told(handle)})")
            if not wait(handle, until):
                message = f"another builder (process {told(handle)}) holds {state / 'lock'}"
                raise Held(message)
        sign(handle)
        yield
    finally:
        os.close(handle)


@contextmanager
def alone(path: Path) -> Iterator[str | None]:
    """Take a lock without waiting; if somebody else has it, which process that is."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not taken(handle):
            yield told(handle)
            return
        sign(handle)
        yield None
    finally:
        os.close(handle)


def holder(path: Path) -> str | None:
    """Which process has a lock; None if nobody has."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return None if taken(handle) else told(handle)
    finally:
        os.close(handle)


def sign(handle: int) -> None:
    """Write down which process has a lock, for whoever waits; on a full disk it is held all the same."""
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


def told(handle: int) -> str:
    """Which process says that it has a lock."""
    return os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"


def wait(handle: int, until: float, every: float = LOOK_EVERY) -> bool:
    """Take it, by a moment on the monotonic clock; `every` is how many seconds lie between two tries."""
    while not taken(handle):
        if time.monotonic() >= until:
            return False
        time.sleep(every)
    return True


def taken(handle: int) -> bool:
    """Try to take it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
