"""Rules of booking: no GPU twice, nothing in the past, and no more than the limits allow one person."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from site_builder.bookings import times
from site_builder.bookings.times import TimeSpan, booking_time_to_epoch, format_booking_moment, list_booking_spans
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking, BookingPolicy, Gpu
from site_builder.core.terminal_text import clean_text
from site_builder.core.timeparse import dates

# How far ahead the GPU-hours of a person are added up.
SHARE_HORIZON = timedelta(days=28)
MAX_NAME_CHARACTERS = 80
# Unicode categories of characters that control text and cannot be seen.
INVISIBLE_CATEGORIES = {"Cc", "Cf"}
# A start that is this many seconds in the past still counts as now: people need a moment to confirm.
PAST_TOLERANCE_S = 300
Place = tuple[str, str]  # a host, and the key of a GPU or `*`


class BookingRefusedError(Exception):
    """Why something may not be booked, changed or released, in one sentence."""


class BookingForbiddenError(BookingRefusedError):
    """The same, where somebody else may."""


class BookingNameError(Exception):
    """A name under which nobody can book."""


def check_booking_name(name: str) -> str:
    """Return the name unchanged, or refuse it: one that had to be changed could become somebody else's."""
    name = name.strip()
    has_invisible = any(unicodedata.category(character) in INVISIBLE_CATEGORIES for character in name)
    if not name or clean_text(name) != name or " ".join(name.split()) != name or len(name) > MAX_NAME_CHARACTERS:
        fault = f"it must be one line of at most {MAX_NAME_CHARACTERS} characters"
    elif has_invisible or unicodedata.normalize("NFKC", name) != name:
        fault = "it has invisible or look-alike characters"
    else:
        return name
    raise BookingNameError(f"this name cannot be used: {fault}")


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
        is_over = not other.rrule and booking_time_to_epoch(other.until) <= counts_from
        if other.host != new.host or is_over or not keys.is_overlapping(new.gpu, other.gpu):
            continue
        first = new_start
        if new.rrule and other.rrule:
            first = max(new_start, other.since or new_start, key=booking_time_to_epoch)
        # as far as the one that ends, and where neither does, a year from where both have begun
        ends = [booking.until for booking in (new, other) if not booking.rrule]
        last = max([first + times.CONFLICT_HORIZON, *ends], key=booking_time_to_epoch)
        ahead = timedelta(
            seconds=max(0.0, min(booking_time_to_epoch(last), times.MAX_EPOCH) - booking_time_to_epoch(first))
        )
        # the past does not count, though the new booking begins with the minute
        new_spans = [(max(since, counts_from), until) for since, until in list_booking_spans(new, first, ahead)]
        overlap = find_booking_span_overlap(new_spans, list_booking_spans(other, first, ahead))
        if overlap:
            return other, overlap
    return None


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


def check_booking_conflicts(
    new: Booking, others: Iterable[Booking], keys: GpuKeyMap, now: Now, names_shown: bool, given_up: float | None = None
) -> None:
    """Refuse a booking of a GPU that is already booked in that time, whoever has it."""
    conflict = find_conflict(new, others, keys, now, given_up)
    if conflict:
        other, (start, end) = conflict
        place = format_booking_places([(new.host, other.gpu if new.gpu == "*" else new.gpu)])
        since = "" if start == -math.inf else f"from {format_booking_moment(start, now)} "
        by = f" by {other.name}" if other.name and names_shown else ""
        when = f"{since}until {format_booking_moment(end, now)}"
        verb = "was" if end <= now.epoch else "is"
        raise BookingRefusedError(f"{place} {verb} booked{by} {when} (booking {other.id})")


def format_booking_places(places: Iterable[Place]) -> str:
    """Format GPUs as `atlas:0,1 and zeus`."""
    gpus_by_host: dict[str, list[str]] = {}
    for host, gpu in places:
        gpus_by_host.setdefault(host, []).append(gpu)
    return " and ".join(host if "*" in gpus else f"{host}:{','.join(gpus)}" for host, gpus in gpus_by_host.items())


def check_policy_limits(since: datetime, until: datetime, limits: BookingPolicy, now: Now) -> None:
    """Refuse a booking that ends before it begins or in the past, is too long, or too far ahead."""
    for moment in (since, until):
        fault = dates.find_date_fault(moment, now.zone)
        if fault:
            raise BookingRefusedError(f"{moment.date()} {fault}")
    start, end = booking_time_to_epoch(since), booking_time_to_epoch(until)
    start_text, end_text = format_booking_moment(start, now), format_booking_moment(end, now)
    if end <= start:
        raise BookingRefusedError(f"the end ({end_text}) is before the start ({start_text})")
    if end <= now.epoch:
        raise BookingRefusedError(f"the end ({end_text}) is in the past")
    if limits.max_duration_s and end - start > limits.max_duration_s:
        length, longest = formatting.format_duration(end - start), formatting.format_duration(limits.max_duration_s)
        raise BookingRefusedError(f"a booking may last {longest} at most; this one would last {length}")
    if limits.max_ahead_s and start > now.epoch + limits.max_ahead_s:
        ahead = formatting.format_duration(limits.max_ahead_s)
        raise BookingRefusedError(f"bookings can start {ahead} ahead at most; this one would start {start_text}")


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
                peak = max(peak, sum(count for start, end, count in new_spans + other_spans if start <= moment < end))
        if peak > limits.max_gpus:
            message = f"one person may book {limits.max_gpus:.0f} GPUs at a time; this would make {peak}"
            raise BookingRefusedError(message)
    if limits.max_gpu_hours:
        gpu_seconds = 0.0
        for booking in (*new, *person_bookings):
            first = max(now.local, booking.since or now.local, key=booking_time_to_epoch)
            for start, end in list_booking_spans(booking, first, SHARE_HORIZON):
                gpu_seconds += count_gpus(booking) * max(0.0, end - max(start, now.epoch))
        if gpu_seconds > limits.max_gpu_hours * formatting.HOUR:
            hours = gpu_seconds / formatting.HOUR
            message = f"one person may book {limits.max_gpu_hours:.0f} GPU-hours; this would make {hours:.0f}"
            raise BookingRefusedError(message)


def refuse_past_start(since: datetime, now: Now) -> None:
    if since.timestamp() < now.epoch - PAST_TOLERANCE_S:
        message = f"the start ({format_booking_moment(since.timestamp(), now)}) is in the past"
        raise BookingRefusedError(message)


def refuse_ended_booking(booking: Booking, now: Now) -> None:
    if times.has_booking_ended(booking, now):
        end = format_booking_moment(times.compute_booking_end_time(booking), now)
        raise BookingRefusedError(f"booking {booking.id} ended {end} and can no longer change")
