"""One writer at a time for a small file in state/, over all processes of a web server."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from site_builder.sources import files
from site_builder.sources.ledger import Unwritable

PATIENCE = 5.0
LOOK_EVERY = 0.005
OWNER = "it must be a folder of the user who runs this"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """The file for us alone; the kernel frees it, however we end."""
    lock = path.with_name(f".{path.name}.lock")
    handle = None
    try:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            wait(handle, path)
        except OSError as error:
            raise Unwritable(f"{lock} cannot be opened: {error.strerror}; {OWNER}") from None
        yield
    finally:
        if handle is not None:
            os.close(handle)


def wait(handle: int, path: Path) -> None:
    """Until the lock is ours."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                message = f"somebody else has been writing {path} for {PATIENCE:.0f} s: try again"
                raise Unwritable(message) from None
            time.sleep(LOOK_EVERY)
        else:
            return


def read(path: Path, limit: int) -> bytes:
    """The file as it is, nothing where there is none."""
    try:
        folder = os.open(path.parent, files.TOP)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Unwritable(f"{path} cannot be read: {error.strerror}; {OWNER}") from None
    try:
        return files.read(path.name, folder, limit)[1] if files.look(path.name, folder) else b""
    except files.Refused as why:
        raise Unwritable(f"{path} cannot be read: {why}; {OWNER}") from None
    finally:
        os.close(folder)


def replace(path: Path, content: bytes) -> None:
    """Write it whole or not at all, for nobody else to read; only for whoever is `alone`."""
    try:
        files.replace(path, content, 0o600)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror}; {OWNER}") from None
