"""Parse the files of the original gpu-monitor scripts: `HOST_gpus.csv` and the rest, in data/ itself.

Their timestamps are the host's local time without a zone. They order the rows of a file and the files of one host;
how old the data is, only the file's arrival tells.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice

from site_builder.core.formatting import MONTH_NAMES
from site_builder.core.model import Disk, DiskUse, Gpu, GpuProcessRow, HostFacts, ParsedFile, PsRow, ToolResult
from site_builder.core.terminal_text import MAX_MESSAGES, decode_text
from site_builder.snapshots.parsers import host_and_ps_txt, nvidia_csv, values

LEGACY_FILES = ("gpus.csv", "processes.csv", "users.csv", "status.csv", "disks.csv", "local.txt")
TIMESTAMP = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)
PS_START_TIME = re.compile(r"(\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})", re.ASCII)
# A user name may have spaces in it, as those of a Windows domain do.
PS_LINE = re.compile(r"\s*(\d{1,9})\s+(\S(?:.{0,200}\S)?)\s+\w{3} (\w{3} +\d{1,2} \d\d:\d\d:\d\d \d{4})\s*$")
LOAD_AVERAGES = re.compile(r"load averages?: *([\d.,]+?),? +([\d.,]+?),? +([\d.,]+)$")
PSTATE_CELL = re.compile(r"P\d{1,2}$")
MIN_GPU_CELLS = 9
# Lines that are read of a file, the last ones if old rows come before new ones; GPUs that are kept.
MAX_LINES, MAX_GPUS = 20_000, 1024
# The interval of the scripts' loops in seconds, which the files do not contain.
INTERVAL_S = 20
# A loop that finds no process writes nothing, so that old rows linger.
MAX_SAMPLE_SPREAD = timedelta(seconds=5)
MAX_SAMPLE_AGE = timedelta(seconds=90)
# Rows so far ahead of the last one are of a clock that was set back since.
MAX_SAMPLE_LEAD = timedelta(minutes=5)
NOT_REPORTED_WORDS = "N/A"
OLD_ROW_ERROR = "missing from the newest rows of its host"
# `df -P` does not print types; these stand in place of a device where there is no disk.
PSEUDO_FILE_SYSTEM = re.compile(
    r"(?:aufs|autofs|cgmfs|cgroup2?|dev|devtmpfs|efivarfs|fuse|gvfsd-fuse|lxcfs|nfsd|none|overlay|overlayfs|portal|proc"
    r"|ramfs|rootfs|run|shm|squashfs|sysfs|systemd-1|tmpfs|tracefs|udev)$"
    r"|/dev/(?:loop|sr|fuse)|(?:snapfuse|squashfuse|fuse-overlayfs|fuse\.)"
)
SYSTEM_MOUNT = re.compile(r"/(?:boot|snap|run|proc|sys|dev)(?:/|$)|/var/lib/docker/")


@lru_cache(maxsize=4096)
def parse_legacy_timestamp(cell: str) -> datetime | None:
    """Parse `2018/10/04 09:12:01.123`, the host's local time; strptime would take ten times as long."""
    match = TIMESTAMP.fullmatch(cell)
    if not match:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    try:
        return datetime(year, month, day, hour, minute, second, int(f"{match[7] or '':0<6}"))
    except ValueError:
        return None


def parse_legacy_gpus(data: bytes) -> tuple[ParsedFile[Gpu], datetime | None]:
    """Return the last row of each GPU and the newest time. There is no header, and errors are between the rows."""
    rows_by_uuid: dict[str, list[str]] = {}
    unreachable: dict[str, Gpu] = {}
    messages: list[str] = []
    newest: datetime | None = None
    newest_error: datetime | None = None  # of a row that has an error in the place of its UUID
    for line in decode_text(data).split("\n")[-MAX_LINES:]:
        cells = nvidia_csv.split_csv_row(line)
        taken_at = parse_legacy_timestamp(cells[-1]) if len(cells) >= MIN_GPU_CELLS else None
        has_uuid = len(cells) >= MIN_GPU_CELLS and cells[1].startswith("GPU-")
        is_error = not has_uuid and taken_at is not None and values.parse_error_value(cells[1]) is not None
        newest_error = taken_at if is_error else newest_error
        if has_uuid or is_error:
            newest = taken_at if newest is None or (taken_at and taken_at > newest) else newest
        if has_uuid:
            rows_by_uuid[cells[1]] = cells
        elif match := nvidia_csv.HANDLE_ERROR.search(line):
            messages.append(line.strip())
            unreachable.setdefault(match[2], nvidia_csv.build_unreachable_csv_gpu(*match.groups()))
        elif line.strip():
            messages.append(line.strip())
    has_error = newest is not None and newest_error is not None and newest - newest_error <= MAX_SAMPLE_SPREAD
    max_age = MAX_SAMPLE_SPREAD if has_error else MAX_SAMPLE_AGE  # the GPU of the error has no row in the newest sample
    gpus: list[Gpu] = []
    for cells in islice(rows_by_uuid.values(), MAX_GPUS):
        gpu, taken_at = parse_legacy_gpu(cells), parse_legacy_timestamp(cells[-1])
        # since an old row was written, the driver has printed errors in its place, or nothing
        if taken_at is not None and newest is not None and newest - taken_at > max_age and not gpu.error:
            gpu = gpu._replace(error=OLD_ROW_ERROR)
        gpus.append(gpu)
    gpus += islice(unreachable.values(), MAX_GPUS)
    gpus.sort(key=lambda gpu: (gpu.index is None, gpu.index or 0))
    return ParsedFile(tuple(gpus), messages=tuple(messages[:MAX_MESSAGES])), newest


