"""Render feeds that calendar programs subscribe to, with an event for each booking.

A booking that does not repeat is written in UTC, which every program understands without a zone. One that repeats
needs its zone, which is written in full, or it would move by an hour when the clocks change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from site_builder import __version__
from site_builder.bookings.page import CalendarBooking
from site_builder.bookings.policy import find_booking_time_bounds
from site_builder.core.formatting import shorten_text

if TYPE_CHECKING:
    from icalendar import Event as Component

# How often programs ask again.
REFRESH_INTERVAL = timedelta(minutes=15)
MIN_MOMENT = datetime(1970, 1, 1, tzinfo=timezone.utc)
MAX_MOMENT = datetime(9999, 12, 30, tzinfo=timezone.utc)
# The changes of a zone's clocks are written up to this year.
LAST_ZONE_YEAR = 2037
CALENDAR_END = b"END:VCALENDAR\r\n"


class CalendarEvent(NamedTuple):
    """A booking for a calendar program; `zone` is the name of the zone in which it repeats, else empty."""

    uid: str
    changed_at: int
    begins: datetime
    ends: datetime
    rrule: str
    zone: str
    summary: str
    description: str
    host: str


def build_calendar_event(booking: CalendarBooking, uid: str, changed_at: int, default_start: datetime) -> CalendarEvent:
    """Build an event; `default_start` is its start if the booking has none."""
    first_booking, bounds = booking.first_booking, find_booking_time_bounds(booking.first_booking)
    begins, ends, rrule, zone = first_booking.since or default_start, first_booking.until, "", ""
    if bounds and bounds.first and first_booking.since:
        begins, ends = bounds.first, bounds.first + (first_booking.until - first_booking.since)
        rrule, zone = first_booking.rrule or "", find_ics_zone_name(begins)
    title = " ".join(filter(None, (booking.where, booking.name or "booked")))
    summary = f"{title}: {shorten_text(booking.comment)}" if booking.comment else title
    by = f"Booked by {booking.booked_by}" if booking.booked_by else ""
    description = "\n".join(filter(None, (booking.comment, by)))
    return CalendarEvent(
        uid=uid,
        changed_at=changed_at,
        begins=begins,
        ends=ends,
        rrule=rrule,
        zone=zone,
        summary=summary,
        description=description,
        host=booking.host,
    )


def find_ics_zone_name(moment: datetime) -> str:
    """Return the name of a moment's zone, empty for UTC."""
    zone, offset = moment.tzinfo, moment.strftime("%z")
    name = getattr(zone, "key", None)
    if isinstance(name, str):
        return "" if name in {"UTC", "Etc/UTC"} else name
    if isinstance(zone, timezone):
        return f"UTC{offset}" if zone.utcoffset(None) else ""
    return f"gpuboard {moment.tzname() or ''} {offset}".replace("  ", " ")


def render_ics_feed(title: str, events: Iterable[CalendarEvent]) -> bytes:
    """Render a calendar; each part is rendered once, so 300 people's feeds take little longer than the fleet's."""
    from icalendar import vText  # noqa: PLC0415 # slow to import, and only needed to write a feed
    from icalendar.parser import Contentline, Parameters  # noqa: PLC0415

    event_list = list(events)
    zones: dict[str, tuple[tzinfo, int]] = {}
    for event in event_list:
        if event.zone and event.begins.tzinfo:
            year = min(event.begins.year, zones.get(event.zone, (None, LAST_ZONE_YEAR))[1])
            zones[event.zone] = event.begins.tzinfo, max(MIN_MOMENT.year, year)
    title_line = Contentline.from_parts("X-WR-CALNAME", Parameters(), vText(replace_ics_surrogates(title))).to_ical()
    parts = [render_ics_head(), title_line, b"\r\n"]
    parts += [render_ics_zone(IcsZone(name, zone), year) for name, (zone, year) in sorted(zones.items())]
    parts += map(render_ics_event, event_list)
    return b"".join([*parts, CALENDAR_END])


@lru_cache(maxsize=1)
def render_ics_head() -> bytes:
    """Render the lines that every calendar begins with."""
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
    add_ics_moment(component, "dtstart", event.begins, event.zone)
    add_ics_moment(component, "dtend", event.ends, event.zone)
    if event.rrule:
        component.add("rrule", vRecur.from_ical(event.rrule))
    component.add("summary", replace_ics_surrogates(event.summary))
    if event.description:
        component.add("description", replace_ics_surrogates(event.description))
    component.add("location", event.host)
    component.add("transp", "TRANSPARENT")  # a GPU that is booked keeps nobody from a meeting
    return bytes(component.to_ical())


def add_ics_moment(component: Component, name: str, moment: datetime, zone: str) -> None:
    """Add a time in its zone, or in UTC."""
    if zone:
        component.add(name, moment.replace(tzinfo=None), parameters={"TZID": zone})
    else:
        component.add(name, min(max(moment, MIN_MOMENT), MAX_MOMENT).astimezone(timezone.utc))


def replace_ics_surrogates(text: str) -> str:
    """Replace what cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()
