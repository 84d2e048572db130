"""Decide the state of a host, and of all its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, Union

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE, describe_fault, locate_exception, split_by_fault
from site_builder.core.model import (
    EXIT_MISSING,
    EXIT_STILL_HANGS,
    EXIT_TIMED_OUT,
    NOBODY,
    Booking,
    BookingStatus,
    DiscoveredHost,
    Gpu,
    GpuBookingUse,
    GpuProcessRow,
    GpuStatus,
    HostSnapshot,
    HostStatus,
    IdleTimes,
    ParsedFile,
    Problem,
    ProcessStatus,
    PsRow,
    StateLimits,
    ToolResult,
)
from site_builder.core.people import is_truncated_login
from site_builder.fleet import booking_use, gpu_state, mig, processes
from site_builder.fleet.gpu_models import MAX_MODEL_CHARACTERS, build_model_names, format_gpu_labels, format_gpu_model
from site_builder.fleet.gpu_state import GpuInput, StateRules, mark_unclear_gpu_state
from site_builder.fleet.processes import find_process_people
from site_builder.fleet.shared_memory import add_host_memory
from site_builder.fleet.topology import find_matching_topology
from site_builder.health import problems
from site_builder.snapshots.store import HostFiles

# Exit codes that only the host's script gives; the others are in core.subprocesses.
EXIT_NO_SPACE, EXIT_KILLED = 74, 137
EXIT_CODE_MEANINGS = {
    EXIT_NO_SPACE: "the output of {} could not be saved on the host",
    EXIT_TIMED_OUT: "{} did not answer in time and was stopped",
    EXIT_KILLED: "{} did not answer in time and was killed",
    EXIT_MISSING: "there is no {} on the host",
    EXIT_STILL_HANGS: "an earlier {} still hangs, so it was not started again",
}
# The files that a state is decided from.
STATE_FILES = ("host.txt", "gpus.csv", "processes.csv")
NO_IDLE_TIMES = IdleTimes(0, {})
NOT_UNDERSTOOD_REASON = "its files could not be parsed"
# Seconds after which a host with a fault of ours is tried again, though its files are the same.
RETRY_AFTER_S = 60
ToolFile = Union[ParsedFile[Gpu], ParsedFile[GpuProcessRow]]


@dataclass(frozen=True)
class HostStatusSources:
    """All that a host's status and card are made of."""

    discovered: DiscoveredHost
    files: HostFiles | None = None
    bookings: Sequence[Booking] = ()
    idle_times: IdleTimes = NO_IDLE_TIMES
    booking_uses: Mapping[str, GpuBookingUse] = field(default_factory=dict)
    sparklines: Mapping[str, str] = field(default_factory=dict)  # rendered, by the keys of its GPUs
    unread_reason: str = ""  # why its files are not parsed now


class BuiltHostStatus(NamedTuple):
    """A host's status, the snapshot that it was decided from, and when its GPUs were read; None where not known."""

    status: HostStatus
    snapshot: HostSnapshot | None = None
    gpus_taken_at: float | None = None
    has_parse_failed: bool = False


