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

from site_builder.history.block_format import COLUMNS, MINUTES, NO_CODE, NONE, Hour, is_none, standing_of
from site_builder.history.model import STATES, TAKEN, UNCLEAR, Series

UNIT = 2520
NO_USE = NONE[COLUMNS["use"][0]]
Place = tuple[str, str]  # a host and a model


class Share(NamedTuple):
    """What a person had: on GPUs, of it held idle; promised to them, and of it with nothing of theirs on it."""

    used: int
    held: int
    booked: int
    unused: int


class Seen(NamedTuple):
    """What was seen of GPUs: how long in each state; taken by nobody that is known; how long their use was told, and
    the sum of it, in half percents times minutes; and both again of the minutes in which they were taken."""

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
    taken_told: int = 0
    taken_use: int = 0


class Window(NamedTuple):
    """Some hours up to a moment: how many of their minutes were looked at, who had how much, and what was seen."""

    since: int
    until: int
    minutes: int
    shares: dict[str, Share]
    seen: Seen


class Month(NamedTuple):
    """A month by its first day, from the day on with which history begins, as far as it is added up: who had how much;
    what people had, what was seen, and how many minutes were not, by host and model, or for all of them under no name.
    """

    first: date
    since: date
    until: int
    shares: dict[str, Share]
    had: dict[Place, Share]
    seen: dict[Place, Seen]
    unseen: dict[Place, int]


class Lately(NamedTuple):
    """What is added up: windows, and months, the newest first; none of them where it is not done yet."""

    windows: tuple[Window, ...]
    months: tuple[Month, ...]


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
        alike = codes.count(codes[0]) == len(codes)  # nothing changed in that hour
        for code, minutes in [(codes[0], len(codes))] if alike else Counter(codes).items():
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
        taken = use_while_taken(codes, hour.standings, use)
        none = taken.count(NO_USE)
        row[11] += len(taken) - none
        row[12] += sum(taken) - none * NO_USE


def use_while_taken(codes: array[int], standings: Sequence[str], use: array[int]) -> array[int]:
    """The use of a GPU in the minutes in which somebody had it."""
    there = {code for code in set(codes) if code != NO_CODE and standing_of(standings[code]).state in TAKEN}
    if not there:
        return use[:0]
    if codes.count(codes[0]) == len(codes):  # nothing changed in that hour
        return use
    return array(use.typecode, [one for one, code in zip(use, codes) if code in there])


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
