"""What happens in the simulated lab, settled by a seed.

Time is in seconds of the lab, and 0 is where the demo begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from site_builder.demo.cast import COMMANDS, FIRST_UID, PEOPLE, RATES, Machine

MINUTE, HOUR, DAY = 60, 3600, 86400
# The lab is this old when the demo begins.
BEFORE = 36 * HOUR
# How many hours a job of each kind takes, on how many GPUs.
HOURS = {"train": (1, 11), "debug": (0.01, 0.12), "notebook": (2, 22), "sweep": (2, 8)}
COUNTS = {"train": (1, 1, 2, 4)}
# Every three days a deadline comes, and for twelve hours before it everybody wants everything.
DEADLINE_EVERY, RUSH_FROM, RUSH_UNTIL, RUSH = 3 * DAY, 6 * HOUR, 18 * HOUR, 30


@dataclass(frozen=True)
class Job:
    """Something that somebody runs on GPUs of one host."""

    kind: str
    person: str
    gpus: tuple[int, ...]
    begins: float
    ends: float
    pid: int
    share: float  # of each GPU's memory, once it is all there
    command: str
    active: float = 0.0  # a notebook is used for so long, and then no more
    container: str = ""
    dead: bool = False  # its own process is gone, but its children hold the memory
    root: bool = False  # what runs in the container does so as root

    def use(self, gpu: int, now: float) -> int:
        """How busy it keeps a GPU, in percent."""
        ran = now - self.begins
        noise = Random(f"{self.pid} {gpu} {int(now) // 5}").random()  # noqa: S311 nothing secret
        if self.dead:  # its children do nothing any more
            return 0
        if self.kind == "notebook":
            return int(20 + 60 * noise) if ran < self.active else 0
        if ran < MINUTE:  # it reads its data first
            return int(9 * noise)
        if self.kind == "serve":
            return int(70 * noise * noise)
        if self.kind == "train":
            return int(18 + 300 * noise) if noise < 0.06 else int(88 + 12 * noise)
        return int(25 + 55 * noise)

    def memory(self, total: int, now: float) -> int:
        """What it holds of a GPU, in MiB: it grows for two minutes."""
        return int(total * self.share * min(1.0, 0.15 + (now - self.begins) / (2 * MINUTE)))

    @property
    def program(self) -> str:
        """The first word of its command."""
        return self.command.split(maxsplit=1)[0]

    @property
    def idle_since(self) -> float:
        """Since when it uses nothing of what it holds, if it is of that kind."""
        return self.begins + self.active if self.kind == "notebook" else float("inf")


@dataclass(frozen=True)
class Booking:
    """A promise: `gpus` is None for the whole host."""

    host: str
    gpus: tuple[int, ...] | None
    person: str
    begins: float
    ends: float
    comment: str = ""
    rrule: str = ""


def pinned(kind: str, person: str, gpus: tuple[int, ...], hours: tuple[float, float], **more: object) -> Job:
    """A job of the plot, from hour to hour."""
    begins, ends = (hour * HOUR for hour in hours)
    rng = Random(f"{person} {hours} {gpus}")  # noqa: S311
    details: dict[str, object] = {"share": 0.88, "command": command_of(kind, person, rng), **more}
    return Job(kind, person, gpus, begins, ends, rng.randrange(2000, 4_000_000), **details)  # type: ignore[arg-type]


def command_of(kind: str, person: str, rng: Random) -> str:
    """One of the commands of that kind."""
    uid = FIRST_UID + PEOPLE.index(person) if person in PEOPLE else 0
    words = {"n": rng.randrange(10, 99), "lr": rng.choice(RATES), "uid": uid, "person": person}
    return rng.choice(COMMANDS[kind]).format(**words)


FOREVER = 100 * 24
SWEEP = "python sweep.py --token=hf_abcdefghijklmnopqrstuvwxyz"
# What always happens, whatever the seed: who works where, who holds what, which promise is kept and which broken.
PLOT: dict[str, tuple[Job, ...]] = {
    "atlas": (
        pinned("train", "alice", (0, 1, 2, 3), (-52, 52), command="python -u train.py --config configs/vit-l.yaml"),
        pinned(
            "sweep",
            "marek",
            (5,),
            (-0.7, 4),
            share=0.55,
            command=SWEEP,
        ),
        pinned("notebook", "bruno", (6,), (-9 * 24, 30), share=0.77, active=6 * 24 * HOUR - 2 * HOUR),
    ),
    "hydra": (pinned("train", "farid", (3,), (4.02, 12)),),
    "orion": (pinned("train", "jonas", (0, 1), (-7, 20), container="docker"),),
    "vega": (pinned("serve", "kavya", (0, 1), (-12 * 24, FOREVER), share=0.92, container="docker", root=True),),
    "lyra": (pinned("train", "elif", (2,), (-26, 7), share=0.62, command="python worker.py --rank 0", dead=True),),
    "cygnus": (pinned("train", "hiro", (0,), (-20, -3)),),
    "draco": (
        pinned("notebook", "noor", (1,), (-30, 40), share=0.31, active=4 * HOUR),
        pinned("debug", "greta", (2,), (-0.4, 1.1), share=0.2),
        pinned("train", "chen", (2,), (-3, 1), share=0.5),
    ),
    "gemini": (
        pinned("train", "kavya", (0,), (-5, 9), share=0.81),
        pinned("notebook", "greta", (1,), (-2.2, 6), share=0.44, active=5 * HOUR),
        pinned("train", "dana", (4,), (-11, 14)),
    ),
    "aquila": (pinned("train", "hiro", (0, 1), (-16, 21), share=0.9),),
    "centaurus": (
        pinned("train", "lena", (0,), (-3, 8), share=0.7),
        pinned("train", "ines", (2,), (-1.4, 5), share=0.8, command="python render.py --scene 41"),
    ),
}
BOOKINGS = (
    Booking("atlas", (0, 1, 2, 3), "alice", -50 * HOUR, 52 * HOUR, "ICML run"),  # kept
    Booking("atlas", (5,), "ines", -8 * HOUR, 5 * HOUR, "evaluation"),  # broken
    Booking("atlas", (7,), "dana", -1 * HOUR, 20 * HOUR, "demo for the visitors"),  # not used
    Booking("hydra", (3,), "farid", 4 * HOUR, 12 * HOUR, "deadline"),  # will be kept
    Booking("orion", (2, 3), "jonas", 6 * HOUR, 18 * HOUR, "deadline"),
    Booking("gemini", (2,), "noor", -2 * HOUR, 22 * HOUR, "thesis"),  # an instance, and not used either
    Booking("centaurus", (3,), "ines", 26 * HOUR, 50 * HOUR, "comparison"),
    Booking("cygnus", (0,), "hiro", -20 * HOUR, -3 * HOUR, "robot arm"),  # over
    Booking("taurus", None, "lena", 3 * DAY, 3 * DAY + 4 * HOUR, "course", "FREQ=WEEKLY;COUNT=12"),
)
LOST = {"hydra": ((5, -3 * HOUR, 9 * HOUR),), "orion": ((3, 25 * MINUTE, 4 * HOUR),)}
# GPUs that nobody ever takes.
UNUSED = {"perseus": (7,)}
# GPUs that happen to be free for some hours.
FREE = {"gemini": ((3, -2 * HOUR, 6 * HOUR),), "centaurus": ((3, -2 * HOUR, 6 * HOUR),)}
# A host is silent from two minutes after the start for 18 minutes, and every nine hours again.
SILENT = {"draco": (2 * MINUTE, 20 * MINUTE, 9 * HOUR)}
# After an update, the driver does not answer for half an hour.
DRIVER_GONE = {"perseus": (HOUR, 1.5 * HOUR)}


@dataclass
class HostStory:
    """What happens on one host: the plot, and between it jobs that come and go as they do."""

    machine: Machine
    rng: Random
    jobs: list[Job] = field(default_factory=list)
    next_arrival: float = -BEFORE

    def __post_init__(self) -> None:
        """Begin with the plot, and with the promises that others respect."""
        self.plot = PLOT.get(self.machine.story, ())
        self.kept_free = [
            (gpu, one.begins, one.ends)
            for one in BOOKINGS
            if one.host == self.machine.story and one.gpus is not None
            for gpu in one.gpus
        ]
        self.kept_free += [(gpu, job.begins, job.ends) for job in self.plot for gpu in job.gpus]
        self.kept_free += [*LOST.get(self.machine.story, ()), *FREE.get(self.machine.story, ())]
        self.kept_free += [(gpu, -BEFORE, float("inf")) for gpu in UNUSED.get(self.machine.story, ())]

    def rates(self, now: float) -> dict[str, float]:
        """How many jobs of each kind come in an hour."""
        machine, rush = self.machine, RUSH if RUSH_FROM <= now % DEADLINE_EVERY < RUSH_UNTIL else 1
        long_job = "sweep" if machine.gpus == 1 else "train"
        return {
            "debug": machine.tries * (2 if rush > 1 else 1),
            long_job: machine.load * machine.gpus * rush / (sum(HOURS[long_job]) / 2 * 2),
            "notebook": machine.idle * machine.gpus / (sum(HOURS["notebook"]) / 2),
        }

    def at(self, now: float) -> list[Job]:
        """What runs at that moment, which is not before the last one that was asked for."""
        while self.next_arrival <= now:
            rates = self.rates(self.next_arrival)
            self.jobs = [job for job in self.jobs if job.ends > self.next_arrival]
            if any(rates.values()):
                self.arrive(self.rng.choices(list(rates), list(rates.values()))[0], self.next_arrival)
            self.next_arrival += self.rng.expovariate((sum(rates.values()) or 1) / HOUR)
        self.jobs = [job for job in self.jobs if job.ends > now]
        return [*(job for job in self.plot if job.begins <= now < job.ends), *self.jobs]

    def arrive(self, kind: str, now: float) -> None:
        """Somebody comes with a job: it begins if there is room, and else they go elsewhere."""
        rng = self.rng
        person, count = rng.choice(PEOPLE), min(rng.choice(COUNTS.get(kind, (1,))), self.machine.gpus)
        ends = now + rng.uniform(*HOURS[kind]) * HOUR
        share = rng.uniform(0.1, 0.5) if kind in ("debug", "notebook") else rng.uniform(0.5, 0.94)
        active, pid = rng.uniform(0.2, 2) * HOUR, rng.randrange(2000, 4_000_000)
        container = "docker" if rng.random() < 0.2 else ""
        command = command_of(kind, person, rng)
        gpus = self.machine.fit([gpu for gpu in range(self.machine.gpus) if self.is_open(gpu, now, ends)], count)
        if gpus:
            self.jobs.append(Job(kind, person, gpus, now, ends, pid, share, command, active, container))

    def is_open(self, gpu: int, begins: float, ends: float) -> bool:
        """Whether a GPU has room for that long."""
        if any(gpu in job.gpus and job.ends > begins for job in self.jobs):
            return False
        return not any(gpu == kept and begins < until and since < ends for kept, since, until in self.kept_free)

    def lost(self, now: float) -> set[int]:
        """GPUs that the driver cannot reach."""
        return {gpu for gpu, since, until in LOST.get(self.machine.story, ()) if since <= now < until}

    def is_silent(self, now: float) -> bool:
        """Whether the host is down, or cut off."""
        since, until, again = SILENT.get(self.machine.story, (0, 0, 1))
        return now >= 0 and since <= now % again < until

    def has_driver(self, now: float) -> bool:
        """Whether nvidia-smi can talk to the driver."""
        since, until = DRIVER_GONE.get(self.machine.story, (0, 0))
        return not since <= now < until


def stories(machines: tuple[Machine, ...], seed: int) -> Iterator[HostStory]:
    """One for each host: nothing that happens on one changes what happens on another."""
    for machine in machines:
        yield HostStory(machine, Random(f"{seed} {machine.name}"))  # noqa: S311
