"""Parse dates in files, and handle the hours that a change of clocks skips or repeats."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone, tzinfo

ISO_DATE_START = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
# Two days that differ in year, month, day and weekday: a date that both complete alike was given in full.
FIRST_DEFAULT_DAY, SECOND_DEFAULT_DAY = datetime(2001, 1, 1), datetime(2004, 2, 29)
# Far enough from the ends of Python's calendar that no zone, duration or repetition leads out of it.
FIRST_YEAR, LAST_YEAR = 1970, 2200
# A time in iCalendar.
ICALENDAR_FORMAT = "%Y%m%dT%H%M%SZ"
MIN_UTC_OFFSET, MAX_UTC_OFFSET = timedelta(hours=-12), timedelta(hours=14)
OUT_OF_RANGE = f"is outside the years {FIRST_YEAR} to {LAST_YEAR}"
BAD_OFFSET = "has an offset from UTC that no time zone has: offsets go from -12:00 to +14:00"


def parse_date(text: str, zone: tzinfo) -> tuple[datetime | None, str]:
    """Return the time or why it is unclear; without an offset it is in `zone`, without a time it is midnight."""
    text = text.strip()
    moment = parse_iso_date(text)
    if moment is None:
        moment, reason = parse_free_date(text)
        if moment is None:
            return None, reason
    moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    reason = find_date_fault(moment, zone)
    return (None, reason) if reason else (moment, "")


def parse_iso_date(text: str) -> datetime | None:
    """Parse the common case, fast."""
    try:
        return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        return None


def parse_free_date(text: str) -> tuple[datetime | None, str]:
    """Parse a date in any other form; refuse it where it could mean two days or none."""
    if len(text) > 100:
        return None, "is too long for a date"
    from dateutil import parser, tz  # noqa: PLC0415 # slow to import, and rarely needed

    unknown_zones: list[str] = []

    def find_zone(name: str | None, offset: int | None) -> tzinfo | None:
        if offset is not None:
            return tz.tzoffset(name, offset)
        zone = tz.gettz(name) if name else None
        if name and zone is None:
            unknown_zones.append(name)
        return zone

    def parse_with_default(default_day: datetime, dayfirst: bool) -> datetime:
        return parser.parse(text, default=default_day, dayfirst=dayfirst, tzinfos=find_zone)

    try:
        moment = parse_with_default(FIRST_DEFAULT_DAY, False)
        second_moment = parse_with_default(SECOND_DEFAULT_DAY, False)
        day_first = moment if ISO_DATE_START.match(text) else parse_with_default(FIRST_DEFAULT_DAY, True)
    except (ValueError, OverflowError, TypeError, AttributeError, RecursionError):
        return None, "is not a date"
    # first, because a date with an invalid offset cannot even be compared
    reason = find_date_fault(moment)
    if reason or unknown_zones:
        return None, reason or f"names an unknown time zone: {unknown_zones[0]}"
    if moment != second_moment:
        return None, "is not a full date: write year, month and day"
    if moment != day_first:
        return None, f"could be {moment:%-d %B} or {day_first:%-d %B}: write {moment:%Y-%m-%d} or {day_first:%Y-%m-%d}"
    return moment, ""


def parse_date_with_offset(text: object) -> datetime | None:
    """Parse a time with its offset as programs write it; None if it is not accepted."""
    moment = parse_iso_date(text) if isinstance(text, str) else None
    return moment if moment and moment.tzinfo and not find_date_fault(moment) else None


def parse_icalendar_time(text: str, zone: tzinfo) -> tuple[datetime | None, str]:
    """Parse a time of an RRULE, `20270630T215959Z`, or return why it is refused."""
    try:
        moment = datetime.strptime(text, ICALENDAR_FORMAT).replace(tzinfo=timezone.utc)
    except ValueError:
        return None, "cannot be understood"
    if not FIRST_YEAR - 1 <= moment.year <= LAST_YEAR + 1:
        return None, OUT_OF_RANGE
    reason = find_date_fault(moment.astimezone(zone), zone)
    return (None, reason) if reason else (moment, "")


def parse_day(text: str) -> date | None:
    """Parse a day as `2026-10-31`; None if it is not accepted."""
    try:
        parsed_day = date.fromisoformat(text)
    except ValueError:
        return None
    return parsed_day if is_accepted_year(parsed_day.year) else None


def find_date_fault(moment: datetime, zone: tzinfo | None = None) -> str:
    """Return why a date is refused, in words that follow the quoted text; empty if it is accepted."""
    if not is_accepted_year(moment.year):
        return OUT_OF_RANGE
    try:
        offset = moment.utcoffset()
    except ValueError:  # 24 hours or more
        return BAD_OFFSET
    is_valid = offset is None or (MIN_UTC_OFFSET <= offset <= MAX_UTC_OFFSET and not offset % timedelta(minutes=1))
    if moment.tzinfo is not zone and not is_valid:
        return BAD_OFFSET
    if zone is None or FIRST_YEAR < moment.year < LAST_YEAR:  # no zone makes a difference
        return ""
    # the year counts as people in `zone` read it, too, because that is how it is written back
    return "" if is_accepted_year(moment.astimezone(zone).year) else OUT_OF_RANGE


def is_accepted_year(year: int) -> bool:
    return FIRST_YEAR <= year <= LAST_YEAR
