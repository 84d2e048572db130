"""The last day, week, month and year, in the slots in which charts show them, by the clock of the lab."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import groupby
from operator import mul
from typing import NamedTuple

from site_builder.core.formatting import DAY, DAYS, HOUR, MONTHS
from site_builder.history.block_format import NO_CODE, NONE, value
from site_builder.history.buckets import MEANS, OF_GPU, OF_HOST, Line
from site_builder.history.model import Series

FIVE_MINUTES = 300
# Of each span: seconds in a slot as history gives it.
STEPS = {"day": FIVE_MINUTES, "week": HOUR, "month": HOUR, "year": HOUR}
# What a chart needs of history.
COLUMNS = ("use", "memory", "temperature", "power", "owner", "booker")
# The small line of the board, of a day.
LINE_SLOTS = 48


class Range(NamedTuple):
    """Places in a row: from `start` to before `end`."""

    start: int
    end: int


class Row(NamedTuple):
    """Some slots that are told together, in words; `told` are their places as history gives them."""

    words: str
    slots: Range
    told: Range


@dataclass(frozen=True)
class Grid:
    """A span: what is asked of history, which of that makes up each slot, and how time is told along it."""

    span: str
    since: int
    until: int
    step: int
    slots: tuple[Range, ...]
    rows: tuple[Row, ...]
    ticks: tuple[tuple[int, str], ...]  # the slot at which a word stands

    @property
    def single(self) -> bool:
        """Whether each slot is as history gives it."""
        return are_single(self.slots)


class Course(NamedTuple):
    """What was seen over a span: `values` of each slot and `told` of each row, by column; None where nothing was."""

    values: dict[str, list[float | None]]
    told: dict[str, list[float | None]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(value is not None for one in self.values.values() for value in one)


class GpuCourse(NamedTuple):
    """A GPU over a span; who had most of each slot, to whom it was promised, and of which slots anything was seen."""

    series: Series
    course: Course
    owners: list[str | None]
    bookers: list[str | None]
    seen: list[bool]


def grid(span: str, epoch: float, zone: tzinfo) -> Grid:
    """The span that ends now."""
    step = STEPS[span]
    until = int(-(-epoch // step)) * step
    return kept_grid(span, until, zone) if isinstance(zone, Hashable) else grid_until(span, until, zone)


@lru_cache(maxsize=16)
def kept_grid(span: str, until: int, zone: tzinfo) -> Grid:
    """The same, of which all hosts that are drawn at a time have one; there are zones that cannot be remembered by."""
    return grid_until(span, until, zone)


def grid_until(span: str, until: int, zone: tzinfo) -> Grid:
    """The span that ends then."""
    step = STEPS[span]
    marks = marks_of(span, until, zone)
    places = [-(-(mark - marks[0]) // step) for mark in marks]
    slots = tuple(Range(start, end) for start, end in zip(places, places[1:]) if end > start)
    begins = [datetime.fromtimestamp(marks[0] + one.start * step, zone) for one in slots]
    end = datetime.fromtimestamp(until, zone)
    return Grid(
        span, marks[0], until, step, slots, tuple(rows_of(span, slots, begins, end)), tuple(ticks_of(span, begins))
    )


def marks_of(span: str, until: int, zone: tzinfo) -> list[int]:
    """When each slot begins, and when the last one ends: a day of the year may have 23 hours, or 25."""
    step = STEPS[span]
    if span in {"day", "week"}:
        return list(range(until - (DAY if span == "day" else 7 * DAY), until + 1, step))
    last = datetime.fromtimestamp(until - 1, zone).date()
    days = [last - timedelta(days=number) for number in reversed(range(31 if span == "month" else 365))]
    hours = range(0, 24, 3) if span == "month" else (0,)
    moments = (datetime(day.year, day.month, day.day, hour, tzinfo=zone) for day in days for hour in hours)
    marks = sorted({int(moment.timestamp()) for moment in moments})
    marks[0] = marks[0] // step * step  # where midnight is not on the hour, the first hour is whole all the same
    return [*(mark for mark in marks if mark < until), until]


def rows_of(span: str, slots: Sequence[Range], begins: Sequence[datetime], end: datetime) -> Iterator[Row]:
    """The slots of an hour of the day, of six hours of the week, of a day of the month, of a week of the year."""
    changes = span == "day" and begins[0].utcoffset() != end.utcoffset()
    starts = [next(places) for _, places in groupby(range(len(slots)), key=lambda place: row_key(span, begins[place]))]
    for start, after in zip(starts, [*starts[1:], len(slots)]):
        until = begins[after] if after < len(slots) else end
        told = Range(slots[start].start, slots[after - 1].end)
        yield Row(row_words(span, begins[start], until, changes), Range(start, after), told)


def row_key(span: str, moment: datetime) -> tuple[object, ...]:
    """What the slots of a row have in common."""
    day = moment.date()
    if span == "day":
        return day, moment.hour, moment.utcoffset()
    if span == "week":
        return day, moment.hour // 6
    return (day if span == "month" else day - timedelta(days=moment.weekday()),)


def row_words(span: str, begins: datetime, ends: datetime, changes: bool) -> str:
    """`Sun 15 Nov 14:00 – 15:00`; where the clock is changed that day, with the zone's name."""
    if span == "month":
        return date_words(begins)
    if span == "year":
        return f"{date_words(begins)} – {date_words(ends - timedelta(hours=1))}"
    zone = f" {begins.tzname()}" if changes else ""
    return f"{date_words(begins)} {clock(begins)} – {clock(ends)}{zone}"


