"""detail.txt: each GPU in a box with its memory and its processes, for `curl`.

Put together in bytes: with frames in it, a text of Python's is twice as large, and takes twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from site_builder.board.outputs.values import (
    UNKNOWN_CELL,
    compute_unused_memory,
    fit_cell,
    fit_cell_bytes,
    format_local_epoch,
    format_number,
    format_vesta_time,
    list_addresses,
    strip_command_folder,
    strip_nvidia_prefix,
)
from site_builder.core.clock import Now
from site_builder.core.model import GpuNumber, GpuProblem, GpuStatus, HostStatus, ProcessStatus
from site_builder.core.terminal_text import fit_text, measure_width
from site_builder.fleet.mig import list_whole_gpus
from site_builder.health.page import list_visible_problems

LINE_WIDTH, BOX_WIDTH, BAR_WIDTH = 80, 74, 61
COMMAND_WIDTH, MEMORY_WIDTH, USER_WIDTH = 24, 8, 32
MAX_MEMORY_MIB = 10**MEMORY_WIDTH - 1
MAX_PROCESSES = 20
LEFT_EDGE, RIGHT_EDGE = "  │ ".encode(), "│\n".encode()
READING_TITLES = f"  │{'      memory used  memory available  gpu volatile  temperature':{BOX_WIDTH}}│\n"
READINGS_FORMAT = f"  │%6.0f /%6.0fMiB%15.0fMiB%13.0f%%%11.0f°C{' ' * 12}│\n".encode()
READINGS_LENGTH = len(READINGS_FORMAT % (0, 0, 0, 0, 0))
BRANCH, LAST_BRANCH = "  │  ├── ".encode(), "  │  └── ".encode()
BOX_BOTTOM = f"  └{'─' * BOX_WIDTH}┘\n\n".encode()
HOST_END = f"{'_' * LINE_WIDTH}\n\n".encode()
HOST_RULE = f"{'-' * LINE_WIDTH}\n"


def render_detail_host(board: HostStatus, looked: float | None, now: Now) -> bytes:
    """A host's part; `looked` is when its GPUs were."""
    where = next((address for _, address in list_addresses(board)), UNKNOWN_CELL)
    seen = (
        UNKNOWN_CELL if board.last_seen is None else format_local_epoch(board.last_seen, now.zone, "%d/%m/%Y %H:%M:%S")
    )
    name = fit_cell(board.name, min(measure_width(board.name), 40))
    title = f"#### {name} :: {fit_cell(where, min(measure_width(where), 30))} "
    state = (
        "" if board.state == "fresh" else f"  {fit_cell(f'! {board.state}: {board.reason}', LINE_WIDTH - 2).rstrip()}\n"
    )
    head = f"{title}{'#' * (LINE_WIDTH - measure_width(title))}\n  last update: {seen}\n{state}{HOST_RULE}"
    at = (format_vesta_time(looked, now.zone) or UNKNOWN_CELL).encode()
    return b"".join([head.encode(), *render_gpu_boxes(board, at), HOST_END])


def render_gpu_boxes(board: HostStatus, at: bytes) -> Iterator[bytes]:
    """Those of its GPUs; of one in MIG mode its instances follow, each with its own processes."""
    for whole, parts in list_whole_gpus(board):
        key = whole.gpu.key
        yield render_gpu_box(whole._replace(processes=board.unplaced_processes.get(key, ())) if parts else whole, at)
        for one in parts:
            yield render_gpu_box(one._replace(problems=()), at)  # which stand in the box of its GPU


def render_gpu_box(gpu_status: GpuStatus, at: bytes) -> bytes:
    """Render the box of a GPU."""
    gpu = gpu_status.gpu
    before, after = render_box_top(gpu.number, gpu_status.model if gpu.parent else gpu.name, len(at))
    numbers = (
        gpu.memory_used,
        gpu.memory_total,
        compute_unused_memory(gpu_status),
        gpu.utilization_gpu,
        gpu.temperature,
    )
    state = fit_cell_bytes(f"{gpu_status.state}: {gpu_status.reason}", BOX_WIDTH - 1)
    return b"".join(
        (
            *(before, at, after),
            render_reading_line(numbers),
            *(LEFT_EDGE, state, RIGHT_EDGE),
            render_problem_lines(gpu_status.problems) if gpu_status.problems else b"",
            render_memory_bar(gpu.memory_used, gpu.memory_total),
            *render_process_tree(gpu_status.processes),
            BOX_BOTTOM,
        )
    )


