"""Sum up hosts and GPUs for the top of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from site_builder.core.model import FreeGpu, GpuBookingUse, GpuIdentity, HostStatus, IdleTimes, Problem, SoonFreeGpu
from site_builder.fleet import gpu_models
from site_builder.fleet.mig import has_mig_gpu
from site_builder.fleet.shared_memory import compute_free_memory, compute_own_memory
from site_builder.fleet.topology import list_fully_linked_groups, locate_gpu
from site_builder.history.model import TAKEN_STATES, UNCLEAR_STATES
from site_builder.history.usage_sums import split_usage_evenly


class PersonUseSummary(NamedTuple):
    """What a person has of a host now; `gpu_units` are shares of GPUs, history.gpu_minutes.UNIT for a whole one."""

    gpu_units: int = 0
    gpu_count: int = 0
    memory_mib: float = 0
    process_count: int = 0
    unknown_memory_count: int = 0  # processes whose memory is not reported

    def add(self, other: PersonUseSummary) -> PersonUseSummary:
        return PersonUseSummary(*map(sum, zip(self, other)))  # type: ignore[arg-type] # int but for memory_mib


class GpuUseSummary(NamedTuple):
    """How many GPUs are used by known people, taken by nobody known, booked, free, unclear, or on a silent host."""

    used: int = 0
    unowned: int = 0
    booked_idle: int = 0
    free: int = 0
    unclear: int = 0
    unseen: int = 0


class AvailableGpuSummary(NamedTuple):
    """A GPU that anybody can have; the one with the smaller rank is the better.

    `uuid` is what CUDA takes where a number is not enough. An instance cannot be combined with another GPU.
    `vendor_index` is the number that programs for GPUs of its `vendor` know it by. `free_until` is when its next
    booking begins. `nvlink_group` is the smallest index of GPUs that all have NVLinks to each other, None without any.
    """

    rank: tuple[float, ...]
    host: str
    index: int | str  # type: ignore[assignment]
    uuid: str | None = None
    is_instance: bool = False
    vendor: str = gpu_models.DEFAULT_VENDOR
    vendor_index: int | None = None
    model: str = ""
    free_until: float | None = None
    nvlink_group: int | None = None
    numa_node: int | None = None


class ModelSummary(NamedTuple):
    """How many GPUs of a model a host has; the one with more memory of its own, then the newer one, is the better."""

    model: str
    memory_gib: int
    year: int
    gpu_count: int


class HostSummary(NamedTuple):
    """What the pages of the whole fleet need of one host; without GPUs, all that is known of one that failed.

    `gpus_booked` are those that each person has booked now, `booking_counts` the bookings that run and those to come.
    """

    state: str
    problems: tuple[Problem, ...]
    state_counts: dict[str, int]
    gpus_booked: dict[str, int]
    use_by_person: dict[str, PersonUseSummary]
    free_gpus: tuple[FreeGpu, ...] = ()
    uuids: tuple[str, ...] = ()
    logins: frozenset[str] = frozenset()
    idle_times: IdleTimes | None = None
    soon_free_gpus: tuple[SoonFreeGpu, ...] = ()
    booking_uses: dict[str, GpuBookingUse] | None = None
    gpu_identities: tuple[GpuIdentity, ...] = ()
    available_gpus: tuple[AvailableGpuSummary, ...] = ()
    vendors: tuple[str, ...] = ()
    booking_counts: tuple[int, int] = (0, 0)
    gpu_use: GpuUseSummary = GpuUseSummary()
    models: tuple[ModelSummary, ...] = ()


class SummarizedHost(Protocol):
    """What usage/ and waste/ need of a host; board.host_pipeline.BuiltHost has it."""

    @property
    def summary(self) -> HostSummary: ...


def summarize_host(host: HostStatus, checked_at: float | None) -> HostSummary:
    """Summarize a host whose GPUs were read at `checked_at`."""
    is_fresh = host.state == "fresh"
    idle_since = {status.key: status.idle_since for status in host.gpus if status.idle_since is not None}
    # as history counts them
    gpu_use = GpuUseSummary(unseen=len(host.gpus))
    if is_fresh:
        taken = [status for status in host.gpus if status.state in TAKEN_STATES]
        used = sum(bool(status.people.users) for status in taken)
        states = [status.state for status in host.gpus]
        unclear = sum(state in UNCLEAR_STATES for state in states)
        gpu_use = GpuUseSummary(used, len(taken) - used, states.count("booked"), states.count("free"), unclear)
    return HostSummary(
        state=host.state,
        problems=host.problems,
        state_counts=dict(Counter([status.state for status in host.gpus])),
        free_gpus=summarize_free_gpus(host),
        uuids=tuple([status.gpu.uuid for status in host.gpus if status.gpu.uuid]) if is_fresh else (),
        logins=host.logins,
        idle_times=IdleTimes(checked_at, idle_since) if checked_at is not None and is_fresh else None,
        soon_free_gpus=tuple(
            SoonFreeGpu(status.free_again, host.name, status.gpu.number)
            for status in host.gpus
            if status.free_again is not None
        ),
        booking_uses={status.key: status.booking_use for status in host.gpus if status.booking_use}
        if is_fresh
        else None,
        gpu_identities=tuple(
            [
                GpuIdentity(status.gpu.number, status.gpu.uuid, status.gpu.parent and status.gpu.parent.uuid)
                for status in host.gpus
            ]
        ),
        available_gpus=tuple(summarize_available_gpus(host)),
        vendors=tuple(dict.fromkeys([status.gpu.vendor for status in host.gpus])),
        gpus_booked=summarize_booked_gpus(host),
        booking_counts=summarize_booking_counts(host),
        use_by_person=summarize_use_by_person(host),
        gpu_use=gpu_use,
        models=summarize_gpu_models(host),
    )


def summarize_gpu_models(host: HostStatus) -> tuple[ModelSummary, ...]:
    counts = Counter(status.model for status in host.gpus)
    firsts = {status.model: status.gpu for status in reversed(host.gpus)}
    return tuple(
        ModelSummary(
            model,
            round((compute_own_memory(firsts[model]) or 0) / gpu_models.MIB_PER_GIB),
            gpu_models.find_model_year(firsts[model].name),
            count,
        )
        for model, count in counts.items()
    )


def summarize_free_gpus(host: HostStatus) -> tuple[FreeGpu, ...]:
    return tuple(
        FreeGpu(
            status.model,
            (compute_free_memory(status.gpu) if status.gpu.is_memory_shared else status.gpu.memory_total) or 0,
            host.name,
            status.gpu.number,
            status.free_until,
            status.is_avoided,
        )
        for status in host.gpus
        if status.state == "free"
    )


def summarize_available_gpus(host: HostStatus) -> Iterator[AvailableGpuSummary]:
    """Yield the GPUs that are free and healthy and have a number of their own; with MIG on the host, a UUID too."""
    if host.state != "fresh" or not any(status.state == "free" for status in host.gpus):
        return
    facts = host.facts
    load = facts.load[0] / (facts.cpus or 1) if facts and facts.load else None
    number_counts = Counter(status.gpu.number for status in host.gpus)
    has_mig = has_mig_gpu(host)
    topology = facts.topology if facts else None
    linked = topology.linked if topology else {}
    groups = {gpu: group[0] for group in list_fully_linked_groups(linked) for gpu in group}
    for status in host.gpus:
        gpu, number = status.gpu, status.gpu.number
        is_instance = gpu.parent is not None
        if status.state != "free" or status.is_avoided or number is None or number_counts[number] > 1:
            continue
        if is_instance and not gpu.uuid:
            continue
        # much memory makes a GPU on the chip of the CPU no fast one
        rank = (
            int(is_instance),
            int(gpu.is_memory_shared),
            *gpu_models.rank_gpu_model(gpu.name, compute_free_memory(gpu), load),
        )
        uuid = gpu.uuid if has_mig and gpu.vendor == gpu_models.DEFAULT_VENDOR else None
        starts = [
            booking.since.timestamp() for booking in status.bookings if booking.phase == "coming" and booking.since
        ]
        free_until = min(starts, default=None)
        place = locate_gpu(topology, gpu)
        group = groups.get(gpu.index) if place.linked and gpu.index is not None else None
        yield AvailableGpuSummary(
            rank=rank,
            host=host.name,
            index=number,
            uuid=uuid,
            is_instance=is_instance,
            vendor=gpu.vendor,
            vendor_index=gpu.index,
            model=status.model,
            free_until=free_until,
            nvlink_group=group,
            numa_node=place.numa_node,
        )


def summarize_use_by_person(host: HostStatus) -> dict[str, PersonUseSummary]:
    """Return what each person has of a host; nobody where users are not shown."""
    if not host.users_shown:
        return {}
    sums: dict[str, list[float]] = {}  # the fields of PersonUseSummary
    groups = [(status.processes, status.state in TAKEN_STATES) for status in host.gpus]
    # the share of a GPU that unplaced processes have is unknown
    groups += [(processes, False) for processes in host.unplaced_processes.values()]
    for processes, is_taken in groups:
        users: dict[str, None] = {}
        for process in processes:
            user, memory = process.user, process.used_memory
            if user:
                users[user] = None
                row = sums.get(user)
                if row is None:
                    row = sums[user] = [0, 0, 0, 0, 0]
                row[2] += memory or 0
                row[3] += 1
                row[4] += memory is None
        for user, units in split_usage_evenly(list(users), 1):
            sums[user][0] += units if is_taken else 0
            sums[user][1] += 1
    return {
        user: PersonUseSummary(int(units), int(gpus), memory, int(processes), int(unknown))
        for user, (units, gpus, memory, processes, unknown) in sums.items()
    }


def summarize_booked_gpus(host: HostStatus) -> dict[str, int]:
    """Count the GPUs that each person has booked now; nobody where users are not shown."""
    booked: dict[str, int] = {}
    for status in host.gpus if host.users_shown else ():
        for name in {booking.name for booking in status.bookings if booking.name and booking.phase == "now"}:
            booked[name] = booked.get(name, 0) + 1
    return booked


def summarize_booking_counts(host: HostStatus) -> tuple[int, int]:
    """Count the bookings that run now and those to come; one over several GPUs, or with repeats, counts once."""
    identities: dict[str, set[object]] = {"now": set(), "coming": set(), "ended": set()}
    for bookings in (host.bookings, *(status.bookings for status in host.gpus)):
        for booking in bookings:
            # without an id, bookings of one person for the same time and reason are one
            identity = booking.id or (booking.name, booking.comment, booking.since, booking.until)
            identities[booking.phase].add(identity)
    return len(identities["now"]), len(identities["coming"])


def find_duplicate_uuids_in_summaries(uuids_by_host: Mapping[str, Iterable[str]]) -> list[Problem]:
    """Return a problem for each GPU that two hosts report; at most one of them can be right."""
    owners: dict[str, str] = {}
    problems: list[Problem] = []
    for host, uuids in uuids_by_host.items():
        for uuid in uuids:
            owner = owners.setdefault(uuid, host)
            if owner != host:
                problems.append(Problem(f"data/{host}/gpus.csv", f"{owner} also reports the GPU {uuid}"))
    return problems


def find_outdated_hosts_in_summaries(hosts: Mapping[str, tuple[Sequence[str], float | None]]) -> set[str]:
    """Find hosts all of whose GPUs another host reported later: old names of it, which would count twice.

    `hosts` has the UUIDs of each host's GPUs, and when it was heard last.
    """
    all_uuids = [uuid for uuids, _ in hosts.values() for uuid in uuids]
    if len(set(all_uuids)) == len(all_uuids):  # as it should be
        return set()
    last_seen: dict[str, float] = {}
    for uuids, seen in hosts.values():
        for uuid in uuids:
            last_seen[uuid] = max(last_seen.get(uuid, 0), seen or 0)
    return {
        name for name, (uuids, seen) in hosts.items() if uuids and all(last_seen[uuid] > (seen or 0) for uuid in uuids)
    }
