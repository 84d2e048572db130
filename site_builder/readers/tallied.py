"""GPU-minutes: who had how much of which GPUs, on which day of the lab.

They are whole numbers of a small unit, of which each minute has as many as can be shared evenly by up to ten people,
so that sums are exact.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

from site_builder.readers.packed import COLUMNS, MINUTES, NO_CODE, NONE, Hour, is_none, standing_of
from site_builder.samples import STATES, TAKEN, UNCLEAR, Series

UNIT = 2520
NO_USE = NONE[COLUMNS["use"][0]]


class Share(NamedTuple):
    """What a person had: on GPUs, of it held idle; promised to them, and of it with nothing of theirs on it."""

    used: int
    held: int
    booked: int
    unused: int


class Seen(NamedTuple):
    """What was seen of GPUs: how long in each state; taken by nobody that is known; how long their use was told, and
    the sum of it, in half percents times minutes."""

    seen: int
    unknown: int
    lost: int
    violated: int
    held: int
    busy: int
    booked: int
    free: int
    unowned: int
    told: int
    use: int


class Tally:
    """Shares by model and person, and what was seen by model, on each day."""

    def __init__(self) -> None:
        """None yet."""
        self.shares: dict[tuple[date, str, str], list[int]] = {}
        self.seen: dict[tuple[date, str], list[int]] = {}

    def add(self, hour: Hour, series: Sequence[Series], days: Sequence[tuple[date, int, int]]) -> None:
        """The minutes of a host in an hour; `days` are the days of the lab in it, each from one minute to another."""
        for number, which in enumerate(series):
            for day, start, end in days:
                first = number * MINUTES
                codes = hour.codes[first + start : first + end]
                if is_none(codes):
                    continue
                self.add_seen((day, which.model), hour, codes, hour.columns[0][first + start : first + end])

    def add_seen(self, key: tuple[date, str], hour: Hour, codes: array[int], use: array[int]) -> None:
        """Some minutes of one GPU."""
        row = self.seen.setdefault(key, [0] * len(Seen._fields))
        for code, minutes in Counter(codes).items():
            if code == NO_CODE:
                continue
            state, free_of_owner, parts = account(hour.standings[code], minutes)
            row[0] += minutes
            row[1 + state] += minutes
            row[8] += free_of_owner
            for person, share in parts:
                mine = self.shares.setdefault((*key, person), [0] * len(Share._fields))
                for place, units in enumerate(share):
                    mine[place] += units
        none = use.count(NO_USE)
        row[9] += len(use) - none
        row[10] += sum(use) - none * NO_USE


@lru_cache(maxsize=65536)
def account(text: str, minutes: int) -> tuple[int, int, tuple[tuple[str, Share], ...]]:
    """So many minutes in which a GPU stood like this: the place of its state, those that nobody owns, and shares."""
    standing = standing_of(text)
    state, who = standing.state, standing.who
    taken = state in TAKEN
    found: dict[str, list[int]] = {}
    if taken:
        for person, units in shared(who.users, minutes):
            row = found.setdefault(person, [0, 0, 0, 0])
            row[0] += units
            row[1] += units if state == "held" else 0
    for person, units in shared(who.bookers, minutes):
        row = found.setdefault(person, [0, 0, 0, 0])
        row[2] += units
        row[3] += units if person in who.absent and state not in UNCLEAR else 0
    unowned = minutes if taken and not who.users else 0
    return STATES.index(state), unowned, tuple((person, Share(*row)) for person, row in found.items())


def shared(people: Sequence[str], minutes: int) -> Iterator[tuple[str, int]]:
    """Minutes that several have together, each an even part of them, to the last unit."""
    if people:
        each, rest = divmod(minutes * UNIT, len(people))
        for place, person in enumerate(people):
            yield person, each + (place < rest)


def days_of(at: int, zone: tzinfo) -> list[tuple[date, int, int]]:
    """The days of the lab in the hour that begins then: midnight is not on the hour everywhere."""
    first = datetime.fromtimestamp(at, zone).date()
    last = datetime.fromtimestamp(at + 60 * (MINUTES - 1), zone).date()
    if first == last:
        return [(first, 0, MINUTES)]
    dates = [datetime.fromtimestamp(at + 60 * minute, zone).date() for minute in range(MINUTES)]
    turn = next(minute for minute, one in enumerate(dates) if one != first)
    return [(first, 0, turn), (last, turn, MINUTES)]
