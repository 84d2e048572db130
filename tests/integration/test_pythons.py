"""Every Python that we promise, as far as this machine has it: it runs gpuboard, and the README's first command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import clean_environment
from tests.support.live_page import Live, is_gone
from tests.support.machine import build_wheel, copy_files, keep_tool, write_python

MINORS = range(9, 14)
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
# Import each module, then show a simulated lab. What is not for 3.9 would fail where a module is read.
IMPORT_AND_SHOW = """
import pkgutil, sys
from importlib import import_module
import site_builder
names = [module.name for module in pkgutil.walk_packages(site_builder.__path__, "site_builder.")]
for name in names:
    if not name.endswith("__main__"):
        import_module(name)
assert len(names) > 150, len(names)
from site_builder.cli import main
main(["demo", "--once", "--hosts", "2", "--folder", "lab"])
"""


def found() -> dict[str, str]:
    """The Pythons that are here, by their version; a name may lead to another one than it says."""
    pythons = {}
    for minor in MINORS:
        kept = [str(path) for path in PYENV.glob(f"3.{minor}.*/bin/python3")] if os.access(PYENV, os.R_OK) else []
        for path in filter(None, [*kept, shutil.which(f"python3.{minor}")]):
            version_output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if version_output.startswith(f"Python 3.{minor}."):
                pythons[f"3.{minor}"] = path
    return pythons


PYTHONS = found()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def find_venv(version: str, wheel: Path) -> Path:
    """Return a venv with what pip installs under this Python, but for gpuboard itself; kept for the next time."""

    def make(folder: Path) -> None:
        subprocess.run([PYTHONS[version], "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        wanted = [f"{wheel}[alerts,slack]", "hatchling", "editables"]
        subprocess.run([*pip, "install", "--no-compile", *wanted], check=True)
        subprocess.run([*pip, "uninstall", "--yes", "gpuboard"], check=True)

    return keep_tool(f"python{version}", make, PYTHONS[version])


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first time, pip fetches what is kept
@pytest.mark.parametrize("version", PYTHONS)
def test_each_module_is_imported_and_a_board_built_under_python(version: str, wheel: Path, tmp_path: Path) -> None:
    command = [str(find_venv(version, wheel) / "bin/python"), "-c", IMPORT_AND_SHOW]
    environment = clean_environment()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    hosts = json.loads((tmp_path / "lab/www/status.json").read_text())["hosts"]
    assert [host["state"] for host in hosts] == ["fresh", "fresh"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first time, pip fetches what is kept
def test_install_sh_run_shows_a_board_under_the_oldest_python(wheel: Path, tmp_path: Path) -> None:
    version, oldest = next(iter(PYTHONS.items()))
    (site_packages,) = find_venv(version, wheel).glob("lib/*/site-packages")
    clone = tmp_path / "my lab/gpuboard"
    copy_files(clone)
    write_python(tmp_path / "bin/python3", oldest, str(site_packages))
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
