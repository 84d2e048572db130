"""Find the conditions of hosts, GPUs and bookings that alerts are about."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from site_builder.alerts.model import Condition
from site_builder.bookings.transaction import RUN_ID_PREFIX
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import Booking, BookingStatus, GpuStatus, HostSnapshot, HostStatus, PrivacySettings
from site_builder.core.names import fold_alias, fold_login
from site_builder.core.people import PeopleDirectory, parse_uid
from site_builder.fleet import booking_use, processes
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.summary import HostSummary
from site_builder.health.events import CRITICAL_KINDS, describe_event
from site_builder.health.model import BEFORE_FIRST_CHECK, SPAN_KINDS, HealthEvent

# What history alone can tell; where it cannot be read, nobody knows whether these are over (Scene.blind).
HEALTH_RULES = frozenset({"gpu-lost", "gpu-hot", "gpu-error"})
# Seconds for which something counts that was counted: read events from so long ago on (Events.read).
LOOKBACK_S = 3600
# A host can claim anything.
MAX_CONDITIONS_PER_HOST = 100
LOST_KINDS, HOT_KINDS = frozenset({"lost", "gone"}), frozenset({"hot", "heat"})
ERROR_KINDS = (CRITICAL_KINDS | {"pending"}) - LOST_KINDS


def is_gpu_nowhere(_: str) -> bool:
    """Whether any host has a GPU, where nobody looks."""
    return False


def find_health_conditions(
    events: Iterable[HealthEvent],
    people: Callable[[str], tuple[str, ...]],
    now: Now,
    there: Callable[[str], bool] = is_gpu_nowhere,
) -> list[Condition]:
    """What is the matter by what happened until now; `people` tells who is on a host (Card.people).

    `there` tells whether any host has the GPU of a UUID, since one that was moved is not lost. The number of an event
    is not part of a key: another builder, with a history of its own, must know the matter by it too.
    """
    found: dict[str, Condition] = {}
    counts: Counter[str] = Counter()
    for event in events:
        one = build_health_condition(event, now)
        if (
            one is None
            or counts[event.host] >= MAX_CONDITIONS_PER_HOST
            or (event.kind == "gone" and there(event.gpu_key))
        ):
            continue
        counts[event.host] += 1
        before = found.get(one.key)
        if before:  # hot, and slowed by it
            since = None if None in (before.since, one.since) else min(before.since or 0, one.since or 0)
            one = before._replace(what=f"{before.what}; {one.what}", since=since)
        on_it = people(one.host)
        found[one.key] = one._replace(owners=on_it, people=on_it)
    return list(found.values())


def build_health_condition(event: HealthEvent, now: Now) -> Condition | None:
    """An event as a matter; None of what is over, or only told on the page."""
    goes_on, kind = event.ended_at is None, event.kind
    rule = (
        "gpu-lost"
        if kind in LOST_KINDS
        else "gpu-hot"
        if kind in HOT_KINDS
        else "gpu-error"
        if kind in ERROR_KINDS
        else None
    )
    if rule is None or not event.gpu_key:
        return None
    if kind in SPAN_KINDS:
        if not goes_on:
            return None
    elif event.ended_at is not None and now.epoch - event.ended_at > LOOKBACK_S:
        return None
    since = None if event.began_after == BEFORE_FIRST_CHECK else min(event.began_at, int(now.epoch))
    about = event.gpu_key if rule != "gpu-error" else f"{event.gpu_key} {kind}"
    gpus = () if event.index is None else (str(event.index),)
    return Condition(rule, event.host, about, gpus, describe_event(event), since, is_lasting=kind in SPAN_KINDS)


# Seconds ahead of its beginning and of its end from which on a booking is a matter: no rule may look further.
BOOKING_LEAD_S = DAY
# Seconds after its beginning in which it is still worth telling.
BOOKING_BEGIN_WINDOW_S = HOUR
# A host can claim anything: so many matters, so many people, on one GPU too, and so much of a name and a sentence.
MAX_CONDITIONS = 100
MAX_PEOPLE = 50
MAX_PEOPLE_PER_GPU = 8
MAX_NAME_CHARACTERS = 100
MAX_MESSAGE_CHARACTERS = 500
SHOW_EVERYTHING = PrivacySettings()


class HostReport(Protocol):
    """What alerts and watches need of a host; the builder's BuiltHost has it."""

    @property
    def summary(self) -> HostSummary:
        """Its state and its GPUs."""

    @property
    def conditions(self) -> tuple[Condition, ...] | None:
        """Its conditions; None where they could not be found."""

    @property
    def people(self) -> tuple[str, ...]:
        """Who is on its GPUs."""


