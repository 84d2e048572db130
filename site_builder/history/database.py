"""state/history.db: how it is opened, brought up to date, and set aside where it is damaged."""

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

from site_builder.core.files import FileRefusedError, check_file, is_empty
from site_builder.core.locks import try_acquire_lock
from site_builder.core.model import Problem

DATABASE_NAME = "history.db"
DATABASE_WHERE = f"state/{DATABASE_NAME}"
FILE_SUFFIXES = ("", "-wal", "-shm")
# How long another program may keep us waiting.
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
SHARE_COLUMNS_SQL = "used INTEGER NOT NULL, held INTEGER NOT NULL, booked INTEGER NOT NULL, unused INTEGER NOT NULL"
# The column of the state `conflict` keeps the name `violated` that older versions gave it, so that nothing need be
# migrated and an older gpuboard can still read the file. SEEN_COLUMNS has the columns in the order of StateMinutes.
STATE_COLUMNS = ("unknown", "lost", "violated", "held", "busy", "booked", "free")
USE_COLUMNS = ("told", "use", "taken_told", "taken_use")
SEEN_COLUMNS = ("seen", *STATE_COLUMNS, "unowned", *USE_COLUMNS)
SEEN_COLUMNS_SQL = ", ".join(f"{name} INTEGER NOT NULL" for name in SEEN_COLUMNS)
# Each brings a file from one version to the next; what is there is never changed, only added to.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        "CREATE TABLE shape(id INTEGER PRIMARY KEY, host TEXT NOT NULL, gpus BLOB NOT NULL, first INTEGER NOT NULL)",
        "CREATE INDEX shape_host ON shape(host)",
        # from when on a host told which GPUs, each time that they became others
        "CREATE TABLE told(host TEXT, at INTEGER, shape INTEGER NOT NULL, PRIMARY KEY(host, at)) WITHOUT ROWID",
        # the fleet at a minute, in parts; `ahead` if a clock that ran ahead wrote it
        "CREATE TABLE minute(at INTEGER NOT NULL, part INTEGER NOT NULL, ahead INTEGER NOT NULL DEFAULT 0, "
        "block BLOB NOT NULL, PRIMARY KEY(at, part))",
        # which minutes of an hour are in chunks and sums, as bits: none of them counts again
        "CREATE TABLE rolled(at INTEGER, part INTEGER, minutes INTEGER NOT NULL, PRIMARY KEY(at, part)) WITHOUT ROWID",
        # a host over a time: step 60 an hour, step 300 a day, step 3600 for 32 days
        "CREATE TABLE chunk(step INTEGER NOT NULL, at INTEGER NOT NULL, shape INTEGER NOT NULL, block BLOB NOT NULL)",
        "CREATE UNIQUE INDEX chunk_place ON chunk(step, at, shape)",
        # days of which hours were added that the longer chunks lack
        "CREATE TABLE due(at INTEGER, shape INTEGER, PRIMARY KEY(at, shape)) WITHOUT ROWID",
        "CREATE TABLE name(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
        "CREATE TABLE share(day INTEGER, host INTEGER, model INTEGER, person INTEGER, "
        f"{SHARE_COLUMNS_SQL}, PRIMARY KEY(day, host, model, person)) WITHOUT ROWID",
        f"CREATE TABLE seen(day INTEGER, host INTEGER, model INTEGER, {SEEN_COLUMNS_SQL}, PRIMARY KEY(day, host, model)) "
        "WITHOUT ROWID",
        # the same by the hour, of all hosts together
        f"CREATE TABLE hour_share(at INTEGER, model INTEGER, person INTEGER, {SHARE_COLUMNS_SQL}, PRIMARY KEY(at, model, person)) "
        "WITHOUT ROWID",
        f"CREATE TABLE hour_seen(at INTEGER, model INTEGER, {SEEN_COLUMNS_SQL}, PRIMARY KEY(at, model)) WITHOUT ROWID",
        # a GPU, wherever it is: seen last, what its last minutes are alike in, how many they are, and all else of it
        "CREATE TABLE card(key TEXT PRIMARY KEY, last INTEGER NOT NULL, run INTEGER NOT NULL, "
        "minutes INTEGER NOT NULL, told BLOB NOT NULL) WITHOUT ROWID",
        "CREATE INDEX card_run ON card(run, minutes)",
        # times in which a GPU was promised, and nobody was on it; `place` is its index
        "CREATE TABLE unkept(card TEXT, since INTEGER, until INTEGER NOT NULL, host TEXT NOT NULL, key TEXT NOT NULL, "
        "place INTEGER, model TEXT NOT NULL, who BLOB NOT NULL, minutes INTEGER NOT NULL, "
        "PRIMARY KEY(card, since)) WITHOUT ROWID",
        "CREATE INDEX unkept_until ON unkept(until)",
        # what happened to GPUs; `place` is their index
        "CREATE TABLE event(host TEXT, number INTEGER, gpu TEXT NOT NULL, place INTEGER, kind TEXT NOT NULL, "
        "value BLOB NOT NULL, at INTEGER NOT NULL, since INTEGER, until INTEGER, by INTEGER, "
        "PRIMARY KEY(host, number)) WITHOUT ROWID",
        "CREATE INDEX event_gpu ON event(gpu, at, kind, until, by)",  # all by which some of many are chosen
        "CREATE INDEX event_at ON event(at)",
        # a host: since when its health is watched, since when it is away, its last signs, what they are compared with
        "CREATE TABLE counter(host TEXT PRIMARY KEY, first INTEGER NOT NULL, away INTEGER, signs BLOB NOT NULL, "
        "state BLOB NOT NULL) WITHOUT ROWID",
        "CREATE TABLE done(what TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID",
    ),
]


