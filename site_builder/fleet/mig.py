"""GPUs in MIG mode: each is cut into instances, and is itself what these are together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from site_builder.core.model import BookingStatus, Gpu, GpuStatus, HostStatus, ProcessStatus
from site_builder.fleet.gpu_state import STATE_PRECEDENCE, is_in_mig_mode

EMPTY_STATES = frozenset({"free", "booked"})
UNPLACED_PROCESSES_REASON = "there are processes on its GPU of which it is not told on which instance"
ProcessesByGpu = dict[str, list[tuple[ProcessStatus, "str | None"]]]


class WholeGpu(NamedTuple):
    """A GPU as it sits in its host, with its instances where it is cut into some."""

    status: GpuStatus
    instances: tuple[GpuStatus, ...] = ()


def is_mig_without_instances(gpu: Gpu) -> bool:
    """Whether a GPU is in MIG mode and tells no instances; its use is not told then, which few others have."""
    return gpu.utilization_gpu is None and gpu.parent is None and is_in_mig_mode(gpu)


def has_mig_gpu(host: HostStatus) -> bool:
    """Whether a GPU of a host is in MIG mode: CUDA's numbers are then not those of nvidia-smi."""
    return any(one.gpu.parent or is_mig_without_instances(one.gpu) for one in host.gpus)


def list_whole_gpus(host: HostStatus) -> list[WholeGpu]:
    """The GPUs of a host, each once, in their order."""
    gpus = host.gpus
    if not any(one.gpu.parent for one in gpus):
        return [WholeGpu(one) for one in gpus]
    parts: dict[str, list[GpuStatus]] = {}
    for one in gpus:
        parts.setdefault(one.gpu.key if one.gpu.parent is None else one.gpu.parent.key, []).append(one)
    return [
        found
        for key, several in parts.items()
        for found in build_whole_gpus(several, host.unplaced_processes.get(key, ()))
    ]


def build_whole_gpus(several: Sequence[GpuStatus], unplaced: Sequence[ProcessStatus]) -> list[WholeGpu]:
    """What has one key: the instances of a GPU, or GPUs that somebody calls the same."""
    parent = several[0].gpu.parent
    if parent is None:
        return [WholeGpu(one) for one in several]
    return [WholeGpu(merge_instances(parent, several, unplaced), tuple(several))]


def merge_instances(parent: Gpu, several: Sequence[GpuStatus], unplaced: Sequence[ProcessStatus] = ()) -> GpuStatus:
    """A GPU as a whole: it is free only if all of its instances are, and whoever is on one of them is on it."""
    states = [one.state for one in several]
    return GpuStatus(
        parent,
        several[0].parent_model,
        next(state for state in STATE_PRECEDENCE if state in states),
        describe_instances(several),
        (*unplaced, *(process for one in several for process in one.processes)),
        dedupe_bookings(booking for one in several for booking in one.bookings),
        problems=several[0].problems,
    )


def describe_instances(several: Sequence[GpuStatus]) -> str:
    """`2 of 7 instances are free: 0:3, 0:5`."""
    free = [one.gpu.label for one in several if one.state == "free"]
    told = {one.reason for one in several}
    if not free and len(told) == 1:
        return told.pop()
    if not free:
        return f"none of its {len(several)} instances is free"
    verb = "is" if len(free) == 1 else "are"
    return f"{len(free)} of {len(several)} instances {verb} free: {', '.join(free)}"


def dedupe_bookings(several: Iterable[BookingStatus]) -> tuple[BookingStatus, ...]:
    """Each booking once; whether it is kept is to be said of each instance."""
    bare = (
        one._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None, is_whole_gpu=False)
        for one in several
    )
    return tuple(dict.fromkeys(bare))


def take_unplaced_processes(found: Iterable[GpuStatus], on_gpu: ProcessesByGpu) -> dict[str, tuple[ProcessStatus, ...]]:
    """Take out the processes on GPUs in MIG mode of which it is not told on which instance they are."""
    handles = {one.gpu.parent.key: one.gpu.parent.process_key for one in found if one.gpu.parent}
    return {key: tuple(one for one, _ in on_gpu.pop(handle)) for key, handle in handles.items() if handle in on_gpu}


def mark_unclear_instance(one: GpuStatus, unplaced: Mapping[str, object]) -> GpuStatus:
    """An instance that seems to be empty, where processes are on some instance of its GPU."""
    there = one.gpu.parent is not None and one.gpu.parent.key in unplaced
    return (
        one._replace(state="unknown", reason=UNPLACED_PROCESSES_REASON) if there and one.state in EMPTY_STATES else one
    )
