"""Where in a JSON text its values stand, so that one of them can be changed and all else stays as it is."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined] # the stubs do not have it
from typing import NamedTuple

DECODER = json.JSONDecoder(strict=False)
BLANK = re.compile(r"[ \t\n\r]*")


class Member(NamedTuple):
    """A value in an object or a list: its key or its place, where both begin, and where it ends."""

    key: str
    start: int
    value: int
    end: int
    content: object


def members(text: str, at: int) -> list[Member]:
    """The values of the object or list that begins there, in a text that is known to be JSON."""
    found: list[Member] = []
    closing = {"{": "}", "[": "]"}[text[at]]
    start = after_blank(text, at + 1)
    while text[start] != closing:
        key, value = str(len(found)), start
        if closing == "}":
            key, value = scanstring(text, start + 1, False)
            value = after_blank(text, after_blank(text, value) + 1)
        content, end = DECODER.raw_decode(text, value)
        found.append(Member(key, start, value, end, content))
        start = after_blank(text, end)
        if text[start] == ",":
            start = after_blank(text, start + 1)
    return found


def after_blank(text: str, at: int) -> int:
    """Behind the blanks that stand there."""
    found = BLANK.match(text, at)
    return found.end() if found else at


def line(text: str, at: int) -> int:
    """The number of a line, as editors count."""
    return text.count("\n", 0, at) + 1
