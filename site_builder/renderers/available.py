"""available.txt and available/HOST.txt: the GPUs that are free, for shells."""

from __future__ import annotations

from collections.abc import Iterable

from site_builder.decide.fleet import AvailableGpu


def host(gpus: Iterable[AvailableGpu]) -> bytes:
    """`0,2` for CUDA_VISIBLE_DEVICES, the best first; nothing at all where none is free, which hides all from CUDA."""
    text = ",".join(str(one.index) for one in sorted(gpus, key=lambda one: one.rank))
    return f"{text}\n".encode() if text else b""


def fleet(gpus: Iterable[AvailableGpu]) -> bytes:
    """`atlas:2 hydra:3`, the best first; of two that are as good, the one that stands first on the board."""
    text = " ".join(f"{one.host}:{one.index}" for one in sorted(gpus, key=lambda one: one.rank))
    return f"{text}\n".encode() if text else b""
