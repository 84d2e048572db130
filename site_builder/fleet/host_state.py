"""The state of a host, and all that the board says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import (
    NOBODY,
    Booking,
    DiscoveredHost,
    Gpu,
    GpuBookingUse,
    GpuPeople,
    GpuProcessRow,
    GpuStatus,
    HostFacts,
    HostSnapshot,
    HostStatus,
    IdleTimes,
    ParsedFile,
    PrivacySettings,
    Problem,
    ProcessStatus,
    PsRow,
    StateLimits,
    ToolResult,
)
from site_builder.core.people import PeopleDirectory, is_truncated_login
from site_builder.core.subprocesses import EXIT_MISSING, EXIT_STILL_HANGS, EXIT_TIMED_OUT
from site_builder.fleet import booking_use, gpu_state, mig, processes
from site_builder.fleet.gpu_models import shorten_gpu_name, shorten_instance_name
from site_builder.fleet.gpu_state import GpuInput, StateRules
from site_builder.health import problems

# Exit codes that only the host's script gives; the others are in core.subprocesses.
EXIT_NO_SPACE, EXIT_KILLED = 74, 137
EXIT_CODE_MEANINGS = {
    EXIT_NO_SPACE: "the answer of {} could not be kept on the host",
    EXIT_TIMED_OUT: "{} did not answer in time and was stopped",
    EXIT_KILLED: "{} did not answer in time and was killed",
    EXIT_MISSING: "there is no {} on the host",
    EXIT_STILL_HANGS: "an earlier {} still hangs, so that no other was started",
}
MAX_MODEL_CHARACTERS = 80
# Of one GPU, so many are remembered: a host can claim anything.
MAX_PEOPLE = 32
MAX_NAMED_GPUS = 20
UNMATCHED_PROCESSES_REASON = "there are processes on a GPU of this host of which it is not told which one"
STATE_FILES = ("host.txt", "gpus.csv", "processes.csv")


@dataclass(frozen=True)
class HostInput:
    """All that a host is judged by."""

    discovered: DiscoveredHost
    snapshot: HostSnapshot | None
    bookings: Sequence[Booking]
    idle_times: IdleTimes
    gpu_names: dict[str, str]
    booking_uses: Mapping[str, GpuBookingUse] = field(default_factory=dict)


def decide_host_status(case: HostInput, rules: StateRules, now: Now) -> HostStatus:
    """Everything that the board says of a host."""
    known, data = case.discovered, case.snapshot or HostSnapshot(case.discovered.name)
    state, reason = decide_host_state(known, data, rules.limits, now)
    rows = data.gpus.rows if data.gpus else ()
    if state == "fresh":
        seen = decide_gpus(case, data, rules, now)
    else:
        seen = DecidedGpus(build_outdated_gpus(case, data, state, rules, now), (), {}, frozenset())
    return HostStatus(
        known.name,
        known.title,
        known.tags,
        state,
        reason,
        data.last_seen,
        filter_host_facts(data, rules.privacy),
        tuple(seen.gpus),
        tuple(seen.unmatched_processes),
        booking_use.build_booking_statuses(case.bookings, rules.privacy, now) if not rows else (),
        tuple(list_host_notes(known, state)),
        (*data.problems, *find_host_problems(case, data, state, rules.limits, now)),
        frozenset(filter(rules.people.is_worth_remembering, seen.logins)),
        rules.privacy.users,
        seen.unplaced_processes,
        tuple(sorted(filter(is_truncated_login, seen.logins))),
    )


def build_outdated_gpus(
    case: HostInput, data: HostSnapshot, state: str, rules: StateRules, now: Now
) -> list[GpuStatus]:
    """The GPUs of a host that is not fresh; one that was lost when it was last heard of is lost."""
    why = f"its host is {'under maintenance' if state == 'maintenance' else state}"
    models = build_model_names(data, case.gpu_names)
    wrong = problems.ProblemFinder(data.gpus, list_tool_results(data.gpus)) if data.gpus else None
    lost = (
        {id(gpu): gpu_state.explain_lost(gpu, wrong.find_problems(gpu)) for gpu in data.gpus.rows}
        if data.gpus and wrong
        else {}
    )
    return [
        GpuStatus(
            drop_readings(gpu),
            format_gpu_model(gpu, models, case.gpu_names),
            "lost" if lost[id(gpu)] else "unknown",
            f"{lost[id(gpu)]}; {why}" if lost[id(gpu)] else why,
            (),
            booking_use.build_booking_statuses(
                booking_use.find_gpu_bookings(case.bookings, gpu), rules.privacy, now, gpu.parent
            ),
            case.idle_times.idle_since.get(gpu.key),
            parent_model=models[gpu.name] if gpu.parent else "",
        )
        for gpu in (data.gpus.rows if data.gpus else ())
    ]


def drop_readings(gpu: Gpu) -> Gpu:
    """A GPU without its readings, which are of another time."""
    known = Gpu(gpu.index, gpu.uuid, gpu.name, memory_total=gpu.memory_total, vendor=gpu.vendor, place=gpu.place)
    return known if gpu.parent is None else known._replace(profile=gpu.profile, parent=drop_readings(gpu.parent))


def filter_host_facts(data: HostSnapshot, shown: PrivacySettings) -> HostFacts | None:
    """What is known of the machine; disk use is by person, and goes with their names."""
    if not data.facts or not data.facts.rows:
        return None
    facts = data.facts.rows[0]
    if (facts.disk_use_time or 0) > (data.last_seen or 0) + formatting.DAY:  # a host can claim any time
        facts = replace(facts, disk_use_time=None)
    return facts if shown.users else replace(facts, disk_use=())


def decide_host_state(known: DiscoveredHost, data: HostSnapshot, limits: StateLimits, now: Now) -> tuple[str, str]:
    """The state of a host, and the reason."""
    if known.maintenance is not None:
        return "maintenance", known.maintenance
    if data.last_seen is None:
        return "unseen", explain_unseen(known, data)
    old = decide_state_by_age(data, data.last_seen, limits, now)
    if old:
        state, reason = old
        consul = f". Consul: {known.consul_status}{f', “{known.consul_message}”' if known.consul_message else ''}"
        return state, reason + (consul if known.consul_status not in {None, "passing"} else "")
    if not data.gpus or not data.gpus.rows:
        return "failed", explain_missing_gpus(data.gpus)
    return "fresh", "its snapshots arrive"


def explain_unseen(known: DiscoveredHost, data: HostSnapshot) -> str:
    """Why nothing is known of it."""
    if data.gpus or data.facts or data.problems:
        return "no whole host.txt has arrived yet" if not data.is_legacy else "its file of GPUs has not arrived yet"
    by = formatting.join_names(known.listed_by)
    return f"listed by {by}, but it never pushed" if by else "it never pushed"


def decide_state_by_age(data: HostSnapshot, seen: float, limits: StateLimits, now: Now) -> tuple[str, str] | None:
    """Stale or down, by the oldest of the files that a state rests on; host.txt alone says whether the host is down."""
    if not now.has_passed(seen - limits.clock_off):
        return "stale", "its files come from the future: the clock of the machine that has data/ is ahead of this one's"
    gone = ", and its files are gone from data/" if data.taken_at.keys() <= set(data.missing_files) else ""
    if now.has_passed(seen + limits.down_after):
        return (
            "down",
            f"no snapshot since {formatting.format_moment(datetime.fromtimestamp(seen, now.zone), now)}{gone}",
        )
    for file in STATE_FILES:
        moment = data.taken_at.get(file)
        if moment is None:
            continue
        limit = min(3 * data.intervals.get(file, 0) + limits.stale_after, limits.down_after)
        if now.has_passed(moment + limit):
            # a host can claim any time: before 1970 there was none
            at = formatting.format_moment(datetime.fromtimestamp(max(0, moment), now.zone), now)
            if file == "host.txt" or data.is_legacy:
                return "stale", f"no snapshot since {at}{gone}"
            return "stale", f"it pushes, but {file} is of {at}"
    return None


def explain_missing_gpus(dump: ParsedFile[Gpu] | None) -> str:
    """Why there is no GPU to show."""
    if dump is None:
        return "it pushes, but gpus.csv never arrived"
    return (
        describe_tool_failures(dump)
        or f"{formatting.join_names([one.tool for one in list_tool_results(dump)])} told no GPU"
    )


def list_tool_results(dump: ParsedFile[Gpu] | ParsedFile[GpuProcessRow]) -> tuple[ToolResult, ...]:
    """The tools that told it; the files of the original scripts are nvidia-smi's alone."""
    return dump.tool_results or (
        ToolResult("nvidia-smi", "nvidia", dump.header.rc if dump.header else 0, dump.messages),
    )


