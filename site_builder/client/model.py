"""The fleet as programs see it: status.json, typed. A value that is not available is None, never 0."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from site_builder.core.model import GpuProblem

# What a program reads to know which GPUs of a maker it may see.
VISIBLE_DEVICES_VARIABLES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


class FleetProcess(NamedTuple):
    """A process on a GPU; memory in MiB, `started` in seconds since 1970."""

    pid: int | None
    user: str | None
    command: str | None
    used_memory: float | None
    started: int | None


class FleetBooking(NamedTuple):
    """A promise of a GPU; without `since` it holds since ever. The last four tell of one that runs if it is kept."""

    id: str | None
    name: str | None
    since: datetime | None
    until: datetime
    comment: str | None
    unused_since: int | None = None
    used_by: tuple[str, ...] | None = None
    used_by_since: int | None = None
    mean_use: float | None = None


class FleetGpu(NamedTuple):
    """A GPU with its state and the reason in words; memory in MiB, use in percent, power in W, clock in MHz.

    `model` is what people call it, `name` what the driver does. `free_again` is when its bookings end. `number` is its
    index where we are, if that is another. `place` is what it is called on its host where that is not its index; an
    instance (MIG) has its GPU's index, a profile, and in `of` the names that bookings may have for that GPU. `index` is
    what programs count it by: nvidia-smi's number, or HIP's of a GPU whose `vendor` is amd. `problems` are what is
    wrong with it now.
    """

    index: int | None  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    uuid: str | None
    name: str | None
    model: str
    state: str
    reason: str
    memory_used: float | None = None
    memory_total: float | None = None
    utilization_gpu: float | None = None
    utilization_memory: float | None = None
    temperature: float | None = None
    power_draw: float | None = None
    power_limit: float | None = None
    clock: float | None = None
    processes: tuple[FleetProcess, ...] = ()
    bookings: tuple[FleetBooking, ...] = ()
    free_again: int | None = None
    local_index: int | None = None
    place: str | None = None
    profile: str | None = None
    parent_keys: tuple[str, ...] = ()
    problems: tuple[GpuProblem, ...] = ()
    vendor: str = "nvidia"

    @property
    def identifier(self) -> str:
        """What names it on its host also where it has no UUID."""
        return self.uuid or f"{self.vendor} {self.label}"

    @property
    def label(self) -> str:
        """What people call it on its host."""
        return self.place or ("?" if self.index is None else str(self.index))

    @property
    def booking_keys(self) -> tuple[str, ...]:
        """What its instances have in `of`."""
        return tuple(name.lower() for name in (self.label, self.uuid) if name and name != "?")

    @property
    def is_avoided(self) -> bool:
        """Whether nobody should be given it, whatever its state."""
        return any(one.avoid for one in self.problems) if self.problems else False


class FleetDisk(NamedTuple):
    """A local file system, in MiB."""

    mount: str
    total: float
    used: float


class FleetHost(NamedTuple):
    """A host with its state and the reason in words; `seen` is when its last word arrived, memory in MiB.

    Of a GPU in MIG mode the instances are among its `gpus`, and the GPU itself is among those that are `cut`; where it
    tells no instances, it is among both.
    """

    name: str
    title: str | None
    tags: tuple[str, ...]
    state: str
    reason: str
    seen: int | None = None
    load: tuple[float, float, float] | None = None
    cpus: int | None = None
    memory_total: float | None = None
    memory_available: float | None = None
    gpus: tuple[FleetGpu, ...] = ()
    disks: tuple[FleetDisk, ...] = ()
    mig_gpus: tuple[FleetGpu, ...] = ()

    def find_parent(self, instance: FleetGpu) -> FleetGpu:
        """The GPU of which it is an instance."""
        return next(one for one in self.mig_gpus if one.booking_keys == instance.parent_keys)


class Fleet(NamedTuple):
    """All hosts, in the order in which people count; `built` is when they were looked at, in seconds since 1970.

    `problems` are sentences for the admin. `where` is whence all this comes, for messages, `here` the name that this
    machine has in it; `every` is how many seconds lie between two builds, `ahead` by how many its clock is before ours.
    """

    built: int
    hosts: tuple[FleetHost, ...]
    problems: tuple[str, ...] = ()
    source: str = ""
    machine_name: str = ""
    every: int | None = None
    clock_ahead_s: float = 0

    def find_host(self, name: str) -> FleetHost | None:
        """The host of that name, in any case; with or without its domain, where only one can be meant."""
        wanted = name.lower()
        short, _, domain = wanted.partition(".")
        for known in self.hosts:
            if known.name.lower() == wanted:
                return known
        found = [one for one in self.hosts if one.name.lower().partition(".")[0] == short]
        alike = [one for one in found if not domain or "." not in one.name]
        return alike[0] if len(alike) == 1 else None
