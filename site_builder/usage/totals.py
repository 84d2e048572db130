"""Who had how much: GPU-time by person, model, host and month, in sums that are closed.

All of it is in units of which a GPU-minute has tallied.UNIT, so that nothing is lost to rounding before it is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from operator import add
from typing import NamedTuple, TypeVar

from site_builder.core.names import folded, natural
from site_builder.core.people import People, is_cut
from site_builder.history.gpu_minutes import UNIT, Month, Seen, Share
from site_builder.history.model import Series
from site_builder.snapshots.envelope import clean

BY = ("person", "model", "host", "month")
Place = tuple[date, str, str]  # the first of a month, a host, a model
Key = TypeVar("Key")


class Sums(NamedTuple):
    """GPU-time. `seen` is used + unowned + promised + free + unclear; `unseen` is what nobody looked at.

    Of `used`, some was `held` idle; of `booked`, some was `unused` by who had booked it. `promised` is booked with
    nobody on it at all, `violated` taken by one while booked by another.
    """

    used: int = 0
    held: int = 0
    booked: int = 0
    unused: int = 0
    unowned: int = 0
    promised: int = 0
    free: int = 0
    unclear: int = 0
    seen: int = 0
    unseen: int = 0
    violated: int = 0

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(*map(add, self, other))


NOTHING = Sums()


class Row(NamedTuple):
    """A line: of a person, under all of their `names`, or of a model, a host or a month; a person has no more than
    used, held, booked and unused. `key` is the same for the same person in another table."""

    key: str
    name: str
    sums: Sums
    names: tuple[str, ...] = ()


class Usage(NamedTuple):
    """The lines, and all of it together."""

    by: str
    rows: tuple[Row, ...]
    total: Sums


class Stay(NamedTuple):
    """A GPU of a model on a host, from a moment on, and until another if it left."""

    host: str
    model: str
    since: int
    until: int | None


class Period(NamedTuple):
    """Days of the lab, the last of which counts too, as far as they have come."""

    first: date
    last: date
    zone: tzinfo
    now: float

    def months(self) -> Iterator[tuple[date, float, float]]:
        """Each month of it by its first day, and from when to when it is part of the period."""
        month = self.first.replace(day=1)
        while month <= self.last:
            following = (month + timedelta(days=31)).replace(day=1)
            since = midnight(max(month, self.first), self.zone)
            until = min(midnight(min(following, self.last + timedelta(days=1)), self.zone), self.now)
            yield month, since, max(since, until)
            month = following


def midnight(day: date, zone: tzinfo) -> float:
    """When a day begins."""
    return datetime.combine(day, datetime.min.time(), zone).timestamp()


def hours(units: int) -> float:
    """GPU-hours."""
    return units / UNIT / 60


def of_share(share: Share) -> Sums:
    """What a person had."""
    return Sums(share.used, share.held, share.booked, share.unused)


def of_seen(seen: Seen) -> Sums:
    """What was seen of GPUs, but for what people had of it."""
    return Sums(
        unowned=seen.unowned * UNIT,
        promised=seen.booked * UNIT,
        free=seen.free * UNIT,
        unclear=(seen.unknown + seen.lost) * UNIT,
        seen=seen.seen * UNIT,
        violated=seen.violated * UNIT,
    )


def usage(persons: Mapping[str, Sums], places: Mapping[Place, Sums], people: People, by: str = "person") -> Usage:
    """Lines by one of BY, of what each person had and what there was at each place."""
    rows = by_person(persons, people) if by == "person" else by_place(places, by)
    return Usage(by, tuple(rows), together(places.values()))


def added(
    shares: Iterable[tuple[date, str, str, str, Share]],
    seen: Iterable[tuple[date, str, str, Seen]],
    unseen: Mapping[Place, int],
) -> tuple[dict[str, Sums], dict[Place, Sums]]:
    """Both, of what is told by day, host, model and person, and the same but for the person."""
    persons: dict[str, list[int]] = {}
    places: dict[Place, list[int]] = {}
    for day, host, model, name, share in shares:
        plus(persons, name, share)
        plus(places, (day.replace(day=1), host, model), share)
    for day, host, model, told in seen:
        plus(places, (day.replace(day=1), host, model), of_seen(told))
    for place, minutes in unseen.items():
        plus(places, place, Sums(unseen=minutes * UNIT))
    return {name: Sums(*row) for name, row in persons.items()}, {place: Sums(*row) for place, row in places.items()}


def places_of(month: Month) -> dict[Place, Sums]:
    """What there was at each place in a month that is added up."""
    places: dict[Place, list[int]] = {}
    for (host, model), share in month.had.items():
        plus(places, (month.first, host, model), share)
    for (host, model), seen in month.seen.items():
        plus(places, (month.first, host, model), of_seen(seen))
    for (host, model), minutes in month.unseen.items():
        plus(places, (month.first, host, model), Sums(unseen=minutes * UNIT))
    return {place: Sums(*row) for place, row in places.items()}


def plus(sums: dict[Key, list[int]], key: Key, row: Sequence[int]) -> None:
    """To what is there; a Share is the beginning of Sums."""
    found = sums.get(key)
    if found is None:
        found = sums[key] = [0] * len(Sums._fields)
    for place, units in enumerate(row):
        found[place] += units


def together(several: Iterable[Sums]) -> Sums:
    """The sum of sums."""
    total = NOTHING
    for one in several:
        total = total.plus(one)
    return total


def by_place(places: Mapping[Place, Sums], by: str) -> Iterator[Row]:
    """A line for each model, host or month, in their order."""
    found: dict[str, Sums] = defaultdict(Sums)
    for (month, host, model), sums in places.items():
        key = {"month": f"{month:%Y-%m}", "host": host, "model": model}[by]
        found[key] = found[key].plus(sums)
    for name in sorted(found, key=natural):
        yield Row(name, clean(name), found[name])


def by_person(names: Mapping[str, Sums], people: People) -> list[Row]:
    """A line for each person, whoever used most first."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        found[person_of(name, people)].append(name)
    rows = [
        Row(key, shown(several, people), together(names[name] for name in several), tuple(several))
        for key, several in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.sums.used, -row.sums.booked, natural(row.name), row.name))


