"""Two weeks of a small lab, as reports tell them, and the command that makes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from site_builder import cli
from site_builder.config.settings import Settings
from site_builder.health.model import HealthEvent
from site_builder.history.reader import HistoryReader
from site_builder.history.writer import HistoryWriter
from site_builder.reports import collect
from site_builder.reports import commands as report_commands
from site_builder.reports.collect import CollectedReport
from site_builder.waste.rules import WasteItem
from tests.support.board_fixture import Lab
from tests.support.history_fixtures import epoch, gpu, host, keep, roll

PARIS = ZoneInfo("Europe/Paris")
HOUR, DAY = 3600, 86400
MONDAY = epoch("2026-11-09T00:00", PARIS)
MORNING = MONDAY + 7 * DAY + 6 * HOUR  # when cron makes the report
FIRST = date(2026, 11, 9)
HOSTILE = "<script>alert(1)</script>\"'\u202e\n" + "x" * 200
Report = Callable[..., "Told"]


class Told(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def lab_of(folder: Path) -> Lab:
    """Two weeks of four GPUs; each number in the tests below was worked out on paper.

    In the first, alice is on the A100 for 42 hours. In the second for 84; then she and bob hold it for 12. carol has
    booked the V100 for all of it and is never there, the T4 is not used, and hydra is seen on the first day only.
    """
    lab = Lab(folder)
    history = HistoryWriter(lab.state, PARIS)
    free = gpu(index=2, model="T4")
    booked = gpu("booked", [], ["carol"], index=1, model="V100")
    busy, held = gpu("busy", ["alice"], use=90), gpu("held", ["alice", "bob"], use=0)
    before = MONDAY - 7 * DAY
    keep(history, before, before + 42 * HOUR, [host(busy, booked, free)])
    keep(history, before + 42 * HOUR, MONDAY, [host(gpu(), gpu(index=1, model="V100"), free)])
    second_host = host(gpu("busy", [], key="GPU-h", model="L40S"), name="hydra")
    keep(history, MONDAY, MONDAY + DAY, [host(busy, booked, free), second_host])
    keep(history, MONDAY + DAY, MONDAY + 84 * HOUR, [host(busy, booked, free)])
    keep(history, MONDAY + 84 * HOUR, MONDAY + 96 * HOUR, [host(held, booked, free)])
    keep(history, MONDAY + 96 * HOUR, MORNING, [host(gpu(), booked, free)])
    roll(history, MORNING)
    history.close()
    return lab


def week_of(settings: Settings) -> CollectedReport:
    """The second of them, with all that can happen, and names that nobody should trust."""
    past = HistoryReader(settings.state, PARIS)
    weekly_report = collect.collect_report(settings, past, FIRST, MORNING)
    past.close()
    assert weekly_report
    events = [
        HealthEvent("atlas", 1, "GPU-0", 0, "power", (), MONDAY, None, MONDAY + 60),
        HealthEvent("atlas", 2, "", None, "driver", ("550.1", "560.2"), MONDAY + 60, None, MONDAY + 60),
        HealthEvent("atlas", 3, "GPU-0", 0, "heat", (), MONDAY + 120, None, MONDAY + 7200),
        HealthEvent("hydra", 1, "GPU-h", 0, "lost", (HOSTILE,), MONDAY + 180, None, None),
    ]
    now = [
        WasteItem(
            kind="held",
            host="atlas",
            gpu_key="GPU-0",
            index=0,
            model="H100",
            people=(HOSTILE,),
            hours=31.5,
            what="31 GiB held, idle",
            advice="Ask whether it is still needed.",
        ),
        WasteItem("dead", "hydra", "GPU-h", None, "H100", what=HOSTILE, advice="On hydra:", command="kill 4711"),
    ]
    return weekly_report._replace(events=events, current_waste=now)


def reporter(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Report:
    """The command in a lab, at a moment."""

    def report(lab: Lab, *words: str, now: float = MORNING, **settings: str) -> Told:
        monkeypatch.chdir(lab.data.parent)
        monkeypatch.setattr(report_commands, "time", SimpleNamespace(time=lambda: now))
        for name, value in {"GPUBOARD_ZONE": "Europe/Paris", **settings}.items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main(["report", *words])
        return Told(int(end.value.code or 0), *capfd.readouterr())

    return report
