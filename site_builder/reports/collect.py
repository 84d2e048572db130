"""Collect the report of a week from history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta

from site_builder.config.settings import Settings
from site_builder.core.files import CachedFile
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.people import PeopleDirectory
from site_builder.discovery import hosts
from site_builder.fleet.gpu_models import NameFiles
from site_builder.health.store import EventReader
from site_builder.history import rollups
from site_builder.history.export import PeopleNames
from site_builder.history.reader import DailyUsage, HistoryReader, choose_finest_step
from site_builder.reports import rules
from site_builder.reports.rules import DAYS_PER_WEEK, CurrentWaste, GpuBucket, GpuWeek, WeeklyReport, WeekUsage
from site_builder.usage import fleet_page, totals
from site_builder.usage.totals import DatePeriod, GpuStay, find_midnight
from site_builder.waste import rules as waste_rules

HISTORY_COLUMNS = ("busy", "held", "conflict", "booked", "owner", "booker")
# Length of a bucket, where history is still so fine.
BUCKET_S = 300
# Current waste is part of a report whose week ended at most this long ago, if the board was built within the hour.
MAX_REPORT_AGE_S = DAYS_PER_WEEK * DAY
MAX_WASTE_AGE_S = HOUR
HIDDEN_HOST_NAME = "a hidden host"


class HistoryReadError(Exception):
    """Sentence that says why history could not be read."""


def collect_report(settings: Settings, history: HistoryReader, first: date, now: float) -> WeeklyReport | None:
    """Collect the report of the week that begins with this Monday; None if history has nothing of it."""
    zone = settings.zone
    usage = read_week_usage(history, first, now)
    if not usage.seen:
        return None
    start, end = find_midnight(first, zone), find_midnight(first + timedelta(days=DAYS_PER_WEEK), zone)
    until = min(end, now)
    previous_first = first - timedelta(days=DAYS_PER_WEEK)
    previous = read_week_usage(history, previous_first, now)
    names = {share.person for week in (usage, previous) for share in week.shares}
    people = PeopleDirectory(NameFiles(settings.data, None).read_names()[0], names)
    tally = rules.WeekTally(int(until - start) // 60, PeopleNames(people, names), settings.privacy.users)
    host_rows, _ = CachedFile(settings.data, None, "hosts.txt", hosts.parse_hosts_txt).read()
    hidden = frozenset(row.name for row in host_rows if row.is_hidden)
    for gpu in read_gpu_weeks(history, start, until, now):
        tally.add_gpu(gpu._replace(host=HIDDEN_HOST_NAME, index=None) if gpu.host in hidden else gpu)
    stays, history_start = (
        totals.find_gpu_stays(rollups.read_gpu_set_changes(history)),
        rollups.read_first_day(history),
    )
    period, previous_period = (
        DatePeriod(monday, monday + timedelta(days=DAYS_PER_WEEK - 1), zone, now) for monday in (first, previous_first)
    )
    week_usage = sum_week_usage(usage, tally.count_most_at_once(zone), stays, people, period, history_start)
    shown_hosts = tuple(row for row in week_usage.hosts.rows if row.name not in hidden)
    report = WeeklyReport(
        first=first,
        until=until,
        is_over=end <= now,
        zone=zone,
        usage=week_usage._replace(hosts=week_usage.hosts._replace(rows=shown_hosts)),
        previous_usage=(
            sum_week_usage(previous, {}, stays, people, previous_period, history_start) if previous.seen else None
        ),
        cells=fleet_page.build_cells_from_sums(tally.minutes_by_hour, rules.list_week_days(first), zone),
        waste=tally.sort_waste(),
        current_waste=read_current_waste(settings, now) if now - until < MAX_REPORT_AGE_S else (),
        events=[event for event in EventReader(history).read_events(start, until) if event.host not in hidden],
        are_users_shown=settings.privacy.users,
    )
    check_history_read(history)
    return report


def check_history_read(history: HistoryReader) -> None:
    if history.problem:
        raise HistoryReadError(history.problem.what)


def read_week_usage(history: HistoryReader, first: date, now: float) -> DailyUsage:
    usage = history.read_daily_usage(first, first + timedelta(days=DAYS_PER_WEEK - 1), now)
    check_history_read(history)
    return usage


def sum_week_usage(
    usage: DailyUsage,
    gpu_counts: Mapping[tuple[date, str], int],
    stays: Sequence[GpuStay],
    people: PeopleDirectory,
    period: DatePeriod,
    history_start: date | None,
) -> WeekUsage:
    unseen = totals.count_unseen_by_month(stays, usage.seen, period)
    sums_by_name, sums_by_gpu = totals.sum_daily_usage(usage.shares, usage.seen, unseen)
    by_person, by_host = (
        totals.build_usage_table(sums_by_name, sums_by_gpu, people, key) for key in ("person", "host")
    )
    return rules.build_week_usage(period, usage.seen, gpu_counts, by_person, by_host, history_start)


def read_gpu_weeks(history: HistoryReader, since: float, until: float, now: float) -> Iterator[GpuWeek]:
    """Read each GPU in the hours that begin in that time.

    Buckets are as fine as possible: a coarse one would count waste for the person who came next.
    """
    step = max(BUCKET_S, choose_finest_step(since, now))
    for host in history.list_hosts():
        host_history = history.read_host(host, -(-since // HOUR) * HOUR, until, step, HISTORY_COLUMNS)
        check_history_read(history)
        for gpu in host_history.gpus:
            columns, owners, bookers = gpu.columns, gpu.list_people("owner"), gpu.list_people("booker")
            buckets = [
                GpuBucket(
                    hour=(host_history.since + position * step) // HOUR * HOUR,
                    seen=minutes,
                    taken=columns["busy"][position] + columns["held"][position] + columns["conflict"][position],
                    held=columns["held"][position],
                    booked=columns["booked"][position],
                    owner=owners[position],
                    booker=bookers[position],
                )
                for position, minutes in enumerate(columns["seen"])
                if minutes
            ]
            yield GpuWeek(host, gpu.series.index, gpu.series.model, buckets)


def read_current_waste(settings: Settings, now: float) -> Sequence[CurrentWaste]:
    """Read waste.json, unless it is old, or names people who are not to be shown any more."""
    with suppress(OSError):
        waste, _ = waste_rules.parse_waste((settings.www / "waste.json").read_bytes())
        if (
            waste
            and abs(now - waste.built_at) < MAX_WASTE_AGE_S
            and (settings.privacy.users or not any(item.people for item in waste.items))
        ):
            return [
                CurrentWaste(
                    host=item.host,
                    index=item.index,
                    people=item.people,
                    hours=item.hours,
                    what=item.what,
                    advice=f"{item.advice} {item.command}".strip(),
                )
                for item in waste.items
            ]
    return ()


def build_report_path(first: date) -> str:
    """Return the name of a report in www/."""
    return f"reports/{rules.format_week(first)}.html"


def find_report_url(settings: Settings, first: date) -> str:
    """Return the address of a report's page, or nothing if there is none."""
    name = build_report_path(first)
    return f"{settings.url.rstrip('/')}/{name}" if settings.url and (settings.www / name).exists() else ""
