"""For the tests of the web server: one that runs, with a site that has secrets beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serve_fixtures import (
    PAGE,
    Running,
    fill,
    running,
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("site")
    fill(folder)
    with running(folder) as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small site of a test's own."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www/index.html").write_text(PAGE)
    return tmp_path
