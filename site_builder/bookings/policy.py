"""What may be booked: no GPU twice, nothing in the past, and no more than the lab allows one person."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking, BookingPolicy, Gpu
from site_builder.core.terminal_text import clean_text
from site_builder.core.timeparse import dates
from site_builder.fleet.booking_use import MAX_REPEATED_DURATION, list_repeat_starts

TimeSpan = tuple[float, float]
# Of a booking that repeats so much is looked at: for a clash, and for the hours of a person.
CONFLICT_HORIZON = timedelta(days=366)
SHARE_HORIZON = timedelta(days=28)
MAX_EPOCH = datetime(9999, 12, 30, tzinfo=timezone.utc).timestamp()


class BookingRefusedError(Exception):
    """Why something may not be booked, changed or released, in one sentence."""


class BookingForbiddenError(BookingRefusedError):
    """The same, where somebody else may."""


def list_spans(booking: Booking, first: datetime, ahead: timedelta) -> list[TimeSpan]:
    """When it holds, in seconds; of one that repeats each time from `first` on, as far as that."""
    since, until = booking.since, booking.until
    once = [(to_epoch(since) if since else -math.inf, to_epoch(until))]
    if not booking.rrule or since is None or until - since > MAX_REPEATED_DURATION:
        return once
    length = until - since
    found = list_repeat_starts(booking.rrule, since, first - length, first + ahead)
    if found is None:
        return once
    return [(begins.timestamp(), (begins + length).timestamp()) for begins in found]


def to_epoch(moment: datetime) -> float:
    """A moment in seconds; the first and the last year that there are have hours that no clock can tell."""
    try:
        return moment.timestamp()
    except (OverflowError, ValueError):
        return -math.inf if moment.year < 2 else MAX_EPOCH


def find_overlap(mine: Sequence[TimeSpan], others: Sequence[TimeSpan]) -> TimeSpan | None:
    """The first time of theirs that falls into one of mine; both are in order."""
    at, there = 0, 0
    while at < len(mine) and there < len(others):
        (begins, ends), (since, until) = mine[at], others[there]
        if begins < until and since < ends:
            return others[there]
        if ends <= until:
            at += 1
        else:
            there += 1
    return None


class GpuKeyMap:
    """Which keys of a host's bookings mean the same GPU."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        """By number and by UUID, where the host tells both."""
        self.label_by_uuid: dict[str, str] = {}
        for gpu in gpus:
            for one in (gpu, gpu.parent):
                if one and one.uuid and one.number is not None:
                    self.label_by_uuid[one.uuid.lower()] = one.label

    def normalize_key(self, key: str) -> str:
        """One word for one GPU."""
        return self.label_by_uuid.get(key.lower(), key.lower())

    def is_overlapping(self, one: str, other: str) -> bool:
        """Whether a GPU is in both; an instance is in its GPU."""
        if "*" in {one, other}:
            return True
        mine, theirs = self.normalize_key(one), self.normalize_key(other)
        return mine == theirs or f"{mine}:" == theirs[: len(mine) + 1] or f"{theirs}:" == mine[: len(theirs) + 1]


def check_conflicts(  # each is one thing
    new: Booking,
    others: Iterable[Booking],
    keys: GpuKeyMap,
    now: Now,
    names_shown: bool = True,
    *,
    given_up: float | None = None,
) -> None:
    """Refuse a booking of a GPU that is promised to somebody in that time, whoever that is.

    `given_up` is when a booking that is to come back was given up: what others had since then counts too.
    """
    begins = new.since or now.local
    counts_from = now.epoch if given_up is None else min(given_up, now.epoch)
    for other in others:
        if not keys.is_overlapping(new.gpu, other.gpu) or (not other.rrule and to_epoch(other.until) <= counts_from):
            continue
        first = max(begins, other.since or begins, key=to_epoch) if new.rrule and other.rrule else begins
        # as far as the one that ends, and where neither does, a year from where both have begun
        ends = [one.until for one in (new, other) if not one.rrule]
        last = max([first + CONFLICT_HORIZON, *ends], key=to_epoch)
        ahead = timedelta(seconds=max(0.0, min(to_epoch(last), MAX_EPOCH) - to_epoch(first)))
        # what is over has no say, though the new one begins with the minute
        mine = [(max(since, counts_from), until) for since, until in list_spans(new, first, ahead)]
        found = find_overlap(mine, list_spans(other, first, ahead))
        if found:
            raise BookingRefusedError(describe_conflict(new, other, found, now, names_shown))


def describe_conflict(new: Booking, other: Booking, when: TimeSpan, now: Now, names_shown: bool) -> str:
    """Whose it is, and when."""
    gpu = other.gpu if new.gpu == "*" else new.gpu
    what = new.host if gpu == "*" else f"{new.host}:{gpu}"
    since = "" if when[0] == -math.inf else f"from {format_booking_moment(when[0], now)} "
    whom = f" by {other.name}" if other.name and names_shown else ""
    verb = "was" if when[1] <= now.epoch else "is"
    return f"{what} {verb} booked{whom} {since}until {format_booking_moment(when[1], now)} (booking {other.id})"


