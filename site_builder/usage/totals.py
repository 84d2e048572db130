"""Sum up GPU-hours by person, model, host and month."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import NamedTuple, TypeVar

from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory
from site_builder.core.terminal_text import clean_text
from site_builder.fleet.summary import GpuUseSummary, PersonUseSummary
from site_builder.history.model import GpuSeries
from site_builder.history.rollups import MonthUsage, RollupWindow
from site_builder.history.usage_sums import UNITS_PER_MINUTE, StateMinutes, UsageShareSums

# Time that nobody used, in the order in which it is listed; together with used time it is all that was seen.
UNUSED_PARTS = {
    "unowned": "owner not known",
    "booked_idle": "booked, nobody on it",
    "free": "free",
    "unclear": "lost or not clear",
}
GROUPINGS = ("person", "model", "host", "month")
MonthHostModel = tuple[date, str, str]  # the first of a month, a host, a model
Key = TypeVar("Key")


class UsageSums(NamedTuple):
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


NO_USAGE = UsageSums()


class UsageRow(NamedTuple):
    """Row of a person, under all of their `names`, or of a model, a host or a month.

    A person has only used, held, booked and unused. `key` is the same for the same person in another table.
    """

    key: str
    name: str
    sums: UsageSums
    names: tuple[str, ...] = ()


class UsageTable(NamedTuple):
    by: str
    rows: tuple[UsageRow, ...]
    total: UsageSums


class GpuStay(NamedTuple):
    """GPU of a model on a host, since a moment, and until another if it left."""

    host: str
    model: str
    since: int
    until: int | None


class DatePeriod(NamedTuple):
    """Days up to now, including the last."""

    first: date
    last: date
    zone: tzinfo
    now: float

    def iterate_months(self) -> Iterator[tuple[date, float, float]]:
        """Yield the first day of each month, and from when to when it is part of the period."""
        month = self.first.replace(day=1)
        while month <= self.last:
            next_month = (month + timedelta(days=31)).replace(day=1)
            since = find_usage_midnight(max(month, self.first), self.zone)
            until = min(find_usage_midnight(min(next_month, self.last + timedelta(days=1)), self.zone), self.now)
            yield month, since, max(since, until)
            month = next_month


class FleetUsage(NamedTuple):
    """Fleet at this moment: what each person has on each host, and the number of GPUs by use."""

    usage_by_person: Mapping[str, Mapping[str, PersonUseSummary]]
    gpu_counts: GpuUseSummary


class PersonSummary(NamedTuple):
    """What a person has, on how many GPUs of which hosts, and had on average over each window."""

    name: str
    usage: PersonUseSummary
    gpus_by_host: tuple[tuple[str, int], ...]
    mean_gpus: tuple[float | None, ...]


class FleetBalance(NamedTuple):
    """GPUs by UNUSED_PARTS and in all: now, and on average over each window."""

    now: Mapping[str, int]
    means: Mapping[str, tuple[float | None, ...]]


def find_usage_midnight(day: date, zone: tzinfo) -> int:
    """Return the epoch at which a day begins."""
    return int(datetime.combine(day, datetime.min.time(), zone).timestamp())


def usage_units_to_hours(units: int) -> float:
    return units / UNITS_PER_MINUTE / 60


def state_minutes_to_sums(seen: StateMinutes) -> UsageSums:
    """Convert what was seen of GPUs, without what people had of it."""
    return UsageSums(
        unowned=seen.unowned * UNITS_PER_MINUTE,
        booked_idle=seen.booked * UNITS_PER_MINUTE,
        free=seen.free * UNITS_PER_MINUTE,
        unclear=(seen.unknown + seen.lost) * UNITS_PER_MINUTE,
        seen=seen.seen * UNITS_PER_MINUTE,
        conflict=seen.conflict * UNITS_PER_MINUTE,
    )


def build_usage_table(
    sums_by_name: Mapping[str, UsageSums],
    sums_by_place: Mapping[MonthHostModel, UsageSums],
    people: PeopleDirectory,
    by: str = "person",
) -> UsageTable:
    """Build rows by one of GROUPINGS, from the sums of each person and of each place."""
    rows = (
        build_usage_person_rows(sums_by_name, people) if by == "person" else build_usage_place_rows(sums_by_place, by)
    )
    return UsageTable(by, tuple(rows), add_sums(sums_by_place.values()))


def sum_daily_usage(
    shares: Iterable[tuple[date, str, str, str, UsageShareSums]],
    seen: Iterable[tuple[date, str, str, StateMinutes]],
    unseen: Iterable[tuple[MonthHostModel, int]],
) -> tuple[dict[str, UsageSums], dict[MonthHostModel, UsageSums]]:
    """Sum up rows of days: by person, and by month, host and model."""
    by_name: dict[str, list[int]] = {}
    by_place: dict[MonthHostModel, list[int]] = {}
    for day, host, model, name, share in shares:
        add_usage_units(by_name, name, share)
        add_usage_units(by_place, (day.replace(day=1), host, model), share)
    for day, host, model, minutes in seen:
        add_usage_units(by_place, (day.replace(day=1), host, model), state_minutes_to_sums(minutes))
    for place, unseen_minutes in unseen:
        add_usage_units(by_place, place, UsageSums(unseen=unseen_minutes * UNITS_PER_MINUTE))
    return {name: UsageSums(*row) for name, row in by_name.items()}, {
        place: UsageSums(*row) for place, row in by_place.items()
    }


def add_usage_units(sums: dict[Key, list[int]], key: Key, row: Sequence[int]) -> None:
    """Add to a row of sums; a share is the beginning of one."""
    sums_row = sums.get(key)
    if sums_row is None:
        sums_row = sums[key] = [0] * len(UsageSums._fields)
    for position, units in enumerate(row):
        sums_row[position] += units


def add_sums(rows: Iterable[UsageSums]) -> UsageSums:
    return UsageSums(*map(sum, zip(NO_USAGE, *rows)))


def build_usage_place_rows(places: Mapping[MonthHostModel, UsageSums], by: str) -> Iterator[UsageRow]:
    """Build a row for each model, host or month, in their order."""
    sums_by_key: dict[str, list[UsageSums]] = defaultdict(list)
    for (month, host, model), sums in places.items():
        sums_by_key[{"month": f"{month:%Y-%m}", "host": host, "model": model}[by]].append(sums)
    for name in sorted(sums_by_key, key=natural_sort_key):
        yield UsageRow(name, clean_text(name), add_sums(sums_by_key[name]))


def build_usage_person_rows(sums_by_name: Mapping[str, UsageSums], people: PeopleDirectory) -> list[UsageRow]:
    """Build a row for each person, the one who used most first."""
    rows = []
    for key, names in group_spellings(sums_by_name, people).items():
        sums = add_sums(sums_by_name[name] for name in names)
        rows.append(UsageRow(key, clean_text(people.choose_display_name(names)), sums, tuple(names)))
    return sorted(rows, key=lambda row: (-row.sums.used, -row.sums.booked, natural_sort_key(row.name), row.name))


def group_spellings(names: Iterable[str], people: PeopleDirectory) -> dict[str, list[str]]:
    """Group the names of the same person."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        spellings[people.resolve_user(name)].append(name)
    return spellings


