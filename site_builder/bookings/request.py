"""What a request to the desk holds, and what is said of one that cannot be understood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from site_builder.bookings.gpu_selection import MOST_PLACES, Unclear
from site_builder.core.clock import Now
from site_builder.core.timeparse import moments
from site_builder.snapshots.envelope import clean

Request = Mapping[str, Any]


def checks(request: Request) -> bool:
    """Whether it only wants to know."""
    return request.get("check") is True


def text(request: Request, key: str, longest: int) -> str:
    """A text of it, without what would steer a terminal."""
    found = request.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        message = f"`{key}` must be a text"
        raise Unclear(message)
    found = " ".join(clean(found).split())
    if len(found) > longest:
        message = f"`{key}` is longer than {longest} letters"
        raise Unclear(message)
    return found


def texts(request: Request, key: str) -> list[str]:
    """Several texts of it."""
    found = request.get(key) or []
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        message = f"`{key}` must be a list of texts"
        raise Unclear(message)
    return found


def number(found: object) -> int:
    """How many GPUs."""
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= MOST_PLACES:
        message = "`any` must be a number of GPUs"
        raise Unclear(message)
    return found


def moment(request: Request, key: str, now: Now, start: datetime | None = None) -> datetime | None:
    """A time of it, as people write them."""
    told_time = text(request, key, 100)
    if not told_time:
        return None
    return understood(told_time, lambda: moments.moment(told_time, now.local, start=start, end=key == "until"))


def end(request: Request, since: datetime, now: Now) -> datetime | None:
    """`until`, or `for` how long."""
    length = text(request, "for", 100)
    until = moment(request, "until", now, since)
    if length and until:
        message = "give `until` or `for`, not both"
        raise Unclear(message)
    if length:
        return understood(length, lambda: moments.length(length).after(since, now.zone))
    return until


def understood(told_time: str, read: Callable[[], datetime]) -> datetime:
    """What a text says, to the second."""
    try:
        return read().replace(microsecond=0)
    except moments.Unclear as why:
        message = f'"{told_time}" {why}'
        raise Unclear(message) from None
