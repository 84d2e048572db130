"""A host whose GPUs are looked at again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timezone
from pathlib import Path
from typing import Any

from site_builder.core.formatting import DAY, MINUTE
from site_builder.core.model import Gpu, Xid
from site_builder.health import events
from site_builder.health.events import find_health_events
from site_builder.health.model import (
    COUNT_NAMES,
    GpuHealthMetrics,
    HealthCheckTimes,
    HealthEvent,
    HostHealthMetrics,
    HostHealthState,
    PackedHealthMetrics,
)
from site_builder.health.store import HealthEventStore, pack_stored_health_metrics
from site_builder.history.writer import HistoryWriter
from site_builder.snapshots.parsers.nvidia_csv import build_gpu_from_nvidia_csv, find_nvidia_csv_columns
from tests.support.history_fixtures import epoch
from tests.support.history_fixtures import gpu as sample
from tests.support.history_fixtures import host as host_of

NOON = epoch("2026-03-10T12:00")
A, B = "GPU-a", "GPU-b"
HEALTHY: dict[str, Any] = {
    "index": 0,
    "bus": "17:00.0",
    "lost": None,
    "recovery": "",
    "pending": False,
    "failed": False,
    "heat": False,
    "power": False,
    "hot": (),
}


def gpu(key: Any = A, **overrides: Any) -> GpuHealthMetrics:  # noqa: ANN401
    """A GPU that is well; counts by their names."""
    counts = tuple(overrides.pop(name, 0) for name in COUNT_NAMES)
    return GpuHealthMetrics(key=key, counts=counts, **{**HEALTHY, **overrides})


def parse_health_cells(cells: Mapping[str, str], **fields: Any) -> Gpu:  # noqa: ANN401
    """A GPU with these readings, and with the health that these cells of nvidia-smi tell."""
    parsed = build_gpu_from_nvidia_csv(find_nvidia_csv_columns(tuple(cells)), tuple(cells.values()))
    readings: dict[str, Any] = {"fan_speed": parsed.fan_speed, "temperature_margin": parsed.temperature_margin}
    identity: dict[str, Any] = {"index": 0, "uuid": "GPU-0", "name": "A100", "bus_id": parsed.bus_id}
    return Gpu(**{**identity, **readings, **fields}, health=parsed.health, columns=parsed.columns, cells=parsed.cells)


class Watch:
    """A host that is looked at again and again."""

    def __init__(self, *gpus: GpuHealthMetrics, driver: str = "590.1", at: int = NOON) -> None:
        self.state: HostHealthState | None = None
        self.told: dict[int, HealthEvent] = {}
        self.at = at - MINUTE
        self.look(*gpus, driver=driver)

    def look(
        self,
        *gpus: GpuHealthMetrics,
        after: int = MINUTE,
        driver: str | None = "590.1",
        where: Mapping[str, str] | None = None,
        whole: bool = True,
        xids: Sequence[Xid] = (),
    ) -> list[HealthEvent]:
        """Look at it so many seconds after the last time; what is told by that."""
        before, self.at = self.at, self.at + after
        look = HealthCheckTimes("atlas", self.at, before, float(self.at))
        self.state, health_events = find_health_events(
            self.state, HostHealthMetrics(driver, gpus, whole, tuple(xids)), look, where or {}
        )
        self.told.update({event.number: event for event in health_events})
        return health_events

    @property
    def only(self) -> HealthEvent:
        (health_event,) = self.told.values()
        return health_event

    @property
    def kinds(self) -> list[str]:
        return [self.told[number].kind for number in sorted(self.told)]


def said(event: HealthEvent) -> str:
    return f"{events.format_event_time(event, timezone.utc)}: {events.describe_event(event)}"


class Keeper:
    """A builder's history and what it tells of health."""

    def __init__(self, state: Path) -> None:
        self.history = HistoryWriter(state, timezone.utc)
        self.log = HealthEventStore(self.history)

    def look(
        self,
        at: float,
        *gpus: GpuHealthMetrics,
        name: str = "atlas",
        taken: float | None = None,
        xids: Sequence[Xid] = (),
    ) -> None:
        """A build at that moment, in which one host is fresh."""
        self.build(at, {name: signed(*gpus, taken=at if taken is None else taken, xids=xids)})

    def build(self, at: float, hosts: dict[str, PackedHealthMetrics | None], within: float = 60) -> None:
        self.history.record(
            [host_of(sample(), name=name) for name, health_metrics in hosts.items() if health_metrics], at
        )
        self.log.record(hosts, at, within)
        assert not self.history.problems

    def told(self, name: str = "atlas", now: float = NOON + DAY, most: int = 50, *keys: str) -> list[tuple[str, str]]:
        """What the time lines of a host say: of which GPU, and what."""
        lines = self.log.read_timelines(name, keys or (A, B), now, most)
        return [(line.gpu_key, event.kind) for line in lines.timelines for event in line.events]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return self.history.connect().execute("SELECT * FROM event ORDER BY host, number").fetchall()

    def close(self) -> None:
        self.history.close()


def signed(
    *gpus: GpuHealthMetrics, taken: float | None = None, driver: str = "590.1", xids: Sequence[Xid] = ()
) -> PackedHealthMetrics:
    rows = [tuple(gpu_metrics) for gpu_metrics in gpus]
    return PackedHealthMetrics(pack_stored_health_metrics(driver, rows, xids=[tuple(xid) for xid in xids]), taken)