# Time that nobody saw


def find_gpu_stays(gpu_set_changes: Iterable[tuple[str, int, Sequence[GpuSeries]]]) -> list[GpuStay]:
    """Find where each GPU was, from the GPU sets of hosts.

    It is where it was reported last, until that host reports other GPUs without it.
    """
    current: dict[str, tuple[str, str, int]] = {}
    keys_by_host: dict[str, set[str]] = defaultdict(set)
    stays: list[GpuStay] = []

    def end_stay(key: str, at: int) -> None:
        host, model, since = current.pop(key)
        keys_by_host[host].discard(key)
        stays.append(GpuStay(host, model, since, at))

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
    return stays + [GpuStay(*gpu, None) for gpu in current.values()]


def count_unseen_minutes(
    stays: Iterable[GpuStay], seen: Mapping[tuple[str, str], int], since: float, until: float
) -> dict[tuple[str, str], int]:
    """Count the minutes in which a GPU should have been seen and was not, by host and model.

    `seen` are the minutes in which it was. A host of which nothing was seen in all that time does not count.
    """
    hosts = {host for host, _ in seen}
    expected: dict[tuple[str, str], int] = defaultdict(int)
    for stay in stays:
        end = until if stay.until is None else min(until, stay.until)
        if end > max(since, stay.since) and stay.host in hosts:
            expected[stay.host, stay.model] += int(end - max(since, stay.since)) // 60
    return {place: count - seen.get(place, 0) for place, count in expected.items() if count > seen.get(place, 0)}