class ConditionInput(NamedTuple):
    """What a host's status does not say: all of its bookings, and the snapshot that it was decided from."""

    bookings: Sequence[Booking]
    snapshot: HostSnapshot | None


class BookedGpu(NamedTuple):
    """A GPU of a booking, None where the host's are not known; with what is known of the two, whoever is shown."""

    gpu: GpuStatus | None
    booking: BookingStatus
    shown_booking: BookingStatus


def find_conditions(board: HostStatus, parts: ConditionInput, rules: StateRules, now: Now) -> tuple[Condition, ...]:
    """All that is the matter with a host and its bookings; of most hosts nothing is."""
    found: list[Condition] = []
    if board.state in {"down", "failed"}:
        found.append(build_host_condition(board, parts, rules, now))
    if parts.bookings:
        found += find_booking_conditions(board, parts, rules, now)
    found += (build_held_condition(board, gpu, rules.people) for gpu in board.gpus if gpu.state == "held")
    # where there is no room for all, what lasts goes first: it would seem to be over
    return tuple(
        sorted(found, key=lambda one: not one.is_lasting)[:MAX_CONDITIONS] if len(found) > MAX_CONDITIONS else found
    )


def build_host_condition(board: HostStatus, parts: ConditionInput, rules: StateRules, now: Now) -> Condition:
    """A host of which nothing is heard, or nothing of its GPUs; who was on it last, and who has booked it."""
    booked = (one.booking for one in list_booked_gpus(board, parts, rules, now) if one.booking.phase == "now")
    names = [*find_last_users(parts.snapshot, rules.people), *(one.name for one in booked if one.name)]
    affected = resolve_people(names, rules.people)
    since = int(board.last_seen) if board.last_seen is not None and board.state == "down" else None
    return Condition(
        f"host-{board.state}", board.name, what=board.reason, since=since, owners=affected, people=affected
    )


def find_last_users(data: HostSnapshot | None, people: PeopleDirectory) -> list[str]:
    """Who was on a host's GPUs when it was heard last."""
    if data is None or data.processes is None:
        return []
    rows = data.ps_rows.rows if data.ps_rows else ()
    here = processes.build_processes_by_gpu(data, processes.PsIndex(rows), lambda _: None, people, SHOW_EVERYTHING)
    return [login for several in here.values() for _, login in several if login]


def build_held_condition(board: HostStatus, gpu: GpuStatus, people: PeopleDirectory) -> Condition:
    """A GPU that somebody holds and does not use."""
    holders = resolve_people(gpu.people.users, people)[:MAX_PEOPLE_PER_GPU]
    since = None if gpu.idle_since is None else int(gpu.idle_since)
    return Condition(
        "gpu-held", board.name, gpu.key[:MAX_NAME_CHARACTERS], list_gpu_label(gpu), gpu.reason, since, holders, holders
    )


def find_booking_conditions(
    board: HostStatus, parts: ConditionInput, rules: StateRules, now: Now
) -> Iterator[Condition]:
    """What begins and what ends, what another one uses, and what nobody does; one booking over several GPUs is one."""
    groups: dict[tuple[str, int | None], list[BookedGpu]] = {}
    for one in list_booked_gpus(board, parts, rules, now):
        begins = int(one.booking.since.timestamp()) if one.booking.since else None
        whose = one.booking.id or rules.people.resolve_person(one.booking.name or "")
        groups.setdefault((whose, begins), []).append(one)
    for (whose, begins), several in groups.items():
        about = compute_booking_digest(f"{whose} {begins}")
        whole = Condition(
            "",
            board.name,
            about,
            since=begins,
            owners=resolve_people([one.booking.name for one in several if one.booking.name], rules.people),
            until=max(find_booking_end(one) for one in several),
        )
        if not whose.startswith(RUN_ID_PREFIX):  # a run books for itself, for as long as it goes on
            yield from find_begins_and_ends(whole._replace(is_lasting=False), several, board, now)
            yield from find_unused_bookings(whole, several)
        yield from find_broken_bookings(whole, several, rules.people)


def list_booked_gpus(board: HostStatus, parts: ConditionInput, rules: StateRules, now: Now) -> Iterator[BookedGpu]:
    """Each booking of each GPU that is not over, and those of a host whose GPUs are not known."""
    if not board.gpus:
        full = (
            board.bookings
            if rules.privacy.users
            else booking_use.build_booking_statuses(parts.bookings, SHOW_EVERYTHING, now)
        )
        yield from (BookedGpu(None, one, one) for one in full if one.phase != "ended")
    for gpu in board.gpus if parts.bookings else ():
        full = gpu.bookings
        if full and not rules.privacy.users:
            full = booking_use.build_booking_statuses(
                booking_use.find_gpu_bookings(parts.bookings, gpu.gpu), SHOW_EVERYTHING, now
            )
        yield from (BookedGpu(gpu, one, told) for one, told in zip(full, gpu.bookings) if one.phase != "ended")


