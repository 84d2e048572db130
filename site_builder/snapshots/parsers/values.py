"""Parse single values: numbers with units, percentages, and the words that tools print for errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import itemgetter
from typing import Any

from site_builder.core.terminal_text import clean_excerpt, clean_text

# Brackets around the whole cell are nvidia-smi's mark of a value that is none; the bare ones appear in the same rows.
BRACKETED_CELL = re.compile(r"\[[A-Z][A-Za-z/ ]*\]$")
NOT_AVAILABLE = frozenset(
    {"N/A", "", "ERR!", "-", "Not Supported", "Not Found"}
    | {"Unknown Error", "GPU is lost", "GPU requires reset", "Insufficient Permissions"}
)
# A cell with one of these has no reading because the GPU, the driver or the field has none. Any other words in the
# place of a reading are an error: "Unknown Error", "ERR!", "Timeout", and whatever the next driver prints.
NO_READING_WORDS = frozenset(
    {"", "-", "n/a", "na", "none", "not supported", "unsupported", "not available", "not applicable", "not found"}
    | {"function not found", "requested functionality has been deprecated"}
)
# What a cell says of a GPU that cannot be used until it is reset, or until the host is booted again.
LOST_WORDS = re.compile(
    r"\blost\b|\b(?:requires?|needs?) (?:an? )?(?:gpu )?reset|\breset (?:is )?(?:required|needed)|f[ea]ll(?:en)? off",
    re.IGNORECASE,
)
# The columns whose errors make the state of a GPU unknown, by how their names begin, and the word for each.
WATCHED_READINGS = {"memory.": "memory", "utilization.": "use", "temperature.": "temperature"}
LETTER_PATTERN = re.compile(r"[A-Za-z!]")
MAX_ERROR_CHARACTERS = 80
UNIT_SUFFIX = re.compile(r" (?:MiB|KiB|%|W|MHz|C|us|ms)$")
NUMBER_LIMIT = 1e15
# What lies between 0 and this is no reading, and whatever is divided by it is infinite.
MIN_NUMBER = 1e-6
MAX_CACHED_CHARACTERS = 300


def parse_cell(cell: str) -> str | None:
    """The cell's text, or None where it says that there is none."""
    return None if cell in NOT_AVAILABLE or BRACKETED_CELL.match(cell) else cell


def parse_error_words(cell: str) -> str | None:
    """Return the words of a cell that reports an error instead of a reading; None for a reading or for none."""
    return classify_cell(cell[:MAX_ERROR_CHARACTERS])  # what a hostile file says is not worth remembering


@lru_cache(maxsize=20_000)
def classify_cell(cell: str) -> str | None:
    """Return the same; the cells of GPUs are short, and many a thousand times the same."""
    words = clean_excerpt(cell.strip().strip("[]"))
    bare = UNIT_SUFFIX.sub("", words)
    if bare.lower() in NO_READING_WORDS or not LETTER_PATTERN.search(bare) or parse_number(words) is not None:
        return None
    return words


def find_lost_words(texts: Iterable[str]) -> str | None:
    """Return the first text that says that the GPU is lost or must be reset, without its brackets."""
    several = texts if isinstance(texts, tuple) else tuple(texts)
    joined = "\n".join(several).lower()
    # one of these is in every text that LOST matches, and to search for them takes a fraction of the time
    if "lost" not in joined and "reset" not in joined and " off" not in joined:
        return None
    return next(
        (clean_excerpt(text.strip().strip("[]"), MAX_ERROR_CHARACTERS) for text in several if LOST_WORDS.search(text)),
        None,
    )


def find_error_in_row(header: tuple[str, ...], row: tuple[str, ...]) -> tuple[str, str] | None:
    """Return which readings of a row failed and the words of the first."""
    places, words, pick = find_watched_columns(header)
    # nearly every row of a fleet has nothing but numbers there
    if not places or "".join(pick(row)).replace("[N/A]", "").replace("N/A", "").replace(".", "").isdecimal():
        return None
    return find_reading_error(zip(words, [row[place] for place in places]))


@lru_cache(maxsize=64)
def find_watched_columns(header: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...], Callable[[Any], Any]]:
    """Return where the columns of WATCHED stand, the word for each, and what takes their cells out of a row."""
    found = [
        (at, word)
        for at, name in enumerate(header)
        for start, word in WATCHED_READINGS.items()
        if name.startswith(start)
    ]
    at = tuple(place for place, _ in found)
    return at, tuple(word for _, word in found), itemgetter(*at) if at else tuple


