"""JSON as tools print it: with warnings around it, NaN in it, names twice, and now and then torn."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from site_builder.snapshots.envelope import json_fault, one_line

OPENING = re.compile(r"^[ \t]*[\[{]", re.MULTILINE)
# Each may cost a look at the whole rest of the text.
MOST_OPENINGS = 8
LONGEST_WORDS = 300
# A tool that has no JSON prints some hundred lines a GPU.
MOST_LINES = 50_000
# What is longer is no reading, and takes long to understand.
LONGEST_INTEGER = 25
MOST_PLACES = 2000
DEEPEST = 6


class Printed(NamedTuple):
    """The values that stand in a text, the lines that are none, and what is wrong with the rest."""

    values: list[object]
    words: list[str]
    problems: list[str]


def read(lines: Sequence[str]) -> Printed:
    """Every value that begins on a line of its own; what is torn costs all that follows it."""
    text = "\n".join(lines)
    found = Printed([], [], [])
    doubled: set[str] = set()
    decoder = json.JSONDecoder(object_pairs_hook=lambda pairs: an_object(pairs, doubled), parse_int=integer)
    place, fault = 0, ""
    for _ in range(MOST_OPENINGS):
        opening = OPENING.search(text, place)
        if not opening:
            break
        found.words.extend(words(text[place : opening.start()]))
        try:
            value, place = decoder.raw_decode(text, opening.end() - 1)
            found.values.append(value)
            continue
        except json.JSONDecodeError as error:
            fault = fault or json_fault(error)
            torn = "\n" in text[opening.end() : error.pos] or text[error.pos :].strip() == ""
        except (RecursionError, ValueError):
            fault, torn = "it is too deep", True
        if torn:
            place = len(text)
            break
        end = text.find("\n", opening.end())  # a line such as `[INFO] …`
        end = len(text) if end < 0 else end
        found.words.extend(words(text[place:end]))
        place = end
    found.words.extend(words(text[place:]))
    if text.count("\n", place) > MOST_LINES:
        found.problems.append(f"it has more than {MOST_LINES} lines; the rest does not count")
    if fault and (not found.values or place == len(text)):
        found.problems.append(f"its JSON cannot be read: {fault}")
    found.problems.extend(f"“{one_line(name, 80)}” stands in it twice; the last counts" for name in sorted(doubled))
    return found


def words(text: str) -> list[str]:
    """The lines of what is no JSON."""
    lines = (line for line in text.split("\n", MOST_LINES)[:MOST_LINES] if line.strip())
    return [line[:LONGEST_WORDS].rstrip() for line in lines]


def an_object(pairs: list[tuple[str, object]], doubled: set[str]) -> dict[str, object]:
    """An object, and the names that it has twice."""
    made: dict[str, object] = {}
    for name, value in pairs:
        if name in made and len(doubled) < MOST_OPENINGS:
            doubled.add(name)
        made[name] = value
    return made


def integer(digits: str) -> int | None:
    """A number that may be a reading."""
    return int(digits) if len(digits) <= LONGEST_INTEGER else None


def flat(value: object, prefix: str = "", deep: int = 0, found: dict[str, object] | None = None) -> dict[str, object]:
    """`{"power": {"socket_power": 7}}` is `power.socket_power`; `{"value": 7, "unit": "W"}` is one reading."""
    told: dict[str, object] = {} if found is None else found
    if isinstance(value, dict) and "value" not in value and deep < DEEPEST:
        for name, inner in value.items():
            flat(inner, f"{prefix}.{name}".lstrip(".").lower()[:LONGEST_WORDS], deep + 1, told)
    elif len(told) < MOST_PLACES:
        told[prefix] = value
    return told
