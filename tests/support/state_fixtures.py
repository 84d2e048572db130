"""A lab whose state folder is harmed, the command that builds it, and a pickle that would execute code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.command_line import run_gpuboard


def make_state_lab(folder: Path) -> Lab:
    """A lab of two hosts that nobody has built yet."""
    made = Lab(folder)
    made.host("atlas", gpu(0, 7000, 97) + gpu(1), process(42), person(42, "alice"))
    made.host("hydra", gpu(0, uuid="GPU-h"))
    return made


def gpuboard(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user calls it in the lab's folder."""
    return run_gpuboard(folder, *arguments, HOME=str(folder), TZ="UTC", **environment)


def problems_of(lab: Lab) -> dict[str, str]:
    return {problem["where"]: problem["what"] for problem in lab.status()["problems"]}


class Trap:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)
