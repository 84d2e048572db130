"""Track the last run of each GPU: since when it is used, idle or empty, and how many minutes of that were seen.

A minute that was not seen, or in which the state is unclear, neither ends a run nor counts in it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from site_builder.core.formatting import DAY, MINUTE
from site_builder.core.model import GpuNumber
from site_builder.core.people import are_different_people
from site_builder.core.records import encode_record
from site_builder.history import block_format
from site_builder.history.model import TAKEN_STATES, UNCLEAR_STATES, GpuSeries
from site_builder.history.reader import HistoryReader

# Kinds of runs, as in history.db: somebody is on the GPU and uses it, or does not; nobody is on it.
RUN_USED, RUN_IDLE, RUN_EMPTY = 0, 1, 2
# Somebody is on it, and the driver does not report its use.
RUN_USE_UNKNOWN = 3
USE_STEP = block_format.GPU_COLUMNS["use"][1]
# An hour that is further than this from the last one may come from a clock that jumped.
CLOCK_JUMP_S = DAY
MAX_PEOPLE = 32
# Parameters that every SQLite takes in one statement.
MAX_SQL_PARAMETERS = 500
UNUSED_BOOKING_COLUMNS = "host, key, place, model, who, since, until, minutes"


class BookedRun(NamedTuple):
    """Time in which a GPU was booked without a break; `people` are all who had booked it."""

    since: int
    last_seen: int
    minutes: int
    taken_minutes: int
    people: tuple[str, ...]


class IdleRun(NamedTuple):
    """Last run of like minutes of a GPU, wherever it was; `people` are on it, if it is idle.

    `run_before_jump` is the run from before the clock seemed to jump: it may jump back.
    """

    host: str
    first_seen: int
    last_seen: int
    last_taken: int | None
    kind: int
    since: int
    minutes: int
    people: tuple[str, ...] = ()
    booked_run: BookedRun | None = None
    run_before_jump: IdleRun | None = None


class UnusedBookingRun(NamedTuple):
    """Booking that is over, and in which nobody was on the GPU; `until` is when its last minute ended."""

    host: str
    gpu_key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    people: tuple[str, ...]
    since: int
    until: int
    minutes: int


class IdleRunStretch(NamedTuple):
    """Like minutes of a GPU in a row."""

    start: int
    count: int  # type: ignore[assignment] # as above
    kind: int
    users: tuple[str, ...]
    bookers: tuple[str, ...]

    @property
    def last(self) -> int:
        return self.start + (self.count - 1) * MINUTE

    def clip_after(self, moment: int) -> IdleRunStretch:
        """Return the minutes that are later than this one."""
        count = max(0, min(self.count, (self.last - moment) // MINUTE))
        return self._replace(start=self.last - (count - 1) * MINUTE, count=count)


class IdleRunHistory(NamedTuple):
    """Runs by the key of a GPU in the fleet, unused bookings, and since when there is history."""

    first_at: int | None
    runs: dict[str, IdleRun]
    unused_bookings: tuple[UnusedBookingRun, ...]


def build_fleet_gpu_key(host: str, key: str) -> str:
    """Return the key of a GPU in the fleet: its UUID, or its place on its host if it has none."""
    return f"{host} {key}" if key.startswith("index ") else key


# Runs, hour by hour


def update_idle_run(
    before: IdleRun | None,
    host: str,
    series: GpuSeries,
    at: int,
    hour: block_format.HourBlock,
    number: int,
    idle_percent: float,
) -> tuple[IdleRun | None, list[UnusedBookingRun]]:
    """Return the run of a host's GPU of that number after an hour, and unused bookings that ended in it."""
    ended: list[UnusedBookingRun] = []
    run, run_before_jump = choose_base_idle_run(before, at)
    for stretch in split_into_idle_run_stretches(hour, number, at, idle_percent):
        if run is None:
            run = IdleRun(
                host=host,
                first_seen=stretch.start,
                last_seen=stretch.start - MINUTE,
                last_taken=None,
                kind=RUN_EMPTY,
                since=stretch.start,
                minutes=0,
            )
        if stretch.start <= run.last_seen:
            run, stretch = correct_idle_run(run, stretch), stretch.clip_after(run.last_seen)  # noqa: PLW2901
            if not stretch.count:
                continue
        booked_run, previous = extend_booked_run(run.booked_run, stretch), run.booked_run
        is_over = previous is not None and (booked_run is None or booked_run.since > previous.since)
        if previous and is_over and not previous.taken_minutes:
            ended.append(
                UnusedBookingRun(
                    host=host,
                    gpu_key=series.key,
                    index=series.index,
                    model=series.model,
                    people=previous.people,
                    since=previous.since,
                    until=previous.last_seen + MINUTE,
                    minutes=previous.minutes,
                )
            )
        run = extend_idle_run(run, host, stretch, booked_run)
    return (before if run is None else run._replace(run_before_jump=run_before_jump)), ended


