"""A past for charts: a host with eight GPUs, of which a day is known by the minute and more by the hour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timezone
from pathlib import Path

from site_builder.charts.cache import CachedChartRequest, ChartCache
from site_builder.core.clock import Now
from site_builder.core.model import PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.history.block_format import PackedSample
from site_builder.history.model import GpuSample
from site_builder.history.writer import HistoryWriter
from tests.support.board_fixture import Lab
from tests.support.history_fixtures import gpu, host, record, roll

GPUS = 8
KEYS = frozenset(f"GPU-{number}" for number in range(GPUS))
HOUR, DAY = 3600, 86400


def told(minute: int, number: int) -> GpuSample:
    """A GPU that has noisy readings, jobs of some hours, and a booking."""
    job = (minute // 170 + number) % 4
    users = [["alice"], ["bob"], [], ["carol", "bob"]][job]
    use = 0 if not users else (37 * minute + 11 * number) % 60 + 40
    return gpu(
        "busy" if users else "free",
        users,
        ["dana"] if number == 1 and minute % 1440 < 300 else [],
        index=number,
        use=use,
        memory=20000.0 + job * 9000 if users else 4,
        temperature=35 + use / 2 + minute % 3,
        power=60 + use * 3 + minute % 7,
    )


def at_minute(minute: int, gpus: int = GPUS) -> list[PackedSample]:
    """The host at a minute."""
    return [host(*(told(minute, number) for number in range(gpus)), load=(minute % 90) + 5.0)]


def past_of(
    state: Path, now: float, minutes: int = 26 * 60, gap: tuple[int, int] = (300, 360), gpus: int = GPUS
) -> None:
    """So many minutes up to a moment, with a gap in them."""
    history = HistoryWriter(state, timezone.utc)
    start = (int(now) // 60 - minutes) * 60
    record(history, start, gap[0], lambda minute: at_minute(minute, gpus))
    record(history, start + gap[1] * 60, minutes - gap[1], lambda minute: at_minute(minute + gap[1], gpus))
    roll(history, now)
    history.close()


class Drawing:
    """Charts of a lab, drawn by a build that has all the time that it needs, however slow the machine is just now."""

    def __init__(self, lab: Lab, hosts: Sequence[str] = ("atlas",)) -> None:
        self.history = HistoryWriter(lab.state, timezone.utc)
        self.charts = ChartCache(lab.settings(), self.history)
        self.charts.start_build(hosts, patient=True)
        self.charts.deadline = float("inf")
        self.asked = CachedChartRequest("atlas", KEYS, PeopleDirectory({}), PrivacySettings())

    def draw(self, now: float) -> str:
        """All charts of the host."""
        return self.charts.render_host(self.asked, Now(now, timezone.utc)).decode()

    def times(self, now: float) -> dict[str, int]:
        """When each span was drawn."""
        drawn_spans = re.findall(r'<details class="part charts" id=_(\w+) data-drawn=(\d+)', self.draw(now))
        return {span: int(drawn) for span, drawn in drawn_spans}


def part(charts: str, span: str) -> str:
    """The charts of one span."""
    (span_charts,) = (
        section_html
        for section_html in charts.split('<details class="part charts" id=_')
        if section_html.startswith(f"{span}")
    )
    return span_charts


def plot(charts: str, span: str, number: int) -> str:
    """A GPU in them."""
    return next(
        section
        for section in part(charts, span).split("<section ")
        if section.startswith(f'class=plot id="_{span}-{number}"')
    )


def rows_of(drawn: str) -> list[list[str]]:
    """The cells of its table, without the head."""
    body = drawn.partition("<tbody>")[2].partition("</tbody>")[0]
    return [re.split(r"<td>|<th scope=row>", row)[1:] for row in body.strip().split("\n")]
