"""Write CSV that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Union

CsvCell = Union[str, float, int, None]
# Where a formula may begin: at the start of a cell, and after what another spreadsheet takes for its end.
FORMULA_START = re.compile(r"(^|[;,|])([\s\"']*)(?=[=+\-@＝＋－＠])")  # noqa: RUF001 # these count too
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def format_csv_lines(head: Sequence[str], rows: Iterable[Iterable[CsvCell]]) -> Iterator[str]:
    """Yield one line at a time, so that a long table needs no more memory than a short one."""
    write = csv.writer(EchoWriter, lineterminator="\n").writerow
    if head:
        yield str(write([escape_csv_cell(cell) for cell in head]))
    for cells in rows:
        yield str(write([escape_csv_cell(cell) for cell in cells]))


def format_csv_row(cells: Iterable[CsvCell]) -> str:
    return next(format_csv_lines((), [cells]))


def escape_csv_cell(cell: CsvCell) -> CsvCell:
    """Escape a cell so that no spreadsheet calculates it; numbers stay numbers, and None is empty."""
    if not isinstance(cell, str):
        return cell
    return FORMULA_START.sub(r"\1\2'", CONTROL_CHARACTERS.sub("?", cell))


class EchoWriter:
    """A file for csv that returns each line in place of writing it."""

    @staticmethod
    def write(line: str) -> str:
        return line
