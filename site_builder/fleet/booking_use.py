"""Which bookings hold now, and whether the GPUs that they booked are used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import (
    Booking,
    BookingStatus,
    Gpu,
    GpuBookingUse,
    GpuStatus,
    PrivacySettings,
    Problem,
    StateLimits,
)
from site_builder.core.timeparse.dates import is_year
from site_builder.fleet.gpu_state import GpuInput, StateRules, find_other_users

SHOWN_AFTER_END_S = 2 * DAY
# Of a booking that repeats, so far back, beside its length, and so far ahead; so many around today, and so many that
# are looked at for them.
REPEAT_LOOKBACK = timedelta(seconds=SHOWN_AFTER_END_S) + timedelta(days=1)
REPEAT_LOOKAHEAD = timedelta(days=15)
MAX_REPEATS = 60
MAX_EXAMINED_REPEATS = 20_000
MAX_REPEATED_DURATION = timedelta(days=366)
DAILY_OR_WEEKLY = re.compile(r"FREQ=(?:DAILY|WEEKLY)\b", re.IGNORECASE)
RRULE_INTERVAL = re.compile(r"INTERVAL=0*([1-9]\d{0,3})\b", re.IGNORECASE)
MAX_HINTS = 20
MAX_BOOKINGS_PER_HOST = 500
BOOKING_PHASES = ("now", "coming", "ended")


def build_booking_statuses(
    bookings: Iterable[Booking], shown: PrivacySettings, now: Now, parent: Gpu | None = None
) -> tuple[BookingStatus, ...]:
    """Those that are still of interest, those of now first, then by their beginning; an instance has a `parent`."""
    found = [board for booking in bookings for board in expand_booking(booking, shown, now, parent)]
    found.sort(key=lambda one: (BOOKING_PHASES.index(one.phase), (one.since or one.until).timestamp()))
    return tuple(found)


def list_current_bookers(bookings: Iterable[Booking], now: Now) -> list[str]:
    """Who is promised it at this moment, whatever is shown of people."""
    everything = PrivacySettings()
    return [
        booking.name for booking in bookings for one in expand_booking(booking, everything, now) if one.phase == "now"
    ]


def expand_booking(
    booking: Booking, shown: PrivacySettings, now: Now, parent: Gpu | None = None
) -> Iterator[BookingStatus]:
    """A booking, as often as it is of interest."""
    whole_gpu = parent is not None and booking.gpu.lower() in parent.booking_keys
    for since, until in list_booking_times(booking, now):
        end = until.timestamp()
        if now.has_passed(end + SHOWN_AFTER_END_S):
            continue
        begun = since is None or now.has_passed(since.timestamp())
        phase = "ended" if now.has_passed(end) else "now" if begun else "coming"
        name, comment, its_id = booking.name or None, booking.comment or None, booking.id
        if not shown.users:
            name = comment = its_id = None
        yield BookingStatus(
            name, since, until, comment, its_id, phase, is_whole_host=booking.gpu == "*", is_whole_gpu=whole_gpu
        )


def list_booking_times(booking: Booking, now: Now) -> list[tuple[datetime | None, datetime]]:
    """When it begins and ends; for one that repeats, each time from two days ago to two weeks ahead."""
    if not booking.rrule or booking.since is None or booking.until - booking.since > MAX_REPEATED_DURATION:
        return [(booking.since, booking.until)]
    length = booking.until - booking.since
    # whole days, so that what is found is the same until midnight
    today = datetime.combine(now.today, datetime.min.time(), now.zone)
    now.days_until(now.local)
    found = list_repeat_starts(booking.rrule, booking.since, today - REPEAT_LOOKBACK - length, today + REPEAT_LOOKAHEAD)
    if found is None:
        return [(booking.since, booking.until)]
    begun = sum(begins < today for begins in found)
    around = found[max(0, begun - MAX_REPEATS // 2) : begun + MAX_REPEATS // 2]
    return [(begins, begins + length) for begins in around]


@lru_cache(maxsize=4096)
def list_repeat_starts(rule: str, since: datetime, first: datetime, last: datetime) -> tuple[datetime, ...] | None:
    """When a booking that repeats begins between two days; the same for each GPU and each build of a day."""
    from dateutil.rrule import rrulestr  # noqa: PLC0415 slow to import, and rarely needed

    try:
        repeats_of = rrulestr(rule, dtstart=advance_repeat_start(since, rule, first))
    except ValueError:  # one that repeats until the 32nd, say
        return None
    looked_at = takewhile(
        lambda begins: begins < last and is_year(begins.year), islice(repeats_of, MAX_EXAMINED_REPEATS)
    )
    return tuple(begins for begins in looked_at if begins >= first)


def advance_repeat_start(since: datetime, rule: str, first: datetime) -> datetime:
    """A later beginning of the same repeats, near the first that is wanted: years of days would take long to count."""
    if since >= first or not DAILY_OR_WEEKLY.search(rule) or "COUNT" in rule.upper():
        return since
    told = RRULE_INTERVAL.search(rule)
    period = timedelta(weeks=int(told[1]) if told else 1)
    return since + (first - since) // period * period


def find_gpu_bookings(bookings: Sequence[Booking], gpu: Gpu) -> list[Booking]:
    """Those that promise this GPU: by its number, its UUID, or with the whole host, and an instance with its GPU."""
    keys = gpu.booking_keys
    return [booking for booking in bookings if booking.gpu == "*" or booking.gpu.lower() in keys]


def find_bookings_of_missing_gpus(bookings: Sequence[Booking], gpus: Sequence[Gpu], now: Now) -> list[Booking]:
    """Those that promise a GPU which the host does not have."""
    keys = {"*"}.union(*(gpu.booking_keys for gpu in gpus))
    return [booking for booking in bookings if booking.gpu.lower() not in keys and not is_booking_expired(booking, now)]


def is_booking_expired(booking: Booking, now: Now) -> bool:
    """Whether it ended so long ago that nobody is told of it any more."""
    return not booking.rrule and now.has_passed(booking.until.timestamp() + SHOWN_AFTER_END_S)


class HostNameIndex:
    """The hosts of a board, by whatever people write for one of them."""

    def __init__(self, names: Iterable[str]) -> None:
        """Their names."""
        self.names = set(names)
        self.names_by_lower_case = {name.lower(): name for name in self.names}

    def find(self, written: str) -> str | None:
        """A host by its name, its full name, or either in another case."""
        if written in self.names:
            return written
        key = written.strip().lower()
        return self.names_by_lower_case.get(key) or self.names_by_lower_case.get(key.partition(".")[0])


def group_bookings_by_host(
    bookings: Iterable[Booking], names: Iterable[str], now: Now
) -> tuple[dict[str, list[Booking]], list[Problem]]:
    """The bookings of each host, by its name, its full name, or either in another case; those of no host are told."""
    hosts = HostNameIndex(names)
    lower = hosts.names_by_lower_case
    found: dict[str, list[Booking]] = {}
    unknown: dict[str, None] = {}
    crowded: dict[str, None] = {}
    for booking in bookings:
        name = hosts.find(booking.host)
        if name:
            if len(found.setdefault(name, [])) < MAX_BOOKINGS_PER_HOST:
                found[name].append(booking)
            else:
                crowded[name] = None
        elif not is_booking_expired(booking, now):
            unknown[booking.host] = None
    problems = [
        Problem("data/comments.json", f"{host} has more than {MAX_BOOKINGS_PER_HOST} bookings; the rest does not count")
        for host in crowded
    ]
    if unknown:
        from difflib import get_close_matches  # noqa: PLC0415 the same
    for host in unknown:
        # some ms each in a large fleet
        near = get_close_matches(host.lower(), lower, 1) if len(problems) < MAX_HINTS else []
        hint = f"; is it {lower[near[0]]}?" if near else ""
        problems.append(Problem("data/comments.json", f"there is no host {host[:80]}{hint}"))
    return found, problems


# A booking that begins so soon after the last has ended continues it.
MAX_BOOKING_GAP_S = HOUR
# A mean of less time says more about chance than about the booking.
MIN_MEAN_PERIOD_S = 5 * MINUTE
IN_USE_STATES = frozenset({"conflict", "held", "busy", "booked"})
# Of one GPU, so many others and so many bookings at once are remembered.
MAX_REMEMBERED = 20


class BookingCheck(NamedTuple):
    """A look at the GPUs of a host: when it was, on our clock and on that of the snapshot, and what is known before."""

    checked_at: int
    snapshot_time: int
    booking_uses: Mapping[str, GpuBookingUse]
    bookings: Sequence[Booking]


def add_booking_use(board: GpuStatus, seen: GpuInput, look: BookingCheck, rules: StateRules, now: Now) -> GpuStatus:
    """A GPU that is promised now, with what is to be said of its bookings."""
    mine = find_gpu_bookings(look.bookings, seen.gpu)
    full = board.bookings if rules.privacy.users else build_booking_statuses(mine, PrivacySettings(), now)
    running = [one for one in full if one.phase == "now"]
    kept = update_booking_use(
        look.booking_uses.get(board.key), board, running, look, find_others_since(seen, look, rules), rules.limits
    )
    told = (add_use_to_booking(shown, one, kept, rules.privacy) for shown, one in zip(board.bookings, full))
    return board._replace(bookings=tuple(told), booking_use=kept, free_again=find_free_again(board, mine, now))


def find_others_since(seen: GpuInput, look: BookingCheck, rules: StateRules) -> dict[str, int]:
    """Who is on it that has not booked it, and since when at least: a process tells when it began."""
    found: dict[str, int] = {}
    for name, processes in sorted(find_other_users(seen, rules.people).items())[:MAX_REMEMBERED]:
        found[name] = min([look.checked_at, *(one.started for one in processes if one.started is not None)])
    return found


def update_booking_use(
    before: GpuBookingUse | None,
    board: GpuStatus,
    running: Sequence[BookingStatus],
    look: BookingCheck,
    others: Mapping[str, int],
    limits: StateLimits,
) -> GpuBookingUse:
    """What the next look needs to know, from what this one saw and the last one left."""
    gap = look.snapshot_time - before.checked_at if before else 0
    # what happened while nothing was heard, nobody knows
    last = before if before and abs(gap) <= limits.down_after else None
    empty = (last.empty_since if last else None) or look.checked_at
    since = {name: min(last.others_since.get(name, at) if last else at, at) for name, at in others.items()}
    return GpuBookingUse(
        max(look.snapshot_time, last.checked_at) if last else look.snapshot_time,
        empty if board.state == "booked" else None,
        since if board.state == "conflict" else {},
        sum_use_by_booking(before.use_by_booking if before else {}, board, running, max(0, gap) if last else 0, look),
    )


def sum_use_by_booking(
    before: Mapping[str, tuple[int, float, float]],
    board: GpuStatus,
    running: Sequence[BookingStatus],
    passed: int,
    look: BookingCheck,
) -> dict[str, tuple[int, float, float]]:
    """Of each booking that runs, the use that was seen; one that is seen for the first time counts from now on."""
    use = board.gpu.utilization_gpu
    found: dict[str, tuple[int, float, float]] = {}
    for key in sorted({build_booking_use_key(one) for one in running})[:MAX_REMEMBERED]:
        first, seconds, used = before.get(key, (look.checked_at, 0.0, 0.0))
        if key in before and use is not None:
            # a host can claim anything
            seconds, used = seconds + passed, used + passed * min(100, max(0, use))
        found[key] = first, seconds, used
    return found


def build_booking_use_key(booking: BookingStatus) -> str:
    """What stays the same while a booking is made longer, and is another each time that it repeats."""
    return f"{int(booking.since.timestamp()) if booking.since else ''} {booking.name or ''}"


def add_use_to_booking(
    shown: BookingStatus, full: BookingStatus, kept: GpuBookingUse, people: PrivacySettings
) -> BookingStatus:
    """A booking as it is shown, with what is remembered of it; nothing came about before it began."""
    if full.phase != "now":
        return shown
    first, seconds, used = kept.use_by_booking.get(build_booking_use_key(full), (kept.checked_at, 0.0, 0.0))
    began = int(full.since.timestamp()) if full.since else first
    return shown._replace(
        unused_since=None if kept.empty_since is None else max(began, kept.empty_since),
        used_by=tuple(sorted(kept.others_since)) if kept.others_since and people.users else None,
        used_by_since=max(began, min(kept.others_since.values())) if kept.others_since else None,
        mean_use=round(used / seconds, 1) if seconds >= MIN_MEAN_PERIOD_S else None,
    )


def find_free_again(board: GpuStatus, mine: Sequence[Booking], now: Now) -> int | None:
    """When the last of the bookings ends that follow each other from now on; None where nobody can know."""
    if board.state not in IN_USE_STATES:
        return None
    end = max(one.until.timestamp() for one in board.bookings if one.phase == "now")
    for one in board.bookings:  # those that come are in the order of their beginning
        if one.phase == "coming" and one.since and one.since.timestamp() <= end + MAX_BOOKING_GAP_S:
            end = max(end, one.until.timestamp())
    # repeats are worked out for some days only
    worked_out = datetime.combine(now.today, datetime.min.time(), now.zone) + REPEAT_LOOKAHEAD
    if end + MAX_BOOKING_GAP_S >= worked_out.timestamp() and any(one.rrule for one in mine):
        return None
    return int(end)
