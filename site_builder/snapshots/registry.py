"""The tools that tell GPUs and the processes on them, by the form of what they tell: a new one is a line here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, TypeVar

from site_builder.core.model import Dump, Gpu, GpuProcess, Voice
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import Pieces
from site_builder.snapshots.parse_result import Understood
from site_builder.snapshots.parsers import nvidia_csv

Row = TypeVar("Row")
# The form of a file that has no parts.
PLAIN = "nvidia-csv"


class Tool(NamedTuple):
    """What it is called, whose GPUs it tells, and who reads what it tells."""

    name: str
    vendor: str
    gpus: Callable[[Pieces], Understood[Gpu]]
    processes: Callable[[Pieces], Understood[GpuProcess]]


def late(module: str) -> tuple[Callable[[Pieces], Understood[Gpu]], Callable[[Pieces], Understood[GpuProcess]]]:
    """The two functions of a reader that most fleets do not need: it is imported when a host has such a GPU."""

    def gpus(pieces: Pieces) -> Understood[Gpu]:
        found: Understood[Gpu] = import_module(f"site_builder.snapshots.parsers.{module}").gpus(pieces)
        return found

    def processes(pieces: Pieces) -> Understood[GpuProcess]:
        found: Understood[GpuProcess] = import_module(f"site_builder.snapshots.parsers.{module}").processes(pieces)
        return found

    return gpus, processes


TOOLS = {
    "nvidia-csv": Tool("nvidia-smi", "nvidia", nvidia_csv.gpus, nvidia_csv.processes),
    "amd-smi": Tool("amd-smi", "amd", *late("amd_smi")),
    "rocm-smi": Tool("rocm-smi", "amd", *late("rocm_smi")),
    "nvidia-xml": Tool("nvidia-smi", "nvidia", *late("nvidia_xml")),
}


def told(
    data: bytes, task: str, read: Callable[[Tool, Pieces], Understood[Row]]
) -> tuple[Dump[Row], list[tuple[Tool, tuple[Row, ...]]]]:
    """A file without its rows, and the rows of each tool."""
    dump, parts = envelope.parts(data, task, PLAIN)
    problems = list(dump.problems)
    voices: list[Voice] = []
    rows: list[tuple[Tool, tuple[Row, ...]]] = []
    unreported: dict[str, str] = {}
    for name, pieces in parts.items():
        tool = TOOLS.get(name)
        if tool is None:
            problems.append(f"it has a part {name}, which this gpuboard does not know: is it older than the host's?")
            continue
        found = read(tool, pieces)
        code = next((piece.rc for piece in pieces.values() if piece.rc), 0)
        said = [word for piece in pieces.values() for word in piece.said]
        voices.append(
            Voice(tool.name, tool.vendor, code, (*said, *found.said)[: 2 * envelope.MOST_SAID], found.answered)
        )
        problems += found.problems
        rows.append((tool, found.rows))
        unreported.update(found.unreported)
    told_in_all = tuple(word for voice in voices for word in voice.said)
    return Dump((), dump.header, dump.whole, told_in_all, tuple(problems), tuple(voices), unreported), rows
