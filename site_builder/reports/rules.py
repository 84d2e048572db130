"""A week of the fleet: what was used and by whom, what was wasted, what happened; against the week before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from math import ceil
from typing import NamedTuple

from site_builder.core.model import Number
from site_builder.core.names import in_order, natural
from site_builder.health.model import Event
from site_builder.history.export_rows import Called
from site_builder.history.gpu_minutes import Seen
from site_builder.usage import trends
from site_builder.usage.totals import Period, Row, Usage, percent_seen
from site_builder.usage.trends import Cell, Change, Changes, Span, Use

DAYS = 7
# Below so many minutes nobody is told of them: a break is no waste.
LEAST = 60
SeenRows = Iterable[tuple[date, str, str, Seen]]


class GpuSlot(NamedTuple):
    """A GPU in an hour or a part of it, in minutes: seen, taken, of it idle, promised with nobody on it; and who had
    most of it."""

    hour: int
    seen: int
    taken: int
    held: int
    booked: int
    owner: str | None
    booker: str | None


class GpuWeek(NamedTuple):
    """A GPU in those parts of a week in which it was seen."""

    host: str
    index: Number  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    slots: Sequence[GpuSlot]


class Wasted(NamedTuple):
    """Minutes of a GPU, and whose they were, if that is known and may be told."""

    host: str
    index: Number  # type: ignore[assignment]
    model: str
    who: str
    minutes: int


class Waste(NamedTuple):
    """What was held idle, what was promised with nobody on it, and GPUs that nobody was on; the most first."""

    held: list[Wasted]
    booked: list[Wasted]
    unused: list[Wasted]


class WastedNow(NamedTuple):
    """What is wasted at the time of the report; hours that nobody can know are None."""

    host: str
    index: Number  # type: ignore[assignment]
    who: tuple[str, ...]
    hours: float | None
    what: str
    do: str


class Told(NamedTuple):
    """What history tells of a week; `begins` is its first day, where that is not the first of the week."""

    days: Mapping[date, Use]
    models: Mapping[str, Use]
    total: Use
    people: Usage
    hosts: Usage
    begins: date | None

    @property
    def seen(self) -> int | None:
        """How much of the time of these GPUs was seen, in percent."""
        return percent_seen(self.people.total)


class Week(NamedTuple):
    """All that a report tells. It ends at `until`, or is told up to then where it is not `over`.

    `now` are those that waste something at the time of the report, where that is not long after; without `users`
    nobody is named.
    """

    first: date
    until: float
    over: bool
    zone: tzinfo
    told: Told
    before: Told | None
    cells: list[list[Cell]]
    waste: Waste
    now: Sequence[WastedNow]
    events: Sequence[Event]
    users: bool

    @property
    def days(self) -> list[date]:
        """From Monday to Sunday."""
        return days_from(self.first)


def days_from(first: date) -> list[date]:
    """The days of a week."""
    return trends.days_to(first + timedelta(days=DAYS - 1), DAYS)


class Hours:
    """What GPUs did in a week of so many minutes, added up one after the other: together they have many hours."""

    def __init__(self, minutes: int, called: Called, users: bool) -> None:
        """None yet."""
        self.minutes, self.called, self.users = minutes, called, users
        self.fleet: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # seen and taken
        self.models: dict[tuple[int, str], int] = defaultdict(int)
        self.found = Waste([], [], [])

    def add(self, gpu: GpuWeek) -> None:
        """One of them. What counts as booked does not count again as never used."""
        held: dict[str, int] = defaultdict(int)
        booked: dict[str, int] = defaultdict(int)
        for slot in gpu.slots:
            both = self.fleet[slot.hour]
            both[:] = both[0] + slot.seen, both[1] + slot.taken
            self.models[slot.hour, gpu.model] += slot.seen
            held[self.shown(slot.owner)] += slot.held
            booked[self.shown(slot.booker)] += slot.booked
        place = (gpu.host, gpu.index, gpu.model)
        for several, into in ((held, self.found.held), (booked, self.found.booked)):
            into.extend(Wasted(*place, who, count) for who, count in several.items() if count >= LEAST)
        seen = sum(slot.seen for slot in gpu.slots)
        left = seen - sum(booked.values())
        # one that was hardly seen is not one that nobody was on
        if 2 * seen >= self.minutes and left >= LEAST and not any(slot.taken for slot in gpu.slots):
            self.found.unused.append(Wasted(*place, "", left))

    def shown(self, name: str | None) -> str:
        """Who it was, if that is known and may be told."""
        return self.called.name(name) if name and self.users else ""

    def waste(self) -> Waste:
        """What was wasted, the most first."""
        for several in self.found:
            several.sort(key=lambda one: (-one.minutes, natural(one.host), in_order(one.index), one.who))
        return self.found

    def most_at_once(self, zone: tzinfo) -> dict[tuple[date, str], int]:
        """How many of each model were seen at once on each day, at most."""
        found: dict[tuple[date, str], int] = defaultdict(int)
        for (at, model), count in self.models.items():
            key = (datetime.fromtimestamp(at, zone).date(), model)
            found[key] = max(found[key], ceil(count / trends.MINUTES))
        return found


def told(  # noqa: PLR0913, PLR0917 # each is one thing
    period: Period,
    seen: SeenRows,
    most: Mapping[tuple[date, str], int],
    people: Usage,
    hosts: Usage,
    begins: date | None,
) -> Told:
    """What history tells of a week; `most` are the GPUs of each model on each day."""
    by_model: dict[tuple[date, str], list[Seen]] = defaultdict(list)
    for day, _, model, one in seen:
        by_model[day, model].append(one)
    sums = {key: trends.added(several) for key, several in by_model.items()}
    days = {}
    for day in days_from(period.first):
        there = sum(count for (one, _), count in most.items() if one == day)
        days[day] = trends.use_of(trends.added(one for (at, _), one in sums.items() if at == day), there)
    models = {}
    for model, use in trends.by_model(sums, trends.a_day(period.zone)).items():
        counts = [count for (_, one), count in most.items() if one == model]
        models[model] = use._replace(gpus=max(counts, default=use.gpus))
    began = begins if begins and period.first < begins else None
    return Told(days, models, trends.total(models, sums.values()), people, hosts, began)


def changes(week: Week) -> Changes:
    """The week against the one before it; one that is not over is compared with none."""
    whole = week.before if week.over else None
    return trends.changes(span(week.told), span(whole) if whole else Span(trends.NOT_SEEN, 0, 0))


def span(one: Told) -> Span:
    """A week in sums."""
    return Span(one.total, 0, sum(row.sums.used > 0 for row in one.people.rows))


def model_change(week: Week, model: str) -> Change:
    """The GPU-hours of a model against the week before."""
    before = week.before.models.get(model) if week.before and week.over else None
    use = week.told.models.get(model, trends.NOT_SEEN)
    return Change(use.taken / trends.MINUTES, before.taken / trends.MINUTES if before else None)


def models(week: Week) -> dict[str, Use]:
    """Those of the week, and those of which there was only something in the week before."""
    found = dict(week.told.models)
    for model in week.before.models if week.before else ():
        if len(found) < trends.MOST_MODELS:
            found.setdefault(model, trends.NOT_SEEN)
    return found


def used_before(week: Week) -> dict[str, int] | None:
    """What each person used in the week before, by their keys."""
    if not week.before or not week.over:
        return None
    return {row.key: row.sums.used for row in week.before.people.rows}


def gaps(week: Week) -> list[Row]:
    """The hosts of which something was not seen, the most first."""
    rows = [row for row in week.told.hosts.rows if (percent_seen(row.sums) or 0) < 99]
    return sorted(rows, key=lambda row: (-row.sums.unseen, natural(row.name)))
