"""The state of a GPU: the first that holds of lost, unknown, conflict, held, busy, booked, free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import BookingStatus, Gpu, GpuProblem, PrivacySettings, ProcessStatus, StateLimits
from site_builder.core.people import PeopleDirectory

# The first that holds counts. Codes in history.db have an order of their own (samples.STATES).
STATE_PRECEDENCE = ("lost", "unknown", "conflict", "held", "busy", "booked", "free")
# The problems of a GPU that cannot be used until it is reset or its host is booted again.
LOST_PROBLEM_KINDS = frozenset({"lost", "off-bus", "reset"})
RECOVERY_KIND = "recovery"
MIG_MODE_COLUMN = "mig.mode.current"
NO_INSTANCES_REASON = "it is in MIG mode and tells no instances, so that nothing can be run on it"


class GpuInput(NamedTuple):
    """What is known of a GPU on a host that is fresh."""

    gpu: Gpu
    processes: Sequence[ProcessStatus]
    logins: Sequence[str | None]
    bookings: Sequence[BookingStatus]
    bookers: Sequence[str]
    has_process_list: bool
    idle_since: float | None
    problems: Sequence[GpuProblem] = ()
    unreported: str = ""  # the tool's words in the place of its processes


@dataclass(frozen=True)
class StateRules:
    """By what a state is decided, and what may be said of people."""

    limits: StateLimits
    people: PeopleDirectory
    privacy: PrivacySettings


def is_memory_taken(gpu: Gpu, limits: StateLimits) -> bool:
    """Whether more of its memory is in use than a display needs; its use answers where the driver tells no memory."""
    if gpu.memory_used is None:
        return gpu.utilization_gpu is not None and gpu.utilization_gpu >= limits.idle_percent
    percent = gpu.memory_used / gpu.memory_total * 100 if gpu.memory_total else 0
    return gpu.memory_used >= limits.free_mib or percent >= limits.free_percent


def is_gpu_idle(gpu: Gpu, taken: bool, limits: StateLimits) -> bool:
    """Taken, and not used; one that does not tell its use is not called idle."""
    return taken and gpu.utilization_gpu is not None and gpu.utilization_gpu < limits.idle_percent


def has_visible_use(gpu: Gpu, limits: StateLimits) -> bool:
    """Return whether memory or use shows that somebody is on it, whatever is known of its processes."""
    return is_memory_taken(gpu, limits) or (
        gpu.utilization_gpu is not None and gpu.utilization_gpu >= limits.idle_percent
    )


def explain_lost(gpu: Gpu, problems: Sequence[GpuProblem]) -> str:
    """Return why a GPU cannot be used until it is reset; empty where it can."""
    lost = gpu.lost or (gpu.parent.lost if gpu.parent else None)
    if lost:
        return f"the driver cannot reach it: {lost}"
    return next((one.what for one in problems if one.kind in LOST_PROBLEM_KINDS or is_reset_requested(one)), "")


def is_reset_requested(problem: GpuProblem) -> bool:
    """Return whether the driver asks for a reset or a reboot now. What is to be drained first may finish its work."""
    words = problem.what.lower()
    return problem.kind == RECOVERY_KIND and ("reset" in words or "reboot" in words) and "drain" not in words


def decide_gpu_state(seen: GpuInput, rules: StateRules, now: Now) -> tuple[str, str]:
    """The state of a GPU of a fresh host, and the reason."""
    gpu, limits = seen.gpu, rules.limits
    lost = explain_lost(gpu, seen.problems)
    if lost:
        return "lost", lost
    error = gpu.error or (gpu.parent.error if gpu.parent else None)
    if error:
        return "unknown", error
    taken = (
        bool(seen.processes)
        or is_memory_taken(gpu, limits)
        or (not seen.has_process_list and has_visible_use(gpu, limits))
    )
    return decide_taken_state(seen, rules, now) if taken else decide_untaken_state(seen, limits, now)


def decide_taken_state(seen: GpuInput, rules: StateRules, now: Now) -> tuple[str, str]:
    """Somebody is on it, or has left something there."""
    conflict = explain_conflict(seen, rules)
    if conflict:
        return "conflict", conflict
    if seen.idle_since is not None and now.has_passed(seen.idle_since + rules.limits.held_after):
        return "held", describe_held(seen, now)
    return "busy", describe_busy(seen, rules.limits)


def find_other_users(seen: GpuInput, people: PeopleDirectory) -> dict[str, list[ProcessStatus]]:
    """Who is on it that has not booked it, with what; nobody unless all names are logins that we know."""
    found: dict[str, list[ProcessStatus]] = {}
    if not seen.bookers or not all(people.is_known(name) for name in seen.bookers):
        return found
    entitled = {people.resolve_person(name) for name in seen.bookers}
    for login, process in zip(seen.logins, seen.processes):
        person = people.find_person(login)
        if login and person and person not in entitled:
            found.setdefault(people.display_login(login), []).append(process)
    return found


def explain_conflict(seen: GpuInput, rules: StateRules) -> str:
    """That somebody is on it who has not booked it."""
    others = sorted(find_other_users(seen, rules.people))
    if not others:
        return ""
    if not rules.privacy.users:
        return "booked by one person, used by another"
    bookers = list(dict.fromkeys(rules.people.display_name(name) for name in seen.bookers))
    return f"booked by {formatting.join_names(bookers)}, used by {formatting.join_names(others)}"


def describe_held(seen: GpuInput, now: Now) -> str:
    """How much is held, by whom, since when."""
    since = formatting.format_moment(datetime.fromtimestamp(seen.idle_since or 0, now.zone), now)
    told = format_process_memory(seen)
    return f"{told or format_used_memory(seen.gpu)} taken{format_by_users(seen)}, hardly used since {since}"


def format_visible_use(gpu: Gpu, limits: StateLimits) -> str:
    """Say by what a GPU shows that somebody is on it."""
    if gpu.memory_used is not None and is_memory_taken(gpu, limits):
        return f"{format_used_memory(gpu)} in use"
    return f"{gpu.utilization_gpu:.0f} % used"


def explain_unreported_processes(seen: GpuInput) -> str:
    """Say that nobody knows which processes are on it, in the tool's words where it has some."""
    return f"the processes on it could not be read{f': {seen.unreported}' if seen.unreported else ''}"


