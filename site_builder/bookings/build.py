"""What the builder does for bookings: bookings.html and the calendar feeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.bookings import ics, page
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.faults import split_by_success
from site_builder.core.files import compute_digest
from site_builder.core.model import Booking, Problem
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import CODE_FINGERPRINT, PublishedFiles
from site_builder.core.records import make_decoder
from site_builder.fleet.build import build_booking_problem


class EventTimestamps(NamedTuple):
    """In whole seconds, and by what one content is told from the next."""

    first_seen_at: int
    changed_at: int
    digest: str


class EventTimestampStore:
    """What was noticed of each event."""

    def __init__(self, state: Path) -> None:
        """Take up what the last builder noticed."""
        self.store_path = state / "noticed.json"
        self.events: dict[str, EventTimestamps] = {}
        self.saved_content = b""
        try:
            self.saved_content = files.read(self.store_path)
            self.events = make_decoder(dict[str, EventTimestamps])(orjson.loads(self.saved_content))
        except (OSError, files.FileRefusedError, ValueError):
            self.events = {}

    def record_event(self, uid: str, digest: str, now: float) -> EventTimestamps:
        """What is known of an event that says this now."""
        before = self.events.get(uid)
        if before is None or before.digest != digest:
            self.events[uid] = EventTimestamps(before.first_seen_at if before else int(now), int(now), digest)
        return self.events[uid]

    def save(self, uids: Collection[str]) -> None:
        """Keep it for as long as the event is there."""
        self.events = {uid: notice for uid, notice in self.events.items() if uid in uids}
        content = orjson.dumps({uid: tuple(notice) for uid, notice in self.events.items()})
        if content != self.saved_content:
            files.write_atomically(self.store_path, content, 0o600)
            self.saved_content = content


CALENDAR_PAGE, FLEET_FEED, HOST_FEEDS, PEOPLE_FEEDS = (
    "bookings.html",
    "bookings.ics",
    "bookings/hosts/",
    "bookings/people/",
)
# The page is written anew after so many seconds, for its mark of now.
MAX_PAGE_AGE_S = 1800
# A feed that has no booking left stays so long, empty: a program that subscribed to it would tell of an error.
EMPTY_FEED_RETENTION_S = 90 * 86400
# A name that is a file's as it is, and what another's ends with, so that no two are the same.
PLAIN_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
DIGEST_SUFFIX = re.compile(r"-[0-9a-f]{16}$")
# An id that was made of what an entry says, of its name too, and that is another whenever that is.
DERIVED_ID = re.compile(r"x[0-9a-f]{8}")
CODE_DIGEST = compute_digest(repr(CODE_FINGERPRINT).encode())


class CalendarFile(NamedTuple):
    """What tells one content of a file from the next, what makes it, and after how many seconds it is made anew."""

    fingerprint: bytes
    render: Callable[[Now], bytes]
    max_age_s: float = float("inf")


class CalendarInput(NamedTuple):
    """All that the calendars are made of."""

    hosts: tuple[page.CalendarHost, ...]
    people: PeopleDirectory
    version: str


class CachedCalendarFiles(NamedTuple):
    """Files, what they were made of, and until when they hold."""

    inputs: tuple[object, ...]
    valid_until: float
    files: dict[str, CalendarFile]


class CalendarBuilder:
    """The page and the feeds, looked at anew only where bookings or time make a difference."""

    def __init__(self, settings: Settings) -> None:
        """Take up what the last builder noticed."""
        self.settings = settings
        self.timestamps = EventTimestampStore(settings.state)
        self.cache: dict[str, CachedCalendarFiles] = {}
        self.problems: list[Problem] = []

    def drop_failing_bookings(self, booked: CalendarInput, now: Now) -> CalendarInput:
        """Leave out the bookings at which we fail; each is a problem."""
        self.problems = []
        hosts = []
        for host in booked.hosts:

            def use(some: Sequence[Booking], host: page.CalendarHost = host) -> None:
                alone = booked._replace(hosts=(host._replace(bookings=tuple(some)),))
                apart = now.copy_with_own_expiry()
                for file in (
                    self.build_page_file(alone, apart),
                    *self.build_feed_files(alone, apart, keep=False).values(),
                ):
                    file.render(apart)

            good, bad = split_by_success(host.bookings, use)
            self.problems += [build_booking_problem(one, place) for one, place in bad]
            hosts.append(host._replace(bookings=tuple(good)) if bad else host)
        self.cache = {}
        return booked._replace(hosts=tuple(hosts))

    def build_files(self, booked: CalendarInput, now: Now) -> dict[str, CalendarFile]:
        """Every file that there is to be, with a feed for each host and each person that has bookings."""
        bookings = (booked.hosts, booked.people.aliases)
        page = self.build_cached(
            "page", (*bookings, booked.version), lambda now: {CALENDAR_PAGE: self.build_page_file(booked, now)}, now
        )
        feeds = self.build_cached("feeds", bookings, lambda now: self.build_feed_files(booked, now), now)
        return self.build_cached("all", (page, feeds), lambda _: {**page, **feeds}, now)

    def build_cached(
        self, part: str, made_of: tuple[object, ...], make: Callable[[Now], dict[str, CalendarFile]], now: Now
    ) -> dict[str, CalendarFile]:
        """What was made of the same before, as long as time makes no difference to it."""
        before = self.cache.get(part)
        if before is None or before.inputs != made_of or now.epoch >= before.valid_until:
            apart = now.copy_with_own_expiry()
            files = make(apart)
            before = self.cache[part] = CachedCalendarFiles(made_of, apart.valid_until, files)
        return before.files

    def build_page_file(self, booked: CalendarInput, now: Now) -> CalendarFile:
        """bookings.html."""
        shown = self.settings.privacy
        calendar = page.build_calendar(booked.hosts, shown, now)
        people = build_calendar_people(calendar, booked) if shown.users else {}
        facts = compute_digest(repr((calendar, people, booked.version)).encode("utf-8", "replace"), CODE_DIGEST)
        return CalendarFile(
            facts, lambda now: page.render_calendar_page(calendar, people, booked.version, now), MAX_PAGE_AGE_S
        )

    def build_feed_files(self, booked: CalendarInput, now: Now, keep: bool = True) -> dict[str, CalendarFile]:
        """All bookings, those of each host, and those of each person; `keep` when each was first seen."""
        events: dict[str, list[ics.CalendarEvent]] = {FLEET_FEED: []}
        titles = {FLEET_FEED: "GPU bookings"}
        uids: set[str] = set()
        for host in booked.hosts:
            for promise in page.group_host_bookings(host, self.settings.privacy) if host.bookings else ():
                if page.has_left_calendar(promise.first_booking, now):
                    continue
                one = self.build_event(promise, uids, now)
                names = {FLEET_FEED: titles[FLEET_FEED], f"{HOST_FEEDS}{host.name}.ics": f"GPU bookings: {host.name}"}
                if promise.name:
                    names[build_feed_path(promise.name, booked.people)] = (
                        f"GPU bookings: {booked.people.display_name(promise.name)}"
                    )
                for name, title in names.items():
                    titles.setdefault(name, title)
                    events.setdefault(name, []).append(one)
        with suppress(OSError):  # what is not kept is noticed again
            if keep:
                self.timestamps.save(uids)
        return {name: build_feed_file(titles[name], several) for name, several in events.items()}

    def build_event(self, promise: page.CalendarBooking, uids: set[str], now: Now) -> ics.CalendarEvent:
        """A promise as an event; it is stamped with when it was first seen like this."""
        uid = build_event_uid(promise, uids)
        facts = compute_digest(repr((promise, str(now.zone))).encode("utf-8", "replace")).hex()
        notice = self.timestamps.record_event(uid, facts, now.epoch)
        return ics.build_calendar_event(
            promise, uid, notice.changed_at, choose_event_start(promise, notice.first_seen_at, now)
        )


def build_feed_file(title: str, events: Sequence[ics.CalendarEvent]) -> CalendarFile:
    """A feed of some events."""
    facts = compute_digest(repr((title, events)).encode("utf-8", "replace"), CODE_DIGEST)
    return CalendarFile(facts, lambda _: ics.render_ics_feed(title, events))


def choose_event_start(promise: page.CalendarBooking, first: int, now: Now) -> datetime:
    """The beginning of what has none: the day on which it was first seen, or that of its end if it was over by then."""
    ends = now.to_local(promise.first_booking.until - timedelta(microseconds=1))
    seen = datetime.fromtimestamp(first, now.zone)
    return datetime.combine(min(seen.date(), ends.date()), datetime.min.time(), now.zone)


def build_event_uid(promise: page.CalendarBooking, taken: set[str]) -> str:
    """`ID.HOST@gpuboard`, the same as long as the booking is the same, and never that of another."""
    one = promise.first_booking
    has_own = one.id and not DERIVED_ID.fullmatch(one.id)
    # where users are not shown: nothing by which somebody could try who it is
    told = repr((promise.host, one.id) if has_own else (promise.host, promise.gpus, one.since, one.until, one.rrule))
    own = promise.id or blake2b(told.encode("utf-8", "replace"), digest_size=8).hexdigest()
    number = 1
    while (uid := f"{own}{'' if number == 1 else f'.{number}'}.{promise.host}@gpuboard") in taken:
        number += 1
    taken.add(uid)
    return uid


def build_calendar_people(calendar: page.Calendar, booked: CalendarInput) -> dict[str, page.CalendarPerson]:
    """Who has bookings in the calendar, by the names that stand in them."""
    people = booked.people
    named = {one.name for host in booked.hosts for one in host.bookings if one.name}
    looks = page.assign_styles({people.resolve_person(name) for name in named})
    names: dict[str, list[str]] = {person: [person] for person in looks}
    for alias in people.aliases:
        names.get(people.resolve_person(alias), []).append(alias)
    there = {time.booking.name for time in calendar.occurrences if time.booking.name}
    numbers = {
        person: number for number, person in enumerate(sorted({people.resolve_person(name) for name in there}), 1)
    }
    found = {}
    for name in sorted(there):
        person = people.resolve_person(name)
        told = people.display_name(name)
        several = tuple(dict.fromkeys([*names[person], name.lower()]))
        found[name] = page.CalendarPerson(numbers[person], told, looks[person], build_feed_path(name, people), several)
    return found


def build_feed_path(name: str, people: PeopleDirectory) -> str:
    """The feed of a person, whatever their name: no two share one."""
    person = people.resolve_person(name)
    if PLAIN_FILE_NAME.fullmatch(person) and not DIGEST_SUFFIX.search(person):
        return f"{PEOPLE_FEEDS}{person}.ics"
    plain = re.sub(r"[^a-z0-9._-]+", "-", person).strip("-.")[:40]
    told = blake2b(person.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return f"{PEOPLE_FEEDS}{plain or 'person'}-{told}.ics"


def find_stale_feeds(
    published: PublishedFiles, files: Mapping[str, CalendarFile], hosts: Mapping[str, object], users: bool, now: Now
) -> Iterator[tuple[str, CalendarFile | None]]:
    """Feeds of earlier builds that have no booking now: what each is to be, or None where it is to go.

    One of a host that is off the board goes at once, as do all of people where users are not shown.
    """
    for name, (_, written, _, _) in published.files.items():
        if not name.startswith((HOST_FEEDS, PEOPLE_FEEDS)) or name in files:
            continue
        whose = name.rpartition("/")[2][: -len(".ics")]
        empty = build_feed_file(f"GPU bookings: {whose}", ())
        stays = users if name.startswith(PEOPLE_FEEDS) else whose in hosts
        if stays and not (
            published.is_unchanged(name, empty.fingerprint) and now.epoch - written > EMPTY_FEED_RETENTION_S
        ):
            yield name, empty
        else:
            yield name, None
