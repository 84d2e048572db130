"""Cells of nvidia-smi's CSV: numbers, words, and the many ways in which it says that there is none."""

from __future__ import annotations

import re

# Brackets around the whole cell are nvidia-smi's mark of a value that is none; the bare ones appear in the same rows.
NO_VALUE = re.compile(r"\[[A-Z][A-Za-z/ ]*\]$")
NOT_AVAILABLE = frozenset({"N/A", "", "ERR!", "-", "Not Supported", "Not Found"})
# What a cell says of a GPU that the driver cannot reach.
LOST = frozenset({"[GPU is lost]", "[GPU requires reset]", "[Unknown Error]"})
UNIT = re.compile(r" (?:MiB|KiB|%|W|MHz|C|us|ms)$")
TOO_LARGE = 1e15


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


def whole_number(cell: str) -> int | None:
    """The cell's whole number; None for anything else."""
    return int(cell) if cell.isdecimal() and len(cell) <= 12 else None


def columns(line: str) -> list[str]:
    """The names in a CSV header, without their units."""
    return [name.split(" [", 1)[0].strip() for name in line.split(",")]


def cells(line: str) -> list[str]:
    """The cells of a row; nvidia-smi quotes nothing, and now and then leaves out a space."""
    row = line.split(", ")
    return row if len(row) == line.count(",") + 1 else [cell.strip() for cell in line.split(",")]
