"""processes.csv: the compute processes on the GPUs of a host, as nvidia-smi told them."""

from __future__ import annotations

from functools import lru_cache

from site_builder.model import Dump, GpuProcess
from site_builder.readers import form
from site_builder.readers.cells import available, columns, number, places, whole_number

MOST_PROCESSES = 10_000
LONGEST_REMEMBERED = 300
LONGEST_NAME = 1000
COLUMNS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")


def read(data: bytes) -> Dump[GpuProcess]:
    """Every row; the name is never quoted and may hold commas, so that the row is taken from both its ends."""
    dump = form.split(data, "processes")
    names: tuple[str, ...] = ()
    found: list[GpuProcess] = []
    said: list[str] = []
    problems: list[str] = []
    for line in dump.rows:
        if not names and "process_name" in line and "gpu_uuid" in line:
            names = columns(line)
            continue
        process = (remembered if len(line) <= LONGEST_REMEMBERED else row)(line, names) if names else None
        if process:
            found.append(process)
            continue
        said.append(line.strip())
        if names and line.count(",") >= len(names) - 1:
            problems.append(f"a row that cannot be understood: {line[:80]}")
    if len(found) > MOST_PROCESSES:
        problems.append(f"{len(found)} GPU processes are told; only the first {MOST_PROCESSES} count")
    return Dump(
        tuple(found[:MOST_PROCESSES]),
        dump.header,
        dump.whole,
        (*dump.said, *said[: form.MOST_SAID]),
        form.bounded((*dump.problems, *problems)),
        answered=bool(names) and not problems,
    )


def row(line: str, names: tuple[str, ...]) -> GpuProcess | None:
    """One process, by the names of the columns: what stands right of its name is counted from the right."""
    place = names.index("process_name")
    after = len(names) - place - 1
    separator = ", " if ", " in line else ","
    cells = line.split(separator, place)
    if after and len(cells) > place:
        cells[place:] = cells[place].rsplit(separator, after)
    if len(cells) != len(names):
        return None
    cells.append("")  # for a column that is not told
    uuid, pid, memory, name = [cells[place] for place in places(names, COLUMNS)]
    if not uuid.startswith(("GPU-", "MIG-")):
        return None
    return GpuProcess(uuid, whole_number(pid), number(memory), (available(name) or "")[:LONGEST_NAME] or None)


# A process tells the same line for as long as its memory stays the same, at every look.
remembered = lru_cache(maxsize=40_000)(row)
