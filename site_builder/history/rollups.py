"""Who had how much lately, added up from state/history.db a little at each build, so that none waits for it.

What was added up stands in state/sums.json for the next builder: cron starts one each minute.
"""

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
from site_builder.core.records import dump_json, list_pairs, make_decoder
from site_builder.history import block_format
from site_builder.history.block_format import DamagedBlockError
from site_builder.history.buckets import (
    HostModel,
    MonthUsage,
    RecentUsage,
    StateMinutes,
    UsageShare,
    UsageWindow,
    account_minutes,
)
from site_builder.history.database import DATABASE_WHERE, SEEN_COLUMNS
from site_builder.history.model import GpuSeries
from site_builder.history.reader import RETENTION_DAYS, HistoryReader, add_to_sums
from site_builder.history.writer import EPOCH_ORDINAL

SUMS_FILE = "sums.json"
# What an older gpuboard left: a pickle, which could execute code, and is never read.
OLD_SUMS_FILE = "sums.pickle"
SUMS_VERSION = 3
# Bytes that are read: a thousand hosts and as many people need a tenth of it.
MAX_SUMS_BYTES = 256 * 1024 * 1024
MAX_EPOCH = 10**11  # the year 5138
# What is asked of Seen: how long GPUs stood how, but not how hard they worked.
STATE_FIELDS = StateMinutes._fields[:9]
SHARE_SUMS_SQL = ", ".join(f"sum({name})" for name in UsageShare._fields)
SEEN_SUMS_SQL = ", ".join(f"sum({name})" for name in SEEN_COLUMNS[: len(STATE_FIELDS)])
# Of so many months all is kept: this one and the last. Of those before only what they come to.
DETAILED_MONTHS = 2
GpuSetChange = tuple[str, int, tuple[GpuSeries, ...]]


# A month, how long it is part of what is told, and which GPUs were where: the minutes that nobody saw.
CountUnseen = Callable[[Iterable[GpuSetChange], date, int, dict[HostModel, StateMinutes]], dict[HostModel, int]]


def read_gpu_set_changes(past: HistoryReader) -> list[GpuSetChange]:
    """Which GPUs each host told, from when on; once for each time that they became others."""
    return past.query(lambda connection: list(query_gpu_set_changes(connection)), [])


def read_first_day(past: HistoryReader) -> date | None:
    """The first day of which something is kept."""

    def asked(connection: sqlite3.Connection) -> list[date]:
        (day,) = connection.execute("SELECT min(day) FROM seen").fetchone()
        (at,) = connection.execute("SELECT min(at) FROM minute").fetchone()
        days = [] if day is None else [date.fromordinal(day)]
        return days if at is None else [*days, datetime.fromtimestamp(at, past.zone).date()]

    nothing: list[date] = []
    return min(past.query(asked, nothing), default=None)


def query_gpu_set_changes(connection: sqlite3.Connection) -> Iterator[GpuSetChange]:
    """The same; a set of GPUs of which nothing is kept any more tells only that they are no longer there."""
    series: dict[int, tuple[GpuSeries, ...]] = {}
    for shape, gpus in connection.execute("SELECT id, gpus FROM shape"):
        series[shape] = block_format.parse_gpu_series(gpus)
    for host, at, shape in connection.execute("SELECT host, at, shape FROM told"):
        yield host, at, series.get(shape, ())


@dataclass
class PendingHour:
    """The minutes of an hour that are counted, of some hosts, as bits; and what they come to."""

    minute_bits: int = 0
    shares: dict[str, list[int]] = field(default_factory=dict)
    seen: list[int] = field(default_factory=lambda: [0] * len(STATE_FIELDS))

    def count_minute(self, block: bytes) -> None:
        """A minute more; one that is damaged is a gap."""
        try:
            part = block_format.unpack_minute_part(block)
            told = [
                (account_minutes(part.occupancies[code], gpus), gpus)
                for code, gpus in Counter(part.occupancy_codes).items()
            ]
        except (DamagedBlockError, IndexError):
            return
        for (state, unowned, people), gpus in told:
            self.seen[0] += gpus
            self.seen[1 + state] += gpus
            self.seen[8] += unowned
            for person, share in people:
                add_to_sums(self.shares, person, share)


@dataclass
class HourRangeSums:
    """Hours that are rolled up, from one to another."""

    hours: tuple[int, int]
    minutes: int
    shares: dict[str, list[int]]
    seen: list[int]


@dataclass
class UnfinishedMonth:
    """A month that is being added up, day by day."""

    first: date
    until: int
    remaining_days: list[date]
    shares: dict[str, list[int]] = field(default_factory=dict)
    shares_by_place: dict[HostModel, list[int]] = field(default_factory=dict)
    seen_by_place: dict[HostModel, list[int]] = field(default_factory=dict)


