"""Find and describe events: changes in the health of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo

from site_builder.core.formatting import DAY, HOUR, MINUTE, MONTH_NAMES, format_duration
from site_builder.core.model import GpuNumber, Xid
from site_builder.health import model, xid

COUNT_DESCRIPTIONS = {
    "corrected": "corrected ECC errors",
    "uncorrected": "uncorrected ECC errors",
    "rows_corrected": "memory rows remapped after corrected errors",
    "rows_uncorrected": "memory rows remapped after uncorrected errors",
    "pages_corrected": "memory pages retired after corrected errors",
    "pages_uncorrected": "memory pages retired after uncorrected errors",
}
EVENT_SENTENCES = {
    "gone": "no longer in its host",
    "lost": "lost: the driver could not reach it: {0}",
    "recovery": "the driver asks for recovery: {0}",
    "pending": "a memory repair is waiting for a GPU reset",
    "failed": "a memory repair failed",
    "heat": "slowed by heat",
    "power": "power-throttled",
    "hot": "too hot: up to {0} °C (limit {1} °C)",
    "driver": "driver changed from {0} to {1}",
    **{kind: f"{what}: {{0}} more (now {{1}})" for kind, what in COUNT_DESCRIPTIONS.items()},
}
# An event that comes again within these seconds continues, but for no longer than a day.
REJOIN_WITHIN_S = 600
REJOIN_POWER_WITHIN_S = 6 * HOUR
# A snapshot that is older than the last one by less than this was read by a late builder.
LATE_SNAPSHOT_S = 600
# An event that began further in the future was recorded by a clock that has been set since.
MAX_CLOCK_AHEAD_S = HOUR
# Number of former GPUs to remember for each host.
MAX_GONE_GPUS = 64
# A host can claim anything; sums end here.
MAX_COUNT = 10**15
# The positions of the counts from which each kind is found, the most reliable first.
COUNT_POSITIONS = {
    kind: tuple(model.COUNT_NAMES.index(name) for name in (f"{kind}_ever", kind) if name in model.COUNT_NAMES)
    for kind in COUNT_DESCRIPTIONS
}
# Counts that may be set to 0, by a restart of the driver or by an admin.
RESETTABLE_KINDS = frozenset({"corrected", "uncorrected"})
Counts = tuple["int | None", ...]


def describe_event(event: model.HealthEvent) -> str:
    """Describe an event without its time: `uncorrected ECC errors: 2 more (now 5)`."""
    if event.is_xid:
        return xid.describe_xid_event(event.kind, event.value)
    values = ["?" if value is None else value for value in (*event.value[:3], None, None, None)]
    if event.kind == "new":
        return f"new in this host, previously in {values[0]}" if values[0] != "?" else "new in this host"
    if event.kind == "power" and values[0] not in (1, "?"):
        seconds = values[1]
        total = format_duration(seconds) if isinstance(seconds, int) else "?"
        addition = f"{total} in total" if event.ended_at is not None else "ongoing"
        return f"{EVENT_SENTENCES['power']}, {values[0]} times, {addition}"
    sentence = EVENT_SENTENCES.get(event.kind)
    return sentence.format(*values) if sentence else event.kind  # of a newer gpuboard


def format_event_time(event: model.HealthEvent, zone: tzinfo) -> str:
    """Return `10 Mar 2026 14:02`, `… – 15:40` or `between … and …`; `since …` for an event that goes on."""
    begin = format_event_moment(event.began_at, zone)
    if event.began_after == model.BEFORE_FIRST_CHECK:
        begin = f"{begin} or earlier"
    elif event.began_after is not None:
        latest = format_event_moment(event.began_at, zone, event.began_after)
        begin = f"between {format_event_moment(event.began_after, zone)} and {latest}"
    if event.ended_at is None:
        return f"since {begin}"
    if event.ended_before is None and event.ended_at == event.began_at:
        return begin
    end = format_event_moment(event.ended_at, zone, event.began_at)
    if event.ended_before is None:
        return f"{begin} – {end}" if event.began_after is None else f"from {begin} until {end}"
    return f"from {begin} until between {end} and {format_event_moment(event.ended_before, zone, event.ended_at)}"


def format_event_moment(at: int, zone: tzinfo, after: int | None = None) -> str:
    """Return a time with its date, which is left out where it is that of `after`."""
    try:
        local = datetime.fromtimestamp(at, zone)
        is_same_day = after is not None and datetime.fromtimestamp(after, zone).date() == local.date()
    except (OverflowError, ValueError, OSError):
        return "?"
    time = f"{local.hour:02}:{local.minute:02}"
    return time if is_same_day else f"{local.day} {MONTH_NAMES[local.month - 1]} {local.year} {time}"


def format_event_duration(event: model.HealthEvent) -> str | None:
    """Return how long an event lasted; None if it goes on, took no time, or nobody can tell."""
    is_exact = event.ended_before is None and event.began_after is None
    if event.kind not in model.SPAN_KINDS or event.ended_at is None or not is_exact:
        return None
    if event.kind == "power":
        # of several times, describe_event has the sum
        seconds = event.value[1] if len(event.value) > 1 and event.value[0] == 1 else None
        return format_duration(seconds) if isinstance(seconds, int) else None
    seconds = event.ended_at - event.began_at
    return format_duration(seconds) if seconds >= MINUTE else None


def find_health_events(
    state: model.HostHealthState | None,
    metrics: model.HostHealthMetrics,
    check: model.HealthCheckTimes,
    previous_hosts: Mapping[str, str],
) -> tuple[model.HostHealthState, list[model.HealthEvent]]:
    """Return the state of a host after a check, and the events that are new or go on.

    `previous_hosts` are those that had a GPU before. A check that came too late returns the same state object.
    """
    is_dated = state is not None and state.taken_at is not None and check.taken_at is not None
    # a snapshot that is much older comes from a clock that was set
    if state and is_dated and 0 < (state.taken_at or 0) - (check.taken_at or 0) < LATE_SNAPSHOT_S:
        return state, []
    comparison = HealthEventFinder(state, check)
    matches = {key: (gpu, previous_key) for key, gpu, previous_key in match_event_gpus(state, metrics.gpus)}
    gpus = {
        key: comparison.compare_gpu(key, gpu, previous_key, previous_hosts.get(key))
        for key, (gpu, previous_key) in matches.items()
    }
    if state:
        present_keys = {previous_key for _, previous_key in matches.values()}
        if state.driver and metrics.driver and state.driver != metrics.driver:
            comparison.begin_event("", None, "driver", (state.driver, metrics.driver))
        missing = {key: gpu for key, gpu in state.gpus.items() if key not in present_keys}
        if metrics.is_complete:
            gone: dict[str, model.GpuHealthState] = {}
            for key, before in missing.items():
                latest_events = comparison.carry_events(before, key)
                for kind, event in latest_events.items():
                    if event.ended_at is None and kind != "gone":
                        latest_events[kind] = comparison.end_event(event)
                comparison.update_span(latest_events, (key, before.index, "gone"), True, ())
                gone[key] = before._replace(latest_events=latest_events)
            newest = sorted(gone, key=lambda key: gone[key].latest_events["gone"].number)[-MAX_GONE_GPUS:]
            missing = {key: gone[key] for key in newest}
        gpus.update(missing)
    driver = metrics.driver or (state.driver if state else None)
    xids = comparison.update_xids(metrics.xids, gpus)
    new_state = model.HostHealthState(
        check.checked_at, check.taken_at, comparison.last_event_number, driver, gpus, xids
    )
    return new_state, list(comparison.events.values())


def match_event_gpus(
    state: model.HostHealthState | None, gpus: Sequence[model.GpuHealthMetrics]
) -> Iterator[tuple[str, model.GpuHealthMetrics, str]]:
    """Yield each GPU with its key and its previous key: a lost one may report no UUID, but sits where it sat."""
    missing = {} if state is None else dict(state.gpus)
    for gpu in gpus:
        missing.pop(gpu.key, None)
    for gpu in gpus:
        is_unnamed = gpu.key.startswith(model.UNNAMED_KEY_PREFIX)
        previous_key = gpu.key
        if state and gpu.key not in state.gpus and (gpu.lost is not None or not is_unnamed):
            # without a UUID it may be any that is missing; with one, any that had none: by bus id, or else by number
            same_bus, same_index = [], []
            for key, other in missing.items():
                if is_unnamed or key.startswith(model.UNNAMED_KEY_PREFIX):
                    if gpu.bus is not None and gpu.bus == other.bus:
                        same_bus.append(key)
                    elif (gpu.bus is None or other.bus is None) and gpu.index is not None and gpu.index == other.index:
                        same_index.append(key)
            previous_key = next(iter(same_bus + same_index), gpu.key)
            missing.pop(previous_key, None)
        yield (previous_key if is_unnamed else gpu.key), gpu, previous_key


class HealthEventFinder:
    """Compares a check of a host with the one before, and collects the events."""

    def __init__(self, state: model.HostHealthState | None, check: model.HealthCheckTimes) -> None:
        self.state, self.check, self.checked_at = state, check, check.checked_at
        previous = check.previous_check_at
        if previous is not None and state:
            previous = max(previous, state.checked_at)
        has_gap = previous is not None and check.checked_at - previous > MINUTE
        self.unobserved_since = previous if has_gap else None
        self.last_event_number = state.last_event_number if state else 0
        self.events: dict[int, model.HealthEvent] = {}

    def record(self, event: model.HealthEvent) -> model.HealthEvent:
        """Add an event, or replace it by its new form."""
        self.events[event.number] = event
        return event

    def begin_event(self, gpu_key: str, index: GpuNumber, kind: str, value: model.EventValue) -> model.HealthEvent:
        """Begin an event that lasts, which at the first check may have begun long before, or record a momentary one."""
        self.last_event_number += 1
        event = model.HealthEvent(
            host=self.check.host,
            number=self.last_event_number,
            gpu_key=gpu_key,
            index=index,
            kind=kind,
            value=value,
            began_at=self.checked_at,
            began_after=self.unobserved_since if self.state else model.BEFORE_FIRST_CHECK,
            ended_at=None if kind in model.SPAN_KINDS else self.checked_at,
        )
        return self.record(event)

    def compare_gpu(
        self, key: str, gpu: model.GpuHealthMetrics, previous_key: str, previous_host: str | None
    ) -> model.GpuHealthState:
        """Compare a GPU that is present with its state under `previous_key`."""
        known = self.state.gpus.get(previous_key) if self.state else None
        before = known or model.GpuHealthState(gpu.index, gpu.bus, model.NO_COUNTS, {})
        if self.state and not known:
            self.begin_event(key, gpu.index, "new", (previous_host,))
        latest_events = self.carry_events(before, key)
        index = gpu.index if gpu.index is not None else before.index
        spans: tuple[tuple[str, bool | None, model.EventValue], ...] = (
            ("gone", False, ()),
            ("lost", gpu.lost is not None, (gpu.lost,)),
            ("recovery", None if gpu.recovery is None else bool(gpu.recovery), (gpu.recovery,)),
            ("pending", gpu.pending, ()),
            ("failed", gpu.failed, ()),
            ("heat", gpu.heat, ()),
            ("hot", None if gpu.hot is None else bool(gpu.hot), tuple(gpu.hot or ())),
        )
        for kind, is_on, value in spans:
            self.update_span(latest_events, (key, index, kind), is_on, value)
        self.update_power(latest_events, key, index, gpu.power)
        if known:
            self.compare_counts(latest_events, key, index, before.counts, gpu.counts)
        counts = list(gpu.counts)
        for positions in COUNT_POSITIONS.values():
            if all(gpu.counts[position] is None for position in positions):  # keep what is not reported at all
                for position in positions:
                    counts[position] = before.counts[position]
        return model.GpuHealthState(index, gpu.bus or before.bus, tuple(counts), latest_events)

    def update_xids(self, xids: Sequence[Xid], gpus: Mapping[str, model.GpuHealthState]) -> tuple[model.KnownXid, ...]:
        """Record each Xid error once, and what changes when it is logged again; return those to remember."""
        known_xids = list(self.state.xids) if self.state else []
        # former GPUs come last; another one may sit in their place
        places = {gpu.bus.partition(".")[0]: (key, gpu.index) for key, gpu in reversed([*gpus.items()]) if gpu.bus}
        for reported in xids:
            known = next((known for known in known_xids if xid.is_same_xid(known.xid, reported)), None)
            if known and known.xid == reported:
                continue
            # no event is in the future, whatever the clock of the host says
            began_at = min(reported.first, self.checked_at) // MINUTE * MINUTE
            ended_at = max(began_at, min(reported.last, self.checked_at) // MINUTE * MINUTE)
            if known:
                known_xids.remove(known)
                value = (reported.times, reported.text, *known.event.value[2:])
                event = known.event._replace(value=value, ended_at=max(ended_at, known.event.began_at))
            else:
                gpu_key, index = places.get(reported.bus, ("", None))
                value = (reported.times, reported.text, None if gpu_key else reported.bus)
                kind = f"{model.XID_KIND_PREFIX}{reported.code}"
                event = self.begin_event(gpu_key, index, kind, value)
                event = event._replace(began_at=began_at, began_after=None, ended_at=ended_at)
            known_xids.append(model.KnownXid(reported, self.record(event)))
        return xid.select_known_xids(known_xids, xids, self.checked_at)

    def carry_events(self, before: model.GpuHealthState, key: str) -> dict[str, model.HealthEvent]:
        """Return the events that may go on, with a start that is not in the future, and the current key of the GPU."""
        latest_events = {}
        for kind, event in before.latest_events.items():
            if self.can_continue(event):
                carried = event._replace(gpu_key=key)
                if event.ended_at is None and event.began_at > self.checked_at + MAX_CLOCK_AHEAD_S:
                    carried = carried._replace(began_at=self.checked_at, began_after=model.BEFORE_FIRST_CHECK)
                latest_events[kind] = event if carried == event else self.record(carried)
        return latest_events

    def can_continue(self, event: model.HealthEvent) -> bool:
        """Return True if what happens now may be the same event."""
        if event.ended_at is None:
            return True
        limit = REJOIN_POWER_WITHIN_S if event.kind == "power" else REJOIN_WITHIN_S
        age = self.checked_at - event.began_at
        return abs(self.checked_at - event.ended_at) < limit and -MAX_CLOCK_AHEAD_S <= age < DAY

    def end_event(self, event: model.HealthEvent) -> model.HealthEvent:
        """End an event now, or some time since the last check if that was long ago."""
        ended_at, ended_before = self.checked_at, None
        if self.unobserved_since is not None:
            ended_at, ended_before = self.unobserved_since, max(self.checked_at, event.began_at)
        if event.kind == "power":  # a sum, in which unobserved time does not count
            times, seconds, began = event.value
            added = max(0, ended_at - int(began or 0)) if began is not None else 0
            event = event._replace(value=(times, min(int(seconds or 0) + added, MAX_COUNT), None))
            ended_before = None
        return self.record(event._replace(ended_at=max(ended_at, event.began_at), ended_before=ended_before))

    def was_unobserved(self, event: model.HealthEvent) -> bool:
        """Return True if an event may have ended and begun again since the last check."""
        return (
            self.unobserved_since is not None
            and self.checked_at - self.unobserved_since >= REJOIN_WITHIN_S
            and event.began_at <= self.unobserved_since
        )

    def update_span(
        self,
        latest_events: dict[str, model.HealthEvent],
        identity: tuple[str, GpuNumber, str],
        is_on: bool | None,
        value: model.EventValue,
    ) -> None:
        """Begin, continue or end an event that lasts; `identity` is the key and index of the GPU, and the kind."""
        kind = identity[-1]
        event = latest_events.get(kind)
        if event and event.ended_at is None and kind in model.TRANSIENT_KINDS and is_on and self.was_unobserved(event):
            self.end_event(event)
            event = None
        if is_on and event:
            if kind == "hot" and event.value and value:
                value = max(event.value, value, key=lambda temperatures: int(temperatures[0] or 0))
            if event.ended_at is not None or value != event.value:
                latest_events[kind] = self.record(event._replace(ended_at=None, ended_before=None, value=value))
        elif is_on:
            latest_events[kind] = self.begin_event(*identity, value)
        # what is not reported may go on, except for transient events
        elif event and event.ended_at is None and (is_on is not None or kind in model.TRANSIENT_KINDS):
            latest_events[kind] = self.end_event(event)

    def update_power(
        self, latest_events: dict[str, model.HealthEvent], key: str, index: GpuNumber, is_on: bool | None
    ) -> None:
        """Sum up how often and for how long the power limit slows a GPU."""
        event = latest_events.get("power")
        if event and event.ended_at is None and (not is_on or self.was_unobserved(event)):
            event = latest_events["power"] = self.end_event(event)
        if not is_on or (event and event.ended_at is None):
            return
        if event and self.can_continue(event):
            times = min(int(event.value[0] or 0) + 1, MAX_COUNT)
            event = self.record(event._replace(value=(times, event.value[1], self.checked_at), ended_at=None))
        else:
            event = self.begin_event(key, index, "power", (1, 0, self.checked_at))
        latest_events["power"] = event

    def compare_counts(
        self, latest_events: dict[str, model.HealthEvent], key: str, index: GpuNumber, before: Counts, now: Counts
    ) -> None:
        """Record by how much each count rose; a resettable one that fell began at 0 again."""
        for kind, positions in COUNT_POSITIONS.items():
            pairs = ((before[position], now[position]) for position in positions)
            old, new = next((pair for pair in pairs if None not in pair), (None, None))
            if old is None or new is None:
                continue
            increase = new - old if new >= old else new if kind in RESETTABLE_KINDS else 0
            event = latest_events.get(kind)
            if increase and event:
                total = min(int(event.value[0] or 0) + increase, MAX_COUNT)
                ended_at = max(self.checked_at, event.began_at)
                latest_events[kind] = self.record(event._replace(value=(total, new), ended_at=ended_at))
            elif increase:
                latest_events[kind] = self.begin_event(key, index, kind, (increase, new))
