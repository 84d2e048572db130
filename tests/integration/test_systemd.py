"""The units of docs/systemd/, read by systemd itself and started by a manager of a user of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.board_fixture import Lab
from tests.support.docs import ROOT, text_of
from tests.support.machine import wait_for
from tests.support.missing import need
from tests.support.ports import free_port
from tests.support.systemd_user import UserManager

UNITS = sorted(path for path in (ROOT / "docs/systemd").iterdir() if path.is_file())
MACHINE_UNITS = sorted((ROOT / "docs/systemd/system").iterdir())
SOMEBODY = 7002


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach: that of pytest is closed to others whenever another pytest begins."""
    with tempfile.TemporaryDirectory(prefix="gpuboard-systemd-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def home(place: Path) -> Path:
    """A home with our units, and the scripts where ./install.sh puts them."""
    home = place / "home"
    units = home / ".config/systemd/user"
    units.mkdir(parents=True)
    for unit in UNITS:
        text = re.sub("^RestartSec=.*", "RestartSec=1", unit.read_text(), flags=re.MULTILINE)  # nobody waits here
        (units / unit.name).write_text(text)
    shutil.copytree(ROOT / "scripts", home / ".local/share/gpuboard/scripts")
    (home / ".local/bin").mkdir()
    shutil.copytree(ROOT / "site_builder/demo/stand-ins", place / "stand-ins")
    (home / ".local/bin/nvidia-smi").symlink_to(place / "stand-ins/nvidia-smi")
    program = home / ".local/bin/gpuboard"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m site_builder "$@"\n')
    program.chmod(0o755)
    (home / ".config/gpuboard").mkdir()
    return home


def settle(home: Path, **settings: object) -> None:
    """Write gpuboard.conf."""
    text = "".join(f"GPUBOARD_{key}={value}\n" for key, value in settings.items())
    (home / ".config/gpuboard/gpuboard.conf").write_text(text)


def test_systemd_understands_the_units(home: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    need("" if analyze else "systemd-analyze is not here; ./install.sh test installs it")
    assert analyze
    (home / "run").mkdir()
    done = subprocess.run(
        [analyze, "verify", "--user", "--man=no", *map(str, UNITS)],
        env={"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_units_for_the_whole_machine_are_those_of_a_user_and_understood(home: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    need("" if analyze else "systemd-analyze is not here; ./install.sh test installs it")
    assert analyze
    for unit in MACHINE_UNITS:
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, cwd=home
        )
        assert done.returncode == 0, done.stderr
        of_user = (ROOT / "docs/systemd" / unit.name.replace("@", "")).read_text()

        def lines(text: str) -> list[str]:
            text = text.replace('exec "$HOME/.local/bin/gpuboard"', "%h/.local/bin/gpuboard")
            text = re.sub(r"ExecStart=/bin/sh -c '(%h.*)'", r"ExecStart=\1", text)
            return [line for line in text.splitlines() if line.startswith("ExecStart") or re.match(r"[A-Z]\w+=", line)]

        differing = set(lines(unit.read_text())) ^ set(lines(of_user))
        assert {line.partition("=")[0] for line in differing} == {
            *("Description", "Wants", "After", "User", "WorkingDirectory", "WantedBy")
        }
        assert "User=%i" in unit.read_text()


def test_the_page_documents_exactly_the_units_that_exist() -> None:
    assert set(re.findall(r"systemd/(gpuboard-[a-z]+\.[a-z]+)\)", text_of("docs/systemd.md"))) == {
        unit.name for unit in UNITS
    }


@pytest.mark.slow
@pytest.mark.root
def test_the_loops_of_a_host_live_and_end_with_their_service(home: Path, place: Path) -> None:
    data, smi = place / "data", place / "smi"
    for folder in (data, smi):
        folder.mkdir()
    settle(home, DEST=data, SPOOL=place / "spool", GPUS_EVERY=1, PROCESSES_EVERY=1, PS_EVERY=1)
    subprocess.run(["/usr/bin/chown", "-R", f"{SOMEBODY}:{SOMEBODY}", str(place)], check=True)
    path = f"{home}/.local/bin:/usr/bin:/bin"
    scripts = home / ".local/share/gpuboard/scripts"
    with UserManager(place, home, SOMEBODY, SMI=str(smi), PATH=path) as manager:
        all_well = partial(manager.run, "sh", "-c", f"{scripts}/gpu-check.sh status >&2 && echo well", check=False)
        manager.call("enable", "--now", "gpuboard-host.service")
        wait_for(all_well)
        dies_and_comes_back(manager, "gpuboard-host.service")
        wait_for(all_well)
        assert len(list(data.iterdir())) == 1
        doctor_report = json.loads(manager.run("sh", "-c", f"{scripts}/gpu-doctor.sh --json || :"))
        check_statuses = {check["id"]: check["status"] for check in doctor_report["checks"]}
        assert (check_statuses["crontab"], check_statuses["loops"], check_statuses["push"]) == ("pass", "pass", "pass")
        manager.call("stop", "gpuboard-host.service")
        assert "gpu-run.sh" not in manager.run("ps", "-eo", "args=")


@pytest.mark.slow
@pytest.mark.root
def test_builder_and_server_are_started_again_when_they_die(home: Path, place: Path) -> None:
    lab = Lab(place / "lab")
    lab.host("atlas")
    port = free_port()
    settle(home, DATA=lab.data, WWW=lab.www, STATE=lab.state, LISTEN=f"127.0.0.1:{port}")

    def answers() -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                return b"atlas" in answer.read()
        except OSError:
            return False

    with UserManager(place, home) as manager:
        manager.call("enable", "--now", "gpuboard-build.service")
        wait_for((lab.www / "index.html").exists)
        manager.call("enable", "--now", "gpuboard-serve.service", "gpuboard-report.timer")
        wait_for(answers)
        for unit in ("gpuboard-build.service", "gpuboard-serve.service"):
            dies_and_comes_back(manager, unit)
        wait_for(answers)
        assert "gpuboard-report.service" in manager.call("list-timers")
        manager.call("stop", "gpuboard-build.service", "gpuboard-serve.service")
        assert "site_builder" not in manager.run("ps", "-eo", "args=")


def dies_and_comes_back(manager: UserManager, unit: str) -> None:
    """Kill the first process of a unit; another must take its place."""
    first = manager.main_pid(unit)
    manager.run("kill", "-9", str(first))
    wait_for(lambda: manager.main_pid(unit) not in {0, first}, 60, 0.5)