class HistoryUnusableError(Exception):
    """Why there is no history, in one sentence."""


def open_database(path: Path, read_only: bool = False) -> sqlite3.Connection:
    """The file, of the version that we know; a new one is begun, and an old one is brought up to date."""
    if is_empty(path):
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
            message = f"it was written by a newer gpuboard (version {version}, and we know {len(MIGRATIONS)})"
            raise HistoryUnusableError(message)
        if read_only and version < len(MIGRATIONS):
            message = f"it is of version {version}: the next `gpuboard build` brings it to {len(MIGRATIONS)}"
            raise HistoryUnusableError(message)
        if not read_only:
            prepare_for_writing(connection, version)
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_foreign_database(path: Path) -> None:
    """Refuse a file that is another user's, or that others may write; it may be a link, to a larger disk."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            check_file(status)
    except OSError:
        return  # SQLite says what is wrong
    except FileRefusedError as why:
        raise HistoryUnusableError(str(why)) from None


class DatabaseIdentity(NamedTuple):
    """What tells an open file, and the log beside it, from others that were put in their places."""

    inode: int
    log_inode: int | None
    size: int


def read_database_identity(path: Path) -> DatabaseIdentity:
    """What is there now; never by opening it, since to close it again would free the locks of SQLite."""
    told, log = path.stat(), None
    if stat.S_ISDIR(told.st_mode):
        raise sqlite3.DatabaseError(NOT_A_DATABASE_MESSAGE)
    with suppress(FileNotFoundError):
        log = path.with_name(path.name + FILE_SUFFIXES[1]).stat().st_ino
    return DatabaseIdentity(told.st_ino, log, told.st_size)


def is_same_database(path: Path, opened: DatabaseIdentity) -> bool:
    """Whether a file is the one that was opened: SQLite would go on with that, where nobody finds what is written."""
    there = read_database_identity(path)
    if there.inode == opened.inode and there.size < opened.size:  # it never becomes smaller by itself
        raise sqlite3.DatabaseError(NOT_A_DATABASE_MESSAGE)
    return there[:2] == opened[:2]


def prepare_for_writing(connection: sqlite3.Connection, version: int) -> None:
    """Make it ready for writing."""
    if not version:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode=WAL")  # on a file system without it, as it is
    connection.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")
    if version < len(MIGRATIONS):
        with begin_transaction(connection):
            # another builder may have been faster
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for step in MIGRATIONS[version:]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


@contextmanager
def begin_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def is_broken_database(error: Exception, path: Path) -> bool:
    """Whether a file is beyond use, and not only out of reach for now."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    if path.is_dir():
        return True
    code = getattr(error, "sqlite_errorcode", None)  # from Python 3.11 on
    if code is not None:
        return code & 0xFF in {SQLITE_CORRUPT, SQLITE_NOTADB}
    return any(word in str(error) for word in BROKEN_MESSAGES)


def set_aside_database(path: Path, now: float) -> bool:
    """Give a damaged file another name, so that a new one can be begun; whether there was room for one more."""
    if len(list_broken_files(path.parent)) >= MAX_BROKEN_FILES:
        return False
    new = f"{path.name}.broken-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
    while path.with_name(new).exists():
        new += "x"
    for ending in FILE_SUFFIXES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(path.with_name(new + ending))
    return True


def list_broken_files(state: Path) -> list[str]:
    """The damaged files that were set aside."""
    try:
        found = [one.name for one in state.glob(f"{DATABASE_NAME}.broken-*")]
    except OSError:
        return []
    return sorted(name for name in found if not name.endswith(FILE_SUFFIXES[1:]))


def describe_broken_files(state: Path) -> list[Problem]:
    """What the page says of damaged files, for as long as they are there."""
    several = list_broken_files(state)
    if not several:
        return []
    which = " and ".join(several)
    emptied = all(is_empty(state / name) for name in several)
    what = "was emptied" if emptied else "was damaged"
    what += ", and a new one was begun" if len(several) < MAX_BROKEN_FILES else " again and again"
    return [Problem(DATABASE_WHERE, f"{what}: {which} is what was before; delete it when you need it no more")]


def create_database(path: Path) -> None:
    """A new file, if there is none: what one that was deleted left beside it would be played into it."""
    if path.exists():
        return
    with hold_folder_lock(path.parent):
        if not path.exists():
            remove_side_files(path)
            new = path.with_name(f".{path.name}.new")
            for ending in FILE_SUFFIXES:
                new.with_name(new.name + ending).unlink(missing_ok=True)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))  # it names people
            # with all its tables before it has its name: one that is empty there was emptied
            connection = sqlite3.connect(str(new), timeout=LOCK_TIMEOUT_S, isolation_level=None)
            try:
                prepare_for_writing(connection, 0)
            finally:
                connection.close()
            new.rename(path)


def remove_replaced_log(path: Path, opened: DatabaseIdentity) -> None:
    """Another file is where one was that we had opened: the log of that one goes."""
    with hold_folder_lock(path.parent):
        there = read_database_identity(path)
        if there.inode != opened.inode and there.log_inode == opened.log_inode:
            remove_side_files(path)


@contextmanager
def hold_folder_lock(folder: Path) -> Iterator[None]:
    """While no other builder does the same, or after some patience."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    end = time.monotonic() + LOCK_TIMEOUT_S
    try:
        with suppress(OSError):  # not every file system has locks
            while not try_acquire_lock(handle) and time.monotonic() < end:
                time.sleep(LOCK_POLL_INTERVAL_S)
        yield
    finally:
        os.close(handle)


def remove_side_files(path: Path) -> None:
    """Remove what stands beside a file."""
    for ending in FILE_SUFFIXES[1:]:
        path.with_name(path.name + ending).unlink(missing_ok=True)
