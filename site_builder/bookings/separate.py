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

from site_builder.bookings import store
from site_builder.bookings.policy import Refused
from site_builder.bookings.service import Broken, Desk
from site_builder.bookings.store import FILE, GOOD, LOG, WATCHES, Unwritable
from site_builder.bookings.transaction import Who
from site_builder.config import conf_file
from site_builder.config.settings import Settings, Wrong
from site_builder.core import files, locks
from site_builder.core.names import BOOKINGS, is_host
from site_builder.core.protection import is_left, is_ours, name_writers
from site_builder.core.shared_folder import booking_folder, is_pointer
from site_builder.snapshots.store import OF_HOST
from site_builder.watches import parser as watche_parser
from site_builder.watches.store import Entries, WatchList

NEW = f".{BOOKINGS}.new"
# What the two files were when they were copied: only what was changed in data/ since then is taken over.
BASES = {FILE: ".comments.json.before", WATCHES: ".watches.json.before"}
LOGS = (f"{LOG}.1", LOG)
OTHERS = (GOOD, ".comments.json.copy", ".watches.json.copy", f"{FILE}.by-hand", f"{WATCHES}.by-hand")
MOST = store.LOG_LIMIT + 4 * store.LIMIT
INSTALLER = Who("gpuboard", admin=True, via="install")
Tell = Callable[[str], None]


class SeparationError(Exception):
    """Why bookings and data/ stay as they are, in one sentence."""


def separate_bookings(settings: Settings, tell: Tell) -> None:
    """Move bookings to data/bookings/ and close data/, if other accounts can write there; finish what was begun."""
    data = settings.data
    writers = name_writers(data)
    begun = os.path.lexists(data / NEW)
    if writers and not is_ours(data):
        message = (
            f"{writers} can put links into {data}, which is not this user's: its owner must call chmod go-w {data}"
        )
        raise SeparationError(message)
    if (writers or begun) and booking_folder(data) == data:
        if os.path.lexists(data / BOOKINGS):
            message = f"{data / BOOKINGS} must be a folder of the owner of {data}: remove it, or give it to them"
            raise SeparationError(message)
        make_folder(data)
        close_data(data)
        move_bookings(data)
        tell(f"Bookings are in {data / BOOKINGS} now, which {writers or 'the group'} can write to.")
    if booking_folder(data) != data and is_ours(data):
        take_over(settings)
    if writers:
        close_data(data)
        how = (
            "others can add to it, and change only what is theirs"
            if is_sticky(data)
            else "only this user can write to it"
        )
        tell(f"{data} itself: {how}.")


def is_sticky(data: Path) -> bool:
    """Return True if accounts can change only what is theirs in data/."""
    return bool(data.stat().st_mode & stat.S_ISVTX)


def make_folder(data: Path) -> None:
    """Make the folder beside its place, with the group of data/ and the rights that others have there.

    It comes before data/ is closed: whoever is killed in between leaves what shows that this was begun.
    """
    with suppress(FileExistsError):
        (data / NEW).mkdir(0o700)
    with store.opened(data) as top, opened_new(top, data) as folder:
        like = os.fstat(top)
        if not like.st_mode & 0o022:  # closed already: the folder has its mode since then
            return
        try:
            os.fchown(folder, like.st_uid if os.geteuid() == 0 else -1, like.st_gid)
        except OSError as error:
            message = f"this user is not in the group of {data}, and cannot give {BOOKINGS}/ to it: {error.strerror}"
            raise SeparationError(message) from None
        os.fchmod(folder, 0o2770 | like.st_mode & 0o007)


def close_data(data: Path) -> None:
    """Take the right to write from all others; where other accounts push, set the sticky bit instead."""
    with store.opened(data) as top:
        mode = stat.S_IMODE(os.fstat(top).st_mode)
        foreign = False
        with os.scandir(top) as entries:
            for entry in entries:
                is_folder = is_host(entry.name) and entry.is_dir(follow_symlinks=False)
                if not is_folder and not OF_HOST.fullmatch(entry.name):
                    continue
                status = entry.stat(follow_symlinks=False)
                if status.st_uid != os.fstat(top).st_uid:
                    foreign = True
                elif is_folder and status.st_mode & 0o022:
                    with suppress(OSError), opened_inside(top, entry.name) as folder:
                        os.fchmod(folder, stat.S_IMODE(os.fstat(folder).st_mode) & ~0o022)
        os.fchmod(top, mode | stat.S_ISVTX if foreign else mode & ~0o022)


def move_bookings(data: Path) -> None:
    """Copy all files of bookings into the new folder, and put that in its place, whole."""
    with (
        store.locked(data),
        store.opened(data) as top,
        opened_new(top, data) as folder,
        locked_folder(folder, data / NEW),
    ):
        for name in (FILE, WATCHES, *LOGS, *OTHERS):
            content = content_of(top, data, name)
            if content is None:
                continue
            put(folder, data / NEW / name, content)
            if name in BASES:
                put(folder, data / NEW / BASES[name], content)
        os.fsync(folder)
        os.rename(NEW, BOOKINGS, src_dir_fd=top, dst_dir_fd=top)
        os.fsync(top)


