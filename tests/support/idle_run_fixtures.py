"""Hours of hosts, as they are rolled up, without the minutes that it takes to record them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from site_builder.core.formatting import HOUR
from site_builder.history import block_format, idle_runs
from site_builder.history.block_format import HourBlock, PackedSample
from site_builder.history.database import begin_database_transaction
from site_builder.history.idle_runs import IdleRun, UnusedBookingRun, update_idle_run
from site_builder.history.model import GpuSample
from site_builder.history.writer import HistoryWriter
from tests.support.history_fixtures import host

Minutes = Callable[[int], "GpuSample | None"]
IDLE_PERCENT = 5.0


def hour_of(minutes: Callable[[int], PackedSample | None]) -> tuple[int, HourBlock]:
    """The shape of a host and an hour of it, by the number of each minute."""
    told = {slot: one for slot in range(60) if (one := minutes(slot))}
    parts = {
        slot: block_format.unpack_minute_block(block_format.pack_minute_block([one])) for slot, one in told.items()
    }
    shape = next(iter(told.values())).gpu_set_id
    return shape, block_format.build_hour_block(shape, parts)


def packed_of(sample: GpuSample | None) -> PackedSample | None:
    """A host of this GPU alone, if there is one."""
    return host(sample) if sample else None


def worn_by(
    at: int, *hours: GpuSample | Minutes | None, before: IdleRun | None = None, name: str = "atlas"
) -> tuple[IdleRun | None, list[UnusedBookingRun]]:
    """A GPU after some hours; each is one sample for all its minutes, or tells each; None is an hour without it."""
    ended: list[UnusedBookingRun] = []
    for number, one in enumerate(hours):
        if one is None:
            continue
        told: Minutes = one if callable(one) else (lambda _, one=one: one)  # type: ignore[misc]
        first = next(found for slot in range(60) if (found := told(slot)))
        _, hour = hour_of(lambda slot, told=told: packed_of(told(slot)))  # type: ignore[misc]
        before, over = update_idle_run(before, name, first.series, at + number * HOUR, hour, 0, IDLE_PERCENT)
        ended += over
    return before, ended


def known(at: int, *hours: GpuSample | Minutes | None, before: IdleRun | None = None, name: str = "atlas") -> IdleRun:
    """The same, where something is known."""
    found, _ = worn_by(at, *hours, before=before, name=name)
    assert found
    return found


def wear(
    history: HistoryWriter, at: int, hours: int, told: PackedSample | Callable[[int], PackedSample | None]
) -> None:
    """Roll up so many hours of a host, all of them alike."""
    sample = told if isinstance(told, PackedSample) else next(one for slot in range(60) if (one := told(slot)))
    shape, hour = hour_of(told if callable(told) and not isinstance(told, PackedSample) else lambda _: sample)
    connection = history.connect()
    with begin_database_transaction(connection):
        connection.execute(
            "INSERT OR IGNORE INTO shape VALUES(?,?,?,?)", (shape, sample.host, sample.packed_series, at)
        )
        several: Sequence[tuple[int, int, HourBlock]] = [(at + number * HOUR, shape, hour) for number in range(hours)]
        idle_runs.roll_up_idle_runs(connection, several, history.idle_percent)
