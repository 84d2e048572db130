"""Render a fleet as a table or JSON."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from site_builder.client.model import Fleet, FleetGpu, FleetHost
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.terminal_text import ELLIPSIS, fit_text, measure_width, truncate_terminal_text
from site_builder.fleet.status_json import STATUS_SCHEMA, gpu_to_status_json

STATE_MARKS = {"free": "[ ]", "busy": "[~]", "held": "[-]", "booked": "[B]"}
TROUBLE_MARK = "[!]"
# The state of a GPU with instances, which have states of their own.
MIG_STATE = "mig"
# The state of a GPU that has a critical problem, though it is not in use.
TROUBLE_STATE = "faulty"
RED_CODE = "31"
STATE_COLOURS = {
    "free": "32",
    "held": "33",
    "booked": "36",
    **dict.fromkeys(("conflict", "lost", "unknown", TROUBLE_STATE), RED_CODE),
}
HEAD_COLOUR, BAD_HEAD_COLOUR = "1", "1;31"
COLUMN_TITLES = ("GPU", "type", "use", "memory", "temp", "MHz", "users", "since", "pids")
GPU, TYPE, USE, MEMORY, TEMPERATURE, CLOCK, USERS, SINCE, PIDS = range(9)
RIGHT_ALIGNED = frozenset({2, 3, 4, 5})
# The largest width of a column.
MAX_COLUMN_WIDTHS = {GPU: 10, TYPE: 30, USE: 6, MEMORY: 13, TEMPERATURE: 6, CLOCK: 6, USERS: 20, PIDS: 20}
# `RTX 2080 Ti 11 GB` is one of the longest usual types.
USUAL_TYPE_WIDTH, MIN_TYPE_WIDTH = 17, 10
WIDE_TERMINAL = 110
# Columns are narrowed, then dropped in this order, while the command has less than these widths.
PREFERRED_COMMAND_WIDTH, USEFUL_COMMAND_WIDTH, MIN_COMMAND_WIDTH = 30, 20, 10
COLUMN_DROPS = {
    CLOCK: USEFUL_COMMAND_WIDTH,
    PIDS: USEFUL_COMMAND_WIDTH,
    TEMPERATURE: USEFUL_COMMAND_WIDTH,
    SINCE: MIN_COMMAND_WIDTH,
    TYPE: MIN_COMMAND_WIDTH,
}
UNLIMITED_WIDTH = sys.maxsize  # of a file
UNKNOWN_CELL = "?"
AGE_UNITS = (
    (formatting.MINUTE, "min", "minute", 2 * formatting.HOUR),
    (formatting.HOUR, "h", "hour", 2 * formatting.DAY),
    (formatting.DAY, "d", "day", math.inf),
)
NOTE_INDENT = " " * 7
TEXT_SEPARATOR = "; "
PROGRAM_FOLDER = re.compile(r"^[^ ]*/(?=[^ /]+(?: |$))")
INTERPRETER_PATTERN = re.compile(
    r"^(?:(?:python|perl|ruby|julia)[\d.]*|(?:ba|da|z|k)?sh) (?:-[uBEIOsSv]+ )*(?:-m )?(?!-)"
)


def render_client_fleet_json(fleet: Fleet) -> bytes:
    hosts = [
        {
            "name": host.name,
            "title": host.title,
            "tags": host.tags,
            "state": host.state,
            "reason": host.reason,
            "seen": host.seen,
            "age": None if host.seen is None else max(0, fleet.built - host.seen),
            "load": host.load,
            "cpus": host.cpus,
            "memory": {"total": host.memory_total, "available": host.memory_available},
            "disks": host.disks,
            "addresses": host.addresses,
            "gpus_read": host.gpus_read,
            "gpus": client_gpus_to_json(host),
        }
        for host in fleet.hosts
    ]
    content = orjson.dumps({"schema": STATUS_SCHEMA, "built": fleet.built, "hosts": hosts})
    return orjson.dumps(orjson.loads(content), option=orjson.OPT_INDENT_2)  # orjson indents no fragments


def client_gpus_to_json(host: FleetHost) -> list[dict[str, Any]]:
    """Return the GPUs of a host, each instance within its GPU."""
    gpus: dict[object, dict[str, Any]] = {}
    for position, gpu in enumerate(host.gpus):
        content = client_gpu_to_json(gpu)
        if gpu.parent_keys:
            parent = host.find_parent(gpu)
            whole = gpus.setdefault(gpu.parent_keys, {**client_gpu_to_json(parent), "instances": []})
            whole["instances"].append({**content, "profile": gpu.profile})
        else:
            gpus[position] = {**content, "instances": []} if gpu in host.mig_gpus else content
    return list(gpus.values())


def client_gpu_to_json(gpu: FleetGpu) -> dict[str, Any]:
    place = {} if gpu.linked is None else {"numa": gpu.numa_node, "linked": gpu.linked}
    return {**gpu_to_status_json(gpu, gpu), **place}


class GpuTableRow(NamedTuple):
    """The cells of a GPU, and what follows them: notes, commands and bookings."""

    state: str
    cells: tuple[str, ...]
    notes: str
    commands: tuple[str, ...]
    booking_text: str


class ClientTableLayout(NamedTuple):
    """The shown columns with their widths, and the gap between them; `command_width` is left for the command."""

    widths: dict[int, int]
    gap: str
    command_width: int

    def measure_columns(self, first_column: int) -> int:
        """Return the width of the columns from one on."""
        return sum(width + len(self.gap) for number, width in self.widths.items() if number >= first_column)


def format_gpu_table(
    fleet: Fleet, now: Now, width: int | None = None, colour: bool = False, heads: bool = True
) -> list[str]:
    """Format the table for a terminal of this width, or with None for a file.

    Without `heads` only a host that is not fresh has a line of its own.
    """
    is_short = width is not None and width < WIDE_TERMINAL
    rows = [build_client_table_host_rows(host, now, is_short) for host in fleet.hosts]
    if fleet.users_shown:
        rows = [list(map(mark_unowned_gpu, host_rows)) for host_rows in rows]
    layout = compute_client_table_layout([row.cells for host_rows in rows for row in host_rows], width)
    lines = []
    if any(rows):
        title = truncate_terminal_text("command", layout.command_width)
        lines.append(f"{join_client_table_cells(COLUMN_TITLES, layout)}{layout.gap}{title}")
    for host, host_rows in zip(fleet.hosts, rows):
        if heads or host.state != "fresh":
            text = truncate_terminal_text(format_host_line(host), UNLIMITED_WIDTH if width is None else width)
            lines.append(colour_table_line(text, HEAD_COLOUR if host.state == "fresh" else BAD_HEAD_COLOUR, colour))
        for row in host_rows:
            row_lines = format_gpu_lines(row, layout)
            lines += [colour_table_line(text, STATE_COLOURS.get(row.state), colour) for text in row_lines]
    return lines


def colour_table_line(text: str, code: str | None, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def format_host_line(host: FleetHost) -> str:
    """Format the line above a host: `atlas · Training · load 12 / 96`, or why nothing is known of it."""
    parts = [host.name]
    if host.title and host.title != host.name:
        parts.append(host.title)
    if host.state != "fresh":
        parts.append(f"{host.state}: {host.reason}" if host.reason else host.state)
    if host.load is not None:
        load = f"{host.load[0]:.1f}" if host.load[0] < 9.95 else f"{host.load[0]:.0f}"
        parts.append(f"load {load} / {UNKNOWN_CELL if host.cpus is None else host.cpus}")
    return " · ".join(parts)


def build_client_table_host_rows(host: FleetHost, now: Now, is_short: bool) -> list[GpuTableRow]:
    """Build the rows of a host; a GPU with instances is listed above them."""
    rows = []
    mig_gpus = {gpu.label.lower(): gpu for gpu in host.mig_gpus}
    for gpu in host.gpus:
        parent = mig_gpus.pop(gpu.parent_keys[0], None) if gpu.parent_keys else None
        if parent:
            row = build_client_table_gpu_row(parent._replace(state="free", processes=(), bookings=()), now, is_short)
            notes = TEXT_SEPARATOR.join(filter(None, (parent.reason, row.notes)))
            cells = (f"{parent.label:>2} MIG", *row.cells[1:])
            rows.append(row._replace(state=MIG_STATE, cells=cells, notes=notes))
        # the problems of its GPU are in the row of the GPU
        rows.append(build_client_table_gpu_row(gpu._replace(problems=()) if gpu.parent_keys else gpu, now, is_short))
    return rows


def build_client_table_gpu_row(gpu: FleetGpu, now: Now, is_short: bool) -> GpuTableRow:
    """Build the row of a GPU; the columns of processes are empty if there are none."""
    processes = gpu.processes
    users = ",".join(dict.fromkeys(process.user or UNKNOWN_CELL for process in processes))
    pids = ",".join(UNKNOWN_CELL if process.pid is None else str(process.pid) for process in processes)
    first_start = min((process.started for process in processes if process.started is not None), default=None)
    unknown_age = UNKNOWN_CELL if processes else ""
    age = unknown_age if first_start is None else format_client_table_age(now.epoch - first_start, is_short)
    state = TROUBLE_STATE if gpu.is_avoided and gpu.state in {"free", "booked"} else gpu.state
    cells = (
        f"{gpu.label:>2} {STATE_MARKS.get(state, TROUBLE_MARK)}",
        gpu.profile or gpu.model,  # the model is in the row above
        format_client_table_number(gpu.utilization_gpu, " %"),
        format_memory_cell(gpu),
        format_client_table_number(gpu.temperature),
        format_client_table_number(gpu.clock),
        users,
        age,
        pids,
    )
    commands = tuple(dict.fromkeys(process.command or UNKNOWN_CELL for process in processes))
    return GpuTableRow(state, cells, describe_gpu_notes(gpu), commands, describe_gpu_booking(gpu, now))


def mark_unowned_gpu(row: GpuTableRow) -> GpuTableRow:
    """Mark a GPU that is used by nobody known."""
    mark = STATE_MARKS.get(row.state)
    if row.cells[USERS] != UNKNOWN_CELL or mark is None:
        return row
    label = f"{row.cells[GPU].removesuffix(mark)}{TROUBLE_MARK}"
    return row._replace(state=TROUBLE_STATE, cells=(label, *row.cells[1:]))


def format_client_table_number(value: float | None, unit: str = "") -> str:
    return UNKNOWN_CELL if value is None else f"{value:.0f}{unit}"


def format_memory_cell(gpu: FleetGpu) -> str:
    """Format memory: `71/80 GiB`, `12/120 GiB shared`."""
    used, total = gpu.memory_used, gpu.memory_total
    if used is None and total is None:
        return UNKNOWN_CELL
    values = (UNKNOWN_CELL if value is None else formatting.format_gib(value) for value in (used, total))
    return f"{'/'.join(values)} GiB{' shared' if gpu.is_memory_shared else ''}"


def format_client_table_age(seconds: float, is_short: bool) -> str:
    """Format an age: `2 days ago`, or in short `2 d`."""
    if seconds < formatting.MINUTE:
        return "now" if is_short else "just now"
    for unit, short_name, name, limit in AGE_UNITS:
        if seconds < limit:
            count = int(seconds // unit)
            return f"{count} {short_name}" if is_short else f"{formatting.format_count(count, name)} ago"
    return UNKNOWN_CELL


def describe_gpu_notes(gpu: FleetGpu) -> str:
    """Describe the state and the problems of a GPU, as far as the columns do not show them."""
    notes = []
    if gpu.state in {"conflict", "lost"}:
        notes.append(f"{gpu.state}: {gpu.reason}" if gpu.reason else gpu.state)
    elif gpu.state == "unknown":
        notes.append(gpu.reason or gpu.state)
    elif gpu.state == "held":
        notes.append("held" if gpu.processes else f"held: {gpu.reason}")
    elif gpu.state == "busy" and not gpu.reason.startswith("in use"):  # the columns show who uses it
        notes.append(gpu.reason)
    if gpu.state != "lost":
        notes += [problem.what for problem in gpu.problems if problem.is_visible and problem.what != gpu.reason]
    return TEXT_SEPARATOR.join(filter(None, notes))


def describe_gpu_booking(gpu: FleetGpu, now: Now) -> str:
    """Describe who has booked a GPU, now or within a day; of a conflict, the reason says it."""
    if not gpu.bookings:
        return ""
    running = [booking for booking in gpu.bookings if booking.is_current(now.epoch)]
    if running and gpu.state != "conflict":
        names = formatting.format_names(list(dict.fromkeys(booking.name for booking in running if booking.name)))
        comment = next((booking.comment for booking in running if booking.comment), None)
        until = f"until {formatting.format_moment(max(booking.until for booking in running), now)}"
        text = f"booked: {names} {until}" if names else f"booked {until}"
        return f"{text} ({comment})" if comment else text
    coming = [(booking.since, booking.name) for booking in gpu.bookings if booking.since]
    coming = [(since, name) for since, name in coming if since.timestamp() > now.epoch]
    if running or not coming:
        return ""
    since, name = min(coming, key=lambda booking: booking[0].timestamp())
    if since.timestamp() > now.epoch + formatting.DAY:
        return ""
    start, suffix = formatting.format_moment(since, now), f": {name}" if name else ""
    return f"until {start}, then booked{suffix}" if gpu.state == "free" else f"booked from {start}{suffix}"


def compute_client_table_layout(cells: Sequence[tuple[str, ...]], width: int | None) -> ClientTableLayout:
    """Share the line between the columns: each as wide as it needs, until the command has too little."""
    widths: dict[int, int] = {}
    for number, column in enumerate(zip(COLUMN_TITLES, *cells)):
        natural_width = max(map(measure_width, column))
        widths[number] = min(natural_width, MAX_COLUMN_WIDTHS.get(number, natural_width))
    if width is None:
        return ClientTableLayout(widths, "  ", UNLIMITED_WIDTH)
    layout = ClientTableLayout(widths, " " if width < WIDE_TERMINAL else "  ", 1)

    def narrow_column(number: int, min_width: int, command_width: int) -> None:
        spare = max(0, widths[number] - min_width)
        widths[number] -= min(spare, max(0, command_width - (width - layout.measure_columns(0))))

    for number, min_width in ((PIDS, 8), (USERS, 8), (TYPE, USUAL_TYPE_WIDTH)):
        narrow_column(number, min_width, PREFERRED_COMMAND_WIDTH)
    for number, command_width in COLUMN_DROPS.items():
        if number == SINCE:
            narrow_column(TYPE, MIN_TYPE_WIDTH, USEFUL_COMMAND_WIDTH)
        if width - layout.measure_columns(0) < command_width:
            del widths[number]
    return layout._replace(command_width=max(1, width - layout.measure_columns(0)))


def join_client_table_cells(
    cells: Sequence[str], layout: ClientTableLayout, end_column: int = len(COLUMN_TITLES)
) -> str:
    """Join the cells of a row, up to a column; in a file nothing is cut."""
    is_cut = layout.command_width < UNLIMITED_WIDTH
    shown_cells = []
    for number, width in layout.widths.items():
        if number < end_column:
            text = cells[number]
            if number == PIDS and is_cut and len(text) > width:
                # as many pids as there is room for: half a pid is that of another process
                text = f"{text[: text.rfind(',', 0, width)]}{ELLIPSIS}" if "," in text[:width] else ELLIPSIS
            if is_cut or measure_width(text) <= width:
                text = fit_text(text, width, number in RIGHT_ALIGNED)
            shown_cells.append(text)
    return layout.gap.join(shown_cells)


def format_gpu_lines(row: GpuTableRow, layout: ClientTableLayout) -> list[str]:
    """Format a row; notes beside processes have a line of their own if there is no room."""
    if not row.commands:
        # without processes, the notes take their columns
        text = TEXT_SEPARATOR.join(filter(None, (row.notes, row.booking_text)))
        text = truncate_terminal_text(text, layout.command_width + layout.measure_columns(USERS))
        return [f"{join_client_table_cells(row.cells, layout, USERS)}{layout.gap}{text}".rstrip()]
    cells = join_client_table_cells(row.cells, layout)
    text = TEXT_SEPARATOR.join(filter(None, (row.notes, *row.commands, row.booking_text)))
    if measure_width(text) <= layout.command_width:
        return [f"{cells}{layout.gap}{text}"]
    has_notes_line = measure_width(row.notes) > layout.command_width
    texts = ("" if has_notes_line else row.notes, *map(shorten_table_command, row.commands), row.booking_text)
    text = truncate_terminal_text(TEXT_SEPARATOR.join(filter(None, texts)), layout.command_width)
    notes = truncate_terminal_text(f"{NOTE_INDENT}{row.notes}", layout.command_width + layout.measure_columns(0))
    return [f"{cells}{layout.gap}{text}", *([notes] if has_notes_line else ())]


def shorten_table_command(command: str) -> str:
    """Shorten a command to its most informative part: no folders, no interpreter."""
    return PROGRAM_FOLDER.sub("", INTERPRETER_PATTERN.sub("", PROGRAM_FOLDER.sub("", command)))
