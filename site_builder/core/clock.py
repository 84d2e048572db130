"""The time of a build, read once and passed on; time zones, and what the wall clock shows in them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

LOCALTIME_FILE = Path("/etc/localtime")
# No dot and no slash at either end: such a name cannot lead out of the folder of the zones.
ZONE_PATTERN = re.compile(r"(?=.{1,64}\Z)[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")
ONE_SECOND, ONE_DAY = timedelta(seconds=1), timedelta(days=1)


class Now:
    """A moment that remembers how long the decisions based on it stay valid, so that none is made again in vain."""

    def __init__(self, epoch: float, zone: tzinfo) -> None:
        self.epoch = epoch
        self.zone = zone
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


def timestamp_to_milliseconds(epoch: float) -> int:
    """Convert to the unit of times in pages and revisions."""
    return int(epoch * 1000)


def to_wall_clock(moment: datetime, zone: tzinfo) -> datetime:
    """Return what the wall clock shows at a moment."""
    return moment.astimezone(zone).replace(tzinfo=None)


def find_wall_clock_moments(wall_clock: datetime, zone: tzinfo) -> list[datetime]:
    """Return the moments at which the wall clock shows this: one, or in the nights when it jumps none or two."""
    first, second = wall_clock.replace(tzinfo=zone, fold=0), wall_clock.replace(tzinfo=zone, fold=1)
    if to_wall_clock(first.astimezone(timezone.utc), zone) != wall_clock:
        return []
    return [first] if first.utcoffset() == second.utcoffset() else [first, second]


def find_first_wall_clock_moment(wall_clock: datetime, zone: tzinfo) -> datetime:
    """Return the first moment at which the wall clock shows this or, where it skips it, later."""
    moments = find_wall_clock_moments(wall_clock, zone)
    return moments[0] if moments else find_wall_clock_jump(wall_clock, zone)


def find_wall_clock_jump(wall_clock: datetime, zone: tzinfo) -> datetime:
    """Return the moment at which the wall clock skips a time that it never shows."""
    as_utc = wall_clock.replace(tzinfo=timezone.utc, microsecond=0)
    # no zone is more than a day from UTC, and none jumps by more than a day
    low, high = as_utc - 2 * ONE_DAY, as_utc + 2 * ONE_DAY
    while high - low > ONE_SECOND:
        middle = low + (high - low) // 2 // ONE_SECOND * ONE_SECOND
        low, high = (low, middle) if to_wall_clock(middle, zone) > wall_clock else (middle, high)
    return high.astimezone(zone)
