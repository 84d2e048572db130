"""term.txt: the fleet as a table of 80 cells, for `curl`; and term-ansi.txt, the same in colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from site_builder import __version__
from site_builder.core.clock import Now
from site_builder.core.files import compute_digest
from site_builder.core.model import GpuNumber, GpuStatus, HostStatus
from site_builder.core.published_files import PublishedFile
from site_builder.core.terminal_text import fit_text, flatten_terminal_text, measure_width
from site_builder.fleet.mig import list_whole_gpus

if TYPE_CHECKING:
    from site_builder.board.host_pipeline import BuiltHosts

TERM_FILE, TERM_ANSI_FILE = "term.txt", "term-ansi.txt"
HOST_WIDTH, GPU_WIDTH, MEMORY_WIDTH, USE_WIDTH, TEMPERATURE_WIDTH = COLUMN_WIDTHS = 18, 24, 17, 8, 7
TABLE_WIDTH = sum(COLUMN_WIDTHS) + len(COLUMN_WIDTHS) + 1
TABLE_FRAME = f"+{'+'.join('-' * width for width in COLUMN_WIDTHS)}+\n"
COLUMN_TITLES = ("host", "gpu", "memory usage", "volat.", "temp.")
EMPTY_READINGS = f"|{' ' * MEMORY_WIDTH}|{' ' * USE_WIDTH}|{' ' * TEMPERATURE_WIDTH}"
UNKNOWN_CELL = "?"
NVIDIA_PREFIX = "NVIDIA "
# Before a MIG instance, which is listed below its GPU.
INSTANCE_INDENT = "   "
GREEN, YELLOW, RED, CYAN, RESET = (f"\x1b[{code}m" for code in (32, 33, 31, 36, 0))
# States with a colour are also listed below the table: nobody needs to see colours.
STATE_COLOURS = {"free": GREEN, "booked": CYAN, "held": YELLOW, "conflict": RED, "lost": RED, "unknown": RED}
PROBLEM_LABEL = "problem"
SHARED_MEMORY_LABEL = "shared memory"


class TermPart(NamedTuple):
    """The rows of a host, the same in colour, and its GPUs by state, as `atlas:0,2`."""

    plain_rows: bytes
    coloured_rows: bytes
    gpus_by_state: tuple[tuple[str, str], ...]


@lru_cache(maxsize=20_000)
def fit_term_cell(text: str, width: int, right: bool = False) -> str:
    """Fit any text into exactly `width` cells of a line."""
    return fit_text(flatten_terminal_text(text), width, right)


def format_term_number(value: float | None) -> str:
    return UNKNOWN_CELL if value is None else f"{value:.0f}"


@lru_cache(maxsize=4096)
def strip_term_nvidia_prefix(name: str | None) -> str:
    if name is None:
        return UNKNOWN_CELL
    return name[len(NVIDIA_PREFIX) :] if name.startswith(NVIDIA_PREFIX) else name


def render_term_host(host_status: HostStatus) -> TermPart:
    """Render the rows of a host; one that is not fresh has a row that says so."""
    rows = [
        (
            f"{format_term_gpu_cell(gpu_status)}{format_term_reading_cells(gpu_status)}",
            RED if gpu_status.is_avoided else STATE_COLOURS.get(gpu_status.state, ""),
        )
        for whole_gpu, instances in list_whole_gpus(host_status)
        for gpu_status in (whole_gpu, *instances)
    ]
    if host_status.state != "fresh" or not rows:
        rows.insert(0, (f" {fit_term_cell(f'! {host_status.state}', GPU_WIDTH - 1)}{EMPTY_READINGS}", RED))
    names = [fit_term_cell(host_status.name, HOST_WIDTH), *([" " * HOST_WIDTH] * (len(rows) - 1))]
    plain = [f"|{name}|{text}|\n" for name, (text, _) in zip(names, rows)]
    coloured = [
        f"|{name}|{colour}{text}{RESET}|\n" if colour else line
        for name, (text, colour), line in zip(names, rows, plain)
    ]
    return TermPart("".join(plain).encode(), "".join(coloured).encode(), tuple(list_term_gpus_by_state(host_status)))


def format_term_gpu_cell(gpu_status: GpuStatus) -> str:
    gpu = gpu_status.gpu
    if gpu.parent:
        return INSTANCE_INDENT + fit_term_cell(f"{gpu.label} {gpu.profile or 'MIG'}", GPU_WIDTH - len(INSTANCE_INDENT))
    return format_term_gpu_cell_cached(gpu.number, gpu.name, gpu_status.model)


@lru_cache(maxsize=4096)
def format_term_gpu_cell_cached(number: GpuNumber, name: str | None, model: str) -> str:
    """Format the number of a GPU and the driver's name of it; if that is too long, the short name of its model."""
    start = f"{UNKNOWN_CELL if number is None else number:>2}:"
    width = GPU_WIDTH - len(start)
    full_name = strip_term_nvidia_prefix(name)
    return start + fit_term_cell(full_name if measure_width(full_name) <= width else model, max(1, width))


