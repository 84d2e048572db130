"""Who had how much, as `gpuboard stats` tells it: a table, CSV for spreadsheets, and JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, NamedTuple

import orjson

from site_builder.core import csv_output, formatting
from site_builder.core.terminal_text import cut, fit, one_line, width
from site_builder.usage.totals import Row, Sums, Usage, hours, percent_seen

SCHEMA = 1
OF_PERSON = ("used", "held", "booked", "unused")
OF_PLACE = (*OF_PERSON, "free", "seen")
# What is added to what people used, up to all that was seen.
REST = {
    "unowned": "owner not known",
    "promised": "booked, nobody on it",
    "free": "free",
    "unclear": "lost or not clear",
}
LEAST_NAME = 10
GAP = "  "
# From so many GPU-hours on the parts of one do not matter, and would not fit.
MANY = 100_000
# Digits behind the point, for programs: a person's share of a minute is exact to the last of them.
DIGITS = 6


class Told(NamedTuple):
    """What is to be told, and of which days: `last` counts too."""

    usage: Usage
    first: date
    last: date
    zone: str


# The table


def table(told: Told, across: int | None = None) -> list[str]:
    """The lines, for a terminal that is so many cells across, or with None for a file, where nothing is cut."""
    usage, total = told.usage, told.usage.total
    columns = OF_PERSON if usage.by == "person" else OF_PLACE
    digits = 0 if hours(total.seen) >= MANY else 1
    rows = [(one_line(row.name), cells(row.sums, columns, digits)) for row in usage.rows]
    foot = [("together", cells(total, columns, digits))]
    head = (usage.by, (*columns, "of all") if columns is OF_PLACE else columns)
    lines = [title(told), "", *aligned([head, *rows, *foot], across), "", *aligned(list(rest(total, digits)), across)]
    return lines if across is None else [cut(one, across) for one in lines]


def rest(total: Sums, digits: int) -> Iterator[tuple[str, tuple[str]]]:
    """What is added to what people used, up to all that was seen; and what was not."""
    for name, word in REST.items():
        yield f"+ {word}", (number(getattr(total, name), digits),)
    yield "= seen", (number(total.seen, digits),)
    if total.violated:
        yield "of it violated", (number(total.violated, digits),)
    yield "not seen", (number(total.unseen, digits),)


def aligned(rows: Sequence[tuple[str, Sequence[str]]], across: int | None) -> list[str]:
    """Lines of cells side by side; names are cut where there is no room for them."""
    widths = [max(map(len, column)) for column in zip(*(several for _, several in rows))]
    room = max(width(name) for name, _ in rows)
    if across is not None:
        room = min(room, max(LEAST_NAME, across - sum(len(GAP) + one for one in widths)))
    return [line(name, several, room, widths) for name, several in rows]


def title(told: Told) -> str:
    """Of what it tells, and how much of that was seen."""
    seen = percent_seen(told.usage.total)
    return f"GPU-hours, {days(told.first, told.last)}" + ("" if seen is None else f"; seen {seen} % of the time")


def days(first: date, last: date) -> str:
    """`3 Nov 2026`, or `1 to 16 Nov 2026`, or `28 Oct 2026 to 3 Nov 2026`."""
    end = f"{last.day} {formatting.MONTHS[last.month - 1]} {last.year}"
    if first == last:
        return end
    if (first.year, first.month) == (last.year, last.month):
        return f"{first.day} to {end}"
    return f"{first.day} {formatting.MONTHS[first.month - 1]} {first.year} to {end}"


def cells(sums: Sums, columns: Sequence[str], digits: int) -> tuple[str, ...]:
    """The numbers of a line."""
    found = tuple(number(getattr(sums, name), digits) for name in columns)
    return found if columns is OF_PERSON else (*found, percent(sums))


def percent(sums: Sums) -> str:
    """How much of all was seen."""
    seen = percent_seen(sums)
    return "?" if seen is None else f"{seen} %"


def number(units: int, digits: int) -> str:
    """GPU-hours."""
    return f"{hours(units):.{digits}f}"


def line(name: str, several: Sequence[str], room: int, widths: Sequence[int]) -> str:
    """Cells side by side, the numbers at the right."""
    return GAP.join([fit(name, room), *(text.rjust(one) for text, one in zip(several, widths))]).rstrip()


# For spreadsheets and programs


def csv(told: Told) -> Iterator[str]:
    """Its lines. By person, those of nobody follow: the sum of `hours` but for `unseen` is all that was seen."""
    usage = told.usage
    if usage.by != "person":
        rows: Iterator[tuple[csv_output.Cell, ...]] = ((row.name, *exact(row.sums).values()) for row in usage.rows)
        yield from csv_output.lines((usage.by, *Sums._fields), rows)
        return
    yield from csv_output.lines(("person", "kind", "hours", "held", "booked", "unused"), people(usage))


def people(usage: Usage) -> Iterator[tuple[csv_output.Cell, ...]]:
    """Each person, and then what was nobody's."""
    for row in usage.rows:
        yield (row.name, "person", *(exact(row.sums)[name] for name in OF_PERSON))
    total = exact(usage.total)
    for name in (*REST, "unseen"):
        yield "", name, total[name], None, None, None


def json(told: Told) -> bytes:
    """All of it; docs/stats.schema.json has the form."""
    usage = told.usage
    found = {
        "schema": SCHEMA,
        "since": told.first.isoformat(),
        "until": told.last.isoformat(),
        "zone": told.zone,
        "by": usage.by,
        "rows": [row_of(row, usage.by) for row in usage.rows],
        "total": exact(usage.total),
        "seen_percent": percent_seen(usage.total),
    }
    return orjson.dumps(found, option=orjson.OPT_INDENT_2)


def row_of(row: Row, by: str) -> dict[str, Any]:
    """A line."""
    sums = exact(row.sums)
    if by == "person":
        return {"name": row.name, "names": row.names, **{name: sums[name] for name in OF_PERSON}}
    return {"name": row.name, **sums}


def exact(sums: Sums) -> dict[str, float]:
    """GPU-hours."""
    return {name: round(hours(units), DIGITS) for name, units in sums._asdict().items()}
