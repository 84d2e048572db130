"""The machines, people and jobs of the simulated lab."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from site_builder.core.formatting import DAY, HOUR, MINUTE

DRIVER_VERSION = "590.48.01"
RESERVED_MIB = 280
# One that gets too warm as soon as it works, and the degrees at which it slows itself down.
OVERHEATING_GPUS = {("atlas", 2)}
THROTTLE_CELSIUS = 87
# The models, machines and people, and what always happens, whatever the seed: who works where, who holds what, which
# booking is kept (the first one), broken (ines on atlas), or not used (dana, noor).
SCENARIO = json.loads((Path(__file__).parent / "scenario.json").read_text())
PEOPLE = tuple(SCENARIO["people"])
FIRST_UID = 1001
ALIASES = "lenak, lena\nmarek, Marek S.\n"
LEARNING_RATES = ("1e-4", "3e-4", "5e-5", "2e-5")
# One host had the old scripts, so that its files are of their kind; they stopped so long ago.
LEGACY_HOST, LEGACY_HOST_AGE_S = "pascal", 2 * HOUR + 13 * MINUTE
# The lab is this old when the demo begins.
LEAD_TIME_S = 36 * HOUR
# How many hours a job of each kind takes, on how many GPUs.
JOB_HOURS = {"train": (1, 11), "debug": (0.01, 0.12), "notebook": (2, 22), "sweep": (2, 8)}
GPU_COUNTS = {"train": (1, 1, 2, 4)}
# Every three days a deadline comes, and for twelve hours before it everybody wants everything.
DEADLINE_INTERVAL_S, RUSH_START_S, RUSH_END_S, RUSH_FACTOR = 3 * DAY, 6 * HOUR, 18 * HOUR, 30
LOST_GPUS = {"hydra": ((5, -3 * HOUR, 9 * HOUR),), "orion": ((3, 25 * MINUTE, 4 * HOUR),)}
# GPUs that nobody ever takes.
UNUSED_GPUS = {"perseus": (7,)}
# GPUs that happen to be free for some hours.
FREE_GPUS = {"gemini": ((3, -2 * HOUR, 6 * HOUR),), "centaurus": ((3, -2 * HOUR, 6 * HOUR),)}
# A host is silent from two minutes after the start for 18 minutes, and every nine hours again.
SILENT_HOSTS = {"draco": (2 * MINUTE, 20 * MINUTE, 9 * HOUR)}
# After an update, the driver does not answer for half an hour.
HOSTS_WITHOUT_DRIVER = {"perseus": (HOUR, 1.5 * HOUR)}


TimeSpan = tuple[int, float, float]  # a GPU, from one moment to another


class ScenarioReadings(NamedTuple):
    """Use in percent, memory in MiB, and what follows from them, in nvidia-smi's units."""

    use_percent: int
    memory_used_mib: int
    memory_use_percent: int
    celsius: int
    watts: float
    clock_mhz: int
    is_throttled: bool

    @property
    def is_taken(self) -> bool:
        return self.memory_used_mib > 1000


def build_scenario_gpu_uuid(machine: ScenarioMachine, gpu: int) -> str:
    unit, uuid = machine.units[gpu], build_scenario_uuid(f"{machine.name} {gpu}")
    if unit.vendor == "amd":
        return f"GPU-{uuid.replace('-', '')[:16]}"
    return f"{'MIG' if unit.instance else 'GPU'}-{uuid}"


def build_scenario_uuid(name: str) -> str:
    """Return the UUID that belongs to a name."""
    return str(UUID(hashlib.sha256(name.encode()).hexdigest()[:32]))


