"""A fleet at a minute, as history is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone, tzinfo
from pathlib import Path

from site_builder.core.model import GpuPeople
from site_builder.history.block_format import PackedSample, pack_sample
from site_builder.history.model import GpuSample, GpuSeries, HostSample, OccupancySample, ProcessSample
from site_builder.history.usage_sums import UNITS_PER_MINUTE, DailyUsageSums
from site_builder.history.writer import HistoryWriter

A100 = "A100 80 GB"


def gpu(
    state: str = "free",
    users: Sequence[str] = (),
    bookers: Sequence[str] = (),
    absent: Sequence[str] | None = None,
    index: int = 0,
    key: str = "",
    model: str = A100,
    use: float | None = 0,
    memory: float | None = 4,
    temperature: float | None = 40,
    power: float | None = 60.5,
    processes: Sequence[ProcessSample] | None = None,
) -> GpuSample:
    """A GPU; those who have booked it and are not among its users are absent."""
    missing = [name for name in bookers if name not in users] if absent is None else absent
    who = GpuPeople(tuple(users), tuple(bookers), tuple(missing))
    series = GpuSeries(key or f"GPU-{index}", index, model, 81920.0)
    recorded = None if processes is None else tuple(processes)
    return GpuSample(series, use, memory, temperature, power, OccupancySample(state, who), recorded)


def host(*gpus: GpuSample, name: str = "atlas", load: float | None = 50, memory: float | None = 25) -> PackedSample:
    """A host that is fresh."""
    return pack_sample(HostSample(name, load, memory, gpus))


def epoch(text: str, zone: tzinfo = timezone.utc) -> int:
    """A moment."""
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp())


def record(
    history: HistoryWriter,
    start: int,
    count: int,
    hosts: Sequence[PackedSample] | Callable[[int], Sequence[PackedSample]],
) -> None:
    """So many minutes; `hosts` may be told by the number of each."""
    for number in range(count):
        history.record(hosts(number) if callable(hosts) else hosts, start + 60 * number)
    assert not history.problems


def keep(history: HistoryWriter, since: int, until: int, hosts: Sequence[PackedSample]) -> None:
    """All minutes from one moment to another, told every half hour: in between, all is as it was."""
    for at in (*range(since, until - 60, 1800), until - 60):
        history.record(hosts, at, 3600)
    assert not history.problems


def roll(history: HistoryWriter, now: float) -> None:
    """All that is due."""
    assert history.roll_up(now, 60), history.problems
    assert not history.problems


def used(usage_sums: DailyUsageSums, what: str = "used") -> dict[str, float]:
    """Minutes of each person."""
    minutes_by_person: dict[str, float] = {}
    for row in usage_sums.shares:
        minutes_by_person[row.person] = (
            minutes_by_person.get(row.person, 0) + getattr(row.share, what) / UNITS_PER_MINUTE
        )
    return {person: round(minutes, 6) for person, minutes in minutes_by_person.items() if minutes}


def minutes(usage_sums: DailyUsageSums, what: str = "seen") -> int:
    """GPU-minutes that were seen in all, or in a state."""
    return sum(getattr(row.seen, what) for row in usage_sums.seen)


def folder(path: Path) -> Path:
    """A state folder."""
    state = path / "state"
    state.mkdir()
    return state


def files_of(state: Path) -> list[str]:
    """What stands in it."""
    return sorted(path.name for path in state.iterdir())
