"""Render bookings.html, the calendar of all bookings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

from site_builder.bookings.policy import find_recurrence_bounds
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY_NAMES as WEEKDAYS
from site_builder.core.formatting import MONTH_NAMES, shorten_text
from site_builder.core.html import load_template
from site_builder.core.model import Booking, GpuIdentity, PrivacySettings
from site_builder.core.names import natural_sort_key
from site_builder.fleet import booking_use

CALENDAR_DAYS = 14
# More than this nobody reads; the rest is only counted.
MAX_OCCURRENCES = 4000
MAX_LABEL_CHARACTERS = 12
HUE_COUNT, PATTERN_COUNT = 12, 6
# Heights in CSS pixels: of the days' names above the rows, of a row, and of each lane where some overlap.
HEAD_HEIGHT_PX, ROW_HEIGHT_PX, LANE_HEIGHT_PX = 22, 24, 19
BAR_GAP_PX = 2
# A bar is never narrower than this, in percent of two weeks: an hour is.
MIN_BAR_WIDTH_PERCENT = 0.3
MAX_LISTED = 1000
MAX_BAR_CHARACTERS = 120


class CalendarHost(NamedTuple):
    """A host with its bookings and its GPUs."""

    name: str
    bookings: tuple[Booking, ...]
    gpus: tuple[GpuIdentity, ...]


class CalendarBooking(NamedTuple):
    """A booking over all its GPUs, which have these `rows` on its host; `first_booking` has its times."""

    host: str
    id: str | None
    name: str
    comment: str
    booked_by: str
    rows: tuple[int, ...]
    gpus: tuple[str, ...]
    is_whole_host: bool
    first_booking: Booking

    @property
    def where(self) -> str:
        """Return `atlas:0,1`, or `atlas` for the whole host."""
        return self.host if self.is_whole_host else f"{self.host}:{','.join(self.gpus)}"


class BookingOccurrence(NamedTuple):
    """A booking at one of its times; `begins` is None if it has no start."""

    booking: CalendarBooking
    begins: datetime | None
    ends: datetime


class CalendarBar(NamedTuple):
    """An occurrence over adjacent rows; one that overlaps others has a lane of its single row."""

    occurrence: BookingOccurrence
    row: int
    row_count: int
    lane: int | None


class HostCalendar(NamedTuple):
    """The bars of a host, its rows (a label and the number of lanes), and the GPUs without a booking."""

    host: str
    rows: tuple[tuple[str, int], ...]
    bars: tuple[CalendarBar, ...]
    unbooked: tuple[str, ...]


class Calendar(NamedTuple):
    """Two weeks: the midnights that bound its days, hosts with bookings and without, and all bookings in a list."""

    midnights: tuple[datetime, ...]
    host_calendars: tuple[HostCalendar, ...]
    unbooked_hosts: tuple[str, ...]
    occurrences: tuple[BookingOccurrence, ...]
    omitted_count: int


def build_calendar(hosts: Sequence[CalendarHost], shown: PrivacySettings, now: Now) -> Calendar:
    """Build the calendar from the midnight before now to that in two weeks, in our zone."""
    midnights = tuple(
        datetime.combine(now.today + timedelta(days=day), datetime.min.time(), now.zone)
        for day in range(CALENDAR_DAYS + 1)
    )
    now.days_until(now.local)  # which changes with the day
    first, last = midnights[0].timestamp(), midnights[-1].timestamp()
    occurrences_by_host = {
        host.name: list_occurrences_between(group_host_bookings(host, shown), first, last, now)
        for host in hosts
        if host.bookings
    }
    occurrence_count = sum(map(len, occurrences_by_host.values()))
    remaining = MAX_OCCURRENCES
    host_calendars, all_occurrences = [], []
    for host in hosts:
        occurrences = occurrences_by_host.get(host.name, [])[:remaining]
        remaining -= len(occurrences)
        if occurrences:
            all_occurrences += occurrences
            host_calendars.append(build_host_calendar(host, occurrences))
    all_occurrences.sort(key=compute_start_epoch)
    unbooked_hosts = tuple(host.name for host in hosts if not occurrences_by_host.get(host.name))
    return Calendar(
        midnights,
        tuple(host_calendars),
        unbooked_hosts,
        tuple(all_occurrences),
        max(0, occurrence_count - MAX_OCCURRENCES),
    )


def group_host_bookings(host: CalendarHost, shown: PrivacySettings) -> list[CalendarBooking]:
    """Group the bookings of a host that differ only in the GPU; without names if users are not shown."""
    labels, rows_with = assign_calendar_rows(host)
    groups: dict[tuple[object, ...], list[Booking]] = {}
    for booking in host.bookings:
        groups.setdefault(
            (booking.id, booking.name, booking.since, booking.until, booking.comment, booking.rrule), []
        ).append(booking)
    calendar_bookings = []
    for group in groups.values():
        first_booking, keys = group[0], {booking.gpu.lower() for booking in group}
        is_whole_host = "*" in keys
        rows = tuple(
            range(len(host.gpus) or len(labels))
            if is_whole_host
            else sorted({row for key in keys for row in rows_with[key]})
        )
        calendar_bookings.append(
            CalendarBooking(
                host=host.name,
                id=first_booking.id if shown.users else None,
                name=first_booking.name if shown.users else "",
                comment=first_booking.comment if shown.users else "",
                booked_by=(first_booking.booked_by or "") if shown.users else "",
                rows=rows,
                gpus=tuple(labels[row] for row in rows),
                is_whole_host=is_whole_host,
                first_booking=first_booking,
            )
        )
    return calendar_bookings


def assign_calendar_rows(host: CalendarHost) -> tuple[list[str], dict[str, list[int]]]:
    """Return the labels of a host's rows, and which rows a key in comments.json means; unknown GPUs come last.

    The key of a GPU that is cut into instances means all of theirs.
    """
    labels = ["?" if gpu.number is None else str(gpu.number) for gpu in host.gpus]
    rows_by_key: dict[str, list[int]] = {}
    for row, gpu in enumerate(host.gpus):
        for key in filter(None, (labels[row] if gpu.number is not None else None, gpu.uuid)):
            rows_by_key.setdefault(key.lower(), [row])
    for row, gpu in enumerate(host.gpus):
        for key in filter(None, (labels[row].partition(":")[0], gpu.parent_uuid)) if ":" in labels[row] else ():
            rows_by_key.setdefault(key.lower(), []).append(row)
    for key in sorted({gpu.gpu.lower() for gpu in host.bookings} - {"*"} - rows_by_key.keys(), key=natural_sort_key):
        rows_by_key[key] = [len(labels)]
        labels.append(key if len(key) <= MAX_LABEL_CHARACTERS else f"{key[: MAX_LABEL_CHARACTERS - 1]}…")
    return labels or ["all"], rows_by_key


def list_occurrences_between(
    bookings: Iterable[CalendarBooking], first: float, last: float, now: Now
) -> list[BookingOccurrence]:
    """List the occurrences between two moments, in the order of their starts."""
    occurrences = [
        BookingOccurrence(booking, begins, ends)
        for booking in bookings
        for begins, ends in booking_use.list_booking_times(booking.first_booking, now)
        if ends.timestamp() > first and (begins is None or begins.timestamp() < last)
    ]
    return sorted(occurrences, key=compute_start_epoch)


def compute_start_epoch(occurrence: BookingOccurrence) -> float:
    """Return the start for comparisons; an occurrence without a start comes first."""
    return occurrence.begins.timestamp() if occurrence.begins else float("-inf")


def build_host_calendar(host: CalendarHost, occurrences: Sequence[BookingOccurrence]) -> HostCalendar:
    labels = assign_calendar_rows(host)[0]
    occurrences_by_row: dict[int, dict[int, BookingOccurrence]] = {}
    for number, occurrence in enumerate(occurrences):
        for row in occurrence.booking.rows:
            occurrences_by_row.setdefault(row, {})[number] = occurrence
    used_rows = sorted(occurrences_by_row)
    position_by_row = {row: number for number, row in enumerate(used_rows)}
    lanes = {row: assign_lanes(occurrences_by_row[row]) for row in used_rows}
    bars: list[CalendarBar] = []
    for number, occurrence in enumerate(occurrences):
        positions = [(position_by_row[row], lanes[row].get(number)) for row in occurrence.booking.rows]
        if any(lane is not None for _, lane in positions):
            bars += [CalendarBar(occurrence, row, 1, lane) for row, lane in positions]
        else:
            bars += [
                CalendarBar(occurrence, row, rows, None)
                for row, rows in group_adjacent_rows([row for row, _ in positions])
            ]
    unbooked = tuple(label for row, label in enumerate(labels) if row not in position_by_row)
    rows = tuple((labels[row], 1 + max(lanes[row].values(), default=0)) for row in used_rows)
    return HostCalendar(host.name, rows, tuple(bars), unbooked)


def assign_lanes(occurrences: Mapping[int, BookingOccurrence]) -> dict[int, int]:
    """Assign a lane to each occurrence of a row that overlaps another: the first that is free again."""
    free_from: list[float] = []
    lane_of: dict[int, int] = {}
    overlapping: set[int] = set()
    last_number, last_end = -1, float("-inf")  # of those so far the one that ends last
    for number, occurrence in occurrences.items():
        start, end = compute_start_epoch(occurrence), occurrence.ends.timestamp()
        if start < last_end:
            overlapping |= {number, last_number}
        lane = next((lane for lane, free_at in enumerate(free_from) if free_at <= start), len(free_from))
        free_from[lane : lane + 1] = [end]
        lane_of[number] = lane
        if end > last_end:
            last_number, last_end = number, end
    return {number: lane for number, lane in lane_of.items() if number in overlapping}


def group_adjacent_rows(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of adjacent rows, as the first row and their number."""
    first = previous = rows[0]
    for row in rows[1:]:
        if row != previous + 1:
            yield first, previous + 1 - first
            first = row
        previous = row
    yield first, previous + 1 - first


