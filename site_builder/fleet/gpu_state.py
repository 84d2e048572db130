"""The state of a GPU: the first that holds of lost, unknown, violated, held, busy, booked, free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import BoardBooking, BoardProcess, Gpu, GpuProblem, Limits, Shown
from site_builder.core.people import People

# The first that holds counts. Codes in history.db have an order of their own (samples.STATES).
PRECEDENCE = ("lost", "unknown", "violated", "held", "busy", "booked", "free")
# The problems of a GPU that cannot be used until it is reset or its host is booted again.
LOST_KINDS = frozenset({"lost", "off-bus", "reset"})
RECOVERY = "recovery"
MIG_MODE = "mig.mode.current"
NO_INSTANCES = "it is in MIG mode and tells no instances, so that nothing can be run on it"


class Seen(NamedTuple):
    """What is known of a GPU on a host that is fresh."""

    gpu: Gpu
    processes: Sequence[BoardProcess]
    logins: Sequence[str | None]
    bookings: Sequence[BoardBooking]
    bookers: Sequence[str]
    processes_told: bool
    idle_since: float | None
    problems: Sequence[GpuProblem] = ()
    unreported: str = ""  # the tool's words in the place of its processes


@dataclass(frozen=True)
class Rules:
    """By what a state is decided, and what may be said of people."""

    limits: Limits
    people: People
    shown: Shown


def memory_taken(gpu: Gpu, limits: Limits) -> bool:
    """Whether more of its memory is in use than a display needs; its use answers where the driver tells no memory."""
    if gpu.memory_used is None:
        return gpu.utilization_gpu is not None and gpu.utilization_gpu >= limits.idle_percent
    percent = gpu.memory_used / gpu.memory_total * 100 if gpu.memory_total else 0
    return gpu.memory_used >= limits.free_mib or percent >= limits.free_percent


def is_idle(gpu: Gpu, taken: bool, limits: Limits) -> bool:
    """Taken, and not used; one that does not tell its use is not called idle."""
    return taken and gpu.utilization_gpu is not None and gpu.utilization_gpu < limits.idle_percent


def shows_use(gpu: Gpu, limits: Limits) -> bool:
    """Return whether memory or use shows that somebody is on it, whatever is known of its processes."""
    return memory_taken(gpu, limits) or (gpu.utilization_gpu is not None and gpu.utilization_gpu >= limits.idle_percent)


def why_lost(gpu: Gpu, problems: Sequence[GpuProblem]) -> str:
    """Return why a GPU cannot be used until it is reset; empty where it can."""
    lost = gpu.lost or (gpu.parent.lost if gpu.parent else None)
    if lost:
        return f"the driver cannot reach it: {lost}"
    return next((one.what for one in problems if one.kind in LOST_KINDS or asks_for_reset(one)), "")


def asks_for_reset(problem: GpuProblem) -> bool:
    """Return whether the driver asks for a reset or a reboot now. What is to be drained first may finish its work."""
    words = problem.what.lower()
    return problem.kind == RECOVERY and ("reset" in words or "reboot" in words) and "drain" not in words


def state(seen: Seen, rules: Rules, now: Now) -> tuple[str, str]:
    """The state of a GPU of a fresh host, and the reason."""
    gpu, limits = seen.gpu, rules.limits
    lost = why_lost(gpu, seen.problems)
    if lost:
        return "lost", lost
    error = gpu.error or (gpu.parent.error if gpu.parent else None)
    if error:
        return "unknown", error
    taken = bool(seen.processes) or memory_taken(gpu, limits) or (not seen.processes_told and shows_use(gpu, limits))
    return state_of_taken(seen, rules, now) if taken else state_of_untaken(seen, limits, now)


def state_of_taken(seen: Seen, rules: Rules, now: Now) -> tuple[str, str]:
    """Somebody is on it, or has left something there."""
    violation = violated(seen, rules)
    if violation:
        return "violated", violation
    if seen.idle_since is not None and now.reached(seen.idle_since + rules.limits.held_after):
        return "held", held(seen, now)
    return "busy", busy(seen, rules.limits)


def others_on(seen: Seen, people: People) -> dict[str, list[BoardProcess]]:
    """Who is on it that has not booked it, with what; nobody unless all names are logins that we know."""
    found: dict[str, list[BoardProcess]] = {}
    if not seen.bookers or not all(people.is_known(name) for name in seen.bookers):
        return found
    entitled = {people.person(name) for name in seen.bookers}
    for login, process in zip(seen.logins, seen.processes):
        person = people.of_login(login)
        if login and person and person not in entitled:
            found.setdefault(people.user(login), []).append(process)
    return found


def violated(seen: Seen, rules: Rules) -> str:
    """That somebody is on it who has not booked it."""
    others = sorted(others_on(seen, rules.people))
    if not others:
        return ""
    if not rules.shown.users:
        return "booked by one person, used by another"
    bookers = list(dict.fromkeys(rules.people.shown(name) for name in seen.bookers))
    return f"booked by {formatting.names(bookers)}, used by {formatting.names(others)}"


def held(seen: Seen, now: Now) -> str:
    """How much is held, by whom, since when."""
    since = formatting.clock(datetime.fromtimestamp(seen.idle_since or 0, now.zone), now)
    told = of_processes(seen)
    return f"{told or memory(seen.gpu)} taken{by(seen)}, hardly used since {since}"


def use_shown(gpu: Gpu, limits: Limits) -> str:
    """Say by what a GPU shows that somebody is on it."""
    if gpu.memory_used is not None and memory_taken(gpu, limits):
        return f"{memory(gpu)} in use"
    return f"{gpu.utilization_gpu:.0f} % used"


def not_reported(seen: Seen) -> str:
    """Say that nobody knows which processes are on it, in the tool's words where it has some."""
    return f"the processes on it could not be read{f': {seen.unreported}' if seen.unreported else ''}"


