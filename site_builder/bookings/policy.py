"""Rules of booking: no GPU twice, nothing in the past, and no more than the limits allow one person."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking, BookingPolicy, Gpu
from site_builder.core.terminal_text import clean_text
from site_builder.core.timeparse import dates
from site_builder.core.timeparse.recurrence import (
    MAX_EXAMINED_REPEATS,
    RRULE_INTERVAL,
    advance_repeat,
    list_repeat_starts,
)
from site_builder.fleet.booking_use import MAX_REPEATED_DURATION

TimeSpan = tuple[float, float]
# How far ahead a repeating booking is examined: for conflicts, and for the GPU-hours of a person.
CONFLICT_HORIZON = timedelta(days=366)
SHARE_HORIZON = timedelta(days=28)
MAX_EPOCH = datetime(9999, 12, 30, tzinfo=timezone.utc).timestamp()
MAX_NAME_CHARACTERS = 80
# Unicode categories of characters that control text and cannot be seen.
INVISIBLE_CATEGORIES = {"Cc", "Cf"}


class BookingRefusedError(Exception):
    """Why something may not be booked, changed or released, in one sentence."""


class BookingForbiddenError(BookingRefusedError):
    """The same, where somebody else may."""


class BookingNameError(Exception):
    """A name under which nobody can book."""


def check_booking_name(name: str) -> str:
    """Return the name unchanged, or refuse it: one that had to be changed could become somebody else's."""
    name = name.strip()
    if not name or clean_text(name) != name or " ".join(name.split()) != name or len(name) > MAX_NAME_CHARACTERS:
        message = f"nobody can book under this name: it must be one line of at most {MAX_NAME_CHARACTERS} letters"
        raise BookingNameError(message)
    has_invisible = any(unicodedata.category(character) in INVISIBLE_CATEGORIES for character in name)
    if has_invisible or unicodedata.normalize("NFKC", name) != name:
        message = (
            "nobody can book under this name: it has letters that cannot be seen, or that are another way to write "
            "usual ones"
        )
        raise BookingNameError(message)
    return name


# When a booking holds


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


class BookingTimeBounds(NamedTuple):
    """The first and last time that a rule gives; with no first it gives none, with no last it goes on."""

    first: datetime | None
    last: datetime | None


def find_booking_time_bounds(booking: Booking) -> BookingTimeBounds | None:
    """Return when a booking first and last repeats; None for one that counts once."""
    if not booking.rrule or booking.since is None or booking.until - booking.since > MAX_REPEATED_DURATION:
        return None
    return compute_booking_time_bounds(booking.rrule, booking.since)


@lru_cache(maxsize=4096)
def compute_booking_time_bounds(rule: str, since: datetime) -> BookingTimeBounds | None:
    """Return the bounds of a rule, which a calendar program follows from the first time that it gives."""
    from dateutil.rrule import rrulestr  # noqa: PLC0415 # slow to import, and rarely needed

    try:
        first = next(iter(rrulestr(rule, dtstart=since)), None)
        if "COUNT=" not in rule and "UNTIL=" not in rule:
            return BookingTimeBounds(first, None)
        start = since
        end = dates.stamp(rule.partition("UNTIL=")[2].partition(";")[0], since.tzinfo or timezone.utc)[0]
        if end:  # start shortly before it, so that the last time is soon found: two periods have at least one
            weeks = RRULE_INTERVAL.search(rule)
            period = timedelta(weeks=int(weeks[1]) if weeks else 1)
            start = advance_repeat(since, rule, end - 2 * period)
        repeats = iter(rrulestr(rule, dtstart=start))
    except ValueError:  # one that repeats until the 32nd, say
        return None
    examined, last = 0, first
    for examined, last in enumerate(islice(repeats, MAX_EXAMINED_REPEATS), 1):  # noqa: B007
        if not dates.is_year(last.year):
            return BookingTimeBounds(first, None)
    return BookingTimeBounds(first, None if examined == MAX_EXAMINED_REPEATS else last)


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


def format_booking_moment(seconds: float, now: Now) -> str:
    """Format a moment for people; the last days there are have no other zone."""
    return formatting.format_moment(datetime.fromtimestamp(max(0, min(seconds, MAX_EPOCH)), now.zone), now)


# Conflicts


def find_booking_span_overlap(spans: Sequence[TimeSpan], other_spans: Sequence[TimeSpan]) -> TimeSpan | None:
    """Return the first of the other spans that overlaps one of `spans`; both are in order."""
    index, other_index = 0, 0
    while index < len(spans) and other_index < len(other_spans):
        (start, end), (other_start, other_end) = spans[index], other_spans[other_index]
        if start < other_end and other_start < end:
            return other_spans[other_index]
        if end <= other_end:
            index += 1
        else:
            other_index += 1
    return None


