"""Files that several processes write."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from site_builder.core import files


def test_a_line_of_the_log_survives_another_process_that_renames_the_log_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "build.log").write_text("x" * 600_000)
    rename = Path.replace

    def rename_after_another_process(path: Path, target: Path) -> Path:
        rename(path, target)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", rename_after_another_process)
    files.append_to_build_log(tmp_path, datetime(2026, 11, 18, tzinfo=timezone.utc), "new: a problem")
    assert (tmp_path / "build.log").read_text().endswith("new: a problem\n")