def has_left_calendar(booking: Booking, now: Now) -> bool:
    """Return whether a booking ended, with its last repeat, so long ago that it is no longer shown."""
    bounds = find_recurrence_bounds(booking)
    if bounds is None or booking.since is None:
        return now.has_passed(booking.until.timestamp() + booking_use.SHOWN_AFTER_END_S)
    if bounds.first is None:
        return True
    last_end = bounds.last and bounds.last + (booking.until - booking.since)
    return last_end is not None and now.has_passed(last_end.timestamp() + booking_use.SHOWN_AFTER_END_S)


class CalendarPerson(NamedTuple):
    """A person with bookings: the style of their bars, their feed, and all names that they go by."""

    number: int
    name: str
    style: int
    feed: str
    names: Sequence[str]


class RenderedBar(NamedTuple):
    """A bar for the template; x positions in percent, y positions in pixels."""

    style: str
    pattern: int
    x: str
    width: str
    y: int
    height: int
    name: str
    comment: str
    title: str


class RenderedHostCalendar(NamedTuple):
    """A host for the template: the labels of its rows and the lines between them with their positions."""

    host: str
    height: int
    labels: Sequence[tuple[str, int]]
    row_tops: Sequence[int]
    bars: Sequence[RenderedBar]
    unbooked: str