def build_host_status(sources: HostStatusSources, rules: StateRules, now: Now) -> BuiltHostStatus:
    """Parse the files of a host and decide its status; a fault of ours must not cost the other hosts."""
    host, reason = sources.discovered, sources.unread_reason
    if reason:
        problem = Problem(f"data/{host.name}", reason)
        return BuiltHostStatus(HostStatus(host.name, host.title, host.tags, "failed", reason, problems=(problem,)))
    try:
        snapshot = sources.files.parse() if sources.files else HostSnapshot(host.name)
    except Exception as error:
        now.has_passed(now.epoch + RETRY_AFTER_S)
        return BuiltHostStatus(build_failed_host_status(host, locate_exception(error)), has_parse_failed=True)
    taken_at = snapshot.taken_at.get("gpus.csv")

    def decide_with(bookings: Sequence[Booking]) -> HostStatus:
        return decide_host_status(replace(sources, bookings=bookings), snapshot, rules, now)

    try:
        return BuiltHostStatus(decide_host_status(sources, snapshot, rules, now), snapshot, taken_at)
    except Exception as error:
        place = locate_exception(error)
    now.has_passed(now.epoch + RETRY_AFTER_S)
    if sources.bookings:
        with suppress(Exception):
            decide_with(())  # or the bookings are not to blame
            good, bad = split_by_fault(sources.bookings, decide_with)
            status = decide_with(good)
            bad_bookings = (booking_use.build_failed_booking_problem(booking, where) for booking, where in bad)
            return BuiltHostStatus(replace(status, problems=(*status.problems, *bad_bookings)), snapshot, taken_at)
    gpus = snapshot.gpus.rows if snapshot.gpus else ()
    return BuiltHostStatus(build_failed_host_status(host, place, gpus, snapshot.last_seen), snapshot)


def build_failed_host_status(
    host: DiscoveredHost | HostStatus,
    place: str,
    gpus: Iterable[Gpu] = (),
    last_seen: float | None = None,
    what: str = NOT_UNDERSTOOD_REASON,
) -> HostStatus:
    """Build the status of a host at which gpuboard itself failed; the states of its GPUs are unknown."""
    statuses = (
        GpuStatus(
            gpu=drop_outdated_host_readings(gpu),
            model=(gpu.name or "GPU")[:MAX_MODEL_CHARACTERS],
            state="unknown",
            reason="its host has failed",
        )
        for gpu in gpus
    )
    return HostStatus(
        name=host.name,
        title=host.title,
        tags=host.tags,
        state="failed",
        reason=f"{what}: {FAULT_NOTE}",
        last_seen=last_seen,
        gpus=tuple(statuses),
        problems=(Problem(f"data/{host.name}", describe_fault(what, place)),),
    )


def build_unrendered_host_status(status: HostStatus, place: str = "") -> HostStatus:
    """Build the status of a host that was understood, but whose card cannot be rendered."""
    gpus = (gpu_status.gpu for gpu_status in status.gpus)
    return build_failed_host_status(status, place, gpus, status.last_seen, "its card could not be rendered")


def decide_host_status(sources: HostStatusSources, snapshot: HostSnapshot, rules: StateRules, now: Now) -> HostStatus:
    """Decide everything that the board shows of a host."""
    discovered = sources.discovered
    state, reason = decide_host_state(discovered, snapshot, rules.limits, now)
    facts = snapshot.facts.rows[0] if snapshot.facts and snapshot.facts.rows else None
    if facts and (facts.disk_use_time or 0) > (snapshot.last_seen or 0) + formatting.DAY:  # a host can claim any time
        facts = replace(facts, disk_use_time=None)
    gpu_rows = snapshot.gpus.rows if snapshot.gpus else ()
    if facts and facts.topology and not find_matching_topology(facts.topology, gpu_rows):
        facts = replace(facts, topology=None)
    if facts and not rules.privacy.users:  # disk use is by person, and goes with their names
        facts = replace(facts, disk_use=())
    notes = ["not in Consul"] if discovered.is_missing_in_consul else []
    if state == "fresh" and (note := format_host_consul_note(discovered)):
        notes.append(note)
    has_gpus = snapshot.gpus is not None and bool(snapshot.gpus.rows)
    if state == "fresh":
        gpus, unmatched, unplaced, logins = decide_fresh_host_gpus(sources, snapshot, rules, now)
    else:
        gpus = build_outdated_host_gpus(sources, snapshot, state, rules, now)
        unmatched, unplaced, logins = [], {}, set()
    return HostStatus(
        name=discovered.name,
        title=discovered.title,
        tags=discovered.tags,
        state=state,
        reason=reason,
        last_seen=snapshot.last_seen,
        facts=facts,
        gpus=tuple(gpus),
        unmatched_processes=tuple(unmatched),
        bookings=()
        if has_gpus
        else booking_use.build_fleet_booking_statuses(sources.bookings, rules.privacy, now, people=rules.people),
        notes=tuple(notes),
        problems=(*snapshot.problems, *find_host_state_problems(sources, snapshot, state, rules.limits, now)),
        logins=frozenset(filter(rules.people.is_worth_remembering, logins)),
        users_shown=rules.privacy.users,
        unplaced_processes=unplaced,
        truncated_logins=tuple(sorted(filter(is_truncated_login, logins))),
        has_missing_gpu=snapshot.gpus is not None and snapshot.gpus.has_missing_gpu,
    )


