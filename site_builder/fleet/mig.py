"""GPUs in MIG mode: each is cut into instances, and is itself what these are together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from site_builder.core.model import BoardBooking, BoardGpu, BoardHost, BoardProcess, Gpu
from site_builder.fleet.gpu_state import PRECEDENCE, in_mig_mode

EMPTY = frozenset({"free", "booked"})
ON_SOME_INSTANCE = "there are processes on its GPU of which it is not told on which instance"
OnGpu = dict[str, list[tuple[BoardProcess, "str | None"]]]


class Whole(NamedTuple):
    """A GPU as it sits in its host, with its instances where it is cut into some."""

    board: BoardGpu
    instances: tuple[BoardGpu, ...] = ()


def is_uncut(gpu: Gpu) -> bool:
    """Whether a GPU is in MIG mode and tells no instances; its use is not told then, which few others have."""
    return gpu.utilization_gpu is None and gpu.parent is None and in_mig_mode(gpu)


def has_mig(host: BoardHost) -> bool:
    """Whether a GPU of a host is in MIG mode: CUDA's numbers are then not those of nvidia-smi."""
    return any(one.gpu.parent or is_uncut(one.gpu) for one in host.gpus)


def wholes(host: BoardHost) -> list[Whole]:
    """The GPUs of a host, each once, in their order."""
    gpus = host.gpus
    if not any(one.gpu.parent for one in gpus):
        return [Whole(one) for one in gpus]
    parts: dict[str, list[BoardGpu]] = {}
    for one in gpus:
        parts.setdefault(one.gpu.key if one.gpu.parent is None else one.gpu.parent.key, []).append(one)
    return [found for key, several in parts.items() for found in of_one(several, host.unplaced.get(key, ()))]


def of_one(several: Sequence[BoardGpu], unplaced: Sequence[BoardProcess]) -> list[Whole]:
    """What has one key: the instances of a GPU, or GPUs that somebody calls the same."""
    parent = several[0].gpu.parent
    if parent is None:
        return [Whole(one) for one in several]
    return [Whole(together(parent, several, unplaced), tuple(several))]


def together(parent: Gpu, several: Sequence[BoardGpu], unplaced: Sequence[BoardProcess] = ()) -> BoardGpu:
    """A GPU as a whole: it is free only if all of its instances are, and whoever is on one of them is on it."""
    states = [one.state for one in several]
    return BoardGpu(
        parent,
        several[0].of,
        next(state for state in PRECEDENCE if state in states),
        reason(several),
        (*unplaced, *(process for one in several for process in one.processes)),
        once(booking for one in several for booking in one.bookings),
        problems=several[0].problems,
    )


def reason(several: Sequence[BoardGpu]) -> str:
    """`2 of 7 instances are free: 0:3, 0:5`."""
    free = [one.gpu.label for one in several if one.state == "free"]
    told = {one.reason for one in several}
    if not free and len(told) == 1:
        return told.pop()
    if not free:
        return f"none of its {len(several)} instances is free"
    verb = "is" if len(free) == 1 else "are"
    return f"{len(free)} of {len(several)} instances {verb} free: {', '.join(free)}"


def once(several: Iterable[BoardBooking]) -> tuple[BoardBooking, ...]:
    """Each booking once; whether it is kept is to be said of each instance."""
    bare = (
        one._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None, whole_gpu=False)
        for one in several
    )
    return tuple(dict.fromkeys(bare))


def unplaced_in(found: Iterable[BoardGpu], on_gpu: OnGpu) -> dict[str, tuple[BoardProcess, ...]]:
    """Take out the processes on GPUs in MIG mode of which it is not told on which instance they are."""
    handles = {one.gpu.parent.key: one.gpu.parent.handle for one in found if one.gpu.parent}
    return {key: tuple(one for one, _ in on_gpu.pop(handle)) for key, handle in handles.items() if handle in on_gpu}


def beside(one: BoardGpu, unplaced: Mapping[str, object]) -> BoardGpu:
    """An instance that seems to be empty, where processes are on some instance of its GPU."""
    there = one.gpu.parent is not None and one.gpu.parent.key in unplaced
    return one._replace(state="unknown", reason=ON_SOME_INSTANCE) if there and one.state in EMPTY else one
