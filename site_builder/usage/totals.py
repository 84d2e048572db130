"""Sum up GPU-hours by person, model, host and month."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from operator import add
from typing import NamedTuple, TypeVar

from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory
from site_builder.core.terminal_text import clean_text
from site_builder.fleet.summary import GpuUseCounts, PersonUsage
from site_builder.history.buckets import UNITS_PER_MINUTE, MonthUsage, StateMinutes, UsageShare, UsageWindow
from site_builder.history.model import GpuSeries

GROUPINGS = ("person", "model", "host", "month")
MonthHostModel = tuple[date, str, str]  # the first of a month, a host, a model
Key = TypeVar("Key")


class UsageSums(NamedTuple):
    """GPU-time. `seen` is used + unowned + booked_idle + free + unclear; `unseen` is what nobody looked at.

    Of `used`, some was `held` idle; of `booked`, some was `unused` by who had booked it. `booked_idle` is booked with
    nobody on it at all, `conflict` taken by one while booked by another.
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

    def add(self, other: UsageSums) -> UsageSums:
        """Both together."""
        return UsageSums(*map(add, self, other))


NO_USAGE = UsageSums()


class UsageRow(NamedTuple):
    """A line: of a person, under all of their `names`, or of a model, a host or a month; a person has no more than
    used, held, booked and unused. `key` is the same for the same person in another table."""

    key: str
    name: str
    sums: UsageSums
    names: tuple[str, ...] = ()


class UsageTable(NamedTuple):
    """The lines, and all of it together."""

    by: str
    rows: tuple[UsageRow, ...]
    total: UsageSums


class GpuStay(NamedTuple):
    """A GPU of a model on a host, from a moment on, and until another if it left."""

    host: str
    model: str
    since: int
    until: int | None


class DatePeriod(NamedTuple):
    """Days of the lab, the last of which counts too, as far as they have come."""

    first: date
    last: date
    zone: tzinfo
    now: float

    def iterate_months(self) -> Iterator[tuple[date, float, float]]:
        """Each month of it by its first day, and from when to when it is part of the period."""
        month = self.first.replace(day=1)
        while month <= self.last:
            following = (month + timedelta(days=31)).replace(day=1)
            since = find_midnight(max(month, self.first), self.zone)
            until = min(find_midnight(min(following, self.last + timedelta(days=1)), self.zone), self.now)
            yield month, since, max(since, until)
            month = following


def find_midnight(day: date, zone: tzinfo) -> int:
    """Return the epoch at which a day begins."""
    return int(datetime.combine(day, datetime.min.time(), zone).timestamp())


def units_to_hours(units: int) -> float:
    """GPU-hours."""
    return units / UNITS_PER_MINUTE / 60


def share_to_sums(share: UsageShare) -> UsageSums:
    """What a person had."""
    return UsageSums(share.used, share.held, share.booked, share.unused)


def state_minutes_to_sums(seen: StateMinutes) -> UsageSums:
    """What was seen of GPUs, but for what people had of it."""
    return UsageSums(
        unowned=seen.unowned * UNITS_PER_MINUTE,
        booked_idle=seen.booked * UNITS_PER_MINUTE,
        free=seen.free * UNITS_PER_MINUTE,
        unclear=(seen.unknown + seen.lost) * UNITS_PER_MINUTE,
        seen=seen.seen * UNITS_PER_MINUTE,
        conflict=seen.conflict * UNITS_PER_MINUTE,
    )


def build_usage_table(
    persons: Mapping[str, UsageSums],
    places: Mapping[MonthHostModel, UsageSums],
    people: PeopleDirectory,
    by: str = "person",
) -> UsageTable:
    """Lines by one of BY, of what each person had and what there was at each place."""
    rows = build_person_rows(persons, people) if by == "person" else build_place_rows(places, by)
    return UsageTable(by, tuple(rows), add_sums(places.values()))


def sum_daily_usage(
    shares: Iterable[tuple[date, str, str, str, UsageShare]],
    seen: Iterable[tuple[date, str, str, StateMinutes]],
    unseen: Mapping[MonthHostModel, int],
) -> tuple[dict[str, UsageSums], dict[MonthHostModel, UsageSums]]:
    """Both, of what is told by day, host, model and person, and the same but for the person."""
    persons: dict[str, list[int]] = {}
    places: dict[MonthHostModel, list[int]] = {}
    for day, host, model, name, share in shares:
        add_units(persons, name, share)
        add_units(places, (day.replace(day=1), host, model), share)
    for day, host, model, told in seen:
        add_units(places, (day.replace(day=1), host, model), state_minutes_to_sums(told))
    for place, minutes in unseen.items():
        add_units(places, place, UsageSums(unseen=minutes * UNITS_PER_MINUTE))
    return {name: UsageSums(*row) for name, row in persons.items()}, {
        place: UsageSums(*row) for place, row in places.items()
    }