def assign_styles(people: Iterable[str]) -> dict[str, int]:
    """Assign a style to each person by their name; if two would have the same, one takes the next."""
    taken: dict[int, str] = {}
    style_by_person = {
        person: int.from_bytes(blake2b(person.encode("utf-8", "replace"), digest_size=4).digest(), "big")
        for person in people
    }
    for person in sorted(style_by_person, key=lambda name: (style_by_person[name], name)):
        style = style_by_person[person] % (HUE_COUNT * PATTERN_COUNT)
        while style in taken and len(taken) < HUE_COUNT * PATTERN_COUNT:
            style = (style + 1) % (HUE_COUNT * PATTERN_COUNT)
        taken.setdefault(style, person)
        style_by_person[person] = style
    return style_by_person


def render_calendar_page(calendar: Calendar, people: Mapping[str, CalendarPerson], version: str, now: Now) -> bytes:
    """Render the page; `people` are by the names in their bookings."""
    first, last = calendar.midnights[0], calendar.midnights[CALENDAR_DAYS - 1]
    content = load_template("bookings.html").render(
        version=version,
        built=(
            int(now.epoch * 1000),
            now.local.isoformat(" ", "minutes"),
            f"{format_weekday_date(now.local)} {now.local:%H:%M}",
        ),
        span=f"{format_weekday_date(first)} to {format_weekday_date(last)}",
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        days=build_day_columns(calendar.midnights),
        now=format_position_percent(now.epoch, calendar.midnights),
        charts=[
            render_host_calendar(host_calendar, calendar, people, now) for host_calendar in calendar.host_calendars
        ],
        head=HEAD_HEIGHT_PX,
        people=sorted({person.number: person for person in people.values()}.values()),
        others=calendar.unbooked_hosts,
        listed=[build_calendar_row(occurrence, people, now) for occurrence in calendar.occurrences[:MAX_LISTED]],
        more=calendar.omitted_count + max(0, len(calendar.occurrences) - MAX_LISTED),
        hues=HUE_COUNT,
    )
    return content.encode("utf-8", "replace")


def build_day_columns(midnights: Sequence[datetime]) -> list[tuple[str, str, str, str]]:
    """Return for each day its position, width (clocks may change in it), CSS classes and name."""
    columns = []
    for number, (midnight, next_midnight) in enumerate(zip(midnights, midnights[1:])):
        left, right = (format_position_percent(moment.timestamp(), midnights) for moment in (midnight, next_midnight))
        kind = "today" if number == 0 else "weekend" if midnight.weekday() >= 5 else ""
        if kind == "today" and midnight.weekday() >= 5:
            kind = "today weekend"
        name = (
            format_weekday_date(midnight)
            if number == 0 or midnight.day == 1
            else f"{WEEKDAYS[midnight.weekday()]} {midnight.day}"
        )
        columns.append((left, f"{float(right) - float(left):.3f}", kind, name))
    return columns


