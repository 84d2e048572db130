"""Give bookings a folder of their own, data/bookings/, where several accounts book, and close data/ to the others.

`./install.sh web` calls this. It may be killed at any moment: the next call goes on, and no booking is lost. While it
works, it has the lock of data/ and that of data/bookings/. A link in the place of each file that has moved makes
programs of older versions, which know only data/, refuse to book there; no program follows it.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from site_builder.bookings import store as booking_store
from site_builder.bookings.operations import EditOperation
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.service import BookingService
from site_builder.bookings.store import LAST_GOOD_FILE, LOG_FILE, BookingsUnreadableError
from site_builder.bookings.transaction import BookingUser
from site_builder.config.settings import Settings, SettingsError, load_settings
from site_builder.core import data_folder, files, locks
from site_builder.core.data_folder import BOOKINGS_FILE, WATCHES_FILE
from site_builder.core.locks import LockedFileError
from site_builder.core.names import BOOKINGS, is_host_name
from site_builder.snapshots.store import LEGACY_FILE_NAME
from site_builder.watches import store as watch_store
from site_builder.watches.store import WatchEntries, WatchStore

NEW_FOLDER = f".{BOOKINGS}.new"
# What the two files were when they were copied: only what was changed in data/ since then is taken over.
BASE_FILES = {BOOKINGS_FILE: ".comments.json.before", WATCHES_FILE: ".watches.json.before"}
LOG_FILES = (f"{LOG_FILE}.1", LOG_FILE)
OTHER_FILES = (
    LAST_GOOD_FILE,
    ".comments.json.copy",
    ".watches.json.copy",
    f"{BOOKINGS_FILE}.by-hand",
    f"{WATCHES_FILE}.by-hand",
)
MAX_FILE_BYTES = booking_store.MAX_LOG_BYTES + 4 * booking_store.MAX_BOOKINGS_BYTES
INSTALLER_USER = BookingUser("gpuboard", is_admin=True, via="install")


class BookingFolderError(Exception):
    """Why bookings and data/ stay as they are, in one sentence."""


def separate_booking_folder(settings: Settings, report: Callable[[str], None]) -> None:
    """Move bookings to data/bookings/ and close data/, if other accounts can write there; finish what was begun."""
    data = settings.data
    writers = data_folder.name_data_folder_writers(data)
    begun = os.path.lexists(data / NEW_FOLDER)
    if writers and not data_folder.is_data_folder_ours(data):
        problem = f"{writers} can put links into {data}, which is not this user's"
        raise BookingFolderError(f"{problem}: its owner must run chmod go-w {data}")
    if (writers or begun) and data_folder.find_bookings_folder_in_data(data) == data:
        if os.path.lexists(data / BOOKINGS):
            problem = f"{data / BOOKINGS} must be a folder of the owner of {data}"
            raise BookingFolderError(f"{problem}: remove it, or change its owner")
        make_booking_folder(data)
        close_data_folder(data)
        with (
            booking_store.hold_booking_store_lock(data),
            booking_store.open_booking_store_folder(data) as top,
            open_new_booking_folder(top, data) as folder,
            hold_folder_lock(folder, data / NEW_FOLDER),
        ):
            for name in (BOOKINGS_FILE, WATCHES_FILE, *LOG_FILES, *OTHER_FILES):
                content = read_booking_folder_file(top, data, name)
                if content is None:
                    continue
                write_booking_folder_file(folder, data / NEW_FOLDER / name, content)
                if name in BASE_FILES:
                    write_booking_folder_file(folder, data / NEW_FOLDER / BASE_FILES[name], content)
            os.fsync(folder)
            os.rename(NEW_FOLDER, BOOKINGS, src_dir_fd=top, dst_dir_fd=top)
            os.fsync(top)
        report(f"Bookings are now in {data / BOOKINGS}, which {writers or 'the group'} can write to.")
    if data_folder.find_bookings_folder_in_data(data) != data and data_folder.is_data_folder_ours(data):
        take_over_into_booking_folder(settings)
    if writers:
        close_data_folder(data)
        is_sticky = data.stat().st_mode & stat.S_ISVTX
        how = "others can add to it, and change only what is theirs" if is_sticky else "only this user can write to it"
        report(f"{data} itself: {how}.")


def make_booking_folder(data: Path) -> None:
    """Make the folder beside its place, with the group of data/ and the rights that others have there.

    It comes before data/ is closed: whoever is killed in between leaves what shows that this was begun.
    """
    with suppress(FileExistsError):
        (data / NEW_FOLDER).mkdir(0o700)
    with booking_store.open_booking_store_folder(data) as top, open_new_booking_folder(top, data) as folder:
        like = os.fstat(top)
        if not like.st_mode & 0o022:  # closed already: the folder has its mode since then
            return
        try:
            os.fchown(folder, like.st_uid if os.geteuid() == 0 else -1, like.st_gid)
        except OSError as error:
            problem = f"this user is not in the group of {data}, and cannot give {BOOKINGS}/ to it"
            raise BookingFolderError(f"{problem}: {error.strerror}") from None
        os.fchmod(folder, 0o2770 | like.st_mode & 0o007)


def close_data_folder(data: Path) -> None:
    """Take the right to write from all others; where other accounts push, set the sticky bit instead."""
    with booking_store.open_booking_store_folder(data) as top:
        mode = stat.S_IMODE(os.fstat(top).st_mode)
        foreign = False
        with os.scandir(top) as entries:
            for entry in entries:
                is_folder = is_host_name(entry.name) and entry.is_dir(follow_symlinks=False)
                if not is_folder and not LEGACY_FILE_NAME.fullmatch(entry.name):
                    continue
                status = entry.stat(follow_symlinks=False)
                if status.st_uid != os.fstat(top).st_uid:
                    foreign = True
                elif is_folder and status.st_mode & 0o022:
                    with suppress(OSError), open_booking_folder_in_data(top, entry.name) as folder:
                        os.fchmod(folder, stat.S_IMODE(os.fstat(folder).st_mode) & ~0o022)
        os.fchmod(top, mode | stat.S_ISVTX if foreign else mode & ~0o022)


def take_over_into_booking_folder(settings: Settings) -> None:
    """Move what is in data/ but not in data/bookings/, and leave links there."""
    data, place = settings.data, data_folder.find_bookings_folder_in_data(settings.data)
    with (
        booking_store.open_booking_store_folder(data) as top,
        booking_store.open_booking_store_folder(place) as folder,
        hold_folder_lock(top, data),
    ):
        for name, take in ((BOOKINGS_FILE, take_over_bookings), (WATCHES_FILE, take_over_watches)):
            base = read_booking_folder_file(folder, place, BASE_FILES[name])
            # as often as it changes: people edit without a lock
            while (
                data_folder.is_unmoved_data_file(data / name)
                and (left := read_booking_folder_file(top, data, name)) is not None
                and left != base
            ):
                take(settings, left, base)
                base = left
            leave_link_to_booking_folder(top, name)
        for name in (*LOG_FILES, *OTHER_FILES):
            left = read_booking_folder_file(top, data, name)
            if left is not None and not os.path.lexists(place / name):
                write_booking_folder_file(folder, place / name, left)
            elif left is not None and name in LOG_FILES:
                kept = read_booking_folder_file(folder, place, name) or b""
                known = set(kept.splitlines())
                lines = [line for line in left.splitlines() if line not in known]
                if lines:
                    kept += b"" if not kept or kept.endswith(b"\n") else b"\n"  # whoever wrote it was killed
                    write_booking_folder_file(folder, place / name, kept + b"\n".join(lines) + b"\n")
            remove_from_booking_folder(top, name)
        for name in BASE_FILES.values():
            remove_from_booking_folder(folder, name)


def take_over_bookings(settings: Settings, left: bytes, base: bytes | None) -> None:
    """Make the changes in data/bookings/ that data/comments.json has had since it was copied."""
    data = settings.data
    with booking_store.hold_booking_store_lock(data) as book:
        if not os.path.lexists(book.folder / BOOKINGS_FILE):
            with booking_store.open_booking_store_folder(book.folder) as folder:
                write_booking_folder_file(folder, book.folder / BOOKINGS_FILE, left)
            return
    try:
        BookingService(settings).execute(INSTALLER_USER, EditOperation(base or b"{}\n", left))
    except (BookingRefusedError, BookingsUnreadableError, LockedFileError) as why:
        what = f"{data / BOOKINGS_FILE} has bookings that are missing in {book.folder / BOOKINGS_FILE}"
        raise BookingFolderError(f"{what}: {why}; add them with `gpuboard edit`, then remove it") from None


def take_over_watches(settings: Settings, left: bytes, base: bytes | None) -> None:
    """Add the watches that came to data/watches.json since it was copied."""
    try:
        before, now = watch_store.parse_watch_entries(base or b""), watch_store.parse_watch_entries(left)
    except watch_store.WatchFileError as why:
        problem = f"{settings.data / WATCHES_FILE} cannot be read: {why}"
        raise BookingFolderError(f"{problem}; correct it, or remove it") from None

    def add(entries: WatchEntries) -> WatchEntries:
        return [*entries, *(entry for entry in now if entry not in before and entry not in entries)]

    WatchStore(settings.data, settings.kv).change(add)


def leave_link_to_booking_folder(top: int, name: str) -> None:
    """Leave a link in data/ that leads people to the file; whatever stood there has been taken over."""
    new = f".{name}.link"
    target = f"{BOOKINGS}/{name}"
    with suppress(OSError):
        if os.readlink(name, dir_fd=top) == target:
            return
    remove_from_booking_folder(top, new)
    try:
        os.symlink(target, new, dir_fd=top)
        os.rename(new, name, src_dir_fd=top, dst_dir_fd=top)
    except OSError:  # this disk has no links
        remove_from_booking_folder(top, name)


def remove_from_booking_folder(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def move_receiver_files(settings: Settings) -> None:
    """Remove data/.receive, where gpu-receive.sh kept its locks once, and move its log to the state folder."""
    data, place = settings.data, settings.state / "receive"
    with booking_store.open_booking_store_folder(data) as top, suppress(PermissionError, BookingFolderError):
        names = ("receive.log", "receive.log.1")
        for name in names:
            content = read_booking_folder_file(top, data, name)
            free_places = [place / free for free in names if not (place / free).exists()]
            if content is not None and free_places:
                place.mkdir(0o700, exist_ok=True)
                files.write_atomically(free_places[0], content, 0o600)
            remove_from_booking_folder(top, name)
    old = data / ".receive"
    with suppress(PermissionError):
        if old.is_symlink():
            old.unlink()
        elif old.is_dir():
            shutil.rmtree(old)


@contextmanager
def open_booking_folder_in_data(top: int, name: str) -> Iterator[int]:
    """Open a folder in an open folder; a link is not followed."""
    handle = os.open(name, files.FOLDER_FLAGS, dir_fd=top)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def open_new_booking_folder(top: int, data: Path) -> Iterator[int]:
    """Open the folder that is being made; until data/ is closed, others can put one of theirs in its place."""
    with open_booking_folder_in_data(top, NEW_FOLDER) as folder:
        owner = os.fstat(folder).st_uid
        if owner not in {os.fstat(top).st_uid, os.geteuid()}:
            raise BookingFolderError(f"{data / NEW_FOLDER} belongs to {files.find_file_owner_login(owner)}: remove it")
        yield folder


@contextmanager
def hold_folder_lock(folder: int, path: Path) -> Iterator[None]:
    """Take the lock of bookings in an open folder, whether they are there or not."""
    handle = booking_store.open_booking_store_lock(folder, path)
    try:
        timeout_s = booking_store.LOCK_TIMEOUT_S
        if not locks.acquire_lock(handle, time.monotonic() + timeout_s, booking_store.LOCK_POLL_INTERVAL_S):
            what = f"another process has been writing {path / BOOKINGS_FILE} for {timeout_s:.0f} s"
            raise BookingFolderError(f"{what}: try again")
        yield
    finally:
        os.close(handle)


def read_booking_folder_file(folder: int, path: Path, name: str) -> bytes | None:
    """Read a plain file in an open folder; None if it is not there."""
    if data_folder.is_moved_data_file_link(path / name):
        problem = f"{path / BOOKINGS} is missing, though {name} links to it"
        raise BookingFolderError(f"{problem}: put it back, or remove {path / name}")
    try:
        return files.read_file(name, folder, MAX_FILE_BYTES)[1] if files.read_signature(name, folder) else None
    except files.FileRefusedError as why:
        raise BookingFolderError(f"{path / name} cannot be read: {why}; remove it") from None


def write_booking_folder_file(folder: int, path: Path, content: bytes) -> None:
    """Write a file for all who may write in its folder."""
    booking_store.replace_booking_store_file(folder, path, content, os.fstat(folder), lambda: True)


def main() -> None:
    """Do it for the board of the settings, as `./install.sh web` needs it; exit 1 if something stays as it was."""
    try:
        settings = load_settings(None, {}, os.environ).settings
        move_receiver_files(settings)
        separate_booking_folder(settings, print)
    except (BookingFolderError, LockedFileError, SettingsError) as why:
        sys.exit(f"gpuboard: {why}")
    except OSError as error:
        sys.exit(f"gpuboard: {error.filename or 'data/'} cannot be changed: {error.strerror}")


if __name__ == "__main__":
    main()
