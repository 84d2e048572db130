"""What the texts for terminals and the JSON shapes of other systems share."""

from __future__ import annotations

from datetime import datetime, tzinfo
from functools import lru_cache

from site_builder.core.model import GpuStatus, HostStatus, ProcessStatus
from site_builder.core.terminal_text import fit_text, flatten_text
from site_builder.fleet.processes import extract_program_name

UNKNOWN_CELL = "?"
NVIDIA_PREFIX = "NVIDIA "
# Where no process of a GPU is told and it is in one of these states, there is none.
EMPTY_STATES = frozenset({"free", "booked"})


@lru_cache(maxsize=20_000)
def fit_cell(text: str, exactly: int, right: bool = False) -> str:
    """Any text in just so many cells of a line."""
    return fit_text(flatten_text(text), exactly, right)


@lru_cache(maxsize=20_000)
def fit_cell_bytes(text: str, exactly: int) -> bytes:
    """The same in UTF-8."""
    return fit_cell(text, exactly).encode()


def round_value(value: float | None) -> int | None:
    """A number without its fraction: other systems have none."""
    return None if value is None else round(value)


def format_number(value: float | None) -> str:
    """The same as a text."""
    return UNKNOWN_CELL if value is None else f"{value:.0f}"


def compute_unused_memory(gpu: GpuStatus) -> float | None:
    """How much of its memory nobody has taken."""
    used, total = gpu.gpu.memory_used, gpu.gpu.memory_total
    return None if used is None or total is None else max(0, total - used)


def list_known_processes(gpu: GpuStatus) -> tuple[ProcessStatus, ...] | None:
    """Those on a GPU; None where nobody knows whether there are any."""
    return gpu.processes or (() if gpu.state in EMPTY_STATES else None)


def list_addresses(board: HostStatus) -> list[tuple[str, str]]:
    """Interfaces and their addresses, without the size of their network."""
    return [(name, address.partition("/")[0]) for name, address in (board.facts.interfaces if board.facts else ())]


def format_local_epoch(epoch: float, zone: tzinfo, form: str) -> str:
    """Whole seconds in the zone of the board; a host can claim any time, but before 1970 there was none."""
    return datetime.fromtimestamp(max(0, int(epoch)), zone).strftime(form)


def format_vesta_time(epoch: float | None, zone: tzinfo) -> str | None:
    """`2019/03/24 20:00:00.000`."""
    return None if epoch is None else format_local_epoch(epoch, zone, "%Y/%m/%d %H:%M:%S.000")


@lru_cache(maxsize=20_000)
def extract_program_cached(command: str | None) -> str | None:
    """The name of the program of a command."""
    return None if command is None else extract_program_name(command)


@lru_cache(maxsize=20_000)
def strip_command_folder(command: str | None) -> str:
    """A command without the folders of its program."""
    if command is None:
        return UNKNOWN_CELL
    first, blank, rest = command.partition(" ")
    return f"{extract_program_name(first)}{blank}{rest}" if first else command


@lru_cache(maxsize=4096)
def strip_nvidia_prefix(name: str | None) -> str:
    """What the driver calls a GPU, without the maker, which all have in common."""
    if name is None:
        return UNKNOWN_CELL
    return name[len(NVIDIA_PREFIX) :] if name.startswith(NVIDIA_PREFIX) else name
