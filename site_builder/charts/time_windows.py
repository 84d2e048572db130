"""Divide the last day, week, month and year into the buckets of charts, by the local clock."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import groupby
from operator import mul
from typing import NamedTuple, TypeVar

from site_builder.core.formatting import DAY, DAY_NAMES, HOUR, MONTH_NAMES, format_weekday_date
from site_builder.history.block_format import HOST_COLUMNS, NO_CODE, NO_VALUE, Columns, unpack_block_number
from site_builder.history.buckets import GPU_BUCKET_COLUMNS, VALUE_COLUMNS
from site_builder.history.model import GpuSeries

Item = TypeVar("Item")
FIVE_MINUTES_S = 300
# Length of a bucket in history, for each window.
WINDOW_STEPS_S = {"day": FIVE_MINUTES_S, "week": HOUR, "month": HOUR, "year": HOUR}
CHART_COLUMNS = ("use", "memory", "temperature", "power", "owner", "booker")


class TimeWindowRow(NamedTuple):
    """Some buckets in words; `history_range` are their positions in history, as each of `TimeGrid.buckets` has them."""

    label: str
    buckets: range
    history_range: range


@dataclass(frozen=True)
class TimeGrid:
    """Window of a chart: what to read from history, which of that makes up each bucket, and labels along it."""

    window: str
    since: int
    until: int
    step: int
    buckets: tuple[range, ...]
    rows: tuple[TimeWindowRow, ...]
    ticks: tuple[tuple[int, str], ...]  # a bucket, and its label


class TimeWindowSeries(NamedTuple):
    """Values by column, of each bucket and of each row; None where nothing was seen."""

    values: dict[str, list[float | None]]
    row_values: dict[str, list[float | None]]


class GpuTimeWindowSeries(NamedTuple):
    """GPU over a window, with the person who had most of each bucket, and the one who had booked it."""

    series: GpuSeries
    chart_series: TimeWindowSeries
    owners: list[str | None]
    bookers: list[str | None]
    is_seen: list[bool]


def build_time_window_grid(window: str, epoch: float, zone: tzinfo) -> TimeGrid:
    """Build the window that ends now; all hosts that are drawn at a time share it, if the zone can be a key."""
    step = WINDOW_STEPS_S[window]
    until = int(-(-epoch // step)) * step
    build = build_time_window_grid_until if isinstance(zone, Hashable) else build_time_window_grid_until.__wrapped__
    return build(window, until, zone)


@lru_cache(maxsize=16)
def build_time_window_grid_until(window: str, until: int, zone: tzinfo) -> TimeGrid:
    step = WINDOW_STEPS_S[window]
    starts = list_time_window_starts(window, until, zone)
    positions = [-(-(start - starts[0]) // step) for start in starts]
    buckets = tuple(range(start, end) for start, end in zip(positions, positions[1:]) if end > start)
    moments = [datetime.fromtimestamp(starts[0] + bucket.start * step, zone) for bucket in buckets]
    end = datetime.fromtimestamp(until, zone)
    return TimeGrid(
        window,
        starts[0],
        until,
        step,
        buckets,
        tuple(build_time_window_rows(window, buckets, moments, end)),
        tuple(build_time_ticks(window, moments)),
    )


def list_time_window_starts(window: str, until: int, zone: tzinfo) -> list[int]:
    """List when each bucket begins, and when the last one ends: a day may have 23 hours, or 25."""
    step = WINDOW_STEPS_S[window]
    if window in {"day", "week"}:
        return list(range(until - (DAY if window == "day" else 7 * DAY), until + 1, step))
    last = datetime.fromtimestamp(until - 1, zone).date()
    days = [last - timedelta(days=number) for number in reversed(range(31 if window == "month" else 365))]
    hours = range(0, 24, 3) if window == "month" else (0,)
    moments = (datetime(day.year, day.month, day.day, hour, tzinfo=zone) for day in days for hour in hours)
    starts = sorted({int(moment.timestamp()) for moment in moments})
    starts[0] = starts[0] // step * step  # where midnight is not on the hour, the first hour is whole all the same
    return [*(start for start in starts if start < until), until]


def build_time_window_rows(
    window: str, buckets: Sequence[range], moments: Sequence[datetime], end: datetime
) -> Iterator[TimeWindowRow]:
    """Yield rows of an hour of the day, six hours of the week, a day of the month, or a week of the year."""
    has_clock_change = window == "day" and moments[0].utcoffset() != end.utcoffset()
    starts = [
        next(positions)
        for _, positions in groupby(
            range(len(buckets)), key=lambda position: build_time_window_row_key(window, moments[position])
        )
    ]
    for start, next_start in zip(starts, [*starts[1:], len(buckets)]):
        until = moments[next_start] if next_start < len(buckets) else end
        history_range = range(buckets[start].start, buckets[next_start - 1].stop)
        yield TimeWindowRow(
            format_time_window_row_label(window, moments[start], until, has_clock_change),
            range(start, next_start),
            history_range,
        )


def build_time_window_row_key(window: str, moment: datetime) -> tuple[object, ...]:
    """Return what the buckets of a row have in common."""
    day = moment.date()
    if window == "day":
        return day, moment.hour, moment.utcoffset()
    if window == "week":
        return day, moment.hour // 6
    return (day if window == "month" else day - timedelta(days=moment.weekday()),)


def format_time_window_row_label(window: str, start: datetime, end: datetime, has_clock_change: bool) -> str:
    """Format `Sun 15 Nov 14:00 – 15:00`, with the zone's name if the clock changes."""
    if window == "month":
        return format_weekday_date(start)
    if window == "year":
        return f"{format_weekday_date(start)} – {format_weekday_date(end - timedelta(hours=1))}"
    zone = f" {start.tzname()}" if has_clock_change else ""
    return f"{format_weekday_date(start)} {start:%H:%M} – {end:%H:%M}{zone}"


