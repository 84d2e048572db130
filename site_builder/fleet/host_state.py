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
    BoardGpu,
    BoardHost,
    BoardProcess,
    Booking,
    Dump,
    Gpu,
    GpuProcess,
    HostData,
    HostFacts,
    Idle,
    KeptGpu,
    KnownHost,
    Limits,
    Problem,
    PsRow,
    Shown,
    Voice,
    Who,
)
from site_builder.core.people import People, is_cut
from site_builder.fleet import active_bookings, booking_use, gpu_state, mig, processes
from site_builder.fleet.gpu_state import Rules, Seen
from site_builder.health import problems as health_problems
from site_builder.snapshots.gpu_names import of_instance, short

# Exit codes that our own script gives, beside those of nvidia-smi.
NO_SPACE, TIMED_OUT, MISSING, KILLED, STILL_HANGS = 74, 124, 127, 137, 200
CODES = {
    NO_SPACE: "the answer of {} could not be kept on the host",
    TIMED_OUT: "{} did not answer in time and was stopped",
    KILLED: "{} did not answer in time and was killed",
    MISSING: "there is no {} on the host",
    STILL_HANGS: "an earlier {} still hangs, so that no other was started",
}
MODEL_CHARACTERS = 80
# Of one GPU, so many are remembered: a host can claim anything.
MOST_PEOPLE = 32
MOST_NAMED = 20
ELSEWHERE = "there are processes on a GPU of this host of which it is not told which one"
FILES_OF_STATE = ("host.txt", "gpus.csv", "processes.csv")


@dataclass(frozen=True)
class Case:
    """All that a host is judged by."""

    known: KnownHost
    data: HostData | None
    bookings: Sequence[Booking]
    idle: Idle
    names: dict[str, str]
    kept: Mapping[str, KeptGpu] = field(default_factory=dict)


def host(case: Case, rules: Rules, now: Now) -> BoardHost:
    """Everything that the board says of a host."""
    known, data = case.known, case.data or HostData(case.known.name)
    state, reason = state_of(known, data, rules.limits, now)
    rows = data.gpus.rows if data.gpus else ()
    if state == "fresh":
        seen = seen_gpus(case, data, rules, now)
    else:
        seen = SeenGpus(old_gpus(case, data, state, rules, now), (), {}, frozenset())
    return BoardHost(
        known.name,
        known.title,
        known.tags,
        state,
        reason,
        data.seen,
        facts_of(data, rules.shown),
        tuple(seen.gpus),
        tuple(seen.others),
        active_bookings.at(case.bookings, rules.shown, now) if not rows else (),
        tuple(notes(known, state)),
        (*data.problems, *problems(case, data, state, rules.limits, now)),
        frozenset(filter(rules.people.is_learned, seen.logins)),
        rules.shown.users,
        seen.unplaced,
        tuple(sorted(filter(is_cut, seen.logins))),
    )


def old_gpus(case: Case, data: HostData, state: str, rules: Rules, now: Now) -> list[BoardGpu]:
    """The GPUs of a host that is not fresh; one that was lost when it was last heard of is lost."""
    why = f"its host is {'under maintenance' if state == 'maintenance' else state}"
    models = models_of(data, case.names)
    wrong = health_problems.Problems(data.gpus, voices(data.gpus)) if data.gpus else None
    lost = {id(gpu): gpu_state.why_lost(gpu, wrong.of(gpu)) for gpu in data.gpus.rows} if data.gpus and wrong else {}
    return [
        BoardGpu(
            bare(gpu),
            model_of(gpu, models, case.names),
            "lost" if lost[id(gpu)] else "unknown",
            f"{lost[id(gpu)]}; {why}" if lost[id(gpu)] else why,
            (),
            active_bookings.at(active_bookings.of_gpu(case.bookings, gpu), rules.shown, now, gpu.parent),
            case.idle.since.get(gpu.key),
            of=models[gpu.name] if gpu.parent else "",
        )
        for gpu in (data.gpus.rows if data.gpus else ())
    ]


def bare(gpu: Gpu) -> Gpu:
    """A GPU without its readings, which are of another time."""
    known = Gpu(gpu.index, gpu.uuid, gpu.name, memory_total=gpu.memory_total, vendor=gpu.vendor, place=gpu.place)
    return known if gpu.parent is None else known._replace(profile=gpu.profile, parent=bare(gpu.parent))