def describe_tool_failures(dump: ParsedFile[Gpu] | ParsedFile[GpuProcessRow]) -> str:
    """What the tools said beside their rows, and how they ended."""
    return "; ".join(filter(None, map(describe_tool_failure, list_tool_results(dump))))


def describe_tool_failure(voice: ToolResult) -> str:
    """The same of one."""
    code, said = voice.rc, " ".join(voice.messages[:3])[:300]
    if code in EXIT_CODE_MEANINGS:
        return EXIT_CODE_MEANINGS[code].format(voice.tool) + (f": {said}" if said else "")
    ended = f"{voice.tool} ended with exit code {code}" if code else f"{voice.tool} said" if said else ""
    advice = problems.advise_on_exit_code(voice) if code else ""
    return "; ".join(filter(None, (f"{ended}: {said}" if ended and said else ended, advice)))


class DecidedGpus(NamedTuple):
    """The GPUs of a fresh host; processes on no GPU that it tells, and on no instance; the logins on them."""

    gpus: Sequence[GpuStatus]
    unmatched_processes: Sequence[ProcessStatus]
    unplaced_processes: dict[str, tuple[ProcessStatus, ...]]
    logins: frozenset[str]


def decide_gpus(case: HostInput, data: HostSnapshot, rules: StateRules, now: Now) -> DecidedGpus:
    """All that is known of the GPUs of a fresh host."""
    ps = list_current_ps_rows(data, rules.limits, now)
    on_gpu = processes.build_processes_by_gpu(
        data, processes.PsIndex(ps), build_start_time_finder(data, rules.limits), rules.people, rules.privacy
    )
    told_by = find_vendors_with_processes(data)
    unreported = data.processes.unreported if data.processes else {}
    looked = data.taken_at.get("gpus.csv", data.last_seen or 0)
    # what happened while nothing was heard, nobody knows
    idle = case.idle_times.idle_since if looked - case.idle_times.checked_at <= rules.limits.down_after else {}
    found: list[GpuStatus] = []
    promises: dict[int, GpuInput] = {}
    rows = data.gpus.rows if data.gpus else ()
    models = build_model_names(data, case.gpu_names)
    wrong = problems.ProblemFinder(data.gpus, list_tool_results(data.gpus)) if data.gpus else None
    for gpu in rows:
        here = on_gpu.pop(gpu.process_key, [])
        missing = find_unreported_words(gpu, unreported)
        told = gpu.vendor in told_by and not missing
        board, logins = tuple(process for process, _ in here), tuple(login for _, login in here)
        mine = booking_use.find_gpu_bookings(case.bookings, gpu) if case.bookings else ()
        bookings = booking_use.build_booking_statuses(mine, rules.privacy, now, gpu.parent) if mine else ()
        since = None
        if gpu_state.is_gpu_idle(gpu, bool(here) or gpu_state.is_memory_taken(gpu, rules.limits), rules.limits):
            since = idle.get(gpu.key, looked)
        here_wrong = wrong.find_problems(gpu) if wrong else ()
        bookers = booking_use.list_current_bookers(mine, now) if mine else ()
        seen = GpuInput(gpu, board, logins, bookings, bookers, told, since, here_wrong, missing)
        state, reason = gpu_state.decide_gpu_state(seen, rules, now)
        soon = gpu_state.find_soon_booking(bookings, rules.limits, now) if state == "free" and bookings else None
        until = soon.since.timestamp() if soon and soon.since else None
        if seen.bookers:
            promises[len(found)] = seen
        who = find_gpu_people(seen, rules.people) if here or seen.bookers else NOBODY
        ownerless = tuple(one.pid for one, login in here if not login) if ps else ()
        no_process = not here and told and gpu.memory_used is not None and gpu_state.is_memory_taken(gpu, rules.limits)
        model = format_gpu_model(gpu, models, case.gpu_names)
        of = models[gpu.name] if gpu.parent else ""
        told_of = (who, ownerless, no_process, of, here_wrong)
        found.append(GpuStatus(gpu, model, state, reason, board, bookings, since, until, None, None, *told_of))
    unplaced = mig.take_unplaced_processes(found, on_gpu) if on_gpu else {}
    others = [process for rest in on_gpu.values() for process, _ in rest]
    if others:  # on whichever GPU they are
        found = [
            one._replace(state="unknown", reason=UNMATCHED_PROCESSES_REASON) if one.state in mig.EMPTY_STATES else one
            for one in found
        ]
    if unplaced:
        found = [mig.mark_unclear_instance(one, unplaced) for one in found]
    look = booking_use.BookingCheck(int(looked), find_snapshot_time(data, looked), case.booking_uses, case.bookings)
    for place, seen in promises.items():
        found[place] = booking_use.add_booking_use(found[place], seen, look, rules, now)
    everybody = frozenset(filter(None, (processes.find_process_login(row, rules.people) for row in ps)))
    return DecidedGpus(found, others, unplaced, everybody)


