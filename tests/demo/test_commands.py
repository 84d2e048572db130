"""gpuboard demo: wrong use, and folders that are not its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import run_gpuboard


def test_a_folder_that_is_used_for_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lab/data").mkdir(parents=True)
    (tmp_path / "lab/data/comments.json").write_text("{}")
    result = run_gpuboard(tmp_path, "demo", "--once", "--folder", "lab")
    assert result.returncode == 2
    assert "is not a lab of `gpuboard demo`" in result.stderr
    assert (tmp_path / "lab/data/comments.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "error_message"),
    [
        (["--once"], "--once needs --folder"),
        (["--after", "soon"], "'soon' is not a time"),
        (["--listen", "here"], "but must be address:port or a port"),
        (["--hosts", "0"], "1<=x<=1000"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, words: list[str], error_message: str) -> None:
    result = run_gpuboard(tmp_path, "demo", *words)
    assert result.returncode == 2
    assert error_message in result.stderr
