"""Bookings as they stand at a moment: now, coming, or ended not long ago."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile

from site_builder.core.clock import Now
from site_builder.core.formatting import DAY
from site_builder.core.model import BoardBooking, Booking, Gpu, Problem, Shown
from site_builder.core.timeparse.dates import is_year

SHOWN_AFTER_END = 2 * DAY
# Of a booking that repeats, so far back, beside its length, and so far ahead; so many around today, and so many that
# are looked at for them.
BEHIND = timedelta(seconds=SHOWN_AFTER_END) + timedelta(days=1)
AHEAD = timedelta(days=15)
MOST_REPEATS = 60
MOST_LOOKED_AT = 20_000
LONGEST_REPEATED = timedelta(days=366)
EVERY_FEW_DAYS = re.compile(r"FREQ=(?:DAILY|WEEKLY)\b", re.IGNORECASE)
INTERVAL = re.compile(r"INTERVAL=0*([1-9]\d{0,3})\b", re.IGNORECASE)
MOST_HINTS = 20
MOST_OF_A_HOST = 500
PHASES = ("now", "coming", "ended")


def at(bookings: Iterable[Booking], shown: Shown, now: Now, parent: Gpu | None = None) -> tuple[BoardBooking, ...]:
    """Those that are still of interest, those of now first, then by their beginning; an instance has a `parent`."""
    found = [board for booking in bookings for board in repeats(booking, shown, now, parent)]
    found.sort(key=lambda one: (PHASES.index(one.phase), (one.since or one.until).timestamp()))
    return tuple(found)


def names_now(bookings: Iterable[Booking], now: Now) -> list[str]:
    """Who is promised it at this moment, whatever is shown of people."""
    everything = Shown()
    return [booking.name for booking in bookings for one in repeats(booking, everything, now) if one.phase == "now"]


def repeats(booking: Booking, shown: Shown, now: Now, parent: Gpu | None = None) -> Iterator[BoardBooking]:
    """A booking, as often as it is of interest."""
    whole_gpu = parent is not None and booking.gpu.lower() in parent.names
    for since, until in times(booking, now):
        end = until.timestamp()
        if now.reached(end + SHOWN_AFTER_END):
            continue
        begun = since is None or now.reached(since.timestamp())
        phase = "ended" if now.reached(end) else "now" if begun else "coming"
        name, comment, its_id = booking.name or None, booking.comment or None, booking.id
        if not shown.users:
            name = comment = its_id = None
        yield BoardBooking(
            name, since, until, comment, its_id, phase, whole_host=booking.gpu == "*", whole_gpu=whole_gpu
        )


def times(booking: Booking, now: Now) -> list[tuple[datetime | None, datetime]]:
    """When it begins and ends; for one that repeats, each time from two days ago to two weeks ahead."""
    if not booking.rrule or booking.since is None or booking.until - booking.since > LONGEST_REPEATED:
        return [(booking.since, booking.until)]
    length = booking.until - booking.since
    # whole days, so that what is found is the same until midnight
    today = datetime.combine(now.today, datetime.min.time(), now.zone)
    now.days_until(now.local)
    found = beginnings(booking.rrule, booking.since, today - BEHIND - length, today + AHEAD)
    if found is None:
        return [(booking.since, booking.until)]
    begun = sum(begins < today for begins in found)
    around = found[max(0, begun - MOST_REPEATS // 2) : begun + MOST_REPEATS // 2]
    return [(begins, begins + length) for begins in around]


@lru_cache(maxsize=4096)
def beginnings(rule: str, since: datetime, first: datetime, last: datetime) -> tuple[datetime, ...] | None:
    """When a booking that repeats begins between two days; the same for each GPU and each build of a day."""
    from dateutil.rrule import rrulestr  # noqa: PLC0415 slow to import, and rarely needed

    try:
        repeats_of = rrulestr(rule, dtstart=later(since, rule, first))
    except ValueError:  # one that repeats until the 32nd, say
        return None
    looked_at = takewhile(lambda begins: begins < last and is_year(begins.year), islice(repeats_of, MOST_LOOKED_AT))
    return tuple(begins for begins in looked_at if begins >= first)


def later(since: datetime, rule: str, first: datetime) -> datetime:
    """A later beginning of the same repeats, near the first that is wanted: years of days would take long to count."""
    if since >= first or not EVERY_FEW_DAYS.search(rule) or "COUNT" in rule.upper():
        return since
    told = INTERVAL.search(rule)
    period = timedelta(weeks=int(told[1]) if told else 1)
    return since + (first - since) // period * period


def of_gpu(bookings: Sequence[Booking], gpu: Gpu) -> list[Booking]:
    """Those that promise this GPU: by its number, its UUID, or with the whole host, and an instance with its GPU."""
    keys = gpu.names
    return [booking for booking in bookings if booking.gpu == "*" or booking.gpu.lower() in keys]


def of_no_gpu(bookings: Sequence[Booking], gpus: Sequence[Gpu], now: Now) -> list[Booking]:
    """Those that promise a GPU which the host does not have."""
    keys = {"*"}.union(*(gpu.names for gpu in gpus))
    return [booking for booking in bookings if booking.gpu.lower() not in keys and not is_over(booking, now)]


def is_over(booking: Booking, now: Now) -> bool:
    """Whether it ended so long ago that nobody is told of it any more."""
    return not booking.rrule and now.reached(booking.until.timestamp() + SHOWN_AFTER_END)


class HostNames:
    """The hosts of a board, by whatever people write for one of them."""

    def __init__(self, names: Iterable[str]) -> None:
        """Their names."""
        self.exact = set(names)
        self.lower = {name.lower(): name for name in self.exact}

    def find(self, written: str) -> str | None:
        """A host by its name, its full name, or either in another case."""
        if written in self.exact:
            return written
        key = written.strip().lower()
        return self.lower.get(key) or self.lower.get(key.partition(".")[0])


def by_host(
    bookings: Iterable[Booking], names: Iterable[str], now: Now
) -> tuple[dict[str, list[Booking]], list[Problem]]:
    """The bookings of each host, by its name, its full name, or either in another case; those of no host are told."""
    hosts = HostNames(names)
    lower = hosts.lower
    found: dict[str, list[Booking]] = {}
    unknown: dict[str, None] = {}
    crowded: dict[str, None] = {}
    for booking in bookings:
        name = hosts.find(booking.host)
        if name:
            if len(found.setdefault(name, [])) < MOST_OF_A_HOST:
                found[name].append(booking)
            else:
                crowded[name] = None
        elif not is_over(booking, now):
            unknown[booking.host] = None
    problems = [
        Problem("data/comments.json", f"{host} has more than {MOST_OF_A_HOST} bookings; the rest does not count")
        for host in crowded
    ]
    if unknown:
        from difflib import get_close_matches  # noqa: PLC0415 the same
    for host in unknown:
        # some ms each in a large fleet
        near = get_close_matches(host.lower(), lower, 1) if len(problems) < MOST_HINTS else []
        hint = f"; is it {lower[near[0]]}?" if near else ""
        problems.append(Problem("data/comments.json", f"there is no host {host[:80]}{hint}"))
    return found, problems