def find_gpu_people(seen: GpuInput, people: PeopleDirectory) -> GpuPeople:
    """Who is on a GPU and who has booked it, each under one of the names that were told."""
    told = (login or process.user for login, process in zip(seen.logins, seen.processes))
    users = dedupe_people({name for name in told if name}, people)
    bookers = dedupe_people(set(seen.bookers), people)
    if not bookers:
        return GpuPeople(users)
    here = {people.find_person(login) for login in seen.logins}
    return GpuPeople(users, bookers, tuple(name for name in bookers if people.resolve_person(name) not in here))


def dedupe_people(names: set[str], people: PeopleDirectory) -> tuple[str, ...]:
    """One name of each person, or whoever has two logins would have two parts of a GPU."""
    several = sorted(names)
    if len(several) > 1:
        several = list({people.resolve_user(name): name for name in reversed(several)}.values())[::-1]
    return tuple(several[:MAX_PEOPLE])


def find_snapshot_time(data: HostSnapshot, looked: float) -> int:
    """What tells one snapshot from the next: when it arrived is known a little better with each file that follows."""
    return data.gpus.header.time if data.gpus and data.gpus.header else int(looked)


def find_vendors_with_processes(data: HostSnapshot) -> frozenset[str]:
    """Of whose GPUs the processes were told: that there is none on a GPU means something only then."""
    dump = data.processes
    if dump is None or not dump.is_complete:
        return frozenset()
    heard = (voice for voice in list_tool_results(dump) if voice.is_complete)
    return frozenset(
        voice.vendor for voice in heard if not voice.rc or has_processes_despite_error(voice, dump, data.gpus)
    )


