"""host.txt: the machine itself, as key=value lines."""

from __future__ import annotations

import re

from site_builder.model import Disk, DiskUse, Dump, HostFacts
from site_builder.readers import form
from site_builder.readers.cells import number, whole_number

SIZE = re.compile(r"(\d+(?:[.,]\d+)?)([KMGTPE]?)i?B?$")
MIB = {"": 1 / 1024, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3, "E": 1024**4}
SEVERAL = frozenset({"disk", "interface", "disk_use"})
ONCE = frozenset({"load", "cpus", "memory_total", "memory_available", "uptime", "disk_use_time"})
MOST_LINES = 2000


def read(data: bytes) -> Dump[HostFacts]:
    """One row with all that is told; a line that cannot be understood is a problem, and costs itself alone."""
    dump = form.split(data, "host")
    problems = list(dump.problems)
    once: dict[str, str] = {}
    several: dict[str, list[str]] = {name: [] for name in SEVERAL}
    for line in dump.rows[:MOST_LINES]:
        key, equals, value = line.partition("=")
        if not equals:
            problems.append(f"not a line of key=value: {line[:80]}")
        elif key in SEVERAL:
            several[key].append(value)
        else:
            once[key] = value
    facts = HostFacts(
        load=load(once.get("load", ""), problems),
        cpus=whole_number(once.get("cpus", "")),
        memory_total=number(once.get("memory_total", "")),
        memory_available=number(once.get("memory_available", "")),
        uptime=whole_number(once.get("uptime", "")),
        disks=tuple(d for text in several["disk"] if (d := disk(text, problems))),
        interfaces=tuple(
            (name, address) for name, _, address in (text.partition(" ") for text in several["interface"])
        ),
        disk_use=tuple(u for text in several["disk_use"] if (u := disk_use(text, problems))),
        disk_use_time=whole_number(once.get("disk_use_time", "")),
        more={key: value for key, value in once.items() if key not in ONCE},
    )
    return Dump((facts,) if dump.header else (), dump.header, dump.whole, dump.said, form.bounded(problems))


def load(text: str, problems: list[str]) -> tuple[float, float, float] | None:
    """The load of the last 1, 5 and 15 minutes."""
    numbers = [number(word) for word in text.split()]
    if len(numbers) == 3 and None not in numbers:
        one, five, fifteen = (n for n in numbers if n is not None)
        return one, five, fifteen
    if text:
        problems.append(f"not three numbers of load: {text[:40]}")
    return None


def disk(text: str, problems: list[str]) -> Disk | None:
    """`total used mount`, in MiB."""
    total, _, rest = text.partition(" ")
    used, _, mount = rest.partition(" ")
    sizes = number(total), number(used)
    if sizes[0] is None or sizes[1] is None or not mount.startswith("/"):
        problems.append(f"not a disk: {text[:80]}")
        return None
    return Disk(mount, sizes[0], sizes[1])


def disk_use(text: str, problems: list[str]) -> DiskUse | None:
    """A line of `du`: size, with a dot or a comma and perhaps a unit (KiB without one), and path."""
    size, _, path = text.partition(" ")
    found = SIZE.match(size)
    if not found or not path:
        problems.append(f"not a line of du: {text[:80]}")
        return None
    return DiskUse(path, float(found[1].replace(",", ".")) * MIB[found[2]])