def decide_host_state(
    discovered: DiscoveredHost, snapshot: HostSnapshot, limits: StateLimits, now: Now
) -> tuple[str, str]:
    """Return the state of a host, and the reason."""
    if discovered.maintenance is not None:
        return "maintenance", discovered.maintenance
    if snapshot.last_seen is None:
        if snapshot.gpus or snapshot.facts or snapshot.problems:
            file = "its GPU file has not" if snapshot.is_legacy else "no complete host.txt has"
            return "unseen", f"{file} arrived yet"
        sources = formatting.format_names(discovered.listed_by)
        return "unseen", f"listed by {sources}, but it has never pushed" if sources else "it has never pushed"
    state, reason = decide_host_state_by_age(snapshot, snapshot.last_seen, limits, now)
    if state != "fresh":
        consul = format_host_consul_note(discovered)
        return state, f"{reason}. {consul}" if consul else reason
    if not snapshot.gpus:
        return "failed", "it pushes, but gpus.csv has never arrived"
    if not snapshot.gpus.rows:
        tools = formatting.format_names([result.tool for result in list_host_tool_results(snapshot.gpus)])
        return "failed", describe_host_tool_failures(snapshot.gpus) or f"{tools} reported no GPU"
    return state, reason


def format_host_consul_note(discovered: DiscoveredHost) -> str:
    """Return Consul's state of a host and the message of its check; empty where it passes."""
    if discovered.consul_status in {None, "passing"}:
        return ""
    message = f", “{discovered.consul_message}”" if discovered.consul_message else ""
    return f"Consul: {discovered.consul_status}{message}"


def decide_host_state_by_age(
    snapshot: HostSnapshot, last_seen: float, limits: StateLimits, now: Now
) -> tuple[str, str]:
    """Decide fresh, stale or down by the oldest of STATE_FILES; host.txt alone says whether the host is down."""
    if not now.has_passed(last_seen - limits.clock_off):
        return "stale", "its files are from the future: the clock of the machine with data/ is ahead of this one's"
    are_gone = snapshot.taken_at.keys() <= set(snapshot.missing_files)
    gone = ", and its files are missing from data/" if are_gone else ""
    if now.has_passed(last_seen + limits.down_after):
        since = formatting.format_moment(datetime.fromtimestamp(last_seen, now.zone), now)
        return "down", f"no snapshot since {since}{gone}"
    for file in STATE_FILES:
        taken_at = snapshot.taken_at.get(file)
        if taken_at is None:
            continue
        limit = min(3 * snapshot.intervals.get(file, 0) + limits.stale_after, limits.down_after)
        if now.has_passed(taken_at + limit):
            # a host can claim any time, but none before 1970
            since = formatting.format_moment(datetime.fromtimestamp(max(0, taken_at), now.zone), now)
            if file == "host.txt" or snapshot.is_legacy:
                return "stale", f"no snapshot since {since}{gone}"
            return "stale", f"it pushes, but {file} is from {since}"
    return "fresh", "its snapshots arrive"


