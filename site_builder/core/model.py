"""Types that the packages of gpuboard pass to each other. A value that is not available is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, Union

Row = TypeVar("Row")
# What people call a GPU on its host: its index, or a text such as 0:1 or amd0.
GpuNumber = Union[int, str, None]
# The id of a booking that `gpuboard run` made begins with this: the booking is for that run alone.
RUN_ID_PREFIX = "run-"
# Exit codes that a snapshot records for a tool that did not run to its end.
EXIT_TIMED_OUT, EXIT_MISSING, EXIT_NOT_STARTED, EXIT_STILL_HANGS = 124, 127, 126, 200
# A file that says when it was built is rewritten after this time, as a sign that the builder runs.
REWRITE_INTERVAL_S = 60


class FleetUnavailableError(Exception):
    """Why there is no fleet, or why its board does not answer as it should, in one sentence."""


class SnapshotHeader(NamedTuple):
    """The first line of a snapshot file; the fields are the keys in that line."""

    task: str
    host: str
    time: int
    every: int
    took_ms: int
    rc: int


class ToolResult(NamedTuple):
    """How a tool ended on a host: its exit code and its messages beside the rows."""

    tool: str
    vendor: str
    rc: int
    messages: tuple[str, ...] = ()
    is_complete: bool = True  # whether it printed all of its rows


@dataclass(frozen=True)
class ParsedFile(Generic[Row]):
    """Content of one file: rows, messages beside them, and what is wrong with it."""

    rows: tuple[Row, ...] = ()
    header: SnapshotHeader | None = None
    is_complete: bool = True
    messages: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()  # of the tools that printed the rows
    # the tool's message for each GPU, by `process_key`, whose processes were not reported
    unreported: Mapping[str, str] = field(default_factory=dict)
    has_missing_gpu: bool = False  # a GPU was reported in a form that could not be read


class MemoryErrorCounts(NamedTuple):
    """Memory errors since the driver was loaded and over the GPU's life, and rows and pages replaced after them."""

    corrected: int | None = None
    uncorrected: int | None = None
    corrected_ever: int | None = None
    uncorrected_ever: int | None = None
    rows_corrected: int | None = None
    rows_uncorrected: int | None = None
    pages_corrected: int | None = None
    pages_uncorrected: int | None = None


class GpuHealth(NamedTuple):
    """What a GPU reports of its health beside its readings; most GPUs of a fleet report the same."""

    error_counts: MemoryErrorCounts = MemoryErrorCounts()
    is_repair_pending: bool | None = None
    has_repair_failed: bool | None = None
    recovery_action: str | None = None  # empty where nothing is to be done
    is_drain_recommended: bool | None = None
    clock_reasons: int | None = None  # the bits of nvidia-smi's clocks_event_reasons.active
    lanes: int | None = None
    max_lanes: int | None = None
    pstate: int | None = None
    is_persistent: bool | None = None
    is_prohibited: bool = False
    is_in_mig_mode: bool = False
    driver: str | None = None
    fan_error: str | None = None  # this and the next are the words in the place of a reading
    power_error: str | None = None
    fabric_registration: str | None = None  # how far it has come in joining its NVLink fabric, if not to the end
    fabric_faults: str | None = None  # what is wrong with that fabric
    fabric_unknown: str | None = None  # what is reported of it in words that gpuboard does not know


NO_HEALTH = GpuHealth()


class SharedMemory(NamedTuple):
    """Memory of its host that a GPU can use beside its own, in MiB, as its tool reports it; all, where `is_all`."""

    is_all: bool = False
    total: float | None = None
    used: float | None = None