def format_term_reading_cells(gpu_status: GpuStatus) -> str:
    """Format memory in MiB, use and temperature."""
    gpu = gpu_status.gpu
    used, total, use, temperature = gpu.memory_used, gpu.memory_total, gpu.utilization_gpu, gpu.temperature
    if used is not None and total is not None and use is not None and temperature is not None:
        text = f"|{used:7.0f} /{total:7.0f} |{use:6.0f} %|{temperature:4.0f} °C"
        if len(text) == len(EMPTY_READINGS):
            return text
    return format_odd_term_reading_cells(used, total, use, temperature)


@lru_cache(maxsize=1000)
def format_odd_term_reading_cells(
    used: float | None, total: float | None, use: float | None, temperature: float | None
) -> str:
    """Format readings of which some are unknown, or too large for their column."""
    memory = fit_text(f"{format_term_number(used):>7} /{format_term_number(total):>7} ", MEMORY_WIDTH)
    percent = fit_text(f"{format_term_number(use)} %", USE_WIDTH, right=True)
    degrees = fit_text(f"{format_term_number(temperature)} °C", TEMPERATURE_WIDTH, right=True)
    return f"|{memory}|{percent}|{degrees}"


def list_term_gpus_by_state(host_status: HostStatus) -> Iterator[tuple[str, str]]:
    """Yield the states that have a colour with their GPUs, the GPUs with problems, and those with shared memory.

    A free GPU with a problem that keeps people off is not listed as free. Nothing of a host that is not fresh.
    """
    if host_status.state != "fresh":
        return
    labels_by_state: dict[str, list[str]] = {}
    labels_with_problems: dict[str, None] = {}
    for gpu_status in host_status.gpus:
        gpu, state = gpu_status.gpu, gpu_status.state
        if state != "lost" and any(problem.is_visible for problem in gpu_status.problems):
            labels_with_problems[(gpu.parent or gpu).label] = None
        if state in STATE_COLOURS and not (state == "free" and gpu_status.is_avoided):
            labels_by_state.setdefault(state, []).append(gpu.label)
    if labels_with_problems:
        labels_by_state[PROBLEM_LABEL] = list(labels_with_problems)
    if labels := [gpu_status.gpu.label for gpu_status in host_status.gpus if gpu_status.gpu.shared_memory]:
        labels_by_state[SHARED_MEMORY_LABEL] = labels
    for state, labels in labels_by_state.items():
        yield state, f"{host_status.name}:{','.join(labels)}"


def render_term_txt(parts: Sequence[TermPart], version: str, now: Now, colour: bool = False) -> bytes:
    """Render the table, the GPUs of each state below it, and when it was built."""
    titles = "|".join(f" {title}".ljust(width) for title, width in zip(COLUMN_TITLES, COLUMN_WIDTHS))
    above = (
        f"+{'-' * (TABLE_WIDTH - 2)}+\n| {fit_term_cell(f'gpuboard {version}', TABLE_WIDTH - 14)} gpu info. |\n"
        f"{TABLE_FRAME}|{titles}|\n{TABLE_FRAME}"
    )
    below = "".join([*format_term_state_lists(parts), f"built: {now.local.isoformat(' ', 'seconds')}\n"])
    frame = TABLE_FRAME.encode()
    rows = [text for part in parts for text in (part.coloured_rows if colour else part.plain_rows, frame)]
    return b"".join((above.encode(), *rows, below.encode()))


def format_term_state_lists(parts: Sequence[TermPart]) -> Iterator[str]:
    """Yield the lines of each state that some GPU has; `free` is always there."""
    hosts_by_state: dict[str, list[str]] = {state: [] for state in (*STATE_COLOURS, PROBLEM_LABEL, SHARED_MEMORY_LABEL)}
    for part in parts:
        for state, host_gpus in part.gpus_by_state:
            hosts_by_state[state].append(host_gpus)
    for state, words in hosts_by_state.items():
        if words or state == "free":
            yield wrap_term_words(f"{state}:", words or ["none"])


def wrap_term_words(line: str, words: Sequence[str]) -> str:
    """Break a line at the width of the table; a longer word has a line of its own."""
    lines = []
    for word in words:
        if len(line) + 1 + len(word) > TABLE_WIDTH and line.strip():
            lines.append(line)
            line = f"  {word}"
        else:
            line = f"{line} {word}"
    return "".join([f"{text}\n" for text in (*lines, line)])


def build_term_file(built_hosts: BuiltHosts, now: Now, colour: bool) -> PublishedFile:
    def render() -> bytes:
        parts = [
            TermPart(built_host.rendered.term_rows, built_host.rendered.term_coloured_rows, built_host.gpus_by_state)
            for built_host in built_hosts.values()
        ]
        return render_term_txt(parts, __version__, now, colour=colour)

    digests = [built_host.digests.term for built_host in built_hosts.values()]
    fingerprint = compute_digest(__version__.encode(), *digests)
    return PublishedFile(TERM_ANSI_FILE if colour else TERM_FILE, fingerprint, render)
