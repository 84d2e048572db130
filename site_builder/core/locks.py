"""Lock files, so that one process at a time writes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from site_builder.core import files

LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
POLL_INTERVAL_S = 0.05
REPORT_WAIT_AFTER_S = 1.0
BOT_LOCK_NAME = "slack.lock"
LOCK_TIMEOUT_S = 5.0
LOCK_POLL_INTERVAL_S = 0.005
OWNER_HINT = "its folder must belong to the user who runs this"


class LockTimeoutError(Exception):
    """Another builder held the lock all the time; the message says which."""


class LockedFileError(Exception):
    """Why nothing can be written, and what to do, in one sentence."""


class LockedFileBusyError(LockedFileError):
    """Another process is writing."""


@contextmanager
def hold_build_lock(state: Path, deadline: float, report: Callable[[str], None]) -> Iterator[None]:
    """Wait for the lock until a deadline on the monotonic clock, and report a longer wait."""
    handle = os.open(state / "lock", LOCK_FLAGS, 0o600)
    try:
        if not acquire_lock(handle, min(deadline, time.monotonic() + REPORT_WAIT_AFTER_S)):
            if time.monotonic() < deadline:
                report(f"waiting for another builder (process {read_lock_holder(handle)})")
            if not acquire_lock(handle, deadline):
                raise LockTimeoutError(f"another builder (process {read_lock_holder(handle)}) holds {state / 'lock'}")
        write_lock_holder(handle)
        yield
    finally:
        os.close(handle)


@contextmanager
def try_hold_lock(path: Path) -> Iterator[str | None]:
    """Take a lock without waiting; yield the process that has it, or None if we have it now."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, LOCK_FLAGS, 0o600)
    try:
        if is_held := try_acquire_lock(handle):
            write_lock_holder(handle)
        yield None if is_held else read_lock_holder(handle)
    finally:
        os.close(handle)


@contextmanager
def hold_file_lock(path: Path) -> Iterator[None]:
    """Hold a file for us alone; the kernel frees it, however we end."""
    lock_path = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        try:
            check_lock_folder(path.parent)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(lock_path, LOCK_FLAGS, 0o600)
            stack.callback(os.close, handle)
            if not acquire_lock(handle, time.monotonic() + LOCK_TIMEOUT_S, LOCK_POLL_INTERVAL_S):
                raise LockedFileError(f"another process has been writing {path} for {LOCK_TIMEOUT_S:.0f} s: try again")
        except OSError as error:
            raise LockedFileError(f"{lock_path} cannot be opened: {error.strerror}; {OWNER_HINT}") from None
        yield


def read_locked_file(path: Path, limit: int) -> bytes:
    """Return the content; empty if there is no file."""
    check_lock_folder(path.parent)
    try:
        return files.read_own_file(path, limit)
    except FileNotFoundError:
        return b""
    except (OSError, files.FileRefusedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LockedFileError(f"{path} cannot be read: {reason}; {OWNER_HINT}") from None


def write_locked_file(path: Path, content: bytes) -> None:
    """Write the file whole or not at all, readable for us alone; the caller must hold its lock."""
    try:
        files.write_atomically(path, content, 0o600)
    except OSError as error:
        raise LockedFileError(f"{path} cannot be written: {error.strerror}; {OWNER_HINT}") from None


def find_lock_holder(path: Path) -> str | None:
    """Return the process that has a lock; None if it is free."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # on NFS, a handle to read with can have no other
    except BlockingIOError:
        return read_lock_holder(handle)
    finally:
        os.close(handle)
    return None


def acquire_lock(handle: int, deadline: float, interval: float = POLL_INTERVAL_S) -> bool:
    """Try to take the lock every `interval` seconds until a deadline on the monotonic clock."""
    while not try_acquire_lock(handle):
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval)
    return True


def try_acquire_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_lock_holder(handle: int) -> None:
    """Write our process id into the lock, for whoever waits; on a full disk the lock holds all the same."""
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


def read_lock_holder(handle: int) -> str:
    return os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"


def check_lock_folder(folder: Path) -> None:
    try:
        files.refuse_foreign_folder(folder)
    except files.ForeignFolderError as error:
        raise LockedFileError(f"{error}; {OWNER_HINT}") from None
