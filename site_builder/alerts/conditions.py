"""What is the matter with a host at a moment, and whom it concerns; a rule says whether anybody is told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from site_builder.alerts.model import Matter
from site_builder.client.model import RUN
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import BoardBooking, BoardGpu, BoardHost, Booking, HostData, Shown
from site_builder.core.names import folded, lowered
from site_builder.core.people import People, number_of
from site_builder.fleet import active_bookings, processes
from site_builder.fleet.gpu_state import Rules

# Seconds ahead of its beginning and of its end from which on a booking is a matter: no rule may look further.
AHEAD = DAY
# Seconds after its beginning in which it is still worth telling.
BEGUN = HOUR
# A host can claim anything: so many matters, so many people, on one GPU too, and so much of a name and a sentence.
MOST = 100
MOST_PEOPLE = 50
MOST_ON_GPU = 8
LONGEST = 100
LONGEST_SAID = 500
EVERYTHING = Shown()


class Parts(NamedTuple):
    """What of a host its board does not say: all of its bookings, and its files, which are read only where needed."""

    bookings: Sequence[Booking]
    data: Callable[[], HostData | None]


class Promise(NamedTuple):
    """A GPU of a booking, None where the host's are not known; with what is known of the two, whoever is shown."""

    gpu: BoardGpu | None
    booking: BoardBooking
    facts: BoardBooking


def matters(board: BoardHost, parts: Parts, rules: Rules, now: Now) -> tuple[Matter, ...]:
    """All that is the matter with a host and its bookings; of most hosts nothing is."""
    found: list[Matter] = []
    if board.state in {"down", "failed"}:
        found.append(of_host(board, parts, rules, now))
    if parts.bookings:
        found += of_bookings(board, parts, rules, now)
    found += (held(board, gpu, rules.people) for gpu in board.gpus if gpu.state == "held")
    # where there is no room for all, what lasts goes first: it would seem to be over
    return tuple(sorted(found, key=lambda one: not one.lasting)[:MOST] if len(found) > MOST else found)


def of_host(board: BoardHost, parts: Parts, rules: Rules, now: Now) -> Matter:
    """A host of which nothing is heard, or nothing of its GPUs; who was on it last, and who has booked it."""
    booked = (one.booking for one in promises(board, parts, rules, now) if one.booking.phase == "now")
    names = [*last_on(parts.data(), rules.people), *(one.name for one in booked if one.name)]
    affected = persons(names, rules.people)
    since = int(board.seen) if board.seen is not None and board.state == "down" else None
    return Matter(f"host-{board.state}", board.name, what=board.reason, since=since, whose=affected, people=affected)


def last_on(data: HostData | None, people: People) -> list[str]:
    """Who was on a host's GPUs when it was heard last."""
    if data is None or data.processes is None:
        return []
    rows = data.ps.rows if data.ps else ()
    here = processes.by_gpu(data, processes.Family(rows), lambda _: None, people, EVERYTHING)
    return [login for several in here.values() for _, login in several if login]


def held(board: BoardHost, gpu: BoardGpu, people: People) -> Matter:
    """A GPU that somebody holds and does not use."""
    holders = persons(gpu.who.users, people)[:MOST_ON_GPU]
    since = None if gpu.idle_since is None else int(gpu.idle_since)
    return Matter("gpu-held", board.name, gpu.key[:LONGEST], number(gpu), gpu.reason, since, holders, holders)


def of_bookings(board: BoardHost, parts: Parts, rules: Rules, now: Now) -> Iterator[Matter]:
    """What begins and what ends, what another one uses, and what nobody does; one booking over several GPUs is one."""
    groups: dict[tuple[str, int | None], list[Promise]] = {}
    for one in promises(board, parts, rules, now):
        begins = int(one.booking.since.timestamp()) if one.booking.since else None
        whose = one.booking.id or rules.people.person(one.booking.name or "")
        groups.setdefault((whose, begins), []).append(one)
    for (whose, begins), several in groups.items():
        about = digest(f"{whose} {begins}")
        whole = Matter(
            "",
            board.name,
            about,
            since=begins,
            whose=persons([one.booking.name for one in several if one.booking.name], rules.people),
            until=max(ends(one) for one in several),
        )
        if not whose.startswith(RUN):  # a run books for itself, for as long as it goes on
            yield from coming_and_going(whole._replace(lasting=False), several, board, now)
            yield from unused(whole, several)
        yield from broken(whole, several, rules.people)