def has_processes_despite_error(
    voice: ToolResult, dump: ParsedFile[GpuProcessRow], gpus_told: ParsedFile[Gpu] | None
) -> bool:
    """One that ends with an error has told something if there are rows, or if it ends so for want of a lost GPU."""
    if voice.rc in EXIT_CODE_MEANINGS or gpus_told is None:
        return voice.rc not in EXIT_CODE_MEANINGS and bool(dump.rows)
    makers = {gpu.process_key: gpu.vendor for gpu in gpus_told.rows}
    same = any(one.vendor == voice.vendor and one.rc == voice.rc for one in list_tool_results(gpus_told))
    return same or any(makers.get(row.gpu_key, voice.vendor) == voice.vendor for row in dump.rows)


def find_unreported_words(gpu: Gpu, unreported: Mapping[str, str]) -> str:
    """Return what the tool said in the place of a GPU's processes; an instance shares the words for its GPU."""
    if not unreported:
        return ""
    return unreported.get(gpu.process_key) or (unreported.get(gpu.parent.process_key, "") if gpu.parent else "")


def list_current_ps_rows(data: HostSnapshot, limits: StateLimits, now: Now) -> Sequence[PsRow]:
    """The rows of ps, unless they are so old that a pid may be another process by now."""
    moment = data.taken_at.get("ps.txt")
    if data.ps_rows is None or (moment is not None and now.has_passed(moment + limits.down_after)):
        return ()
    return data.ps_rows.rows


