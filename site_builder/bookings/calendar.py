"""Build bookings.html, the calendar of all bookings, and render it; `CalendarBuilder` builds the feeds too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

from markupsafe import Markup

from site_builder.bookings import ics
from site_builder.bookings.ics import CODE_DIGEST, FLEET_FEED, HOST_FEEDS, CalendarFile
from site_builder.bookings.times import compute_booking_end_time, find_booking_time_bounds
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.faults import split_by_fault
from site_builder.core.files import compute_digest
from site_builder.core.formatting import DAY_NAMES, MAX_NAME_CHARACTERS, format_weekday_date
from site_builder.core.html import build_time_html, load_compact_html_template
from site_builder.core.model import Booking, GpuIdentity, PrivacySettings, Problem
from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory
from site_builder.fleet import booking_use
from site_builder.fleet.booking_use import build_failed_booking_problem

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
CALENDAR_PAGE = "bookings.html"
# The page is rewritten after this many seconds, for its mark of now.
MAX_PAGE_AGE_S = 1800


class CalendarHost(NamedTuple):
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


class CalendarOccurrence(NamedTuple):
    """A booking at one of its times, also in seconds since 1970; `begins` is None if it has no start."""

    booking: CalendarBooking
    begins: datetime | None
    ends: datetime
    start: float
    end: float


class CalendarBar(NamedTuple):
    """A bar of the chart: its place across in percent of the two weeks, and its place down in pixels."""

    occurrence: CalendarOccurrence
    x: str
    width: str
    y: int
    height: int


class HostCalendar(NamedTuple):
    """The chart of a host: its rows, each with its label and its top, its bars, and the GPUs without a booking."""

    host: str
    height: int
    rows: tuple[tuple[str, int], ...]
    bars: tuple[CalendarBar, ...]
    unbooked: tuple[str, ...]


class Calendar(NamedTuple):
    """Two weeks: the midnights that bound its days, hosts with bookings and without, and all bookings in a list."""

    midnights: tuple[datetime, ...]
    host_calendars: tuple[HostCalendar, ...]
    unbooked_hosts: tuple[str, ...]
    occurrences: tuple[CalendarOccurrence, ...]
    omitted_count: int


class CalendarPerson(NamedTuple):
    """A person with bookings: hue, pattern and edge hue of their bars, their feed, and all names that they go by."""

    number: int
    name: str
    hue: int
    pattern: int
    edge_hue: int
    feed: str
    names: Sequence[str]


def build_calendar(hosts: Sequence[CalendarHost], shown: PrivacySettings, now: Now) -> Calendar:
    """Build the calendar from the midnight before now to that in two weeks, in our zone."""
    midnight = datetime.combine(now.today, datetime.min.time(), now.zone)
    midnights = tuple(midnight + timedelta(days=day) for day in range(CALENDAR_DAYS + 1))
    now.days_until(now.local)  # which changes with the day
    first, last = midnights[0].timestamp(), midnights[-1].timestamp()
    remaining, omitted_count = MAX_OCCURRENCES, 0
    host_calendars, unbooked_hosts, all_occurrences = [], [], []
    for host in hosts:
        occurrences = []
        labels, bookings = group_calendar_bookings(host, shown)
        for booking in bookings:
            for begins, ends in booking_use.list_fleet_booking_times(booking.first_booking, now):
                start, end = begins.timestamp() if begins else float("-inf"), ends.timestamp()
                if end > first and start < last:
                    occurrences.append(CalendarOccurrence(booking, begins, ends, start, end))
        if not occurrences:
            unbooked_hosts.append(host.name)
        shown_occurrences = sorted(occurrences, key=attrgetter("start"))[:remaining]
        remaining -= len(shown_occurrences)
        omitted_count += len(occurrences) - len(shown_occurrences)
        if shown_occurrences:
            all_occurrences += shown_occurrences
            host_calendars.append(build_host_calendar(host.name, labels, shown_occurrences, first, last))
    all_occurrences.sort(key=attrgetter("start"))
    return Calendar(midnights, tuple(host_calendars), tuple(unbooked_hosts), tuple(all_occurrences), omitted_count)


def group_calendar_bookings(host: CalendarHost, shown: PrivacySettings) -> tuple[list[str], list[CalendarBooking]]:
    """Return the labels of a host's rows, and its bookings: those that differ only in the GPU are one."""
    if not host.bookings:
        return [], []
    labels, rows_by_key = assign_calendar_rows(host)
    groups: dict[tuple[object, ...], list[Booking]] = {}
    for booking in host.bookings:
        key = (booking.id, booking.name, booking.since, booking.until, booking.comment, booking.rrule)
        groups.setdefault(key, []).append(booking)
    calendar_bookings = []
    for group in groups.values():
        first, keys = group[0], {booking.gpu.lower() for booking in group}
        is_whole_host = "*" in keys
        booked_rows = {row for key in keys - {"*"} for row in rows_by_key[key]}
        rows = tuple(range(len(host.gpus) or len(labels)) if is_whole_host else sorted(booked_rows))
        facts = (first.id, first.name, first.comment, first.booked_by or "")
        shown_facts = facts if shown.users else (None, "", "", "")
        gpus = tuple(labels[row] for row in rows)
        calendar_bookings.append(CalendarBooking(host.name, *shown_facts, rows, gpus, is_whole_host, first))
    return labels, calendar_bookings


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