def ticks_of(span: str, begins: Sequence[datetime]) -> Iterator[tuple[int, str]]:
    """Where a word stands: each six hours, each day, each Monday, each month."""
    before = begins[0]
    for place, moment in enumerate(begins[1:], 1):
        new_day = moment.date() != before.date()
        if span == "day" and moment.hour != before.hour and moment.hour % 6 == 0:
            yield place, date_words(moment) if moment.hour == 0 else clock(moment)
        elif span == "week" and new_day:
            yield place, f"{DAYS[moment.weekday()]} {moment.day}"
        elif span == "month" and new_day and moment.weekday() == 0:
            yield place, f"{moment.day} {MONTHS[moment.month - 1]}"
        elif span == "year" and moment.month != before.month:
            yield place, MONTHS[moment.month - 1] if moment.month > 1 else str(moment.year)
        before = moment


def date_words(moment: datetime) -> str:
    """`Sun 15 Nov`."""
    return f"{DAYS[moment.weekday()]} {moment.day} {MONTHS[moment.month - 1]}"


def clock(moment: datetime) -> str:
    """`14:00`."""
    return f"{moment.hour:02}:{moment.minute:02}"


def gpu_course(series: Series, line: Line, names: Sequence[str], one: Grid, naming: Callable[[str], str]) -> GpuCourse:
    """A GPU, from what history gave for the grid; `naming` tells under which name a person is shown."""
    shown = [naming(name) for name in names]
    seen = line["seen"]
    begins = beginning(seen)
    there = [some.end > begins and any(seen[some.start : some.end]) for some in one.slots]
    owners, bookers = (people_of(line, column, shown, one.slots) for column in ("owner", "booker"))
    return GpuCourse(series, course_of(line, MEANS, one), owners, bookers, there)


def course_of(line: Line, columns: Collection[str], one: Grid) -> Course:
    """Some columns of a GPU, or of a host, from what history gave for the grid."""
    rows = [row.told for row in one.rows]
    slots = {column: told_of(line, column, one.slots) for column in columns}
    return Course(slots, {column: told_of(line, column, rows) for column in columns})


def told_of(line: Line, column: str, ranges: Sequence[Range]) -> list[float | None]:
    """A value for each range: the mean of the minutes that were seen in it, and of temperatures the highest."""
    kind, step = (OF_GPU if column in OF_GPU else OF_HOST)[column]
    numbers, none = line[column], NONE[kind]
    if are_single(ranges):
        found = {one: value(one, kind, step) for one in set(numbers)}
        return [found[numbers[one.start]] for one in ranges]
    seen = line.get("seen") or array("B", [one != none for one in numbers])
    begins = beginning(seen)
    there = [one for one in ranges if one.end > begins] if begins else ranges
    early: list[float | None] = [None] * (len(ranges) - len(there))
    if column == "temperature":
        return early + [highest(numbers[one.start : one.end], none) for one in there]
    full = max(seen[begins:], default=0)
    clean = numbers[begins:].count(none) == seen[begins:].count(0)
    means = (mean(numbers[a:b], seen[a:b], none, full if clean else 0) for a, b in there)
    return early + [None if one is None else round(one * step, 1) for one in means]


def beginning(seen: array[int]) -> int:
    """Where something was seen first: most of a year lies before that while history is young, and costs nothing."""
    content = seen.tobytes()
    return (len(content) - len(content.lstrip(b"\0"))) // seen.itemsize


def are_single(ranges: Sequence[Range]) -> bool:
    """Whether each of these, which follow on one another, is one place."""
    return len(ranges) == ranges[-1].end - ranges[0].start


def mean(numbers: array[int], seen: array[int], none: int, full: int) -> float | None:
    """The mean of some numbers, each as often as minutes were seen; `full` if all of it was, as a rule."""
    if full and seen.count(full) == len(seen):
        return sum(numbers) / len(numbers)
    weights = [0 if one == none else minutes for one, minutes in zip(numbers, seen)]
    total = sum(weights)
    return sum(map(mul, numbers, weights)) / total if total else None


def highest(numbers: array[int], none: int) -> float | None:
    """The highest of some numbers."""
    found = max(numbers)
    return found if found != none else max((one for one in numbers if one != none), default=None)


def people_of(line: Line, column: str, names: Sequence[str], ranges: Sequence[Range]) -> list[str | None]:
    """`owner` or `booker` of each range: who had most of it, or nobody."""
    codes = line[column]
    if codes.count(NO_CODE) == len(codes):
        return [None] * len(ranges)
    found: dict[int, str | None] = dict(enumerate(names))
    if are_single(ranges):
        return [found.get(codes[one.start]) for one in ranges]
    return [found.get(most(codes[one.start : one.end])) for one in ranges]


def most(codes: array[int]) -> int:
    """What is there most often."""
    first = codes[0]
    if codes.count(first) * 2 > len(codes):
        return first
    return max(sorted(set(codes)), key=codes.count)


def names_in(people: Sequence[str | None], some: Range) -> list[str]:
    """Who is there in some slots, in the order in which they come."""
    return [name for name in dict.fromkeys(people[some.start : some.end]) if name is not None]


def line_of(line: Line) -> list[float | None]:
    """The use of a day in the slots of a small line."""
    count = len(line["use"])
    width = max(1, count // LINE_SLOTS)
    return told_of(line, "use", [Range(start, min(start + width, count)) for start in range(0, count, width)])
