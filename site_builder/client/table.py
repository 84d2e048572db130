"""The table of `gpuboard list`: a line for each GPU, in columns that are the same for all hosts.

In a terminal each line fits; elsewhere nothing is cut, and a value that is too long pushes only its own line out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from site_builder.client.model import Booking, Fleet, Gpu, Host, Process
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.terminal_text import CUT, cut, fit, width
from site_builder.health.render import in_words

MARKS = {"free": "[ ]", "busy": "[~]", "held": "[~]", "booked": "[~]"}
TROUBLE = "[!]"
# Stands for the state of a GPU that is cut into instances: they have states of their own.
CUT_UP = "mig"
# What a GPU that nobody should be given looks like, though nobody is on it.
IN_TROUBLE = "in trouble"
RED = "31"
COLOURS = {
    "free": "32",
    "held": "33",
    "booked": "36",
    **dict.fromkeys(("violated", "lost", "unknown", IN_TROUBLE), RED),
}
HEAD_COLOUR, BAD_HEAD_COLOUR = "1", "1;31"
TITLES = ("GPU", "type", "use", "memory", "temp", "MHz", "users", "since", "pids")
GPU, TYPE, USE, MEMORY, TEMPERATURE, CLOCK, USERS, SINCE, PIDS = range(9)
TO_THE_RIGHT = frozenset({2, 3, 4, 5})
# What a column may take at most, and what it keeps where the line is too narrow for all.
MOST = {GPU: 10, TYPE: 30, USE: 6, MEMORY: 13, TEMPERATURE: 6, CLOCK: 6, USERS: 20, PIDS: 20}
LEAST = {TYPE: 10, USERS: 8, PIDS: 8}
# What goes first where even that is too much.
DROPPED = (CLOCK, TEMPERATURE, PIDS, SINCE, TYPE)
WIDE = 110
COMMAND_WANTED, COMMAND_NEEDED = 30, 10
NOT_TOLD = "?"
AGES = (
    (formatting.MINUTE, "min", "minute", 2 * formatting.HOUR),
    (formatting.HOUR, "h", "hour", 2 * formatting.DAY),
    (formatting.DAY, "d", "day", math.inf),
)
UNDER = " " * 7
BETWEEN = "; "
INTERPRETER = re.compile(r"(?:(?:python|perl|ruby|julia)[\d.]*|(?:ba|da|z|k)?sh) (?:-[uBEIOsSv]+ )*(?:-m )?(?!-)")


class Row(NamedTuple):
    """A GPU: the cells of its columns, and what stands after them: what is to be said, what runs, what is promised."""

    state: str
    cells: tuple[str, ...]
    said: str
    commands: tuple[str, ...]
    promised: str


class Layout(NamedTuple):
    """Which columns are shown, how wide they are, and what is between them; `room` is left for the command, if any."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    gap: str
    room: int | None


def table(fleet: Fleet, now: Now, across: int | None = None, colour: bool = False, heads: bool = True) -> list[str]:
    """The lines, for a terminal that is so many cells across, or with None for a file.

    Without `heads` only a host that is not fresh has a line of its own.
    """
    short = across is not None and across < WIDE
    rows = [host_rows(host, now, short) for host in fleet.hosts]
    layout = layout_of([one.cells for several in rows for one in several], across)
    lines = [title(layout)] if any(rows) else []
    for host, several in zip(fleet.hosts, rows):
        if heads or host.state != "fresh":
            text = head(host) if across is None else cut(head(host), across)
            lines.append(coloured(text, HEAD_COLOUR if host.state == "fresh" else BAD_HEAD_COLOUR, colour))
        for one in several:
            told = row_lines(one, layout)
            lines += [coloured(text, COLOURS.get(one.state), colour) for text in told]
    return lines


