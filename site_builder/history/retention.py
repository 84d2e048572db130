"""What history lets go of: by its age, and only where as much that is newer is kept, whatever the clock says."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from site_builder.history.block_format import Damaged, unpack_part
from site_builder.history.database import transaction
from site_builder.history.reader import COVERS, DAY, DAYS, HOUR, MINUTE

# Rows that are deleted in one transaction.
AT_ONCE = 500
EPOCH_DAY = 719163  # the first of January 1970, as dates are counted in the file
HOURS_DAYS = 63
FOR_EVER = 2**62


def steps(connection: sqlite3.Connection, now: float) -> Iterator[None]:
    """Once an hour, in steps."""
    hour = int(now) // HOUR * HOUR
    row = connection.execute("SELECT at FROM done WHERE what='prune'").fetchone()
    if row and row[0] == hour:
        return
    for table, where, limit in due(connection, now):
        statement = f"DELETE FROM {table} WHERE {where}"  # noqa: S608 # all words are ours
        while True:
            with transaction(connection):
                gone = connection.execute(statement, {"limit": limit, "most": AT_ONCE}).rowcount
            if gone:  # where nothing goes there is no step, or the last one would never be reached
                yield
            if gone < AT_ONCE:
                break
    if not row or row[0] // DAY != hour // DAY:
        with transaction(connection):
            forget_shapes(connection, hour - DAYS[MINUTE] * DAY)
    with transaction(connection):
        connection.execute("INSERT OR REPLACE INTO done VALUES('prune', ?)", (hour,))
    yield


def due(connection: sqlite3.Connection, now: float) -> Iterator[tuple[str, str, int]]:
    """From which table goes what is before which limit."""
    for step, days in DAYS.items():
        limit = kept_from(connection, now, days)
        rows = f"SELECT rowid FROM chunk WHERE step={step} AND at<:limit LIMIT :most"  # noqa: S608 # the same
        yield "chunk", f"rowid IN ({rows})", limit - COVERS[step] + 1
    for table in ("hour_share", "hour_seen"):
        yield table, first_rows(table, "at"), kept_from(connection, now, HOURS_DAYS)
    limit = kept_from(connection, now, DAYS[HOUR])
    for table in ("share", "seen"):
        yield table, first_rows(table, "day"), limit // DAY + EPOCH_DAY
    yield "rolled", first_rows("rolled", "at"), limit
    later = "SELECT 1 FROM told later WHERE later.host=told.host AND later.at>told.at AND later.at<:limit"
    yield "told", f"at<:limit AND EXISTS({later})", limit  # what a host told last holds until it tells something else
    yield "card", first_rows("card", "last"), limit
    yield "event", first_rows("event", "at"), limit
    yield "counter", first_rows("counter", "away"), limit
    yield "unkept", first_rows("unkept", "until"), kept_from(connection, now, DAYS[300])


def first_rows(table: str, column: str) -> str:
    """All rows of the oldest times before the limit."""
    return (
        f"{column}<:limit AND {column}<=(SELECT max(one) FROM "  # noqa: S608 # the same
        f"(SELECT {column} AS one FROM {table} WHERE {column}<:limit ORDER BY {column} LIMIT :most))"
    )


def kept_from(connection: sqlite3.Connection, now: float, days: int) -> int:
    """From when on all is kept: so many days, counted by the clock and counted as days of which something is there."""
    limit = int(now) // HOUR * HOUR - days * DAY
    day = FOR_EVER
    for _ in range(days + 1):
        (newest,) = connection.execute("SELECT max(at) FROM rolled WHERE at<?", (day,)).fetchone()
        if newest is None:
            return 0
        day = newest // DAY * DAY
    return min(limit, day)


def forget_shapes(connection: sqlite3.Connection, before: int) -> None:
    """Sets of GPUs of which nothing is kept any more."""
    used: set[int] = set()
    for (block,) in connection.execute("SELECT block FROM minute"):
        try:
            used.update(unpack_part(block).places)
        except Damaged:
            continue
    asked = "SELECT id FROM shape WHERE first<? AND id NOT IN (SELECT shape FROM chunk)"
    gone = [(shape,) for (shape,) in connection.execute(asked, (before,)) if shape not in used]
    connection.executemany("DELETE FROM shape WHERE id=?", gone)