def take_over(settings: Settings) -> None:
    """Take over what stands in data/ and not in data/bookings/, and leave links there."""
    data, place = settings.data, booking_folder(settings.data)
    with store.opened(data) as top, store.opened(place) as folder, locked_folder(top, data):
        for name, take in ((FILE, take_bookings), (WATCHES, take_watches)):
            base, left = content_of(folder, place, BASES[name]), None
            while is_left(data / name) and left != (now := content_of(top, data, name)):  # people edit without a lock
                left = now
                take(settings, left, base)
                base = left
            point(top, name)
        take_logs(data, top, place, folder)
        for name in (*LOGS, *OTHERS):
            content = content_of(top, data, name)
            if content is not None and not os.path.lexists(place / name):
                put(folder, place / name, content)
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=top)
        for name in BASES.values():
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def take_bookings(settings: Settings, left: bytes | None, base: bytes | None) -> None:
    """Make the changes in data/bookings/ that data/comments.json has had since it was copied."""
    if left is None or left == base:
        return
    data = settings.data
    with store.locked(data) as book:
        fresh = not os.path.lexists(book.folder / FILE)
        if fresh:
            with store.opened(book.folder) as folder:
                put(folder, book.folder / FILE, left)
            return
    try:
        Desk(settings).put(INSTALLER, base or b"{}\n", left)
    except (Refused, Broken, Unwritable) as why:
        what = f"{data / FILE} has bookings that {book.folder / FILE} has not"
        message = f"{what}: {why}; add them by `gpuboard edit`, and remove it"
        raise SeparationError(message) from None


def take_watches(settings: Settings, left: bytes | None, base: bytes | None) -> None:
    """Add the watches that came to data/watches.json since it was copied."""
    if left is None or left == base:
        return
    try:
        before, now = watche_parser.entries(base or b""), watche_parser.entries(left)
    except watche_parser.Unreadable as why:
        message = f"{settings.data / WATCHES} cannot be read: {why}; correct it, or remove it"
        raise SeparationError(message) from None

    def add(entries: Entries) -> Entries:
        return [*entries, *(one for one in now if one not in before and one not in entries)]

    WatchList(settings.data, settings.kv).change(add)


def take_logs(data: Path, top: int, place: Path, folder: int) -> None:
    """Add the lines of the log that came since it was copied."""
    for name in LOGS:
        left = content_of(top, data, name)
        if left is not None:
            kept = content_of(folder, place, name) or b""
            known = set(kept.splitlines())
            lines = [line for line in left.splitlines() if line not in known]
            if lines:
                put(folder, place / name, kept + b"\n".join(lines) + b"\n")


def point(top: int, name: str) -> None:
    """Leave a link in data/ that leads people to the file; whatever stood there has been taken over."""
    new = f".{name}.link"
    target = f"{BOOKINGS}/{name}"
    with suppress(OSError):
        if os.readlink(name, dir_fd=top) == target:
            return
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=top)
    try:
        os.symlink(target, new, dir_fd=top)
        os.rename(new, name, src_dir_fd=top, dst_dir_fd=top)
    except OSError:  # this disk has no links
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=top)


def move_receiver_files(settings: Settings) -> None:
    """Remove data/.receive, where gpu-receive.sh kept its locks once, and move its log to the state folder."""
    data, place = settings.data, settings.state / "receive"
    with store.opened(data) as top, suppress(PermissionError, SeparationError):
        for name in ("receive.log", "receive.log.1"):
            content = content_of(top, data, name)
            free = [one for one in ("receive.log", "receive.log.1") if not (place / one).exists()]
            if content is not None and free:
                place.mkdir(0o700, exist_ok=True)
                files.replace(place / free[0], content, 0o600)
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=top)
    old = data / ".receive"
    with suppress(PermissionError):
        if old.is_symlink():
            old.unlink()
        elif old.is_dir():
            shutil.rmtree(old)


@contextmanager
def opened_inside(top: int, name: str) -> Iterator[int]:
    """Open a folder in an open folder; a link is not followed."""
    handle = os.open(name, files.FOLDER, dir_fd=top)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def opened_new(top: int, data: Path) -> Iterator[int]:
    """Open the folder that is being made; until data/ is closed, others can put one of theirs in its place."""
    with opened_inside(top, NEW) as folder:
        owner = os.fstat(folder).st_uid
        if owner not in {os.fstat(top).st_uid, os.geteuid()}:
            message = f"{data / NEW} belongs to {files.login_of(owner)}: remove it"
            raise SeparationError(message)
        yield folder


@contextmanager
def locked_folder(folder: int, path: Path) -> Iterator[None]:
    """Take the lock of bookings in an open folder, whether they are there or not."""
    handle = store.lock_file(folder, path)
    try:
        if not locks.wait(handle, time.monotonic() + store.PATIENCE, store.LOOK_EVERY):
            message = f"somebody else has been writing {path / FILE} for {store.PATIENCE:.0f} s: try again"
            raise SeparationError(message)
        yield
    finally:
        os.close(handle)


def content_of(folder: int, path: Path, name: str) -> bytes | None:
    """Read a plain file in an open folder; None if it is not there."""
    if is_pointer(path / name):
        message = f"{path / BOOKINGS} is not there, though {name} leads to it: put it back, or remove {path / name}"
        raise SeparationError(message)
    try:
        return files.read(name, folder, MOST)[1] if files.look(name, folder) else None
    except files.Refused as why:
        message = f"{path / name} cannot be read: {why}; remove it"
        raise SeparationError(message) from None


def put(folder: int, path: Path, content: bytes) -> None:
    """Write a file for all who may write in its folder."""
    store.replace(folder, path, content, os.fstat(folder), lambda: True)


def main() -> None:
    """Do it for the board of the settings, as `./install.sh web` needs it; exit 1 if something stays as it was."""
    try:
        settings = conf_file.in_force(None, {}, os.environ).settings
        move_receiver_files(settings)
        separate_bookings(settings, print)
    except (SeparationError, Unwritable, Wrong) as why:
        sys.exit(f"gpuboard: {why}")
    except OSError as error:
        sys.exit(f"gpuboard: {error.filename or 'data/'} cannot be changed: {error.strerror}")


if __name__ == "__main__":
    main()
