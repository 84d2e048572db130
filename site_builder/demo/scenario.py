"""What happens in the simulated lab, settled by a seed.

Time is in seconds of the lab, and 0 is where the demo begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from site_builder.demo.machines import FIRST_UID, JOB_COMMANDS, LEARNING_RATES, PEOPLE, DemoMachine

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
# The lab is this old when the demo begins.
LEAD_TIME_S = 36 * HOUR_S
# How many hours a job of each kind takes, on how many GPUs.
JOB_HOURS = {"train": (1, 11), "debug": (0.01, 0.12), "notebook": (2, 22), "sweep": (2, 8)}
GPU_COUNTS = {"train": (1, 1, 2, 4)}
# Every three days a deadline comes, and for twelve hours before it everybody wants everything.
DEADLINE_INTERVAL_S, RUSH_START_S, RUSH_END_S, RUSH_FACTOR = 3 * DAY_S, 6 * HOUR_S, 18 * HOUR_S, 30
FOREVER_HOURS = 100 * 24
SWEEP_COMMAND = "python sweep.py --token=hf_abcdefghijklmnopqrstuvwxyz"
LOST_GPUS = {"hydra": ((5, -3 * HOUR_S, 9 * HOUR_S),), "orion": ((3, 25 * MINUTE_S, 4 * HOUR_S),)}
# GPUs that nobody ever takes.
UNUSED_GPUS = {"perseus": (7,)}
# GPUs that happen to be free for some hours.
FREE_GPUS = {"gemini": ((3, -2 * HOUR_S, 6 * HOUR_S),), "centaurus": ((3, -2 * HOUR_S, 6 * HOUR_S),)}
# A host is silent from two minutes after the start for 18 minutes, and every nine hours again.
SILENT_HOSTS = {"draco": (2 * MINUTE_S, 20 * MINUTE_S, 9 * HOUR_S)}
# After an update, the driver does not answer for half an hour.
HOSTS_WITHOUT_DRIVER = {"perseus": (HOUR_S, 1.5 * HOUR_S)}


@dataclass(frozen=True)
class DemoJob:
    """Something that somebody runs on GPUs of one host."""

    kind: str
    person: str
    gpus: tuple[int, ...]
    starts_at: float
    ends_at: float
    pid: int
    memory_share: float  # of each GPU's memory, once it is all there
    command: str
    active_s: float = 0.0  # a notebook is used for so long, and then no more
    container: str = ""
    is_orphaned: bool = False  # its own process is gone, but its children hold the memory
    runs_as_root: bool = False  # what runs in the container does so as root

    def simulate_use(self, gpu: int, now: float) -> int:
        ran = now - self.starts_at
        noise = Random(f"{self.pid} {gpu} {int(now) // 5}").random()  # noqa: S311 nothing secret
        if self.is_orphaned:  # its children do nothing any more
            return 0
        if self.kind == "notebook":
            return int(20 + 60 * noise) if ran < self.active_s else 0
        if ran < MINUTE_S:  # it reads its data first
            return int(9 * noise)
        if self.kind == "serve":
            return int(70 * noise * noise)
        if self.kind == "train":
            return int(18 + 300 * noise) if noise < 0.06 else int(88 + 12 * noise)
        return int(25 + 55 * noise)

    def simulate_memory(self, total: int, now: float) -> int:
        return int(total * self.memory_share * min(1.0, 0.15 + (now - self.starts_at) / (2 * MINUTE_S)))

    @property
    def program(self) -> str:
        return self.command.split(maxsplit=1)[0]

    @property
    def idle_since(self) -> float:
        return self.starts_at + self.active_s if self.kind == "notebook" else float("inf")


@dataclass(frozen=True)
class DemoBooking:
    """A promise: `gpus` is None for the whole host."""

    host: str
    gpus: tuple[int, ...] | None
    person: str
    starts_at: float
    ends_at: float
    comment: str = ""
    rrule: str = ""


def create_fixed_job(
    kind: str, person: str, gpus: tuple[int, ...], hours: tuple[float, float], **details_given: object
) -> DemoJob:
    begins, ends = (hour * HOUR_S for hour in hours)
    rng = Random(f"{person} {hours} {gpus}")  # noqa: S311
    details: dict[str, object] = {"memory_share": 0.88, "command": choose_command(kind, person, rng), **details_given}
    return DemoJob(kind, person, gpus, begins, ends, rng.randrange(2000, 4_000_000), **details)  # type: ignore[arg-type]


def choose_command(kind: str, person: str, rng: Random) -> str:
    uid = FIRST_UID + PEOPLE.index(person) if person in PEOPLE else 0
    words = {"n": rng.randrange(10, 99), "lr": rng.choice(LEARNING_RATES), "uid": uid, "person": person}
    return rng.choice(JOB_COMMANDS[kind]).format(**words)


# What always happens, whatever the seed: who works where, who holds what, which promise is kept and which broken.
FIXED_JOBS: dict[str, tuple[DemoJob, ...]] = {
    "atlas": (
        create_fixed_job(
            "train", "alice", (0, 1, 2, 3), (-52, 52), command="python -u train.py --config configs/vit-l.yaml"
        ),
        create_fixed_job(
            "sweep",
            "marek",
            (5,),
            (-0.7, 4),
            memory_share=0.55,
            command=SWEEP_COMMAND,
        ),
        create_fixed_job(
            "notebook", "bruno", (6,), (-9 * 24, 30), memory_share=0.77, active_s=6 * 24 * HOUR_S - 2 * HOUR_S
        ),
    ),
    "hydra": (create_fixed_job("train", "farid", (3,), (4.02, 12)),),
    "orion": (create_fixed_job("train", "jonas", (0, 1), (-7, 20), container="docker"),),
    "vega": (
        create_fixed_job(
            "serve",
            "kavya",
            (0, 1),
            (-12 * 24, FOREVER_HOURS),
            memory_share=0.92,
            container="docker",
            runs_as_root=True,
        ),
    ),
    "lyra": (
        create_fixed_job(
            "train", "elif", (2,), (-26, 7), memory_share=0.62, command="python worker.py --rank 0", is_orphaned=True
        ),
    ),
    "cygnus": (create_fixed_job("train", "hiro", (0,), (-20, -3)),),
    "draco": (
        create_fixed_job("notebook", "noor", (1,), (-30, 40), memory_share=0.31, active_s=4 * HOUR_S),
        create_fixed_job("debug", "greta", (2,), (-0.4, 1.1), memory_share=0.2),
        create_fixed_job("train", "chen", (2,), (-3, 1), memory_share=0.5),
    ),
    "gemini": (
        create_fixed_job("train", "kavya", (0,), (-5, 9), memory_share=0.81),
        create_fixed_job("notebook", "greta", (1,), (-2.2, 6), memory_share=0.44, active_s=5 * HOUR_S),
        create_fixed_job("train", "dana", (4,), (-11, 14)),
    ),
    "aquila": (create_fixed_job("train", "hiro", (0, 1), (-16, 21), memory_share=0.9),),
    "centaurus": (
        create_fixed_job("train", "lena", (0,), (-3, 8), memory_share=0.7),
        create_fixed_job("train", "ines", (2,), (-1.4, 5), memory_share=0.8, command="python render.py --scene 41"),
    ),
}
DEMO_BOOKINGS = (
    DemoBooking("atlas", (0, 1, 2, 3), "alice", -50 * HOUR_S, 52 * HOUR_S, "ICML run"),  # kept
    DemoBooking("atlas", (5,), "ines", -8 * HOUR_S, 5 * HOUR_S, "evaluation"),  # broken
    DemoBooking("atlas", (7,), "dana", -1 * HOUR_S, 20 * HOUR_S, "demo for the visitors"),  # not used
    DemoBooking("hydra", (3,), "farid", 4 * HOUR_S, 12 * HOUR_S, "deadline"),  # will be kept
    DemoBooking("orion", (2, 3), "jonas", 6 * HOUR_S, 18 * HOUR_S, "deadline"),
    DemoBooking("gemini", (2,), "noor", -2 * HOUR_S, 22 * HOUR_S, "thesis"),  # an instance, and not used either
    DemoBooking("centaurus", (3,), "ines", 26 * HOUR_S, 50 * HOUR_S, "comparison"),
    DemoBooking("cygnus", (0,), "hiro", -20 * HOUR_S, -3 * HOUR_S, "robot arm"),  # over
    DemoBooking("taurus", None, "lena", 3 * DAY_S, 3 * DAY_S + 4 * HOUR_S, "course", "FREQ=WEEKLY;COUNT=12"),
)


@dataclass
class HostScenario:
    """What happens on one host: the plot, and between it jobs that come and go as they do."""

    machine: DemoMachine
    rng: Random
    jobs: list[DemoJob] = field(default_factory=list)
    next_arrival: float = -LEAD_TIME_S

    def __post_init__(self) -> None:
        """Begin with the plot, and with the promises that others respect."""
        self.fixed_jobs = FIXED_JOBS.get(self.machine.scenario, ())
        self.reserved_spans = [
            (gpu, booking.starts_at, booking.ends_at)
            for booking in DEMO_BOOKINGS
            if booking.host == self.machine.scenario and booking.gpus is not None
            for gpu in booking.gpus
        ]
        self.reserved_spans += [(gpu, job.starts_at, job.ends_at) for job in self.fixed_jobs for gpu in job.gpus]
        self.reserved_spans += [*LOST_GPUS.get(self.machine.scenario, ()), *FREE_GPUS.get(self.machine.scenario, ())]
        self.reserved_spans += [(gpu, -LEAD_TIME_S, float("inf")) for gpu in UNUSED_GPUS.get(self.machine.scenario, ())]

    def compute_arrival_rates(self, now: float) -> dict[str, float]:
        machine, rush = self.machine, RUSH_FACTOR if RUSH_START_S <= now % DEADLINE_INTERVAL_S < RUSH_END_S else 1
        long_job = "sweep" if machine.gpu_count == 1 else "train"
        return {
            "debug": machine.short_runs_per_hour * (2 if rush > 1 else 1),
            long_job: machine.job_share * machine.gpu_count * rush / (sum(JOB_HOURS[long_job]) / 2 * 2),
            "notebook": machine.notebook_share * machine.gpu_count / (sum(JOB_HOURS["notebook"]) / 2),
        }

    def list_jobs_at(self, now: float) -> list[DemoJob]:
        while self.next_arrival <= now:
            rates = self.compute_arrival_rates(self.next_arrival)
            self.jobs = [job for job in self.jobs if job.ends_at > self.next_arrival]
            if any(rates.values()):
                self.add_job(self.rng.choices(list(rates), list(rates.values()))[0], self.next_arrival)
            self.next_arrival += self.rng.expovariate((sum(rates.values()) or 1) / HOUR_S)
        self.jobs = [job for job in self.jobs if job.ends_at > now]
        return [*(job for job in self.fixed_jobs if job.starts_at <= now < job.ends_at), *self.jobs]

    def add_job(self, kind: str, now: float) -> None:
        rng = self.rng
        person, count = rng.choice(PEOPLE), min(rng.choice(GPU_COUNTS.get(kind, (1,))), self.machine.gpu_count)
        ends = now + rng.uniform(*JOB_HOURS[kind]) * HOUR_S
        share = rng.uniform(0.1, 0.5) if kind in ("debug", "notebook") else rng.uniform(0.5, 0.94)
        active, pid = rng.uniform(0.2, 2) * HOUR_S, rng.randrange(2000, 4_000_000)
        container = "docker" if rng.random() < 0.2 else ""
        command = choose_command(kind, person, rng)
        gpus = self.machine.choose_gpus(
            [gpu for gpu in range(self.machine.gpu_count) if self.is_gpu_available(gpu, now, ends)], count
        )
        if gpus:
            self.jobs.append(DemoJob(kind, person, gpus, now, ends, pid, share, command, active, container))

    def is_gpu_available(self, gpu: int, begins: float, ends: float) -> bool:
        if any(gpu in job.gpus and job.ends_at > begins for job in self.jobs):
            return False
        return not any(
            gpu == reserved_gpu and begins < until and since < ends
            for reserved_gpu, since, until in self.reserved_spans
        )

    def list_lost_gpus(self, now: float) -> set[int]:
        return {gpu for gpu, since, until in LOST_GPUS.get(self.machine.scenario, ()) if since <= now < until}

    def is_silent(self, now: float) -> bool:
        since, until, again = SILENT_HOSTS.get(self.machine.scenario, (0, 0, 1))
        return now >= 0 and since <= now % again < until

    def has_driver(self, now: float) -> bool:
        since, until = HOSTS_WITHOUT_DRIVER.get(self.machine.scenario, (0, 0))
        return not since <= now < until


def build_scenarios(machines: tuple[DemoMachine, ...], seed: int) -> Iterator[HostScenario]:
    for machine in machines:
        yield HostScenario(machine, Random(f"{seed} {machine.name}"))  # noqa: S311