def busy(seen: Seen, limits: Limits) -> str:
    """Who is on it, or that nobody knows."""
    dead = [process for process in seen.processes if process.dead]
    if dead:
        pids = " ".join(str(pid) for process in dead for pid in process.children)
        which = formatting.names([str(process.pid) for process in dead])
        return f"process {which} is dead, but its children live on: kill {pids}"
    if not seen.processes and not seen.processes_told:
        return f"{use_shown(seen.gpu, limits)}; {not_reported(seen)}"
    if not seen.processes and seen.gpu.memory_used is None:
        return f"{seen.gpu.utilization_gpu:.0f} % used, though no process is told"
    if not seen.processes:
        return f"{memory(seen.gpu)} in use that no process explains"
    told = of_processes(seen)
    return f"in use{by(seen)}" + (f", {told} by its processes" if told else "")


def by(seen: Seen) -> str:
    """` by alice and bob`, or nothing where nobody is named."""
    users = list(dict.fromkeys(process.user for process in seen.processes if process.user))
    return f" by {formatting.names(users)}" if users else ""


def of_processes(seen: Seen) -> str:
    """How much memory its processes have, where the GPU shares that of its host and tells none itself."""
    told = [process.used_memory for process in seen.processes if process.used_memory is not None]
    return formatting.size(sum(told)) if told and seen.gpu.memory_used is None else ""


def memory(gpu: Gpu) -> str:
    """How much of its memory is in use."""
    return "memory" if gpu.memory_used is None else formatting.size(gpu.memory_used)


def state_of_untaken(seen: Seen, limits: Limits, now: Now) -> tuple[str, str]:
    """Nobody seems to be on it: is that certain, and is it promised, now or soon?"""
    unclear = unknown(seen)
    if unclear:
        return "unknown", unclear
    current = [booking for booking in seen.bookings if booking.phase == "now"]
    if current:
        until = formatting.clock(max(booking.until for booking in current), now)
        by_whom = formatting.names(list(dict.fromkeys(booking.name for booking in current if booking.name)))
        return "booked", f"promised{f' to {by_whom}' if by_whom else ''} until {until}, and not used"
    soon = promised_soon(seen.bookings, limits, now)
    if soon and soon.since:
        to = f" to {soon.name}" if soon.name else ""
        return "free", f"until {formatting.clock(soon.since, now)}, then promised{to}"
    if seen.gpu.memory_used is None:
        return "free", "no process; its driver does not tell the memory in use"
    return "free", f"no process, {formatting.size(seen.gpu.memory_used)} in use"


def unknown(seen: Seen) -> str:
    """Why nobody can tell that it is free, if so."""
    if not seen.processes_told:
        return not_reported(seen)
    recovery = next((one.what for one in seen.problems if one.kind == RECOVERY), "")
    if recovery:
        return recovery
    if seen.gpu.memory_used is None and seen.gpu.utilization_gpu is None:
        return "the driver tells neither its memory nor its use"
    return NO_INSTANCES if in_mig_mode(seen.gpu) else ""


def in_mig_mode(gpu: Gpu) -> bool:
    """Whether a GPU is cut into instances, of which it then is none itself."""
    place = place_of_mode(gpu.columns) if gpu.columns else None
    return place is not None and gpu.cells[place].lower() == "enabled"


@lru_cache(maxsize=64)
def place_of_mode(columns: tuple[str, ...]) -> int | None:
    """Where the cell stands that tells it; a fleet has a few headers."""
    return columns.index(MIG_MODE) if MIG_MODE in columns else None


def promised_soon(bookings: Sequence[BoardBooking], limits: Limits, now: Now) -> BoardBooking | None:
    """The first booking that comes, if it comes soon."""
    coming = (one for one in bookings if one.phase == "coming" and one.since)
    first = next(coming, None)
    return first if first and first.since and now.reached(first.since.timestamp() - limits.soon) else None
