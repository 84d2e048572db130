"""Read and write comments.json and its log, under a lock."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import tzinfo
from pathlib import Path
from typing import Any

from site_builder.bookings import parser
from site_builder.bookings.json_edit import BookingJsonError, JsonDocument
from site_builder.core import files, locks
from site_builder.core.data_folder import BOOKINGS_FILE, CachedDataFile, find_bookings_folder_in_data
from site_builder.core.locks import LockedFileBusyError, LockedFileError
from site_builder.core.model import Booking, Problem, Row

# Some 20,000 bookings; a larger file was not written by people.
MAX_BOOKINGS_BYTES = 4 * 1024 * 1024
# Limit for bookings, which must be readable again, with room for what people add by hand.
MAX_BOOKED_BYTES = MAX_BOOKINGS_BYTES * 3 // 4
LAST_GOOD_FILE = "comments.last-good.json"
LOCK_FILE = ".comments.json.lock"
TEMPORARY_PREFIX = ".comments.json.new-"
LOG_FILE = "bookings.log"
ARCHIVE_FILE = "bookings-past.jsonl"
ARCHIVE_TAIL_BYTES = 8 * 1024 * 1024
LOCK_TIMEOUT_S = 20.0
LOCK_POLL_INTERVAL_S = 0.01
# An editor may be between emptying the file and writing it.
EMPTY_FILE_GRACE_S = 0.3
MAX_LOG_BYTES = 1024 * 1024
ASK_ADMIN_HINT = "ask the admin, or book through the board with GPUBOARD_URL and a token"
SHARED_GROUP_HINT = "make it writable for a group that you share"


class BookingStore:
    """comments.json and bookings.log, for a process that holds the lock."""

    def __init__(self, data: Path) -> None:
        self.data_folder = data
        self.folder = find_bookings_folder_in_data(data)
        self.max_bytes = MAX_BOOKINGS_BYTES  # bytes that it can hold
        self.signature: files.FileSignature | None = None

    def read_unlocked(self) -> bytes:
        """Read the bookings without changing anything."""
        return self.read()

    def read(self) -> bytes:
        """Read the bookings; a file that was never written has none."""
        deadline = time.monotonic() + EMPTY_FILE_GRACE_S
        while True:
            self.signature, content = read_booking_store_file(self.folder, BOOKINGS_FILE, MAX_BOOKINGS_BYTES)
            if content.strip():
                return content
            if self.signature is None or time.monotonic() > deadline:
                break
            time.sleep(LOCK_POLL_INTERVAL_S)
        if has_any_bookings(self.folder / LAST_GOOD_FILE):  # then it was not meant to be empty or gone
            fault = "is missing" if self.signature is None else "is empty"
            message = f"{self.folder / BOOKINGS_FILE} {fault}, though {LAST_GOOD_FILE} beside it has bookings"
            raise LockedFileError(f"{message}: copy that back, or write {{}}")
        return b"{}\n"

    def write(self, content: bytes) -> bool:
        """Replace the content that was read; return False if the file has changed since."""
        with open_booking_store_folder(self.folder) as folder:
            owner_status = self.check_owner(folder)
            with os.scandir(folder) as entries:  # nobody else writes: what is left is of killed processes
                for entry in entries:
                    if entry.name.startswith(TEMPORARY_PREFIX):
                        with suppress(OSError):
                            os.unlink(entry.name, dir_fd=folder)

            def is_unchanged() -> bool:
                return files.read_signature(BOOKINGS_FILE, folder) == self.signature

            if not replace_booking_store_file(folder, self.folder / BOOKINGS_FILE, content, owner_status, is_unchanged):
                return False
            self.signature = files.read_signature(BOOKINGS_FILE, folder)
            with suppress(LockedFileError):
                replace_booking_store_file(folder, self.folder / LAST_GOOD_FILE, content, owner_status)
        return True

    def check_owner(self, folder: int) -> os.stat_result:
        """Return whose the new file shall be; refuse a user who may not write the old one."""
        try:
            owner_status = os.stat(BOOKINGS_FILE, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return os.fstat(folder)
        if not os.access(BOOKINGS_FILE, os.W_OK, dir_fd=folder):
            message = f"{self.folder / BOOKINGS_FILE} belongs to {files.find_file_owner_login(owner_status.st_uid)}"
            raise LockedFileError(f"{message}, and you cannot write it: {ASK_ADMIN_HINT}")
        return owner_status

    def append_log(self, line: dict[str, Any]) -> None:
        """Append a line about a coming change; a large file is first renamed."""
        path = self.folder / LOG_FILE
        try:
            text = json.dumps(line, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a surrogate, which UTF-8 cannot hold
            text = json.dumps(line).encode()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | files.READ_FLAGS
        try:
            with open_booking_store_folder(self.folder) as folder:
                owner_status = self.check_owner(folder)
                with suppress(FileNotFoundError):
                    if path.stat().st_size > MAX_LOG_BYTES:
                        path.replace(path.with_name(f"{LOG_FILE}.1"))
                handle = os.open(LOG_FILE, flags, 0o600, dir_fd=folder)
                with os.fdopen(handle, "rb+") as file:
                    if os.fstat(handle).st_size == 0:
                        copy_booking_store_ownership(handle, owner_status)
                    else:
                        file.seek(-1, os.SEEK_END)
                        if file.read(1) != b"\n":  # somebody was killed while writing
                            file.write(b"\n")
                    file.write(text + b"\n")
                    file.flush()
                    os.fsync(handle)
        except OSError as error:
            raise LockedFileError(f"{path} cannot be written: {error.strerror}; {ASK_ADMIN_HINT}") from None

    def read_log(self) -> list[dict[str, Any]]:
        """Return the changes, the newest first; skip lines that have not our form: anybody may have written them."""
        lines: list[dict[str, Any]] = []
        for name in (f"{LOG_FILE}.1", LOG_FILE):
            content = b""
            with suppress(LockedFileError):
                _, content = read_booking_store_file(self.folder, name, MAX_LOG_BYTES + 4 * MAX_BOOKINGS_BYTES)
            for text in content.splitlines():
                with suppress(ValueError):
                    line = json.loads(text)
                    if (
                        isinstance(line, dict)
                        and all(isinstance(line.get(key), str) for key in ("change", "who", "when", "what"))
                        and all(
                            isinstance(entries, list)
                            and all(
                                isinstance(entry, list) and [*map(type, entry)] == [str, str, dict] for entry in entries
                            )
                            for entries in (line.get("before"), line.get("after"))
                        )
                    ):
                        lines.append(line)
        return lines[::-1]


def has_any_bookings(path: Path) -> bool:
    """Return whether a file can be read and has entries."""
    try:
        return bool(JsonDocument.from_bytes(path.read_bytes()[:MAX_BOOKINGS_BYTES]).list_entries())
    except (OSError, BookingJsonError):
        return False


@contextmanager
def open_booking_store_folder(data: Path) -> Iterator[int]:
    """Open the folder, so that it cannot be replaced by another meanwhile."""
    try:
        folder = os.open(data, files.ROOT_FOLDER_FLAGS)
    except OSError as error:
        raise LockedFileError(f"{data} cannot be read: {error.strerror}; set GPUBOARD_DATA or GPUBOARD_URL") from None
    try:
        yield folder
    finally:
        os.close(folder)


def read_booking_store_file(data: Path, name: str, limit: int) -> tuple[files.FileSignature | None, bytes]:
    """Read a file with its signature; nothing if there is none."""
    with open_booking_store_folder(data) as folder:
        try:
            return files.read_file(name, folder, limit) if files.read_signature(name, folder) else (None, b"")
        except files.FileRefusedError as error:
            raise LockedFileError(f"{data / name} cannot be read: {error}") from None


def append_archive_lines(path: Path, moved: Iterable[parser.ParsedBooking]) -> None:
    """Append the bookings that are not there yet: a build that was killed between both files moves them again."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | files.READ_FLAGS, 0o600)
    with os.fdopen(handle, "rb+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - ARCHIVE_TAIL_BYTES))
        tail = file.read()
        present = set(tail.split(b"\n"))
        if tail and not tail.endswith(b"\n"):
            file.write(b"\n")
        for entry, booking in moved:
            line = {
                "host": booking.host,
                "gpu": booking.gpu,
                "id": booking.id,
                "from": booking.since and booking.since.isoformat(),
                "date": booking.until.isoformat(),
                "entry": entry.content,
            }
            text = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")
            if text not in present:
                file.write(text + b"\n")
        file.flush()
        os.fsync(handle)


def keep_replaced_bookings(state: Path, replaced: Sequence[parser.ParsedBooking]) -> None:
    """Archive bookings whose places others have taken, if state/ is ours; bookings.log has them in any case."""
    with suppress(OSError):
        if replaced and state.stat().st_uid == os.geteuid():
            append_archive_lines(state / ARCHIVE_FILE, replaced)


@contextmanager
def hold_booking_store_lock(data: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[BookingStore]:
    """Hold the lock on the bookings; the kernel frees it however we end."""
    deadline = time.monotonic() + timeout_s
    while True:
        booking_folder = find_bookings_folder_in_data(data)
        with open_booking_store_folder(booking_folder) as folder:
            handle = open_booking_store_lock(folder, booking_folder)
            try:
                try:
                    if not locks.acquire_lock(handle, deadline, LOCK_POLL_INTERVAL_S):
                        duration = f"{booking_folder / BOOKINGS_FILE} for {timeout_s:.0f} s"
                        raise LockedFileBusyError(f"another process has been writing {duration}: try again")
                except OSError as error:
                    raise LockedFileError(f"{booking_folder} cannot be locked: {error.strerror}") from None
                if find_bookings_folder_in_data(data) == booking_folder:  # else they were moved while we waited
                    yield BookingStore(data)
                    return
            finally:
                os.close(handle)


def open_booking_store_lock(folder: int, data: Path) -> int:
    """Open the lock file, or create it for all who may write in the folder."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            return os.open(LOCK_FILE, flags, dir_fd=folder)
        except FileNotFoundError:
            handle = os.open(LOCK_FILE, flags | os.O_CREAT, 0o600, dir_fd=folder)
            copy_booking_store_ownership(handle, os.fstat(folder))
            return handle
        except PermissionError:  # where it is a local file, one that can be read can be locked
            return os.open(LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise LockedFileError(f"{data / LOCK_FILE} cannot be opened: {error.strerror}; {ASK_ADMIN_HINT}") from None


def replace_booking_store_file(
    folder: int, path: Path, content: bytes, owner: os.stat_result, is_unchanged: Callable[[], bool] = lambda: True
) -> bool:
    """Write a temporary file, check that the old one is unchanged, and replace it."""
    temporary_name = f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}"
    try:
        handle = os.open(temporary_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                if not copy_booking_store_ownership(handle, owner):
                    message = f"{path} belongs to {files.find_file_owner_login(owner.st_uid)}"
                    raise LockedFileError(f"{message}, who could no longer write it after you: {SHARED_GROUP_HINT}")
                # access lists and the like, as far as the new file can have them
                with suppress(OSError, AttributeError):
                    for name in os.listxattr(path, follow_symlinks=False):
                        with suppress(OSError):
                            os.setxattr(handle, name, os.getxattr(path, name, follow_symlinks=False))
                os.fsync(handle)
            if not is_unchanged():
                return False
            os.rename(temporary_name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary_name, dir_fd=folder)
    except OSError as error:
        raise LockedFileError(f"{path} cannot be written: {error.strerror}; {ASK_ADMIN_HINT}") from None
    return True


def copy_booking_store_ownership(handle: int, owner_status: os.stat_result) -> bool:
    """Copy owner, group and mode of a file or folder; return whether all who could write that still can."""
    mode = owner_status.st_mode & 0o777
    if stat.S_ISDIR(owner_status.st_mode):
        mode = mode & 0o666 | 0o600
    own_status = os.fstat(handle)
    has_owner, has_group = own_status.st_uid == owner_status.st_uid, own_status.st_gid == owner_status.st_gid
    with suppress(OSError):
        os.fchown(handle, owner_status.st_uid, owner_status.st_gid)
        has_owner = has_group = True
    if not has_group:
        with suppress(OSError):
            os.fchown(handle, -1, owner_status.st_gid)
            has_group = True
    os.fchmod(handle, mode)
    if stat.S_ISDIR(owner_status.st_mode) or has_owner or mode & 0o002:
        return has_group or bool(mode & 0o002) or not mode & 0o020
    if not has_group or not mode & 0o020:
        return False
    try:
        user = pwd.getpwuid(owner_status.st_uid)
    except KeyError:
        return True  # somebody whom this machine does not know: nothing speaks against it
    return user.pw_uid == 0 or owner_status.st_gid in os.getgrouplist(user.pw_name, user.pw_gid)


class BookingStoreFile(CachedDataFile[Row]):
    """A file that all accounts which book may write."""

    @property
    def folder(self) -> Path:
        """Return the folder of the bookings, also if they move while we run."""
        return find_bookings_folder_in_data(self.data_folder)


class BookingsFile(BookingStoreFile[Booking]):
    """The bookings, from the last good file while the present one cannot be read."""

    def __init__(self, data: Path, state: Path | None, zone: tzinfo, name: str = BOOKINGS_FILE) -> None:
        super().__init__(data, state, name, lambda content: parser.parse_bookings(content, zone), MAX_BOOKINGS_BYTES)

    def store_content(self, content: bytes | None) -> list[Problem]:
        """Keep the last good content in state/, and beside the file, where people look for it."""
        if self.state_folder and content is not None:
            # if we may write there
            with suppress(OSError, LockedFileError), open_booking_store_folder(self.folder) as folder:
                owner_status = os.stat(BOOKINGS_FILE, dir_fd=folder, follow_symlinks=False)
                replace_booking_store_file(folder, self.folder / LAST_GOOD_FILE, content, owner_status)
        return super().store_content(content)


class BookingsUnreadableError(Exception):
    """comments.json cannot be read, so nothing is written: the line, and what helps."""
