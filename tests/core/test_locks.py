"""Locks beside the files that they protect."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_builder.core import locks


def test_a_lock_in_a_folder_that_cannot_be_checked_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(locks, "check_lock_folder", fail)
    with (
        pytest.raises(locks.LockedFileError, match="cannot be opened: Permission denied"),
        locks.hold_file_lock(tmp_path / "tokens.json"),
    ):
        pass