def sum_month_by_place(month: MonthUsage) -> dict[MonthHostModel, UsageSums]:
    """What there was at each place in a month that is added up."""
    places: dict[MonthHostModel, list[int]] = {}
    for (host, model), share in month.shares_by_place.items():
        add_units(places, (month.first, host, model), share)
    for (host, model), seen in month.seen_by_place.items():
        add_units(places, (month.first, host, model), state_minutes_to_sums(seen))
    for (host, model), minutes in month.unseen_by_place.items():
        add_units(places, (month.first, host, model), UsageSums(unseen=minutes * UNITS_PER_MINUTE))
    return {place: UsageSums(*row) for place, row in places.items()}


def add_units(sums: dict[Key, list[int]], key: Key, row: Sequence[int]) -> None:
    """To what is there; a Share is the beginning of Sums."""
    found = sums.get(key)
    if found is None:
        found = sums[key] = [0] * len(UsageSums._fields)
    for place, units in enumerate(row):
        found[place] += units


def add_sums(several: Iterable[UsageSums]) -> UsageSums:
    """The sum of sums."""
    total = NO_USAGE
    for one in several:
        total = total.add(one)
    return total


def build_place_rows(places: Mapping[MonthHostModel, UsageSums], by: str) -> Iterator[UsageRow]:
    """A line for each model, host or month, in their order."""
    found: dict[str, UsageSums] = defaultdict(UsageSums)
    for (month, host, model), sums in places.items():
        key = {"month": f"{month:%Y-%m}", "host": host, "model": model}[by]
        found[key] = found[key].add(sums)
    for name in sorted(found, key=natural_sort_key):
        yield UsageRow(name, clean_text(name), found[name])


