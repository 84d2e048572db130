"""Build the status of a host: parse its files once, then decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE, describe_fault, locate_exception, split_by_fault
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
from site_builder.fleet.gpu_models import MAX_MODEL_CHARACTERS
from site_builder.fleet.gpu_state import StateRules
from site_builder.snapshots.store import HostFiles

NO_IDLE_TIMES = IdleTimes(0, {})
NOT_UNDERSTOOD_REASON = "its files could not be understood"
NOT_SHOWN_REASON = "its card could not be made"
FAILED_HOST_REASON = "its host is failed"
# Seconds after which a host with a fault of ours is tried again, though its files are the same.
RETRY_AFTER_S = 60


@dataclass(frozen=True)
class HostStatusSources:
    """All that a host's status and card are made of."""

    discovered: DiscoveredHost
    files: HostFiles | None
    bookings: Sequence[Booking]
    idle_times: IdleTimes
    booking_uses: Mapping[str, GpuBookingUse] = field(default_factory=dict)
    sparklines: Mapping[str, str] = field(default_factory=dict)  # rendered, by the keys of its GPUs
    unread_reason: str = ""  # why its files are not parsed now


class BuiltHostStatus(NamedTuple):
    """A host's status, the snapshot that it was decided from, and when its GPUs were read; None where not known."""

    status: HostStatus
    snapshot: HostSnapshot | None = None
    gpus_taken_at: float | None = None
    has_parse_failed: bool = False


def build_host_status(
    sources: HostStatusSources, rules: StateRules, gpu_names: dict[str, str], now: Now
) -> BuiltHostStatus:
    """Parse the files of a host and decide its status; a fault of ours must not cost the other hosts."""
    discovered = sources.discovered
    if sources.unread_reason:
        problem = Problem(f"data/{discovered.name}", sources.unread_reason)
        return BuiltHostStatus(build_unknown_host_status(discovered, sources.unread_reason, problem))
    try:
        snapshot = sources.files.parse() if sources.files else None
    except Exception as error:
        now.has_passed(now.epoch + RETRY_AFTER_S)
        return BuiltHostStatus(build_failed_host_status(discovered, locate_exception(error)), has_parse_failed=True)
    taken_at = snapshot.taken_at.get("gpus.csv") if snapshot else None

    def decide_with(bookings: Sequence[Booking]) -> HostStatus:
        inputs = host_state.HostStateInput(
            discovered, snapshot, bookings, sources.idle_times, gpu_names, sources.booking_uses
        )
        return host_state.decide_host_status(inputs, rules, now)

    try:
        return BuiltHostStatus(decide_with(sources.bookings), snapshot, taken_at)
    except Exception as error:
        place = locate_exception(error)
    now.has_passed(now.epoch + RETRY_AFTER_S)
    if sources.bookings:
        with suppress(Exception):
            decide_with(())  # or the bookings are not to blame
            good, bad = split_by_fault(sources.bookings, decide_with)
            status = decide_with(good)
            problems = (build_booking_problem(booking, where) for booking, where in bad)
            return BuiltHostStatus(replace(status, problems=(*status.problems, *problems)), snapshot, taken_at)
    gpus = snapshot.gpus.rows if snapshot and snapshot.gpus else ()
    return BuiltHostStatus(
        build_failed_host_status(discovered, place, gpus, snapshot.last_seen if snapshot else None), snapshot
    )


def build_booking_problem(booking: Booking, place: str) -> Problem:
    """Build the problem of a booking that does not count because of a fault of ours."""
    gpu = "all GPUs" if booking.gpu == "*" else f"GPU {booking.gpu[:80]}"
    what = f"{booking.host[:80]}, {gpu}: the booking of {booking.name[:80] or 'nobody'} does not count"
    return Problem("data/comments.json", describe_fault(what, place))


def build_failed_host_status(
    discovered: DiscoveredHost,
    place: str,
    gpus: Sequence[Gpu] = (),
    last_seen: float | None = None,
    what: str = NOT_UNDERSTOOD_REASON,
) -> HostStatus:
    """Build the status of a host at which gpuboard itself failed; the states of its GPUs are unknown."""
    problem = Problem(f"data/{discovered.name}", describe_fault(what, place))
    status = build_unknown_host_status(discovered, f"{what}, {FAULT_NOTE}", problem)
    rows = (
        GpuStatus(
            gpu=host_state.drop_outdated_host_readings(gpu),
            model=(gpu.name or "GPU")[:MAX_MODEL_CHARACTERS],
            state="unknown",
            reason=FAILED_HOST_REASON,
        )
        for gpu in gpus
    )
    return replace(status, last_seen=last_seen, gpus=tuple(rows))


def build_unknown_host_status(discovered: DiscoveredHost, reason: str, problem: Problem) -> HostStatus:
    return HostStatus(discovered.name, discovered.title, discovered.tags, "failed", reason, problems=(problem,))


def build_unrendered_host_status(status: HostStatus, place: str = "") -> HostStatus:
    """Build the status of a host that was understood, but whose card cannot be rendered."""
    discovered = DiscoveredHost(status.name, status.title, status.tags)
    gpus = [gpu_status.gpu for gpu_status in status.gpus]
    return build_failed_host_status(discovered, place, gpus, status.last_seen, NOT_SHOWN_REASON)