class GpuKeyMap:
    """Decides which keys of a host's bookings mean the same GPU."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self.label_by_uuid = {
            gpu.uuid.lower(): gpu.label
            for instance in gpus
            for gpu in (instance, instance.parent)
            if gpu and gpu.uuid and gpu.number is not None
        }

    def normalize_key(self, key: str) -> str:
        """Return the same word for every key of a GPU."""
        return self.label_by_uuid.get(key.lower(), key.lower())

    def is_overlapping(self, key: str, other_key: str) -> bool:
        """Return whether a GPU is in both; an instance is in its GPU."""
        if "*" in {key, other_key}:
            return True
        gpu, other_gpu = self.normalize_key(key), self.normalize_key(other_key)
        return gpu == other_gpu or other_gpu.startswith(f"{gpu}:") or gpu.startswith(f"{other_gpu}:")


def find_conflict(
    new: Booking, others: Iterable[Booking], keys: GpuKeyMap, now: Now, given_up: float | None = None
) -> tuple[Booking, TimeSpan] | None:
    """Return a booking that has the same GPU at the same time, and when it has it.

    `given_up` is when a booking that is to come back was given up: what others had since then counts too.
    """
    new_start = new.since or now.local
    counts_from = now.epoch if given_up is None else min(given_up, now.epoch)
    for other in others:
        if not keys.is_overlapping(new.gpu, other.gpu) or (
            not other.rrule and booking_time_to_epoch(other.until) <= counts_from
        ):
            continue
        first = (
            max(new_start, other.since or new_start, key=booking_time_to_epoch)
            if new.rrule and other.rrule
            else new_start
        )
        # as far as the one that ends, and where neither does, a year from where both have begun
        ends = [booking.until for booking in (new, other) if not booking.rrule]
        last = max([first + CONFLICT_HORIZON, *ends], key=booking_time_to_epoch)
        ahead = timedelta(seconds=max(0.0, min(booking_time_to_epoch(last), MAX_EPOCH) - booking_time_to_epoch(first)))
        # the past does not count, though the new booking begins with the minute
        new_spans = [(max(since, counts_from), until) for since, until in list_booking_spans(new, first, ahead)]
        overlap = find_booking_span_overlap(new_spans, list_booking_spans(other, first, ahead))
        if overlap:
            return other, overlap
    return None


def check_booking_conflicts(
    new: Booking,
    others: Iterable[Booking],
    keys: GpuKeyMap,
    now: Now,
    names_shown: bool = True,
    *,
    given_up: float | None = None,
) -> None:
    """Refuse a booking of a GPU that is already booked in that time, whoever has it."""
    conflict = find_conflict(new, others, keys, now, given_up)
    if conflict:
        other, (start, end) = conflict
        place = format_booking_place(new.host, other.gpu if new.gpu == "*" else new.gpu)
        since = "" if start == -math.inf else f"from {format_booking_moment(start, now)} "
        by = f" by {other.name}" if other.name and names_shown else ""
        when = f"{since}until {format_booking_moment(end, now)}"
        verb = "was" if end <= now.epoch else "is"
        raise BookingRefusedError(f"{place} {verb} booked{by} {when} (booking {other.id})")


def format_booking_place(host: str, gpu: str) -> str:
    """Format a GPU as `atlas:0`, or a whole host as `atlas`."""
    return host if gpu == "*" else f"{host}:{gpu}"


# Limits


def check_policy_limits(since: datetime, until: datetime, limits: BookingPolicy, now: Now) -> None:
    """Refuse a booking that ends before it begins or in the past, is too long, or too far ahead."""
    for moment in (since, until):
        fault = dates.fault(moment, now.zone)
        if fault:
            raise BookingRefusedError(f"{moment.date()} {fault}")
    start, end = booking_time_to_epoch(since), booking_time_to_epoch(until)
    start_text, end_text = format_booking_moment(start, now), format_booking_moment(end, now)
    if end <= start:
        raise BookingRefusedError(f"it would end {end_text}, before it begins {start_text}")
    if end <= now.epoch:
        raise BookingRefusedError(f"it would end {end_text}, which is in the past")
    if limits.max_duration_s and end - start > limits.max_duration_s:
        length, longest = formatting.format_duration(end - start), formatting.format_duration(limits.max_duration_s)
        raise BookingRefusedError(f"it would last {length}, but a booking may be {longest} long")
    if limits.max_ahead_s and start > now.epoch + limits.max_ahead_s:
        ahead = formatting.format_duration(limits.max_ahead_s)
        raise BookingRefusedError(f"it would begin {start_text}, but bookings are made {ahead} ahead")


def check_share(
    new: Sequence[Booking],
    person_bookings: Sequence[Booking],
    count_gpus: Callable[[Booking], int],
    limits: BookingPolicy,
    now: Now,
) -> None:
    """Refuse bookings that give one person more GPUs at a time, or more GPU-hours, than the limits allow."""
    if limits.max_gpus:
        first = max(now.local, new[0].since or now.local, key=booking_time_to_epoch)
        new_spans, other_spans = (
            [
                (start, end, count_gpus(booking))
                for booking in bookings
                for start, end in list_booking_spans(booking, first, SHARE_HORIZON)
            ]
            for bookings in (new, person_bookings)
        )
        peak = 0  # the most GPUs at any moment of the new bookings
        for moment in {max(start, now.epoch) for start, _, _ in new_spans + other_spans}:
            if any(start <= moment < end for start, end, _ in new_spans):
                held = sum(count for start, end, count in new_spans + other_spans if start <= moment < end)
                peak = max(peak, held)
        if peak > limits.max_gpus:
            message = f"that would be {peak} GPUs of one person at the same time, but {limits.max_gpus:.0f} are allowed"
            raise BookingRefusedError(message)
    if limits.max_gpu_hours:
        gpu_seconds = 0.0
        for booking in (*new, *person_bookings):
            first = max(now.local, booking.since or now.local, key=booking_time_to_epoch)
            for start, end in list_booking_spans(booking, first, SHARE_HORIZON):
                gpu_seconds += count_gpus(booking) * max(0.0, end - max(start, now.epoch))
        if gpu_seconds > limits.max_gpu_hours * formatting.HOUR:
            hours = gpu_seconds / formatting.HOUR
            message = f"that would be {hours:.0f} GPU-hours of one person, but {limits.max_gpu_hours:.0f} are allowed"
            raise BookingRefusedError(message)