def build_person_rows(names: Mapping[str, UsageSums], people: PeopleDirectory) -> list[UsageRow]:
    """A line for each person, whoever used most first."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        found[people.resolve_user(name)].append(name)
    rows = [
        UsageRow(
            key,
            clean_text(people.choose_display_name(several)),
            add_sums(names[name] for name in several),
            tuple(several),
        )
        for key, several in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.sums.used, -row.sums.booked, natural_sort_key(row.name), row.name))


# What nobody looked at


def find_gpu_stays(shapes: Iterable[tuple[str, int, Sequence[GpuSeries]]]) -> list[GpuStay]:
    """Where each GPU was, of which hosts told which GPUs, and from when on.

    It is where it was told last, as long as that host does not tell other GPUs without it.
    """
    there: dict[str, tuple[str, str, int]] = {}
    on: dict[str, set[str]] = defaultdict(set)
    found: list[GpuStay] = []

    def leave(key: str, at: int) -> None:
        host, model, since = there.pop(key)
        on[host].discard(key)
        found.append(GpuStay(host, model, since, at))

    for host, first, series in sorted(shapes, key=lambda shape: (shape[1], shape[0])):
        told = {build_stay_key(one, host): one.model for one in series}
        for key in on[host] - told.keys():
            leave(key, first)
        for key, model in told.items():
            if key in there and there[key][:2] != (host, model):
                leave(key, first)
            if key not in there:
                there[key] = (host, model, first)
                on[host].add(key)
    return found + [GpuStay(*one, None) for one in there.values()]


def build_stay_key(series: GpuSeries, host: str) -> str:
    """What names a GPU wherever it is; one that has only a place is that of its host."""
    return series.key if series.key.startswith("GPU-") else f"{host} {series.key}"


def count_unseen_minutes(
    stays: Iterable[GpuStay], seen: Mapping[tuple[str, str], int], since: float, until: float
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


def count_unseen_by_month(
    stays: Sequence[GpuStay], seen: Iterable[tuple[date, str, str, StateMinutes]], period: DatePeriod
) -> dict[MonthHostModel, int]:
    """The same of each month of a period, of what was seen by day, host and model."""
    minutes: dict[date, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for day, host, model, told in seen:
        minutes[day.replace(day=1)][host, model] += told.seen
    found: dict[MonthHostModel, int] = {}
    for month, since, until in period.iterate_months():
        if month in minutes:
            for (host, model), count in count_unseen_minutes(stays, minutes[month], since, until).items():
                found[month, host, model] = count
    return found


def compute_percent_seen(sums: UsageSums) -> int | None:
    """How much of the time was seen, in whole percent, rounded down: only all of it is 100."""
    whole = sums.seen + sums.unseen
    return None if not whole else sums.seen * 100 // whole


# What is nobody's, in the order in which it is told; with what people have it is all that is seen.
UNUSED_PARTS = ("unowned", "booked_idle", "free", "unclear")


class FleetUsage(NamedTuple):
    """The fleet at this moment: what each name has of each host, and how the GPUs stand."""

    usage_by_person: Mapping[str, Mapping[str, PersonUsage]]
    gpu_counts: GpuUseCounts


class PersonSummary(NamedTuple):
    """A person: what they have, on how many GPUs of which hosts, and how many GPUs they had on average over each
    window; None where nobody looked."""

    name: str
    usage: PersonUsage
    gpus_by_host: tuple[tuple[str, int], ...]
    mean_gpus: tuple[float | None, ...]


class WindowCoverage(NamedTuple):
    """What averages are over, and in how much of that time somebody looked, in percent, rounded down: only all of it
    is 100."""

    since: int
    until: int
    seen_percent: int | None


class FleetBalance(NamedTuple):
    """The same of all people together, of each of REST and of all that is seen, by their names."""

    now: Mapping[str, int]
    means: Mapping[str, tuple[float | None, ...]]


def sum_fleet_usage(told: Iterable[tuple[str, Mapping[str, PersonUsage], GpuUseCounts]]) -> FleetUsage:
    """The fleet, of what is told of each host."""
    found: dict[str, dict[str, PersonUsage]] = defaultdict(dict)
    sums = [0] * len(GpuUseCounts._fields)
    for host, had, standing in told:
        for name, one in had.items():
            found[name][host] = one
        sums = [one + more for one, more in zip(sums, standing)]
    return FleetUsage(found, GpuUseCounts(*sums))


def list_person_summaries(
    now: FleetUsage, windows: Sequence[UsageWindow], people: PeopleDirectory
) -> list[PersonSummary]:
    """Everybody who is on a GPU or was, whoever has most first."""
    named: dict[str, list[str]] = defaultdict(list)
    for name in sorted(
        {*now.usage_by_person, *(name for one in windows for name, share in one.shares.items() if share.used)}
    ):
        named[people.resolve_user(name)].append(name)
    found = [build_person_summary(names, now, windows, people) for names in named.values()]
    return sorted(found, key=person_summary_sort_key)


def person_summary_sort_key(one: PersonSummary) -> tuple[object, ...]:
    """Whoever has most, or had it of late."""
    return (
        -one.usage.gpu_units,
        -one.usage.gpu_count,
        [-(mean or 0) for mean in one.mean_gpus],
        natural_sort_key(one.name),
        one.name,
    )


def build_person_summary(
    names: Sequence[str], now: FleetUsage, windows: Sequence[UsageWindow], people: PeopleDirectory
) -> PersonSummary:
    """A person, under all of their names."""
    had = PersonUsage()
    hosts: dict[str, int] = defaultdict(int)
    for name in names:
        for host, one in now.usage_by_person.get(name, {}).items():
            had = had.add(one)
            hosts[host] += one.gpu_count
    means = []
    for window in windows:
        units = sum(window.shares[name].used for name in names if name in window.shares)
        means.append(compute_mean_gpus(units, window))
    where = tuple(sorted(hosts.items(), key=lambda one: (-one[1], natural_sort_key(one[0]))))
    return PersonSummary(clean_text(people.choose_display_name(names)), had, where, tuple(means))


def compute_mean_gpus(units: int, window: UsageWindow) -> float | None:
    """GPUs on average, over the minutes that were looked at; where no GPU was seen in any of them, nobody knows."""
    return units / UNITS_PER_MINUTE / window.seen_minutes if window.seen_minutes and window.state_minutes.seen else None


def build_fleet_balance(now: FleetUsage, windows: Sequence[UsageWindow]) -> FleetBalance:
    """What closes the sums."""
    standing = now.gpu_counts
    seen = {"used": standing.used, **{name: getattr(standing, name) for name in UNUSED_PARTS}}
    told = {**seen, "seen": sum(seen.values()), "unseen": standing.unseen}
    means: dict[str, list[float | None]] = defaultdict(list)
    for window in windows:
        sums = state_minutes_to_sums(window.state_minutes)
        used = sums.seen - sum(getattr(sums, name) for name in UNUSED_PARTS)
        means["used"].append(compute_mean_gpus(used, window))
        for name in (*UNUSED_PARTS, "seen"):
            means[name].append(compute_mean_gpus(getattr(sums, name), window))
    return FleetBalance(told, {name: tuple(several) for name, several in means.items()})


def build_window_coverage(window: UsageWindow) -> WindowCoverage:
    """Of a window, for the page."""
    length = (window.until - window.since) // 60
    return WindowCoverage(window.since, window.until, min(100, window.seen_minutes * 100 // length) if length else None)


def units_to_gpus(units: int) -> float:
    """Of parts of GPUs."""
    return units / UNITS_PER_MINUTE


def list_usage_names(several: Iterable[UsageWindow | MonthUsage]) -> set[str]:
    """All names in them."""
    return {name for one in several for name in one.shares}
