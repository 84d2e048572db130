"""Decide the state of a GPU: the first that holds of lost, unknown, conflict, held, busy, booked, free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.formatting import format_moment, format_names, format_size
from site_builder.core.model import (
    BookingStatus,
    Gpu,
    GpuProblem,
    GpuStatus,
    PrivacySettings,
    ProcessStatus,
    StateLimits,
)
from site_builder.core.people import PeopleDirectory

# Codes in history.db have an order of their own (history.model.STATES).
STATE_PRECEDENCE = ("lost", "unknown", "conflict", "held", "busy", "booked", "free")
EMPTY_STATES = frozenset({"free", "booked"})
# The problems of a GPU that cannot be used until it is reset or its host is rebooted.
LOST_PROBLEM_KINDS = frozenset({"lost", "off-bus", "reset"})
RECOVERY_KIND = "recovery"
UNPLACED_PROCESSES_REASON = "its GPU has processes on an unknown instance"
UNMATCHED_PROCESSES_REASON = "this host has processes on an unknown GPU"


class GpuInput(NamedTuple):
    """What the state of a GPU of a fresh host is decided from."""

    gpu: Gpu
    processes: tuple[ProcessStatus, ...]
    logins: Sequence[str | None]
    bookings: Sequence[BookingStatus]
    bookers: Sequence[str]
    has_process_list: bool
    idle_since: float | None
    problems: tuple[GpuProblem, ...] = ()
    unreported: str = ""  # the tool's words in the place of its processes


@dataclass(frozen=True)
class StateRules:
    """The limits between states, the people and what may be shown of them, and the short names of GPUs."""

    limits: StateLimits
    people: PeopleDirectory
    privacy: PrivacySettings
    gpu_names: dict[str, str] = field(default_factory=dict)


def decide_gpu_state(gpu_input: GpuInput, rules: StateRules, now: Now) -> tuple[str, str]:
    """Return the state of a GPU of a fresh host, and the reason."""
    gpu, limits = gpu_input.gpu, rules.limits
    lost = explain_lost_state(gpu, gpu_input.problems)
    if lost:
        return "lost", lost
    error = gpu.error or (gpu.parent.error if gpu.parent else None)
    if error:
        return "unknown", error
    if (
        gpu_input.processes
        or is_memory_taken(gpu, limits)
        or (not gpu_input.has_process_list and is_utilized(gpu, limits))
    ):
        others = sorted(find_conflict_users(gpu_input, rules.people))
        if others and not rules.privacy.users:
            return "conflict", "booked by one person, used by another"
        if others:
            bookers = list(dict.fromkeys(rules.people.display_name(name) for name in gpu_input.bookers))
            return "conflict", f"booked by {format_names(bookers)}, used by {format_names(others)}"
        idle_since = gpu_input.idle_since
        if idle_since is not None and now.has_passed(idle_since + limits.held_after):
            since = format_moment(datetime.fromtimestamp(idle_since, now.zone), now)
            memory = explain_state_process_memory(gpu_input) or explain_state_memory(gpu)
            return "held", f"{memory} taken{explain_state_users(gpu_input)}, idle since {since}"
        return "busy", explain_busy_state(gpu_input, limits)
    if not gpu_input.has_process_list:
        return "unknown", explain_unreported_state(gpu_input)
    other_error = gpu.other_error or (gpu.parent.other_error if gpu.parent else None)
    if other_error:
        return "unknown", other_error
    recovery = next((problem.what for problem in gpu_input.problems if problem.kind == RECOVERY_KIND), "")
    if recovery:
        return "unknown", recovery
    if gpu.memory_used is None and gpu.utilization_gpu is None:
        return "unknown", "the driver reports neither its memory nor its use"
    if gpu.health.is_in_mig_mode:
        return "unknown", "it is in MIG mode without instances, so nothing can run on it"
    current = [booking for booking in gpu_input.bookings if booking.phase == "now"]
    if current:
        until = format_moment(max(booking.until for booking in current), now)
        names = format_names(list(dict.fromkeys(booking.name for booking in current if booking.name)))
        return "booked", f"booked{f' by {names}' if names else ''} until {until}, not in use"
    soon = find_soon_booking(gpu_input.bookings, limits, now)
    if soon and soon.since:
        name = f" by {soon.name}" if soon.name else ""
        return "free", f"until {format_moment(soon.since, now)}, then booked{name}"
    if gpu.memory_used is None:
        return "free", "no process; the driver does not report its memory"
    return "free", f"no process, {format_size(gpu.memory_used)} in use"


def is_memory_taken(gpu: Gpu, limits: StateLimits) -> bool:
    """Return True if more memory is used than a display needs; utilization decides where no memory is reported."""
    if gpu.memory_used is None:
        return is_utilized(gpu, limits)
    percent = gpu.memory_used / gpu.memory_total * 100 if gpu.memory_total else 0
    return gpu.memory_used >= limits.free_mib or percent >= limits.free_percent


def is_utilized(gpu: Gpu, limits: StateLimits) -> bool:
    return gpu.utilization_gpu is not None and gpu.utilization_gpu >= limits.idle_percent


def explain_lost_state(gpu: Gpu, problems: Sequence[GpuProblem]) -> str:
    """Return why a GPU cannot be used until it is reset; empty where it can."""
    lost = gpu.lost or (gpu.parent.lost if gpu.parent else None)
    if lost:
        return f"the driver cannot reach it: {lost}"
    for problem in problems:
        if problem.kind in LOST_PROBLEM_KINDS:
            return problem.what
        words = problem.what.lower()
        # processes on a GPU that is to be drained first may finish their work
        if problem.kind == RECOVERY_KIND and ("reset" in words or "reboot" in words) and "drain" not in words:
            return problem.what
    return ""


def find_conflict_users(gpu_input: GpuInput, people: PeopleDirectory) -> dict[str, list[ProcessStatus]]:
    """Return who is on a GPU without a booking, with their processes; nobody unless all bookers are known logins."""
    other_users: dict[str, list[ProcessStatus]] = {}
    if not gpu_input.bookers or not all(people.is_known(name) for name in gpu_input.bookers):
        return other_users
    bookers = {people.resolve_person(name) for name in gpu_input.bookers}
    for login, process in zip(gpu_input.logins, gpu_input.processes):
        person = people.find_person(login)
        if login and person and person not in bookers:
            other_users.setdefault(people.display_login(login), []).append(process)
    return other_users


def explain_busy_state(gpu_input: GpuInput, limits: StateLimits) -> str:
    """Return who is on a GPU, or what shows that somebody is."""
    gpu, processes = gpu_input.gpu, gpu_input.processes
    dead = [process for process in processes if process.is_zombie]
    if dead:
        child_pids = " ".join(str(pid) for process in dead for pid in process.children)
        dead_pids = format_names([str(process.pid) for process in dead])
        return f"process {dead_pids} exited; child processes still running: kill {child_pids}"
    if processes:
        memory = explain_state_process_memory(gpu_input)
        return f"in use{explain_state_users(gpu_input)}" + (f", {memory} by its processes" if memory else "")
    has_memory = gpu.memory_used is not None and is_memory_taken(gpu, limits)
    if not gpu_input.has_process_list:
        use = f"{explain_state_memory(gpu)} in use" if has_memory else f"{gpu.utilization_gpu:.0f} % used"
        return f"{use}; {explain_unreported_state(gpu_input)}"
    if gpu.memory_used is None:
        return f"{gpu.utilization_gpu:.0f} % used, but no process is reported"
    return f"{explain_state_memory(gpu)} in use without a process"


def explain_unreported_state(gpu_input: GpuInput) -> str:
    """Say that the processes are not known, in the tool's words where it has some."""
    return f"the processes on it could not be read{f': {gpu_input.unreported}' if gpu_input.unreported else ''}"