def parse_legacy_gpu(cells: list[str]) -> Gpu:
    """Parse a row: index, uuid, name, memory used and total, use of GPU and memory, temperature, timestamp."""
    index, uuid, name, *readings = cells
    used, total = values.parse_number(readings[0]), values.parse_number(readings[1])
    if PSTATE_CELL.match(readings[1]):  # one fork has memory.free and the performance state there
        used = total = None
        readings = [readings[0], *readings[2:]] if len(cells) > MIN_GPU_CELLS else readings
    utilization, memory_utilization, temperature = (values.parse_number(cell) for cell in readings[2:5])
    lost = values.find_lost_value(cells)
    shared_memory = nvidia_csv.find_nvidia_shared_memory(name, readings[1]) if total is None else None
    watched = zip(("memory", "memory", "use", "use", "temperature"), readings)
    error = values.find_reading_error([(reading, cell) for reading, cell in watched if not PSTATE_CELL.match(cell)])
    others = {"index": index, "name": name, "timestamp": ", ".join(readings[5:])}
    errors = values.find_cell_errors([*others], [*others.values()], has_brackets=True)
    if error and not lost and used is None and utilization is None and temperature is None:
        lost = error.words
    return Gpu(
        index=values.parse_integer(index),
        uuid=uuid,
        name=values.parse_cell(name),
        memory_used=used,
        memory_total=total,
        utilization_gpu=utilization,
        utilization_memory=memory_utilization,
        temperature=temperature,
        lost=lost,
        error=error.sentence if error else None,
        other_error=errors.other,
        shared_memory=shared_memory,
    )


def parse_legacy_processes(data: bytes, now: datetime | None, is_outdated: bool = False) -> ParsedFile[GpuProcessRow]:
    """Return the newest sample: timestamp, gpu_uuid, used_gpu_memory, process_name, pid; `now` is that of the GPUs.

    An outdated file has not changed for so long that no loop can have added to it, whatever its times say.
    """
    rows: list[tuple[datetime, GpuProcessRow]] = []
    messages: list[str] = []
    undated: set[str] = set()  # the GPUs of rows with something else in the place of their time, until the next row
    for line in decode_text(data).split("\n")[-MAX_LINES:]:
        cells = line.split(", ", 3)
        name, comma, pid = cells[3].rpartition(", ") if len(cells) == 4 else ("", "", "")
        taken_at = parse_legacy_timestamp(cells[0])
        if comma and taken_at is not None:
            process = GpuProcessRow(
                cells[1], values.parse_integer(pid.strip()), values.parse_number(cells[2]), values.parse_cell(name)
            )
            rows.append((taken_at, process))
            undated.discard(cells[1])
        elif line.strip():
            messages.append(line.strip())
            if comma and cells[1].startswith(nvidia_csv.UUID_PREFIXES):
                undated.add(cells[1])
    unreported = {} if is_outdated else dict.fromkeys(undated, NOT_REPORTED_WORDS)
    file: ParsedFile[GpuProcessRow] = ParsedFile(messages=tuple(messages[:MAX_MESSAGES]), unreported=unreported)
    if not rows or is_outdated:
        return file
    newest, last = max(taken_at for taken_at, _ in rows), rows[-1][0]
    if newest - last > MAX_SAMPLE_LEAD:  # the clock was set back, and rows came after that
        newest = last
    if now is not None and now - newest > MAX_SAMPLE_AGE:
        return file
    sample: dict[tuple[str, int | None], GpuProcessRow] = {}
    for taken_at, process in rows:
        if abs(newest - taken_at) <= MAX_SAMPLE_SPREAD:
            sample[process.gpu_key, process.pid] = process
    # rows that have words in the place of a process; where these name no GPU, no process was reported
    hidden = {process.gpu_key.strip("[]") for process in sample.values() if nvidia_csv.is_csv_process_hidden(process)}
    named = [gpu for gpu in hidden if gpu.startswith(nvidia_csv.UUID_PREFIXES)]
    unreported.update(dict.fromkeys(named, NOT_REPORTED_WORDS))
    shown = tuple(process for process in sample.values() if not nvidia_csv.is_csv_process_hidden(process))
    if len(named) < len(hidden):
        result = ToolResult("nvidia-smi", "nvidia", 0, file.messages, is_complete=False)
        file = replace(file, tool_results=(result,))
    return replace(file, rows=shown, unreported=unreported)


