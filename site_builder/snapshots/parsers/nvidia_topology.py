"""Parse the matrix of `nvidia-smi topo -m`: how the GPUs of a host are connected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from site_builder.core.model import GpuTopology
from site_builder.core.terminal_text import decode_text

# The header is underlined, also where the output is a file.
ESCAPE_SEQUENCE = re.compile(rb"\x1b\[[0-9;]*m")
GPU_NAME = re.compile(r"GPU([0-9]{1,4})")
# The rows of GPUs and their header begin like this; those of network cards and the legend do not.
MATRIX_LINE = re.compile(r"[\t ]*GPU[0-9]")
NVLINK = re.compile(r"NV[0-9]{1,2}")
# NV4 or PIX; the words differ between drivers (SOC is SYS now).
CONNECTION = re.compile(r"NV[0-9]{1,2}|[A-Z]{3,4}")
NUMA_NODE = re.compile(r"[0-9]{1,4}")
SELF_CELL = "X"
CPU_COLUMN, NUMA_COLUMN = "CPU Affinity", "NUMA Affinity"
MAX_TOPOLOGY_GPUS = 128
MAX_NAMED_PROBLEMS = 5


class ParsedTopology(NamedTuple):
    """What was understood, and what is wrong with the matrix; None where no GPU was."""

    topology: GpuTopology | None = None
    problems: tuple[str, ...] = ()


def parse_nvidia_topology_output(output: bytes) -> ParsedTopology:
    """Parse all that the tool printed."""
    lines = decode_text(ESCAPE_SEQUENCE.sub(b"", output)).split("\n")
    return parse_nvidia_topology(tuple(filter(MATRIX_LINE.match, lines)))


# Hosts of one kind have the same matrix, and it stays the same; there may be megabytes of hostile ones.
@lru_cache(maxsize=64)
def parse_nvidia_topology(lines: tuple[str, ...]) -> ParsedTopology:
    """Parse the header and the rows of GPUs, whose cells are separated by tabs."""
    if not lines:
        return ParsedTopology()
    header = [cell.strip() for cell in lines[0].split("\t")]
    numa_position = header.index(NUMA_COLUMN) if NUMA_COLUMN in header else 0
    columns = find_gpu_columns(header)
    if not columns:
        return ParsedTopology(problems=("the matrix of nvidia-smi topo -m has no GPU",))
    problems: list[str] = []
    numa_nodes: dict[int, int | None] = {}
    words: dict[tuple[int, int], str] = {}
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split("\t")]
        name = GPU_NAME.fullmatch(cells[0])
        gpu = int(name[1]) if name else -1
        if gpu not in columns or gpu in numa_nodes:
            problems.append(f"the row {cells[0][:20]!a} has no column of its own")
        elif len(cells) <= max(columns.values()) or cells[columns[gpu]] != SELF_CELL:
            problems.append(f"the row of GPU {gpu} is cut or shifted")
        else:
            numa_text = cells[numa_position] if 0 < numa_position < len(cells) else ""
            # on several nodes (0-1), it is nearer to none of them
            numa_nodes[gpu] = int(numa_text) if NUMA_NODE.fullmatch(numa_text) else None
            words.update(((gpu, other), cells[column]) for other, column in columns.items())
    connections: dict[tuple[int, int], str] = {}
    for pair in combinations(sorted(columns), 2):
        word, mirrored = words.get(pair), words.get((pair[1], pair[0]))
        if word and mirrored and word != mirrored:
            problems.append(f"GPUs {pair[0]} and {pair[1]} are connected in two ways")
        elif (word or mirrored) and CONNECTION.fullmatch(word or mirrored or ""):
            connections[pair] = word or mirrored or ""
    if missing := sorted(columns.keys() - numa_nodes.keys()):
        problems.append(f"there is no row of GPU {', '.join(map(str, missing[:8]))}")
    linked: dict[int, list[int]] = {gpu: [] for gpu in sorted(columns)}
    for (gpu, other), word in connections.items():
        if NVLINK.fullmatch(word):
            linked[gpu].append(other)
            linked[other].append(gpu)
    topology = GpuTopology(
        numa_nodes={gpu: numa_nodes.get(gpu) for gpu in linked},
        connections=connections,
        linked={gpu: tuple(sorted(others)) for gpu, others in linked.items()},
    )
    return ParsedTopology(
        topology if numa_nodes else None,
        tuple(f"the matrix of nvidia-smi topo -m: {problem}" for problem in problems[:MAX_NAMED_PROBLEMS]),
    )


def find_gpu_columns(header: Sequence[str]) -> dict[int, int]:
    """Return the column of each GPU; the columns behind that of its CPUs are none."""
    end = header.index(CPU_COLUMN) if CPU_COLUMN in header else len(header)
    columns: dict[int, int] = {}
    for position, cell in enumerate(header[:end]):
        name = GPU_NAME.fullmatch(cell)
        if name and position and len(columns) < MAX_TOPOLOGY_GPUS:
            columns.setdefault(int(name[1]), position)
    return columns
