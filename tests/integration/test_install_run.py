"""./install.sh run and test: what they make in the clone, and what they leave alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import HOMES, PATH, Machine, need_machine

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]  # the first time, pip fetches what is kept

FRONT = f"{HOMES['lab']}/my lab/gpuboard"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One without GPUs."""
    need_machine()
    prepared_machine = Machine(tmp_path_factory.mktemp("machine"))
    prepared_machine.add_packages()
    prepared_machine.path("/usr/local/sbin/nvidia-smi").unlink()
    prepared_machine.copy_project("lab", "my lab/gpuboard")
    with prepared_machine:
        yield prepared_machine


@pytest.fixture(scope="module")
def clone(machine: Machine) -> Path:
    return machine.path(FRONT)


def run_here(machine: Machine, *words: str, **env: str) -> tuple[int, str]:
    done = machine.run("lab", [f"{FRONT}/install.sh", "run", *words], check=False, env=env)
    return done.returncode, done.stdout


def stand_ins(machine: Machine, *names: str, rule: str) -> str:
    """A PATH in which these programs come first."""
    folder = machine.path("/home/lab/bin")
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{rule}\n")
        (folder / name).chmod(0o755)
    return "/home/lab/bin:/usr/bin:/bin"


def test_run_without_a_new_python_names_the_one_command_that_helps(machine: Machine, clone: Path) -> None:
    names = ["python3", *(f"python3.{minor}" for minor in range(9, 14))]
    path = stand_ins(machine, *names, rule="exit 1")
    code, words = run_here(machine, PATH=path)
    assert (code, len(words.splitlines())) == (2, 1)
    assert "sudo apt-get install python3 python3-venv" in words
    assert not (clone / ".venv").exists()


def test_run_without_venv_names_the_one_command_that_helps(machine: Machine, clone: Path) -> None:
    rule = 'case $* in *ensurepip*) exit 1 ;; esac\nexec /usr/bin/python3 "$@"'
    code, words = run_here(machine, PATH=stand_ins(machine, "python3", rule=rule))
    assert (code, len(words.splitlines())) == (2, 1)
    assert "sudo apt-get install python3-venv" in words
    shutil.rmtree(machine.path("/home/lab/bin"))
    assert not (clone / ".venv").exists()


def test_run_installs_what_venv_needs_where_it_is_root(machine: Machine, clone: Path) -> None:
    there = "/home/lab/bin/there"
    rule = f'case $* in *ensurepip*) exec test -e {there} ;; *"-m venv"*) exit 7 ;; esac\nexec /usr/bin/python3 "$@"'
    stand_ins(machine, "python3", rule=rule)
    path = stand_ins(machine, "apt-get", rule=f'case $1 in install) echo "$@" >{there} ;; esac')
    done = machine.run("root", [f"{FRONT}/install.sh", "run"], check=False, env={"PATH": path})
    shutil.rmtree(machine.path("/home/lab/bin"))
    assert done.stdout == "Installing python3-venv by apt-get\nCreating .venv with python3\n"
    assert not (clone / ".venv").exists()


def test_a_pip_that_fails_is_heard_and_tried_again(machine: Machine, clone: Path) -> None:
    code, words = run_here(machine, PIP_FIND_LINKS="/nowhere", PATH=PATH)
    assert code == 2
    assert "No matching distribution found" in words
    assert "pip could not install the dependencies of gpuboard" in words
    assert not (clone / ".venv/.installed").exists()


def test_run_makes_all_it_needs_and_shows_a_simulated_lab_where_there_is_no_gpu(machine: Machine, clone: Path) -> None:
    words = run_here(machine, "--nonsense", PATH=PATH)[1]  # by pip alone
    assert "Installing gpuboard and its dependencies into .venv\n" in words
    assert "No GPU was found (by nvidia-smi, amd-smi or rocm-smi): showing a simulated lab.\n" in words
    assert "Usage: gpuboard demo" in words
    assert (clone / ".venv/.installed").exists()


def test_a_second_run_installs_nothing_and_takes_the_gpus_where_there_are_some(machine: Machine) -> None:
    path = stand_ins(machine, "nvidia-smi", rule="echo 'GPU 0: NVIDIA T4 (UUID: GPU-1)'")
    words = run_here(machine, "--nonsense", PATH=path)[1]
    shutil.rmtree(machine.path("/home/lab/bin"))
    assert words.startswith("Usage: gpuboard here [OPTIONS]\n")


