"""What is wasted: GPUs that are taken or promised and not used, and those that nobody ever is on.

A GPU has one line at most of what is so now: the first that holds of dead, held by somebody, ownerless, unexplained,
held, booking, unused. So no GPU-hour counts twice; what a booking counts, a GPU that is never used does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import GpuNumber, GpuStatus, HostStatus
from site_builder.core.names import gpu_number_sort_key, natural_sort_key
from site_builder.fleet.gpu_state import StateRules
from site_builder.history.idle_runs import (
    RUN_EMPTY,
    RUN_IDLE,
    BookedRun,
    GpuRun,
    UnusedBooking,
    are_different_people,
    build_fleet_gpu_key,
    find_current_run,
)
from site_builder.history.model import TAKEN_STATES, build_host_gpu_key
from site_builder.waste.model import WASTE_KINDS, WasteItem

MIN_UNUSED_DAYS = 30
ENDED_BOOKING_DAYS = 7
# A booking is told once nobody was on the GPU for so long; and is looked at first so soon after it began.
MIN_UNUSED_BOOKING_S = HOUR
FIRST_CHECK_S = 5 * MINUTE
# What may be a matter of two files that were not made at once is told once it lasts.
MIN_ANOMALY_S = 5 * MINUTE
ANOMALY_KINDS = frozenset({"dead", "ownerless", "unexplained"})
MAX_PIDS = 20


class WasteCandidate(NamedTuple):
    """What may be wasted of a GPU, as its host tells it now; `people` are never published as they are.

    `since` is since when it is idle; of a booking, since when nobody is on it, and `began` is when that began.
    """

    kind: str
    gpu_key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    people: tuple[str, ...] = ()
    since: int | None = None
    booking_start: int | None = None
    memory_text: str = ""
    pids: tuple[int, ...] = ()


class EmptyGpu(NamedTuple):
    """A GPU that nobody is on now."""

    host: str
    gpu_key: str
    index: GpuNumber  # type: ignore[assignment]
    model: str


class WasteHistory(NamedTuple):
    """What history knows of GPUs, by their cards; promises that ended not long ago, and that nobody used."""

    runs: Mapping[str, GpuRun]
    unused_bookings: Sequence[UnusedBooking] = ()


# What a host tells


def find_waste_candidates(host: HostStatus) -> tuple[WasteCandidate, ...]:
    """What may be wasted on a host that is fresh; of any other nothing is known."""
    if host.state != "fresh":
        return ()
    keys: dict[str, int] = {}
    several = [(one, build_host_gpu_key(one, keys)) for one in host.gpus]
    return tuple(
        found for one, key in several if (found := build_waste_candidate(one, key, bool(host.unmatched_processes)))
    )


def build_waste_candidate(one: GpuStatus, key: str, others: bool) -> WasteCandidate | None:
    """The same of one GPU; with `others`, there are processes of which nobody knows on which GPU they are."""
    if one.state == "booked":
        return build_booking_candidate(one, key)
    kind = find_waste_kind(one, others) if one.state in TAKEN_STATES else None
    if kind is None:
        return None
    since = None if one.idle_since is None else int(one.idle_since)
    memory = "memory" if one.gpu.memory_used is None else formatting.format_size(one.gpu.memory_used)
    pids = {
        "dead": [pid for process in one.processes if process.is_zombie for pid in process.children],
        "ownerless": [pid for pid in one.ownerless_pids if pid is not None],
    }.get(kind, [])
    found = WasteCandidate(kind, key, one.gpu.number, one.model, one.people.users, since, None, memory)
    return found._replace(pids=tuple(sorted(set(pids))[:MAX_PIDS]))


def find_waste_kind(one: GpuStatus, others: bool) -> str | None:
    """Which kind of waste a GPU is that is taken; whether one that is idle is held, its past tells."""
    if any(process.is_zombie for process in one.processes):
        return "dead"
    if one.state == "held" and one.people.users and len(one.ownerless_pids) < len(one.processes):
        return "held"
    if one.ownerless_pids:
        return "ownerless"
    if one.has_unexplained_memory and not others:
        return "unexplained"
    return None if one.idle_since is None else "held"


def build_booking_candidate(one: GpuStatus, key: str) -> WasteCandidate | None:
    """A GPU that is promised now, and that nobody is on."""
    running = [booking for booking in one.bookings if booking.phase == "now"]
    since = [booking.unused_since for booking in running if booking.unused_since is not None]
    if not since or one.booking_use is None:
        return None
    # one without a beginning counts from when it was seen first
    first = min((seen for seen, _, _ in one.booking_use.use_by_booking.values()), default=since[0])
    began = min(int(booking.since.timestamp()) if booking.since else first for booking in running)
    return WasteCandidate("booking", key, one.gpu.number, one.model, one.people.bookers, min(since), began)


# With what history knows


def find_waste(  # each is one thing
    marked: Mapping[str, Sequence[WasteCandidate]],
    empty: Iterable[EmptyGpu],
    past: WasteHistory,
    rules: StateRules,
    odd: MutableMapping[str, int],
    now: float,
) -> list[WasteItem]:
    """All that is wasted, the most GPU-hours first.

    `empty` are GPUs that nobody is on now; `odd` is since when each GPU is what it should not be, and is kept up here.
    """
    teller = WasteEvaluator(past, rules, now)
    several = [(host, one) for host, marks in marked.items() for one in marks]
    lasting = update_anomalies(several, odd, now)
    # that two hosts tell a GPU is a problem of its own: whose hours these are, nobody can know
    twice = {
        card
        for card, count in Counter(build_fleet_gpu_key(host, one.gpu_key) for host, one in several).items()
        if count > 1
    }
    found: list[WasteItem] = []
    for host, one in several:
        if one.kind in ANOMALY_KINDS and not lasting[f"{one.kind} {build_fleet_gpu_key(host, one.gpu_key)}"]:
            continue
        made = teller.evaluate_booking(host, one) if one.kind == "booking" else teller.evaluate_taken(host, one, odd)
        if made:
            found.append(
                made._replace(since=None, hours=None) if build_fleet_gpu_key(host, one.gpu_key) in twice else made
            )
    found += map(teller.build_ended_booking, teller.ended_bookings)
    promised: Counter[str] = Counter()
    for each in found:
        if each.kind == "booking":
            promised[build_fleet_gpu_key(each.host, each.gpu_key)] += each.hours or 0  # type: ignore[assignment] # hours have parts
    told = {build_fleet_gpu_key(one.host, one.gpu_key) for one in found if one.kind != "booking"}
    for place in empty:
        card = build_fleet_gpu_key(place.host, place.gpu_key)
        unused = None if card in told else teller.evaluate_empty(place, promised[card])
        if unused:
            found.append(unused)
    return sorted(found, key=waste_sort_key)


def waste_sort_key(one: WasteItem) -> tuple[object, ...]:
    """The most hours first, those that nobody can know last; else by host and GPU."""
    return (
        one.hours is None,
        -(one.hours or 0),
        natural_sort_key(one.host),
        gpu_number_sort_key(one.index),
        WASTE_KINDS.index(one.kind),
        one.since or 0,
    )


def update_anomalies(
    several: Iterable[tuple[str, WasteCandidate]], odd: MutableMapping[str, int], now: float
) -> dict[str, bool]:
    """Of each GPU that is what it should not be, whether it has been so for long enough; the others are forgotten."""
    there = {
        f"{one.kind} {build_fleet_gpu_key(host, one.gpu_key)}" for host, one in several if one.kind in ANOMALY_KINDS
    }
    for gone in [name for name in odd if name.partition(" ")[0] in ANOMALY_KINDS and name not in there]:
        del odd[gone]
    for name in there:
        odd[name] = min(odd.get(name, int(now)), int(now))
    return {name: now - odd[name] >= MIN_ANOMALY_S for name in there}


class WasteEvaluator:
    """Tells what is wasted, from what is so now and what was before."""

    def __init__(self, past: WasteHistory, rules: StateRules, now: float) -> None:
        """By what it goes."""
        self.history, self.rules, self.now = past, rules, now
        self.ended_bookings = [one for one in past.unused_bookings if self.is_reported(one)]
        self.ended_until: dict[str, int] = {}  # of each GPU, up to when such promises count
        for one in self.ended_bookings:
            card = build_fleet_gpu_key(one.host, one.gpu_key)
            self.ended_until[card] = max(one.until, self.ended_until.get(card, 0))

    def find_run(self, host: str, key: str) -> GpuRun | None:
        """What history knows of a GPU."""
        return find_current_run(self.history.runs.get(build_fleet_gpu_key(host, key)), self.now)

    def list_display_names(self, told: Iterable[str]) -> tuple[str, ...]:
        """Who it is, as far as it may be said, each once."""
        people = self.rules.people
        return (
            tuple({people.resolve_user(one): people.display_login(one) for one in told}.values())
            if self.rules.privacy.users
            else ()
        )

    def evaluate_taken(self, host: str, one: WasteCandidate, odd: Mapping[str, int]) -> WasteItem | None:
        """A GPU that is taken; None if it is idle, but not for long enough."""
        since, hours = self.measure_idle(host, one)
        if one.kind == "held" and (hours is None or hours * HOUR < self.rules.limits.held_after):
            return None
        if since is None:
            since = odd.get(f"{one.kind} {build_fleet_gpu_key(host, one.gpu_key)}")
        who = self.list_display_names(one.people)
        what, do, command = describe_waste(host, one, who)
        return WasteItem(
            kind=one.kind,
            host=host,
            gpu_key=one.gpu_key,
            index=one.index,
            model=one.model,
            people=who,
            since=since,
            until=None,
            hours=hours,
            pids=one.pids,
            what=what,
            advice=do,
            command=command,
        )

    def measure_idle(self, host: str, one: WasteCandidate) -> tuple[int | None, float | None]:
        """Since when a GPU is idle, and for how many hours; one that is used wastes nobody knows what."""
        since, now = one.since, self.now
        if since is None:
            return None, None
        worn = self.find_run(host, one.gpu_key)
        seconds = max(0, now - since)
        # the builder forgets over a gap, and history does not; where the two do not meet, something may lie between
        if (
            worn
            and worn.kind == RUN_IDLE
            and since <= worn.last_seen + MINUTE
            and not are_different_people(worn.people, one.people)
        ):
            seen = worn.minutes * MINUTE + max(0, now - (worn.last_seen + MINUTE))
            if worn.first_seen < worn.since and worn.since > since:  # somebody else held it before
                return worn.since, seconds_to_hours(seen)
            since, seconds = min(since, worn.since), max(seconds, seen)
        return since, seconds_to_hours(seconds)

    def evaluate_booking(self, host: str, one: WasteCandidate) -> WasteItem | None:
        """A booking that runs; None if somebody was on the GPU since it began, or nobody can tell."""
        seconds = self.measure_unused_booking(host, one)
        if seconds is None or seconds < MIN_UNUSED_BOOKING_S:
            return None
        who = self.list_display_names(one.people)
        return WasteItem(
            kind="booking",
            host=host,
            gpu_key=one.gpu_key,
            index=one.index,
            model=one.model,
            people=who,
            since=one.booking_start,
            until=None,
            hours=seconds_to_hours(seconds),
            pids=(),
            what="booked, and nobody has been on it since that began",
            advice=f"{format_request(who)} to use it or to release it.",
        )

    def measure_unused_booking(self, host: str, one: WasteCandidate) -> float | None:
        """For how many seconds that were seen nobody was on a GPU that is promised; None if somebody was."""
        if one.booking_start is None or one.since is None:
            return None
        if one.since <= one.booking_start + FIRST_CHECK_S:
            # a booking that was somebody else's before began when theirs did
            return max(0, self.now - max(one.since, self.ended_until.get(build_fleet_gpu_key(host, one.gpu_key), 0)))
        worn = self.find_run(host, one.gpu_key)
        promise = worn.booked_run if worn else None
        if (
            not worn
            or not promise
            or one.since > worn.last_seen + MINUTE
            or are_different_people(promise.people, one.people)
        ):
            return None
        if worn.last_taken is not None and worn.last_taken >= one.booking_start:
            return None
        seen = measure_seen_since(promise, one.booking_start)
        return None if seen is None else seen + max(0, self.now - (promise.last_seen + MINUTE))

    def is_reported(self, one: UnusedBooking) -> bool:
        """Whether a promise that is over is told: not one of minutes, nor one that goes on after all."""
        worn = self.find_run(one.host, one.gpu_key)
        goes_on = worn is not None and worn.booked_run is not None and worn.booked_run.since == one.since
        return one.minutes * MINUTE >= MIN_UNUSED_BOOKING_S and not goes_on

    def build_ended_booking(self, one: UnusedBooking) -> WasteItem:
        """A booking that is over, and that nobody used."""
        who = self.list_display_names(one.people)
        return WasteItem(
            kind="booking",
            host=one.host,
            gpu_key=one.gpu_key,
            index=one.index,
            model=one.model,
            people=who,
            since=one.since,
            until=one.until,
            hours=seconds_to_hours(one.minutes * MINUTE),
            pids=(),
            what="was booked, and nobody was on it in all that time",
            advice=f"{format_request(who)} to release what is not needed.",
        )

    def evaluate_empty(self, one: EmptyGpu, promised: float) -> WasteItem | None:
        """A GPU that nobody has been on for long; what bookings count of it is not counted again."""
        worn = self.find_run(one.host, one.gpu_key)
        if worn is None or not is_long_unused(worn):
            return None
        until = worn.last_seen + MINUTE
        live = self.now - until if 0 <= self.now - until <= 2 * HOUR else 0  # the hour that is not rolled up yet
        hours = max(0.0, round(seconds_to_hours(worn.minutes * MINUTE + live) - promised, 2))
        days = worn.minutes * MINUTE // DAY
        seen = f"{days} days that were seen"
        what = f"nobody was ever on it, in {seen}" if worn.last_taken is None else f"nobody has been on it for {seen}"
        return WasteItem(
            kind="unused",
            host=one.host,
            gpu_key=one.gpu_key,
            index=one.index,
            model=one.model,
            people=(),
            since=worn.since,
            until=None,
            hours=hours,
            pids=(),
            what=what,
            advice="Tell people of it, or move it to where it is needed.",
        )


def measure_seen_since(promise: BookedRun, began: int) -> float | None:
    """How many seconds were seen of a booking that began then; None if that cannot be told from the one before it."""
    if promise.since >= began - MINUTE:
        return promise.minutes * MINUTE
    has_gaps = promise.minutes < (promise.last_seen - promise.since) // MINUTE + 1
    return None if has_gaps else promise.last_seen + MINUTE - began


def is_long_unused(worn: GpuRun) -> bool:
    """Whether nobody was on a GPU in all the minutes of 30 days that were seen: what was not seen is not unused."""
    return worn.kind == RUN_EMPTY and worn.minutes * MINUTE >= MIN_UNUSED_DAYS * DAY


def seconds_to_hours(seconds: float) -> float:
    """In hours."""
    return round(seconds / HOUR, 2)


def format_request(who: Sequence[str]) -> str:
    """Whom to ask."""
    return f"Ask {formatting.join_names(who)}" if who else "Ask who booked it"


def describe_waste(host: str, one: WasteCandidate, who: Sequence[str]) -> tuple[str, str, str]:
    """What is so, what to do, and with which command."""
    if one.kind == "dead":
        kill = " ".join(map(str, one.pids))
        return f"{one.memory_text} taken by a dead process whose children live on", f"On {host}:", f"kill {kill}"
    if one.kind == "ownerless":
        what = f"{one.memory_text} taken by a process of unknown owner"
        if not one.pids:
            return what, f"On {host}, see what runs there.", ""
        return what, f"On {host}, see whose it is:", f"ps -o pid,user,args -p {','.join(map(str, one.pids))}"
    if one.kind == "unexplained":
        device = "/dev/nvidia" + ("*" if one.index is None else str(one.index).partition(":")[0])
        return (
            f"{one.memory_text} taken, and no process has it",
            f"As root on {host}, see who does:",
            f"fuser -v {device}",
        )
    whom = f"Ask {formatting.join_names(who)}" if who else "Ask whose it is"
    return f"{one.memory_text} taken and hardly used", f"{whom} whether it is still needed.", ""