def format_booking_moment(seconds: float, now: Now) -> str:
    """A moment as people say it; the last days that there are have no other zone."""
    return formatting.format_moment(datetime.fromtimestamp(max(0, min(seconds, MAX_EPOCH)), now.zone), now)


def check_booking_times(since: datetime, until: datetime, rules: BookingPolicy, now: Now) -> None:
    """Refuse what ends before it begins or in the past, what is too long, and what is too far ahead."""
    for moment in (since, until):
        why = dates.fault(moment, now.zone)
        if why:
            raise BookingRefusedError(f"{moment.date()} {why}")
    begins, ends = to_epoch(since), to_epoch(until)
    if ends <= begins:
        message = (
            f"it would end {format_booking_moment(ends, now)}, before it begins {format_booking_moment(begins, now)}"
        )
        raise BookingRefusedError(message)
    if ends <= now.epoch:
        message = f"it would end {format_booking_moment(ends, now)}, which is in the past"
        raise BookingRefusedError(message)
    if rules.max_duration_s and ends - begins > rules.max_duration_s:
        length, most = formatting.format_duration(ends - begins), formatting.format_duration(rules.max_duration_s)
        message = f"it would last {length}, but a booking may be {most} long"
        raise BookingRefusedError(message)
    if rules.max_ahead_s and begins > now.epoch + rules.max_ahead_s:
        message = f"it would begin {format_booking_moment(begins, now)}, but bookings are made {formatting.format_duration(rules.max_ahead_s)} ahead"
        raise BookingRefusedError(message)


def check_share(
    new: Sequence[Booking], theirs: Sequence[Booking], size: Callable[[Booking], int], rules: BookingPolicy, now: Now
) -> None:
    """Refuse what gives one person more GPUs at a time, or more hours, than the lab allows."""
    if rules.max_gpus:
        most = count_peak_gpus(new, theirs, size, now)
        if most > rules.max_gpus:
            message = f"that would be {most} GPUs of one person at the same time, but {rules.max_gpus:.0f} are allowed"
            raise BookingRefusedError(message)
    if rules.max_gpu_hours:
        hours = sum(
            size(one) * max(0.0, ends - max(begins, now.epoch))
            for one in (*new, *theirs)
            for begins, ends in list_spans(one, max(now.local, one.since or now.local, key=to_epoch), SHARE_HORIZON)
        )
        if hours > rules.max_gpu_hours * formatting.HOUR:
            total = hours / formatting.HOUR
            message = f"that would be {total:.0f} GPU-hours of one person, but {rules.max_gpu_hours:.0f} are allowed"
            raise BookingRefusedError(message)


def count_peak_gpus(new: Sequence[Booking], theirs: Sequence[Booking], size: Callable[[Booking], int], now: Now) -> int:
    """The most GPUs that a person would have at any moment of the new booking."""
    first = max(now.local, new[0].since or now.local, key=to_epoch)
    mine = [(span, size(one)) for one in new for span in list_spans(one, first, SHARE_HORIZON)]
    all_of_them = mine + [(span, size(one)) for one in theirs for span in list_spans(one, first, SHARE_HORIZON)]
    moments = {max(begins, now.epoch) for (begins, _), _ in all_of_them}
    return max(
        (
            sum(count for (begins, ends), count in all_of_them if begins <= moment < ends)
            for moment in moments
            if any(begins <= moment < ends for (begins, ends), _ in mine)
        ),
        default=0,
    )


def build_gpu_counter(gpus: Mapping[str, Sequence[Gpu]]) -> Callable[[Booking], int]:
    """How many GPUs a booking takes; a whole host of which none is known counts as one, as does each instance."""

    def size(one: Booking) -> int:
        wholes = {(gpu.parent or gpu).key: None for gpu in gpus.get(one.host, ())}
        return max(1, len(wholes)) if one.gpu == "*" else 1

    return size


# Unicode's categories of what steers a text, and has no shape of its own.
INVISIBLE_CATEGORIES = {"Cc", "Cf"}


class InvalidNameError(Exception):
    """A name under which nobody can book."""


def validate_user_name(name: str) -> str:
    """The name as it is; one that would have to be changed first could become somebody else's."""
    name = name.strip()
    if not name or clean_text(name) != name or " ".join(name.split()) != name or len(name) > MAX_NAME_CHARACTERS:
        message = f"nobody can book under this name: it must be one line of at most {MAX_NAME_CHARACTERS} letters"
        raise InvalidNameError(message)
    if unicodedata.normalize("NFKC", name) != name or any(
        unicodedata.category(one) in INVISIBLE_CATEGORIES for one in name
    ):
        message = (
            "nobody can book under this name: it has letters that cannot be seen, or that are another way to write "
            "usual ones"
        )
        raise InvalidNameError(message)
    return name


MAX_NAME_CHARACTERS = 80
