"""What the parts of gpuboard hand to each other. A value that is not available is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, Union

Row = TypeVar("Row")
# What a GPU is called on its host: its index, or a text where that is not enough, such as 0:1 or amd0.
GpuNumber = Union[int, str, None]


class SnapshotHeader(NamedTuple):
    """The first line of a snapshot file."""

    task: str
    host: str
    time: int
    every: int
    took_ms: int
    rc: int


class ToolResult(NamedTuple):
    """How one tool of a host answered: its name, whose GPUs it tells, its exit code, its words beside the rows.

    `answered` is False where it did not get as far as telling all of its rows.
    """

    tool: str
    vendor: str
    rc: int
    messages: tuple[str, ...] = ()
    is_complete: bool = True


@dataclass(frozen=True)
class ParsedFile(Generic[Row]):
    """What was understood of one file: its rows, the words that it has beside them, and what is wrong with it.

    `voices` are the tools that told the rows, where tools did. `unreported` has the GPUs, by their handles, whose
    processes were not reported, each with the words of the tool.
    """

    rows: tuple[Row, ...] = ()
    header: SnapshotHeader | None = None
    is_complete: bool = True
    messages: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    unreported: Mapping[str, str] = field(default_factory=dict)


# The rows of a snapshot are tuples: a thousand hosts have 40,000 of them, and a frozen dataclass takes four times
# as long to make.
class Gpu(NamedTuple):
    """A GPU, whoever made it, under nvidia-smi's names and units. `lost` is why the driver cannot reach it.

    `error` says which of its memory, use and temperature the driver answers with an error, and the error's words.

    `columns` and `cells` are all that was told of it, by the names of `--query-gpu`. Of a GPU that is cut into
    instances (MIG) each instance is one, with the GPU as its `parent`. `place` is what it is called on its host where
    that is not its index.
    """

    index: int | None  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
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
    lost: str | None = None
    columns: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    vendor: str = "nvidia"
    place: str | None = None
    profile: str | None = None
    parent: Gpu | None = None
    error: str | None = None

    @property
    def label(self) -> str:
        """What people call it on its host: its number; `0:1` is an instance, `amd0` stands beside GPUs of NVIDIA."""
        return self.place or ("?" if self.index is None else str(self.index))

    @property
    def number(self) -> GpuNumber:
        """The same, and None where it has no number."""
        return self.place or self.index

    @property
    def process_key(self) -> str:
        """What tells which processes are on it; an instance whose UUID is not told has a place of its own."""
        return self.uuid or f"{self.vendor} {self.place if self.parent else self.index}"

    @property
    def key(self) -> str:
        """What names it on its host, as long as it is the same GPU."""
        return self.uuid or f"index {self.number}"

    @property
    def booking_keys(self) -> set[str]:
        """The keys of bookings that promise it, in small letters: an instance is promised with its GPU."""
        own = {self.label, (self.uuid or "").lower()} - {"?", ""}
        return own if self.parent is None else own | self.parent.booking_keys

    @property
    def raw_fields(self) -> dict[str, str]:
        """All that was told, by nvidia-smi's names."""
        return dict(zip(self.columns, self.cells))


class GpuProcessRow(NamedTuple):
    """A process on a GPU, by the handle of that; the pid is None where the driver does not tell it."""

    gpu_key: str
    pid: int | None
    used_memory: float | None
    name: str | None


class PsRow(NamedTuple):
    """A row of ps.txt; `gpu_pid` is the GPU process whose family it is, None for the parents of one.

    `person` is who is behind a process of root's, or of a user without a name, as far as the host can tell.
    """

    pid: int
    ppid: int | None
    gpu_pid: int | None
    uid: str | None
    user: str | None
    elapsed: int | None
    cpu: float | None
    rss: float | None
    state: str | None
    container: str | None
    command: str | None
    image: str | None = None
    pod: str | None = None
    person: str | None = None

    @property
    def is_zombie(self) -> bool:
        """A zombie: it has ended, but its memory on the GPU may live on in its children."""
        return self.state is not None and self.state[:1] in {"Z", "X"}


@dataclass(frozen=True)
class Disk:
    """A local file system, in MiB."""

    mount: str
    total: float
    used: float


@dataclass(frozen=True)
class DiskUse:
    """How much of a disk a person has taken, in MiB, as a line of `du` told it."""

    path: str
    used: float


