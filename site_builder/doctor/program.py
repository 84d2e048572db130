"""Checks of the program itself: Python, its packages, its settings."""

from __future__ import annotations

import platform
from importlib.util import find_spec

from site_builder import __version__
from site_builder.core.formatting import names
from site_builder.doctor.check_result import Case, Found, failed, passed, warned

# By the names under which they are imported, and those that pip knows.
PACKAGES = {
    "click": "click",
    "consul": "python-consul",
    "dateutil": "python-dateutil",
    "icalendar": "icalendar",
    "jinja2": "jinja2",
    "orjson": "orjson",
    "paramiko": "paramiko",
    "rich": "rich",
    "waitress": "waitress",
}


def python(case: Case) -> Found:  # noqa: ARG001 # a check's own form
    """Which Python this is; one that is too old does not come this far."""
    return passed(f"gpuboard {__version__} with Python {platform.python_version()}")


def packages(case: Case) -> Found:  # noqa: ARG001 # the same
    """Whether all that pip should have installed is here."""
    missing = [pip for name, pip in PACKAGES.items() if find_spec(name) is None]
    if missing:
        return failed(f"not installed: {', '.join(missing)}", "call ./install.sh web again, or pip install them")
    return passed(f"all {len(PACKAGES)} packages are here")


def settings(case: Case) -> Found:
    """Which file counts, and what in it hardly can be meant."""
    if case.loaded is None:
        return failed(case.wrong, "correct it, then call this again: what needs the settings is skipped below")
    conf = case.loaded.conf
    if conf.warnings:
        more = f" (and {len(conf.warnings) - 1} more)" if len(conf.warnings) > 1 else ""
        return warned(f"{conf.warnings[0]}{more}", "correct it: `gpuboard config` shows what is in force")
    if conf.path is None:
        return passed("there is no gpuboard.conf: environment and defaults count")
    relative = [
        name
        for name in ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
        if not case.loaded.given[name].text.startswith("/")
    ]
    if relative and conf.path.parent != conf.path.cwd():
        what = f"{names(relative)} in {conf.path} count from where gpuboard is started, and cron starts it at home"
        return warned(what, "write them whole, beginning with /")
    return passed(str(conf.path))
