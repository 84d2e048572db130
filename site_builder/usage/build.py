"""Write users.html and fleet.html."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path

from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.files import compute_digest
from site_builder.core.formatting import DAY
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import CODE_FINGERPRINT, SiteFiles
from site_builder.fleet.summary import SummarizedHost
from site_builder.history.reader import GpuSetChange, HistoryReader
from site_builder.history.rollups import HostModel, MonthUsage, UsageRollup
from site_builder.history.usage_sums import StateMinutes, UsageShareSums
from site_builder.usage import fleet_page, people_page, totals
from site_builder.usage.fleet_page import MinutesByHour
from site_builder.usage.totals import (
    MAX_MODELS,
    NOTHING_SEEN,
    PeriodComparison,
    PeriodTotals,
    compare_usage_periods,
    summarize_usage_by_model,
    summarize_usage_total,
)

PEOPLE_PAGE, FLEET_PAGE, REPORTS_FOLDER = "users.html", "fleet.html", "reports"
# A little less than a minute, or every other build of cron would come too early.
WRITE_INTERVAL_S = 55
# Seconds that one build of many spends on sums, and those of a build that stands alone.
ROLLUP_TIME_LIMIT_S, ROLLUP_TIME_LIMIT_ALONE_S = 0.03, 1.0
WINDOW_HOURS = (2, 24, 168)
MONTH_COUNT = 13
# Older averages are not shown: nobody has added up since.
MAX_WINDOW_AGE_S = 1800
OTHER_HOSTS = "not on the board"
# How often fleet.html is checked for something new; the script of the page takes one of 65 minutes for old.
CHECK_INTERVAL_S = 60
# Until the first hour is rolled up, the page shows minutes, and changes this often.
FIRST_HOUR_INTERVAL_S = 600
PERIOD_DAYS = {"the last 24 hours": 1, "the last 7 days": 7, "the last 30 days": 30}
WEEK_DAYS, MONTH_DAYS = 7, 30
COURSE_STEP_HOURS = 6
# Two years.
MAX_REPORTS = 106
REPORT_FILE_NAME = re.compile(r"[0-9]{4}-W[0-9]{2}\.html")
# How a report begins that names people.
NAMED_REPORT_START = b"<!doctype html>\n<html lang=en data-people>"
NO_HISTORY_YET = "There is no history yet: come back in some minutes."


class PeoplePageBuilder:
    def __init__(self, settings: Settings, history: HistoryReader, patient: bool = False) -> None:
        self.settings, self.history = settings, history
        self.time_limit_s = ROLLUP_TIME_LIMIT_ALONE_S if patient else ROLLUP_TIME_LIMIT_S
        self.rollup: UsageRollup | None = None

    def write(self, site: SiteFiles, hosts: Mapping[str, SummarizedHost], people: PeopleDirectory, now: Now) -> None:
        # the hosts are part of it: one that is hidden must disappear at once
        inputs = (CODE_FINGERPRINT, site.assets_version, self.settings.privacy.users, str(now.zone), list(hosts))
        fingerprint = compute_digest(repr(inputs).encode())
        age = now.epoch - site.find_write_time(PEOPLE_PAGE)
        is_due = not 0 <= age < WRITE_INTERVAL_S or not site.published.is_unchanged(PEOPLE_PAGE, fingerprint)
        if self.rollup is None:
            self.rollup = UsageRollup(self.history, WINDOW_HOURS, MONTH_COUNT, self.count_unseen)
        if is_due or not self.rollup.is_done:
            self.rollup.advance(now.epoch, self.time_limit_s)
        if is_due:
            page = self.render_page(self.rollup, hosts, people, site.assets_version, now)
            site.write_file(PEOPLE_PAGE, fingerprint, page, now)

    def save(self) -> None:
        if self.rollup:
            self.rollup.save()

    def render_page(
        self, rollup: UsageRollup, hosts: Mapping[str, SummarizedHost], people: PeopleDirectory, version: str, now: Now
    ) -> bytes:
        windows = [window for window in rollup.state.windows if 0 <= now.epoch - window.until < MAX_WINDOW_AGE_S]
        known_people = PeopleDirectory(people.aliases, {*people.logins, *totals.list_usage_names(windows)})
        fleet_usage = totals.sum_fleet_usage(
            (name, host.summary.use_by_person, host.summary.gpu_use) for name, host in hosts.items()
        )
        settings = self.settings
        names = (sorted(people.aliases.items()), sorted(people.logins), list(hosts))
        inputs = (CODE_FINGERPRINT, settings.privacy.users, str(settings.zone), settings.limits.held_after, names)
        content = people_page.PeoplePageContent(
            people=totals.list_person_totals(fleet_usage, windows, known_people) if settings.privacy.users else [],
            balance=totals.build_fleet_totals_balance(fleet_usage, windows),
            windows=windows,
            are_users_shown=settings.privacy.users,
            problem=self.history.problem_text,
            tables=rollup.render_months(
                repr(inputs).encode("utf-8", "replace"), lambda months: self.render_tables(months, hosts, people)
            ),
        )
        return people_page.render_people_page(content, version, now)

    def render_tables(
        self, months: Sequence[MonthUsage], hosts: Mapping[str, SummarizedHost], people: PeopleDirectory
    ) -> str:
        """Render the GPU-hours, which change once an hour."""
        seen_months = [month for month in months if month.seen_by_place]
        known_people = PeopleDirectory(people.aliases, {*people.logins, *totals.list_usage_names(seen_months)})
        tables = [build_usage_month_tables(month, known_people, hosts) for month in seen_months]
        settings = self.settings
        return people_page.render_month_tables(
            tables, settings.privacy.users, settings.limits.held_after, hosts.keys(), settings.zone
        )

    def count_unseen(
        self, changes: Iterable[GpuSetChange], first: date, until: int, seen: Mapping[HostModel, StateMinutes]
    ) -> dict[HostModel, int]:
        """Count the minutes of a month in which GPUs should have been seen and were not."""
        minutes = {place: row.seen for place, row in seen.items()}
        midnight = totals.find_usage_midnight(first, self.history.zone)
        return totals.count_unseen_usage_minutes(totals.find_usage_gpu_stays(changes), minutes, midnight, until)


def build_usage_month_tables(
    month: MonthUsage, people: PeopleDirectory, hosts: Container[str]
) -> people_page.PeopleMonthTables:
    """Build the tables of a month; hosts that are not on the board, hidden or gone, are not named."""

    def name_place(place: HostModel) -> totals.MonthHostModel:
        return month.first, place[0] if place[0] in hosts else OTHER_HOSTS, place[1]

    sums_by_name = {name: totals.UsageTotals(*share) for name, share in month.shares.items()}
    _, sums_by_place = totals.total_daily_usage(
        ((*name_place(place), "", share) for place, share in month.shares_by_place.items()),
        ((*name_place(place), minutes) for place, minutes in month.seen_by_place.items()),
        ((name_place(place), minutes) for place, minutes in month.unseen_by_place.items()),
    )
    person_table, model_table, host_table = (
        totals.build_usage_totals_table(sums_by_name, sums_by_place, people, by) for by in ("person", "model", "host")
    )
    return people_page.PeopleMonthTables(month.first, month.since, month.until, person_table, model_table, host_table)


class FleetPageBuilder:
    """Writes fleet.html when there is something new."""

    def __init__(self, settings: Settings, history: HistoryReader) -> None:
        self.settings, self.history = settings, history
        self.checked_at = -float("inf")

    def write(self, site: SiteFiles, people: PeopleDirectory, now: Now) -> None:
        if 0 <= now.epoch - self.checked_at < CHECK_INTERVAL_S:
            return
        self.checked_at = now.epoch
        until = self.history.find_rolled_up_end(now.epoch)
        reports = list_fleet_page_reports(self.settings.www, self.settings.privacy.users)
        inputs = (
            until if until is not None else int(now.epoch) // FIRST_HOUR_INTERVAL_S * FIRST_HOUR_INTERVAL_S,
            str(self.history.problem),
            reports,
            site.assets_version,
            str(now.zone),
            sorted(people.aliases.items()),
        )
        fingerprint = compute_digest(repr((inputs, CODE_FINGERPRINT)).encode("utf-8", "replace"))
        if not site.published.is_unchanged(FLEET_PAGE, fingerprint):
            content = self.collect_content(until, people, now)._replace(reports=reports)
            page = fleet_page.render_fleet_page(content, site.assets_version, now)
            site.write_file(FLEET_PAGE, fingerprint, page, now)

    def collect_content(self, until: int | None, people: PeopleDirectory, now: Now) -> fleet_page.FleetPageContent:
        seen: MinutesByHour
        week_shares: list[dict[str, UsageShareSums]]
        if until is None:
            start, end = int(now.epoch) - DAY, int(now.epoch)
            usage = self.history.read_hourly_usage(start, end + 1)
            shares: dict[str, UsageShareSums] = {}
            for (_, _, person), share in usage.shares.items():
                shares[person] = UsageShareSums(*map(sum, zip(shares.get(person, UsageShareSums(0, 0, 0, 0)), share)))
            seen, week_shares = usage.seen, [shares, {}]
        else:
            start, end = until - MONTH_DAYS * DAY, until
            seen = self.history.read_hourly_minutes(start, end)
            week_ends = [until - back * WEEK_DAYS * DAY for back in range(2)]
            week_shares = [
                self.history.read_person_shares(week_end - WEEK_DAYS * DAY, week_end) for week_end in week_ends
            ]
        problem = self.history.problem_text
        if not seen:
            return fleet_page.FleetPageContent(problem=problem or NO_HISTORY_YET)
        last = datetime.fromtimestamp(end - 1, now.zone).date()
        days, month = (
            fleet_page.list_fleet_days_until(last, WEEK_DAYS),
            fleet_page.list_fleet_days_until(last, MONTH_DAYS),
        )
        return fleet_page.FleetPageContent(
            periods=[
                build_usage_model_table(title, count, seen, end, month, now) for title, count in PERIOD_DAYS.items()
            ],
            days=days,
            cells=fleet_page.build_fleet_heatmap_cells(seen, days, now.zone),
            month=month,
            changes=build_usage_week_comparison(seen, week_shares, end, people),
            until=end,
            problem=problem,
        )


def select_usage_hours(seen: MinutesByHour, since: int, until: int) -> MinutesByHour:
    return {key: row for key, row in seen.items() if since <= key[0] < until}


def build_usage_model_table(
    title: str, days: int, seen: MinutesByHour, end: int, month: Sequence[date], now: Now
) -> fleet_page.FleetPageModelTable:
    """Build a table of models over some days, with those that were seen only before; the longest has lines."""
    period_seen = select_usage_hours(seen, end - days * DAY, end)
    models = summarize_usage_by_model(period_seen, fleet_page.count_fleet_hour_minutes)
    courses = {}
    if days < MONTH_DAYS:
        missing = sorted({model for _, model in seen} - {model for _, model in period_seen})
        room = max(0, MAX_MODELS - len(models))
        models.update(dict.fromkeys(missing[:room], NOTHING_SEEN))
    else:
        seen_by_model: dict[str, dict[tuple[int, str], StateMinutes]] = defaultdict(dict)
        for key, row in period_seen.items():
            seen_by_model[key[1]][key] = row
        for model in models:
            if model in seen_by_model:
                courses[model] = fleet_page.build_fleet_page_course(
                    seen_by_model[model], month, COURSE_STEP_HOURS, now.zone
                )
    return fleet_page.FleetPageModelTable(title, models, summarize_usage_period(period_seen, days, 0), courses)


def summarize_usage_period(seen: MinutesByHour, days: int, people: int) -> PeriodTotals:
    models = summarize_usage_by_model(seen, fleet_page.count_fleet_hour_minutes)
    return PeriodTotals(summarize_usage_total(models, seen.values()), days * DAY // 60, people)


def build_usage_week_comparison(
    seen: MinutesByHour, week_shares: Sequence[Mapping[str, UsageShareSums]], end: int, people: PeopleDirectory
) -> PeriodComparison:
    weeks = []
    for back, shares in enumerate(week_shares):
        until = end - back * WEEK_DAYS * DAY
        known_people = PeopleDirectory(people.aliases, {*people.logins, *shares})
        users = {known_people.resolve_user(name) for name, share in shares.items() if share.used}
        weeks.append(
            summarize_usage_period(select_usage_hours(seen, until - WEEK_DAYS * DAY, until), WEEK_DAYS, len(users))
        )
    return compare_usage_periods(weeks[0], weeks[1])


def list_fleet_page_reports(www: Path, are_users_shown: bool) -> list[str]:
    """List the weeks with a report, the newest first; delete those that name people who are not to be shown."""
    weeks: list[str] = []
    with suppress(OSError):
        for path in sorted((www / REPORTS_FOLDER).iterdir(), reverse=True):
            if REPORT_FILE_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                with suppress(OSError):  # one that cannot be read costs no other
                    if are_users_shown or not has_people_names(path):
                        weeks.append(path.stem)
                    else:
                        path.unlink(missing_ok=True)
    return weeks[:MAX_REPORTS]


def has_people_names(report: Path) -> bool:
    with report.open("rb") as file:
        return file.read(len(NAMED_REPORT_START)) == NAMED_REPORT_START
