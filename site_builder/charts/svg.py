"""Shapes for pictures in SVG: small, of whole numbers, and with gaps that stay gaps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import NamedTuple, TypeVar

from site_builder.core.html import Html, escaped

What = TypeVar("What")
# The first digits of a round number.
ROUND = (1, 2, 2.5, 5, 10)


class Run(NamedTuple):
    """Places in a row that have something in common: from `start` to before `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How many they are."""
        return self.end - self.start


class Box(NamedTuple):
    """Where something is, from the upper left corner, and how large."""

    x: int
    y: int
    width: int
    height: int


def runs(places: Sequence[What]) -> Iterator[tuple[What, Run]]:
    """Each thing and the places in a row that have it."""
    start = 0
    for what, several in groupby(places):
        end = start + sum(1 for _ in several)
        yield what, Run(start, end)
        start = end


def edges(count: int, width: int) -> list[int]:
    """Where each of so many places begins across a width, and where the last one ends."""
    return [round(place * width / count) for place in range(count + 1)] if count else [0]


def heights(values: Sequence[float | None], height: int, top: float) -> list[int | None]:
    """How far down each value is where `top` is at the upper edge and 0 at the lower one; None has no place."""
    worth = height / top if top > 0 else 0
    found = {one: None if one is None else height - round(min(max(one * worth, 0), height)) for one in set(values)}
    return [found[one] for one in values]  # most values come again and again


def line(values: Sequence[float | None], width: int, height: int, top: float) -> Html:
    """The data of a path through values, from one edge to the other; None breaks it, and one value alone is a dash."""
    return path(heights(values, height, top), edges(len(values), width))


def path(down: Sequence[int | None], across: Sequence[int]) -> Html:
    """The same through heights; `across` tells where each place begins, and where the last one ends."""
    parts: list[str] = []
    pen = y = -1  # where it is, in places and in height; at first, and in a gap, it is lifted
    for place, next_y in enumerate(down):
        if next_y is None:
            if pen >= 0:
                parts.append(flat(across[place] - across[pen]))
            pen = y = -1
        elif next_y != y:
            if pen < 0:
                parts.append(f"M{across[place]} {next_y}")
            else:
                if pen < place - 1:
                    parts.append(flat(across[place - 1] - across[pen]))
                parts.append(slope(across[place] - across[place - 1], next_y - y))
            pen, y = place, next_y
    if pen >= 0:
        parts.append(flat(across[len(down)] - across[pen]))
    return Html("".join(parts))


@cache
def flat(wide: int) -> str:
    """A stroke to the right."""
    return f"h{wide}"


@lru_cache(maxsize=4096)
def slope(wide: int, tall: int) -> str:
    """A stroke to the right and down, or up."""
    return f"l{wide}{tall}" if tall < 0 else f"l{wide} {tall}"


def ceiling(value: float) -> float:
    """The next round number: where an axis ends that has to show this."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    found = next((first * power for first in ROUND if first * power >= value * (1 - 1e-9)), 10 * power)
    return int(found) if found >= 1 and found == int(found) else found


def rect(box: Box, more: str = "", title: str = "") -> Html:
    """A rectangle; `more` are further attributes, ready to be written, and the title is told on hover."""
    attributes = f"x={box.x} y={box.y} width={box.width} height={box.height}{' ' if more else ''}{more}"
    return Html(f"<rect {attributes}><title>{escaped(title)}</title></rect>" if title else f"<rect {attributes} />")
