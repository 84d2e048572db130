"""What happened to a host's GPUs between two looks at them.

Nothing is told twice, however often it is looked at: all that was told is in the state that comes out beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from site_builder.core.model import Number
from site_builder.health.model import (
    BEFORE,
    COUNTS,
    NAMELESS,
    NO_COUNTS,
    PASSING,
    Event,
    GpuSigns,
    GpuState,
    HostSigns,
    HostState,
    Look,
    Value,
)

MINUTE, HOUR, DAY = 60, 3600, 86400
# What comes again within so many seconds is the same again, but not for longer than a day on end.
JOINED = 600
JOINED_POWER = 6 * HOUR
# A snapshot that is older than the last one by less than this was read by a builder that is late.
LATE = 600
# An event that began further ahead than this was told by a clock that was set.
AHEAD = HOUR
# GPUs that are gone are remembered, so many a host.
MOST_GONE = 64
# A host can claim anything; more than this is not added up.
MOST_COUNTED = 10**15
# Of each kind of count: those that tell it, the surest first.
COUNTED: dict[str, tuple[str, ...]] = {
    "corrected": ("corrected_ever", "corrected"),
    "uncorrected": ("uncorrected_ever", "uncorrected"),
    "rows_corrected": ("rows_corrected",),
    "rows_uncorrected": ("rows_uncorrected",),
    "pages_corrected": ("pages_corrected",),
    "pages_uncorrected": ("pages_uncorrected",),
}
PLACES = {kind: tuple(COUNTS.index(name) for name in names) for kind, names in COUNTED.items()}
# Those that may be set to 0, by a new start of the driver or by an admin.
BEGIN_AGAIN = frozenset({"corrected", "uncorrected"})
Counts = tuple["int | None", ...]


def compare(
    state: HostState | None, signs: HostSigns, look: Look, elsewhere: Mapping[str, str]
) -> tuple[HostState, list[Event]]:
    """The state of a host after a look, and what is new or goes on; `elsewhere` says which host had a GPU before.

    Where the look came too late to tell anything, the state is the same object.
    """
    if state and is_late(state.taken, look.taken):
        return state, []
    found = Comparison(state, look)
    told = {key: (one, before) for key, one, before in named(state, signs.gpus)}
    gpus = {key: found.gpu(key, one, before, elsewhere.get(key)) for key, (one, before) in told.items()}
    if state:
        found.driver(state.driver, signs.driver)
        there = {before for _, before in told.values()}
        missing = {key: one for key, one in state.gpus.items() if key not in there}
        if signs.whole:
            gone = {key: found.gone(key, one) for key, one in missing.items()}
            kept = sorted(gone, key=lambda key: gone[key].last["gone"].number)[-MOST_GONE:]
            missing = {key: gone[key] for key in kept}
        gpus.update(missing)
    driver = signs.driver or (state.driver if state else None)
    return HostState(look.at, look.taken, found.number, driver, gpus), list(found.events.values())


def is_late(before: float | None, taken: float | None) -> bool:
    """Whether a snapshot is older than what is known; one that is much older comes from a clock that was set."""
    return before is not None and taken is not None and 0 < before - taken < LATE


def named(state: HostState | None, gpus: Iterable[GpuSigns]) -> Iterator[tuple[str, GpuSigns, str]]:
    """Each GPU by its key, and by the one that it had; one that is lost may have no name, but it sits where it sat."""
    several = tuple(gpus)
    missing = {} if state is None else dict(state.gpus)
    for one in several:
        missing.pop(one.key, None)
    for one in several:
        nameless = one.key.startswith(NAMELESS)
        before = one.key
        if state and one.key not in state.gpus and (one.lost is not None or not nameless):
            # without a name it may be any that is missing; with one, any that had none
            some = {key: other for key, other in missing.items() if nameless or key.startswith(NAMELESS)}
            before = same(one, some) or one.key
            missing.pop(before, None)
        yield (before if nameless else one.key), one, before


def same(one: GpuSigns, missing: Mapping[str, GpuState]) -> str | None:
    """Which of those that are missing it is."""
    for key, other in missing.items():
        if one.bus is not None and one.bus == other.bus:
            return key
    for key, other in missing.items():
        if (one.bus is None or other.bus is None) and one.index is not None and one.index == other.index:
            return key
    return None


class Comparison:
    """A look at a host, while it is compared with the one before."""

    def __init__(self, state: HostState | None, look: Look) -> None:
        """Of which nothing is known yet."""
        self.state, self.look, self.at = state, look, look.at
        before = look.before
        if before is not None and state:
            before = max(before, state.at)
        self.gap = before if before is not None and look.at - before > MINUTE else None
        self.number = state.number if state else 0
        self.events: dict[int, Event] = {}

    def put(self, event: Event) -> Event:
        """An event that is new, or is told anew."""
        self.events[event.number] = event
        return event

    def begin(self, gpu: str, index: Number, kind: str, value: Value) -> Event:
        """A new one, which goes on."""
        self.number += 1
        return self.put(Event(self.look.host, self.number, gpu, index, kind, value, self.at, self.gap))

    def moment(self, gpu: str, index: Number, kind: str, value: Value) -> Event:
        """A new one, which took no time."""
        return self.put(self.begin(gpu, index, kind, value)._replace(until=self.at))

    def driver(self, before: str | None, now: str | None) -> None:
        """The driver of the host."""
        if before and now and before != now:
            self.moment("", None, "driver", (before, now))

    def gpu(self, key: str, one: GpuSigns, was: str, elsewhere: str | None) -> GpuState:
        """A GPU that is there, and was known by that key."""
        known = self.state.gpus.get(was) if self.state else None
        before = known or GpuState(one.index, one.bus, NO_COUNTS, {})
        if self.state and not known:
            self.moment(key, one.index, "new", (elsewhere,))
        last = self.carried(before, key)
        index = one.index if one.index is not None else before.index
        for kind, on, value in conditions(one):
            self.span(last, (key, index, kind), on, value)
        self.power(last, (key, index, "power"), one.power)
        if known:
            self.count(last, (key, index), before.counts, one.counts)
        return GpuState(index, one.bus or before.bus, kept_counts(before.counts, one.counts), last)

    def gone(self, key: str, before: GpuState) -> GpuState:
        """A GPU that is not there."""
        last = self.carried(before, key)
        for kind, event in last.items():
            if event.until is None and kind != "gone":
                last[kind] = self.end(event)
        self.span(last, (key, before.index, "gone"), True, ())
        return before._replace(last=last)

    def carried(self, before: GpuState, key: str) -> dict[str, Event]:
        """The events that may go on, with a beginning that is not to come and the name that the GPU has now."""
        last = {}
        for kind, event in before.last.items():
            if self.may_go_on(event):
                ahead = event.until is None and event.at > self.at + AHEAD
                right = event._replace(at=self.at, since=BEFORE) if ahead else event
                right = right._replace(gpu=key)
                last[kind] = right if right == event else self.put(right)
        return last

    def may_go_on(self, event: Event) -> bool:
        """Whether what comes now may be the same again."""
        if event.until is None:
            return True
        joined = JOINED_POWER if event.kind == "power" else JOINED
        return abs(self.at - event.until) < joined and -AHEAD <= self.at - event.at < DAY

    def end(self, event: Event) -> Event:
        """What is over; where nobody looked, at some time since."""
        stop, by = (self.at, None) if self.gap is None else (self.gap, max(self.at, event.at))
        if event.kind == "power":  # in sum, so that the time that nobody saw does not count
            times, seconds, began = event.value
            more = max(0, stop - int(began or 0)) if began is not None else 0
            event = event._replace(value=(times, min(int(seconds or 0) + more, MOST_COUNTED), None))
            by = None
        return self.put(event._replace(until=max(stop, event.at), by=by))

    def went_unseen(self, event: Event) -> bool:
        """Whether nobody looked for so long since it began that it may have ended and begun again."""
        return self.gap is not None and self.at - self.gap >= JOINED and event.at <= self.gap

    def span(self, last: dict[str, Event], which: tuple[str, Number, str], on: bool | None, value: Value) -> None:
        """What lasts: whether it does."""
        kind = which[-1]
        event = last.get(kind)
        if event and event.until is None and kind in PASSING and on and self.went_unseen(event):
            self.end(event)
            event = None
        if on and event:
            more = merged(kind, event.value, value)
            if event.until is not None or more != event.value:
                last[kind] = self.put(event._replace(until=None, by=None, value=more))
        elif on:
            event = self.begin(*which, value)
            last[kind] = event if self.state else self.put(event._replace(since=BEFORE))
        # what is not told may go on, but for what comes and goes
        elif event and event.until is None and (on is not None or kind in PASSING):
            last[kind] = self.end(event)

    def power(self, last: dict[str, Event], which: tuple[str, Number, str], on: bool | None) -> None:
        """What its power limit does to a GPU, in sum: how often, and for how long in all."""
        event = last.get("power")
        if event and event.until is None and (not on or self.went_unseen(event)):
            event = last["power"] = self.end(event)
        if not on or (event and event.until is None):
            return
        if event and self.may_go_on(event):
            times = min(int(event.value[0] or 0) + 1, MOST_COUNTED)
            last["power"] = self.put(event._replace(value=(times, event.value[1], self.at), until=None))
        else:
            event = self.begin(*which, (1, 0, self.at))
            last["power"] = event if self.state else self.put(event._replace(since=BEFORE))

    def count(self, last: dict[str, Event], which: tuple[str, Number], before: Counts, now: Counts) -> None:
        """What is counted: by how much it rose."""
        for kind, places in PLACES.items():
            place = next((one for one in places if before[one] is not None and now[one] is not None), places[0])
            more, count = rise(before[place], now[place], kind in BEGIN_AGAIN), now[place]
            event = last.get(kind)
            if more and event:
                more = min(int(event.value[0] or 0) + more, MOST_COUNTED)
                last[kind] = self.put(event._replace(value=(more, count), until=max(self.at, event.at)))
            elif more:
                last[kind] = self.moment(*which, kind, (more, count))


def conditions(one: GpuSigns) -> Iterator[tuple[str, bool | None, Value]]:
    """What lasts, whether it is so, and what there is to say of it."""
    yield "gone", False, ()
    yield "lost", one.lost is not None, (one.lost,)
    yield "recovery", None if one.recovery is None else bool(one.recovery), (one.recovery,)
    yield "pending", one.pending, ()
    yield "failed", one.failed, ()
    yield "heat", one.heat, ()
    yield "hot", None if one.hot is None else bool(one.hot), tuple(one.hot or ())


def merged(kind: str, before: Value, now: Value) -> Value:
    """What is said of something that goes on: of temperatures the highest, of words the last."""
    return max(before, now, key=lambda one: int(one[0] or 0)) if kind == "hot" and before and now else now


def rise(before: int | None, now: int | None, again: bool) -> int:
    """By how much a count rose; one that fell began at 0 again, if it is of those that do."""
    if before is None or now is None:
        return 0
    return now - before if now >= before else now if again else 0


def kept_counts(before: Counts, now: Counts) -> Counts:
    """With what the next look is compared: of a kind that is not told at all, with what was told last."""
    found = list(now)
    for places in PLACES.values():
        if all(now[place] is None for place in places):
            for place in places:
                found[place] = before[place]
    return tuple(found)
