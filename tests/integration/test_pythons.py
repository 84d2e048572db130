"""The README's first command under every Python that we promise, as far as this machine has them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import clean_environment
from tests.support.live_page import Live, is_gone
from tests.support.machine import copy_files

MINORS = range(9, 14)
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


def found() -> dict[str, str]:
    """The Pythons that are here, by their version; a name may lead to another one than it says."""
    pythons = {}
    for minor in MINORS:
        kept = [str(path) for path in PYENV.glob(f"3.{minor}.*/bin/python3")]
        for path in filter(None, [*kept, shutil.which(f"python3.{minor}")]):
            version_output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if version_output.startswith(f"Python 3.{minor}."):
                pythons[f"3.{minor}"] = path
    return pythons


PYTHONS = found()


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_install_sh_run_shows_a_board_under_python(version: str, tmp_path: Path) -> None:
    clone = tmp_path / "my lab/gpuboard"
    copy_files(clone)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3"
    python.write_text(f'#!/bin/sh\nexec {PYTHONS[version]} "$@"\n')
    python.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    with Live(clone, "run", command=["./install.sh"], PATH=path) as board:
        assert len(board.status()["hosts"]) == 15
        children = board.children()
        assert board.stop() == 0
    assert all(is_gone(pid) for pid in children)
    venv = subprocess.run([clone / ".venv/bin/python", "--version"], capture_output=True, text=True, check=True)
    assert venv.stdout.startswith(f"Python {version}.")
    command, variables = ["./install.sh", "run", "--nothing"], clean_environment(PATH=path)
    again = subprocess.run(command, cwd=clone, env=variables, capture_output=True, text=True, check=False)
    assert "No such option" in again.stderr
    assert "Installing" not in again.stdout + again.stderr


def test_there_is_a_python_that_we_promise() -> None:
    assert PYTHONS
