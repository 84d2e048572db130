"""available.txt, available/HOST.txt and available-amd/HOST.txt: the GPUs that are free, for shells."""

from __future__ import annotations

from collections.abc import Iterable

from site_builder.fleet.summary import AvailableGpu


def host(gpus: Iterable[AvailableGpu], vendor: str = "nvidia") -> bytes:
    """`0,2` for CUDA_VISIBLE_DEVICES, the best first; nothing at all where none is free, which hides all from CUDA.

    Of one maker: what one calls 0 is another GPU than what the other does. A process sees but one instance: where no
    whole GPU is free, it is the best of them.
    """
    ranked = sorted((one for one in gpus if one.vendor == vendor), key=lambda one: one.rank)
    several = [one for one in ranked if not one.alone] or ranked[:1]
    text = ",".join(str(one.uuid or (one.index if one.alone else one.own)) for one in several)
    return f"{text}\n".encode() if text else b""


def fleet(gpus: Iterable[AvailableGpu]) -> bytes:
    """`atlas:2 hydra:3`, the best first; of two that are as good, the one that stands first on the board."""
    text = " ".join(f"{one.host}:{one.index}" for one in sorted(gpus, key=lambda one: one.rank))
    return f"{text}\n".encode() if text else b""
