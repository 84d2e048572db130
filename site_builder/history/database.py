"""Open state/history.db, bring it up to date, and set it aside if it is damaged."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from site_builder.core.files import FileRefusedError, check_own_file, is_emptied_file
from site_builder.core.locks import try_acquire_lock
from site_builder.core.model import Problem

DATABASE_NAME = "history.db"
DATABASE_WHERE = f"state/{DATABASE_NAME}"
FILE_SUFFIXES = ("", "-wal", "-shm")
# How long we wait for another program.
LOCK_TIMEOUT_S = 0.5
LOCK_POLL_INTERVAL_S = 0.01
# A page holds some blocks of an hour; half of one is lost behind a long one.
PAGE_BYTES = 4096
MAX_WAL_BYTES = 8 * 1024 * 1024
MAX_BROKEN_FILES = 3
NOT_A_DATABASE_MESSAGE = "file is not a database"
EMPTY_FILE_MESSAGE = "file is not a database: it is empty"
SQLITE_CORRUPT, SQLITE_NOTADB = 11, 26
BROKEN_MESSAGES = ("malformed", "not a database", "encrypted", "corrupt")
# The minutes of GPUs, in the order of StateMinutes. The column of the state `conflict` keeps the name `violated` that
# older versions gave it, so that nothing need be migrated and an older gpuboard can still read the file.
STATE_COLUMNS = ("unknown", "lost", "violated", "held", "busy", "booked", "free")
SEEN_COLUMNS = ("seen", *STATE_COLUMNS, "unowned", "told", "use", "taken_told", "taken_use")
# The statements that bring a file from one version to the next; migrations only add.
MIGRATIONS = [Path(__file__).with_name("schema.sql").read_text().split(";\n")]


class HistoryUnusableError(Exception):
    """Sentence that says why there is no history."""


def open_database(path: Path, read_only: bool = False) -> sqlite3.Connection:
    """Open the file; a new one is created, and an old one is brought up to date."""
    if is_emptied_file(path):
        raise sqlite3.DatabaseError(EMPTY_FILE_MESSAGE)
    if read_only:
        address = f"file:{quote(str(path.absolute()))}?mode=ro"
        connection = sqlite3.connect(address, uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    else:
        create_database(path)
        refuse_foreign_database(path)
        connection = sqlite3.connect(str(path), timeout=LOCK_TIMEOUT_S, isolation_level=None)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            message = f"it was written by a newer gpuboard (version {version}, this one supports {len(MIGRATIONS)})"
            raise HistoryUnusableError(message)
        if read_only and version < len(MIGRATIONS):
            message = f"it is of version {version}: the next `gpuboard build` updates it to {len(MIGRATIONS)}"
            raise HistoryUnusableError(message)
        if not read_only:
            prepare_database_for_writing(connection, version)
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_foreign_database(path: Path) -> None:
    """Refuse a file of another user, or that others may write; a link to a larger disk is fine."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            check_own_file(status)
    except OSError:
        return  # SQLite says what is wrong
    except FileRefusedError as error:
        raise HistoryUnusableError(str(error)) from None


class DatabaseIdentity(NamedTuple):
    """Identity of an open file and its log, to notice that they were replaced."""

    inode: int
    log_inode: int | None
    size: int


def read_database_identity(path: Path) -> DatabaseIdentity:
    """Read the identity without opening the file: closing it again would free the locks of SQLite."""
    status, log_inode = path.stat(), None
    if stat.S_ISDIR(status.st_mode):
        raise sqlite3.DatabaseError(NOT_A_DATABASE_MESSAGE)
    with suppress(FileNotFoundError):
        log_inode = path.with_name(path.name + FILE_SUFFIXES[1]).stat().st_ino
    return DatabaseIdentity(status.st_ino, log_inode, status.st_size)


