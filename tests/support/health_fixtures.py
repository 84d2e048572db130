"""A host whose GPUs are looked at again and again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone
from typing import Any

from site_builder.health import descriptions
from site_builder.health.diff import MINUTE, compare
from site_builder.health.model import COUNTS, Event, GpuSigns, HostSigns, HostState, Look
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


def gpu(key: Any = A, **more: Any) -> GpuSigns:  # noqa: ANN401
    """A GPU that is well; counts by their names."""
    counts = tuple(more.pop(name, 0) for name in COUNTS)
    return GpuSigns(key=key, counts=counts, **{**HEALTHY, **more})


class Watch:
    """A host that is looked at again and again."""

    def __init__(self, *gpus: GpuSigns, driver: str = "590.1", at: int = NOON) -> None:
        self.state: HostState | None = None
        self.told: dict[int, Event] = {}
        self.at = at - MINUTE
        self.look(*gpus, driver=driver)

    def look(
        self,
        *gpus: GpuSigns,
        after: int = MINUTE,
        driver: str | None = "590.1",
        where: Mapping[str, str] | None = None,
        whole: bool = True,
    ) -> list[Event]:
        """Look at it so many seconds after the last time; what is told by that."""
        before, self.at = self.at, self.at + after
        look = Look("atlas", self.at, before, float(self.at))
        self.state, found = compare(self.state, HostSigns(driver, gpus, whole), look, where or {})
        self.told.update({one.number: one for one in found})
        return found

    @property
    def only(self) -> Event:
        (found,) = self.told.values()
        return found

    @property
    def kinds(self) -> list[str]:
        return [self.told[number].kind for number in sorted(self.told)]


def said(event: Event) -> str:
    return f"{descriptions.when(event, timezone.utc)}: {descriptions.sentence(event)}"