def build_host_calendar(
    host: str, labels: Sequence[str], occurrences: Sequence[CalendarOccurrence], first: float, last: float
) -> HostCalendar:
    """Place the occurrences of a host: one bar over adjacent GPUs, or where some overlap, one in a lane of each GPU."""
    occurrences_by_row: dict[int, dict[int, CalendarOccurrence]] = {}
    for number, occurrence in enumerate(occurrences):
        for row in occurrence.booking.rows:
            occurrences_by_row.setdefault(row, {})[number] = occurrence
    lanes = {row: assign_calendar_lanes(occurrences_by_row[row]) for row in sorted(occurrences_by_row)}
    tops, bottoms, top = {}, {}, HEAD_HEIGHT_PX
    for row, row_lanes in lanes.items():
        tops[row] = top
        top += (1 + max(row_lanes.values())) * LANE_HEIGHT_PX + BAR_GAP_PX if any(row_lanes.values()) else ROW_HEIGHT_PX
        bottoms[row] = top
    bars: list[CalendarBar] = []
    for number, occurrence in enumerate(occurrences):
        left = compute_position_percent(occurrence.start, first, last)
        width = max(MIN_BAR_WIDTH_PERCENT, compute_position_percent(occurrence.end, first, last) - left)
        left = min(left, 100 - width)
        is_overlapping = any(number in lanes[row] for row in occurrence.booking.rows)
        spans: list[tuple[int, int]] = []
        for row in occurrence.booking.rows:
            if number in lanes[row]:
                lane_top = tops[row] + lanes[row][number] * LANE_HEIGHT_PX
                spans.append((lane_top, lane_top + LANE_HEIGHT_PX + BAR_GAP_PX))
            elif spans and spans[-1][1] == tops[row] and not is_overlapping:
                spans[-1] = spans[-1][0], bottoms[row]
            else:
                spans.append((tops[row], bottoms[row]))
        place = (f"{left:.3f}", f"{width:.3f}")
        bars += [CalendarBar(occurrence, *place, start + BAR_GAP_PX, end - start - BAR_GAP_PX) for start, end in spans]
    rows = tuple((labels[row], tops[row]) for row in lanes)
    unbooked = tuple(label for row, label in enumerate(labels) if row not in lanes)
    return HostCalendar(host, top, rows, tuple(bars), unbooked)


def assign_calendar_lanes(occurrences: Mapping[int, CalendarOccurrence]) -> dict[int, int]:
    """Assign a lane to each occurrence of a row that overlaps another: the first that is free again."""
    free_from: list[float] = []
    lane_of: dict[int, int] = {}
    overlapping: set[int] = set()
    last_number, last_end = -1, float("-inf")  # of those so far the one that ends last
    for number, occurrence in occurrences.items():
        start, end = occurrence.start, occurrence.end
        if start < last_end:
            overlapping |= {number, last_number}
        lane = next((lane for lane, free_at in enumerate(free_from) if free_at <= start), len(free_from))
        free_from[lane : lane + 1] = [end]
        lane_of[number] = lane
        if end > last_end:
            last_number, last_end = number, end
    return {number: lane for number, lane in lane_of.items() if number in overlapping}


def has_left_calendar(booking: Booking, now: Now) -> bool:
    """Return whether a booking ended, with its last repeat, so long ago that it is no longer shown."""
    bounds = find_booking_time_bounds(booking)
    if bounds and bounds.first is None:  # its rule gives no time at all
        return True
    return now.has_passed(compute_booking_end_time(booking) + booking_use.SHOWN_AFTER_END_S)