def facts_of(data: HostData, shown: Shown) -> HostFacts | None:
    """What is known of the machine; disk use is by person, and goes with their names."""
    if not data.facts or not data.facts.rows:
        return None
    facts = data.facts.rows[0]
    if (facts.disk_use_time or 0) > (data.seen or 0) + formatting.DAY:  # a host can claim any time
        facts = replace(facts, disk_use_time=None)
    return facts if shown.users else replace(facts, disk_use=())


def state_of(known: KnownHost, data: HostData, limits: Limits, now: Now) -> tuple[str, str]:
    """The state of a host, and the reason."""
    if known.maintenance is not None:
        return "maintenance", known.maintenance
    if data.seen is None:
        return "unseen", unseen(known, data)
    old = state_of_age(data, data.seen, limits, now)
    if old:
        state, reason = old
        consul = f". Consul: {known.consul}{f', “{known.consul_said}”' if known.consul_said else ''}"
        return state, reason + (consul if known.consul not in {None, "passing"} else "")
    if not data.gpus or not data.gpus.rows:
        return "failed", failure(data.gpus)
    return "fresh", "its snapshots arrive"


def unseen(known: KnownHost, data: HostData) -> str:
    """Why nothing is known of it."""
    if data.gpus or data.facts or data.problems:
        return "no whole host.txt has arrived yet" if not data.legacy else "its file of GPUs has not arrived yet"
    by = formatting.names(known.listed_by)
    return f"listed by {by}, but it never pushed" if by else "it never pushed"


def state_of_age(data: HostData, seen: float, limits: Limits, now: Now) -> tuple[str, str] | None:
    """Stale or down, by the oldest of the files that a state rests on; host.txt alone says whether the host is down."""
    if not now.reached(seen - limits.clock_off):
        return "stale", "its files come from the future: the clock of the machine that has data/ is ahead of this one's"
    gone = ", and its files are gone from data/" if data.taken.keys() <= set(data.gone) else ""
    if now.reached(seen + limits.down_after):
        return "down", f"no snapshot since {formatting.clock(datetime.fromtimestamp(seen, now.zone), now)}{gone}"
    for file in FILES_OF_STATE:
        moment = data.taken.get(file)
        if moment is None:
            continue
        limit = min(3 * data.every.get(file, 0) + limits.stale_after, limits.down_after)
        if now.reached(moment + limit):
            # a host can claim any time: before 1970 there was none
            at = formatting.clock(datetime.fromtimestamp(max(0, moment), now.zone), now)
            if file == "host.txt" or data.legacy:
                return "stale", f"no snapshot since {at}{gone}"
            return "stale", f"it pushes, but {file} is of {at}"
    return None


def failure(dump: Dump[Gpu] | None) -> str:
    """Why there is no GPU to show."""
    if dump is None:
        return "it pushes, but gpus.csv never arrived"
    return complaint(dump) or f"{formatting.names([one.tool for one in voices(dump)])} told no GPU"


def voices(dump: Dump[Gpu] | Dump[GpuProcess]) -> tuple[Voice, ...]:
    """The tools that told it; the files of the original scripts are nvidia-smi's alone."""
    return dump.voices or (Voice("nvidia-smi", "nvidia", dump.header.rc if dump.header else 0, dump.said),)


def complaint(dump: Dump[Gpu] | Dump[GpuProcess]) -> str:
    """What the tools said beside their rows, and how they ended."""
    return "; ".join(filter(None, map(complaint_of, voices(dump))))


def complaint_of(voice: Voice) -> str:
    """The same of one."""
    code, said = voice.rc, " ".join(voice.said[:3])[:300]
    if code in CODES:
        return CODES[code].format(voice.tool) + (f": {said}" if said else "")
    ended = f"{voice.tool} ended with exit code {code}" if code else f"{voice.tool} said" if said else ""
    advice = health_problems.advice_for(voice) if code else ""
    return "; ".join(filter(None, (f"{ended}: {said}" if ended and said else ended, advice)))


class SeenGpus(NamedTuple):
    """The GPUs of a fresh host; processes on no GPU that it tells, and on no instance; the logins on them."""

    gpus: Sequence[BoardGpu]
    others: Sequence[BoardProcess]
    unplaced: dict[str, tuple[BoardProcess, ...]]
    logins: frozenset[str]


