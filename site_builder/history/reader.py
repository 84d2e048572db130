"""Read history."""

from __future__ import annotations

import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from site_builder.history import block_format, buckets, database
from site_builder.history.block_format import DamagedBlockError, HostHour, MinutePart
from site_builder.history.buckets import BucketColumns, ColumnMerger, HostBuckets, StateMinutes, UsageShare, UsageTally
from site_builder.history.model import GpuSeries, HostSample

SHARE_SUMS_SQL = ", ".join(f"sum({name})" for name in UsageShare._fields)


def find_rolled_up_end(past: HistoryReader, now: float) -> int | None:
    """The end of the last hour that is added up in all its parts; None where none is yet."""

    def question(connection: sqlite3.Connection) -> int | None:
        (first,) = connection.execute("SELECT min(at) FROM hour_seen").fetchone()
        (waiting,) = connection.execute("SELECT min(at) FROM minute").fetchone()
        until = int(now if waiting is None else min(now, waiting)) // HOUR * HOUR
        return None if first is None or first >= until else until

    return past.query(question, None)


def read_hourly_minutes(past: HistoryReader, since: int, until: int) -> dict[tuple[int, str], StateMinutes]:
    """What was seen, by hour and model."""
    asked = "SELECT h.at, n.text, h.* FROM hour_seen h JOIN name n ON n.id=h.model WHERE h.at>=? AND h.at<?"

    def question(connection: sqlite3.Connection) -> dict[tuple[int, str], StateMinutes]:
        rows = connection.execute(asked, (since, until))
        return {(at, model): StateMinutes(*row) for at, model, _, _, *row in rows}

    return past.query(question, {})


def read_person_shares(past: HistoryReader, since: int, until: int) -> dict[str, UsageShare]:
    """Who had how much in all."""
    asked = (
        f"SELECT n.text, {SHARE_SUMS_SQL} FROM hour_share h JOIN name n ON n.id=h.person "  # noqa: S608 # all words are ours
        "WHERE h.at>=? AND h.at<? GROUP BY h.person"
    )

    def question(connection: sqlite3.Connection) -> dict[str, UsageShare]:
        return {person: UsageShare(*row) for person, *row in connection.execute(asked, (since, until))}

    return past.query(question, {})


QueryResult = TypeVar("QueryResult")
# The fleet at a minute is kept in so many parts: one host is found without the others, and rolled up with few.
PART_COUNT = 16
# A chunk of each step covers so many seconds.
CHUNK_LENGTH_S = {MINUTE: HOUR, 300: DAY, HOUR: 32 * DAY}
# And is kept for so many days at least.
RETENTION_DAYS = {MINUTE: 2, 300: 35, HOUR: 762}
# What is told of a time further ahead is not believed until then.
MAX_CLOCK_AHEAD_S = HOUR


class GpuHistory(NamedTuple):
    """A GPU over slots of time; `line` has a column for each name in slots.OF_GPU."""

    series: GpuSeries
    columns: BucketColumns
    names: list[str]

    def list_values(self, column: str) -> list[float | None]:
        """One of the means, in its own unit; None where nothing was seen."""
        return block_format.decode_numbers(self.columns[column], *buckets.GPU_BUCKET_COLUMNS[column])

    def list_people(self, column: str) -> list[str | None]:
        """`owner` or `booker`: who had most of each slot."""
        found: dict[int, str | None] = dict(enumerate(self.names))
        return [found.get(code) for code in self.columns[column]]


@dataclass(frozen=True)
class HostHistory:
    """A host over slots of time, the first of which begins at `since`; its GPUs in the order of their indices."""

    host: str
    since: int
    step: int
    bucket_count: int
    host_columns: BucketColumns
    gpus: tuple[GpuHistory, ...]

    def list_values(self, column: str) -> list[float | None]:
        """`load` or `own_memory`, both in percent."""
        return block_format.decode_numbers(self.host_columns[column], *buckets.HOST_BUCKET_COLUMNS[column])


