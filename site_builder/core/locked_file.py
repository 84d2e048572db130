"""One writer at a time for a small file in state/, over all processes of a web server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from site_builder.bookings.store import Unwritable
from site_builder.core import files, locks, own_files

PATIENCE = 5.0
LOOK_EVERY = 0.005
OWNER = "it must be a folder of the user who runs this"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """The file for us alone; the kernel frees it, however we end."""
    beside = path.with_name(f".{path.name}.lock")
    handle = None
    try:
        try:
            check_folder(path.parent)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not locks.wait(handle, time.monotonic() + PATIENCE, LOOK_EVERY):
                message = f"somebody else has been writing {path} for {PATIENCE:.0f} s: try again"
                raise Unwritable(message)
        except OSError as error:
            raise Unwritable(f"{beside} cannot be opened: {error.strerror}; {OWNER}") from None
        yield
    finally:
        if handle is not None:
            os.close(handle)


def read(path: Path, limit: int) -> bytes:
    """The file as it is, nothing where there is none."""
    check_folder(path.parent)
    try:
        return own_files.read(path, limit)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Unwritable(f"{path} cannot be read: {error.strerror}; {OWNER}") from None
    except files.Refused as why:
        raise Unwritable(f"{path} cannot be read: {why}; {OWNER}") from None


def check_folder(state: Path) -> None:
    """Refuse a folder that is not ours alone."""
    try:
        own_files.check_folder(state)
    except own_files.ForeignFolderError as why:
        raise Unwritable(f"{why}; {OWNER}") from None


def replace(path: Path, content: bytes) -> None:
    """Write it whole or not at all, for nobody else to read; only for whoever is `alone`."""
    try:
        files.replace(path, content, 0o600)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror}; {OWNER}") from None
