"""Build bookings.html and the calendar feeds."""

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
from site_builder.core.records import make_record_decoder
from site_builder.fleet.build import build_booking_problem

CALENDAR_PAGE, FLEET_FEED, HOST_FEEDS, PEOPLE_FEEDS = (
    "bookings.html",
    "bookings.ics",
    "bookings/hosts/",
    "bookings/people/",
)
# The page is written anew after this many seconds, for its mark of now.
MAX_PAGE_AGE_S = 1800
# A feed without bookings stays this long, empty: programs that subscribed to it would report an error.
EMPTY_FEED_RETENTION_S = 90 * 86400
# A name that can be a file name, and the end of the file names of all others, so that no two are the same.
PLAIN_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
DIGEST_SUFFIX = re.compile(r"-[0-9a-f]{16}$")
# An id that was made of the content of an entry, with its name, and that changes with it.
DERIVED_ID = re.compile(r"x[0-9a-f]{8}")
CODE_DIGEST = compute_digest(repr(CODE_FINGERPRINT).encode())


class IcsTimestamps(NamedTuple):
    """When an event was first seen and last changed, in whole seconds, and a digest of its content."""

    first_seen_at: int
    changed_at: int
    digest: str


class IcsTimestampStore:
    """The timestamps of all events, kept in state/noticed.json."""

    def __init__(self, state: Path) -> None:
        self.store_path = state / "noticed.json"
        self.events: dict[str, IcsTimestamps] = {}
        self.saved_content = b""
        with suppress(OSError, files.FileRefusedError, ValueError):
            self.saved_content = files.read(self.store_path)
            self.events = make_record_decoder(dict[str, IcsTimestamps])(orjson.loads(self.saved_content))

    def record_event(self, uid: str, digest: str, now: float) -> IcsTimestamps:
        known = self.events.get(uid)
        if known is None or known.digest != digest:
            self.events[uid] = IcsTimestamps(known.first_seen_at if known else int(now), int(now), digest)
        return self.events[uid]

    def save(self, uids: Collection[str]) -> None:
        """Save the timestamps of the events that still exist."""
        self.events = {uid: timestamps for uid, timestamps in self.events.items() if uid in uids}
        content = orjson.dumps({uid: tuple(timestamps) for uid, timestamps in self.events.items()})
        if content != self.saved_content:
            files.write_atomically(self.store_path, content, 0o600)
            self.saved_content = content


class CalendarFile(NamedTuple):
    """A fingerprint of the content of a file, a function that renders it, and its maximal age in seconds."""

    fingerprint: bytes
    render: Callable[[Now], bytes]
    max_age_s: float = float("inf")


class CalendarInput(NamedTuple):
    """All that the calendars are made of."""

    hosts: tuple[page.CalendarHost, ...]
    people: PeopleDirectory
    version: str


