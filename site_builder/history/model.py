"""Types of samples of hosts and GPUs, and how they are taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from site_builder.core.model import NOBODY, Gpu, GpuNumber, GpuPeople, GpuStatus, HostFacts, HostStatus

# In the order of their codes in history.db: new ones are added at the end. Older versions called `conflict` `violated`.
GPU_STATES = ("unknown", "lost", "conflict", "held", "busy", "booked", "free")
TAKEN_STATES = frozenset({"conflict", "held", "busy"})
# Nobody knows whether a GPU in one of these is used.
UNCLEAR_STATES = frozenset({"unknown", "lost"})


class Occupancy(NamedTuple):
    """State of a GPU, and its people: users, bookers, and bookers with nothing on it."""

    state: str
    people: GpuPeople = NOBODY


class GpuSeries(NamedTuple):
    """GPU over time; `key` is its UUID, or its place on its host if it has none. Memory in MiB."""

    key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    memory_total: float | None


class GpuSample(NamedTuple):
    """GPU at a moment; use in percent, memory in MiB, power in W."""

    series: GpuSeries
    use: float | None
    memory: float | None
    temperature: float | None
    power: float | None
    occupancy: Occupancy


class HostSample(NamedTuple):
    """Fresh host at a moment; load of its CPUs and memory in use, both in percent."""

    host: str
    load: float | None
    memory: float | None
    gpus: tuple[GpuSample, ...]


def sample_host(host: HostStatus) -> HostSample | None:
    """Take a sample of a fresh host; nothing is known of any other."""
    if host.state != "fresh":
        return None
    facts = host.facts or HostFacts()
    load = 100 * facts.load[0] / facts.cpus if facts.load and facts.cpus else None
    memory = None
    if facts.memory_total and facts.memory_available is not None:
        memory = 100 * (1 - facts.memory_available / facts.memory_total)
    samples = [
        GpuSample(
            series=GpuSeries(key, status.gpu.number, status.model, status.gpu.memory_total),
            use=status.gpu.utilization_gpu,
            memory=status.gpu.memory_used,
            temperature=status.gpu.temperature,
            power=status.gpu.power_draw,
            occupancy=Occupancy(status.state, status.people),
        )
        for status, key in zip(host.gpus, list_host_gpu_keys(host.gpus))
    ]
    return HostSample(host.name, load, memory, tuple(samples))


def build_host_gpu_key(gpu: GpuStatus | Gpu, counts: dict[str, int]) -> str:
    """Return the key of a GPU on its host; GPUs with the same key get a number each."""
    key = gpu.key
    count = counts[key] = counts.get(key, 0) + 1
    return key if count == 1 else f"{key} #{count}"


def list_host_gpu_keys(gpus: Iterable[GpuStatus | Gpu]) -> list[str]:
    counts: dict[str, int] = {}
    return [build_host_gpu_key(gpu, counts) for gpu in gpus]


def find_outdated_hosts(hosts: Mapping[str, tuple[Sequence[str], float | None]]) -> set[str]:
    """Find hosts all of whose GPUs another host reported later: old names of it, which would count twice.

    `hosts` has the UUIDs of each host's GPUs, and when it was heard last.
    """
    all_uuids = [uuid for uuids, _ in hosts.values() for uuid in uuids]
    if len(set(all_uuids)) == len(all_uuids):  # as it should be
        return set()
    last_seen: dict[str, float] = {}
    for uuids, seen in hosts.values():
        for uuid in uuids:
            last_seen[uuid] = max(last_seen.get(uuid, 0), seen or 0)
    return {
        name for name, (uuids, seen) in hosts.items() if uuids and all(last_seen[uuid] > (seen or 0) for uuid in uuids)
    }
