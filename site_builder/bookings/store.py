"""comments.json and bookings.log as they are written: one writer at a time, whole or not at all.

They are in data/, or in data/bookings/ where several accounts book: these may write there, and not in data/ itself,
where they could redirect what others write.

People who edit comments.json by hand take no lock. What they wrote while somebody booked is therefore looked for once
more just before the file is replaced, and it keeps the owner, the group and the mode that lets them write it.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from site_builder.bookings import parser
from site_builder.core import files, locks, shared_folder
from site_builder.core.shared_folder import booking_folder

FILE = shared_folder.FILE
WATCHES = shared_folder.WATCHES
# Some 20,000 bookings; what is larger was not written by people.
LIMIT = 4 * 1024 * 1024
# What the desk writes it must be able to read again, with room for what people add by hand.
MOST_WRITTEN = LIMIT * 3 // 4
GOOD = "comments.last-good.json"
LOCK = ".comments.json.lock"
NEW = ".comments.json.new-"
LOG = "bookings.log"
PATIENCE = 20.0
LOOK_EVERY = 0.01
# An editor may be between emptying the file and writing it.
EMPTY_FOR = 0.3
LOG_LIMIT = 1024 * 1024
ASK = "ask the admin, or book through the board with GPUBOARD_URL and a token"
SHARE = "make it writable for a group that you share"


class Unwritable(Exception):
    """Why nothing can be written, in one sentence, with what to do."""


class Busy(Unwritable):
    """Somebody else is writing."""


class Ledger:
    """The two files, for somebody who holds the lock."""

    def __init__(self, data: Path) -> None:
        """Of which data folder; they are where `booking_folder` says."""
        self.data = data
        self.folder = booking_folder(data)
        self.most = LIMIT  # bytes that it can hold
        self.signature: files.Signature | None = None

    def glance(self) -> bytes:
        """The bookings for somebody who only looks."""
        return self.read()

    def read(self) -> bytes:
        """The bookings as they are now; a file that was never written has none.

        One that is empty or gone, though there have been bookings, was not meant to be so.
        """
        end = time.monotonic() + EMPTY_FOR
        while True:
            content = self.look()
            if content.strip():
                return content
            if self.signature is None or time.monotonic() > end:
                break
            time.sleep(LOOK_EVERY)
        if has_bookings(self.folder / GOOD):
            what = "is not there" if self.signature is None else "is empty"
            message = (
                f"{self.folder / FILE} {what}, though {GOOD} beside it has bookings: copy that back, or write {{}}"
            )
            raise Unwritable(message)
        return b"{}\n"

    def look(self) -> bytes:
        """The file as it is at this moment."""
        self.signature, content = look(self.folder, FILE, LIMIT)
        return content

    def write(self, content: bytes) -> bool:
        """Put the new content in the place of what was read; False where that is no longer what stands there."""
        with opened(self.folder) as folder:
            like = self.like(folder)
            self.clear(folder)
            if not replace(
                folder, self.folder / FILE, content, like, lambda: files.look(FILE, folder) == self.signature
            ):
                return False
            self.signature = files.look(FILE, folder)
            with suppress(Unwritable):
                replace(folder, self.folder / GOOD, content, like, lambda: True)
        return True

    def clear(self, folder: int) -> None:
        """Remove what those left who were killed: nobody else writes while we hold the lock."""
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(NEW):
                    with suppress(OSError):
                        os.unlink(entry.name, dir_fd=folder)

    def like(self, folder: int) -> os.stat_result:
        """Whose the new file shall be; who may not write the old one may not replace it either."""
        try:
            like = os.stat(FILE, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return os.fstat(folder)
        if not os.access(FILE, os.W_OK, dir_fd=folder):
            message = f"{self.folder / FILE} belongs to {owner(like)}, and you may not write it: {ASK}"
            raise Unwritable(message)
        return like

    def log(self, line: dict[str, Any]) -> None:
        """A line of what is about to change; the file begins anew when it is large, and the last one is kept."""
        path = self.folder / LOG
        try:
            with opened(self.folder) as folder:
                like = self.like(folder)
                with suppress(FileNotFoundError):
                    if path.stat().st_size > LOG_LIMIT:
                        path.replace(path.with_name(f"{LOG}.1"))
                handle = os.open(LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT | files.FLAGS, 0o600, dir_fd=folder)
                with os.fdopen(handle, "rb+") as file:
                    if os.fstat(handle).st_size == 0:
                        take_after(handle, like)
                    else:
                        file.seek(-1, os.SEEK_END)
                        if file.read(1) != b"\n":  # somebody was killed while writing
                            file.write(b"\n")
                    file.write(line_of(line))
                    file.flush()
                    os.fsync(handle)
        except OSError as error:
            raise Unwritable(f"{path} cannot be written: {error.strerror}; {ASK}") from None

    def logged(self) -> list[dict[str, Any]]:
        """What was changed, the newest first; a line that cannot be read is none."""
        found: list[dict[str, Any]] = []
        for name in (f"{LOG}.1", LOG):
            with suppress(Unwritable):
                for line in look(self.folder, name, LOG_LIMIT + 4 * LIMIT)[1].splitlines():
                    with suppress(ValueError):
                        one = json.loads(line)
                        if is_line(one):
                            found.append(one)
        return found[::-1]


def line_of(line: dict[str, Any]) -> bytes:
    """A line of the log; half a letter, which JSON can hold and UTF-8 cannot, is escaped with all others."""
    try:
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(line).encode() + b"\n"


def is_line(found: object) -> bool:
    """Whether a line of the log has the form that we write; anybody may have written another."""
    if not isinstance(found, dict) or not isinstance(found.get("change"), str):
        return False
    parts = [found.get("before"), found.get("after")]
    if not all(isinstance(found.get(key), str) for key in ("who", "when", "what")):
        return False
    return all(
        isinstance(part, list)
        and all(isinstance(one, list) and [type(each) for each in one] == [str, str, dict] for one in part)
        for part in parts
    )


def has_bookings(path: Path) -> bool:
    """Whether a file could be read and has entries."""
    try:
        text = parser.plain(parser.text_of(path.read_bytes()[:LIMIT]), [])
    except (OSError, parser.Unreadable):
        return False
    return any(True for _ in parser.entries(text, []))


def keep_good(data: Path, content: bytes) -> None:
    """Keep a content that could be read beside the file, if we may write there."""
    place = booking_folder(data)
    with suppress(OSError, Unwritable), opened(place) as folder:
        like = os.stat(FILE, dir_fd=folder, follow_symlinks=False)
        replace(folder, place / GOOD, content, like, lambda: True)


@contextmanager
def opened(data: Path) -> Iterator[int]:
    """The folder, which nobody can exchange for another meanwhile."""
    try:
        folder = os.open(data, files.TOP)
    except OSError as error:
        raise Unwritable(f"{data} cannot be read: {error.strerror}; set GPUBOARD_DATA or GPUBOARD_URL") from None
    try:
        yield folder
    finally:
        os.close(folder)


def look(data: Path, name: str, limit: int) -> tuple[files.Signature | None, bytes]:
    """A file in it as it is at this moment, and what tells that from the next; nothing where there is none."""
    with opened(data) as folder:
        try:
            return files.read(name, folder, limit) if files.look(name, folder) else (None, b"")
        except files.Refused as why:
            raise Unwritable(f"{data / name} cannot be read: {why}") from None


@contextmanager
def locked(data: Path, patience: float = PATIENCE) -> Iterator[Ledger]:
    """The ledger for us alone; the kernel frees it, however we end."""
    until = time.monotonic() + patience
    while True:
        place = booking_folder(data)
        with opened(place) as folder:
            handle = lock_file(folder, place)
            try:
                try:
                    if not locks.wait(handle, until, LOOK_EVERY):
                        message = f"somebody else has been writing {place / FILE} for {patience:.0f} s: try again"
                        raise Busy(message)
                except OSError as error:
                    raise Unwritable(f"{place} cannot be locked: {error.strerror}") from None
                if booking_folder(data) == place:  # else they were moved while we waited
                    yield Ledger(data)
                    return
            finally:
                os.close(handle)


def lock_file(folder: int, data: Path) -> int:
    """The file on which all wait for each other, made for all who may write in the folder."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            return os.open(LOCK, flags, dir_fd=folder)
        except FileNotFoundError:
            handle = os.open(LOCK, flags | os.O_CREAT, 0o600, dir_fd=folder)
            take_after(handle, os.fstat(folder))
            return handle
        except PermissionError:  # where it is a local file, one that can be read can be locked
            return os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise Unwritable(f"{data / LOCK} cannot be opened: {error.strerror}; {ASK}") from None


