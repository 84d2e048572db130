"""When bookings hold: their times, their repeats, and where two of them overlap."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking
from site_builder.core.timeparse import moments, recurrence
from site_builder.core.timeparse.recurrence import RecurrenceBounds, compute_recurrence_bounds, list_repeat_starts
from site_builder.fleet.booking_use import MAX_REPEATED_DURATION

TimeSpan = tuple[float, float]
# How far ahead a repeating booking is examined.
CONFLICT_HORIZON = timedelta(days=366)
MAX_EPOCH = datetime(9999, 12, 30, tzinfo=timezone.utc).timestamp()


def booking_time_to_epoch(moment: datetime) -> float:
    """Return a moment in seconds; the first and last year there are have hours that cannot be converted."""
    try:
        return moment.timestamp()
    except (OverflowError, ValueError):
        return -math.inf if moment.year < 2 else MAX_EPOCH


def list_booking_spans(booking: Booking, first: datetime, ahead: timedelta) -> list[TimeSpan]:
    """List when a booking holds, in seconds; a repeating one each time from `first` on, as far as `ahead`."""
    since, until = booking.since, booking.until
    single = [(booking_time_to_epoch(since) if since else -math.inf, booking_time_to_epoch(until))]
    if not booking.rrule or since is None or until - since > MAX_REPEATED_DURATION:
        return single
    length = until - since
    starts = list_repeat_starts(booking.rrule, since, first - length, first + ahead)
    if starts is None:
        return single
    return [(start.timestamp(), (start + length).timestamp()) for start in starts]


def list_remaining_booking_spans(booking: Booking, now: Now) -> list[TimeSpan]:
    """List when a booking holds from now on, in seconds since 1970."""
    # the same all day, so that the times of a rule are computed once
    today = datetime.combine(now.today, datetime.min.time(), now.zone)
    return [
        (since, until) for since, until in list_booking_spans(booking, today, CONFLICT_HORIZON) if until > now.epoch
    ]


def compute_booking_phase(booking: Booking, now: Now) -> str:
    """Return now, coming or ended; a repeating booking is coming between two of its times."""
    spans = list_remaining_booking_spans(booking, now)
    return "ended" if not spans else "now" if spans[0][0] <= now.epoch else "coming"


def find_first_booking_time(rrule: str, since: datetime) -> datetime | None:
    """Return the first time that a rule gives within a year: on Monday, what repeats on Tuesdays begins tomorrow."""
    starts = list_repeat_starts(rrule, since, since, since + CONFLICT_HORIZON)
    return starts[0] if starts else None


def find_booking_time_bounds(booking: Booking) -> RecurrenceBounds | None:
    """Return when a booking first and last repeats; None for one that counts once."""
    if not booking.rrule or booking.since is None or booking.until - booking.since > MAX_REPEATED_DURATION:
        return None
    return compute_recurrence_bounds(booking.rrule, booking.since)


def compute_booking_end_time(booking: Booking) -> float:
    """Return when a booking ends with its last repeat; infinity if it goes on for ever."""
    bounds = find_booking_time_bounds(booking)
    if bounds is None or booking.since is None or bounds.first is None:
        return booking_time_to_epoch(booking.until)
    return booking_time_to_epoch(bounds.last + (booking.until - booking.since)) if bounds.last else math.inf


def has_booking_ended(booking: Booking, now: Now) -> bool:
    return compute_booking_end_time(booking) <= now.epoch


def is_booking_starting_soon(since: datetime | None, now: Now) -> bool:
    """Return whether it matters for a booking who uses the GPU now."""
    return since is None or since.timestamp() <= now.epoch + formatting.HOUR


def describe_repeats(booking: Booking, now: Now, with_end: bool = False) -> str | None:
    """Describe when a booking repeats; its hours are the lab's, also for a viewer in another zone."""
    since = booking.since
    if not booking.rrule or since is None:
        return None
    describe = recurrence.describe_recurrence if with_end else recurrence.describe_recurrence_hours
    text = describe(booking.rrule, since, booking.until, now.zone)
    is_same = since.astimezone(now.viewer_zone).utcoffset() == since.astimezone(now.zone).utcoffset()
    return text if is_same else f"{text} (lab time)"


def format_booking_moment(moment: datetime | float, now: Now, in_full: bool = False) -> str:
    """Format a moment by the viewer's clock, with the lab's time beside it where that differs."""
    epoch = booking_time_to_epoch(moment) if isinstance(moment, datetime) else moment
    lab_time = datetime.fromtimestamp(max(0, min(epoch, MAX_EPOCH)), now.zone)
    viewer_time, viewer_now = lab_time.astimezone(now.viewer_zone), Now(now.epoch, now.viewer_zone)
    if in_full:
        text = moments.describe_moment_in_full(viewer_time, viewer_now.local)
    else:
        text = formatting.format_moment(viewer_time, viewer_now)
    if viewer_time.utcoffset() == lab_time.utcoffset():
        return text
    day = "" if viewer_time.date() == lab_time.date() else f"{formatting.DAY_NAMES[lab_time.weekday()]} "
    return f"{text} (lab: {day}{lab_time:%H:%M})"
