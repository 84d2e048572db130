"""processes.csv: the compute processes on the GPUs of a host, as nvidia-smi told them."""

from __future__ import annotations

from site_builder.model import Dump, GpuProcess
from site_builder.readers import form
from site_builder.readers.cells import available, columns, number, places, whole_number

MOST_PROCESSES = 10_000
COLUMNS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")


def read(data: bytes) -> Dump[GpuProcess]:
    """Every row; the name is never quoted and may hold commas, so that the row is taken from both its ends."""
    dump = form.split(data, "processes")
    names: tuple[str, ...] = ()
    where: tuple[int, ...] = ()
    found: list[GpuProcess] = []
    said: list[str] = []
    problems: list[str] = []
    for line in dump.rows:
        if not names and "process_name" in line and "gpu_uuid" in line:
            names = columns(line)
            where = places(names, COLUMNS)
            continue
        row = cells(line, names) if names else None
        if row is None or not row[where[0]].startswith(("GPU-", "MIG-")):
            said.append(line.strip())
            continue
        uuid, pid, memory, name = [row[place] for place in where]
        found.append(GpuProcess(uuid, whole_number(pid), number(memory), available(name)))
    if len(found) > MOST_PROCESSES:
        problems.append(f"{len(found)} GPU processes are told; only the first {MOST_PROCESSES} count")
    return Dump(
        tuple(found[:MOST_PROCESSES]),
        dump.header,
        dump.whole,
        (*dump.said, *said[: form.MOST_SAID]),
        (*dump.problems, *problems),
        answered=bool(names),
    )


def cells(line: str, names: tuple[str, ...]) -> list[str] | None:
    """The cells in the order of their names; what stands right of the process name is counted from the right.

    One more cell, empty, stands behind them for a column that is not told.
    """
    place = names.index("process_name")
    after = len(names) - place - 1
    row = line.split(", ", place)
    if after and len(row) > place:
        row[place:] = row[place].rsplit(", ", after)
    if len(row) != len(names):
        return None
    row.append("")
    return row
