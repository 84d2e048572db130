"""Collect the content of a weekly report."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, tzinfo
from math import ceil
from typing import NamedTuple

from site_builder.config.settings import Settings
from site_builder.core.data_folder import CachedDataFile
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import GpuNumber
from site_builder.core.names import gpu_number_sort_key, natural_sort_key
from site_builder.core.people import PeopleDirectory, PeopleNames
from site_builder.core.timeparse import dates
from site_builder.discovery import hosts
from site_builder.fleet.gpu_models import NameFiles
from site_builder.health.model import HealthEvent
from site_builder.health.store import StoredEventReader
from site_builder.history.buckets import choose_finest_bucket_step
from site_builder.history.reader import GpuHistory, HistoryReader, read_first_history_day, read_history_gpu_set_changes
from site_builder.history.usage_sums import DailyUsageSums, StateMinutes
from site_builder.usage import fleet_page, totals
from site_builder.usage.fleet_page import FullHours, HeatmapSums
from site_builder.usage.totals import UsageTable, UseSummary, find_usage_midnight, total_state_minutes
from site_builder.waste.render import parse_waste_json
from site_builder.waste.rules import WASTE_FILE, WasteItem

WEEK_NAME = re.compile(r"([0-9]{4})-?[Ww]([0-9]{2})")
WEEK = timedelta(days=7)
# A shorter break is not waste.
MIN_WASTE_MINUTES = 60
HISTORY_COLUMNS = ("busy", "held", "conflict", "booked", "owner", "booker")
# Length of a bucket, where history is still so fine.
BUCKET_S = 300
# Current waste is part of a report whose week ended at most this long ago, if the board was built within the hour.
MAX_REPORT_AGE_S = 7 * DAY
MAX_WASTE_AGE_S = HOUR
HIDDEN_HOST_NAME = "a hidden host"


class CollectedWastedGpu(NamedTuple):
    """Wasted minutes of a GPU; `person` is empty if nobody is known or named."""

    host: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    person: str
    minutes: int


class CollectedWaste(NamedTuple):
    """GPUs held idle, booked with nobody on them, and never used; the most minutes first."""

    held: list[CollectedWastedGpu]
    booked: list[CollectedWastedGpu]
    unused: list[CollectedWastedGpu]


class CollectedUsage(NamedTuple):
    """Use in a week; `history_start` is set if history begins within the week."""

    days: Mapping[date, UseSummary]
    models: Mapping[str, UseSummary]
    total: UseSummary
    people: UsageTable
    hosts: UsageTable
    history_start: date | None

    @property
    def seen_percent(self) -> int | None:
        return totals.compute_usage_percent_seen(self.people.total)


class CollectedReport(NamedTuple):
    """Content of a report; a week that is not over ends at `until`."""

    first: date
    until: float
    is_over: bool
    zone: tzinfo
    usage: CollectedUsage
    previous_usage: CollectedUsage | None
    cells: list[list[HeatmapSums]]
    waste: CollectedWaste
    current_waste: Sequence[WasteItem]
    events: Sequence[HealthEvent]
    are_users_shown: bool
    full_hours: Sequence[FullHours] = ()

    @property
    def days(self) -> list[date]:
        return list_report_week_days(self.first)

    @property
    def unfinished_until(self) -> datetime | None:
        """Return when the report was made, if its week was not over then."""
        return None if self.is_over else datetime.fromtimestamp(self.until, self.zone)

    @property
    def compared_usage(self) -> CollectedUsage | None:
        """Return the week before; a week that is not over is compared with none."""
        return self.previous_usage if self.is_over else None


# Weeks


def parse_report_week(text: str) -> date | None:
    """Return the Monday of a week like `2026-W45`, or None if there is no such week."""
    match = WEEK_NAME.fullmatch(text.strip())
    if not match or not dates.is_accepted_year(int(match[1])):
        return None
    try:
        return date.fromisocalendar(int(match[1]), int(match[2]), 1)
    except ValueError:
        return None


def format_report_week(monday: date) -> str:
    """Format a week like `2026-W45`."""
    year, number, _ = monday.isocalendar()
    return f"{year:04}-W{number:02}"


def find_last_whole_week(today: date) -> date:
    """Return the Monday of the last week that is over."""
    return today - timedelta(days=today.weekday()) - WEEK


def list_report_week_days(first: date) -> list[date]:
    return [first + timedelta(days=day) for day in range(WEEK.days)]


# Sums


class ReportTally:
    """Sums of a week, to which GPUs are added one by one: all of them at once would need much memory."""

    def __init__(self, week_minutes: int, people_names: PeopleNames, are_users_shown: bool) -> None:
        self.week_minutes, self.people_names, self.are_users_shown = week_minutes, people_names, are_users_shown
        self.minutes_by_hour: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # seen and taken
        self.seen_by_hour_and_model: dict[tuple[int, str], int] = defaultdict(int)
        self.wasted = CollectedWaste([], [], [])

    def add_gpu(self, gpu: GpuHistory, hours: Sequence[int], host: str, index: GpuNumber) -> None:
        """Add a GPU; `hours` has the hour of each of its buckets."""
        held: dict[str, int] = defaultdict(int)
        booked: dict[str, int] = defaultdict(int)
        columns, model = gpu.columns, gpu.series.model
        taken_minutes = 0
        for hour, seen, busy_minutes, held_minutes, conflict_minutes, booked_minutes, owner, booker in zip(
            hours,
            *(columns[name] for name in ("seen", "busy", "held", "conflict", "booked")),
            gpu.list_people("owner"),
            gpu.list_people("booker"),
        ):
            if seen:
                taken = busy_minutes + held_minutes + conflict_minutes
                taken_minutes += taken
                hour_minutes = self.minutes_by_hour[hour]
                hour_minutes[0] += seen
                hour_minutes[1] += taken
                self.seen_by_hour_and_model[hour, model] += seen
                held[self.choose_shown_name(owner)] += held_minutes
                booked[self.choose_shown_name(booker)] += booked_minutes
        for minutes_by_person, wasted in ((held, self.wasted.held), (booked, self.wasted.booked)):
            wasted.extend(
                CollectedWastedGpu(host, index, model, person, minutes)
                for person, minutes in minutes_by_person.items()
                if minutes >= MIN_WASTE_MINUTES
            )
        seen_minutes = sum(columns["seen"])
        # time that counts as booked does not count again as never used
        unused = seen_minutes - sum(booked.values())
        # it is unknown whether a GPU that was hardly monitored was used
        if 2 * seen_minutes >= self.week_minutes and unused >= MIN_WASTE_MINUTES and not taken_minutes:
            self.wasted.unused.append(CollectedWastedGpu(host, index, model, "", unused))

    def choose_shown_name(self, name: str | None) -> str:
        return self.people_names.find_display_name(name) if name and self.are_users_shown else ""


class ReportCollectionError(Exception):
    """Sentence that says why history could not be read."""


def collect_report(settings: Settings, history: HistoryReader, first: date, now: float) -> CollectedReport | None:
    """Collect the report of the week that begins with this Monday; None if history has nothing of it."""
    zone = settings.zone
    usage = history.read_daily_usage(first, first + timedelta(days=6), now)
    check_collected_history(history)  # each query forgets the problem of the one before
    if not usage.seen:
        return None
    previous = history.read_daily_usage(first - WEEK, first - timedelta(days=1), now)
    check_collected_history(history)
    start, end = find_usage_midnight(first, zone), find_usage_midnight(first + WEEK, zone)
    until = min(end, now)
    names = {share.person for week in (usage, previous) for share in week.shares}
    people = PeopleDirectory(NameFiles(settings.data, None).read_names()[0], names)
    tally = ReportTally(int(until - start) // 60, PeopleNames(people, names), settings.privacy.users)
    host_rows, _ = CachedDataFile(settings.data, None, "hosts.txt", hosts.parse_hosts_txt).read()
    hidden = frozenset(row.name for row in host_rows if row.is_hidden)
    # as fine as possible: a coarse bucket would count waste for the person who came next
    step = max(BUCKET_S, choose_finest_bucket_step(start, now))
    for host in history.list_hosts():
        host_history = history.read_host(host, -(-start // HOUR) * HOUR, until, step, HISTORY_COLUMNS)
        check_collected_history(history)
        hours = [(host_history.since + position * step) // HOUR * HOUR for position in range(host_history.bucket_count)]
        for gpu in host_history.gpus:
            name, index = (HIDDEN_HOST_NAME, None) if host in hidden else (host, gpu.series.index)
            tally.add_gpu(gpu, hours, name, index)
    for gpus in tally.wasted:
        gpus.sort(
            key=lambda gpu: (-gpu.minutes, natural_sort_key(gpu.host), gpu_number_sort_key(gpu.index), gpu.person)
        )
    gpu_counts: dict[tuple[date, str], int] = defaultdict(int)  # of each model, the most at once on each day
    for (hour, model), seen in tally.seen_by_hour_and_model.items():
        key = (datetime.fromtimestamp(hour, zone).date(), model)
        gpu_counts[key] = max(gpu_counts[key], ceil(seen / totals.MINUTES_PER_HOUR))
    week_usage = collect_week_usage(history, first, usage, people, now, gpu_counts)
    shown_hosts = tuple(row for row in week_usage.hosts.rows if row.name not in hidden)
    report = CollectedReport(
        first=first,
        until=until,
        is_over=end <= now,
        zone=zone,
        usage=week_usage._replace(hosts=week_usage.hosts._replace(rows=shown_hosts)),
        previous_usage=(
            collect_week_usage(history, first - WEEK, previous, people, now, {}) if previous.seen else None
        ),
        cells=fleet_page.build_fleet_cells_from_sums(tally.minutes_by_hour, list_report_week_days(first), zone),
        waste=tally.wasted,
        current_waste=collect_current_waste(settings, now) if now - until < MAX_REPORT_AGE_S else (),
        events=[event for event in StoredEventReader(history).read_events(start, until) if event.host not in hidden],
        are_users_shown=settings.privacy.users,
        full_hours=fleet_page.count_full_hours(history.read_hourly_minutes(start, int(until)), zone),
    )
    check_collected_history(history)
    return report


def check_collected_history(history: HistoryReader) -> None:
    if history.problem:
        raise ReportCollectionError(history.problem.what)


def collect_week_usage(
    history: HistoryReader,
    first: date,
    usage: DailyUsageSums,
    people: PeopleDirectory,
    now: float,
    gpu_counts: Mapping[tuple[date, str], int],
) -> CollectedUsage:
    """Add up a week; `gpu_counts` is the number of GPUs of each model on each day."""
    days, zone, history_start = list_report_week_days(first), history.zone, read_first_history_day(history)
    changes = read_history_gpu_set_changes(history)
    unseen = totals.count_unseen_usage_by_month(changes, usage.seen, (days[0], days[-1]), zone, now)
    sums_by_name, sums_by_gpu = totals.total_daily_usage(usage.shares, usage.seen, unseen.items())
    by_person, by_host = (
        totals.build_usage_totals_table(sums_by_name, sums_by_gpu, people, key) for key in ("person", "host")
    )
    minutes_by_key: dict[tuple[date, str], list[StateMinutes]] = defaultdict(list)
    for row in usage.seen:
        minutes_by_key[row.day, row.model].append(row.seen)
    sums = {key: total_state_minutes(minutes) for key, minutes in minutes_by_key.items()}

    def summarize_day(day: date) -> UseSummary:
        minutes = total_state_minutes(minutes for (sum_day, _), minutes in sums.items() if sum_day == day)
        return totals.summarize_use(
            minutes, sum(count for (count_day, _), count in gpu_counts.items() if count_day == day)
        )

    def count_day_minutes(day: date) -> int:  # clocks may change on it
        return (find_usage_midnight(day + timedelta(days=1), zone) - find_usage_midnight(day, zone)) // 60

    models = {}
    for model, use in totals.summarize_usage_by_model(sums, count_day_minutes).items():
        counts = [count for (_, count_model), count in gpu_counts.items() if count_model == model]
        models[model] = use._replace(gpus=max(counts, default=use.gpus))
    return CollectedUsage(
        days={day: summarize_day(day) for day in days},
        models=models,
        total=totals.summarize_usage_total(models, sums.values()),
        people=by_person,
        hosts=by_host,
        history_start=history_start if history_start and first < history_start else None,
    )


def collect_current_waste(settings: Settings, now: float) -> Sequence[WasteItem]:
    """Read waste.json, unless it is old, or names people who are not to be shown any more."""
    with suppress(OSError):
        waste, _ = parse_waste_json((settings.www / WASTE_FILE).read_bytes())
        if (
            waste
            and abs(now - waste.built_at) < MAX_WASTE_AGE_S
            and (settings.privacy.users or not any(item.people for item in waste.items))
        ):
            return waste.items
    return ()


def build_report_path(first: date) -> str:
    """Return the name of a report in www/."""
    return f"reports/{format_report_week(first)}.html"


def find_report_url(settings: Settings, first: date) -> str:
    """Return the address of a report's page, or nothing if there is none."""
    name = build_report_path(first)
    return f"{settings.url.rstrip('/')}/{name}" if settings.url and (settings.www / name).exists() else ""
