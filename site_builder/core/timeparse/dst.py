"""The clock on the wall: which moment it means, also in the nights when it jumps."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def here(moment: datetime, zone: tzinfo) -> datetime:
    """What the wall clock shows at that moment."""
    return moment.astimezone(zone).replace(tzinfo=None)


def moments(shown: datetime, zone: tzinfo) -> list[datetime]:
    """The moments at which the wall clock shows this: one, or in the nights when it jumps none or two."""
    first, second = shown.replace(tzinfo=zone, fold=0), shown.replace(tzinfo=zone, fold=1)
    if here(first.astimezone(timezone.utc), zone) != shown:
        return []
    return [first] if first.utcoffset() == second.utcoffset() else [first, second]


def first(shown: datetime, zone: tzinfo) -> datetime:
    """The first moment at which the wall clock shows this or, where it leaps over it, later."""
    found = moments(shown, zone)
    return found[0] if found else jump(shown, zone)


def jump(shown: datetime, zone: tzinfo) -> datetime:
    """The moment at which the wall clock leaps over what it never shows."""
    middle = shown.replace(tzinfo=timezone.utc, microsecond=0)
    # no zone is further from UTC than a day, and none leaps by more than one
    low, high = middle - 2 * DAY, middle + 2 * DAY
    while high - low > SECOND:
        half = low + (high - low) // 2 // SECOND * SECOND
        low, high = (low, half) if here(half, zone) > shown else (half, high)
    return high.astimezone(zone)


def shown_before(moment: datetime) -> datetime:
    """What the wall clock would show at the moment of a jump, had it not jumped."""
    return here(moment.astimezone(timezone.utc) - SECOND, moment.tzinfo or timezone.utc) + SECOND
