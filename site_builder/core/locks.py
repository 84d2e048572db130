"""Lock files, so that one process at a time writes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from site_builder.core import files

POLL_INTERVAL_S = 0.05
REPORT_WAIT_AFTER_S = 1.0
BOT_LOCK_NAME = "slack.lock"


class LockTimeoutError(Exception):
    """Another builder had the lock for all the time that there was; the message says which."""


@contextmanager
def hold_build_lock(state: Path, until: float, say: Callable[[str], None]) -> Iterator[None]:
    """Wait for the lock until a moment on the monotonic clock; a longer wait is told."""
    handle = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not acquire_lock(handle, min(until, time.monotonic() + REPORT_WAIT_AFTER_S)):
            if time.monotonic() < until:
                say(f"waiting for another builder (process {read_lock_holder(handle)})")
            if not acquire_lock(handle, until):
                message = f"another builder (process {read_lock_holder(handle)}) holds {state / 'lock'}"
                raise LockTimeoutError(message)
        sign(handle)
        yield
    finally:
        os.close(handle)


@contextmanager
def try_hold_lock(path: Path) -> Iterator[str | None]:
    """Take a lock without waiting; if somebody else has it, which process that is."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not try_acquire_lock(handle):
            yield read_lock_holder(handle)
            return
        sign(handle)
        yield None
    finally:
        os.close(handle)


def find_lock_holder(path: Path) -> str | None:
    """Which process has a lock; None if nobody has."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return None if try_acquire_lock(handle) else read_lock_holder(handle)
    finally:
        os.close(handle)


def sign(handle: int) -> None:
    """Write down which process has a lock, for whoever waits; on a full disk it is held all the same."""
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


def read_lock_holder(handle: int) -> str:
    """Which process says that it has a lock."""
    return os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"


def acquire_lock(handle: int, until: float, every: float = POLL_INTERVAL_S) -> bool:
    """Take it, by a moment on the monotonic clock; `every` is how many seconds lie between two tries."""
    while not try_acquire_lock(handle):
        if time.monotonic() >= until:
            return False
        time.sleep(every)
    return True


def try_acquire_lock(handle: int) -> bool:
    """Try to take it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class StorageError(Exception):
    """Why nothing can be written, in one sentence, with what to do."""


class StorageBusyError(StorageError):
    """Somebody else is writing."""


LOCK_TIMEOUT_S = 5.0
LOCK_POLL_INTERVAL_S = 0.005
OWNER_HINT = "it must be a folder of the user who runs this"


@contextmanager
def hold_file_lock(path: Path) -> Iterator[None]:
    """The file for us alone; the kernel frees it, however we end."""
    beside = path.with_name(f".{path.name}.lock")
    handle = None
    try:
        try:
            check_folder(path.parent)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not acquire_lock(handle, time.monotonic() + LOCK_TIMEOUT_S, LOCK_POLL_INTERVAL_S):
                message = f"somebody else has been writing {path} for {LOCK_TIMEOUT_S:.0f} s: try again"
                raise StorageError(message)
        except OSError as error:
            raise StorageError(f"{beside} cannot be opened: {error.strerror}; {OWNER_HINT}") from None
        yield
    finally:
        if handle is not None:
            os.close(handle)


def read_locked_file(path: Path, limit: int) -> bytes:
    """The file as it is, nothing where there is none."""
    check_folder(path.parent)
    try:
        return files.read(path, limit)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; {OWNER_HINT}") from None
    except files.FileRefusedError as why:
        raise StorageError(f"{path} cannot be read: {why}; {OWNER_HINT}") from None


def check_folder(state: Path) -> None:
    """Refuse a folder that is not ours alone."""
    try:
        files.check_folder(state)
    except files.ForeignFolderError as why:
        raise StorageError(f"{why}; {OWNER_HINT}") from None


def write_locked_file(path: Path, content: bytes) -> None:
    """Write it whole or not at all, for nobody else to read; only for whoever is `alone`."""
    try:
        files.write_atomically(path, content, 0o600)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; {OWNER_HINT}") from None
