"""Draw charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import cache, lru_cache
from itertools import groupby
from typing import NamedTuple, TypeVar

from site_builder.core.formatting import DAY_NAMES, MONTH_NAMES
from site_builder.core.html import EMPTY_HTML, Html, escape_html

Item = TypeVar("Item")
# The first digits of a round number.
ROUND_DIGITS = (1, 2, 2.5, 5, 10)


class BucketRun(NamedTuple):
    """Places in a row that have something in common: from `start` to before `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How many they are."""
        return self.end - self.start


class SvgBox(NamedTuple):
    """Where something is, from the upper left corner, and how large."""

    x: int
    y: int
    width: int
    height: int


def group_runs(places: Sequence[Item]) -> Iterator[tuple[Item, BucketRun]]:
    """Each thing and the places in a row that have it."""
    start = 0
    for what, several in groupby(places):
        end = start + sum(1 for _ in several)
        yield what, BucketRun(start, end)
        start = end


def compute_edges(count: int, width: int) -> list[int]:
    """Where each of so many places begins across a width, and where the last one ends."""
    return [round(place * width / count) for place in range(count + 1)] if count else [0]


def compute_heights(values: Sequence[float | None], height: int, top: float) -> list[int | None]:
    """How far down each value is where `top` is at the upper edge and 0 at the lower one; None has no place."""
    worth = height / top if top > 0 else 0
    found = {one: None if one is None else height - round(min(max(one * worth, 0), height)) for one in set(values)}
    return [found[one] for one in values]  # most values come again and again


def build_line_path(values: Sequence[float | None], width: int, height: int, top: float) -> Html:
    """The data of a path through values, from one edge to the other; None breaks it, and one value alone is a dash."""
    return build_path(compute_heights(values, height, top), compute_edges(len(values), width))


def build_path(down: Sequence[int | None], across: Sequence[int]) -> Html:
    """The same through heights; `across` tells where each place begins, and where the last one ends."""
    parts: list[str] = []
    pen = y = -1  # where it is, in places and in height; at first, and in a gap, it is lifted
    for place, next_y in enumerate(down):
        if next_y is None:
            if pen >= 0:
                parts.append(format_flat_stroke(across[place] - across[pen]))
            pen = y = -1
        elif next_y != y:
            if pen < 0:
                parts.append(f"M{across[place]} {next_y}")
            else:
                if pen < place - 1:
                    parts.append(format_flat_stroke(across[place - 1] - across[pen]))
                parts.append(format_sloped_stroke(across[place] - across[place - 1], next_y - y))
            pen, y = place, next_y
    if pen >= 0:
        parts.append(format_flat_stroke(across[len(down)] - across[pen]))
    return Html("".join(parts))


@cache
def format_flat_stroke(wide: int) -> str:
    """A stroke to the right."""
    return f"h{wide}"


@lru_cache(maxsize=4096)
def format_sloped_stroke(wide: int, tall: int) -> str:
    """A stroke to the right and down, or up."""
    return f"l{wide}{tall}" if tall < 0 else f"l{wide} {tall}"


def round_up_axis(value: float) -> float:
    """The next round number: where an axis ends that has to show this."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    found = next((first * power for first in ROUND_DIGITS if first * power >= value * (1 - 1e-9)), 10 * power)
    return int(found) if found >= 1 and found == int(found) else found


def render_rect(box: SvgBox, more: str = "", title: str = "") -> Html:
    """A rectangle; `more` are further attributes, ready to be written, and the title is told on hover."""
    attributes = f"x={box.x} y={box.y} width={box.width} height={box.height}{' ' if more else ''}{more}"
    return Html(f"<rect {attributes}><title>{escape_html(title)}</title></rect>" if title else f"<rect {attributes} />")


# Steps from nothing to all: as fine as it is seen, and no heavier.
SPARKLINE_HEIGHT = 16
# With fewer slots than these there is no line yet.
MIN_SPARKLINE_VALUES = 4


def render_sparkline(values: Sequence[float | None]) -> Html:
    """The line, and its mean and highest value in words; nothing as long as there is too little."""
    there = [one for one in values if one is not None]
    if len(there) < MIN_SPARKLINE_VALUES:
        return EMPTY_HTML
    words = f"24 h: mean {sum(there) / len(there):.0f} %, highest {max(there):.0f} %"
    return Html(
        f'<svg role=img viewBox="0 0 {len(values)} {SPARKLINE_HEIGHT}" preserveAspectRatio=none><title>{words}</title>'
        f'<path d="{build_line_path(values, len(values), SPARKLINE_HEIGHT, 100)}"/></svg>'
    )


HOURS_PER_DAY = 24
# So many tints from nothing to all.
TINT_COUNT = 10
HOUR_NAMES = [f"{hour:02}" for hour in range(HOURS_PER_DAY)]
NO_DATA, UNKNOWN = "no data", "–"


class UsageCell(NamedTuple):
    """An hour of a day; `hour_count` is how often it came: twice or never where clocks change."""

    hour_count: int
    seen: int
    taken: int

    @property
    def share(self) -> float | None:
        """How much of what was seen was taken, in percent."""
        return 100 * self.taken / self.seen if self.seen else None


class HeatmapCell(NamedTuple):
    """A cell as the template takes it; `tint` is empty where nothing was seen."""

    tint: str
    text: str
    title: str


class HeatmapRow(NamedTuple):
    """A day, or what else has a row."""

    name: str
    cells: Sequence[HeatmapCell]


def build_hourly_rows(
    days: Sequence[date], cells: Sequence[Sequence[UsageCell]], until: datetime | None = None
) -> list[HeatmapRow]:
    """A week, with a day in each row; `until` is up to when it has come, by the clock of the lab."""
    end = until.replace(tzinfo=None) if until else datetime.max
    found = []
    for day, row in zip(days, cells):
        start = datetime.combine(day, datetime.min.time())
        come = [start.replace(hour=hour) < end for hour in range(HOURS_PER_DAY)]
        texts = [build_hour_cell(day, hour, row[hour], come[hour]) for hour in range(HOURS_PER_DAY)]
        found.append(HeatmapRow(format_day_label(day), texts))
    return found


def build_daily_rows(several: Mapping[str, Sequence[UsageCell]], days: Sequence[date]) -> list[HeatmapRow]:
    """Some GPUs in each row, with a cell for each day."""
    return [
        HeatmapRow(
            name, [build_heatmap_cell(f"{name}, {format_day_label(day)}", cell) for day, cell in zip(days, cells)]
        )
        for name, cells in several.items()
    ]


def build_hour_cell(day: date, hour: int, cell: UsageCell, come: bool) -> HeatmapCell:
    """An hour."""
    when = f"{format_day_label(day)} {hour:02}:00"
    if not cell.hour_count:
        return HeatmapCell("", "", f"{when}: the clocks left this hour out")
    if not come and cell.share is None:
        return HeatmapCell("", "", f"{when}: still to come")
    if cell.hour_count > 1:
        when = f"{when} (this hour came twice)"
    return build_heatmap_cell(when, cell)


def build_heatmap_cell(when: str, cell: UsageCell) -> HeatmapCell:
    """An hour or a day, with GPUs on the average of the minutes that were seen of it."""
    if cell.share is None:
        return HeatmapCell("", UNKNOWN, f"{when}: {NO_DATA}")
    gpus, of = (f"{one / 60 / cell.hour_count:.1f}" for one in (cell.taken, cell.seen))
    return HeatmapCell(
        f"t{round(cell.share / 100 * TINT_COUNT)}",
        f"{cell.share:.0f}",
        f"{when}: {cell.share:.0f} % taken, {gpus} of {of} GPUs on average",
    )


def format_day_label(day: date) -> str:
    """`Mon 16 Nov`."""
    return f"{DAY_NAMES[day.weekday()]} {day.day} {MONTH_NAMES[day.month - 1]}"