@lru_cache(maxsize=4096)
def render_problem_lines(problems: tuple[GpuProblem, ...]) -> bytes:
    """A line for each problem of note."""
    lines = (fit_cell_bytes(f"! {one.what}", BOX_WIDTH - 1) for one in list_visible_problems(problems))
    return b"".join([b"%b%b%b" % (LEFT_EDGE, line, RIGHT_EDGE) for line in lines])


@lru_cache(maxsize=1024)
def render_box_top(number_of: GpuNumber, name: str | None, room_of_time: int) -> tuple[bytes, bytes]:
    """The upper edge with the name of the GPU, before and behind the time, and the titles."""
    first, full = f"[ gpu:{UNKNOWN_CELL if number_of is None else number_of} ", strip_nvidia_prefix(name)
    room = BOX_WIDTH - len(first) - len(" ") - room_of_time - len(" ]")
    text = f"{first}{fit_cell(full, min(measure_width(full), room))} "
    edge = "─" * (BOX_WIDTH - measure_width(text) - room_of_time - len(" ]"))
    return f"  ┌{text}".encode(), f" ]{edge}┐\n{READING_TITLES}".encode()


def render_reading_line(told: tuple[float | None, ...]) -> bytes:
    """The line of numbers: memory used, in all, not used; use; temperature."""
    line = b"" if None in told else READINGS_FORMAT % told
    if len(line) == READINGS_LENGTH:
        return line
    used, total, left, use, temperature = map(format_number, told)
    text = f"{used:>6} /{total:>6}MiB{left:>15}MiB{use:>13}%{temperature:>11}°C"
    return f"  │{text:{BOX_WIDTH}.{BOX_WIDTH}}│\n".encode()  # each of these letters takes one cell


def render_memory_bar(used: float | None, total: float | None) -> bytes:
    """How much of the memory is in use."""
    if used is None or not total:
        return render_memory_bar_cached(None, None)
    share = min(1, used / total)
    return render_memory_bar_cached(int(share * BAR_WIDTH), int(share * 100))


@lru_cache(maxsize=1000)
def render_memory_bar_cached(cells: int | None, percent: int | None) -> bytes:
    """The same, of so many cells and percent."""
    filled = UNKNOWN_CELL if cells is None else "/" * cells
    return f"  │ mem [{filled:{BAR_WIDTH}}] {UNKNOWN_CELL if percent is None else percent:>3}% │\n".encode()


def render_process_tree(several: tuple[ProcessStatus, ...]) -> list[bytes]:
    """A line for each process."""
    lines = [render_process_branch(one.command, one.used_memory, one.user) for one in several[:MAX_PROCESSES]]
    if len(several) > MAX_PROCESSES:
        lines.append(fit_cell_bytes(f"and {len(several) - MAX_PROCESSES} more", BOX_WIDTH - 6))
    signs = [*[BRANCH] * (len(lines) - 1), LAST_BRANCH]
    return [b"%b%b%b" % (sign, line, RIGHT_EDGE) for sign, line in zip(signs, lines)]


@lru_cache(maxsize=40_000)
def render_process_branch(command: str | None, used: float | None, user: str | None) -> bytes:
    """A process; the same for as long as it runs."""
    size = (
        b"%8.0f" % used
        if used is not None and used < MAX_MEMORY_MIB
        else fit_text(format_number(used), MEMORY_WIDTH, right=True).encode()
    )
    return b"%b%bMiB %b" % (
        fit_cell_bytes(strip_command_folder(command), COMMAND_WIDTH),
        size,
        fit_cell_bytes(user or UNKNOWN_CELL, USER_WIDTH),
    )


def render_detail_txt(parts: Iterable[bytes], version: str, now: Now) -> bytes:
    """The whole file, from the parts of each host."""
    built = f"built: {now.local.isoformat(' ', 'seconds')}\n"
    return b"".join((f"gpuboard {version}\n\n".encode(), *parts, built.encode()))
