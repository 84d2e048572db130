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

from site_builder.core.formatting import DAY, DAY_NAMES, HOUR, MONTH_NAMES
from site_builder.history.block_format import NO_CODE, NO_VALUE, decode_number
from site_builder.history.buckets import GPU_BUCKET_COLUMNS, HOST_BUCKET_COLUMNS, VALUE_COLUMNS, BucketColumns
from site_builder.history.model import GpuSeries

FIVE_MINUTES_S = 300
# Of each span: seconds in a slot as history gives it.
WINDOW_STEPS_S = {"day": FIVE_MINUTES_S, "week": HOUR, "month": HOUR, "year": HOUR}
# What a chart needs of history.
CHART_COLUMNS = ("use", "memory", "temperature", "power", "owner", "booker")
# The small line of the board, of a day.
SPARKLINE_BUCKETS = 48


class BucketRange(NamedTuple):
    """Places in a row: from `start` to before `end`."""

    start: int
    end: int


class GridRow(NamedTuple):
    """Some slots that are told together, in words; `told` are their places as history gives them."""

    label: str
    buckets: BucketRange
    history_range: BucketRange


@dataclass(frozen=True)
class TimeGrid:
    """A span: what is asked of history, which of that makes up each slot, and how time is told along it."""

    window: str
    since: int
    until: int
    step: int
    buckets: tuple[BucketRange, ...]
    rows: tuple[GridRow, ...]
    ticks: tuple[tuple[int, str], ...]  # the slot at which a word stands

    @property
    def is_single(self) -> bool:
        """Whether each slot is as history gives it."""
        return are_single_buckets(self.buckets)


