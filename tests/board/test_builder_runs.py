"""Builds that are killed, that find no room, that follow one another, and that use both cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from site_builder.board import commands as board_commands
from site_builder.board.builder import Builder, BuildReport
from site_builder.core import parallel
from site_builder.core.clock import Now
from site_builder.core.model import HostSnapshot, HostStatus
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.host_state import HostStatusSources
from tests.support.board_fixture import Lab, gpu, process, words
from tests.support.builder_fixtures import ROOT, busy_lab, gpuboard, signatures
from tests.support.machine import wait_for

LONG = 60  # seconds: a machine that is busy with something else is no failure of ours


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


# Whole or absent


@pytest.mark.slow
def test_killed_at_any_moment_a_build_leaves_whole_files(lab: Lab) -> None:
    for number in range(40):
        lab.host(f"gpu{number}", gpu(0, uuid=f"GPU-{number}"))
    lab.build()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "site_builder", "build"]
    for delay in range(12):
        lab.host("gpu1", gpu(0, 4000 + delay, 9, uuid="GPU-1"), process(42 + delay, "GPU-1"))
        with subprocess.Popen(command, cwd=lab.data.parent, env=environment) as builder:
            time.sleep(0.1 + delay * 0.03)
            builder.send_signal(signal.SIGKILL)
        assert lab.page().endswith("</html>")
        assert len(lab.status()["hosts"]) == 40
    assert gpuboard(lab, "build").returncode == 0
    assert lab.host_status("gpu1")["gpus"][0]["memory.used"] == 4011
    assert [path.name for path in lab.www.iterdir() if path.name.startswith(".")] == []


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of 2 MB."""
    path.mkdir()
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["/usr/bin/umount", str(path)], check=True)


needs_root = pytest.mark.root


