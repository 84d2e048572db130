"""Parse nvidia-smi's CSV: `--query-gpu` and `--query-compute-apps`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from site_builder.core.model import Gpu, GpuProcessRow, SharedMemory
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import MAX_NAME_CHARACTERS, ToolOutput, ToolParts
from site_builder.snapshots.parsers import health_columns, values

# "… for GPU0: 0000:01:00.0: Unknown Error", "… for GPU 0000:03:00.0: GPU is lost.  Reboot the system …"
HANDLE_ERROR = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU) ?(?:(\d{1,3}): ?)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+): (.+)"
)
# The words in the cells of a process row that reports no process.
BRACKETED_WORDS = re.compile(r"\[([A-Z][A-Za-z/ ]{0,79})\]")
MAX_PROCESS_NAME_CHARACTERS = 1000
# More rows than any host has, with the messages between them.
MAX_LINES, MAX_PROCESS_LINES = 4000, 10_500
MAX_CACHED_CHARACTERS = 300
# The third is that of drivers before 570.
TEXT_COLUMNS = (
    *("index", "uuid", "reset_status.reset_required", "name", "pci.bus_id", "temperature.gpu.tlimit"),
    *("fan.speed", "power.draw"),
)
# Fields of Gpu, and the columns of their readings.
READING_COLUMNS = {
    "memory_used": "memory.used",
    "memory_total": "memory.total",
    "utilization_gpu": "utilization.gpu",
    "utilization_memory": "utilization.memory",
    "temperature": "temperature.gpu",
    "power_draw": "power.draw",
    "power_limit": "power.limit",
    "clock": "clocks.current.sm",
    "fan_speed": "fan.speed",
}
MEMORY_TOTAL_POSITION = [*READING_COLUMNS].index("memory_total")
# Prefixes of the columns whose errors make the state of a GPU unknown, and the word for each.
WATCHED_PREFIXES = {"memory.": "memory", "utilization.": "use", "temperature.": "temperature"}
RESET_REQUIRED_WORDS = "GPU requires reset"
# GPUs on the chip of the CPU, which use all of its memory: DGX Spark, Jetson and DRIVE. Other GPUs whose memory is not
# available, such as those of a vGPU guest, do not share it.
INTEGRATED_GPU = re.compile(r"\b(?:GB10|Thor|Orin|Xavier|Tegra|nvgpu)\b")
ALL_MEMORY_OF_HOST = SharedMemory(is_all=True)
CellPicker = Callable[["list[str]"], "tuple[str, ...]"]
UUID_PREFIXES = ("GPU-", "MIG-")
PROCESS_COLUMNS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")


class NvidiaGpuColumns(NamedTuple):
    """The names in a header, and functions that pick the cells of some of them from a row with an empty cell behind."""

    names: tuple[str, ...]
    pick_texts: CellPicker
    pick_readings: CellPicker
    pick_health: CellPicker
    pick_watched: CellPicker
    watched_readings: tuple[str, ...]  # what each watched column is about


# A fleet has a few headers.
@lru_cache(maxsize=64)
def find_nvidia_csv_columns(names: tuple[str, ...]) -> NvidiaGpuColumns:
    readings = [WATCHED_PREFIXES.get(name[: name.find(".") + 1]) for name in names]
    watched = [position for position, reading in enumerate(readings) if reading]
    return NvidiaGpuColumns(
        names=names,
        pick_texts=itemgetter(*values.find_column_positions(names, TEXT_COLUMNS)),
        pick_readings=itemgetter(*values.find_column_positions(names, tuple(READING_COLUMNS.values()))),
        pick_health=itemgetter(*values.find_column_positions(names, health_columns.HEALTH_COLUMNS)),
        pick_watched=itemgetter(*watched, len(names), len(names)),  # of a single column it would not return a tuple
        watched_readings=tuple(filter(None, readings)),
    )


def split_csv_row(line: str) -> list[str]:
    """Split a row; nvidia-smi quotes nothing, and now and then leaves out a space."""
    cells = line.split(", ")
    return cells if len(cells) == line.count(",") + 1 else [cell.strip() for cell in line.split(",")]


def list_csv_part_lines(parts: ToolParts) -> Sequence[str]:
    return parts[""].lines if "" in parts else tuple(line for part in parts.values() for line in part.lines)


def parse_nvidia_csv_gpus(parts: ToolParts) -> ToolOutput[Gpu]:
    """Parse every row; a lost GPU keeps its row, so that the others stay visible."""
    columns: NvidiaGpuColumns | None = None
    width, header_line = 0, ""
    gpus: list[Gpu] = []
    messages: list[str] = []
    problems: list[str] = []
    has_missing_gpu = False
    for line in envelope.take_first_envelope_lines(list_csv_part_lines(parts), MAX_LINES, "lines", problems):
        may_be_header = not columns and ("uuid" in line or "index" in line)
        if may_be_header and {"uuid", "index"} & set(header := values.parse_column_names(line)):
            columns = find_nvidia_csv_columns(
                tuple(envelope.take_first_envelope_lines(header, envelope.MAX_COLUMNS, "columns", problems))
            )
            width, header_line = len(header), line
            continue
        if line == header_line:
            continue
        cells = split_csv_row(line)
        if columns and len(cells) == width:
            gpus.append(build_gpu_from_nvidia_csv(columns, tuple(cells[: len(columns.names)])))
        elif match := HANDLE_ERROR.search(line):
            messages.append(line.strip())
            gpus.append(build_unreachable_csv_gpu(*match.groups()))
        elif columns and len(cells) > 2 and (len(cells) > width // 2 or ", GPU-" in line):
            has_missing_gpu = True
            problem = f"a row has {len(cells)} cells where the header has {width}: {line[:80]}"
            envelope.note_envelope_problem(problems, problem)
        else:
            messages.append(line.strip())
    return ToolOutput(tuple(gpus), messages, problems, has_missing_gpu=has_missing_gpu)


def build_gpu_from_nvidia_csv(columns: NvidiaGpuColumns, row: tuple[str, ...]) -> Gpu:
    cells = [*row, ""]
    index, uuid, reset_required, name, bus_id, margin, fan_cell, power_cell = columns.pick_texts(cells)
    limit = health_columns.MAX_CELL_CHARACTERS
    bus_id, margin = bus_id[:limit], margin[:limit]  # they are keys of caches
    readings: dict[str, Any] = dict(zip(READING_COLUMNS, values.parse_numbers(columns.pick_readings(cells))))
    unread_fan = fan_cell if readings["fan_speed"] is None else ""
    unread_power = power_cell if readings["power_draw"] is None else ""
    lost = values.find_lost_value(row) or (RESET_REQUIRED_WORDS if reset_required.lower() == "yes" else None)
    watched, error = columns.pick_watched(cells), None
    # nearly every row of a fleet has nothing but numbers there
    if not "".join(watched).replace("[N/A]", "").replace("N/A", "").replace(".", "").isdecimal():
        error = values.find_reading_error(zip(columns.watched_readings, watched))
    errors = values.find_cell_errors(columns.names, row, has_brackets=True)
    # memory sizes and power limits prove nothing: they are also printed for a GPU that cannot be reached
    proofs = (readings["memory_used"], readings["utilization_gpu"], readings["temperature"])
    if error and not lost and proofs == (None, None, None):
        lost = error.words
    shared_memory = None
    if readings["memory_total"] is None:
        shared_memory = find_nvidia_shared_memory(name, columns.pick_readings(cells)[MEMORY_TOTAL_POSITION])
    return Gpu(
        index=values.parse_integer(index),
        uuid=values.parse_cell(uuid),
        name=(values.parse_cell(name) or "")[:MAX_NAME_CHARACTERS] or None,
        **readings,
        temperature_margin=health_columns.parse_health_temperature_margin(margin) if margin else None,
        bus_id=values.parse_cell(bus_id),
        health=health_columns.parse_health_columns(
            columns.pick_health(cells), unread_fan, errors.power or unread_power
        ),
        lost=lost,
        columns=columns.names,
        cells=row,
        error=error.sentence if error else None,
        other_error=None if error else errors.other,
        shared_memory=shared_memory,
    )


def find_nvidia_shared_memory(name: str, memory_total: str) -> SharedMemory | None:
    """Return the memory of the host for a GPU that has none of its own; an error in place of a size proves nothing."""
    is_integrated = INTEGRATED_GPU.search(name[:MAX_NAME_CHARACTERS]) is not None
    return ALL_MEMORY_OF_HOST if is_integrated and values.parse_error_value(memory_total) is None else None


def build_unreachable_csv_gpu(index: str | int | None, bus_id: str, reason: str) -> Gpu:
    """Build a GPU from the groups of HANDLE_ERROR, the only thing that nvidia-smi prints for it."""
    number, lost = None if index is None else int(index), reason.strip().rstrip(".")
    return Gpu(
        number, None, None, bus_id=values.parse_cell(bus_id), lost=lost, columns=("pci.bus_id",), cells=(bus_id,)
    )


def parse_nvidia_csv_processes(parts: ToolParts) -> ToolOutput[GpuProcessRow]:
    columns: tuple[str, ...] = ()
    processes: list[GpuProcessRow] = []
    messages: list[str] = []
    problems: list[str] = []
    unreported: dict[str, str] = {}
    for line in envelope.take_first_envelope_lines(list_csv_part_lines(parts), MAX_PROCESS_LINES, "lines", problems):
        may_be_header = not columns and "process_name" in line
        if may_be_header and {"process_name", "gpu_uuid"} <= set(header := values.parse_column_names(line)):
            columns = tuple(envelope.take_first_envelope_lines(header, envelope.MAX_COLUMNS, "columns", problems))
            continue
        parse_row = parse_process_row_cached if len(line) <= MAX_CACHED_CHARACTERS else parse_csv_process_row
        process = parse_row(line, columns) if columns else None
        if process and is_csv_process_hidden(process):
            words = BRACKETED_WORDS.search(line)
            unreported.setdefault(process.gpu_key, words[1] if words else "N/A")
        elif process:
            processes.append(process)
        else:
            messages.append(line.strip())
            # a row that is cut is not a message either: its GPU must not be called free
            if columns and (line.count(",") >= len(columns) - 1 or line.startswith(UUID_PREFIXES)):
                envelope.note_envelope_problem(problems, f"a row that cannot be parsed: {line[:80]}")
    return ToolOutput(tuple(processes), messages, problems, bool(columns) and not problems, unreported)


def is_csv_process_hidden(process: GpuProcessRow) -> bool:
    """Return True for a row that has words in the place of a process."""
    return process.pid is None and process.used_memory is None and process.name is None


def parse_csv_process_row(line: str, columns: tuple[str, ...]) -> GpuProcessRow | None:
    """Parse a row from both its ends, since the name of the process is never quoted and may hold commas."""
    position = columns.index("process_name")
    columns_after = len(columns) - position - 1
    separator = ", " if ", " in line else ","
    cells = line.split(separator, position)
    if columns_after and len(cells) > position:
        cells[position:] = cells[position].rsplit(separator, columns_after)
    if len(cells) != len(columns):
        return None
    cells.append("")  # for columns that are missing
    uuid, pid, memory, name = [cells[position] for position in values.find_column_positions(columns, PROCESS_COLUMNS)]
    if not uuid.startswith(UUID_PREFIXES):
        return None
    name = (values.parse_cell(name) or "")[:MAX_PROCESS_NAME_CHARACTERS]
    return GpuProcessRow(uuid, values.parse_integer(pid), values.parse_number(memory), name or None)


# The line of a process stays the same for as long as its memory does.
parse_process_row_cached = lru_cache(maxsize=40_000)(parse_csv_process_row)
