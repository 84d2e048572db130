"""Types of a fleet, as in status.json; a value that is not available is None, never 0."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from site_builder.core.model import Disk, GpuProblem, ProcessStatus
from site_builder.fleet.status_json import STATUS_SCHEMA

# The variable that says which GPUs of a maker a program may see.
VISIBLE_DEVICES_VARIABLES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


class FleetBooking(NamedTuple):
    """A booking of a GPU; `since` is None if it has no start.

    `unused_since` to `mean_use` say how a running one is used. `written_name` is the name in comments.json, where that
    is another one of the person.
    """

    id: str | None
    name: str | None
    since: datetime | None
    until: datetime
    comment: str | None
    unused_since: int | None = None
    used_by: tuple[str, ...] | None = None
    used_by_since: int | None = None
    mean_use: float | None = None
    written_name: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the person that are known here."""
        return tuple(name for name in (self.name, self.written_name) if name)

    def is_current(self, now: float) -> bool:
        return (self.since is None or self.since.timestamp() <= now) and self.until.timestamp() > now


class FleetGpu(NamedTuple):
    """A GPU with its state and the reason in words; memory in MiB, use in percent, power in W, clock in MHz.

    `model` is what people call it, `name` what the driver does. `free_again` is when its bookings end. `local_index` is
    its index on this machine, if that is another. `place` is its name on its host if that is not its index; an
    instance (MIG) has its GPU's index, a profile, and in `parent_keys` the names that bookings may have for that GPU.
    `index` is nvidia-smi's number, or HIP's if the `vendor` is amd. `linked` has the indices of the GPUs to which it
    has NVLinks, None where that is not known.
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
    processes: tuple[ProcessStatus, ...] = ()
    bookings: tuple[FleetBooking, ...] = ()
    free_again: int | None = None
    local_index: int | None = None
    place: str | None = None
    profile: str | None = None
    parent_keys: tuple[str, ...] = ()
    problems: tuple[GpuProblem, ...] = ()
    vendor: str = "nvidia"
    is_memory_shared: bool = False  # with its host: then what others use there is used too
    numa_node: int | None = None
    linked: tuple[int, ...] | None = None

    @property
    def identifier(self) -> str:
        """Return a name that is unique on its host, also without a UUID."""
        return self.uuid or f"{self.vendor} {self.label}"

    @property
    def label(self) -> str:
        """Return what people call it on its host."""
        return self.place or ("?" if self.index is None else str(self.index))

    @property
    def booking_keys(self) -> tuple[str, ...]:
        """Return the names that bookings may have for it."""
        return tuple(name.lower() for name in (self.label, self.uuid) if name and name != "?")

    @property
    def free_memory(self) -> float | None:
        if self.memory_total is None or self.memory_used is None:
            return None
        return max(0.0, self.memory_total - self.memory_used)

    @property
    def is_avoided(self) -> bool:
        """Return whether nobody should be given it, whatever its state."""
        return any(problem.avoid for problem in self.problems) if self.problems else False


class FleetHost(NamedTuple):
    """A host with its state and the reason in words; `seen` is when it last reported, memory in MiB.

    `addresses` are those of its interfaces, `gpus_read` is when its GPUs were read, as far as that is known here.

    Of a GPU in MIG mode the instances are in `gpus`, and the GPU itself in `mig_gpus`; without instances it is in both.
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
    disks: tuple[Disk, ...] = ()
    mig_gpus: tuple[FleetGpu, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    gpus_read: int | None = None

    def find_parent(self, instance: FleetGpu) -> FleetGpu:
        return next(gpu for gpu in self.mig_gpus if gpu.booking_keys == instance.parent_keys)


class Fleet(NamedTuple):
    """All hosts in natural order; `built` is when they were read, in seconds since 1970.

    `problems` are sentences for the admin. `source` is where all this comes from, for messages, `machine_name` the name
    of this machine; `every` is the seconds between two builds, `clock_ahead_s` by how many its clock is ahead of ours.
    Without `users_shown`, users are not to be shown, and a process without one may well have an owner.
    """

    built: int
    hosts: tuple[FleetHost, ...]
    problems: tuple[str, ...] = ()
    source: str = ""
    machine_name: str = ""
    every: int | None = None
    clock_ahead_s: float = 0
    users_shown: bool = True

    def find_host(self, name: str) -> FleetHost | None:
        """Return the host of a name, in any case; with or without its domain, if only one can be meant."""
        wanted = name.lower()
        short, _, domain = wanted.partition(".")
        for host in self.hosts:
            if host.name.lower() == wanted:
                return host
        same_short = [host for host in self.hosts if host.name.lower().partition(".")[0] == short]
        matches = [host for host in same_short if not domain or "." not in host.name]
        return matches[0] if len(matches) == 1 else None


def suggest_board_update(schema: object) -> str:
    """Say whether gpuboard here or the board is too old."""
    return "update gpuboard here" if type(schema) is int and schema > STATUS_SCHEMA else "update the board"
