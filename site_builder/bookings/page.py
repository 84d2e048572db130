"""Render bookings.html, the calendar of all bookings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, islice
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.formatting import DAY_NAMES as WEEKDAYS
from site_builder.core.formatting import MONTH_NAMES, shorten_text
from site_builder.core.html import load_template
from site_builder.core.model import Booking, GpuIdentity, PrivacySettings
from site_builder.core.names import natural_sort_key
from site_builder.core.timeparse import dates
from site_builder.fleet import booking_use

CALENDAR_DAYS = 14
# More than these are no calendar that anybody reads; the rest is counted.
MAX_OCCURRENCES = 4000
MAX_LABEL_CHARACTERS = 12


class CalendarHost(NamedTuple):
    """A host with what is promised of it, and its GPUs."""

    name: str
    bookings: tuple[Booking, ...]
    gpus: tuple[GpuIdentity, ...]


class CalendarBooking(NamedTuple):
    """A booking over all its GPUs: `rows` are theirs on its host; `when` is one of its entries, and tells the times."""

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
        """`atlas:0,1`, or `atlas` for the whole host."""
        return self.host if self.is_whole_host else f"{self.host}:{','.join(self.gpus)}"


class BookingOccurrence(NamedTuple):
    """A promise at one of its times; with no beginning it holds since ever."""

    booking: CalendarBooking
    begins: datetime | None
    ends: datetime


class CalendarBar(NamedTuple):
    """A time over some rows that stand together; one that others overlap has a lane of its one row to itself."""

    occurrence: BookingOccurrence
    row: int
    row_count: int
    lane: int | None


class HostCalendar(NamedTuple):
    """A host's bars, its rows (a label and how many lanes), and which GPUs have no booking."""

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
    """From the midnight before now to that in two weeks, in our zone."""
    midnights = tuple(
        datetime.combine(now.today + timedelta(days=day), datetime.min.time(), now.zone)
        for day in range(CALENDAR_DAYS + 1)
    )
    now.days_until(now.local)  # which changes with the day
    first, last = midnights[0].timestamp(), midnights[-1].timestamp()
    found = {
        host.name: list_occurrences_between(group_host_bookings(host, shown), first, last, now)
        for host in hosts
        if host.bookings
    }
    number = sum(map(len, found.values()))
    room = MAX_OCCURRENCES
    charts, listed = [], []
    for host in hosts:
        times = found.get(host.name, [])[:room]
        room -= len(times)
        if times:
            listed += times
            charts.append(build_host_calendar(host, times))
    listed.sort(key=compute_start_epoch)
    others = tuple(host.name for host in hosts if not found.get(host.name))
    return Calendar(midnights, tuple(charts), others, tuple(listed), max(0, number - MAX_OCCURRENCES))


def group_host_bookings(host: CalendarHost, shown: PrivacySettings) -> list[CalendarBooking]:
    """The bookings of a host, those that share all but the GPU as one; without names where users are not shown."""
    labels, rows_with = assign_calendar_rows(host)
    groups: dict[tuple[object, ...], list[Booking]] = {}
    for one in host.bookings:
        groups.setdefault((one.id, one.name, one.since, one.until, one.comment, one.rrule), []).append(one)
    found = []
    for group in groups.values():
        first, keys = group[0], {one.gpu.lower() for one in group}
        whole = "*" in keys
        rows = tuple(
            range(len(host.gpus) or len(labels)) if whole else sorted({row for key in keys for row in rows_with[key]})
        )
        found.append(
            CalendarBooking(
                host=host.name,
                id=first.id if shown.users else None,
                name=first.name if shown.users else "",
                comment=first.comment if shown.users else "",
                booked_by=(first.booked_by or "") if shown.users else "",
                rows=rows,
                gpus=tuple(labels[row] for row in rows),
                is_whole_host=whole,
                first_booking=first,
            )
        )
    return found


def assign_calendar_rows(host: CalendarHost) -> tuple[list[str], dict[str, list[int]]]:
    """The labels of a host's rows, and which rows a key in comments.json means; GPUs that it does not have come last.

    The key of a GPU that is cut into instances means all of theirs.
    """
    labels = ["?" if one.number is None else str(one.number) for one in host.gpus]
    rows_with: dict[str, list[int]] = {}
    for row, one in enumerate(host.gpus):
        for key in filter(None, (labels[row] if one.number is not None else None, one.uuid)):
            rows_with.setdefault(key.lower(), [row])
    for row, one in enumerate(host.gpus):
        for key in filter(None, (labels[row].partition(":")[0], one.parent_uuid)) if ":" in labels[row] else ():
            rows_with.setdefault(key.lower(), []).append(row)
    for key in sorted({one.gpu.lower() for one in host.bookings} - {"*"} - rows_with.keys(), key=natural_sort_key):
        rows_with[key] = [len(labels)]
        labels.append(key if len(key) <= MAX_LABEL_CHARACTERS else f"{key[: MAX_LABEL_CHARACTERS - 1]}…")
    return labels or ["all"], rows_with


