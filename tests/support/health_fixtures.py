"""A host whose GPUs are looked at again and again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone
from typing import Any

from site_builder.core.formatting import MINUTE
from site_builder.core.model import Gpu
from site_builder.health import events
from site_builder.health.events import find_health_events
from site_builder.health.model import (
    COUNT_NAMES,
    GpuHealthMetrics,
    HealthCheckTimes,
    HealthEvent,
    HostHealthMetrics,
    HostHealthState,
)
from site_builder.snapshots.parsers.nvidia_csv import build_gpu_from_nvidia_csv, find_nvidia_csv_columns
from tests.support.history_fixtures import epoch

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
    ) -> list[HealthEvent]:
        """Look at it so many seconds after the last time; what is told by that."""
        before, self.at = self.at, self.at + after
        look = HealthCheckTimes("atlas", self.at, before, float(self.at))
        self.state, health_events = find_health_events(
            self.state, HostHealthMetrics(driver, gpus, whole), look, where or {}
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
