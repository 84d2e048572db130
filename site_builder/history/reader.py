"""Read history.db: hosts over time, and who used how much."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from site_builder.core import formatting
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import Problem
from site_builder.core.names import gpu_number_sort_key
from site_builder.history import block_format, buckets, database, usage_sums
from site_builder.history.model import GpuSeries, HostSample

SHARE_SUMS_SQL = ", ".join(f"sum({name})" for name in usage_sums.UsageShareSums._fields)
QueryResult = TypeVar("QueryResult")
Chunk = TypeVar("Chunk", block_format.HourBlock, buckets.HostBuckets)
# Minutes further ahead come from a wrong clock.
MAX_CLOCK_AHEAD_S = HOUR
GpuSetChange = tuple[str, int, tuple[GpuSeries, ...]]


class GpuHistory(NamedTuple):
    """GPU over buckets of time, with columns of GPU_BUCKET_COLUMNS."""

    series: GpuSeries
    columns: block_format.Columns
    names: list[str]

    def list_values(self, column: str) -> list[float | None]:
        """List the means of a column in its own unit; None where nothing was seen."""
        return block_format.unpack_block_numbers(self.columns[column], *buckets.GPU_BUCKET_COLUMNS[column])

    def list_people(self, column: str) -> list[str | None]:
        """List the `owner` or the `booker` of most of each bucket."""
        names_by_code: dict[int, str | None] = dict(enumerate(self.names))
        return [names_by_code.get(code) for code in self.columns[column]]


@dataclass(frozen=True)
class HostHistory:
    """Host over buckets of time, the first of which begins at `since`; its GPUs in the order of their indices."""

    host: str
    since: int
    step: int
    bucket_count: int
    host_columns: block_format.Columns
    gpus: tuple[GpuHistory, ...]

    def list_values(self, column: str) -> list[float | None]:
        """List `load` or `own_memory`, both in percent."""
        return block_format.unpack_block_numbers(self.host_columns[column], *block_format.HOST_COLUMNS[column])


class HistoryReader:
    """Reads history.db; each result is of one moment, whatever is written meanwhile."""

    def __init__(self, state: Path, zone: tzinfo) -> None:
        self.path = state / database.DATABASE_NAME
        self.zone = zone
        self.connection: sqlite3.Connection | None = None
        self.problem: Problem | None = None

    @property
    def exists(self) -> bool:
        return self.path.exists()

    @property
    def problem_text(self) -> str:
        return f"{self.problem.where}: {self.problem.what}" if self.problem else ""

    def connect(self) -> sqlite3.Connection:
        if self.connection is None:
            self.connection = database.open_database(self.path, read_only=True)
        return self.connection

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def query(self, run_query: Callable[[sqlite3.Connection], QueryResult], default: QueryResult) -> QueryResult:
        """Run a query; if that fails, return the default and set `problem`."""
        if not self.exists:
            return default
        self.problem = None
        try:
            connection = self.connect()
            connection.execute("BEGIN")
            try:
                return run_query(connection)
            finally:
                connection.execute("ROLLBACK")
        except (sqlite3.Error, OSError, block_format.DamagedBlockError, database.HistoryUnusableError) as error:
            self.close()
            self.problem = Problem(database.DATABASE_WHERE, formatting.hide_paths(f"it could not be read: {error}"))
            return default

    # Hosts and people

    def list_hosts(self) -> list[str]:
        sql = "SELECT DISTINCT host FROM shape ORDER BY host"
        return self.query(lambda connection: [host for (host,) in connection.execute(sql)], [])

    def list_people(self) -> list[str]:
        """List all who had or had booked something, under their names as recorded."""
        sql = "SELECT text FROM name WHERE id IN (SELECT DISTINCT person FROM share) ORDER BY text"
        return self.query(lambda connection: [name for (name,) in connection.execute(sql)], [])

    def read_host(
        self, host: str, since: float, until: float, step: int, columns: Iterable[str] = buckets.GPU_BUCKET_COLUMNS
    ) -> HostHistory:
        """Read a host in buckets of 60, 300 or 3600 s; what is not kept so finely is missing.

        Of its GPUs, only these columns are read, and `seen`.
        """
        start = int(since // step) * step
        count = max(0, int(-(-until // step)) - start // step)
        builder = HostHistoryReader(host, start, step, count, columns)
        self.query(builder.read, None)
        return builder.build()

    def read_minutes(
        self, host: str, count: int, now: float, since: float | None = None
    ) -> list[tuple[int, HostSample]]:
        """Read the last samples of a host, the oldest first; of the last days, or since a moment."""
        first = int(now - buckets.RETENTION_DAYS[MINUTE] * DAY if since is None else since)
        return self.query(lambda connection: list(read_last_samples(connection, host, count, first, now))[::-1], [])

    # Usage, from the sums of hours that are rolled up and the minutes of those that are not

    def read_daily_usage(self, first: date, last: date, now: float) -> usage_sums.DailyUsageSums:
        """Read who had how much on the days from one to another, up to now."""
        last = min(last, datetime.fromtimestamp(now, self.zone).date())  # a clock that ran ahead may have recorded more

        def run_query(connection: sqlite3.Connection) -> usage_sums.DailyUsageSums:
            names = dict(connection.execute("SELECT id, text FROM name"))
            days = (first.toordinal(), last.toordinal())
            shares = {
                (date.fromordinal(day), names[host], names[model], names[person]): usage_sums.UsageShareSums._make(row)
                for day, host, model, person, *row in connection.execute(
                    "SELECT * FROM share WHERE day BETWEEN ? AND ?", days
                )
            }
            seen = {
                (date.fromordinal(day), names[host], names[model]): usage_sums.StateMinutes._make(row)
                for day, host, model, *row in connection.execute("SELECT * FROM seen WHERE day BETWEEN ? AND ?", days)
            }
            for (_, host), tally in read_history_pending_usage(connection, 0, int(now) + 1, self.zone).items():
                for (day, model, person), share in tally.shares.items():
                    if first <= day <= last:
                        usage_sums.add_to_usage_sums(shares, (day, host, model, person), share)
                for (day, model), minutes in tally.seen.items():
                    if first <= day <= last:
                        usage_sums.add_to_usage_sums(seen, (day, host, model), minutes)
            return usage_sums.DailyUsageSums(
                [usage_sums.UsageShareSumsRow(*key, share) for key, share in sorted(shares.items())],
                [usage_sums.StateMinuteSumsRow(*key, minutes) for key, minutes in sorted(seen.items())],
            )

        return self.query(run_query, usage_sums.DailyUsageSums([], []))

    def read_hourly_usage(self, since: float, until: float) -> usage_sums.HourlyUsageSums:
        """Read who had how much by the hour; hours are kept for two months."""
        start, end = int(since) // HOUR * HOUR, int(until)

        def run_query(connection: sqlite3.Connection) -> usage_sums.HourlyUsageSums:
            sql = (
                "SELECT h.at, models.text, people.text, h.used, h.held, h.booked, h.unused FROM hour_share h "
                "JOIN name models ON models.id=h.model JOIN name people ON people.id=h.person WHERE h.at>=? AND h.at<?"
            )
            rows = connection.execute(sql, (start, end))
            shares = {(at, model, person): usage_sums.UsageShareSums._make(row) for at, model, person, *row in rows}
            seen = query_hourly_minutes(connection, start, end)
            for (at, _), tally in read_history_pending_usage(connection, start, end, self.zone).items():
                for (_, model, person), share in tally.shares.items():
                    usage_sums.add_to_usage_sums(shares, (at, model, person), share)
                for (_, model), minutes in tally.seen.items():
                    usage_sums.add_to_usage_sums(seen, (at, model), minutes)
            return usage_sums.HourlyUsageSums(shares, seen)

        return self.query(run_query, usage_sums.HourlyUsageSums({}, {}))

    # Usage of the whole fleet, from hours that are rolled up alone

    def find_rolled_up_end(self, now: float) -> int | None:
        """Return the end of the last hour that is completely rolled up; None if there is none yet."""
        sql = "SELECT (SELECT min(at) FROM hour_seen), (SELECT min(at) FROM minute)"
        nothing: tuple[int | None, int | None] = (None, None)
        first, first_pending = self.query(lambda connection: connection.execute(sql).fetchone(), nothing)
        until = int(now if first_pending is None else min(now, first_pending)) // HOUR * HOUR
        return None if first is None or first >= until else until

    def read_hourly_minutes(self, since: int, until: int) -> dict[tuple[int, str], usage_sums.StateMinutes]:
        """Read the minutes of GPUs by hour and model."""
        return self.query(lambda connection: query_hourly_minutes(connection, since, until), {})

    def read_person_shares(self, since: int, until: int) -> dict[str, usage_sums.UsageShareSums]:
        """Read how much each person had in all."""
        return self.query(lambda connection: query_person_shares(connection, since, until), {})


class HostHistoryReader:
    """Buckets of a host while they are filled."""

    def __init__(self, host: str, start: int, step: int, bucket_count: int, columns: Iterable[str]) -> None:
        self.columns = {name: buckets.GPU_BUCKET_COLUMNS[name] for name in ("seen", *columns)}
        self.host, self.start, self.step, self.bucket_count = host, start, step, bucket_count
        self.end = start + bucket_count * step
        self.host_columns = buckets.create_empty_bucket_columns(bucket_count, block_format.HOST_COLUMNS)
        self.gpus_by_key: dict[str, tuple[GpuSeries, block_format.Columns]] = {}
        self.names: list[str] = []

    def read(self, connection: sqlite3.Connection) -> None:
        """Fill the buckets from all that is kept of the host; what is damaged is a gap."""
        gpu_sets = read_gpu_sets(connection, self.host)
        pending: dict[int, list[tuple[int, buckets.HostBuckets]]] = defaultdict(list)
        part = block_format.compute_minute_block_part(self.host)
        for at, gpu_set_id, hour in read_pending_history(connection, part, self.start, self.end, gpu_sets):
            pending[gpu_set_id].append((at, buckets.build_buckets(hour, self.step // MINUTE)))
        for gpu_set_id, series in gpu_sets.items():
            self.add_gpu_set(series, chain(self.read_rolled_up(connection, gpu_set_id), pending[gpu_set_id]))

    def read_rolled_up(
        self, connection: sqlite3.Connection, gpu_set_id: int
    ) -> Iterator[tuple[int, buckets.HostBuckets]]:
        """Yield what is rolled up of a GPU set, the longest chunks first."""
        step = self.step

        def unpack_hour(block: bytes) -> buckets.HostBuckets:
            return buckets.build_buckets(block_format.unpack_hour_block(block), step // MINUTE)

        if step > MINUTE:
            for at in buckets.list_bucket_chunk_starts(self.start, self.end, buckets.CHUNK_LENGTH_S[step]):
                if chunk := read_history_chunk(connection, step, at, gpu_set_id, buckets.unpack_buckets):
                    yield at, chunk
        due_days = {at for (at,) in connection.execute("SELECT at FROM due WHERE shape=?", (gpu_set_id,))}
        for at in buckets.list_bucket_chunk_starts(self.start, self.end, HOUR):
            is_wanted = step == MINUTE or at // DAY * DAY in due_days
            if is_wanted and (chunk := read_history_chunk(connection, MINUTE, at, gpu_set_id, unpack_hour)):
                yield at, chunk

    def add_gpu_set(self, series: Sequence[GpuSeries], sources: Iterable[tuple[int, buckets.HostBuckets]]) -> None:
        """Add buckets of one GPU set, with the times of the first of them; minutes of different sets do not overlap."""
        target = buckets.HostBuckets(self.host_columns, [], self.names)
        for at, source in sources:
            first = max(0, (self.start - at) // self.step)
            last = min(len(source.host_columns["load"]), (self.end - at) // self.step)
            if first < last:
                if not target.gpu_columns:
                    target.gpu_columns.extend(
                        buckets.create_empty_bucket_columns(self.bucket_count, self.columns) for _ in series
                    )
                buckets.merge_buckets(target, (at - self.start) // self.step + first, source, slice(first, last))
        for gpu, columns in zip(series, target.gpu_columns):
            known_gpu, known_columns = self.gpus_by_key.setdefault(gpu.key, (gpu, columns))
            if known_columns is not columns:
                if buckets.find_seen_bucket_end(columns) > buckets.find_seen_bucket_end(known_columns):
                    known_gpu = gpu  # its name may have changed
                buckets.add_bucket_columns(known_columns, columns)
                self.gpus_by_key[gpu.key] = (known_gpu, known_columns)

    def build(self) -> HostHistory:
        """Return the history; a GPU that was not there in all that time is left out."""
        gpus = [
            GpuHistory(series, columns, self.names)
            for series, columns in self.gpus_by_key.values()
            if any(columns["seen"])
        ]
        gpus.sort(key=lambda gpu: (gpu_number_sort_key(gpu.series.index), gpu.series.key))
        return HostHistory(self.host, self.start, self.step, self.bucket_count, self.host_columns, tuple(gpus))


def read_gpu_sets(connection: sqlite3.Connection, host: str) -> dict[int, tuple[GpuSeries, ...]]:
    """Read which GPUs a host ever had, the newest last."""
    rows = connection.execute("SELECT id, gpus FROM shape WHERE host=? ORDER BY first", (host,))
    return {gpu_set_id: block_format.unpack_gpu_series(packed_series) for gpu_set_id, packed_series in rows}


def read_history_chunk(
    connection: sqlite3.Connection, step: int, at: int, gpu_set_id: int, unpack: Callable[[bytes], Chunk]
) -> Chunk | None:
    """Read what is rolled up of a GPU set from a moment on; None if there is nothing, or if it is damaged."""
    sql = "SELECT block FROM chunk WHERE step=? AND at=? AND shape=?"
    row = connection.execute(sql, (step, at, gpu_set_id)).fetchone()
    with suppress(block_format.DamagedBlockError):
        return unpack(row[0]) if row else None
    return None


def read_pending_history(
    connection: sqlite3.Connection, part: int, start: int, end: int, gpu_set_ids: Collection[int] | None = None
) -> Iterator[tuple[int, int, block_format.HourBlock]]:
    """Yield hours that are not rolled up, of these GPU sets or of all; a damaged minute is a gap."""
    hours: dict[int, dict[int, block_format.MinuteBlock]] = defaultdict(dict)
    sql = "SELECT at, block FROM minute WHERE part=? AND at>=? AND at<?"
    for at, block in connection.execute(sql, (part, start, end)):
        with suppress(block_format.DamagedBlockError):
            hours[at // HOUR * HOUR][at % HOUR // MINUTE] = block_format.unpack_minute_block(block)
    for at, parts in sorted(hours.items()):
        present = {gpu_set_id for minute_part in parts.values() for gpu_set_id in minute_part.places}
        for gpu_set_id in present if gpu_set_ids is None else present.intersection(gpu_set_ids):
            yield at, gpu_set_id, block_format.build_hour_block(gpu_set_id, parts)


def read_last_samples(
    connection: sqlite3.Connection, host: str, count: int, first: int, now: float
) -> Iterator[tuple[int, HostSample]]:
    """Yield the last samples of a host since a moment, the newest first."""
    gpu_sets = read_gpu_sets(connection, host)
    pending: dict[int, list[tuple[int, block_format.HourBlock]]] = defaultdict(list)
    last = int(now) // MINUTE * MINUTE
    for at, gpu_set_id, hour in read_pending_history(
        connection, block_format.compute_minute_block_part(host), first, last + 1, gpu_sets
    ):
        pending[at].append((gpu_set_id, hour))
    for at in reversed(buckets.list_bucket_chunk_starts(first, last + 1, HOUR)):
        hours = pending[at]
        for gpu_set_id in gpu_sets:
            if rolled_up := read_history_chunk(connection, MINUTE, at, gpu_set_id, block_format.unpack_hour_block):
                hours.append((gpu_set_id, rolled_up))
        for minute in reversed(range(block_format.MINUTES_PER_HOUR)):
            moment = at + minute * MINUTE
            for gpu_set_id, hour in hours:
                sample = None
                with suppress(block_format.DamagedBlockError):
                    sample = hour.build_sample(minute, host, gpu_sets[gpu_set_id])
                if sample and first <= moment <= last:
                    yield moment, sample
                    count -= 1
                    break
            if count <= 0:
                return


def read_history_pending_usage(
    connection: sqlite3.Connection, start: int, end: int, zone: tzinfo
) -> Mapping[tuple[int, str], usage_sums.UsageTally]:
    hours = (
        hour for part in range(block_format.PART_COUNT) for hour in read_pending_history(connection, part, start, end)
    )
    return usage_sums.tally_usage_hours(connection, hours, zone)


def query_hourly_minutes(
    connection: sqlite3.Connection, since: int, until: int
) -> dict[tuple[int, str], usage_sums.StateMinutes]:
    columns = ", ".join(database.SEEN_COLUMNS)
    sql = f"SELECT at, text, {columns} FROM hour_seen JOIN name ON id=model WHERE at>=? AND at<?"  # noqa: S608 # our words
    rows = connection.execute(sql, (since, until))
    return {(at, model): usage_sums.StateMinutes._make(row) for at, model, *row in rows}


def query_person_shares(connection: sqlite3.Connection, since: int, until: int) -> dict[str, usage_sums.UsageShareSums]:
    sql = f"SELECT text, {SHARE_SUMS_SQL} FROM hour_share JOIN name ON id=person WHERE at>=? AND at<? GROUP BY person"  # noqa: S608 # our words
    return {person: usage_sums.UsageShareSums._make(row) for person, *row in connection.execute(sql, (since, until))}


def read_history_gpu_set_changes(history: HistoryReader) -> list[GpuSetChange]:
    """List which GPUs each host had, from when on."""
    return history.query(lambda connection: list(query_history_gpu_set_changes(connection)), [])


def read_first_history_day(history: HistoryReader) -> date | None:
    """Return the first day that has history."""
    sql = "SELECT (SELECT min(day) FROM seen), (SELECT min(at) FROM minute)"
    nothing: tuple[int | None, int | None] = (None, None)
    day, first_minute = history.query(lambda connection: connection.execute(sql).fetchone(), nothing)
    days = [] if day is None else [date.fromordinal(day)]
    days += [] if first_minute is None else [datetime.fromtimestamp(first_minute, history.zone).date()]
    return min(days, default=None)


def query_history_gpu_set_changes(connection: sqlite3.Connection) -> Iterator[GpuSetChange]:
    """Yield the changes; a GPU set without any history left is empty."""
    sql = "SELECT told.host, at, gpus FROM told LEFT JOIN shape ON shape.id=told.shape"
    for host, at, packed_series in connection.execute(sql):
        yield host, at, () if packed_series is None else block_format.unpack_gpu_series(packed_series)
