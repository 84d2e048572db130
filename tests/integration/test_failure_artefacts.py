"""A test that fails leaves what explains it: the failure, its files, its pages, and the seed of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import ROOT

FAILING = """
import pytest

pytest_plugins = ["tests.support.failure_artefacts", "tests.support.browser"]

def test_with_files(tmp_path):
    (tmp_path / "www").mkdir()
    (tmp_path / "www/index.html").write_text("the page")
    (tmp_path / "log").write_text("the log")
    (tmp_path / "wheel.whl").write_text("of no use")
    print("what it printed")
    assert not "why it failed"

def test_with_a_page(browser):
    browser.new_page().set_content("<h1>the open page</h1>")
    assert not "why it failed"

def test_that_passes(tmp_path):
    (tmp_path / "log").write_text("the log")
"""


def run_tests(folder: Path, artefacts: Path, *options: str) -> str:
    (folder / "test_failing.py").write_text(FAILING)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "GPUBOARD_TEST_ARTEFACTS": str(artefacts)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=90
    ).stdout


def test_a_failed_test_leaves_its_output_files_and_pages(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    artefacts = tmp_path / "artefacts"
    output = run_tests(tmp_path / "tests", artefacts)
    assert "2 failed, 1 passed" in output
    names = {path.name: path for path in artefacts.iterdir()}
    with_files, with_page = sorted(names, reverse=True)
    assert (with_files, with_page) == (
        "test_failing.py-test_with_files-call",
        "test_failing.py-test_with_a_page-call",
    )
    failure = (names[with_files] / "failure.txt").read_text()
    assert "why it failed" in failure and "what it printed" in failure
    files = names[with_files] / "files"
    assert {str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()} == {"www/index.html", "log"}
    assert "the open page" in (names[with_page] / "page-0.html").read_text()
    assert (names[with_page] / "page-0.png").read_bytes().startswith(b"\x89PNG")


def test_the_seed_is_printed_after_a_failure_and_can_be_given(tmp_path: Path) -> None:
    output = run_tests(tmp_path, tmp_path / "artefacts", "-k", "files", "--hypothesis-seed", "4711")
    assert "--hypothesis-seed=4711" in output
    assert "seed" not in run_tests(tmp_path, tmp_path / "artefacts", "-k", "passes")
