"""Render what is wasted: a section of the board, waste.json, and a table for terminals."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime

import orjson

from site_builder.core.clock import Now
from site_builder.core.formatting import format_moment, join_names
from site_builder.core.html import load_compact_template, render_epoch
from site_builder.core.names import parse_gpu_index
from site_builder.core.terminal_text import fit_text, flatten_text, measure_width, truncate_text
from site_builder.waste.rules import (
    WASTE_SCHEMA,
    WasteItem,
    WasteReport,
    group_waste_items,
    sum_waste_hours,
)

# Lines on the board; `gpuboard waste` lists all.
MAX_BOARD_LINES = 25
TABLE_HEADER = ("GPU-hours", "GPU", "kind", "since", "who")
MIN_NAME_WIDTH, MAX_NAME_WIDTH = 8, 24
COLUMN_GAP = "  "
UNKNOWN = "?"


def format_waste_hours(hours: float | None) -> str:
    """Format `312`, `7.5` or `0.4`; `?` if unknown."""
    if hours is None:
        return UNKNOWN
    return f"{hours:,.0f}" if hours >= 9.95 else f"{hours:.1f}"


# On the board


def format_waste_summary(report: WasteReport | None) -> str:
    """Format the sum for the bar at the top; empty if nothing is wasted."""
    if not report or not report.items:
        return ""
    return f"{format_waste_hours(sum_waste_hours(report.items)[0])} GPU-hours wasted"


def render_waste_section(report: WasteReport | None, now: Now) -> bytes:
    """Render the worst items; empty if nothing is wasted."""
    if not report or not report.items:
        return b""
    total, unknown = sum_waste_hours(report.items)
    lines = group_waste_items(report.items)
    html = load_compact_template("waste.html").render(
        hours=format_waste_hours(total),
        short=format_waste_summary(report),
        unknown=unknown,
        lines=lines[:MAX_BOARD_LINES],
        format_hours=format_waste_hours,
        render_epoch=lambda epoch: render_epoch(epoch, now),
        names=join_names,
        more=max(0, len(lines) - MAX_BOARD_LINES),
    )
    return html.encode()


# For programs


def render_waste_json(report: WasteReport) -> bytes:
    """Render waste.json; docs/waste.schema.json describes it."""
    total, unknown = sum_waste_hours(report.items)
    document = {
        "schema": WASTE_SCHEMA,
        "built": report.built_at,
        "every": report.build_interval_s,
        "history_since": report.history_since,
        "trouble": report.problem,
        "gpu_hours": total,
        "hours_not_known": unknown,
        "hosts": report.hosts,
        "items": [
            {
                "kind": item.kind,
                "host": item.host,
                "index": parse_gpu_index(item.index),
                **({"place": item.index} if isinstance(item.index, str) else {}),
                "uuid": None if item.gpu_key.startswith("index ") else item.gpu_key,
                "model": item.model,
                "who": item.people,
                "since": item.since,
                "until": item.until,
                "gpu_hours": item.hours,
                "pids": item.pids,
                "what": item.what,
                "do": item.advice,
                "command": item.command or None,
            }
            for item in report.items
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


# In a terminal


def render_waste_table(items: Sequence[WasteItem], now: Now, width: int | None = None) -> list[str]:
    """Render each line of waste in two lines or more; without a width nothing is cut."""
    waste_lines = group_waste_items(items)
    rows = [
        (
            format_waste_hours(line.hours),
            flatten_text(line.gpu_label),
            line.first_item.kind,
            UNKNOWN
            if line.first_item.since is None
            else format_moment(datetime.fromtimestamp(line.first_item.since, now.zone), now),
            flatten_text(join_names(line.first_item.people)),
        )
        for line in waste_lines
    ]
    widths = [max(map(measure_width, column)) for column in zip(TABLE_HEADER, *rows)]
    if width is not None:
        widths[1] = min(widths[1], max(MIN_NAME_WIDTH, min(MAX_NAME_WIDTH, width // 4)))
    lines = [align_waste_cells(TABLE_HEADER, widths, width)]
    for line, cells in zip(waste_lines, rows):
        lines.append(align_waste_cells(cells, widths, width))
        lines += format_waste_advice(line.first_item, len(COLUMN_GAP) + widths[0], width)
    total, unknown = sum_waste_hours(items)
    lines += ["", align_waste_cells((format_waste_hours(total), "together"), [widths[0], len("together")], width)]
    if unknown:
        note = f"for {unknown} more nobody can know"
        lines.append(align_waste_cells((UNKNOWN, note), [widths[0], measure_width(note)], width))
    return lines


def align_waste_cells(cells: Sequence[str], widths: Sequence[int], width: int | None) -> str:
    """Put cells into columns, the first of them aligned right."""
    aligned = [fit_text(cell, room, right=position == 0) for position, (cell, room) in enumerate(zip(cells, widths))]
    line = COLUMN_GAP.join(aligned).rstrip()
    return line if width is None else truncate_text(line, width)


def format_waste_advice(item: WasteItem, indent: int, width: int | None) -> Iterator[str]:
    """Wrap what it is and what to do; a command is never cut, so that it can be copied."""
    text = flatten_text(f"{item.model}: {item.what}. {item.advice}")
    for line in [text] if width is None else textwrap.wrap(text, max(20, width - indent)):
        yield " " * indent + line
    if item.command:
        yield " " * (indent + 2) + flatten_text(item.command)
