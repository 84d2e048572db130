"""The files of the original gpu-monitor scripts: `HOST_gpus.csv` and the rest, in data/ itself.

Their timestamps are the host's local time with no zone. They order the rows of a file, and tell the files of one host
apart in time; how old the data is, only the file's arrival tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice

from site_builder.core.model import Disk, DiskUse, Gpu, GpuProcessRow, HostFacts, ParsedFile, PsRow, ToolResult
from site_builder.core.terminal_text import MAX_MESSAGES, decode_text
from site_builder.snapshots.parsers.host_txt import MAX_LINES as MOST_FACTS
from site_builder.snapshots.parsers.host_txt import parse_disk_use
from site_builder.snapshots.parsers.nvidia_csv import HANDLE_ERROR, NO_PROCESS_CELLS, build_unreachable_gpu
from site_builder.snapshots.parsers.values import (
    find_lost_words,
    find_reading_error,
    parse_cell,
    parse_error_words,
    parse_integer,
    parse_number,
    split_cells,
)

LEGACY_FILES = ("gpus.csv", "processes.csv", "users.csv", "status.csv", "disks.csv", "local.txt")
TIMESTAMP = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)
PS_START_TIME = re.compile(r"(\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})", re.ASCII)
MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MIN_GPU_CELLS = 9
# So many lines are read of a file, the last ones where old rows stand before new ones; so many GPUs are kept.
MAX_LINES, MAX_GPUS = 20_000, 1024
# The interval of their loops, in seconds, which the files do not tell.
INTERVAL_S = 20
# A loop that finds no process writes nothing, so that old rows linger.
MAX_SAMPLE_SPREAD = timedelta(seconds=5)
MAX_SAMPLE_AGE = timedelta(seconds=90)
NOT_REPORTED_WORDS = "N/A"
OLD_ROW_ERROR = "the newest rows of its host have none of it"
PSTATE_CELL = re.compile(r"P\d{1,2}$")
# A name may have spaces in it, as those of a Windows domain do.
PS_LINE = re.compile(r"\s*(\d{1,9})\s+(\S(?:.{0,200}\S)?)\s+\w{3} (\w{3} +\d{1,2} \d\d:\d\d:\d\d \d{4})\s*$")
LOAD_AVERAGES = re.compile(r"load averages?: *([\d.,]+?),? +([\d.,]+?),? +([\d.,]+)$")


@lru_cache(maxsize=4096)
def parse_legacy_timestamp(cell: str) -> datetime | None:
    """The host's local time in a cell, `2018/10/04 09:12:01.123`; by hand, since strptime takes ten times as long."""
    found = TIMESTAMP.fullmatch(cell)
    if not found:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    try:
        return datetime(year, month, day, hour, minute, second, int(f"{found[7] or '':0<6}"))
    except ValueError:
        return None


def parse_legacy_gpus(data: bytes) -> tuple[ParsedFile[Gpu], datetime | None]:
    """The last row of each GPU, and when it was taken. There is no header, and error texts stand between the rows."""
    rows: dict[str, list[str]] = {}
    unreached: dict[str, Gpu] = {}
    said: list[str] = []
    newest: datetime | None = None
    for line in split_last_lines(data):
        row = split_cells(line)
        nameless = (
            len(row) >= MIN_GPU_CELLS
            and parse_error_words(row[1]) is not None
            and parse_legacy_timestamp(row[-1]) is not None
        )
        if len(row) >= MIN_GPU_CELLS and (row[1].startswith("GPU-") or nameless):
            taken = parse_legacy_timestamp(row[-1])
            newest = taken if newest is None or (taken and taken > newest) else newest
        if len(row) >= MIN_GPU_CELLS and row[1].startswith("GPU-"):
            rows[row[1]] = row
        elif match := HANDLE_ERROR.search(line):
            said.append(line.strip())
            unreached.setdefault(match[2], build_unreachable_gpu(match))
        elif line.strip():
            said.append(line.strip())
    reported = (
        mark_outdated_gpu(parse_legacy_gpu(row), parse_legacy_timestamp(row[-1]), newest)
        for row in islice(rows.values(), MAX_GPUS)
    )
    found = [*reported, *islice(unreached.values(), MAX_GPUS)]
    found.sort(key=lambda one: (one.index is None, one.index or 0))
    return ParsedFile(tuple(found), messages=tuple(said[:MAX_MESSAGES])), newest


