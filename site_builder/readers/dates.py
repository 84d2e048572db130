"""Dates as people write them into comments.json: ISO first, then what python-dateutil understands."""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

# Two days that differ in year, month, day and weekday: what comes out of both alike was told in full.
YEAR_FIRST = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
ONE_DAY, OTHER_DAY = datetime(2001, 1, 1), datetime(2004, 2, 29)


def read(text: str, zone: tzinfo) -> tuple[datetime | None, str]:
    """The time, or why it cannot be known. Without an offset it is in `zone`, without a time it is midnight."""
    text = text.strip()
    found = iso(text)
    if found is None:
        found, why = in_words(text)
        if found is None:
            return None, why
    return (found if found.tzinfo else found.replace(tzinfo=zone)), ""


def iso(text: str) -> datetime | None:
    """The common case, and the fast one."""
    try:
        return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        return None


def in_words(text: str) -> tuple[datetime | None, str]:
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
        found, other = parse(ONE_DAY, False), parse(OTHER_DAY, False)
        swapped = found if YEAR_FIRST.match(text) else parse(ONE_DAY, True)
    except (ValueError, OverflowError, TypeError, AttributeError, RecursionError):
        return None, "is not a date"
    if unknown:
        return None, f"names a time zone that is not known: {unknown[0]}"
    if found != other:
        return None, "is not a full date: write year, month and day"
    if found != swapped:
        return None, f"could be {found:%-d %B} or {swapped:%-d %B}: write {found:%Y-%m-%d} or {swapped:%Y-%m-%d}"
    return found, ""
