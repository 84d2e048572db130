"""Who had how much, as `gpuboard stats` tells it: a table, CSV for spreadsheets, and JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, NamedTuple

import orjson

from site_builder.core import formatting
from site_builder.core.terminal_text import fit_text, flatten_text, measure_width, truncate_text
from site_builder.usage.totals import UsageRow, UsageSums, UsageTable, compute_percent_seen, units_to_hours

STATS_SCHEMA = 1
PERSON_COLUMNS = ("used", "held", "booked", "unused")
PLACE_COLUMNS = (*PERSON_COLUMNS, "free", "seen")
# What is added to what people used, up to all that was seen.
UNUSED_PART_LABELS = {
    "unowned": "owner not known",
    "booked_idle": "booked, nobody on it",
    "free": "free",
    "unclear": "lost or not clear",
}
MIN_NAME_WIDTH = 10
COLUMN_GAP = "  "
# From so many GPU-hours on the parts of one do not matter, and would not fit.
MANY_HOURS = 100_000
# Digits behind the point, for programs: a person's share of a minute is exact to the last of them.
EXACT_DIGITS = 6


class UsageStats(NamedTuple):
    """What is to be told, and of which days: `last` counts too."""

    table: UsageTable
    first: date
    last: date
    zone: str


# The table


def render_stats_table(told: UsageStats, across: int | None = None) -> list[str]:
    """The lines, for a terminal that is so many cells across, or with None for a file, where nothing is cut."""
    usage, total = told.table, told.table.total
    columns = PERSON_COLUMNS if usage.by == "person" else PLACE_COLUMNS
    digits = 0 if units_to_hours(total.seen) >= MANY_HOURS else 1
    rows = [(flatten_text(row.name), format_stats_cells(row.sums, columns, digits)) for row in usage.rows]
    foot = [("together", format_stats_cells(total, columns, digits))]
    head = (usage.by, (*columns, "of all") if columns is PLACE_COLUMNS else columns)
    lines = [
        format_stats_title(told),
        "",
        *align_stats_rows([head, *rows, *foot], across),
        "",
        *align_stats_rows(list(build_remainder_rows(total, digits)), across),
    ]
    return lines if across is None else [truncate_text(one, across) for one in lines]


def build_remainder_rows(total: UsageSums, digits: int) -> Iterator[tuple[str, tuple[str]]]:
    """What is added to what people used, up to all that was seen; and what was not."""
    for name, word in UNUSED_PART_LABELS.items():
        yield f"+ {word}", (format_unit_hours(getattr(total, name), digits),)
    yield "= seen", (format_unit_hours(total.seen, digits),)
    if total.conflict:
        yield "of it in conflict", (format_unit_hours(total.conflict, digits),)
    yield "not seen", (format_unit_hours(total.unseen, digits),)


def align_stats_rows(rows: Sequence[tuple[str, Sequence[str]]], across: int | None) -> list[str]:
    """Lines of cells side by side; names are cut where there is no room for them."""
    widths = [max(map(len, column)) for column in zip(*(several for _, several in rows))]
    room = max(measure_width(name) for name, _ in rows)
    if across is not None:
        room = min(room, max(MIN_NAME_WIDTH, across - sum(len(COLUMN_GAP) + one for one in widths)))
    return [format_stats_line(name, several, room, widths) for name, several in rows]


def format_stats_title(told: UsageStats) -> str:
    """Of what it tells, and how much of that was seen."""
    seen = compute_percent_seen(told.table.total)
    return f"GPU-hours, {format_day_range(told.first, told.last)}" + (
        "" if seen is None else f"; seen {seen} % of the time"
    )


def format_day_range(first: date, last: date) -> str:
    """`3 Nov 2026`, or `1 to 16 Nov 2026`, or `28 Oct 2026 to 3 Nov 2026`."""
    end = f"{last.day} {formatting.MONTH_NAMES[last.month - 1]} {last.year}"
    if first == last:
        return end
    if (first.year, first.month) == (last.year, last.month):
        return f"{first.day} to {end}"
    return f"{first.day} {formatting.MONTH_NAMES[first.month - 1]} {first.year} to {end}"


def format_stats_cells(sums: UsageSums, columns: Sequence[str], digits: int) -> tuple[str, ...]:
    """The numbers of a line."""
    found = tuple(format_unit_hours(getattr(sums, name), digits) for name in columns)
    return found if columns is PERSON_COLUMNS else (*found, format_seen_share(sums))


def format_seen_share(sums: UsageSums) -> str:
    """How much of all was seen."""
    seen = compute_percent_seen(sums)
    return "?" if seen is None else f"{seen} %"


def format_unit_hours(units: int, digits: int) -> str:
    """GPU-hours."""
    return f"{units_to_hours(units):.{digits}f}"


def format_stats_line(name: str, several: Sequence[str], room: int, widths: Sequence[int]) -> str:
    """Cells side by side, the numbers at the right."""
    return COLUMN_GAP.join([fit_text(name, room), *(text.rjust(one) for text, one in zip(several, widths))]).rstrip()


# For spreadsheets and programs


def render_stats_csv(told: UsageStats) -> Iterator[str]:
    """Its lines. By person, those of nobody follow: the sum of `hours` but for `unseen` is all that was seen."""
    usage = told.table
    if usage.by != "person":
        rows: Iterator[tuple[formatting.CsvCell, ...]] = (
            (row.name, *sums_to_hours(row.sums).values()) for row in usage.rows
        )
        yield from formatting.format_csv_lines((usage.by, *UsageSums._fields), rows)
        return
    yield from formatting.format_csv_lines(
        ("person", "kind", "hours", "held", "booked", "unused"), build_person_csv_rows(usage)
    )


def build_person_csv_rows(usage: UsageTable) -> Iterator[tuple[formatting.CsvCell, ...]]:
    """Each person, and then what was nobody's."""
    for row in usage.rows:
        yield (row.name, "person", *(sums_to_hours(row.sums)[name] for name in PERSON_COLUMNS))
    total = sums_to_hours(usage.total)
    for name in (*UNUSED_PART_LABELS, "unseen"):
        yield "", name, total[name], None, None, None


def render_stats_json(told: UsageStats) -> bytes:
    """All of it; docs/stats.schema.json has the form."""
    usage = told.table
    found = {
        "schema": STATS_SCHEMA,
        "since": told.first.isoformat(),
        "until": told.last.isoformat(),
        "zone": told.zone,
        "by": usage.by,
        "rows": [usage_row_to_json(row, usage.by) for row in usage.rows],
        "total": sums_to_hours(usage.total),
        "seen_percent": compute_percent_seen(usage.total),
    }
    return orjson.dumps(found, option=orjson.OPT_INDENT_2)


def usage_row_to_json(row: UsageRow, by: str) -> dict[str, Any]:
    """A line."""
    sums = sums_to_hours(row.sums)
    if by == "person":
        return {"name": row.name, "names": row.names, **{name: sums[name] for name in PERSON_COLUMNS}}
    return {"name": row.name, **sums}


def sums_to_hours(sums: UsageSums) -> dict[str, float]:
    """GPU-hours."""
    return {name: round(units_to_hours(units), EXACT_DIGITS) for name, units in sums._asdict().items()}