@pytest.mark.parametrize(("tool", "tool_output"), [("amd-smi", '[{"gpu": 0}]'), ("rocm-smi", '{"card0": {}}')])
def test_gpus_of_amd_are_gpus_too(machine: Machine, tool: str, tool_output: str) -> None:
    path = stand_ins(machine, tool, rule=f"echo '{tool_output}'")
    words = run_here(machine, "--nonsense", PATH=path)[1]
    shutil.rmtree(machine.path("/home/lab/bin"))
    assert words.startswith("Usage: gpuboard here [OPTIONS]\n")


def test_a_venv_that_was_moved_is_made_anew(machine: Machine, clone: Path) -> None:
    made = (clone / ".venv/made-as").read_text()
    (clone / ".venv/made-as").write_text(made.replace("my lab", "your lab"))
    (clone / ".venv/old").touch()
    words = run_here(machine, "--nonsense")[1]
    assert "Usage: gpuboard demo" in words
    assert not (clone / ".venv/old").exists()
    assert (clone / ".venv/made-as").read_text() == made


def test_a_venv_of_somebody_else_that_works_is_taken_up(machine: Machine, clone: Path) -> None:
    (clone / ".venv/made-as").unlink()
    (clone / ".venv/theirs").touch()
    words = run_here(machine, "--nonsense")[1]
    assert "Usage: gpuboard demo" in words
    assert (clone / ".venv/theirs").exists()
    assert (clone / ".venv/made-as").read_text().endswith(f"{FRONT}/.venv\n")


def test_a_venv_of_somebody_else_that_was_moved_is_made_anew(machine: Machine, clone: Path) -> None:
    (clone / ".venv/made-as").unlink()
    (clone / ".venv/theirs").touch()
    activate = clone / ".venv/bin/activate"
    activate.write_text(activate.read_text().replace("my lab", "your lab"))
    words = run_here(machine, "--nonsense")[1]
    assert "Usage: gpuboard demo" in words
    assert not (clone / ".venv/theirs").exists()


@pytest.fixture(scope="module")
def few_tools(machine: Machine, clone: Path) -> str:
    """A PATH without the tools of the tests, in a clone whose .venv finds no fault but runs no test."""
    missing = ("shellcheck", "shfmt", "npm", "bats", "apt-get", "sudo")
    folder = machine.path("/home/lab/few")
    folder.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if tool.name not in missing:
            (folder / tool.name).symlink_to(tool)
    shutil.rmtree(clone / ".venv", ignore_errors=True)
    (clone / ".venv/bin").mkdir(parents=True)
    for name, rule in (
        ("ruff", ":"),
        ("lint-imports", ":"),
        ("mypy", ":"),
        ("python", "case $* in *pytest*) exit 7 ;; *version_info*3,\\ 10*) exit 1 ;; esac; echo it"),
    ):
        (clone / ".venv/bin" / name).write_text(f"#!/bin/sh\n{rule}\n")
        (clone / ".venv/bin" / name).chmod(0o755)
    (clone / ".venv/made-as").write_text("it\n")
    (clone / ".venv/.installed-dev").touch()
    machine.give("lab", "/home/lab")
    return "/home/lab/few:/usr/lib/wsl/lib"


def test_a_check_whose_tool_is_missing_is_left_out_and_reported(machine: Machine, few_tools: str) -> None:
    done = machine.run("lab", [f"{FRONT}/install.sh", "test"], check=False, env={"PATH": few_tools})
    assert done.returncode == 1, done.stdout  # of the tests that this .venv cannot run
    for tool in ("shellcheck", "shfmt", "npm", "bats"):
        assert done.stdout.count(f"Left out: all that needs {tool},") == 1
    assert "not found" not in done.stdout


def test_in_ci_a_check_whose_tool_is_missing_is_a_failure(machine: Machine, few_tools: str) -> None:
    for command, tool in (
        ("install.sh test", "npm"),
        ("tests/run.sh checks", "shellcheck"),
        ("tests/run.sh host", "bats"),
    ):
        words = f"'{FRONT}'/{command}"
        done = machine.run("lab", words, check=False, env={"PATH": few_tools, "CI": "1"})
        assert done.returncode == 2
        assert f"{tool} is not installed, and in CI no check is left out" in done.stdout
