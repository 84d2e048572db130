"""What history keeps of a moment: each GPU and each host of the fleet. A value that is not available is None."""

from __future__ import annotations

from typing import NamedTuple

from site_builder.core.model import NOBODY, Number, Who

# In the order of their codes, which stand in history.db for ever: new ones are added at the end.
STATES = ("unknown", "lost", "violated", "held", "busy", "booked", "free")
TAKEN = frozenset({"violated", "held", "busy"})
# Nobody can tell whether a GPU in one of these is used.
UNCLEAR = frozenset({"unknown", "lost"})


class Standing(NamedTuple):
    """How a GPU stands: its state, who is on it, who has booked it, and which of these have nothing on it."""

    state: str
    who: Who = NOBODY


class Series(NamedTuple):
    """A GPU over time; `key` is its UUID, or its place on its host where it has none. Memory in MiB."""

    key: str
    index: Number  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    memory_total: float | None


class GpuSample(NamedTuple):
    """A GPU at a moment; use in percent, memory in MiB, power in W."""

    series: Series
    use: float | None
    memory: float | None
    temperature: float | None
    power: float | None
    standing: Standing


class HostSample(NamedTuple):
    """A host that is fresh; load of its CPUs in percent, memory in use in percent."""

    host: str
    load: float | None
    memory: float | None
    gpus: tuple[GpuSample, ...]