def seen_gpus(case: Case, data: HostData, rules: Rules, now: Now) -> SeenGpus:
    """All that is known of the GPUs of a fresh host."""
    ps = current_ps(data, rules.limits, now)
    on_gpu = processes.by_gpu(data, processes.Family(ps), clock_of(data, rules.limits), rules.people, rules.shown)
    told_by = told_processes(data)
    unreported = data.processes.unreported if data.processes else {}
    looked = data.taken.get("gpus.csv", data.seen or 0)
    # what happened while nothing was heard, nobody knows
    idle = case.idle.since if looked - case.idle.looked <= rules.limits.down_after else {}
    found: list[BoardGpu] = []
    promises: dict[int, Seen] = {}
    rows = data.gpus.rows if data.gpus else ()
    models = models_of(data, case.names)
    wrong = health_problems.Problems(data.gpus, voices(data.gpus)) if data.gpus else None
    for gpu in rows:
        here = on_gpu.pop(gpu.handle, [])
        missing = words_for_processes(gpu, unreported)
        told = gpu.vendor in told_by and not missing
        board, logins = tuple(process for process, _ in here), tuple(login for _, login in here)
        mine = active_bookings.of_gpu(case.bookings, gpu) if case.bookings else ()
        bookings = active_bookings.at(mine, rules.shown, now, gpu.parent) if mine else ()
        since = None
        if gpu_state.is_idle(gpu, bool(here) or gpu_state.memory_taken(gpu, rules.limits), rules.limits):
            since = idle.get(gpu.key, looked)
        here_wrong = wrong.of(gpu) if wrong else ()
        bookers = active_bookings.names_now(mine, now) if mine else ()
        seen = Seen(gpu, board, logins, bookings, bookers, told, since, here_wrong, missing)
        state, reason = gpu_state.state(seen, rules, now)
        soon = gpu_state.promised_soon(bookings, rules.limits, now) if state == "free" and bookings else None
        until = soon.since.timestamp() if soon and soon.since else None
        if seen.bookers:
            promises[len(found)] = seen
        who = who_of(seen, rules.people) if here or seen.bookers else NOBODY
        ownerless = tuple(one.pid for one, login in here if not login) if ps else ()
        no_process = not here and told and gpu.memory_used is not None and gpu_state.memory_taken(gpu, rules.limits)
        model = model_of(gpu, models, case.names)
        of = models[gpu.name] if gpu.parent else ""
        told_of = (who, ownerless, no_process, of, here_wrong)
        found.append(BoardGpu(gpu, model, state, reason, board, bookings, since, until, None, None, *told_of))
    unplaced = mig.unplaced_in(found, on_gpu) if on_gpu else {}
    others = [process for rest in on_gpu.values() for process, _ in rest]
    if others:  # on whichever GPU they are
        found = [one._replace(state="unknown", reason=ELSEWHERE) if one.state in mig.EMPTY else one for one in found]
    if unplaced:
        found = [mig.beside(one, unplaced) for one in found]
    look = booking_use.Look(int(looked), snapshot_time(data, looked), case.kept, case.bookings)
    for place, seen in promises.items():
        found[place] = booking_use.judged(found[place], seen, look, rules, now)
    everybody = frozenset(filter(None, (processes.login(row, rules.people) for row in ps)))
    return SeenGpus(found, others, unplaced, everybody)


def who_of(seen: Seen, people: People) -> Who:
    """Who is on a GPU and who has booked it, each under one of the names that were told."""
    told = (login or process.user for login, process in zip(seen.logins, seen.processes))
    users = once({name for name in told if name}, people)
    bookers = once(set(seen.bookers), people)
    if not bookers:
        return Who(users)
    here = {people.of_login(login) for login in seen.logins}
    return Who(users, bookers, tuple(name for name in bookers if people.person(name) not in here))


def once(names: set[str], people: People) -> tuple[str, ...]:
    """One name of each person, or whoever has two logins would have two parts of a GPU."""
    several = sorted(names)
    if len(several) > 1:
        several = list({people.one(name): name for name in reversed(several)}.values())[::-1]
    return tuple(several[:MOST_PEOPLE])


def snapshot_time(data: HostData, looked: float) -> int:
    """What tells one snapshot from the next: when it arrived is known a little better with each file that follows."""
    return data.gpus.header.time if data.gpus and data.gpus.header else int(looked)


def told_processes(data: HostData) -> frozenset[str]:
    """Of whose GPUs the processes were told: that there is none on a GPU means something only then."""
    dump = data.processes
    if dump is None or not dump.whole:
        return frozenset()
    heard = (voice for voice in voices(dump) if voice.answered)
    return frozenset(voice.vendor for voice in heard if not voice.rc or told_in_spite(voice, dump, data.gpus))


def told_in_spite(voice: Voice, dump: Dump[GpuProcess], gpus_told: Dump[Gpu] | None) -> bool:
    """One that ends with an error has told something if there are rows, or if it ends so for want of a lost GPU."""
    if voice.rc in CODES or gpus_told is None:
        return voice.rc not in CODES and bool(dump.rows)
    makers = {gpu.handle: gpu.vendor for gpu in gpus_told.rows}
    same = any(one.vendor == voice.vendor and one.rc == voice.rc for one in voices(gpus_told))
    return same or any(makers.get(row.gpu, voice.vendor) == voice.vendor for row in dump.rows)


