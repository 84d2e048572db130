"""detail.txt: each GPU in a box with its memory and its processes, for `curl`.

Put together in bytes: with frames in it, a text of Python's is twice as large, and takes twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from site_builder.board.outputs.plain import (
    NOT_TOLD,
    addresses,
    available,
    bare,
    cell,
    cell_bytes,
    driver_name,
    moment,
    number,
    stamp,
)
from site_builder.core.clock import Now
from site_builder.core.model import BoardGpu, BoardHost, BoardProcess, GpuProblem, Number
from site_builder.core.terminal_text import fit, width
from site_builder.fleet.mig import wholes
from site_builder.health.render import of_note

ALL, INSIDE, BAR = 80, 74, 61
NAME, SIZE, USER = 24, 8, 32
LARGEST = 10**SIZE - 1
MOST_PROCESSES = 20
LEFT, RIGHT = "  │ ".encode(), "│\n".encode()
TITLES = f"  │{'      memory used  memory available  gpu volatile  temperature':{INSIDE}}│\n"
READINGS = f"  │%6.0f /%6.0fMiB%15.0fMiB%13.0f%%%11.0f°C{' ' * 12}│\n".encode()
USUAL = len(READINGS % (0, 0, 0, 0, 0))
BRANCH, LAST_BRANCH = "  │  ├── ".encode(), "  │  └── ".encode()
BOTTOM = f"  └{'─' * INSIDE}┘\n\n".encode()
END = f"{'_' * ALL}\n\n".encode()
RULE = f"{'-' * ALL}\n"


def host(board: BoardHost, looked: float | None, now: Now) -> bytes:
    """A host's part; `looked` is when its GPUs were."""
    where = next((address for _, address in addresses(board)), NOT_TOLD)
    seen = NOT_TOLD if board.seen is None else moment(board.seen, now.zone, "%d/%m/%Y %H:%M:%S")
    name = cell(board.name, min(width(board.name), 40))
    title = f"#### {name} :: {cell(where, min(width(where), 30))} "
    state = "" if board.state == "fresh" else f"  {cell(f'! {board.state}: {board.reason}', ALL - 2).rstrip()}\n"
    head = f"{title}{'#' * (ALL - width(title))}\n  last update: {seen}\n{state}{RULE}"
    at = (stamp(looked, now.zone) or NOT_TOLD).encode()
    return b"".join([head.encode(), *boxes(board, at), END])


def boxes(board: BoardHost, at: bytes) -> Iterator[bytes]:
    """Those of its GPUs; of one in MIG mode its instances follow, each with its own processes."""
    for whole, parts in wholes(board):
        key = whole.gpu.key
        yield box(whole._replace(processes=board.unplaced.get(key, ())) if parts else whole, at)
        for one in parts:
            yield box(one._replace(problems=()), at)  # which stand in the box of its GPU


def box(gpu: BoardGpu, at: bytes) -> bytes:
    """The lines of a GPU."""
    _, _, name, used, total, use, _, temperature = gpu.gpu[:8]
    before, after = top(gpu.gpu.number, gpu.model if gpu.gpu.parent else name, len(at))
    numbers = readings((used, total, available(gpu), use, temperature))
    state = cell_bytes(f"{gpu.state}: {gpu.reason}", INSIDE - 1)
    wrong = ills(gpu.problems) if gpu.problems else b""
    parts = (before, at, after, numbers, LEFT, state, RIGHT, wrong, bar(used, total), *tree(gpu.processes), BOTTOM)
    return b"".join(parts)


@lru_cache(maxsize=4096)
def ills(problems: tuple[GpuProblem, ...]) -> bytes:
    """A line for each problem of note."""
    lines = (cell_bytes(f"! {one.what}", INSIDE - 1) for one in of_note(problems))
    return b"".join([b"%b%b%b" % (LEFT, line, RIGHT) for line in lines])


@lru_cache(maxsize=1024)
def top(number_of: Number, name: str | None, room_of_time: int) -> tuple[bytes, bytes]:
    """The upper edge with the name of the GPU, before and behind the time, and the titles."""
    first, full = f"[ gpu:{NOT_TOLD if number_of is None else number_of} ", driver_name(name)
    room = INSIDE - len(first) - len(" ") - room_of_time - len(" ]")
    text = f"{first}{cell(full, min(width(full), room))} "
    edge = "─" * (INSIDE - width(text) - room_of_time - len(" ]"))
    return f"  ┌{text}".encode(), f" ]{edge}┐\n{TITLES}".encode()


def readings(told: tuple[float | None, ...]) -> bytes:
    """The line of numbers: memory used, in all, not used; use; temperature."""
    line = b"" if None in told else READINGS % told
    if len(line) == USUAL:
        return line
    used, total, left, use, temperature = map(number, told)
    text = f"{used:>6} /{total:>6}MiB{left:>15}MiB{use:>13}%{temperature:>11}°C"
    return f"  │{text:{INSIDE}.{INSIDE}}│\n".encode()  # each of these letters takes one cell


def bar(used: float | None, total: float | None) -> bytes:
    """How much of the memory is in use."""
    if used is None or not total:
        return drawn(None, None)
    share = min(1, used / total)
    return drawn(int(share * BAR), int(share * 100))


@lru_cache(maxsize=1000)
def drawn(cells: int | None, percent: int | None) -> bytes:
    """The same, of so many cells and percent."""
    filled = NOT_TOLD if cells is None else "/" * cells
    return f"  │ mem [{filled:{BAR}}] {NOT_TOLD if percent is None else percent:>3}% │\n".encode()


def tree(several: tuple[BoardProcess, ...]) -> list[bytes]:
    """A line for each process."""
    lines = [branch(one.command, one.used_memory, one.user) for one in several[:MOST_PROCESSES]]
    if len(several) > MOST_PROCESSES:
        lines.append(cell_bytes(f"and {len(several) - MOST_PROCESSES} more", INSIDE - 6))
    signs = [*[BRANCH] * (len(lines) - 1), LAST_BRANCH]
    return [b"%b%b%b" % (sign, line, RIGHT) for sign, line in zip(signs, lines)]


@lru_cache(maxsize=40_000)
def branch(command: str | None, used: float | None, user: str | None) -> bytes:
    """A process; the same for as long as it runs."""
    size = b"%8.0f" % used if used is not None and used < LARGEST else fit(number(used), SIZE, right=True).encode()
    return b"%b%bMiB %b" % (cell_bytes(bare(command), NAME), size, cell_bytes(user or NOT_TOLD, USER))


def detail(parts: Iterable[bytes], version: str, now: Now) -> bytes:
    """The whole file, from the parts of each host."""
    built = f"built: {now.local.isoformat(' ', 'seconds')}\n"
    return b"".join((f"gpuboard {version}\n\n".encode(), *parts, built.encode()))
