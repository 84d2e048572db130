"""term.txt: the fleet as a table of 80 cells, for `curl`; and term-ansi.txt, the same in colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from site_builder.board.outputs.values import UNKNOWN_CELL, fit_cell, format_number, strip_nvidia_prefix
from site_builder.core.clock import Now
from site_builder.core.model import GpuNumber, GpuStatus, HostStatus
from site_builder.core.terminal_text import fit_text, measure_width
from site_builder.fleet.mig import list_whole_gpus
from site_builder.health.page import list_visible_problems

HOST_WIDTH, GPU_WIDTH, MEMORY_WIDTH, USE_WIDTH, TEMPERATURE_WIDTH = COLUMN_WIDTHS = 18, 24, 17, 8, 7
TABLE_WIDTH = sum(COLUMN_WIDTHS) + len(COLUMN_WIDTHS) + 1
TABLE_FRAME = f"+{'+'.join('-' * one for one in COLUMN_WIDTHS)}+\n"
COLUMN_TITLES = ("host", "gpu", "memory usage", "volat.", "temp.")
EMPTY_READINGS = f"|{' ' * MEMORY_WIDTH}|{' ' * USE_WIDTH}|{' ' * TEMPERATURE_WIDTH}"
# Before an instance, which stands below its GPU.
INSTANCE_INDENT = "   "
GREEN, YELLOW, RED, CYAN, RESET = (f"\x1b[{code}m" for code in (32, 33, 31, 36, 0))
# Those that have a colour are named below the table too: nobody needs to see colours.
STATE_COLOURS = {"free": GREEN, "booked": CYAN, "held": YELLOW, "conflict": RED, "lost": RED, "unknown": RED}

PROBLEM_LABEL = "problem"


class TermPart(NamedTuple):
    """The rows of a host, the same in colour, and its GPUs by state, as `atlas:0,2`."""

    plain_rows: bytes
    coloured_rows: bytes
    gpus_by_state: tuple[tuple[str, str], ...]


def render_term_host(board: HostStatus) -> TermPart:
    """A host's part; one that is not fresh says so in a row of its own."""
    rows = [
        (
            f"{format_gpu_cell(one)}{format_reading_cells(one)}",
            RED if one.is_avoided else STATE_COLOURS.get(one.state, ""),
        )
        for board_gpu, parts in list_whole_gpus(board)
        for one in (board_gpu, *parts)
    ]
    if board.state != "fresh" or not rows:
        rows.insert(0, (f" {fit_cell(f'! {board.state}', GPU_WIDTH - 1)}{EMPTY_READINGS}", RED))
    names = [fit_cell(board.name, HOST_WIDTH), *([" " * HOST_WIDTH] * (len(rows) - 1))]
    plain = [f"|{name}|{text}|\n" for name, (text, _) in zip(names, rows)]
    colour = [
        f"|{name}|{sign}{text}{RESET}|\n" if sign else line for name, (text, sign), line in zip(names, rows, plain)
    ]
    return TermPart("".join(plain).encode(), "".join(colour).encode(), tuple(list_gpus_by_state(board)))


def format_gpu_cell(gpu: GpuStatus) -> str:
    """The cell that names a GPU."""
    if gpu.gpu.parent:
        return INSTANCE_INDENT + fit_cell(
            f"{gpu.gpu.label} {gpu.gpu.profile or 'MIG'}", GPU_WIDTH - len(INSTANCE_INDENT)
        )
    return format_gpu_cell_cached(gpu.gpu.number, gpu.gpu.name, gpu.model)


@lru_cache(maxsize=4096)
def format_gpu_cell_cached(number: GpuNumber, name: str | None, model: str) -> str:
    """The same; where the driver's name for it is too long, what people call it."""
    before = f"{UNKNOWN_CELL if number is None else number:>2}:"
    full = strip_nvidia_prefix(name)
    return before + fit_cell(
        full if measure_width(full) <= GPU_WIDTH - len(before) else model, max(1, GPU_WIDTH - len(before))
    )


