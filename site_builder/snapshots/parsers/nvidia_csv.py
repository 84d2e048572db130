"""What nvidia-smi tells as CSV: `--query-gpu`, and `--query-compute-apps`."""

from __future__ import annotations

import re
from functools import lru_cache

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import BAD_ROW_PREFIX, MAX_NAME_CHARACTERS, ToolOutput, ToolParts
from site_builder.snapshots.parsers.values import (
    find_column_positions,
    find_error_in_row,
    find_lost_words,
    parse_cell,
    parse_column_names,
    parse_integer,
    parse_number,
    parse_numbers,
    split_cells,
)

# "… for GPU0: 0000:01:00.0: Unknown Error", "… for GPU 0000:03:00.0: GPU is lost.  Reboot the system …"
HANDLE_ERROR = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU) ?(?:(\d{1,3}): ?)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+): (.+)"
)
# What stands in the cells of a row of processes that reports none.
BRACKETED_WORDS = re.compile(r"\[([A-Z][A-Za-z/ ]{0,79})\]")
# Pid, memory and name of such a row.
NO_PROCESS_CELLS = (None, None, None)
MAX_PROCESS_NAME_CHARACTERS = 1000
# More than any host has rows, with the messages between them.
MAX_LINES, MAX_PROCESS_LINES = 4000, 10_500
MAX_CACHED_CHARACTERS = 300
GPU_COLUMNS: tuple[str, ...] = (
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
RESET_REQUIRED_COLUMN, RESET_REQUIRED_WORDS = "reset_status.reset_required", "GPU requires reset"
PROCESS_COLUMNS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")


def list_part_lines(told: ToolParts) -> tuple[str, ...]:
    """All that it answered; it is asked but one question."""
    return told[""].lines if "" in told else tuple(line for piece in told.values() for line in piece.lines)


def parse_gpus(told: ToolParts) -> ToolOutput[Gpu]:
    """Every row that can be understood; a GPU that is lost keeps its row, so that the others stay visible."""
    found, said, problems = parse_gpu_rows(list_part_lines(told))
    return ToolOutput(tuple(found), said, problems)


def parse_gpu_rows(lines: tuple[str, ...]) -> tuple[list[Gpu], list[str], list[str]]:
    """GPUs, words between the rows, problems."""
    names: tuple[str, ...] = ()
    where: tuple[int, ...] = ()
    wide = 0
    found: list[Gpu] = []
    said: list[str] = []
    problems: list[str] = []
    for line in envelope.take_first(lines, MAX_LINES, "lines", problems):
        if (
            not names
            and ("uuid" in line or "index" in line)
            and {"uuid", "index"} & set(header := parse_column_names(line))
        ):
            names = tuple(envelope.take_first(header, envelope.MAX_COLUMNS, "columns", problems))
            wide = len(header)
            where = find_column_positions(names, GPU_COLUMNS)
            continue
        row = split_cells(line)
        if names and len(row) == wide:
            found.append(build_gpu_from_cells(names, row[: len(names)], where))
        elif match := HANDLE_ERROR.search(line):
            said.append(line.strip())
            found.append(build_unreachable_gpu(match))
        elif names and len(row) > wide // 2 and len(row) > 2:
            envelope.note_problem(
                problems, f"{BAD_ROW_PREFIX}{len(row)} cells where the header has {wide}: {line[:80]}"
            )
        else:
            said.append(line.strip())
    return found, said, problems


def build_gpu_from_cells(names: tuple[str, ...], row: list[str], where: tuple[int, ...]) -> Gpu:
    """One row; `where` says at which place each of COLUMNS stands."""
    told = tuple(row)
    row.append("")
    index, uuid, name, *readings = [row[place] for place in where]
    used, total, use, access, temperature, draw, limit, clock = parse_numbers(readings)
    lost = find_lost_words(told) or find_reset_words(names, told)
    error = find_error_in_row(names, told)
    # memory sizes and limits of power are also told of a GPU that cannot be reached: they prove nothing
    if error and not lost and used is None and use is None and temperature is None:
        lost = error[1]
    return Gpu(
        parse_integer(index),
        parse_cell(uuid),
        (parse_cell(name) or "")[:MAX_NAME_CHARACTERS] or None,
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


def find_reset_words(names: tuple[str, ...], told: tuple[str, ...]) -> str | None:
    """Return the words for a GPU whose driver says that it must be reset; drivers from 570 on say so otherwise."""
    place = find_reset_column(names)
    return RESET_REQUIRED_WORDS if place is not None and told[place].lower() == "yes" else None


@lru_cache(maxsize=64)
def find_reset_column(names: tuple[str, ...]) -> int | None:
    """Return where that column stands."""
    return names.index(RESET_REQUIRED_COLUMN) if RESET_REQUIRED_COLUMN in names else None


def build_unreachable_gpu(match: re.Match[str]) -> Gpu:
    """The GPU of which nvidia-smi says only that it has no handle for it."""
    index, bus_id, why = match.groups()
    number_of, lost = (int(index) if index else None), why.strip().rstrip(".")
    return Gpu(number_of, None, None, lost=lost, columns=("pci.bus_id",), cells=(bus_id,))


def parse_processes(told: ToolParts) -> ToolOutput[GpuProcessRow]:
    """Every row; the name is never quoted and may hold commas, so that the row is taken from both its ends."""
    names: tuple[str, ...] = ()
    found: list[GpuProcessRow] = []
    said: list[str] = []
    problems: list[str] = []
    unreported: dict[str, str] = {}
    for line in envelope.take_first(list_part_lines(told), MAX_PROCESS_LINES, "lines", problems):
        if (
            not names
            and "process_name" in line
            and {"process_name", "gpu_uuid"} <= set(header := parse_column_names(line))
        ):
            names = tuple(envelope.take_first(header, envelope.MAX_COLUMNS, "columns", problems))
            continue
        process = (
            (parse_process_row_cached if len(line) <= MAX_CACHED_CHARACTERS else parse_process_row)(line, names)
            if names
            else None
        )
        if process and process[1:] == NO_PROCESS_CELLS:
            unreported.setdefault(process.gpu_key, extract_bracketed_words(line))
            continue
        if process:
            found.append(process)
            continue
        said.append(line.strip())
        if names and line.count(",") >= len(names) - 1:
            envelope.note_problem(problems, f"a row that cannot be understood: {line[:80]}")
    return ToolOutput(tuple(found), said, problems, bool(names) and not problems, unreported)


def extract_bracketed_words(line: str) -> str:
    """Return what stands where a process should."""
    words = BRACKETED_WORDS.search(line)
    return words[1] if words else "N/A"


def parse_process_row(line: str, names: tuple[str, ...]) -> GpuProcessRow | None:
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
    uuid, pid, memory, name = [cells[place] for place in find_column_positions(names, PROCESS_COLUMNS)]
    if not uuid.startswith(("GPU-", "MIG-")):
        return None
    return GpuProcessRow(
        uuid, parse_integer(pid), parse_number(memory), (parse_cell(name) or "")[:MAX_PROCESS_NAME_CHARACTERS] or None
    )


# A process tells the same line for as long as its memory stays the same, at every look.
parse_process_row_cached = lru_cache(maxsize=40_000)(parse_process_row)