def list_host_tool_results(file: ToolFile) -> tuple[ToolResult, ...]:
    """Return the results of the tools of a file; legacy files are nvidia-smi's alone."""
    rc = file.header.rc if file.header else 0
    return file.tool_results or (ToolResult("nvidia-smi", "nvidia", rc, file.messages),)


def describe_host_tool_failures(file: ToolFile) -> str:
    """Return the messages of the tools, and how they ended."""
    sentences: list[str] = []
    for result in list_host_tool_results(file):
        messages = " ".join(result.messages[:3])[:300]
        ending = f"{result.tool} ended with exit code {result.rc}"
        if result.rc in EXIT_CODE_MEANINGS:
            ending = EXIT_CODE_MEANINGS[result.rc].format(result.tool)
        elif not result.rc:
            ending = f"{result.tool} printed" if messages else ""
        advice = problems.advise_on_exit_code_problem(result) if result.rc not in EXIT_CODE_MEANINGS else ""
        sentences += filter(None, (f"{ending}: {messages}" if messages else ending, advice))
    return "; ".join(sentences)


def find_host_state_problems(
    sources: HostStatusSources, snapshot: HostSnapshot, state: str, limits: StateLimits, now: Now
) -> Iterator[Problem]:
    """Yield problems for the admin."""
    name = sources.discovered.name
    if snapshot.clock_offset is not None and abs(snapshot.clock_offset) > limits.clock_off:
        direction = "ahead" if snapshot.clock_offset > 0 else "behind, or its snapshots arrive late"
        offset = formatting.format_duration(abs(snapshot.clock_offset))
        yield Problem(name, f"the clock of this host is {offset} {direction}")
    if snapshot.missing_files:
        files = ", ".join(snapshot.missing_files)
        yield Problem(f"data/{name}", f"missing: {files}; `gpuboard forget {name}` removes the host from the board")
    gpus, processes = snapshot.gpus, snapshot.processes
    if state == "fresh" and gpus and (failure := describe_host_tool_failures(gpus)):
        yield Problem(f"data/{name}/gpus.csv", failure)
    has_failed = processes is not None and any(result.rc for result in list_host_tool_results(processes))
    if processes and has_failed and (failure := describe_host_tool_failures(processes)):
        yield Problem(f"data/{name}/processes.csv", failure)
    if gpus and gpus.rows and sources.bookings:
        keys = {"*"}.union(*(gpu.booking_keys for gpu in gpus.rows))
        for booking in sources.bookings:
            if booking.gpu.lower() not in keys and not booking_use.is_fleet_booking_expired(booking, now):
                labels = format_gpu_labels(gpus.rows)
                yield Problem("data/comments.json", f"{name} has no GPU {booking.gpu[:80]}, only {labels}")


def build_outdated_host_gpus(
    sources: HostStatusSources, snapshot: HostSnapshot, state: str, rules: StateRules, now: Now
) -> list[GpuStatus]:
    """Build the GPUs of a host that is not fresh; one that was lost when it was last reported is lost."""
    if not snapshot.gpus:
        return []
    facts = snapshot.facts.rows[0] if snapshot.facts and snapshot.facts.rows else None
    host_reason = f"its host is {'under maintenance' if state == 'maintenance' else state}"
    models = build_model_names(snapshot, rules.gpu_names)
    problem_finder = problems.ProblemFinder(snapshot.gpus, list_host_tool_results(snapshot.gpus))
    statuses = []
    for gpu in snapshot.gpus.rows:
        lost = gpu_state.explain_lost_state(gpu, problem_finder.find_problems(gpu))
        gpu_bookings = booking_use.find_gpu_bookings(sources.bookings, gpu)
        status = GpuStatus(
            gpu=drop_outdated_host_readings(add_host_memory(gpu, facts)),
            model=format_gpu_model(gpu, models, rules.gpu_names),
            state="lost" if lost else "unknown",
            reason=f"{lost}; {host_reason}" if lost else host_reason,
            bookings=booking_use.build_fleet_booking_statuses(
                gpu_bookings, rules.privacy, now, gpu.parent, rules.people
            ),
            idle_since=sources.idle_times.idle_since.get(gpu.key),
            parent_model=models[gpu.name] if gpu.parent else "",
        )
        statuses.append(status)
    return statuses


