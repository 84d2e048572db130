"""A web host with a clock of its own, on which real builds run: what arrives in data/ bears its time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timezone
from pathlib import Path

import pytest

from site_builder.board.builder import Builder, BuildReport
from site_builder.core import files
from site_builder.core.formatting import MINUTE
from site_builder.history.reader import HistoryReader
from site_builder.history.usage_sums import DailyUsageSums
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.history_fixtures import epoch

NOON = epoch("2026-03-10T12:00")
EVER = (date(1990, 1, 1), date(2100, 1, 1))
HISTORY = "state/history.db"


class Machine:
    """Its clock can be set; hosts push, and the builder builds, each minute."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.now = float(NOON)
        self.hosts: dict[str, tuple[str, str]] = {}
        self.builders = [self.builder()]
        self.report: BuildReport | None = None

    def builder(self, **changes: object) -> Builder:
        return Builder(self.lab.settings(**changes), build_interval_s=10)

    def use(self, host: str, user: str = "alice", uuid: str = "GPU-0") -> None:
        """From now on somebody is on the only GPU of a host."""
        self.hosts[host] = (user, uuid)

    def push(self) -> None:
        for name, (user, uuid) in self.hosts.items():
            tool_outputs = {
                "gpus": gpu(0, 7000, 55, uuid=uuid),
                "processes": process(gpu=uuid),
                "ps": person(user=user),
            }
            self.lab.host(name, **tool_outputs, time=int(self.now))

    def minutes(self, count: int, start: float | None = None) -> None:
        """So many minutes go by, from one on that the clock is set to."""
        self.now = self.now if start is None else start
        for _ in range(count):
            self.push()
            for builder in self.builders:
                self.report = builder.build(self.now + 5)
            self.now += MINUTE

    def problems(self) -> list[str]:
        """What status.json says of history, after all builds."""
        return [problem["what"] for problem in self.lab.status()["problems"] if problem["where"] == HISTORY]

    def tallies(self, now: float | None = None) -> DailyUsageSums:
        past = HistoryReader(self.lab.state, timezone.utc)
        try:
            daily_usage = past.read_daily_usage(*EVER, self.now if now is None else now)
            assert past.problem is None
            return daily_usage
        finally:
            past.close()

    def close(self) -> None:
        for builder in self.builders:
            builder.close()


@contextmanager
def machine_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One with a host of which alice uses the only GPU."""
    made = Machine(Lab(folder))
    look, read = files.read_signature, files.read_file

    def arrived(signature: files.FileSignature) -> files.FileSignature:
        return signature._replace(arrived_ns=int(made.now * 1e9))

    def looked(name: str, folder: int) -> files.FileSignature | None:
        host_snapshot = look(name, folder)
        return arrived(host_snapshot) if host_snapshot else None

    def read_at(
        name: str, folder: int, limit: int, *refuse: Callable[[os.stat_result], None]
    ) -> tuple[files.FileSignature, bytes]:
        signature, content = read(name, folder, limit, *refuse)
        return arrived(signature), content

    monkeypatch.setattr(files, "read_signature", looked)
    monkeypatch.setattr(files, "read_file", read_at)
    made.use("atlas")
    yield made
    made.close()