def format_reading_cells(gpu: GpuStatus) -> str:
    """The cells of its memory in MiB, its use and its temperature."""
    told = gpu.gpu
    used, total, use, temperature = told.memory_used, told.memory_total, told.utilization_gpu, told.temperature
    if used is not None and total is not None and use is not None and temperature is not None:
        text = f"|{used:7.0f} /{total:7.0f} |{use:6.0f} %|{temperature:4.0f} °C"
        if len(text) == len(EMPTY_READINGS):
            return text
    return format_odd_reading_cells(used, total, use, temperature)


@lru_cache(maxsize=1000)
def format_odd_reading_cells(
    used: float | None, total: float | None, use: float | None, temperature: float | None
) -> str:
    """The same, where one is not told, or beyond all sense."""
    memory = fit_text(f"{format_number(used):>7} /{format_number(total):>7} ", MEMORY_WIDTH)
    percent, degrees = (
        fit_text(f"{format_number(use)} %", USE_WIDTH, right=True),
        fit_text(f"{format_number(temperature)} °C", TEMPERATURE_WIDTH, right=True),
    )
    return f"|{memory}|{percent}|{degrees}"


def list_gpus_by_state(board: HostStatus) -> Iterator[tuple[str, str]]:
    """Each state that has a colour, with the GPUs that are in it, and those that have a problem; that of a host that is
    not fresh is in its row. What is free and has a problem that keeps people off is not called free."""
    if board.state != "fresh":
        return
    found: dict[str, list[str]] = {}
    wrong: dict[str, None] = {}
    for one in board.gpus:
        if one.problems and one.state != "lost" and list_visible_problems(one.problems):
            wrong[(one.gpu.parent or one.gpu).label] = None
        if one.state in STATE_COLOURS and not (one.state == "free" and one.is_avoided):
            found.setdefault(one.state, []).append(one.gpu.label)
    if wrong:
        found[PROBLEM_LABEL] = list(wrong)
    for state, indexes in found.items():
        yield state, f"{board.name}:{','.join(indexes)}"


def render_term_txt(parts: Sequence[TermPart], version: str, now: Now, colour: bool = False) -> bytes:
    """The table, and below it which GPUs are free, which are in other states of note, and when it was built."""
    titles = "|".join(f" {title}".ljust(size) for title, size in zip(COLUMN_TITLES, COLUMN_WIDTHS))
    above = f"+{'-' * (TABLE_WIDTH - 2)}+\n| {fit_cell(f'gpuboard {version}', TABLE_WIDTH - 14)} gpu info. |\n{TABLE_FRAME}|{titles}|\n{TABLE_FRAME}"
    below = "".join([*format_state_lists(parts), f"built: {now.local.isoformat(' ', 'seconds')}\n"]).encode()
    frame = TABLE_FRAME.encode()
    rows = [piece for one in parts for piece in (one.coloured_rows if colour else one.plain_rows, frame)]
    return b"".join((above.encode(), *rows, below))


def format_state_lists(parts: Sequence[TermPart]) -> Iterator[str]:
    """The lines of each state; that none is free is said, that none is lost is not."""
    found: dict[str, list[str]] = {state: [] for state in (*STATE_COLOURS, PROBLEM_LABEL)}
    for one in parts:
        for state, several in one.gpus_by_state:
            found[state].append(several)
    for state, hosts in found.items():
        if hosts or state == "free":
            yield wrap_words(f"{state}:", hosts or ["none"])


def wrap_words(line: str, words: Sequence[str]) -> str:
    """Lines of at most so many cells as the table has; a word that is longer than that has one of its own."""
    lines = []
    for word in words:
        if len(line) + 1 + len(word) > TABLE_WIDTH and line.strip():
            lines.append(line)
            line = f"  {word}"
        else:
            line = f"{line} {word}"
    return "".join([f"{one}\n" for one in (*lines, line)])
