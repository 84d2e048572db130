"""What the fleet as a whole needs to know of each host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from site_builder.core.model import BoardHost, ComingGpu, FreeGpu, Gpu, HostFacts, Idle, KeptGpu, NamedGpu, Problem
from site_builder.fleet import people_counts, select
from site_builder.fleet.mig import has_mig
from site_builder.waste import rules as waste_rules


class AvailableGpu(NamedTuple):
    """A GPU that whoever comes first can have; of two, the one with the smaller rank is the better.

    `uuid` is what CUDA takes where a number is not enough; one that is `alone` goes with no other. `own` is the number
    that programs for GPUs of its `vendor` know it by.
    """

    rank: tuple[float, ...]
    host: str
    index: int | str  # type: ignore[assignment]
    uuid: str | None = None
    alone: bool = False
    vendor: str = select.FIRST
    own: int | None = None


class People(NamedTuple):
    """On how many GPUs each person is, how many are promised to each; how many bookings run now, and are to come; what
    each person has, and how the GPUs stand."""

    using: dict[str, int]
    booked: dict[str, int]
    bookings: tuple[int, int]
    had: dict[str, people_counts.Had]
    standing: people_counts.Standing


class Summary(NamedTuple):
    """One host in short: its state, those of its GPUs, which are free, and what else goes beyond its card."""

    state: str
    states: dict[str, int]
    free: tuple[FreeGpu, ...]
    uuids: tuple[str, ...]
    logins: frozenset[str]
    idle: Idle | None
    problems: tuple[Problem, ...]
    coming: tuple[ComingGpu, ...]
    kept: dict[str, KeptGpu] | None
    gpus: tuple[NamedGpu, ...]
    available: tuple[AvailableGpu, ...]
    makers: tuple[str, ...]
    people: People
    waste: tuple[waste_rules.Mark, ...] = ()


def summary(host: BoardHost, looked: float | None) -> Summary:
    """Of a host; `looked` is when its GPUs were."""
    states: dict[str, int] = {}
    for gpu in host.gpus:
        states[gpu.state] = states.get(gpu.state, 0) + 1
    idle = {one.key: one.idle_since for one in host.gpus if one.idle_since is not None}
    return Summary(
        host.state,
        states,
        free(host),
        tuple(one.gpu.uuid for one in host.gpus if one.gpu.uuid) if host.state == "fresh" else (),
        host.logins,
        Idle(looked, idle) if looked is not None and host.state == "fresh" else None,
        host.problems,
        tuple(ComingGpu(one.free_again, host.name, one.gpu.number) for one in host.gpus if one.free_again is not None),
        {one.key: one.kept for one in host.gpus if one.kept} if host.state == "fresh" else None,
        tuple([named(one.gpu) for one in host.gpus]),
        tuple(available(host)),
        tuple(dict.fromkeys([one.gpu.vendor for one in host.gpus])),
        People(
            *people_counts.users(host),
            people_counts.bookings(host),
            people_counts.had(host),
            people_counts.standing(host),
        ),
        waste_rules.marks(host),
    )


def nothing_known(state: str, problems: tuple[Problem, ...]) -> Summary:
    """Summarize a host of which nothing else can be said."""
    people = People({}, {}, (0, 0), {}, people_counts.Standing())
    return Summary(state, {}, (), (), frozenset(), None, problems, (), None, (), (), (), people)


def named(gpu: Gpu) -> NamedGpu:
    """What a GPU is called."""
    return NamedGpu(gpu.number, gpu.uuid, gpu.parent and gpu.parent.uuid)


def free(host: BoardHost) -> tuple[FreeGpu, ...]:
    """Its GPUs that are free."""
    return tuple(
        FreeGpu(one.model, one.gpu.memory_total or 0, host.name, one.gpu.number, one.free_until, one.avoid)
        for one in host.gpus
        if one.state == "free"
    )


def available(host: BoardHost) -> Iterator[AvailableGpu]:
    """Those that are free and well, and that a number names, and no other GPU; where some are in instances, a UUID."""
    if host.state != "fresh" or not any(one.state == "free" for one in host.gpus):
        return
    facts = host.facts or HostFacts()
    load = None if facts.load is None else facts.load[0] / (facts.cpus or 1)
    named = Counter(one.gpu.number for one in host.gpus)
    cut = has_mig(host)
    for one in host.gpus:
        number, used, total = one.gpu.number, one.gpu.memory_used, one.gpu.memory_total
        is_part = one.gpu.parent is not None
        named_once = number is not None and named[number] == 1 and (one.gpu.uuid or not is_part)
        if one.state == "free" and named_once and number is not None and not one.avoid:
            memory = None if used is None or total is None else max(0, total - used)
            rank = (int(is_part), *select.rank(one.gpu.name, memory, load))
            uuid = one.gpu.uuid if cut and one.gpu.vendor == select.FIRST else None
            yield AvailableGpu(rank, host.name, number, uuid, is_part, one.gpu.vendor, one.gpu.index)


def doubles(uuids: Mapping[str, Iterable[str]]) -> list[Problem]:
    """GPUs that two hosts say they have; at most one of them can be right."""
    owner: dict[str, str] = {}
    problems: list[Problem] = []
    for host, several in uuids.items():
        for uuid in several:
            first = owner.setdefault(uuid, host)
            if first != host:
                problems.append(Problem(f"data/{host}/gpus.csv", f"{first} tells the GPU {uuid} too"))
    return problems
