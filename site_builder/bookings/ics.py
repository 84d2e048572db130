"""Feeds that calendar programs subscribe to: one event for each booking.

One that does not repeat is written in UTC, which every program understands without being told of a zone. One that
repeats needs its zone, or it would move by an hour when the clocks change: that is written beside it in full.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from site_builder import __version__
from site_builder.board.card import shortened
from site_builder.bookings.calendar import Promise, repeats_of

if TYPE_CHECKING:
    from icalendar import Event as Component

# Programs ask again about this often.
AGAIN = timedelta(minutes=15)
EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)
LATEST = datetime(9999, 12, 30, tzinfo=timezone.utc)
# Up to which the changes of a zone's clocks are written.
LAST_YEAR = 2037
END = b"END:VCALENDAR\r\n"


class Event(NamedTuple):
    """A booking as a calendar program takes it; `zone` is the name of that in which it repeats, else nothing."""

    uid: str
    changed: int
    begins: datetime
    ends: datetime
    rrule: str
    zone: str
    summary: str
    description: str
    host: str


def event_of(promise: Promise, uid: str, changed: int, began: datetime) -> Event:
    """A promise as an event; `began` serves as its beginning where it tells none."""
    one, repeats = promise.when, repeats_of(promise.when)
    begins, ends, rrule, zone = one.since or began, one.until, "", ""
    if repeats and repeats.first and one.since:
        begins, ends = repeats.first, repeats.first + (one.until - one.since)
        rrule, zone = one.rrule or "", zone_name(begins)
    told = " ".join(filter(None, (promise.where, promise.name or "booked")))
    summary = f"{told}: {shortened(promise.comment)}" if promise.comment else told
    by = f"Booked by {promise.by}" if promise.by else ""
    description = "\n".join(filter(None, (promise.comment, by)))
    return Event(uid, changed, begins, ends, rrule, zone, summary, description, promise.host)


def zone_name(moment: datetime) -> str:
    """The name of a moment's zone, which for UTC is nothing."""
    zone, offset = moment.tzinfo, moment.strftime("%z")
    name = getattr(zone, "key", None)
    if isinstance(name, str):
        return "" if name in {"UTC", "Etc/UTC"} else name
    if isinstance(zone, timezone):
        return f"UTC{offset}" if zone.utcoffset(None) else ""
    return f"gpuboard {moment.tzname() or ''} {offset}".replace("  ", " ")


def feed(title: str, events: Iterable[Event]) -> bytes:
    """A whole calendar; each part is made once, so that 300 people's feeds take little longer than the fleet's."""
    from icalendar import vText  # noqa: PLC0415 a tenth of a second, and only where a feed is to be written
    from icalendar.parser import Contentline, Parameters  # noqa: PLC0415

    found = list(events)
    zones: dict[str, tuple[tzinfo, int]] = {}
    for one in found:
        if one.zone and one.begins.tzinfo:
            year = min(one.begins.year, zones.get(one.zone, (None, LAST_YEAR))[1])
            zones[one.zone] = one.begins.tzinfo, max(EARLIEST.year, year)
    name = Contentline.from_parts("X-WR-CALNAME", Parameters(), vText(clean(title))).to_ical() + b"\r\n"
    clocks = [zone_part(Zone(told, zone), year) for told, (zone, year) in sorted(zones.items())]
    return b"".join((head(), name, *clocks, *(event_part(one) for one in found), END))


@lru_cache(maxsize=1)
def head() -> bytes:
    """What every calendar begins with."""
    from icalendar import Calendar, vDuration  # noqa: PLC0415 the same

    calendar = Calendar()
    calendar.add("prodid", f"-//gpuboard//gpuboard {__version__}//EN")
    calendar.add("version", "2.0")
    calendar.add("calscale", "GREGORIAN")
    calendar.add("refresh-interval", vDuration(AGAIN), parameters={"VALUE": "DURATION"})
    calendar.add("x-published-ttl", vDuration(AGAIN))
    return bytes(calendar.to_ical()).removesuffix(END)


@dataclass(frozen=True)
class Zone:
    """A zone by its name: not every library's zones can be told from each other by themselves."""

    name: str
    zone: tzinfo = field(compare=False)


@lru_cache(maxsize=64)
def zone_part(where: Zone, year: int) -> bytes:
    """When the clocks of a zone change, from a year on."""
    from icalendar import Timezone  # noqa: PLC0415 the same

    part = Timezone.from_tzinfo(where.zone, where.name, date(year, 1, 1), date(LAST_YEAR + 1, 1, 1))
    part.pop("comment", None)
    for change in part.subcomponents:
        right_onsets(change, where.zone)
    return bytes(part.to_ical())


def right_onsets(change: Any, zone: tzinfo) -> None:  # noqa: ANN401 # the library's types are of no help
    """Tell when the clocks change in the time before it, as the standard has it; the library tells the time after."""
    before, after = change["tzoffsetfrom"].td, change["tzoffsetto"].td
    dates = change.pop("rdate", None)
    first, *others = (
        onset(start, before, after, zone)
        for start in (change["dtstart"].dt, *(one.dt for one in (dates.dts if dates else ())))
    )
    change.DTSTART = first
    for one in others:  # each on a line of its own: of several on one, some programs read the first alone
        change.add("rdate", one)


def onset(start: datetime, before: timedelta, after: timedelta, zone: tzinfo) -> datetime:
    """The same moment by the clock before it, if `start` is by the clock after it."""
    moment = (start - after).replace(tzinfo=timezone.utc)
    sides = [(moment - timedelta(seconds=back)).astimezone(zone).utcoffset() for back in (1, 0)]
    return start - after + before if sides == [before, after] else start


@lru_cache(maxsize=8192)
def event_part(event: Event) -> bytes:
    """One event."""
    from icalendar import Event as Component  # noqa: PLC0415 the same
    from icalendar import vRecur  # noqa: PLC0415

    part = Component()
    part.add("uid", event.uid)
    part.add("dtstamp", datetime.fromtimestamp(event.changed, timezone.utc))
    add_moment(part, "dtstart", event.begins, event.zone)
    add_moment(part, "dtend", event.ends, event.zone)
    if event.rrule:
        part.add("rrule", vRecur.from_ical(event.rrule))
    part.add("summary", clean(event.summary))
    if event.description:
        part.add("description", clean(event.description))
    part.add("location", event.host)
    part.add("transp", "TRANSPARENT")  # a GPU that is booked keeps nobody from a meeting
    return bytes(part.to_ical())


def add_moment(part: Component, name: str, moment: datetime, zone: str) -> None:
    """A time in its zone, or in UTC."""
    if zone:
        part.add(name, moment.replace(tzinfo=None), parameters={"TZID": zone})
    else:
        part.add(name, min(max(moment, EARLIEST), LATEST).astimezone(timezone.utc))


def clean(text: str) -> str:
    """Text that can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()