class ChartSeries(NamedTuple):
    """What was seen over a span: `values` of each slot and `told` of each row, by column; None where nothing was."""

    values: dict[str, list[float | None]]
    row_values: dict[str, list[float | None]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(value is not None for one in self.values.values() for value in one)


class GpuChartSeries(NamedTuple):
    """A GPU over a span; who had most of each slot, to whom it was promised, and of which slots anything was seen."""

    series: GpuSeries
    chart_series: ChartSeries
    owners: list[str | None]
    bookers: list[str | None]
    is_seen: list[bool]


def build_grid(span: str, epoch: float, zone: tzinfo) -> TimeGrid:
    """The span that ends now."""
    step = WINDOW_STEPS_S[span]
    until = int(-(-epoch // step)) * step
    return build_cached_grid(span, until, zone) if isinstance(zone, Hashable) else build_grid_until(span, until, zone)


@lru_cache(maxsize=16)
def build_cached_grid(span: str, until: int, zone: tzinfo) -> TimeGrid:
    """The same, of which all hosts that are drawn at a time have one; there are zones that cannot be remembered by."""
    return build_grid_until(span, until, zone)


def build_grid_until(span: str, until: int, zone: tzinfo) -> TimeGrid:
    """The span that ends then."""
    step = WINDOW_STEPS_S[span]
    marks = list_bucket_starts(span, until, zone)
    places = [-(-(mark - marks[0]) // step) for mark in marks]
    slots = tuple(BucketRange(start, end) for start, end in zip(places, places[1:]) if end > start)
    begins = [datetime.fromtimestamp(marks[0] + one.start * step, zone) for one in slots]
    end = datetime.fromtimestamp(until, zone)
    return TimeGrid(
        span,
        marks[0],
        until,
        step,
        slots,
        tuple(build_grid_rows(span, slots, begins, end)),
        tuple(build_ticks(span, begins)),
    )


def list_bucket_starts(span: str, until: int, zone: tzinfo) -> list[int]:
    """When each slot begins, and when the last one ends: a day of the year may have 23 hours, or 25."""
    step = WINDOW_STEPS_S[span]
    if span in {"day", "week"}:
        return list(range(until - (DAY if span == "day" else 7 * DAY), until + 1, step))
    last = datetime.fromtimestamp(until - 1, zone).date()
    days = [last - timedelta(days=number) for number in reversed(range(31 if span == "month" else 365))]
    hours = range(0, 24, 3) if span == "month" else (0,)
    moments = (datetime(day.year, day.month, day.day, hour, tzinfo=zone) for day in days for hour in hours)
    marks = sorted({int(moment.timestamp()) for moment in moments})
    marks[0] = marks[0] // step * step  # where midnight is not on the hour, the first hour is whole all the same
    return [*(mark for mark in marks if mark < until), until]


def build_grid_rows(
    span: str, slots: Sequence[BucketRange], begins: Sequence[datetime], end: datetime
) -> Iterator[GridRow]:
    """The slots of an hour of the day, of six hours of the week, of a day of the month, of a week of the year."""
    changes = span == "day" and begins[0].utcoffset() != end.utcoffset()
    starts = [
        next(places) for _, places in groupby(range(len(slots)), key=lambda place: build_row_key(span, begins[place]))
    ]
    for start, after in zip(starts, [*starts[1:], len(slots)]):
        until = begins[after] if after < len(slots) else end
        told = BucketRange(slots[start].start, slots[after - 1].end)
        yield GridRow(format_row_label(span, begins[start], until, changes), BucketRange(start, after), told)


def build_row_key(span: str, moment: datetime) -> tuple[object, ...]:
    """What the slots of a row have in common."""
    day = moment.date()
    if span == "day":
        return day, moment.hour, moment.utcoffset()
    if span == "week":
        return day, moment.hour // 6
    return (day if span == "month" else day - timedelta(days=moment.weekday()),)


def format_row_label(span: str, begins: datetime, ends: datetime, changes: bool) -> str:
    """`Sun 15 Nov 14:00 – 15:00`; where the clock is changed that day, with the zone's name."""
    if span == "month":
        return format_date_label(begins)
    if span == "year":
        return f"{format_date_label(begins)} – {format_date_label(ends - timedelta(hours=1))}"
    zone = f" {begins.tzname()}" if changes else ""
    return f"{format_date_label(begins)} {format_clock(begins)} – {format_clock(ends)}{zone}"


def build_ticks(span: str, begins: Sequence[datetime]) -> Iterator[tuple[int, str]]:
    """Where a word stands: each six hours, each day, each Monday, each month."""
    before = begins[0]
    for place, moment in enumerate(begins[1:], 1):
        new_day = moment.date() != before.date()
        if span == "day" and moment.hour != before.hour and moment.hour % 6 == 0:
            yield place, format_date_label(moment) if moment.hour == 0 else format_clock(moment)
        elif span == "week" and new_day:
            yield place, f"{DAY_NAMES[moment.weekday()]} {moment.day}"
        elif span == "month" and new_day and moment.weekday() == 0:
            yield place, f"{moment.day} {MONTH_NAMES[moment.month - 1]}"
        elif span == "year" and moment.month != before.month:
            yield place, MONTH_NAMES[moment.month - 1] if moment.month > 1 else str(moment.year)
        before = moment


def format_date_label(moment: datetime) -> str:
    """`Sun 15 Nov`."""
    return f"{DAY_NAMES[moment.weekday()]} {moment.day} {MONTH_NAMES[moment.month - 1]}"


def format_clock(moment: datetime) -> str:
    """`14:00`."""
    return f"{moment.hour:02}:{moment.minute:02}"


def build_gpu_chart_series(
    series: GpuSeries, line: BucketColumns, names: Sequence[str], one: TimeGrid, naming: Callable[[str], str]
) -> GpuChartSeries:
    """A GPU, from what history gave for the grid; `naming` tells under which name a person is shown."""
    shown = [naming(name) for name in names]
    seen = line["seen"]
    begins = find_first_seen(seen)
    there = [some.end > begins and any(seen[some.start : some.end]) for some in one.buckets]
    owners, bookers = (find_range_people(line, column, shown, one.buckets) for column in ("owner", "booker"))
    return GpuChartSeries(series, build_chart_series(line, VALUE_COLUMNS, one), owners, bookers, there)


def build_chart_series(line: BucketColumns, columns: Collection[str], one: TimeGrid) -> ChartSeries:
    """Some columns of a GPU, or of a host, from what history gave for the grid."""
    rows = [row.history_range for row in one.rows]
    slots = {column: aggregate_ranges(line, column, one.buckets) for column in columns}
    return ChartSeries(slots, {column: aggregate_ranges(line, column, rows) for column in columns})


def aggregate_ranges(line: BucketColumns, column: str, ranges: Sequence[BucketRange]) -> list[float | None]:
    """A value for each range: the mean of the minutes that were seen in it, and of temperatures the highest."""
    kind, step = (GPU_BUCKET_COLUMNS if column in GPU_BUCKET_COLUMNS else HOST_BUCKET_COLUMNS)[column]
    numbers, none = line[column], NO_VALUE[kind]
    if are_single_buckets(ranges):
        found = {one: decode_number(one, kind, step) for one in set(numbers)}
        return [found[numbers[one.start]] for one in ranges]
    seen = line.get("seen") or array("B", [one != none for one in numbers])
    begins = find_first_seen(seen)
    there = [one for one in ranges if one.end > begins] if begins else ranges
    early: list[float | None] = [None] * (len(ranges) - len(there))
    if column == "temperature":
        return early + [find_highest(numbers[one.start : one.end], none) for one in there]
    full = max(seen[begins:], default=0)
    clean = numbers[begins:].count(none) == seen[begins:].count(0)
    means = (compute_weighted_mean(numbers[a:b], seen[a:b], none, full if clean else 0) for a, b in there)
    return early + [None if one is None else round(one * step, 1) for one in means]


def find_first_seen(seen: array[int]) -> int:
    """Where something was seen first: most of a year lies before that while history is young, and costs nothing."""
    content = seen.tobytes()
    return (len(content) - len(content.lstrip(b"\0"))) // seen.itemsize


def are_single_buckets(ranges: Sequence[BucketRange]) -> bool:
    """Whether each of these, which follow on one another, is one place."""
    return len(ranges) == ranges[-1].end - ranges[0].start


def compute_weighted_mean(numbers: array[int], seen: array[int], none: int, full: int) -> float | None:
    """The mean of some numbers, each as often as minutes were seen; `full` if all of it was, as a rule."""
    if full and seen.count(full) == len(seen):
        return sum(numbers) / len(numbers)
    weights = [0 if one == none else minutes for one, minutes in zip(numbers, seen)]
    total = sum(weights)
    return sum(map(mul, numbers, weights)) / total if total else None


def find_highest(numbers: array[int], none: int) -> float | None:
    """The highest of some numbers."""
    found = max(numbers)
    return found if found != none else max((one for one in numbers if one != none), default=None)


def find_range_people(
    line: BucketColumns, column: str, names: Sequence[str], ranges: Sequence[BucketRange]
) -> list[str | None]:
    """`owner` or `booker` of each range: who had most of it, or nobody."""
    codes = line[column]
    if codes.count(NO_CODE) == len(codes):
        return [None] * len(ranges)
    found: dict[int, str | None] = dict(enumerate(names))
    if are_single_buckets(ranges):
        return [found.get(codes[one.start]) for one in ranges]
    return [found.get(find_most_frequent(codes[one.start : one.end])) for one in ranges]


def find_most_frequent(codes: array[int]) -> int:
    """What is there most often."""
    first = codes[0]
    if codes.count(first) * 2 > len(codes):
        return first
    return max(sorted(set(codes)), key=codes.count)


def list_range_names(people: Sequence[str | None], some: BucketRange) -> list[str]:
    """Who is there in some slots, in the order in which they come."""
    return [name for name in dict.fromkeys(people[some.start : some.end]) if name is not None]


def compute_sparkline_values(line: BucketColumns) -> list[float | None]:
    """The use of a day in the slots of a small line."""
    count = len(line["use"])
    width = max(1, count // SPARKLINE_BUCKETS)
    return aggregate_ranges(
        line, "use", [BucketRange(start, min(start + width, count)) for start in range(0, count, width)]
    )
