"""Types of samples of hosts and GPUs, and the keys of GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from site_builder.core.model import NOBODY, Gpu, GpuNumber, GpuPeople, GpuStatus

# In the order of their codes in history.db: new ones are added at the end. Older versions called `conflict` `violated`.
GPU_STATES = ("unknown", "lost", "conflict", "held", "busy", "booked", "free")
TAKEN_STATES = frozenset({"conflict", "held", "busy"})
# It is unknown whether a GPU in one of these is used.
UNCLEAR_STATES = frozenset({"unknown", "lost"})


class OccupancySample(NamedTuple):
    """State of a GPU, and its people: users, bookers, and bookers with nothing on it."""

    state: str
    people: GpuPeople = NOBODY


class GpuSeries(NamedTuple):
    """GPU over time; `key` is its UUID, or its place on its host if it has none. Memory in MiB."""

    key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    memory_total: float | None


class ProcessSample(NamedTuple):
    """Process on a GPU; memory in MiB, and of its command only the program."""

    pid: int | None
    program: str | None
    memory: float | None
    user: str | None


class GpuSample(NamedTuple):
    """GPU at a moment; use in percent, memory in MiB, power in W; its processes, or None if they were not recorded."""

    series: GpuSeries
    use: float | None
    memory: float | None
    temperature: float | None
    power: float | None
    occupancy: OccupancySample
    processes: tuple[ProcessSample, ...] | None = None


class HostSample(NamedTuple):
    """Fresh host at a moment; load of its CPUs and memory in use, both in percent."""

    host: str
    load: float | None
    memory: float | None
    gpus: tuple[GpuSample, ...]


def list_host_gpu_keys(gpus: Iterable[GpuStatus | Gpu]) -> list[str]:
    """Return the keys of GPUs on their host; those with the same key get a number each."""
    keys = []
    counts: dict[str, int] = {}
    for gpu in gpus:
        key = gpu.key
        count = counts[key] = counts.get(key, 0) + 1
        keys.append(key if count == 1 else f"{key} #{count}")
    return keys
