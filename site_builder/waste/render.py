"""What is wasted: a section of the board, a table for terminals, and waste.json for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.html import Html, load_template, render_epoch
from site_builder.core.names import parse_gpu_index
from site_builder.core.terminal_text import fit_text, flatten_text, measure_width, truncate_text
from site_builder.waste.model import WasteItem, WasteLine, WasteReport, group_waste_items, sum_waste_hours

WASTE_SCHEMA = 1
# Lines on the board; `gpuboard waste` has all.
MAX_BOARD_LINES = 25
TABLE_HEADER = ("GPU-hours", "GPU", "kind", "since", "who")
MIN_NAME_WIDTH, MAX_NAME_WIDTH = 8, 24
COLUMN_GAP = "  "
UNKNOWN = "?"


def format_waste_hours(value: float | None) -> str:
    """`312`, `7.5`, `0.4`; `?` where nobody can know."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


# On the board


def format_waste_summary(found: WasteReport | None) -> str:
    """For the bar, where only a word has room; nothing where nothing is wasted."""
    if not found or not found.items:
        return ""
    return f"{format_waste_hours(sum_waste_hours(found.items)[0])} GPU-hours wasted"


def render_waste_section(found: WasteReport | None, now: Now) -> bytes:
    """The worst; nothing where nothing is wasted."""
    if not found or not found.items:
        return b""
    total, unknown = sum_waste_hours(found.items)
    told = group_waste_items(found.items)
    html = load_template("waste.html").render(
        hours=format_waste_hours(total),
        short=format_waste_summary(found),
        unknown=unknown,
        lines=[
            (one.first_item, format_waste_hours(one.hours), one.gpu_label, render_waste_time(one.first_item, now))
            for one in told[:MAX_BOARD_LINES]
        ],
        names=formatting.join_names,
        more=max(0, len(told) - MAX_BOARD_LINES),
    )
    return html.encode()


def render_waste_time(one: WasteItem, now: Now) -> Html:
    """Since when, and until when if it is over."""
    if one.since is None:
        return Html("")
    if one.until is None:
        return Html(f"since {render_epoch(one.since, now)}")
    return Html(f"{render_epoch(one.since, now)} to {render_epoch(one.until, now)}")


# For programs


def render_waste_json(found: WasteReport) -> bytes:
    """All of it; docs/waste.schema.json has the form."""
    total, unknown = sum_waste_hours(found.items)
    told = {
        "schema": WASTE_SCHEMA,
        "built": found.built_at,
        "every": found.build_interval_s,
        "history_since": found.history_since,
        "trouble": found.problem,
        "gpu_hours": total,
        "hours_not_known": unknown,
        "hosts": found.hosts,
        "items": [waste_item_to_json(one) for one in found.items],
    }
    return orjson.dumps(told, option=orjson.OPT_INDENT_2)


def waste_item_to_json(one: WasteItem) -> dict[str, Any]:
    """A line."""
    return {
        "kind": one.kind,
        "host": one.host,
        "index": parse_gpu_index(one.index),
        **({"place": one.index} if isinstance(one.index, str) else {}),
        "uuid": None if one.gpu_key.startswith("index ") else one.gpu_key,
        "model": one.model,
        "who": one.people,
        "since": one.since,
        "until": one.until,
        "gpu_hours": one.hours,
        "pids": one.pids,
        "what": one.what,
        "do": one.advice,
        "command": one.command or None,
    }


# In a terminal


def render_waste_table(items: Sequence[WasteItem], now: Now, across: int | None = None) -> list[str]:
    """Each in two lines or more, for a terminal that is so many cells across; with None nothing is cut."""
    told = group_waste_items(items)
    rows = [format_waste_row(one, now) for one in told]
    widths = [max(map(measure_width, column)) for column in zip(TABLE_HEADER, *rows)]
    if across is not None:
        widths[1] = min(widths[1], max(MIN_NAME_WIDTH, min(MAX_NAME_WIDTH, across // 4)))
    found = [align_waste_cells(TABLE_HEADER, widths, across)]
    for one, cells in zip(told, rows):
        found.append(align_waste_cells(cells, widths, across))
        found += format_waste_advice(one.first_item, len(COLUMN_GAP) + widths[0], across)
    total, unknown = sum_waste_hours(items)
    found += ["", align_waste_cells((format_waste_hours(total), "together"), [widths[0], len("together")], across)]
    if unknown:
        more = "for 1 more nobody can know" if unknown == 1 else f"for {unknown} more nobody can know"
        found.append(align_waste_cells((UNKNOWN, more), [widths[0], measure_width(more)], across))
    return found


def format_waste_row(line: WasteLine, now: Now) -> tuple[str, ...]:
    """The cells of a line."""
    one = line.first_item
    since = UNKNOWN if one.since is None else formatting.format_moment(datetime.fromtimestamp(one.since, now.zone), now)
    return (
        format_waste_hours(line.hours),
        flatten_text(line.gpu_label),
        one.kind,
        since,
        flatten_text(formatting.join_names(one.people)),
    )


def align_waste_cells(cells: Sequence[str], widths: Sequence[int], across: int | None) -> str:
    """Cells in columns, the hours at the right of theirs."""
    first, *rest = cells
    line = COLUMN_GAP.join(
        [fit_text(first, widths[0], right=True), *(fit_text(text, one) for text, one in zip(rest, widths[1:]))]
    )
    return line.rstrip() if across is None else truncate_text(line.rstrip(), across)


def format_waste_advice(one: WasteItem, indent: int, across: int | None) -> Iterator[str]:
    """What it is and what to do, in as many lines as that takes; a command is never cut, so that it can be copied."""
    told = flatten_text(f"{one.model}: {one.what}. {one.advice}")
    room = None if across is None else across - indent
    for line in [told] if room is None else textwrap.wrap(told, max(20, room)):
        yield " " * indent + line
    if one.command:
        yield " " * (indent + 2) + flatten_text(one.command)
