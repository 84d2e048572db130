"""Parse the form of the files that a host sends: header, parts, and several files in one stream."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from site_builder.core.model import ParsedFile, SnapshotHeader
from site_builder.core.terminal_text import MAX_MESSAGES, clean_text, decode_text

Item = TypeVar("Item")
Row = TypeVar("Row")

FILES_BY_TASK = {"host": "host.txt", "gpus": "gpus.csv", "processes": "processes.csv", "ps": "ps.txt"}
TASKS_BY_FILE = {file: task for task, file in FILES_BY_TASK.items()}
# host.txt is written last: once it is there, so are the others.
WRITE_ORDER = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")
HEADER_LINE = re.compile(
    r"# gpuboard (\d{1,4}) task=([a-z]{1,20}) host=(\S{1,200}) "
    r"time=(\d{1,12}) every=(\d{1,6}) took_ms=(-?\d{1,9}) rc=(\d{1,5})$"
)
# Before the output of one tool of several, `# part nvidia-xml rc=0`, or of one query of several, `amd-smi/metric`.
PART_LINE = re.compile(r"# part ([a-z][a-z0-9-]{0,30})(?:/([a-z][a-z0-9-]{0,30}))? rc=(\d{1,5})$")
PART_MARK = b"\n# part "
AS_OF_PREFIX = b"# as of "
END_LINE = b"\n# end\n"
TORN_MESSAGE = "the file is incomplete: its end is missing"
# The first line and the last have one `#` each.
HEADER_AND_END_MARKS = 2
MAX_PARTS = 20
MAX_HEADER_BYTES = 500
MAX_NOTED_PROBLEMS = 1000
# No tool has as many columns.
MAX_COLUMNS = 1000
MAX_NAME_CHARACTERS = 200

# As much as is read of one file in data/; half a megabyte in gzip can be half a gigabyte of nothing.
MAX_BUNDLE_BYTES = 8 * 1024 * 1024
GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
HEADER_START = re.compile(rb"# gpuboard \d{1,4} task=([a-z]{1,20}) ")


class SnapshotPart(NamedTuple):
    """The output of a tool for one query: its exit code, its lines, and its lines on stderr."""

    rc: int
    lines: Sequence[str] = ()
    messages: Sequence[str] = ()


# The output of one tool by the name of each query; the name is empty for a tool with a single query.
ToolParts = dict[str, SnapshotPart]


@dataclass(frozen=True)
class ToolOutput(Generic[Row]):
    """What a parser made of the parts of one tool; `is_complete` is False where the tool did not report all rows.

    `unreported` has the GPUs, by their process keys, whose processes it did not report, each with its words.
    `has_missing_gpu` is True where a GPU was reported in a form that could not be read.
    """

    rows: tuple[Row, ...] = ()
    messages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_complete: bool = True
    unreported: Mapping[str, str] = field(default_factory=dict)
    has_missing_gpu: bool = False


class Bundle(NamedTuple):
    """The files of a host by name, in WRITE_ORDER; when that was written by the host's clock; or what is wrong."""

    files: dict[str, bytes]
    host_time: int | None = None
    problem: str | None = None


def take_first_envelope_lines(items: Sequence[Item], limit: int, what: str, problems: list[str]) -> Sequence[Item]:
    """Return at most `limit` items; add a problem if there are more."""
    if len(items) <= limit:
        return items
    problems.append(f"{len(items)} {what} are reported; only the first {limit} are used")
    return items[:limit]


def note_envelope_problem(problems: list[str], problem: str) -> None:
    """Add a problem, unless there are more than anybody wants to count."""
    if len(problems) < MAX_NOTED_PROBLEMS:
        problems.append(problem)


def parse_snapshot_header(data: bytes, task: str) -> tuple[SnapshotHeader | None, str]:
    """Parse the first line of a snapshot of `task`, or return what is wrong with it."""
    return parse_envelope_header_line(data[:MAX_HEADER_BYTES].partition(b"\n")[0], task)


# The header is parsed when a file is read, and again when its rows are parsed.
@lru_cache(maxsize=4096)
def parse_envelope_header_line(line: bytes, task: str) -> tuple[SnapshotHeader | None, str]:
    match = HEADER_LINE.match(line.decode("utf-8", "replace").rstrip("\r"))
    if not match:
        return None, "the first line is not a gpuboard snapshot header"
    version, reported_task, host, *numbers = match.groups()
    if version != "1":
        return None, f"its snapshot format has version {version}, which this gpuboard does not support"
    if reported_task != task:
        return None, f"it is a snapshot of {reported_task}, not of {task}"
    time, every, took_ms, rc = map(int, numbers)
    return SnapshotHeader(reported_task, host, time, every, took_ms, rc), ""


def has_envelope_end(data: bytes) -> bool:
    return data[-10:].rstrip(b"\r\n").endswith(b"\n# end")


def insert_envelope_as_of_line(data: bytes, moment: float) -> bytes:
    """Add a second line with the time of a file that is written later than that."""
    first, _, rest = data.partition(b"\n")
    # a first line may end in any number of these, and would hide the second
    return b"%s\n%s%d\n%s" % (first.rstrip(b"\r"), AS_OF_PREFIX, moment, rest)


