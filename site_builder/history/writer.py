"""Take samples, write them to history.db, roll up what is older, and delete what is too old."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import tzinfo
from functools import lru_cache
from pathlib import Path

from site_builder.core.files import is_emptied_file
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import HostFacts, HostStatus, Problem, ProcessStatus
from site_builder.core.names import extract_program_name
from site_builder.history import block_format, buckets, database, idle_runs
from site_builder.history.buckets import CHUNK_LENGTH_S, RETENTION_DAYS
from site_builder.history.database import DATABASE_WHERE, HistoryUnusableError, begin_database_transaction
from site_builder.history.model import (
    GpuSample,
    GpuSeries,
    HostSample,
    OccupancySample,
    ProcessSample,
    list_host_gpu_keys,
)
from site_builder.history.reader import MAX_CLOCK_AHEAD_S, HistoryReader, read_history_chunk, read_pending_history
from site_builder.history.usage_sums import StateMinutes, UsageShareSums, add_to_usage_sums, tally_usage_hours

# Rows that are deleted in one transaction.
ROWS_PER_TRANSACTION = 500
EPOCH_ORDINAL = 719163  # the first of January 1970, as dates are counted in the file
HOURLY_RETENTION_DAYS = 63
END_OF_TIME = 2**62
# Days of hosts that become chunks in one transaction.
DAYS_PER_TRANSACTION = 2


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
        return [*problems, *database.describe_broken_databases(self.path.parent)]

    def connect(self) -> sqlite3.Connection:
        """Open the file for writing; the admin may delete or replace it at any time."""
        if self.connection is not None and not self.path.exists():
            self.close()
        if self.connection is not None and self.identity and not database.is_same_database(self.path, self.identity):
            self.close()
            database.remove_replaced_database_log(self.path, self.identity)
        if self.connection is None:
            if is_emptied_file(self.path):
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

    def record(self, samples: Sequence[block_format.PackedSample], now: float, reach: float = 0) -> None:
        """Record the fresh hosts, once a minute; builds come at most `reach` seconds apart."""
        minute = int(now) // MINUTE * MINUTE
        if minute == self.recorded_at:
            return
        with self.catch_failure("record", now, "history was not recorded for this minute"):
            self.write_minute(samples, minute, reach)
            self.recorded_at = minute

    def roll_up(self, now: float, seconds: float) -> bool:
        """Roll up what is due, for so long; return True if all of it is done."""
        end = time.monotonic() + seconds
        with self.catch_failure("roll_up", now, "older data was not changed"):
            connection = self.connect()
            connection.execute("PRAGMA synchronous=NORMAL")  # the next minute makes it last
            return all(time.monotonic() < end for _ in self.roll_up_in_steps(connection, now))
        return False

    @contextmanager
    def catch_failure(self, task: str, now: float, consequence: str) -> Iterator[None]:
        """Record why something could not be done with the file, and that it was done; set a damaged file aside."""
        try:
            yield
            self.failures.pop(task, None)
        except HistoryUnusableError as error:
            self.failures[task] = (str(error), "no history is written")
        except Exception as error:  # whatever it is, it must not cost the page
            self.close()
            message = str(error) if isinstance(error, (sqlite3.Error, OSError)) else repr(error)
            self.failures[task] = (f"it could not be written ({message[:200]})", consequence)
            if database.is_broken_database(error, self.path):
                try:
                    if database.set_aside_database(self.path, now):
                        del self.failures[task]  # said by the file that is set aside
                except OSError as rename_error:
                    reason = f"it is damaged and could not be moved aside ({rename_error.strerror})"
                    self.failures[task] = (reason, "no history is written")

    def write_minute(self, samples: Sequence[block_format.PackedSample], minute: int, reach: float) -> None:
        """Write a minute, unless it is there; minutes missed between two builds are copies of the last one."""
        connection = self.connect()
        by_part: dict[int, list[block_format.PackedSample]] = defaultdict(list)
        for sample in samples:
            by_part[block_format.compute_minute_block_part(sample.host)].append(sample)
        blocks = [(part, block_format.pack_minute_block(part_samples)) for part, part_samples in by_part.items()]
        blocks = blocks or [
            (block_format.PART_COUNT, block_format.pack_minute_block([]))
        ]  # that nobody was there was seen too
        new_gpu_sets = {
            sample.gpu_set_id: (sample.gpu_set_id, sample.host, sample.packed_series, minute)
            for sample in samples
            if sample.gpu_set_id not in self.gpu_set_ids
        }
        connection.execute("PRAGMA synchronous=FULL")  # what a power cut takes is no more than a minute
        with begin_database_transaction(connection):
            connection.executemany("INSERT OR IGNORE INTO shape VALUES(?,?,?,?)", new_gpu_sets.values())
            connection.execute("UPDATE minute SET ahead=1 WHERE at>? AND ahead=0", (minute + MAX_CLOCK_AHEAD_S,))
            (last_minute,) = connection.execute("SELECT max(at) FROM minute WHERE at<?", (minute,)).fetchone()
            if last_minute is not None and minute - last_minute <= reach + MINUTE:
                for missed in range(last_minute + MINUTE, minute, MINUTE):
                    sql = "SELECT part, block FROM minute WHERE at=?"
                    self.insert_minute(connection, missed, connection.execute(sql, (last_minute,)).fetchall())
            self.insert_minute(connection, minute, blocks)
            gpu_sets = self.last_gpu_sets
            if gpu_sets is None or minute < self.recorded_at:  # ignore what a clock that ran ahead recorded
                sql = "SELECT host, shape, max(at) FROM told WHERE at<=? GROUP BY host"
                gpu_sets = {host: gpu_set_id for host, gpu_set_id, _ in connection.execute(sql, (minute,))}
            changes = [
                (sample.host, minute, sample.gpu_set_id)
                for sample in samples
                if gpu_sets.get(sample.host) != sample.gpu_set_id
            ]
            connection.executemany("INSERT OR REPLACE INTO told VALUES(?,?,?)", changes)
        self.gpu_set_ids |= new_gpu_sets.keys()
        self.last_gpu_sets = {**gpu_sets, **{sample.host: sample.gpu_set_id for sample in samples}}

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
            with begin_database_transaction(connection):
                self.roll_up_hour(connection, at, part)
            yield
        today = int(now) // DAY * DAY
        while due_days := connection.execute(
            "SELECT at, shape FROM due WHERE at<? ORDER BY at LIMIT ?", (today, DAYS_PER_TRANSACTION)
        ).fetchall():
            with begin_database_transaction(connection):
                for day, gpu_set_id in due_days:
                    write_rolled_up_day(connection, day, gpu_set_id)
            yield
        for _ in prune_history_in_steps(connection, now):
            self.gpu_set_ids = {gpu_set_id for (gpu_set_id,) in connection.execute("SELECT id FROM shape")}
            yield

    def roll_up_hour(self, connection: sqlite3.Connection, at: int, part: int) -> None:
        """Roll up the minutes of an hour that is over, of one part of the hosts."""
        hours = list(read_pending_history(connection, part, at, at + HOUR))
        for _, gpu_set_id, hour in hours:
            stored = read_history_chunk(connection, MINUTE, at, gpu_set_id, block_format.unpack_hour_block)
            whole = block_format.merge_hour_blocks(stored, hour) if stored else hour
            store_history_chunk(connection, MINUTE, at, gpu_set_id, block_format.pack_hour_block(whole))
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

    def add_hours(
        self, connection: sqlite3.Connection, hours: Sequence[tuple[int, int, block_format.HourBlock]]
    ) -> None:
        """Add some hours, each of which comes here once, to the sums and to the runs of GPUs."""
        shares: dict[tuple[int, ...], UsageShareSums] = {}
        seen: dict[tuple[int, ...], StateMinutes] = {}
        hour_shares: dict[tuple[int, ...], UsageShareSums] = {}
        hour_seen: dict[tuple[int, ...], StateMinutes] = {}
        for (at, host), tally in tally_usage_hours(connection, hours, self.zone).items():
            for (day, model, person), share in tally.shares.items():
                host_id, model_id, person_id = (self.find_name_id(connection, name) for name in (host, model, person))
                add_to_usage_sums(shares, (day.toordinal(), host_id, model_id, person_id), share)
                add_to_usage_sums(hour_shares, (at, model_id, person_id), share)
            for (day, model), minutes in tally.seen.items():
                host_id, model_id = (self.find_name_id(connection, name) for name in (host, model))
                add_to_usage_sums(seen, (day.toordinal(), host_id, model_id), minutes)
                add_to_usage_sums(hour_seen, (at, model_id), minutes)
        tables: tuple[tuple[str, str, Sequence[str], Mapping[tuple[int, ...], tuple[int, ...]]], ...] = (
            ("share", "day, host, model, person", UsageShareSums._fields, shares),
            ("seen", "day, host, model", database.SEEN_COLUMNS, seen),
            ("hour_share", "at, model, person", UsageShareSums._fields, hour_shares),
            ("hour_seen", "at, model", database.SEEN_COLUMNS, hour_seen),
        )
        for table, key_columns, columns, sums in tables:
            placeholders = ",".join("?" * len([*key_columns.split(), *columns]))
            additions = ", ".join(f"{name}={name}+excluded.{name}" for name in columns)
            sql = f"INSERT INTO {table} VALUES({placeholders}) ON CONFLICT({key_columns}) DO UPDATE SET {additions}"
            connection.executemany(sql, [(*key, *row) for key, row in sums.items()])
        idle_runs.roll_up_idle_runs(connection, hours, self.idle_percent)

    def find_name_id(self, connection: sqlite3.Connection, text: str) -> int:
        if text not in self.name_ids:
            connection.execute("INSERT OR IGNORE INTO name(text) VALUES(?)", (text,))
            (self.name_ids[text],) = connection.execute("SELECT id FROM name WHERE text=?", (text,)).fetchone()
        return self.name_ids[text]


def store_history_chunk(connection: sqlite3.Connection, step: int, at: int, gpu_set_id: int, block: bytes) -> None:
    connection.execute("INSERT OR REPLACE INTO chunk VALUES(?,?,?,?)", (step, at, gpu_set_id, block))


def write_rolled_up_day(connection: sqlite3.Connection, day: int, gpu_set_id: int) -> None:
    """Add the hours of a day that is over to the longer chunks of a host."""
    hours = [
        (at, hour)
        for at in range(day, day + DAY, HOUR)
        if (hour := read_history_chunk(connection, MINUTE, at, gpu_set_id, block_format.unpack_hour_block))
    ]
    for step in (300, HOUR) if hours else ():
        length = CHUNK_LENGTH_S[step]
        start = day // length * length
        host_buckets = read_history_chunk(
            connection, step, start, gpu_set_id, buckets.unpack_buckets
        ) or buckets.create_empty_buckets(length // step, hours[0][1].gpu_count)
        for at, hour in hours:
            buckets.merge_buckets(host_buckets, (at - start) // step, buckets.build_buckets(hour, step // MINUTE))
        store_history_chunk(connection, step, start, gpu_set_id, buckets.pack_buckets(host_buckets))
    connection.execute("DELETE FROM due WHERE at=? AND shape=?", (day, gpu_set_id))


# Deletion of what is too old


def prune_history_in_steps(connection: sqlite3.Connection, now: float) -> Iterator[None]:
    """Delete what is too old, once an hour."""
    hour = int(now) // HOUR * HOUR
    last_run = connection.execute("SELECT at FROM done WHERE what='prune'").fetchone()
    if last_run and last_run[0] == hour:
        return
    for table, where, limit in list_expired_history(connection, now):
        statement = f"DELETE FROM {table} WHERE {where}"  # noqa: S608 # all words are ours
        while True:
            with begin_database_transaction(connection):
                count = connection.execute(statement, {"limit": limit, "most": ROWS_PER_TRANSACTION}).rowcount
            if count:  # where nothing goes there is no step, or the last one would never be reached
                yield
            if count < ROWS_PER_TRANSACTION:
                break
    if not last_run or last_run[0] // DAY != hour // DAY:
        with begin_database_transaction(connection):
            delete_unused_gpu_sets(connection, hour - RETENTION_DAYS[MINUTE] * DAY)
    with begin_database_transaction(connection):
        connection.execute("INSERT OR REPLACE INTO done VALUES('prune', ?)", (hour,))
    yield


def list_expired_history(connection: sqlite3.Connection, now: float) -> Iterator[tuple[str, str, int]]:
    """Yield tables, what to delete from each, and before which limit."""
    all_days = {HOURLY_RETENTION_DAYS, *RETENTION_DAYS.values()}
    limits = {days: find_retention_start(connection, now, days) for days in all_days}
    longest = limits[RETENTION_DAYS[HOUR]]
    for step, days in RETENTION_DAYS.items():
        rows_sql = f"SELECT rowid FROM chunk WHERE step={step} AND at<:limit LIMIT :most"  # noqa: S608 # the same
        yield "chunk", f"rowid IN ({rows_sql})", limits[days] - CHUNK_LENGTH_S[step] + 1
    later_sql = "SELECT 1 FROM told later WHERE later.host=told.host AND later.at>told.at AND later.at<:limit"
    yield "told", f"at<:limit AND EXISTS({later_sql})", longest  # the last GPU set of a host stays valid
    for table, column, limit in (
        ("hour_share", "at", limits[HOURLY_RETENTION_DAYS]),
        ("hour_seen", "at", limits[HOURLY_RETENTION_DAYS]),
        ("share", "day", longest // DAY + EPOCH_ORDINAL),
        ("seen", "day", longest // DAY + EPOCH_ORDINAL),
        ("rolled", "at", longest),
        ("card", "last", longest),
        ("event", "at", longest),
        ("counter", "away", longest),
        ("unkept", "until", limits[RETENTION_DAYS[300]]),
    ):
        oldest_sql = f"SELECT {column} AS one FROM {table} WHERE {column}<:limit ORDER BY {column} LIMIT :most"  # noqa: S608 # the same
        yield table, f"{column}<:limit AND {column}<=(SELECT max(one) FROM ({oldest_sql}))", limit  # noqa: S608 # the same


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
            used_ids.update(block_format.unpack_minute_block(block).places)
        except block_format.DamagedBlockError:
            continue
    sql = "SELECT id FROM shape WHERE first<? AND id NOT IN (SELECT shape FROM chunk)"
    unused = [(gpu_set_id,) for (gpu_set_id,) in connection.execute(sql, (before,)) if gpu_set_id not in used_ids]
    connection.executemany("DELETE FROM shape WHERE id=?", unused)


def sample_host(host: HostStatus) -> HostSample | None:
    """Take a sample of a fresh host; nothing is known of any other."""
    if host.state != "fresh":
        return None
    facts = host.facts or HostFacts()
    load = 100 * facts.load[0] / facts.cpus if facts.load and facts.cpus else None
    memory = None
    if facts.memory_total and facts.memory_available is not None:
        memory = 100 * (1 - facts.memory_available / facts.memory_total)
    samples = [
        GpuSample(
            series=GpuSeries(key, status.gpu.number, status.model, status.gpu.memory_total),
            use=status.gpu.utilization_gpu,
            memory=status.gpu.memory_used,
            temperature=status.gpu.temperature,
            power=status.gpu.power_draw,
            occupancy=OccupancySample(status.state, status.people),
            processes=tuple(map(sample_process, status.processes)),
        )
        for status, key in zip(host.gpus, list_host_gpu_keys(host.gpus))
    ]
    return HostSample(host.name, load, memory, tuple(samples))


@lru_cache(maxsize=40_000)
def sample_process(process: ProcessStatus) -> ProcessSample:
    """Take a sample of a process, once for as long as it stays the same."""
    program = None if process.command is None else extract_program_name(process.command)
    return ProcessSample(process.pid, program, process.used_memory, process.user)