def coloured(text: str, code: str | None, colour: bool) -> str:
    """A line in its colour, where there are any."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def head(host: Host) -> str:
    """A host: `atlas · Training · load 12 / 96`, or why it tells nothing."""
    parts = [host.name]
    if host.title and host.title != host.name:
        parts.append(host.title)
    if host.state != "fresh":
        parts.append(f"{host.state}: {host.reason}" if host.reason else host.state)
    if host.load is not None:
        load = f"{host.load[0]:.1f}" if host.load[0] < 9.95 else f"{host.load[0]:.0f}"
        parts.append(f"load {load} / {NOT_TOLD if host.cpus is None else host.cpus}")
    return " · ".join(parts)


# The cells of a GPU


def host_rows(host: Host, now: Now, short: bool) -> list[Row]:
    """The GPUs of a host; one that is cut into instances stands above them."""
    rows = []
    heads = {one.label.lower(): one for one in host.cut}
    for gpu in host.gpus:
        whole = heads.pop(gpu.of[0], None) if gpu.of else None
        if whole:
            told = row(whole._replace(state="free", processes=(), bookings=()), now, short)
            said_of = BETWEEN.join(filter(None, (whole.reason, told.said)))
            rows.append(told._replace(state=CUT_UP, cells=(f"{whole.label:>2} MIG", *told.cells[1:]), said=said_of))
        # what is wrong with its GPU is said there
        rows.append(row(gpu._replace(problems=()) if gpu.of else gpu, now, short))
    return rows


def row(gpu: Gpu, now: Now, short: bool) -> Row:
    """A GPU in its columns; nothing stands in those of processes where there are none."""
    several = gpu.processes
    who = (users(several), since(several, now, short), pids(several)) if several else ("", "", "")
    look = IN_TROUBLE if gpu.avoid and gpu.state in {"free", "booked"} else gpu.state
    cells = (
        f"{gpu.label:>2} {MARKS.get(look, TROUBLE)}",
        gpu.profile or gpu.model,  # the model stands in the row above
        whole(gpu.utilization_gpu, " %"),
        memory(gpu.memory_used, gpu.memory_total),
        whole(gpu.temperature),
        whole(gpu.clock),
        *who,
    )
    commands = tuple(dict.fromkeys(one.command or NOT_TOLD for one in several))
    return Row(look, cells, said(gpu), commands, promised(gpu, now) if gpu.bookings else "")


def whole(value: float | None, unit: str = "") -> str:
    """A number without decimals, and its unit."""
    return NOT_TOLD if value is None else f"{value:.0f}{unit}"


def memory(used: float | None, total: float | None) -> str:
    """`71/80 GiB`."""
    if used is None and total is None:
        return NOT_TOLD
    told = (NOT_TOLD if one is None else formatting.gib(one) for one in (used, total))
    return f"{'/'.join(told)} GiB"


def users(several: Iterable[Process]) -> str:
    """Who is on it, each once."""
    return ",".join(dict.fromkeys(one.user or NOT_TOLD for one in several))


def pids(several: Iterable[Process]) -> str:
    """All of them."""
    return ",".join(NOT_TOLD if one.pid is None else str(one.pid) for one in several)


def since(several: Iterable[Process], now: Now, short: bool) -> str:
    """How long ago the first of them began."""
    first = min((one.started for one in several if one.started is not None), default=None)
    return NOT_TOLD if first is None else ago(now.epoch - first, short)


def ago(seconds: float, short: bool) -> str:
    """`2 days ago`, or in short `2 d`."""
    if seconds < formatting.MINUTE:
        return "now" if short else "just now"
    for unit, letter, name, most in AGES:
        if seconds < most:
            count = int(seconds // unit)
            return f"{count} {letter}" if short else f"{count} {name}{'' if count == 1 else 's'} ago"
    return NOT_TOLD


def said(gpu: Gpu) -> str:
    """What is to be said of its state, beyond its mark and what runs on it, and what is wrong with it."""
    problems = [one for one in gpu.problems if one.what != gpu.reason] if gpu.state != "lost" else []
    wrong = in_words(problems) if problems else ""
    return BETWEEN.join(filter(None, (state_said(gpu), wrong)))


def state_said(gpu: Gpu) -> str:
    """The same of its state alone."""
    if gpu.state in {"violated", "lost"}:
        return f"{gpu.state}: {gpu.reason}" if gpu.reason else gpu.state
    if gpu.state == "unknown":
        return gpu.reason or gpu.state
    if gpu.state == "held":
        return "held" if gpu.processes else f"held: {gpu.reason}"
    # who is on it, the columns tell
    return gpu.reason if gpu.state == "busy" and not gpu.reason.startswith("in use") else ""


def promised(gpu: Gpu, now: Now) -> str:
    """For whom it is booked, now or within a day; of a violation the reason tells it."""
    running = [one for one in gpu.bookings if one.until.timestamp() > now.epoch and has_begun(one, now)]
    if running and gpu.state != "violated":
        names = formatting.names(list(dict.fromkeys(one.name for one in running if one.name)))
        comment = next((one.comment for one in running if one.comment), None)
        until = f"until {formatting.clock(max(one.until for one in running), now)}"
        told = f"booked: {names} {until}" if names else f"booked {until}"
        return f"{told} ({comment})" if comment else told
    coming = [one.since.timestamp() for one in gpu.bookings if one.since and not has_begun(one, now)]
    if running or not coming or min(coming) > now.epoch + formatting.DAY:
        return ""
    first = next(one for one in gpu.bookings if one.since and one.since.timestamp() == min(coming))
    begins = formatting.clock(first.since or first.until, now)
    if gpu.state == "free":
        return f"until {begins}, then booked{f': {first.name}' if first.name else ''}"
    return f"booked from {begins}{f': {first.name}' if first.name else ''}"


def has_begun(one: Booking, now: Now) -> bool:
    """Whether it is no longer to come."""
    return one.since is None or one.since.timestamp() <= now.epoch


# The columns


def layout_of(cells: Sequence[tuple[str, ...]], across: int | None) -> Layout:
    """How the columns share the line: each as wide as it needs, until the command has too little."""
    natural = [max(map(width, column)) for column in zip(TITLES, *cells)]
    widths = [min(wide, MOST.get(number, wide)) for number, wide in enumerate(natural)]
    if across is None:
        return Layout(tuple(range(len(widths))), tuple(widths), "  ", None)
    gap = " " if across < WIDE else "  "
    shown = list(range(len(widths)))

    def room() -> int:
        return across - sum(widths[number] + len(gap) for number in shown)

    for number in (PIDS, USERS, TYPE):
        spare = max(0, widths[number] - LEAST[number])
        widths[number] -= min(spare, max(0, COMMAND_WANTED - room()))
    for number in DROPPED:
        if room() < COMMAND_NEEDED:
            shown.remove(number)
    return Layout(tuple(shown), tuple(widths[number] for number in shown), gap, max(1, room()))


def title(layout: Layout) -> str:
    """The names of the columns."""
    cells = side_by_side(TITLES, layout)
    return f"{cells}{layout.gap}{'command' if layout.room is None else cut('command', layout.room)}"


def side_by_side(cells: Sequence[str], layout: Layout, last: int = len(TITLES)) -> str:
    """The cells of a line, up to a column."""
    told = []
    for number, wide in zip(layout.shown, layout.widths):
        if number < last:
            text = cells[number]
            if number == PIDS and layout.room is not None and len(text) > wide:
                text = whole_pids(text, wide)
            if layout.room is not None or width(text) <= wide:
                text = fit(text, wide, number in TO_THE_RIGHT)
            told.append(text)
    return layout.gap.join(told)


def whole_pids(text: str, wide: int) -> str:
    """As many pids as there is room for: half a pid is that of another process."""
    return f"{text[: text.rfind(',', 0, wide)]}{CUT}" if "," in text[:wide] else CUT


def row_lines(one: Row, layout: Layout) -> list[str]:
    """A GPU in a line; what is said beside processes has a line of its own where there is no room."""
    if not one.commands:
        # nobody is on it: what is to be said has the columns of who is
        text = BETWEEN.join(filter(None, (one.said, one.promised)))
        line = f"{side_by_side(one.cells, layout, USERS)}{layout.gap}{fitted(text, layout, USERS)}"
        return [line.rstrip()]
    cells = side_by_side(one.cells, layout)
    text = BETWEEN.join(filter(None, (one.said, *one.commands, one.promised)))
    if layout.room is None or width(text) <= layout.room:
        return [f"{cells}{layout.gap}{text}"]
    apart = width(one.said) > layout.room
    text = BETWEEN.join(filter(None, ("" if apart else one.said, *map(brief, one.commands), one.promised)))
    line = f"{cells}{layout.gap}{cut(text, layout.room)}"
    return [line, cut(f"{UNDER}{one.said}", layout.room + taken_from(layout, 0))] if apart else [line]


def fitted(text: str, layout: Layout, after: int) -> str:
    """A text that takes all columns from one on, and the room of the command."""
    if layout.room is None:
        return text
    return cut(text, layout.room + taken_from(layout, after))


def taken_from(layout: Layout, first: int) -> int:
    """What the columns from one on take."""
    return sum(wide + len(layout.gap) for number, wide in zip(layout.shown, layout.widths) if number >= first)


def brief(command: str) -> str:
    """A command that begins with what tells most: no folders, no interpreter."""
    command = without_folder(command)
    rest = INTERPRETER.sub("", command, count=1) if INTERPRETER.match(command) else command
    return without_folder(rest)


def without_folder(command: str) -> str:
    """Its program by name alone."""
    program, blank, rest = command.partition(" ")
    return f"{program.rpartition('/')[2] or program}{blank}{rest}"
