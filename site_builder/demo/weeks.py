"""What people did in the simulated lab in the weeks before the demo, settled by its seed.

Time is in seconds of the lab, as in the story: 0 is where the demo begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple

from site_builder.demo.cast import OLD, PEOPLE, Machine
from site_builder.demo.story import BEFORE, BOOKINGS, DAY, HOUR, LOST, MINUTE, UNUSED, HostStory, Job

# A host that was down for a day and a half, one that is being repaired, and one whose scripts have ended.
DOWN = {
    "lyra": (-12 * DAY - 7 * HOUR, -11 * DAY + 5 * HOUR),
    "pavo": (-2 * DAY, float("inf")),
    OLD: (-2 * HOUR - 13 * MINUTE, float("inf")),
}
# Jobs come by day, and fewer in the evening, at night, and at the end of the week.
EVENING, NIGHT, WEEKEND = 0.4, 0.08, 0.25
# How many hours a job of each kind takes; some train for days.
HOURS = {"train": (2, 14), "long": (20, 70), "notebook": (2, 30), "debug": (0.1, 0.7)}
LONG = 0.2
STEP = 5 * MINUTE
Taken = Sequence[tuple[int, float, float]]


class Promise(NamedTuple):
    """A GPU that was promised to somebody."""

    gpu: int
    person: str
    begins: float
    ends: float


class Weeks(NamedTuple):
    """What happened on a host: what ran, what was promised, which GPUs were lost, and when nothing was heard of it."""

    machine: Machine
    jobs: list[Job]
    promises: list[Promise]
    lost: list[tuple[int, float, float]]
    gaps: list[tuple[float, float]]


def weeks_of(story: HostStory, began: float, until: float, origin: datetime, seed: int) -> Weeks:
    """What happened on a host from one moment to another; `origin` is 0 as the lab's clocks show it."""
    machine = story.machine
    rng = Random(f"{seed} {machine.name} weeks")  # noqa: S311 nothing secret
    promises, kept = promised(machine, rng, began)
    taken = [(one.gpu, one.begins, one.ends) for one in promises]
    taken += [(gpu, job.begins, job.ends) for job in story.plot for gpu in job.gpus]
    taken += [(gpu, began, until) for gpu in UNUSED.get(machine.story, ())]
    later = told(story, until)
    # somebody who tries something for a minute does so beside others
    first = {gpu: job.begins for job in reversed(later) if job.kind != "debug" for gpu in job.gpus}
    earlier = came(machine, rng, began, taken, origin)
    jobs = [*kept, *(until_next(one, first, rng) for one in earlier), *story.plot, *later]
    gaps: list[tuple[float, float]] = [DOWN[machine.story]] if machine.story in DOWN else []
    gaps += [
        (moment, moment + STEP)
        for moment in range(0, int(until), STEP)
        if story.is_silent(moment) or not story.has_driver(moment)
    ]
    return Weeks(machine, jobs, promises, list(LOST.get(machine.story, ())), gaps)


def told(story: HostStory, until: float) -> list[Job]:
    """What ran in the last day and a half, as the story itself has it."""
    found = {}
    for moment in range(-BEFORE, int(until) + 1, STEP):
        found.update({(job.pid, job.begins): job for job in story.at(moment)})
    return [job for job in found.values() if job not in story.plot]


def until_next(job: Job, first: Mapping[int, float], rng: Random) -> Job:
    """A job that may go on when the story begins, but not where that has one of its own, and not into the demo."""
    if job.ends <= -BEFORE:
        return job
    gone = min(job.ends, rng.uniform(-BEFORE, -2 * HOUR))
    return replace(job, ends=min([gone, *(first.get(gpu, gone) for gpu in job.gpus)]))


def promised(machine: Machine, rng: Random, began: float) -> tuple[list[Promise], list[Job]]:
    """Bookings of these weeks, and what ran on those that were kept: two in three are."""
    found = [
        Promise(gpu, one.person, one.begins - again, one.ends - again)
        for one in BOOKINGS
        if one.host == machine.story
        for gpu in (range(machine.gpus) if one.gpus is None else one.gpus)
        for again in (range(0, 43 * DAY, 7 * DAY) if one.rrule else (0,))
    ]
    if machine.gpus < 4 or not machine.load:
        return found, []
    jobs = []
    moment = began + rng.uniform(0, 5) * DAY
    while moment < -6 * DAY:
        person, first = rng.choice(PEOPLE), rng.randrange(machine.gpus - 2)
        gpus = machine.fit((first, first + 1), 2) or (first,)
        ends = moment + rng.choice((1, 2, 3)) * DAY
        found += [Promise(gpu, person, moment, ends) for gpu in gpus]
        if rng.random() < 2 / 3:
            jobs.append(job("train", person, gpus, moment + rng.uniform(0, 3) * HOUR, ends, rng))
        moment = ends + rng.uniform(3, 7) * DAY
    return found, jobs


def came(machine: Machine, rng: Random, began: float, taken: Taken, origin: datetime) -> Iterator[Job]:
    """Jobs that came as people do; each finds GPUs that are free for as long as it takes, or goes elsewhere."""
    moment, free_from = began, [began] * machine.gpus
    kinds = {"train": machine.load / 3, "notebook": machine.idle / 2, "debug": machine.tries / machine.gpus / 10}
    an_hour = machine.gpus * sum(kinds.values())
    while an_hour and moment < -BEFORE:
        moment += rng.expovariate(an_hour / HOUR)
        if rng.random() > pace(origin + timedelta(seconds=moment)):
            continue
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        takes = "long" if kind == "train" and rng.random() < LONG else kind
        ends = moment + rng.uniform(*HOURS[takes]) * HOUR
        count = rng.choice((1, 1, 2, 4)) if kind == "train" else 1
        # nobody likes all hosts alike
        person = PEOPLE[int(len(PEOPLE) * rng.random() ** 2 + machine.number * 5) % len(PEOPLE)]
        free = [gpu for gpu in range(machine.gpus) if free_from[gpu] <= moment and is_open(gpu, moment, ends, taken)]
        gpus = machine.fit(free, count)
        for gpu in gpus:
            free_from[gpu] = ends
        if gpus:
            yield job(kind, person, gpus, moment, ends, rng)


def pace(local: datetime) -> float:
    """How many of those who might come do so at that time."""
    by_day = 1 if 9 <= local.hour < 19 else EVENING if 19 <= local.hour < 23 else NIGHT
    return by_day * (WEEKEND if local.weekday() >= 5 else 1)


def is_open(gpu: int, begins: float, ends: float, taken: Taken) -> bool:
    """Whether nobody else has a GPU or a promise of it in that time."""
    return not any(gpu == other and begins < until and since < ends for other, since, until in taken)


def job(kind: str, person: str, gpus: tuple[int, ...], begins: float, ends: float, rng: Random) -> Job:  # noqa: PLR0913, PLR0917 # each is one thing
    """Something that ran; nobody asks for its command any more."""
    share = rng.uniform(0.1, 0.5) if kind != "train" else rng.uniform(0.4, 0.94)
    return Job(kind, person, gpus, begins, ends, rng.randrange(2000, 4_000_000), share, "", rng.uniform(0.3, 3) * HOUR)