def list_occurrences_between(
    several: Iterable[CalendarBooking], first: float, last: float, now: Now
) -> list[BookingOccurrence]:
    """Each time between two moments, in the order of their beginnings."""
    found = [
        BookingOccurrence(promise, begins, ends)
        for promise in several
        for begins, ends in booking_use.list_booking_times(promise.first_booking, now)
        if ends.timestamp() > first and (begins is None or begins.timestamp() < last)
    ]
    return sorted(found, key=compute_start_epoch)


def compute_start_epoch(time: BookingOccurrence) -> float:
    """When it begins, for comparisons; what holds since ever begins before all."""
    return time.begins.timestamp() if time.begins else float("-inf")


def build_host_calendar(host: CalendarHost, times: Sequence[BookingOccurrence]) -> HostCalendar:
    """The bars of a host, and the rows that they need."""
    labels = assign_calendar_rows(host)[0]
    of_row: dict[int, dict[int, BookingOccurrence]] = {}
    for number, time in enumerate(times):
        for row in time.booking.rows:
            of_row.setdefault(row, {})[number] = time
    used = sorted(of_row)
    place = {row: number for number, row in enumerate(used)}
    lanes = {row: assign_lanes(of_row[row]) for row in used}
    bars: list[CalendarBar] = []
    for number, time in enumerate(times):
        taken = [(place[row], lanes[row].get(number)) for row in time.booking.rows]
        if any(lane is not None for _, lane in taken):
            bars += [CalendarBar(time, row, 1, lane) for row, lane in taken]
        else:
            bars += [CalendarBar(time, row, rows, None) for row, rows in group_adjacent_rows([row for row, _ in taken])]
    unbooked = tuple(label for row, label in enumerate(labels) if row not in place)
    rows = tuple((labels[row], 1 + max(lanes[row].values(), default=0)) for row in used)
    return HostCalendar(host.name, rows, tuple(bars), unbooked)


def assign_lanes(times: Mapping[int, BookingOccurrence]) -> dict[int, int]:
    """For those of a row that overlap another, in which lane each is drawn: the first that is free again."""
    free_from: list[float] = []
    lane_of: dict[int, int] = {}
    overlapping: set[int] = set()
    longest, until = -1, float("-inf")  # of those so far the one that ends last
    for number, time in times.items():
        begins, ends = compute_start_epoch(time), time.ends.timestamp()
        if begins < until:
            overlapping |= {number, longest}
        lane = next((lane for lane, free in enumerate(free_from) if free <= begins), len(free_from))
        free_from[lane : lane + 1] = [ends]
        lane_of[number] = lane
        if ends > until:
            longest, until = number, ends
    return {number: lane for number, lane in lane_of.items() if number in overlapping}


