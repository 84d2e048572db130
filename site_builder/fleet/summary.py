"""Sum up hosts and GPUs for the top of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from site_builder.core.model import (
    BookingStatus,
    FreeGpu,
    Gpu,
    GpuBookingUse,
    GpuIdentity,
    HostFacts,
    HostStatus,
    IdleTimes,
    Problem,
    SoonFreeGpu,
)
from site_builder.fleet import gpu_models
from site_builder.fleet.mig import has_mig_gpu
from site_builder.history.buckets import split_evenly
from site_builder.history.model import TAKEN_STATES, UNCLEAR_STATES


class PersonUsage(NamedTuple):
    """What a person has of a host now: parts of GPUs, of which one has tallied.UNIT; on how many of them they are; MiB
    of their memory; how many processes, and of how many of these the memory is not told."""

    gpu_units: int = 0
    gpu_count: int = 0
    memory_mib: float = 0
    process_count: int = 0
    unknown_memory_count: int = 0

    def add(self, other: PersonUsage) -> PersonUsage:
        """Both together."""
        return PersonUsage(
            self.gpu_units + other.gpu_units,
            self.gpu_count + other.gpu_count,
            self.memory_mib + other.memory_mib,
            self.process_count + other.process_count,
            self.unknown_memory_count + other.unknown_memory_count,
        )


class GpuUseCounts(NamedTuple):
    """How many GPUs are used by somebody who is known, taken by nobody that is, booked with nobody on it, free, and not clear; and
    how many there are on a host of which nothing is heard."""

    used: int = 0
    unowned: int = 0
    booked_idle: int = 0
    free: int = 0
    unclear: int = 0
    unseen: int = 0

    def add(self, other: GpuUseCounts) -> GpuUseCounts:
        """Both together."""
        return GpuUseCounts(*(one + more for one, more in zip(self, other)))


def count_gpus_by_use(board: HostStatus) -> GpuUseCounts:
    """Of a host; history counts in the same way."""
    if board.state != "fresh":
        return GpuUseCounts(unseen=len(board.gpus))
    taken = [gpu for gpu in board.gpus if gpu.state in TAKEN_STATES]
    used = sum(bool(gpu.people.users) for gpu in taken)
    states = [gpu.state for gpu in board.gpus]
    unclear = sum(state in UNCLEAR_STATES for state in states)
    return GpuUseCounts(used, len(taken) - used, states.count("booked"), states.count("free"), unclear)


def sum_usage_by_person(board: HostStatus) -> dict[str, PersonUsage]:
    """What each person has of a host; nobody where none is shown."""
    found: dict[str, list[float]] = {}
    if not board.users_shown:
        return {}
    on = [(gpu.processes, gpu.state in TAKEN_STATES) for gpu in board.gpus]
    on += [
        (several, False) for several in board.unplaced_processes.values()
    ]  # how much of the GPU they have, nobody knows
    for processes, taken in on:
        here: dict[str, None] = {}
        for one in processes:
            user, memory = one.user, one.used_memory
            if user:
                here[user] = None
                row = found.get(user)
                if row is None:
                    row = found[user] = [0, 0, 0, 0, 0]
                row[2] += memory or 0
                row[3] += 1
                row[4] += memory is None
        for user, units in split_evenly(list(here), 1):
            found[user][0] += units if taken else 0
            found[user][1] += 1
    return {
        user: PersonUsage(int(row[0]), int(row[1]), row[2], int(row[3]), int(row[4])) for user, row in found.items()
    }


def count_gpus_by_person(board: HostStatus) -> tuple[dict[str, int], dict[str, int]]:
    """On how many GPUs each person has a process, and how many are promised to them now; nobody where none is shown."""
    using: dict[str, int] = {}
    booked: dict[str, int] = {}
    if not board.users_shown:
        return using, booked
    for processes in (*(gpu.processes for gpu in board.gpus), *board.unplaced_processes.values()):
        for user in {one.user for one in processes if one.user}:
            using[user] = using.get(user, 0) + 1
    for gpu in board.gpus:
        for name in {one.name for one in gpu.bookings if one.name and one.phase == "now"}:
            booked[name] = booked.get(name, 0) + 1
    return using, booked


def count_bookings(board: HostStatus) -> tuple[int, int]:
    """How many run now and how many are to come; one over several GPUs, or with repeats, counts once."""
    found: dict[str, set[object]] = {"now": set(), "coming": set(), "ended": set()}
    for several in (board.bookings, *(gpu.bookings for gpu in board.gpus)):
        for one in several:
            found[one.phase].add(build_booking_identity(one))
    return len(found["now"]), len(found["coming"])


def build_booking_identity(booking: BookingStatus) -> object:
    """What a booking is known by; without an id, that the same person has the same time for the same reason."""
    return booking.id or (booking.name, booking.comment, booking.since, booking.until)


class AvailableGpu(NamedTuple):
    """A GPU that whoever comes first can have; of two, the one with the smaller rank is the better.

    `uuid` is what CUDA takes where a number is not enough; one that is `alone` goes with no other. `own` is the number
    that programs for GPUs of its `vendor` know it by.
    """

    rank: tuple[float, ...]
    host: str
    index: int | str  # type: ignore[assignment]
    uuid: str | None = None
    is_instance: bool = False
    vendor: str = gpu_models.DEFAULT_VENDOR
    vendor_index: int | None = None


class PeopleCounts(NamedTuple):
    """On how many GPUs each person is, how many are promised to each; how many bookings run now, and are to come; what
    each person has, and how the GPUs stand."""

    gpus_used: dict[str, int]
    gpus_booked: dict[str, int]
    booking_counts: tuple[int, int]
    usage: dict[str, PersonUsage]
    gpu_counts: GpuUseCounts


class SummarizedHost(Protocol):
    """What usage/ and waste/ need of a host; board.host_pipeline.BuiltHost has it."""

    @property
    def summary(self) -> HostSummary:
        """Its state, its GPUs and its people."""


class HostSummary(NamedTuple):
    """One host in short: its state, those of its GPUs, which are free, and what else goes beyond its card."""

    state: str
    state_counts: dict[str, int]
    free_gpus: tuple[FreeGpu, ...]
    uuids: tuple[str, ...]
    logins: frozenset[str]
    idle_times: IdleTimes | None
    problems: tuple[Problem, ...]
    soon_free_gpus: tuple[SoonFreeGpu, ...]
    booking_uses: dict[str, GpuBookingUse] | None
    gpu_identities: tuple[GpuIdentity, ...]
    available_gpus: tuple[AvailableGpu, ...]
    vendors: tuple[str, ...]
    people: PeopleCounts


def summarize_host(host: HostStatus, looked: float | None) -> HostSummary:
    """Of a host; `looked` is when its GPUs were."""
    states: dict[str, int] = {}
    for gpu in host.gpus:
        states[gpu.state] = states.get(gpu.state, 0) + 1
    idle = {one.key: one.idle_since for one in host.gpus if one.idle_since is not None}
    return HostSummary(
        host.state,
        states,
        list_free_gpus(host),
        tuple(one.gpu.uuid for one in host.gpus if one.gpu.uuid) if host.state == "fresh" else (),
        host.logins,
        IdleTimes(looked, idle) if looked is not None and host.state == "fresh" else None,
        host.problems,
        tuple(
            SoonFreeGpu(one.free_again, host.name, one.gpu.number) for one in host.gpus if one.free_again is not None
        ),
        {one.key: one.booking_use for one in host.gpus if one.booking_use} if host.state == "fresh" else None,
        tuple([identify_gpu(one.gpu) for one in host.gpus]),
        tuple(list_available_gpus(host)),
        tuple(dict.fromkeys([one.gpu.vendor for one in host.gpus])),
        PeopleCounts(
            *count_gpus_by_person(host),
            count_bookings(host),
            sum_usage_by_person(host),
            count_gpus_by_use(host),
        ),
    )


def summarize_unknown_host(state: str, problems: tuple[Problem, ...]) -> HostSummary:
    """Summarize a host of which nothing else can be said."""
    people = PeopleCounts({}, {}, (0, 0), {}, GpuUseCounts())
    return HostSummary(state, {}, (), (), frozenset(), None, problems, (), None, (), (), (), people)


def identify_gpu(gpu: Gpu) -> GpuIdentity:
    """What a GPU is called."""
    return GpuIdentity(gpu.number, gpu.uuid, gpu.parent and gpu.parent.uuid)


def list_free_gpus(host: HostStatus) -> tuple[FreeGpu, ...]:
    """Its GPUs that are free."""
    return tuple(
        FreeGpu(one.model, one.gpu.memory_total or 0, host.name, one.gpu.number, one.free_until, one.is_avoided)
        for one in host.gpus
        if one.state == "free"
    )


def list_available_gpus(host: HostStatus) -> Iterator[AvailableGpu]:
    """Those that are free and well, and that a number names, and no other GPU; where some are in instances, a UUID."""
    if host.state != "fresh" or not any(one.state == "free" for one in host.gpus):
        return
    facts = host.facts or HostFacts()
    load = None if facts.load is None else facts.load[0] / (facts.cpus or 1)
    named = Counter(one.gpu.number for one in host.gpus)
    cut = has_mig_gpu(host)
    for one in host.gpus:
        number, used, total = one.gpu.number, one.gpu.memory_used, one.gpu.memory_total
        is_part = one.gpu.parent is not None
        named_once = number is not None and named[number] == 1 and (one.gpu.uuid or not is_part)
        if one.state == "free" and named_once and number is not None and not one.is_avoided:
            memory = None if used is None or total is None else max(0, total - used)
            rank = (int(is_part), *gpu_models.rank_gpu(one.gpu.name, memory, load))
            uuid = one.gpu.uuid if cut and one.gpu.vendor == gpu_models.DEFAULT_VENDOR else None
            yield AvailableGpu(rank, host.name, number, uuid, is_part, one.gpu.vendor, one.gpu.index)


def find_duplicate_uuids(uuids: Mapping[str, Iterable[str]]) -> list[Problem]:
    """GPUs that two hosts say they have; at most one of them can be right."""
    owner: dict[str, str] = {}
    problems: list[Problem] = []
    for host, several in uuids.items():
        for uuid in several:
            first = owner.setdefault(uuid, host)
            if first != host:
                problems.append(Problem(f"data/{host}/gpus.csv", f"{first} tells the GPU {uuid} too"))
    return problems
