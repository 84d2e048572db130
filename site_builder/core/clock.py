"""The time of a build, read once and passed on, and time zones."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

LOCALTIME_FILE = Path("/etc/localtime")
# No dot and no slash at either end: such a name cannot lead out of the folder of the zones.
ZONE_PATTERN = re.compile(r"(?=.{1,64}\Z)[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")


class Now:
    """A moment that remembers how long the decisions based on it stay valid, so that none is made again in vain."""

    def __init__(self, epoch: float, zone: tzinfo, viewer_zone: tzinfo | None = None) -> None:
        """Take a moment in the lab's zone, for somebody who may be in another one."""
        self.epoch = epoch
        self.zone = zone
        self.viewer_zone = viewer_zone or zone
        self.local = datetime.fromtimestamp(epoch, zone)
        self.today = self.local.date()
        tomorrow = datetime.combine(self.today + timedelta(days=1), datetime.min.time(), zone)
        self.next_midnight = tomorrow.timestamp()
        self.valid_until = math.inf

    def copy_with_own_expiry(self) -> Now:
        """Return the same moment, with an expiry of its own."""
        copy = object.__new__(Now)
        copy.__dict__.update(self.__dict__, valid_until=math.inf)
        return copy

    def has_passed(self, moment: float) -> bool:
        """Return True if `moment` has passed; otherwise remember it as the time this decision expires."""
        if self.epoch >= moment:
            return True
        self.valid_until = min(self.valid_until, moment)
        return False

    def days_until(self, moment: datetime) -> int:
        """Count the midnights until `moment` in our zone; the count expires at the next of them."""
        self.valid_until = min(self.valid_until, self.next_midnight)
        return (self.to_local(moment).date() - self.today).days

    def to_local(self, moment: datetime) -> datetime:
        """Convert to our zone; the first and last moments of Python's calendar stay as they are."""
        try:
            return moment.astimezone(self.zone)
        except OverflowError:
            return moment


def find_zone(name: str, environment: Mapping[str, str], localtime: Path = LOCALTIME_FILE) -> tzinfo:
    """Return the zone of that name, by default this machine's; raise ValueError if there is none."""
    if name:
        return load_named_zone(name)
    tz_variable = environment.get("TZ", "").lstrip(":")
    if tz_variable and tz_variable != str(localtime):
        with suppress(ValueError):
            return load_named_zone(tz_variable)
    elif zone := read_localtime_zone(localtime):
        return zone
    from dateutil import tz  # noqa: PLC0415 # slow to import, and rarely needed

    return tz.tzlocal()  # also for a rule such as CET-1CEST, which the C library understands


def load_named_zone(name: str) -> tzinfo:
    """Load a zone of the system's database, or else of dateutil's."""
    if not ZONE_PATTERN.fullmatch(name):
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        from dateutil import tz  # noqa: PLC0415 # the same

        zone = tz.gettz(name)
        if not isinstance(zone, (tz.tzfile, tz.tzutc)):  # dateutil makes one of any word with a digit
            raise ValueError(name) from None
        return zone


def read_localtime_zone(localtime: Path) -> tzinfo | None:
    """Read the machine's zone file, under the name of the file that it links to."""
    with suppress(OSError, ValueError), localtime.open("rb") as file:
        return ZoneInfo.from_file(file, key=os.path.realpath(localtime).partition("/zoneinfo/")[2] or None)
    return None
