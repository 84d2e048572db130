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

from site_builder.core import files, formatting, own_files
from site_builder.core.model import Problem
from site_builder.core.typed_json import dump_json, list_pairs, make_decoder
from site_builder.history import block_format
from site_builder.history.block_format import Damaged
from site_builder.history.database import WHERE
from site_builder.history.gpu_minutes import Lately, Month, Place, Seen, Share, Window, account
from site_builder.history.model import Series
from site_builder.history.reader import DAY, DAYS, HOUR, MINUTE, Past, add
from site_builder.history.retention import EPOCH_DAY

NAME = "sums.json"
# What an older gpuboard left: a pickle, which could execute code, and is never read.
OLD_NAME = "sums.pickle"
FORM = 2
# Bytes that are read: a thousand hosts and as many people need a tenth of it.
LIMIT = 256 * 1024 * 1024
LAST_MOMENT = 10**11  # the year 5138
# What is asked of Seen: how long GPUs stood how, but not how hard they worked.
STATES = Seen._fields[:9]
SHARES = ", ".join(f"sum({name})" for name in Share._fields)
SEEN = ", ".join(f"sum({name})" for name in STATES)
# Of so many months all is kept: this one and the last. Of those before only what they come to.
WHOLE_MONTHS = 2
Shape = tuple[str, int, tuple[Series, ...]]


# A month, how long it is part of what is told, and which GPUs were where: the minutes that nobody saw.
Missing = Callable[[Iterable[Shape], date, int, dict[Place, Seen]], dict[Place, int]]


def shapes(past: Past) -> list[Shape]:
    """Which GPUs each host told, from when on; once for each time that they became others."""
    return past.ask(lambda connection: list(read_shapes(connection)), [])


def first_day(past: Past) -> date | None:
    """The first day of which something is kept."""

    def asked(connection: sqlite3.Connection) -> list[date]:
        (day,) = connection.execute("SELECT min(day) FROM seen").fetchone()
        (at,) = connection.execute("SELECT min(at) FROM minute").fetchone()
        days = [] if day is None else [date.fromordinal(day)]
        return days if at is None else [*days, datetime.fromtimestamp(at, past.zone).date()]

    nothing: list[date] = []
    return min(past.ask(asked, nothing), default=None)


def read_shapes(connection: sqlite3.Connection) -> Iterator[Shape]:
    """The same; a set of GPUs of which nothing is kept any more tells only that they are no longer there."""
    series: dict[int, tuple[Series, ...]] = {}
    for shape, gpus in connection.execute("SELECT id, gpus FROM shape"):
        series[shape] = block_format.series_of(gpus)
    for host, at, shape in connection.execute("SELECT host, at, shape FROM told"):
        yield host, at, series.get(shape, ())


@dataclass
class Counted:
    """The minutes of an hour that are counted, of some hosts, as bits; and what they come to."""

    bits: int = 0
    shares: dict[str, list[int]] = field(default_factory=dict)
    seen: list[int] = field(default_factory=lambda: [0] * len(STATES))

    def count(self, block: bytes) -> None:
        """A minute more; one that is damaged is a gap."""
        try:
            part = block_format.unpack_part(block)
            told = [(account(part.standings[code], gpus), gpus) for code, gpus in Counter(part.codes).items()]
        except (Damaged, IndexError):
            return
        for (state, unowned, people), gpus in told:
            self.seen[0] += gpus
            self.seen[1 + state] += gpus
            self.seen[8] += unowned
            for person, share in people:
                add(self.shares, person, share)


@dataclass
class Sum:
    """Hours that are rolled up, from one to another."""

    span: tuple[int, int]
    minutes: int
    shares: dict[str, list[int]]
    seen: list[int]


@dataclass
class Open:
    """A month that is being added up, day by day."""

    first: date
    until: int
    days: list[date]
    shares: dict[str, list[int]] = field(default_factory=dict)
    had: dict[Place, list[int]] = field(default_factory=dict)
    seen: dict[Place, list[int]] = field(default_factory=dict)


class Done(NamedTuple):
    """A month that is added up, as far as it was then; packed, since it is seldom needed."""

    until: int
    month: bytes
    short: bool = False


