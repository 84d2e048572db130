"""How much of the fleet is used: by model, by hour of the week, and against the week before. All in GPU-minutes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import NamedTuple, TypeVar

from site_builder.charts.svg import HOURS_PER_DAY, UsageCell
from site_builder.core.formatting import HOUR
from site_builder.history.buckets import StateMinutes
from site_builder.usage.totals import find_midnight

MINUTES_PER_HOUR = 60
# Models that have a row of their own; a host can tell of any number.
MAX_MODELS = 40
OTHER_MODELS = "other models"
TimeKey = TypeVar("TimeKey", int, date)


class UseSummary(NamedTuple):
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
    use_percent: float | None

    def share(self, what: str) -> float | None:
        """A part of what was seen, in percent; None where nothing was."""
        part: int = getattr(self, what)
        return 100 * part / self.seen if self.seen else None

    @property
    def wasted(self) -> int:
        """Held idle, or booked with nobody on it."""
        return self.held + self.booked


class PeriodUse(NamedTuple):
    """Some days in sums, of which so many minutes of each GPU could have been seen."""

    use: UseSummary
    minutes: int
    people: int

    @property
    def seen_percent(self) -> float | None:
        """How much of the time was seen, in percent; None where nothing was."""
        could = self.use.gpus * self.minutes
        return min(100.0, 100 * self.use.seen / could) if could else None


class ValueChange(NamedTuple):
    """A sum and what it was before, in its own unit; None where that time was not seen."""

    now: float
    before: float | None

    @property
    def percent(self) -> float | None:
        """How much more or less it is; None where there is nothing to compare with."""
        return 100 * (self.now - self.before) / self.before if self.before else None


class PeriodComparison(NamedTuple):
    """A time against the one before it: GPU-hours, how much of what was seen was taken, in percent, and people."""

    used: ValueChange
    taken_percents: tuple[float | None, float | None]
    people: ValueChange
    wasted: ValueChange


class UsageCourse(NamedTuple):
    """How much was taken over some days: in percent by slots of some hours, and by day."""

    percents: list[float | None]
    days: list[UsageCell]


NOTHING_SEEN = UseSummary(0, 0, 0, 0, 0, 0, 0, None)


def sum_state_minutes(several: Iterable[StateMinutes]) -> StateMinutes:
    """The sum of what was seen."""
    return StateMinutes(*map(sum, zip(StateMinutes(*[0] * len(StateMinutes._fields)), *several)))


def summarize_use(seen: StateMinutes, gpus: int) -> UseSummary:
    """What was seen of so many GPUs."""
    percent = seen.taken_use / 2 / seen.taken_told if seen.taken_told else None
    taken = seen.busy + seen.held + seen.conflict
    unclear = seen.unknown + seen.lost
    return UseSummary(gpus, seen.seen, taken, seen.held, seen.booked, seen.free, unclear, percent)


def summarize_by_model(
    seen: Mapping[tuple[TimeKey, str], StateMinutes], minutes: Callable[[TimeKey], int]
) -> dict[str, UseSummary]:
    """Each model, the one that was seen most first; `minutes` is how long a slot lasts."""
    slots: dict[str, list[tuple[TimeKey, StateMinutes]]] = defaultdict(list)
    for (slot, model), one in seen.items():
        slots[model].append((slot, one))
    found = {}
    for model, several in slots.items():
        most = max(math.ceil(one.seen / minutes(slot)) for slot, one in several)
        found[model] = summarize_use(sum_state_minutes(one for _, one in several), most)
    ordered = dict(sorted(found.items(), key=lambda item: (-item[1].seen, item[0])))
    if len(ordered) <= MAX_MODELS:
        return ordered
    names = list(ordered)[MAX_MODELS:]
    rest = sum_state_minutes(one for name in names for _, one in slots[name])
    kept = {model: one for model, one in ordered.items() if model not in names}
    return {**kept, OTHER_MODELS: summarize_use(rest, sum(found[name].gpus for name in names))}


def summarize_total(models: Mapping[str, UseSummary], seen: Iterable[StateMinutes]) -> UseSummary:
    """All models together."""
    return summarize_use(sum_state_minutes(seen), sum(one.gpus for one in models.values()))


def count_hour_minutes(_: int) -> int:
    """How many minutes an hour has."""
    return MINUTES_PER_HOUR


def count_minutes_between(first: date, after: date, zone: tzinfo) -> int:
    """How many minutes lie between two midnights of the lab."""
    return (find_midnight(after, zone) - find_midnight(first, zone)) // 60


def build_day_length(zone: tzinfo) -> Callable[[date], int]:
    """How many minutes each day of the lab has."""
    return lambda day: count_minutes_between(day, day + timedelta(days=1), zone)


def list_days_until(last: date, count: int) -> list[date]:
    """So many days, the given one last."""
    return [last - timedelta(days=back) for back in reversed(range(count))]


def build_heatmap_cells(
    seen: Mapping[tuple[int, str], StateMinutes], days: Sequence[date], zone: tzinfo
) -> list[list[UsageCell]]:
    """A row for each day, with a cell for each hour of its clock."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for (at, _), one in seen.items():
        sums[at][0] += one.seen
        sums[at][1] += one.busy + one.held + one.conflict
    return build_cells_from_sums(sums, days, zone)


