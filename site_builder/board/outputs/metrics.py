"""metrics: the fleet for Prometheus, in base units; a value that is not available has no line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from site_builder.core.model import BoardGpu, BoardHost, Disk, Gpu, GpuProblem, HostFacts
from site_builder.fleet.mig import wholes
from site_builder.health.readings import Health, health

MIB, MEGA, PERCENT = 1024 * 1024, 1_000_000, 100
# A label that a host can choose is no longer than this, and there are no more people than this.
LONGEST_LABEL = 200
MOST_USERS = 1000
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# Stands for the state of a GPU in MIG mode, which has none of its own.
CUT = ""
Labelled = list[tuple[str, BoardGpu]]


class Family(NamedTuple):
    """What is told under one name: its type, its labels, and what it is."""

    name: str
    kind: str
    labels: str
    what: str

    @property
    def head(self) -> bytes:
        """The lines before its samples."""
        return f"# HELP {self.name} {self.what}\n# TYPE {self.name} {self.kind}\n".encode()


class Reading(NamedTuple):
    """A number of nvidia-smi: where it stands in a Gpu, and what makes base units of it."""

    place: int
    times: int = 1
    over: int = 1


class Sample(NamedTuple):
    """The same, with the name under which it is told."""

    name: str
    place: int
    times: int
    over: int


def reading(field: str, times: int = 1, over: int = 1) -> Reading:
    """The reading of that field."""
    return Reading(Gpu._fields.index(field), times, over)


def gpu_family(name: str, what: str, labels: str = "", kind: str = "gauge") -> Family:
    """A family with a line for each GPU."""
    return Family(f"gpuboard_gpu_{name}", kind, f"host, gpu{labels}", what)


def host_family(name: str, what: str, labels: str = "") -> Family:
    """A family with a line for each host."""
    return Family(f"gpuboard_host_{name}", "gauge", f"host{labels}", what)


READINGS = {
    gpu_family("memory_used_bytes", "Memory of the GPU that is in use."): reading("memory_used", MIB),
    gpu_family("memory_total_bytes", "Memory of the GPU."): reading("memory_total", MIB),
    gpu_family("utilization_ratio", "Share of time in which the GPU computed, 0 to 1."): reading(
        "utilization_gpu", over=PERCENT
    ),
    gpu_family("memory_utilization_ratio", "Share of time in which its memory was accessed, 0 to 1."): reading(
        "utilization_memory", over=PERCENT
    ),
    gpu_family("temperature_celsius", "Temperature of the GPU."): reading("temperature"),
    gpu_family("power_watts", "Power that the GPU draws."): reading("power_draw"),
    gpu_family("power_limit_watts", "Power that the GPU may draw."): reading("power_limit"),
    gpu_family("clock_hertz", "Clock of its streaming multiprocessors."): reading("clock", MEGA),
}
HEALTH = (
    gpu_family("fan_ratio", "Speed of its fan, 0 to 1."),
    gpu_family(
        "ecc_errors_total", "Errors in its memory since the driver was loaded, by kind.", ", kind", kind="counter"
    ),
    gpu_family("repair_pending", "1 if rows or pages of its memory are replaced at the next reset, else 0."),
    gpu_family("repair_failed", "1 if a row of its memory could not be replaced, else 0."),
    gpu_family("recovery_needed", "1 if its driver asks for a reset or a reboot, else 0."),
    gpu_family("throttled", "1 if the GPU runs slower for that reason, heat or power, else 0.", ", reason"),
    gpu_family("problem", "1, with the kind of each problem that the GPU has, and how grave it is.", ", kind, weight"),
)
PROMISES = (
    gpu_family("processes", "Processes on the GPU."),
    gpu_family("booked", "1 if the GPU is promised to somebody now, else 0."),
    gpu_family("state", "1, with the state that the GPU is in.", ", state"),
    gpu_family("info", "1, with what names the GPU.", ", uuid, name, model"),
)
HOSTS = (
    host_family("state", "1, with the state that the host is in.", ", state"),
    host_family("info", "1, with the title of the host and its tags, each between commas.", ", title, tags"),
    host_family("load1", "Processes that run or want to, as a mean over one minute."),
    host_family("cpus", "CPUs of the host."),
    host_family("memory_total_bytes", "Memory of the host."),
    host_family("memory_available_bytes", "Memory of the host that a new process could have."),
    host_family("disk_total_bytes", "Size of a local disk of the host.", ", mount"),
    host_family("disk_used_bytes", "How much of that disk is taken.", ", mount"),
)
# What `host` gives a part of, in its order.
FAMILIES = (*READINGS, *HEALTH, *PROMISES, *HOSTS)
SEEN = (
    host_family("seen_timestamp_seconds", "When the last snapshot of the host arrived."),
    host_family("age_seconds", "How old that snapshot was when the board was built."),
)
ONCE = (
    Family("gpuboard_bookings", "gauge", "phase", "Bookings that run now, and those that are to come."),
    Family("gpuboard_user_gpus", "gauge", "user", "GPUs on which the person has a process."),
    Family("gpuboard_user_booked_gpus", "gauge", "user", "GPUs that are promised to the person now."),
    Family("gpuboard_problems", "gauge", "", "Problems that the board tells the admin."),
    Family("gpuboard_build_duration_seconds", "gauge", "", "How long the build before this one took."),
    Family("gpuboard_build_interval_seconds", "gauge", "", "How often the board is built."),
    Family("gpuboard_build_last_success_timestamp_seconds", "gauge", "", "When the board was last built."),
    Family("gpuboard_build_info", "gauge", "version", "1, with the version of gpuboard."),
)
ALL = (*FAMILIES, *SEEN, *ONCE)
SAMPLES = tuple(Sample(family.name, *one) for family, one in READINGS.items())


class Fleet(NamedTuple):
    """What is told once: GPUs that each person uses and has booked, bookings of now and to come, the builder's own.

    `every` is how many seconds lie between builds, `duration` how many the last one took.
    """

    users: Mapping[str, int]
    booked: Mapping[str, int]
    bookings: tuple[int, int]
    problems: int
    version: str
    every: float
    duration: float | None = None


class Steady(NamedTuple):
    """What a GPU tells for many builds in the same words."""

    health: Health
    processes: int | None
    booked: bool | None
    state: str
    uuid: str | None
    name: str | None
    model: str
    problems: tuple[GpuProblem, ...] = ()


def host(board: BoardHost) -> tuple[bytes, ...]:
    """The lines of this host, a part for each of FAMILIES."""
    gpus = labelled(board)
    labels = tuple([one for one, _ in gpus])
    told = [one.gpu for _, one in gpus]
    readings = [lines_of(sample, labels, [gpu[sample.place] for gpu in told]) for sample in SAMPLES]  # type: ignore[misc]
    steady = steady_lines(labels, tuple([steady_of(one) for _, one in gpus]))
    return (*readings, *steady, *[encoded(one) for one in host_lines(board)])


def failed_host(name: str) -> tuple[bytes, ...]:
    """The lines of a host of which only its name is known."""
    state = f'{HOSTS[0].name}{{host="{label(name)}",state="failed"}} 1\n'.encode()
    return tuple(state if family is HOSTS[0] else b"" for family in FAMILIES)


def encoded(lines: Iterable[str]) -> bytes:
    """A part of the file."""
    return "".join(lines).encode("utf-8", "replace")


def lines_of(sample: Sample, labels: tuple[str, ...], values: list[float | None]) -> bytes:
    """A line for each GPU that has the value."""
    name, _, times, over = sample
    told = zip(labels, values)
    return encoded([f"{name}{one}}} {written(value, times, over)}\n" for one, value in told if value is not None])


@lru_cache(maxsize=10_000)
def written(value: float, times: int, over: int) -> str:
    """A number in base units, which takes Python longer to write than all that stands before it."""
    return str(value * times / over)


def labelled(board: BoardHost) -> Labelled:
    """Each GPU with the labels that no other has, but for the closing brace; one that has none is left out."""
    found: Labelled = []
    taken: set[str] = set()
    before = f'{{host="{label(board.name)}",gpu="'
    for one in (*board.gpus, *cut(board)):
        name = one.gpu.label
        # two series with the same labels would cost Prometheus the whole scrape
        if one.gpu.number is None or name in taken:
            names = (one.gpu.uuid, one.gpu.more.get("pci.bus_id"))
            name = next((free for free in map(label, filter(None, names)) if free not in taken), "")
        if name:
            taken.add(name)
            found.append((f'{before}{name}"', one))
    return found


def cut(board: BoardHost) -> list[BoardGpu]:
    """GPUs in MIG mode, with what is theirs alone: memory and states are those of their instances, and told there."""
    if not any(one.gpu.parent for one in board.gpus):
        return []
    several = [one for one, parts in wholes(board) if parts]
    return [one._replace(gpu=one.gpu._replace(memory_used=None, memory_total=None), state=CUT) for one in several]


def label(value: str) -> str:
    """The value of a label, as it is written between quotes."""
    return value[:LONGEST_LABEL].translate(ESCAPES)


def steady_of(gpu: BoardGpu) -> Steady:
    """Of a GPU; where no process is told, there is none only if it is certain that nobody is on it."""
    if gpu.state == CUT:
        return Steady(health(gpu.gpu), None, None, CUT, gpu.gpu.uuid, gpu.gpu.name, gpu.model, gpu.problems)
    problems = gpu.problems if gpu.gpu.parent is None else ()  # which its GPU tells
    count = len(gpu.processes) if gpu.processes or gpu.state in {"free", "booked"} else None
    booked = any(one.phase == "now" for one in gpu.bookings) if gpu.bookings else False
    return Steady(health(gpu.gpu), count, booked, gpu.state, gpu.gpu.uuid, gpu.gpu.name, gpu.model, problems)


@lru_cache(maxsize=2000)
def steady_lines(labels: tuple[str, ...], gpus: tuple[Steady, ...]) -> tuple[bytes, ...]:
    """A part for each of HEALTH and of PROMISES."""
    several = list(zip(labels, gpus))
    return tuple([encoded(one) for one in (*health_lines(several), *promise_lines(several))])


def health_lines(gpus: list[tuple[str, Steady]]) -> list[list[str]]:
    """A part for each of HEALTH."""
    *counted, problem = HEALTH
    several = [(labels, health_ends(one.health)) for labels, one in gpus]
    told = [(labels, each) for labels, one in gpus for each in one.problems]
    return [
        *[
            [f"{family.name}{labels}{end}" for labels, ends in several for end in ends[place]]
            for place, family in enumerate(counted)
        ],
        [f'{problem.name}{labels},kind="{each.kind}",weight="{each.weight}"}} 1\n' for labels, each in told],
    ]


@lru_cache(maxsize=4096)
def health_ends(one: Health) -> tuple[list[str], ...]:
    """How the lines of each of HEALTH but the last end; most GPUs of a fleet tell the same."""
    return (
        ends({"": None if one.fan is None else one.fan / PERCENT}),
        ends({',kind="corrected"': one.ecc_corrected, ',kind="uncorrected"': one.ecc_uncorrected}),
        ends({"": one.repair_pending}),
        ends({"": one.repair_failed}),
        ends({"": one.recovery_needed}),
        ends({',reason="heat"': one.slowed_by_heat, ',reason="power"': one.slowed_by_power}),
    )


def ends(values: Mapping[str, float | None]) -> list[str]:
    """The last label and the value of each that is told; what is so is 1, what is not is 0."""
    return [f"{last}}} {value + 0}\n" for last, value in values.items() if value is not None]


def promise_lines(gpus: list[tuple[str, Steady]]) -> Iterator[list[str]]:
    """A part for each of PROMISES."""
    processes, booked, state, info = (family.name for family in PROMISES)
    yield [f"{processes}{labels}}} {one.processes}\n" for labels, one in gpus if one.processes is not None]
    yield [f"{booked}{labels}}} {one.booked:d}\n" for labels, one in gpus if one.booked is not None]
    yield [f'{state}{labels},state="{one.state}"}} 1\n' for labels, one in gpus if one.state != CUT]
    yield [f'{info}{labels},uuid="{label(one.uuid or "")}",{model(one.name, one.model)}}} 1\n' for labels, one in gpus]


@lru_cache(maxsize=1024)
def model(name: str | None, short: str) -> str:
    """The labels that all GPUs of a model share."""
    return f'name="{label(name or "")}",model="{label(short)}"'


def host_lines(board: BoardHost) -> Iterator[list[str]]:
    """A part for each of HOSTS; what moves is told of a fresh host alone."""
    state, info, load, cpus, total, available, size, used = (family.name for family in HOSTS)
    fresh, facts = board.state == "fresh", board.facts or HostFacts()
    labels = f'{{host="{label(board.name)}"'
    tags = f",{','.join(board.tags)}," if board.tags else ""
    yield [f'{state}{labels},state="{board.state}"}} 1\n']
    yield [f'{info}{labels},title="{label(board.title or "")}",tags="{label(tags)}"}} 1\n']
    yield [f"{load}{labels}}} {facts.load[0]}\n"] if fresh and facts.load else []
    yield [f"{cpus}{labels}}} {facts.cpus}\n"] if facts.cpus is not None else []
    yield [f"{total}{labels}}} {facts.memory_total * MIB}\n"] if facts.memory_total is not None else []
    free = facts.memory_available if fresh else None
    yield [f"{available}{labels}}} {free * MIB}\n"] if free is not None else []
    disks = distinct(facts.disks) if fresh else {}
    yield [f'{size}{labels},mount="{mount}"}} {disk.total * MIB}\n' for mount, disk in disks.items()]
    yield [f'{used}{labels},mount="{mount}"}} {disk.used * MIB}\n' for mount, disk in disks.items()]


def distinct(disks: Iterable[Disk]) -> dict[str, Disk]:
    """Each mount once: the last that is told of it."""
    return {label(disk.mount): disk for disk in disks}


def metrics(hosts: Iterable[tuple[tuple[bytes, ...], str, float | None]], fleet: Fleet, now: float) -> bytes:
    """The whole file, from the parts of each host, its name, and when it was seen; `now` is when it is built."""
    several = list(hosts)
    seen, age = (family.name for family in SEEN)
    times = [(f'{{host="{label(name)}"}}', when) for _, name, when in several if when is not None]
    ages = (
        "".join([f"{seen}{labels} {when:.3f}\n" for labels, when in times]),
        "".join([f"{age}{labels} {max(0, now - when):.3f}\n" for labels, when in times]),
    )
    parts: list[tuple[bytes, ...]] = list(zip(*(lines for lines, _, _ in several))) or [()] * len(FAMILIES)
    parts += [(one.encode("utf-8", "replace"),) for one in (*ages, *once(fleet, now))]
    pieces: list[bytes] = []
    for family, lines in zip(ALL, parts):
        if any(lines):  # a family that nobody tells is left out, as a value that is not available is
            pieces += (family.head, *lines)
    return b"".join(pieces)


def once(fleet: Fleet, now: float) -> Iterator[str]:
    """The lines of each of ONCE."""
    bookings, using, booked, problems, duration, interval, success, info = (family.name for family in ONCE)
    yield "".join(f'{bookings}{{phase="{phase}"}} {n}\n' for phase, n in zip(("now", "coming"), fleet.bookings))
    yield "".join(f'{using}{{user="{user}"}} {n}\n' for user, n in most(fleet.users).items())
    yield "".join(f'{booked}{{user="{user}"}} {n}\n' for user, n in most(fleet.booked).items())
    yield f"{problems} {fleet.problems}\n"
    yield "" if fleet.duration is None else f"{duration} {fleet.duration:.3f}\n"
    yield f"{interval} {fleet.every}\n"
    yield f"{success} {now:.3f}\n"
    yield f'{info}{{version="{label(fleet.version)}"}} 1\n'


def most(people: Mapping[str, int]) -> dict[str, int]:
    """Those with the most GPUs, as many as Prometheus should keep; names that are cut alike are one."""
    found: dict[str, int] = {}
    for user in sorted(people, key=lambda one: (-people[one], one))[:MOST_USERS]:
        found[label(user)] = found.get(label(user), 0) + people[user]
    return found