def person_of(name: str, people: People) -> str:
    """One word for one person; a name that `ps` cut is theirs if it can be nobody else's."""
    return people.one(name)


def shown(names: Sequence[str], people: People) -> str:
    """The name to show for several spellings: the one in aliases.csv, or else the plainest."""
    aliased = sorted(people.user(name) for name in names if people.is_aliased(name))
    plainest = min(names, key=lambda name: (is_cut(name), name.isdecimal(), name != folded(name), name))
    return clean(aliased[0] if aliased else people.user(plainest))


# What nobody looked at


def stays(shapes: Iterable[tuple[str, int, Sequence[Series]]]) -> list[Stay]:
    """Where each GPU was, of which hosts told which GPUs, and from when on.

    It is where it was told last, as long as that host does not tell other GPUs without it.
    """
    there: dict[str, tuple[str, str, int]] = {}
    on: dict[str, set[str]] = defaultdict(set)
    found: list[Stay] = []

    def leave(key: str, at: int) -> None:
        host, model, since = there.pop(key)
        on[host].discard(key)
        found.append(Stay(host, model, since, at))

    for host, first, series in sorted(shapes, key=lambda shape: (shape[1], shape[0])):
        told = {identity(one, host): one.model for one in series}
        for key in on[host] - told.keys():
            leave(key, first)
        for key, model in told.items():
            if key in there and there[key][:2] != (host, model):
                leave(key, first)
            if key not in there:
                there[key] = (host, model, first)
                on[host].add(key)
    return found + [Stay(*one, None) for one in there.values()]


def identity(series: Series, host: str) -> str:
    """What names a GPU wherever it is; one that has only a place is that of its host."""
    return series.key if series.key.startswith("GPU-") else f"{host} {series.key}"


def unseen(
    stays: Iterable[Stay], seen: Mapping[tuple[str, str], int], since: float, until: float
) -> dict[tuple[str, str], int]:
    """The minutes from one moment to another in which a GPU should have been seen and was not, by host and model.

    `seen` are those in which it was. A host of which nothing was seen in all that time does not count.
    """
    hosts = {host for host, _ in seen}
    there: dict[tuple[str, str], int] = defaultdict(int)
    for stay in stays:
        end = until if stay.until is None else min(until, stay.until)
        if end > max(since, stay.since) and stay.host in hosts:
            there[stay.host, stay.model] += int(end - max(since, stay.since)) // 60
    return {place: count - seen.get(place, 0) for place, count in there.items() if count > seen.get(place, 0)}


def unseen_in(stays: Sequence[Stay], seen: Iterable[tuple[date, str, str, Seen]], period: Period) -> dict[Place, int]:
    """The same of each month of a period, of what was seen by day, host and model."""
    minutes: dict[date, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for day, host, model, told in seen:
        minutes[day.replace(day=1)][host, model] += told.seen
    found: dict[Place, int] = {}
    for month, since, until in period.months():
        if month in minutes:
            for (host, model), count in unseen(stays, minutes[month], since, until).items():
                found[month, host, model] = count
    return found


def percent_seen(sums: Sums) -> int | None:
    """How much of the time was seen, in whole percent, rounded down: only all of it is 100."""
    whole = sums.seen + sums.unseen
    return None if not whole else sums.seen * 100 // whole
