"""A host as it stands at a moment, decided from all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from site_builder.alert import Matter
from site_builder.decide import hosts
from site_builder.decide.gpus import Rules
from site_builder.decide.matters import Parts, matters
from site_builder.model import BoardHost, Booking, Idle, KeptGpu, KnownHost, Problem
from site_builder.now import Now
from site_builder.sources.snapshots import Told

NEVER = Idle(0, {})


@dataclass(frozen=True)
class Host:
    """All that a card is made of."""

    known: KnownHost
    told: Told | None
    bookings: Sequence[Booking]
    idle: Idle
    kept: Mapping[str, KeptGpu] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)  # of its GPUs by their keys, ready to be shown


def board_of(host: Host, rules: Rules, names: dict[str, str], now: Now) -> tuple[BoardHost, float | None]:
    """A host as it stands at this moment, and when its GPUs were looked at."""
    try:
        data = host.told.data() if host.told else None
        case = hosts.Case(host.known, data, host.bookings, host.idle, names, host.kept)
        board = hosts.host(case, rules, now)
    except Exception as error:  # a fault of ours must not cost the other hosts
        return not_understood(host.known, error), None
    return board, data.taken.get("gpus.csv") if data else None


def matters_of(host: Host, board: BoardHost, rules: Rules, now: Now) -> tuple[Matter, ...] | None:
    """What is the matter with a host, of which this was decided; its files are read again only where that is asked.

    None where we fail at it: nobody knows then what of it is over.
    """
    try:
        return matters(board, Parts(host.bookings, lambda: host.told.data() if host.told else None), rules, now)
    except Exception:  # the same; what its files are like is told with its board
        return None


def not_understood(known: KnownHost, error: Exception) -> BoardHost:
    """A host whose files are such that we fail at them; none is known, and each is a mistake in gpuboard."""
    reason = "its files could not be understood, which is a fault of gpuboard's own: please report it"
    problem = Problem(f"data/{known.name}", f"{reason} ({type(error).__name__}: {error})"[:300])
    return BoardHost(known.name, known.title, known.tags, "failed", reason, problems=(problem,))