def words_for_processes(gpu: Gpu, unreported: Mapping[str, str]) -> str:
    """Return what the tool said in the place of a GPU's processes; an instance shares the words for its GPU."""
    if not unreported:
        return ""
    return unreported.get(gpu.handle) or (unreported.get(gpu.parent.handle, "") if gpu.parent else "")


def current_ps(data: HostData, limits: Limits, now: Now) -> Sequence[PsRow]:
    """The rows of ps, unless they are so old that a pid may be another process by now."""
    moment = data.taken.get("ps.txt")
    if data.ps is None or (moment is not None and now.reached(moment + limits.down_after)):
        return ()
    return data.ps.rows


def clock_of(data: HostData, limits: Limits) -> Callable[[PsRow], int | None]:
    """When a process began, on our clock: the host's own is believed, unless it is off."""
    if data.ps and data.ps.header:
        off = data.clock if data.clock is not None and abs(data.clock) > limits.clock_off else 0
        looked = data.ps.header.time - int(off)
    else:
        looked = int(data.seen or 0)

    def began(row: PsRow) -> int | None:
        # a host can claim anything: neither before 1970 nor ahead of its own snapshot has a process begun
        moment = None if row.elapsed is None else looked - row.elapsed
        return moment if moment is not None and 0 <= moment <= (data.seen or 0) + formatting.DAY else None

    return began


def models_of(data: HostData, names: dict[str, str]) -> dict[str | None, str]:
    """What people call each of the GPUs, by its full name; one that is lost has the memory of its likes."""
    told: dict[str, float | None] = {}
    for one in data.gpus.rows if data.gpus else ():
        gpu = one.parent or one
        if gpu.name:
            told[gpu.name] = told.get(gpu.name) or gpu.memory_total
    found: dict[str | None, str] = {
        name: short(name, names, memory)[:MODEL_CHARACTERS] for name, memory in told.items()
    }
    return {**found, None: "GPU"}


def model_of(gpu: Gpu, models: dict[str | None, str], names: dict[str, str]) -> str:
    """The same of one of them; an instance has its profile in its name."""
    if gpu.parent is None:
        return models[gpu.name]
    return of_instance(gpu.name, names, gpu.profile)[:MODEL_CHARACTERS]


def notes(known: KnownHost, state: str) -> Iterator[str]:
    """What everyone may want to know beside the state."""
    if known.not_in_consul:
        yield "not in Consul"
    if state == "fresh" and known.consul not in {None, "passing"}:
        yield f"Consul: {known.consul}" + (f", “{known.consul_said}”" if known.consul_said else "")


def problems(case: Case, data: HostData, state: str, limits: Limits, now: Now) -> Iterator[Problem]:
    """What the admin should look at."""
    name = case.known.name
    if data.clock is not None and abs(data.clock) > limits.clock_off:
        which = "ahead" if data.clock > 0 else "behind, or its snapshots take that long to arrive"
        yield Problem(name, f"the clock of this host is {formatting.duration(abs(data.clock))} {which}")
    if data.gone:
        files = ", ".join(data.gone)
        yield Problem(f"data/{name}", f"gone: {files}; `gpuboard forget {name}` takes the host off the board")
    if state == "fresh" and data.gpus and (what := complaint(data.gpus)):
        yield Problem(f"data/{name}/gpus.csv", what)
    if data.processes and any(one.rc for one in voices(data.processes)) and (what := complaint(data.processes)):
        yield Problem(f"data/{name}/processes.csv", what)
    if data.gpus and data.gpus.rows:
        for booking in active_bookings.of_no_gpu(case.bookings, data.gpus.rows, now):
            has = only_gpus(data.gpus.rows)
            yield Problem("data/comments.json", f"{name} has no GPU {booking.gpu[:80]}, only {has}")


def only_gpus(rows: Sequence[Gpu]) -> str:
    """`GPU 0`, `GPUs 0 to 3`, `GPUs 0:0, 0:1, 1`."""
    labels = [one.label for one in rows]
    if len(labels) == 1 or not any(one.place for one in rows):
        return f"GPU {labels[0]}" if len(labels) == 1 else f"GPUs {labels[0]} to {labels[-1]}"
    return f"GPUs {', '.join(labels[:MOST_NAMED])}{' and others' if len(labels) > MOST_NAMED else ''}"
