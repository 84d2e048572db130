"""Render a fleet as a table or JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost, FleetProcess
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.terminal_text import ELLIPSIS, fit_text, measure_width, truncate_text
from site_builder.health.page import format_problems

STATUS_SCHEMA = 1


def render_fleet_json(told: Fleet) -> bytes:
    """When it was looked at, and its hosts."""
    hosts = [fleet_host_to_json(one, told.built) for one in told.hosts]
    return orjson.dumps({"schema": STATUS_SCHEMA, "built": told.built, "hosts": hosts}, option=orjson.OPT_INDENT_2)


def fleet_host_to_json(one: FleetHost, built: int) -> dict[str, Any]:
    """A host with its GPUs."""
    return {
        "name": one.name,
        "title": one.title,
        "tags": one.tags,
        "state": one.state,
        "reason": one.reason,
        "seen": one.seen,
        "age": None if one.seen is None else max(0, built - one.seen),
        "load": one.load,
        "cpus": one.cpus,
        "memory": {"total": one.memory_total, "available": one.memory_available},
        "disks": [disk._asdict() for disk in one.disks],
        "gpus": fleet_gpus_to_json(one),
    }


def fleet_gpus_to_json(host: FleetHost) -> list[dict[str, Any]]:
    """Its GPUs, each instance within its own."""
    found: dict[object, dict[str, Any]] = {}
    for place, one in enumerate(host.gpus):
        if not one.parent_keys:
            found[place] = (
                {**fleet_gpu_to_json(one), "instances": []} if one in host.mig_gpus else fleet_gpu_to_json(one)
            )
            continue
        told = found.setdefault(one.parent_keys, {**fleet_gpu_to_json(host.find_parent(one)), "instances": []})
        told["instances"].append({**fleet_gpu_to_json(one), "profile": one.profile})
    return list(found.values())


def fleet_gpu_to_json(one: FleetGpu) -> dict[str, Any]:
    """A GPU, under nvidia-smi's names and units."""
    found = {
        "index": one.index,
        "uuid": one.uuid,
        "name": one.name,
        "vendor": one.vendor,
        "model": one.model,
        "state": one.state,
        "reason": one.reason,
        "memory.used": one.memory_used,
        "memory.total": one.memory_total,
        "utilization.gpu": one.utilization_gpu,
        "utilization.memory": one.utilization_memory,
        "temperature.gpu": one.temperature,
        "power.draw": one.power_draw,
        "power.limit": one.power_limit,
        "clocks.sm": one.clock,
        "processes": [fleet_process_to_json(each) for each in one.processes],
        "bookings": [fleet_booking_to_json(each) for each in one.bookings],
        "free_again": one.free_again,
        "problems": [each._asdict() for each in one.problems],
    }
    if one.place is not None:
        found["place"] = one.place
    return found


def fleet_process_to_json(one: FleetProcess) -> dict[str, Any]:
    """A process on a GPU."""
    return {
        "pid": one.pid,
        "user": one.user,
        "command": one.command,
        "used_gpu_memory": one.used_memory,
        "started": one.started,
    }


def fleet_booking_to_json(one: FleetBooking) -> dict[str, Any]:
    """A booking; `date` is its end, as in comments.json."""
    return {
        "id": one.id,
        "name": one.name,
        "from": one.since and one.since.isoformat(),
        "date": one.until.isoformat(),
        "comment": one.comment,
        "unused_since": one.unused_since,
        "used_by": one.used_by,
        "used_by_since": one.used_by_since,
        "mean_use": one.mean_use,
    }


STATE_MARKS = {"free": "[ ]", "busy": "[~]", "held": "[~]", "booked": "[~]"}
TROUBLE_MARK = "[!]"
# Stands for the state of a GPU that is cut into instances: they have states of their own.
MIG_STATE = "mig"
# What a GPU that nobody should be given looks like, though nobody is on it.
TROUBLE_STATE = "in trouble"
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
# What a column may take at most, and what it keeps where the line is too narrow for all.
MAX_COLUMN_WIDTHS = {GPU: 10, TYPE: 30, USE: 6, MEMORY: 13, TEMPERATURE: 6, CLOCK: 6, USERS: 20, PIDS: 20}
MIN_COLUMN_WIDTHS = {TYPE: 10, USERS: 8, PIDS: 8}
# What goes first where even that is too much.
COLUMN_DROP_ORDER = (CLOCK, TEMPERATURE, PIDS, SINCE, TYPE)
WIDE_TERMINAL = 110
PREFERRED_COMMAND_WIDTH, MIN_COMMAND_WIDTH = 30, 10
UNKNOWN_CELL = "?"
AGE_UNITS = (
    (formatting.MINUTE, "min", "minute", 2 * formatting.HOUR),
    (formatting.HOUR, "h", "hour", 2 * formatting.DAY),
    (formatting.DAY, "d", "day", math.inf),
)
NOTE_INDENT = " " * 7
TEXT_SEPARATOR = "; "
INTERPRETER_PATTERN = re.compile(
    r"(?:(?:python|perl|ruby|julia)[\d.]*|(?:ba|da|z|k)?sh) (?:-[uBEIOsSv]+ )*(?:-m )?(?!-)"
)


