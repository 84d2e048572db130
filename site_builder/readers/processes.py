"""processes.csv: the compute processes on the GPUs of a host, as nvidia-smi told them."""

from __future__ import annotations

from site_builder.model import Dump, GpuProcess
from site_builder.readers import form
from site_builder.readers.cells import available, columns, number, whole_number

MOST_PROCESSES = 10_000


def read(data: bytes) -> Dump[GpuProcess]:
    """Every row; the name is never quoted and may hold commas, so that the row is taken from both its ends."""
    dump = form.split(data, "processes")
    names: list[str] = []
    found: list[GpuProcess] = []
    said: list[str] = []
    problems: list[str] = []
    for line in dump.rows:
        if not names and "process_name" in line and "gpu_uuid" in line:
            names = columns(line)
            continue
        row = by_name(line, names) if names else None
        if row is None or not row["gpu_uuid"].startswith(("GPU-", "MIG-")):
            said.append(line.strip())
            continue
        found.append(
            GpuProcess(
                row["gpu_uuid"],
                whole_number(row.get("pid", "")),
                number(row.get("used_gpu_memory", "")),
                available(row["process_name"]),
            )
        )
    if len(found) > MOST_PROCESSES:
        problems.append(f"{len(found)} GPU processes are told; only the first {MOST_PROCESSES} count")
    return Dump(
        tuple(found[:MOST_PROCESSES]),
        dump.header,
        dump.whole,
        (*dump.said, *said[: form.MOST_SAID]),
        (*dump.problems, *problems),
    )


def by_name(line: str, names: list[str]) -> dict[str, str] | None:
    """The cells by their names: left of the process name counted from the left, right of it from the right."""
    place = names.index("process_name")
    after = len(names) - place - 1
    row = line.split(", ", place)
    if len(row) <= place:
        return None
    if after:
        row[place:] = row[place].rsplit(", ", after)
    return dict(zip(names, row)) if len(row) == len(names) else None
