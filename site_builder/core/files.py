"""Reading what others write: no link is followed, nothing but a plain file is read, and never more than a limit."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# The folder that the admin names may be a link, to a share for example; none inside it may.
TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class Refused(Exception):
    """Why a file is not read, in words."""


class TooLarge(Refused):
    """That a file has more than is read of one."""


class Signature(NamedTuple):
    """What tells one content of a file from the next; and when it came."""

    inode: int
    size: int
    modified_ns: int
    arrived_ns: int

    @staticmethod
    def of(status: os.stat_result) -> Signature:
        """The signature of a file."""
        return Signature(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def login_of(number: int) -> str:
    """Return the login of an account, or its number where this machine does not know it."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def make_closed(folder: Path) -> None:
    """Make a folder, if it is not there, that nobody else can write to, whatever the umask."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(folder.stat().st_mode & 0o755)


def look(name: str, folder: int) -> Signature | None:
    """The signature of a file in an open folder; None if it is not there."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(error.strerror or "it cannot be looked at") from error
    check(status)
    return Signature.of(status)


def check(status: os.stat_result) -> None:
    """Refuse what is not a plain file."""
    if stat.S_ISLNK(status.st_mode):
        message = "it is a link, and links are not followed"
        raise Refused(message)
    if not stat.S_ISREG(status.st_mode):
        message = "it is not a plain file"
        raise Refused(message)


def read(
    name: str, folder: int, limit: int, refuse: Callable[[os.stat_result], None] = check
) -> tuple[Signature, bytes]:
    """A file in an open folder, as it is now; `refuse` may ask more of the very file that was opened."""
    try:
        handle = os.open(name, FLAGS, dir_fd=folder)
    except OSError as error:
        raise Refused(error.strerror or "it cannot be opened") from error
    try:
        status = os.fstat(handle)
        refuse(status)
        if status.st_size > limit:
            message = f"it has {status.st_size} bytes, more than the {limit} that are read"
            raise TooLarge(message)
        data = os.read(handle, status.st_size + 1)
        while len(data) != status.st_size and (more := os.read(handle, 65536)):
            data += more
            if len(data) > limit:
                message = f"it grew past the {limit} bytes that are read"
                raise TooLarge(message)
    except OSError as error:
        raise Refused(error.strerror or "it cannot be read") from error
    finally:
        os.close(handle)
    return Signature.of(status), data


def replace(
    path: Path | str, content: bytes | Iterable[bytes] | Callable[[IO[bytes]], object], mode: int = 0o644
) -> None:
    """Write a file, perhaps piece by piece, whole or not at all; what stood there stays until then."""
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name}.new")  # noqa: PTH118 # thousands of times a build: a Path takes a third of it
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.writelines([content] if isinstance(content, bytes) else content)
        os.replace(new, path)  # noqa: PTH105 # the same
    except OSError as error:
        with suppress(FileNotFoundError):
            os.unlink(new)  # noqa: PTH108 # the same
        error.filename, error.filename2 = str(path), None  # a full disk names no file
        raise


def put(folder: int, name: str, content: bytes, mode: int = 0o640) -> None:
    """The same in an open folder, which nobody can exchange for another meanwhile; one at a time in a folder.

    A push of the same host has other names, and what somebody else has put at ours is not opened: a pipe would wait.
    """
    new = f".{name}.put"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)  # whatever the umask: the group reads
            file.write(content)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise
