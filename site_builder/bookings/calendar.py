"""The coming two weeks as a calendar shows them: each time of each booking is a bar over the rows of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.model import Booking, NamedGpu, Shown
from site_builder.core.names import natural
from site_builder.core.timeparse import dates
from site_builder.fleet import active_bookings

DAYS = 14
# More than these are no calendar that anybody reads; the rest is counted.
MOST_TIMES = 4000
LONGEST_LABEL = 12


class Host(NamedTuple):
    """A host with what is promised of it, and its GPUs."""

    name: str
    bookings: tuple[Booking, ...]
    gpus: tuple[NamedGpu, ...]


class Promise(NamedTuple):
    """A booking over all its GPUs: `rows` are theirs on its host; `when` is one of its entries, and tells the times."""

    host: str
    id: str | None
    name: str
    comment: str
    by: str
    rows: tuple[int, ...]
    gpus: tuple[str, ...]
    whole: bool
    when: Booking

    @property
    def where(self) -> str:
        """`atlas:0,1`, or `atlas` for the whole host."""
        return self.host if self.whole else f"{self.host}:{','.join(self.gpus)}"


class Time(NamedTuple):
    """A promise at one of its times; with no beginning it holds since ever."""

    promise: Promise
    begins: datetime | None
    ends: datetime


class Bar(NamedTuple):
    """A time over some rows that stand together; one that others overlap has a lane of its one row to itself."""

    time: Time
    row: int
    rows: int
    lane: int | None


class Chart(NamedTuple):
    """A host's bars, its rows (a label and how many lanes), and which GPUs have no booking."""

    host: str
    rows: tuple[tuple[str, int], ...]
    bars: tuple[Bar, ...]
    unbooked: tuple[str, ...]


class Calendar(NamedTuple):
    """Two weeks: the midnights that bound its days, hosts with bookings and without, and all bookings in a list."""

    midnights: tuple[datetime, ...]
    charts: tuple[Chart, ...]
    others: tuple[str, ...]
    times: tuple[Time, ...]
    left_out: int


def calendar(hosts: Sequence[Host], shown: Shown, now: Now) -> Calendar:
    """From the midnight before now to that in two weeks, in our zone."""
    midnights = tuple(
        datetime.combine(now.today + timedelta(days=day), datetime.min.time(), now.zone) for day in range(DAYS + 1)
    )
    now.days_until(now.local)  # which changes with the day
    first, last = midnights[0].timestamp(), midnights[-1].timestamp()
    found = {host.name: times_within(promises(host, shown), first, last, now) for host in hosts if host.bookings}
    number = sum(map(len, found.values()))
    room = MOST_TIMES
    charts, listed = [], []
    for host in hosts:
        times = found.get(host.name, [])[:room]
        room -= len(times)
        if times:
            listed += times
            charts.append(chart(host, times))
    listed.sort(key=begin)
    others = tuple(host.name for host in hosts if not found.get(host.name))
    return Calendar(midnights, tuple(charts), others, tuple(listed), max(0, number - MOST_TIMES))


def promises(host: Host, shown: Shown) -> list[Promise]:
    """The bookings of a host, those that share all but the GPU as one; without names where users are not shown."""
    labels, rows_with = rows_of(host)
    groups: dict[tuple[object, ...], list[Booking]] = {}
    for one in host.bookings:
        groups.setdefault((one.id, one.name, one.since, one.until, one.comment, one.rrule), []).append(one)
    found = []
    for group in groups.values():
        first, keys = group[0], {one.gpu.lower() for one in group}
        whole = "*" in keys
        rows = tuple(
            range(len(host.gpus) or len(labels)) if whole else sorted({row for key in keys for row in rows_with[key]})
        )
        told = (first.id, first.name, first.comment, first.by or "") if shown.users else (None, "", "", "")
        found.append(Promise(host.name, *told, rows, tuple(labels[row] for row in rows), whole, first))
    return found


def rows_of(host: Host) -> tuple[list[str], dict[str, list[int]]]:
    """The labels of a host's rows, and which rows a key in comments.json means; GPUs that it does not have come last.

    The key of a GPU that is cut into instances means all of theirs.
    """
    labels = ["?" if one.number is None else str(one.number) for one in host.gpus]
    rows_with: dict[str, list[int]] = {}
    for row, one in enumerate(host.gpus):
        for key in filter(None, (labels[row] if one.number is not None else None, one.uuid)):
            rows_with.setdefault(key.lower(), [row])
    for row, one in enumerate(host.gpus):
        for key in filter(None, (labels[row].partition(":")[0], one.of)) if ":" in labels[row] else ():
            rows_with.setdefault(key.lower(), []).append(row)
    for key in sorted({one.gpu.lower() for one in host.bookings} - {"*"} - rows_with.keys(), key=natural):
        rows_with[key] = [len(labels)]
        labels.append(key if len(key) <= LONGEST_LABEL else f"{key[: LONGEST_LABEL - 1]}…")
    return labels or ["all"], rows_with


def times_within(several: Iterable[Promise], first: float, last: float, now: Now) -> list[Time]:
    """Each time between two moments, in the order of their beginnings."""
    found = [
        Time(promise, begins, ends)
        for promise in several
        for begins, ends in active_bookings.times(promise.when, now)
        if ends.timestamp() > first and (begins is None or begins.timestamp() < last)
    ]
    return sorted(found, key=begin)


def begin(time: Time) -> float:
    """When it begins, for comparisons; what holds since ever begins before all."""
    return time.begins.timestamp() if time.begins else float("-inf")


def chart(host: Host, times: Sequence[Time]) -> Chart:
    """The bars of a host, and the rows that they need."""
    labels = rows_of(host)[0]
    of_row: dict[int, dict[int, Time]] = {}
    for number, time in enumerate(times):
        for row in time.promise.rows:
            of_row.setdefault(row, {})[number] = time
    used = sorted(of_row)
    place = {row: number for number, row in enumerate(used)}
    lanes = {row: lanes_of(of_row[row]) for row in used}
    bars: list[Bar] = []
    for number, time in enumerate(times):
        taken = [(place[row], lanes[row].get(number)) for row in time.promise.rows]
        if any(lane is not None for _, lane in taken):
            bars += [Bar(time, row, 1, lane) for row, lane in taken]
        else:
            bars += [Bar(time, row, rows, None) for row, rows in runs([row for row, _ in taken])]
    unbooked = tuple(label for row, label in enumerate(labels) if row not in place)
    rows = tuple((labels[row], 1 + max(lanes[row].values(), default=0)) for row in used)
    return Chart(host.name, rows, tuple(bars), unbooked)


def lanes_of(times: Mapping[int, Time]) -> dict[int, int]:
    """For those of a row that overlap another, in which lane each is drawn: the first that is free again."""
    free_from: list[float] = []
    lane_of: dict[int, int] = {}
    overlapping: set[int] = set()
    longest, until = -1, float("-inf")  # of those so far the one that ends last
    for number, time in times.items():
        begins, ends = begin(time), time.ends.timestamp()
        if begins < until:
            overlapping |= {number, longest}
        lane = next((lane for lane, free in enumerate(free_from) if free <= begins), len(free_from))
        free_from[lane : lane + 1] = [ends]
        lane_of[number] = lane
        if ends > until:
            longest, until = number, ends
    return {number: lane for number, lane in lane_of.items() if number in overlapping}


def runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rows that stand together, as the first and how many."""
    first = previous = rows[0]
    for row in rows[1:]:
        if row != previous + 1:
            yield first, previous + 1 - first
            first = row
        previous = row
    yield first, previous + 1 - first


class Repeats(NamedTuple):
    """The first and the last time that a rule gives; with no first it gives none, with no last it goes on."""

    first: datetime | None
    last: datetime | None


def is_over(one: Booking, now: Now) -> bool:
    """Whether it ended, with the last of its repeats, so long ago that nobody is told of it any more."""
    repeats = repeats_of(one)
    if repeats is None or one.since is None:
        return now.reached(one.until.timestamp() + active_bookings.SHOWN_AFTER_END)
    if repeats.first is None:
        return True
    ends = repeats.last and repeats.last + (one.until - one.since)
    return ends is not None and now.reached(ends.timestamp() + active_bookings.SHOWN_AFTER_END)


def repeats_of(one: Booking) -> Repeats | None:
    """When it repeats; None for one that counts once."""
    if not one.rrule or one.since is None or one.until - one.since > active_bookings.LONGEST_REPEATED:
        return None
    return repeats_by(one.rrule, one.since)


@lru_cache(maxsize=4096)
def repeats_by(rule: str, since: datetime) -> Repeats | None:
    """The same by a rule, which a calendar program follows from the first time that it gives."""
    from dateutil.rrule import rrulestr  # noqa: PLC0415 slow to import, and rarely needed

    try:
        first = next(iter(rrulestr(rule, dtstart=since)), None)
        if "COUNT=" not in rule and "UNTIL=" not in rule:
            return Repeats(first, None)
        found = iter(rrulestr(rule, dtstart=near_end(since, rule)))
    except ValueError:  # one that repeats until the 32nd, say
        return None
    looked_at, last = 0, first
    for looked_at, last in enumerate(islice(found, active_bookings.MOST_LOOKED_AT), 1):  # noqa: B007
        if not dates.is_year(last.year):
            return Repeats(first, None)
    return Repeats(first, None if looked_at == active_bookings.MOST_LOOKED_AT else last)


def near_end(since: datetime, rule: str) -> datetime:
    """Return a beginning shortly before UNTIL, so that the last time is soon found: two periods have at least one."""
    told = dates.stamp(rule.partition("UNTIL=")[2].partition(";")[0], since.tzinfo or timezone.utc)[0]
    weeks = active_bookings.INTERVAL.search(rule)
    return (
        active_bookings.later(since, rule, told - 2 * timedelta(weeks=int(weeks[1]) if weeks else 1)) if told else since
    )