def simulate_readings(
    model: ScenarioGpuModel, key: str, use: int, used: int, now: float, warm: bool = False
) -> ScenarioReadings:
    """Simulate readings that follow from use and memory; no two GPUs and no two moments are quite the same."""
    held = used > 1000
    own, moment = Random(key), Random(f"{key} {int(now) // 5}")  # noqa: S311 nothing secret
    heat = int(27 + own.randrange(9) + 8 * held + (0.3 + own.random() * 0.15) * use)
    watts = model.max_watts * (0.07 + own.random() * 0.05 + 0.06 * held + 0.74 * use / 100) + moment.uniform(-4, 4)
    access = int(use * (0.25 + own.random() * 0.4) + moment.uniform(0, 4)) if use else 0
    clock = int(model.max_clock_mhz * (0.88 + moment.random() * 0.08)) if use else 210
    slowed = warm and bool(use)
    if slowed:
        heat, clock = THROTTLE_CELSIUS + moment.randrange(2), int(clock * 0.6)
    return ScenarioReadings(use, used, access, heat, min(watts, model.max_watts), clock, slowed)


@dataclass(frozen=True)
class ScenarioGpuModel:
    """A kind of GPU, in the words and units of its maker's tool."""

    name: str
    memory_mib: int
    max_watts: int
    max_clock_mhz: int
    compute_capability: str
    has_fan: bool
    has_ecc: bool
    vendor: str = "nvidia"


class ScenarioGpuInstance(NamedTuple):
    """A part of a GPU in MIG mode: its profile and number, what it has, and what it takes with nobody on it."""

    profile: str
    instance_id: int
    memory_mib: int
    empty_mib: int
    processors: int
    engines: int
    bar1_mib: int


class ScenarioGpu(NamedTuple):
    """What can be free or busy by itself: a GPU, or an instance of one; `index` is its GPU's, by its maker's tool."""

    label: str
    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: ScenarioGpuModel
    memory_mib: int
    instance: ScenarioGpuInstance | None = None

    @property
    def vendor(self) -> str:
        return self.model.vendor


@dataclass(frozen=True)
class ScenarioMachine:
    """A host of the lab.

    `job_share` is the share of its GPUs that long jobs ask for, and `notebook_share` the share that notebooks hold.
    `scenario` names what happens to it in the tables of this module. The first GPU may be cut into `instances`, each of
    which counts as one, and the last ones may be `extra_models` beside the others. Groups of `nvlink_group` GPUs have
    `nvlink_count` NVLinks between each two.
    """

    name: str
    model: ScenarioGpuModel
    gpu_count: int
    cpu_count: int
    memory_mib: int
    title: str = ""
    tags: str = ""
    short_runs_per_hour: float = 10.0
    job_share: float = 0.45
    notebook_share: float = 0.08
    remark: str = ""
    number: int = 0
    scenario: str = ""
    instances: tuple[ScenarioGpuInstance, ...] = ()
    extra_models: tuple[ScenarioGpuModel, ...] = ()
    amd_tool: str = ""
    nvlink_group: int = 1
    nvlink_count: int = 0

    @cached_property
    def units(self) -> tuple[ScenarioGpu, ...]:
        model, first = self.model, 1 if self.instances else 0
        whole_count = self.gpu_count - len(self.instances) - len(self.extra_models)
        return (
            *(ScenarioGpu(f"0:{n}", 0, model, part.memory_mib, part) for n, part in enumerate(self.instances)),
            *(ScenarioGpu(str(n), n, model, model.memory_mib) for n in range(first, first + whole_count)),
            *(ScenarioGpu(f"{gpu.vendor}{n}", n, gpu, gpu.memory_mib) for n, gpu in enumerate(self.extra_models)),
        )

    def choose_gpus(self, gpus: Sequence[int], count: int) -> tuple[int, ...]:
        for model in (self.model, *self.extra_models[:1]):
            units = ((gpu, self.units[gpu]) for gpu in gpus)
            alike = [gpu for gpu, unit in units if unit.model is model and (count == 1 or unit.instance is None)]
            if len(alike) >= count:
                return tuple(alike[:count])
        return ()


