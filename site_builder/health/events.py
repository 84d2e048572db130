"""Find what changed in the health of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, tzinfo

from site_builder.core import formatting
from site_builder.core.model import GpuNumber
from site_builder.health.model import (
    BEFORE_FIRST_CHECK,
    COUNT_NAMES,
    NO_COUNTS,
    SPAN_KINDS,
    TRANSIENT_KINDS,
    UNNAMED_KEY_PREFIX,
    EventValue,
    GpuHealthMetrics,
    GpuHealthState,
    HealthEvent,
    HostCheck,
    HostHealthMetrics,
    HostHealthState,
)

COUNT_DESCRIPTIONS = {
    "corrected": "corrected ECC errors",
    "uncorrected": "uncorrected ECC errors",
    "rows_corrected": "rows of memory replaced after corrected errors",
    "rows_uncorrected": "rows of memory replaced after uncorrected errors",
    "pages_corrected": "pages of memory retired after corrected errors",
    "pages_uncorrected": "pages of memory retired after uncorrected errors",
}
EVENT_SENTENCES = {
    "gone": "gone from its host",
    "lost": "lost, the driver could not reach it: {0}",
    "recovery": "the driver says that it needs to be recovered: {0}",
    "pending": "a repair of its memory waits for a reset of the GPU",
    "failed": "a repair of its memory failed",
    "heat": "slowed by heat",
    "power": "slowed by its power limit",
    "hot": "too warm: up to {0} °C (limit {1} °C)",
    "driver": "driver changed from {0} to {1}",
    **{kind: f"{what}: {{0}} more (now {{1}})" for kind, what in COUNT_DESCRIPTIONS.items()},
}
# Severities: an admin must act on what is critical. Each kind has one.
CRITICAL_KINDS = frozenset(
    {"uncorrected", "rows_uncorrected", "pages_uncorrected", "lost", "gone", "recovery", "failed"}
)
WARNING_KINDS = frozenset({"corrected", "rows_corrected", "pages_corrected", "pending", "heat", "hot"})
INFO_KINDS = frozenset({"power", "driver", "new"})


def describe_event(event: HealthEvent) -> str:
    """What happened, without the time: `uncorrected ECC errors: 2 more (now 5)`."""
    value = ["?" if one is None else one for one in (*event.value[:3], None, None, None)]
    if event.kind == "new":
        return f"new in this host; it was in {value[0]} before" if value[0] != "?" else "new in this host"
    if event.kind == "power" and value[0] not in (1, "?"):
        sum_of = f"{format_total_time(value[1])} in all" if event.ended_at is not None else "now again"
        return f"{EVENT_SENTENCES['power']}, {value[0]} times, {sum_of}"
    said = EVENT_SENTENCES.get(event.kind)
    return said.format(*value) if said else event.kind  # one that we do not know is of a newer gpuboard


def format_total_time(seconds: object) -> str:
    """How long something was so, all times together."""
    return formatting.format_duration(seconds) if isinstance(seconds, int) else "?"


def format_event_time(event: HealthEvent, zone: tzinfo) -> str:
    """The time: `10 Mar 2026 14:02`, `… – 15:40`, `between … and …`; of what goes on, since when."""
    begin = format_event_moment(event.began_at, zone)
    if event.began_after is not None:
        begin = f"between {format_event_moment(event.began_after, zone)} and {format_event_moment(event.began_at, zone, event.began_after)}"
    if event.began_after == BEFORE_FIRST_CHECK:
        begin = f"before {format_event_moment(event.began_at, zone)}"
    if event.ended_at is None:
        return f"since {begin}"
    if event.ended_before is None and event.ended_at == event.began_at:
        return begin
    end = format_event_moment(event.ended_at, zone, event.began_at)
    if event.ended_before is None:
        return f"{begin} – {end}" if event.began_after is None else f"from {begin} until {end}"
    return f"from {begin} until between {end} and {format_event_moment(event.ended_before, zone, event.ended_at)}"


def format_event_moment(at: int, zone: tzinfo, after: int | None = None) -> str:
    """A time of the day with its date, which is left out where it is that of the moment before it."""
    try:
        local = datetime.fromtimestamp(at, zone)
        same = after is not None and datetime.fromtimestamp(after, zone).date() == local.date()
    except (OverflowError, ValueError, OSError):
        return "?"
    time = f"{local.hour:02}:{local.minute:02}"
    return time if same else f"{local.day} {formatting.MONTH_NAMES[local.month - 1]} {local.year} {time}"


def format_event_duration(event: HealthEvent) -> str | None:
    """How long something lasted; None of what goes on, what took no time, or where nobody can tell."""
    if (
        event.kind not in SPAN_KINDS
        or event.ended_at is None
        or event.ended_before is not None
        or event.began_after is not None
    ):
        return None
    if event.kind == "power":
        seconds = event.value[1] if len(event.value) > 1 and event.value[0] == 1 else None
        return format_total_time(seconds) if isinstance(seconds, int) else None  # of several it is said already
    seconds = event.ended_at - event.began_at
    return formatting.format_duration(seconds) if seconds >= formatting.MINUTE else None


MINUTE, HOUR, DAY = 60, 3600, 86400
# What comes again within so many seconds is the same again, but not for longer than a day on end.
REJOIN_WITHIN_S = 600
REJOIN_POWER_WITHIN_S = 6 * HOUR
# A snapshot that is older than the last one by less than this was read by a builder that is late.
LATE_SNAPSHOT_S = 600
# An event that began further ahead than this was told by a clock that was set.
MAX_CLOCK_AHEAD_S = HOUR
# GPUs that are gone are remembered, so many a host.
MAX_GONE_GPUS = 64
# A host can claim anything; more than this is not added up.
MAX_COUNT = 10**15
# Of each kind of count: those that tell it, the surest first.
COUNT_SOURCES: dict[str, tuple[str, ...]] = {
    "corrected": ("corrected_ever", "corrected"),
    "uncorrected": ("uncorrected_ever", "uncorrected"),
    "rows_corrected": ("rows_corrected",),
    "rows_uncorrected": ("rows_uncorrected",),
    "pages_corrected": ("pages_corrected",),
    "pages_uncorrected": ("pages_uncorrected",),
}
COUNT_POSITIONS = {kind: tuple(COUNT_NAMES.index(name) for name in names) for kind, names in COUNT_SOURCES.items()}
# Those that may be set to 0, by a new start of the driver or by an admin.
RESETTABLE_KINDS = frozenset({"corrected", "uncorrected"})
Counts = tuple["int | None", ...]


def compare_health(
    state: HostHealthState | None, signs: HostHealthMetrics, look: HostCheck, elsewhere: Mapping[str, str]
) -> tuple[HostHealthState, list[HealthEvent]]:
    """The state of a host after a look, and what is new or goes on; `elsewhere` says which host had a GPU before.

    Where the look came too late to tell anything, the state is the same object.
    """
    if state and is_late_snapshot(state.taken_at, look.taken_at):
        return state, []
    found = HealthComparison(state, look)
    told = {key: (one, before) for key, one, before in match_gpus(state, signs.gpus)}
    gpus = {key: found.compare_gpu(key, one, before, elsewhere.get(key)) for key, (one, before) in told.items()}
    if state:
        found.compare_driver(state.driver, signs.driver)
        there = {before for _, before in told.values()}
        missing = {key: one for key, one in state.gpus.items() if key not in there}
        if signs.is_complete:
            gone = {key: found.mark_gone(key, one) for key, one in missing.items()}
            kept = sorted(gone, key=lambda key: gone[key].latest_events["gone"].number)[-MAX_GONE_GPUS:]
            missing = {key: gone[key] for key in kept}
        gpus.update(missing)
    driver = signs.driver or (state.driver if state else None)
    return HostHealthState(look.checked_at, look.taken_at, found.last_event_number, driver, gpus), list(
        found.events.values()
    )


def is_late_snapshot(before: float | None, taken: float | None) -> bool:
    """Whether a snapshot is older than what is known; one that is much older comes from a clock that was set."""
    return before is not None and taken is not None and 0 < before - taken < LATE_SNAPSHOT_S


def match_gpus(
    state: HostHealthState | None, gpus: Iterable[GpuHealthMetrics]
) -> Iterator[tuple[str, GpuHealthMetrics, str]]:
    """Each GPU by its key, and by the one that it had; one that is lost may have no name, but it sits where it sat."""
    several = tuple(gpus)
    missing = {} if state is None else dict(state.gpus)
    for one in several:
        missing.pop(one.key, None)
    for one in several:
        nameless = one.key.startswith(UNNAMED_KEY_PREFIX)
        before = one.key
        if state and one.key not in state.gpus and (one.lost is not None or not nameless):
            # without a name it may be any that is missing; with one, any that had none
            some = {key: other for key, other in missing.items() if nameless or key.startswith(UNNAMED_KEY_PREFIX)}
            before = find_same_gpu(one, some) or one.key
            missing.pop(before, None)
        yield (before if nameless else one.key), one, before


def find_same_gpu(one: GpuHealthMetrics, missing: Mapping[str, GpuHealthState]) -> str | None:
    """Which of those that are missing it is."""
    for key, other in missing.items():
        if one.bus is not None and one.bus == other.bus:
            return key
    for key, other in missing.items():
        if (one.bus is None or other.bus is None) and one.index is not None and one.index == other.index:
            return key
    return None


class HealthComparison:
    """A look at a host, while it is compared with the one before."""

    def __init__(self, state: HostHealthState | None, look: HostCheck) -> None:
        """Of which nothing is known yet."""
        self.state, self.check, self.checked_at = state, look, look.checked_at
        before = look.previous_check_at
        if before is not None and state:
            before = max(before, state.checked_at)
        self.unobserved_since = before if before is not None and look.checked_at - before > MINUTE else None
        self.last_event_number = state.last_event_number if state else 0
        self.events: dict[int, HealthEvent] = {}

    def record(self, event: HealthEvent) -> HealthEvent:
        """An event that is new, or is told anew."""
        self.events[event.number] = event
        return event

    def begin_event(self, gpu: str, index: GpuNumber, kind: str, value: EventValue) -> HealthEvent:
        """A new one, which goes on."""
        self.last_event_number += 1
        return self.record(
            HealthEvent(
                self.check.host, self.last_event_number, gpu, index, kind, value, self.checked_at, self.unobserved_since
            )
        )

    def add_momentary_event(self, gpu: str, index: GpuNumber, kind: str, value: EventValue) -> HealthEvent:
        """A new one, which took no time."""
        return self.record(self.begin_event(gpu, index, kind, value)._replace(ended_at=self.checked_at))

    def compare_driver(self, before: str | None, now: str | None) -> None:
        """The driver of the host."""
        if before and now and before != now:
            self.add_momentary_event("", None, "driver", (before, now))

    def compare_gpu(self, key: str, one: GpuHealthMetrics, was: str, elsewhere: str | None) -> GpuHealthState:
        """A GPU that is there, and was known by that key."""
        known = self.state.gpus.get(was) if self.state else None
        before = known or GpuHealthState(one.index, one.bus, NO_COUNTS, {})
        if self.state and not known:
            self.add_momentary_event(key, one.index, "new", (elsewhere,))
        last = self.carry_events(before, key)
        index = one.index if one.index is not None else before.index
        for kind, on, value in list_span_states(one):
            self.update_span(last, (key, index, kind), on, value)
        self.update_power(last, (key, index, "power"), one.power)
        if known:
            self.compare_counts(last, (key, index), before.counts, one.counts)
        return GpuHealthState(index, one.bus or before.bus, carry_missing_counts(before.counts, one.counts), last)

    def mark_gone(self, key: str, before: GpuHealthState) -> GpuHealthState:
        """A GPU that is not there."""
        last = self.carry_events(before, key)
        for kind, event in last.items():
            if event.ended_at is None and kind != "gone":
                last[kind] = self.end_event(event)
        self.update_span(last, (key, before.index, "gone"), True, ())
        return before._replace(latest_events=last)

    def carry_events(self, before: GpuHealthState, key: str) -> dict[str, HealthEvent]:
        """The events that may go on, with a beginning that is not to come and the name that the GPU has now."""
        last = {}
        for kind, event in before.latest_events.items():
            if self.can_continue(event):
                ahead = event.ended_at is None and event.began_at > self.checked_at + MAX_CLOCK_AHEAD_S
                right = event._replace(began_at=self.checked_at, began_after=BEFORE_FIRST_CHECK) if ahead else event
                right = right._replace(gpu_key=key)
                last[kind] = right if right == event else self.record(right)
        return last

    def can_continue(self, event: HealthEvent) -> bool:
        """Whether what comes now may be the same again."""
        if event.ended_at is None:
            return True
        joined = REJOIN_POWER_WITHIN_S if event.kind == "power" else REJOIN_WITHIN_S
        return (
            abs(self.checked_at - event.ended_at) < joined
            and -MAX_CLOCK_AHEAD_S <= self.checked_at - event.began_at < DAY
        )

    def end_event(self, event: HealthEvent) -> HealthEvent:
        """What is over; where nobody looked, at some time since."""
        stop, by = (
            (self.checked_at, None)
            if self.unobserved_since is None
            else (self.unobserved_since, max(self.checked_at, event.began_at))
        )
        if event.kind == "power":  # in sum, so that the time that nobody saw does not count
            times, seconds, began = event.value
            more = max(0, stop - int(began or 0)) if began is not None else 0
            event = event._replace(value=(times, min(int(seconds or 0) + more, MAX_COUNT), None))
            by = None
        return self.record(event._replace(ended_at=max(stop, event.began_at), ended_before=by))

    def was_unobserved(self, event: HealthEvent) -> bool:
        """Whether nobody looked for so long since it began that it may have ended and begun again."""
        return (
            self.unobserved_since is not None
            and self.checked_at - self.unobserved_since >= REJOIN_WITHIN_S
            and event.began_at <= self.unobserved_since
        )

    def update_span(
        self, last: dict[str, HealthEvent], which: tuple[str, GpuNumber, str], on: bool | None, value: EventValue
    ) -> None:
        """What lasts: whether it does."""
        kind = which[-1]
        event = last.get(kind)
        if event and event.ended_at is None and kind in TRANSIENT_KINDS and on and self.was_unobserved(event):
            self.end_event(event)
            event = None
        if on and event:
            more = merge_event_values(kind, event.value, value)
            if event.ended_at is not None or more != event.value:
                last[kind] = self.record(event._replace(ended_at=None, ended_before=None, value=more))
        elif on:
            event = self.begin_event(*which, value)
            last[kind] = event if self.state else self.record(event._replace(began_after=BEFORE_FIRST_CHECK))
        # what is not told may go on, but for what comes and goes
        elif event and event.ended_at is None and (on is not None or kind in TRANSIENT_KINDS):
            last[kind] = self.end_event(event)

    def update_power(self, last: dict[str, HealthEvent], which: tuple[str, GpuNumber, str], on: bool | None) -> None:
        """What its power limit does to a GPU, in sum: how often, and for how long in all."""
        event = last.get("power")
        if event and event.ended_at is None and (not on or self.was_unobserved(event)):
            event = last["power"] = self.end_event(event)
        if not on or (event and event.ended_at is None):
            return
        if event and self.can_continue(event):
            times = min(int(event.value[0] or 0) + 1, MAX_COUNT)
            last["power"] = self.record(event._replace(value=(times, event.value[1], self.checked_at), ended_at=None))
        else:
            event = self.begin_event(*which, (1, 0, self.checked_at))
            last["power"] = event if self.state else self.record(event._replace(began_after=BEFORE_FIRST_CHECK))

    def compare_counts(
        self, last: dict[str, HealthEvent], which: tuple[str, GpuNumber], before: Counts, now: Counts
    ) -> None:
        """What is counted: by how much it rose."""
        for kind, places in COUNT_POSITIONS.items():
            place = next((one for one in places if before[one] is not None and now[one] is not None), places[0])
            more, count = compute_increase(before[place], now[place], kind in RESETTABLE_KINDS), now[place]
            event = last.get(kind)
            if more and event:
                more = min(int(event.value[0] or 0) + more, MAX_COUNT)
                last[kind] = self.record(
                    event._replace(value=(more, count), ended_at=max(self.checked_at, event.began_at))
                )
            elif more:
                last[kind] = self.add_momentary_event(*which, kind, (more, count))


def list_span_states(one: GpuHealthMetrics) -> Iterator[tuple[str, bool | None, EventValue]]:
    """What lasts, whether it is so, and what there is to say of it."""
    yield "gone", False, ()
    yield "lost", one.lost is not None, (one.lost,)
    yield "recovery", None if one.recovery is None else bool(one.recovery), (one.recovery,)
    yield "pending", one.pending, ()
    yield "failed", one.failed, ()
    yield "heat", one.heat, ()
    yield "hot", None if one.hot is None else bool(one.hot), tuple(one.hot or ())


def merge_event_values(kind: str, before: EventValue, now: EventValue) -> EventValue:
    """What is said of something that goes on: of temperatures the highest, of words the last."""
    return max(before, now, key=lambda one: int(one[0] or 0)) if kind == "hot" and before and now else now


def compute_increase(before: int | None, now: int | None, again: bool) -> int:
    """By how much a count rose; one that fell began at 0 again, if it is of those that do."""
    if before is None or now is None:
        return 0
    return now - before if now >= before else now if again else 0


def carry_missing_counts(before: Counts, now: Counts) -> Counts:
    """With what the next look is compared: of a kind that is not told at all, with what was told last."""
    found = list(now)
    for places in COUNT_POSITIONS.values():
        if all(now[place] is None for place in places):
            for place in places:
                found[place] = before[place]
    return tuple(found)
