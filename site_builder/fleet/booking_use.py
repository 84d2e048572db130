"""Kept or broken: whether a GPU that is promised is used, by whom, how much, and when it comes free again.

What one snapshot cannot tell is remembered from one to the next, for as long as a booking runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.formatting import HOUR, MINUTE
from site_builder.core.model import BoardBooking, BoardGpu, Booking, KeptGpu, Limits, Shown
from site_builder.fleet import active_bookings
from site_builder.fleet.gpu_state import Rules, Seen, others_on

# A booking that begins so soon after the last has ended continues it.
FOLLOWS_WITHIN = HOUR
# A mean of less time says more about chance than about the booking.
MEAN_AFTER = 5 * MINUTE
IN_USE = frozenset({"violated", "held", "busy", "booked"})
# Of one GPU, so many others and so many bookings at once are remembered.
MOST_KEPT = 20


class Look(NamedTuple):
    """A look at the GPUs of a host: when it was, on our clock and on that of the snapshot, and what is known before."""

    at: int
    snapshot: int
    kept: Mapping[str, KeptGpu]
    bookings: Sequence[Booking]


def judged(board: BoardGpu, seen: Seen, look: Look, rules: Rules, now: Now) -> BoardGpu:
    """A GPU that is promised now, with what is to be said of its bookings."""
    mine = active_bookings.of_gpu(look.bookings, seen.gpu)
    full = board.bookings if rules.shown.users else active_bookings.at(mine, Shown(), now)
    running = [one for one in full if one.phase == "now"]
    kept = remembered(look.kept.get(board.key), board, running, look, others_since(seen, look, rules), rules.limits)
    told = (facts(shown, one, kept, rules.shown) for shown, one in zip(board.bookings, full))
    return board._replace(bookings=tuple(told), kept=kept, free_again=free_again(board, mine, now))


def others_since(seen: Seen, look: Look, rules: Rules) -> dict[str, int]:
    """Who is on it that has not booked it, and since when at least: a process tells when it began."""
    found: dict[str, int] = {}
    for name, processes in sorted(others_on(seen, rules.people).items())[:MOST_KEPT]:
        found[name] = min([look.at, *(one.started for one in processes if one.started is not None)])
    return found


def remembered(  # noqa: PLR0913, PLR0917 all that the next look goes by
    before: KeptGpu | None,
    board: BoardGpu,
    running: Sequence[BoardBooking],
    look: Look,
    others: Mapping[str, int],
    limits: Limits,
) -> KeptGpu:
    """What the next look needs to know, from what this one saw and the last one left."""
    gap = look.snapshot - before.looked if before else 0
    # what happened while nothing was heard, nobody knows
    last = before if before and abs(gap) <= limits.down_after else None
    empty = (last.empty_since if last else None) or look.at
    since = {name: min(last.others.get(name, at) if last else at, at) for name, at in others.items()}
    return KeptGpu(
        max(look.snapshot, last.looked) if last else look.snapshot,
        empty if board.state == "booked" else None,
        since if board.state == "violated" else {},
        use_so_far(before.use if before else {}, board, running, max(0, gap) if last else 0, look),
    )


def use_so_far(
    before: Mapping[str, tuple[int, float, float]],
    board: BoardGpu,
    running: Sequence[BoardBooking],
    passed: int,
    look: Look,
) -> dict[str, tuple[int, float, float]]:
    """Of each booking that runs, the use that was seen; one that is seen for the first time counts from now on."""
    use = board.gpu.utilization_gpu
    found: dict[str, tuple[int, float, float]] = {}
    for key in sorted({key_of(one) for one in running})[:MOST_KEPT]:
        first, seconds, used = before.get(key, (look.at, 0.0, 0.0))
        if key in before and use is not None:
            # a host can claim anything
            seconds, used = seconds + passed, used + passed * min(100, max(0, use))
        found[key] = first, seconds, used
    return found


def key_of(booking: BoardBooking) -> str:
    """What stays the same while a booking is made longer, and is another each time that it repeats."""
    return f"{int(booking.since.timestamp()) if booking.since else ''} {booking.name or ''}"


def facts(shown: BoardBooking, full: BoardBooking, kept: KeptGpu, people: Shown) -> BoardBooking:
    """A booking as it is shown, with what is remembered of it; nothing came about before it began."""
    if full.phase != "now":
        return shown
    first, seconds, used = kept.use.get(key_of(full), (kept.looked, 0.0, 0.0))
    began = int(full.since.timestamp()) if full.since else first
    return shown._replace(
        unused_since=None if kept.empty_since is None else max(began, kept.empty_since),
        used_by=tuple(sorted(kept.others)) if kept.others and people.users else None,
        used_by_since=max(began, min(kept.others.values())) if kept.others else None,
        mean_use=round(used / seconds, 1) if seconds >= MEAN_AFTER else None,
    )


def free_again(board: BoardGpu, mine: Sequence[Booking], now: Now) -> int | None:
    """When the last of the bookings ends that follow each other from now on; None where nobody can know."""
    if board.state not in IN_USE:
        return None
    end = max(one.until.timestamp() for one in board.bookings if one.phase == "now")
    for one in board.bookings:  # those that come are in the order of their beginning
        if one.phase == "coming" and one.since and one.since.timestamp() <= end + FOLLOWS_WITHIN:
            end = max(end, one.until.timestamp())
    # repeats are worked out for some days only
    worked_out = datetime.combine(now.today, datetime.min.time(), now.zone) + active_bookings.AHEAD
    if end + FOLLOWS_WITHIN >= worked_out.timestamp() and any(one.rrule for one in mine):
        return None
    return int(end)
