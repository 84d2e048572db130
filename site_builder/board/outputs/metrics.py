"""metrics: the fleet for Prometheus, in base units; a value that is not available has no line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from site_builder import __version__
from site_builder.core.clock import Now
from site_builder.core.model import GpuHealth, GpuProblem, GpuStatus, HostFacts, HostStatus
from site_builder.fleet.gpu_state import EMPTY_STATES
from site_builder.fleet.mig import list_whole_gpus
from site_builder.health.gpu_health import decide_gpu_health_slowdown

if TYPE_CHECKING:
    from site_builder.board.host_pipeline import BuiltHosts

BYTES_PER_MIB, HERTZ_PER_MHZ = 1024 * 1024, 1_000_000
# Limits on what hosts can put into Prometheus.
MAX_LABEL_CHARACTERS = 200
MAX_USERS = 1000
LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# The state of a GPU in MIG mode, which has none of its own.
NO_STATE = ""
LabelledGpus = list[tuple[str, GpuStatus]]


class MetricFamily(NamedTuple):
    name: str
    metric_type: str
    labels: str
    help_text: str

    @property
    def header(self) -> bytes:
        return f"# HELP {self.name} {self.help_text}\n# TYPE {self.name} {self.metric_type}\n".encode()


def build_metric_families(prefix: str, labels: str, rows: Iterable[Sequence[str]]) -> tuple[MetricFamily, ...]:
    """Build families of rows of a name, a help text, and labels beside those that all have."""
    return tuple(
        MetricFamily(
            name=f"{prefix}{name}",
            metric_type="counter" if name.endswith("_total") else "gauge",
            labels=", ".join(filter(None, (labels, *own_labels))),
            help_text=help_text,
        )
        for name, help_text, *own_labels in rows
    )


build_gpu_families = partial(build_metric_families, "gpuboard_gpu_", "host, gpu")
build_host_families = partial(build_metric_families, "gpuboard_host_", "host")
# The last three are a field of Gpu, and the factors that convert it to base units.
READING_ROWS = (
    ("memory_used_bytes", "Used memory of the GPU.", "memory_used", BYTES_PER_MIB, 1),
    ("memory_total_bytes", "Memory of the GPU.", "memory_total", BYTES_PER_MIB, 1),
    ("utilization_ratio", "Utilisation of the GPU, 0 to 1.", "utilization_gpu", 1, 100),
    (
        "memory_utilization_ratio",
        "Memory activity of the GPU, 0 to 1.",
        "utilization_memory",
        1,
        100,
    ),
    ("temperature_celsius", "Temperature of the GPU.", "temperature", 1, 1),
    ("power_watts", "Power draw of the GPU.", "power_draw", 1, 1),
    ("power_limit_watts", "Power limit of the GPU.", "power_limit", 1, 1),
    ("clock_hertz", "Clock of its streaming multiprocessors.", "clock", HERTZ_PER_MHZ, 1),
)
READING_FAMILIES = dict(zip(build_gpu_families(row[:2] for row in READING_ROWS), (row[2:] for row in READING_ROWS)))
HEALTH_FAMILIES = build_gpu_families(
    (
        ("fan_ratio", "Fan speed of the GPU, 0 to 1."),
        ("ecc_errors_total", "ECC memory errors since the driver was loaded, by kind.", "kind"),
        ("repair_pending", "1 if a memory repair is waiting for a reset, else 0."),
        ("repair_failed", "1 if a memory repair failed, else 0."),
        ("recovery_needed", "1 if the driver asks for a reset or a reboot, else 0."),
        ("throttled", "1 if the GPU is slowed for this reason, heat or power, else 0.", "reason"),
        ("problem", "Always 1: a problem of the GPU, with its kind and severity.", "kind, severity"),
    )
)
GPU_STATE_FAMILIES = build_gpu_families(
    (
        ("processes", "Processes on the GPU."),
        ("booked", "1 if the GPU is booked now, else 0."),
        ("state", "Always 1: the state of the GPU.", "state"),
        ("info", "Always 1: UUID, name and model of the GPU.", "uuid, name, model"),
        ("memory_shared", "Always 1: the GPU shares the memory of its host."),
    )
)
HOST_FAMILIES = build_host_families(
    (
        ("state", "Always 1: the state of the host.", "state"),
        ("info", "Always 1: the title of the host, and its tags, each between commas.", "title, tags"),
        ("load1", "Load average of the host over one minute."),
        ("cpus", "CPUs of the host."),
        ("memory_total_bytes", "Memory of the host."),
        ("memory_available_bytes", "Memory of the host that is available to new processes."),
        ("disk_total_bytes", "Size of a local disk of the host.", "mount"),
        ("disk_used_bytes", "Used space on that disk.", "mount"),
    )
)
# The families of render_host_metrics, in its order.
PER_HOST_FAMILIES = (*READING_FAMILIES, *HEALTH_FAMILIES, *GPU_STATE_FAMILIES, *HOST_FAMILIES)
AGE_FAMILIES = build_host_families(
    (
        ("seen_timestamp_seconds", "Time at which the last snapshot of the host arrived."),
        ("age_seconds", "Age of that snapshot when the board was built."),
    )
)
FLEET_FAMILIES = build_metric_families(
    "gpuboard_",
    "",
    (
        ("bookings", "Current and coming bookings.", "phase"),
        ("user_gpus", "GPUs that the person uses now.", "user"),
        ("user_booked_gpus", "GPUs that the person has booked now.", "user"),
        ("problems", "Problems shown to the admin."),
        ("build_duration_seconds", "Duration of the previous build."),
        ("build_interval_seconds", "Interval between builds."),
        ("build_last_success_timestamp_seconds", "Time of the last build."),
        ("build_info", "Always 1: the version of gpuboard.", "version"),
    ),
)
ALL_FAMILIES = (*PER_HOST_FAMILIES, *AGE_FAMILIES, *FLEET_FAMILIES)


class StableGpuMetrics(NamedTuple):
    """Facts of a GPU that stay the same for many builds, so that their lines are cached."""

    health_endings: tuple[tuple[str, ...], ...]
    process_count: int | None
    is_booked: bool | None
    state: str
    uuid: str | None
    name: str | None
    model: str
    problems: tuple[GpuProblem, ...] = ()
    is_memory_shared: bool = False


def render_host_metrics(host_status: HostStatus) -> tuple[bytes, ...]:
    """Render the lines of a host, a part for each of PER_HOST_FAMILIES."""
    labelled_gpus = label_gpus_for_metrics(host_status)
    labels = tuple([gpu_labels for gpu_labels, _ in labelled_gpus])
    gpus = [gpu_status.gpu for _, gpu_status in labelled_gpus]
    readings = [
        encode_metric_lines(
            [
                f"{family.name}{gpu_labels}}} {format_in_base_units(value, multiplier, divisor)}\n"
                for gpu_labels, gpu in zip(labels, gpus)
                if (value := getattr(gpu, field)) is not None
            ]
        )
        for family, (field, multiplier, divisor) in READING_FAMILIES.items()
    ]
    stable_lines = render_stable_metric_lines(
        labels, tuple([build_stable_gpu_metrics(status) for _, status in labelled_gpus])
    )
    return (*readings, *stable_lines, *[encode_metric_lines(lines) for lines in format_host_metrics(host_status)])


def render_failed_host_metrics(name: str) -> tuple[bytes, ...]:
    """Render the lines of a host if only its name is known."""
    state = f'{HOST_FAMILIES[0].name}{{host="{escape_metric_label(name)}",state="failed"}} 1\n'.encode()
    return tuple(state if family is HOST_FAMILIES[0] else b"" for family in PER_HOST_FAMILIES)


def encode_metric_lines(lines: Iterable[str]) -> bytes:
    return "".join(lines).encode("utf-8", "replace")


def escape_metric_label(value: str) -> str:
    """Shorten and escape the value of a label, as it is written between quotes."""
    return value[:MAX_LABEL_CHARACTERS].translate(LABEL_ESCAPES)


@lru_cache(maxsize=10_000)
def format_in_base_units(value: float, multiplier: int, divisor: int) -> str:
    """Format a number in base units; cached, since that takes longer than the rest of its line."""
    return str(value * multiplier / divisor)


def label_gpus_for_metrics(host_status: HostStatus) -> LabelledGpus:
    """Return each GPU with unique labels, without the closing brace; a GPU without a name of its own is left out."""
    labelled: LabelledGpus = []
    taken: set[str] = set()
    start = f'{{host="{escape_metric_label(host_status.name)}",gpu="'
    for gpu_status in (*host_status.gpus, *list_mig_gpus_for_metrics(host_status)):
        gpu = gpu_status.gpu
        name = gpu.label
        # two series with the same labels would cost Prometheus the whole scrape
        if gpu.number is None or name in taken:
            names = map(escape_metric_label, filter(None, (gpu.uuid, gpu.bus_id)))
            name = next((unique for unique in names if unique not in taken), "")
        if name:
            taken.add(name)
            labelled.append((f'{start}{name}"', gpu_status))
    return labelled


def list_mig_gpus_for_metrics(host_status: HostStatus) -> list[GpuStatus]:
    """Return GPUs in MIG mode without memory and state, which their instances have."""
    if not any(gpu_status.gpu.parent for gpu_status in host_status.gpus):
        return []
    return [
        gpu_status._replace(gpu=gpu_status.gpu._replace(memory_used=None, memory_total=None), state=NO_STATE)
        for gpu_status, instances in list_whole_gpus(host_status)
        if instances
    ]


def build_stable_gpu_metrics(gpu_status: GpuStatus) -> StableGpuMetrics:
    """Collect the facts of a GPU; without known processes, their number is 0 only if nobody can be on it."""
    gpu, state = gpu_status.gpu, gpu_status.state
    process_count: int | None = None
    is_booked: bool | None = None
    if state != NO_STATE:
        is_booked = any(booking.phase == "now" for booking in gpu_status.bookings) if gpu_status.bookings else False
        if gpu_status.processes or state in EMPTY_STATES:
            process_count = len(gpu_status.processes)
    return StableGpuMetrics(
        format_health_metric_endings(gpu.health, gpu.fan_speed),
        process_count,
        is_booked,
        state,
        gpu.uuid,
        gpu.name,
        gpu_status.model,
        gpu_status.problems if gpu.parent is None else (),  # an instance's GPU has its problems
        gpu.is_memory_shared,
    )


@lru_cache(maxsize=2000)
def render_stable_metric_lines(labels: tuple[str, ...], gpus: tuple[StableGpuMetrics, ...]) -> tuple[bytes, ...]:
    """Render a part for each of HEALTH_FAMILIES and GPU_STATE_FAMILIES."""
    labelled = list(zip(labels, gpus))
    families = (*format_gpu_health_metrics(labelled), *format_gpu_state_metrics(labelled))
    return tuple([encode_metric_lines(lines) for lines in families])


def format_gpu_health_metrics(gpus: list[tuple[str, StableGpuMetrics]]) -> list[list[str]]:
    """Format the lines of each of HEALTH_FAMILIES."""
    *reading_families, problem_family = HEALTH_FAMILIES
    problems = [(labels, problem) for labels, facts in gpus for problem in facts.problems]
    return [
        *[
            [f"{family.name}{labels}{ending}" for labels, facts in gpus for ending in facts.health_endings[position]]
            for position, family in enumerate(reading_families)
        ],
        [
            f'{problem_family.name}{labels},kind="{problem.kind}",severity="{problem.severity}"}} 1\n'
            for labels, problem in problems
        ],
    ]


@lru_cache(maxsize=4096)
def format_health_metric_endings(health: GpuHealth, fan_speed: float | None) -> tuple[tuple[str, ...], ...]:
    """Format how the lines of HEALTH_FAMILIES end, without problems; most GPUs of a fleet report the same."""
    is_slowed_by_heat, is_slowed_by_power = decide_gpu_health_slowdown(health.clock_reasons)
    counts = health.error_counts
    readings: tuple[dict[str, float | None], ...] = (
        {"": None if fan_speed is None else fan_speed / 100},
        {
            ',kind="corrected"': None if counts.corrected is None else float(counts.corrected),
            ',kind="uncorrected"': None if counts.uncorrected is None else float(counts.uncorrected),
        },
        {"": health.is_repair_pending},
        {"": health.has_repair_failed},
        {"": None if health.recovery_action is None else bool(health.recovery_action)},
        {',reason="heat"': is_slowed_by_heat, ',reason="power"': is_slowed_by_power},
    )
    # True is 1
    return tuple(
        tuple([f"{label}}} {value + 0}\n" for label, value in values.items() if value is not None])
        for values in readings
    )


def format_gpu_state_metrics(gpus: list[tuple[str, StableGpuMetrics]]) -> Iterator[list[str]]:
    """Yield the lines of each of GPU_STATE_FAMILIES."""
    processes, booked, state, info, shared = (family.name for family in GPU_STATE_FAMILIES)
    yield [f"{processes}{labels}}} {gpu.process_count}\n" for labels, gpu in gpus if gpu.process_count is not None]
    yield [f"{booked}{labels}}} {gpu.is_booked:d}\n" for labels, gpu in gpus if gpu.is_booked is not None]
    yield [f'{state}{labels},state="{gpu.state}"}} 1\n' for labels, gpu in gpus if gpu.state != NO_STATE]
    infos = [(f'{info}{labels},uuid="{escape_metric_label(gpu.uuid or "")}"', gpu) for labels, gpu in gpus]
    yield [f"{start},{format_metric_model_labels(gpu.name, gpu.model)}}} 1\n" for start, gpu in infos]
    yield [f"{shared}{labels}}} 1\n" for labels, gpu in gpus if gpu.is_memory_shared]


@lru_cache(maxsize=1024)
def format_metric_model_labels(name: str | None, model: str) -> str:
    return f'name="{escape_metric_label(name or "")}",model="{escape_metric_label(model)}"'


def format_host_metrics(host_status: HostStatus) -> Iterator[list[str]]:
    """Yield the lines of each of HOST_FAMILIES; only a fresh host has values that change."""
    state, info, load, cpus, total, available, size, used = (family.name for family in HOST_FAMILIES)
    is_fresh, facts = host_status.state == "fresh", host_status.facts or HostFacts()
    labels = f'{{host="{escape_metric_label(host_status.name)}"'
    tags = f",{','.join(host_status.tags)}," if host_status.tags else ""
    yield [f'{state}{labels},state="{host_status.state}"}} 1\n']
    title = escape_metric_label(host_status.title or "")
    yield [f'{info}{labels},title="{title}",tags="{escape_metric_label(tags)}"}} 1\n']
    yield [f"{load}{labels}}} {facts.load[0]}\n"] if is_fresh and facts.load else []
    yield [f"{cpus}{labels}}} {facts.cpus}\n"] if facts.cpus is not None else []
    yield [f"{total}{labels}}} {facts.memory_total * BYTES_PER_MIB}\n"] if facts.memory_total is not None else []
    memory_available = facts.memory_available if is_fresh else None
    yield [f"{available}{labels}}} {memory_available * BYTES_PER_MIB}\n"] if memory_available is not None else []
    disks = {escape_metric_label(disk.mount): disk for disk in facts.disks} if is_fresh else {}  # each mount once
    yield [f'{size}{labels},mount="{mount}"}} {disk.total * BYTES_PER_MIB}\n' for mount, disk in disks.items()]
    yield [f'{used}{labels},mount="{mount}"}} {disk.used * BYTES_PER_MIB}\n' for mount, disk in disks.items()]


def render_metrics(
    built_hosts: BuiltHosts,
    problem_count: int,
    now: Now,
    build_interval_s: int,
    build_duration_s: float | None,
    version: str = __version__,
) -> bytes:
    """Render the file for Prometheus; `build_duration_s` is that of the build before this one."""
    hosts = built_hosts.values()
    parts: list[tuple[bytes, ...]] = list(zip(*(host.metric_lines for host in hosts))) or [()] * len(PER_HOST_FAMILIES)
    seen, age = (family.name for family in AGE_FAMILIES)
    times = [
        (f'{{host="{escape_metric_label(name)}"}}', host.last_seen)
        for name, host in built_hosts.items()
        if host.last_seen is not None
    ]
    bookings, using, booked, problems, duration, interval, success, info = (family.name for family in FLEET_FAMILIES)
    summaries = [host.summary for host in hosts]
    current_bookings, coming_bookings = (sum(host.booking_counts[phase] for host in summaries) for phase in (0, 1))
    used_counts = ({user: use.gpu_count for user, use in host.use_by_person.items()} for host in summaries)
    fleet_texts = (
        "".join([f"{seen}{labels} {last_seen:.3f}\n" for labels, last_seen in times]),
        "".join([f"{age}{labels} {max(0, now.epoch - last_seen):.3f}\n" for labels, last_seen in times]),
        f'{bookings}{{phase="now"}} {current_bookings}\n{bookings}{{phase="coming"}} {coming_bookings}\n',
        format_user_metrics(using, used_counts),
        format_user_metrics(booked, (host.gpus_booked for host in summaries)),
        f"{problems} {problem_count}\n",
        "" if build_duration_s is None else f"{duration} {build_duration_s:.3f}\n",
        f"{interval} {build_interval_s}\n",
        f"{success} {now.epoch:.3f}\n",
        f'{info}{{version="{escape_metric_label(version)}"}} 1\n',
    )
    parts += [(encode_metric_lines(text),) for text in fleet_texts]
    pieces: list[bytes] = []
    for family, lines in zip(ALL_FAMILIES, parts):
        if any(lines):  # a family without values is left out
            pieces += (family.header, *lines)
    return b"".join(pieces)


def format_user_metrics(family: str, gpu_counts_of_hosts: Iterable[Mapping[str, int]]) -> str:
    """Format a line for each of the people with the most GPUs; names that are equal after shortening are added up."""
    gpu_counts: Counter[str] = Counter()
    for host_counts in gpu_counts_of_hosts:
        gpu_counts.update(host_counts)
    limited: Counter[str] = Counter()
    for user in sorted(gpu_counts, key=lambda user: (-gpu_counts[user], user))[:MAX_USERS]:
        limited[escape_metric_label(user)] += gpu_counts[user]
    return "".join(f'{family}{{user="{user}"}} {count}\n' for user, count in limited.items())