def build_time_ticks(window: str, moments: Sequence[datetime]) -> Iterator[tuple[int, str]]:
    """Yield the labels of time: each six hours, each day, each Monday, each month."""
    before = moments[0]
    for position, moment in enumerate(moments[1:], 1):
        new_day = moment.date() != before.date()
        if window == "day" and moment.hour != before.hour and moment.hour % 6 == 0 and not new_day:
            yield position, f"{moment:%H:%M}"
        elif window in ("day", "week") and new_day:
            yield position, f"{DAY_NAMES[moment.weekday()]} {moment.day}"
        elif window == "month" and new_day and moment.weekday() == 0:
            yield position, f"{moment.day} {MONTH_NAMES[moment.month - 1]}"
        elif window == "year" and moment.month != before.month:
            yield position, MONTH_NAMES[moment.month - 1] if moment.month > 1 else str(moment.year)
        before = moment


def build_gpu_time_window_series(
    series: GpuSeries, columns: Columns, names: Sequence[str], grid: TimeGrid, find_name: Callable[[str], str]
) -> GpuTimeWindowSeries:
    """Build the series of a GPU; `find_name` returns the name under which a person is shown."""
    shown = [find_name(name) for name in names]
    seen = columns["seen"]
    first_seen = find_time_window_first_seen(seen)
    is_seen = [bucket.stop > first_seen and any(seen[bucket.start : bucket.stop]) for bucket in grid.buckets]
    owners, bookers = (find_time_window_people(columns, column, shown, grid.buckets) for column in ("owner", "booker"))
    return GpuTimeWindowSeries(series, build_time_window_series(columns, VALUE_COLUMNS, grid), owners, bookers, is_seen)


def build_time_window_series(bucket_columns: Columns, columns: Collection[str], grid: TimeGrid) -> TimeWindowSeries:
    """Build the series of some columns of a GPU, or of a host."""
    row_ranges = [row.history_range for row in grid.rows]
    values = {column: aggregate_time_window_ranges(bucket_columns, column, grid.buckets) for column in columns}
    return TimeWindowSeries(
        values, {column: aggregate_time_window_ranges(bucket_columns, column, row_ranges) for column in columns}
    )