@needs_root
def test_out_of_disk_the_old_page_stays_whole_and_one_sentence_says_why(lab: Lab) -> None:
    busy_lab(lab)
    with small_disk(lab.www):
        assert gpuboard(lab, "build").returncode == 0
        before = lab.page()
        (lab.www / "filler").write_bytes(b"x" * (os.statvfs(lab.www).f_bavail * 4096 - 8192))
        lab.host("hydra", "".join(gpu(n, uuid=f"GPU-{n}-{'x' * 60}") for n in range(60)))
        result = gpuboard(lab, "build")
        assert (result.returncode, lab.page()) == (2, before)
        assert "could not be written: No space left on device; the site was not updated" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        (lab.www / "filler").unlink()
        assert gpuboard(lab, "build").returncode == 0
        assert [path.name for path in lab.www.iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_is_not_there_or_cannot_be_read_is_one_sentence_and_exit_2(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    before = signatures(lab)
    result = gpuboard(lab, "build", "--data", "nowhere")
    assert (result.returncode, result.stdout) == (2, "")
    where = lab.data.parent / "nowhere"
    hint = "start gpuboard in the folder that contains it, or set GPUBOARD_DATA"
    assert result.stderr == f"gpuboard: {where} does not exist: {hint}\n"
    assert signatures(lab) == before


@pytest.mark.parametrize("folder", ["www", "state"])
def test_a_folder_that_cannot_be_written_is_one_sentence_and_exit_2(lab: Lab, folder: str) -> None:
    busy_lab(lab)
    result = gpuboard(lab, "build", f"--{folder}", "/proc/none")
    assert result.returncode == 2
    assert result.stderr.startswith("gpuboard: /proc/none")
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_of_which_one_host_cannot_be_read_costs_that_host(lab: Lab) -> None:
    busy_lab(lab)
    (lab.data / "hydra/gpus.csv").unlink()
    (lab.data / "hydra/gpus.csv").mkdir()
    report = lab.build()
    assert words(report) == "data/hydra/gpus.csv: not read: it is not a plain file"
    assert (lab.host_status("hydra")["state"], lab.states("atlas")) == ("failed", ["busy", "free"])


def test_a_damaged_memory_costs_nothing_but_itself(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    for path in lab.state.iterdir():
        if path.is_file():
            path.write_bytes(b"\x80\x04nonsense {")
    (lab.www / "index.html").unlink()
    report = lab.build()
    assert report.host_count == 2
    # what the hosts cannot tell again
    assert [problem.where for problem in report.problems] == ["state/history.db", "state/memory.json"]
    assert "index.html" in report.written_files


def test_an_empty_share_keeps_the_hosts_on_the_board(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    lab.data.rename(lab.data.with_name("away"))
    lab.data.mkdir()
    lab.build(after=700)
    assert lab.host_status("atlas")["state"] == "down"
    assert "its files are missing from data/" in lab.host_status("atlas")["reason"]


# Again and again


@pytest.mark.slow
def test_for_cron_it_builds_again_and_again_and_ends_in_time(lab: Lab) -> None:
    busy_lab(lab)
    began = time.monotonic()
    builder = subprocess.Popen(
        [sys.executable, "-m", "site_builder", "build", "--every", "1", "--for", "4"],
        cwd=lab.data.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    wait_for((lab.www / "index.html").exists, LONG)
    lab.host("nile", gpu(0, uuid="GPU-n"))
    wait_for(lambda: "nile" in lab.page(), LONG)
    _, error_output = builder.communicate(timeout=LONG)
    assert (builder.returncode, error_output) == (0, b"")
    assert 3 <= time.monotonic() - began < LONG


@pytest.mark.slow
def test_a_second_builder_waits_for_the_lock_and_the_board_never_pauses(lab: Lab) -> None:
    busy_lab(lab)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "site_builder", "build", "--every", "1", "--for"]
    first = subprocess.Popen([*command, "3"], cwd=lab.data.parent, env=environment)
    wait_for((lab.www / "index.html").exists, LONG)
    second = subprocess.Popen([*command, "6"], cwd=lab.data.parent, env=environment)
    first.wait(timeout=LONG)
    lab.host("late", gpu(0, uuid="GPU-late"))
    wait_for(lambda: "late" in lab.page(), LONG)
    assert second.wait(timeout=LONG) == 0


@pytest.mark.slow
def test_a_builder_that_never_gets_the_lock_ends_in_its_time_without_a_word(lab: Lab) -> None:
    busy_lab(lab)
    first = subprocess.Popen(
        [sys.executable, "-m", "site_builder", "build", "--every", "1"],
        cwd=lab.data.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        wait_for((lab.www / "index.html").exists, LONG)
        result = gpuboard(lab, "build", "--every", "1", "--for", "1")
        assert result.returncode == 0
        assert "Traceback" not in result.stderr
    finally:
        first.kill()
        first.wait()
    assert gpuboard(lab, "build").returncode == 0  # whoever is killed frees the lock


def test_the_same_error_is_printed_once_a_run_and_the_next_build_is_tried(lab: Lab) -> None:
    result = gpuboard(lab, "build", "--every", "1", "--for", "3", "--data", "nowhere")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_for_without_every_is_wrong_use(lab: Lab) -> None:
    assert gpuboard(lab, "build", "--for", "60").returncode == 2


def test_a_build_by_hand_or_by_cron_says_nothing_into_a_pipe(lab: Lab) -> None:
    busy_lab(lab)
    lab.book("{")
    result = gpuboard(lab, "build")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_unforeseen_error_is_one_sentence(lab: Lab) -> None:
    busy_lab(lab)
    (lab.state / "forget").mkdir()
    (lab.state / "forget/atlas").mkdir()  # a request is a file, so that this can never be taken back
    result = gpuboard(lab, "build")
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_a_host_at_which_we_fail_costs_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    busy_lab(lab)
    real = host_state.decide_host_status

    def failing(case: HostStatusSources, snapshot: HostSnapshot, rules: StateRules, now: Now) -> HostStatus:
        if case.discovered.name == "hydra":
            message = "oh"
            raise ZeroDivisionError(message)
        return real(case, snapshot, rules, now)

    monkeypatch.setattr(host_state, "decide_host_status", failing)
    assert "data/hydra: its files could not be parsed" in words(lab.build())
    assert (lab.host_status("hydra")["state"], lab.states("atlas")) == ("failed", ["busy", "free"])


class FakeTime:
    """A clock that moves as somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_slow_builder_ends_in_its_time_and_makes_up_for_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    began = clock.now
    builds: list[float] = []

    def slow(_: Builder, at: float) -> BuildReport:
        builds.append(at - began)
        clock.sleep(1.2)
        return BuildReport(0, {}, [], [], [])

    monkeypatch.setattr(Builder, "build", slow)
    monkeypatch.setattr(board_commands, "time", clock)
    board_commands.run_build_command_loop(Builder(lab.settings()), 1, began, began + 3)
    assert builds == [0, 2]
    assert clock.now - began < 4


# Both cores


@pytest.mark.slow
def test_many_hosts_are_made_on_both_cores_with_the_same_result(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(parallel.MIN_PARALLEL_ITEMS):
        lab.host(f"gpu{number}", gpu(0, 100 + number, uuid=f"GPU-{number}"))
    at = time.time()
    both = Builder(lab.settings())
    both.build(at)
    monkeypatch.setattr(parallel, "MIN_PARALLEL_ITEMS", 10_000)
    (lab.state / "cards.kept").unlink(missing_ok=True)
    alone = Builder(lab.settings())
    alone.build(at)
    assert both.pipeline.built_hosts == alone.pipeline.built_hosts


def test_without_room_for_a_child_one_core_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", fork)
    assert parallel.map_parallel(lambda item: item * 2, range(500)) == [item * 2 for item in range(500)]


def test_a_child_that_dies_leaves_no_gap() -> None:
    mother = os.getpid()

    def work(item: int) -> int:
        if os.getpid() != mother:
            os.kill(os.getpid(), signal.SIGKILL)
        return item * 2

    assert parallel.map_parallel(work, range(500)) == [item * 2 for item in range(500)]


@pytest.mark.slow
def test_the_work_of_a_child_that_dies_midway_counts_and_the_rest_is_redone() -> None:
    mother, done = os.getpid(), []

    def work(item: int) -> int:
        if os.getpid() != mother:
            done.append(item)
            if len(done) > 20:
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            time.sleep(0.001)  # the child has its share
        return item * 2

    assert parallel.map_parallel(work, range(500)) == [item * 2 for item in range(500)]


def test_a_python_that_cannot_share_memory_shares_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert parallel.map_parallel(lambda item: item * 2, range(500)) == [item * 2 for item in range(500)]