def format_position_percent(moment: float, midnights: Sequence[datetime]) -> str:
    """Format the position of a moment, in percent of the two weeks."""
    first, last = midnights[0].timestamp(), midnights[-1].timestamp()
    return f"{min(100, max(0, (moment - first) / (last - first) * 100)):.3f}"


def format_weekday_date(moment: datetime) -> str:
    """Format a date: `Mon 16 Nov`."""
    return f"{WEEKDAYS[moment.weekday()]} {moment.day} {MONTH_NAMES[moment.month - 1]}"


def render_host_calendar(
    host_calendar: HostCalendar, calendar: Calendar, people: Mapping[str, CalendarPerson], now: Now
) -> RenderedHostCalendar:
    heights = [ROW_HEIGHT_PX if lanes == 1 else lanes * LANE_HEIGHT_PX + BAR_GAP_PX for _, lanes in host_calendar.rows]
    tops = list(accumulate(heights, initial=HEAD_HEIGHT_PX))
    return RenderedHostCalendar(
        host_calendar.host,
        tops[-1],
        [(label, tops[row] + ROW_HEIGHT_PX // 2) for row, (label, _) in enumerate(host_calendar.rows)],
        tops[:-1],
        [render_calendar_bar(bar, tops, calendar, people, now) for bar in host_calendar.bars],
        ", ".join(host_calendar.unbooked),
    )


def render_calendar_bar(
    bar: CalendarBar, tops: Sequence[int], calendar: Calendar, people: Mapping[str, CalendarPerson], now: Now
) -> RenderedBar:
    occurrence, booking = bar.occurrence, bar.occurrence.booking
    person = people.get(booking.name)
    left = float(format_position_percent(occurrence.begins.timestamp(), calendar.midnights)) if occurrence.begins else 0
    width = max(
        MIN_BAR_WIDTH_PERCENT, float(format_position_percent(occurrence.ends.timestamp(), calendar.midnights)) - left
    )
    left = min(left, 100 - width)
    top, bottom = tops[bar.row], tops[bar.row + bar.row_count]
    if bar.lane is not None:
        top, bottom = top + bar.lane * LANE_HEIGHT_PX, top + (bar.lane + 1) * LANE_HEIGHT_PX + BAR_GAP_PX
    title = " · ".join(
        filter(None, (booking.where, booking.name or "booked", format_occurrence(occurrence, now), booking.comment))
    )
    return RenderedBar(
        style=f"h{person.style % HUE_COUNT} who{person.number}" if person else "h0",
        pattern=person.style // HUE_COUNT if person else 0,
        x=f"{left:.3f}",
        width=f"{width:.3f}",
        y=top + BAR_GAP_PX,
        height=bottom - top - BAR_GAP_PX,
        name=shorten_text(booking.name or "booked") or "",
        comment=shorten_text(booking.comment, MAX_BAR_CHARACTERS) or "",
        title=title,
    )


def build_calendar_row(
    occurrence: BookingOccurrence, people: Mapping[str, CalendarPerson], now: Now
) -> tuple[str, str, str, str, str, str]:
    """Return a row of the list: CSS class, time, host, GPUs, person and comment."""
    booking = occurrence.booking
    person = people.get(booking.name)
    gpus = "all GPUs" if booking.is_whole_host else ", ".join(booking.gpus)
    css_class = f"who{person.number}" if person else ""
    return css_class, format_occurrence(occurrence, now), booking.host, gpus, booking.name, booking.comment


def format_occurrence(occurrence: BookingOccurrence, now: Now) -> str:
    """Format an occurrence: `Mon 16 Nov 09:00 – 18:00`, `until Tue 17 Nov 18:00`."""
    end = now.to_local(occurrence.ends)
    end_time = f"{end.hour:02}:{end.minute:02}"
    if occurrence.begins is None:
        return f"until {format_dated_time(end, now)}"
    start = now.to_local(occurrence.begins)
    is_same_day = start.date() == end.date()
    return f"{format_dated_time(start, now)} – {end_time if is_same_day else format_dated_time(end, now)}"


def format_dated_time(moment: datetime, now: Now) -> str:
    """Format a time with its day, and with its year if it is another."""
    year = "" if moment.year == now.local.year else f" {moment.year}"
    return f"{format_weekday_date(moment)}{year} {moment.hour:02}:{moment.minute:02}"
