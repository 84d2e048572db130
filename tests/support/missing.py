"""Leave out a test, or a benchmark, for want of a program; in CI nothing is left out."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


class MissingToolError(Exception):
    """What is measured without pytest lacks a program."""


def missing(what: str) -> NoReturn:
    """Skip the test, fail it in CI, or raise an error where there is no pytest."""
    if "pytest" not in sys.modules:
        raise MissingToolError(what)
    import pytest  # noqa: PLC0415 # bench/run works without it

    if os.environ.get("CI"):
        pytest.fail(f"missing in CI: {what}")
    pytest.skip(what)


def need(lack: str) -> None:
    """Leave the test out if it lacks something."""
    if lack:
        missing(lack)