class FinishedMonth(NamedTuple):
    """A month that is added up, as far as it was then; packed, since it is seldom needed."""

    until: int
    packed_month: bytes
    is_condensed: bool = False


@dataclass
class RollupState:
    """All that is done; `made` is what was made of the months, and what tells from what."""

    database_identity: tuple[int, int] = (0, 0)
    pending_hours: dict[tuple[int, int], PendingHour] = field(default_factory=dict)
    window_sums: dict[int, HourRangeSums] = field(default_factory=dict)
    windows: tuple[UsageWindow, ...] = ()
    unfinished_month: UnfinishedMonth | None = None
    finished_months: dict[date, FinishedMonth] = field(default_factory=dict)
    rendered_months: tuple[bytes, str] = (b"", "")
    late_months: set[date] = field(default_factory=set)  # months to which an hour came when they were added up


class UsageRollup:
    """The sums of some hours up to now and of some months, that go on as history does."""

    def __init__(self, past: HistoryReader, hours: tuple[int, ...], months: int, missing: CountUnseen) -> None:
        """Take up what the last builder had done."""
        self.history, self.window_hours, self.month_count, self.count_unseen = past, hours, months, missing
        self.store_path = past.path.parent / SUMS_FILE
        self.state = load_rollup_state(self.store_path)
        self.is_changed = False
        self.is_done = False

    def advance(self, now: float, seconds: float) -> None:
        """Do for so long what is to do, one step at least; `done` tells whether that was all."""
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
            what = f"it could not be added up, and this is tried again: {error!r}"[:300]
            self.history.problem = Problem(DATABASE_WHERE, formatting.hide_paths(what))

    def load_recent_usage(self) -> RecentUsage:
        """What is known by now."""
        months = [load_month(one.packed_month) for _, one in sorted(self.state.finished_months.items(), reverse=True)]
        return RecentUsage(self.state.windows, tuple(months))

    def render_months(self, told: bytes, make: Callable[[Sequence[MonthUsage]], str]) -> str:
        """What is made of the months and of what else is told, where it is not the same as before."""
        parts = [told, *(one.packed_month for one in self.state.finished_months.values())]
        facts = blake2b(b"\0".join(parts), digest_size=16).digest()
        if self.state.rendered_months[0] != facts:
            self.state.rendered_months = (facts, make(self.load_recent_usage().months))
            self.is_changed = True
        return self.state.rendered_months[1]

    def save(self) -> None:
        """Keep it for the next builder."""
        if self.is_changed:
            with suppress(TypeError):  # a text that JSON cannot hold: it is added up again
                files.write_atomically(self.store_path, dump_json([SUMS_VERSION, list_pairs(self.state)]), 0o600)
            self.is_changed = False

    def advance_in_steps(self, connection: sqlite3.Connection, now: float) -> Iterator[None]:
        """All that is to do: what is waiting to be rolled up, the windows, and then the months."""
        self.check_database(connection, now)
        waiting = read_pending_minutes(connection, now)
        for key, bits in waiting.items():
            for _ in self.count_pending_minutes(connection, key, bits):
                yield
        for key in [key for key in self.state.pending_hours if key not in waiting]:
            del self.state.pending_hours[key]
        hour = int(now) // HOUR * HOUR
        until = min([hour, *(at for at, _ in waiting)])
        for length in self.window_hours:
            since = round((now - length * HOUR) / HOUR) * HOUR
            if length not in self.state.window_sums or self.state.window_sums[length].hours != (since, until):
                self.state.window_sums[length] = read_hour_range_sums(connection, since, until)
                yield
        self.state.windows = tuple(
            self.build_window(connection, length, until, now, waiting) for length in self.window_hours
        )
        self.state.late_months |= {first for first, month in self.state.finished_months.items() if until < month.until}
        if until == hour:  # else some hosts are rolled up and others are not
            yield from self.add_months(connection, until)

    def check_database(self, connection: sqlite3.Connection, now: float) -> None:
        """Where it is another file than before, nothing is done yet."""
        (day,) = connection.execute("SELECT min(day) FROM seen").fetchone()
        inode, first = self.history.path.stat().st_ino, day or 0
        before = self.state.database_identity
        pruned = first < int(now) // DAY + EPOCH_ORDINAL - RETENTION_DAYS[HOUR] + 62
        if before[0] != inode or (before[1] not in {0, first} and not pruned):
            self.state = RollupState()
        self.state.database_identity = (inode, first)

    def count_pending_minutes(self, connection: sqlite3.Connection, key: tuple[int, int], bits: int) -> Iterator[None]:
        """Those of an hour and of some hosts that are not counted yet."""
        done = self.state.pending_hours.get(key)
        if done is None or done.minute_bits & ~bits:
            done = self.state.pending_hours[key] = PendingHour()
        hour, part = key
        asked = "SELECT block FROM minute WHERE at=? AND part=?"
        for place in range(HOUR // MINUTE):
            bit = 1 << place
            if bits & bit and not done.minute_bits & bit:
                (block,) = connection.execute(asked, (hour + place * MINUTE, part)).fetchone()
                done.count_minute(block)
                done.minute_bits |= bit
                yield

    def build_window(
        self, connection: sqlite3.Connection, length: int, until: int, now: float, waiting: dict[tuple[int, int], int]
    ) -> UsageWindow:
        """Some hours: those that are all rolled up, those that are so in part, and minutes."""
        whole = self.state.window_sums[length]
        since = whole.hours[0]
        rest = read_hour_range_sums(connection, max(since, until), int(now))
        shares = {person: list(row) for person, row in whole.shares.items()}
        seen = [one + more for one, more in zip(whole.seen, rest.seen)]
        for person, row in rest.shares.items():
            add_to_sums(shares, person, row)
        bits = read_rolled_up_bits(connection, max(since, until), int(now))
        for (at, part), counted in self.state.pending_hours.items():
            if at >= since:
                bits[at] = bits.get(at, 0) | waiting.get((at, part), 0)
                seen = [one + more for one, more in zip(seen, counted.seen)]
                for person, row in counted.shares.items():
                    add_to_sums(shares, person, row)
        minutes = whole.minutes + count_bits(bits)
        return UsageWindow(since, int(now), minutes, build_shares(shares), build_state_minutes(seen))

    # Months

    def add_months(self, connection: sqlite3.Connection, until: int) -> Iterator[None]:
        """This month and those before it, as far as there is history of them."""
        today = datetime.fromtimestamp(until, self.history.zone).date()
        wanted = [today.replace(day=1)]
        while len(wanted) < self.month_count and wanted[-1].toordinal() > self.state.database_identity[1]:
            wanted.append((wanted[-1] - timedelta(days=1)).replace(day=1))
        for first in self.state.finished_months.keys() - set(wanted):
            del self.state.finished_months[first]
        for number, first in enumerate(wanted):
            following = (first + timedelta(days=31)).replace(day=1)
            end = datetime.combine(following, datetime.min.time(), self.history.zone).timestamp()
            target = min(until, int(end))
            done = self.state.finished_months.get(first)
            if done is None or done.until != target or first in self.state.late_months:
                yield from self.add_month(connection, first, target, following)
            if number >= DETAILED_MONTHS:
                self.condense_month(first)

    def condense_month(self, first: date) -> None:
        """Of a month of long ago, keep what it comes to."""
        done = self.state.finished_months[first]
        if not done.is_condensed:
            self.state.finished_months[first] = FinishedMonth(
                done.until, dump_month(condense_month(load_month(done.packed_month))), is_condensed=True
            )

    def add_month(self, connection: sqlite3.Connection, first: date, until: int, following: date) -> Iterator[None]:
        """The days of a month that are not added up yet, and then all of it."""
        month = self.state.unfinished_month
        if month is None or (month.first, month.until) != (first, until):
            days = [first + timedelta(days=number) for number in range((following - first).days)]
            month = self.state.unfinished_month = UnfinishedMonth(first, until, days)
        while month.remaining_days:
            add_day(connection, month.remaining_days.pop(), month)
            yield
        seen = {place: build_state_minutes(row) for place, row in month.seen_by_place.items()}
        unseen = self.count_unseen(query_gpu_set_changes(connection), first, until, seen)
        had = {place: UsageShare(*row) for place, row in month.shares_by_place.items()}
        since = max(first, date.fromordinal(self.state.database_identity[1] or 1))
        found = MonthUsage(first, since, until, build_shares(month.shares), had, seen, unseen)
        self.state.finished_months[first] = FinishedMonth(until, dump_month(found))
        self.state.late_months.discard(first)
        self.state.unfinished_month = None
        yield


def load_rollup_state(path: Path) -> RollupState:
    """What was kept, if it can be read."""
    try:
        form, stored = orjson.loads(files.read(path, MAX_SUMS_BYTES))
        if form != SUMS_VERSION:
            return RollupState()
        kept: RollupState = make_decoder(RollupState)(stored)
        for done in kept.finished_months.values():
            load_month(done.packed_month)
    except (OSError, files.FileRefusedError, ValueError, TypeError):  # anything may stand in a damaged file
        return RollupState()
    return kept if is_plausible_state(kept) else RollupState()


def is_plausible_state(kept: RollupState) -> bool:
    """Whether lists have the lengths that they are added up by, and times can be times."""
    times = [time for one in kept.windows for time in (one.since, one.until)]
    times += [one.until for one in kept.finished_months.values()] + (
        [kept.unfinished_month.until] if kept.unfinished_month else []
    )
    if not all(0 <= time < MAX_EPOCH for time in times):
        return False
    sums: list[PendingHour | HourRangeSums] = [*kept.pending_hours.values(), *kept.window_sums.values()]
    rows = [row for one in sums for row in one.shares.values()]
    seen = [one.seen for one in sums]
    if kept.unfinished_month:
        rows += [*kept.unfinished_month.shares.values(), *kept.unfinished_month.shares_by_place.values()]
        seen += kept.unfinished_month.seen_by_place.values()
    return all(len(row) == len(UsageShare._fields) for row in rows) and all(
        len(row) == len(STATE_FIELDS) for row in seen
    )


def dump_month(month: MonthUsage) -> bytes:
    """Pack a month."""
    return dump_json(list_pairs(month))


def load_month(content: bytes) -> MonthUsage:
    """Unpack a month; a ValueError where it is none."""
    month: MonthUsage = make_decoder(MonthUsage)(orjson.loads(content))
    return month


def read_pending_minutes(connection: sqlite3.Connection, now: float) -> dict[tuple[int, int], int]:
    """The minutes that are not rolled up, by hour and part, as bits; those that have not come do not count yet."""
    found: dict[tuple[int, int], int] = {}
    for at, part in connection.execute("SELECT at, part FROM minute WHERE at<=?", (int(now),)):
        key = (at // HOUR * HOUR, part)
        found[key] = found.get(key, 0) | 1 << (at % HOUR // MINUTE)
    return found


def read_hour_range_sums(connection: sqlite3.Connection, since: int, until: int) -> HourRangeSums:
    """What is rolled up of some hours."""
    asked = f"SELECT text, {SHARE_SUMS_SQL} FROM hour_share JOIN name ON name.id=person WHERE at>=? AND at<? GROUP BY person"  # noqa: S608 # names of columns
    shares = {person: row for person, *row in connection.execute(asked, (since, until))}
    row = connection.execute(f"SELECT {SEEN_SUMS_SQL} FROM hour_seen WHERE at>=? AND at<?", (since, until)).fetchone()  # noqa: S608 # the same
    seen = [0] * len(STATE_FIELDS) if row[0] is None else list(row)
    return HourRangeSums((since, until), count_bits(read_rolled_up_bits(connection, since, until)), shares, seen)


def read_rolled_up_bits(connection: sqlite3.Connection, since: int, until: int) -> dict[int, int]:
    """In which minutes of which hours somebody looked, of those that are rolled up."""
    found: dict[int, int] = {}
    for at, minutes in connection.execute("SELECT at, minutes FROM rolled WHERE at>=? AND at<?", (since, until)):
        found[at] = found.get(at, 0) | minutes
    return found


def count_bits(bits: dict[int, int]) -> int:
    """How many minutes these are."""
    return sum(bin(one).count("1") for one in bits.values())


def add_day(connection: sqlite3.Connection, day: date, month: UnfinishedMonth) -> None:
    """What is rolled up of a day."""
    of = (day.toordinal(),)
    asked = f"SELECT text, {SHARE_SUMS_SQL} FROM share JOIN name ON name.id=person WHERE day=? GROUP BY person"  # noqa: S608 # the same
    for person, *row in connection.execute(asked, of):
        add_to_sums(month.shares, person, row)
    both = "JOIN name one ON one.id=host JOIN name two ON two.id=model WHERE day=? GROUP BY host, model"
    for host, model, *row in connection.execute(f"SELECT one.text, two.text, {SHARE_SUMS_SQL} FROM share {both}", of):  # noqa: S608 # the same
        add_to_sums(month.shares_by_place, (host, model), row)
    for host, model, *row in connection.execute(f"SELECT one.text, two.text, {SEEN_SUMS_SQL} FROM seen {both}", of):  # noqa: S608 # the same
        add_to_sums(month.seen_by_place, (host, model), row)


def condense_month(month: MonthUsage) -> MonthUsage:
    """A month of long ago: what it comes to."""
    if not month.seen_by_place:
        return month._replace(shares={}, shares_by_place={}, unseen_by_place={})
    had = (
        UsageShare(*map(sum, zip(*month.shares_by_place.values()))) if month.shares_by_place else UsageShare(0, 0, 0, 0)
    )
    seen = StateMinutes(*map(sum, zip(*month.seen_by_place.values())))
    return month._replace(
        shares={},
        shares_by_place={("", ""): had},
        seen_by_place={("", ""): seen},
        unseen_by_place={("", ""): sum(month.unseen_by_place.values())},
    )


def build_state_minutes(row: Iterable[int]) -> StateMinutes:
    """How long GPUs stood how."""
    return StateMinutes(**dict(zip(STATE_FIELDS, row)), told=0, use=0)


def build_shares(shares: dict[str, list[int]]) -> dict[str, UsageShare]:
    """Sums by their names."""
    return {person: UsageShare(*row) for person, row in shares.items()}