def describe_busy(seen: GpuInput, limits: StateLimits) -> str:
    """Who is on it, or that nobody knows."""
    dead = [process for process in seen.processes if process.is_zombie]
    if dead:
        pids = " ".join(str(pid) for process in dead for pid in process.children)
        which = formatting.join_names([str(process.pid) for process in dead])
        return f"process {which} is dead, but its children live on: kill {pids}"
    if not seen.processes and not seen.has_process_list:
        return f"{format_visible_use(seen.gpu, limits)}; {explain_unreported_processes(seen)}"
    if not seen.processes and seen.gpu.memory_used is None:
        return f"{seen.gpu.utilization_gpu:.0f} % used, though no process is told"
    if not seen.processes:
        return f"{format_used_memory(seen.gpu)} in use that no process explains"
    told = format_process_memory(seen)
    return f"in use{format_by_users(seen)}" + (f", {told} by its processes" if told else "")


def format_by_users(seen: GpuInput) -> str:
    """` by alice and bob`, or nothing where nobody is named."""
    users = list(dict.fromkeys(process.user for process in seen.processes if process.user))
    return f" by {formatting.join_names(users)}" if users else ""


def format_process_memory(seen: GpuInput) -> str:
    """How much memory its processes have, where the GPU shares that of its host and tells none itself."""
    told = [process.used_memory for process in seen.processes if process.used_memory is not None]
    return formatting.format_size(sum(told)) if told and seen.gpu.memory_used is None else ""


def format_used_memory(gpu: Gpu) -> str:
    """How much of its memory is in use."""
    return "memory" if gpu.memory_used is None else formatting.format_size(gpu.memory_used)


def decide_untaken_state(seen: GpuInput, limits: StateLimits, now: Now) -> tuple[str, str]:
    """Nobody seems to be on it: is that certain, and is it promised, now or soon?"""
    unclear = explain_unknown(seen)
    if unclear:
        return "unknown", unclear
    current = [booking for booking in seen.bookings if booking.phase == "now"]
    if current:
        until = formatting.format_moment(max(booking.until for booking in current), now)
        by_whom = formatting.join_names(list(dict.fromkeys(booking.name for booking in current if booking.name)))
        return "booked", f"promised{f' to {by_whom}' if by_whom else ''} until {until}, and not used"
    soon = find_soon_booking(seen.bookings, limits, now)
    if soon and soon.since:
        to = f" to {soon.name}" if soon.name else ""
        return "free", f"until {formatting.format_moment(soon.since, now)}, then promised{to}"
    if seen.gpu.memory_used is None:
        return "free", "no process; its driver does not tell the memory in use"
    return "free", f"no process, {formatting.format_size(seen.gpu.memory_used)} in use"


def explain_unknown(seen: GpuInput) -> str:
    """Why nobody can tell that it is free, if so."""
    if not seen.has_process_list:
        return explain_unreported_processes(seen)
    recovery = next((one.what for one in seen.problems if one.kind == RECOVERY_KIND), "")
    if recovery:
        return recovery
    if seen.gpu.memory_used is None and seen.gpu.utilization_gpu is None:
        return "the driver tells neither its memory nor its use"
    return NO_INSTANCES_REASON if is_in_mig_mode(seen.gpu) else ""


def is_in_mig_mode(gpu: Gpu) -> bool:
    """Whether a GPU is cut into instances, of which it then is none itself."""
    place = find_mig_mode_column(gpu.columns) if gpu.columns else None
    return place is not None and gpu.cells[place].lower() == "enabled"


@lru_cache(maxsize=64)
def find_mig_mode_column(columns: tuple[str, ...]) -> int | None:
    """Where the cell stands that tells it; a fleet has a few headers."""
    return columns.index(MIG_MODE_COLUMN) if MIG_MODE_COLUMN in columns else None


def find_soon_booking(bookings: Sequence[BookingStatus], limits: StateLimits, now: Now) -> BookingStatus | None:
    """The first booking that comes, if it comes soon."""
    coming = (one for one in bookings if one.phase == "coming" and one.since)
    first = next(coming, None)
    return first if first and first.since and now.has_passed(first.since.timestamp() - limits.soon) else None