def choose_calendar_style(person: str) -> tuple[int, int, int]:
    """Return pattern, hue and edge hue of a person, from the name alone: who else books changes nothing."""
    digest = blake2b(person.encode("utf-8", "replace"), digest_size=4).digest()
    rest, hue = divmod(int.from_bytes(digest, "big"), HUE_COUNT)
    return rest % PATTERN_COUNT, hue, rest // PATTERN_COUNT % HUE_COUNT


def render_calendar_page(calendar: Calendar, people: Mapping[str, CalendarPerson], version: str, now: Now) -> bytes:
    """Render the page; `people` are by the names in their bookings."""
    first, last = (calendar.midnights[edge].timestamp() for edge in (0, -1))
    content = load_compact_html_template("bookings.html").render(
        calendar=calendar,
        people=people,
        legend=sorted({person.number: person for person in people.values()}.values()),
        version=version,
        built=build_time_html(now, "minutes"),
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        days=build_calendar_day_columns(calendar.midnights),
        now_x=round(compute_position_percent(now.epoch, first, last), 3),
        compute_position=compute_position_percent,
        head_height=HEAD_HEIGHT_PX,
        row_height=ROW_HEIGHT_PX,
        max_listed=MAX_LISTED,
        max_name_characters=MAX_NAME_CHARACTERS,
        format_date=format_weekday_date,
        format_occurrence=partial(format_calendar_occurrence, now=now),
        render_times=partial(render_calendar_times, now=now),
    )
    return content.encode("utf-8", "replace")


def build_calendar_day_columns(midnights: Sequence[datetime]) -> list[tuple[str, str, str, str]]:
    """Return for each day its position, width (clocks may change in it), CSS classes and name."""
    columns = []
    epochs = [midnight.timestamp() for midnight in midnights]
    for number, midnight in enumerate(midnights[:-1]):
        left, right = (compute_position_percent(epochs[edge], epochs[0], epochs[-1]) for edge in (number, number + 1))
        kind = " ".join(filter(None, ("today" if number == 0 else "", "weekend" if midnight.weekday() >= 5 else "")))
        name = f"{DAY_NAMES[midnight.weekday()]} {midnight.day}"
        if number == 0 or midnight.day == 1:
            name = format_weekday_date(midnight)
        columns.append((f"{left:.3f}", f"{right - left:.3f}", kind, name))
    return columns


def compute_position_percent(moment: float, first: float, last: float) -> float:
    return round(min(100.0, max(0.0, (moment - first) / (last - first) * 100)), 3)


def format_calendar_occurrence(occurrence: CalendarOccurrence, now: Now) -> str:
    """Format an occurrence: `Mon 16 Nov 09:00 – 18:00`, `until Tue 17 Nov 18:00`."""
    end = now.to_local(occurrence.ends)
    if occurrence.begins is None:
        return f"until {format_calendar_time(end, now)}"
    start = now.to_local(occurrence.begins)
    end_text = f"{end:%H:%M}" if start.date() == end.date() else format_calendar_time(end, now)
    return f"{format_calendar_time(start, now)} – {end_text}"


def render_calendar_times(begins: datetime | None, ends: datetime, now: Now) -> Markup:
    """Render times as attributes, for the script that shows them in the viewer's zone."""
    times = {"from": begins, "until": ends}
    texts = {name: now.to_local(moment).isoformat(timespec="seconds") for name, moment in times.items() if moment}
    return Markup("".join(f' data-{name}="{text}"' for name, text in texts.items()))  # noqa: S704 # digits and signs


def format_calendar_time(moment: datetime, now: Now) -> str:
    """Format a time with its day, and with its year if it is another."""
    year = "" if moment.year == now.local.year else f" {moment.year}"
    return f"{format_weekday_date(moment)}{year} {moment:%H:%M}"


class CalendarInput(NamedTuple):
    hosts: tuple[CalendarHost, ...]
    people: PeopleDirectory
    version: str


