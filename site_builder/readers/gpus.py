"""gpus.csv: the GPUs of a host, as `nvidia-smi --query-gpu` told them."""

from __future__ import annotations

import re

from site_builder.model import Dump, Gpu
from site_builder.readers import form
from site_builder.readers.cells import LOST, available, cells, columns, numbers, places, whole_number

# "… for GPU0: 0000:01:00.0: Unknown Error", "… for GPU 0000:03:00.0: GPU is lost.  Reboot the system …"
HANDLE = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU) ?(?:(\d{1,3}): ?)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+): (.+)"
)
MOST_GPUS = 1024
# How a problem begins that may have cost a GPU.
ODD_ROW = "a row has "
LONGEST_NAME = 200
COLUMNS: tuple[str, ...] = (
    "index",
    "uuid",
    "name",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "utilization.memory",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "clocks.current.sm",
)


def read(data: bytes) -> Dump[Gpu]:
    """Every row that can be understood; a GPU that is lost keeps its row, so that the others stay visible."""
    dump = form.split(data, "gpus")
    gpus, said, problems = rows(dump.rows)
    told = form.bounded((*dump.problems, *problems))
    return Dump(gpus, dump.header, dump.whole, (*dump.said, *said[: form.MOST_SAID]), told)


def rows(lines: tuple[str, ...]) -> tuple[tuple[Gpu, ...], list[str], list[str]]:
    """GPUs, words between the rows, problems."""
    names: tuple[str, ...] = ()
    where: tuple[int, ...] = ()
    found: list[Gpu] = []
    said: list[str] = []
    problems: list[str] = []
    for line in lines:
        if not names and ("uuid" in line or "index" in line) and {"uuid", "index"} & set(header := columns(line)):
            names = header
            where = places(names, COLUMNS)
            continue
        row = cells(line)
        if names and len(row) == len(names):
            found.append(gpu(names, row, where))
        elif match := HANDLE.search(line):
            said.append(line.strip())
            found.append(unreachable(match))
        elif names and len(row) > len(names) // 2 and len(row) > 2:
            problems.append(f"{ODD_ROW}{len(row)} cells where the header has {len(names)}: {line[:80]}")
        else:
            said.append(line.strip())
    return distinct(found, problems), said, problems


def gpu(names: tuple[str, ...], row: list[str], where: tuple[int, ...]) -> Gpu:
    """One row; `where` says at which place each of COLUMNS stands."""
    told = tuple(row)
    row.append("")
    index, uuid, name, *readings = [row[place] for place in where]
    used, total, use, access, temperature, draw, limit, clock = values = numbers(readings)
    lost = None
    # single cells may fail on a GPU that works: it is lost only if none of its readings came through
    if not any(value is not None for value in values):
        lost = next((cell.strip("[]") for cell in told if cell in LOST), None)
    return Gpu(
        whole_number(index),
        available(uuid),
        (available(name) or "")[:LONGEST_NAME] or None,
        used,
        total,
        use,
        access,
        temperature,
        draw,
        limit,
        clock,
        lost,
        names,
        told,
    )


def unreachable(match: re.Match[str]) -> Gpu:
    """The GPU of which nvidia-smi says only that it has no handle for it."""
    index, bus_id, why = match.groups()
    number_of, lost = (int(index) if index else None), why.strip().rstrip(".")
    return Gpu(number_of, None, None, lost=lost, columns=("pci.bus_id",), cells=(bus_id,))


def distinct(found: list[Gpu], problems: list[str]) -> tuple[Gpu, ...]:
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
    if len(kept) > MOST_GPUS:
        problems.append(f"{len(kept)} GPUs are told; only the first {MOST_GPUS} count")
    return tuple(kept[:MOST_GPUS])
