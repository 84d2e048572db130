"""The state of a host, and all that the board says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from site_builder import words
from site_builder.decide import bookings as promised
from site_builder.decide import gpus, kept, processes
from site_builder.decide.gpus import Rules, Seen
from site_builder.decide.people import People
from site_builder.model import (
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
    Who,
)
from site_builder.now import Now
from site_builder.readers.gpu_names import short

# Exit codes that our own script gives, beside those of nvidia-smi.
NO_SPACE, TIMED_OUT, MISSING, KILLED, STILL_HANGS = 74, 124, 127, 137, 200
CODES = {
    NO_SPACE: "the answer of nvidia-smi could not be kept on the host",
    TIMED_OUT: "nvidia-smi did not answer in time and was stopped",
    KILLED: "nvidia-smi did not answer in time and was killed",
    MISSING: "there is no nvidia-smi on the host",
    STILL_HANGS: "an earlier nvidia-smi still hangs, so that no other was started",
}
MODEL_CHARACTERS = 80
# Of one GPU, so many are remembered: a host can claim anything.
MOST_PEOPLE = 32
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
    models = models_of(data, case.names)
    board_gpus: list[BoardGpu] = []
    others: list[BoardProcess] = []
    logins: frozenset[str] = frozenset()
    if state == "fresh":
        board_gpus, others, logins = seen_gpus(case, data, rules, now)
    else:
        for gpu in rows:
            bookings = promised.at(promised.of_gpu(case.bookings, gpu), rules.shown, now)
            bare = Gpu(gpu.index, gpu.uuid, gpu.name, memory_total=gpu.memory_total)
            idle = case.idle.since.get(gpu.uuid or f"index {gpu.index}")
            model = models[gpu.name]
            why = f"its host is {'under maintenance' if state == 'maintenance' else state}"
            board_gpus.append(BoardGpu(bare, model, "unknown", why, (), bookings, idle))
    board_gpus.sort(key=lambda one: (one.gpu.index is None, one.gpu.index or 0))
    return BoardHost(
        known.name,
        known.title,
        known.tags,
        state,
        reason,
        data.seen,
        facts_of(data, rules.shown),
        tuple(board_gpus),
        tuple(others),
        promised.at(case.bookings, rules.shown, now) if not rows else (),
        tuple(notes(known, state)),
        (*data.problems, *problems(case, data, state, rules.limits, now)),
        logins,
        rules.shown.users,
    )


def facts_of(data: HostData, shown: Shown) -> HostFacts | None:
    """What is known of the machine; disk use is by person, and goes with their names."""
    if not data.facts or not data.facts.rows:
        return None
    facts = data.facts.rows[0]
    if (facts.disk_use_time or 0) > (data.seen or 0) + words.DAY:  # a host can claim any time
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
    by = words.names(known.listed_by)
    return f"listed by {by}, but it never pushed" if by else "it never pushed"


def state_of_age(data: HostData, seen: float, limits: Limits, now: Now) -> tuple[str, str] | None:
    """Stale or down, by the oldest of the files that a state rests on; host.txt alone says whether the host is down."""
    if not now.reached(seen - limits.clock_off):
        return "stale", "its files come from the future: the clock of the machine that has data/ is ahead of this one's"
    gone = ", and its files are gone from data/" if data.taken.keys() <= set(data.gone) else ""
    if now.reached(seen + limits.down_after):
        return "down", f"no snapshot since {words.clock(datetime.fromtimestamp(seen, now.zone), now)}{gone}"
    for file in FILES_OF_STATE:
        moment = data.taken.get(file)
        if moment is None:
            continue
        limit = min(3 * data.every.get(file, 0) + limits.stale_after, limits.down_after)
        if now.reached(moment + limit):
            # a host can claim any time: before 1970 there was none
            at = words.clock(datetime.fromtimestamp(max(0, moment), now.zone), now)
            if file == "host.txt" or data.legacy:
                return "stale", f"no snapshot since {at}{gone}"
            return "stale", f"it pushes, but {file} is of {at}"
    return None


def failure(dump: Dump[Gpu] | None) -> str:
    """Why there is no GPU to show."""
    if dump is None:
        return "it pushes, but gpus.csv never arrived"
    return complaint(dump) or "nvidia-smi told no GPU"


def complaint(dump: Dump[Gpu] | Dump[GpuProcess]) -> str:
    """What nvidia-smi said beside its rows, and how it ended."""
    code = dump.header.rc if dump.header else 0
    said = " ".join(dump.said[:3])[:300]
    if code in CODES:
        return CODES[code] + (f": {said}" if said else "")
    ended = f"nvidia-smi ended with exit code {code}" if code else "nvidia-smi said" if said else ""
    return f"{ended}: {said}" if ended and said else ended


def seen_gpus(
    case: Case, data: HostData, rules: Rules, now: Now
) -> tuple[list[BoardGpu], list[BoardProcess], frozenset[str]]:
    """The GPUs of a fresh host; the processes on no GPU that it tells; the logins on them."""
    ps = current_ps(data, rules.limits, now)
    on_gpu = processes.by_gpu(data, processes.Family(ps), clock_of(data, rules.limits), rules.people, rules.shown)
    told = processes_told(data)
    looked = data.taken.get("gpus.csv", data.seen or 0)
    # what happened while nothing was heard, nobody knows
    idle = case.idle.since if looked - case.idle.looked <= rules.limits.down_after else {}
    found: list[BoardGpu] = []
    promises: dict[int, Seen] = {}
    models = models_of(data, case.names)
    for gpu in data.gpus.rows if data.gpus else ():
        here = on_gpu.pop(gpu.uuid, []) if gpu.uuid else []
        board, logins = tuple(process for process, _ in here), tuple(login for _, login in here)
        mine = promised.of_gpu(case.bookings, gpu) if case.bookings else ()
        bookings = promised.at(mine, rules.shown, now) if mine else ()
        since = None
        if gpus.is_idle(gpu, bool(here) or gpus.memory_taken(gpu, rules.limits), rules.limits):
            since = idle.get(gpu.uuid or f"index {gpu.index}", looked)
        seen = Seen(gpu, board, logins, bookings, promised.names_now(mine, now) if mine else (), told, since)
        state, reason = gpus.state(seen, rules, now)
        soon = gpus.promised_soon(bookings, rules.limits, now) if state == "free" and bookings else None
        until = soon.since.timestamp() if soon and soon.since else None
        if seen.bookers:
            promises[len(found)] = seen
        who = who_of(seen, rules.people) if here or seen.bookers else NOBODY
        ownerless = tuple(one.pid for one, login in here if not login) if ps else ()
        no_process = not here and told and gpu.memory_used is not None and gpus.memory_taken(gpu, rules.limits)
        told_of = BoardGpu(gpu, models[gpu.name], state, reason, board, bookings, since, until)
        found.append(told_of._replace(who=who, ownerless=ownerless, unexplained=no_process))
    others = [process for rest in on_gpu.values() for process, _ in rest]
    if others:  # on whichever GPU they are
        empty = {"free", "booked"}
        found = [one._replace(state="unknown", reason=ELSEWHERE) if one.state in empty else one for one in found]
    look = kept.Look(int(looked), snapshot_time(data, looked), case.kept, case.bookings)
    for place, seen in promises.items():
        found[place] = kept.judged(found[place], seen, look, rules, now)
    users = {row.user for row in ps if row.user}
    return found, others, frozenset(filter(rules.people.is_login, users))


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
        several = list({people.person(name): name for name in reversed(several)}.values())[::-1]
    return tuple(several[:MOST_PEOPLE])


def snapshot_time(data: HostData, looked: float) -> int:
    """What tells one snapshot from the next: when it arrived is known a little better with each file that follows."""
    return data.gpus.header.time if data.gpus and data.gpus.header else int(looked)


def processes_told(data: HostData) -> bool:
    """Whether nvidia-smi got as far as telling the processes: that it tells none means something only then."""
    dump = data.processes
    if dump is None or not dump.answered or not dump.whole:
        return False
    code = dump.header.rc if dump.header else 0
    if not code:
        return True
    # one that ends with an error has told something if there are rows, or if it ends so for want of a GPU that is lost
    same = bool(data.gpus and data.gpus.header and data.gpus.header.rc == code)
    return code not in CODES and (bool(dump.rows) or same)


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
        return moment if moment is not None and 0 <= moment <= (data.seen or 0) + words.DAY else None

    return began


def models_of(data: HostData, names: dict[str, str]) -> dict[str | None, str]:
    """What people call each of the GPUs, by its full name; one that is lost has the memory of its likes."""
    told: dict[str, float | None] = {}
    for gpu in data.gpus.rows if data.gpus else ():
        if gpu.name:
            told[gpu.name] = told.get(gpu.name) or gpu.memory_total
    found: dict[str | None, str] = {
        name: short(name, names, memory)[:MODEL_CHARACTERS] for name, memory in told.items()
    }
    return {**found, None: "GPU"}


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
        yield Problem(name, f"the clock of this host is {words.duration(abs(data.clock))} {which}")
    if data.gone:
        files = ", ".join(data.gone)
        yield Problem(f"data/{name}", f"gone: {files}; `gpuboard forget {name}` takes the host off the board")
    if state == "fresh" and data.gpus and (what := complaint(data.gpus)):
        yield Problem(f"data/{name}/gpus.csv", what)
    if data.processes and data.processes.header and data.processes.header.rc and (what := complaint(data.processes)):
        yield Problem(f"data/{name}/processes.csv", what)
    if data.gpus and data.gpus.rows:
        for booking in promised.of_no_gpu(case.bookings, data.gpus.rows, now):
            first, last = data.gpus.rows[0].index, data.gpus.rows[-1].index
            has = f"GPU {first}" if first == last else f"GPUs {first} to {last}"
            yield Problem("data/comments.json", f"{name} has no GPU {booking.gpu[:80]}, only {has}")
