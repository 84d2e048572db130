"""What a request to the desk holds, and what is said of one that cannot be understood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from site_builder.bookings.gpu_selection import MAX_GPUS, UnclearRequestError
from site_builder.core.clock import Now
from site_builder.core.terminal_text import clean_text
from site_builder.core.timeparse import moments

JsonRequest = Mapping[str, Any]


def is_check_only(request: JsonRequest) -> bool:
    """Whether it only wants to know."""
    return request.get("check") is True


def parse_text_field(request: JsonRequest, key: str, longest: int) -> str:
    """A text of it, without what would steer a terminal."""
    found = request.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        message = f"`{key}` must be a text"
        raise UnclearRequestError(message)
    found = " ".join(clean_text(found).split())
    if len(found) > longest:
        message = f"`{key}` is longer than {longest} letters"
        raise UnclearRequestError(message)
    return found


def parse_text_list_field(request: JsonRequest, key: str) -> list[str]:
    """Several texts of it."""
    found = request.get(key) or []
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        message = f"`{key}` must be a list of texts"
        raise UnclearRequestError(message)
    return found


def parse_gpu_count(found: object) -> int:
    """How many GPUs."""
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= MAX_GPUS:
        message = "`any` must be a number of GPUs"
        raise UnclearRequestError(message)
    return found


def parse_time_field(request: JsonRequest, key: str, now: Now, start: datetime | None = None) -> datetime | None:
    """A time of it, as people write them."""
    told_time = parse_text_field(request, key, 100)
    if not told_time:
        return None
    return call_time_parser(
        told_time, lambda: moments.parse_moment(told_time, now.local, start=start, end=key == "until")
    )


def parse_end_fields(request: JsonRequest, since: datetime, now: Now) -> datetime | None:
    """`until`, or `for` how long."""
    length = parse_text_field(request, "for", 100)
    until = parse_time_field(request, "until", now, since)
    if length and until:
        message = "give `until` or `for`, not both"
        raise UnclearRequestError(message)
    if length:
        return call_time_parser(length, lambda: moments.parse_duration(length).add_to(since, now.zone))
    return until


def call_time_parser(told_time: str, read: Callable[[], datetime]) -> datetime:
    """What a text says, to the second."""
    try:
        return read().replace(microsecond=0)
    except moments.UnclearTimeError as why:
        message = f'"{told_time}" {why}'
        raise UnclearRequestError(message) from None
