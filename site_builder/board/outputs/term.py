"""term.txt: the fleet as a table of 80 cells, for `curl`; and term-ansi.txt, the same in colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from site_builder.board.outputs.plain import NOT_TOLD, cell, driver_name, number
from site_builder.core.clock import Now
from site_builder.core.model import BoardGpu, BoardHost, Number
from site_builder.core.terminal_text import fit, width
from site_builder.fleet.mig import wholes
from site_builder.health.render import of_note

HOST, GPU, MEMORY, USE, TEMPERATURE = WIDTHS = 18, 24, 17, 8, 7
ALL = sum(WIDTHS) + len(WIDTHS) + 1
FRAME = f"+{'+'.join('-' * one for one in WIDTHS)}+\n"
TITLES = ("host", "gpu", "memory usage", "volat.", "temp.")
NO_READINGS = f"|{' ' * MEMORY}|{' ' * USE}|{' ' * TEMPERATURE}"
# Before an instance, which stands below its GPU.
UNDER = "   "
GREEN, YELLOW, RED, CYAN, RESET = (f"\x1b[{code}m" for code in (32, 33, 31, 36, 0))
# Those that have a colour are named below the table too: nobody needs to see colours.
COLOURS = {"free": GREEN, "booked": CYAN, "held": YELLOW, "violated": RED, "lost": RED, "unknown": RED}

WRONG = "problem"


class Part(NamedTuple):
    """The rows of a host, the same in colour, and its GPUs by state, as `atlas:0,2`."""

    plain: bytes
    colour: bytes
    marks: tuple[tuple[str, str], ...]


def host(board: BoardHost) -> Part:
    """A host's part; one that is not fresh says so in a row of its own."""
    rows = [
        (f"{label(one)}{readings(one)}", RED if one.avoid else COLOURS.get(one.state, ""))
        for board_gpu, parts in wholes(board)
        for one in (board_gpu, *parts)
    ]
    if board.state != "fresh" or not rows:
        rows.insert(0, (f" {cell(f'! {board.state}', GPU - 1)}{NO_READINGS}", RED))
    names = [cell(board.name, HOST), *([" " * HOST] * (len(rows) - 1))]
    plain = [f"|{name}|{text}|\n" for name, (text, _) in zip(names, rows)]
    colour = [
        f"|{name}|{sign}{text}{RESET}|\n" if sign else line for name, (text, sign), line in zip(names, rows, plain)
    ]
    return Part("".join(plain).encode(), "".join(colour).encode(), tuple(marks(board)))


def label(gpu: BoardGpu) -> str:
    """The cell that names a GPU."""
    if gpu.gpu.parent:
        return UNDER + cell(f"{gpu.gpu.label} {gpu.gpu.profile or 'MIG'}", GPU - len(UNDER))
    return named(gpu.gpu.number, gpu.gpu.name, gpu.model)


@lru_cache(maxsize=4096)
def named(number: Number, name: str | None, model: str) -> str:
    """The same; where the driver's name for it is too long, what people call it."""
    before = f"{NOT_TOLD if number is None else number:>2}:"
    full = driver_name(name)
    return before + cell(full if width(full) <= GPU - len(before) else model, max(1, GPU - len(before)))


def readings(gpu: BoardGpu) -> str:
    """The cells of its memory in MiB, its use and its temperature."""
    told = gpu.gpu
    used, total, use, temperature = told.memory_used, told.memory_total, told.utilization_gpu, told.temperature
    if used is not None and total is not None and use is not None and temperature is not None:
        text = f"|{used:7.0f} /{total:7.0f} |{use:6.0f} %|{temperature:4.0f} °C"
        if len(text) == len(NO_READINGS):
            return text
    return odd_readings(used, total, use, temperature)


@lru_cache(maxsize=1000)
def odd_readings(used: float | None, total: float | None, use: float | None, temperature: float | None) -> str:
    """The same, where one is not told, or beyond all sense."""
    memory = fit(f"{number(used):>7} /{number(total):>7} ", MEMORY)
    percent, degrees = (
        fit(f"{number(use)} %", USE, right=True),
        fit(f"{number(temperature)} °C", TEMPERATURE, right=True),
    )
    return f"|{memory}|{percent}|{degrees}"


def marks(board: BoardHost) -> Iterator[tuple[str, str]]:
    """Each state that has a colour, with the GPUs that are in it, and those that have a problem; that of a host that is
    not fresh is in its row. What is free and has a problem that keeps people off is not called free."""
    if board.state != "fresh":
        return
    found: dict[str, list[str]] = {}
    wrong: dict[str, None] = {}
    for one in board.gpus:
        if one.problems and one.state != "lost" and of_note(one.problems):
            wrong[(one.gpu.parent or one.gpu).label] = None
        if one.state in COLOURS and not (one.state == "free" and one.avoid):
            found.setdefault(one.state, []).append(one.gpu.label)
    if wrong:
        found[WRONG] = list(wrong)
    for state, indexes in found.items():
        yield state, f"{board.name}:{','.join(indexes)}"


def term(parts: Sequence[Part], version: str, now: Now, colour: bool = False) -> bytes:
    """The table, and below it which GPUs are free, which are in other states of note, and when it was built."""
    titles = "|".join(f" {title}".ljust(size) for title, size in zip(TITLES, WIDTHS))
    above = f"+{'-' * (ALL - 2)}+\n| {cell(f'gpuboard {version}', ALL - 14)} gpu info. |\n{FRAME}|{titles}|\n{FRAME}"
    below = "".join([*list_of(parts), f"built: {now.local.isoformat(' ', 'seconds')}\n"]).encode()
    frame = FRAME.encode()
    rows = [piece for one in parts for piece in (one.colour if colour else one.plain, frame)]
    return b"".join((above.encode(), *rows, below))


def list_of(parts: Sequence[Part]) -> Iterator[str]:
    """The lines of each state; that none is free is said, that none is lost is not."""
    found: dict[str, list[str]] = {state: [] for state in (*COLOURS, WRONG)}
    for one in parts:
        for state, several in one.marks:
            found[state].append(several)
    for state, hosts in found.items():
        if hosts or state == "free":
            yield wrapped(f"{state}:", hosts or ["none"])


def wrapped(line: str, words: Sequence[str]) -> str:
    """Lines of at most so many cells as the table has; a word that is longer than that has one of its own."""
    lines = []
    for word in words:
        if len(line) + 1 + len(word) > ALL and line.strip():
            lines.append(line)
            line = f"  {word}"
        else:
            line = f"{line} {word}"
    return "".join([f"{one}\n" for one in (*lines, line)])
