"""Add the memory of its host to a GPU that shares it."""

from __future__ import annotations

from site_builder.core.model import Gpu, HostFacts, SharedMemory


def add_host_memory(gpu: Gpu, facts: HostFacts | None) -> Gpu:
    """Return a GPU with the memory that a program on it can allocate: in all, and, not in `memory_used`, now.

    What others use of the host's memory counts as used, whether on the GPU or not: states are decided without this.
    """
    shared = gpu.shared_memory
    if shared is None:
        return gpu
    host_total, available = (facts.memory_total, facts.memory_available) if facts else (None, None)
    if shared.is_all:
        used = None if host_total is None or available is None else max(0, host_total - available)
        return gpu._replace(memory_total=host_total, memory_used=used)
    if gpu.memory_total is None or shared.total is None:
        return gpu
    # drivers let GTT be larger than the memory that there is
    total = gpu.memory_total - (0 if host_total is None else max(0, shared.total - host_total))
    return gpu._replace(memory_total=total, memory_used=compute_used_memory(gpu, shared, total, available))


def compute_used_memory(gpu: Gpu, shared: SharedMemory, total: float, available: float | None) -> float | None:
    """Return how much of `total` is not to be had: in use on the GPU, or by other programs on the host."""
    if gpu.memory_used is None or gpu.memory_total is None or available is None:
        return gpu.memory_used
    if shared.total is None or shared.used is None:
        return gpu.memory_used
    own_free = (gpu.memory_total - shared.total) - (gpu.memory_used - shared.used)
    shared_free = min(shared.total - shared.used, available)
    return max(gpu.memory_used, total - max(0, own_free) - max(0, shared_free))


def compute_free_memory(gpu: Gpu) -> float | None:
    """Return how much memory a program can allocate now."""
    if gpu.memory_total is None or gpu.memory_used is None:
        return None
    return max(0, gpu.memory_total - gpu.memory_used)


def compute_own_memory(gpu: Gpu) -> float | None:
    """Return the memory of a GPU; 0 if it is that of the host, but for one that reports its HBM as a whole."""
    return 0 if gpu.shared_memory and gpu.shared_memory.total != 0 else gpu.memory_total
