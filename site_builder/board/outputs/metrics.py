"""metrics: the fleet for Prometheus, in base units; a value that is not available has no line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from site_builder.core.model import Disk, GpuProblem, GpuStatus, HostFacts, HostStatus
from site_builder.fleet.mig import list_whole_gpus
from site_builder.health.gpu_health import HealthReadings, parse_health_readings

BYTES_PER_MIB, HERTZ_PER_MHZ, PERCENT_PER_UNIT = 1024 * 1024, 1_000_000, 100
# A label that a host can choose is no longer than this, and there are no more people than this.
MAX_LABEL_CHARACTERS = 200
MAX_USERS = 1000
LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# Stands for the state of a GPU in MIG mode, which has none of its own.
NO_STATE = ""
LabelledGpus = list[tuple[str, GpuStatus]]


class MetricFamily(NamedTuple):
    """What is told under one name: its type, its labels, and what it is."""

    name: str
    metric_type: str
    labels: str
    help_text: str

    @property
    def header(self) -> bytes:
        """The lines before its samples."""
        return f"# HELP {self.name} {self.help_text}\n# TYPE {self.name} {self.metric_type}\n".encode()


class GpuReading(NamedTuple):
    """A number of nvidia-smi: its field in a Gpu, and what converts it to base units."""

    field: str
    multiplier: int = 1
    divisor: int = 1


def build_gpu_family(name: str, what: str, labels: str = "", kind: str = "gauge") -> MetricFamily:
    """A family with a line for each GPU."""
    return MetricFamily(f"gpuboard_gpu_{name}", kind, f"host, gpu{labels}", what)


def build_host_family(name: str, what: str, labels: str = "") -> MetricFamily:
    """A family with a line for each host."""
    return MetricFamily(f"gpuboard_host_{name}", "gauge", f"host{labels}", what)


READING_FAMILIES = {
    build_gpu_family("memory_used_bytes", "Memory of the GPU that is in use."): GpuReading(
        "memory_used", BYTES_PER_MIB
    ),
    build_gpu_family("memory_total_bytes", "Memory of the GPU."): GpuReading("memory_total", BYTES_PER_MIB),
    build_gpu_family("utilization_ratio", "Share of time in which the GPU computed, 0 to 1."): GpuReading(
        "utilization_gpu", divisor=PERCENT_PER_UNIT
    ),
    build_gpu_family("memory_utilization_ratio", "Share of time in which its memory was accessed, 0 to 1."): GpuReading(
        "utilization_memory", divisor=PERCENT_PER_UNIT
    ),
    build_gpu_family("temperature_celsius", "Temperature of the GPU."): GpuReading("temperature"),
    build_gpu_family("power_watts", "Power that the GPU draws."): GpuReading("power_draw"),
    build_gpu_family("power_limit_watts", "Power that the GPU may draw."): GpuReading("power_limit"),
    build_gpu_family("clock_hertz", "Clock of its streaming multiprocessors."): GpuReading("clock", HERTZ_PER_MHZ),
}
HEALTH_FAMILIES = (
    build_gpu_family("fan_ratio", "Speed of its fan, 0 to 1."),
    build_gpu_family(
        "ecc_errors_total", "Errors in its memory since the driver was loaded, by kind.", ", kind", kind="counter"
    ),
    build_gpu_family("repair_pending", "1 if rows or pages of its memory are replaced at the next reset, else 0."),
    build_gpu_family("repair_failed", "1 if a row of its memory could not be replaced, else 0."),
    build_gpu_family("recovery_needed", "1 if its driver asks for a reset or a reboot, else 0."),
    build_gpu_family("throttled", "1 if the GPU runs slower for that reason, heat or power, else 0.", ", reason"),
    build_gpu_family(
        "problem", "1, with the kind of each problem that the GPU has, and its severity.", ", kind, severity"
    ),
)
GPU_STATE_FAMILIES = (
    build_gpu_family("processes", "Processes on the GPU."),
    build_gpu_family("booked", "1 if the GPU is promised to somebody now, else 0."),
    build_gpu_family("state", "1, with the state that the GPU is in.", ", state"),
    build_gpu_family("info", "1, with what names the GPU.", ", uuid, name, model"),
)
HOST_FAMILIES = (
    build_host_family("state", "1, with the state that the host is in.", ", state"),
    build_host_family("info", "1, with the title of the host and its tags, each between commas.", ", title, tags"),
    build_host_family("load1", "Processes that run or want to, as a mean over one minute."),
    build_host_family("cpus", "CPUs of the host."),
    build_host_family("memory_total_bytes", "Memory of the host."),
    build_host_family("memory_available_bytes", "Memory of the host that a new process could have."),
    build_host_family("disk_total_bytes", "Size of a local disk of the host.", ", mount"),
    build_host_family("disk_used_bytes", "How much of that disk is taken.", ", mount"),
)
# What `host` gives a part of, in its order.
PER_HOST_FAMILIES = (*READING_FAMILIES, *HEALTH_FAMILIES, *GPU_STATE_FAMILIES, *HOST_FAMILIES)
AGE_FAMILIES = (
    build_host_family("seen_timestamp_seconds", "When the last snapshot of the host arrived."),
    build_host_family("age_seconds", "How old that snapshot was when the board was built."),
)
FLEET_FAMILIES = (
    MetricFamily("gpuboard_bookings", "gauge", "phase", "Bookings that run now, and those that are to come."),
    MetricFamily("gpuboard_user_gpus", "gauge", "user", "GPUs on which the person has a process."),
    MetricFamily("gpuboard_user_booked_gpus", "gauge", "user", "GPUs that are promised to the person now."),
    MetricFamily("gpuboard_problems", "gauge", "", "Problems that the board tells the admin."),
    MetricFamily("gpuboard_build_duration_seconds", "gauge", "", "How long the build before this one took."),
    MetricFamily("gpuboard_build_interval_seconds", "gauge", "", "How often the board is built."),
    MetricFamily("gpuboard_build_last_success_timestamp_seconds", "gauge", "", "When the board was last built."),
    MetricFamily("gpuboard_build_info", "gauge", "version", "1, with the version of gpuboard."),
)
ALL_FAMILIES = (*PER_HOST_FAMILIES, *AGE_FAMILIES, *FLEET_FAMILIES)


class FleetMetrics(NamedTuple):
    """What is told once: GPUs that each person uses and has booked, bookings of now and to come, the builder's own.

    `every` is how many seconds lie between builds, `duration` how many the last one took.
    """

    gpus_used: Mapping[str, int]
    gpus_booked: Mapping[str, int]
    booking_counts: tuple[int, int]
    problem_count: int
    version: str
    build_interval_s: float
    build_duration_s: float | None = None


class StableGpuFacts(NamedTuple):
    """What a GPU tells for many builds in the same words."""

    health_readings: HealthReadings
    process_count: int | None
    is_booked: bool | None
    state: str
    uuid: str | None
    name: str | None
    model: str
    problems: tuple[GpuProblem, ...] = ()


def render_host_metrics(board: HostStatus) -> tuple[bytes, ...]:
    """The lines of this host, a part for each of FAMILIES."""
    gpus = label_gpus(board)
    labels = tuple([one for one, _ in gpus])
    told = [one.gpu for _, one in gpus]
    readings = [
        render_reading_lines(family.name, reading, labels, [getattr(gpu, reading.field) for gpu in told])
        for family, reading in READING_FAMILIES.items()
    ]
    steady = render_stable_lines(labels, tuple([build_stable_facts(one) for _, one in gpus]))
    return (*readings, *steady, *[encode_lines(one) for one in format_host_metrics(board)])


def render_failed_host_metrics(name: str) -> tuple[bytes, ...]:
    """The lines of a host of which only its name is known."""
    state = f'{HOST_FAMILIES[0].name}{{host="{escape_label(name)}",state="failed"}} 1\n'.encode()
    return tuple(state if family is HOST_FAMILIES[0] else b"" for family in PER_HOST_FAMILIES)


def encode_lines(lines: Iterable[str]) -> bytes:
    """A part of the file."""
    return "".join(lines).encode("utf-8", "replace")


def render_reading_lines(name: str, reading: GpuReading, labels: tuple[str, ...], values: list[float | None]) -> bytes:
    """Render a line for each GPU that has the value."""
    times, over = reading.multiplier, reading.divisor
    lines = [
        f"{name}{one}}} {format_in_base_units(value, times, over)}\n"
        for one, value in zip(labels, values)
        if value is not None
    ]
    return encode_lines(lines)


@lru_cache(maxsize=10_000)
def format_in_base_units(value: float, times: int, over: int) -> str:
    """A number in base units, which takes Python longer to write than all that stands before it."""
    return str(value * times / over)


def label_gpus(board: HostStatus) -> LabelledGpus:
    """Each GPU with the labels that no other has, but for the closing brace; one that has none is left out."""
    found: LabelledGpus = []
    taken: set[str] = set()
    before = f'{{host="{escape_label(board.name)}",gpu="'
    for one in (*board.gpus, *list_mig_gpus(board)):
        name = one.gpu.label
        # two series with the same labels would cost Prometheus the whole scrape
        if one.gpu.number is None or name in taken:
            names = (one.gpu.uuid, one.gpu.raw_fields.get("pci.bus_id"))
            name = next((free for free in map(escape_label, filter(None, names)) if free not in taken), "")
        if name:
            taken.add(name)
            found.append((f'{before}{name}"', one))
    return found


def list_mig_gpus(board: HostStatus) -> list[GpuStatus]:
    """GPUs in MIG mode, with what is theirs alone: memory and states are those of their instances, and told there."""
    if not any(one.gpu.parent for one in board.gpus):
        return []
    several = [one for one, parts in list_whole_gpus(board) if parts]
    return [one._replace(gpu=one.gpu._replace(memory_used=None, memory_total=None), state=NO_STATE) for one in several]


def escape_label(value: str) -> str:
    """The value of a label, as it is written between quotes."""
    return value[:MAX_LABEL_CHARACTERS].translate(LABEL_ESCAPES)


def build_stable_facts(gpu: GpuStatus) -> StableGpuFacts:
    """Of a GPU; where no process is told, there is none only if it is certain that nobody is on it."""
    if gpu.state == NO_STATE:
        return StableGpuFacts(
            parse_health_readings(gpu.gpu), None, None, NO_STATE, gpu.gpu.uuid, gpu.gpu.name, gpu.model, gpu.problems
        )
    problems = gpu.problems if gpu.gpu.parent is None else ()  # which its GPU tells
    count = len(gpu.processes) if gpu.processes or gpu.state in {"free", "booked"} else None
    booked = any(one.phase == "now" for one in gpu.bookings) if gpu.bookings else False
    return StableGpuFacts(
        parse_health_readings(gpu.gpu), count, booked, gpu.state, gpu.gpu.uuid, gpu.gpu.name, gpu.model, problems
    )


@lru_cache(maxsize=2000)
def render_stable_lines(labels: tuple[str, ...], gpus: tuple[StableGpuFacts, ...]) -> tuple[bytes, ...]:
    """A part for each of HEALTH and of PROMISES."""
    several = list(zip(labels, gpus))
    return tuple([encode_lines(one) for one in (*format_health_metrics(several), *format_gpu_state_metrics(several))])


def format_health_metrics(gpus: list[tuple[str, StableGpuFacts]]) -> list[list[str]]:
    """A part for each of HEALTH."""
    *counted, problem = HEALTH_FAMILIES
    several = [(labels, format_health_endings(one.health_readings)) for labels, one in gpus]
    told = [(labels, each) for labels, one in gpus for each in one.problems]
    return [
        *[
            [f"{family.name}{labels}{end}" for labels, ends in several for end in ends[place]]
            for place, family in enumerate(counted)
        ],
        [f'{problem.name}{labels},kind="{each.kind}",severity="{each.severity}"}} 1\n' for labels, each in told],
    ]


@lru_cache(maxsize=4096)
def format_health_endings(one: HealthReadings) -> tuple[list[str], ...]:
    """How the lines of each of HEALTH but the last end; most GPUs of a fleet tell the same."""
    return (
        format_line_endings({"": None if one.fan_percent is None else one.fan_percent / PERCENT_PER_UNIT}),
        format_line_endings({',kind="corrected"': one.ecc_corrected, ',kind="uncorrected"': one.ecc_uncorrected}),
        format_line_endings({"": one.is_repair_pending}),
        format_line_endings({"": one.has_repair_failed}),
        format_line_endings({"": one.is_recovery_needed}),
        format_line_endings({',reason="heat"': one.is_slowed_by_heat, ',reason="power"': one.is_slowed_by_power}),
    )


def format_line_endings(values: Mapping[str, float | None]) -> list[str]:
    """The last label and the value of each that is told; what is so is 1, what is not is 0."""
    return [f"{last}}} {value + 0}\n" for last, value in values.items() if value is not None]


def format_gpu_state_metrics(gpus: list[tuple[str, StableGpuFacts]]) -> Iterator[list[str]]:
    """A part for each of PROMISES."""
    processes, booked, state, info = (family.name for family in GPU_STATE_FAMILIES)
    yield [f"{processes}{labels}}} {one.process_count}\n" for labels, one in gpus if one.process_count is not None]
    yield [f"{booked}{labels}}} {one.is_booked:d}\n" for labels, one in gpus if one.is_booked is not None]
    yield [f'{state}{labels},state="{one.state}"}} 1\n' for labels, one in gpus if one.state != NO_STATE]
    yield [
        f'{info}{labels},uuid="{escape_label(one.uuid or "")}",{format_model_labels(one.name, one.model)}}} 1\n'
        for labels, one in gpus
    ]


@lru_cache(maxsize=1024)
def format_model_labels(name: str | None, short: str) -> str:
    """The labels that all GPUs of a model share."""
    return f'name="{escape_label(name or "")}",model="{escape_label(short)}"'


def format_host_metrics(board: HostStatus) -> Iterator[list[str]]:
    """A part for each of HOSTS; what moves is told of a fresh host alone."""
    state, info, load, cpus, total, available, size, used = (family.name for family in HOST_FAMILIES)
    fresh, facts = board.state == "fresh", board.facts or HostFacts()
    labels = f'{{host="{escape_label(board.name)}"'
    tags = f",{','.join(board.tags)}," if board.tags else ""
    yield [f'{state}{labels},state="{board.state}"}} 1\n']
    yield [f'{info}{labels},title="{escape_label(board.title or "")}",tags="{escape_label(tags)}"}} 1\n']
    yield [f"{load}{labels}}} {facts.load[0]}\n"] if fresh and facts.load else []
    yield [f"{cpus}{labels}}} {facts.cpus}\n"] if facts.cpus is not None else []
    yield [f"{total}{labels}}} {facts.memory_total * BYTES_PER_MIB}\n"] if facts.memory_total is not None else []
    free = facts.memory_available if fresh else None
    yield [f"{available}{labels}}} {free * BYTES_PER_MIB}\n"] if free is not None else []
    disks = map_disks_by_mount(facts.disks) if fresh else {}
    yield [f'{size}{labels},mount="{mount}"}} {disk.total * BYTES_PER_MIB}\n' for mount, disk in disks.items()]
    yield [f'{used}{labels},mount="{mount}"}} {disk.used * BYTES_PER_MIB}\n' for mount, disk in disks.items()]


def map_disks_by_mount(disks: Iterable[Disk]) -> dict[str, Disk]:
    """Each mount once: the last that is told of it."""
    return {escape_label(disk.mount): disk for disk in disks}


def render_metrics(
    hosts: Iterable[tuple[tuple[bytes, ...], str, float | None]], fleet: FleetMetrics, now: float
) -> bytes:
    """The whole file, from the parts of each host, its name, and when it was seen; `now` is when it is built."""
    several = list(hosts)
    seen, age = (family.name for family in AGE_FAMILIES)
    times = [(f'{{host="{escape_label(name)}"}}', when) for _, name, when in several if when is not None]
    ages = (
        "".join([f"{seen}{labels} {when:.3f}\n" for labels, when in times]),
        "".join([f"{age}{labels} {max(0, now - when):.3f}\n" for labels, when in times]),
    )
    parts: list[tuple[bytes, ...]] = list(zip(*(lines for lines, _, _ in several))) or [()] * len(PER_HOST_FAMILIES)
    parts += [(one.encode("utf-8", "replace"),) for one in (*ages, *format_fleet_metrics(fleet, now))]
    pieces: list[bytes] = []
    for family, lines in zip(ALL_FAMILIES, parts):
        if any(lines):  # a family that nobody tells is left out, as a value that is not available is
            pieces += (family.header, *lines)
    return b"".join(pieces)


def format_fleet_metrics(fleet: FleetMetrics, now: float) -> Iterator[str]:
    """The lines of each of ONCE."""
    bookings, using, booked, problems, duration, interval, success, info = (family.name for family in FLEET_FAMILIES)
    yield "".join(f'{bookings}{{phase="{phase}"}} {n}\n' for phase, n in zip(("now", "coming"), fleet.booking_counts))
    yield "".join(f'{using}{{user="{user}"}} {n}\n' for user, n in limit_users(fleet.gpus_used).items())
    yield "".join(f'{booked}{{user="{user}"}} {n}\n' for user, n in limit_users(fleet.gpus_booked).items())
    yield f"{problems} {fleet.problem_count}\n"
    yield "" if fleet.build_duration_s is None else f"{duration} {fleet.build_duration_s:.3f}\n"
    yield f"{interval} {fleet.build_interval_s}\n"
    yield f"{success} {now:.3f}\n"
    yield f'{info}{{version="{escape_label(fleet.version)}"}} 1\n'


def limit_users(people: Mapping[str, int]) -> dict[str, int]:
    """Those with the most GPUs, as many as Prometheus should keep; names that are cut alike are one."""
    found: dict[str, int] = {}
    for user in sorted(people, key=lambda one: (-people[one], one))[:MAX_USERS]:
        found[escape_label(user)] = found.get(escape_label(user), 0) + people[user]
    return found
