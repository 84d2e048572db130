"""Files that are not flushed to the disk: only a power cut would show it, and it is what most tests would wait for."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest


class UnflushedConnection(sqlite3.Connection):
    """A connection that flushes nothing, whatever it is asked for."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:  # noqa: ANN401 # as sqlite3 has it
        return super().execute("PRAGMA synchronous=OFF" if sql.startswith("PRAGMA synchronous=") else sql, *parameters)


@pytest.fixture(scope="session", autouse=True)
def unflushed_files() -> Iterator[None]:
    """Let this process, and those that it forks, flush nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=UnflushedConnection))
        yield
