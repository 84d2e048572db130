"""How the GPUs of a host are connected: in words, and which of them are best used together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from site_builder.core.model import Gpu, GpuTopology
from site_builder.fleet.gpu_models import DEFAULT_VENDOR

# More GPUs are not compared: the time for it grows with the third power of their number.
MAX_COMPARED_GPUS = 64
# A pair with NVLink counts more than all pairs on one NUMA node.
NVLINK_SCORE, NUMA_SCORE = MAX_COMPARED_GPUS**2, 1


class GpuPlace(NamedTuple):
    """Where a GPU is on its host: its index, its NUMA node, and the indices of the GPUs to which it has NVLinks."""

    index: int | None  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    numa_node: int | None = None
    linked: Collection[int] = ()
    model: str | None = None


def find_matching_topology(topology: GpuTopology | None, gpus: Sequence[Gpu]) -> GpuTopology | None:
    """Return the topology, unless it lacks a GPU or has none of them: then it is of another time and means nothing."""
    indices = {gpu.index for gpu in gpus if gpu.vendor == DEFAULT_VENDOR and gpu.index is not None}
    return topology if topology and indices and indices <= topology.numa_nodes.keys() else None


def locate_gpu(topology: GpuTopology | None, gpu: Gpu) -> GpuPlace:
    """Return what is known of its place; of an instance nothing, since it cannot use the links of its GPU."""
    if topology is None or gpu.index is None or gpu.vendor != DEFAULT_VENDOR or gpu.parent:
        return GpuPlace(gpu.index, model=gpu.name)
    return GpuPlace(gpu.index, topology.numa_nodes.get(gpu.index), topology.linked.get(gpu.index, ()), gpu.name)


# Which GPUs to take together


def choose_connected_gpus(places: Sequence[GpuPlace], count: int, fixed_count: int = 0) -> list[int]:
    """Choose the positions of GPUs that are connected best: by NVLink, then on one NUMA node, then the first ones.

    The first `fixed_count` come before all others. GPUs of another model than the first are not preferred. A single
    GPU is the first of those that have the fewest links to the others.
    """
    if fixed_count > count:
        return choose_connected_gpus(places[:fixed_count], count)
    first_ones = list(range(min(count, len(places))))
    alike = [
        position
        for position, place in enumerate(places[:MAX_COMPARED_GPUS])
        if position < fixed_count or place.model == places[0].model
    ]
    is_known = any(place.linked or place.numa_node is not None for place in places)
    if not is_known or len(alike) < count or count in {0, fixed_count, len(places)}:
        return first_ones
    if count == 1:
        indices = {place.index for place in places}
        return [min(alike, key=lambda position: len(indices.intersection(places[position].linked)))]
    best, best_score = first_ones, rate_connections(places[:count])
    for start in [alike[:fixed_count]] if fixed_count else [[position] for position in alike]:
        chosen = list(start)
        gains = {position: 0 for position in alike if position not in chosen}
        newest = chosen
        while len(chosen) < count:
            for position in gains:
                gains[position] += sum(rate_pair(places[position], places[member]) for member in newest)
            newest = [max(gains, key=gains.__getitem__)]
            chosen += newest
            del gains[newest[0]]
        score = rate_connections([places[position] for position in chosen])
        if score > best_score:
            best, best_score = sorted(chosen), score
    return best


def rate_pair(gpu: GpuPlace, other: GpuPlace) -> int:
    """Return the same for both orders, even where the matrix of a host has a link in one direction only."""
    is_near = gpu.numa_node is not None and gpu.numa_node == other.numa_node
    is_linked = other.index in gpu.linked or gpu.index in other.linked
    return NVLINK_SCORE * is_linked + NUMA_SCORE * is_near


def rate_connections(places: Sequence[GpuPlace]) -> int:
    return sum(rate_pair(gpu, other) for gpu, other in combinations(places, 2))


def is_nvlink_group(places: Sequence[GpuPlace]) -> bool:
    """Return True if each GPU reaches all others over NVLinks between them."""
    linked = {place.index: place.linked for place in places if place.index is not None}
    return [len(group) for group in list_nvlink_groups(linked)] == [len(places)]


def list_nvlink_groups(linked: Mapping[int, Collection[int]]) -> Iterator[list[int]]:
    """Yield the GPUs that reach each other over NVLinks, in groups of two and more."""
    left = set(linked)
    for gpu in sorted(linked):
        group, new = set(), {gpu} & left
        while new:
            group |= new
            left -= new
            new = {other for member in new for other in linked[member]} & left
        if len(group) > 1:
            yield sorted(group)


def list_fully_linked_groups(linked: Mapping[int, Collection[int]]) -> Iterator[list[int]]:
    """Yield GPUs all of which have NVLinks to each other, each in one group of two and more."""
    groups: list[list[int]] = []
    for gpu in sorted(linked):
        group = next((group for group in groups if all(member in linked[gpu] for member in group)), None)
        if group is None:
            groups.append([gpu])
        else:
            group.append(gpu)
    yield from (group for group in groups if len(group) > 1)


# In words


def describe_nvlinks(topology: GpuTopology) -> str:
    """Describe the groups: `GPUs 0, 1 · GPUs 2, 3 (NV4)`; empty for a single GPU."""
    if len(topology.linked) < 2:
        return ""
    groups = list(list_nvlink_groups(topology.linked))
    words = {topology.connections[pair] for pair in topology.connections if pair[1] in topology.linked[pair[0]]}
    text = " · ".join(map(format_gpu_indices, groups)) or "none"
    if len(topology.linked) > 2 and groups == [list(topology.linked)]:
        text = "all GPUs are linked"
    if any(len(topology.linked[gpu]) < len(group) - 1 for group in groups for gpu in group):
        return f"{text}, some of them through others"
    return f"{text} ({words.pop()})" if len(words) == 1 else text


def describe_numa_nodes(topology: GpuTopology) -> str:
    """Describe the nodes: `0: GPUs 0, 1 · 1: GPUs 2, 3`; empty where none is known."""
    gpus_by_node: defaultdict[int, list[int]] = defaultdict(list)
    for gpu, node in topology.numa_nodes.items():
        if node is not None:
            gpus_by_node[node].append(gpu)
    return " · ".join(f"{node}: {format_gpu_indices(gpus)}" for node, gpus in sorted(gpus_by_node.items()))


def format_gpu_indices(gpus: Sequence[int]) -> str:
    """Return `GPU 0`, `GPUs 0, 1` or `GPUs 0 to 3`."""
    if len(gpus) > 2 and gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"GPUs {gpus[0]} to {gpus[-1]}"
    return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {', '.join(map(str, gpus))}"
