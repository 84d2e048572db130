"""Combine the instances of GPUs in MIG mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from site_builder.core.model import Gpu, GpuStatus, HostStatus, ProcessStatus
from site_builder.fleet.gpu_state import STATE_PRECEDENCE

ProcessesByGpu = dict[str, list[tuple[ProcessStatus, "str | None"]]]


class WholeGpu(NamedTuple):
    """A physical GPU, with its instances where it has any."""

    status: GpuStatus
    instances: tuple[GpuStatus, ...] = ()


def is_mig_without_instances(gpu: Gpu) -> bool:
    """Return True if a GPU is in MIG mode and reports no instances; it reports no utilization then."""
    return gpu.utilization_gpu is None and gpu.parent is None and gpu.health.is_in_mig_mode


def has_mig_gpu(host: HostStatus) -> bool:
    """Return True if a GPU of the host is in MIG mode: CUDA's numbers are then not those of nvidia-smi."""
    return any(status.gpu.parent or is_mig_without_instances(status.gpu) for status in host.gpus)


def list_whole_gpus(host: HostStatus) -> list[WholeGpu]:
    """Return the physical GPUs of a host, in their order."""
    if not any(status.gpu.parent for status in host.gpus):
        return [WholeGpu(status) for status in host.gpus]
    groups: dict[str, list[GpuStatus]] = {}
    for status in host.gpus:
        groups.setdefault((status.gpu.parent or status.gpu).key, []).append(status)
    whole_gpus = []
    for key, group in groups.items():
        parent = group[0].gpu.parent
        if parent is None:  # one GPU, or several that report the same key
            whole_gpus += [WholeGpu(status) for status in group]
            continue
        # it is free only if all of its instances are
        states = [instance.state for instance in group]
        reasons = {instance.reason for instance in group}
        free = [instance.gpu.label for instance in group if instance.state == "free"]
        reason = f"{len(free)} of {len(group)} instances {'is' if len(free) == 1 else 'are'} free: {', '.join(free)}"
        if not free:
            reason = reasons.pop() if len(reasons) == 1 else f"none of its {len(group)} instances is free"
        # each booking once; how it is used differs between instances
        bookings = dict.fromkeys(
            booking._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None, is_whole_gpu=False)
            for instance in group
            for booking in instance.bookings
        )
        unplaced = host.unplaced_processes.get(key, ())
        merged = GpuStatus(
            gpu=parent,
            model=group[0].parent_model,
            state=next(state for state in STATE_PRECEDENCE if state in states),
            reason=reason,
            processes=(*unplaced, *(process for instance in group for process in instance.processes)),
            bookings=tuple(bookings),
            problems=group[0].problems,
        )
        whole_gpus.append(WholeGpu(merged, tuple(group)))
    return whole_gpus


def take_unplaced_mig_processes(
    statuses: Iterable[GpuStatus], processes_by_gpu: ProcessesByGpu
) -> dict[str, tuple[ProcessStatus, ...]]:
    """Remove and return the processes on GPUs in MIG mode whose instance is not reported."""
    parents = {status.gpu.parent.key: status.gpu.parent.process_key for status in statuses if status.gpu.parent}
    return {
        key: tuple(process for process, _ in processes_by_gpu.pop(process_key))
        for key, process_key in parents.items()
        if process_key in processes_by_gpu
    }
