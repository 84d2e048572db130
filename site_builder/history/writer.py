"""Write samples to history.db, and delete what is too old."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import tzinfo
from pathlib import Path

from site_builder.core.files import is_empty
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import Problem
from site_builder.history import block_format, buckets, database, idle_run_store
from site_builder.history.block_format import DamagedBlockError, PackedSample, unpack_minute_part
from site_builder.history.buckets import UsageShare
from site_builder.history.database import DATABASE_WHERE, HistoryUnusableError, begin_transaction
from site_builder.history.reader import (
    CHUNK_LENGTH_S,
    MAX_CLOCK_AHEAD_S,
    PART_COUNT,
    RETENTION_DAYS,
    HistoryReader,
    add_to_sums,
    compute_host_part,
    read_chunks,
    read_pending_hours,
    tally_hours,
)

# Rows that are deleted in one transaction.
ROWS_PER_TRANSACTION = 500
EPOCH_ORDINAL = 719163  # the first of January 1970, as dates are counted in the file
HOURLY_RETENTION_DAYS = 63
END_OF_TIME = 2**62


def prune_in_steps(connection: sqlite3.Connection, now: float) -> Iterator[None]:
    """Once an hour, in steps."""
    hour = int(now) // HOUR * HOUR
    row = connection.execute("SELECT at FROM done WHERE what='prune'").fetchone()
    if row and row[0] == hour:
        return
    for table, where, limit in list_expired(connection, now):
        statement = f"DELETE FROM {table} WHERE {where}"  # noqa: S608 # all words are ours
        while True:
            with begin_transaction(connection):
                gone = connection.execute(statement, {"limit": limit, "most": ROWS_PER_TRANSACTION}).rowcount
            if gone:  # where nothing goes there is no step, or the last one would never be reached
                yield
            if gone < ROWS_PER_TRANSACTION:
                break
    if not row or row[0] // DAY != hour // DAY:
        with begin_transaction(connection):
            delete_unused_gpu_sets(connection, hour - RETENTION_DAYS[MINUTE] * DAY)
    with begin_transaction(connection):
        connection.execute("INSERT OR REPLACE INTO done VALUES('prune', ?)", (hour,))
    yield


def list_expired(connection: sqlite3.Connection, now: float) -> Iterator[tuple[str, str, int]]:
    """From which table goes what is before which limit."""
    for step, days in RETENTION_DAYS.items():
        limit = find_retention_start(connection, now, days)
        rows = f"SELECT rowid FROM chunk WHERE step={step} AND at<:limit LIMIT :most"  # noqa: S608 # the same
        yield "chunk", f"rowid IN ({rows})", limit - CHUNK_LENGTH_S[step] + 1
    for table in ("hour_share", "hour_seen"):
        yield table, build_oldest_rows_filter(table, "at"), find_retention_start(connection, now, HOURLY_RETENTION_DAYS)
    limit = find_retention_start(connection, now, RETENTION_DAYS[HOUR])
    for table in ("share", "seen"):
        yield table, build_oldest_rows_filter(table, "day"), limit // DAY + EPOCH_ORDINAL
    yield "rolled", build_oldest_rows_filter("rolled", "at"), limit
    later = "SELECT 1 FROM told later WHERE later.host=told.host AND later.at>told.at AND later.at<:limit"
    yield "told", f"at<:limit AND EXISTS({later})", limit  # what a host told last holds until it tells something else
    yield "card", build_oldest_rows_filter("card", "last"), limit
    yield "event", build_oldest_rows_filter("event", "at"), limit
    yield "counter", build_oldest_rows_filter("counter", "away"), limit
    yield (
        "unkept",
        build_oldest_rows_filter("unkept", "until"),
        find_retention_start(connection, now, RETENTION_DAYS[300]),
    )


def build_oldest_rows_filter(table: str, column: str) -> str:
    """All rows of the oldest times before the limit."""
    return (
        f"{column}<:limit AND {column}<=(SELECT max(one) FROM "  # noqa: S608 # the same
        f"(SELECT {column} AS one FROM {table} WHERE {column}<:limit ORDER BY {column} LIMIT :most))"
    )


def find_retention_start(connection: sqlite3.Connection, now: float, days: int) -> int:
    """From when on all is kept: so many days, counted by the clock and counted as days of which something is there."""
    limit = int(now) // HOUR * HOUR - days * DAY
    day = END_OF_TIME
    for _ in range(days + 1):
        (newest,) = connection.execute("SELECT max(at) FROM rolled WHERE at<?", (day,)).fetchone()
        if newest is None:
            return 0
        day = newest // DAY * DAY
    return min(limit, day)


def delete_unused_gpu_sets(connection: sqlite3.Connection, before: int) -> None:
    """Sets of GPUs of which nothing is kept any more."""
    used: set[int] = set()
    for (block,) in connection.execute("SELECT block FROM minute"):
        try:
            used.update(unpack_minute_part(block).slices)
        except DamagedBlockError:
            continue
    asked = "SELECT id FROM shape WHERE first<? AND id NOT IN (SELECT shape FROM chunk)"
    gone = [(shape,) for (shape,) in connection.execute(asked, (before,)) if shape not in used]
    connection.executemany("DELETE FROM shape WHERE id=?", gone)


# Days of hosts that become chunks in one transaction.
DAYS_PER_TRANSACTION = 2
ADD_SHARE_SQL = ", ".join(f"{name}={name}+excluded.{name}" for name in UsageShare._fields)
ADD_SEEN_SQL = ", ".join(f"{name}={name}+excluded.{name}" for name in database.SEEN_COLUMNS)


class HistoryWriter(HistoryReader):
    """Writes, for one builder at a time; whatever goes wrong is told in `problems`, and the build goes on."""

    def __init__(self, state: Path, zone: tzinfo) -> None:
        """Opened when it is needed first."""
        super().__init__(state, zone)
        self.recorded_at = -1
        self.identity: database.DatabaseIdentity | None = None
        self.gpu_set_ids: set[int] = set()
        self.last_gpu_sets: dict[str, int] | None = None  # of each host, which shape it told last
        self.name_ids: dict[str, int] = {}
        self.failures: dict[str, tuple[str, str]] = {}  # why something could not be done, and what that means
        self.idle_percent = 5.0  # a GPU that is taken and used less is idle

    @property
    def problems(self) -> list[Problem]:
        """What the page says of it: one sentence for each cause, whatever it prevents."""
        causes: dict[str, list[str]] = defaultdict(list)
        for why, otherwise in self.failures.values():
            causes[why] += [] if otherwise in causes[why] else [otherwise]
        told = [Problem(DATABASE_WHERE, f"{why}: {', and '.join(several)}") for why, several in causes.items()]
        return [*told, *database.describe_broken_files(self.path.parent)]

    def connect(self) -> sqlite3.Connection:
        """The open file, for writing; the admin may delete it or put another in its place at any time."""
        if self.connection is not None and not self.path.exists():
            self.close()
        if self.connection is not None and self.identity and not database.is_same_database(self.path, self.identity):
            self.close()
            database.remove_replaced_log(self.path, self.identity)
        if self.connection is None:
            if is_empty(self.path):
                database.set_aside_database(self.path, time.time())
            self.connection = database.open_database(self.path)
            self.gpu_set_ids = {shape for (shape,) in self.connection.execute("SELECT id FROM shape")}
            self.name_ids = {}
            self.identity = database.read_database_identity(self.path)
        return self.connection

    def close(self) -> None:
        """Let go of the file, and of what is known of it."""
        with suppress(sqlite3.Error):
            super().close()
        self.gpu_set_ids, self.name_ids, self.last_gpu_sets = set(), {}, None

    def record(self, samples: Sequence[PackedSample], now: float, reach: float = 0) -> None:
        """The hosts that are fresh, once a minute; builds come no further apart than `reach`, in seconds."""
        at = int(now) // MINUTE * MINUTE
        if at == self.recorded_at:
            return
        if self.attempt("record", lambda: self.write_minute(samples, at, reach), now, "this minute is missing in it"):
            self.recorded_at = at

    def roll_up(self, now: float, seconds: float) -> bool:
        """What is due of making the old coarser, for so long; whether all of it is done."""
        end = time.monotonic() + seconds
        done = False

        def work() -> None:
            nonlocal done
            connection = self.connect()
            connection.execute("PRAGMA synchronous=NORMAL")  # the next minute makes it last
            for _ in self.roll_up_in_steps(connection, now):
                if time.monotonic() >= end:
                    return
            done = True

        self.attempt("roll_up", work, now, "what is older stays as it is")
        return done

    def attempt(self, what: str, work: Callable[[], None], now: float, otherwise: str) -> bool:
        """Do something with the file, if it can be done; one that is damaged is set aside."""
        try:
            work()
        except HistoryUnusableError as why:
            self.failures[what] = (str(why), "no history is written")
        except Exception as error:  # whatever it is, it must not cost the page
            self.close()
            told = str(error) if isinstance(error, (sqlite3.Error, OSError)) else repr(error)
            self.failures[what] = (f"it could not be written ({told[:200]})", otherwise)
            if database.is_broken_database(error, self.path):
                self.start_new_file(what, now)
        else:
            self.failures.pop(what, None)
            return True
        return False

    def start_new_file(self, what: str, now: float) -> None:
        """A damaged file makes room for a new one."""
        try:
            if database.set_aside_database(self.path, now):
                del self.failures[what]  # said by the file that is set aside
        except OSError as error:
            why = f"it is damaged, and could not be set aside ({error.strerror})"
            self.failures[what] = (why, "no history is written")

    def write_minute(self, samples: Sequence[PackedSample], at: int, reach: float) -> None:
        """A minute, unless it is there; those before it that were missed between two builds are like the last one."""
        connection = self.connect()
        by_part: dict[int, list[PackedSample]] = defaultdict(list)
        for one in samples:
            by_part[compute_host_part(one.host)].append(one)
        blocks = [(part, block_format.pack_minute_part(several)) for part, several in by_part.items()]
        blocks = blocks or [(PART_COUNT, block_format.pack_minute_part([]))]  # that nobody was there was seen too
        new = {
            one.gpu_set_id: (one.gpu_set_id, one.host, one.packed_series, at)
            for one in samples
            if one.gpu_set_id not in self.gpu_set_ids
        }
        connection.execute("PRAGMA synchronous=FULL")  # what a power cut takes is no more than a minute
        with begin_transaction(connection):
            connection.executemany("INSERT OR IGNORE INTO shape VALUES(?,?,?,?)", new.values())
            connection.execute("UPDATE minute SET ahead=1 WHERE at>? AND ahead=0", (at + MAX_CLOCK_AHEAD_S,))
            (before,) = connection.execute("SELECT max(at) FROM minute WHERE at<?", (at,)).fetchone()
            if before is not None and at - before <= reach + MINUTE:
                for missed in range(before + MINUTE, at, MINUTE):
                    asked = "SELECT part, block FROM minute WHERE at=?"
                    self.insert_minute(connection, missed, connection.execute(asked, (before,)).fetchall())
            self.insert_minute(connection, at, blocks)
            told = self.record_gpu_sets(connection, samples, at)
        self.gpu_set_ids |= new.keys()
        self.last_gpu_sets = told

    def record_gpu_sets(
        self, connection: sqlite3.Connection, samples: Sequence[PackedSample], at: int
    ) -> dict[str, int]:
        """Write down which hosts have other GPUs than before; of each, which it has."""
        before = self.last_gpu_sets
        if before is None or at < self.recorded_at:  # what a clock that ran ahead told is not believed until then
            asked = "SELECT host, shape, max(at) FROM told WHERE at<=? GROUP BY host"
            before = {host: shape for host, shape, _ in connection.execute(asked, (at,))}
        now = {one.host: one.gpu_set_id for one in samples}
        new = [(host, at, shape) for host, shape in now.items() if before.get(host) != shape]
        connection.executemany("INSERT OR REPLACE INTO told VALUES(?,?,?)", new)
        return {**before, **now}

    @staticmethod
    def insert_minute(connection: sqlite3.Connection, at: int, blocks: Sequence[tuple[int, bytes]]) -> None:
        """The parts of a minute that are not there yet; what a clock that ran ahead wrote makes room, all of it."""
        connection.execute("DELETE FROM minute WHERE at=? AND ahead=1", (at,))
        asked = "SELECT part, minutes FROM rolled WHERE at=?"
        rolled = dict(connection.execute(asked, (at // HOUR * HOUR,)))
        bit = 1 << (at % HOUR // MINUTE)
        connection.executemany(
            "INSERT OR IGNORE INTO minute(at, part, block) VALUES(?,?,?)",
            [(at, part, block) for part, block in blocks if not rolled.get(part, 0) & bit],
        )

    def roll_up_in_steps(self, connection: sqlite3.Connection, now: float) -> Iterator[None]:
        """All that is due, in steps of which each is whole."""
        hour = int(now) // HOUR * HOUR
        asked = f"SELECT DISTINCT at/{HOUR}*{HOUR}, part FROM minute WHERE at<? ORDER BY 1, 2"  # noqa: S608 # a number
        for at, part in connection.execute(asked, (hour,)).fetchall():
            with begin_transaction(connection):
                self.roll_up_hour(connection, at, part)
            yield
        today = int(now) // DAY * DAY
        while due := connection.execute(
            "SELECT at, shape FROM due WHERE at<? ORDER BY at LIMIT ?", (today, DAYS_PER_TRANSACTION)
        ).fetchall():
            with begin_transaction(connection):
                for day, shape in due:
                    roll_up_day(connection, day, shape)
            yield
        for _ in prune_in_steps(connection, now):
            self.gpu_set_ids = {shape for (shape,) in connection.execute("SELECT id FROM shape")}
            yield

    def roll_up_hour(self, connection: sqlite3.Connection, at: int, part: int) -> None:
        """The minutes of an hour that is over, of one part of the hosts."""
        hours = list(read_pending_hours(connection, part, at, at + HOUR))
        for _, shape, hour in hours:
            for _, block in read_chunks(connection, MINUTE, at, (shape,)):
                with suppress(DamagedBlockError):
                    hour = block_format.merge_hours(block_format.unpack_hour(block), hour)  # noqa: PLW2901
            store_chunk(connection, MINUTE, at, shape, block_format.pack_hour(hour))
        rows = [(at // DAY * DAY, shape) for _, shape, _ in hours]
        connection.executemany("INSERT OR IGNORE INTO due VALUES(?,?)", rows)
        self.add_hours(connection, hours)
        asked = "SELECT at FROM minute WHERE part=? AND at>=? AND at<?"
        bits = sum(1 << (one % HOUR // MINUTE) for (one,) in connection.execute(asked, (part, at, at + HOUR)))
        connection.execute(
            "INSERT INTO rolled VALUES(?,?,?) ON CONFLICT(at, part) DO UPDATE SET minutes=minutes|excluded.minutes",
            (at, part, bits),
        )
        connection.execute("DELETE FROM minute WHERE part=? AND at>=? AND at<?", (part, at, at + HOUR))

    def add_hours(
        self, connection: sqlite3.Connection, hours: Sequence[tuple[int, int, block_format.HostHour]]
    ) -> None:
        """All that is learned from the minutes of some hours, each of which comes here once."""
        self.add_usage(connection, hours)
        idle_run_store.roll_up_idle_runs(connection, hours, self.idle_percent)

    def add_usage(
        self, connection: sqlite3.Connection, hours: Sequence[tuple[int, int, block_format.HostHour]]
    ) -> None:
        """Add the minutes of some hours to the sums."""
        shares, seen = [], []
        hour_shares: dict[tuple[int, str, str], list[int]] = {}
        hour_seen: dict[tuple[int, str], list[int]] = {}
        name = self.find_name_id
        for (at, host), tally in tally_hours(connection, hours, self.zone).items():
            for (day, model, person), row in tally.shares.items():
                key = (day.toordinal(), name(connection, host), name(connection, model), name(connection, person))
                shares.append((*key, *row))
                add_to_sums(hour_shares, (at, model, person), row)
            for (day, model), row in tally.seen.items():
                seen.append((day.toordinal(), name(connection, host), name(connection, model), *row))
                add_to_sums(hour_seen, (at, model), row)
        by_hour = [
            (at, name(connection, model), name(connection, person), *row)
            for (at, model, person), row in hour_shares.items()
        ]
        upsert_sums(connection, "share", "day, host, model, person", ADD_SHARE_SQL, shares)
        upsert_sums(connection, "seen", "day, host, model", ADD_SEEN_SQL, seen)
        upsert_sums(connection, "hour_share", "at, model, person", ADD_SHARE_SQL, by_hour)
        rows = [(at, name(connection, model), *row) for (at, model), row in hour_seen.items()]
        upsert_sums(connection, "hour_seen", "at, model", ADD_SEEN_SQL, rows)

    def find_name_id(self, connection: sqlite3.Connection, text: str) -> int:
        """The number of a name."""
        if text not in self.name_ids:
            connection.execute("INSERT OR IGNORE INTO name(text) VALUES(?)", (text,))
            (self.name_ids[text],) = connection.execute("SELECT id FROM name WHERE text=?", (text,)).fetchone()
        return self.name_ids[text]


def upsert_sums(
    connection: sqlite3.Connection, table: str, key: str, adding: str, rows: Sequence[tuple[object, ...]]
) -> None:
    """Add to the sums of a table."""
    if rows:
        marks = ",".join("?" * len(rows[0]))
        statement = f"INSERT INTO {table} VALUES({marks}) ON CONFLICT({key}) DO UPDATE SET {adding}"
        connection.executemany(statement, rows)


def store_chunk(connection: sqlite3.Connection, step: int, at: int, shape: int, block: bytes) -> None:
    """A chunk, in the place of the one that was there."""
    connection.execute("INSERT OR REPLACE INTO chunk VALUES(?,?,?,?)", (step, at, shape, block))


def roll_up_day(connection: sqlite3.Connection, day: int, shape: int) -> None:
    """The hours of a day that is over become part of the longer chunks of a host."""
    hours = []
    for at in range(day, day + DAY, HOUR):
        for _, block in read_chunks(connection, MINUTE, at, (shape,)):
            with suppress(DamagedBlockError):
                hours.append((at, block_format.unpack_hour(block)))
    for step in (300, HOUR) if hours else ():
        start = day // CHUNK_LENGTH_S[step] * CHUNK_LENGTH_S[step]
        found = buckets.create_empty_buckets(CHUNK_LENGTH_S[step] // step, hours[0][1].gpu_count)
        for _, block in read_chunks(connection, step, start, (shape,)):
            with suppress(DamagedBlockError):
                found = buckets.unpack_buckets(block)
        for at, hour in hours:
            buckets.merge_buckets(found, (at - start) // step, buckets.build_buckets(hour, step // MINUTE))
        store_chunk(connection, step, start, shape, buckets.pack_buckets(found))
    connection.execute("DELETE FROM due WHERE at=? AND shape=?", (day, shape))
