"""Simulate the five weeks before the demo."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import NamedTuple, Union

from site_builder.core.model import GpuPeople
from site_builder.demo.scenario import (
    DAY_S,
    DEMO_BOOKINGS,
    HOUR_S,
    LEAD_TIME_S,
    LEGACY_HOST,
    LOST_GPUS,
    MINUTE_S,
    PEOPLE,
    RESERVED_MIB,
    UNUSED_GPUS,
    DemoJob,
    DemoMachine,
    HostScenario,
    build_gpu_uuid,
)
from site_builder.history.block_format import NO_VALUE, serialize_occupancy
from site_builder.history.model import Occupancy

# A host that was down for a day and a half, one that is being repaired, and one whose scripts have ended.
DOWN_HOSTS = {
    "lyra": (-12 * DAY_S - 7 * HOUR_S, -11 * DAY_S + 5 * HOUR_S),
    "pavo": (-2 * DAY_S, float("inf")),
    LEGACY_HOST: (-2 * HOUR_S - 13 * MINUTE_S, float("inf")),
}
# Jobs come by day, and fewer in the evening, at night, and at the end of the week.
EVENING_RATE, NIGHT_RATE, WEEKEND_RATE = 0.4, 0.08, 0.25
# How many hours a job of each kind takes; some train for days.
PAST_JOB_HOURS = {"train": (2, 14), "long": (20, 70), "notebook": (2, 30), "debug": (0.1, 0.7)}
LONG_JOB_SHARE = 0.2
SLOT_S = 5 * MINUTE_S
TakenSpans = Sequence[tuple[int, float, float]]
HELD_AFTER_S = 2 * HOUR_S
# The code of a slot in which nothing was heard of the host.
GAP_CODE = 255
NO_BYTE, NO_POWER, NO_MEMORY = NO_VALUE["B"], NO_VALUE["H"], NO_VALUE["I"]
# How busy a job of each kind keeps a GPU, from and to, in half percents.
USE_RANGES = {"train": (168, 194), "serve": (10, 90), "sweep": (60, 160), "debug": (50, 160), "notebook": (40, 150)}
NOISE_LENGTH = 12_000  # more than there are slots


class PastBooking(NamedTuple):
    """A GPU that was promised to somebody."""

    gpu: int
    person: str
    starts_at: float
    ends_at: float


class PastWeeks(NamedTuple):
    """What happened on a host: what ran, what was promised, which GPUs were lost, and when nothing was heard of it."""

    machine: DemoMachine
    jobs: list[DemoJob]
    bookings: list[PastBooking]
    lost_spans: list[tuple[int, float, float]]
    silent_spans: list[tuple[float, float]]


def simulate_past_weeks(scenario: HostScenario, began: float, until: float, origin: datetime, seed: int) -> PastWeeks:
    machine = scenario.machine
    rng = Random(f"{seed} {machine.name} weeks")  # noqa: S311 nothing secret
    bookings, kept_jobs = simulate_past_bookings(machine, rng, began)
    taken = [(entry.gpu, entry.starts_at, entry.ends_at) for entry in bookings]
    taken += [(gpu, job.starts_at, job.ends_at) for job in scenario.fixed_jobs for gpu in job.gpus]
    taken += [(gpu, began, until) for gpu in UNUSED_GPUS.get(machine.scenario, ())]
    recent_jobs = list_recent_jobs(scenario, until)
    # somebody who tries something for a minute does so beside others
    next_start = {gpu: job.starts_at for job in reversed(recent_jobs) if job.kind != "debug" for gpu in job.gpus}
    earlier = generate_past_jobs(machine, rng, began, taken, origin)
    jobs = [
        *kept_jobs,
        *(end_before_next(entry, next_start, rng) for entry in earlier),
        *scenario.fixed_jobs,
        *recent_jobs,
    ]
    gaps: list[tuple[float, float]] = [DOWN_HOSTS[machine.scenario]] if machine.scenario in DOWN_HOSTS else []
    gaps += [
        (moment, moment + SLOT_S)
        for moment in range(0, int(until), SLOT_S)
        if scenario.is_silent(moment) or not scenario.has_driver(moment)
    ]
    return PastWeeks(machine, jobs, bookings, list(LOST_GPUS.get(machine.scenario, ())), gaps)


def list_recent_jobs(scenario: HostScenario, until: float) -> list[DemoJob]:
    jobs = {}
    for moment in range(-LEAD_TIME_S, int(until) + 1, SLOT_S):
        jobs.update({(job.pid, job.starts_at): job for job in scenario.list_jobs_at(moment)})
    return [job for job in jobs.values() if job not in scenario.fixed_jobs]


def end_before_next(job: DemoJob, next_start: Mapping[int, float], rng: Random) -> DemoJob:
    if job.ends_at <= -LEAD_TIME_S:
        return job
    latest_end = min(job.ends_at, rng.uniform(-LEAD_TIME_S, -2 * HOUR_S))
    return replace(job, ends_at=min([latest_end, *(next_start.get(gpu, latest_end) for gpu in job.gpus)]))


def simulate_past_bookings(machine: DemoMachine, rng: Random, began: float) -> tuple[list[PastBooking], list[DemoJob]]:
    """Bookings of these weeks, and what ran on those that were kept: two in three are."""
    bookings = [
        PastBooking(gpu, booking.person, booking.starts_at - offset, booking.ends_at - offset)
        for booking in DEMO_BOOKINGS
        if booking.host == machine.scenario
        for gpu in (range(machine.gpu_count) if booking.gpus is None else booking.gpus)
        for offset in (range(0, 43 * DAY_S, 7 * DAY_S) if booking.rrule else (0,))
    ]
    if machine.gpu_count < 4 or not machine.job_share:
        return bookings, []
    jobs = []
    moment = began + rng.uniform(0, 5) * DAY_S
    while moment < -6 * DAY_S:
        person, first = rng.choice(PEOPLE), rng.randrange(machine.gpu_count - 2)
        gpus = machine.choose_gpus((first, first + 1), 2) or (first,)
        ends = moment + rng.choice((1, 2, 3)) * DAY_S
        bookings += [PastBooking(gpu, person, moment, ends) for gpu in gpus]
        if rng.random() < 2 / 3:
            jobs.append(create_past_job("train", person, gpus, moment + rng.uniform(0, 3) * HOUR_S, ends, rng))
        moment = ends + rng.uniform(3, 7) * DAY_S
    return bookings, jobs


def generate_past_jobs(
    machine: DemoMachine, rng: Random, began: float, taken: TakenSpans, origin: datetime
) -> Iterator[DemoJob]:
    """Jobs that came as people do; each finds GPUs that are free for as long as it takes, or goes elsewhere."""
    moment, free_from = began, [began] * machine.gpu_count
    kinds = {
        "train": machine.job_share / 3,
        "notebook": machine.notebook_share / 2,
        "debug": machine.short_runs_per_hour / machine.gpu_count / 10,
    }
    an_hour = machine.gpu_count * sum(kinds.values())
    while an_hour and moment < -LEAD_TIME_S:
        moment += rng.expovariate(an_hour / HOUR_S)
        if rng.random() > compute_arrival_rate(origin + timedelta(seconds=moment)):
            continue
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        takes = "long" if kind == "train" and rng.random() < LONG_JOB_SHARE else kind
        ends = moment + rng.uniform(*PAST_JOB_HOURS[takes]) * HOUR_S
        count = rng.choice((1, 1, 2, 4)) if kind == "train" else 1
        # nobody likes all hosts alike
        person = PEOPLE[int(len(PEOPLE) * rng.random() ** 2 + machine.number * 5) % len(PEOPLE)]
        free = [
            gpu
            for gpu in range(machine.gpu_count)
            if free_from[gpu] <= moment and is_gpu_available(gpu, moment, ends, taken)
        ]
        gpus = machine.choose_gpus(free, count)
        for gpu in gpus:
            free_from[gpu] = ends
        if gpus:
            yield create_past_job(kind, person, gpus, moment, ends, rng)


def compute_arrival_rate(local: datetime) -> float:
    by_day = 1 if 9 <= local.hour < 19 else EVENING_RATE if 19 <= local.hour < 23 else NIGHT_RATE
    return by_day * (WEEKEND_RATE if local.weekday() >= 5 else 1)


def is_gpu_available(gpu: int, begins: float, ends: float, taken: TakenSpans) -> bool:
    return not any(gpu == taken_gpu and begins < until and since < ends for taken_gpu, since, until in taken)


def create_past_job(
    kind: str, person: str, gpus: tuple[int, ...], begins: float, ends: float, rng: Random
) -> DemoJob:  # each is one thing
    share = rng.uniform(0.1, 0.5) if kind != "train" else rng.uniform(0.4, 0.94)
    return DemoJob(
        kind, person, gpus, begins, ends, rng.randrange(2000, 4_000_000), share, "", rng.uniform(0.3, 3) * HOUR_S
    )


GpuActivity = Union[DemoJob, PastBooking, None]


@dataclass(frozen=True)
class GpuTrack:
    """A GPU: numbers as history.db has them of a minute, and the places of how it stood in `Host.standings`."""

    use_values: bytearray
    temperatures: bytearray
    memory_values: array[int]
    power_values: array[int]
    state_codes: bytearray

    def fill_slots(self, first: int, last: int, readings: SlotReadings) -> None:
        count = last - first
        self.use_values[first:last] = readings.use_values
        self.temperatures[first:last] = readings.temperatures
        self.power_values[first:last] = readings.power_values
        self.memory_values[first:last] = array("I", [readings.memory_mib]) * count
        self.state_codes[first:last] = bytes([readings.state_code]) * count


class SlotReadings(NamedTuple):
    """What some slots say."""

    use_values: bytes
    temperatures: bytes
    power_values: array[int]
    memory_mib: int
    state_code: int


@dataclass(frozen=True)
class HostTracks:
    """A host: a track for each GPU, and all ways in which they stood."""

    machine: DemoMachine
    tracks: list[GpuTrack]
    occupancies: list[str] = field(default_factory=list)

    def find_state_code(self, standing: Occupancy) -> int:
        text = serialize_occupancy(standing)
        if text not in self.occupancies and len(self.occupancies) < GAP_CODE:
            self.occupancies.append(text)
        return self.occupancies.index(text) if text in self.occupancies else GAP_CODE


def build_host_tracks(weeks: PastWeeks, count: int, find_slot: Callable[[float], int]) -> HostTracks:
    machine = weeks.machine
    host = HostTracks(machine, [create_empty_track(count) for _ in range(machine.gpu_count)])
    for gpu, track in enumerate(host.tracks):
        simulation = GpuSimulation(machine, gpu)
        for first, last, activities in split_at_changes(iterate_activities(weeks, gpu), count, find_slot):
            track.fill_slots(first, last, simulation.simulate_slots(first, last, activities, find_slot, host))
        for begins, ends in weeks.silent_spans:
            first, last = (min(count, max(0, find_slot(moment))) for moment in (begins, ends))
            track.fill_slots(first, last, create_missing_readings(last - first, GAP_CODE))
    return host


def create_empty_track(count: int) -> GpuTrack:
    return GpuTrack(
        bytearray(count), bytearray(count), array("I", [0]) * count, array("H", [0]) * count, bytearray(count)
    )


def create_missing_readings(count: int, code: int) -> SlotReadings:
    return SlotReadings(b"\xff" * count, b"\xff" * count, array("H", [NO_POWER]) * count, NO_MEMORY, code)


def iterate_activities(weeks: PastWeeks, gpu: int) -> Iterator[tuple[float, float, GpuActivity]]:
    for job in weeks.jobs:
        if gpu in job.gpus:
            yield job.starts_at, job.ends_at, job
    for booking in weeks.bookings:
        if gpu == booking.gpu:
            yield booking.starts_at, booking.ends_at, booking
    for lost_gpu, begins, ends in weeks.lost_spans:
        if gpu == lost_gpu:
            yield begins, ends, None


def split_at_changes(
    activities: Iterator[tuple[float, float, GpuActivity]], count: int, find_slot: Callable[[float], int]
) -> Iterator[tuple[int, int, list[GpuActivity]]]:
    begin: dict[int, list[GpuActivity]] = defaultdict(list)
    end: dict[int, list[GpuActivity]] = defaultdict(list)
    edges = {0, count}
    for begins, ends, activity in activities:
        first, last = (min(count, max(0, find_slot(moment))) for moment in (begins, ends))
        if first < last:
            begin[first].append(activity)
            end[last].append(activity)
            state_changes = (
                (find_idle_start(activity), find_idle_start(activity) + HELD_AFTER_S)
                if isinstance(activity, DemoJob)
                else ()
            )
            edges |= {first, last, *(find_slot(turn) for turn in state_changes if turn < ends)}
    current: list[GpuActivity] = []
    sorted_edges = sorted(edge for edge in edges if 0 <= edge <= count)
    for first, last in zip(sorted_edges, sorted_edges[1:]):
        for activity in end[first]:
            current.remove(activity)
        current += begin[first]
        yield first, last, current


def find_idle_start(job: DemoJob) -> float:
    return job.starts_at if job.is_orphaned else job.idle_since


class GpuSimulation:
    """How a GPU looks to the tool of its maker; no two are quite the same."""

    def __init__(self, machine: DemoMachine, gpu: int) -> None:
        unit = machine.units[gpu]
        self.memory_mib, self.is_instance = unit.memory_mib, unit.instance is not None
        self.rng = Random(build_gpu_uuid(machine, gpu))  # noqa: S311 nothing secret
        base, slope = 27 + self.rng.randrange(9), 0.3 + self.rng.random() * 0.15
        idle_share = 0.07 + self.rng.random() * 0.05
        self.temperatures_by_use, self.power_by_use = {}, {}
        for taken in (False, True):
            self.temperatures_by_use[taken] = bytes(
                int(base + 8 * taken + slope * min(100, use / 2)) for use in range(256)
            )
            share = [idle_share + 0.06 * taken + 0.74 * min(100, use / 2) / 100 for use in range(256)]
            self.power_by_use[taken] = [int(10 * unit.model.max_watts * power_share) for power_share in share]

    def simulate_slots(
        self,
        first: int,
        last: int,
        activities: Sequence[GpuActivity],
        find_slot: Callable[[float], int],
        host: HostTracks,
    ) -> SlotReadings:
        jobs = [activity for activity in activities if isinstance(activity, DemoJob)]
        bookers = tuple(sorted({activity.person for activity in activities if isinstance(activity, PastBooking)}))
        count = last - first
        if None in activities:
            return create_missing_readings(
                count, host.find_state_code(Occupancy("lost", GpuPeople((), bookers, bookers)))
            )
        users = tuple(sorted({job.person for job in jobs}))
        absent = tuple(name for name in bookers if name not in users)
        at_work = [job for job in jobs if first < find_slot(find_idle_start(job))] if jobs else []
        held = bool(jobs) and all(first >= find_slot(find_idle_start(job) + HELD_AFTER_S) for job in jobs)
        state = choose_demo_state(users, bookers, absent, held and not self.is_instance)
        use = bytes(count)
        if at_work:
            start = self.rng.randrange(NOISE_LENGTH)
            use = generate_use_noise(at_work[0].kind)[start : start + count]
        memory = min(
            4 + sum(int(self.memory_mib * job.memory_share) for job in jobs), self.memory_mib - RESERVED_MIB - 20
        )
        taken, code = bool(jobs), host.find_state_code(Occupancy(state, GpuPeople(users, bookers, absent)))
        if self.is_instance:
            return create_missing_readings(count, code)._replace(memory_mib=memory)
        watts = array("H", [self.power_by_use[taken][activity] for activity in use])
        return SlotReadings(use, use.translate(self.temperatures_by_use[taken]), watts, memory, code)


def choose_demo_state(users: Sequence[str], bookers: Sequence[str], absent: Sequence[str], held: bool) -> str:
    if users and bookers and len(absent) == len(bookers):
        return "conflict"
    if users:
        return "held" if held else "busy"
    return "booked" if bookers else "free"


@cache
def generate_use_noise(kind: str) -> bytes:
    low, high = USE_RANGES[kind]
    return bytes(Random(kind).choices(range(low, high), k=NOISE_LENGTH)) * 2  # noqa: S311