@dataclass
class Kept:
    """All that is done; `made` is what was made of the months, and what tells from what."""

    file: tuple[int, int] = (0, 0)
    minutes: dict[tuple[int, int], Counted] = field(default_factory=dict)
    sums: dict[int, Sum] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    open: Open | None = None
    months: dict[date, Done] = field(default_factory=dict)
    made: tuple[bytes, str] = (b"", "")
    late: set[date] = field(default_factory=set)  # months to which an hour came when they were added up


class Running:
    """The sums of some hours up to now and of some months, that go on as history does."""

    def __init__(self, past: Past, hours: tuple[int, ...], months: int, missing: Missing) -> None:
        """Take up what the last builder had done."""
        self.past, self.hours, self.count, self.missing = past, hours, months, missing
        self.store = past.path.parent / NAME
        self.kept = loaded(self.store)
        self.changed = False
        self.done = False

    def go_on(self, now: float, seconds: float) -> None:
        """Do for so long what is to do, one step at least; `done` tells whether that was all."""
        end = time.monotonic() + seconds
        self.done = False

        def work(connection: sqlite3.Connection) -> None:
            for _ in self.steps(connection, now):
                self.changed = True
                if time.monotonic() >= end:
                    return
            self.done = True

        try:
            self.past.ask(work, None)
        except Exception as error:  # whatever it is, it must not cost the page
            self.kept, self.changed = Kept(), True
            what = f"it could not be added up, and this is tried again: {error!r}"[:300]
            self.past.trouble = Problem(WHERE, formatting.hide_paths(what))

    def found(self) -> Lately:
        """What is known by now."""
        months = [load_month(one.month) for _, one in sorted(self.kept.months.items(), reverse=True)]
        return Lately(self.kept.windows, tuple(months))

    def of_months(self, told: bytes, make: Callable[[Sequence[Month]], str]) -> str:
        """What is made of the months and of what else is told, where it is not the same as before."""
        parts = [told, *(one.month for one in self.kept.months.values())]
        facts = blake2b(b"\0".join(parts), digest_size=16).digest()
        if self.kept.made[0] != facts:
            self.kept.made = (facts, make(self.found().months))
            self.changed = True
        return self.kept.made[1]

    def save(self) -> None:
        """Keep it for the next builder."""
        if self.changed:
            with suppress(TypeError):  # a text that JSON cannot hold: it is added up again
                files.replace(self.store, dump_json([FORM, list_pairs(self.kept)]), 0o600)
            self.changed = False

    def steps(self, connection: sqlite3.Connection, now: float) -> Iterator[None]:
        """All that is to do: what is waiting to be rolled up, the windows, and then the months."""
        self.begin(connection, now)
        waiting = minutes_in(connection, now)
        for key, bits in waiting.items():
            for _ in self.count_minutes(connection, key, bits):
                yield
        for key in [key for key in self.kept.minutes if key not in waiting]:
            del self.kept.minutes[key]
        hour = int(now) // HOUR * HOUR
        until = min([hour, *(at for at, _ in waiting)])
        for length in self.hours:
            since = round((now - length * HOUR) / HOUR) * HOUR
            if length not in self.kept.sums or self.kept.sums[length].span != (since, until):
                self.kept.sums[length] = sum_of(connection, since, until)
                yield
        self.kept.windows = tuple(self.window(connection, length, until, now, waiting) for length in self.hours)
        self.kept.late |= {first for first, month in self.kept.months.items() if until < month.until}
        if until == hour:  # else some hosts are rolled up and others are not
            yield from self.add_months(connection, until)

    def begin(self, connection: sqlite3.Connection, now: float) -> None:
        """Where it is another file than before, nothing is done yet."""
        (day,) = connection.execute("SELECT min(day) FROM seen").fetchone()
        inode, first = self.past.path.stat().st_ino, day or 0
        before = self.kept.file
        pruned = first < int(now) // DAY + EPOCH_DAY - DAYS[HOUR] + 62
        if before[0] != inode or (before[1] not in {0, first} and not pruned):
            self.kept = Kept()
        self.kept.file = (inode, first)

    def count_minutes(self, connection: sqlite3.Connection, key: tuple[int, int], bits: int) -> Iterator[None]:
        """Those of an hour and of some hosts that are not counted yet."""
        done = self.kept.minutes.get(key)
        if done is None or done.bits & ~bits:
            done = self.kept.minutes[key] = Counted()
        hour, part = key
        asked = "SELECT block FROM minute WHERE at=? AND part=?"
        for place in range(HOUR // MINUTE):
            bit = 1 << place
            if bits & bit and not done.bits & bit:
                (block,) = connection.execute(asked, (hour + place * MINUTE, part)).fetchone()
                done.count(block)
                done.bits |= bit
                yield

    def window(
        self, connection: sqlite3.Connection, length: int, until: int, now: float, waiting: dict[tuple[int, int], int]
    ) -> Window:
        """Some hours: those that are all rolled up, those that are so in part, and minutes."""
        whole = self.kept.sums[length]
        since = whole.span[0]
        rest = sum_of(connection, max(since, until), int(now))
        shares = {person: list(row) for person, row in whole.shares.items()}
        seen = [one + more for one, more in zip(whole.seen, rest.seen)]
        for person, row in rest.shares.items():
            add(shares, person, row)
        bits = bits_of(connection, max(since, until), int(now))
        for (at, part), counted in self.kept.minutes.items():
            if at >= since:
                bits[at] = bits.get(at, 0) | waiting.get((at, part), 0)
                seen = [one + more for one, more in zip(seen, counted.seen)]
                for person, row in counted.shares.items():
                    add(shares, person, row)
        minutes = whole.minutes + ones(bits)
        return Window(since, int(now), minutes, typed(shares), seen_of(seen))

    # Months

    def add_months(self, connection: sqlite3.Connection, until: int) -> Iterator[None]:
        """This month and those before it, as far as there is history of them."""
        today = datetime.fromtimestamp(until, self.past.zone).date()
        wanted = [today.replace(day=1)]
        while len(wanted) < self.count and wanted[-1].toordinal() > self.kept.file[1]:
            wanted.append((wanted[-1] - timedelta(days=1)).replace(day=1))
        for first in self.kept.months.keys() - set(wanted):
            del self.kept.months[first]
        for number, first in enumerate(wanted):
            following = (first + timedelta(days=31)).replace(day=1)
            end = datetime.combine(following, datetime.min.time(), self.past.zone).timestamp()
            target = min(until, int(end))
            done = self.kept.months.get(first)
            if done is None or done.until != target or first in self.kept.late:
                yield from self.add_month(connection, first, target, following)
            if number >= WHOLE_MONTHS:
                self.shorten(first)

    def shorten(self, first: date) -> None:
        """Of a month of long ago, keep what it comes to."""
        done = self.kept.months[first]
        if not done.short:
            self.kept.months[first] = Done(done.until, dump_month(in_short(load_month(done.month))), short=True)

    def add_month(self, connection: sqlite3.Connection, first: date, until: int, following: date) -> Iterator[None]:
        """The days of a month that are not added up yet, and then all of it."""
        month = self.kept.open
        if month is None or (month.first, month.until) != (first, until):
            days = [first + timedelta(days=number) for number in range((following - first).days)]
            month = self.kept.open = Open(first, until, days)
        while month.days:
            read_day(connection, month.days.pop(), month)
            yield
        seen = {place: seen_of(row) for place, row in month.seen.items()}
        unseen = self.missing(read_shapes(connection), first, until, seen)
        had = {place: Share(*row) for place, row in month.had.items()}
        since = max(first, date.fromordinal(self.kept.file[1] or 1))
        found = Month(first, since, until, typed(month.shares), had, seen, unseen)
        self.kept.months[first] = Done(until, dump_month(found))
        self.kept.late.discard(first)
        self.kept.open = None
        yield


def loaded(path: Path) -> Kept:
    """What was kept, if it can be read."""
    try:
        form, stored = orjson.loads(own_files.read(path, LIMIT))
        if form != FORM:
            return Kept()
        kept: Kept = make_decoder(Kept)(stored)
        for done in kept.months.values():
            load_month(done.month)
    except (OSError, files.Refused, ValueError, TypeError):  # anything may stand in a damaged file
        return Kept()
    return kept if is_possible(kept) else Kept()


def is_possible(kept: Kept) -> bool:
    """Whether lists have the lengths that they are added up by, and times can be times."""
    times = [time for one in kept.windows for time in (one.since, one.until)]
    times += [one.until for one in kept.months.values()] + ([kept.open.until] if kept.open else [])
    if not all(0 <= time < LAST_MOMENT for time in times):
        return False
    sums: list[Counted | Sum] = [*kept.minutes.values(), *kept.sums.values()]
    rows = [row for one in sums for row in one.shares.values()]
    seen = [one.seen for one in sums]
    if kept.open:
        rows += [*kept.open.shares.values(), *kept.open.had.values()]
        seen += kept.open.seen.values()
    return all(len(row) == len(Share._fields) for row in rows) and all(len(row) == len(STATES) for row in seen)


def dump_month(month: Month) -> bytes:
    """Pack a month."""
    return dump_json(list_pairs(month))


def load_month(content: bytes) -> Month:
    """Unpack a month; a ValueError where it is none."""
    month: Month = make_decoder(Month)(orjson.loads(content))
    return month


def minutes_in(connection: sqlite3.Connection, now: float) -> dict[tuple[int, int], int]:
    """The minutes that are not rolled up, by hour and part, as bits; those that have not come do not count yet."""
    found: dict[tuple[int, int], int] = {}
    for at, part in connection.execute("SELECT at, part FROM minute WHERE at<=?", (int(now),)):
        key = (at // HOUR * HOUR, part)
        found[key] = found.get(key, 0) | 1 << (at % HOUR // MINUTE)
    return found


def sum_of(connection: sqlite3.Connection, since: int, until: int) -> Sum:
    """What is rolled up of some hours."""
    asked = f"SELECT text, {SHARES} FROM hour_share JOIN name ON name.id=person WHERE at>=? AND at<? GROUP BY person"  # noqa: S608 # names of columns
    shares = {person: row for person, *row in connection.execute(asked, (since, until))}
    row = connection.execute(f"SELECT {SEEN} FROM hour_seen WHERE at>=? AND at<?", (since, until)).fetchone()  # noqa: S608 # the same
    seen = [0] * len(STATES) if row[0] is None else list(row)
    return Sum((since, until), ones(bits_of(connection, since, until)), shares, seen)


def bits_of(connection: sqlite3.Connection, since: int, until: int) -> dict[int, int]:
    """In which minutes of which hours somebody looked, of those that are rolled up."""
    found: dict[int, int] = {}
    for at, minutes in connection.execute("SELECT at, minutes FROM rolled WHERE at>=? AND at<?", (since, until)):
        found[at] = found.get(at, 0) | minutes
    return found


def ones(bits: dict[int, int]) -> int:
    """How many minutes these are."""
    return sum(bin(one).count("1") for one in bits.values())


def read_day(connection: sqlite3.Connection, day: date, month: Open) -> None:
    """What is rolled up of a day."""
    of = (day.toordinal(),)
    asked = f"SELECT text, {SHARES} FROM share JOIN name ON name.id=person WHERE day=? GROUP BY person"  # noqa: S608 # the same
    for person, *row in connection.execute(asked, of):
        add(month.shares, person, row)
    both = "JOIN name one ON one.id=host JOIN name two ON two.id=model WHERE day=? GROUP BY host, model"
    for host, model, *row in connection.execute(f"SELECT one.text, two.text, {SHARES} FROM share {both}", of):  # noqa: S608 # the same
        add(month.had, (host, model), row)
    for host, model, *row in connection.execute(f"SELECT one.text, two.text, {SEEN} FROM seen {both}", of):  # noqa: S608 # the same
        add(month.seen, (host, model), row)


def in_short(month: Month) -> Month:
    """A month of long ago: what it comes to."""
    if not month.seen:
        return month._replace(shares={}, had={}, unseen={})
    had = Share(*map(sum, zip(*month.had.values()))) if month.had else Share(0, 0, 0, 0)
    seen = Seen(*map(sum, zip(*month.seen.values())))
    return month._replace(
        shares={}, had={("", ""): had}, seen={("", ""): seen}, unseen={("", ""): sum(month.unseen.values())}
    )


def seen_of(row: Iterable[int]) -> Seen:
    """How long GPUs stood how."""
    return Seen(**dict(zip(STATES, row)), told=0, use=0)


def typed(shares: dict[str, list[int]]) -> dict[str, Share]:
    """Sums by their names."""
    return {person: Share(*row) for person, row in shares.items()}