# Rows of a snapshot are tuples: a thousand hosts have 40,000 of them, and a frozen dataclass takes four times as long
# to create.
class Gpu(NamedTuple):
    """A GPU of any maker, under nvidia-smi's names and units; a MIG instance is a GPU of its own."""

    index: int | None  # type: ignore[assignment] # nvidia-smi's name hides a method of tuples
    uuid: str | None
    name: str | None
    memory_used: float | None = None
    memory_total: float | None = None
    utilization_gpu: float | None = None
    utilization_memory: float | None = None
    temperature: float | None = None
    power_draw: float | None = None
    power_limit: float | None = None
    clock: float | None = None
    fan_speed: float | None = None
    temperature_margin: float | None = None  # how far it is below its maker's limit
    bus_id: str | None = None
    health: GpuHealth = NO_HEALTH
    lost: str | None = None  # why the driver cannot reach it
    columns: tuple[str, ...] = ()  # with `cells` all that was reported, by the names of `--query-gpu`, to be shown
    cells: tuple[str, ...] = ()
    vendor: str = "nvidia"
    place: str | None = None  # what it is called on its host where that is not its index
    profile: str | None = None
    parent: Gpu | None = None  # the physical GPU of a MIG instance
    error: str | None = None  # the driver's error message for its memory, use or temperature
    other_error: str | None = None  # the same for anything else but its fan and power
    shared_memory: SharedMemory | None = None  # with its host; None for a GPU that has all of its memory for itself

    @property
    def is_memory_shared(self) -> bool:
        return self.shared_memory is not None

    @property
    def label(self) -> str:
        """Return what people call it on its host: its index; `0:1` for an instance, `amd0` beside GPUs of NVIDIA."""
        return self.place or ("?" if self.index is None else str(self.index))

    @property
    def number(self) -> GpuNumber:
        """Return the label or index; None if it has neither."""
        return self.place or self.index

    @property
    def process_key(self) -> str:
        """Return the `gpu_key` of its processes; an instance without a UUID has its place in it."""
        return self.uuid or f"{self.vendor} {self.place if self.parent else self.index}"

    @property
    def key(self) -> str:
        """Return what identifies it on its host as long as it is the same GPU."""
        return self.uuid or f"index {self.number}"

    @property
    def booking_keys(self) -> set[str]:
        """Return the keys of bookings that hold for it, in lower case: an instance is booked with its GPU."""
        own = {self.label, (self.uuid or "").lower()} - {"?", ""}
        return own if self.parent is None else own | self.parent.booking_keys

    @property
    def raw_fields(self) -> dict[str, str]:
        """Return all that was reported, by nvidia-smi's names."""
        return dict(zip(self.columns, self.cells))


class GpuProcessRow(NamedTuple):
    """A process on a GPU; the pid is None if the driver does not report it."""

    gpu_key: str
    pid: int | None
    used_memory: float | None
    name: str | None


class PsRow(NamedTuple):
    """A row of ps.txt."""

    pid: int
    ppid: int | None = None
    gpu_pid: int | None = None  # the GPU process whose family it belongs to, None for parents of one
    uid: str | None = None
    user: str | None = None
    elapsed: int | None = None
    cpu: float | None = None
    rss: float | None = None
    state: str | None = None
    container: str | None = None
    command: str | None = None
    image: str | None = None
    pod: str | None = None
    person: str | None = None  # behind a process of root or of a user without a name, as far as the host can say

    @property
    def is_zombie(self) -> bool:
        """Return True if it has ended; its memory on the GPU may live on in its children."""
        return self.state is not None and self.state[:1] in {"Z", "X"}


@dataclass(frozen=True)
class Disk:
    """A local file system, in MiB."""

    mount: str
    total: float
    used: float


@dataclass(frozen=True)
class DiskUse:
    """Space that a person uses on a disk, in MiB, as `du` printed it."""

    path: str
    used: float


class GpuTopology(NamedTuple):
    """How the GPUs of NVIDIA in a host are connected, by their indices.

    `connections` has nvidia-smi's word for each pair, the smaller index first: NV4 means 4 NVLinks, PIX one PCIe
    bridge. `linked` has the GPUs to which a GPU has NVLinks. The node is None where it is not known.
    """

    numa_nodes: Mapping[int, int | None]
    connections: Mapping[tuple[int, int], str]
    linked: Mapping[int, tuple[int, ...]]


class Xid(NamedTuple):
    """An error of the GPU at a PCI bus id, from the kernel log of its host, logged so many times.

    `first` and `last` are by the host's clock; `text` is the driver's.
    """

    bus: str
    code: int
    first: int
    last: int
    times: int = 1
    text: str = ""


