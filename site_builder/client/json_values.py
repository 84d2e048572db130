"""Take values from the JSON of a board, which may be of any type."""

from __future__ import annotations

from typing import Any

from site_builder.core.terminal_text import clean_text, flatten_text
from site_builder.fleet.status_json import STATUS_SCHEMA

NUMBER_TYPES = (int, float)
MAX_NUMBER = 1e15


def suggest_board_update(schema: object) -> str:
    """Say whether gpuboard here or the board is too old."""
    return "update gpuboard here" if type(schema) is int and schema > STATUS_SCHEMA else "update the board"


def as_text(value: object) -> str | None:
    """Return a text that is known to be clean."""
    return value if isinstance(value, str) else None


def as_clean_text(value: object) -> str | None:
    """Return a text in one line, without characters that control a terminal or the direction of writing."""
    if not isinstance(value, str) or (value.isascii() and value.isprintable()):  # nearly all texts are clean
        return as_text(value)
    return flatten_text(clean_text(value))


def as_number(value: object) -> float | None:
    """Return a plausible number from 0 up; true and false are none."""
    return value if type(value) in NUMBER_TYPES and 0 <= value < MAX_NUMBER else None  # type: ignore[operator,return-value]


def as_integer(value: object) -> int | None:
    """Return a whole number from 0 up."""
    return value if type(value) is int and 0 <= value < MAX_NUMBER else None


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
