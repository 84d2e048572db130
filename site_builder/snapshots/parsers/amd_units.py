"""Readings with units, as AMD's tools tell them: `45.0`, `(300Mhz)`, `10.1 GB`, `{"value": 7, "unit": "W"}`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from site_builder.snapshots.envelope import clean
from site_builder.snapshots.parsers.csv_values import LETTER, LONGEST_WORDS

READING = re.compile(r"\(?\s*([0-9]{1,25}(?:\.[0-9]{1,25})?)\s*([A-Za-z%°/]{0,10})\)?")
CLOCK = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?mhz", re.IGNORECASE)
LANES = re.compile(r"x([0-9]{1,2})\b")
SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) ?GT/s", re.IGNORECASE)
# Each generation of PCI Express, by its speed in GT/s.
GENERATIONS = {2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}
NOT_TOLD = re.compile(r"N/?A\b.*|UNKNOWN|UNSUPPORTED|NOT SUPPORTED.*|NONE|NULL|NAN|-*", re.IGNORECASE)
# AMD counts by 1024 and writes MB.
MIB = {"b": 2**-20, "kb": 2**-10, "mb": 1, "gb": 2**10, "tb": 2**20}
LONGEST_TEXT = 200
# What is above is the driver's way to say that it does not know: 65535, or 4294967295.
MOST = {"percent": 100, "celsius": 500, "watts": 10_000, "mhz": 60_000, "mib": 1e9, "count": 1e12}


def text(told: object) -> str | None:
    """A word or a sentence; None where it says that there is none."""
    if isinstance(told, bool) or not isinstance(told, (str, int)):
        return None
    said = clean(str(told).strip()[:LONGEST_TEXT])  # JSON may spell what would steer a terminal
    return None if NOT_TOLD.fullmatch(said) else said


def error_words(told: object) -> str | None:
    """Return the words that stand in the place of a reading and report an error; None for a reading or for none."""
    several = told if isinstance(told, list) else [told]
    for one in several:
        value = one.get("value") if isinstance(one, dict) else one
        if isinstance(value, str) and parts(value) is None and (words := text(value)) and LETTER.search(words):
            return words[:LONGEST_WORDS]
    return None


def parts(told: object) -> tuple[float, str] | None:
    """The number of a reading and its unit; nothing below 0 is one."""
    unit = ""
    if isinstance(told, dict):
        unit, told = str(told.get("unit") or ""), told.get("value")
    if isinstance(told, str) and (match := READING.fullmatch(told.strip())):
        told, unit = float(match[1]), match[2] or unit
    if isinstance(told, bool) or not isinstance(told, (int, float)):
        return None
    value = float(told) if abs(told) < 1e25 else math.inf
    return (value, unit.lower()) if 0 <= value < math.inf else None


def number(told: object, kind: str) -> float | None:
    """A reading of that kind, in nvidia-smi's unit."""
    found = parts(told)
    return found[0] if found and found[0] <= MOST[kind] else None


def percent(told: object) -> float | None:
    """Of 100."""
    return number(told, "percent")


def celsius(told: object) -> float | None:
    """A temperature."""
    return number(told, "celsius")


def watts(told: object) -> float | None:
    """A power."""
    return number(told, "watts")


def count(told: object) -> float | None:
    """How many."""
    return number(told, "count")


def mhz(told: object) -> float | None:
    """A clock: `0 (300Mhz)` and `S: (137Mhz)` have the level that it stands at before it."""
    match = CLOCK.search(told) if isinstance(told, str) else None
    return number(float(match[1]) if match else told, "mhz")


def mib_from(unit: str) -> Callable[[object], float | None]:
    """A size of memory; `unit` is what it is told in where it has none of its own."""

    def mib(told: object) -> float | None:
        found = parts(told)
        size = found[0] * MIB.get(found[1] or unit, math.inf) if found else math.inf
        return size if size <= MOST["mib"] else None

    return mib


def lanes(told: object) -> float | None:
    """The width of a link: `16`, or `0 (8.0GT/s x16)`."""
    match = LANES.search(told) if isinstance(told, str) else None
    return number(int(match[1]) if match else told, "percent")


def generation(told: object) -> float | None:
    """The generation of a link, by its speed."""
    if isinstance(told, dict):
        told = f"{told.get('value')} {told.get('unit')}"
    match = SPEED.search(told) if isinstance(told, str) else None
    return GENERATIONS.get(float(match[1])) if match else None