@dataclass(frozen=True)
class HostFacts:
    """Content of host.txt; memory in MiB, uptime in seconds."""

    load: tuple[float, float, float] | None = None
    cpus: int | None = None
    memory_total: float | None = None
    memory_available: float | None = None
    uptime: int | None = None
    disks: tuple[Disk, ...] = ()
    interfaces: tuple[tuple[str, str], ...] = ()
    disk_use: tuple[DiskUse, ...] = ()
    disk_use_time: int | None = None
    topology: GpuTopology | None = None
    xids: tuple[Xid, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """A sentence for the admin, and the place that it is about."""

    where: str
    what: str


@dataclass(frozen=True)
class HostSnapshot:
    """All that data/ has of one host, and what is wrong with it; times by the clock of the machine that has data/."""

    name: str
    gpus: ParsedFile[Gpu] | None = None
    processes: ParsedFile[GpuProcessRow] | None = None
    ps_rows: ParsedFile[PsRow] | None = None
    facts: ParsedFile[HostFacts] | None = None
    last_seen: float | None = None  # when its last file arrived
    taken_at: dict[str, float] = field(default_factory=dict)  # when each file was made
    intervals: dict[str, int] = field(default_factory=dict)  # how often each is made
    clock_offset: float | None = None  # by how much the host's clock is ahead of ours
    missing_files: tuple[str, ...] = ()
    is_legacy: bool = False
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Booking:
    """A GPU, or with `*` a whole host, booked until a time, and perhaps from a time on."""

    host: str
    gpu: str
    name: str
    until: datetime
    since: datetime | None = None
    comment: str = ""
    id: str | None = None  # entries of one host with the same id are one booking of several GPUs
    rrule: str | None = None
    booked_by: str | None = None  # who made it for another person


@dataclass(frozen=True)
class ConsulAccess:
    """How to reach Consul; `service` is what GPU hosts register there, `prefix` that of our keys in its KV store."""

    service: str
    datacenter: str | None = None
    address: str = "127.0.0.1:8500"
    token: str | None = None
    tls: bool = False
    verify: bool = True
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    address_setting: str = "CONSUL_HTTP_ADDR"  # the setting that holds the address
    prefix: str = ""

    @property
    def where(self) -> str:
        return f"Consul at {self.address}"


@dataclass(frozen=True)
class DiscoveredHost:
    """A host of the board, or a line of hosts.txt."""

    name: str
    title: str | None = None
    tags: tuple[str, ...] = ()
    maintenance: str | None = None  # the reason, None outside maintenance
    is_hidden: bool = False
    listed_by: tuple[str, ...] = ()  # Consul, hosts.txt and hosts.json if they list it
    consul_status: str | None = None  # the worst of its checks: passing, warning, critical
    consul_message: str | None = None  # that check's output
    is_missing_in_consul: bool = False  # Consul is used, but does not list it


@dataclass(frozen=True)
class StateLimits:
    """Limits between states; docs/settings.md says what each prevents."""

    stale_after: float = 30
    down_after: float = 600
    clock_off: float = 60
    idle_percent: float = 5
    held_after: float = 7200
    free_percent: float = 5
    free_mib: float = 1024
    soon: float = 86400


@dataclass(frozen=True)
class BookingPolicy:
    """Who may book, and how much; 0 is no limit. `url` is where the page sends bookings."""

    url: str | None = None
    is_open: bool = False
    can_book_for_others: bool = True
    admins: frozenset[str] = frozenset()
    max_gpus: float = 0
    max_gpu_hours: float = 0
    max_duration_s: float = 0
    max_ahead_s: float = 0
    retention_s: float = 30 * 86400
    proxy: str | None = None
    proxy_header: str = "X-Remote-User"


@dataclass(frozen=True)
class SlackAccess:
    """How to reach Slack: the bot's token, the token of its socket, and the API's URL."""

    bot_token: str | None = field(default=None, repr=False)
    app_token: str | None = field(default=None, repr=False)
    url: str = "https://slack.com/api/"


@dataclass(frozen=True)
class AlertSettings:
    """Where alerts go: channels by name, the mail server, hooks; and the files with rules and contacts."""

    # the URLs hold passwords and tokens, and are never shown
    channels: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    mail_url: str | None = field(default=None, repr=False)
    mail_domain: str | None = None
    hooks_folder: Path | None = None
    rules_file: str | None = None
    contacts_file: str | None = None
    slack: SlackAccess = field(default_factory=SlackAccess)

    @property
    def is_enabled(self) -> bool:
        """Return True if anybody can be notified; the contacts may name channels of their own."""
        return bool(self.channels or self.mail_url or self.hooks_folder or self.contacts_file)


@dataclass(frozen=True)
class PrivacySettings:
    """What is shown of people: commands `full`, `program` or `none`; users by name or not at all."""

    commands: str = "full"
    users: bool = True


class BookingStatus(NamedTuple):
    """A booking at the time of the build."""

    name: str | None
    since: datetime | None
    until: datetime
    comment: str | None
    id: str | None
    phase: str  # now, coming or ended
    unused_since: int | None = None  # while it runs: since when nobody uses the GPU
    used_by: tuple[str, ...] | None = None  # who else does, and since when
    used_by_since: int | None = None
    mean_use: float | None = None  # in percent
    is_whole_host: bool = False
    is_whole_gpu: bool = False  # a MIG instance is booked together with all others of its GPU
    written_name: str | None = None  # the name in comments.json, where `name` is another one of that person


class ProcessStatus(NamedTuple):
    """A process on a GPU. A zombie has ended, but its `children` hold its memory."""

    pid: int | None
    user: str | None
    command: str | None
    used_memory: float | None
    started: int | None
    container: str | None = None
    is_zombie: bool = False
    children: tuple[int, ...] = ()
    image: str | None = None
    pod: str | None = None
    runs_as: str | None = None  # the user for the kernel, where `user` is the person behind it


class GpuBookingUse(NamedTuple):
    """What is remembered of a booked GPU from build to build."""

    checked_at: int  # the time of the last snapshot counted, on the clock that wrote it
    empty_since: int | None  # since when nobody uses the GPU
    others_since: dict[str, int]  # since when each person does who did not book it
    # for each running booking: since when, for how many seconds, and the use in percent times those seconds
    use_by_booking: dict[str, tuple[int, float, float]]


class GpuPeople(NamedTuple):
    """Logins on a GPU, and who has booked it now, as it was written; `absent_bookers` do not use it."""

    users: tuple[str, ...] = ()
    bookers: tuple[str, ...] = ()
    absent_bookers: tuple[str, ...] = ()


NOBODY = GpuPeople()


class GpuProblem(NamedTuple):
    """A problem of a GPU, and what to do about it; its severity is `critical`, `warning` or `info`."""

    kind: str
    severity: str
    what: str
    advice: str
    avoid: bool = False  # the GPU is not handed out

    @property
    def is_visible(self) -> bool:
        """Return True if users of the GPU should see it; others are for its admin, on the host's page."""
        return self.severity != "info"


class GpuStatus(NamedTuple):
    """A GPU with its state and the reason in words."""

    gpu: Gpu
    model: str
    state: str
    reason: str
    processes: tuple[ProcessStatus, ...] = ()
    bookings: tuple[BookingStatus, ...] = ()
    idle_since: float | None = None  # since when its memory is taken but it is not used
    free_until: float | None = None
    free_again: int | None = None  # when the bookings end that follow each other from now on
    booking_use: GpuBookingUse | None = None
    people: GpuPeople = NOBODY  # for history, never published: it names people also where the page must not
    ownerless_pids: tuple[int | None, ...] = ()  # processes of unknown users
    has_unexplained_memory: bool = False  # no process has the memory that is taken
    parent_model: str = ""  # the model of the GPU that an instance belongs to, whose `problems` it shares
    problems: tuple[GpuProblem, ...] = ()

    @property
    def is_avoided(self) -> bool:
        """Return True if it should not be handed out, whatever its state."""
        return any(problem.avoid for problem in self.problems) if self.problems else False

    @property
    def key(self) -> str:
        return self.gpu.key


@dataclass(frozen=True)
class HostStatus:
    """A host with its state and the reason in words."""

    name: str
    title: str | None
    tags: tuple[str, ...]
    state: str
    reason: str
    last_seen: float | None = None
    facts: HostFacts | None = None
    gpus: tuple[GpuStatus, ...] = ()
    unmatched_processes: tuple[ProcessStatus, ...] = ()  # on a GPU that the host does not list
    bookings: tuple[BookingStatus, ...] = ()  # of a host whose GPUs are unknown
    notes: tuple[str, ...] = ()  # for everyone
    problems: tuple[Problem, ...] = ()  # for the admin
    logins: frozenset[str] = frozenset()
    users_shown: bool = True
    # on a GPU in MIG mode, by its key, but on an unknown instance
    unplaced_processes: dict[str, tuple[ProcessStatus, ...]] = field(default_factory=dict)
    truncated_logins: tuple[str, ...] = ()
    has_missing_gpu: bool = False  # it reported a GPU in a form that could not be read


@dataclass(frozen=True)
class IdleTimes:
    """Since when GPUs of a host are idle with memory taken, and when they were last checked."""

    checked_at: float
    idle_since: dict[str, float]


class FreeGpu(NamedTuple):
    """A GPU that is free now; `free_until` is when a booking begins, if that is soon."""

    model: str
    memory_total: float
    host: str
    index: GpuNumber  # type: ignore[assignment]
    free_until: float | None = None
    is_avoided: bool = False


class SoonFreeGpu(NamedTuple):
    """A GPU that is not free now, and when its bookings end."""

    free_at: int
    host: str
    index: GpuNumber  # type: ignore[assignment]


class GpuIdentity(NamedTuple):
    """Number and UUID of a GPU; `parent_uuid` is the UUID of the GPU that an instance belongs to."""

    number: GpuNumber
    uuid: str | None
    parent_uuid: str | None = None
