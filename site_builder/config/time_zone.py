"""Find the time zone by its name, or the one of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from site_builder.config.types import ZONE_PATTERN

LOCALTIME_FILE = Path("/etc/localtime")


def find_zone(name: str, environment: Mapping[str, str], localtime: Path = LOCALTIME_FILE) -> tzinfo:
    """Return the zone of that name, by default this machine's; raise ValueError if there is none."""
    if name:
        return load_named_zone(name)
    tz_variable = environment.get("TZ", "").lstrip(":")
    if tz_variable and tz_variable != str(localtime):
        try:
            return load_named_zone(tz_variable)
        except ValueError:
            return load_system_zone()  # a rule such as CET-1CEST, which the C library understands
    return read_localtime_zone(localtime) or load_system_zone()


def load_named_zone(name: str) -> tzinfo:
    """Load a zone of the system's database, or else of dateutil's."""
    if not ZONE_PATTERN.fullmatch(name):
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return load_dateutil_zone(name)


def load_dateutil_zone(name: str) -> tzinfo:
    """Load a zone of dateutil's own database; refuse what it makes of any word with a digit."""
    from dateutil import tz  # noqa: PLC0415 # slow to import, and rarely needed

    zone = tz.gettz(name)
    if not isinstance(zone, (tz.tzfile, tz.tzutc)):
        raise ValueError(name)
    return zone


def read_localtime_zone(localtime: Path) -> tzinfo | None:
    """Read the machine's zone file, under the name of the file that it links to."""
    try:
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key=os.path.realpath(localtime).partition("/zoneinfo/")[2] or None)
    except (OSError, ValueError):
        return None


def load_system_zone() -> tzinfo:
    """Return what the C library takes for this machine's zone."""
    from dateutil import tz  # noqa: PLC0415 # the same

    return tz.tzlocal()