def drop_outdated_host_readings(gpu: Gpu) -> Gpu:
    """Return a GPU without its readings, which are of another time."""
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        memory_total=gpu.memory_total,
        vendor=gpu.vendor,
        place=gpu.place,
        profile=gpu.profile if gpu.parent else None,
        parent=drop_outdated_host_readings(gpu.parent) if gpu.parent else None,
        shared_memory=gpu.shared_memory,
    )


def decide_fresh_host_gpus(
    sources: HostStatusSources, snapshot: HostSnapshot, rules: StateRules, now: Now
) -> tuple[list[GpuStatus], list[ProcessStatus], dict[str, tuple[ProcessStatus, ...]], set[str]]:
    """Decide the states of the GPUs of a fresh host.

    Return also the processes on no GPU and on no instance that it reports, and the logins of all processes.
    """
    people, limits = rules.people, rules.limits
    gpu_file = snapshot.gpus or ParsedFile[Gpu]()
    ps_rows = list_current_ps_rows(snapshot, limits, now)
    processes_by_gpu = processes.build_processes_by_gpu(snapshot, ps_rows, rules)
    reporting_vendors = list_host_process_vendors(snapshot)
    unreported = snapshot.processes.unreported if snapshot.processes else {}
    checked_at = snapshot.taken_at.get("gpus.csv", snapshot.last_seen or 0)
    # it is unknown what happened while the host was silent
    is_continuous = checked_at - sources.idle_times.checked_at <= limits.down_after
    idle_since_by_gpu = sources.idle_times.idle_since if is_continuous else {}
    statuses: list[GpuStatus] = []
    booked_gpus: dict[int, GpuInput] = {}
    models = build_model_names(snapshot, rules.gpu_names)
    xid_problems = problems.find_xid_problems(snapshot, now)
    problem_finder = problems.ProblemFinder(gpu_file, list_host_tool_results(gpu_file), xid_problems)
    facts = snapshot.facts.rows[0] if snapshot.facts and snapshot.facts.rows else None
    for gpu in gpu_file.rows:
        gpu_processes = processes_by_gpu.pop(gpu.process_key, [])
        unreported_words = find_unreported_words(gpu, unreported) if unreported else ""
        gpu_bookings = booking_use.find_gpu_bookings(sources.bookings, gpu) if sources.bookings else ()
        bookings: tuple[BookingStatus, ...] = ()
        if gpu_bookings:
            bookings = booking_use.build_fleet_booking_statuses(
                gpu_bookings, rules.privacy, now, gpu.parent, rules.people
            )
        is_taken = bool(gpu_processes) or gpu_state.is_memory_taken(gpu, limits)
        # one that does not report its utilization is not called idle
        is_idle = is_taken and gpu.utilization_gpu is not None and not gpu_state.is_utilized(gpu, limits)
        gpu_input = GpuInput(
            gpu=gpu,
            processes=tuple([process for process, _ in gpu_processes]),
            logins=tuple([login for _, login in gpu_processes]),
            bookings=bookings,
            bookers=booking_use.list_current_bookers(gpu_bookings, now) if gpu_bookings else (),
            has_process_list=gpu.vendor in reporting_vendors and not unreported_words,
            idle_since=idle_since_by_gpu.get(gpu.key, checked_at) if is_idle else None,
            problems=problem_finder.find_problems(gpu),
            unreported=unreported_words,
        )
        state, reason = gpu_state.decide_gpu_state(gpu_input, rules, now)
        soon = gpu_state.find_soon_booking(bookings, limits, now) if state == "free" and bookings else None
        if gpu_input.bookers:
            booked_gpus[len(statuses)] = gpu_input
        has_no_process = not gpu_processes and gpu_input.has_process_list
        status = GpuStatus(
            gpu=add_host_memory(gpu, facts) if gpu.shared_memory else gpu,
            model=format_gpu_model(gpu, models, rules.gpu_names),
            state=state,
            reason=reason,
            processes=gpu_input.processes,
            bookings=bookings,
            idle_since=gpu_input.idle_since,
            free_until=soon.since.timestamp() if soon and soon.since else None,
            people=find_process_people(gpu_input, people) if gpu_processes or gpu_input.bookers else NOBODY,
            ownerless_pids=tuple([process.pid for process, login in gpu_processes if not login]) if ps_rows else (),
            has_unexplained_memory=has_no_process and gpu.memory_used is not None and is_taken,
            parent_model=models[gpu.name] if gpu.parent else "",
            problems=gpu_input.problems,
        )
        statuses.append(status)
    unplaced = mig.take_unplaced_mig_processes(statuses, processes_by_gpu) if processes_by_gpu else {}
    unmatched = [process for others in processes_by_gpu.values() for process, _ in others]
    if unmatched or unplaced:
        statuses = [mark_unclear_gpu_state(status, bool(unmatched), unplaced) for status in statuses]
    # the header's time tells snapshots apart: when one arrived is known a little better with each file that follows
    snapshot_time = gpu_file.header.time if gpu_file.header else int(checked_at)
    check = booking_use.BookingUseCheck(int(checked_at), snapshot_time, sources.booking_uses, sources.bookings)
    for position, gpu_input in booked_gpus.items():
        statuses[position] = booking_use.add_booking_use(statuses[position], gpu_input, check, rules, now)
    logins = set(filter(None, (processes.find_process_login(row, people) for row in ps_rows)))
    return statuses, unmatched, unplaced, logins


