"""Cells of nvidia-smi's CSV: numbers, words, and the many ways in which it says that there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import itemgetter
from typing import Any

from site_builder.snapshots.envelope import one_line

# Brackets around the whole cell are nvidia-smi's mark of a value that is none; the bare ones appear in the same rows.
NO_VALUE = re.compile(r"\[[A-Z][A-Za-z/ ]*\]$")
NOT_AVAILABLE = frozenset(
    {"N/A", "", "ERR!", "-", "Not Supported", "Not Found"}
    | {"Unknown Error", "GPU is lost", "GPU requires reset", "Insufficient Permissions"}
)
# A cell with one of these has no reading because the GPU, the driver or the field has none. Any other words in the
# place of a reading are an error: "Unknown Error", "ERR!", "Timeout", and whatever the next driver prints.
NO_READING = frozenset(
    {"", "-", "n/a", "na", "none", "not supported", "unsupported", "not available", "not applicable", "not found"}
    | {"function not found", "requested functionality has been deprecated"}
)
# What a cell says of a GPU that cannot be used until it is reset, or until the host is booted again.
LOST = re.compile(
    r"\blost\b|\b(?:requires?|needs?) (?:an? )?(?:gpu )?reset|\breset (?:is )?(?:required|needed)|f[ea]ll(?:en)? off",
    re.IGNORECASE,
)
# The columns whose errors make the state of a GPU unknown, by how their names begin, and the word for each.
WATCHED = {"memory.": "memory", "utilization.": "use", "temperature.": "temperature"}
LETTER = re.compile(r"[A-Za-z!]")
LONGEST_WORDS = 80
UNIT = re.compile(r" (?:MiB|KiB|%|W|MHz|C|us|ms)$")
TOO_LARGE = 1e15
# What lies between 0 and this is no reading, and whatever is divided by it is infinite.
TOO_SMALL = 1e-6
LONGEST_NUMBERS = 300


def available(cell: str) -> str | None:
    """The cell's text, or None where it says that there is none."""
    return None if cell in NOT_AVAILABLE or NO_VALUE.match(cell) else cell


def error_words(cell: str) -> str | None:
    """Return the words of a cell that reports an error instead of a reading; None for a reading or for none."""
    return classified(cell[:LONGEST_WORDS])  # what a hostile file says is not worth remembering


@lru_cache(maxsize=20_000)
def classified(cell: str) -> str | None:
    """Return the same; the cells of GPUs are short, and many a thousand times the same."""
    words = one_line(cell.strip().strip("[]"))
    bare = UNIT.sub("", words)
    if bare.lower() in NO_READING or not LETTER.search(bare) or number(words) is not None:
        return None
    return words


def find_lost_words(texts: Iterable[str]) -> str | None:
    """Return the first text that says that the GPU is lost or must be reset, without its brackets."""
    several = texts if isinstance(texts, tuple) else tuple(texts)
    joined = "\n".join(several).lower()
    # one of these is in every text that LOST matches, and to search for them takes a fraction of the time
    if "lost" not in joined and "reset" not in joined and " off" not in joined:
        return None
    return next((one_line(text.strip().strip("[]"), LONGEST_WORDS) for text in several if LOST.search(text)), None)


def find_error_in_row(header: tuple[str, ...], row: tuple[str, ...]) -> tuple[str, str] | None:
    """Return which readings of a row failed and the words of the first."""
    places, words, pick = watched_columns(header)
    # nearly every row of a fleet has nothing but numbers there
    if not places or "".join(pick(row)).replace("[N/A]", "").replace("N/A", "").replace(".", "").isdecimal():
        return None
    return find_reading_error(zip(words, [row[place] for place in places]))


@lru_cache(maxsize=64)
def watched_columns(header: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...], Callable[[Any], Any]]:
    """Return where the columns of WATCHED stand, the word for each, and what takes their cells out of a row."""
    found = [(at, word) for at, name in enumerate(header) for start, word in WATCHED.items() if name.startswith(start)]
    at = tuple(place for place, _ in found)
    return at, tuple(word for _, word in found), itemgetter(*at) if at else tuple


def find_reading_error(cells: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return which readings failed and the words of the first; the pairs are a word of WATCHED and a cell."""
    failed = {what: words for what, cell in cells if (words := error_words(cell)) is not None}
    if not failed:
        return None
    names = [what for what in WATCHED.values() if what in failed]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))), failed[names[0]]


def number(cell: str) -> float | None:
    """The cell's number, with or without its unit; None for anything that is not a plain number from 0 up."""
    if cell[:1] == "[":
        return None
    try:
        value = float(cell)
    except ValueError:
        if not UNIT.search(cell):
            return None
        return number(UNIT.sub("", cell))
    return value if TOO_SMALL <= value < TOO_LARGE or value == 0 else None


def numbers(row: list[str]) -> list[float | None]:
    """The numbers of several cells; those of GPUs are small, and many a thousand times the same."""
    # what a hostile file says is not worth remembering
    return list(map(known_number if len("".join(row)) <= LONGEST_NUMBERS else number, row))


known_number = lru_cache(maxsize=20_000)(number)


def whole_number(cell: str) -> int | None:
    """The cell's whole number; None for anything else."""
    return int(cell) if cell.isdecimal() and len(cell) <= 12 else None


def columns(line: str, separator: str = ",") -> tuple[str, ...]:
    """The names in a header line, without their units."""
    # a fleet has a few headers and a thousand files; what a hostile file says is not worth remembering
    return remembered(line, separator) if len(line) <= 4000 else names(line, separator)


def names(line: str, separator: str) -> tuple[str, ...]:
    """The same, worked out."""
    return tuple(name.split(" [", 1)[0].strip() for name in line.split(separator))


remembered = lru_cache(maxsize=64)(names)


def places(header: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[int, ...]:
    """Where each wanted column stands; behind the end where it is not told."""
    return tuple(header.index(name) if name in header else len(header) for name in wanted)


def cells(line: str) -> list[str]:
    """The cells of a row; nvidia-smi quotes nothing, and now and then leaves out a space."""
    row = line.split(", ")
    return row if len(row) == line.count(",") + 1 else [cell.strip() for cell in line.split(",")]
