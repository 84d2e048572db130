"""Outside commands: one that is missing is told from one that cannot be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_builder.core.model import EXIT_MISSING, EXIT_NOT_STARTED
from site_builder.core.subprocesses import LimitedProcess


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_program_that_is_missing_is_missing_though_the_search_for_it_met_a_closed_folder(path_folder: Path) -> None:
    (path_folder / "nvidia-smi").mkdir()  # as a closed folder of PATH, it lets exec report EACCES, also to root
    assert LimitedProcess(["nvidia-smi"]).read_output() == (EXIT_MISSING, b"")


def test_a_program_that_may_not_be_executed_cannot_be_started(path_folder: Path) -> None:
    (path_folder / "nvidia-smi").touch(mode=0o644)
    assert LimitedProcess(["nvidia-smi"]).read_output() == (EXIT_NOT_STARTED, b"")