def find_begins_and_ends(
    whole: Condition, several: Sequence[BookedGpu], board: HostStatus, now: Now
) -> Iterator[Condition]:
    """That a booking begins, and that it ends; from a day ahead on, since only a rule knows when that counts."""
    why = "" if board.state == "fresh" else f"{board.name} is {board.state}: {board.reason}"
    whole = whole._replace(what=why, people=whole.owners)
    begins = whole.since
    if (
        begins is not None
        and now.has_passed(begins - BOOKING_LEAD_S)
        and not now.has_passed(begins + BOOKING_BEGIN_WINDOW_S)
    ):
        yield whole._replace(rule="booking-begins", gpus=list_booked_labels(several))
    running = [one for one in several if one.booking.phase == "now"]
    for end in sorted({find_booking_end(one) for one in running}):
        if now.has_passed(end - BOOKING_LEAD_S):
            gpus = list_booked_labels([one for one in running if find_booking_end(one) == end])
            about = f"{whole.about} {end}"  # one that is made longer ends again
            yield whole._replace(rule="booking-ends", about=about, gpus=gpus, until=end)


def find_unused_bookings(whole: Condition, several: Sequence[BookedGpu]) -> Iterator[Condition]:
    """What is promised, while nobody is on it."""
    empty = [one for one in several if one.shown_booking.unused_since is not None]
    if empty:
        since = min(one.shown_booking.unused_since or 0 for one in empty)
        what = "nobody is on it"
        yield whole._replace(
            rule="booking-unused", gpus=list_booked_labels(empty), what=what, since=since, people=whole.owners
        )


def find_broken_bookings(
    whole: Condition, several: Sequence[BookedGpu], people: PeopleDirectory
) -> Iterator[Condition]:
    """What is promised to one person and used by another."""
    taken = [one for one in several if one.gpu and one.shown_booking.used_by_since is not None]
    if taken:
        since = min(one.shown_booking.used_by_since or 0 for one in taken)
        what = "; ".join(dict.fromkeys(one.gpu.reason for one in taken if one.gpu))[:MAX_MESSAGE_CHARACTERS]
        users = [name for one in taken if one.gpu for name in one.gpu.people.users]
        affected = resolve_people([*whole.owners, *users], people)
        yield whole._replace(
            rule="booking-broken", gpus=list_booked_labels(taken), what=what, since=since, people=affected
        )


def find_booking_end(one: BookedGpu) -> int:
    """When a booking is over."""
    return int(one.booking.until.timestamp())


def list_gpu_label(gpu: GpuStatus) -> tuple[str, ...]:
    """A GPU as people call it; one without a number has no name."""
    return () if gpu.gpu.number is None else (gpu.gpu.label,)


def list_booked_labels(several: Sequence[BookedGpu]) -> tuple[str, ...]:
    """The GPUs of a booking; none where it is one of the whole host, which then is the name."""
    if all(one.booking.is_whole_host for one in several):
        return ()
    return tuple(dict.fromkeys(name for one in several if one.gpu for name in list_gpu_label(one.gpu)))


def compute_booking_digest(text: str) -> str:
    """What tells one booking from the next, and names nobody."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def resolve_people(names: Iterable[str], people: PeopleDirectory) -> tuple[str, ...]:
    """Each person once, by a login where one is known: an address is found by that."""
    found: dict[str, str] = {}
    for name in names:
        person = people.find_person(name)
        if person is None and parse_uid(name) is not None:
            continue  # nobody knows who that is
        person = person or people.resolve_person(name)
        if person and person not in found:
            found[person] = choose_login(name.strip(), person, people)[:MAX_NAME_CHARACTERS]
    return tuple(sorted(found.values())[:MAX_PEOPLE])


def choose_login(name: str, person: str, people: PeopleDirectory) -> str:
    """A login of somebody who is called by any of their names; that name itself where none is known."""
    if fold_login(name) in people.known_names or fold_alias(name) in people.aliases:
        return fold_login(name)
    logins = [login for login in people.known_names if people.resolve_person(login) == person]
    return min((login for login in logins if parse_uid(login) is None), default=min(logins, default=name))


def list_host_users(board: HostStatus) -> tuple[str, ...]:
    """Who is on the GPUs of a host, for what is told of them later; those of one that is not fresh are not known."""
    found = {name for gpu in board.gpus for name in gpu.people.users}
    return tuple(sorted(found)[:MAX_PEOPLE]) if found else ()
