"""What history knows of each GPU: written as its hours are rolled up, read for what is wasted."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import orjson

from site_builder.history import block_format, idle_runs
from site_builder.history.block_format import DamagedBlockError, HostHour
from site_builder.history.idle_runs import RUN_EMPTY, GpuRun, UnusedBooking, build_fleet_gpu_key, update_run
from site_builder.history.model import GpuSeries
from site_builder.history.reader import HistoryReader

# Parameters that every SQLite takes in one statement.
MAX_SQL_PARAMETERS = 500
UNUSED_BOOKING_COLUMNS = "host, key, place, model, who, since, until, minutes"


class IdleHistory(NamedTuple):
    """What is known of some GPUs, and of all that have been empty for long, by their cards; promises that nobody used.

    `first` is since when history looks at all.
    """

    first_at: int | None
    runs: dict[str, GpuRun]
    unused_bookings: tuple[UnusedBooking, ...]


NO_IDLE_HISTORY = IdleHistory(None, {}, ())


def roll_up_idle_runs(
    connection: sqlite3.Connection, hours: Sequence[tuple[int, int, HostHour]], idle_percent: float
) -> None:
    """Add hours that are rolled up, in the transaction of the caller."""
    found = list(iterate_gpu_hours(connection, hours))
    known = read_runs(connection, {build_fleet_gpu_key(host, one.key) for host, one, *_ in found})
    ended: list[UnusedBooking] = []
    for host, one, at, hour, number in found:
        card = build_fleet_gpu_key(host, one.key)
        new, over = update_run(known.get(card), host, one, at, hour, number, idle_percent)
        ended += over
        if new:
            known[card] = new
    rows = [(card, one.last_seen, one.kind, one.minutes, idle_runs.pack_run(one)) for card, one in known.items()]
    connection.executemany("INSERT OR REPLACE INTO card VALUES(?,?,?,?,?)", rows)
    connection.executemany(
        f"INSERT OR REPLACE INTO unkept(card, {UNUSED_BOOKING_COLUMNS}) VALUES(?,?,?,?,?,?,?,?,?)",
        [(build_fleet_gpu_key(one.host, one.gpu_key), *one[:4], orjson.dumps(one.people), *one[5:]) for one in ended],
    )
    # one that goes on after all: the clock had only run ahead
    going_on = [(card, one.booked_run.since) for card, one in known.items() if one.booked_run]
    connection.executemany("DELETE FROM unkept WHERE card=? AND since=?", going_on)


def iterate_gpu_hours(
    connection: sqlite3.Connection, hours: Iterable[tuple[int, int, HostHour]]
) -> Iterator[tuple[str, GpuSeries, int, HostHour, int]]:
    """Each GPU of each of the hours."""
    for at, shape, hour in hours:
        for host, gpus in connection.execute("SELECT host, gpus FROM shape WHERE id=?", (shape,)):
            for number, one in enumerate(block_format.parse_gpu_series(gpus)[: hour.gpu_count]):
                yield host, one, at, hour, number


def read_runs(connection: sqlite3.Connection, cards: Iterable[str]) -> dict[str, GpuRun]:
    """What is known of some GPUs; of one whose row is damaged, nothing."""
    several = sorted(cards)
    found: dict[str, GpuRun] = {}
    for start in range(0, len(several), MAX_SQL_PARAMETERS):
        some = several[start : start + MAX_SQL_PARAMETERS]
        asked = f"SELECT key, told FROM card WHERE key IN ({','.join('?' * len(some))})"  # noqa: S608 # our words
        found.update(unpack_run_rows(connection.execute(asked, some)))
    return found


def unpack_run_rows(rows: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, GpuRun]]:
    """Rows, as far as they can be read."""
    for card, told in rows:
        try:
            yield card, idle_runs.unpack_run(told)
        except DamagedBlockError:
            continue


def read_idle_history(
    past: HistoryReader, cards: Collection[str], empty_minutes: int, since: float, until: float
) -> IdleHistory:
    """What history knows of these GPUs, and of those that nobody was on for so many minutes that it saw.

    And the promises that ended between two moments, and that nobody used.
    """

    def question(connection: sqlite3.Connection) -> IdleHistory:
        ended = tuple(read_unused_bookings(connection, since, until))
        found = read_runs(connection, {*cards, *(build_fleet_gpu_key(one.host, one.gpu_key) for one in ended)})
        asked = "SELECT key, told FROM card WHERE run=? AND minutes>=?"
        found.update(unpack_run_rows(connection.execute(asked, (RUN_EMPTY, empty_minutes))))
        (first,) = connection.execute("SELECT min(at) FROM rolled").fetchone()
        return IdleHistory(first, found, ended)

    return past.query(question, NO_IDLE_HISTORY)


def read_unused_bookings(connection: sqlite3.Connection, since: float, until: float) -> Iterator[UnusedBooking]:
    """Promises that ended between two moments, and that nobody used."""
    asked = f"SELECT {UNUSED_BOOKING_COLUMNS} FROM unkept WHERE until>? AND until<=? ORDER BY until"  # noqa: S608 # the same
    for host, key, index, model, who, *times in connection.execute(asked, (since, until)):
        try:
            yield UnusedBooking(host, key, index, model, idle_runs.parse_names(orjson.loads(who)), *times)
        except (ValueError, TypeError):
            continue