def choose_base_idle_run(before: IdleRun | None, at: int) -> tuple[IdleRun | None, IdleRun | None]:
    """Return the run that an hour continues, and the one to keep in case the clock jumps back."""
    if before is None:
        return None, None
    run, run_before_jump = before._replace(run_before_jump=None), before.run_before_jump
    if abs(at - run.last_seen) <= CLOCK_JUMP_S:
        return run, run_before_jump
    not_ahead = [base for base in (run, run_before_jump) if base and base.last_seen <= at + CLOCK_JUMP_S]
    return max(not_ahead, key=lambda base: base.last_seen, default=None), run


def find_current_idle_run(run: IdleRun | None, now: float) -> IdleRun | None:
    """Return the run as of now, without what a clock that ran ahead recorded."""
    while run and run.last_seen > now + CLOCK_JUMP_S:
        run = run.run_before_jump
    return run


def split_into_idle_run_stretches(
    hour: block_format.HourBlock, number: int, at: int, idle_percent: float
) -> Iterator[IdleRunStretch]:
    """Yield the minutes of a GPU in an hour, as far as its state was clear."""
    gpu_minutes = slice(number * block_format.MINUTES_PER_HOUR, (number + 1) * block_format.MINUTES_PER_HOUR)
    codes = hour.occupancy_codes[gpu_minutes]
    use_kinds = hour.gpu_columns["use"][gpu_minutes].tobytes().translate(build_idle_run_kind_table(idle_percent))
    if codes.count(codes[0]) == len(codes):  # so it is in most hours
        if codes[0] == block_format.NO_CODE:
            return
        kind, users, bookers = classify_idle_run_minute(hour.occupancies[codes[0]])
        if kind is None:
            return
        if kind != RUN_USED or use_kinds.count(use_kinds[0]) == len(use_kinds):
            yield IdleRunStretch(at, len(codes), use_kinds[0] if kind == RUN_USED else kind, users, bookers)
            return
    classified = {
        code: classify_idle_run_minute(hour.occupancies[code]) for code in set(codes) if code != block_format.NO_CODE
    }

    def classify_minute(minute: int) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
        kind, users, bookers = classified.get(codes[minute], (None, (), ()))
        return use_kinds[minute] if kind == RUN_USED else kind, users, bookers

    for (kind, users, bookers), group in groupby(range(len(codes)), classify_minute):
        minutes = list(group)
        if kind is not None:
            yield IdleRunStretch(at + minutes[0] * MINUTE, len(minutes), kind, users, bookers)


@lru_cache(maxsize=8)
def build_idle_run_kind_table(idle_percent: float) -> bytes:
    """Build the table from the use of a taken GPU, as history stores it, to the kind of its run."""
    return bytes(
        RUN_USE_UNKNOWN if use == block_format.NO_USE else RUN_IDLE if use * USE_STEP < idle_percent else RUN_USED
        for use in range(block_format.NO_USE + 1)
    )