def group_adjacent_rows(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rows that stand together, as the first and how many."""
    first = previous = rows[0]
    for row in rows[1:]:
        if row != previous + 1:
            yield first, previous + 1 - first
            first = row
        previous = row
    yield first, previous + 1 - first


class RecurrenceBounds(NamedTuple):
    """The first and the last time that a rule gives; with no first it gives none, with no last it goes on."""

    first: datetime | None
    last: datetime | None


def has_left_calendar(one: Booking, now: Now) -> bool:
    """Whether it ended, with the last of its repeats, so long ago that nobody is told of it any more."""
    repeats = find_recurrence_bounds(one)
    if repeats is None or one.since is None:
        return now.has_passed(one.until.timestamp() + booking_use.SHOWN_AFTER_END_S)
    if repeats.first is None:
        return True
    ends = repeats.last and repeats.last + (one.until - one.since)
    return ends is not None and now.has_passed(ends.timestamp() + booking_use.SHOWN_AFTER_END_S)


def find_recurrence_bounds(one: Booking) -> RecurrenceBounds | None:
    """When it repeats; None for one that counts once."""
    if not one.rrule or one.since is None or one.until - one.since > booking_use.MAX_REPEATED_DURATION:
        return None
    return compute_recurrence_bounds(one.rrule, one.since)


@lru_cache(maxsize=4096)
def compute_recurrence_bounds(rule: str, since: datetime) -> RecurrenceBounds | None:
    """The same by a rule, which a calendar program follows from the first time that it gives."""
    from dateutil.rrule import rrulestr  # noqa: PLC0415 slow to import, and rarely needed

    try:
        first = next(iter(rrulestr(rule, dtstart=since)), None)
        if "COUNT=" not in rule and "UNTIL=" not in rule:
            return RecurrenceBounds(first, None)
        found = iter(rrulestr(rule, dtstart=find_start_near_end(since, rule)))
    except ValueError:  # one that repeats until the 32nd, say
        return None
    looked_at, last = 0, first
    for looked_at, last in enumerate(islice(found, booking_use.MAX_EXAMINED_REPEATS), 1):  # noqa: B007
        if not dates.is_year(last.year):
            return RecurrenceBounds(first, None)
    return RecurrenceBounds(first, None if looked_at == booking_use.MAX_EXAMINED_REPEATS else last)


def find_start_near_end(since: datetime, rule: str) -> datetime:
    """Return a beginning shortly before UNTIL, so that the last time is soon found: two periods have at least one."""
    told = dates.stamp(rule.partition("UNTIL=")[2].partition(";")[0], since.tzinfo or timezone.utc)[0]
    weeks = booking_use.RRULE_INTERVAL.search(rule)
    return (
        booking_use.advance_repeat_start(since, rule, told - 2 * timedelta(weeks=int(weeks[1]) if weeks else 1))
        if told
        else since
    )


HUE_COUNT, PATTERN_COUNT = 12, 6
# Heights in CSS pixels: of the days' names above the rows, of a row, and of each lane where some overlap.
HEAD_HEIGHT_PX, ROW_HEIGHT_PX, LANE_HEIGHT_PX = 22, 24, 19
BAR_GAP_PX = 2
# A bar is never narrower than this, in percent of two weeks: an hour is.
MIN_BAR_WIDTH_PERCENT = 0.3
MAX_LISTED = 1000
MAX_BAR_CHARACTERS = 120


class CalendarPerson(NamedTuple):
    """Somebody who has bookings: which look their bars have, where their feed is, and all names that they go by."""

    number: int
    name: str
    style: int
    feed: str
    names: Sequence[str]


class RenderedBar(NamedTuple):
    """A bar as the template takes it; places are in percent across, and in pixels down."""

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
    """A host as the template takes it: the rows' labels and the lines between them by their place."""

    host: str
    height: int
    labels: Sequence[tuple[str, int]]
    row_tops: Sequence[int]
    bars: Sequence[RenderedBar]
    unbooked: str


def assign_styles(people: Iterable[str]) -> dict[str, int]:
    """A look for each person, by the name alone as far as no two have the same: then one of them takes the next."""
    taken: dict[int, str] = {}
    wanted = {person: int.from_bytes(blake2b(encode_text(person), digest_size=4).digest(), "big") for person in people}
    for person in sorted(wanted, key=lambda one: (wanted[one], one)):
        look = wanted[person] % (HUE_COUNT * PATTERN_COUNT)
        while look in taken and len(taken) < HUE_COUNT * PATTERN_COUNT:
            look = (look + 1) % (HUE_COUNT * PATTERN_COUNT)
        taken.setdefault(look, person)
        wanted[person] = look
    return wanted


def encode_text(told: str) -> bytes:
    """A text as bytes, whatever is in it."""
    return told.encode("utf-8", "replace")


def render_calendar_page(calendar: Calendar, people: Mapping[str, CalendarPerson], version: str, now: Now) -> bytes:
    """The whole page; `people` are by the names in their bookings."""
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
        charts=[render_host_calendar(one, calendar, people, now) for one in calendar.host_calendars],
        head=HEAD_HEIGHT_PX,
        people=sorted({one.number: one for one in people.values()}.values()),
        others=calendar.unbooked_hosts,
        listed=[build_calendar_row(time, people, now) for time in calendar.occurrences[:MAX_LISTED]],
        more=calendar.omitted_count + max(0, len(calendar.occurrences) - MAX_LISTED),
        hues=HUE_COUNT,
    )
    return encode_text(content)


def build_day_columns(midnights: Sequence[datetime]) -> list[tuple[str, str, str, str]]:
    """Each day: where it begins, how wide it is (clocks may change in it), what it is, and its name."""
    found = []
    for number, (begins, ends) in enumerate(zip(midnights, midnights[1:])):
        left, right = (format_position_percent(one.timestamp(), midnights) for one in (begins, ends))
        kind = "today" if number == 0 else "weekend" if begins.weekday() >= 5 else ""
        if kind == "today" and begins.weekday() >= 5:
            kind = "today weekend"
        name = (
            format_weekday_date(begins)
            if number == 0 or begins.day == 1
            else f"{WEEKDAYS[begins.weekday()]} {begins.day}"
        )
        found.append((left, f"{float(right) - float(left):.3f}", kind, name))
    return found


