"""Write samples to history.db, roll up what is older, and delete what is too old."""

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
from site_builder.history import block_format, buckets, database, idle_runs
from site_builder.history.block_format import DamagedBlockError, HostHour, PackedSample, unpack_minute_part
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
# Days of hosts that become chunks in one transaction.
DAYS_PER_TRANSACTION = 2
ADD_SHARE_SQL = ", ".join(f"{name}={name}+excluded.{name}" for name in UsageShare._fields)
ADD_SEEN_SQL = ", ".join(f"{name}={name}+excluded.{name}" for name in database.SEEN_COLUMNS)


class HistoryWriter(HistoryReader):
    """Writes for one builder at a time; failures are listed in `problems`, and the build goes on."""

    def __init__(self, state: Path, zone: tzinfo) -> None:
        super().__init__(state, zone)
        self.recorded_at = -1
        self.identity: database.DatabaseIdentity | None = None
        self.gpu_set_ids: set[int] = set()
        self.last_gpu_sets: dict[str, int] | None = None  # by host
        self.name_ids: dict[str, int] = {}
        self.failures: dict[str, tuple[str, str]] = {}  # why something could not be done, and what that means
        self.idle_percent = 5.0  # a GPU that is taken and used less is idle

    @property
    def problems(self) -> list[Problem]:
        """List one problem for each cause, whatever it prevents."""
        causes: dict[str, list[str]] = defaultdict(list)
        for reason, consequence in self.failures.values():
            causes[reason] += [] if consequence in causes[reason] else [consequence]
        problems = [
            Problem(DATABASE_WHERE, f"{reason}: {', and '.join(consequences)}")
            for reason, consequences in causes.items()
        ]
        return [*problems, *database.describe_broken_files(self.path.parent)]

    def connect(self) -> sqlite3.Connection:
        """Open the file for writing; the admin may delete or replace it at any time."""
        if self.connection is not None and not self.path.exists():
            self.close()
        if self.connection is not None and self.identity and not database.is_same_database(self.path, self.identity):
            self.close()
            database.remove_replaced_log(self.path, self.identity)
        if self.connection is None:
            if is_empty(self.path):
                database.set_aside_database(self.path, time.time())
            self.connection = database.open_database(self.path)
            self.gpu_set_ids = {gpu_set_id for (gpu_set_id,) in self.connection.execute("SELECT id FROM shape")}
            self.name_ids = {}
            self.identity = database.read_database_identity(self.path)
        return self.connection

    def close(self) -> None:
        with suppress(sqlite3.Error):
            super().close()
        self.gpu_set_ids, self.name_ids, self.last_gpu_sets = set(), {}, None

    def record(self, samples: Sequence[PackedSample], now: float, reach: float = 0) -> None:
        """Record the fresh hosts, once a minute; builds come at most `reach` seconds apart."""
        minute = int(now) // MINUTE * MINUTE
        if minute == self.recorded_at:
            return
        if self.attempt(
            "record", lambda: self.write_minute(samples, minute, reach), now, "this minute is missing in it"
        ):
            self.recorded_at = minute

    def roll_up(self, now: float, seconds: float) -> bool:
        """Roll up what is due, for so long; return True if all of it is done."""
        end = time.monotonic() + seconds
        is_done = False

        def work() -> None:
            nonlocal is_done
            connection = self.connect()
            connection.execute("PRAGMA synchronous=NORMAL")  # the next minute makes it last
            for _ in self.roll_up_in_steps(connection, now):
                if time.monotonic() >= end:
                    return
            is_done = True

        self.attempt("roll_up", work, now, "what is older stays as it is")
        return is_done

    def attempt(self, task: str, work: Callable[[], None], now: float, consequence: str) -> bool:
        """Try to do something with the file; a damaged one is set aside."""
        try:
            work()
        except HistoryUnusableError as error:
            self.failures[task] = (str(error), "no history is written")
        except Exception as error:  # whatever it is, it must not cost the page
            self.close()
            message = str(error) if isinstance(error, (sqlite3.Error, OSError)) else repr(error)
            self.failures[task] = (f"it could not be written ({message[:200]})", consequence)
            if database.is_broken_database(error, self.path):
                self.start_new_file(task, now)
        else:
            self.failures.pop(task, None)
            return True
        return False

    def start_new_file(self, task: str, now: float) -> None:
        try:
            if database.set_aside_database(self.path, now):
                del self.failures[task]  # said by the file that is set aside
        except OSError as error:
            reason = f"it is damaged, and could not be set aside ({error.strerror})"
            self.failures[task] = (reason, "no history is written")

    def write_minute(self, samples: Sequence[PackedSample], minute: int, reach: float) -> None:
        """Write a minute, unless it is there; minutes missed between two builds are copies of the last one."""
        connection = self.connect()
        by_part: dict[int, list[PackedSample]] = defaultdict(list)
        for sample in samples:
            by_part[compute_host_part(sample.host)].append(sample)
        blocks = [(part, block_format.pack_minute_part(part_samples)) for part, part_samples in by_part.items()]
        blocks = blocks or [(PART_COUNT, block_format.pack_minute_part([]))]  # that nobody was there was seen too
        new_gpu_sets = {
            sample.gpu_set_id: (sample.gpu_set_id, sample.host, sample.packed_series, minute)
            for sample in samples
            if sample.gpu_set_id not in self.gpu_set_ids
        }
        connection.execute("PRAGMA synchronous=FULL")  # what a power cut takes is no more than a minute
        with begin_transaction(connection):
            connection.executemany("INSERT OR IGNORE INTO shape VALUES(?,?,?,?)", new_gpu_sets.values())
            connection.execute("UPDATE minute SET ahead=1 WHERE at>? AND ahead=0", (minute + MAX_CLOCK_AHEAD_S,))
            (last_minute,) = connection.execute("SELECT max(at) FROM minute WHERE at<?", (minute,)).fetchone()
            if last_minute is not None and minute - last_minute <= reach + MINUTE:
                for missed in range(last_minute + MINUTE, minute, MINUTE):
                    sql = "SELECT part, block FROM minute WHERE at=?"
                    self.insert_minute(connection, missed, connection.execute(sql, (last_minute,)).fetchall())
            self.insert_minute(connection, minute, blocks)
            gpu_sets = self.record_gpu_sets(connection, samples, minute)
        self.gpu_set_ids |= new_gpu_sets.keys()
        self.last_gpu_sets = gpu_sets

    def record_gpu_sets(
        self, connection: sqlite3.Connection, samples: Sequence[PackedSample], minute: int
    ) -> dict[str, int]:
        """Record which hosts have other GPUs than before, and return the GPU set of each."""
        before = self.last_gpu_sets
        if before is None or minute < self.recorded_at:  # ignore what a clock that ran ahead recorded
            sql = "SELECT host, shape, max(at) FROM told WHERE at<=? GROUP BY host"
            before = {host: gpu_set_id for host, gpu_set_id, _ in connection.execute(sql, (minute,))}
        current = {sample.host: sample.gpu_set_id for sample in samples}
        changes = [(host, minute, gpu_set_id) for host, gpu_set_id in current.items() if before.get(host) != gpu_set_id]
        connection.executemany("INSERT OR REPLACE INTO told VALUES(?,?,?)", changes)
        return {**before, **current}

    @staticmethod
    def insert_minute(connection: sqlite3.Connection, at: int, blocks: Sequence[tuple[int, bytes]]) -> None:
        """Insert the parts of a minute that are missing; a minute of a clock that ran ahead is replaced."""
        connection.execute("DELETE FROM minute WHERE at=? AND ahead=1", (at,))
        sql = "SELECT part, minutes FROM rolled WHERE at=?"
        rolled_up_bits = dict(connection.execute(sql, (at // HOUR * HOUR,)))
        bit = 1 << (at % HOUR // MINUTE)
        connection.executemany(
            "INSERT OR IGNORE INTO minute(at, part, block) VALUES(?,?,?)",
            [(at, part, block) for part, block in blocks if not rolled_up_bits.get(part, 0) & bit],
        )

    def roll_up_in_steps(self, connection: sqlite3.Connection, now: float) -> Iterator[None]:
        """Do all that is due, one transaction a step."""
        this_hour = int(now) // HOUR * HOUR
        sql = f"SELECT DISTINCT at/{HOUR}*{HOUR}, part FROM minute WHERE at<? ORDER BY 1, 2"  # noqa: S608 # a number
        for at, part in connection.execute(sql, (this_hour,)).fetchall():
            with begin_transaction(connection):
                self.roll_up_hour(connection, at, part)
            yield
        today = int(now) // DAY * DAY
        while due_days := connection.execute(
            "SELECT at, shape FROM due WHERE at<? ORDER BY at LIMIT ?", (today, DAYS_PER_TRANSACTION)
        ).fetchall():
            with begin_transaction(connection):
                for day, gpu_set_id in due_days:
                    roll_up_day(connection, day, gpu_set_id)
            yield
        for _ in prune_in_steps(connection, now):
            self.gpu_set_ids = {gpu_set_id for (gpu_set_id,) in connection.execute("SELECT id FROM shape")}
            yield

    def roll_up_hour(self, connection: sqlite3.Connection, at: int, part: int) -> None:
        """Roll up the minutes of an hour that is over, of one part of the hosts."""
        hours = list(read_pending_hours(connection, part, at, at + HOUR))
        for _, gpu_set_id, hour in hours:
            for _, block in read_chunks(connection, MINUTE, at, (gpu_set_id,)):
                with suppress(DamagedBlockError):
                    hour = block_format.merge_hours(block_format.unpack_hour(block), hour)  # noqa: PLW2901
            store_chunk(connection, MINUTE, at, gpu_set_id, block_format.pack_hour(hour))
        due_days = [(at // DAY * DAY, gpu_set_id) for _, gpu_set_id, _ in hours]
        connection.executemany("INSERT OR IGNORE INTO due VALUES(?,?)", due_days)
        self.add_hours(connection, hours)
        sql = "SELECT at FROM minute WHERE part=? AND at>=? AND at<?"
        bits = sum(1 << (minute % HOUR // MINUTE) for (minute,) in connection.execute(sql, (part, at, at + HOUR)))
        connection.execute(
            "INSERT INTO rolled VALUES(?,?,?) ON CONFLICT(at, part) DO UPDATE SET minutes=minutes|excluded.minutes",
            (at, part, bits),
        )
        connection.execute("DELETE FROM minute WHERE part=? AND at>=? AND at<?", (part, at, at + HOUR))

    def add_hours(self, connection: sqlite3.Connection, hours: Sequence[tuple[int, int, HostHour]]) -> None:
        """Add some hours, each of which comes here once, to the sums and to the runs of GPUs."""
        shares, seen = [], []
        hour_shares: dict[tuple[int, str, str], list[int]] = {}
        hour_seen: dict[tuple[int, str], list[int]] = {}
        find_id = self.find_name_id
        for (at, host), tally in tally_hours(connection, hours, self.zone).items():
            for (day, model, person), row in tally.shares.items():
                key = (
                    day.toordinal(),
                    find_id(connection, host),
                    find_id(connection, model),
                    find_id(connection, person),
                )
                shares.append((*key, *row))
                add_to_sums(hour_shares, (at, model, person), row)
            for (day, model), row in tally.seen.items():
                seen.append((day.toordinal(), find_id(connection, host), find_id(connection, model), *row))
                add_to_sums(hour_seen, (at, model), row)
        by_hour = [
            (at, find_id(connection, model), find_id(connection, person), *row)
            for (at, model, person), row in hour_shares.items()
        ]
        upsert_sums(connection, "share", "day, host, model, person", ADD_SHARE_SQL, shares)
        upsert_sums(connection, "seen", "day, host, model", ADD_SEEN_SQL, seen)
        upsert_sums(connection, "hour_share", "at, model, person", ADD_SHARE_SQL, by_hour)
        rows = [(at, find_id(connection, model), *row) for (at, model), row in hour_seen.items()]
        upsert_sums(connection, "hour_seen", "at, model", ADD_SEEN_SQL, rows)
        idle_runs.roll_up_idle_runs(connection, hours, self.idle_percent)

    def find_name_id(self, connection: sqlite3.Connection, text: str) -> int:
        if text not in self.name_ids:
            connection.execute("INSERT OR IGNORE INTO name(text) VALUES(?)", (text,))
            (self.name_ids[text],) = connection.execute("SELECT id FROM name WHERE text=?", (text,)).fetchone()
        return self.name_ids[text]


def upsert_sums(
    connection: sqlite3.Connection, table: str, key: str, add_sql: str, rows: Sequence[tuple[object, ...]]
) -> None:
    if rows:
        placeholders = ",".join("?" * len(rows[0]))
        statement = f"INSERT INTO {table} VALUES({placeholders}) ON CONFLICT({key}) DO UPDATE SET {add_sql}"
        connection.executemany(statement, rows)


def store_chunk(connection: sqlite3.Connection, step: int, at: int, gpu_set_id: int, block: bytes) -> None:
    connection.execute("INSERT OR REPLACE INTO chunk VALUES(?,?,?,?)", (step, at, gpu_set_id, block))


def roll_up_day(connection: sqlite3.Connection, day: int, gpu_set_id: int) -> None:
    """Add the hours of a day that is over to the longer chunks of a host."""
    hours = []
    for at in range(day, day + DAY, HOUR):
        for _, block in read_chunks(connection, MINUTE, at, (gpu_set_id,)):
            with suppress(DamagedBlockError):
                hours.append((at, block_format.unpack_hour(block)))
    for step in (300, HOUR) if hours else ():
        start = day // CHUNK_LENGTH_S[step] * CHUNK_LENGTH_S[step]
        host_buckets = buckets.create_empty_buckets(CHUNK_LENGTH_S[step] // step, hours[0][1].gpu_count)
        for _, block in read_chunks(connection, step, start, (gpu_set_id,)):
            with suppress(DamagedBlockError):
                host_buckets = buckets.unpack_buckets(block)
        for at, hour in hours:
            buckets.merge_buckets(host_buckets, (at - start) // step, buckets.build_buckets(hour, step // MINUTE))
        store_chunk(connection, step, start, gpu_set_id, buckets.pack_buckets(host_buckets))
    connection.execute("DELETE FROM due WHERE at=? AND shape=?", (day, gpu_set_id))


# Deletion of what is too old


def prune_in_steps(connection: sqlite3.Connection, now: float) -> Iterator[None]:
    """Delete what is too old, once an hour."""
    hour = int(now) // HOUR * HOUR
    last_run = connection.execute("SELECT at FROM done WHERE what='prune'").fetchone()
    if last_run and last_run[0] == hour:
        return
    for table, where, limit in list_expired(connection, now):
        statement = f"DELETE FROM {table} WHERE {where}"  # noqa: S608 # all words are ours
        while True:
            with begin_transaction(connection):
                count = connection.execute(statement, {"limit": limit, "most": ROWS_PER_TRANSACTION}).rowcount
            if count:  # where nothing goes there is no step, or the last one would never be reached
                yield
            if count < ROWS_PER_TRANSACTION:
                break
    if not last_run or last_run[0] // DAY != hour // DAY:
        with begin_transaction(connection):
            delete_unused_gpu_sets(connection, hour - RETENTION_DAYS[MINUTE] * DAY)
    with begin_transaction(connection):
        connection.execute("INSERT OR REPLACE INTO done VALUES('prune', ?)", (hour,))
    yield


def list_expired(connection: sqlite3.Connection, now: float) -> Iterator[tuple[str, str, int]]:
    """Yield tables, what to delete from each, and before which limit."""
    for step, days in RETENTION_DAYS.items():
        limit = find_retention_start(connection, now, days)
        rows_sql = f"SELECT rowid FROM chunk WHERE step={step} AND at<:limit LIMIT :most"  # noqa: S608 # the same
        yield "chunk", f"rowid IN ({rows_sql})", limit - CHUNK_LENGTH_S[step] + 1
    for table in ("hour_share", "hour_seen"):
        yield table, build_oldest_rows_filter(table, "at"), find_retention_start(connection, now, HOURLY_RETENTION_DAYS)
    limit = find_retention_start(connection, now, RETENTION_DAYS[HOUR])
    for table in ("share", "seen"):
        yield table, build_oldest_rows_filter(table, "day"), limit // DAY + EPOCH_ORDINAL
    yield "rolled", build_oldest_rows_filter("rolled", "at"), limit
    later_sql = "SELECT 1 FROM told later WHERE later.host=told.host AND later.at>told.at AND later.at<:limit"
    yield "told", f"at<:limit AND EXISTS({later_sql})", limit  # the last GPU set of a host stays valid
    yield "card", build_oldest_rows_filter("card", "last"), limit
    yield "event", build_oldest_rows_filter("event", "at"), limit
    yield "counter", build_oldest_rows_filter("counter", "away"), limit
    yield (
        "unkept",
        build_oldest_rows_filter("unkept", "until"),
        find_retention_start(connection, now, RETENTION_DAYS[300]),
    )


def build_oldest_rows_filter(table: str, column: str) -> str:
    """Build the condition for the oldest rows before the limit."""
    return (
        f"{column}<:limit AND {column}<=(SELECT max(one) FROM "  # noqa: S608 # the same
        f"(SELECT {column} AS one FROM {table} WHERE {column}<:limit ORDER BY {column} LIMIT :most))"
    )


def find_retention_start(connection: sqlite3.Connection, now: float, days: int) -> int:
    """Return from when on all is kept: at least these days by the clock, and as many days with history."""
    limit = int(now) // HOUR * HOUR - days * DAY
    day_start = END_OF_TIME
    for _ in range(days + 1):
        (newest,) = connection.execute("SELECT max(at) FROM rolled WHERE at<?", (day_start,)).fetchone()
        if newest is None:
            return 0
        day_start = newest // DAY * DAY
    return min(limit, day_start)


def delete_unused_gpu_sets(connection: sqlite3.Connection, before: int) -> None:
    used_ids: set[int] = set()
    for (block,) in connection.execute("SELECT block FROM minute"):
        try:
            used_ids.update(unpack_minute_part(block).slices)
        except DamagedBlockError:
            continue
    sql = "SELECT id FROM shape WHERE first<? AND id NOT IN (SELECT shape FROM chunk)"
    unused = [(gpu_set_id,) for (gpu_set_id,) in connection.execute(sql, (before,)) if gpu_set_id not in used_ids]
    connection.executemany("DELETE FROM shape WHERE id=?", unused)
