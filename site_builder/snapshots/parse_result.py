"""What a reader gives: the rows that it understood, the words between them, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Row = TypeVar("Row")
# How a problem begins that may have cost a GPU.
ODD_ROW = "a row has "
LONGEST_NAME = 200


@dataclass(frozen=True)
class Understood(Generic[Row]):
    """Of one tool; `answered` is False where it did not get as far as telling all of its rows.

    `unreported` has the GPUs, by their handles, whose processes it did not report, each with its words.
    """

    rows: tuple[Row, ...] = ()
    said: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    answered: bool = True
    unreported: Mapping[str, str] = field(default_factory=dict)
