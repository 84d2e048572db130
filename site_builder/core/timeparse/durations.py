"""Lengths of time as people write them: `90m`, `2d3h`, `1 day 3 hours`; and where one leads to."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from site_builder.core.timeparse import dates, dst

SECONDS = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60}
LONGEST = 3653  # days: ten years
PART = r"\d+(?:\.\d{1,3})? ?(?:weeks?|wks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|months?|mos?|m|years?|yrs?|y)"
LENGTH = re.compile(rf"(?:\+ ?|in |for )?({PART}(?:(?: and | ?){PART})*)((?<=h)\d\d)?", re.IGNORECASE)
PARTS = re.compile(r"(\d+)(?:\.(\d+))? ?([a-z]+)")
NUMBER = re.compile(r"\d{1,3}")


class Unclear(Exception):
    """Why a time cannot be known, in words that follow the quoted text, with what to write in its place."""

    def __init__(self, why: str, *examples: str) -> None:
        """The reason, and texts that would be understood."""
        super().__init__(f"{why}: write " + " or ".join(f'"{example}"' for example in examples))
        self.examples = examples


class Length(NamedTuple):
    """Days that end at the same clock time as they began, and then exact seconds."""

    days: int
    seconds: int

    def after(self, start: datetime, zone: tzinfo) -> datetime:
        """That much later; a day that would end at a time that the clock leaps over ends where it leaps."""
        if self.days:
            start = dst.first(dst.here(start, zone) + timedelta(days=self.days), zone)
        end = (start.astimezone(timezone.utc) + timedelta(seconds=self.seconds)).astimezone(zone)
        if dates.fault(end, zone):
            raise Unclear("leads too far into the future", "2h", "1d")
        return end


def length(text: str) -> Length:
    """The length of time, for `--for`."""
    text = tidy(text, "2h", "1d")
    found = find(text)
    if found:
        return found
    if NUMBER.fullmatch(text) and int(text):
        raise Unclear("has no unit", f"{int(text)}h", f"{int(text)}d")
    raise Unclear("is not a length of time", "2h", "1d 12h")


def tidy(text: str, *examples: str) -> str:
    """The text with single blanks, refused where it can be no time at all."""
    text = text.strip()
    if not text:
        raise Unclear("is empty", *examples)
    if len(text) > 100:
        raise Unclear("is too long for a time", *examples)
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise Unclear("has control characters in it", *examples)
    text = " ".join(text.replace(", ", " ").rstrip(",").split())  # blanks of any kind: they come with what is pasted
    if not text.isascii() or not text:
        raise Unclear("has letters in it that no time has", *examples)
    return text


def find(text: str) -> Length | None:
    """The length that a tidy text says; None where it says something else."""
    found = LENGTH.fullmatch(text.lstrip("-").lower())
    if not found:
        return None
    if text.startswith("-"):
        raise Unclear("leads into the past", "2h", "1d")
    told: dict[str, int] = {}
    for whole, part, word in PARTS.findall(found[1].lower()):
        unit = word[0]
        if unit == "y" or word.startswith("mo"):
            raise Unclear("has a unit that is not always equally long", "4w", "30d")
        if unit in told:
            raise Unclear("names a unit twice", "2h", "1d 12h")
        told[unit] = int(whole + part.ljust(3, "0"))  # thousandths: exact, where a float is not
    if found[2]:
        if "m" in told:
            raise Unclear("names a unit twice", "1h30", "1h 30m")
        told["m"] = int(found[2]) * 1000
    return checked(told)


def checked(told: dict[str, int]) -> Length:
    """The sum of thousandths of each unit, if somebody can mean it."""
    days, rest = divmod(told.get("w", 0) * 7 + told.get("d", 0), 1000)
    exact = rest * SECONDS["d"] + told.get("h", 0) * SECONDS["h"] + told.get("m", 0) * SECONDS["m"]
    seconds = exact // 1000
    if not days and not seconds:
        raise Unclear("is no time at all", "2h", "1d")
    if days + seconds // SECONDS["d"] > LONGEST:
        raise Unclear("is more than ten years", "2h", "1d")
    return Length(days, seconds)
