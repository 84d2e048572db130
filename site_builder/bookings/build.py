"""The calendar page and the feeds of www/: what each is made of, and which of them are to be written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple

from site_builder.board.host_pipeline import CODE
from site_builder.bookings import calendar as bookings_calendar
from site_builder.bookings import calendar_page, ics
from site_builder.bookings.event_timestamps import Noticed
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.faults import split_by_use
from site_builder.core.model import Booking, Problem
from site_builder.core.people import People
from site_builder.core.published_files import Published, digest
from site_builder.fleet.host_view import booking_problem

PAGE, FLEET, HOSTS, PEOPLE = "bookings.html", "bookings.ics", "bookings/hosts/", "bookings/people/"
# The page is written anew after so many seconds, for its mark of now.
NOW_MOVES = 1800
# A feed that has no booking left stays so long, empty: a program that subscribed to it would tell of an error.
EMPTY_KEPT = 90 * 86400
# A name that is a file's as it is, and what another's ends with, so that no two are the same.
PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
MADE = re.compile(r"-[0-9a-f]{16}$")
# An id that was made of what an entry says, of its name too, and that is another whenever that is.
DERIVED = re.compile(r"x[0-9a-f]{8}")
VERSION = digest(repr(CODE).encode())


class File(NamedTuple):
    """What tells one content of a file from the next, what makes it, and after how many seconds it is made anew."""

    facts: bytes
    make: Callable[[Now], bytes]
    lasts: float = float("inf")


class Booked(NamedTuple):
    """All that the calendars are made of."""

    hosts: tuple[bookings_calendar.Host, ...]
    people: People
    version: str


class Made(NamedTuple):
    """Files, what they were made of, and until when they hold."""

    made_of: tuple[object, ...]
    holds_until: float
    files: dict[str, File]


class Calendars:
    """The page and the feeds, looked at anew only where bookings or time make a difference."""

    def __init__(self, settings: Settings) -> None:
        """Take up what the last builder noticed."""
        self.settings = settings
        self.noticed = Noticed(settings.state)
        self.made: dict[str, Made] = {}
        self.problems: list[Problem] = []

    def without_bad_bookings(self, booked: Booked, now: Now) -> Booked:
        """Leave out the bookings at which we fail; each is a problem."""
        self.problems = []
        hosts = []
        for host in booked.hosts:

            def use(some: Sequence[Booking], host: bookings_calendar.Host = host) -> None:
                alone = booked._replace(hosts=(host._replace(bookings=tuple(some)),))
                apart = now.apart()
                for file in (self.page(alone, apart), *self.feeds(alone, apart, keep=False).values()):
                    file.make(apart)

            good, bad = split_by_use(host.bookings, use)
            self.problems += [booking_problem(one, place) for one, place in bad]
            hosts.append(host._replace(bookings=tuple(good)) if bad else host)
        self.made = {}
        return booked._replace(hosts=tuple(hosts))

    def files(self, booked: Booked, now: Now) -> dict[str, File]:
        """Every file that there is to be, with a feed for each host and each person that has bookings."""
        bookings = (booked.hosts, booked.people.aliases)
        page = self.once("page", (*bookings, booked.version), lambda now: {PAGE: self.page(booked, now)}, now)
        feeds = self.once("feeds", bookings, lambda now: self.feeds(booked, now), now)
        return self.once("all", (page, feeds), lambda _: {**page, **feeds}, now)

    def once(
        self, part: str, made_of: tuple[object, ...], make: Callable[[Now], dict[str, File]], now: Now
    ) -> dict[str, File]:
        """What was made of the same before, as long as time makes no difference to it."""
        before = self.made.get(part)
        if before is None or before.made_of != made_of or now.epoch >= before.holds_until:
            apart = now.apart()
            files = make(apart)
            before = self.made[part] = Made(made_of, apart.holds_until, files)
        return before.files

    def page(self, booked: Booked, now: Now) -> File:
        """bookings.html."""
        shown = self.settings.shown
        calendar = bookings_calendar.calendar(booked.hosts, shown, now)
        people = persons(calendar, booked) if shown.users else {}
        facts = digest(repr((calendar, people, booked.version)).encode("utf-8", "replace"), VERSION)
        return File(facts, lambda now: calendar_page.page(calendar, people, booked.version, now), NOW_MOVES)

    def feeds(self, booked: Booked, now: Now, keep: bool = True) -> dict[str, File]:
        """All bookings, those of each host, and those of each person; `keep` when each was first seen."""
        events: dict[str, list[ics.Event]] = {FLEET: []}
        titles = {FLEET: "GPU bookings"}
        uids: set[str] = set()
        for host in booked.hosts:
            for promise in bookings_calendar.promises(host, self.settings.shown) if host.bookings else ():
                if bookings_calendar.is_over(promise.when, now):
                    continue
                one = self.event(promise, uids, now)
                names = {FLEET: titles[FLEET], f"{HOSTS}{host.name}.ics": f"GPU bookings: {host.name}"}
                if promise.name:
                    names[feed_of(promise.name, booked.people)] = f"GPU bookings: {booked.people.shown(promise.name)}"
                for name, title in names.items():
                    titles.setdefault(name, title)
                    events.setdefault(name, []).append(one)
        with suppress(OSError):  # what is not kept is noticed again
            if keep:
                self.noticed.save(uids)
        return {name: feed(titles[name], several) for name, several in events.items()}

    def event(self, promise: bookings_calendar.Promise, uids: set[str], now: Now) -> ics.Event:
        """A promise as an event; it is stamped with when it was first seen like this."""
        uid = uid_of(promise, uids)
        facts = digest(repr((promise, str(now.zone))).encode("utf-8", "replace")).hex()
        notice = self.noticed.of(uid, facts, now.epoch)
        return ics.event_of(promise, uid, notice.changed, began(promise, notice.first, now))


def feed(title: str, events: Sequence[ics.Event]) -> File:
    """A feed of some events."""
    facts = digest(repr((title, events)).encode("utf-8", "replace"), VERSION)
    return File(facts, lambda _: ics.feed(title, events))


def began(promise: bookings_calendar.Promise, first: int, now: Now) -> datetime:
    """The beginning of what has none: the day on which it was first seen, or that of its end if it was over by then."""
    ends = now.here(promise.when.until - timedelta(microseconds=1))
    seen = datetime.fromtimestamp(first, now.zone)
    return datetime.combine(min(seen.date(), ends.date()), datetime.min.time(), now.zone)


def uid_of(promise: bookings_calendar.Promise, taken: set[str]) -> str:
    """`ID.HOST@gpuboard`, the same as long as the booking is the same, and never that of another."""
    one = promise.when
    has_own = one.id and not DERIVED.fullmatch(one.id)
    # where users are not shown: nothing by which somebody could try who it is
    told = repr((promise.host, one.id) if has_own else (promise.host, promise.gpus, one.since, one.until, one.rrule))
    own = promise.id or blake2b(told.encode("utf-8", "replace"), digest_size=8).hexdigest()
    number = 1
    while (uid := f"{own}{'' if number == 1 else f'.{number}'}.{promise.host}@gpuboard") in taken:
        number += 1
    taken.add(uid)
    return uid


def persons(calendar: bookings_calendar.Calendar, booked: Booked) -> dict[str, calendar_page.Person]:
    """Who has bookings in the calendar, by the names that stand in them."""
    people = booked.people
    named = {one.name for host in booked.hosts for one in host.bookings if one.name}
    looks = calendar_page.looks({people.person(name) for name in named})
    names: dict[str, list[str]] = {person: [person] for person in looks}
    for alias in people.aliases:
        names.get(people.person(alias), []).append(alias)
    there = {time.promise.name for time in calendar.times if time.promise.name}
    numbers = {person: number for number, person in enumerate(sorted({people.person(name) for name in there}), 1)}
    found = {}
    for name in sorted(there):
        person = people.person(name)
        told = people.shown(name)
        several = tuple(dict.fromkeys([*names[person], name.lower()]))
        found[name] = calendar_page.Person(numbers[person], told, looks[person], feed_of(name, people), several)
    return found


def feed_of(name: str, people: People) -> str:
    """The feed of a person, whatever their name: no two share one."""
    person = people.person(name)
    if PLAIN.fullmatch(person) and not MADE.search(person):
        return f"{PEOPLE}{person}.ics"
    plain = re.sub(r"[^a-z0-9._-]+", "-", person).strip("-.")[:40]
    told = blake2b(person.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return f"{PEOPLE}{plain or 'person'}-{told}.ics"


def left_over(
    published: Published, files: Mapping[str, File], hosts: Mapping[str, object], users: bool, now: Now
) -> Iterator[tuple[str, File | None]]:
    """Feeds of earlier builds that have no booking now: what each is to be, or None where it is to go.

    One of a host that is off the board goes at once, as do all of people where users are not shown.
    """
    for name, (_, written, _, _) in published.files.items():
        if not name.startswith((HOSTS, PEOPLE)) or name in files:
            continue
        whose = name.rpartition("/")[2][: -len(".ics")]
        empty = feed(f"GPU bookings: {whose}", ())
        stays = users if name.startswith(PEOPLE) else whose in hosts
        if stays and not (published.says(name, empty.facts) and now.epoch - written > EMPTY_KEPT):
            yield name, empty
        else:
            yield name, None