def count_unseen_by_month(
    stays: Sequence[GpuStay], seen: Iterable[tuple[date, str, str, StateMinutes]], period: DatePeriod
) -> dict[MonthHostModel, int]:
    """Count the same for each month of a period."""
    minutes: dict[date, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for day, host, model, row in seen:
        minutes[day.replace(day=1)][host, model] += row.seen
    unseen: dict[MonthHostModel, int] = {}
    for month, since, until in period.iterate_months():
        if month in minutes:
            for (host, model), count in count_unseen_minutes(stays, minutes[month], since, until).items():
                unseen[month, host, model] = count
    return unseen


def compute_usage_percent_seen(sums: UsageSums) -> int | None:
    """Return how much of the time was seen, in percent, rounded down: only all of it is 100."""
    total = sums.seen + sums.unseen
    return None if not total else sums.seen * 100 // total


# The fleet now, and on average


def sum_fleet_usage(hosts: Iterable[tuple[str, Mapping[str, PersonUseSummary], GpuUseSummary]]) -> FleetUsage:
    usage_by_person: dict[str, dict[str, PersonUseSummary]] = defaultdict(dict)
    sums = [0] * len(GpuUseSummary._fields)
    for host, host_usage, gpu_counts in hosts:
        for name, usage in host_usage.items():
            usage_by_person[name][host] = usage
        sums = [usage + count for usage, count in zip(sums, gpu_counts)]
    return FleetUsage(usage_by_person, GpuUseSummary(*sums))


def list_person_summaries(
    fleet_usage: FleetUsage, windows: Sequence[RollupWindow], people: PeopleDirectory
) -> list[PersonSummary]:
    """List everybody who is on a GPU or was, the one who has most first."""
    past_users = (name for window in windows for name, share in window.shares.items() if share.used)
    spellings = group_spellings({*fleet_usage.usage_by_person, *past_users}, people)
    summaries = [build_person_summary(names, fleet_usage, windows, people) for names in spellings.values()]
    return sorted(
        summaries,
        key=lambda person: (
            -person.usage.gpu_units,
            -person.usage.gpu_count,
            [-(mean or 0) for mean in person.mean_gpus],
            natural_sort_key(person.name),
            person.name,
        ),
    )


def build_person_summary(
    names: Sequence[str], fleet_usage: FleetUsage, windows: Sequence[RollupWindow], people: PeopleDirectory
) -> PersonSummary:
    usage = PersonUseSummary()
    gpus_by_host: dict[str, int] = defaultdict(int)
    for name in names:
        for host, host_usage in fleet_usage.usage_by_person.get(name, {}).items():
            usage = usage.add(host_usage)
            gpus_by_host[host] += host_usage.gpu_count
    means = []
    for window in windows:
        units = sum(window.shares[name].used for name in names if name in window.shares)
        means.append(compute_usage_mean_gpus(units, window))
    sorted_hosts = tuple(sorted(gpus_by_host.items(), key=lambda item: (-item[1], natural_sort_key(item[0]))))
    return PersonSummary(clean_text(people.choose_display_name(names)), usage, sorted_hosts, tuple(means))


def compute_usage_mean_gpus(units: int, window: RollupWindow) -> float | None:
    """Return GPUs on average over the minutes that were seen; None if no GPU was seen in any of them."""
    return units / UNITS_PER_MINUTE / window.seen_minutes if window.seen_minutes and window.state_minutes.seen else None


def build_fleet_balance(fleet_usage: FleetUsage, windows: Sequence[RollupWindow]) -> FleetBalance:
    gpu_counts = fleet_usage.gpu_counts
    counts = {"used": gpu_counts.used, **{name: getattr(gpu_counts, name) for name in UNUSED_PARTS}}
    all_counts = {**counts, "seen": sum(counts.values()), "unseen": gpu_counts.unseen}
    means: dict[str, list[float | None]] = defaultdict(list)
    for window in windows:
        sums = state_minutes_to_sums(window.state_minutes)
        used = sums.seen - sum(getattr(sums, name) for name in UNUSED_PARTS)
        means["used"].append(compute_usage_mean_gpus(used, window))
        for name in (*UNUSED_PARTS, "seen"):
            means[name].append(compute_usage_mean_gpus(getattr(sums, name), window))
    return FleetBalance(all_counts, {name: tuple(values) for name, values in means.items()})


def list_usage_names(usages: Iterable[RollupWindow | MonthUsage]) -> set[str]:
    return {name for usage in usages for name in usage.shares}