GPU_MODELS = {key: ScenarioGpuModel(**values) for key, values in SCENARIO["gpu_models"].items()}
MACHINES = tuple(
    ScenarioMachine(
        **{
            **values,
            "model": GPU_MODELS[values["model"]],
            "instances": tuple(ScenarioGpuInstance(**instance) for instance in values.get("instances", ())),
            "extra_models": tuple(GPU_MODELS[key] for key in values.get("extra_models", ())),
        }
    )
    for values in SCENARIO["machines"]
)


def build_scenario_machines(host_count: int) -> tuple[ScenarioMachine, ...]:
    machines = []
    for number in range(host_count):
        repetition, position = divmod(number, len(MACHINES))
        machine = replace(MACHINES[position], number=number, scenario=MACHINES[position].name)
        if repetition:  # those have no scenario and no remark of their own, and the new scripts
            machine = replace(machine, name=f"{machine.name}{repetition + 1}", remark="", scenario="")
        machines.append(machine)
    return tuple(machines)


@dataclass(frozen=True)
class ScenarioJob:
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
        if ran < MINUTE:  # it reads its data first
            return int(9 * noise)
        if self.kind == "serve":
            return int(70 * noise * noise)
        if self.kind == "train":
            return int(18 + 300 * noise) if noise < 0.06 else int(88 + 12 * noise)
        return int(25 + 55 * noise)

    def simulate_memory(self, total: int, now: float) -> int:
        return int(total * self.memory_share * min(1.0, 0.15 + (now - self.starts_at) / (2 * MINUTE)))

    @property
    def program(self) -> str:
        return self.command.split(maxsplit=1)[0]

    @property
    def idle_since(self) -> float:
        return self.starts_at + self.active_s if self.kind == "notebook" else float("inf")


@dataclass(frozen=True)
class ScenarioBooking:
    """A booking: `gpus` is None for the whole host."""

    host: str
    gpus: tuple[int, ...] | None
    person: str
    starts_at: float
    ends_at: float
    comment: str = ""
    rrule: str = ""


def create_fixed_job(kind: str, person: str, gpus: list[int], hours: list[float], **details: Any) -> ScenarioJob:  # noqa: ANN401
    begins, ends = (hour * HOUR for hour in hours)
    rng = Random(f"{person} {tuple(hours)} {tuple(gpus)}")  # noqa: S311
    details = {"memory_share": 0.88, "command": choose_scenario_command(kind, person, rng), **details}
    return ScenarioJob(kind, person, tuple(gpus), begins, ends, rng.randrange(2000, 4_000_000), **details)


def choose_scenario_command(kind: str, person: str, rng: Random) -> str:
    uid = FIRST_UID + PEOPLE.index(person) if person in PEOPLE else 0
    words = {"n": rng.randrange(10, 99), "lr": rng.choice(LEARNING_RATES), "uid": uid, "person": person}
    return str(rng.choice(SCENARIO["job_commands"][kind])).format(**words)


FIXED_JOBS = {host: tuple(create_fixed_job(**job) for job in jobs) for host, jobs in SCENARIO["fixed_jobs"].items()}
DEMO_BOOKINGS = tuple(
    ScenarioBooking(
        booking["host"],
        None if booking["gpus"] is None else tuple(booking["gpus"]),
        booking["person"],
        booking["hours"][0] * HOUR,
        booking["hours"][1] * HOUR,
        booking["comment"],
        booking.get("rrule", ""),
    )
    for booking in SCENARIO["bookings"]
)


def is_scenario_gpu_available(gpu: int, begins: float, ends: float, taken: Iterable[TimeSpan]) -> bool:
    return not any(gpu == taken_gpu and begins < until and since < ends for taken_gpu, since, until in taken)