def explain_state_users(gpu_input: GpuInput) -> str:
    """Return ` by alice and bob`, or nothing where nobody is named."""
    users = list(dict.fromkeys(process.user for process in gpu_input.processes if process.user))
    return f" by {format_names(users)}" if users else ""


def explain_state_process_memory(gpu_input: GpuInput) -> str:
    """Return the memory of the processes, where the GPU shares that of its host and reports none itself."""
    sizes = [process.used_memory for process in gpu_input.processes if process.used_memory is not None]
    return format_size(sum(sizes)) if sizes and gpu_input.gpu.memory_used is None else ""


def explain_state_memory(gpu: Gpu) -> str:
    return "memory" if gpu.memory_used is None else format_size(gpu.memory_used)


def find_soon_booking(bookings: Sequence[BookingStatus], limits: StateLimits, now: Now) -> BookingStatus | None:
    """Return the first future booking, if it begins soon."""
    first = next((booking for booking in bookings if booking.phase == "coming" and booking.since), None)
    return first if first and first.since and now.has_passed(first.since.timestamp() - limits.soon) else None


def mark_unclear_gpu_state(status: GpuStatus, has_unmatched: bool, unplaced: Mapping[str, object]) -> GpuStatus:
    """Make a seemingly empty GPU unknown if a process whose GPU is not reported may be on it."""
    parent = status.gpu.parent
    if status.state in EMPTY_STATES and has_unmatched:  # they may be on any GPU
        return status._replace(state="unknown", reason=UNMATCHED_PROCESSES_REASON)
    if status.state in EMPTY_STATES and parent and parent.key in unplaced:
        return status._replace(state="unknown", reason=UNPLACED_PROCESSES_REASON)
    return status
