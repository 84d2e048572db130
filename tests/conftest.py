"""For all tests: one browser, a history in a state folder, and a machine that is busy is no failure of ours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pytest
from hypothesis import settings

from site_builder.sources.history import History
from tests.browser import browser
from tests.past_lab import folder

__all__ = ["browser"]

settings.register_profile("gpuboard", deadline=None)
settings.load_profile("gpuboard")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """An empty state folder."""
    return folder(tmp_path)


@pytest.fixture
def history(state: Path) -> Iterator[History]:
    """The history in it, by the clock of UTC."""
    made = History(state, timezone.utc)
    yield made
    made.close()