@dataclass
class HostScenario:
    """What happens on one host: the plot, and between it jobs that come and go as they do."""

    machine: ScenarioMachine
    rng: Random
    jobs: list[ScenarioJob] = field(default_factory=list)
    next_arrival: float = -LEAD_TIME_S

    def __post_init__(self) -> None:
        """Begin with the plot, and with the bookings that others respect."""
        name = self.machine.scenario
        self.fixed_jobs = FIXED_JOBS.get(name, ())
        self.reserved_spans = [
            (gpu, booking.starts_at, booking.ends_at)
            for booking in DEMO_BOOKINGS
            if booking.host == name
            for gpu in booking.gpus or ()
        ]
        self.reserved_spans += [(gpu, job.starts_at, job.ends_at) for job in self.fixed_jobs for gpu in job.gpus]
        self.reserved_spans += [*LOST_GPUS.get(name, ()), *FREE_GPUS.get(name, ())]
        self.reserved_spans += [(gpu, -LEAD_TIME_S, float("inf")) for gpu in UNUSED_GPUS.get(name, ())]

    def list_jobs_at(self, now: float) -> list[ScenarioJob]:
        machine, long_kind = self.machine, "sweep" if self.machine.gpu_count == 1 else "train"
        while self.next_arrival <= now:
            is_rush = RUSH_START_S <= self.next_arrival % DEADLINE_INTERVAL_S < RUSH_END_S
            long_jobs = machine.job_share * machine.gpu_count * (RUSH_FACTOR if is_rush else 1)
            rates = {  # jobs of each kind in an hour
                "debug": machine.short_runs_per_hour * (2 if is_rush else 1),
                long_kind: long_jobs / sum(JOB_HOURS[long_kind]),
                "notebook": machine.notebook_share * machine.gpu_count / (sum(JOB_HOURS["notebook"]) / 2),
            }
            self.jobs = [job for job in self.jobs if job.ends_at > self.next_arrival]
            if any(rates.values()):
                self.add_job(self.rng.choices(list(rates), list(rates.values()))[0], self.next_arrival)
            self.next_arrival += self.rng.expovariate((sum(rates.values()) or 1) / HOUR)
        self.jobs = [job for job in self.jobs if job.ends_at > now]
        return [*(job for job in self.fixed_jobs if job.starts_at <= now < job.ends_at), *self.jobs]

    def add_job(self, kind: str, now: float) -> None:
        rng, gpu_count = self.rng, self.machine.gpu_count
        person, count = rng.choice(PEOPLE), min(rng.choice(GPU_COUNTS.get(kind, (1,))), gpu_count)
        ends = now + rng.uniform(*JOB_HOURS[kind]) * HOUR
        share = rng.uniform(0.1, 0.5) if kind in ("debug", "notebook") else rng.uniform(0.5, 0.94)
        active, pid = rng.uniform(0.2, 2) * HOUR, rng.randrange(2000, 4_000_000)
        container = "docker" if rng.random() < 0.2 else ""
        command = choose_scenario_command(kind, person, rng)
        taken = [*self.reserved_spans, *((gpu, now, job.ends_at) for job in self.jobs for gpu in job.gpus)]
        free = [gpu for gpu in range(gpu_count) if is_scenario_gpu_available(gpu, now, ends, taken)]
        if gpus := self.machine.choose_gpus(free, count):
            self.jobs.append(ScenarioJob(kind, person, gpus, now, ends, pid, share, command, active, container))

    def list_lost_gpus(self, now: float) -> dict[int, float]:
        """Return the GPUs that are lost, and since when."""
        return {gpu: since for gpu, since, until in LOST_GPUS.get(self.machine.scenario, ()) if since <= now < until}

    def is_silent(self, now: float) -> bool:
        since, until, again = SILENT_HOSTS.get(self.machine.scenario, (0, 0, 1))
        return now >= 0 and since <= now % again < until

    def has_driver(self, now: float) -> bool:
        since, until = HOSTS_WITHOUT_DRIVER.get(self.machine.scenario, (0, 0))
        return not since <= now < until


def build_scenarios(machines: tuple[ScenarioMachine, ...], seed: int) -> Iterator[HostScenario]:
    for machine in machines:
        yield HostScenario(machine, Random(f"{seed} {machine.name}"))  # noqa: S311
