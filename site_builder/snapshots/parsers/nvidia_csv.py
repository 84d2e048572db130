"""What nvidia-smi tells as CSV: `--query-gpu`, and `--query-compute-apps`."""

from __future__ import annotations

import re
from functools import lru_cache

from site_builder.core.model import Gpu, GpuProcess
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import Pieces
from site_builder.snapshots.parse_result import LONGEST_NAME, ODD_ROW, Understood
from site_builder.snapshots.parsers.csv_values import (
    available,
    cells,
    columns,
    find_error_in_row,
    find_lost_words,
    number,
    numbers,
    places,
    whole_number,
)

# "… for GPU0: 0000:01:00.0: Unknown Error", "… for GPU 0000:03:00.0: GPU is lost.  Reboot the system …"
HANDLE = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU) ?(?:(\d{1,3}): ?)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+): (.+)"
)
# What stands in the cells of a row of processes that reports none.
WORD = re.compile(r"\[([A-Z][A-Za-z/ ]{0,79})\]")
# Pid, memory and name of such a row.
NOTHING_REPORTED = (None, None, None)
LONGEST_TITLE = 1000
# More than any host has rows, with the messages between them.
MOST_LINES, MOST_PROCESS_LINES = 4000, 10_500
LONGEST_REMEMBERED = 300
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
RESET_REQUIRED, NEEDS_RESET = "reset_status.reset_required", "GPU requires reset"
PROCESS_COLUMNS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")


def lines_of(told: Pieces) -> tuple[str, ...]:
    """All that it answered; it is asked but one question."""
    return told[""].lines if "" in told else tuple(line for piece in told.values() for line in piece.lines)


def gpus(told: Pieces) -> Understood[Gpu]:
    """Every row that can be understood; a GPU that is lost keeps its row, so that the others stay visible."""
    found, said, problems = rows(lines_of(told))
    return Understood(tuple(found), said, problems)


def rows(lines: tuple[str, ...]) -> tuple[list[Gpu], list[str], list[str]]:
    """GPUs, words between the rows, problems."""
    names: tuple[str, ...] = ()
    where: tuple[int, ...] = ()
    wide = 0
    found: list[Gpu] = []
    said: list[str] = []
    problems: list[str] = []
    for line in envelope.first_of(lines, MOST_LINES, "lines", problems):
        if not names and ("uuid" in line or "index" in line) and {"uuid", "index"} & set(header := columns(line)):
            names = tuple(envelope.first_of(header, envelope.MOST_COLUMNS, "columns", problems))
            wide = len(header)
            where = places(names, COLUMNS)
            continue
        row = cells(line)
        if names and len(row) == wide:
            found.append(gpu(names, row[: len(names)], where))
        elif match := HANDLE.search(line):
            said.append(line.strip())
            found.append(unreachable(match))
        elif names and len(row) > wide // 2 and len(row) > 2:
            envelope.note(problems, f"{ODD_ROW}{len(row)} cells where the header has {wide}: {line[:80]}")
        else:
            said.append(line.strip())
    return found, said, problems


def gpu(names: tuple[str, ...], row: list[str], where: tuple[int, ...]) -> Gpu:
    """One row; `where` says at which place each of COLUMNS stands."""
    told = tuple(row)
    row.append("")
    index, uuid, name, *readings = [row[place] for place in where]
    used, total, use, access, temperature, draw, limit, clock = numbers(readings)
    lost = find_lost_words(told) or reset_required(names, told)
    error = find_error_in_row(names, told)
    # memory sizes and limits of power are also told of a GPU that cannot be reached: they prove nothing
    if error and not lost and used is None and use is None and temperature is None:
        lost = error[1]
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
        error=f"its {error[0]} cannot be read: {error[1]}" if error else None,
    )


def reset_required(names: tuple[str, ...], told: tuple[str, ...]) -> str | None:
    """Return the words for a GPU whose driver says that it must be reset; drivers from 570 on say so otherwise."""
    place = reset_place(names)
    return NEEDS_RESET if place is not None and told[place].lower() == "yes" else None


@lru_cache(maxsize=64)
def reset_place(names: tuple[str, ...]) -> int | None:
    """Return where that column stands."""
    return names.index(RESET_REQUIRED) if RESET_REQUIRED in names else None


def unreachable(match: re.Match[str]) -> Gpu:
    """The GPU of which nvidia-smi says only that it has no handle for it."""
    index, bus_id, why = match.groups()
    number_of, lost = (int(index) if index else None), why.strip().rstrip(".")
    return Gpu(number_of, None, None, lost=lost, columns=("pci.bus_id",), cells=(bus_id,))


def processes(told: Pieces) -> Understood[GpuProcess]:
    """Every row; the name is never quoted and may hold commas, so that the row is taken from both its ends."""
    names: tuple[str, ...] = ()
    found: list[GpuProcess] = []
    said: list[str] = []
    problems: list[str] = []
    unreported: dict[str, str] = {}
    for line in envelope.first_of(lines_of(told), MOST_PROCESS_LINES, "lines", problems):
        if not names and "process_name" in line and {"process_name", "gpu_uuid"} <= set(header := columns(line)):
            names = tuple(envelope.first_of(header, envelope.MOST_COLUMNS, "columns", problems))
            continue
        process = (remembered if len(line) <= LONGEST_REMEMBERED else row)(line, names) if names else None
        if process and process[1:] == NOTHING_REPORTED:
            unreported.setdefault(process.gpu, reported_word(line))
            continue
        if process:
            found.append(process)
            continue
        said.append(line.strip())
        if names and line.count(",") >= len(names) - 1:
            envelope.note(problems, f"a row that cannot be understood: {line[:80]}")
    return Understood(tuple(found), said, problems, bool(names) and not problems, unreported)


def reported_word(line: str) -> str:
    """Return what stands where a process should."""
    words = WORD.search(line)
    return words[1] if words else "N/A"


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
    uuid, pid, memory, name = [cells[place] for place in places(names, PROCESS_COLUMNS)]
    if not uuid.startswith(("GPU-", "MIG-")):
        return None
    return GpuProcess(uuid, whole_number(pid), number(memory), (available(name) or "")[:LONGEST_TITLE] or None)


# A process tells the same line for as long as its memory stays the same, at every look.
remembered = lru_cache(maxsize=40_000)(row)
