"""The web host's line of crontab.example under a real cron: one builder after the other, and the board never pauses."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.board_fixture import Lab, gpu
from tests.support.machine import Machine, need_machine

ROOT = Path(__file__).parents[2]
LONGEST_GAP = 18  # less than two intervals: no build was left out


@pytest.fixture
def cron(tmp_path: Path) -> Iterator[Lab]:
    """A lab with a cron that sees nothing of this machine's crontabs."""
    need_machine()
    machine = Machine(tmp_path / "machine")
    lab = Lab(machine.path("/srv/lab"))
    (line,) = (line for line in (ROOT / "crontab.example").read_text().splitlines() if "gpuboard build" in line)
    line = line.replace("/FOLDER", "/srv/lab").replace("/VENV/bin", str(Path(sys.executable).parent))
    machine.set_crontab("root", f'MAILTO=""\n{line} >> /srv/lab/mail 2>&1\n'.encode())
    with machine:
        machine.begin_minute()
        yield lab


@pytest.mark.root
def test_builders_that_cron_starts_hand_over_to_each_other(cron: Lab) -> None:
    deadline = time.monotonic() + 200
    built: list[int] = []
    builders: list[str] = []
    number = 0
    while time.monotonic() < deadline and len(set(builders)) < 2:
        number += 1
        cron.host("atlas", gpu(0, 100 + number))
        time.sleep(1)
        if (cron.www / "status.json").exists() and cron.status()["built"] not in built:
            built.append(cron.status()["built"])
            builders.append((cron.state / "lock").read_text())
    assert len(set(builders)) == 2
    assert len(built) > 5
    assert max(later - earlier for earlier, later in zip(built, built[1:])) <= LONGEST_GAP
    assert (cron.data.parent / "mail").read_text() == ""
    assert cron.host_status()["gpus"][0]["memory.used"] >= 100 + number - LONGEST_GAP
