"""Types for the health of GPUs at a moment, and for events. A value that is not available is None."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Union

import orjson

from site_builder.core.model import GpuNumber, MemoryErrorCounts, Xid

# From the worst on. The signs are shown with the words; colour repeats them.
CRITICAL, WARNING, INFO = SEVERITIES = "critical", "warning", "info"
SEVERITY_LABELS = {CRITICAL: "▲ critical", WARNING: "◆ warning", INFO: "info"}


class ProblemKind(NamedTuple):
    """A problem in problem_kinds.json: `what` has places for values, `advice` for {reset}, {gpu} and {log}."""

    severity: str
    what: str
    advice: str


PROBLEM_KINDS = {
    kind: ProblemKind(**texts)
    for kind, texts in orjson.loads((Path(__file__).parent / "problem_kinds.json").read_bytes()).items()
}


class XidCode(NamedTuple):
    """What an Xid error means, from xid_codes.json; `advice` has places for {reset} and {gpu}."""

    severity: str
    what: str
    advice: str


XID_CODES = {
    int(code): XidCode(**texts)
    for codes, texts in orjson.loads((Path(__file__).parent / "xid_codes.json").read_bytes()).items()
    for code in codes.split()
}
# A code that is not in the file is newer than this gpuboard, or rare.
UNKNOWN_XID_CODE = XidCode(WARNING, "", "look the code up in NVIDIA's catalogue of Xid errors")
# The kind of an event about an Xid error: `xid-79`.
XID_KIND_PREFIX = "xid-"
# The kind of problem that an event is about; an event without one has its severity in EVENT_SEVERITIES.
EVENT_PROBLEM_KINDS = {
    "lost": "lost",
    "recovery": "recovery",
    "failed": "repair-failed",
    "pending": "repair-pending",
    "heat": "heat",
    "hot": "hot",
    "uncorrected": "ecc-uncorrected",
    "corrected": "ecc-corrected",
}
EVENT_SEVERITIES = {
    **{event: PROBLEM_KINDS[problem].severity for event, problem in EVENT_PROBLEM_KINDS.items()},
    **dict.fromkeys(("gone", "rows_uncorrected", "pages_uncorrected"), CRITICAL),
    **dict.fromkeys(("rows_corrected", "pages_corrected"), WARNING),
    **dict.fromkeys(("power", "driver", "new"), INFO),
    **{f"{XID_KIND_PREFIX}{code}": texts.severity for code, texts in XID_CODES.items()},
}
CRITICAL_KINDS = frozenset(kind for kind, severity in EVENT_SEVERITIES.items() if severity == CRITICAL)

COUNT_NAMES = MemoryErrorCounts._fields
# Events that last. Transient ones come and go with the load; power comes so often that only its sum is kept.
TRANSIENT_KINDS = ("heat", "hot", "power")
SPAN_KINDS = frozenset({*TRANSIENT_KINDS, "lost", "gone", "recovery", "pending", "failed"})
EventValue = tuple[Union[int, str, None], ...]
NO_COUNTS = (None,) * len(COUNT_NAMES)
# The key of a GPU that reports no UUID begins so.
UNNAMED_KEY_PREFIX = "index "
# The start of an event that was there at the first check.
BEFORE_FIRST_CHECK = 0


class GpuHealthMetrics(NamedTuple):
    """A GPU's health; `hot` is its temperature and the limit that it has reached, and empty where it has not."""

    key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    bus: str | None
    lost: str | None
    counts: tuple[int | None, ...]
    recovery: str | None
    pending: bool | None
    failed: bool | None
    heat: bool | None
    power: bool | None
    hot: tuple[int, ...] | None


class HostHealthMetrics(NamedTuple):
    """The GPUs of a fresh host; `is_complete` is False where it reported a GPU that could not be read.

    `xids` have bus ids as GpuHealthMetrics has them, and the times of the host's clock.
    """

    driver: str | None
    gpus: tuple[GpuHealthMetrics, ...]
    is_complete: bool = True
    xids: tuple[Xid, ...] = ()


class HealthEvent(NamedTuple):
    """What happened to a GPU, or with an empty `gpu_key` to its host; `number` identifies it among those of its host.

    It began at `began_at`, or between `began_after` and then, and ended at `ended_at`, or between then and
    `ended_before`. An event that goes on has no end; that of a count is its last increase. The value of `power` is how
    often it was limited, for how many seconds in all, and when the last time began; that of an Xid error how often it
    was logged, the driver's words, and the bus id where it is not known which GPU sits there.
    """

    host: str
    number: int
    gpu_key: str
    index: GpuNumber  # type: ignore[assignment]
    kind: str
    value: EventValue
    began_at: int
    began_after: int | None = None
    ended_at: int | None = None
    ended_before: int | None = None

    @property
    def severity(self) -> str:
        # a newer gpuboard may have more kinds
        return EVENT_SEVERITIES.get(self.kind, UNKNOWN_XID_CODE.severity if self.is_xid else INFO)

    @property
    def is_xid(self) -> bool:
        return self.kind.startswith(XID_KIND_PREFIX)


class GpuHealthState(NamedTuple):
    """What the next check of a GPU is compared with; `latest_events` has for each kind the one that may go on."""

    index: GpuNumber  # type: ignore[assignment]
    bus: str | None
    counts: tuple[int | None, ...]
    latest_events: dict[str, HealthEvent]


class KnownXid(NamedTuple):
    """An Xid error that was recorded, and the event about it."""

    xid: Xid
    event: HealthEvent


class HostHealthState(NamedTuple):
    """What the next check of a host is compared with."""

    checked_at: int
    taken_at: float | None
    last_event_number: int
    driver: str | None
    gpus: dict[str, GpuHealthState]
    xids: tuple[KnownXid, ...] = ()


class HealthCheckTimes(NamedTuple):
    """When a host was checked, when the check before it was, and when its snapshot was taken."""

    host: str
    checked_at: int
    previous_check_at: int | None = None
    taken_at: float | None = None


class PackedHealthMetrics(NamedTuple):
    """The metrics of a host as they are stored, and the time of their snapshot."""

    packed: bytes
    taken_at: float | None


class HealthEventTimeline(NamedTuple):
    """Events of a GPU, or with an empty `gpu_key` of its host: those that go on first, then the last to end.

    `event_count` includes events that are left out.
    """

    gpu_key: str
    events: tuple[HealthEvent, ...]
    event_count: int


class HostHealthTimelines(NamedTuple):
    """The time lines of a host, its own first; those of `omitted_gpu_count` former GPUs are left out."""

    watched_since: int | None
    timelines: tuple[HealthEventTimeline, ...]
    omitted_gpu_count: int = 0


NO_TIMELINES = HostHealthTimelines(None, ())
