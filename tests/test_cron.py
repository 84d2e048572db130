"""The web host's line of crontab.example under a real cron: one builder after the other, and the board never pauses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, gpu

ROOT = Path(__file__).parent.parent
LONGEST_GAP = 13


def missing() -> str:
    """Why a cron of one's own cannot be had here."""
    if os.geteuid() != 0:
        return "a cron of its own needs root"
    return "" if shutil.which("cron", path=f"{os.environ['PATH']}:/usr/sbin") else "cron is not installed"


@pytest.fixture
def cron(tmp_path: Path) -> Iterator[Lab]:
    """A lab with a cron that sees nothing of this machine's crontabs."""
    if why := missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    lab = Lab(tmp_path / "lab")
    (line,) = (line for line in (ROOT / "crontab.example").read_text().splitlines() if "gpuboard build" in line)
    line = line.replace("/FOLDER", str(lab.data.parent)).replace("/VENV/bin", str(Path(sys.executable).parent))
    for name in ("crontabs", "run", "empty"):
        (tmp_path / name).mkdir()
    table = tmp_path / "crontabs/root"
    table.write_text(f'MAILTO=""\n{line} >> {lab.data.parent}/mail 2>&1\n')
    table.chmod(0o600)
    (tmp_path / "crontab").touch()
    binds = {
        "crontabs": "/var/spool/cron/crontabs",
        "run": "/run",
        "empty": "/etc/cron.d",
        "crontab": "/etc/crontab",
    }
    mounts = " && ".join(f"mount --bind {tmp_path / name} {place}" for name, place in binds.items())
    command = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", f"{mounts} && exec /usr/sbin/cron -f"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as daemon:
        try:
            yield lab
        finally:
            daemon.terminate()


@pytest.mark.slow
def test_builders_that_cron_starts_hand_over_to_each_other(cron: Lab) -> None:
    deadline = time.monotonic() + 150
    built: list[int] = []
    number = 0
    while time.monotonic() < deadline and not (built and built[-1] - built[0] > 75):
        number += 1
        cron.host("atlas", gpu(0, 100 + number))
        time.sleep(1)
        if (cron.www / "status.json").exists() and cron.status()["built"] not in built:
            built.append(cron.status()["built"])
    assert built
    assert built[-1] - built[0] > 75
    assert max(later - earlier for earlier, later in zip(built, built[1:])) <= LONGEST_GAP
    assert (cron.data.parent / "mail").read_text() == ""
    assert cron.host_status()["gpus"][0]["memory.used"] >= 100 + number - LONGEST_GAP