class UsageShareRow(NamedTuple):
    """What a person had of the GPUs of one model on a host on a day; in units of which a minute has tallied.UNIT."""

    day: date
    host: str
    model: str
    person: str
    share: UsageShare


class StateMinutesRow(NamedTuple):
    """What was seen of the GPUs of one model on a host on a day, in minutes."""

    day: date
    host: str
    model: str
    seen: StateMinutes


class DailyUsage(NamedTuple):
    """Who had how much, and what there was."""

    shares: list[UsageShareRow]
    seen: list[StateMinutesRow]


class HourlyUsage(NamedTuple):
    """The same of all hosts together, by hour (its beginning), model and person."""

    shares: dict[tuple[int, str, str], UsageShare]
    seen: dict[tuple[int, str], StateMinutes]


def compute_host_part(host: str) -> int:
    """In which part a host is kept."""
    return zlib.crc32(host.encode()) % PART_COUNT


def choose_finest_step(since: float, now: float) -> int:
    """The finest step that is kept as far back as that."""
    return next((step for step, days in RETENTION_DAYS.items() if since >= now - days * DAY), HOUR)


class HistoryReader:
    """Reads; each answer is of one moment, whatever is written meanwhile."""

    def __init__(self, state: Path, zone: tzinfo) -> None:
        """The folder in which it stands, and the zone by which the lab counts its days."""
        self.path = state / database.DATABASE_NAME
        self.zone = zone
        self.connection: sqlite3.Connection | None = None
        self.problem: Problem | None = None

    @property
    def exists(self) -> bool:
        """Whether there is any history yet."""
        return self.path.exists()

    def connect(self) -> sqlite3.Connection:
        """The open file."""
        if self.connection is None:
            self.connection = database.open_database(self.path, read_only=True)
        return self.connection

    def close(self) -> None:
        """Let go of the file."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def query(self, question: Callable[[sqlite3.Connection], QueryResult], nothing: QueryResult) -> QueryResult:
        """An answer of one moment; where there can be none, `trouble` says why."""
        if not self.exists:
            return nothing
        self.problem = None
        try:
            connection = self.connect()
            connection.execute("BEGIN")
            try:
                return question(connection)
            finally:
                connection.execute("ROLLBACK")
        except (sqlite3.Error, OSError, DamagedBlockError, database.HistoryUnusableError) as error:
            self.close()
            self.problem = Problem(database.DATABASE_WHERE, formatting.hide_paths(f"it could not be read: {error}"))
            return nothing

    def read_host(
        self, host: str, since: float, until: float, step: int, columns: Iterable[str] = buckets.GPU_BUCKET_COLUMNS
    ) -> HostHistory:
        """A host from one moment to another, in slots of 60, 300 or 3600 s; what is not kept that finely is missing.

        Of its GPUs, only these columns are read, and how many minutes were seen.
        """
        start = int(since // step) * step
        count = max(0, int(-(-until // step)) - start // step)
        drawn = HostHistoryBuilder(host, start, step, count, columns)
        self.query(lambda connection: fill_host_history(drawn, connection), None)
        return drawn.build()

    def read_minutes(
        self, host: str, count: int, now: float, since: float | None = None
    ) -> list[tuple[int, HostSample]]:
        """The last samples of a host, the oldest first; of the last days, or from a moment on."""
        first = int(now - RETENTION_DAYS[MINUTE] * DAY if since is None else since)
        return self.query(lambda connection: list(read_last_samples(connection, host, count, first, now))[::-1], [])

    def read_daily_usage(self, first: date, last: date, now: float) -> DailyUsage:
        """Who had how much on the days from one to another, up to this moment."""
        return self.query(
            lambda connection: query_daily_usage(connection, first, last, self.zone, now), DailyUsage([], [])
        )

    def read_hourly_usage(self, since: float, until: float) -> HourlyUsage:
        """The same by the hour, for the last two months."""
        return self.query(
            lambda connection: query_hourly_usage(connection, since, until, self.zone), HourlyUsage({}, {})
        )

    def list_hosts(self) -> list[str]:
        """All hosts of which something is kept."""
        asked = "SELECT DISTINCT host FROM shape ORDER BY host"
        return self.query(lambda connection: [host for (host,) in connection.execute(asked)], [])

    def list_people(self) -> list[str]:
        """All who had or were promised something, under the names that were told."""
        asked = "SELECT text FROM name WHERE id IN (SELECT DISTINCT person FROM share) ORDER BY text"
        return self.query(lambda connection: [name for (name,) in connection.execute(asked)], [])


class HostHistoryBuilder:
    """A host's slots while they are filled."""

    def __init__(
        self, host: str, start: int, step: int, count: int, columns: Iterable[str] = buckets.GPU_BUCKET_COLUMNS
    ) -> None:
        """Of which nothing is known yet."""
        self.columns = {name: buckets.GPU_BUCKET_COLUMNS[name] for name in ("seen", *columns)}
        self.host, self.start, self.step, self.bucket_count = host, start, step, count
        self.end = start + count * step
        self.host_columns = buckets.create_empty_columns(count, buckets.HOST_BUCKET_COLUMNS)
        self.gpus_by_key: dict[str, tuple[GpuSeries, BucketColumns]] = {}
        self.names: list[str] = []
        self.merger = ColumnMerger(self.names)

    def merge_buckets(self, at: int, lines: Sequence[BucketColumns], source: HostBuckets) -> None:
        """What of these slots, of which the first begins at `at`, lies within ours, into lines of the same GPUs."""
        first = max(0, (self.start - at) // self.step)
        last = min(len(source.host_columns["load"]), (self.end - at) // self.step)
        if first >= last:
            return
        place, some = (at - self.start) // self.step + first, slice(first, last)
        buckets.merge_host_columns(self.host_columns, place, source.host_columns, some)
        for mine, line in zip(lines, source.gpu_columns):
            self.merger.merge(mine, place, line, source.names, some)

    def add_gpu_set(self, series: Sequence[GpuSeries], several: Iterable[tuple[int, HostBuckets]]) -> None:
        """All that is kept of one set of GPUs; what a host tells of them in others are other minutes."""
        lines: list[BucketColumns] = []
        for at, source in several:
            lines = lines or [buckets.create_empty_columns(self.bucket_count, self.columns) for _ in series]
            self.merge_buckets(at, lines, source)
        for which, line in zip(series, lines):
            called, mine = self.gpus_by_key.setdefault(which.key, (which, line))
            if mine is not line:
                called = (
                    which if buckets.find_seen_end(line) > buckets.find_seen_end(mine) else called
                )  # as it is called now
                buckets.add_columns(mine, line)
                self.gpus_by_key[which.key] = (called, mine)

    def build(self) -> HostHistory:
        """What came of it; a GPU that was not there in all that time is left out."""
        found = [GpuHistory(which, line, self.names) for which, line in self.gpus_by_key.values() if any(line["seen"])]
        found.sort(key=lambda one: (gpu_number_sort_key(one.series.index), one.series.key))
        return HostHistory(self.host, self.start, self.step, self.bucket_count, self.host_columns, tuple(found))


def fill_host_history(drawn: HostHistoryBuilder, connection: sqlite3.Connection) -> None:
    """Fill the slots of a host from all that is kept of it; what is damaged is a gap."""
    shapes = read_gpu_sets(connection, drawn.host)
    waiting: dict[int, list[tuple[int, HostBuckets]]] = defaultdict(list)
    for at, shape, hour in read_pending_hours(
        connection, compute_host_part(drawn.host), drawn.start, drawn.end, shapes
    ):
        waiting[shape].append((at, buckets.build_buckets(hour, drawn.step // MINUTE)))
    for shape, series in shapes.items():
        drawn.add_gpu_set(series, chain(read_rolled_up_buckets(drawn, connection, shape), waiting[shape]))


def read_rolled_up_buckets(
    drawn: HostHistoryBuilder, connection: sqlite3.Connection, shape: int
) -> Iterator[tuple[int, HostBuckets]]:
    """What is rolled up of one set of GPUs, the longest chunks first."""
    if (step := drawn.step) > MINUTE:
        for at in list_chunk_starts(drawn.start, drawn.end, CHUNK_LENGTH_S[step]):
            for _, block in read_chunks(connection, step, at, (shape,)):
                with suppress(DamagedBlockError):
                    yield at, buckets.unpack_buckets(block)
    days = {at for (at,) in connection.execute("SELECT at FROM due WHERE shape=?", (shape,))}
    for at in list_chunk_starts(drawn.start, drawn.end, HOUR):
        if step == MINUTE or at // DAY * DAY in days:
            for _, block in read_chunks(connection, MINUTE, at, (shape,)):
                with suppress(DamagedBlockError):
                    yield at, buckets.build_buckets(block_format.unpack_hour(block), step // MINUTE)


def list_chunk_starts(start: int, end: int, covers: int) -> range:
    """Where the chunks begin that cover a time."""
    return range(start // covers * covers, end, covers)


def read_gpu_sets(connection: sqlite3.Connection, host: str) -> dict[int, tuple[GpuSeries, ...]]:
    """Which GPUs a host ever had, the newest last."""
    rows = connection.execute("SELECT id, gpus FROM shape WHERE host=? ORDER BY first", (host,))
    return {shape: block_format.parse_gpu_series(gpus) for shape, gpus in rows}


def read_chunks(
    connection: sqlite3.Connection, step: int, at: int, shapes: Iterable[int]
) -> Iterator[tuple[int, bytes]]:
    """The chunks that begin then."""
    for shape in shapes:
        asked = "SELECT block FROM chunk WHERE step=? AND at=? AND shape=?"
        for (block,) in connection.execute(asked, (step, at, shape)):
            yield shape, block


def read_minute_parts(
    connection: sqlite3.Connection, part: int, start: int, end: int
) -> dict[int, dict[int, MinutePart]]:
    """The minutes that are not rolled up, by their hours and their places in them; one that is damaged is a gap."""
    found: dict[int, dict[int, MinutePart]] = defaultdict(dict)
    asked = "SELECT at, block FROM minute WHERE part=? AND at>=? AND at<?"
    for at, block in connection.execute(asked, (part, start, end)):
        try:
            found[at // HOUR * HOUR][at % HOUR // MINUTE] = block_format.unpack_minute_part(block)
        except DamagedBlockError:
            continue
    return found


def read_pending_hours(
    connection: sqlite3.Connection, part: int, start: int, end: int, shapes: Iterable[int] | None = None
) -> Iterator[tuple[int, int, HostHour]]:
    """The hours that are not rolled up, of these shapes or of all."""
    for at, parts in sorted(read_minute_parts(connection, part, start, end).items()):
        there = {shape for one in parts.values() for shape in one.slices}
        for shape in there if shapes is None else there.intersection(shapes):
            yield at, shape, block_format.build_host_hour(shape, parts)


def read_last_samples(
    connection: sqlite3.Connection, host: str, count: int, first: int, now: float
) -> Iterator[tuple[int, HostSample]]:
    """The last samples of a host since a moment, the newest first."""
    shapes = read_gpu_sets(connection, host)
    hours: dict[int, list[tuple[int, HostHour]]] = defaultdict(list)
    last = int(now) // MINUTE * MINUTE
    for at, shape, hour in read_pending_hours(connection, compute_host_part(host), first, last + 1, shapes):
        hours[at].append((shape, hour))
    for at in reversed(list_chunk_starts(first, last + 1, HOUR)):
        kept = []
        for shape, block in read_chunks(connection, MINUTE, at, shapes):
            with suppress(DamagedBlockError):
                kept.append((shape, block_format.unpack_hour(block)))
        for slot in reversed(range(block_format.MINUTES_PER_HOUR)):
            moment = at + slot * MINUTE
            for shape, hour in (*hours[at], *kept):
                found = hour.build_sample(slot, host, shapes[shape])
                if found and first <= moment <= last:
                    yield moment, found
                    count -= 1
                    break
            if count <= 0:
                return


def tally_hours(
    connection: sqlite3.Connection, hours: Iterable[tuple[int, int, HostHour]], zone: tzinfo
) -> Mapping[tuple[int, str], UsageTally]:
    """The sums of hours that are not rolled up, by their beginnings and hosts."""
    found: dict[tuple[int, str], UsageTally] = defaultdict(UsageTally)
    shapes: dict[int, tuple[str, tuple[GpuSeries, ...]]] = {}
    for at, shape, hour in hours:
        if shape not in shapes:
            row = connection.execute("SELECT host, gpus FROM shape WHERE id=?", (shape,)).fetchone()
            shapes[shape] = (row[0], block_format.parse_gpu_series(row[1])) if row else ("", ())
        host, series = shapes[shape]
        found[at, host].add_hour(hour, series, buckets.split_hour_by_day(at, zone))
    return found


def read_all_pending_hours(connection: sqlite3.Connection, start: int, end: int) -> Iterator[tuple[int, int, HostHour]]:
    """The hours of all hosts that are not rolled up."""
    for part in range(PART_COUNT):
        yield from read_pending_hours(connection, part, start, end)


def query_daily_usage(connection: sqlite3.Connection, first: date, last: date, zone: tzinfo, now: float) -> DailyUsage:
    """Sums by day, of what is rolled up and of what is not."""
    names = dict(connection.execute("SELECT id, text FROM name"))
    last = min(last, datetime.fromtimestamp(now, zone).date())  # a clock that ran ahead may have told of later days
    days = (first.toordinal(), last.toordinal())
    shares: dict[tuple[date, str, str, str], list[int]] = {}
    seen: dict[tuple[date, str, str], list[int]] = {}
    for day, host, model, person, *row in connection.execute("SELECT * FROM share WHERE day BETWEEN ? AND ?", days):
        shares[date.fromordinal(day), names[host], names[model], names[person]] = row
    for day, host, model, *row in connection.execute("SELECT * FROM seen WHERE day BETWEEN ? AND ?", days):
        seen[date.fromordinal(day), names[host], names[model]] = row
    come = tally_hours(connection, read_all_pending_hours(connection, 0, int(now) + 1), zone)
    for (_, host), tally in come.items():
        for (day, model, person), row in tally.shares.items():
            if first <= day <= last:
                add_to_sums(shares, (day, host, model, person), row)
        for (day, model), row in tally.seen.items():
            if first <= day <= last:
                add_to_sums(seen, (day, host, model), row)
    return DailyUsage(
        [UsageShareRow(*key, UsageShare(*row)) for key, row in sorted(shares.items())],
        [StateMinutesRow(*key, StateMinutes(*row)) for key, row in sorted(seen.items())],
    )


Key = TypeVar("Key")


def add_to_sums(sums: dict[Key, list[int]], key: Key, row: Iterable[int]) -> None:
    """To what is there."""
    sums[key] = [one + other for one, other in zip(sums[key], row)] if key in sums else list(row)


def query_hourly_usage(connection: sqlite3.Connection, since: float, until: float, zone: tzinfo) -> HourlyUsage:
    """Sums by the hour, of what is rolled up and of what is not."""
    names = dict(connection.execute("SELECT id, text FROM name"))
    start, end = int(since) // HOUR * HOUR, int(until)
    shares: dict[tuple[int, str, str], list[int]] = {}
    seen: dict[tuple[int, str], list[int]] = {}
    for at, model, person, *row in connection.execute("SELECT * FROM hour_share WHERE at>=? AND at<?", (start, end)):
        shares[at, names[model], names[person]] = row
    for at, model, *row in connection.execute("SELECT * FROM hour_seen WHERE at>=? AND at<?", (start, end)):
        seen[at, names[model]] = row
    for (at, _), tally in tally_hours(connection, read_all_pending_hours(connection, start, end), zone).items():
        for (_, model, person), row in tally.shares.items():
            add_to_sums(shares, (at, model, person), row)
        for (_, model), row in tally.seen.items():
            add_to_sums(seen, (at, model), row)
    return HourlyUsage(
        {key: UsageShare(*row) for key, row in shares.items()}, {key: StateMinutes(*row) for key, row in seen.items()}
    )