def mark_outdated_gpu(found: Gpu, taken: datetime | None, newest: datetime | None) -> Gpu:
    """Mark a GPU whose last row is old: since then the driver prints errors in its place, or nothing."""
    old = taken is not None and newest is not None and newest - taken > MAX_SAMPLE_AGE
    return found._replace(error=found.error or OLD_ROW_ERROR) if old else found


def split_last_lines(data: bytes) -> list[str]:
    """The lines of a file, as many as are read."""
    return decode_text(data).split("\n")[-MAX_LINES:]


def parse_legacy_gpu(row: list[str]) -> Gpu:
    """One row: index, uuid, name, memory used and total, use of GPU and memory, temperature, timestamp."""
    index, uuid, name, *rest = row
    memory: tuple[float | None, float | None] = parse_number(rest[0]), parse_number(rest[1])
    if PSTATE_CELL.match(rest[1]):  # one fork has memory.free and the performance state there
        memory = None, None
        rest = [rest[0], *rest[2:]] if len(row) > MIN_GPU_CELLS else rest
    use, access, temperature = (parse_number(cell) for cell in rest[2:5])
    lost = find_lost_words(row)
    watched = zip(("memory", "memory", "use", "use", "temperature"), rest)
    error = find_reading_error([(what, cell) for what, cell in watched if not PSTATE_CELL.match(cell)])
    if error and not lost and memory[0] is None and use is None and temperature is None:
        lost = error[1]
    failed = f"its {error[0]} cannot be read: {error[1]}" if error else None
    return Gpu(parse_integer(index), uuid, parse_cell(name), *memory, use, access, temperature, lost=lost, error=failed)


def parse_legacy_processes(data: bytes, now: datetime | None) -> ParsedFile[GpuProcessRow]:
    """The newest sample: timestamp, gpu_uuid, used_gpu_memory, process_name, pid; `now` is that of the GPUs."""
    rows: list[tuple[datetime, GpuProcessRow]] = []
    said: list[str] = []
    for line in split_last_lines(data):
        left = line.split(", ", 3)
        name, comma, pid = left[3].rpartition(", ") if len(left) == 4 else ("", "", "")
        taken = parse_legacy_timestamp(left[0])
        if not comma or taken is None:
            if line.strip():
                said.append(line.strip())
            continue
        rows.append(
            (taken, GpuProcessRow(left[1], parse_integer(pid.strip()), parse_number(left[2]), parse_cell(name)))
        )
    newest = max((taken for taken, _ in rows), default=None)
    if newest is None or (now is not None and now - newest > MAX_SAMPLE_AGE):
        return ParsedFile(messages=tuple(said[:MAX_MESSAGES]))
    sample: dict[tuple[str, int | None], GpuProcessRow] = {}
    for taken, process in rows:
        if newest - taken <= MAX_SAMPLE_SPREAD:
            sample[process.gpu_key, process.pid] = process
    return drop_unreported_rows(sample.values(), said)


def drop_unreported_rows(sample: Collection[GpuProcessRow], said: list[str]) -> ParsedFile[GpuProcessRow]:
    """Leave out the rows that have words in the place of a process; where these name no GPU, none was reported."""
    rows = [one for one in sample if one[1:] != NO_PROCESS_CELLS]
    missing = {one.gpu_key.strip("[]") for one in sample if one[1:] == NO_PROCESS_CELLS}
    named = {gpu: NOT_REPORTED_WORDS for gpu in missing if gpu.startswith(("GPU-", "MIG-"))}
    words = tuple(said[:MAX_MESSAGES])
    voices = () if len(named) == len(missing) else (ToolResult("nvidia-smi", "nvidia", 0, words, is_complete=False),)
    return ParsedFile(tuple(rows), messages=words, tool_results=voices, unreported=named)


