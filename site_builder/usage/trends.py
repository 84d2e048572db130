"""How much of the fleet is used: by model, by hour of the week, and against the week before. All in GPU-minutes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import NamedTuple, TypeVar

from site_builder.history.gpu_minutes import Seen

MINUTES, HOUR, HOURS = 60, 3600, 24
# Models that have a row of their own; a host can tell of any number.
MOST_MODELS = 40
OTHERS = "other models"
Slot = TypeVar("Slot", int, date)


class Use(NamedTuple):
    """What was seen of some GPUs; `gpus` is the most that were there at once, and `percent` their use while taken.

    What was seen was taken, booked with nobody on it, free, or unclear; held is a part of taken.
    """

    gpus: int
    seen: int
    taken: int
    held: int
    booked: int
    free: int
    unclear: int
    percent: float | None

    def share(self, what: str) -> float | None:
        """A part of what was seen, in percent; None where nothing was."""
        part: int = getattr(self, what)
        return 100 * part / self.seen if self.seen else None

    @property
    def wasted(self) -> int:
        """Held idle, or booked with nobody on it."""
        return self.held + self.booked


class Cell(NamedTuple):
    """An hour of a day; `came` is how often it did: twice or never where clocks change."""

    came: int
    seen: int
    taken: int

    @property
    def share(self) -> float | None:
        """How much of what was seen was taken, in percent."""
        return 100 * self.taken / self.seen if self.seen else None


class Span(NamedTuple):
    """Some days in sums, of which so many minutes of each GPU could have been seen."""

    use: Use
    minutes: int
    people: int

    @property
    def seen(self) -> float | None:
        """How much of the time was seen, in percent; None where nothing was."""
        could = self.use.gpus * self.minutes
        return min(100.0, 100 * self.use.seen / could) if could else None


class Change(NamedTuple):
    """A sum and what it was before, in its own unit; None where that time was not seen."""

    now: float
    before: float | None

    @property
    def percent(self) -> float | None:
        """How much more or less it is; None where there is nothing to compare with."""
        return 100 * (self.now - self.before) / self.before if self.before else None


class Changes(NamedTuple):
    """A time against the one before it: GPU-hours, how much of what was seen was taken, in percent, and people."""

    used: Change
    share: tuple[float | None, float | None]
    people: Change
    wasted: Change


class Course(NamedTuple):
    """How much was taken over some days: in percent by slots of some hours, and by day."""

    slots: list[float | None]
    days: list[Cell]


NOT_SEEN = Use(0, 0, 0, 0, 0, 0, 0, None)


def added(several: Iterable[Seen]) -> Seen:
    """The sum of what was seen."""
    return Seen(*map(sum, zip(Seen(*[0] * len(Seen._fields)), *several)))


def use_of(seen: Seen, gpus: int) -> Use:
    """What was seen of so many GPUs."""
    percent = seen.taken_use / 2 / seen.taken_told if seen.taken_told else None
    taken = seen.busy + seen.held + seen.violated
    unclear = seen.unknown + seen.lost
    return Use(gpus, seen.seen, taken, seen.held, seen.booked, seen.free, unclear, percent)


def by_model(seen: Mapping[tuple[Slot, str], Seen], minutes: Callable[[Slot], int]) -> dict[str, Use]:
    """Each model, the one that was seen most first; `minutes` is how long a slot lasts."""
    slots: dict[str, list[tuple[Slot, Seen]]] = defaultdict(list)
    for (slot, model), one in seen.items():
        slots[model].append((slot, one))
    found = {}
    for model, several in slots.items():
        most = max(math.ceil(one.seen / minutes(slot)) for slot, one in several)
        found[model] = use_of(added(one for _, one in several), most)
    ordered = dict(sorted(found.items(), key=lambda item: (-item[1].seen, item[0])))
    if len(ordered) <= MOST_MODELS:
        return ordered
    names = list(ordered)[MOST_MODELS:]
    rest = added(one for name in names for _, one in slots[name])
    kept = {model: one for model, one in ordered.items() if model not in names}
    return {**kept, OTHERS: use_of(rest, sum(found[name].gpus for name in names))}


def total(models: Mapping[str, Use], seen: Iterable[Seen]) -> Use:
    """All models together."""
    return use_of(added(seen), sum(one.gpus for one in models.values()))


def an_hour(_: int) -> int:
    """How many minutes an hour has."""
    return MINUTES


def midnight(day: date, zone: tzinfo) -> int:
    """When a day of the lab begins."""
    return int(datetime.combine(day, datetime.min.time(), zone).timestamp())


def minutes_between(first: date, after: date, zone: tzinfo) -> int:
    """How many minutes lie between two midnights of the lab."""
    return (midnight(after, zone) - midnight(first, zone)) // 60


def a_day(zone: tzinfo) -> Callable[[date], int]:
    """How many minutes each day of the lab has."""
    return lambda day: minutes_between(day, day + timedelta(days=1), zone)


def days_to(last: date, count: int) -> list[date]:
    """So many days, the given one last."""
    return [last - timedelta(days=back) for back in reversed(range(count))]


def heat(seen: Mapping[tuple[int, str], Seen], days: Sequence[date], zone: tzinfo) -> list[list[Cell]]:
    """A row for each day, with a cell for each hour of its clock."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for (at, _), one in seen.items():
        sums[at][0] += one.seen
        sums[at][1] += one.busy + one.held + one.violated
    return cells(sums, days, zone)


def cells(sums: Mapping[int, Sequence[int]], days: Sequence[date], zone: tzinfo) -> list[list[Cell]]:
    """The same, of minutes that were seen and taken by hour; an hour that begins at 17:30 stands under 17."""
    found = {(day, hour): [0, 0, 0] for day in days for hour in range(HOURS)}
    start, end = midnight(days[0], zone) // HOUR * HOUR, midnight(days[-1] + timedelta(days=1), zone)
    for at in range(start, end, HOUR):
        local = datetime.fromtimestamp(at, zone)
        cell = found.get((local.date(), local.hour))
        if cell:
            seen, taken = sums.get(at, (0, 0))
            cell[:] = cell[0] + 1, cell[1] + seen, cell[2] + taken
    return [[Cell(*found[day, hour]) for hour in range(HOURS)] for day in days]


def course(seen: Mapping[tuple[int, str], Seen], days: Sequence[date], a_slot: int, zone: tzinfo) -> Course:
    """How much was taken over some days, in slots of so many hours; None where nothing was seen."""
    rows = heat(seen, days, zone)
    row = [cell for one in rows for cell in one]
    slots = [joined(row[start : start + a_slot]).share for start in range(0, len(row), a_slot)]
    return Course(slots, [joined(one) for one in rows])


def joined(cells: Iterable[Cell]) -> Cell:
    """Several hours as one."""
    return Cell(*map(sum, zip(Cell(0, 0, 0), *cells)))


def apart(seen: Mapping[tuple[int, str], Seen]) -> dict[str, dict[tuple[int, str], Seen]]:
    """What was seen of each model."""
    found: dict[str, dict[tuple[int, str], Seen]] = defaultdict(dict)
    for key, one in seen.items():
        found[key[1]][key] = one
    return found


def changes(now: Span, before: Span) -> Changes:
    """A time against the one before it."""
    was = before.use.seen > 0
    return Changes(
        Change(now.use.taken / MINUTES, before.use.taken / MINUTES if was else None),
        (now.use.share("taken"), before.use.share("taken")),
        Change(now.people, before.people if was else None),
        Change(now.use.wasted / MINUTES, before.use.wasted / MINUTES if was else None),
    )
