"""Parse host.txt, facts about the machine, and ps.txt, users, commands and containers of the GPU processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import TypeVar

from site_builder.core.model import Disk, DiskUse, HostFacts, ParsedFile, PsRow, Xid
from site_builder.core.terminal_text import limit_problems
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import MAX_NAME_CHARACTERS
from site_builder.snapshots.parsers.nvidia_topology import MAX_TOPOLOGY_GPUS, parse_nvidia_topology
from site_builder.snapshots.parsers.values import find_column_positions, parse_column_names, parse_integer, parse_number

PS_NUMBER_COLUMNS = ("pid", "ppid", "gpu_pid", "elapsed", "cpu", "rss")
PS_TEXT_COLUMNS = ("uid", "user", "state", "command", "container", "image", "pod", "person")
Value = TypeVar("Value", int, float)
DU_SIZE = re.compile(r"(\d+(?:[.,]\d+)?)([KMGTPE]?)i?B?$")
MIB_PER_UNIT = {"": 1 / 1024, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3, "E": 1024**4}
MAX_LINES = 2000
# The keys that may occur in more than one line, and how many of them are read.
REPEATED_KEYS = {"disk": 500, "interface": 500, "disk_use": 2000, "topology": MAX_TOPOLOGY_GPUS + 1, "xid": 50}
MAX_LINE_CHARACTERS = 1000
# The other keys, and more than any machine has. Memory in MiB, times in seconds: dates can be calculated with these.
MAX_VALUES = {
    "cpus": 1_000_000,
    "load": 10_000_000,
    "memory_total": 1e12,
    "memory_available": 1e12,
    "uptime": 100 * 366 * 86400,
    "disk_use_time": 32_503_680_000,  # the year 3000
}
MAX_DISK_MIB = 1e13
# When it was first and last logged, how often, the PCI bus id, the code, and the driver's words.
XID_PATTERN = re.compile(
    r"([0-9]{1,11}) ([0-9]{1,11}) ([0-9]{1,9}) ([0-9A-Fa-f]{1,8}(?::[0-9A-Fa-f]{1,4}){2}(?:\.[0-9A-Fa-f])?)"
    r" ([0-9]{1,5})(?: (.*))?"
)
MAX_XID_CHARACTERS = 200
MAX_QUOTED_CHARACTERS = 40
MAX_ROWS = 10_000
MAX_COMMAND_CHARACTERS = 4096
MAX_STATE_CHARACTERS = 10


def parse_host_txt(data: bytes) -> ParsedFile[HostFacts]:
    """Parse the file to one row; a line that cannot be understood is a problem, and costs itself alone."""
    file = envelope.split_snapshot_lines(data, "host")
    problems = list(file.problems)
    single_values: dict[str, str] = {}
    repeated_values: dict[str, list[str]] = {key: [] for key in REPEATED_KEYS}
    if len(file.rows) > MAX_LINES:
        problems.append(f"it has {len(file.rows)} lines; only the first {MAX_LINES} count")
    for line in file.rows[:MAX_LINES]:
        key, equals, value = line[:MAX_LINE_CHARACTERS].partition("=")
        if not equals:
            problems.append(f"not a key=value line: {line[:80]}")
        elif key not in REPEATED_KEYS:
            single_values[key] = value
        elif len(repeated_values[key]) < REPEATED_KEYS[key]:
            repeated_values[key].append(value)
    load_text = single_values.get("load", "")
    words = load_text.split(None, 3)
    loads = [load for load in map(parse_number, words) if load is not None and load <= MAX_VALUES["load"]]
    has_loads = len(loads) == len(words) == 3
    if load_text and not has_loads:
        problems.append(f"not three load numbers: {load_text[:MAX_QUOTED_CHARACTERS]}")
    topology = parse_nvidia_topology(tuple(repeated_values["topology"]))
    problems += topology.problems
    interfaces = (text.partition(" ") for text in repeated_values["interface"])
    facts = HostFacts(
        load=(loads[0], loads[1], loads[2]) if has_loads else None,
        cpus=parse_host_txt_value("cpus", single_values, parse_integer, problems),
        memory_total=parse_host_txt_value("memory_total", single_values, parse_number, problems),
        memory_available=parse_host_txt_value("memory_available", single_values, parse_number, problems),
        uptime=parse_host_txt_value("uptime", single_values, parse_integer, problems),
        disks=tuple(disk for text in repeated_values["disk"] if (disk := parse_host_disk(text, problems))),
        interfaces=tuple((name, address) for name, _, address in interfaces),
        disk_use=tuple(use for text in repeated_values["disk_use"] if (use := parse_host_disk_use(text, problems))),
        disk_use_time=parse_host_txt_value("disk_use_time", single_values, parse_integer, problems),
        topology=topology.topology,
        xids=tuple(xid for text in repeated_values["xid"] if (xid := parse_host_xid(text, problems))),
        extra={key: value for key, value in single_values.items() if key not in MAX_VALUES},
    )
    rows = (facts,) if file.header else ()
    return ParsedFile(rows, file.header, file.is_complete, file.messages, limit_problems(problems))


def parse_host_txt_value(
    key: str, texts: Mapping[str, str], parse: Callable[[str], Value | None], problems: list[str]
) -> Value | None:
    """Parse a value, unless no machine has it: a date or a sum made of it could fail."""
    text = texts.get(key, "")
    value = parse(text)
    if value is not None and value <= MAX_VALUES[key]:
        return value
    with suppress(ValueError):
        float(text)  # a number, however large or odd
        problems.append(f"{key} is {text[:MAX_QUOTED_CHARACTERS]}, which is impossible: it is ignored")
    return None


def parse_host_disk(text: str, problems: list[str]) -> Disk | None:
    """Parse `total used mount`, in MiB."""
    total_text, _, rest = text.partition(" ")
    used_text, _, mount = rest.partition(" ")
    total, used = parse_number(total_text), parse_number(used_text)
    if total is None or used is None or not mount.startswith("/"):
        problems.append(f"not a disk: {text[:80]}")
        return None
    if max(total, used) > MAX_DISK_MIB:
        problems.append(f"a disk with an impossible size: {text[:80]}")
        return None
    return Disk(mount, total, used)


def parse_host_disk_use(text: str, problems: list[str]) -> DiskUse | None:
    """Parse a line of `du`: a size with a dot or a comma and perhaps a unit (KiB without one), and a path."""
    size, _, path = text.partition(" ")
    match = DU_SIZE.match(size)
    if not match or not path:
        problems.append(f"not a du line: {text[:80]}")
        return None
    used = float(match[1].replace(",", ".")) * MIB_PER_UNIT[match[2]]
    if used > MAX_DISK_MIB:
        problems.append(f"a du line with an impossible size: {text[:80]}")
        return None
    return DiskUse(path, used)


def parse_host_xid(text: str, problems: list[str]) -> Xid | None:
    """Parse an Xid error of a GPU."""
    match = XID_PATTERN.fullmatch(text)
    if not match or not int(match[1]) <= int(match[2]) <= MAX_VALUES["disk_use_time"]:
        problems.append(f"not an Xid error: {text[:80]}")
        return None
    first, last, count, code = (int(match[group]) for group in (1, 2, 3, 5))
    return Xid(match[4], code, first, last, max(1, count), (match[6] or "")[:MAX_XID_CHARACTERS])


def parse_ps_txt(data: bytes, pids: Collection[int] | None = None) -> ParsedFile[PsRow]:
    """Parse all rows, or with `pids` those of these GPU processes and of the children of dead ones."""
    file = envelope.split_snapshot_lines(data, "ps")
    problems = list(file.problems)
    rows: list[PsRow] = []
    columns = parse_column_names(file.rows[0], "\t") if file.rows else ()
    if len(columns) > envelope.MAX_COLUMNS:
        problems.append(f"it has {len(columns)} columns, which is impossible: the file is ignored")
    elif columns and not {"pid", "command"} <= set(columns):
        problems.append("the line with the column names is missing")
    elif columns:
        lines = envelope.take_first_envelope_lines(file.rows[1:], MAX_ROWS, "processes", problems)
        if pids is None or columns[0] != "pid":
            rows = parse_ps_rows(columns, lines)
            if len(rows) < len(lines):
                problems.append(f"{len(lines) - len(rows)} rows have no pid")
        else:  # most rows of a file are of other processes, and need not be parsed
            lines_by_pid = {line.partition("\t")[0]: line for line in lines}
            rows = parse_ps_rows(columns, (lines_by_pid[pid] for pid in map(str, pids) if pid in lines_by_pid))
            dead = set(pids) - {row.pid for row in rows if not row.is_zombie}
            if dead:
                rows += [row for row in parse_ps_rows(columns, lines) if row.gpu_pid in dead and row.pid not in dead]
    return ParsedFile(tuple(rows), file.header, file.is_complete, file.messages, tuple(problems))


def parse_ps_rows(columns: tuple[str, ...], lines: Iterable[str]) -> list[PsRow]:
    """Parse the lines that have a pid."""
    pick_numbers = itemgetter(*find_column_positions(columns, PS_NUMBER_COLUMNS))
    pick_texts = itemgetter(*find_column_positions(columns, PS_TEXT_COLUMNS))
    rows = []
    for line in lines:
        cells = line.split("\t", len(columns) - 1)  # the last may hold tabs
        cells += ["-"] * (len(columns) + 1 - len(cells))  # and one for columns that are missing
        pid_cell, ppid, gpu_pid, elapsed, cpu, rss = pick_numbers(cells)
        pid = parse_integer(pid_cell)
        if pid is None:
            continue
        uid, user, state, command, container, image, pod, person = pick_texts(cells)
        row = PsRow(
            pid=pid,
            ppid=parse_integer(ppid),
            gpu_pid=pid if gpu_pid == pid_cell else parse_integer(gpu_pid),
            uid=parse_ps_cell(uid),
            user=parse_ps_cell(user),
            elapsed=parse_integer(elapsed),
            cpu=parse_number(cpu),
            rss=parse_number(rss),
            state=parse_ps_cell(state, MAX_STATE_CHARACTERS),
            # to compare with "-" costs less than a call
            container=None if container == "-" else parse_ps_cell(container),
            command=parse_ps_cell(command, MAX_COMMAND_CHARACTERS),
            image=None if image == "-" else parse_ps_cell(image),
            pod=None if pod == "-" else parse_ps_cell(pod),
            person=None if person == "-" else parse_ps_cell(person),
        )
        rows.append(row)
    return rows


def parse_ps_cell(cell: str, max_characters: int = MAX_NAME_CHARACTERS) -> str | None:
    return None if cell == "-" or not cell else cell[:max_characters]