def parse_legacy_users(data: bytes, now: datetime | None) -> ParsedFile[PsRow]:
    """Line 1, where it is JSON: the children of each GPU pid. Then rows of `ps -o pid,user,lstart`."""
    lines = decode_text(data).split("\n")
    problems: list[str] = []
    parent: dict[int, int] = {}
    if lines and lines[0].lstrip().startswith("{"):
        parent = parse_legacy_children(lines.pop(0), problems)
    rows: list[PsRow] = []
    for line in lines[:MAX_LINES]:
        match = PS_LINE.match(line)
        if match:
            pid = int(match[1])
            rows.append(
                PsRow(pid, None, parent.get(pid, pid), None, match[2], compute_process_age(match[3], now), *(None,) * 5)
            )
        elif line.strip():
            problems.append(f"not a row of ps: {line[:80]}")
    return ParsedFile(tuple(rows), problems=tuple(problems[:MAX_MESSAGES]))


def parse_legacy_children(line: str, problems: list[str]) -> dict[int, int]:
    """From `{"28290": ["28290", "28305"]}`: the GPU process of each child."""
    try:
        families = json.loads(line)
        return {
            int(child): int(pid)
            for pid, family in families.items()
            for child in family
            if str(child).isdigit() and pid.isdigit()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        problems.append("the line with the children of GPU processes is not JSON as it should be")
        return {}


def compute_process_age(lstart: str, now: datetime | None) -> int | None:
    """Seconds from when it began to when the GPUs were looked at, both in the host's local time."""
    found = PS_START_TIME.fullmatch(lstart)
    if not found or now is None or found[1] not in MONTH_NAMES:
        return None
    day, hour, minute, second, year = map(int, found.groups()[1:])
    try:
        began = datetime(year, MONTH_NAMES.index(found[1]) + 1, day, hour, minute, second)
    except ValueError:
        return None
    return max(0, int((now - began).total_seconds()))


def parse_legacy_facts(status: bytes, disks: bytes, local: bytes) -> ParsedFile[HostFacts]:
    """Load, CPUs, memory, disks. The lines of the status file are told apart by what they hold: some may be missing."""
    problems: list[str] = []
    facts = HostFacts()
    found = [disk for line in decode_text(disks).split("\n")[:MOST_FACTS] if (disk := parse_df_row(line))]
    for line in decode_text(status).split("\n")[:MOST_FACTS]:
        words = line.split()
        if line.startswith("Mem:") and len(words) >= 3:
            free = parse_number(words[6]) if len(words) > 6 else None
            facts = replace(facts, memory_total=parse_number(words[1]), memory_available=free)
        elif match := LOAD_AVERAGES.search(line.strip()):
            facts = replace(facts, load=parse_load_averages(match))
        elif len(words) == 1 and words[0].isdigit():
            facts = replace(facts, cpus=parse_integer(words[0]))
        elif (disk := parse_df_row(line)) and all(disk.mount != other.mount for other in found):
            found.append(disk)
    use: list[DiskUse] = []
    for line in decode_text(local).split("\n")[:MOST_FACTS]:
        size, tab, path = line.partition("\t")
        one = parse_disk_use(f"{size.strip()} {path.strip()}", problems) if tab else None
        if one:
            use.append(one)
    facts = replace(facts, disks=tuple(found), disk_use=tuple(use))
    return ParsedFile((facts,), problems=tuple(problems[:MAX_MESSAGES]))


def parse_load_averages(match: re.Match[str]) -> tuple[float, float, float] | None:
    """Three numbers, with a decimal comma on French hosts."""
    one, five, fifteen = (parse_number(text.replace(",", ".")) for text in match.groups())
    return None if one is None or five is None or fifteen is None else (one, five, fifteen)


def parse_df_row(line: str) -> Disk | None:
    """A row of `df -P`, in KiB: file system, size, used, available, capacity, mount."""
    words = line.split(None, 5)
    if len(words) < 6 or not words[5].startswith("/") or not words[4].endswith("%"):
        return None
    total, used = parse_number(words[1]), parse_number(words[2])
    return None if total is None or used is None else Disk(words[5], total / 1024, used / 1024)
