"""Slots of time: some minutes of a GPU or a host in one number each, as charts draw them and history keeps them long.

A slot has means of use, memory and power, the highest temperature, how many of its minutes were seen and in which
state, and who had most of them. In one of which nothing was seen no minutes are counted, and no value is available.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from site_builder.history.block_format import (
    COLUMNS,
    MINUTES,
    NO_CODE,
    NONE,
    OWN,
    Damaged,
    Hour,
    array_of,
    block,
    bytes_of,
    is_none,
    standing_of,
    unblock,
)
from site_builder.history.model import STATES

# Each value of a slot: its type of array, and what one step of its number is worth.
MEANS = {"use": ("B", 0.5), "memory": ("H", 8), "temperature": ("B", 1), "power": ("H", 1)}
# Minutes: in all, in each state, and promised to somebody.
COUNTS = ("seen", *STATES, "promised")
# Who had most of it: places in the names beside.
NAMED = ("owner", "booker")
OF_GPU = {**MEANS, **dict.fromkeys(COUNTS, ("B", 1)), **dict.fromkeys(NAMED, ("H", 1))}
OF_HOST = OWN
# So many names have places that one byte can tell, and one more that says none.
FEW = 255
Line = dict[str, "array[int]"]


@dataclass(frozen=True)
class Slots:
    """Some GPUs of one host over some slots, and the host's own."""

    own: Line
    gpus: list[Line]
    names: list[str] = field(default_factory=list)


def empty(slots: int, gpus: int) -> Slots:
    """Slots of which nothing is known."""
    return Slots(new_line(slots, OF_HOST), [new_line(slots, OF_GPU) for _ in range(gpus)])


def new_line(slots: int, columns: dict[str, tuple[str, float]]) -> Line:
    """The same, of one GPU or one host."""
    return {name: array(kind, [0 if name in COUNTS else NONE[kind]]) * slots for name, (kind, _) in columns.items()}


