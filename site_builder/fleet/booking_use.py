"""Decide which bookings hold now, and whether the GPUs that they booked are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.faults import describe_fault
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import Booking, BookingStatus, Gpu, GpuBookingUse, GpuStatus, PrivacySettings, Problem
from site_builder.core.names import HostNameIndex
from site_builder.core.people import PeopleDirectory
from site_builder.core.timeparse.recurrence import list_repeat_starts
from site_builder.fleet.gpu_state import GpuInput, StateRules, find_conflict_users

SHOWN_AFTER_END_S = 2 * DAY
# The days before and after today for which repeats of a booking are listed.
REPEAT_LOOKBACK = timedelta(seconds=SHOWN_AFTER_END_S) + timedelta(days=1)
REPEAT_LOOKAHEAD = timedelta(days=15)
MAX_REPEATS = 60
MAX_REPEATED_DURATION = timedelta(days=366)
MAX_HINTS = 20
MAX_BOOKINGS_PER_HOST = 500
BOOKING_PHASES = ("now", "coming", "ended")
# A booking that begins this soon after the last has ended continues it.
MAX_BOOKING_GAP_S = HOUR
# A mean over less time says more about chance than about the booking.
MIN_MEAN_PERIOD_S = 5 * MINUTE
IN_USE_STATES = frozenset({"conflict", "held", "busy", "booked"})
NO_ALIASES = PeopleDirectory({})
# How many other users and how many bookings at once are remembered of one GPU.
MAX_REMEMBERED = 20


def group_fleet_bookings_by_host(
    bookings: Iterable[Booking], names: Iterable[str], now: Now
) -> tuple[dict[str, list[Booking]], list[Problem]]:
    """Return the bookings of each host, and a problem for each host that does not exist or has too many."""
    index = HostNameIndex(names)
    lower_names = index.names_by_lower_case
    bookings_by_host: dict[str, list[Booking]] = {}
    unknown_hosts: dict[str, None] = {}
    full_hosts: dict[str, None] = {}
    for booking in bookings:
        host = index.find(booking.host)
        if host and len(bookings_by_host.setdefault(host, [])) < MAX_BOOKINGS_PER_HOST:
            bookings_by_host[host].append(booking)
        elif host:
            full_hosts[host] = None
        elif not is_fleet_booking_expired(booking, now):
            unknown_hosts[booking.host] = None
    problems = [
        Problem("data/comments.json", f"{host} has more than {MAX_BOOKINGS_PER_HOST} bookings; the rest is ignored")
        for host in full_hosts
    ]
    for host in unknown_hosts:
        # in a large fleet each search takes some ms
        similar = get_close_matches(host.lower(), lower_names, 1) if len(problems) < MAX_HINTS else []
        hint = f"; did you mean {lower_names[similar[0]]}?" if similar else ""
        problems.append(Problem("data/comments.json", f"no host {host[:80]}{hint}"))
    return bookings_by_host, problems


def is_fleet_booking_expired(booking: Booking, now: Now) -> bool:
    """Return True if it ended so long ago that it is not shown any more."""
    return not booking.rrule and now.has_passed(booking.until.timestamp() + SHOWN_AFTER_END_S)


def build_failed_booking_problem(booking: Booking, place: str) -> Problem:
    """Build the problem of a booking that is ignored because of a fault of ours."""
    gpu = "all GPUs" if booking.gpu == "*" else f"GPU {booking.gpu[:80]}"
    what = f"{booking.host[:80]}, {gpu}: the booking of {booking.name[:80] or 'nobody'} is ignored"
    return Problem("data/comments.json", describe_fault(what, place))


def find_gpu_bookings(bookings: Sequence[Booking], gpu: Gpu) -> list[Booking]:
    """Return the bookings of a GPU: by its number, its UUID, the whole host, or the GPU of an instance."""
    keys = gpu.booking_keys
    return [booking for booking in bookings if booking.gpu == "*" or booking.gpu.lower() in keys]


def build_fleet_booking_statuses(
    bookings: Iterable[Booking],
    privacy: PrivacySettings,
    now: Now,
    parent: Gpu | None = None,
    people: PeopleDirectory = NO_ALIASES,
) -> tuple[BookingStatus, ...]:
    """Return the bookings to show, current ones first, then by their start; an instance has a `parent`."""
    statuses = [
        name_booking_status(status, people)
        for booking in bookings
        for status in expand_fleet_booking(booking, privacy, now, parent)
    ]
    statuses.sort(key=lambda status: (BOOKING_PHASES.index(status.phase), (status.since or status.until).timestamp()))
    return tuple(statuses)


def name_booking_status(status: BookingStatus, people: PeopleDirectory) -> BookingStatus:
    """Return a booking under the display name of its person."""
    name = status.name and people.display_name(status.name)
    return status if name == status.name else status._replace(name=name, written_name=status.name)


def list_current_bookers(bookings: Iterable[Booking], now: Now) -> list[str]:
    """Return who has booked it now, whatever may be shown of people."""
    privacy = PrivacySettings()
    return [
        booking.name
        for booking in bookings
        for status in expand_fleet_booking(booking, privacy, now)
        if status.phase == "now"
    ]


def expand_fleet_booking(
    booking: Booking, privacy: PrivacySettings, now: Now, parent: Gpu | None = None
) -> Iterator[BookingStatus]:
    """Yield each repeat of a booking that is to be shown."""
    is_whole_gpu = parent is not None and booking.gpu.lower() in parent.booking_keys
    for since, until in list_fleet_booking_times(booking, now):
        end = until.timestamp()
        if now.has_passed(end + SHOWN_AFTER_END_S):
            continue
        has_begun = since is None or now.has_passed(since.timestamp())
        yield BookingStatus(
            name=(booking.name or None) if privacy.users else None,
            since=since,
            until=until,
            comment=(booking.comment or None) if privacy.users else None,
            id=booking.id if privacy.users else None,
            phase="ended" if now.has_passed(end) else "now" if has_begun else "coming",
            is_whole_host=booking.gpu == "*",
            is_whole_gpu=is_whole_gpu,
        )


def list_fleet_booking_times(booking: Booking, now: Now) -> list[tuple[datetime | None, datetime]]:
    """Return when a booking begins and ends; of one that repeats, each time from two days ago to two weeks ahead."""
    if not booking.rrule or booking.since is None or booking.until - booking.since > MAX_REPEATED_DURATION:
        return [(booking.since, booking.until)]
    duration = booking.until - booking.since
    # whole days, so that the result is the same until midnight
    today = datetime.combine(now.today, datetime.min.time(), now.zone)
    now.days_until(now.local)
    first, last = today - REPEAT_LOOKBACK - duration, today + REPEAT_LOOKAHEAD
    starts = list_repeat_starts(booking.rrule, booking.since, first, last)
    if starts is None:
        return [(booking.since, booking.until)]
    past_count = sum(start < today for start in starts)
    nearest = starts[max(0, past_count - MAX_REPEATS // 2) : past_count + MAX_REPEATS // 2]
    return [(start, start + duration) for start in nearest]


class BookingUseCheck(NamedTuple):
    """A check of the GPUs of a host: its time on our clock and on that of the snapshot, and what is remembered."""

    checked_at: int
    snapshot_time: int
    booking_uses: Mapping[str, GpuBookingUse]
    bookings: Sequence[Booking]


def add_booking_use(
    gpu_status: GpuStatus, gpu_input: GpuInput, check: BookingUseCheck, rules: StateRules, now: Now
) -> GpuStatus:
    """Add to a GPU that is booked now how its bookings are used, from this check and what the last one left."""
    bookings = find_gpu_bookings(check.bookings, gpu_input.gpu)
    shown = gpu_status.bookings
    statuses = shown if rules.privacy.users else build_fleet_booking_statuses(bookings, PrivacySettings(), now)
    before = check.booking_uses.get(gpu_status.key)
    passed = check.snapshot_time - before.checked_at if before else 0
    # it is unknown what happened while the host was silent
    last = before if before and abs(passed) <= rules.limits.down_after else None
    # other users, and since when at least each is on it: a process reports when it began
    others_since: dict[str, int] = {}
    for name, processes in sorted(find_conflict_users(gpu_input, rules.people).items())[:MAX_REMEMBERED]:
        starts = [process.started for process in processes if process.started is not None]
        since = min([check.checked_at, *starts])
        others_since[name] = min(last.others_since.get(name, since) if last else since, since)
    use_by_booking: dict[str, tuple[int, float, float]] = {}
    utilization = gpu_status.gpu.utilization_gpu
    counted = max(0, passed) if last else 0
    running = {build_booking_use_key(status) for status in statuses if status.phase == "now"}
    for key in sorted(running)[:MAX_REMEMBERED]:
        since, seconds, used = check.checked_at, 0.0, 0.0  # a booking counts from when it is first seen
        if before and key in before.use_by_booking:
            since, seconds, used = before.use_by_booking[key]
            if utilization is not None:
                # a host can claim anything
                seconds, used = seconds + counted, used + counted * min(100, max(0, utilization))
        use_by_booking[key] = since, seconds, used
    use = GpuBookingUse(
        max(check.snapshot_time, last.checked_at) if last else check.snapshot_time,
        ((last.empty_since if last else None) or check.checked_at) if gpu_status.state == "booked" else None,
        others_since if gpu_status.state == "conflict" else {},
        use_by_booking,
    )
    bookings_with_use = []
    for shown_status, status in zip(shown, statuses):
        if status.phase != "now":
            bookings_with_use.append(shown_status)
            continue
        first, seconds, used = use_by_booking.get(build_booking_use_key(status), (use.checked_at, 0.0, 0.0))
        began = int(status.since.timestamp()) if status.since else first
        with_use = shown_status._replace(
            unused_since=None if use.empty_since is None else max(began, use.empty_since),
            used_by=tuple(sorted(use.others_since)) if use.others_since and rules.privacy.users else None,
            used_by_since=max(began, min(use.others_since.values())) if use.others_since else None,
            mean_use=round(used / seconds, 1) if seconds >= MIN_MEAN_PERIOD_S else None,
        )
        bookings_with_use.append(with_use)
    return gpu_status._replace(
        bookings=tuple(bookings_with_use), booking_use=use, free_again=find_booking_use_end(gpu_status, bookings, now)
    )


def build_booking_use_key(booking: BookingStatus) -> str:
    """Return a key that stays the same when a booking is extended, and differs for each repeat."""
    name = booking.written_name or booking.name or ""
    return f"{int(booking.since.timestamp()) if booking.since else ''} {name}"


def find_booking_use_end(gpu_status: GpuStatus, bookings: Sequence[Booking], now: Now) -> int | None:
    """Return when the last of the bookings ends that follow each other from now on; None if unknown."""
    if gpu_status.state not in IN_USE_STATES:
        return None
    end = max(booking.until.timestamp() for booking in gpu_status.bookings if booking.phase == "now")
    for booking in gpu_status.bookings:  # future ones are ordered by their start
        if booking.phase == "coming" and booking.since and booking.since.timestamp() <= end + MAX_BOOKING_GAP_S:
            end = max(end, booking.until.timestamp())
    # repeats are only listed for some days
    listed_until = datetime.combine(now.today, datetime.min.time(), now.zone) + REPEAT_LOOKAHEAD
    if end + MAX_BOOKING_GAP_S >= listed_until.timestamp() and any(booking.rrule for booking in bookings):
        return None
    return int(end)
