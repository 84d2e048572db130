"""detail.txt: each GPU in a box with its memory and its processes, for `curl`.

Written in bytes: with frames in it, a Python text is twice as large and takes twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from site_builder import __version__
from site_builder.board.outputs.host_json import (
    compute_host_json_available_memory,
    format_host_json_time,
    list_host_json_addresses,
)
from site_builder.board.outputs.term import UNKNOWN_CELL, fit_term_cell, format_term_number, strip_term_nvidia_prefix
from site_builder.core.clock import Now
from site_builder.core.files import compute_digest
from site_builder.core.formatting import format_local_epoch
from site_builder.core.model import GpuNumber, GpuProblem, GpuStatus, HostStatus, ProcessStatus
from site_builder.core.names import extract_program_name
from site_builder.core.published_files import PublishedFile
from site_builder.core.terminal_text import fit_text, measure_width
from site_builder.fleet.mig import list_whole_gpus

if TYPE_CHECKING:
    from site_builder.board.host_pipeline import BuiltHosts

DETAIL_FILE = "detail.txt"
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
SHARED_MEMORY_LINE = f"  │ {'memory shared with the host':{BOX_WIDTH - 1}}│\n".encode()


@lru_cache(maxsize=20_000)
def fit_detail_cell_bytes(text: str, width: int) -> bytes:
    return fit_term_cell(text, width).encode()


def render_detail_host(host_status: HostStatus, gpus_taken_at: float | None, now: Now) -> bytes:
    """Render the boxes of a host; `gpus_taken_at` is when its GPUs were read."""
    address = next((address for _, address in list_host_json_addresses(host_status)), UNKNOWN_CELL)
    last_update = UNKNOWN_CELL
    if host_status.last_seen is not None:
        last_update = format_local_epoch(host_status.last_seen, now.zone, "%d/%m/%Y %H:%M:%S")
    name = fit_term_cell(host_status.name, min(measure_width(host_status.name), 40))
    title = f"#### {name} :: {fit_term_cell(address, min(measure_width(address), 30))} "
    state = ""
    if host_status.state != "fresh":
        state = f"  {fit_term_cell(f'! {host_status.state}: {host_status.reason}', LINE_WIDTH - 2).rstrip()}\n"
    head = f"{title}{'#' * (LINE_WIDTH - measure_width(title))}\n  last update: {last_update}\n{state}{HOST_RULE}"
    read_time = (format_host_json_time(gpus_taken_at, now.zone) or UNKNOWN_CELL).encode()
    return b"".join([head.encode(), *render_detail_gpu_boxes(host_status, read_time), HOST_END])


def render_detail_gpu_boxes(host_status: HostStatus, read_time: bytes) -> Iterator[bytes]:
    """Yield the box of each GPU; those of its MIG instances follow, each with its own processes."""
    for whole_gpu, instances in list_whole_gpus(host_status):
        unplaced = host_status.unplaced_processes.get(whole_gpu.gpu.key, ())
        yield render_detail_gpu_box(whole_gpu._replace(processes=unplaced) if instances else whole_gpu, read_time)
        for instance in instances:
            yield render_detail_gpu_box(instance._replace(problems=()), read_time)  # the box of its GPU has them


def render_detail_gpu_box(gpu_status: GpuStatus, read_time: bytes) -> bytes:
    gpu = gpu_status.gpu
    before_time, after_time = render_detail_box_top(
        gpu.number, gpu_status.model if gpu.parent else gpu.name, len(read_time)
    )
    numbers = (
        gpu.memory_used,
        gpu.memory_total,
        compute_host_json_available_memory(gpu.memory_used, gpu.memory_total),
        gpu.utilization_gpu,
        gpu.temperature,
    )
    state = fit_detail_cell_bytes(f"{gpu_status.state}: {gpu_status.reason}", BOX_WIDTH - 1)
    return b"".join(
        (
            *(before_time, read_time, after_time),
            render_detail_reading_line(numbers),
            SHARED_MEMORY_LINE if gpu.shared_memory else b"",
            *(LEFT_EDGE, state, RIGHT_EDGE),
            render_detail_problem_lines(gpu_status.problems) if gpu_status.problems else b"",
            render_detail_memory_bar(gpu.memory_used, gpu.memory_total),
            *render_detail_process_tree(gpu_status.processes),
            BOX_BOTTOM,
        )
    )


@lru_cache(maxsize=4096)
def render_detail_problem_lines(problems: tuple[GpuProblem, ...]) -> bytes:
    lines = (fit_detail_cell_bytes(f"! {problem.what}", BOX_WIDTH - 1) for problem in problems if problem.is_visible)
    return b"".join([b"%b%b%b" % (LEFT_EDGE, line, RIGHT_EDGE) for line in lines])


@lru_cache(maxsize=1024)
def render_detail_box_top(number: GpuNumber, name: str | None, time_width: int) -> tuple[bytes, bytes]:
    """Render the upper edge with the name of the GPU and the titles, in two parts: before and after the time."""
    start, full_name = f"[ gpu:{UNKNOWN_CELL if number is None else number} ", strip_term_nvidia_prefix(name)
    name_width = BOX_WIDTH - len(start) - len(" ") - time_width - len(" ]")
    text = f"{start}{fit_term_cell(full_name, min(measure_width(full_name), name_width))} "
    edge = "─" * (BOX_WIDTH - measure_width(text) - time_width - len(" ]"))
    return f"  ┌{text}".encode(), f" ]{edge}┐\n{READING_TITLES}".encode()


def render_detail_reading_line(numbers: tuple[float | None, ...]) -> bytes:
    """Render used, total and unused memory, use and temperature."""
    line = b"" if None in numbers else READINGS_FORMAT % numbers
    if len(line) == READINGS_LENGTH:
        return line
    used, total, unused, use, temperature = map(format_term_number, numbers)
    text = f"{used:>6} /{total:>6}MiB{unused:>15}MiB{use:>13}%{temperature:>11}°C"
    return f"  │{text:{BOX_WIDTH}.{BOX_WIDTH}}│\n".encode()  # each of these characters takes one cell


def render_detail_memory_bar(used: float | None, total: float | None) -> bytes:
    if used is None or not total:
        return render_detail_memory_bar_cached(None, None)
    share = min(1, used / total)
    return render_detail_memory_bar_cached(int(share * BAR_WIDTH), int(share * 100))


@lru_cache(maxsize=1000)
def render_detail_memory_bar_cached(cells: int | None, percent: int | None) -> bytes:
    filled = UNKNOWN_CELL if cells is None else "/" * cells
    return f"  │ mem [{filled:{BAR_WIDTH}}] {UNKNOWN_CELL if percent is None else percent:>3}% │\n".encode()


def render_detail_process_tree(processes: tuple[ProcessStatus, ...]) -> list[bytes]:
    lines = [
        render_detail_process_branch(process.command, process.used_memory, process.user)
        for process in processes[:MAX_PROCESSES]
    ]
    if len(processes) > MAX_PROCESSES:
        lines.append(fit_detail_cell_bytes(f"and {len(processes) - MAX_PROCESSES} more", BOX_WIDTH - 6))
    branches = [*[BRANCH] * (len(lines) - 1), LAST_BRANCH]
    return [b"%b%b%b" % (branch, line, RIGHT_EDGE) for branch, line in zip(branches, lines)]


@lru_cache(maxsize=40_000)
def render_detail_process_branch(command: str | None, used_memory: float | None, user: str | None) -> bytes:
    """Render a process once for as long as it runs, without the folders of its program."""
    first, blank, rest = (UNKNOWN_CELL if command is None else command).partition(" ")
    shown_command = f"{extract_program_name(first) if first else ''}{blank}{rest}"
    if used_memory is not None and used_memory < MAX_MEMORY_MIB:
        size = b"%8.0f" % used_memory
    else:
        size = fit_text(format_term_number(used_memory), MEMORY_WIDTH, right=True).encode()
    return b"%b%bMiB %b" % (
        fit_detail_cell_bytes(shown_command, COMMAND_WIDTH),
        size,
        fit_detail_cell_bytes(user or UNKNOWN_CELL, USER_WIDTH),
    )


def render_detail_txt(parts: Iterable[bytes], version: str, now: Now) -> bytes:
    built = f"built: {now.local.isoformat(' ', 'seconds')}\n"
    return b"".join((f"gpuboard {version}\n\n".encode(), *parts, built.encode()))


def build_detail_file(built_hosts: BuiltHosts, now: Now) -> PublishedFile:
    def render() -> bytes:
        texts = (built_host.rendered.detail_text for built_host in built_hosts.values())
        return render_detail_txt(texts, __version__, now)

    digests = [built_host.digests.detail for built_host in built_hosts.values()]
    return PublishedFile(DETAIL_FILE, compute_digest(__version__.encode(), *digests), render)