@dataclass(frozen=True)
class HostFacts:
    """What host.txt tells of the machine; memory in MiB, uptime in seconds."""

    load: tuple[float, float, float] | None = None
    cpus: int | None = None
    memory_total: float | None = None
    memory_available: float | None = None
    uptime: int | None = None
    disks: tuple[Disk, ...] = ()
    interfaces: tuple[tuple[str, str], ...] = ()
    disk_use: tuple[DiskUse, ...] = ()
    disk_use_time: int | None = None
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """What is wrong, and where: for the admin, in one sentence."""

    where: str
    what: str


@dataclass(frozen=True)
class HostSnapshot:
    """All that data/ has of one host, and what is wrong with it.

    `seen` is when its last word arrived, `taken` when each file was made, both on the clock of the machine that has
    data/; `every` is how often each is made, `clock` by how much the host's own clock is ahead of ours. `gone` has the
    files that are no longer there.
    """

    name: str
    gpus: ParsedFile[Gpu] | None = None
    processes: ParsedFile[GpuProcessRow] | None = None
    ps_rows: ParsedFile[PsRow] | None = None
    facts: ParsedFile[HostFacts] | None = None
    last_seen: float | None = None
    taken_at: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, int] = field(default_factory=dict)
    clock_offset: float | None = None
    missing_files: tuple[str, ...] = ()
    is_legacy: bool = False
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Booking:
    """A GPU, or with `*` a whole host, that is promised to somebody until a time, and perhaps from one on.

    Those of one host that share an id are one booking over several GPUs. `by` is who made it for another.
    """

    host: str
    gpu: str
    name: str
    until: datetime
    since: datetime | None = None
    comment: str = ""
    id: str | None = None
    rrule: str | None = None
    booked_by: str | None = None


@dataclass(frozen=True)
class ListedHost:
    """A line of hosts.txt; `maintenance` is why, and None where there is none."""

    name: str
    title: str | None = None
    tags: tuple[str, ...] = ()
    maintenance: str | None = None
    is_hidden: bool = False


@dataclass(frozen=True)
class ConsulAccess:
    """How Consul is asked; `service` is what the GPU hosts register there."""

    service: str
    datacenter: str | None = None
    address: str = "127.0.0.1:8500"
    token: str | None = None
    tls: bool = False
    verify: bool = True
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    address_setting: str = "CONSUL_HTTP_ADDR"  # the setting that has the address


@dataclass(frozen=True)
class KvAccess:
    """How Consul's KV store is asked, and below which prefix all of ours stands."""

    consul: ConsulAccess
    prefix: str

    @property
    def where(self) -> str:
        """For sentences: where a problem is."""
        return f"Consul at {self.consul.address}"


@dataclass(frozen=True)
class DiscoveredHost:
    """A host that the board shows, and who knows of it: `listed_by` has Consul, hosts.txt, hosts.json, or none of them.

    `consul` is the worst of its checks (passing, warning, critical), and `consul_message` that check's own words; both are
    None where Consul is not asked, or does not list it; `not_in_consul` tells the two apart.
    """

    name: str
    title: str | None = None
    tags: tuple[str, ...] = ()
    maintenance: str | None = None
    is_hidden: bool = False
    listed_by: tuple[str, ...] = ()
    consul_status: str | None = None
    consul_message: str | None = None
    is_missing_in_consul: bool = False


@dataclass(frozen=True)
class StateLimits:
    """Where one state ends and the next begins; docs/settings.md says what each prevents."""

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
    """How Slack is asked: the token of the bot, that of its socket, and where Slack is."""

    bot_token: str | None = field(default=None, repr=False)
    app_token: str | None = field(default=None, repr=False)
    url: str = "https://slack.com/api/"


@dataclass(frozen=True)
class AlertSettings:
    """Where alerts go: channels by name, the mail server for people, hooks; and the files with rules and contacts.

    What stands here of addresses holds passwords and tokens, and is never shown.
    """

    channels: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    mail_url: str | None = field(default=None, repr=False)
    mail_domain: str | None = None
    hooks_folder: Path | None = None
    rules_file: str | None = None
    contacts_file: str | None = None
    slack: SlackAccess = field(default_factory=SlackAccess)

    @property
    def is_enabled(self) -> bool:
        """Whether anybody is to be told anything; the contacts may name ways of their own."""
        return bool(self.channels or self.mail_url or self.hooks_folder or self.contacts_file)


@dataclass(frozen=True)
class PrivacySettings:
    """What is shown of people: commands `full`, `program` or `none`; users by name or not at all."""

    commands: str = "full"
    users: bool = True


class BookingStatus(NamedTuple):
    """A booking as it stands at the moment of the build; `phase` is now, coming or ended. One of a `whole_gpu` promises
    an instance together with all others of its GPU.

    Of one that runs: since when nobody is on the GPU, who else is and since when, and its mean use in percent.
    """

    name: str | None
    since: datetime | None
    until: datetime
    comment: str | None
    id: str | None
    phase: str
    unused_since: int | None = None
    used_by: tuple[str, ...] | None = None
    used_by_since: int | None = None
    mean_use: float | None = None
    is_whole_host: bool = False
    is_whole_gpu: bool = False