def build_cells_from_sums(
    sums: Mapping[int, Sequence[int]], days: Sequence[date], zone: tzinfo
) -> list[list[UsageCell]]:
    """The same, of minutes that were seen and taken by hour; an hour that begins at 17:30 stands under 17."""
    found = {(day, hour): [0, 0, 0] for day in days for hour in range(HOURS_PER_DAY)}
    start, end = find_midnight(days[0], zone) // HOUR * HOUR, find_midnight(days[-1] + timedelta(days=1), zone)
    for at in range(start, end, HOUR):
        local = datetime.fromtimestamp(at, zone)
        cell = found.get((local.date(), local.hour))
        if cell:
            seen, taken = sums.get(at, (0, 0))
            cell[:] = cell[0] + 1, cell[1] + seen, cell[2] + taken
    return [[UsageCell(*found[day, hour]) for hour in range(HOURS_PER_DAY)] for day in days]


def build_course(
    seen: Mapping[tuple[int, str], StateMinutes], days: Sequence[date], a_slot: int, zone: tzinfo
) -> UsageCourse:
    """How much was taken over some days, in slots of so many hours; None where nothing was seen."""
    rows = build_heatmap_cells(seen, days, zone)
    row = [cell for one in rows for cell in one]
    slots = [join_usage_cells(row[start : start + a_slot]).share for start in range(0, len(row), a_slot)]
    return UsageCourse(slots, [join_usage_cells(one) for one in rows])


def join_usage_cells(cells: Iterable[UsageCell]) -> UsageCell:
    """Several hours as one."""
    return UsageCell(*map(sum, zip(UsageCell(0, 0, 0), *cells)))


def split_by_model(seen: Mapping[tuple[int, str], StateMinutes]) -> dict[str, dict[tuple[int, str], StateMinutes]]:
    """What was seen of each model."""
    found: dict[str, dict[tuple[int, str], StateMinutes]] = defaultdict(dict)
    for key, one in seen.items():
        found[key[1]][key] = one
    return found


def compare_periods(now: PeriodUse, before: PeriodUse) -> PeriodComparison:
    """A time against the one before it."""
    was = before.use.seen > 0
    return PeriodComparison(
        ValueChange(now.use.taken / MINUTES_PER_HOUR, before.use.taken / MINUTES_PER_HOUR if was else None),
        (now.use.share("taken"), before.use.share("taken")),
        ValueChange(now.people, before.people if was else None),
        ValueChange(now.use.wasted / MINUTES_PER_HOUR, before.use.wasted / MINUTES_PER_HOUR if was else None),
    )
