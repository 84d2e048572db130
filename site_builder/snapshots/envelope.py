"""The form of the files that a host sends: header, parts, and several files in one stream."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from site_builder.core import terminal_text
from site_builder.core.model import ParsedFile, SnapshotHeader
from site_builder.core.terminal_text import MAX_MESSAGES, decode_text

Item = TypeVar("Item")

HEADER_LINE = re.compile(
    r"# gpuboard (\d{1,4}) task=([a-z]{1,20}) host=(\S{1,200}) "
    r"time=(\d{1,12}) every=(\d{1,6}) took_ms=(-?\d{1,9}) rc=(\d{1,5})$"
)
# What one tool told, of several in a file: `# part nvidia-xml rc=0`; of one that is asked twice `amd-smi/metric`.
PART_LINE = re.compile(r"# part ([a-z][a-z0-9-]{0,30})(?:/([a-z][a-z0-9-]{0,30}))? rc=(\d{1,5})$")
PART_MARK = b"\n# part "
MAX_PARTS = 20
MAX_HEADER_BYTES = 500
# Of more problems than these nothing but the number would be told.
MAX_NOTED_PROBLEMS = 1000
# No tool has as many columns.
MAX_COLUMNS = 1000
# The signs that the first line and the last begin with.
HEADER_AND_END_MARKS = "##"
AS_OF_PREFIX = b"# as of "
TORN_MESSAGE = "the file is torn: it has no end"


class SnapshotPart(NamedTuple):
    """What a tool answered to one question: its exit code, its lines, and what it said on stderr."""

    rc: int
    lines: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


# What one tool answered in all, by the name of each question; one that is asked but one has it under the empty name.
ToolParts = dict[str, SnapshotPart]


def take_first(lines: Sequence[Item], most: int, what: str, problems: list[str]) -> Sequence[Item]:
    """Take as many as are read, before anybody walks through them; that there are more is a problem."""
    if len(lines) <= most:
        return lines
    problems.append(f"{len(lines)} {what} are told; only the first {most} count")
    return lines[:most]


def note_problem(problems: list[str], what: str) -> None:
    """Add a problem, unless there are more than anybody wants to count."""
    if len(problems) < MAX_NOTED_PROBLEMS:
        problems.append(what)


def parse_snapshot_header(data: bytes, task: str) -> tuple[SnapshotHeader | None, str]:
    """What the first line says, or why it cannot be that of a snapshot; `task` is what it should be."""
    return parse_header_line(data[:MAX_HEADER_BYTES].partition(b"\n")[0], task)


@lru_cache(maxsize=4096)
def parse_header_line(line: bytes, task: str) -> tuple[SnapshotHeader | None, str]:
    """The same of the line; it is asked when a file is read, and again when it is taken apart."""
    found = HEADER_LINE.match(line.decode("utf-8", "replace").rstrip("\r"))
    if not found:
        return None, "the first line is not that of a gpuboard snapshot"
    version, told_task, host, *numbers = found.groups()
    if version != "1":
        return None, f"it is of version {version} of the snapshot format, which this gpuboard does not know"
    if told_task != task:
        return None, f"it is a snapshot of {told_task}, not of {task}"
    time, every, took_ms, rc = map(int, numbers)
    return SnapshotHeader(told_task, host, time, every, took_ms, rc), ""


def has_end_line(data: bytes) -> bool:
    """Whether the last line is the one that ends a snapshot."""
    return data[-10:].rstrip(b"\r\n").endswith(b"\n# end")


def insert_as_of_line(data: bytes, moment: float) -> bytes:
    """The file with a second line that says from when it is, where it is written down only now."""
    first, _, rest = data.partition(b"\n")
    # a first line may end in any number of these, and would hide the second
    return b"%s\n%s%d\n%s" % (first.rstrip(b"\r"), AS_OF_PREFIX, moment, rest)


def parse_as_of_line(data: bytes) -> float:
    """From when the file is at the latest, if its second line says so."""
    second = data[:MAX_HEADER_BYTES].partition(b"\n")[2].partition(b"\n")[0]
    told = second[len(AS_OF_PREFIX) :]
    return float(told) if second.startswith(AS_OF_PREFIX) and told.isdigit() and len(told) <= 12 else float("inf")


def split_snapshot_parts(data: bytes, task: str, plain: str) -> tuple[ParsedFile[str], dict[str, ToolParts]]:
    """Take a file apart into what each tool told, by the tool's form; `plain` is that of a file that has no parts."""
    if PART_MARK not in data:
        dump = split_snapshot_lines(data, task)
        code = dump.header.rc if dump.header else 0
        return dump, {plain: {"": SnapshotPart(code, dump.rows, dump.messages)}} if dump.header else {}
    first, problem = parse_snapshot_header(data, task)
    if first is None:
        return ParsedFile(is_complete=False, problems=(problem,)), {}
    whole = has_end_line(data)
    lines = decode_text(data).rstrip("\n").split("\n")[1 : -1 if whole else None]
    problems = [] if whole else [TORN_MESSAGE]
    found = group_lines_by_part(lines, problems)
    return ParsedFile((), first, whole, problems=tuple(problems)), found