def is_same_database(path: Path, opened: DatabaseIdentity) -> bool:
    """Return True if a file is the one that was opened; SQLite would go on writing to the deleted one."""
    current = read_database_identity(path)
    if current.inode == opened.inode and current.size < opened.size:  # it never becomes smaller by itself
        raise sqlite3.DatabaseError(NOT_A_DATABASE_MESSAGE)
    return (current.inode, current.log_inode) == (opened.inode, opened.log_inode)


def prepare_database_for_writing(connection: sqlite3.Connection, version: int) -> None:
    if not version:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode=WAL")  # on a file system without it, as it is
    connection.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")
    if version < len(MIGRATIONS):
        with begin_database_transaction(connection):
            # another builder may have been faster
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for step in MIGRATIONS[version:]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


@contextmanager
def begin_database_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def is_broken_database(error: Exception, path: Path) -> bool:
    """Return True if a file is damaged, and not only out of reach for now."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    if path.is_dir():
        return True
    code = getattr(error, "sqlite_errorcode", None)  # from Python 3.11 on
    if code is not None:
        return code & 0xFF in {SQLITE_CORRUPT, SQLITE_NOTADB}
    return any(word in str(error) for word in BROKEN_MESSAGES)


def set_aside_database(path: Path, now: float) -> bool:
    """Rename a damaged file, so that a new one can be created; False if there are too many already."""
    if len(list_broken_databases(path.parent)) >= MAX_BROKEN_FILES:
        return False
    new = f"{path.name}.broken-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
    while path.with_name(new).exists():
        new += "x"
    for suffix in FILE_SUFFIXES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(path.with_name(new + suffix))
    return True


def list_broken_databases(state: Path) -> list[str]:
    try:
        names = [path.name for path in state.glob(f"{DATABASE_NAME}.broken-*")]
    except OSError:
        return []
    return sorted(name for name in names if not name.endswith(FILE_SUFFIXES[1:]))


def describe_broken_databases(state: Path) -> list[Problem]:
    """Describe the damaged files for the page, for as long as they are there."""
    names = list_broken_databases(state)
    if not names:
        return []
    joined_names = " and ".join(names)
    is_emptied = all(is_emptied_file(state / name) for name in names)
    what = "was emptied" if is_emptied else "was damaged"
    what += ", and a new one was started" if len(names) < MAX_BROKEN_FILES else " repeatedly"
    return [Problem(DATABASE_WHERE, f"{what}: {joined_names} is the old one; delete it when you no longer need it")]


def create_database(path: Path) -> None:
    """Create the file if there is none, and remove what a deleted one left beside it."""
    if path.exists():
        return
    with hold_database_folder_lock(path.parent):
        if not path.exists():
            remove_database_side_files(path)
            new = path.with_name(f".{path.name}.new")
            for suffix in FILE_SUFFIXES:
                new.with_name(new.name + suffix).unlink(missing_ok=True)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))  # it names people
            # with all its tables before it has its name: one that is empty there was emptied
            connection = sqlite3.connect(str(new), timeout=LOCK_TIMEOUT_S, isolation_level=None)
            try:
                prepare_database_for_writing(connection, 0)
            finally:
                connection.close()
            new.rename(path)


def remove_replaced_database_log(path: Path, opened: DatabaseIdentity) -> None:
    """Remove the log of a file that we had open, if another file is in its place."""
    with hold_database_folder_lock(path.parent):
        current = read_database_identity(path)
        if current.inode != opened.inode and current.log_inode == opened.log_inode:
            remove_database_side_files(path)


@contextmanager
def hold_database_folder_lock(folder: Path) -> Iterator[None]:
    """Keep other builders from doing the same; go on without the lock after a while."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    end = time.monotonic() + LOCK_TIMEOUT_S
    try:
        with suppress(OSError):  # not every file system has locks
            while not try_acquire_lock(handle) and time.monotonic() < end:
                time.sleep(LOCK_POLL_INTERVAL_S)
        yield
    finally:
        os.close(handle)


def remove_database_side_files(path: Path) -> None:
    for suffix in FILE_SUFFIXES[1:]:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
