"""For all tests: one browser, a history in a state folder, and a machine that is busy is no failure of ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pytest
from hypothesis import settings

from site_builder.sources.history import History
from tests.browser import browser
from tests.default_signals import ignore_here_alone
from tests.past_lab import folder

__all__ = ["browser"]

settings.register_profile("gpuboard", deadline=None)
settings.load_profile("gpuboard")

# What takes longest begins first, so that at the end no core waits for one file.
LONGEST = (
    "test_docs_run.py",
    "test_cron.py",
    "test_pythons.py",
    "test_install_web.py",
    "test_prometheus_alerts.py",
    "test_alert_week.py",
    "test_live_odd.py",
    "test_install.py",
    "test_demo.py",
    "test_book_dialog.py",
    "test_host_page.py",
    "test_find.py",
    "test_alerts_build.py",
    "test_chart_pages.py",
    "test_serve.py",
    "test_live.py",
)


def pytest_configure() -> None:
    """Start children with default signal handling under nohup too."""
    if threading.current_thread() is threading.main_thread():  # workers of xdist inherit it
        ignore_here_alone()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; within a file nothing moves."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


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
