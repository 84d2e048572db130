#!/usr/bin/env python3
"""Replace names of people by "former member N" in the history and bookings of a board; docs/backup.md has the rest.

remove_person.py NAME...   on the web host, as the user who builds, with the settings of the board
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from site_builder.config.settings import load_settings
from site_builder.core import files, locks
from site_builder.core.data_folder import find_bookings_folder_in_data
from site_builder.history import block_format, database

WAIT_S = 600
BLOCKS = ("minute", "chunk")
PEOPLE = (("card", "key", "told"), ("unkept", "card || ' ' || since", "who"))
SUMS = ("share", "hour_share")
# The next build makes these again; they show names that were there before.
CACHES = ("charts", "templates", "*.kept", "sums.json", "lines.json", "*.csv", "hosts.*")
KEPT_TEXTS = ("bookings-past.jsonl", "memory.json", "memory.json.bak")
BOOKINGS = ("comments.json", "comments.last-good.json", "bookings.log", "bookings.log.1")


def replace_names(value: object, names: Mapping[str, str]) -> object:
    """Replace whole strings, also in lists that are written as a string."""
    if isinstance(value, str):
        if value in names:
            return names[value]
        if value.startswith("["):
            with suppress(ValueError):
                return json.dumps(replace_names(json.loads(value), names), ensure_ascii=False, separators=(",", ":"))
        return value
    if isinstance(value, list):
        return [replace_names(item, names) for item in value]
    if isinstance(value, dict):
        return {key: item if key == "columns" else replace_names(item, names) for key, item in value.items()}
    return value


def replace_in_block(block: bytes, names: Mapping[str, str]) -> bytes:
    words, columns = block_format.unpack_block(block)
    new = replace_names(words, names)
    return block if new == words else block_format.pack_block(dict(new), columns, 6)  # type: ignore[call-overload]


def replace_in_column(
    connection: sqlite3.Connection, table: str, key: str, column: str, change: Callable[[bytes], bytes]
) -> None:
    for (row,) in connection.execute(f"SELECT {key} FROM {table}").fetchall():  # noqa: S608 # tables of our own
        ((old,),) = connection.execute(f"SELECT {column} FROM {table} WHERE {key}=?", (row,))  # noqa: S608
        with suppress(block_format.DamagedBlockError, ValueError):
            new = change(old)
            if new != old:
                connection.execute(f"UPDATE {table} SET {column}=? WHERE {key}=?", (new, row))  # noqa: S608


def replace_in_history(path: Path, names: Mapping[str, str]) -> None:
    with closing(database.open_database(path)) as connection:
        with database.begin_database_transaction(connection):
            for table in BLOCKS:
                replace_in_column(connection, table, "rowid", "block", lambda block: replace_in_block(block, names))
            for table, key, column in PEOPLE:
                replace_in_column(
                    connection,
                    table,
                    key,
                    column,
                    lambda old: json.dumps(replace_names(json.loads(old), names)).encode(),
                )
            for old, new in names.items():
                connection.execute("UPDATE name SET text=? WHERE text=?", (new, old))
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def find_taken_names(path: Path) -> tuple[set[str], set[str]]:
    """Return all names in history, and those that are hosts or models."""
    with closing(database.open_database(path)) as connection:
        columns = [
            (table, column)
            for table in (*SUMS, "seen")
            for column in ("host", "model")
            if table != "hour_share" or column == "model"
        ]
        ids = " UNION ".join(f"SELECT {column} FROM {table}" for table, column in columns)  # noqa: S608
        others = {text for (text,) in connection.execute(f"SELECT text FROM name WHERE id IN ({ids})")}  # noqa: S608
        others |= {host for (host,) in connection.execute("SELECT host FROM shape")}
        return {text for (text,) in connection.execute("SELECT text FROM name")}, others


def replace_in_text(path: Path, names: Mapping[str, str]) -> None:
    with suppress(FileNotFoundError):
        if path.is_symlink():
            return
        old = path.read_bytes()
        new = old
        for name, other in names.items():
            new = new.replace(json.dumps(name, ensure_ascii=False).encode(), json.dumps(other).encode())
        if new != old:
            files.write_atomically(path, new, path.stat().st_mode & 0o777)


def forget_feeds(path: Path, names: Mapping[str, str]) -> None:
    """Leave the feeds of these people out of published.json, or the builder would publish them empty for a while."""
    with suppress(FileNotFoundError, ValueError):
        published, words = json.loads(path.read_bytes()), compile_names(names)
        kept = {key: item for key, item in published.items() if not words.search(key.encode())}
        files.write_atomically(path, json.dumps(kept).encode(), 0o600)


def compile_names(names: Mapping[str, str]) -> re.Pattern[bytes]:
    return re.compile(rb"(?<![\w.-])(?:" + b"|".join(re.escape(name.encode()) for name in names) + rb")(?![\w-])")


def list_files_that_name(folders: list[Path], names: Mapping[str, str]) -> list[Path]:
    words = compile_names(names)
    paths = [
        path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()
    ]
    return [path for path in paths if words.search(path.read_bytes())]


def main(people: list[str]) -> int:
    settings = load_settings(None, {}, os.environ).settings
    files.refuse_foreign_folder(settings.state)
    history = settings.state / database.DATABASE_NAME
    bookings = find_bookings_folder_in_data(settings.data)
    if not people or people[0].startswith("-") or not history.exists():
        print(__doc__ if history.exists() else f"{history} is not there", file=sys.stderr)  # noqa: T201
        return 2
    with locks.hold_build_lock(settings.state, time.monotonic() + WAIT_S, print):
        taken, others = find_taken_names(history)
        if wrong := others & {*people}:
            print(f"{', '.join(wrong)}: this is the name of a host or model too", file=sys.stderr)  # noqa: T201
            return 2
        folders = [settings.data, settings.state]
        known = [name for name in people if name in taken or list_files_that_name(folders, {name: ""})]
        for name in set(people) - set(known):
            print(f"nothing names {name}", file=sys.stderr)  # noqa: T201
        if not known:
            return 1
        numbers = (number for number in range(1, 10**6) if f"former member {number}" not in taken)
        names = {name: f"former member {number}" for name, number in zip(known, numbers)}
        replace_in_history(history, names)
        with locks.hold_file_lock(bookings / BOOKINGS[0]):
            for path in [bookings / name for name in BOOKINGS] + [
                settings.state / name for name in (*KEPT_TEXTS, BOOKINGS[0])
            ]:
                replace_in_text(path, names)
        for path in [path for pattern in CACHES for path in settings.state.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        forget_feeds(settings.state / "published.json", names)
        reports = settings.www / "reports"
        for path in list_files_that_name([settings.www], names):
            if not {reports, settings.www / "assets"} & {*path.parents}:
                path.unlink()
    for name, other in names.items():
        print(f"{name} is {other} from now on; the next build writes the pages anew")  # noqa: T201
    for path in list_files_that_name([*folders, reports], names):
        print(f"still named in {path}")  # noqa: T201
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except locks.LockTimeoutError as error:
        sys.exit(f"{error}, and nothing was changed: stop it if systemd runs it")