def promises(board: BoardHost, parts: Parts, rules: Rules, now: Now) -> Iterator[Promise]:
    """Each booking of each GPU that is not over, and those of a host whose GPUs are not known."""
    if not board.gpus:
        full = board.bookings if rules.shown.users else active_bookings.at(parts.bookings, EVERYTHING, now)
        yield from (Promise(None, one, one) for one in full if one.phase != "ended")
    for gpu in board.gpus if parts.bookings else ():
        full = gpu.bookings
        if full and not rules.shown.users:
            full = active_bookings.at(active_bookings.of_gpu(parts.bookings, gpu.gpu), EVERYTHING, now)
        yield from (Promise(gpu, one, told) for one, told in zip(full, gpu.bookings) if one.phase != "ended")


def coming_and_going(whole: Matter, several: Sequence[Promise], board: BoardHost, now: Now) -> Iterator[Matter]:
    """That a booking begins, and that it ends; from a day ahead on, since only a rule knows when that counts."""
    why = "" if board.state == "fresh" else f"{board.name} is {board.state}: {board.reason}"
    whole = whole._replace(what=why, people=whole.whose)
    begins = whole.since
    if begins is not None and now.reached(begins - AHEAD) and not now.reached(begins + BEGUN):
        yield whole._replace(rule="booking-begins", gpus=numbers(several))
    running = [one for one in several if one.booking.phase == "now"]
    for end in sorted({ends(one) for one in running}):
        if now.reached(end - AHEAD):
            gpus = numbers([one for one in running if ends(one) == end])
            about = f"{whole.about} {end}"  # one that is made longer ends again
            yield whole._replace(rule="booking-ends", about=about, gpus=gpus, until=end)


def unused(whole: Matter, several: Sequence[Promise]) -> Iterator[Matter]:
    """What is promised, while nobody is on it."""
    empty = [one for one in several if one.facts.unused_since is not None]
    if empty:
        since = min(one.facts.unused_since or 0 for one in empty)
        what = "nobody is on it"
        yield whole._replace(rule="booking-unused", gpus=numbers(empty), what=what, since=since, people=whole.whose)


def broken(whole: Matter, several: Sequence[Promise], people: People) -> Iterator[Matter]:
    """What is promised to one person and used by another."""
    taken = [one for one in several if one.gpu and one.facts.used_by_since is not None]
    if taken:
        since = min(one.facts.used_by_since or 0 for one in taken)
        what = "; ".join(dict.fromkeys(one.gpu.reason for one in taken if one.gpu))[:LONGEST_SAID]
        users = [name for one in taken if one.gpu for name in one.gpu.who.users]
        affected = persons([*whole.whose, *users], people)
        yield whole._replace(rule="booking-broken", gpus=numbers(taken), what=what, since=since, people=affected)


def ends(one: Promise) -> int:
    """When a booking is over."""
    return int(one.booking.until.timestamp())


def number(gpu: BoardGpu) -> tuple[str, ...]:
    """A GPU as people call it; one without a number has no name."""
    return () if gpu.gpu.number is None else (gpu.gpu.label,)


def numbers(several: Sequence[Promise]) -> tuple[str, ...]:
    """The GPUs of a booking; none where it is one of the whole host, which then is the name."""
    if all(one.booking.whole_host for one in several):
        return ()
    return tuple(dict.fromkeys(name for one in several if one.gpu for name in number(one.gpu)))


def digest(text: str) -> str:
    """What tells one booking from the next, and names nobody."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def persons(names: Iterable[str], people: People) -> tuple[str, ...]:
    """Each person once, by a login where one is known: an address is found by that."""
    found: dict[str, str] = {}
    for name in names:
        person = people.of_login(name)
        if person is None and number_of(name) is not None:
            continue  # nobody knows who that is
        person = person or people.person(name)
        if person and person not in found:
            found[person] = login_of(name.strip(), person, people)[:LONGEST]
    return tuple(sorted(found.values())[:MOST_PEOPLE])


def login_of(name: str, person: str, people: People) -> str:
    """A login of somebody who is called by any of their names; that name itself where none is known."""
    if folded(name) in people.names or lowered(name) in people.aliases:
        return folded(name)
    logins = [login for login in people.names if people.person(login) == person]
    return min((login for login in logins if number_of(login) is None), default=min(logins, default=name))


def on_host(board: BoardHost) -> tuple[str, ...]:
    """Who is on the GPUs of a host, for what is told of them later; those of one that is not fresh are not known."""
    found = {name for gpu in board.gpus for name in gpu.who.users}
    return tuple(sorted(found)[:MOST_PEOPLE]) if found else ()
