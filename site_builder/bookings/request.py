"""Read the fields of a JSON request about bookings or watches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from site_builder.core.clock import Now
from site_builder.core.formatting import MAX_NAME_CHARACTERS
from site_builder.core.terminal_text import clean_text
from site_builder.core.timeparse import moments

JsonRequest = Mapping[str, Any]
MAX_TIME_CHARACTERS = 100


class UnclearRequestError(Exception):
    """Why a request cannot be understood, in one sentence."""


def parse_request_kind(request: JsonRequest, known_keys: Mapping[str, Collection[str]]) -> str:
    """Return what a request wants done (`do`), or refuse one that has unknown keys."""
    kind = request.get("do")
    if not isinstance(kind, str) or kind not in known_keys:
        raise UnclearRequestError(f"`do` must be {', '.join(known_keys)}")
    unknown_keys = sorted(set(map(str, request)) - {*known_keys[kind], "do"})
    if unknown_keys:
        raise UnclearRequestError(f"{kind} does not take `{clean_text(unknown_keys[0])[:40]}`")
    if not isinstance(request.get("check", False), bool):
        raise UnclearRequestError("`check` must be true or false")
    return kind


def parse_request_text_field(request: JsonRequest, key: str, max_characters: int = MAX_NAME_CHARACTERS) -> str:
    """Return a text of the request, without characters that control a terminal; "" if it is not there."""
    value = request.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnclearRequestError(f"`{key}` must be text")
    text = " ".join(clean_text(value).split())
    if len(text) > max_characters:
        raise UnclearRequestError(f"`{key}` is longer than {max_characters} characters")
    return text


def parse_request_text_list(request: JsonRequest, key: str) -> list[str]:
    texts = request.get(key) or []
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UnclearRequestError(f"`{key}` must be a list of texts")
    return texts


def parse_request_time_field(
    request: JsonRequest, key: str, now: Now, since: datetime | None = None
) -> datetime | None:
    """Parse a time as people write it, to the second; None for an empty text."""
    text = parse_request_text_field(request, key, MAX_TIME_CHARACTERS)
    if not text:
        return None
    try:
        return moments.parse_moment(text, now.local, start=since, end=key == "until").replace(microsecond=0)
    except moments.UnclearTimeError as error:
        raise UnclearRequestError(f'"{text}" {error}') from None


def parse_request_end_fields(request: JsonRequest, since: datetime, now: Now) -> datetime | None:
    """Parse the end of a booking: `until`, a time, or `for`, a duration from its start."""
    until = parse_request_time_field(request, "until", now, since)
    duration = parse_request_text_field(request, "for", MAX_TIME_CHARACTERS)
    if not duration:
        return until
    if until:
        raise UnclearRequestError("give `until` or `for`, not both")
    try:
        return moments.parse_duration(duration).add_to(since, now.zone).replace(microsecond=0)
    except moments.UnclearTimeError as error:
        raise UnclearRequestError(f'"{duration}" {error}') from None
