"""A host as it stands at a moment, decided from all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from site_builder.alerts.conditions import Parts, matters
from site_builder.alerts.model import Matter
from site_builder.core.clock import Now
from site_builder.core.faults import FAULT, describe, place_of, split_by_use
from site_builder.core.model import BoardGpu, BoardHost, Booking, Gpu, HostData, Idle, KeptGpu, KnownHost, Problem
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import Rules
from site_builder.snapshots.store import Told

NEVER = Idle(0, {})
NOT_UNDERSTOOD = "its files could not be understood"
NOT_SHOWN = "its card could not be made"
FAILED_HOST = "its host is failed"
# Seconds after which a host at which we failed is tried again, though its files are the same.
TRY_AGAIN = 60


@dataclass(frozen=True)
class Host:
    """All that a card is made of."""

    known: KnownHost
    told: Told | None
    bookings: Sequence[Booking]
    idle: Idle
    kept: Mapping[str, KeptGpu] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)  # of its GPUs by their keys, ready to be shown
    not_read: str = ""  # why its files are not parsed now


def board_of(host: Host, rules: Rules, names: dict[str, str], now: Now) -> tuple[BoardHost, float | None]:
    """A host as it stands at this moment, and when its GPUs were looked at."""
    if host.not_read:
        problem = Problem(f"data/{host.known.name}", host.not_read)
        known = host.known
        return BoardHost(known.name, known.title, known.tags, "failed", host.not_read, problems=(problem,)), None
    data = None
    try:
        data = host.told.data() if host.told else None
        board = decided(host, data, rules, names, now)
    except Exception as error:  # a fault of ours must not cost the other hosts
        place = place_of(error)
    else:
        return board, data.taken.get("gpus.csv") if data else None
    now.reached(now.epoch + TRY_AGAIN)
    if host.bookings and (data or not host.told):
        with suppress(Exception):
            board = without_bad_bookings(host, data, rules, names, now)
            return board, data.taken.get("gpus.csv") if data else None
    rows = data.gpus.rows if data and data.gpus else ()
    return not_understood(host.known, place, rows, data.seen if data else None), None


def decided(host: Host, data: HostData | None, rules: Rules, names: dict[str, str], now: Now) -> BoardHost:
    """A host by what its files say."""
    return host_state.host(host_state.Case(host.known, data, host.bookings, host.idle, names, host.kept), rules, now)


def without_bad_bookings(host: Host, data: HostData | None, rules: Rules, names: dict[str, str], now: Now) -> BoardHost:
    """Decide a host without the bookings at which that fails; each is a problem, and does not count."""

    def use(some: Sequence[Booking]) -> BoardHost:
        return decided(replace(host, bookings=some), data, rules, names, now)

    use(())  # or it is not for the bookings
    good, bad = split_by_use(host.bookings, use)
    board = use(good)
    return replace(board, problems=(*board.problems, *(booking_problem(one, place) for one, place in bad)))


def booking_problem(one: Booking, place: str) -> Problem:
    """Say that a booking does not count, since we fail at it."""
    gpu = "all GPUs" if one.gpu == "*" else f"GPU {one.gpu[:80]}"
    what = f"{one.host[:80]}, {gpu}: the booking of {one.name[:80] or 'nobody'} does not count"
    return Problem("data/comments.json", describe(what, place))


def matters_of(host: Host, board: BoardHost, rules: Rules, now: Now) -> tuple[Matter, ...] | None:
    """What is the matter with a host, of which this was decided; its files are read again only where that is asked.

    None where we fail at it: nobody knows then what of it is over.
    """

    def use(bookings: Sequence[Booking]) -> tuple[Matter, ...]:
        return matters(board, Parts(bookings, lambda: host.told.data() if host.told else None), rules, now)

    with suppress(Exception):  # the same; what its files are like is told with its board
        return use(host.bookings)
    with suppress(Exception):
        use(())  # or it is not for the bookings
        return use(split_by_use(host.bookings, use)[0])
    return None


def not_understood(
    known: KnownHost, place: str, gpus: Sequence[Gpu] = (), seen: float | None = None, what: str = NOT_UNDERSTOOD
) -> BoardHost:
    """A host whose files are such that we fail at them; none is known, and each is a mistake in gpuboard.

    Its GPUs, as far as they are known, are in no state that anybody knows.
    """
    reason = f"{what}, {FAULT}"
    problem = Problem(f"data/{known.name}", describe(what, place))
    rows = tuple(
        BoardGpu(host_state.bare(one), (one.name or "GPU")[: host_state.MODEL_CHARACTERS], "unknown", FAILED_HOST)
        for one in gpus
    )
    return BoardHost(known.name, known.title, known.tags, "failed", reason, seen, gpus=rows, problems=(problem,))


def not_shown(board: BoardHost, place: str = "") -> BoardHost:
    """A host that was understood, and of which no card can be made."""
    known = KnownHost(board.name, board.title, board.tags)
    return not_understood(known, place, [one.gpu for one in board.gpus], board.seen, NOT_SHOWN)