def format_position_percent(moment: float, midnights: Sequence[datetime]) -> str:
    """The place of a moment, in percent of the two weeks."""
    first, last = midnights[0].timestamp(), midnights[-1].timestamp()
    return f"{min(100, max(0, (moment - first) / (last - first) * 100)):.3f}"


def format_weekday_date(moment: datetime) -> str:
    """`Mon 16 Nov`."""
    return f"{WEEKDAYS[moment.weekday()]} {moment.day} {MONTH_NAMES[moment.month - 1]}"


def render_host_calendar(
    chart: HostCalendar, calendar: Calendar, people: Mapping[str, CalendarPerson], now: Now
) -> RenderedHostCalendar:
    """A host's rows and bars."""
    heights = [ROW_HEIGHT_PX if lanes == 1 else lanes * LANE_HEIGHT_PX + BAR_GAP_PX for _, lanes in chart.rows]
    tops = list(accumulate(heights, initial=HEAD_HEIGHT_PX))
    return RenderedHostCalendar(
        chart.host,
        tops[-1],
        [(label, tops[row] + ROW_HEIGHT_PX // 2) for row, (label, _) in enumerate(chart.rows)],
        tops[:-1],
        [render_calendar_bar(bar, tops, calendar, people, now) for bar in chart.bars],
        ", ".join(chart.unbooked),
    )


def render_calendar_bar(
    bar: CalendarBar, tops: Sequence[int], calendar: Calendar, people: Mapping[str, CalendarPerson], now: Now
) -> RenderedBar:
    """A bar: where it is, and what stands in it."""
    time, promise = bar.occurrence, bar.occurrence.booking
    person = people.get(promise.name)
    left = float(format_position_percent(time.begins.timestamp(), calendar.midnights)) if time.begins else 0
    width = max(MIN_BAR_WIDTH_PERCENT, float(format_position_percent(time.ends.timestamp(), calendar.midnights)) - left)
    left = min(left, 100 - width)
    top, bottom = tops[bar.row], tops[bar.row + bar.row_count]
    if bar.lane is not None:
        top, bottom = top + bar.lane * LANE_HEIGHT_PX, top + (bar.lane + 1) * LANE_HEIGHT_PX + BAR_GAP_PX
    told = " · ".join(
        filter(None, (promise.where, promise.name or "booked", format_occurrence(time, now), promise.comment))
    )
    return RenderedBar(
        style=f"h{person.style % HUE_COUNT} who{person.number}" if person else "h0",
        pattern=person.style // HUE_COUNT if person else 0,
        x=f"{left:.3f}",
        width=f"{width:.3f}",
        y=top + BAR_GAP_PX,
        height=bottom - top - BAR_GAP_PX,
        name=shorten_text(promise.name or "booked") or "",
        comment=shorten_text(promise.comment, MAX_BAR_CHARACTERS) or "",
        title=told,
    )


def build_calendar_row(
    time: BookingOccurrence, people: Mapping[str, CalendarPerson], now: Now
) -> tuple[str, str, str, str, str, str]:
    """A line of the list: whose, when, which host, where on it, who, for what."""
    promise = time.booking
    person = people.get(promise.name)
    gpus = "all GPUs" if promise.is_whole_host else ", ".join(promise.gpus)
    whose = f"who{person.number}" if person else ""
    return whose, format_occurrence(time, now), promise.host, gpus, promise.name, promise.comment


def format_occurrence(time: BookingOccurrence, now: Now) -> str:
    """`Mon 16 Nov 09:00 – 18:00`, `until Tue 17 Nov 18:00`."""
    ends = now.to_local(time.ends)
    clock = f"{ends.hour:02}:{ends.minute:02}"
    if time.begins is None:
        return f"until {format_dated_time(ends, now)}"
    begins = now.to_local(time.begins)
    same = begins.date() == ends.date()
    return f"{format_dated_time(begins, now)} – {clock if same else format_dated_time(ends, now)}"


def format_dated_time(moment: datetime, now: Now) -> str:
    """A time with its day, and with its year where that is another."""
    year = "" if moment.year == now.local.year else f" {moment.year}"
    return f"{format_weekday_date(moment)}{year} {moment.hour:02}:{moment.minute:02}"
