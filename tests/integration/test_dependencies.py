"""The lower bounds in pyproject.toml: none lets a version in of which a vulnerability is known."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.docs import ROOT

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
OLD = "3.9"  # of which new versions of some packages know nothing any more


class Safe(NamedTuple):
    """The first version without known vulnerabilities, and the advisory of the last that was fixed."""

    version: str
    advisory: str
    on_old: str = ""  # the newest that Python 3.9 can have, where that is older


FIRST_SAFE = {
    "certifi": Safe("2024.7.4", "CVE-2024-39689"),
    "click": Safe("8.3.3", "CVE-2026-7246", "8.1.8"),
    "cryptography": Safe("50.0.0", "CVE-2026-69247"),
    "idna": Safe("3.15", "CVE-2026-45409"),
    "jinja2": Safe("3.1.6", "CVE-2025-27516"),
    "markdown": Safe("3.8.1", "CVE-2025-69534"),
    "oauthlib": Safe("3.2.2", "CVE-2022-36087"),
    "orjson": Safe("3.11.6", "CVE-2025-67221", "3.11.5"),
    "paramiko": Safe("5.0.0", "CVE-2026-44405"),
    "pygments": Safe("2.20.0", "CVE-2026-4539"),
    "pynacl": Safe("1.6.2", "CVE-2025-69277"),
    "pyyaml": Safe("5.4", "CVE-2020-14343"),
    "requests": Safe("2.33.0", "CVE-2026-25645", "2.32.4"),
    "urllib3": Safe("2.7.0", "CVE-2026-44432", "2.6.3"),
    "waitress": Safe("3.0.1", "CVE-2024-49768"),
}
# Looked up, and nothing found.
NONE_KNOWN = {"apprise", "bcrypt", "icalendar", "libpass", "python-consul", "python-dateutil", "rich", "slack-sdk"}


def requirements() -> list[Requirement]:
    """Parse what gpuboard needs, with its extras for users."""
    text = (ROOT / "pyproject.toml").read_text()
    required = text[text.index("\ndependencies = [") : text.index("[project.optional-dependencies]")]
    extras = re.findall(r"^(?:alerts|slack) = (\[.*?\])", text, re.MULTILINE)
    lines = [line.partition("  #")[0] for line in required.splitlines() if not line.strip().startswith("#")]
    return [Requirement(word) for word in re.findall(r'"([^"]+)"', "\n".join([*lines, *extras]))]


def lower_bounds(python: str) -> dict[str, Version]:
    """Return the lowest version of each package that this Python may get."""
    bounds_by_name: dict[str, Version] = {}
    for requirement in requirements():
        if requirement.marker and not requirement.marker.evaluate({"python_version": python}):
            continue
        (bound,) = (
            Version(version_clause.version)
            for version_clause in requirement.specifier
            if version_clause.operator == ">="
        )
        assert requirement.name not in bounds_by_name, requirement.name
        bounds_by_name[requirement.name] = bound
    return bounds_by_name


@pytest.mark.parametrize("python", PYTHONS)
def test_no_lower_bound_lets_a_version_in_that_is_known_to_be_vulnerable(python: str) -> None:
    bounds = lower_bounds(python)
    for name, safe in FIRST_SAFE.items():
        first = safe.on_old if python == OLD and safe.on_old else safe.version
        assert bounds[name] >= Version(first), (name, safe.advisory)


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_was_looked_up(python: str) -> None:
    assert set(lower_bounds(python)) == FIRST_SAFE.keys() | NONE_KNOWN


def test_what_is_installed_here_keeps_the_bounds() -> None:
    for name, bound in lower_bounds(f"3.{sys.version_info.minor}").items():
        assert Version(version(name)) >= bound, name