def parse_legacy_users(data: bytes, now: datetime | None) -> ParsedFile[PsRow]:
    """Parse rows of `ps -o pid,user,lstart`, after a line of JSON with the children of each GPU process, if any."""
    lines = decode_text(data).split("\n")
    problems: list[str] = []
    gpu_pids: dict[int, int] = {}
    if lines and lines[0].lstrip().startswith("{"):
        try:
            families = json.loads(lines.pop(0))  # {"28290": ["28290", "28305"]}
            gpu_pids = {
                int(child): int(pid)
                for pid, family in families.items()
                for child in family
                if str(child).isdigit() and pid.isdigit()
            }
        except (ValueError, TypeError, AttributeError, RecursionError):
            problems.append("the line with the children of GPU processes is not valid JSON")
    rows: list[PsRow] = []
    for line in lines[:MAX_LINES]:
        match = PS_LINE.match(line)
        if match:
            pid = int(match[1])
            age = compute_legacy_process_age(match[3], now)
            rows.append(PsRow(pid, gpu_pid=gpu_pids.get(pid, pid), user=match[2], elapsed=age))
        elif line.strip():
            problems.append(f"not a row of ps: {line[:80]}")
    return ParsedFile(tuple(rows), problems=tuple(problems[:MAX_MESSAGES]))


def compute_legacy_process_age(start: str, now: datetime | None) -> int | None:
    """Return the seconds from the start of a process to `now`, both in the host's local time."""
    match = PS_START_TIME.fullmatch(start)
    if not match or now is None or match[1] not in MONTH_NAMES:
        return None
    day, hour, minute, second, year = map(int, match.groups()[1:])
    try:
        started = datetime(year, MONTH_NAMES.index(match[1]) + 1, day, hour, minute, second)
    except ValueError:
        return None
    return max(0, int((now - started).total_seconds()))


def parse_legacy_facts(status: bytes, disks: bytes, local: bytes) -> ParsedFile[HostFacts]:
    """Parse load, CPUs, memory and disks. Lines of the status file may be missing: each is recognized by its form."""
    problems: list[str] = []
    facts = HostFacts()
    file_systems: list[Disk] = []
    devices: set[str] = set()
    for line in split_legacy_fact_lines(disks):
        device, disk = line.split(None, 1)[0] if line.strip() else "", parse_legacy_df_row(line)
        if disk and device not in devices:  # one that is mounted twice is one
            file_systems.append(disk)
            devices.add(device)
    for line in split_legacy_fact_lines(status):
        words = line.split()
        if line.startswith("Mem:") and len(words) >= 3:
            available = values.parse_number(words[6]) if len(words) > 6 else None
            facts = replace(facts, memory_total=values.parse_number(words[1]), memory_available=available)
        elif match := LOAD_AVERAGES.search(line.strip()):
            # French hosts print a decimal comma
            loads = [
                load for text in match.groups() if (load := values.parse_number(text.replace(",", "."))) is not None
            ]
            facts = replace(facts, load=(loads[0], loads[1], loads[2]) if len(loads) == 3 else None)
        elif len(words) == 1 and words[0].isdigit():
            facts = replace(facts, cpus=values.parse_integer(words[0]))
        elif (disk := parse_legacy_df_row(line)) and disk.mount not in {
            file_system.mount for file_system in file_systems
        }:
            file_systems.append(disk)
    disk_use: list[DiskUse] = []
    for line in split_legacy_fact_lines(local):
        size, tab, path = line.partition("\t")
        if tab and (use := host_and_ps_txt.parse_host_disk_use(f"{size.strip()} {path.strip()}", problems)):
            disk_use.append(use)
    facts = replace(facts, disks=tuple(file_systems), disk_use=tuple(disk_use))
    return ParsedFile((facts,), problems=tuple(problems[:MAX_MESSAGES]))


def split_legacy_fact_lines(data: bytes) -> list[str]:
    return decode_text(data).split("\n")[: host_and_ps_txt.MAX_LINES]


def parse_legacy_df_row(line: str) -> Disk | None:
    """Parse a row of `df -P`, in KiB: file system, size, used, available, capacity, mount; None for all but disks."""
    words = line.split(None, 5)
    if len(words) < 6 or not words[5].startswith("/") or not words[4].endswith("%"):
        return None
    device, mount = words[0], words[5]
    is_root_of_container = device == "overlay" and mount == "/"
    if (PSEUDO_FILE_SYSTEM.match(device) and not is_root_of_container) or SYSTEM_MOUNT.match(mount):
        return None
    total, used = values.parse_number(words[1]), values.parse_number(words[2])
    return Disk(mount, total / 1024, used / 1024) if total and used is not None else None
