"""Choose the week and the content of a report."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from math import ceil
from typing import NamedTuple

from site_builder.charts.svg import UsageCell
from site_builder.core.model import GpuNumber
from site_builder.core.names import gpu_number_sort_key, natural_sort_key
from site_builder.core.timeparse import dates
from site_builder.health.model import HealthEvent
from site_builder.history.buckets import StateMinutes
from site_builder.history.export import PeopleNames
from site_builder.usage import fleet_trends
from site_builder.usage.fleet_trends import PeriodComparison, PeriodUse, UseSummary, ValueChange
from site_builder.usage.totals import DatePeriod, UsageRow, UsageTable, compute_percent_seen

WEEK_NAME = re.compile(r"([0-9]{4})-?[Ww]([0-9]{2})")


def parse_week(text: str) -> date | None:
    """The Monday of a week; None if there is no such week."""
    found = WEEK_NAME.fullmatch(text.strip())
    try:
        return date.fromisocalendar(int(found[1]), int(found[2]), 1) if found and dates.is_year(int(found[1])) else None
    except ValueError:
        return None


def format_week(monday: date) -> str:
    """A week by its Monday."""
    year, number, _ = monday.isocalendar()
    return f"{year:04}-W{number:02}"


def find_last_whole_week(today: date) -> date:
    """The Monday of the week before the one of this day."""
    return today - timedelta(days=today.weekday() + 7)


DAYS_PER_WEEK = 7
# Below so many minutes nobody is told of them: a break is no waste.
MIN_WASTE_MINUTES = 60
StateMinutesRows = Iterable[tuple[date, str, str, StateMinutes]]


class GpuBucket(NamedTuple):
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
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    buckets: Sequence[GpuBucket]


class WastedGpu(NamedTuple):
    """Minutes of a GPU, and whose they were, if that is known and may be told."""

    host: str
    index: GpuNumber  # type: ignore[assignment]
    model: str
    person: str
    minutes: int


class WeekWaste(NamedTuple):
    """What was held idle, what was promised with nobody on it, and GPUs that nobody was on; the most first."""

    held: list[WastedGpu]
    booked: list[WastedGpu]
    unused: list[WastedGpu]


class CurrentWaste(NamedTuple):
    """What is wasted at the time of the report; hours that nobody can know are None."""

    host: str
    index: GpuNumber  # type: ignore[assignment]
    people: tuple[str, ...]
    hours: float | None
    what: str
    advice: str


class WeekUsage(NamedTuple):
    """What history tells of a week; `begins` is its first day, where that is not the first of the week."""

    days: Mapping[date, UseSummary]
    models: Mapping[str, UseSummary]
    total: UseSummary
    people: UsageTable
    hosts: UsageTable
    history_start: date | None

    @property
    def seen_percent(self) -> int | None:
        """How much of the time of these GPUs was seen, in percent."""
        return compute_percent_seen(self.people.total)


class WeeklyReport(NamedTuple):
    """All that a report tells. It ends at `until`, or is told up to then where it is not `over`.

    `now` are those that waste something at the time of the report, where that is not long after; without `users`
    nobody is named.
    """

    first: date
    until: float
    is_over: bool
    zone: tzinfo
    usage: WeekUsage
    previous_usage: WeekUsage | None
    cells: list[list[UsageCell]]
    waste: WeekWaste
    current_waste: Sequence[CurrentWaste]
    events: Sequence[HealthEvent]
    are_users_shown: bool

    @property
    def days(self) -> list[date]:
        """From Monday to Sunday."""
        return list_week_days(self.first)


def list_week_days(first: date) -> list[date]:
    """The days of a week."""
    return fleet_trends.list_days_until(first + timedelta(days=DAYS_PER_WEEK - 1), DAYS_PER_WEEK)


class WeekTally:
    """What GPUs did in a week of so many minutes, added up one after the other: together they have many hours."""

    def __init__(self, minutes: int, called: PeopleNames, users: bool) -> None:
        """None yet."""
        self.week_minutes, self.people_names, self.are_users_shown = minutes, called, users
        self.minutes_by_hour: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # seen and taken
        self.seen_by_hour_and_model: dict[tuple[int, str], int] = defaultdict(int)
        self.wasted = WeekWaste([], [], [])

    def add_gpu(self, gpu: GpuWeek) -> None:
        """One of them. What counts as booked does not count again as never used."""
        held: dict[str, int] = defaultdict(int)
        booked: dict[str, int] = defaultdict(int)
        for slot in gpu.buckets:
            both = self.minutes_by_hour[slot.hour]
            both[:] = both[0] + slot.seen, both[1] + slot.taken
            self.seen_by_hour_and_model[slot.hour, gpu.model] += slot.seen
            held[self.choose_shown_name(slot.owner)] += slot.held
            booked[self.choose_shown_name(slot.booker)] += slot.booked
        place = (gpu.host, gpu.index, gpu.model)
        for several, into in ((held, self.wasted.held), (booked, self.wasted.booked)):
            into.extend(WastedGpu(*place, who, count) for who, count in several.items() if count >= MIN_WASTE_MINUTES)
        seen = sum(slot.seen for slot in gpu.buckets)
        left = seen - sum(booked.values())
        # one that was hardly seen is not one that nobody was on
        if 2 * seen >= self.week_minutes and left >= MIN_WASTE_MINUTES and not any(slot.taken for slot in gpu.buckets):
            self.wasted.unused.append(WastedGpu(*place, "", left))

    def choose_shown_name(self, name: str | None) -> str:
        """Who it was, if that is known and may be told."""
        return self.people_names.find_display_name(name) if name and self.are_users_shown else ""

    def sort_waste(self) -> WeekWaste:
        """What was wasted, the most first."""
        for several in self.wasted:
            several.sort(
                key=lambda one: (-one.minutes, natural_sort_key(one.host), gpu_number_sort_key(one.index), one.person)
            )
        return self.wasted

    def count_most_at_once(self, zone: tzinfo) -> dict[tuple[date, str], int]:
        """How many of each model were seen at once on each day, at most."""
        found: dict[tuple[date, str], int] = defaultdict(int)
        for (at, model), count in self.seen_by_hour_and_model.items():
            key = (datetime.fromtimestamp(at, zone).date(), model)
            found[key] = max(found[key], ceil(count / fleet_trends.MINUTES_PER_HOUR))
        return found


def build_week_usage(  # each is one thing
    period: DatePeriod,
    seen: StateMinutesRows,
    most: Mapping[tuple[date, str], int],
    people: UsageTable,
    hosts: UsageTable,
    begins: date | None,
) -> WeekUsage:
    """What history tells of a week; `most` are the GPUs of each model on each day."""
    by_model: dict[tuple[date, str], list[StateMinutes]] = defaultdict(list)
    for day, _, model, one in seen:
        by_model[day, model].append(one)
    sums = {key: fleet_trends.sum_state_minutes(several) for key, several in by_model.items()}
    days = {}
    for day in list_week_days(period.first):
        there = sum(count for (one, _), count in most.items() if one == day)
        days[day] = fleet_trends.summarize_use(
            fleet_trends.sum_state_minutes(one for (at, _), one in sums.items() if at == day), there
        )
    models = {}
    for model, use in fleet_trends.summarize_by_model(sums, fleet_trends.build_day_length(period.zone)).items():
        counts = [count for (_, one), count in most.items() if one == model]
        models[model] = use._replace(gpus=max(counts, default=use.gpus))
    began = begins if begins and period.first < begins else None
    return WeekUsage(days, models, fleet_trends.summarize_total(models, sums.values()), people, hosts, began)


def compare_weeks(week: WeeklyReport) -> PeriodComparison:
    """The week against the one before it; one that is not over is compared with none."""
    whole = week.previous_usage if week.is_over else None
    return fleet_trends.compare_periods(
        summarize_week(week.usage), summarize_week(whole) if whole else PeriodUse(fleet_trends.NOTHING_SEEN, 0, 0)
    )


def summarize_week(one: WeekUsage) -> PeriodUse:
    """A week in sums."""
    return PeriodUse(one.total, 0, sum(row.sums.used > 0 for row in one.people.rows))


def compare_model(week: WeeklyReport, model: str) -> ValueChange:
    """The GPU-hours of a model against the week before."""
    before = week.previous_usage.models.get(model) if week.previous_usage and week.is_over else None
    use = week.usage.models.get(model, fleet_trends.NOTHING_SEEN)
    return ValueChange(
        use.taken / fleet_trends.MINUTES_PER_HOUR, before.taken / fleet_trends.MINUTES_PER_HOUR if before else None
    )


def list_models(week: WeeklyReport) -> dict[str, UseSummary]:
    """Those of the week, and those of which there was only something in the week before."""
    found = dict(week.usage.models)
    for model in week.previous_usage.models if week.previous_usage else ():
        if len(found) < fleet_trends.MAX_MODELS:
            found.setdefault(model, fleet_trends.NOTHING_SEEN)
    return found


def find_previous_use(week: WeeklyReport) -> dict[str, int] | None:
    """What each person used in the week before, by their keys."""
    if not week.previous_usage or not week.is_over:
        return None
    return {row.key: row.sums.used for row in week.previous_usage.people.rows}


def list_unseen_hosts(week: WeeklyReport) -> list[UsageRow]:
    """The hosts of which something was not seen, the most first."""
    rows = [row for row in week.usage.hosts.rows if (compute_percent_seen(row.sums) or 0) < 99]
    return sorted(rows, key=lambda row: (-row.sums.unseen, natural_sort_key(row.name)))