def slots_of(hour: Hour, width: int) -> Slots:
    """The minutes of an hour, so many to a slot."""
    own = {name: means(one, width, 1, NONE[kind]) for one, (name, (kind, _)) in zip(hour.own, OWN.items())}
    found = Slots(own, [])
    codes_of: dict[str | None, int] = {None: NO_CODE}

    @cache
    def judged(raw: bytes) -> tuple[int, ...]:
        """What is counted of the minutes of a slot."""
        counts, owner, booker = counted(array("H", raw), hour.standings)
        for name in (owner, booker):
            if name not in codes_of:
                codes_of[name] = len(found.names)
                found.names.append(name or "")
        return (*counts, codes_of[owner], codes_of[booker])

    for number in range(hour.gpus):
        some = slice(number * MINUTES, (number + 1) * MINUTES)
        line = {name: mean_of(name, one[some], width) for one, name in zip(hour.columns, COLUMNS)}
        codes = hour.codes[some]
        raw, size = codes.tobytes(), codes.itemsize * width
        if raw[2:] == raw[:-2]:  # nothing changed in that hour
            for name, one in zip((*COUNTS, *NAMED), judged(raw[:size])):
                line[name] = array(OF_GPU[name][0], [one]) * (MINUTES // width)
        else:
            rows = [judged(raw[start : start + size]) for start in range(0, len(raw), size)]
            for name, numbers in zip((*COUNTS, *NAMED), zip(*rows)):
                line[name] = array(OF_GPU[name][0], numbers)
        found.gpus.append(line)
    return found


def mean_of(name: str, minutes: array[int], width: int) -> array[int]:
    """A column of one GPU: means, and of the temperature the highest."""
    (kind, fine), (coarse_kind, coarse) = COLUMNS[name], MEANS[name]
    if name == "temperature":
        return highest(minutes, width, NONE[kind])
    if minutes.count(minutes[0]) == len(minutes):  # memory hardly ever moves
        one = minutes[0]
        same = NONE[coarse_kind] if one == NONE[kind] else min(int(one * fine / coarse + 0.5), NONE[coarse_kind] - 1)
        return array(coarse_kind, [same]) * (len(minutes) // width)
    found = means(minutes, width, fine / coarse, NONE[kind])
    if kind == coarse_kind:
        return found
    return array(
        coarse_kind, [NONE[coarse_kind] if one == NONE[kind] else min(one, NONE[coarse_kind] - 1) for one in found]
    )


def means(minutes: array[int], width: int, worth: float, none: int) -> array[int]:
    """The mean of each slot, of the minutes that have a value."""
    if width == 1 and worth == 1:
        return minutes
    if none not in minutes:
        groups = minutes if width == 1 else map(sum, zip(*[iter(minutes)] * width))
        each = worth / width
        return array(minutes.typecode, [int(one * each + 0.5) for one in groups])
    return over(minutes, width, none, lambda told: int(sum(told) * worth / len(told) + 0.5))


def highest(minutes: array[int], width: int, none: int) -> array[int]:
    """The highest of each slot."""
    if width == 1:
        return minutes
    if none not in minutes:
        return array(minutes.typecode, map(max, zip(*[iter(minutes)] * width)))
    return over(minutes, width, none, max)


def over(minutes: array[int], width: int, none: int, what: Callable[[list[int]], int]) -> array[int]:
    """One number for each slot, from the minutes that have a value."""
    if is_none(minutes):
        return minutes[: len(minutes) // width]
    found = array(minutes.typecode)
    for start in range(0, len(minutes), width):
        told = [one for one in minutes[start : start + width] if one != none]
        found.append(what(told) if told else none)
    return found


def counted(codes: Sequence[int], standings: Sequence[str]) -> tuple[list[int], str | None, str | None]:
    """How many minutes were seen, in which state, and promised; who had most of them, and to whom most were."""
    counts = dict.fromkeys(COUNTS, 0)
    people: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for code, minutes in Counter(codes).items():
        if code == NO_CODE:
            continue
        state, who = standing_of(standings[code])
        counts["seen"] += minutes
        counts[state] += minutes
        counts["promised"] += minutes if who.bookers else 0
        for found, names in zip(people, (who.users, who.bookers)):
            for name in names:
                found[name] = found.get(name, 0) + minutes / len(names)
    owner, booker = (max(sorted(one), key=one.__getitem__) if one else None for one in people)
    return list(counts.values()), owner, booker


class Joiner:
    """Puts lines together, and the names that they refer to."""

    def __init__(self, names: list[str]) -> None:
        """The names of what they are put into."""
        self.names = names
        self.codes = {name: code for code, name in enumerate(names)}
        self.last: tuple[Sequence[str], list[int]] = ((), [])

    def put(self, line: Line, at: int, source: Line, names: Sequence[str], some: slice) -> None:
        """Some slots of a line into another, which may have fewer columns; where both saw something, more counts."""
        told = source if line.keys() == source.keys() else {name: source[name] for name in line}
        if some != slice(0, len(source["seen"])):
            told = {name: one[some] for name, one in told.items()}
        told = {name: self.recoded(one, names) if name in NAMED else one for name, one in told.items()}
        into = slice(at, at + len(told["seen"]))
        if not line["seen"][into].tobytes().strip(b"\0"):
            for name, one in told.items():
                line[name][into] = one
            return
        better = [new >= old and new > 0 for new, old in zip(told["seen"], line["seen"][into])]
        for name, one in told.items():
            old = line[name][into]
            line[name][into] = array(one.typecode, [a if ok else b for a, b, ok in zip(one, old, better)])

    def recoded(self, codes: array[int], names: Sequence[str]) -> array[int]:
        """Places in other names, as places in ours."""
        if names is self.names or is_none(codes):
            return codes
        if self.last[0] is not names:
            self.last = (names, [self.code(name) for name in names])
        ours = self.last[1]
        if len(self.names) < FEW:  # the high byte of each is the same before and after
            data = bytearray(bytes_of(codes))
            data[::2] = data[::2].translate(bytes([*ours, *[255] * (256 - len(ours))]))
            return array_of("H", data)
        return array("H", [code if code == NO_CODE else ours[code] for code in codes])

    def code(self, name: str) -> int:
        """The place of a name, which is new or not; those that are too many have none."""
        if name not in self.codes and len(self.names) < NO_CODE:
            self.codes[name] = len(self.names)
            self.names.append(name)
        return self.codes.get(name, NO_CODE)


def put_own(line: Line, at: int, source: Line, some: slice) -> None:
    """Some slots of a host's own into others, where they have a value."""
    for name, (kind, _) in OF_HOST.items():
        told, none = source[name][some], NONE[kind]
        into = slice(at, at + len(told))
        old = line[name][into]
        line[name][into] = told if none not in told else array(kind, [b if a == none else a for a, b in zip(told, old)])


def put(target: Slots, at: int, source: Slots) -> None:
    """Slots of the same GPUs into others."""
    joiner = Joiner(target.names)
    every = slice(0, len(source.own["load"]))
    put_own(target.own, at, source.own, every)
    for line, other in zip(target.gpus, source.gpus):
        joiner.put(line, at, other, source.names, every)


def last_seen(line: Line) -> int:
    """Behind the last slot in which something was seen."""
    return len(line["seen"].tobytes().rstrip(b"\0"))


def add(line: Line, other: Line) -> None:
    """Other minutes of the same GPU to the same slots; few of them have some of both."""
    seen = other["seen"].tobytes()
    some = slice(len(seen) - len(seen.lstrip(b"\0")), last_seen(other))
    old, new = line["seen"][some], other["seen"][some]
    alone = not old.tobytes().strip(b"\0")
    both = [] if alone else [place for place, minutes in enumerate(old) if minutes and new[place]]
    for name, one in other.items():
        mine, told = line[name][some], one[some]
        joined = told if alone else array(one.typecode, [b if ok else a for a, b, ok in zip(mine, told, new)])
        for place in both:
            values = (mine[place], told[place], old[place], new[place])
            joined[place] = together(name, NONE[one.typecode], *values)
        line[name][some] = joined


def together(name: str, none: int, one: int, two: int, minutes: int, more: int) -> int:  # noqa: PLR0913, PLR0917 # each is one thing
    """A value of so many minutes and one of so many more."""
    if name in COUNTS:
        return one + two
    if none in {one, two}:
        return two if one == none else one
    if name in NAMED:
        return one if minutes >= more else two
    return max(one, two) if name == "temperature" else int((one * minutes + two * more) / (minutes + more) + 0.5)


def pack_slots(slots: Slots) -> bytes:
    """Slots as they are kept."""
    columns = list(slots.own.values())
    for name, (kind, _) in OF_GPU.items():
        joined = array(kind)
        for line in slots.gpus:
            joined += line[name]
        columns.append(joined)
    return block({"names": slots.names}, columns, 6)


def unpack_slots(data: bytes) -> Slots:
    """The same, read back."""
    words, columns = unblock(data)
    try:
        own = dict(zip(OF_HOST, columns))
        joined = dict(zip(OF_GPU, columns[len(OF_HOST) :]))
        count = len(own["load"])
        starts = range(0, len(joined["booker"]), count)
        gpus = [{name: one[start : start + count] for name, one in joined.items()} for start in starts]
        return Slots(own, gpus, list(words["names"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(str(error)) from error
