"""Simulate the five weeks before the demo."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from math import isfinite
from random import Random
from typing import NamedTuple, Union

from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import GpuPeople
from site_builder.demo import scenario
from site_builder.demo.scenario import HostScenario, ScenarioJob, ScenarioMachine, TimeSpan
from site_builder.history.block_format import NO_VALUE, pack_occupancy
from site_builder.history.model import OccupancySample

# A host that was down for a day and a half, one that is being repaired, and one whose scripts have ended.
DOWN_HOSTS = {
    "lyra": (-12 * DAY - 7 * HOUR, -11 * DAY + 5 * HOUR),
    "pavo": (-2 * DAY, float("inf")),
    scenario.LEGACY_HOST: (-scenario.LEGACY_HOST_AGE_S, float("inf")),
}
# Jobs come by day, and fewer in the evening, at night, and at the end of the week.
EVENING_RATE, NIGHT_RATE, WEEKEND_RATE = 0.4, 0.08, 0.25
# How many hours a job of each kind takes; some train for days.
PAST_JOB_HOURS = {"train": (2, 14), "long": (20, 70), "notebook": (2, 30), "debug": (0.1, 0.7)}
LONG_JOB_SHARE = 0.2
SLOT_S = 5 * MINUTE
HELD_AFTER_S = 2 * HOUR
# The code of a slot in which nothing was heard of the host.
GAP_CODE = NO_VALUE["B"]
# How busy a job of each kind keeps a GPU, from and to, in half percents.
USE_RANGES = {"train": (168, 194), "serve": (10, 90), "sweep": (60, 160), "debug": (50, 160), "notebook": (40, 150)}
NOISE_LENGTH = 12_000  # more than there are slots


class PastBooking(NamedTuple):
    """A GPU that was booked by somebody."""

    gpu: int
    person: str
    starts_at: float
    ends_at: float


GpuActivity = Union[ScenarioJob, PastBooking, None]  # None: the GPU is lost


class PastWeeks(NamedTuple):
    """What happened on a host since `began`: what ran, what was booked, which GPUs were lost, when it was silent."""

    machine: ScenarioMachine
    began: float
    jobs: list[ScenarioJob]
    bookings: list[PastBooking]
    lost_spans: Sequence[TimeSpan]
    silent_spans: list[tuple[float, float]]

    def find_slot(self, moment: float) -> int:
        """Return the slot of a moment of the lab, or one far away from all slots."""
        return round((moment - self.began) / SLOT_S) if isfinite(moment) else 1 << 30


def simulate_past_weeks(
    host_scenario: HostScenario, began: float, until: float, origin: datetime, seed: int
) -> PastWeeks:
    machine = host_scenario.machine
    rng = Random(f"{seed} {machine.name} weeks")  # noqa: S311 nothing secret
    bookings, booked_jobs = simulate_past_bookings(machine, rng, began)
    taken = [(entry.gpu, entry.starts_at, entry.ends_at) for entry in bookings]
    taken += [(gpu, job.starts_at, job.ends_at) for job in host_scenario.fixed_jobs for gpu in job.gpus]
    taken += [(gpu, began, until) for gpu in scenario.UNUSED_GPUS.get(machine.scenario, ())]
    recent_jobs = {}
    for moment in range(-scenario.LEAD_TIME_S, int(until) + 1, SLOT_S):
        recent_jobs.update({(job.pid, job.starts_at): job for job in host_scenario.list_jobs_at(moment)})
    recent = [job for job in recent_jobs.values() if job not in host_scenario.fixed_jobs]
    # somebody who tries something for a minute does so beside others
    next_start = {gpu: job.starts_at for job in reversed(recent) if job.kind != "debug" for gpu in job.gpus}
    earlier = []
    for job in generate_past_jobs(machine, rng, began, taken, origin):
        if job.ends_at > -scenario.LEAD_TIME_S:  # it ends before those that the story itself begins with
            end = min(job.ends_at, rng.uniform(-scenario.LEAD_TIME_S, -2 * HOUR))
            job = replace(job, ends_at=min([end, *(next_start.get(gpu, end) for gpu in job.gpus)]))  # noqa: PLW2901
        earlier.append(job)
    silent_spans: list[tuple[float, float]] = [DOWN_HOSTS[machine.scenario]] if machine.scenario in DOWN_HOSTS else []
    silent_spans += [
        (moment, moment + SLOT_S)
        for moment in range(0, int(until), SLOT_S)
        if host_scenario.is_silent(moment) or not host_scenario.has_driver(moment)
    ]
    jobs = [*booked_jobs, *earlier, *host_scenario.fixed_jobs, *recent]
    return PastWeeks(machine, began, jobs, bookings, scenario.LOST_GPUS.get(machine.scenario, ()), silent_spans)


def simulate_past_bookings(
    machine: ScenarioMachine, rng: Random, began: float
) -> tuple[list[PastBooking], list[ScenarioJob]]:
    """Return the bookings of these weeks, and what ran on those that were kept: two in three are."""
    bookings = [
        PastBooking(gpu, booking.person, booking.starts_at - offset, booking.ends_at - offset)
        for booking in scenario.DEMO_BOOKINGS
        if booking.host == machine.scenario
        for gpu in (range(machine.gpu_count) if booking.gpus is None else booking.gpus)
        for offset in (range(0, 43 * DAY, 7 * DAY) if booking.rrule else (0,))
    ]
    if machine.gpu_count < 4 or not machine.job_share:
        return bookings, []
    jobs = []
    moment = began + rng.uniform(0, 5) * DAY
    while moment < -6 * DAY:
        person, first = rng.choice(scenario.PEOPLE), rng.randrange(machine.gpu_count - 2)
        gpus = machine.choose_gpus((first, first + 1), 2) or (first,)
        ends = moment + rng.choice((1, 2, 3)) * DAY
        bookings += [PastBooking(gpu, person, moment, ends) for gpu in gpus]
        if rng.random() < 2 / 3:
            jobs.append(create_past_job("train", person, gpus, moment + rng.uniform(0, 3) * HOUR, ends, rng))
        moment = ends + rng.uniform(3, 7) * DAY
    return bookings, jobs


def generate_past_jobs(
    machine: ScenarioMachine, rng: Random, began: float, taken: Sequence[TimeSpan], origin: datetime
) -> Iterator[ScenarioJob]:
    """Yield jobs that came as people do; each finds GPUs that are free for as long as it takes, or goes elsewhere."""
    moment, free_from = began, [began] * machine.gpu_count
    kinds = {
        "train": machine.job_share / 3,
        "notebook": machine.notebook_share / 2,
        "debug": machine.short_runs_per_hour / machine.gpu_count / 10,
    }
    an_hour = machine.gpu_count * sum(kinds.values())
    while an_hour and moment < -scenario.LEAD_TIME_S:
        moment += rng.expovariate(an_hour / HOUR)
        local = origin + timedelta(seconds=moment)
        rate = 1 if 9 <= local.hour < 19 else EVENING_RATE if 19 <= local.hour < 23 else NIGHT_RATE
        if rng.random() > rate * (WEEKEND_RATE if local.weekday() >= 5 else 1):
            continue
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        takes = "long" if kind == "train" and rng.random() < LONG_JOB_SHARE else kind
        ends = moment + rng.uniform(*PAST_JOB_HOURS[takes]) * HOUR
        count = rng.choice((1, 1, 2, 4)) if kind == "train" else 1
        # nobody likes all hosts alike
        person_count = len(scenario.PEOPLE)
        person = scenario.PEOPLE[int(person_count * rng.random() ** 2 + machine.number * 5) % person_count]
        free = [
            gpu
            for gpu in range(machine.gpu_count)
            if free_from[gpu] <= moment and scenario.is_scenario_gpu_available(gpu, moment, ends, taken)
        ]
        gpus = machine.choose_gpus(free, count)
        for gpu in gpus:
            free_from[gpu] = ends
        if gpus:
            yield create_past_job(kind, person, gpus, moment, ends, rng)


def create_past_job(
    kind: str, person: str, gpus: tuple[int, ...], begins: float, ends: float, rng: Random
) -> ScenarioJob:
    share = rng.uniform(0.1, 0.5) if kind != "train" else rng.uniform(0.4, 0.94)
    pid, active_s = rng.randrange(2000, 4_000_000), rng.uniform(0.3, 3) * HOUR
    return ScenarioJob(kind, person, gpus, begins, ends, pid, share, "", active_s)


class PastGpuTrack(NamedTuple):
    """A GPU over some slots: numbers as history.db has them of a minute; GAP_CODE where the host was silent."""

    use_values: array[int]
    memory_values: array[int]
    temperatures: array[int]
    power_values: array[int]
    state_codes: array[int]


def create_past_gpu_track(count: int) -> PastGpuTrack:
    """Create a track of which nothing is known."""
    return PastGpuTrack(*(array(kind, [NO_VALUE[kind]]) * count for kind in "BIBHB"))


@dataclass(frozen=True)
class PastHostTracks:
    """A host: a track for each GPU, and the codes of all occupancies that they had."""

    machine: ScenarioMachine
    tracks: list[PastGpuTrack] = field(default_factory=list)
    codes_by_occupancy: dict[str, int] = field(default_factory=dict)

    def find_state_code(self, occupancy: OccupancySample) -> int:
        codes, text = self.codes_by_occupancy, pack_occupancy(occupancy)
        return codes.setdefault(text, len(codes)) if len(codes) < GAP_CODE else codes.get(text, GAP_CODE)


def build_past_host_tracks(weeks: PastWeeks, count: int) -> PastHostTracks:
    host = PastHostTracks(weeks.machine)
    for gpu in range(weeks.machine.gpu_count):
        track, simulation = create_past_gpu_track(count), PastGpuSimulation(weeks, gpu)
        for first, last, activities in split_past_track_at_changes(weeks, gpu, count):
            simulation.simulate_slots(track, first, last, activities, host)
        for begins, ends in weeks.silent_spans:
            first, last = (min(count, max(0, weeks.find_slot(moment))) for moment in (begins, ends))
            for values, no_values in zip(track, create_past_gpu_track(last - first)):
                values[first:last] = no_values
        host.tracks.append(track)
    return host


def split_past_track_at_changes(weeks: PastWeeks, gpu: int, count: int) -> Iterator[tuple[int, int, list[GpuActivity]]]:
    """Yield spans of slots in which nothing about a GPU changes, with what goes on in them."""
    begin: dict[int, list[GpuActivity]] = defaultdict(list)
    end: dict[int, list[GpuActivity]] = defaultdict(list)
    edges = {0, count}
    activities: list[tuple[float, float, GpuActivity]] = []
    activities += [(job.starts_at, job.ends_at, job) for job in weeks.jobs if gpu in job.gpus]
    activities += [(entry.starts_at, entry.ends_at, entry) for entry in weeks.bookings if entry.gpu == gpu]
    activities += [(begins, ends, None) for lost_gpu, begins, ends in weeks.lost_spans if lost_gpu == gpu]
    for begins, ends, activity in activities:
        first, last = (min(count, max(0, weeks.find_slot(moment))) for moment in (begins, ends))
        if first < last:
            begin[first].append(activity)
            end[last].append(activity)
            edges |= {first, last}
            if isinstance(activity, ScenarioJob):
                idle_start = find_past_job_idle_start(activity)
                edges |= {weeks.find_slot(turn) for turn in (idle_start, idle_start + HELD_AFTER_S) if turn < ends}
    current: list[GpuActivity] = []
    sorted_edges = sorted(edge for edge in edges if 0 <= edge <= count)
    for first, last in zip(sorted_edges, sorted_edges[1:]):
        for activity in end[first]:
            current.remove(activity)
        current += begin[first]
        yield first, last, current


def find_past_job_idle_start(job: ScenarioJob) -> float:
    return job.starts_at if job.is_orphaned else job.idle_since


class PastGpuSimulation:
    """How a GPU looks to the tool of its maker; no two are quite the same."""

    def __init__(self, weeks: PastWeeks, gpu: int) -> None:
        unit = weeks.machine.units[gpu]
        self.weeks, self.memory_mib, self.is_instance = weeks, unit.memory_mib, unit.instance is not None
        self.rng = Random(scenario.build_scenario_gpu_uuid(weeks.machine, gpu))  # noqa: S311 nothing secret
        base, slope = 27 + self.rng.randrange(9), 0.3 + self.rng.random() * 0.15
        idle_share = 0.07 + self.rng.random() * 0.05
        percents = [min(100, use / 2) for use in range(256)]
        self.temperatures_by_use, self.power_by_use = {}, {}
        for taken in (False, True):
            self.temperatures_by_use[taken] = bytes(int(base + 8 * taken + slope * percent) for percent in percents)
            shares = [idle_share + 0.06 * taken + 0.74 * percent / 100 for percent in percents]
            self.power_by_use[taken] = [int(10 * unit.model.max_watts * share) for share in shares]

    def simulate_slots(
        self, track: PastGpuTrack, first: int, last: int, activities: Sequence[GpuActivity], host: PastHostTracks
    ) -> None:
        slots, count, find_slot = slice(first, last), last - first, self.weeks.find_slot
        jobs = [activity for activity in activities if isinstance(activity, ScenarioJob)]
        users = tuple(sorted({job.person for job in jobs}))
        bookers = tuple(sorted({activity.person for activity in activities if isinstance(activity, PastBooking)}))
        absent = tuple(name for name in bookers if name not in users)
        if None in activities:
            state, users, absent = "lost", (), bookers
        elif users and bookers and len(absent) == len(bookers):
            state = "conflict"
        elif users:
            is_held = all(first >= find_slot(find_past_job_idle_start(job) + HELD_AFTER_S) for job in jobs)
            state = "held" if is_held and not self.is_instance else "busy"
        else:
            state = "booked" if bookers else "free"
        code = host.find_state_code(OccupancySample(state, GpuPeople(users, bookers, absent)))
        track.state_codes[slots] = array("B", [code]) * count
        if state == "lost":
            return
        memory = 4 + sum(int(self.memory_mib * job.memory_share) for job in jobs)
        track.memory_values[slots] = array("I", [min(memory, self.memory_mib - scenario.RESERVED_MIB - 20)]) * count
        use = bytes(count)
        at_work = [job for job in jobs if first < find_slot(find_past_job_idle_start(job))]
        if at_work:
            start = self.rng.randrange(NOISE_LENGTH)
            use = generate_past_use_noise(at_work[0].kind)[start : start + count]
        if not self.is_instance:
            power = self.power_by_use[bool(jobs)]
            track.use_values[slots] = array("B", use)
            track.temperatures[slots] = array("B", use.translate(self.temperatures_by_use[bool(jobs)]))
            track.power_values[slots] = array("H", [power[value] for value in use])


@cache
def generate_past_use_noise(kind: str) -> bytes:
    low, high = USE_RANGES[kind]
    return bytes(Random(kind).choices(range(low, high), k=NOISE_LENGTH)) * 2  # noqa: S311


def simulate_past_host_load(host: PastHostTracks) -> tuple[array[int], array[int]]:
    """Return load and memory of the host itself, which follow from how many of its GPUs work."""
    machine = host.machine
    is_working = bytes([0]) + bytes([1]) * 200 + bytes(55)
    counts = [sum(uses) for uses in zip(*(track.use_values.tobytes().translate(is_working) for track in host.tracks))]
    loads = [int((0.4 + 1.1 * count) * 100 / machine.cpu_count + 0.5) for count in range(machine.gpu_count + 1)]
    memory = [int((9000 + 14000 * count) * 200 / machine.memory_mib + 0.5) for count in range(machine.gpu_count + 1)]
    pairs = list(zip(counts, host.tracks[0].state_codes))
    load = array("H", [NO_VALUE["H"] if code == GAP_CODE else loads[count] for count, code in pairs])
    return load, array("B", [NO_VALUE["B"] if code == GAP_CODE else memory[count] for count, code in pairs])
