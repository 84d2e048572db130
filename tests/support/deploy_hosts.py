"""A lab for `gpuboard deploy`: one machine whose users are the GPU hosts, and gpuboard@web, who deploys to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.machine import ROOT, Machine, keygen

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = next(Path(path) for path in sys.path if (Path(path) / "paramiko").is_dir())
DATA = "/home/gpuboard/data"


class Lab:
    """Boxes box01, box02, … of which gpuboard has the key; `gpuNN=boxNN@web` is the word for one."""

    def __init__(self, machine: Machine, count: int) -> None:
        """Let gpuboard log in to each, and run this very program."""
        self.machine = machine
        self.boxes = [f"box{number:02}" for number in range(1, count + 1)]
        self.names = [f"gpu{number:02}" for number in range(1, count + 1)]
        self.words = [f"{name}={box}@web" for name, box in zip(self.names, self.boxes)]
        ssh = machine.path("/home/gpuboard/.ssh")
        keygen(ssh / "id_ed25519")
        for file in ("config", "known_hosts"):
            shutil.copy(machine.path(f"/home/lab/.ssh/{file}"), ssh / file)
        machine.path(DATA).mkdir()
        machine.give("gpuboard", "/home/gpuboard")
        for box in self.boxes:
            keys = machine.path(f"/home/{box}/.ssh/authorized_keys")
            shutil.copy(ssh / "id_ed25519.pub", keys)
            machine.give(box, f"/home/{box}")
        # ours may be in a folder that is closed to users
        for place, source in (("python", sys.base_prefix), ("packages", PACKAGES), ("project", ROOT)):
            machine.run("root", f"mkdir /srv/{place} && mount --bind '{source}' /srv/{place}")

    def command(self, *words: str) -> list[str]:
        """What gpuboard types on the web host."""
        return [f"/srv/python/bin/{PYTHON}", "-m", "site_builder", "deploy", "--data", DATA, *words]

    @property
    def environment(self) -> dict[str, str]:
        """Without what somebody's own has."""
        return {"PYTHONPATH": "/srv/project:/srv/packages", "PYTHONDONTWRITEBYTECODE": "1"}

    def deploy(self, *words: str, code: int = 0, timeout: float = 240) -> str:
        """All that it says."""
        done = self.machine.run("gpuboard", self.command(*words), check=False, env=self.environment, timeout=timeout)
        assert done.returncode == code, done.stdout
        return done.stdout

    def results(self, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
        """What it says for programs, by the name of each host."""
        lines = self.deploy("--json", *words, code=code).splitlines()
        (answer,) = (line for line in lines if line.startswith("["))
        return {row["name"]: row for row in json.loads(answer)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same, beside us."""
        command = self.machine.command("gpuboard", self.command(*words), "/home/gpuboard", self.environment)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def interrupt(self, started: subprocess.Popen[str]) -> None:
        """Press Ctrl-C; nsenter only waits for what runs inside."""
        ps = ["/usr/bin/ps", "-o", "pid=", "--ppid", str(started.pid)]
        inside = subprocess.run(ps, capture_output=True, check=True).stdout
        os.kill(int(inside.split()[0]), signal.SIGINT)

    def enrolled(self) -> str:
        """authorized_keys of the web host."""
        file = self.machine.path("/home/gpuboard/.ssh/authorized_keys")
        return file.read_text() if file.exists() else ""

    def home(self, number: int) -> Path:
        """That of one box."""
        return self.machine.path(f"/home/{self.boxes[number]}")
