"""The GPUs of a simulated host over the weeks before the demo, in slots of 5 minutes in which nothing changes."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import NamedTuple, Union

from site_builder.core.model import Who
from site_builder.demo.cast import Machine
from site_builder.demo.readings import RESERVED, uuid
from site_builder.demo.story import HOUR, MINUTE, Job
from site_builder.demo.weeks import Promise, Weeks
from site_builder.history.block_format import NONE, text_of
from site_builder.history.model import Standing

STEP = 5 * MINUTE
HELD_AFTER = 2 * HOUR
# The code of a slot in which nothing was heard of the host.
GAP = 255
NO_BYTE, NO_POWER, NO_MEMORY = NONE["B"], NONE["H"], NONE["I"]
# How busy a job of each kind keeps a GPU, from and to, in half percents.
USE = {"train": (168, 194), "serve": (10, 90), "sweep": (60, 160), "debug": (50, 160), "notebook": (40, 150)}
POOL = 12_000  # more than there are slots
Thing = Union[Job, Promise, None]


@dataclass(frozen=True)
class Track:
    """A GPU: numbers as history.db has them of a minute, and the places of how it stood in `Host.standings`."""

    use: bytearray
    temperature: bytearray
    memory: array[int]
    power: array[int]
    codes: bytearray

    def put(self, first: int, last: int, told: Told) -> None:
        """What was told of some slots."""
        count = last - first
        self.use[first:last] = told.use
        self.temperature[first:last] = told.temperature
        self.power[first:last] = told.power
        self.memory[first:last] = array("I", [told.memory]) * count
        self.codes[first:last] = bytes([told.code]) * count


class Told(NamedTuple):
    """What some slots say."""

    use: bytes
    temperature: bytes
    power: array[int]
    memory: int
    code: int


@dataclass(frozen=True)
class Host:
    """A host: a track for each GPU, and all ways in which they stood."""

    machine: Machine
    tracks: list[Track]
    standings: list[str] = field(default_factory=list)

    def code(self, standing: Standing) -> int:
        """The place of a standing; those that are too many are as gaps."""
        text = text_of(standing)
        if text not in self.standings and len(self.standings) < GAP:
            self.standings.append(text)
        return self.standings.index(text) if text in self.standings else GAP


def host_of(weeks: Weeks, count: int, place: Callable[[float], int]) -> Host:
    """So many slots of a host; `place` tells the slot of a moment of the lab."""
    machine = weeks.machine
    host = Host(machine, [new_track(count) for _ in range(machine.gpus)])
    for gpu, track in enumerate(host.tracks):
        looks = Looks(machine, gpu)
        for first, last, things in stretches(happened(weeks, gpu), count, place):
            track.put(first, last, looks.told(first, last, things, place, host))
        for begins, ends in weeks.gaps:
            first, last = (min(count, max(0, place(one))) for one in (begins, ends))
            track.put(first, last, nothing(last - first, GAP))
    return host


def new_track(count: int) -> Track:
    """One that is to be filled."""
    return Track(bytearray(count), bytearray(count), array("I", [0]) * count, array("H", [0]) * count, bytearray(count))


def nothing(count: int, code: int) -> Told:
    """What a GPU says that cannot be reached."""
    return Told(b"\xff" * count, b"\xff" * count, array("H", [NO_POWER]) * count, NO_MEMORY, code)


def happened(weeks: Weeks, gpu: int) -> Iterator[tuple[float, float, Thing]]:
    """All that begins and ends on a GPU; that it is lost is None."""
    for job in weeks.jobs:
        if gpu in job.gpus:
            yield job.begins, job.ends, job
    for one in weeks.promises:
        if gpu == one.gpu:
            yield one.begins, one.ends, one
    for which, begins, ends in weeks.lost:
        if gpu == which:
            yield begins, ends, None


def stretches(
    things: Iterator[tuple[float, float, Thing]], count: int, place: Callable[[float], int]
) -> Iterator[tuple[int, int, list[Thing]]]:
    """From which slot to which all is the same, and what there is in them."""
    begin: dict[int, list[Thing]] = defaultdict(list)
    end: dict[int, list[Thing]] = defaultdict(list)
    edges = {0, count}
    for begins, ends, one in things:
        first, last = (min(count, max(0, place(moment))) for moment in (begins, ends))
        if first < last:
            begin[first].append(one)
            end[last].append(one)
            turns = (idle_from(one), idle_from(one) + HELD_AFTER) if isinstance(one, Job) else ()
            edges |= {first, last, *(place(turn) for turn in turns if turn < ends)}
    now: list[Thing] = []
    kept = sorted(edge for edge in edges if 0 <= edge <= count)
    for first, last in zip(kept, kept[1:]):
        for one in end[first]:
            now.remove(one)
        now += begin[first]
        yield first, last, now


def idle_from(job: Job) -> float:
    """Since when a job uses nothing of what it holds."""
    return job.begins if job.dead else job.idle_since


class Looks:
    """How a GPU looks to the tool of its maker; no two are quite the same."""

    def __init__(self, machine: Machine, gpu: int) -> None:
        """One of them; of an instance only its memory is told."""
        unit = machine.units[gpu]
        self.total, self.is_instance = unit.memory, unit.instance is not None
        self.rng = Random(uuid(machine, gpu))  # noqa: S311 nothing secret
        base, slope = 27 + self.rng.randrange(9), 0.3 + self.rng.random() * 0.15
        quiet = 0.07 + self.rng.random() * 0.05
        self.heat, self.watts = {}, {}
        for taken in (False, True):
            self.heat[taken] = bytes(int(base + 8 * taken + slope * min(100, use / 2)) for use in range(256))
            share = [quiet + 0.06 * taken + 0.74 * min(100, use / 2) / 100 for use in range(256)]
            self.watts[taken] = [int(10 * unit.model.watts * one) for one in share]

    def told(self, first: int, last: int, things: Sequence[Thing], place: Callable[[float], int], host: Host) -> Told:
        """What it says in some slots."""
        jobs = [one for one in things if isinstance(one, Job)]
        bookers = tuple(sorted({one.person for one in things if isinstance(one, Promise)}))
        count = last - first
        if None in things:
            return nothing(count, host.code(Standing("lost", Who((), bookers, bookers))))
        users = tuple(sorted({job.person for job in jobs}))
        absent = tuple(name for name in bookers if name not in users)
        at_work = [job for job in jobs if first < place(idle_from(job))] if jobs else []
        held = bool(jobs) and all(first >= place(idle_from(job) + HELD_AFTER) for job in jobs)
        state = state_of(users, bookers, absent, held and not self.is_instance)
        use = bytes(count)
        if at_work:
            start = self.rng.randrange(POOL)
            use = noise(at_work[0].kind)[start : start + count]
        memory = min(4 + sum(int(self.total * job.share) for job in jobs), self.total - RESERVED - 20)
        taken, code = bool(jobs), host.code(Standing(state, Who(users, bookers, absent)))
        if self.is_instance:
            return nothing(count, code)._replace(memory=memory)
        watts = array("H", [self.watts[taken][one] for one in use])
        return Told(use, use.translate(self.heat[taken]), watts, memory, code)


def state_of(users: Sequence[str], bookers: Sequence[str], absent: Sequence[str], held: bool) -> str:
    """The state of a GPU that can be reached."""
    if users and bookers and len(absent) == len(bookers):
        return "violated"
    if users:
        return "held" if held else "busy"
    return "booked" if bookers else "free"


@cache
def noise(kind: str) -> bytes:
    """How busy a job of that kind keeps a GPU, the same each time; from any of the first places on for long enough."""
    low, high = USE[kind]
    return bytes(Random(kind).choices(range(low, high), k=POOL)) * 2  # noqa: S311