class ProcessStatus(NamedTuple):
    """A process on a GPU. A `dead` one has ended, but its `children` hold what it had.

    `runs_as` is whose it is for the kernel, where the user is the person behind it.
    """

    pid: int | None
    user: str | None
    command: str | None
    used_memory: float | None
    started: int | None
    container: str | None
    is_zombie: bool = False
    children: tuple[int, ...] = ()
    image: str | None = None
    pod: str | None = None
    runs_as: str | None = None


class GpuBookingUse(NamedTuple):
    """What is remembered of a GPU while it is promised.

    `looked` is the time of the last snapshot that counted, on the clock that wrote it; `empty_since` since when nobody
    is on the GPU; `others` since when each person is who did not book it; `use`, of each booking that runs, since when
    it was seen, for how many seconds, and the use in percent times those.
    """

    checked_at: int
    empty_since: int | None
    others_since: dict[str, int]
    use_by_booking: dict[str, tuple[int, float, float]]


class GpuPeople(NamedTuple):
    """Who is on a GPU, by login, and who has booked it now, as it was written; `absent` are those who are not on it."""

    users: tuple[str, ...] = ()
    bookers: tuple[str, ...] = ()
    absent_bookers: tuple[str, ...] = ()


NOBODY = GpuPeople()


class GpuProblem(NamedTuple):
    """What is wrong with a GPU now, and what to do about it; its severity is `critical`, `warning` or `info`.

    A GPU is not handed out while it has one that says `avoid`.
    """

    kind: str
    severity: str
    what: str
    advice: str
    avoid: bool = False


class GpuStatus(NamedTuple):
    """A GPU with its state and the reason in words. `idle_since` is since when it is taken but not used.

    `free_again` is when the bookings end that follow each other from now on. `who` is for history alone: it is never
    published, since it names people also where the page must not. `ownerless` are the processes on it of which nobody
    knows whose they are; it is `unexplained` if no process has the memory that is taken. `of` is the model of the GPU
    of which it is an instance, whose `problems` are its own too.
    """

    gpu: Gpu
    model: str
    state: str
    reason: str
    processes: tuple[ProcessStatus, ...] = ()
    bookings: tuple[BookingStatus, ...] = ()
    idle_since: float | None = None
    free_until: float | None = None
    free_again: int | None = None
    booking_use: GpuBookingUse | None = None
    people: GpuPeople = NOBODY
    ownerless_pids: tuple[int | None, ...] = ()
    has_unexplained_memory: bool = False
    parent_model: str = ""
    problems: tuple[GpuProblem, ...] = ()

    @property
    def is_avoided(self) -> bool:
        """Whether nobody should be given it, whatever its state."""
        return any(one.avoid for one in self.problems) if self.problems else False

    @property
    def key(self) -> str:
        """What names it on its host, as long as it is the same GPU."""
        return self.gpu.key


@dataclass(frozen=True)
class HostStatus:
    """A host with its state and the reason in words.

    `notes` are for everyone, `problems` for the admin. `others` are processes on a GPU that the host does not tell,
    `bookings` those of a host whose GPUs are not known. `unplaced` are processes on a GPU in MIG mode, by its key, of
    which it is not told on which instance. `cut` are the logins that `ps` told but in part.
    """

    name: str
    title: str | None
    tags: tuple[str, ...]
    state: str
    reason: str
    last_seen: float | None = None
    facts: HostFacts | None = None
    gpus: tuple[GpuStatus, ...] = ()
    unmatched_processes: tuple[ProcessStatus, ...] = ()
    bookings: tuple[BookingStatus, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    logins: frozenset[str] = frozenset()
    users_shown: bool = True
    unplaced_processes: dict[str, tuple[ProcessStatus, ...]] = field(default_factory=dict)
    truncated_logins: tuple[str, ...] = ()


@dataclass(frozen=True)
class IdleTimes:
    """Since when GPUs of a host are taken but not used, and when they were last looked at."""

    checked_at: float
    idle_since: dict[str, float]


class FreeGpu(NamedTuple):
    """A GPU that is free now; `until` is when it is promised to somebody, if that is soon.

    One to `avoid` has a problem, so that nobody is given it.
    """

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
    """What a GPU is called on its host; `of` is the UUID of the GPU of which it is an instance."""

    number: GpuNumber
    uuid: str | None
    parent_uuid: str | None = None
