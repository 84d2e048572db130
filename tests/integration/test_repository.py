"""The ground that the project stands on: one version, layers that lint enforces, docs that do not drift."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from site_builder import __version__
from tests.conftest import LONGEST
from tests.support.command_line import run_gpuboard
from tests.support.docs import ALL_COMMANDS
from tests.support.machine import PYTHON, build_wheel, packages, write_python

ROOT = Path(__file__).parents[2]


def run(*command: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=False)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def ruff(path: str, code: str) -> str:
    return run(sys.executable, "-m", "ruff", "check", "--stdin-filename", path, "-", text=code).stdout


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("site_builder/discovery/x.py", "import consul"),
        ("site_builder/bookings/x.py", "import paramiko"),
        ("site_builder/slack/x.py", "import slack_sdk"),
        ("site_builder/watches/x.py", "import apprise"),
    ],
)
def test_a_library_is_imported_by_the_one_module_that_knows_it(path: str, line: str) -> None:
    assert "TID251" in ruff(path, f'"""A module."""\n\n{line}\n')


def test_a_package_that_imports_one_to_its_right_is_refused(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "site_builder", tmp_path / "site_builder")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "site_builder/core/x.py").write_text("import site_builder.web.server\n")
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        *(),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "site_builder.core.x -> site_builder.web.server" in done.stdout


def test_tests_stand_in_the_folder_of_what_they_test() -> None:
    """tests/P/test_M.py and tests/P/test_M_topic.py test the module or folder M of site_builder/P."""
    packages = {path.parent.name for path in (ROOT / "site_builder").glob("*/__init__.py")}
    misplaced = []
    for test in (ROOT / "tests").rglob("test_*.py"):
        package = test.relative_to(ROOT / "tests").parts[0]
        if package in packages:
            modules = (ROOT / "site_builder" / package).rglob("*")
            names = {path.stem for path in modules if path.suffix == ".py" or path.is_dir()} - {
                "__init__",
                "__pycache__",
            }
            if not any(f"{test.stem}_".startswith(f"test_{name}_") for name in names):
                misplaced.append(str(test.relative_to(ROOT)))
        elif package not in ("integration", "test_api.py", "test_cli.py"):
            misplaced.append(str(test.relative_to(ROOT)))
    assert misplaced == []


def test_the_longest_test_files_are_still_there() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []


def test_modules_that_scripts_name_exist() -> None:
    """mypy sees none of these: scripts and host tests name modules and functions of the package in their text."""
    wrong = []
    for path in (path for folder in ("install", "scripts", "tests/host") for path in files(ROOT / folder)):
        text = path.read_text(errors="replace")
        for module, names in re.findall(r"from (site_builder[.\w]*) import ([\w, ]+)", text):
            there = vars(import_module(module))
            wrong += [f"{path.name}: {module}.{name}" for name in names.split(", ") if name not in there]
    assert wrong == []


def test_the_collector_has_the_version_of_the_package() -> None:
    assert f"\nGPUBOARD_VERSION={__version__}\n" in (ROOT / "scripts/lib/common.sh").read_text()


def test_the_command_reports_its_version() -> None:
    assert run(sys.executable, "-m", "site_builder", "--version").stdout.split()[-1] == __version__


def test_every_setting_of_the_host_side_is_documented() -> None:
    settings: set[str] = set()
    for script in (ROOT / "scripts").rglob("*.sh"):
        settings |= set(re.findall(r"\bGPUBOARD_[A-Z_]+", script.read_text()))
    documented = set(re.findall(r"^\| `(GPUBOARD_[A-Z_]+)`", (ROOT / "docs/hosts.md").read_text(), re.MULTILINE))
    # which gpu-receive.sh and gpu-enrol.sh read there; docs/settings.md has them
    of_the_web_host = {"GPUBOARD_DATA", "GPUBOARD_STATE"}
    assert settings - of_the_web_host - {"GPUBOARD_VERSION"} == documented


@pytest.mark.parametrize("script", ["gpu-run.sh", "gpu-check.sh"])
def test_the_docs_have_every_use_of_each_script(script: str) -> None:
    text = run(f"scripts/{script}", "--help")
    assert text.returncode == 0
    uses = re.findall(rf"^  ({script}(?: (?:--)?[a-z0-9]+)?) ", text.stdout, re.MULTILINE)
    assert len(uses) >= 4
    table = (ROOT / "docs/hosts.md").read_text().split("## The two commands")[1].split("\n## ")[0]
    assert [use for use in uses if f"`{use}" not in table] == []


@pytest.mark.parametrize("script", ["scripts/gpu-run.sh", "scripts/gpu-check.sh", "./install.sh", "bench/run"])
def test_help_fits_a_terminal_of_80_columns(script: str) -> None:
    result = run(script, "--help")
    assert result.returncode == 0
    assert [line for line in result.stdout.splitlines() if len(line) > 79] == []


def test_wrong_use_of_a_script_is_exit_2_with_the_help_on_stderr() -> None:
    result = run("scripts/gpu-run.sh", "4")
    assert (result.returncode, result.stdout) == (2, "")
    assert "gpu-run.sh once" in result.stderr


def test_remove_knows_every_file_that_the_scripts_keep_in_the_spool() -> None:
    scripts = "".join(path.read_text() for path in files(ROOT / "scripts"))
    kept = set(re.findall(r"\$SPOOL/([a-z][a-z_.]*)", scripts))
    (removed,) = re.findall(r"rm -rf (run .*)\)", (ROOT / "install/user.sh").read_text())
    names = {name.rstrip("*") for name in removed.split()}
    assert {"amd", "refused.", "gpus.csv"} <= names
    assert kept - names == set()


def test_no_host_script_is_longer_than_150_lines() -> None:
    long = {p.name for p in (ROOT / "scripts").rglob("*") if p.is_file() and len(p.read_text().splitlines()) > 150}
    assert long == set()


@pytest.mark.parametrize("command", ["", *ALL_COMMANDS])
def test_help_of_the_commands_fits_a_terminal_too(command: str, tmp_path: Path) -> None:
    result = run_gpuboard(tmp_path, *command.split(), "--help")
    assert result.returncode == 0
    assert [line for line in result.stdout.splitlines() if len(line) > 79] == []


@pytest.mark.parametrize("kind", ["host", "gpu"])
def test_every_state_is_documented_and_no_other(kind: str) -> None:
    states = json.loads((ROOT / "docs/status.schema.json").read_text())["$defs"][kind]["properties"]["state"]["enum"]
    title = {"host": "host", "gpu": "GPU"}[kind]
    table = (ROOT / "docs/board.md").read_text().split(f"| {title} | when |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"^\| ([a-z]+) \|", table, re.MULTILINE)) == sorted(states)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first time, pip fetches what is kept
def test_what_pip_installs_has_all_that_a_page_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assets = {f"site_builder/assets/{path.name}" for path in (ROOT / "www/assets").iterdir()}
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "site_builder").glob("*/templates/*")}
    assert len(templates) > 15
    scripts = {f"site_builder/scripts/{path.relative_to(ROOT / 'scripts')}" for path in files(ROOT / "scripts")}
    stand_ins = {str(path.relative_to(ROOT)) for path in files(ROOT / "site_builder/demo/stand-ins")}
    assert assets | templates | scripts | stand_ins <= names
    assert any(name.endswith(".data/data/share/man/man1/gpuboard.1") for name in names)


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first time, pip fetches what is kept
def test_what_pip_installs_shows_a_simulated_lab(wheel: Path, tmp_path: Path) -> None:
    venv, python = tmp_path / "venv", tmp_path / "python3"
    write_python(python, PYTHON, str(packages()))
    assert run(str(python), "-m", "venv", str(venv)).returncode == 0
    made = run(str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-index", "--no-compile", str(wheel))
    assert made.returncode == 0, made.stderr
    shown = subprocess.run(
        [venv / "bin/gpuboard", "demo", "--once", "--folder", "lab"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    hosts = json.loads((tmp_path / "lab/www/status.json").read_text())["hosts"]
    assert {host["state"] for host in hosts} == {"fresh", "down", "maintenance"}