@lru_cache(maxsize=65536)
def classify_idle_run_minute(text: str) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
    """Return the kind of a minute, as if a taken GPU was used, None if unclear; its users, and its bookers."""
    state, people = block_format.unpack_occupancy(text)
    kind = None if state in UNCLEAR_STATES else RUN_USED if state in TAKEN_STATES else RUN_EMPTY
    return kind, people.users, people.bookers


def correct_idle_run(run: IdleRun, stretch: IdleRunStretch) -> IdleRun:
    """Apply minutes that were counted before, perhaps from another host: they may end a run, but count only once."""
    moment = min(stretch.last, run.last_seen)
    booked_run = run.booked_run
    if stretch.kind != RUN_EMPTY:
        run = run._replace(last_taken=max(run.last_taken or 0, moment))
        if booked_run and moment >= booked_run.since:
            run = run._replace(booked_run=booked_run._replace(taken_minutes=booked_run.taken_minutes + 1))
    is_like = stretch.kind == run.kind or (stretch.kind == RUN_USE_UNKNOWN and run.kind != RUN_EMPTY)
    if is_like or moment < run.since:
        return run
    since = moment + MINUTE
    return run._replace(since=since, minutes=max(0, min(run.minutes, (run.last_seen - since) // MINUTE + 1)))


def extend_idle_run(before: IdleRun, host: str, stretch: IdleRunStretch, booked_run: BookedRun | None) -> IdleRun:
    kind, count = stretch.kind, stretch.count
    if kind == RUN_USE_UNKNOWN:
        kind, count = (RUN_USED if before.kind == RUN_EMPTY else before.kind), 0
    is_new = kind != before.kind or (kind == RUN_IDLE and are_different_people(before.people, stretch.users))
    people = stretch.users or (() if is_new else before.people)
    return IdleRun(
        host=host,
        first_seen=before.first_seen,
        last_seen=stretch.last,
        last_taken=before.last_taken if kind == RUN_EMPTY else stretch.last,
        kind=kind,
        since=stretch.start if is_new else before.since,
        minutes=count if is_new else before.minutes + count,
        people=people if kind == RUN_IDLE else (),
        booked_run=booked_run,
    )


def extend_booked_run(before: BookedRun | None, stretch: IdleRunStretch) -> BookedRun | None:
    """Return the booked time after some minutes; None if the GPU is not booked."""
    if not stretch.bookers:
        return None
    taken = 0 if stretch.kind == RUN_EMPTY else stretch.count
    if before is None or are_different_people(before.people, stretch.bookers):
        return BookedRun(stretch.start, stretch.last, stretch.count, taken, stretch.bookers)
    people = tuple(sorted({*before.people, *stretch.bookers})[:MAX_PEOPLE])
    return BookedRun(before.since, stretch.last, before.minutes + stretch.count, before.taken_minutes + taken, people)


# Runs in history.db


def parse_idle_run(values: Any) -> IdleRun:  # noqa: ANN401 # a file may hold anything
    run = IdleRun._make(values)
    booked_run, run_before_jump = run.booked_run, run.run_before_jump
    if booked_run is not None:
        since, last_seen, minutes, taken_minutes, people = booked_run
        names = tuple(map(str, people))
        booked_run = BookedRun(int(since), int(last_seen), int(minutes), int(taken_minutes), names)
    return IdleRun(
        host=str(run.host),
        first_seen=int(run.first_seen),
        last_seen=int(run.last_seen),
        last_taken=None if run.last_taken is None else int(run.last_taken),
        kind=int(run.kind),
        since=int(run.since),
        minutes=int(run.minutes),
        people=tuple(map(str, run.people)),
        booked_run=booked_run,
        run_before_jump=None if run_before_jump is None else parse_idle_run(run_before_jump),
    )


def roll_up_idle_runs(
    connection: sqlite3.Connection, hours: Sequence[tuple[int, int, block_format.HourBlock]], idle_percent: float
) -> None:
    """Add hours that are rolled up to the runs of their GPUs, in the transaction of the caller."""
    gpu_hours: list[tuple[str, str, GpuSeries, int, block_format.HourBlock, int]] = []
    for at, gpu_set_id, hour in hours:
        for host, packed_series in connection.execute("SELECT host, gpus FROM shape WHERE id=?", (gpu_set_id,)):
            for number, series in enumerate(block_format.unpack_gpu_series(packed_series)[: hour.gpu_count]):
                gpu_hours.append((build_fleet_gpu_key(host, series.key), host, series, at, hour, number))
    runs = read_idle_runs(connection, {gpu_key for gpu_key, *_ in gpu_hours})
    ended: list[UnusedBookingRun] = []
    for gpu_key, host, series, at, hour, number in gpu_hours:
        run, unused_bookings = update_idle_run(runs.get(gpu_key), host, series, at, hour, number, idle_percent)
        ended += unused_bookings
        if run:
            runs[gpu_key] = run
    connection.executemany(
        "INSERT OR REPLACE INTO card VALUES(?,?,?,?,?)",
        [(gpu_key, run.last_seen, run.kind, run.minutes, encode_record(run)) for gpu_key, run in runs.items()],
    )
    connection.executemany(
        f"INSERT OR REPLACE INTO unkept(card, {UNUSED_BOOKING_COLUMNS}) VALUES(?,?,?,?,?,?,?,?,?)",
        [
            (
                build_fleet_gpu_key(booking.host, booking.gpu_key),
                *booking._replace(people=orjson.dumps(booking.people)),  # type: ignore[arg-type] # as it is stored
            )
            for booking in ended
        ],
    )
    # a booking that goes on after all: the clock had only run ahead
    going_on = [(gpu_key, run.booked_run.since) for gpu_key, run in runs.items() if run.booked_run]
    connection.executemany("DELETE FROM unkept WHERE card=? AND since=?", going_on)


def read_idle_runs(connection: sqlite3.Connection, gpu_keys: Iterable[str]) -> dict[str, IdleRun]:
    keys = sorted(gpu_keys)
    runs: dict[str, IdleRun] = {}
    for start in range(0, len(keys), MAX_SQL_PARAMETERS):
        some_keys = keys[start : start + MAX_SQL_PARAMETERS]
        runs.update(query_idle_runs(connection, f"key IN ({','.join('?' * len(some_keys))})", some_keys))
    return runs


def query_idle_runs(
    connection: sqlite3.Connection, condition: str, parameters: Sequence[object]
) -> Iterator[tuple[str, IdleRun]]:
    """Yield the runs of GPUs; damaged rows are left out."""
    sql = f"SELECT key, told FROM card WHERE {condition}"  # noqa: S608 # our words
    for gpu_key, packed_run in connection.execute(sql, parameters):
        with suppress(ValueError, TypeError, KeyError):
            yield gpu_key, parse_idle_run(orjson.loads(packed_run))


def read_idle_history(
    history: HistoryReader, gpu_keys: Collection[str], empty_minutes: int, since: float, until: float
) -> IdleRunHistory:
    """Read the runs of these GPUs and of those that were empty for long, and unused bookings.

    Bookings are those that ended between the two moments.
    """

    def run_query(connection: sqlite3.Connection) -> IdleRunHistory:
        ended = []
        sql = f"SELECT {UNUSED_BOOKING_COLUMNS} FROM unkept WHERE until>? AND until<=? ORDER BY until"  # noqa: S608 # our words
        for booking in map(UnusedBookingRun._make, connection.execute(sql, (since, until))):
            with suppress(ValueError, TypeError):
                ended.append(booking._replace(people=tuple(map(str, orjson.loads(booking.people)))))  # type: ignore[arg-type] # as stored
        ended_keys = (build_fleet_gpu_key(booking.host, booking.gpu_key) for booking in ended)
        runs = read_idle_runs(connection, {*gpu_keys, *ended_keys})
        runs.update(query_idle_runs(connection, "run=? AND minutes>=?", (RUN_EMPTY, empty_minutes)))
        (first,) = connection.execute("SELECT min(at) FROM rolled").fetchone()
        return IdleRunHistory(first, runs, tuple(ended))

    return history.query(run_query, IdleRunHistory(None, {}, ()))
