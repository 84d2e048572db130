"""The report of a week: what it is made of, all from history."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta

from site_builder.config.settings import Settings
from site_builder.core.files import CachedFile
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.people import PeopleDirectory
from site_builder.discovery import hosts
from site_builder.fleet.gpu_models import NameFiles
from site_builder.health.model import HealthEvent
from site_builder.health.store import EventReader
from site_builder.history import rollups
from site_builder.history.export import PeopleNames
from site_builder.history.reader import DailyUsage, HistoryReader, choose_finest_step
from site_builder.reports import rules
from site_builder.reports.rules import DAYS_PER_WEEK, CurrentWaste, GpuBucket, GpuWeek, WeeklyReport, WeekUsage
from site_builder.usage import fleet_trends, totals
from site_builder.usage.totals import DatePeriod, GpuStay, find_midnight
from site_builder.waste import model as waste_model

HISTORY_COLUMNS = ("busy", "held", "conflict", "booked", "owner", "booker")
# Seconds of what is looked at at once, where it is kept so finely.
BUCKET_S = 300
# What is wasted now is told in a report of a week that ended not longer ago.
MAX_REPORT_AGE_S = DAYS_PER_WEEK * DAY
# And only where the board was built in the last so many seconds.
MAX_WASTE_AGE_S = HOUR
HIDDEN_HOST_NAME = "a hidden host"


class HistoryReadError(Exception):
    """Why history could not be read, in words."""


def read_hidden_hosts(settings: Settings) -> frozenset[str]:
    """The hosts that are to stand nowhere."""
    rows, _ = CachedFile(settings.data, None, "hosts.txt", hosts.parse_hosts_txt).read()
    return frozenset(one.name for one in rows if one.is_hidden)


def collect_report(settings: Settings, past: HistoryReader, first: date, now: float) -> WeeklyReport | None:
    """The report of the week that begins with this Monday; None where history has nothing of it."""
    zone = settings.zone
    tallies = read_week_usage(past, first, now)
    if not tallies.seen:
        return None
    end = find_midnight(first + timedelta(days=DAYS_PER_WEEK), zone)
    until = min(end, now)
    back = first - timedelta(days=DAYS_PER_WEEK)
    earlier = read_week_usage(past, back, now)
    names = {row.person for several in (tallies, earlier) for row in several.shares}
    people = PeopleDirectory(NameFiles(settings.data, None).read_names()[0], names)
    hours = rules.WeekTally(
        int(until - find_midnight(first, zone)) // 60, PeopleNames(people, names), settings.privacy.users
    )
    hidden = read_hidden_hosts(settings)
    for gpu in read_gpu_weeks(past, find_midnight(first, zone), until, now):
        hours.add_gpu(gpu._replace(host=HIDDEN_HOST_NAME, index=None) if gpu.host in hidden else gpu)
    stays, begins = totals.find_gpu_stays(rollups.read_gpu_set_changes(past)), rollups.read_first_day(past)
    period, earlier_period = (
        DatePeriod(one, one + timedelta(days=DAYS_PER_WEEK - 1), zone, now) for one in (first, back)
    )
    found = WeeklyReport(
        first=first,
        until=until,
        is_over=end <= now,
        zone=zone,
        usage=hide_hosts(
            collect_week_usage(tallies, hours.count_most_at_once(zone), stays, people, period, begins), hidden
        ),
        previous_usage=collect_week_usage(earlier, {}, stays, people, earlier_period, begins) if earlier.seen else None,
        cells=fleet_trends.build_cells_from_sums(hours.minutes_by_hour, rules.list_week_days(first), zone),
        waste=hours.sort_waste(),
        current_waste=read_current_waste(settings, now) if now - until < MAX_REPORT_AGE_S else (),
        events=[one for one in read_events(past, find_midnight(first, zone), until) if one.host not in hidden],
        are_users_shown=settings.privacy.users,
    )
    check_history_read(past)
    return found


def build_report_path(first: date) -> str:
    """The name of a report in www/."""
    return f"reports/{rules.format_week(first)}.html"


def find_report_url(settings: Settings, first: date) -> str:
    """Where its page is, if there is one."""
    name = build_report_path(first)
    return f"{settings.url.rstrip('/')}/{name}" if settings.url and (settings.www / name).exists() else ""


def read_week_usage(past: HistoryReader, first: date, now: float) -> DailyUsage:
    """What is added up of a week."""
    found = past.read_daily_usage(first, first + timedelta(days=DAYS_PER_WEEK - 1), now)
    check_history_read(past)
    return found


def check_history_read(past: HistoryReader) -> None:
    """Go on only where the file could be read."""
    if past.problem:
        raise HistoryReadError(past.problem.what)


def collect_week_usage(  # each is one thing
    tallies: DailyUsage,
    most: Mapping[tuple[date, str], int],
    stays: Sequence[GpuStay],
    people: PeopleDirectory,
    period: DatePeriod,
    begins: date | None,
) -> WeekUsage:
    """What history tells of a week."""
    named, places = totals.sum_daily_usage(
        tallies.shares, tallies.seen, totals.count_unseen_by_month(stays, tallies.seen, period)
    )
    persons, hosts = (totals.build_usage_table(named, places, people, by) for by in ("person", "host"))
    return rules.build_week_usage(period, tallies.seen, most, persons, hosts, begins)


def hide_hosts(one: WeekUsage, hidden: Container[str]) -> WeekUsage:
    """What is told, but for the names of these hosts; sums stay."""
    rows = tuple(row for row in one.hosts.rows if row.name not in hidden)
    return one._replace(hosts=one.hosts._replace(rows=rows))


def read_gpu_weeks(past: HistoryReader, since: float, until: float, now: float) -> Iterator[GpuWeek]:
    """Each GPU in the hours that begin in that time; in the finest slots, or waste would be told of who came next."""
    step = max(BUCKET_S, choose_finest_step(since, now))
    for host in past.list_hosts():
        found = past.read_host(host, -(-since // HOUR) * HOUR, until, step, HISTORY_COLUMNS)
        check_history_read(past)
        for gpu in found.gpus:
            line, owners, bookers = gpu.columns, gpu.list_people("owner"), gpu.list_people("booker")
            slots = [
                GpuBucket(
                    (found.since + place * step) // HOUR * HOUR,
                    minutes,
                    line["busy"][place] + line["held"][place] + line["conflict"][place],
                    line["held"][place],
                    line["booked"][place],
                    owners[place],
                    bookers[place],
                )
                for place, minutes in enumerate(line["seen"])
                if minutes
            ]
            yield GpuWeek(host, gpu.series.index, gpu.series.model, slots)


def read_current_waste(settings: Settings, now: float) -> Sequence[CurrentWaste]:
    """What is wasted at the time of the report, as the board publishes it; what is old is not told.

    Nor is what was published when users were still shown: its sentences name them.
    """
    with suppress(OSError):
        found, _ = waste_model.parse_waste((settings.www / "waste.json").read_bytes())
        if (
            found
            and abs(now - found.built_at) < MAX_WASTE_AGE_S
            and (settings.privacy.users or not any(one.people for one in found.items))
        ):
            return [
                CurrentWaste(
                    one.host, one.index, one.people, one.hours, one.what, f"{one.advice} {one.command}".strip()
                )
                for one in found.items
            ]
    return ()


def read_events(past: HistoryReader, since: float, until: float) -> Sequence[HealthEvent]:
    """What happened to GPUs."""
    return EventReader(past).read_events(since, until)
