"""The tools that report GPUs, and their parsers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple, TypeVar

from site_builder.core import terminal_text
from site_builder.core.model import Gpu, GpuProcessRow, ParsedFile, ToolResult
from site_builder.core.terminal_text import limit_problems
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import ToolOutput, ToolParts
from site_builder.snapshots.parsers import nvidia_csv

Row = TypeVar("Row")
# The form of a file that has no parts.
DEFAULT_FORMAT = "nvidia-csv"


class GpuTool(NamedTuple):
    """What it is called, whose GPUs it tells, and who reads what it tells."""

    name: str
    vendor: str
    parse_gpus: Callable[[ToolParts], ToolOutput[Gpu]]
    parse_processes: Callable[[ToolParts], ToolOutput[GpuProcessRow]]


def load_parser_lazily(
    module: str,
) -> tuple[Callable[[ToolParts], ToolOutput[Gpu]], Callable[[ToolParts], ToolOutput[GpuProcessRow]]]:
    """Return the two functions of a parser, which is imported when a host first needs it."""

    def parse_gpus(parts: ToolParts) -> ToolOutput[Gpu]:
        output: ToolOutput[Gpu] = import_module(f"site_builder.snapshots.parsers.{module}").parse_gpus(parts)
        return output

    def parse_processes(parts: ToolParts) -> ToolOutput[GpuProcessRow]:
        parser = import_module(f"site_builder.snapshots.parsers.{module}")
        output: ToolOutput[GpuProcessRow] = parser.parse_processes(parts)
        return output

    return parse_gpus, parse_processes


GPU_TOOLS = {
    "nvidia-csv": GpuTool("nvidia-smi", "nvidia", nvidia_csv.parse_gpus, nvidia_csv.parse_processes),
    "amd-smi": GpuTool("amd-smi", "amd", *load_parser_lazily("amd_smi")),
    "rocm-smi": GpuTool("rocm-smi", "amd", *load_parser_lazily("rocm_smi")),
    "nvidia-xml": GpuTool("nvidia-smi", "nvidia", *load_parser_lazily("nvidia_xml")),
}


def parse_tool_rows(
    data: bytes, task: str, read: Callable[[GpuTool, ToolParts], ToolOutput[Row]]
) -> tuple[ParsedFile[Row], list[tuple[GpuTool, tuple[Row, ...]]]]:
    """A file without its rows, and the rows of each tool."""
    dump, parts = envelope.split_snapshot_parts(data, task, DEFAULT_FORMAT)
    problems = list(dump.problems)
    voices: list[ToolResult] = []
    rows: list[tuple[GpuTool, tuple[Row, ...]]] = []
    unreported: dict[str, str] = {}
    for name, pieces in parts.items():
        tool = GPU_TOOLS.get(name)
        if tool is None:
            problems.append(f"it has a part {name}, which this gpuboard does not know: is it older than the host's?")
            continue
        found = read(tool, pieces)
        code = next((piece.rc for piece in pieces.values() if piece.rc), 0)
        said = [word for piece in pieces.values() for word in piece.messages]
        voices.append(
            ToolResult(
                tool.name,
                tool.vendor,
                code,
                (*said, *found.messages)[: 2 * terminal_text.MAX_MESSAGES],
                found.is_complete,
            )
        )
        problems += found.problems
        rows.append((tool, found.rows))
        unreported.update(found.unreported)
    told_in_all = tuple(word for voice in voices for word in voice.messages)
    return ParsedFile((), dump.header, dump.is_complete, told_in_all, tuple(problems), tuple(voices), unreported), rows


MAX_GPUS = 1024


def parse_gpus_csv(data: bytes) -> ParsedFile[Gpu]:
    """Each GPU once, in the order of its number; those of a second maker come behind, and have its name in theirs."""
    dump, rows = parse_tool_rows(data, "gpus", lambda tool, pieces: tool.parse_gpus(pieces))
    problems = list(dump.problems)
    kept: list[Gpu] = []
    makers: set[str] = set()
    for tool, found in rows:
        if found and tool.vendor in makers:
            problems.append(f"GPUs of {tool.vendor} are told by two parts; the first part counts")
            continue
        makers |= {tool.vendor} if found else set()
        several = sorted(drop_duplicate_gpus(found, problems), key=lambda one: (one.index is None, one.index or 0))
        # also where the first maker tells no GPU just now: what a booking calls amd0 must not become 0
        if tool.vendor != rows[0][0].vendor:
            several = [one._replace(place=f"{tool.vendor}{one.label}") for one in several]
        kept += several
    if len(kept) > MAX_GPUS:
        problems.append(f"{len(kept)} GPUs are told; only the first {MAX_GPUS} count")
    return replace(dump, rows=tuple(kept[:MAX_GPUS]), problems=limit_problems(problems))


def drop_duplicate_gpus(found: tuple[Gpu, ...], problems: list[str]) -> list[Gpu]:
    """Each GPU once. A row of nothing but errors belongs to the message before it."""
    kept: list[Gpu] = []
    uuids: set[str] = set()
    for one in found:
        if one.uuid is None and one.index is None and one.lost and kept and kept[-1].lost and kept[-1].uuid is None:
            continue
        if one.uuid is not None and one.uuid in uuids:
            problems.append(f"the GPU {one.uuid} is told twice; the first row counts")
            continue
        if one.uuid is not None:
            uuids.add(one.uuid)
        kept.append(one)
    return kept


MAX_PROCESSES = 10_000


def parse_processes_csv(data: bytes) -> ParsedFile[GpuProcessRow]:
    """Every row of every tool."""
    dump, rows = parse_tool_rows(data, "processes", lambda tool, pieces: tool.parse_processes(pieces))
    found = [row for _, several in rows for row in several]
    problems = list(dump.problems)
    voices = dump.tool_results
    if len(found) > MAX_PROCESSES:
        problems.append(f"{len(found)} GPU processes are told; only the first {MAX_PROCESSES} count")
        voices = tuple(one._replace(is_complete=False) for one in voices)  # no GPU is free for want of the others
    return replace(dump, rows=tuple(found[:MAX_PROCESSES]), problems=limit_problems(problems), tool_results=voices)
