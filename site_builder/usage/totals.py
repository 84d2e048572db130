"""Sum up GPU-hours by person, model, host and month."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import NamedTuple, TypeVar

from site_builder.core.formatting import DAY, MINUTE
from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory, group_spellings
from site_builder.core.terminal_text import clean_text
from site_builder.history.model import GpuSeries
from site_builder.history.rollups import MonthUsage, RollupWindow
from site_builder.history.usage_sums import UNITS_PER_MINUTE, StateMinutes, UsageShareSums

# Time that nobody used, in the order in which it is listed; together with used time it is all that was seen.
UNUSED_PARTS = {
    "unowned": "owner unknown",
    "booked_idle": "booked, idle",
    "free": "free",
    "unclear": "lost or unknown",
}
UNKNOWN = "–"
GROUPINGS = ("person", "model", "host", "month")
MINUTES_PER_HOUR = 60
# Models that have a row of their own; a host can claim any number.
MAX_MODELS = 40
OTHER_MODELS = "other models"
MonthHostModel = tuple[date, str, str]  # the first of a month, a host, a model
TimeKey = TypeVar("TimeKey", int, date)


class UsageTotals(NamedTuple):
    """GPU-time in units. `seen` is used + unowned + booked_idle + free + unclear; `unseen` is what nobody saw.

    `held` is a part of `used`, and `unused` a part of `booked`. `booked_idle` is booked with nobody on it at all,
    `conflict` taken by one person while booked by another.
    """

    used: int = 0
    held: int = 0
    booked: int = 0
    unused: int = 0
    unowned: int = 0
    booked_idle: int = 0
    free: int = 0
    unclear: int = 0
    seen: int = 0
    unseen: int = 0
    conflict: int = 0


NO_USAGE = UsageTotals()


class UsageRow(NamedTuple):
    """Row of a person, under all of their `names`, or of a model, a host or a month.

    A person has only used, held, booked and unused. `key` is the same for the same person in another table.
    """

    key: str
    name: str
    sums: UsageTotals
    names: tuple[str, ...] = ()


class UsageTable(NamedTuple):
    by: str
    rows: tuple[UsageRow, ...]
    total: UsageTotals


class UsageGpuStay(NamedTuple):
    """GPU of a model on a host, since a moment, and until another if it left."""

    host: str
    model: str
    since: int
    until: int | None


def find_usage_midnight(day: date, zone: tzinfo) -> int:
    """Return the epoch at which a day begins."""
    return int(datetime.combine(day, datetime.min.time(), zone).timestamp())


def usage_total_to_hours(units: int) -> float:
    return units / UNITS_PER_MINUTE / 60


def state_minutes_to_usage_totals(seen: StateMinutes) -> UsageTotals:
    """Convert what was seen of GPUs, without what people had of it."""
    return UsageTotals(
        unowned=seen.unowned * UNITS_PER_MINUTE,
        booked_idle=seen.booked * UNITS_PER_MINUTE,
        free=seen.free * UNITS_PER_MINUTE,
        unclear=(seen.unknown + seen.lost) * UNITS_PER_MINUTE,
        seen=seen.seen * UNITS_PER_MINUTE,
        conflict=seen.conflict * UNITS_PER_MINUTE,
    )


def build_usage_totals_table(
    sums_by_name: Mapping[str, UsageTotals],
    sums_by_place: Mapping[MonthHostModel, UsageTotals],
    people: PeopleDirectory,
    by: str = "person",
) -> UsageTable:
    """Build rows by one of GROUPINGS: of people with the one who used most first, of all else in their order."""
    rows = []
    if by == "person":
        for key, names in group_spellings(sums_by_name, people).items():
            sums = add_usage_totals(sums_by_name[name] for name in names)
            rows.append(UsageRow(key, clean_text(people.choose_display_name(names)), sums, tuple(names)))
        rows.sort(key=lambda row: (-row.sums.used, -row.sums.booked, natural_sort_key(row.name), row.name))
    else:
        sums_by_key: dict[str, list[UsageTotals]] = defaultdict(list)
        for (month, host, model), sums in sums_by_place.items():
            sums_by_key[{"month": f"{month:%Y-%m}", "host": host, "model": model}[by]].append(sums)
        for name in sorted(sums_by_key, key=natural_sort_key):
            rows.append(UsageRow(name, clean_text(name), add_usage_totals(sums_by_key[name])))
    return UsageTable(by, tuple(rows), add_usage_totals(sums_by_place.values()))


def total_daily_usage(
    shares: Iterable[tuple[date, str, str, str, UsageShareSums]],
    seen: Iterable[tuple[date, str, str, StateMinutes]],
    unseen: Iterable[tuple[MonthHostModel, int]],
) -> tuple[dict[str, UsageTotals], dict[MonthHostModel, UsageTotals]]:
    """Sum up rows of days: by person, and by month, host and model."""
    by_name: dict[str, list[UsageTotals]] = defaultdict(list)
    by_place: dict[MonthHostModel, list[UsageTotals]] = defaultdict(list)
    for day, host, model, name, share in shares:
        sums = UsageTotals(*share)
        by_name[name].append(sums)
        by_place[day.replace(day=1), host, model].append(sums)
    for day, host, model, minutes in seen:
        by_place[day.replace(day=1), host, model].append(state_minutes_to_usage_totals(minutes))
    for place, unseen_minutes in unseen:
        by_place[place].append(UsageTotals(unseen=unseen_minutes * UNITS_PER_MINUTE))
    sums_by_name = {name: add_usage_totals(rows) for name, rows in by_name.items()}
    return sums_by_name, {place: add_usage_totals(rows) for place, rows in by_place.items()}


def add_usage_totals(rows: Iterable[UsageTotals]) -> UsageTotals:
    return UsageTotals(*map(sum, zip(NO_USAGE, *rows)))


def add_usage_names(people: PeopleDirectory, usages: Iterable[RollupWindow | MonthUsage]) -> PeopleDirectory:
    """Return the directory with everybody who had a share in these sums."""
    return PeopleDirectory(people.aliases, {*people.logins, *(name for usage in usages for name in usage.shares)})


# Time that nobody saw


def find_usage_gpu_stays(gpu_set_changes: Iterable[tuple[str, int, Sequence[GpuSeries]]]) -> list[UsageGpuStay]:
    """Find where each GPU was, from the GPU sets of hosts.

    It is where it was reported last, until that host reports other GPUs without it.
    """
    current: dict[str, tuple[str, str, int]] = {}
    keys_by_host: dict[str, set[str]] = defaultdict(set)
    stays: list[UsageGpuStay] = []

    def end_stay(key: str, at: int) -> None:
        host, model, since = current.pop(key)
        keys_by_host[host].discard(key)
        stays.append(UsageGpuStay(host, model, since, at))

    for host, at, series in sorted(gpu_set_changes, key=lambda change: (change[1], change[0])):
        models_by_key = {gpu.key if gpu.key.startswith("GPU-") else f"{host} {gpu.key}": gpu.model for gpu in series}
        for key in keys_by_host[host] - models_by_key.keys():
            end_stay(key, at)
        for key, model in models_by_key.items():
            if key in current and current[key][:2] != (host, model):
                end_stay(key, at)
            if key not in current:
                current[key] = (host, model, at)
                keys_by_host[host].add(key)
    return stays + [UsageGpuStay(*gpu, None) for gpu in current.values()]


def count_unseen_usage_minutes(
    stays: Iterable[UsageGpuStay], seen: Mapping[tuple[str, str], int], since: float, until: float
) -> dict[tuple[str, str], int]:
    """Count the minutes in which a GPU should have been seen and was not, by host and model.

    `seen` are the minutes in which it was. A host that was never seen in that time is not counted.
    """
    hosts = {host for host, _ in seen}
    expected: dict[tuple[str, str], int] = defaultdict(int)
    for stay in stays:
        end = until if stay.until is None else min(until, stay.until)
        if end > max(since, stay.since) and stay.host in hosts:
            expected[stay.host, stay.model] += int(end - max(since, stay.since)) // 60
    return {place: count - seen.get(place, 0) for place, count in expected.items() if count > seen.get(place, 0)}


def count_unseen_usage_by_month(
    gpu_set_changes: Iterable[tuple[str, int, Sequence[GpuSeries]]],
    seen: Iterable[tuple[date, str, str, StateMinutes]],
    days: tuple[date, date],
    zone: tzinfo,
    now: float,
) -> dict[MonthHostModel, int]:
    """Count the same for each month with data, from the first to the last of `days` and up to now."""
    stays = find_usage_gpu_stays(gpu_set_changes)
    minutes: dict[date, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for day, host, model, row in seen:
        minutes[day.replace(day=1)][host, model] += row.seen
    unseen: dict[MonthHostModel, int] = {}
    for month, seen_minutes in minutes.items():
        next_month = (month + timedelta(days=31)).replace(day=1)
        since = find_usage_midnight(max(month, days[0]), zone)
        until = min(find_usage_midnight(min(next_month, days[1] + timedelta(days=1)), zone), now)
        for (host, model), count in count_unseen_usage_minutes(stays, seen_minutes, since, until).items():
            unseen[month, host, model] = count
    return unseen


def compute_usage_percent_seen(sums: UsageTotals) -> int | None:
    """Return how much of the time was seen, in percent, rounded down: only all of it is 100."""
    total = sums.seen + sums.unseen
    return None if not total else sums.seen * 100 // total


def format_usage_percent_seen(sums: UsageTotals, unknown: str = UNKNOWN) -> str:
    seen = compute_usage_percent_seen(sums)
    return unknown if seen is None else f"{seen} %"


# How GPUs were used over a period, in GPU-minutes


class UseSummary(NamedTuple):
    """Minutes of some GPUs; `gpus` is the most that were seen at once, `use_percent` their use while taken.

    Each minute was taken, booked with nobody on it, free, or unclear; held is a part of taken.
    """

    gpus: int
    seen: int
    taken: int
    held: int
    booked: int
    free: int
    unclear: int
    use_percent: float | None

    def share(self, part: str) -> float | None:
        """Return a part of what was seen, in percent; None where nothing was."""
        minutes: int = getattr(self, part)
        return 100 * minutes / self.seen if self.seen else None

    @property
    def parts(self) -> dict[str, int]:
        """Return the parts of a bar, in their order; the rest was free."""
        working = self.taken - self.held
        return {"working": working, "held": self.held, "booked": self.booked, "unclear": self.unclear}


NOTHING_SEEN = UseSummary(gpus=0, seen=0, taken=0, held=0, booked=0, free=0, unclear=0, use_percent=None)


class UsageChange(NamedTuple):
    """Sum, and what it was before; None where that time was not seen."""

    now: float
    before: float | None

    @property
    def percent(self) -> float | None:
        return 100 * (self.now - self.before) / self.before if self.before else None


class PastWasteRow(NamedTuple):
    """GPUs of a host that nobody used in a booking that is over, or for a month and longer."""

    gpu: str
    model: str
    people: str
    period: str
    hours: str
    advice: str


class PeriodComparison(NamedTuple):
    """Period against the one before it: GPU-hours, the part of monitored time in use, and people."""

    used: UsageChange
    taken_percents: tuple[float | None, float | None]
    people: UsageChange
    wasted: UsageChange


def total_state_minutes(rows: Iterable[StateMinutes]) -> StateMinutes:
    return StateMinutes._make(map(sum, zip(StateMinutes._make([0] * len(StateMinutes._fields)), *rows)))


def summarize_use(seen: StateMinutes, gpus: int) -> UseSummary:
    return UseSummary(
        gpus=gpus,
        seen=seen.seen,
        taken=seen.busy + seen.held + seen.conflict,
        held=seen.held,
        booked=seen.booked,
        free=seen.free,
        unclear=seen.unknown + seen.lost,
        use_percent=seen.taken_use / 2 / seen.taken_told if seen.taken_told else None,
    )


def summarize_usage_by_model(
    seen: Mapping[tuple[TimeKey, str], StateMinutes],
    count_minutes: Callable[[TimeKey], int] = lambda _: MINUTES_PER_HOUR,
) -> dict[str, UseSummary]:
    """Summarize each model, the most seen first; `count_minutes` returns the length of an hour or a day."""
    rows_by_model: dict[str, list[StateMinutes]] = defaultdict(list)
    gpus_by_model: dict[str, int] = defaultdict(int)
    for (time_key, model), row in seen.items():
        rows_by_model[model].append(row)
        gpus_by_model[model] = max(gpus_by_model[model], math.ceil(row.seen / count_minutes(time_key)))
    models = {
        model: summarize_use(total_state_minutes(rows), gpus_by_model[model]) for model, rows in rows_by_model.items()
    }
    ordered = sorted(models, key=lambda model: (-models[model].seen, model))
    shown = {model: models[model] for model in ordered[:MAX_MODELS]}
    others = ordered[MAX_MODELS:]
    if others:
        other_rows = (row for model in others for row in rows_by_model[model])
        shown[OTHER_MODELS] = summarize_use(
            total_state_minutes(other_rows), sum(map(gpus_by_model.__getitem__, others))
        )
    return shown


def summarize_usage_total(models: Mapping[str, UseSummary], seen: Iterable[StateMinutes]) -> UseSummary:
    return summarize_use(total_state_minutes(seen), sum(use.gpus for use in models.values()))


def compare_usage_periods(use: UseSummary, people: int, previous: UseSummary, previous_people: int) -> PeriodComparison:
    has_previous = previous.seen > 0

    def compare_hours(minutes: int, minutes_before: int) -> UsageChange:
        return UsageChange(minutes / MINUTES_PER_HOUR, minutes_before / MINUTES_PER_HOUR if has_previous else None)

    return PeriodComparison(
        used=compare_hours(use.taken, previous.taken),
        taken_percents=(use.share("taken"), previous.share("taken")),
        people=UsageChange(people, previous_people if has_previous else None),
        wasted=compare_hours(use.held + use.booked, previous.held + previous.booked),
    )


def format_usage_share(percent: float | None) -> str:
    """Format `61 %`; a small part that would be 0 is `<1 %`."""
    if percent is None:
        return UNKNOWN
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def format_usage_change(change: UsageChange) -> str:
    """Format a change since the period before, like `+9 %`."""
    if change.before is None:
        return UNKNOWN
    if change.percent is None:
        return "new" if change.now else "0 %"
    return f"{change.percent:+,.0f} %".replace("-0 %", "0 %").replace("+0 %", "0 %").replace("-", "−")  # noqa: RUF001


def describe_usage_coverage(use: UseSummary, days: int) -> str:
    """Describe how much of the time of some days was monitored, if it was not all."""
    possible = use.gpus * days * DAY // MINUTE
    if not possible:
        return "No data"
    percent = 100 * use.seen / possible
    return "" if percent >= 99.5 else f"Coverage: {format_usage_share(percent)} of GPU time was monitored"