def build_start_time_finder(data: HostSnapshot, limits: StateLimits) -> Callable[[PsRow], int | None]:
    """When a process began, on our clock: the host's own is believed, unless it is off."""
    if data.ps_rows and data.ps_rows.header:
        off = data.clock_offset if data.clock_offset is not None and abs(data.clock_offset) > limits.clock_off else 0
        looked = data.ps_rows.header.time - int(off)
    else:
        looked = int(data.last_seen or 0)

    def began(row: PsRow) -> int | None:
        # a host can claim anything: neither before 1970 nor ahead of its own snapshot has a process begun
        moment = None if row.elapsed is None else looked - row.elapsed
        return moment if moment is not None and 0 <= moment <= (data.last_seen or 0) + formatting.DAY else None

    return began


def build_model_names(data: HostSnapshot, names: dict[str, str]) -> dict[str | None, str]:
    """What people call each of the GPUs, by its full name; one that is lost has the memory of its likes."""
    told: dict[str, float | None] = {}
    for one in data.gpus.rows if data.gpus else ():
        gpu = one.parent or one
        if gpu.name:
            told[gpu.name] = told.get(gpu.name) or gpu.memory_total
    found: dict[str | None, str] = {
        name: shorten_gpu_name(name, names, memory)[:MAX_MODEL_CHARACTERS] for name, memory in told.items()
    }
    return {**found, None: "GPU"}


def format_gpu_model(gpu: Gpu, models: dict[str | None, str], names: dict[str, str]) -> str:
    """The same of one of them; an instance has its profile in its name."""
    if gpu.parent is None:
        return models[gpu.name]
    return shorten_instance_name(gpu.name, names, gpu.profile)[:MAX_MODEL_CHARACTERS]


def list_host_notes(known: DiscoveredHost, state: str) -> Iterator[str]:
    """What everyone may want to know beside the state."""
    if known.is_missing_in_consul:
        yield "not in Consul"
    if state == "fresh" and known.consul_status not in {None, "passing"}:
        yield f"Consul: {known.consul_status}" + (f", “{known.consul_message}”" if known.consul_message else "")


def find_host_problems(
    case: HostInput, data: HostSnapshot, state: str, limits: StateLimits, now: Now
) -> Iterator[Problem]:
    """What the admin should look at."""
    name = case.discovered.name
    if data.clock_offset is not None and abs(data.clock_offset) > limits.clock_off:
        which = "ahead" if data.clock_offset > 0 else "behind, or its snapshots take that long to arrive"
        yield Problem(name, f"the clock of this host is {formatting.format_duration(abs(data.clock_offset))} {which}")
    if data.missing_files:
        files = ", ".join(data.missing_files)
        yield Problem(f"data/{name}", f"gone: {files}; `gpuboard forget {name}` takes the host off the board")
    if state == "fresh" and data.gpus and (what := describe_tool_failures(data.gpus)):
        yield Problem(f"data/{name}/gpus.csv", what)
    if (
        data.processes
        and any(one.rc for one in list_tool_results(data.processes))
        and (what := describe_tool_failures(data.processes))
    ):
        yield Problem(f"data/{name}/processes.csv", what)
    if data.gpus and data.gpus.rows:
        for booking in booking_use.find_bookings_of_missing_gpus(case.bookings, data.gpus.rows, now):
            has = format_gpu_labels(data.gpus.rows)
            yield Problem("data/comments.json", f"{name} has no GPU {booking.gpu[:80]}, only {has}")


def format_gpu_labels(rows: Sequence[Gpu]) -> str:
    """`GPU 0`, `GPUs 0 to 3`, `GPUs 0:0, 0:1, 1`."""
    labels = [one.label for one in rows]
    if len(labels) == 1 or not any(one.place for one in rows):
        return f"GPU {labels[0]}" if len(labels) == 1 else f"GPUs {labels[0]} to {labels[-1]}"
    return f"GPUs {', '.join(labels[:MAX_NAMED_GPUS])}{' and others' if len(labels) > MAX_NAMED_GPUS else ''}"
