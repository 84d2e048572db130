"""Render wasted GPU time: on the board, on the fleet page, in waste.json (and parse it), and for terminals."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import orjson

from site_builder.client.model import suggest_board_update
from site_builder.core import terminal_text
from site_builder.core.clock import Now
from site_builder.core.formatting import format_moment, format_names
from site_builder.core.html import load_compact_html_template, render_epoch_html
from site_builder.core.names import gpu_number_to_index, is_host_name
from site_builder.core.records import as_clean_text, as_integer, as_list, as_number
from site_builder.core.terminal_text import fit_text, flatten_terminal_text, measure_width, truncate_terminal_text
from site_builder.history.idle_runs import build_fleet_gpu_key
from site_builder.usage.totals import PastWasteRow
from site_builder.waste.rules import (
    ENDED_BOOKING_DAYS,
    MIN_UNUSED_DAYS,
    WASTE_FILE,
    WASTE_KINDS,
    WASTE_SCHEMA,
    WasteItem,
    WasteReport,
)

# Lines on the board; `gpuboard waste` lists all.
MAX_BOARD_LINES = 25
TABLE_HEADER = ("GPU-hours", "GPU", "kind", "since", "who")
MIN_NAME_WIDTH, MAX_NAME_WIDTH = 8, 24
COLUMN_GAP = "  "
UNKNOWN = "?"
NOT_A_WASTE_FILE = f"is not the {WASTE_FILE} of a gpuboard"


class WasteLine(NamedTuple):
    """GPUs of a host that are wasted in the same way; `hours` is their sum."""

    first_item: WasteItem
    hours: float | None
    gpu_label: str


def sum_waste_hours(items: Iterable[WasteItem]) -> tuple[float, int]:
    """Return the sum of the known GPU-hours, and the number of items without."""
    hours = [item.hours for item in items]
    return round(sum(value for value in hours if value is not None), 2), hours.count(None)


def group_waste_items(items: Iterable[WasteItem]) -> list[WasteLine]:
    """Join items that differ in nothing but the GPU into one line, the most GPU-hours first."""
    groups: dict[tuple[object, ...], list[WasteItem]] = defaultdict(list)
    for item in items:
        groups[item._replace(gpu_key="", index=None, hours=None), item.hours is None].append(item)
    lines = []
    for group in groups.values():
        numbers = ",".join("?" if item.index is None else str(item.index) for item in group)
        hours = None if group[0].hours is None else sum_waste_hours(group)[0]
        lines.append(WasteLine(group[0], hours, f"{group[0].host}:{numbers}"))
    return sorted(lines, key=lambda line: (line.hours is None, -(line.hours or 0)))


def format_waste_hours(hours: float | None) -> str:
    """Format `312`, `7.5` or `0.4`; `?` if unknown."""
    if hours is None:
        return UNKNOWN
    return f"{hours:,.0f}" if hours >= 9.95 else f"{hours:.1f}"


# On the board: what somebody can act on now


def list_current_waste(report: WasteReport | None) -> list[WasteItem]:
    """List the GPUs that somebody keeps from others now, without ended bookings and GPUs that are free."""
    return [item for item in report.items if item.until is None and item.kind != "vacant"] if report else []


def format_waste_summary(report: WasteReport | None) -> str:
    """Format the number of GPUs for the bar at the top: `4 GPUs idle`; empty if there is none."""
    return describe_current_waste(list_current_waste(report)).partition(",")[0]


def describe_current_waste(items: Iterable[WasteItem]) -> str:
    """Describe current waste: `4 GPUs idle, 1 to check`; GPUs to check are those whose use is unknown."""
    idle_by_gpu: dict[str, bool] = {}
    for item in items:
        idle_by_gpu[build_fleet_gpu_key(item.host, item.gpu_key)] = item.hours is not None or item.kind == "booking"
    idle_count, check_count = (list(idle_by_gpu.values()).count(is_idle) for is_idle in (True, False))
    parts = [f"{count} {words}" for count, words in ((idle_count, "idle"), (check_count, "to check")) if count]
    if not parts:
        return ""
    first_count, words = parts[0].split(" ", 1)
    return ", ".join([f"{first_count} {'GPU' if first_count == '1' else 'GPUs'} {words}", *parts[1:]])


def render_waste_section(report: WasteReport | None, now: Now) -> bytes:
    """Render what is idle now, and whom to ask; empty if there is nothing."""
    items = list_current_waste(report)
    if not items:
        return b""
    lines = group_waste_items(items)
    html = load_compact_html_template("waste.html").render(
        title=describe_current_waste(items),
        short=format_waste_summary(report),
        lines=lines[:MAX_BOARD_LINES],
        render_epoch=lambda epoch: render_epoch_html(epoch, now),
        names=format_names,
        more=max(0, len(lines) - MAX_BOARD_LINES),
    )
    return html.encode()


# On the fleet page: sums with their period


def list_past_waste(report: WasteReport | None, now: Now) -> list[tuple[str, list[PastWasteRow]]]:
    """List bookings that ended unused and GPUs that nobody uses, each with a title that has their sum."""
    tables = []
    kinds = (
        ("booking", f"Booked, never used, ended in the last {ENDED_BOOKING_DAYS} days"),
        ("vacant", f"Not used for {MIN_UNUSED_DAYS} days or longer"),
    )
    for kind, title in kinds:
        items = [item for item in report.items if item.kind == kind] if report else []
        items = [item for item in items if kind != "booking" or item.until is not None]
        if items:
            rows = [
                PastWasteRow(
                    line.gpu_label,
                    line.first_item.model,
                    format_names(line.first_item.people),
                    " – ".join(
                        format_moment(datetime.fromtimestamp(moment, now.zone), now)
                        for moment in (line.first_item.since, line.first_item.until)
                        if moment is not None
                    ),
                    format_waste_hours(line.hours),
                    line.first_item.advice,
                )
                for line in group_waste_items(items)[:MAX_BOARD_LINES]
            ]
            hours = format_waste_hours(sum_waste_hours(items)[0])
            tables.append((f"{title}: {hours} GPU-hours", rows))
    return tables


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
                "index": gpu_number_to_index(item.index),
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


def parse_waste_json(content: bytes) -> tuple[WasteReport | None, str]:
    """Parse waste.json, or say why that is impossible; items of an unknown form are left out."""
    try:
        document = orjson.loads(content)
    except ValueError:
        return None, NOT_A_WASTE_FILE
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("items"), list)
        or type(document.get("built")) is not int
    ):
        return None, NOT_A_WASTE_FILE
    schema = document.get("schema")
    if schema != WASTE_SCHEMA:
        shown = terminal_text.clean_text(str(schema))[:20]
        return None, f"has schema {shown}, but {WASTE_SCHEMA} is needed here: {suggest_board_update(schema)}"
    report = WasteReport(
        built_at=document["built"],
        build_interval_s=as_integer(document.get("every")) or 0,
        items=tuple(item for fields in document["items"] if (item := parse_waste_json_item(fields))),
        hosts=tuple(host for host in as_list(document.get("hosts")) if isinstance(host, str) and is_host_name(host)),
        history_since=as_integer(document.get("history_since")),
        problem=as_clean_text(document.get("trouble")),
    )
    return report, ""


def parse_waste_json_item(fields: object) -> WasteItem | None:
    if not isinstance(fields, dict):
        return None
    kind, host = fields.get("kind"), fields.get("host")
    kind = "vacant" if kind == "unused" else kind  # as an older board calls it
    number = as_clean_text(fields.get("place")) or as_integer(fields.get("index"))
    if kind not in WASTE_KINDS or not isinstance(host, str) or not is_host_name(host):
        return None
    return WasteItem(
        kind=str(kind),
        host=host,
        gpu_key=as_clean_text(fields.get("uuid")) or f"index {number}",
        index=number,
        model=as_clean_text(fields.get("model")) or "GPU",
        people=tuple(name for value in as_list(fields.get("who")) if (name := as_clean_text(value))),
        since=as_integer(fields.get("since")),
        until=as_integer(fields.get("until")),
        hours=as_number(fields.get("gpu_hours")),
        pids=tuple(pid for value in as_list(fields.get("pids")) if (pid := as_integer(value)) is not None),
        what=as_clean_text(fields.get("what")) or "?",
        advice=as_clean_text(fields.get("do")) or "",
        command=as_clean_text(fields.get("command")) or "",
    )


# In a terminal


def render_waste_table(items: Sequence[WasteItem], now: Now, width: int | None = None) -> list[str]:
    """Render each line of waste in two lines or more; without a width nothing is cut."""
    waste_lines = group_waste_items(items)
    rows = [
        (
            format_waste_hours(line.hours),
            flatten_terminal_text(line.gpu_label),
            line.first_item.kind,
            UNKNOWN
            if line.first_item.since is None
            else format_moment(datetime.fromtimestamp(line.first_item.since, now.zone), now),
            flatten_terminal_text(format_names(line.first_item.people)),
        )
        for line in waste_lines
    ]
    widths = [max(map(measure_width, column)) for column in zip(TABLE_HEADER, *rows)]
    if width is not None:
        widths[1] = min(widths[1], max(MIN_NAME_WIDTH, min(MAX_NAME_WIDTH, width // 4)))
    lines = [align_waste_cells(TABLE_HEADER, widths, width)]
    for line, cells in zip(waste_lines, rows):
        lines.append(align_waste_cells(cells, widths, width))
        item, indent = line.first_item, len(COLUMN_GAP) + widths[0]
        text = flatten_terminal_text(f"{item.model}: {item.what}. {item.advice}")
        wrapped = [text] if width is None else textwrap.wrap(text, max(20, width - indent))
        lines += [" " * indent + wrapped_line for wrapped_line in wrapped]
        if item.command:  # it is never cut, so that it can be copied
            lines.append(" " * (indent + 2) + flatten_terminal_text(item.command))
    total, unknown = sum_waste_hours(items)
    lines += ["", align_waste_cells((format_waste_hours(total), "total"), [widths[0], len("total")], width)]
    if unknown:
        note = f"{unknown} more of unknown length"
        lines.append(align_waste_cells((UNKNOWN, note), [widths[0], measure_width(note)], width))
    return lines


def align_waste_cells(cells: Sequence[str], widths: Sequence[int], width: int | None) -> str:
    """Put cells into columns, the first of them aligned right."""
    aligned = [fit_text(cell, room, right=position == 0) for position, (cell, room) in enumerate(zip(cells, widths))]
    line = COLUMN_GAP.join(aligned).rstrip()
    return line if width is None else truncate_terminal_text(line, width)
