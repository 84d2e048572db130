"""Samples of hosts and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from site_builder.core.model import NOBODY, Gpu, GpuNumber, GpuPeople, GpuStatus, HostFacts, HostStatus

# In the order of their codes, which stay in history.db for ever: new ones are added at the end. An older version called
# `conflict` `violated`; the code is the same.
GPU_STATES = ("unknown", "lost", "conflict", "held", "busy", "booked", "free")
TAKEN_STATES = frozenset({"conflict", "held", "busy"})
# Nobody can tell whether a GPU in one of these is used.
UNCLEAR_STATES = frozenset({"unknown", "lost"})


class Occupancy(NamedTuple):
    """How a GPU stands: its state, who is on it, who has booked it, and which of these have nothing on it."""

    state: str
    people: GpuPeople = NOBODY


class GpuSeries(NamedTuple):
    """A GPU over time; `key` is its UUID, or its place on its host where it has none. Memory in MiB."""

    key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    memory_total: float | None


class GpuSample(NamedTuple):
    """A GPU at a moment; use in percent, memory in MiB, power in W."""

    series: GpuSeries
    use: float | None
    memory: float | None
    temperature: float | None
    power: float | None
    occupancy: Occupancy


class HostSample(NamedTuple):
    """A host that is fresh; load of its CPUs in percent, memory in use in percent."""

    host: str
    load: float | None
    memory: float | None
    gpus: tuple[GpuSample, ...]


def sample_host(board: HostStatus) -> HostSample | None:
    """A host that is fresh; of any other nothing is known, and so nothing is kept."""
    if board.state != "fresh":
        return None
    facts = board.facts or HostFacts()
    load = 100 * facts.load[0] / facts.cpus if facts.load and facts.cpus else None
    memory = None
    if facts.memory_total and facts.memory_available is not None:
        memory = 100 * (1 - facts.memory_available / facts.memory_total)
    keys: dict[str, int] = {}
    return HostSample(
        board.name, load, memory, tuple(sample_gpu(one, build_host_gpu_key(one, keys)) for one in board.gpus)
    )


def build_host_gpu_key(board: GpuStatus | Gpu, keys: dict[str, int]) -> str:
    """What names a GPU on its host; of several under one name, each has its own."""
    key = board.key
    count = keys[key] = keys.get(key, 0) + 1
    return key if count == 1 else f"{key} #{count}"


def list_host_gpu_keys(gpus: Iterable[GpuStatus | Gpu]) -> list[str]:
    """What names each of the GPUs that a host has now."""
    keys: dict[str, int] = {}
    return [build_host_gpu_key(one, keys) for one in gpus]


def sample_gpu(board: GpuStatus, key: str) -> GpuSample:
    """A GPU."""
    told = board.gpu
    return GpuSample(
        GpuSeries(key, told.number, board.model, told.memory_total),
        told.utilization_gpu,
        told.memory_used,
        told.temperature,
        told.power_draw,
        Occupancy(board.state, board.people),
    )


def find_outdated_hosts(hosts: Mapping[str, tuple[Sequence[str], float | None]]) -> set[str]:
    """Hosts all of whose GPUs another one tells that was heard later: old names of it, or each minute counts twice.

    Of each host its GPUs' UUIDs, and when it was heard last.
    """
    every = [uuid for uuids, _ in hosts.values() for uuid in uuids]
    if len(set(every)) == len(every):  # as it should be
        return set()
    last: dict[str, float] = {}
    for uuids, seen in hosts.values():
        for uuid in uuids:
            last[uuid] = max(last.get(uuid, 0), seen or 0)
    return {name for name, (uuids, seen) in hosts.items() if uuids and all(last[uuid] > (seen or 0) for uuid in uuids)}
