"""A lab for tests of the builder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.command_line import run_gpuboard

ROOT = Path(__file__).parents[2]


def gpuboard(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a user calls it in the lab's folder."""
    return run_gpuboard(lab.data.parent, *arguments, HOME=str(lab.data.parent), TZ="UTC")


def busy_lab(lab: Lab) -> None:
    """Two hosts: one with a job and a free GPU, one that is idle."""
    lab.host("atlas", gpu(0, 7000, 97) + gpu(1), process(42), person(42, "alice"))
    lab.host("hydra", gpu(0, uuid="GPU-h"))


def signatures(lab: Lab) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(lab.www)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in lab.www.rglob("*") if p.is_file()
    }
