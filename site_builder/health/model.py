"""What tells of a GPU's health at a moment, and what happened to it. A value that is not available is None."""

from __future__ import annotations

from typing import NamedTuple, Union

from site_builder.core.model import GpuNumber

# Errors of memory that were corrected and those that were not, since the driver was loaded and over the GPU's life;
# rows and pages of memory that were replaced after errors of each of the two kinds.
COUNT_NAMES = (
    "corrected",
    "uncorrected",
    "corrected_ever",
    "uncorrected_ever",
    "rows_corrected",
    "rows_uncorrected",
    "pages_corrected",
    "pages_uncorrected",
)
# What lasts. Those of the first line come and go with the load; power comes so often that it is told in sum.
TRANSIENT_KINDS = ("heat", "hot", "power")
PERSISTENT_KINDS = ("lost", "gone", "recovery", "pending", "failed")
SPAN_KINDS = frozenset({*TRANSIENT_KINDS, *PERSISTENT_KINDS})
EventValue = tuple[Union[int, str, None], ...]
NO_COUNTS = (None,) * len(COUNT_NAMES)
# What names a GPU that has told no name of its own.
UNNAMED_KEY_PREFIX = "index "
# When something began that was there already when we first looked.
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
    """A host that is fresh; it is not `whole` where it told of a GPU that could not be understood."""

    driver: str | None
    gpus: tuple[GpuHealthMetrics, ...]
    is_complete: bool = True


class HealthEvent(NamedTuple):
    """What happened to a GPU, or with an empty `gpu` to its host; `number` names it among those of its host.

    It began at `at`, or between `since` and then where nobody looked; it ended at `until`, or between then and `by`.
    What goes on has no `until`. What is counted has that of the last time; what took no time has the same as `at`.
    The value of `power` is how often, for how many seconds in all, and when it began the last time.
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


class GpuHealthState(NamedTuple):
    """What the next look at a GPU is compared with; `last` has of each kind the event that may go on."""

    index: GpuNumber  # type: ignore[assignment]
    bus: str | None
    counts: tuple[int | None, ...]
    latest_events: dict[str, HealthEvent]


class HostHealthState(NamedTuple):
    """The same of a host, looked at `at`, by a snapshot that was `taken` then; `number` is that of its last event."""

    checked_at: int
    taken_at: float | None
    last_event_number: int
    driver: str | None
    gpus: dict[str, GpuHealthState]


class HostCheck(NamedTuple):
    """A look at a host: when, and when the one before it was; `taken` is the time of its snapshot."""

    host: str
    checked_at: int
    previous_check_at: int | None = None
    taken_at: float | None = None


class PackedHealthMetrics(NamedTuple):
    """The signs of a host as they are kept, and the time of the snapshot that they stand in."""

    packed: bytes
    taken_at: float | None


class EventTimeline(NamedTuple):
    """A GPU's time line, or with an empty `gpu` that of its host; what goes on stands first, then what ended last.

    `total` is how many events there are, of which these are some.
    """

    gpu_key: str
    events: tuple[HealthEvent, ...]
    event_count: int


class HostTimelines(NamedTuple):
    """The time lines of a host, its own first; `first` is since when it is watched, None where it is not yet.

    `others` is how many GPUs it had whose lines are left out.
    """

    watched_since: int | None
    timelines: tuple[EventTimeline, ...]
    omitted_gpu_count: int = 0


NO_TIMELINES = HostTimelines(None, ())