def list_current_ps_rows(snapshot: HostSnapshot, limits: StateLimits, now: Now) -> Sequence[PsRow]:
    """Return the rows of ps.txt; none of one that is so old that a pid may be another process by now."""
    taken_at = snapshot.taken_at.get("ps.txt")
    is_old = taken_at is not None and now.has_passed(taken_at + limits.down_after)
    return snapshot.ps_rows.rows if snapshot.ps_rows and not is_old else ()


def find_unreported_words(gpu: Gpu, unreported: Mapping[str, str]) -> str:
    """Return the tool's words in the place of the processes of a GPU; an instance shares those of its GPU."""
    parent_words = unreported.get(gpu.parent.process_key, "") if gpu.parent else ""
    return unreported.get(gpu.process_key, "") or parent_words


def list_host_process_vendors(snapshot: HostSnapshot) -> set[str]:
    """Return the vendors whose processes were reported: only of their GPUs is it known that there is no process."""
    if snapshot.processes is None or not snapshot.processes.is_complete:
        return set()
    gpu_rows = snapshot.gpus.rows if snapshot.gpus else ()
    gpu_results = list_host_tool_results(snapshot.gpus) if snapshot.gpus else ()
    vendors: set[str] = set()
    for result in list_host_tool_results(snapshot.processes):
        is_reported = result.is_complete and not result.rc
        if result.is_complete and result.rc and result.rc not in EXIT_CODE_MEANINGS:
            # it failed, but printed rows, or failed the same way for the GPUs: because of a lost one
            vendors_by_gpu = {gpu.process_key: gpu.vendor for gpu in gpu_rows}
            row_vendors = {vendors_by_gpu.get(row.gpu_key, result.vendor) for row in snapshot.processes.rows}
            failures = {(gpu_result.vendor, gpu_result.rc) for gpu_result in gpu_results}
            is_reported = result.vendor in row_vendors or (result.vendor, result.rc) in failures
        if is_reported:
            vendors.add(result.vendor)
    return vendors
