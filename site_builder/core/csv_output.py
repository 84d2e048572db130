"""Tables as CSV that a spreadsheet opens as what they are: no cell is a formula, whatever a name says."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Union

Cell = Union[str, float, int, None]
# Where a formula may begin: at the start of a cell, and behind what another spreadsheet takes for the end of one.
FORMULA = re.compile(r"(^|[;,|])([\s\"']*)(?=[=+\-@＝＋－＠])")  # noqa: RUF001 # these count too
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def safe(cell: Cell) -> Cell:
    """A cell that no spreadsheet calculates; numbers stay numbers, and what is not available is empty."""
    if not isinstance(cell, str):
        return cell
    return FORMULA.sub(r"\1\2'", CONTROL.sub("?", cell))


class Line:
    """What csv writes to: each line is given back, for whoever sends it on."""

    @staticmethod
    def write(line: str) -> str:
        """The line."""
        return line


def row(cells: Iterable[Cell]) -> str:
    """A line of the table, with its end."""
    return next(lines((), [cells]))


def lines(head: Sequence[str], rows: Iterable[Iterable[Cell]]) -> Iterator[str]:
    """All lines, one at a time, so that a long table needs no more room than a short one."""
    write = csv.writer(Line, lineterminator="\n").writerow
    if head:
        yield str(write([safe(cell) for cell in head]))
    for cells in rows:
        yield str(write([safe(cell) for cell in cells]))
