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
    minutes_by_slot = {slot: packed_sample for slot in range(60) if (packed_sample := minutes(slot))}
    parts = {
        slot: block_format.unpack_minute_block(block_format.pack_minute_block([packed_sample]))
        for slot, packed_sample in minutes_by_slot.items()
    }
    shape = next(iter(minutes_by_slot.values())).gpu_set_id
    return shape, block_format.build_hour_block(shape, parts)


def packed_of(sample: GpuSample | None) -> PackedSample | None:
    """A host of this GPU alone, if there is one."""
    return host(sample) if sample else None


def worn_by(
    at: int, *hours: GpuSample | Minutes | None, before: IdleRun | None = None, name: str = "atlas"
) -> tuple[IdleRun | None, list[UnusedBookingRun]]:
    """A GPU after some hours; each is one sample for all its minutes, or tells each; None is an hour without it."""
    ended: list[UnusedBookingRun] = []
    for number, hour_sample in enumerate(hours):
        if hour_sample is None:
            continue
        sample_at: Minutes = hour_sample if callable(hour_sample) else (lambda _, hour_sample=hour_sample: hour_sample)  # type: ignore[misc]
        first = next(first_sample for slot in range(60) if (first_sample := sample_at(slot)))
        _, hour = hour_of(lambda slot, sample_at=sample_at: packed_of(sample_at(slot)))  # type: ignore[misc]
        before, over = update_idle_run(before, name, first.series, at + number * HOUR, hour, 0, IDLE_PERCENT)
        ended += over
    return before, ended


def known(at: int, *hours: GpuSample | Minutes | None, before: IdleRun | None = None, name: str = "atlas") -> IdleRun:
    """The same, where something is known."""
    idle_run, _ = worn_by(at, *hours, before=before, name=name)
    assert idle_run
    return idle_run


def wear(
    history: HistoryWriter, at: int, hours: int, sample_source: PackedSample | Callable[[int], PackedSample | None]
) -> None:
    """Roll up so many hours of a host, all of them alike."""
    sample = (
        sample_source
        if isinstance(sample_source, PackedSample)
        else next(slot_sample for slot in range(60) if (slot_sample := sample_source(slot)))
    )
    shape, hour = hour_of(
        sample_source if callable(sample_source) and not isinstance(sample_source, PackedSample) else lambda _: sample
    )
    connection = history.connect()
    with begin_database_transaction(connection):
        connection.execute(
            "INSERT OR IGNORE INTO shape VALUES(?,?,?,?)", (shape, sample.host, sample.packed_series, at)
        )
        hour_blocks: Sequence[tuple[int, int, HourBlock]] = [
            (at + number * HOUR, shape, hour) for number in range(hours)
        ]
        idle_runs.roll_up_idle_runs(connection, hour_blocks, history.idle_percent)
