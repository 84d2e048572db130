"""From a host's files to its status: parse them once, then decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE, describe_fault, locate_exception, split_by_success
from site_builder.core.model import (
    Booking,
    DiscoveredHost,
    Gpu,
    GpuBookingUse,
    GpuStatus,
    HostSnapshot,
    HostStatus,
    IdleTimes,
    Problem,
)
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import StateRules
from site_builder.snapshots.store import HostFiles

NO_IDLE_TIMES = IdleTimes(0, {})
NOT_UNDERSTOOD_REASON = "its files could not be understood"
NOT_SHOWN_REASON = "its card could not be made"
FAILED_HOST_REASON = "its host is failed"
# Seconds after which a host at which we failed is tried again, though its files are the same.
RETRY_AFTER_S = 60


@dataclass(frozen=True)
class HostSources:
    """All that a host's status and card are made of."""

    discovered: DiscoveredHost
    files: HostFiles | None
    bookings: Sequence[Booking]
    idle_times: IdleTimes
    booking_uses: Mapping[str, GpuBookingUse] = field(default_factory=dict)
    sparklines: Mapping[str, str] = field(default_factory=dict)  # of its GPUs by their keys, ready to be shown
    unread_reason: str = ""  # why its files are not parsed now


class DecidedHost(NamedTuple):
    """A host's status, the snapshot that it was decided from, and when its GPUs were read; None where not known."""

    status: HostStatus
    snapshot: HostSnapshot | None = None
    gpus_taken_at: float | None = None
    has_parse_failed: bool = False


def decide_host(host: HostSources, rules: StateRules, gpu_names: dict[str, str], now: Now) -> DecidedHost:
    """Parse the files of a host and decide its status; a fault of ours must not cost the other hosts."""
    known = host.discovered
    if host.unread_reason:
        problem = Problem(f"data/{known.name}", host.unread_reason)
        status = HostStatus(known.name, known.title, known.tags, "failed", host.unread_reason, problems=(problem,))
        return DecidedHost(status)
    try:
        snapshot = host.files.parse() if host.files else None
    except Exception as error:
        now.has_passed(now.epoch + RETRY_AFTER_S)
        return DecidedHost(build_failed_status(known, locate_exception(error)), has_parse_failed=True)
    taken_at = snapshot.taken_at.get("gpus.csv") if snapshot else None
    try:
        return DecidedHost(decide_snapshot(host, snapshot, rules, gpu_names, now), snapshot, taken_at)
    except Exception as error:
        place = locate_exception(error)
    now.has_passed(now.epoch + RETRY_AFTER_S)
    if host.bookings:
        with suppress(Exception):
            return DecidedHost(decide_without_bad_bookings(host, snapshot, rules, gpu_names, now), snapshot, taken_at)
    gpus = snapshot.gpus.rows if snapshot and snapshot.gpus else ()
    return DecidedHost(build_failed_status(known, place, gpus, snapshot.last_seen if snapshot else None), snapshot)


def decide_snapshot(
    host: HostSources, data: HostSnapshot | None, rules: StateRules, names: dict[str, str], now: Now
) -> HostStatus:
    """A host by what its files say."""
    return host_state.decide_host_status(
        host_state.HostInput(host.discovered, data, host.bookings, host.idle_times, names, host.booking_uses),
        rules,
        now,
    )


def decide_without_bad_bookings(
    host: HostSources, data: HostSnapshot | None, rules: StateRules, names: dict[str, str], now: Now
) -> HostStatus:
    """Decide a host without the bookings at which that fails; each is a problem, and does not count."""

    def use(some: Sequence[Booking]) -> HostStatus:
        return decide_snapshot(replace(host, bookings=some), data, rules, names, now)

    use(())  # or it is not for the bookings
    good, bad = split_by_success(host.bookings, use)
    board = use(good)
    return replace(board, problems=(*board.problems, *(build_booking_problem(one, place) for one, place in bad)))


def build_booking_problem(one: Booking, place: str) -> Problem:
    """Say that a booking does not count, since we fail at it."""
    gpu = "all GPUs" if one.gpu == "*" else f"GPU {one.gpu[:80]}"
    what = f"{one.host[:80]}, {gpu}: the booking of {one.name[:80] or 'nobody'} does not count"
    return Problem("data/comments.json", describe_fault(what, place))


def build_failed_status(
    known: DiscoveredHost,
    place: str,
    gpus: Sequence[Gpu] = (),
    seen: float | None = None,
    what: str = NOT_UNDERSTOOD_REASON,
) -> HostStatus:
    """A host whose files are such that we fail at them; none is known, and each is a mistake in gpuboard.

    Its GPUs, as far as they are known, are in no state that anybody knows.
    """
    reason = f"{what}, {FAULT_NOTE}"
    problem = Problem(f"data/{known.name}", describe_fault(what, place))
    rows = tuple(
        GpuStatus(
            host_state.drop_readings(one),
            (one.name or "GPU")[: host_state.MAX_MODEL_CHARACTERS],
            "unknown",
            FAILED_HOST_REASON,
        )
        for one in gpus
    )
    return HostStatus(known.name, known.title, known.tags, "failed", reason, seen, gpus=rows, problems=(problem,))


def build_unrendered_status(board: HostStatus, place: str = "") -> HostStatus:
    """A host that was understood, and of which no card can be made."""
    known = DiscoveredHost(board.name, board.title, board.tags)
    return build_failed_status(known, place, [one.gpu for one in board.gpus], board.last_seen, NOT_SHOWN_REASON)
