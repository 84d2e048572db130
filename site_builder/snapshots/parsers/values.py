"""Parse single values: numbers with units, percentages, and the words that tools print for errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from site_builder.core.formatting import format_names
from site_builder.core.terminal_text import clean_excerpt

# nvidia-smi puts brackets around words that mean a missing value; some drivers print the same words without them.
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
# Words for a GPU that cannot be used until it is reset or its host is rebooted.
LOST_WORDS = re.compile(
    r"\blost\b|\b(?:requires?|needs?) (?:an? )?(?:gpu )?reset|\breset (?:is )?(?:required|needed)|f[ea]ll(?:en)? off",
    re.IGNORECASE,
)
# Words of an error in any other cell, most of which hold texts: those of NVML and of AMD's libraries, and whatever
# calls itself an error. That a value is missing, or not for everybody, is none: healthy machines print it. In lower
# case; each begins with a letter, not with \b, which makes the search thirty times as fast. Insufficient NVLinks and an
# invalid location are faults of a fabric that the driver knows well.
ERROR_WORDS = re.compile(
    r"err(?:or|!)|exception|fail(?:ed|ure)|time(?:d )?out|no data|unable to|initialized"
    r"|invalid (?!location)|insufficient (?!permissions|nvlinks)|interrupt request|in use by|blocked by|corrupted"
    r"|mismatch|not (?:loaded|ready)"
    r"|smi_status_(?!success|no_perm|permission|not_supported|not_yet_implemented|not_found)"
)
# Words that are no error in other cells. In CSV, any others with brackets are one: the next driver's new words too.
HARMLESS_WORDS = NO_READING_WORDS | {"insufficient permissions"}
NOT_AVAILABLE_CELL = "[n/a]"
# Errors that are printed of GPUs that are well.
HARMLESS_ERRORS = frozenset({("addressing_mode", "Unknown Error")})
# The readings whose errors make the state of a GPU unknown.
WATCHED_READINGS = ("memory", "use", "temperature")
LETTER_PATTERN = re.compile(r"[A-Za-z!]")
UNIT_SUFFIX = re.compile(r" (?:MiB|KiB|%|W|MHz|C|us|ms)$")
MAX_ERROR_CHARACTERS = 80
# Longer values are not cached: a hostile file must not fill the caches.
MAX_CACHED_CHARACTERS = 300
MAX_CACHED_HEADER_CHARACTERS = 4000
NUMBER_LIMIT = 1e15
# Smaller numbers are not readings, and dividing by one gives infinity.
MIN_NUMBER = 1e-6

QUANTITY_PATTERN = re.compile(r"\(?\s*([0-9]{1,25}(?:\.[0-9]{1,25})?)\s*([A-Za-z%°/]{0,10})\)?")
CLOCK_PATTERN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?mhz", re.IGNORECASE)
# AMD counts by 1024 and writes MB.
MIB_PER_UNIT = {"b": 2**-20, "kb": 2**-10, "mb": 1, "gb": 2**10, "tb": 2**20}
# Drivers print larger numbers, such as 65535 or 4294967295, for a value that they do not know.
MAX_READINGS = {"percent": 100, "celsius": 500, "watts": 10_000, "mhz": 60_000, "mib": 1e9, "count": 1e12}


class ReadingError(NamedTuple):
    """The readings that failed, such as `memory and use`, and the words of the first."""

    readings: str
    words: str

    @property
    def sentence(self) -> str:
        return f"its {self.readings} cannot be read: {self.words}"


class CellErrors(NamedTuple):
    """The words of the first error in a cell of the fan, and of power; a sentence about the first in any other."""

    fan: str = ""
    power: str = ""
    other: str | None = None


NO_CELL_ERRORS = CellErrors()


def parse_cell(cell: str) -> str | None:
    """Return the text of a cell, or None where it says that there is no value."""
    return None if cell in NOT_AVAILABLE or BRACKETED_CELL.match(cell) else cell


def parse_error_value(cell: str) -> str | None:
    """Return the words of a cell that reports an error instead of a reading; None for a reading or a missing value."""
    return classify_cell_value(cell[:MAX_ERROR_CHARACTERS])


@lru_cache(maxsize=20_000)
def classify_cell_value(cell: str) -> str | None:
    words = clean_excerpt(cell.strip().strip("[]"))
    bare = UNIT_SUFFIX.sub("", words)
    if bare.lower() in NO_READING_WORDS or not LETTER_PATTERN.search(bare) or parse_number(words) is not None:
        return None
    return words


def find_lost_value(texts: Iterable[str]) -> str | None:
    """Return the first text that says that the GPU is lost or must be reset, without its brackets."""
    texts = texts if isinstance(texts, tuple) else tuple(texts)
    joined = "\n".join(texts).lower()
    # LOST_WORDS only matches texts with one of these, and to search for them takes a fraction of the time
    if "lost" not in joined and "reset" not in joined and " off" not in joined:
        return None
    lost = (text for text in texts if LOST_WORDS.search(text))
    return next((clean_excerpt(text.strip().strip("[]"), MAX_ERROR_CHARACTERS) for text in lost), None)


def find_reading_error(cells: Iterable[tuple[str, str]]) -> ReadingError | None:
    """Return which readings failed, from pairs of a watched reading and its cell."""
    failed = {reading: words for reading, cell in cells if (words := parse_error_value(cell)) is not None}
    if not failed:
        return None
    readings = [reading for reading in WATCHED_READINGS if reading in failed]
    return ReadingError(format_names(readings), failed[readings[0]])


def find_cell_errors(names: Sequence[str], cells: Sequence[str], has_brackets: bool = False) -> CellErrors:
    """Find the cells that report an error; `has_brackets` where words in the place of a value have brackets."""
    joined = "\n".join(cells).lower()
    is_bracketed = has_brackets and joined.count("[") > joined.count(NOT_AVAILABLE_CELL)
    if not is_bracketed and not ERROR_WORDS.search(joined):  # as in nearly every row of a fleet
        return NO_CELL_ERRORS
    errors: dict[str, str] = {}
    for name, cell in zip(names, map(str.strip, cells)):
        words = clean_excerpt(cell.strip("[]"), MAX_ERROR_CHARACTERS)
        is_error = ERROR_WORDS.search(cell.lower()) or (
            is_bracketed and cell[:1] == "[" and words.lower() not in HARMLESS_WORDS
        )
        if not is_error or (name, words) in HARMLESS_ERRORS:
            continue
        if name.startswith("fan") or "power" in name:
            errors.setdefault("fan" if name.startswith("fan") else "power", words)
        else:
            errors.setdefault("other", f"the driver reports an error in {name}: {words}")
    return CellErrors(**errors)


def parse_number(cell: str) -> float | None:
    """Return the number in a cell, with or without a unit; None for anything but a plain number from 0 up."""
    if cell[:1] == "[" or "_" in cell or not cell.isascii():  # float() takes 1_000 and digits of other scripts
        return None
    try:
        value = float(cell)
    except ValueError:
        if not UNIT_SUFFIX.search(cell):
            return None
        return parse_number(UNIT_SUFFIX.sub("", cell))
    return value if MIN_NUMBER <= value < NUMBER_LIMIT or value == 0 else None


# The readings of a fleet are small numbers, most of which occur a thousand times.
parse_number_cached = lru_cache(maxsize=20_000)(parse_number)


def parse_numbers(cells: Sequence[str]) -> list[float | None]:
    return list(map(parse_number_cached if len("".join(cells)) <= MAX_CACHED_CHARACTERS else parse_number, cells))


def parse_integer(cell: str) -> int | None:
    """Return the whole number in a cell; None for anything else."""
    return int(cell) if cell.isdecimal() and len(cell) <= 12 else None


def parse_column_names(line: str, separator: str = ",") -> tuple[str, ...]:
    """Return the names in a header line, without their units."""
    split = split_column_names_cached if len(line) <= MAX_CACHED_HEADER_CHARACTERS else split_column_names
    return split(line, separator)


def split_column_names(line: str, separator: str) -> tuple[str, ...]:
    return tuple(name.split(" [", 1)[0].strip() for name in line.split(separator))


split_column_names_cached = lru_cache(maxsize=64)(split_column_names)


@lru_cache(maxsize=256)
def find_column_positions(header: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[int, ...]:
    """Return the position of each wanted column; the number of columns where it is missing."""
    return tuple(header.index(name) if name in header else len(header) for name in wanted)


def parse_quantity(reading: object) -> tuple[float, str] | None:
    """Return the number of a reading and its unit; None for anything below 0."""
    unit = ""
    if isinstance(reading, dict):
        unit, reading = str(reading.get("unit") or ""), reading.get("value")
    if isinstance(reading, str) and (match := QUANTITY_PATTERN.fullmatch(reading.strip())):
        reading, unit = float(match[1]), match[2] or unit
    if isinstance(reading, bool) or not isinstance(reading, (int, float)):
        return None
    value = float(reading) if abs(reading) < 1e25 else math.inf
    return (value, unit.lower()) if 0 <= value < math.inf else None


def parse_reading(reading: object, kind: str) -> float | None:
    """Return a reading of a kind in MAX_READINGS, in nvidia-smi's unit."""
    quantity = parse_quantity(reading)
    return quantity[0] if quantity and quantity[0] <= MAX_READINGS[kind] else None


parse_percent = partial(parse_reading, kind="percent")
parse_celsius = partial(parse_reading, kind="celsius")
parse_watts = partial(parse_reading, kind="watts")
parse_count = partial(parse_reading, kind="count")


def parse_mhz(reading: object) -> float | None:
    """Parse a clock; `0 (300Mhz)` and `S: (137Mhz)` have its level before it."""
    match = CLOCK_PATTERN.search(reading) if isinstance(reading, str) else None
    return parse_reading(float(match[1]) if match else reading, "mhz")


def build_mib_parser(default_unit: str) -> Callable[[object], float | None]:
    """Return a function that parses a memory size, in `default_unit` where it has no unit of its own."""

    def parse_mib(reading: object) -> float | None:
        quantity = parse_quantity(reading)
        size = quantity[0] * MIB_PER_UNIT.get(quantity[1] or default_unit, math.inf) if quantity else math.inf
        return size if size <= MAX_READINGS["mib"] else None

    return parse_mib
