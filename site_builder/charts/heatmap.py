"""A week as a table of hours: how much of the fleet was taken in each. The number stands in its cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import NamedTuple

from site_builder.core.formatting import DAYS, MONTHS
from site_builder.usage.trends import HOURS, Cell

# So many tints from nothing to all.
TINTS = 10
HOUR_NAMES = [f"{hour:02}" for hour in range(HOURS)]
NO_DATA, UNKNOWN = "no data", "–"


class CellTexts(NamedTuple):
    """A cell as the template takes it; `tint` is empty where nothing was seen."""

    tint: str
    text: str
    title: str


class RowTexts(NamedTuple):
    """A day, or what else has a row."""

    name: str
    cells: Sequence[CellTexts]


def rows(days: Sequence[date], cells: Sequence[Sequence[Cell]], until: datetime | None = None) -> list[RowTexts]:
    """A week, with a day in each row; `until` is up to when it has come, by the clock of the lab."""
    end = until.replace(tzinfo=None) if until else datetime.max
    found = []
    for day, row in zip(days, cells):
        start = datetime.combine(day, datetime.min.time())
        come = [start.replace(hour=hour) < end for hour in range(HOURS)]
        texts = [hour_texts(day, hour, row[hour], come[hour]) for hour in range(HOURS)]
        found.append(RowTexts(day_name(day), texts))
    return found


def by_day(several: Mapping[str, Sequence[Cell]], days: Sequence[date]) -> list[RowTexts]:
    """Some GPUs in each row, with a cell for each day."""
    return [
        RowTexts(name, [cell_texts(f"{name}, {day_name(day)}", cell) for day, cell in zip(days, cells)])
        for name, cells in several.items()
    ]


def hour_texts(day: date, hour: int, cell: Cell, come: bool) -> CellTexts:
    """An hour."""
    when = f"{day_name(day)} {hour:02}:00"
    if not cell.came:
        return CellTexts("", "", f"{when}: the clocks left this hour out")
    if not come and cell.share is None:
        return CellTexts("", "", f"{when}: still to come")
    if cell.came > 1:
        when = f"{when} (this hour came twice)"
    return cell_texts(when, cell)


def cell_texts(when: str, cell: Cell) -> CellTexts:
    """An hour or a day, with GPUs on the average of the minutes that were seen of it."""
    if cell.share is None:
        return CellTexts("", UNKNOWN, f"{when}: {NO_DATA}")
    gpus, of = (f"{one / 60 / cell.came:.1f}" for one in (cell.taken, cell.seen))
    return CellTexts(
        f"t{round(cell.share / 100 * TINTS)}",
        f"{cell.share:.0f}",
        f"{when}: {cell.share:.0f} % taken, {gpus} of {of} GPUs on average",
    )


def day_name(day: date) -> str:
    """`Mon 16 Nov`."""
    return f"{DAYS[day.weekday()]} {day.day} {MONTHS[day.month - 1]}"
