"""host.txt: the machine itself, as key=value lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from site_builder.core import terminal_text
from site_builder.core.model import Disk, DiskUse, HostFacts, ParsedFile
from site_builder.snapshots import envelope
from site_builder.snapshots.parsers.values import parse_integer, parse_number

Value = TypeVar("Value", int, float)
DU_SIZE = re.compile(r"(\d+(?:[.,]\d+)?)([KMGTPE]?)i?B?$")
MIB_PER_UNIT = {"": 1 / 1024, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3, "E": 1024**4}
REPEATED_KEYS = frozenset({"disk", "interface", "disk_use"})
SINGLE_KEYS = frozenset({"load", "cpus", "memory_total", "memory_available", "uptime", "disk_use_time"})
MAX_LINES = 2000
# Of what a host may tell more than one line: as many as anybody reads.
MAX_LINES_PER_KEY = {"disk": 500, "interface": 500, "disk_use": 2000}
MAX_LINE_CHARACTERS = 1000
# What no machine has; memory in MiB, uptime in seconds: a hundred years. A date can be told of all that is below.
MAX_VALUES = {
    "cpus": 1_000_000,
    "load": 10_000_000,
    "memory_total": 1e12,
    "memory_available": 1e12,
    "uptime": 100 * 366 * 86400,
    "disk_use_time": 32_503_680_000,  # the year 3000
}
MAX_DISK_MIB = 1e13
MAX_QUOTED_CHARACTERS = 40


def parse_host_txt(data: bytes) -> ParsedFile[HostFacts]:
    """One row with all that is told; a line that cannot be understood is a problem, and costs itself alone."""
    dump = envelope.split_snapshot_lines(data, "host")
    problems = list(dump.problems)
    once: dict[str, str] = {}
    several: dict[str, list[str]] = {name: [] for name in REPEATED_KEYS}
    if len(dump.rows) > MAX_LINES:
        problems.append(f"it has {len(dump.rows)} lines; only the first {MAX_LINES} count")
    for line in dump.rows[:MAX_LINES]:
        key, equals, value = line[:MAX_LINE_CHARACTERS].partition("=")
        if not equals:
            problems.append(f"not a line of key=value: {line[:80]}")
        elif key not in REPEATED_KEYS:
            once[key] = value
        elif len(several[key]) < MAX_LINES_PER_KEY[key]:
            several[key].append(value)
    facts = HostFacts(
        load=parse_load(once.get("load", ""), problems),
        cpus=parse_plausible_value("cpus", once, parse_integer, problems),
        memory_total=parse_plausible_value("memory_total", once, parse_number, problems),
        memory_available=parse_plausible_value("memory_available", once, parse_number, problems),
        uptime=parse_plausible_value("uptime", once, parse_integer, problems),
        disks=tuple(d for text in several["disk"] if (d := parse_disk(text, problems))),
        interfaces=tuple(
            (name, address) for name, _, address in (text.partition(" ") for text in several["interface"])
        ),
        disk_use=tuple(u for text in several["disk_use"] if (u := parse_disk_use(text, problems))),
        disk_use_time=parse_plausible_value("disk_use_time", once, parse_integer, problems),
        extra={key: value for key, value in once.items() if key not in SINGLE_KEYS},
    )
    return ParsedFile(
        (facts,) if dump.header else (),
        dump.header,
        dump.is_complete,
        dump.messages,
        terminal_text.limit_problems(problems),
    )


def parse_plausible_value(
    key: str, once: Mapping[str, str], parse: Callable[[str], Value | None], problems: list[str]
) -> Value | None:
    """Parse a value, unless it is one that no machine has: a date or a sum made of it could fail."""
    text = once.get(key, "")
    value = parse(text)
    if value is not None and value <= MAX_VALUES[key]:
        return value
    if value is not None or is_float(text):
        problems.append(f"{key} is {text[:MAX_QUOTED_CHARACTERS]}, which cannot be: it is not used")
    return None


def is_float(text: str) -> bool:
    """Return whether Python would take it for a number, however large or odd."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_load(text: str, problems: list[str]) -> tuple[float, float, float] | None:
    """The load of the last 1, 5 and 15 minutes."""
    words = text.split(None, 3)
    one, five, fifteen = (parse_number(word) for word in words) if len(words) == 3 else (None, None, None)
    if one is not None and five is not None and fifteen is not None and max(one, five, fifteen) <= MAX_VALUES["load"]:
        return one, five, fifteen
    if text:
        problems.append(f"not three numbers of load: {text[:MAX_QUOTED_CHARACTERS]}")
    return None


def parse_disk(text: str, problems: list[str]) -> Disk | None:
    """`total used mount`, in MiB."""
    total, _, rest = text.partition(" ")
    used, _, mount = rest.partition(" ")
    sizes = parse_number(total), parse_number(used)
    if sizes[0] is None or sizes[1] is None or not mount.startswith("/"):
        problems.append(f"not a disk: {text[:80]}")
        return None
    if max(sizes[0], sizes[1]) > MAX_DISK_MIB:
        problems.append(f"a disk of a size that cannot be: {text[:80]}")
        return None
    return Disk(mount, sizes[0], sizes[1])


def parse_disk_use(text: str, problems: list[str]) -> DiskUse | None:
    """A line of `du`: size, with a dot or a comma and perhaps a unit (KiB without one), and path."""
    size, _, path = text.partition(" ")
    found = DU_SIZE.match(size)
    if not found or not path:
        problems.append(f"not a line of du: {text[:80]}")
        return None
    used = float(found[1].replace(",", ".")) * MIB_PER_UNIT[found[2]]
    if used > MAX_DISK_MIB:
        problems.append(f"a line of du with a size that cannot be: {text[:80]}")
        return None
    return DiskUse(path, used)