def find_reading_error(cells: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return which readings failed and the words of the first; the pairs are a word of WATCHED and a cell."""
    failed = {what: words for what, cell in cells if (words := parse_error_words(cell)) is not None}
    if not failed:
        return None
    names = [what for what in WATCHED_READINGS.values() if what in failed]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))), failed[names[0]]


def parse_number(cell: str) -> float | None:
    """The cell's number, with or without its unit; None for anything that is not a plain number from 0 up."""
    if cell[:1] == "[":
        return None
    try:
        value = float(cell)
    except ValueError:
        if not UNIT_SUFFIX.search(cell):
            return None
        return parse_number(UNIT_SUFFIX.sub("", cell))
    return value if MIN_NUMBER <= value < NUMBER_LIMIT or value == 0 else None


def parse_numbers(row: list[str]) -> list[float | None]:
    """The numbers of several cells; those of GPUs are small, and many a thousand times the same."""
    # what a hostile file says is not worth remembering
    return list(map(parse_number_cached if len("".join(row)) <= MAX_CACHED_CHARACTERS else parse_number, row))


parse_number_cached = lru_cache(maxsize=20_000)(parse_number)


def parse_integer(cell: str) -> int | None:
    """The cell's whole number; None for anything else."""
    return int(cell) if cell.isdecimal() and len(cell) <= 12 else None


def parse_column_names(line: str, separator: str = ",") -> tuple[str, ...]:
    """The names in a header line, without their units."""
    # a fleet has a few headers and a thousand files; what a hostile file says is not worth remembering
    return split_column_names_cached(line, separator) if len(line) <= 4000 else split_column_names(line, separator)


def split_column_names(line: str, separator: str) -> tuple[str, ...]:
    """The same, worked out."""
    return tuple(name.split(" [", 1)[0].strip() for name in line.split(separator))


split_column_names_cached = lru_cache(maxsize=64)(split_column_names)


def find_column_positions(header: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[int, ...]:
    """Where each wanted column stands; behind the end where it is not told."""
    return tuple(header.index(name) if name in header else len(header) for name in wanted)


def split_cells(line: str) -> list[str]:
    """The cells of a row; nvidia-smi quotes nothing, and now and then leaves out a space."""
    row = line.split(", ")
    return row if len(row) == line.count(",") + 1 else [cell.strip() for cell in line.split(",")]


QUANTITY_PATTERN = re.compile(r"\(?\s*([0-9]{1,25}(?:\.[0-9]{1,25})?)\s*([A-Za-z%°/]{0,10})\)?")
CLOCK_PATTERN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?mhz", re.IGNORECASE)
LANES_PATTERN = re.compile(r"x([0-9]{1,2})\b")
LINK_SPEED_PATTERN = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) ?GT/s", re.IGNORECASE)
# Each generation of PCI Express, by its speed in GT/s.
PCIE_GENERATIONS = {2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}
NOT_AVAILABLE_PATTERN = re.compile(r"N/?A\b.*|UNKNOWN|UNSUPPORTED|NOT SUPPORTED.*|NONE|NULL|NAN|-*", re.IGNORECASE)
# AMD counts by 1024 and writes MB.
MIB_PER_UNIT = {"b": 2**-20, "kb": 2**-10, "mb": 1, "gb": 2**10, "tb": 2**20}
MAX_TEXT_CHARACTERS = 200
# What is above is the driver's way to say that it does not know: 65535, or 4294967295.
MAX_READINGS = {"percent": 100, "celsius": 500, "watts": 10_000, "mhz": 60_000, "mib": 1e9, "count": 1e12}


def parse_amd_text(told: object) -> str | None:
    """A word or a sentence; None where it says that there is none."""
    if isinstance(told, bool) or not isinstance(told, (str, int)):
        return None
    said = clean_text(str(told).strip()[:MAX_TEXT_CHARACTERS])  # JSON may spell what would steer a terminal
    return None if NOT_AVAILABLE_PATTERN.fullmatch(said) else said


def parse_amd_error_words(told: object) -> str | None:
    """Return the words that stand in the place of a reading and report an error; None for a reading or for none."""
    several = told if isinstance(told, list) else [told]
    for one in several:
        value = one.get("value") if isinstance(one, dict) else one
        if (
            isinstance(value, str)
            and parse_quantity(value) is None
            and (words := parse_amd_text(value))
            and LETTER_PATTERN.search(words)
        ):
            return words[:MAX_ERROR_CHARACTERS]
    return None


def parse_quantity(told: object) -> tuple[float, str] | None:
    """The number of a reading and its unit; nothing below 0 is one."""
    unit = ""
    if isinstance(told, dict):
        unit, told = str(told.get("unit") or ""), told.get("value")
    if isinstance(told, str) and (match := QUANTITY_PATTERN.fullmatch(told.strip())):
        told, unit = float(match[1]), match[2] or unit
    if isinstance(told, bool) or not isinstance(told, (int, float)):
        return None
    value = float(told) if abs(told) < 1e25 else math.inf
    return (value, unit.lower()) if 0 <= value < math.inf else None


def parse_reading(told: object, kind: str) -> float | None:
    """A reading of that kind, in nvidia-smi's unit."""
    found = parse_quantity(told)
    return found[0] if found and found[0] <= MAX_READINGS[kind] else None


def parse_percent(told: object) -> float | None:
    """Of 100."""
    return parse_reading(told, "percent")


def parse_celsius(told: object) -> float | None:
    """A temperature."""
    return parse_reading(told, "celsius")


def parse_watts(told: object) -> float | None:
    """A power."""
    return parse_reading(told, "watts")


def parse_count(told: object) -> float | None:
    """How many."""
    return parse_reading(told, "count")


def parse_mhz(told: object) -> float | None:
    """A clock: `0 (300Mhz)` and `S: (137Mhz)` have the level that it stands at before it."""
    match = CLOCK_PATTERN.search(told) if isinstance(told, str) else None
    return parse_reading(float(match[1]) if match else told, "mhz")


def build_mib_parser(unit: str) -> Callable[[object], float | None]:
    """A size of memory; `unit` is what it is told in where it has none of its own."""

    def mib(told: object) -> float | None:
        found = parse_quantity(told)
        size = found[0] * MIB_PER_UNIT.get(found[1] or unit, math.inf) if found else math.inf
        return size if size <= MAX_READINGS["mib"] else None

    return mib


def parse_lanes(told: object) -> float | None:
    """The width of a link: `16`, or `0 (8.0GT/s x16)`."""
    match = LANES_PATTERN.search(told) if isinstance(told, str) else None
    return parse_reading(int(match[1]) if match else told, "percent")


def parse_pcie_generation(told: object) -> float | None:
    """The generation of a link, by its speed."""
    if isinstance(told, dict):
        told = f"{told.get('value')} {told.get('unit')}"
    match = LINK_SPEED_PATTERN.search(told) if isinstance(told, str) else None
    return PCIE_GENERATIONS.get(float(match[1])) if match else None