def replace(folder: int, path: Path, content: bytes, like: os.stat_result, is_still: Callable[[], bool]) -> bool:
    """Write a file beside another, look whether that still is what it was, and take its place."""
    new = f"{NEW}{secrets.token_hex(4)}"
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                if not take_after(handle, like):
                    message = f"{path} belongs to {owner(like)}, who could not write it any more after you: {SHARE}"
                    raise Unwritable(message)
                copy_attributes(path, handle)
                os.fsync(handle)
            if not is_still():
                return False
            os.rename(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror}; {ASK}") from None
    return True


def take_after(handle: int, like: os.stat_result) -> bool:
    """Give a file owner, group and mode of another, or of the folder; whether all who could write that still can."""
    mode = like.st_mode & 0o777
    if stat.S_ISDIR(like.st_mode):
        mode = mode & 0o666 | 0o600
    mine = os.fstat(handle)
    owned, grouped = mine.st_uid == like.st_uid, mine.st_gid == like.st_gid
    with suppress(OSError):
        os.fchown(handle, like.st_uid, like.st_gid)
        owned = grouped = True
    if not grouped:
        with suppress(OSError):
            os.fchown(handle, -1, like.st_gid)
            grouped = True
    os.fchmod(handle, mode)
    if stat.S_ISDIR(like.st_mode) or owned or mode & 0o002:
        return grouped or bool(mode & 0o002) or not mode & 0o020
    return grouped and bool(mode & 0o020) and is_member(like.st_uid, like.st_gid)


def is_member(uid: int, gid: int) -> bool:
    """Whether a user is in a group, as far as this machine knows."""
    try:
        user = pwd.getpwuid(uid)
        return uid == 0 or gid in os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:
        return True  # somebody whom this machine does not know: nothing speaks against it


def copy_attributes(path: Path, handle: int) -> None:
    """Access lists and the like, where the old file has them and the new one can."""
    with suppress(OSError, AttributeError):
        for name in os.listxattr(path, follow_symlinks=False):
            with suppress(OSError):
                os.setxattr(handle, name, os.getxattr(path, name, follow_symlinks=False))


def owner(status: os.stat_result) -> str:
    """The name of whoever a file belongs to."""
    return files.login_of(status.st_uid)
