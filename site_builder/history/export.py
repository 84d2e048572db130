"""History for notebooks, as CSV or JSON, a row at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import orjson

from site_builder.core import csv_output
from site_builder.core.csv_output import Cell
from site_builder.history.export_rows import Row

BETWEEN = ", "


def csv(rows: Iterable[Row]) -> Iterator[str]:
    """As CSV: what is not available is empty."""
    yield csv_output.row(Row._fields)
    for row in rows:
        time, *fixed, state, use, memory, temperature, power, seen, taken, held, booked, users, bookers = row
        values = f"{known(use)},{known(memory)},{known(temperature)},{known(power)}"
        counts = f"{seen},{taken},{held},{booked}"
        yield f"{time},{cells(*fixed)},{state},{values},{counts},{people(users, bookers)}"


def known(value: float | None) -> float | str:
    """A number."""
    return "" if value is None else value


@lru_cache(maxsize=4096)
def cells(*some: Cell) -> str:
    """Some cells of a row, which many rows have."""
    return csv_output.row(some)[:-1]


@lru_cache(maxsize=4096)
def people(users: tuple[str, ...], bookers: tuple[str, ...]) -> str:
    """The last cells of a row."""
    return csv_output.row((BETWEEN.join(users), BETWEEN.join(bookers)))


def json(rows: Iterable[Row]) -> Iterator[str]:
    """As a list of objects, one to a line."""
    names, begun = Row._fields, "[\n"
    for row in rows:
        yield begun + orjson.dumps(dict(zip(names, row))).decode()
        begun = ",\n"
    yield "[]\n" if begun == "[\n" else "\n]\n"
