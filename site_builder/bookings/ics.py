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
from site_builder.bookings.page import CalendarBooking, find_recurrence_bounds
from site_builder.core.formatting import shorten_text

if TYPE_CHECKING:
    from icalendar import Event as Component

# Programs ask again about this often.
REFRESH_INTERVAL = timedelta(minutes=15)
MIN_MOMENT = datetime(1970, 1, 1, tzinfo=timezone.utc)
MAX_MOMENT = datetime(9999, 12, 30, tzinfo=timezone.utc)
# Up to which the changes of a zone's clocks are written.
LAST_ZONE_YEAR = 2037
CALENDAR_END = b"END:VCALENDAR\r\n"


class CalendarEvent(NamedTuple):
    """A booking as a calendar program takes it; `zone` is the name of that in which it repeats, else nothing."""

    uid: str
    changed_at: int
    begins: datetime
    ends: datetime
    rrule: str
    zone: str
    summary: str
    description: str
    host: str


def build_calendar_event(promise: CalendarBooking, uid: str, changed: int, began: datetime) -> CalendarEvent:
    """A promise as an event; `began` serves as its beginning where it tells none."""
    one, repeats = promise.first_booking, find_recurrence_bounds(promise.first_booking)
    begins, ends, rrule, zone = one.since or began, one.until, "", ""
    if repeats and repeats.first and one.since:
        begins, ends = repeats.first, repeats.first + (one.until - one.since)
        rrule, zone = one.rrule or "", find_zone_name(begins)
    told = " ".join(filter(None, (promise.where, promise.name or "booked")))
    summary = f"{told}: {shorten_text(promise.comment)}" if promise.comment else told
    by = f"Booked by {promise.booked_by}" if promise.booked_by else ""
    description = "\n".join(filter(None, (promise.comment, by)))
    return CalendarEvent(
        uid=uid,
        changed_at=changed,
        begins=begins,
        ends=ends,
        rrule=rrule,
        zone=zone,
        summary=summary,
        description=description,
        host=promise.host,
    )


def find_zone_name(moment: datetime) -> str:
    """The name of a moment's zone, which for UTC is nothing."""
    zone, offset = moment.tzinfo, moment.strftime("%z")
    name = getattr(zone, "key", None)
    if isinstance(name, str):
        return "" if name in {"UTC", "Etc/UTC"} else name
    if isinstance(zone, timezone):
        return f"UTC{offset}" if zone.utcoffset(None) else ""
    return f"gpuboard {moment.tzname() or ''} {offset}".replace("  ", " ")


def render_ics_feed(title: str, events: Iterable[CalendarEvent]) -> bytes:
    """A whole calendar; each part is made once, so that 300 people's feeds take little longer than the fleet's."""
    from icalendar import vText  # noqa: PLC0415 a tenth of a second, and only where a feed is to be written
    from icalendar.parser import Contentline, Parameters  # noqa: PLC0415

    found = list(events)
    zones: dict[str, tuple[tzinfo, int]] = {}
    for one in found:
        if one.zone and one.begins.tzinfo:
            year = min(one.begins.year, zones.get(one.zone, (None, LAST_ZONE_YEAR))[1])
            zones[one.zone] = one.begins.tzinfo, max(MIN_MOMENT.year, year)
    name = Contentline.from_parts("X-WR-CALNAME", Parameters(), vText(replace_surrogates(title))).to_ical() + b"\r\n"
    clocks = [render_ics_zone(NamedZone(told, zone), year) for told, (zone, year) in sorted(zones.items())]
    return b"".join((render_ics_head(), name, *clocks, *(render_ics_event(one) for one in found), CALENDAR_END))


@lru_cache(maxsize=1)
def render_ics_head() -> bytes:
    """What every calendar begins with."""
    from icalendar import Calendar, vDuration  # noqa: PLC0415 the same

    calendar = Calendar()
    calendar.add("prodid", f"-//gpuboard//gpuboard {__version__}//EN")
    calendar.add("version", "2.0")
    calendar.add("calscale", "GREGORIAN")
    calendar.add("refresh-interval", vDuration(REFRESH_INTERVAL), parameters={"VALUE": "DURATION"})
    calendar.add("x-published-ttl", vDuration(REFRESH_INTERVAL))
    return bytes(calendar.to_ical()).removesuffix(CALENDAR_END)


@dataclass(frozen=True)
class NamedZone:
    """A zone by its name: not every library's zones can be told from each other by themselves."""

    name: str
    zone: tzinfo = field(compare=False)


@lru_cache(maxsize=64)
def render_ics_zone(where: NamedZone, year: int) -> bytes:
    """When the clocks of a zone change, from a year on."""
    from icalendar import Timezone  # noqa: PLC0415 the same

    part = Timezone.from_tzinfo(where.zone, where.name, date(year, 1, 1), date(LAST_ZONE_YEAR + 1, 1, 1))
    part.pop("comment", None)
    for change in part.subcomponents:
        correct_onsets(change, where.zone)
    return bytes(part.to_ical())


def correct_onsets(change: Any, zone: tzinfo) -> None:  # noqa: ANN401 # the library's types are of no help
    """Tell when the clocks change in the time before it, as the standard has it; the library tells the time after."""
    before, after = change["tzoffsetfrom"].td, change["tzoffsetto"].td
    dates = change.pop("rdate", None)
    first, *others = (
        compute_onset(start, before, after, zone)
        for start in (change["dtstart"].dt, *(one.dt for one in (dates.dts if dates else ())))
    )
    change.DTSTART = first
    for one in others:  # each on a line of its own: of several on one, some programs read the first alone
        change.add("rdate", one)


def compute_onset(start: datetime, before: timedelta, after: timedelta, zone: tzinfo) -> datetime:
    """The same moment by the clock before it, if `start` is by the clock after it."""
    moment = (start - after).replace(tzinfo=timezone.utc)
    sides = [(moment - timedelta(seconds=back)).astimezone(zone).utcoffset() for back in (1, 0)]
    return start - after + before if sides == [before, after] else start


@lru_cache(maxsize=8192)
def render_ics_event(event: CalendarEvent) -> bytes:
    """One event."""
    from icalendar import Event as Component  # noqa: PLC0415 the same
    from icalendar import vRecur  # noqa: PLC0415

    part = Component()
    part.add("uid", event.uid)
    part.add("dtstamp", datetime.fromtimestamp(event.changed_at, timezone.utc))
    add_ics_moment(part, "dtstart", event.begins, event.zone)
    add_ics_moment(part, "dtend", event.ends, event.zone)
    if event.rrule:
        part.add("rrule", vRecur.from_ical(event.rrule))
    part.add("summary", replace_surrogates(event.summary))
    if event.description:
        part.add("description", replace_surrogates(event.description))
    part.add("location", event.host)
    part.add("transp", "TRANSPARENT")  # a GPU that is booked keeps nobody from a meeting
    return bytes(part.to_ical())


def add_ics_moment(part: Component, name: str, moment: datetime, zone: str) -> None:
    """A time in its zone, or in UTC."""
    if zone:
        part.add(name, moment.replace(tzinfo=None), parameters={"TZID": zone})
    else:
        part.add(name, min(max(moment, MIN_MOMENT), MAX_MOMENT).astimezone(timezone.utc))


def replace_surrogates(text: str) -> str:
    """Text that can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()
