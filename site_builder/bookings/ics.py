"""Render feeds that calendar programs subscribe to, with an event for each booking.

A booking that does not repeat is written in UTC, which every program understands without a zone. One that repeats
needs its zone, which is written in full, or it would move by an hour when the clocks change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from site_builder import __version__
from site_builder.bookings.times import find_booking_time_bounds
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.files import compute_digest
from site_builder.core.formatting import shorten_text
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import CODE_FINGERPRINT, PublishedFiles
from site_builder.core.records import make_record_decoder

if TYPE_CHECKING:
    from site_builder.bookings.calendar import CalendarBooking

# How often programs ask again.
REFRESH_INTERVAL = timedelta(minutes=15)
MIN_MOMENT = datetime(1970, 1, 1, tzinfo=timezone.utc)
MAX_MOMENT = datetime(9999, 12, 30, tzinfo=timezone.utc)
# The changes of a zone's clocks are written up to this year.
LAST_ZONE_YEAR = 2037
CALENDAR_END = b"END:VCALENDAR\r\n"
FLEET_FEED = "bookings.ics"
HOST_FEEDS = "bookings/hosts/"
PEOPLE_FEEDS = "bookings/people/"
# A feed without bookings stays this long, empty: programs that subscribed to it would report an error.
EMPTY_FEED_RETENTION_S = 90 * 86400
# A name that can be a file name, and the end of the file names of all others, so that no two are the same.
PLAIN_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
DIGEST_SUFFIX = re.compile(r"-[0-9a-f]{16}$")
# An id that was made of the content of an entry, with its name, and that changes with it.
DERIVED_ID = re.compile(r"x[0-9a-f]{8}")
CODE_DIGEST = compute_digest(repr(CODE_FINGERPRINT).encode())


class CalendarEvent(NamedTuple):
    """A booking for a calendar program; `zone` is the name of the zone in which it repeats, else empty."""

    uid: str
    changed_at: int
    begins: datetime
    ends: datetime
    summary: str
    description: str
    host: str
    rrule: str = ""
    zone: str = ""


def build_calendar_event(booking: CalendarBooking, uid: str, changed_at: int, default_start: datetime) -> CalendarEvent:
    """Build an event; `default_start` is its start if the booking has none."""
    first = booking.first_booking
    title = f"{booking.where} {booking.name or 'booked'}"
    summary = f"{title}: {shorten_text(booking.comment)}" if booking.comment else title
    by = f"Booked by {booking.booked_by}" if booking.booked_by else ""
    description = "\n".join(filter(None, (booking.comment, by)))
    event = CalendarEvent(
        uid, changed_at, first.since or default_start, first.until, summary, description, booking.host
    )
    bounds = find_booking_time_bounds(first)
    if bounds and bounds.first and first.since:
        event = event._replace(begins=bounds.first, ends=bounds.first + (first.until - first.since))
        event = event._replace(rrule=first.rrule or "", zone=find_ics_zone_name(bounds.first))
    return event


def name_calendar_booking(booking: CalendarBooking, people: PeopleDirectory) -> CalendarBooking:
    """Return a booking under the display names of its people."""
    name, booked_by = people.display_name(booking.name), people.display_name(booking.booked_by)
    return booking._replace(name=name, booked_by=booked_by)


def find_ics_zone_name(moment: datetime) -> str:
    """Return the name of a moment's zone, empty for UTC."""
    zone, offset = moment.tzinfo, moment.strftime("%z")
    name = getattr(zone, "key", None)
    if isinstance(name, str):
        return "" if name in {"UTC", "Etc/UTC"} else name
    if isinstance(zone, timezone):
        return f"UTC{offset}" if zone.utcoffset(None) else ""
    return f"gpuboard {moment.tzname() or ''} {offset}".replace("  ", " ")


def render_ics_feed(title: str, events: Sequence[CalendarEvent]) -> bytes:
    """Render a calendar; each part is rendered once, so 300 people's feeds take little longer than the fleet's."""
    from icalendar import vText  # noqa: PLC0415 # slow to import, and only needed to write a feed
    from icalendar.parser import Contentline, Parameters  # noqa: PLC0415

    zones: dict[str, tuple[tzinfo, int]] = {}
    for event in events:
        if event.zone and event.begins.tzinfo:
            year = min(event.begins.year, zones.get(event.zone, (None, LAST_ZONE_YEAR))[1])
            zones[event.zone] = event.begins.tzinfo, max(MIN_MOMENT.year, year)
    title_line = Contentline.from_parts("X-WR-CALNAME", Parameters(), vText(replace_ics_surrogates(title))).to_ical()
    parts = [render_ics_head(), title_line, b"\r\n"]
    parts += [render_ics_zone(IcsZone(name, zone), year) for name, (zone, year) in sorted(zones.items())]
    parts += map(render_ics_event, events)
    return b"".join([*parts, CALENDAR_END])


@lru_cache(maxsize=1)
def render_ics_head() -> bytes:
    from icalendar import Calendar, vDuration  # noqa: PLC0415 # slow to import

    calendar = Calendar()
    calendar.add("prodid", f"-//gpuboard//gpuboard {__version__}//EN")
    calendar.add("version", "2.0")
    calendar.add("calscale", "GREGORIAN")
    calendar.add("refresh-interval", vDuration(REFRESH_INTERVAL), parameters={"VALUE": "DURATION"})
    calendar.add("x-published-ttl", vDuration(REFRESH_INTERVAL))
    return bytes(calendar.to_ical()).removesuffix(CALENDAR_END)