class CalendarBuilder:
    """Builds the page and the feeds again only if bookings or time make a difference."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.timestamps = ics.IcsTimestampStore(settings.state)
        # of each part what it was made of, until when it is valid, and its files
        self.cache: dict[str, tuple[tuple[object, ...], float, dict[str, CalendarFile]]] = {}
        self.problems: list[Problem] = []

    def drop_failing_bookings(self, calendar_input: CalendarInput, now: Now) -> CalendarInput:
        """Leave out bookings at which the calendar code fails; each is a problem."""
        self.problems = []
        hosts = []
        for host in calendar_input.hosts:

            def build_all(bookings: Sequence[Booking], host: CalendarHost = host) -> None:
                host_input = calendar_input._replace(hosts=(host._replace(bookings=tuple(bookings)),))
                own_now = now.copy_with_own_expiry()
                feeds = self.build_feeds(host_input, own_now, keep=False)
                for file in (*self.build_page(host_input, own_now).values(), *feeds.values()):
                    file.render(own_now)

            good_bookings, failures = split_by_fault(host.bookings, build_all)
            self.problems += [build_failed_booking_problem(booking, location) for booking, location in failures]
            hosts.append(host._replace(bookings=tuple(good_bookings)) if failures else host)
        self.cache = {}
        return calendar_input._replace(hosts=tuple(hosts))

    def build_files(self, calendar_input: CalendarInput, now: Now) -> dict[str, CalendarFile]:
        """Return all files, with a feed for each host and each person that has bookings."""
        bookings = (calendar_input.hosts, calendar_input.people.aliases)
        build_page, build_feeds = (partial(build, calendar_input) for build in (self.build_page, self.build_feeds))
        page_files = self.build_cached("page", (*bookings, calendar_input.version), build_page, now)
        feeds = self.build_cached("feeds", bookings, build_feeds, now)
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

    def build_page(self, calendar_input: CalendarInput, now: Now) -> dict[str, CalendarFile]:
        privacy = self.settings.privacy
        calendar = build_calendar(calendar_input.hosts, privacy, now)
        people = build_calendar_people(calendar, calendar_input) if privacy.users else {}
        content = (calendar, people, calendar_input.version)
        fingerprint = compute_digest(repr(content).encode("utf-8", "replace"), CODE_DIGEST)
        file = CalendarFile(fingerprint, lambda now: render_calendar_page(*content, now), MAX_PAGE_AGE_S)
        return {CALENDAR_PAGE: file}

    def build_feeds(self, calendar_input: CalendarInput, now: Now, keep: bool = True) -> dict[str, CalendarFile]:
        """Build the feeds of all bookings, of each host and of each person; `keep` saves when each was first seen."""
        events: dict[str, list[ics.CalendarEvent]] = {FLEET_FEED: []}
        titles, people = {FLEET_FEED: "GPU bookings"}, calendar_input.people
        uids: set[str] = set()
        for host in calendar_input.hosts:
            for booking in group_calendar_bookings(host, self.settings.privacy)[1]:
                if has_left_calendar(booking.first_booking, now):
                    continue
                uid = ics.build_ics_event_uid(booking, uids)
                named = ics.name_calendar_booking(booking, people)
                digest = compute_digest(repr((named, str(now.zone))).encode("utf-8", "replace")).hex()
                timestamps = self.timestamps.record_event(uid, digest, now.epoch)
                # a booking without a start begins on the day it was first seen, or of its end if that is earlier
                last_day = now.to_local(booking.first_booking.until - timedelta(microseconds=1)).date()
                first_day = min(datetime.fromtimestamp(timestamps.first_seen_at, now.zone).date(), last_day)
                default_start = datetime.combine(first_day, datetime.min.time(), now.zone)
                event = ics.build_calendar_event(named, uid, timestamps.changed_at, default_start)
                owners = {FLEET_FEED: "", f"{HOST_FEEDS}{host.name}.ics": host.name}
                if booking.name:
                    owners[ics.build_ics_feed_path(booking.name, people)] = people.display_name(booking.name)
                for name, owner in owners.items():
                    titles.setdefault(name, f"GPU bookings: {owner}")
                    events.setdefault(name, []).append(event)
        with suppress(OSError):  # what is not kept is noticed again
            if keep:
                self.timestamps.save(uids)
        return {name: ics.build_ics_feed_file(titles[name], feed_events) for name, feed_events in events.items()}


def build_calendar_people(calendar: Calendar, calendar_input: CalendarInput) -> dict[str, CalendarPerson]:
    """Return who has bookings in the calendar, by the names in the bookings."""
    people = calendar_input.people
    shown_names = {occurrence.booking.name for occurrence in calendar.occurrences if occurrence.booking.name}
    shown_people = sorted({people.resolve_person(name) for name in shown_names})
    names: dict[str, list[str]] = {person: [person] for person in shown_people}
    for alias in people.aliases:
        names.get(people.resolve_person(alias), []).append(alias)
    calendar_people = {}
    for name in sorted(shown_names):
        person = people.resolve_person(name)
        pattern, hue, edge_hue = choose_calendar_style(person)
        number, shown_name = shown_people.index(person) + 1, people.display_name(name)
        feed, all_names = ics.build_ics_feed_path(name, people), tuple(dict.fromkeys([*names[person], name.lower()]))
        calendar_people[name] = CalendarPerson(number, shown_name, hue, pattern, edge_hue, feed, all_names)
    return calendar_people
