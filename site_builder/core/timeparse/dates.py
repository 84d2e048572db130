"""Parse dates in files, and handle the hours that a change of clocks skips or repeats."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone, tzinfo

# Two days that differ in year, month, day and weekday: what comes out of both alike was told in full.
ISO_DATE_START = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
FIRST_DEFAULT_DAY, SECOND_DEFAULT_DAY = datetime(2001, 1, 1), datetime(2004, 2, 29)
# Far enough from the ends of Python's calendar that no zone, length or repeat leads out of it.
FIRST_YEAR, LAST_YEAR = 1970, 2200
# How iCalendar writes a time.
STAMP = "%Y%m%dT%H%M%SZ"
LOWEST_OFFSET, HIGHEST_OFFSET = timedelta(hours=-12), timedelta(hours=14)
TOO_FAR = f"lies outside the years {FIRST_YEAR} to {LAST_YEAR}"
BAD_OFFSET = "has an offset from UTC that no time zone has: they go from -12:00 to +14:00"


def fault(moment: datetime, zone: tzinfo | None = None) -> str:
    """Return why a date is refused, in words that follow the quoted text; nothing if it is accepted.

    The year counts as it is written, and as people in `zone` read it, because that is how it is written back.
    """
    if not is_year(moment.year):
        return TOO_FAR
    try:
        offset = moment.utcoffset()
    except ValueError:  # 24 hours or more
        return BAD_OFFSET
    if offset is not None and moment.tzinfo is not zone and not is_offset(offset):
        return BAD_OFFSET
    if zone is None or FIRST_YEAR < moment.year < LAST_YEAR:  # where no zone makes a difference
        return ""
    return "" if is_year(moment.astimezone(zone).year) else TOO_FAR


def is_year(year: int) -> bool:
    """Return whether dates of this year are accepted."""
    return FIRST_YEAR <= year <= LAST_YEAR


def is_offset(offset: timedelta) -> bool:
    """Return whether a time zone may have this offset from UTC."""
    return LOWEST_OFFSET <= offset <= HIGHEST_OFFSET and not offset % timedelta(minutes=1)


def parse_date(text: str, zone: tzinfo) -> tuple[datetime | None, str]:
    """The time, or why it cannot be known. Without an offset it is in `zone`, without a time it is midnight."""
    text = text.strip()
    found = parse_iso_date(text)
    if found is None:
        found, why = parse_free_date(text)
        if found is None:
            return None, why
    found = found if found.tzinfo else found.replace(tzinfo=zone)
    why = fault(found, zone)
    return (None, why) if why else (found, "")


def exact(text: object) -> datetime | None:
    """Parse a time with its offset as programs write it; None if it is not accepted."""
    found = parse_iso_date(text) if isinstance(text, str) else None
    return found if found and found.tzinfo and not fault(found) else None


def stamp(text: str, zone: tzinfo) -> tuple[datetime | None, str]:
    """Parse a time of an RRULE, `20270630T215959Z`, or return why it is refused."""
    try:
        found = datetime.strptime(text, STAMP).replace(tzinfo=timezone.utc)
    except ValueError:
        return None, "cannot be understood"
    if not FIRST_YEAR - 1 <= found.year <= LAST_YEAR + 1:
        return None, TOO_FAR
    why = fault(found.astimezone(zone), zone)
    return (None, why) if why else (found, "")


def day(text: str) -> date | None:
    """Parse a day as `2026-10-31`; None if it is not accepted."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if is_year(found.year) else None


def parse_iso_date(text: str) -> datetime | None:
    """The common case, and the fast one."""
    try:
        return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        return None


def parse_free_date(text: str) -> tuple[datetime | None, str]:
    """A date in any other form, refused where it could mean two days or none."""
    if len(text) > 100:
        return None, "is too long for a date"
    from dateutil import parser, tz  # noqa: PLC0415 slow to import, and rarely needed

    unknown: list[str] = []

    def zone_of(name: str | None, offset: int | None) -> tzinfo | None:
        if offset is not None:
            return tz.tzoffset(name, offset)
        found = tz.gettz(name) if name else None
        if name and found is None:
            unknown.append(name)
        return found

    def parse(day: datetime, dayfirst: bool) -> datetime:
        return parser.parse(text, default=day, dayfirst=dayfirst, tzinfos=zone_of)

    try:
        found, other = parse(FIRST_DEFAULT_DAY, False), parse(SECOND_DEFAULT_DAY, False)
        swapped = found if ISO_DATE_START.match(text) else parse(FIRST_DEFAULT_DAY, True)
    except (ValueError, OverflowError, TypeError, AttributeError, RecursionError):
        return None, "is not a date"
    # first, because a date with a bad offset cannot even be compared
    why = fault(found) or (f"names a time zone that is not known: {unknown[0]}" if unknown else "")
    if why:
        return None, why
    if found != other:
        return None, "is not a full date: write year, month and day"
    if found != swapped:
        return None, f"could be {found:%-d %B} or {swapped:%-d %B}: write {found:%Y-%m-%d} or {swapped:%Y-%m-%d}"
    return found, ""


ONE_SECOND, ONE_DAY = timedelta(seconds=1), timedelta(days=1)


def to_wall_clock(moment: datetime, zone: tzinfo) -> datetime:
    """What the wall clock shows at that moment."""
    return moment.astimezone(zone).replace(tzinfo=None)


def find_moments(shown: datetime, zone: tzinfo) -> list[datetime]:
    """The moments at which the wall clock shows this: one, or in the nights when it jumps none or two."""
    first, second = shown.replace(tzinfo=zone, fold=0), shown.replace(tzinfo=zone, fold=1)
    if to_wall_clock(first.astimezone(timezone.utc), zone) != shown:
        return []
    return [first] if first.utcoffset() == second.utcoffset() else [first, second]


def find_first_moment(shown: datetime, zone: tzinfo) -> datetime:
    """The first moment at which the wall clock shows this or, where it leaps over it, later."""
    found = find_moments(shown, zone)
    return found[0] if found else find_clock_jump(shown, zone)


def find_clock_jump(shown: datetime, zone: tzinfo) -> datetime:
    """The moment at which the wall clock leaps over what it never shows."""
    middle = shown.replace(tzinfo=timezone.utc, microsecond=0)
    # no zone is further from UTC than a day, and none leaps by more than one
    low, high = middle - 2 * ONE_DAY, middle + 2 * ONE_DAY
    while high - low > ONE_SECOND:
        half = low + (high - low) // 2 // ONE_SECOND * ONE_SECOND
        low, high = (low, half) if to_wall_clock(half, zone) > shown else (half, high)
    return high.astimezone(zone)


def find_time_before_jump(moment: datetime) -> datetime:
    """What the wall clock would show at the moment of a jump, had it not jumped."""
    return to_wall_clock(moment.astimezone(timezone.utc) - ONE_SECOND, moment.tzinfo or timezone.utc) + ONE_SECOND