def parse_envelope_as_of_line(data: bytes) -> float:
    """Return the time in the second line, or infinity where it has none."""
    second = data[:MAX_HEADER_BYTES].partition(b"\n")[2].partition(b"\n")[0]
    digits = second[len(AS_OF_PREFIX) :]
    is_time = second.startswith(AS_OF_PREFIX) and digits.isdigit() and len(digits) <= 12
    return float(digits) if is_time else float("inf")


def split_snapshot_lines(data: bytes, task: str) -> ParsedFile[str]:
    """Split a file without parts into its lines."""
    header, problem = parse_snapshot_header(data, task)
    if header is None:
        return ParsedFile(is_complete=False, problems=(problem,))
    text = decode_text(data).rstrip("\n")
    is_complete = has_envelope_end(data)
    lines = text.split("\n")[1 : -1 if is_complete else None]
    messages: list[str] = []
    # to search for one character takes a fraction of the time that it takes to search for two
    if not is_complete or text.count("#") > HEADER_AND_END_MARKS or "" in lines:
        messages = [line[6:].strip() for line in lines if line.startswith("# err ")]
        lines = [line for line in lines if line and not line.startswith("#")]
    problems = () if is_complete else (TORN_MESSAGE,)
    return ParsedFile(tuple(lines), header, is_complete, tuple(messages[:MAX_MESSAGES]), problems)


def split_snapshot_parts(data: bytes, task: str, default_format: str) -> tuple[ParsedFile[str], dict[str, ToolParts]]:
    """Split a file into the parts of each tool; a file without parts is one part in `default_format`.

    The lines of a part with a bad header are left out.
    """
    if PART_MARK not in data:
        file = split_snapshot_lines(data, task)
        if file.header is None:
            return file, {}
        return file, {default_format: {"": SnapshotPart(file.header.rc, file.rows, file.messages)}}
    header, problem = parse_snapshot_header(data, task)
    if header is None:
        return ParsedFile(is_complete=False, problems=(problem,)), {}
    is_complete = has_envelope_end(data)
    lines = decode_text(data).rstrip("\n").split("\n")[1 : -1 if is_complete else None]
    problems = [] if is_complete else [TORN_MESSAGE]
    parts_by_tool: dict[str, ToolParts] = {}
    rows: list[str] = []
    messages: list[str] = []
    for line in lines:
        if line.startswith("# part "):
            rows, messages = [], []
            match = PART_LINE.match(line)
            if match is None:
                note_envelope_problem(problems, f"an unreadable part: {line[:80]}")
            elif (match[2] or "") in parts_by_tool.get(match[1], {}):
                note_envelope_problem(problems, f"it has the {line[2:80]} twice")
            elif sum(map(len, parts_by_tool.values())) >= MAX_PARTS:
                problems.append("it has too many parts; the rest is ignored")
                break
            else:
                parts_by_tool.setdefault(match[1], {})[match[2] or ""] = SnapshotPart(int(match[3]), rows, messages)
        elif line.startswith("# err "):
            if len(messages) < MAX_MESSAGES:
                messages.append(line[6:].strip())
        elif line and not line.startswith("#"):
            rows.append(line)
    return ParsedFile((), header, is_complete, problems=tuple(problems)), parts_by_tool


def parse_bundle(value: bytes, host: str) -> Bundle:
    """Split the value that a host stored in Consul into its files; one that is torn or of another host has none."""
    decompressor = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        content = decompressor.decompress(value, MAX_BUNDLE_BYTES + 1)
    except zlib.error:
        return Bundle({}, problem="it is not gzip data" if value[:2] != b"\x1f\x8b" else "its gzip data is damaged")
    if len(content) > MAX_BUNDLE_BYTES:
        return Bundle({}, problem=f"it is larger than {MAX_BUNDLE_BYTES >> 20} MB")
    if not value:
        return Bundle({}, problem="it is empty")
    if not decompressor.eof:
        return Bundle({}, problem="its gzip data is cut off")
    if decompressor.unused_data:
        return Bundle({}, problem="it has data after the end of its gzip data")
    texts = content.split(END_LINE)
    if texts.pop():
        return Bundle({}, problem=TORN_MESSAGE)
    host_time: int | None = None
    files: dict[str, bytes] = {}
    for text in texts:
        match = HEADER_START.match(text)
        task = match[1].decode() if match else ""
        name = FILES_BY_TASK.get(task, "")
        header, problem = parse_snapshot_header(text, task)
        if not name:
            problem = f"it has a snapshot of {task}, which is unknown" if task else "it is not a snapshot of gpuboard"
        elif header and header.host != host:
            problem = f"it says host={clean_text(header.host[:80])}, which does not match its key"
        elif name in files:
            problem = f"it has {name} twice"
        if problem or header is None:
            return Bundle({}, problem=problem)
        files[name] = text + END_LINE
        if task == "host":
            host_time = header.time
    if not files:
        return Bundle({}, problem="it is empty")
    return Bundle({name: files[name] for name in WRITE_ORDER if name in files}, host_time)