def aggregate_time_window_ranges(columns: Columns, column: str, ranges: Sequence[range]) -> list[float | None]:
    """Return a value for each range: the mean over the minutes that were seen, or the highest temperature."""
    kind, step = (GPU_BUCKET_COLUMNS if column in GPU_BUCKET_COLUMNS else HOST_COLUMNS)[column]
    numbers, no_value = columns[column], NO_VALUE[kind]
    if are_single_bucket_ranges(ranges):
        decoded = {number: unpack_block_number(number, kind, step) for number in set(numbers)}
        return [decoded[numbers[bucket.start]] for bucket in ranges]
    seen = columns.get("seen") or array("B", [number != no_value for number in numbers])
    first_seen = find_time_window_first_seen(seen)
    seen_ranges = [bucket for bucket in ranges if bucket.stop > first_seen] if first_seen else ranges
    unseen: list[float | None] = [None] * (len(ranges) - len(seen_ranges))
    if column == "temperature":
        readings = (
            [number for number in numbers[bucket.start : bucket.stop] if number != no_value] for bucket in seen_ranges
        )
        return unseen + [max(bucket_readings, default=None) for bucket_readings in readings]
    has_all_values = numbers[first_seen:].count(no_value) == seen[first_seen:].count(0)
    full_minutes = max(seen[first_seen:], default=0) if has_all_values else 0
    means = (
        compute_time_window_mean(
            numbers[bucket.start : bucket.stop], seen[bucket.start : bucket.stop], no_value, full_minutes
        )
        for bucket in seen_ranges
    )
    return unseen + [None if mean is None else round(mean * step, 1) for mean in means]


def find_time_window_first_seen(seen: array[int]) -> int:
    """Return where something was seen first: most of a year lies before that while history is young."""
    content = seen.tobytes()
    return (len(content) - len(content.lstrip(b"\0"))) // seen.itemsize


def are_single_bucket_ranges(ranges: Sequence[range]) -> bool:
    """Return True if each of these ranges, which follow on one another, is one position."""
    return len(ranges) == ranges[-1].stop - ranges[0].start


def compute_time_window_mean(numbers: array[int], seen: array[int], no_value: int, full_minutes: int) -> float | None:
    """Return the mean of numbers, weighted by minutes; `full_minutes` is that of a bucket without gaps, or 0."""
    if full_minutes and seen.count(full_minutes) == len(seen):
        return sum(numbers) / len(numbers)
    weights = [0 if number == no_value else minutes for number, minutes in zip(numbers, seen)]
    total = sum(weights)
    return sum(map(mul, numbers, weights)) / total if total else None


def find_time_window_people(
    columns: Columns, column: str, names: Sequence[str], ranges: Sequence[range]
) -> list[str | None]:
    """Return the `owner` or `booker` who had most of each range."""
    codes = columns[column]
    if codes.count(NO_CODE) == len(codes):
        return [None] * len(ranges)
    name_by_code: dict[int, str | None] = dict(enumerate(names))
    if are_single_bucket_ranges(ranges):
        return [name_by_code.get(codes[bucket.start]) for bucket in ranges]
    return [name_by_code.get(find_most_frequent_window_code(codes[bucket.start : bucket.stop])) for bucket in ranges]


def find_most_frequent_window_code(codes: array[int]) -> int:
    if codes.count(codes[0]) * 2 > len(codes):
        return codes[0]
    return max(sorted(set(codes)), key=codes.count)


def list_time_window_names(people: Sequence[str | None], buckets: range) -> list[str]:
    """List the people in some buckets, in the order in which they come."""
    return [name for name in dict.fromkeys(people[buckets.start : buckets.stop]) if name is not None]


def group_time_window_runs(values: Sequence[Item]) -> Iterator[tuple[Item, range]]:
    """Yield each value, and the range of positions in a row that have it."""
    for value, run in groupby(range(len(values)), key=values.__getitem__):
        positions = list(run)
        yield value, range(positions[0], positions[-1] + 1)
