"""What may be booked: no GPU twice, nothing in the past, and no more than the lab allows one person."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking, BookingRules, Gpu
from site_builder.core.timeparse import dates
from site_builder.fleet.active_bookings import LONGEST_REPEATED, beginnings

Span = tuple[float, float]
# Of a booking that repeats so much is looked at: for a clash, and for the hours of a person.
REPEATS_CLASH = timedelta(days=366)
REPEATS_COUNT = timedelta(days=28)
LAST = datetime(9999, 12, 30, tzinfo=timezone.utc).timestamp()


class Refused(Exception):
    """Why something may not be booked, changed or released, in one sentence."""


class NotYours(Refused):
    """The same, where somebody else may."""


def spans(booking: Booking, first: datetime, ahead: timedelta) -> list[Span]:
    """When it holds, in seconds; of one that repeats each time from `first` on, as far as that."""
    since, until = booking.since, booking.until
    once = [(epoch(since) if since else -math.inf, epoch(until))]
    if not booking.rrule or since is None or until - since > LONGEST_REPEATED:
        return once
    length = until - since
    found = beginnings(booking.rrule, since, first - length, first + ahead)
    if found is None:
        return once
    return [(begins.timestamp(), (begins + length).timestamp()) for begins in found]


def epoch(moment: datetime) -> float:
    """A moment in seconds; the first and the last year that there are have hours that no clock can tell."""
    try:
        return moment.timestamp()
    except (OverflowError, ValueError):
        return -math.inf if moment.year < 2 else LAST


def clash(mine: Sequence[Span], others: Sequence[Span]) -> Span | None:
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


class Keys:
    """Which keys of a host's bookings mean the same GPU."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        """By number and by UUID, where the host tells both."""
        self.same: dict[str, str] = {}
        for gpu in gpus:
            for one in (gpu, gpu.parent):
                if one and one.uuid and one.number is not None:
                    self.same[one.uuid.lower()] = one.label

    def gpu(self, key: str) -> str:
        """One word for one GPU."""
        return self.same.get(key.lower(), key.lower())

    def meet(self, one: str, other: str) -> bool:
        """Whether a GPU is in both; an instance is in its GPU."""
        if "*" in {one, other}:
            return True
        mine, theirs = self.gpu(one), self.gpu(other)
        return mine == theirs or f"{mine}:" == theirs[: len(mine) + 1] or f"{theirs}:" == mine[: len(theirs) + 1]


def check_overlap(  # noqa: PLR0913 # each is one thing
    new: Booking,
    others: Iterable[Booking],
    keys: Keys,
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
        if not keys.meet(new.gpu, other.gpu) or (not other.rrule and epoch(other.until) <= counts_from):
            continue
        first = max(begins, other.since or begins, key=epoch) if new.rrule and other.rrule else begins
        # as far as the one that ends, and where neither does, a year from where both have begun
        ends = [one.until for one in (new, other) if not one.rrule]
        last = max([first + REPEATS_CLASH, *ends], key=epoch)
        ahead = timedelta(seconds=max(0.0, min(epoch(last), LAST) - epoch(first)))
        # what is over has no say, though the new one begins with the minute
        mine = [(max(since, counts_from), until) for since, until in spans(new, first, ahead)]
        found = clash(mine, spans(other, first, ahead))
        if found:
            raise Refused(taken(new, other, found, now, names_shown))


def taken(new: Booking, other: Booking, when: Span, now: Now, names_shown: bool) -> str:
    """Whose it is, and when."""
    gpu = other.gpu if new.gpu == "*" else new.gpu
    what = new.host if gpu == "*" else f"{new.host}:{gpu}"
    since = "" if when[0] == -math.inf else f"from {clock(when[0], now)} "
    whom = f" by {other.name}" if other.name and names_shown else ""
    verb = "was" if when[1] <= now.epoch else "is"
    return f"{what} {verb} booked{whom} {since}until {clock(when[1], now)} (booking {other.id})"


def clock(seconds: float, now: Now) -> str:
    """A moment as people say it; the last days that there are have no other zone."""
    return formatting.clock(datetime.fromtimestamp(max(0, min(seconds, LAST)), now.zone), now)


def check_time(since: datetime, until: datetime, rules: BookingRules, now: Now) -> None:
    """Refuse what ends before it begins or in the past, what is too long, and what is too far ahead."""
    for moment in (since, until):
        why = dates.fault(moment, now.zone)
        if why:
            raise Refused(f"{moment.date()} {why}")
    begins, ends = epoch(since), epoch(until)
    if ends <= begins:
        message = f"it would end {clock(ends, now)}, before it begins {clock(begins, now)}"
        raise Refused(message)
    if ends <= now.epoch:
        message = f"it would end {clock(ends, now)}, which is in the past"
        raise Refused(message)
    if rules.longest and ends - begins > rules.longest:
        length, most = formatting.duration(ends - begins), formatting.duration(rules.longest)
        message = f"it would last {length}, but a booking may be {most} long"
        raise Refused(message)
    if rules.ahead and begins > now.epoch + rules.ahead:
        message = f"it would begin {clock(begins, now)}, but bookings are made {formatting.duration(rules.ahead)} ahead"
        raise Refused(message)


def check_share(
    new: Sequence[Booking], theirs: Sequence[Booking], size: Callable[[Booking], int], rules: BookingRules, now: Now
) -> None:
    """Refuse what gives one person more GPUs at a time, or more hours, than the lab allows."""
    if rules.gpus:
        most = most_at_once(new, theirs, size, now)
        if most > rules.gpus:
            message = f"that would be {most} GPUs of one person at the same time, but {rules.gpus:.0f} are allowed"
            raise Refused(message)
    if rules.hours:
        hours = sum(
            size(one) * max(0.0, ends - max(begins, now.epoch))
            for one in (*new, *theirs)
            for begins, ends in spans(one, max(now.local, one.since or now.local, key=epoch), REPEATS_COUNT)
        )
        if hours > rules.hours * formatting.HOUR:
            total = hours / formatting.HOUR
            message = f"that would be {total:.0f} GPU-hours of one person, but {rules.hours:.0f} are allowed"
            raise Refused(message)


def most_at_once(new: Sequence[Booking], theirs: Sequence[Booking], size: Callable[[Booking], int], now: Now) -> int:
    """The most GPUs that a person would have at any moment of the new booking."""
    first = max(now.local, new[0].since or now.local, key=epoch)
    mine = [(span, size(one)) for one in new for span in spans(one, first, REPEATS_COUNT)]
    all_of_them = mine + [(span, size(one)) for one in theirs for span in spans(one, first, REPEATS_COUNT)]
    moments = {max(begins, now.epoch) for (begins, _), _ in all_of_them}
    return max(
        (
            sum(count for (begins, ends), count in all_of_them if begins <= moment < ends)
            for moment in moments
            if any(begins <= moment < ends for (begins, ends), _ in mine)
        ),
        default=0,
    )


def sizes(gpus: Mapping[str, Sequence[Gpu]]) -> Callable[[Booking], int]:
    """How many GPUs a booking takes; a whole host of which none is known counts as one, as does each instance."""

    def size(one: Booking) -> int:
        wholes = {(gpu.parent or gpu).key: None for gpu in gpus.get(one.host, ())}
        return max(1, len(wholes)) if one.gpu == "*" else 1

    return size