class GpuTableRow(NamedTuple):
    """A GPU: the cells of its columns, and what stands after them: what is to be said, what runs, what is promised."""

    state: str
    cells: tuple[str, ...]
    notes: str
    commands: tuple[str, ...]
    booking_text: str


class ColumnLayout(NamedTuple):
    """Which columns are shown, how wide they are, and what is between them; `room` is left for the command, if any."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    gap: str
    command_width: int | None


def format_gpu_table(
    fleet: Fleet, now: Now, across: int | None = None, colour: bool = False, heads: bool = True
) -> list[str]:
    """The lines, for a terminal that is so many cells across, or with None for a file.

    Without `heads` only a host that is not fresh has a line of its own.
    """
    short = across is not None and across < WIDE_TERMINAL
    rows = [build_host_rows(host, now, short) for host in fleet.hosts]
    layout = compute_layout([one.cells for several in rows for one in several], across)
    lines = [format_column_titles(layout)] if any(rows) else []
    for host, several in zip(fleet.hosts, rows):
        if heads or host.state != "fresh":
            text = format_host_line(host) if across is None else truncate_text(format_host_line(host), across)
            lines.append(colour_line(text, HEAD_COLOUR if host.state == "fresh" else BAD_HEAD_COLOUR, colour))
        for one in several:
            told = format_gpu_lines(one, layout)
            lines += [colour_line(text, STATE_COLOURS.get(one.state), colour) for text in told]
    return lines


def colour_line(text: str, code: str | None, colour: bool) -> str:
    """A line in its colour, where there are any."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def format_host_line(host: FleetHost) -> str:
    """A host: `atlas · Training · load 12 / 96`, or why it tells nothing."""
    parts = [host.name]
    if host.title and host.title != host.name:
        parts.append(host.title)
    if host.state != "fresh":
        parts.append(f"{host.state}: {host.reason}" if host.reason else host.state)
    if host.load is not None:
        load = f"{host.load[0]:.1f}" if host.load[0] < 9.95 else f"{host.load[0]:.0f}"
        parts.append(f"load {load} / {UNKNOWN_CELL if host.cpus is None else host.cpus}")
    return " · ".join(parts)


# The cells of a GPU


def build_host_rows(host: FleetHost, now: Now, short: bool) -> list[GpuTableRow]:
    """The GPUs of a host; one that is cut into instances stands above them."""
    rows = []
    heads = {one.label.lower(): one for one in host.mig_gpus}
    for gpu in host.gpus:
        whole = heads.pop(gpu.parent_keys[0], None) if gpu.parent_keys else None
        if whole:
            told = build_gpu_row(whole._replace(state="free", processes=(), bookings=()), now, short)
            said_of = TEXT_SEPARATOR.join(filter(None, (whole.reason, told.notes)))
            rows.append(told._replace(state=MIG_STATE, cells=(f"{whole.label:>2} MIG", *told.cells[1:]), notes=said_of))
        # what is wrong with its GPU is said there
        rows.append(build_gpu_row(gpu._replace(problems=()) if gpu.parent_keys else gpu, now, short))
    return rows


def build_gpu_row(gpu: FleetGpu, now: Now, short: bool) -> GpuTableRow:
    """A GPU in its columns; nothing stands in those of processes where there are none."""
    several = gpu.processes
    who = (
        (format_users(several), format_start_age(several, now, short), format_pids(several))
        if several
        else ("", "", "")
    )
    look = TROUBLE_STATE if gpu.is_avoided and gpu.state in {"free", "booked"} else gpu.state
    cells = (
        f"{gpu.label:>2} {STATE_MARKS.get(look, TROUBLE_MARK)}",
        gpu.profile or gpu.model,  # the model stands in the row above
        format_whole_number(gpu.utilization_gpu, " %"),
        format_memory_cell(gpu.memory_used, gpu.memory_total),
        format_whole_number(gpu.temperature),
        format_whole_number(gpu.clock),
        *who,
    )
    commands = tuple(dict.fromkeys(one.command or UNKNOWN_CELL for one in several))
    return GpuTableRow(
        look, cells, describe_gpu_notes(gpu), commands, describe_gpu_booking(gpu, now) if gpu.bookings else ""
    )


