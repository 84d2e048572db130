"""Cells of nvidia-smi's CSV: numbers, words, and the many ways in which it says that there is none."""

from __future__ import annotations

import re
from functools import lru_cache

# Brackets around the whole cell are nvidia-smi's mark of a value that is none; the bare ones appear in the same rows.
NO_VALUE = re.compile(r"\[[A-Z][A-Za-z/ ]*\]$")
NOT_AVAILABLE = frozenset({"N/A", "", "ERR!", "-", "Not Supported", "Not Found"})
# What a cell says of a GPU that the driver cannot reach.
LOST = frozenset({"[GPU is lost]", "[GPU requires reset]", "[Unknown Error]"})
UNIT = re.compile(r" (?:MiB|KiB|%|W|MHz|C|us|ms)$")
TOO_LARGE = 1e15
LONGEST_NUMBERS = 300


def available(cell: str) -> str | None:
    """The cell's text, or None where it says that there is none."""
    return None if cell in NOT_AVAILABLE or NO_VALUE.match(cell) else cell


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
    return value if 0 <= value < TOO_LARGE else None


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
