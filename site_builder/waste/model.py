"""What is wasted, as it is published and read again. A value that is not available is None, never 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from site_builder.core.model import Number

# In the order in which they are told of one GPU.
KINDS = ("dead", "held", "ownerless", "unexplained", "booking", "unused")
FILE = "waste.json"


class Item(NamedTuple):
    """Something that is wasted: on which GPU, by whom, since when, how many GPU-hours, what it is and what to do.

    `key` names the GPU on its host; `who` is as people are shown, and empty where nobody is named; `until` is when a
    booking ended that is over. Hours that nobody can know are None. `command` is what `do` asks to be run, if anything.
    """

    kind: str
    host: str
    key: str
    index: Number  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    who: tuple[str, ...]
    since: int | None
    until: int | None
    hours: float | None
    pids: tuple[int, ...]
    what: str
    do: str
    command: str = ""


class Wasted(NamedTuple):
    """All that is wasted at a moment, the most GPU-hours first.

    `every` is how often the board is built, in seconds; `hosts` are all that it has; `watched` is since when history is
    kept, and `trouble` why it could not be read.
    """

    built: int
    every: int
    items: tuple[Item, ...]
    hosts: tuple[str, ...] = ()
    watched: int | None = None
    trouble: str | None = None


def totals(found: Iterable[Item]) -> tuple[float, int]:
    """How many GPU-hours in all, and of how many lines nobody can know them."""
    hours = [one.hours for one in found]
    return round(sum(one for one in hours if one is not None), 2), sum(one is None for one in hours)


class Line(NamedTuple):
    """What is the same of several GPUs of a host, for people; `hours` are those of all together."""

    first: Item
    hours: float | None
    place: str


def lines(items: Iterable[Item]) -> list[Line]:
    """GPUs that differ in nothing but their numbers, in one line; still the most GPU-hours first."""
    groups: dict[tuple[object, ...], list[Item]] = {}
    for one in items:
        same = one[:2] + one[4:8] + one[9:]
        groups.setdefault((*same, one.hours is None), []).append(one)
    found = []
    for several in groups.values():
        labels = ",".join("?" if one.index is None else str(one.index) for one in several)
        hours = None if several[0].hours is None else totals(several)[0]
        found.append(Line(several[0], hours, f"{several[0].host}:{labels}"))
    return sorted(found, key=lambda line: (line.hours is None, -(line.hours or 0)))