def group_lines_by_part(lines: Iterable[str], problems: list[str]) -> dict[str, ToolParts]:
    """The parts of a file; one that cannot be one is told, and what stands in it is nobody's."""
    parts: dict[tuple[str, str], tuple[int, list[str], list[str]]] = {}
    told: list[str] = []
    said: list[str] = []
    for line in lines:
        if line.startswith("# part "):
            told, said = [], []
            match = PART_LINE.match(line)
            key = (match[1], match[2] or "") if match else None
            if match is None or key is None:
                note_problem(problems, f"a part that cannot be read: {line[:80]}")
            elif key in parts:
                note_problem(problems, f"it has the {line[2:80]} twice")
            elif len(parts) >= MAX_PARTS:
                problems.append("it has too many parts; the rest does not count")
                break
            else:
                parts[key] = int(match[3]), told, said
        elif line.startswith("# err "):
            said.append(line[6:].strip())
        elif line and not line.startswith("#"):
            told.append(line)
    found: dict[str, ToolParts] = {}
    for (form, name), (code, rows, words) in parts.items():
        found.setdefault(form, {})[name] = SnapshotPart(code, tuple(rows), tuple(words[:MAX_MESSAGES]))
    return found


def split_snapshot_lines(data: bytes, task: str) -> ParsedFile[str]:
    """Take a file apart into its lines; `task` is what it should be."""
    first, problem = parse_snapshot_header(data, task)
    if first is None:
        return ParsedFile(is_complete=False, problems=(problem,))
    text = decode_text(data).rstrip("\n")
    whole = has_end_line(data)
    lines = text.split("\n")[1 : -1 if whole else None]
    said: list[str] = []
    # to look for one letter takes a fraction of the time that it takes for two
    if not whole or text.count("#") > len(HEADER_AND_END_MARKS) or "" in lines:
        said = [line[6:].strip() for line in lines if line.startswith("# err ")]
        lines = [line for line in lines if line and not line.startswith("#")]
    return ParsedFile(tuple(lines), first, whole, tuple(said[:MAX_MESSAGES]), () if whole else (TORN_MESSAGE,))


Row = TypeVar("Row")
# How a problem begins that may have cost a GPU.
BAD_ROW_PREFIX = "a row has "
MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True)
class ToolOutput(Generic[Row]):
    """Of one tool; `answered` is False where it did not get as far as telling all of its rows.

    `unreported` has the GPUs, by their handles, whose processes it did not report, each with its words.
    """

    rows: tuple[Row, ...] = ()
    messages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_complete: bool = True
    unreported: Mapping[str, str] = field(default_factory=dict)


FILES_BY_TASK = {"gpus": "gpus.csv", "processes": "processes.csv", "ps": "ps.txt", "host": "host.txt"}
# As much as data/ would be read of one file; half a megabyte in gzip can be half a gigabyte of nothing.
MAX_BUNDLE_BYTES = 8 * 1024 * 1024
GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
HEADER_START = re.compile(rb"# gpuboard \d{1,4} task=([a-z]{1,20}) ")
END_LINE = b"\n# end\n"


class Bundle(NamedTuple):
    """The files by their names, host.txt last; when that was written by the host's own clock; or what is wrong."""

    files: dict[str, bytes]
    host_time: int | None = None
    problem: str | None = None


def parse_bundle(value: bytes, host: str) -> Bundle:
    """What a host put there; of one that is not whole, or not of this host, nothing counts."""
    try:
        content = decompress_bundle(value)
        parts = content.split(END_LINE)
        if parts.pop():
            raise InvalidBundleError(TORN_MESSAGE)
        found = {}
        for part in parts:
            name, header = parse_part_header(part, host)
            if name in found:
                message = f"it has {name} twice"
                raise InvalidBundleError(message)
            found[name] = header.time, part + END_LINE
        if not found:
            message = "it is empty"
            raise InvalidBundleError(message)
    except InvalidBundleError as why:
        return Bundle({}, problem=str(why))
    files = {name: found[name][1] for name in FILES_BY_TASK.values() if name in found}
    return Bundle(files, found["host.txt"][0] if "host.txt" in found else None)


class InvalidBundleError(Exception):
    """Why a value is not that of a host, in words."""


def decompress_bundle(value: bytes) -> bytes:
    """All that is in it, up to a limit."""
    unzip = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        content = unzip.decompress(value, MAX_BUNDLE_BYTES + 1)
    except zlib.error:
        message = "it is not in gzip" if value[:2] != b"\x1f\x8b" else "its gzip is damaged"
        raise InvalidBundleError(message) from None
    if len(content) > MAX_BUNDLE_BYTES:
        message = f"it has more than the {MAX_BUNDLE_BYTES >> 20} MB that are read"
        raise InvalidBundleError(message)
    if not value:
        message = "it is empty"
        raise InvalidBundleError(message)
    if not unzip.eof or unzip.unused_data:
        message = "its gzip has no end" if not unzip.eof else "there is more behind the end of its gzip"
        raise InvalidBundleError(message)
    return content


def parse_part_header(part: bytes, host: str) -> tuple[str, SnapshotHeader]:
    """Which file it is, and its first line."""
    found = HEADER_START.match(part)
    task = found[1].decode() if found else ""
    if task not in FILES_BY_TASK:
        message = f"it has a snapshot of {task}, which nobody knows" if task else "it is not a snapshot of gpuboard"
        raise InvalidBundleError(message)
    header, problem = parse_snapshot_header(part, task)
    if header is None:
        raise InvalidBundleError(problem)
    if header.host != host:
        message = f"it says host={terminal_text.clean_text(header.host[:80])}, which is not its key's name"
        raise InvalidBundleError(message)
    return FILES_BY_TASK[task], header
