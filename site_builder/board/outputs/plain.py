"""What the texts for terminals and the JSON shapes of other systems share."""

from __future__ import annotations

from datetime import datetime, tzinfo
from functools import lru_cache

from site_builder.core.model import BoardGpu, BoardHost, BoardProcess, Number
from site_builder.core.terminal_text import fit, one_line
from site_builder.fleet.processes import program

NOT_TOLD = "?"
MAKER = "NVIDIA "
# Where no process of a GPU is told and it is in one of these states, there is none.
EMPTY = frozenset({"free", "booked"})


@lru_cache(maxsize=20_000)
def cell(text: str, exactly: int, right: bool = False) -> str:
    """Any text in just so many cells of a line."""
    return fit(one_line(text), exactly, right)


@lru_cache(maxsize=20_000)
def cell_bytes(text: str, exactly: int) -> bytes:
    """The same in UTF-8."""
    return cell(text, exactly).encode()


def whole(value: float | None) -> int | None:
    """A number without its fraction: other systems have none."""
    return None if value is None else round(value)


def number(value: float | None) -> str:
    """The same as a text."""
    return NOT_TOLD if value is None else f"{value:.0f}"


def index_of(number_of: Number) -> int | None:
    """The index of a GPU by what it is called: an instance 0:1 has that of its GPU."""
    digits = "" if number_of is None else str(number_of).partition(":")[0].lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits.isdecimal() else None


def available(gpu: BoardGpu) -> float | None:
    """How much of its memory nobody has taken."""
    used, total = gpu.gpu.memory_used, gpu.gpu.memory_total
    return None if used is None or total is None else max(0, total - used)


def processes(gpu: BoardGpu) -> tuple[BoardProcess, ...] | None:
    """Those on a GPU; None where nobody knows whether there are any."""
    return gpu.processes or (() if gpu.state in EMPTY else None)


def addresses(board: BoardHost) -> list[tuple[str, str]]:
    """Interfaces and their addresses, without the size of their network."""
    return [(name, address.partition("/")[0]) for name, address in (board.facts.interfaces if board.facts else ())]


def moment(epoch: float, zone: tzinfo, form: str) -> str:
    """Whole seconds in the zone of the board; a host can claim any time, but before 1970 there was none."""
    return datetime.fromtimestamp(max(0, int(epoch)), zone).strftime(form)


def stamp(epoch: float | None, zone: tzinfo) -> str | None:
    """`2019/03/24 20:00:00.000`."""
    return None if epoch is None else moment(epoch, zone, "%Y/%m/%d %H:%M:%S.000")


@lru_cache(maxsize=20_000)
def program_of(command: str | None) -> str | None:
    """The name of the program of a command."""
    return None if command is None else program(command)


@lru_cache(maxsize=20_000)
def bare(command: str | None) -> str:
    """A command without the folders of its program."""
    if command is None:
        return NOT_TOLD
    first, blank, rest = command.partition(" ")
    return f"{program(first)}{blank}{rest}" if first else command


@lru_cache(maxsize=4096)
def driver_name(name: str | None) -> str:
    """What the driver calls a GPU, without the maker, which all have in common."""
    if name is None:
        return NOT_TOLD
    return name[len(MAKER) :] if name.startswith(MAKER) else name
