"""Decide which GPUs are wasted: held or booked and not used, or never used at all.

A GPU has at most one line about its present: the first that applies of dead, held by somebody, ownerless, unexplained,
held, booking, vacant. So no GPU-hour counts twice; hours of a booking do not count again as vacant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, MutableMapping, Sequence
from typing import NamedTuple

from site_builder.core.formatting import DAY, HOUR, MINUTE, format_names, format_size
from site_builder.core.model import GpuNumber, GpuStatus, HostStatus
from site_builder.core.names import gpu_number_sort_key, natural_sort_key
from site_builder.core.people import are_different_people
from site_builder.fleet.gpu_state import StateRules
from site_builder.history import idle_runs
from site_builder.history.idle_runs import IdleRun, IdleRunHistory, UnusedBookingRun, build_fleet_gpu_key
from site_builder.history.model import TAKEN_STATES, list_host_gpu_keys

# In the order in which they are listed for one GPU.
WASTE_KINDS = ("dead", "held", "ownerless", "unexplained", "booking", "vacant")
WASTE_FILE, WASTE_SCHEMA = "waste.json", 1
MIN_UNUSED_DAYS = 30
ENDED_BOOKING_DAYS = 7
# A booking is reported once nobody was on the GPU for so long; its first check comes this soon after it began.
MIN_UNUSED_BOOKING_S = HOUR
FIRST_CHECK_S = 5 * MINUTE
# Two files that were not written at once can disagree for a moment: these kinds are reported only when they last.
MIN_ANOMALY_S = 5 * MINUTE
ANOMALY_KINDS = frozenset({"dead", "ownerless", "unexplained"})
MAX_PIDS = 20


class WasteItem(NamedTuple):
    """Wasted GPU; people are as they are shown, unknown hours are None, `until` is the end of an ended booking."""

    kind: str
    host: str
    gpu_key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    people: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    hours: float | None = None
    pids: tuple[int, ...] = ()
    what: str = ""
    advice: str = ""
    command: str = ""


class WasteReport(NamedTuple):
    """All that is wasted, the most GPU-hours first; `hosts` are all hosts of the board."""

    built_at: int
    build_interval_s: int
    items: tuple[WasteItem, ...]
    hosts: tuple[str, ...] = ()
    history_since: int | None = None
    problem: str | None = None


class WasteCandidate(NamedTuple):
    """GPU that may be wasted, from the present alone; `people` are logins, which are never published.

    `since` is when the GPU became idle; for a booking, when nobody was on it any more.
    """

    kind: str
    host: str
    gpu_key: str
    index: GpuNumber  # type: ignore[assignment]
    model: str
    people: tuple[str, ...] = ()
    since: int | None = None
    booking_start: int | None = None
    memory_text: str = ""
    pids: tuple[int, ...] = ()

    @property
    def fleet_key(self) -> str:
        return build_fleet_gpu_key(self.host, self.gpu_key)


# Candidates, from the present state of a host


def find_waste_candidates(host: HostStatus) -> tuple[WasteCandidate, ...]:
    """Find GPUs that may be wasted on a fresh host; nothing is known of any other."""
    if host.state != "fresh":
        return ()
    candidates = []
    for gpu, key in zip(host.gpus, list_host_gpu_keys(host.gpus)):
        if gpu.state == "booked":
            running = [booking for booking in gpu.bookings if booking.phase == "now"]
            since = [booking.unused_since for booking in running if booking.unused_since is not None]
            if not since or gpu.booking_use is None:
                continue
            # a booking without a start counts from when it was seen first
            first_seen = min((seen for seen, _, _ in gpu.booking_use.use_by_booking.values()), default=since[0])
            candidates.append(
                WasteCandidate(
                    kind="booking",
                    host=host.name,
                    gpu_key=key,
                    index=gpu.gpu.number,
                    model=gpu.model,
                    people=gpu.people.bookers,
                    since=min(since),
                    booking_start=min(
                        int(booking.since.timestamp()) if booking.since else first_seen for booking in running
                    ),
                )
            )
        elif gpu.state in TAKEN_STATES and (kind := find_waste_kind(gpu, bool(host.unmatched_processes))):
            pids: Iterable[int] = ()
            if kind == "dead":
                pids = (pid for process in gpu.processes if process.is_zombie for pid in process.children)
            elif kind == "ownerless":
                pids = (pid for pid in gpu.ownerless_pids if pid is not None)
            candidates.append(
                WasteCandidate(
                    kind=kind,
                    host=host.name,
                    gpu_key=key,
                    index=gpu.gpu.number,
                    model=gpu.model,
                    people=gpu.people.users,
                    since=None if gpu.idle_since is None else int(gpu.idle_since),
                    memory_text=describe_waste_memory(gpu),
                    pids=tuple(sorted(set(pids))[:MAX_PIDS]),
                )
            )
    return tuple(candidates)


def describe_waste_memory(gpu: GpuStatus) -> str:
    """Return how much memory is held; where it is shared with the host, by the processes on the GPU alone."""
    used = gpu.gpu.memory_used
    if gpu.gpu.is_memory_shared:
        sizes = [process.used_memory for process in gpu.processes if process.used_memory is not None]
        used = sum(sizes) if sizes else None
    return "memory" if used is None else format_size(used)


def find_waste_kind(gpu: GpuStatus, has_unmatched: bool) -> str | None:
    """Return how a taken GPU is wasted; with `has_unmatched`, the host has processes on an unknown GPU."""
    if any(process.is_zombie for process in gpu.processes):
        return "dead"
    if gpu.state == "held" and gpu.people.users and len(gpu.ownerless_pids) < len(gpu.processes):
        return "held"
    if gpu.ownerless_pids:
        return "ownerless"
    if gpu.has_unexplained_memory and not has_unmatched:
        return "unexplained"
    return None if gpu.idle_since is None else "held"  # history knows whether it is idle for long enough


# Waste, from candidates and history


def find_waste(
    candidates: Sequence[WasteCandidate],
    empty_gpus: Iterable[WasteCandidate],
    history: IdleRunHistory,
    rules: StateRules,
    anomalies: MutableMapping[str, int],
    now: float,
) -> list[WasteItem]:
    """List all that is wasted, the most GPU-hours first; `empty_gpus` are those that nobody is on.

    `anomalies` has the time since when each GPU is in a state that should not be, and is updated here.
    """
    evaluator = WasteRules(history, rules, now)
    current = {f"{gpu.kind} {gpu.fleet_key}" for gpu in candidates if gpu.kind in ANOMALY_KINDS}
    for name in list(anomalies):
        if name.partition(" ")[0] in ANOMALY_KINDS and name not in current:
            del anomalies[name]
    for name in current:
        anomalies[name] = min(anomalies.get(name, int(now)), int(now))
    # if two hosts report the same GPU, it is unknown whose hours these are
    counts = Counter(gpu.fleet_key for gpu in candidates)
    items: list[WasteItem] = []
    for gpu in candidates:
        since = anomalies.get(f"{gpu.kind} {gpu.fleet_key}")
        if gpu.kind in ANOMALY_KINDS and since is not None and now - since < MIN_ANOMALY_S:
            continue
        item = evaluator.evaluate_booking(gpu) if gpu.kind == "booking" else evaluator.evaluate_taken(gpu, since)
        if item:
            items.append(item._replace(since=None, hours=None) if counts[gpu.fleet_key] > 1 else item)
    items += map(evaluator.build_ended_booking, evaluator.ended_bookings)
    booked_hours: dict[str, float] = defaultdict(float)
    taken_gpus = set()
    for item in items:
        fleet_key = build_fleet_gpu_key(item.host, item.gpu_key)
        if item.kind == "booking":
            booked_hours[fleet_key] += item.hours or 0
        else:
            taken_gpus.add(fleet_key)
    for gpu in empty_gpus:
        unused = None if gpu.fleet_key in taken_gpus else evaluator.evaluate_empty(gpu, booked_hours[gpu.fleet_key])
        if unused:
            items.append(unused)
    return sorted(
        items,
        key=lambda item: (
            item.hours is None,
            -(item.hours or 0),
            natural_sort_key(item.host),
            gpu_number_sort_key(item.index),
            WASTE_KINDS.index(item.kind),
            item.since or 0,
        ),
    )


class WasteRules:
    """Decides which candidates are wasted, and for how many hours."""

    def __init__(self, history: IdleRunHistory, rules: StateRules, now: float) -> None:
        self.history, self.rules, self.now = history, rules, now
        self.ended_bookings: list[UnusedBookingRun] = []
        self.ended_until: dict[str, int] = {}  # end of the last such booking of each GPU
        for booking in history.unused_bookings:
            run = self.find_run(booking.host, booking.gpu_key)
            goes_on = run is not None and run.booked_run is not None and run.booked_run.since == booking.since
            if booking.minutes * MINUTE >= MIN_UNUSED_BOOKING_S and not goes_on:
                self.ended_bookings.append(booking)
                gpu_key = build_fleet_gpu_key(booking.host, booking.gpu_key)
                self.ended_until[gpu_key] = max(booking.until, self.ended_until.get(gpu_key, 0))

    def find_run(self, host: str, gpu_key: str) -> IdleRun | None:
        return idle_runs.find_current_idle_run(self.history.runs.get(build_fleet_gpu_key(host, gpu_key)), self.now)

    def list_display_names(self, logins: Iterable[str]) -> tuple[str, ...]:
        """List people as they are shown, each once; nobody if people are not shown."""
        if not self.rules.privacy.users:
            return ()
        people = self.rules.people
        return tuple({people.resolve_user(login): people.display_login(login) for login in logins}.values())

    def evaluate_taken(self, candidate: WasteCandidate, anomaly_since: int | None) -> WasteItem | None:
        """Return a taken GPU as wasted; None if it is not idle for long enough."""
        since, hours, now = candidate.since, None, self.now
        if since is not None:
            run = self.find_run(candidate.host, candidate.gpu_key)
            seconds = max(0, now - since)
            # history remembers over a gap, the builder does not; use only a run that reaches up to what the builder saw
            if (
                run
                and run.kind == idle_runs.RUN_IDLE
                and since <= run.last_seen + MINUTE
                and not are_different_people(run.people, candidate.people)
            ):
                seen = run.minutes * MINUTE + max(0, now - (run.last_seen + MINUTE))
                if run.first_seen < run.since and run.since > since:  # somebody else held it before
                    since, seconds = run.since, seen
                else:
                    since, seconds = min(since, run.since), max(seconds, seen)
            hours = measure_wasted_hours(seconds)
        if candidate.kind == "held" and (hours is None or hours * HOUR < self.rules.limits.held_after):
            return None
        people = self.list_display_names(candidate.people)
        what, advice, command = decide_waste_advice(candidate, people)
        return start_waste_item(candidate.kind, candidate)._replace(
            people=people,
            since=anomaly_since if since is None else since,
            hours=hours,
            pids=candidate.pids,
            what=what,
            advice=advice,
            command=command,
        )

    def evaluate_booking(self, candidate: WasteCandidate) -> WasteItem | None:
        """Return a running booking as wasted; None if the GPU was used since it began, or if that is unknown."""
        seconds = self.measure_unused_booking(candidate)
        if seconds is None or seconds < MIN_UNUSED_BOOKING_S:
            return None
        item = self.build_booking_item(candidate, seconds, "to use it or release it")
        return item._replace(since=candidate.booking_start, what="booked, idle")

    def build_ended_booking(self, booking: UnusedBookingRun) -> WasteItem:
        item = self.build_booking_item(booking, booking.minutes * MINUTE, "to release bookings that are not needed")
        what = "booked, never used"
        return item._replace(since=booking.since, until=booking.until, what=what)

    def build_booking_item(self, booking: WasteCandidate | UnusedBookingRun, seconds: float, request: str) -> WasteItem:
        people = self.list_display_names(booking.people)
        bookers = format_names(people) if people else "whoever booked it"
        item = start_waste_item("booking", booking)
        return item._replace(people=people, hours=measure_wasted_hours(seconds), advice=f"Ask {bookers} {request}.")

    def measure_unused_booking(self, candidate: WasteCandidate) -> float | None:
        """Return for how many seconds a booked GPU was seen with nobody on it; None if somebody was."""
        start, since = candidate.booking_start, candidate.since
        if start is None or since is None:
            return None
        if since <= start + FIRST_CHECK_S:
            # if somebody else had booked it before, this booking began when theirs ended
            return max(0, self.now - max(since, self.ended_until.get(candidate.fleet_key, 0)))
        run = self.find_run(candidate.host, candidate.gpu_key)
        booked_run = run.booked_run if run else None
        if (
            not run
            or not booked_run
            or since > run.last_seen + MINUTE
            or are_different_people(booked_run.people, candidate.people)
            or (run.last_taken is not None and run.last_taken >= start)
        ):
            return None
        unrecorded = max(0, self.now - (booked_run.last_seen + MINUTE))
        if booked_run.since >= start - MINUTE:
            return booked_run.minutes * MINUTE + unrecorded
        # the run began with an earlier booking: without gaps, the minutes since the start are known all the same
        has_gaps = booked_run.minutes < (booked_run.last_seen - booked_run.since) // MINUTE + 1
        return None if has_gaps else booked_run.last_seen + MINUTE - start + unrecorded

    def evaluate_empty(self, gpu: WasteCandidate, booked_hours: float) -> WasteItem | None:
        """Return a GPU as wasted that nobody has been on for long, without the hours that bookings count."""
        run = self.find_run(gpu.host, gpu.gpu_key)
        if run is None or not is_gpu_long_unused(run):
            return None
        until = run.last_seen + MINUTE
        pending = self.now - until if 0 <= self.now - until <= 2 * HOUR else 0  # the hour that is not rolled up yet
        seen = f"{run.minutes * MINUTE // DAY} days monitored"
        return start_waste_item("vacant", gpu)._replace(
            since=run.since,
            hours=max(0.0, round(measure_wasted_hours(run.minutes * MINUTE + pending) - booked_hours, 2)),
            what=f"never used in {seen}" if run.last_taken is None else f"not used for {seen}",
            advice="Announce it, or move it.",
        )


def start_waste_item(kind: str, gpu: WasteCandidate | UnusedBookingRun) -> WasteItem:
    return WasteItem(kind=kind, host=gpu.host, gpu_key=gpu.gpu_key, index=gpu.index, model=gpu.model)


def is_gpu_long_unused(run: IdleRun) -> bool:
    """Return True if nobody was on a GPU in 30 days of minutes that were seen; a gap does not count as unused."""
    return run.kind == idle_runs.RUN_EMPTY and run.minutes * MINUTE >= MIN_UNUSED_DAYS * DAY


def measure_wasted_hours(seconds: float) -> float:
    return round(seconds / HOUR, 2)


def decide_waste_advice(candidate: WasteCandidate, people: Sequence[str]) -> tuple[str, str, str]:
    """Return what is wrong with a taken GPU, what to do about it, and the command for that."""
    host, memory = candidate.host, candidate.memory_text
    if candidate.kind == "dead":
        command = f"kill {' '.join(map(str, candidate.pids))}"
        return f"{memory} held by an exited process, child processes still running", f"On {host}:", command
    if candidate.kind == "ownerless":
        what = f"{memory} held by a process of unknown owner"
        if not candidate.pids:
            return what, f"Check what runs on {host}.", ""
        command = f"ps -o pid,user,args -p {','.join(map(str, candidate.pids))}"
        return what, f"Find its owner on {host}:", command
    if candidate.kind == "unexplained":
        device = "/dev/nvidia" + ("*" if candidate.index is None else str(candidate.index).partition(":")[0])
        return f"{memory} held, but by no process", f"Find the process as root on {host}:", f"fuser -v {device}"
    owner = format_names(people) if people else "its owner"
    return f"{memory} held, idle", f"Ask {owner} whether it is still needed.", ""