@dataclass(frozen=True)
class IcsZone:
    """A zone by its name: not every library's zones can be compared."""

    name: str
    zone: tzinfo = field(compare=False)


@lru_cache(maxsize=64)
def render_ics_zone(named_zone: IcsZone, year: int) -> bytes:
    """Render when the clocks of a zone change, from a year on."""
    from icalendar import Timezone  # noqa: PLC0415 # slow to import

    component = Timezone.from_tzinfo(named_zone.zone, named_zone.name, date(year, 1, 1), date(LAST_ZONE_YEAR + 1, 1, 1))
    component.pop("comment", None)
    changes: list[Any] = component.subcomponents  # the library's types are of no help
    for change in changes:
        # the standard wants onsets by the clock before the change, the library gives them by the clock after it
        offsets = [change["tzoffsetfrom"].td, change["tzoffsetto"].td]
        more_dates = change.pop("rdate", None)
        onsets = []
        for start in (change["dtstart"].dt, *(onset.dt for onset in (more_dates.dts if more_dates else ()))):
            utc = start - offsets[1]
            moment = utc.replace(tzinfo=timezone.utc)
            actual = [at.astimezone(named_zone.zone).utcoffset() for at in (moment - timedelta(seconds=1), moment)]
            onsets.append(utc + offsets[0] if actual == offsets else start)
        change.DTSTART = onsets[0]
        for onset in onsets[1:]:  # on separate lines: some programs read only the first of a line
            change.add("rdate", onset)
    return bytes(component.to_ical())


@lru_cache(maxsize=8192)
def render_ics_event(event: CalendarEvent) -> bytes:
    from icalendar import Event as Component  # noqa: PLC0415 # slow to import
    from icalendar import vRecur  # noqa: PLC0415

    component = Component()
    component.add("uid", event.uid)
    component.add("dtstamp", datetime.fromtimestamp(event.changed_at, timezone.utc))
    for name, moment in (("dtstart", event.begins), ("dtend", event.ends)):
        if event.zone:
            component.add(name, moment.replace(tzinfo=None), parameters={"TZID": event.zone})
        else:
            component.add(name, min(max(moment, MIN_MOMENT), MAX_MOMENT).astimezone(timezone.utc))
    if event.rrule:
        component.add("rrule", vRecur.from_ical(event.rrule))
    component.add("summary", replace_ics_surrogates(event.summary))
    if event.description:
        component.add("description", replace_ics_surrogates(event.description))
    component.add("location", event.host)
    component.add("transp", "TRANSPARENT")  # a GPU that is booked keeps nobody from a meeting
    return bytes(component.to_ical())


def replace_ics_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class CalendarFile(NamedTuple):
    """A fingerprint of the content of a file, a function that renders it, and its maximal age in seconds."""

    fingerprint: bytes
    render: Callable[[Now], bytes]
    max_age_s: float = float("inf")


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
            self.saved_content = files.read_own_file(self.store_path)
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


def build_ics_feed_file(title: str, events: Sequence[CalendarEvent]) -> CalendarFile:
    fingerprint = compute_digest(repr((title, events)).encode("utf-8", "replace"), CODE_DIGEST)
    return CalendarFile(fingerprint, lambda _: render_ics_feed(title, events))


def build_ics_event_uid(booking: CalendarBooking, taken: set[str]) -> str:
    """Return `ID.HOST@gpuboard`, the same as long as the booking is the same, and never that of another."""
    first_booking = booking.first_booking
    has_own = first_booking.id and not DERIVED_ID.fullmatch(first_booking.id)
    # where users are not shown: nothing by which somebody could try who it is
    times = (first_booking.since, first_booking.until, first_booking.rrule)
    facts = (booking.host, first_booking.id) if has_own else (booking.host, booking.gpus, *times)
    own_id = booking.id or blake2b(repr(facts).encode("utf-8", "replace"), digest_size=8).hexdigest()
    number = 1
    while (uid := f"{own_id}{'' if number == 1 else f'.{number}'}.{booking.host}@gpuboard") in taken:
        number += 1
    taken.add(uid)
    return uid


def build_ics_feed_path(name: str, people: PeopleDirectory) -> str:
    """Return the path of a person's feed; no two people share one."""
    person = people.resolve_person(name)
    if PLAIN_FILE_NAME.fullmatch(person) and not DIGEST_SUFFIX.search(person):
        return f"{PEOPLE_FEEDS}{person}.ics"
    plain = re.sub(r"[^a-z0-9._-]+", "-", person).strip("-.")[:40]
    digest = blake2b(person.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return f"{PEOPLE_FEEDS}{plain or 'person'}-{digest}.ics"


def find_stale_ics_feeds(
    published: PublishedFiles, files: Mapping[str, CalendarFile], hosts: Collection[str], users_shown: bool, now: Now
) -> Iterator[tuple[str, CalendarFile | None]]:
    """Yield feeds of earlier builds that have no booking now: their new content, or None to remove them."""
    for name, (_, written, _, _) in published.files.items():
        if not name.startswith((HOST_FEEDS, PEOPLE_FEEDS)) or name in files:
            continue
        owner = name.rpartition("/")[2].removesuffix(".ics")
        empty_feed = build_ics_feed_file(f"GPU bookings: {owner}", ())
        # one of a host that is off the board goes at once, as do all of people where users are not shown
        is_shown = users_shown if name.startswith(PEOPLE_FEEDS) else owner in hosts
        is_old = now.epoch - written > EMPTY_FEED_RETENTION_S
        is_expired = is_old and published.is_unchanged(name, empty_feed.fingerprint)
        yield name, empty_feed if is_shown and not is_expired else None