class CalendarBuilder:
    """Builds the page and the feeds again only if bookings or time make a difference."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.timestamps = IcsTimestampStore(settings.state)
        # of each part what it was made of, until when it is valid, and its files
        self.cache: dict[str, tuple[tuple[object, ...], float, dict[str, CalendarFile]]] = {}
        self.problems: list[Problem] = []

    def drop_failing_bookings(self, calendar_input: CalendarInput, now: Now) -> CalendarInput:
        """Leave out bookings at which the calendar code fails; each is a problem."""
        self.problems = []
        hosts = []
        for host in calendar_input.hosts:

            def build_all(bookings: Sequence[Booking], host: page.CalendarHost = host) -> None:
                host_input = calendar_input._replace(hosts=(host._replace(bookings=tuple(bookings)),))
                own_now = now.copy_with_own_expiry()
                for file in (
                    self.build_page_file(host_input, own_now),
                    *self.build_feed_files(host_input, own_now, keep=False).values(),
                ):
                    file.render(own_now)

            good_bookings, failures = split_by_success(host.bookings, build_all)
            self.problems += [build_booking_problem(booking, location) for booking, location in failures]
            hosts.append(host._replace(bookings=tuple(good_bookings)) if failures else host)
        self.cache = {}
        return calendar_input._replace(hosts=tuple(hosts))

    def build_files(self, calendar_input: CalendarInput, now: Now) -> dict[str, CalendarFile]:
        """Return all files, with a feed for each host and each person that has bookings."""
        bookings = (calendar_input.hosts, calendar_input.people.aliases)
        page_files = self.build_cached(
            "page",
            (*bookings, calendar_input.version),
            lambda now: {CALENDAR_PAGE: self.build_page_file(calendar_input, now)},
            now,
        )
        feeds = self.build_cached("feeds", bookings, lambda now: self.build_feed_files(calendar_input, now), now)
        return self.build_cached("all", (page_files, feeds), lambda _: {**page_files, **feeds}, now)

    def build_cached(
        self, part: str, inputs: tuple[object, ...], build: Callable[[Now], dict[str, CalendarFile]], now: Now
    ) -> dict[str, CalendarFile]:
        """Return the files that were built from the same inputs before, as long as time makes no difference to them."""
        cached_inputs, valid_until, calendar_files = self.cache.get(part, (None, 0.0, {}))
        if cached_inputs != inputs or now.epoch >= valid_until:
            own_now = now.copy_with_own_expiry()
            calendar_files = build(own_now)
            self.cache[part] = inputs, own_now.valid_until, calendar_files
        return calendar_files

    def build_page_file(self, calendar_input: CalendarInput, now: Now) -> CalendarFile:
        privacy = self.settings.privacy
        calendar = page.build_calendar(calendar_input.hosts, privacy, now)
        people = build_calendar_people(calendar, calendar_input) if privacy.users else {}
        fingerprint = compute_digest(
            repr((calendar, people, calendar_input.version)).encode("utf-8", "replace"), CODE_DIGEST
        )
        return CalendarFile(
            fingerprint,
            lambda now: page.render_calendar_page(calendar, people, calendar_input.version, now),
            MAX_PAGE_AGE_S,
        )

    def build_feed_files(self, calendar_input: CalendarInput, now: Now, keep: bool = True) -> dict[str, CalendarFile]:
        """Build the feeds of all bookings, of each host and of each person; `keep` saves when each was first seen."""
        events: dict[str, list[ics.CalendarEvent]] = {FLEET_FEED: []}
        titles = {FLEET_FEED: "GPU bookings"}
        uids: set[str] = set()
        for host in calendar_input.hosts:
            labels, rows_by_key = page.assign_calendar_rows(host) if host.bookings else ([], {})
            for booking in page.group_calendar_bookings(host, labels, rows_by_key, self.settings.privacy):
                if page.has_left_calendar(booking.first_booking, now):
                    continue
                event = self.build_event(booking, uids, now)
                names = {FLEET_FEED: titles[FLEET_FEED], f"{HOST_FEEDS}{host.name}.ics": f"GPU bookings: {host.name}"}
                if booking.name:
                    names[build_ics_feed_path(booking.name, calendar_input.people)] = (
                        f"GPU bookings: {calendar_input.people.display_name(booking.name)}"
                    )
                for name, title in names.items():
                    titles.setdefault(name, title)
                    events.setdefault(name, []).append(event)
        with suppress(OSError):  # what is not kept is noticed again
            if keep:
                self.timestamps.save(uids)
        return {name: build_ics_feed_file(titles[name], feed_events) for name, feed_events in events.items()}

    def build_event(self, booking: page.CalendarBooking, uids: set[str], now: Now) -> ics.CalendarEvent:
        """Build an event, stamped with when it was first seen with this content."""
        uid = build_ics_event_uid(booking, uids)
        digest = compute_digest(repr((booking, str(now.zone))).encode("utf-8", "replace")).hex()
        timestamps = self.timestamps.record_event(uid, digest, now.epoch)
        # a booking without a start begins on the day it was first seen, or of its end if that is earlier
        last_day = now.to_local(booking.first_booking.until - timedelta(microseconds=1)).date()
        first_day = min(datetime.fromtimestamp(timestamps.first_seen_at, now.zone).date(), last_day)
        default_start = datetime.combine(first_day, datetime.min.time(), now.zone)
        return ics.build_calendar_event(booking, uid, timestamps.changed_at, default_start)


def build_ics_feed_file(title: str, events: Sequence[ics.CalendarEvent]) -> CalendarFile:
    fingerprint = compute_digest(repr((title, events)).encode("utf-8", "replace"), CODE_DIGEST)
    return CalendarFile(fingerprint, lambda _: ics.render_ics_feed(title, events))


def build_ics_event_uid(booking: page.CalendarBooking, taken: set[str]) -> str:
    """Return `ID.HOST@gpuboard`, the same as long as the booking is the same, and never that of another."""
    first_booking = booking.first_booking
    has_own = first_booking.id and not DERIVED_ID.fullmatch(first_booking.id)
    # where users are not shown: nothing by which somebody could try who it is
    facts = repr(
        (booking.host, first_booking.id)
        if has_own
        else (booking.host, booking.gpus, first_booking.since, first_booking.until, first_booking.rrule)
    )
    own_id = booking.id or blake2b(facts.encode("utf-8", "replace"), digest_size=8).hexdigest()
    number = 1
    while (uid := f"{own_id}{'' if number == 1 else f'.{number}'}.{booking.host}@gpuboard") in taken:
        number += 1
    taken.add(uid)
    return uid


def build_calendar_people(calendar: page.Calendar, calendar_input: CalendarInput) -> dict[str, page.CalendarPerson]:
    """Return who has bookings in the calendar, by the names in the bookings."""
    people = calendar_input.people
    all_names = {booking.name for host in calendar_input.hosts for booking in host.bookings if booking.name}
    styles = page.assign_calendar_styles({people.resolve_person(name) for name in all_names})
    names: dict[str, list[str]] = {person: [person] for person in styles}
    for alias in people.aliases:
        names.get(people.resolve_person(alias), []).append(alias)
    shown_names = {occurrence.booking.name for occurrence in calendar.occurrences if occurrence.booking.name}
    numbers = {
        person: number for number, person in enumerate(sorted({people.resolve_person(name) for name in shown_names}), 1)
    }
    calendar_people = {}
    for name in sorted(shown_names):
        person = people.resolve_person(name)
        pattern, hue = divmod(styles[person], page.HUE_COUNT)
        calendar_people[name] = page.CalendarPerson(
            number=numbers[person],
            name=people.display_name(name),
            hue=hue,
            pattern=pattern,
            feed=build_ics_feed_path(name, people),
            names=tuple(dict.fromkeys([*names[person], name.lower()])),
        )
    return calendar_people


def build_ics_feed_path(name: str, people: PeopleDirectory) -> str:
    """Return the path of a person's feed; no two people share one."""
    person = people.resolve_person(name)
    if PLAIN_FILE_NAME.fullmatch(person) and not DIGEST_SUFFIX.search(person):
        return f"{PEOPLE_FEEDS}{person}.ics"
    plain = re.sub(r"[^a-z0-9._-]+", "-", person).strip("-.")[:40]
    digest = blake2b(person.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return f"{PEOPLE_FEEDS}{plain or 'person'}-{digest}.ics"


def find_stale_ics_feeds(
    published: PublishedFiles,
    files: Mapping[str, CalendarFile],
    hosts: Mapping[str, object],
    users_shown: bool,
    now: Now,
) -> Iterator[tuple[str, CalendarFile | None]]:
    """Yield feeds of earlier builds that have no booking now: their new content, or None to remove them.

    One of a host that is off the board goes at once, as do all of people where users are not shown.
    """
    for name, (_, written, _, _) in published.files.items():
        if not name.startswith((HOST_FEEDS, PEOPLE_FEEDS)) or name in files:
            continue
        owner = name.rpartition("/")[2][: -len(".ics")]
        empty_feed = build_ics_feed_file(f"GPU bookings: {owner}", ())
        is_kept = users_shown if name.startswith(PEOPLE_FEEDS) else owner in hosts
        is_expired = now.epoch - written > EMPTY_FEED_RETENTION_S
        if is_expired and published.is_unchanged(name, empty_feed.fingerprint):
            is_kept = False
        yield name, empty_feed if is_kept else None