def format_whole_number(value: float | None, unit: str = "") -> str:
    """A number without decimals, and its unit."""
    return UNKNOWN_CELL if value is None else f"{value:.0f}{unit}"


def format_memory_cell(used: float | None, total: float | None) -> str:
    """`71/80 GiB`."""
    if used is None and total is None:
        return UNKNOWN_CELL
    told = (UNKNOWN_CELL if one is None else formatting.format_gib(one) for one in (used, total))
    return f"{'/'.join(told)} GiB"


def format_users(several: Iterable[FleetProcess]) -> str:
    """Who is on it, each once."""
    return ",".join(dict.fromkeys(one.user or UNKNOWN_CELL for one in several))


def format_pids(several: Iterable[FleetProcess]) -> str:
    """All of them."""
    return ",".join(UNKNOWN_CELL if one.pid is None else str(one.pid) for one in several)


def format_start_age(several: Iterable[FleetProcess], now: Now, short: bool) -> str:
    """How long ago the first of them began."""
    first = min((one.started for one in several if one.started is not None), default=None)
    return UNKNOWN_CELL if first is None else format_time_ago(now.epoch - first, short)


def format_time_ago(seconds: float, short: bool) -> str:
    """`2 days ago`, or in short `2 d`."""
    if seconds < formatting.MINUTE:
        return "now" if short else "just now"
    for unit, letter, name, most in AGE_UNITS:
        if seconds < most:
            count = int(seconds // unit)
            return f"{count} {letter}" if short else f"{count} {name}{'' if count == 1 else 's'} ago"
    return UNKNOWN_CELL


def describe_gpu_notes(gpu: FleetGpu) -> str:
    """What is to be said of its state, beyond its mark and what runs on it, and what is wrong with it."""
    problems = [one for one in gpu.problems if one.what != gpu.reason] if gpu.state != "lost" else []
    wrong = format_problems(problems) if problems else ""
    return TEXT_SEPARATOR.join(filter(None, (describe_gpu_state(gpu), wrong)))


def describe_gpu_state(gpu: FleetGpu) -> str:
    """The same of its state alone."""
    if gpu.state in {"conflict", "lost"}:
        return f"{gpu.state}: {gpu.reason}" if gpu.reason else gpu.state
    if gpu.state == "unknown":
        return gpu.reason or gpu.state
    if gpu.state == "held":
        return "held" if gpu.processes else f"held: {gpu.reason}"
    # who is on it, the columns tell
    return gpu.reason if gpu.state == "busy" and not gpu.reason.startswith("in use") else ""


def describe_gpu_booking(gpu: FleetGpu, now: Now) -> str:
    """For whom it is booked, now or within a day; of a conflict the reason tells it."""
    running = [one for one in gpu.bookings if one.until.timestamp() > now.epoch and has_begun(one, now)]
    if running and gpu.state != "conflict":
        names = formatting.join_names(list(dict.fromkeys(one.name for one in running if one.name)))
        comment = next((one.comment for one in running if one.comment), None)
        until = f"until {formatting.format_moment(max(one.until for one in running), now)}"
        told = f"booked: {names} {until}" if names else f"booked {until}"
        return f"{told} ({comment})" if comment else told
    coming = [one.since.timestamp() for one in gpu.bookings if one.since and not has_begun(one, now)]
    if running or not coming or min(coming) > now.epoch + formatting.DAY:
        return ""
    first = next(one for one in gpu.bookings if one.since and one.since.timestamp() == min(coming))
    begins = formatting.format_moment(first.since or first.until, now)
    if gpu.state == "free":
        return f"until {begins}, then booked{f': {first.name}' if first.name else ''}"
    return f"booked from {begins}{f': {first.name}' if first.name else ''}"


def has_begun(one: FleetBooking, now: Now) -> bool:
    """Whether it is no longer to come."""
    return one.since is None or one.since.timestamp() <= now.epoch


# The columns


def compute_layout(cells: Sequence[tuple[str, ...]], across: int | None) -> ColumnLayout:
    """How the columns share the line: each as wide as it needs, until the command has too little."""
    natural = [max(map(measure_width, column)) for column in zip(COLUMN_TITLES, *cells)]
    widths = [min(wide, MAX_COLUMN_WIDTHS.get(number, wide)) for number, wide in enumerate(natural)]
    if across is None:
        return ColumnLayout(tuple(range(len(widths))), tuple(widths), "  ", None)
    gap = " " if across < WIDE_TERMINAL else "  "
    shown = list(range(len(widths)))

    def room() -> int:
        return across - sum(widths[number] + len(gap) for number in shown)

    for number in (PIDS, USERS, TYPE):
        spare = max(0, widths[number] - MIN_COLUMN_WIDTHS[number])
        widths[number] -= min(spare, max(0, PREFERRED_COMMAND_WIDTH - room()))
    for number in COLUMN_DROP_ORDER:
        if room() < MIN_COMMAND_WIDTH:
            shown.remove(number)
    return ColumnLayout(tuple(shown), tuple(widths[number] for number in shown), gap, max(1, room()))


def format_column_titles(layout: ColumnLayout) -> str:
    """The names of the columns."""
    cells = join_row_cells(COLUMN_TITLES, layout)
    return f"{cells}{layout.gap}{'command' if layout.command_width is None else truncate_text('command', layout.command_width)}"


def join_row_cells(cells: Sequence[str], layout: ColumnLayout, last: int = len(COLUMN_TITLES)) -> str:
    """The cells of a line, up to a column."""
    told = []
    for number, wide in zip(layout.columns, layout.widths):
        if number < last:
            text = cells[number]
            if number == PIDS and layout.command_width is not None and len(text) > wide:
                text = truncate_pids(text, wide)
            if layout.command_width is not None or measure_width(text) <= wide:
                text = fit_text(text, wide, number in RIGHT_ALIGNED)
            told.append(text)
    return layout.gap.join(told)


def truncate_pids(text: str, wide: int) -> str:
    """As many pids as there is room for: half a pid is that of another process."""
    return f"{text[: text.rfind(',', 0, wide)]}{ELLIPSIS}" if "," in text[:wide] else ELLIPSIS


def format_gpu_lines(one: GpuTableRow, layout: ColumnLayout) -> list[str]:
    """A GPU in a line; what is said beside processes has a line of its own where there is no room."""
    if not one.commands:
        # nobody is on it: what is to be said has the columns of who is
        text = TEXT_SEPARATOR.join(filter(None, (one.notes, one.booking_text)))
        line = f"{join_row_cells(one.cells, layout, USERS)}{layout.gap}{fit_into_columns(text, layout, USERS)}"
        return [line.rstrip()]
    cells = join_row_cells(one.cells, layout)
    text = TEXT_SEPARATOR.join(filter(None, (one.notes, *one.commands, one.booking_text)))
    if layout.command_width is None or measure_width(text) <= layout.command_width:
        return [f"{cells}{layout.gap}{text}"]
    apart = measure_width(one.notes) > layout.command_width
    text = TEXT_SEPARATOR.join(
        filter(None, ("" if apart else one.notes, *map(shorten_command, one.commands), one.booking_text))
    )
    line = f"{cells}{layout.gap}{truncate_text(text, layout.command_width)}"
    return (
        [line, truncate_text(f"{NOTE_INDENT}{one.notes}", layout.command_width + measure_columns(layout, 0))]
        if apart
        else [line]
    )


def fit_into_columns(text: str, layout: ColumnLayout, after: int) -> str:
    """A text that takes all columns from one on, and the room of the command."""
    if layout.command_width is None:
        return text
    return truncate_text(text, layout.command_width + measure_columns(layout, after))


def measure_columns(layout: ColumnLayout, first: int) -> int:
    """What the columns from one on take."""
    return sum(wide + len(layout.gap) for number, wide in zip(layout.columns, layout.widths) if number >= first)


def shorten_command(command: str) -> str:
    """A command that begins with what tells most: no folders, no interpreter."""
    command = strip_program_folder(command)
    rest = INTERPRETER_PATTERN.sub("", command, count=1) if INTERPRETER_PATTERN.match(command) else command
    return strip_program_folder(rest)


def strip_program_folder(command: str) -> str:
    """Its program by name alone."""
    program, blank, rest = command.partition(" ")
    return f"{program.rpartition('/')[2] or program}{blank}{rest}"
