"""Add up recent usage from state/history.db, a little at each build, and keep the sums in state/sums.json."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.core import files, formatting
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import Problem
from site_builder.core.records import encode_record, make_record_decoder, replace_dicts_by_pairs
from site_builder.history import block_format, reader
from site_builder.history.block_format import DamagedBlockError
from site_builder.history.buckets import RETENTION_DAYS
from site_builder.history.database import DATABASE_WHERE, SEEN_COLUMNS
from site_builder.history.reader import SHARE_SUMS_SQL, GpuSetChange, HistoryReader
from site_builder.history.usage_sums import (
    SeenMinuteSums,
    StateMinutes,
    UsageShareSums,
    account_minutes,
    add_to_usage_sums,
)
from site_builder.history.writer import EPOCH_ORDINAL

SUMS_FILE = "sums.json"
# An older gpuboard left a pickle, which could execute code, and is never read.
OLD_SUMS_FILE = "sums.pickle"
SUMS_VERSION = 4
# A thousand hosts and as many people need a tenth of it.
MAX_SUMS_BYTES = 256 * 1024 * 1024
MAX_EPOCH = 10**11  # the year 5138
SEEN_SUMS_SQL = ", ".join(f"sum({name})" for name, _ in zip(SEEN_COLUMNS, SeenMinuteSums._fields))
NO_SHARE = UsageShareSums(0, 0, 0, 0)
# This month and the last are kept in detail, of those before only people and the sums.
DETAILED_MONTHS = 2
HostModel = tuple[str, str]  # a host and a model
PendingBits = dict[tuple[int, int], int]  # minutes as bits, by hour and part
# From GPU set changes, the first day of a month, its end and what was seen: the minutes that nobody saw.
CountUnseen = Callable[[Iterable[GpuSetChange], date, int, dict[HostModel, StateMinutes]], dict[HostModel, int]]


class RollupWindow(NamedTuple):
    """Sums of some hours up to a moment."""

    since: int
    until: int
    seen_minutes: int
    shares: dict[str, UsageShareSums]
    state_minutes: StateMinutes


class MonthUsage(NamedTuple):
    """Sums of a month, as far as it is added up, since the day on which history begins.

    By host and model, or in an old month for all of them under empty names.
    """

    first: date
    since: date
    until: int
    shares: dict[str, UsageShareSums]
    shares_by_place: dict[HostModel, UsageShareSums]
    seen_by_place: dict[HostModel, StateMinutes]
    unseen_by_place: dict[HostModel, int]


@dataclass
class PendingRollupHour:
    """Sums of the counted minutes of an hour, of some hosts; which minutes these are is in bits."""

    minute_bits: int = 0
    shares: dict[str, UsageShareSums] = field(default_factory=dict)
    seen: SeenMinuteSums = field(default_factory=SeenMinuteSums)

    def count_minute(self, block: bytes) -> None:
        """Add a minute; a damaged one is a gap."""
        try:
            part = block_format.unpack_minute_block(block)
            accounts = [
                (account_minutes(part.occupancies[code], gpus), gpus)
                for code, gpus in Counter(part.occupancy_codes).items()
            ]
        except DamagedBlockError:
            return
        seen = self.seen._asdict()
        seen["seen"] += len(part.occupancy_codes)
        for (state, unowned, people), gpus in accounts:
            seen[state] += gpus
            seen["unowned"] += unowned
            for person, share in people:
                add_to_usage_sums(self.shares, person, share)
        self.seen = SeenMinuteSums(**seen)


@dataclass
class RollupHourSums:
    """Sums of hours that are rolled up."""

    hours: tuple[int, int]
    minutes: int
    shares: dict[str, UsageShareSums]
    seen: SeenMinuteSums


@dataclass
class UnfinishedRollupMonth:
    """Month that is being added up, day by day."""

    first: date
    until: int
    remaining_days: list[date]
    shares: dict[str, UsageShareSums] = field(default_factory=dict)
    shares_by_place: dict[HostModel, UsageShareSums] = field(default_factory=dict)
    seen_by_place: dict[HostModel, SeenMinuteSums] = field(default_factory=dict)


class FinishedRollupMonth(NamedTuple):
    """Packed month that is added up as far as `until`."""

    until: int
    packed_month: bytes
    is_condensed: bool = False


@dataclass
class RollupState:
    """Content of sums.json; `rendered_months` is a fingerprint, and what was rendered from it."""

    database_identity: tuple[int, int] = (0, 0)
    pending_hours: dict[tuple[int, int], PendingRollupHour] = field(default_factory=dict)
    window_sums: dict[int, RollupHourSums] = field(default_factory=dict)
    windows: tuple[RollupWindow, ...] = ()
    unfinished_month: UnfinishedRollupMonth | None = None
    finished_months: dict[date, FinishedRollupMonth] = field(default_factory=dict)
    rendered_months: tuple[bytes, str] = (b"", "")
    late_months: set[date] = field(default_factory=set)  # an hour was added after these were finished


class UsageRollup:
    """Sums of some hours up to now and of some months, that grow with history."""

    def __init__(
        self, history: HistoryReader, window_hours: tuple[int, ...], month_count: int, count_unseen: CountUnseen
    ) -> None:
        self.history, self.window_hours, self.month_count = history, window_hours, month_count
        self.count_unseen = count_unseen
        self.store_path = history.path.parent / SUMS_FILE
        self.state = load_rollup_state(self.store_path)
        self.is_changed = False
        self.is_done = False

    def advance(self, now: float, seconds: float) -> None:
        """Add up for some seconds, at least one step; `is_done` says whether that was all."""
        end = time.monotonic() + seconds
        self.is_done = False

        def work(connection: sqlite3.Connection) -> None:
            for _ in self.advance_in_steps(connection, now):
                self.is_changed = True
                if time.monotonic() >= end:
                    return
            self.is_done = True

        try:
            self.history.query(work, None)
        except Exception as error:  # whatever it is, it must not cost the page
            self.state, self.is_changed = RollupState(), True
            problem = f"the totals could not be updated; trying again: {error!r}"[:300]
            self.history.problem = Problem(DATABASE_WHERE, formatting.hide_paths(problem))

    def load_months(self, count: int | None = None) -> list[MonthUsage]:
        """Return the newest months that are added up, the newest first."""
        months = sorted(self.state.finished_months.items(), reverse=True)[:count]
        return [load_rollup_month(month.packed_month) for _, month in months]

    def render_months(self, inputs: bytes, render: Callable[[Sequence[MonthUsage]], str]) -> str:
        """Return what `render` makes of the months; the same as before, unless they or `inputs` changed."""
        parts = [inputs, *(month.packed_month for month in self.state.finished_months.values())]
        fingerprint = blake2b(b"\0".join(parts), digest_size=16).digest()
        if self.state.rendered_months[0] != fingerprint:
            self.state.rendered_months = (fingerprint, render(self.load_months()))
            self.is_changed = True
        return self.state.rendered_months[1]

    def save(self) -> None:
        """Keep the sums for the next builder: cron starts one each minute."""
        if self.is_changed:
            with suppress(TypeError):  # a text that JSON cannot hold: it is added up again
                files.write_atomically(
                    self.store_path, encode_record([SUMS_VERSION, replace_dicts_by_pairs(self.state)]), 0o600
                )
            self.is_changed = False

    def advance_in_steps(self, connection: sqlite3.Connection, now: float) -> Iterator[None]:
        """Add up what is not rolled up yet, then the windows, and then the months."""
        self.check_database(connection, now)
        pending_bits = read_pending_rollup_minutes(connection, now)
        sql = "SELECT block FROM minute WHERE at=? AND part=?"
        for (at, part), bits in pending_bits.items():
            pending_hour = self.state.pending_hours.get((at, part))
            if pending_hour is None or pending_hour.minute_bits & ~bits:
                pending_hour = self.state.pending_hours[at, part] = PendingRollupHour()
            for minute in range(HOUR // MINUTE):
                bit = 1 << minute
                if bits & bit and not pending_hour.minute_bits & bit:
                    (block,) = connection.execute(sql, (at + minute * MINUTE, part)).fetchone()
                    pending_hour.count_minute(block)
                    pending_hour.minute_bits |= bit
                    yield
        for key in [key for key in self.state.pending_hours if key not in pending_bits]:
            del self.state.pending_hours[key]
        hour = int(now) // HOUR * HOUR
        until = min([hour, *(at for at, _ in pending_bits)])
        for length in self.window_hours:
            since = round((now - length * HOUR) / HOUR) * HOUR
            if length not in self.state.window_sums or self.state.window_sums[length].hours != (since, until):
                self.state.window_sums[length] = read_rollup_hour_sums(connection, since, until)
                yield
        self.state.windows = tuple(
            self.build_window(connection, length, until, now, pending_bits) for length in self.window_hours
        )
        self.state.late_months |= {first for first, month in self.state.finished_months.items() if until < month.until}
        if until == hour:  # else some hosts are rolled up and others are not
            yield from self.add_months(connection, until)

    def check_database(self, connection: sqlite3.Connection, now: float) -> None:
        """Start over if history.db is another file than before."""
        (day,) = connection.execute("SELECT min(day) FROM seen").fetchone()
        inode, first_day = self.history.path.stat().st_ino, day or 0
        identity = self.state.database_identity
        is_pruned = first_day < int(now) // DAY + EPOCH_ORDINAL - RETENTION_DAYS[HOUR] + 62
        if identity[0] != inode or (identity[1] not in {0, first_day} and not is_pruned):
            self.state = RollupState()
        self.state.database_identity = (inode, first_day)

    def build_window(
        self, connection: sqlite3.Connection, length: int, until: int, now: float, pending_bits: PendingBits
    ) -> RollupWindow:
        """Add up some hours: those that are rolled up, those that are in part, and minutes."""
        window_sums = self.state.window_sums[length]
        since = window_sums.hours[0]
        late_sums = read_rollup_hour_sums(connection, max(since, until), int(now))
        bits = read_rolled_up_bits(connection, max(since, until), int(now))
        later: list[PendingRollupHour | RollupHourSums] = [late_sums]
        for (at, part), pending_hour in self.state.pending_hours.items():
            if at >= since:
                bits[at] = bits.get(at, 0) | pending_bits.get((at, part), 0)
                later.append(pending_hour)
        shares, seen = dict(window_sums.shares), {"": window_sums.seen}
        for sums in later:
            add_to_usage_sums(seen, "", sums.seen)
            for person, share in sums.shares.items():
                add_to_usage_sums(shares, person, share)
        return RollupWindow(
            since=since,
            until=int(now),
            seen_minutes=window_sums.minutes + count_rolled_up_bits(bits),
            shares=shares,
            state_minutes=StateMinutes(**seen[""]._asdict()),
        )

    # Months

    def add_months(self, connection: sqlite3.Connection, until: int) -> Iterator[None]:
        """Add up this month and those before it, as far as there is history of them."""
        today = datetime.fromtimestamp(until, self.history.zone).date()
        month_starts = [today.replace(day=1)]
        while len(month_starts) < self.month_count and month_starts[-1].toordinal() > self.state.database_identity[1]:
            month_starts.append((month_starts[-1] - timedelta(days=1)).replace(day=1))
        for first in self.state.finished_months.keys() - set(month_starts):
            del self.state.finished_months[first]
        for position, first in enumerate(month_starts):
            following = (first + timedelta(days=31)).replace(day=1)
            end = datetime.combine(following, datetime.min.time(), self.history.zone).timestamp()
            month_end = min(until, int(end))
            finished_month = self.state.finished_months.get(first)
            if finished_month is None or finished_month.until != month_end or first in self.state.late_months:
                yield from self.add_month(connection, first, month_end, following)
            finished_month = self.state.finished_months[first]
            if position >= DETAILED_MONTHS and not finished_month.is_condensed:
                condensed = condense_rollup_month(load_rollup_month(finished_month.packed_month))
                packed_month = encode_record(replace_dicts_by_pairs(condensed))
                self.state.finished_months[first] = FinishedRollupMonth(finished_month.until, packed_month, True)

    def add_month(self, connection: sqlite3.Connection, first: date, until: int, next_first: date) -> Iterator[None]:
        """Add the days of a month that are missing, and then finish it."""
        month = self.state.unfinished_month
        if month is None or (month.first, month.until) != (first, until):
            days = [first + timedelta(days=number) for number in range((next_first - first).days)]
            month = self.state.unfinished_month = UnfinishedRollupMonth(first, until, days)
        while month.remaining_days:
            add_rollup_day(connection, month.remaining_days.pop(), month)
            yield
        seen_by_place = {key: StateMinutes(**seen._asdict()) for key, seen in month.seen_by_place.items()}
        month_usage = MonthUsage(
            first=first,
            since=max(first, date.fromordinal(self.state.database_identity[1] or 1)),
            until=until,
            shares=month.shares,
            shares_by_place=month.shares_by_place,
            seen_by_place=seen_by_place,
            unseen_by_place=self.count_unseen(
                reader.query_history_gpu_set_changes(connection), first, until, seen_by_place
            ),
        )
        self.state.finished_months[first] = FinishedRollupMonth(
            until, encode_record(replace_dicts_by_pairs(month_usage))
        )
        self.state.late_months.discard(first)
        self.state.unfinished_month = None
        yield


def load_rollup_state(path: Path) -> RollupState:
    """Load sums.json; if that is impossible, start over."""
    try:
        version, stored = orjson.loads(files.read_own_file(path, MAX_SUMS_BYTES))
        if version != SUMS_VERSION:
            return RollupState()
        state: RollupState = make_record_decoder(RollupState)(stored)
        for month in state.finished_months.values():
            load_rollup_month(month.packed_month)
    except (OSError, files.FileRefusedError, ValueError, TypeError):  # a damaged file may contain anything
        return RollupState()
    times = [moment for window in state.windows for moment in (window.since, window.until)]
    times += [month.until for month in state.finished_months.values()]
    times += [state.unfinished_month.until] if state.unfinished_month else []
    return state if all(0 <= moment < MAX_EPOCH for moment in times) else RollupState()


def load_rollup_month(content: bytes) -> MonthUsage:
    """Unpack a month; raise ValueError if it is not one."""
    month: MonthUsage = make_record_decoder(MonthUsage)(orjson.loads(content))
    return month


def read_pending_rollup_minutes(connection: sqlite3.Connection, now: float) -> PendingBits:
    """Return the minutes that are not rolled up; none of the future."""
    bits: PendingBits = {}
    for at, part in connection.execute("SELECT at, part FROM minute WHERE at<=?", (int(now),)):
        key = (at // HOUR * HOUR, part)
        bits[key] = bits.get(key, 0) | 1 << (at % HOUR // MINUTE)
    return bits


def read_rollup_hour_sums(connection: sqlite3.Connection, since: int, until: int) -> RollupHourSums:
    sql = f"SELECT {SEEN_SUMS_SQL} FROM hour_seen WHERE at>=? AND at<?"  # noqa: S608 # our words
    row = connection.execute(sql, (since, until)).fetchone()
    return RollupHourSums(
        hours=(since, until),
        minutes=count_rolled_up_bits(read_rolled_up_bits(connection, since, until)),
        shares=reader.query_person_shares(connection, since, until),
        seen=SeenMinuteSums() if row[0] is None else SeenMinuteSums._make(row),
    )


def read_rolled_up_bits(connection: sqlite3.Connection, since: int, until: int) -> dict[int, int]:
    """Return the minutes of each hour that are rolled up, as bits."""
    bits: dict[int, int] = {}
    for at, minutes in connection.execute("SELECT at, minutes FROM rolled WHERE at>=? AND at<?", (since, until)):
        bits[at] = bits.get(at, 0) | minutes
    return bits


def count_rolled_up_bits(bits: dict[int, int]) -> int:
    return sum(bin(hour_bits).count("1") for hour_bits in bits.values())


def add_rollup_day(connection: sqlite3.Connection, day: date, month: UnfinishedRollupMonth) -> None:
    by_person = f"SELECT text, {SHARE_SUMS_SQL} FROM share JOIN name ON name.id=person WHERE day=? GROUP BY person"  # noqa: S608 # our words
    by_place = (
        "SELECT hosts.text, models.text, {} FROM {} JOIN name hosts ON hosts.id=host "
        "JOIN name models ON models.id=model WHERE day=? GROUP BY host, model"
    )
    parameters = (day.toordinal(),)
    for person, *row in connection.execute(by_person, parameters):
        add_to_usage_sums(month.shares, person, UsageShareSums._make(row))
    for host, model, *row in connection.execute(by_place.format(SHARE_SUMS_SQL, "share"), parameters):
        add_to_usage_sums(month.shares_by_place, (host, model), UsageShareSums._make(row))
    for host, model, *row in connection.execute(by_place.format(SEEN_SUMS_SQL, "seen"), parameters):
        add_to_usage_sums(month.seen_by_place, (host, model), SeenMinuteSums._make(row))


def condense_rollup_month(month: MonthUsage) -> MonthUsage:
    """Reduce an old month to its people and its sums."""
    if not month.seen_by_place:
        return month._replace(shares={}, shares_by_place={}, unseen_by_place={})
    share = UsageShareSums._make(map(sum, zip(NO_SHARE, *month.shares_by_place.values())))
    seen = StateMinutes._make(map(sum, zip(*month.seen_by_place.values())))
    return month._replace(
        shares_by_place={("", ""): share},
        seen_by_place={("", ""): seen},
        unseen_by_place={("", ""): sum(month.unseen_by_place.values())},
    )
