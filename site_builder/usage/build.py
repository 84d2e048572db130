"""Write users.html and fleet.html."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path

from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.code_fingerprint import CODE_FINGERPRINT
from site_builder.core.files import compute_digest
from site_builder.core.formatting import DAY
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import SiteFiles
from site_builder.fleet.summary import SummarizedHost
from site_builder.history import reader
from site_builder.history.buckets import HostModel, MonthUsage, StateMinutes, UsageShare
from site_builder.history.reader import HistoryReader
from site_builder.history.rollups import GpuSetChange, UsageRollup
from site_builder.usage import fleet_page, fleet_trends, people_page, totals
from site_builder.usage.fleet_trends import PeriodComparison, PeriodUse

PEOPLE_PAGE = "users.html"
# Seconds after which it is written anew; a little less than a minute, or every other one would be missed.
WRITE_INTERVAL_S = 55
# Seconds of a build that may go into adding up the past, where there is something to do.
ROLLUP_TIME_LIMIT_S = 0.03
# The same of a builder that builds but once, and has nobody waiting for the next.
ROLLUP_TIME_LIMIT_ALONE_S = 1.0
WINDOW_HOURS = (2, 24, 168)
MONTH_COUNT = 13
# Averages that are older are none: nobody has added up since.
MAX_WINDOW_AGE_S = 1800
OTHER_HOSTS = "not on the board"


class PeoplePage:
    """The page, and the sums behind it."""

    def __init__(self, settings: Settings, past: HistoryReader, patient: bool = False) -> None:
        """The sums of the last builder are taken up when they are needed."""
        self.settings = settings
        self.time_limit_s = ROLLUP_TIME_LIMIT_ALONE_S if patient else ROLLUP_TIME_LIMIT_S
        self.history = past
        self.rollup: UsageRollup | None = None

    def write(self, site: SiteFiles, cards: Mapping[str, SummarizedHost], people: PeopleDirectory, now: Now) -> None:
        """Write it, if its time has come."""
        # a host that is hidden, or gone, is not named for as long as a minute
        facts = compute_digest(
            repr(
                (CODE_FINGERPRINT, site.assets_version, self.settings.privacy.users, str(now.zone), list(cards))
            ).encode()
        )
        due = not 0 <= now.epoch - site.find_write_time(
            PEOPLE_PAGE
        ) < WRITE_INTERVAL_S or not site.published.is_unchanged(PEOPLE_PAGE, facts)
        if self.rollup is None:
            self.rollup = UsageRollup(self.history, WINDOW_HOURS, MONTH_COUNT, self.count_unseen)
        if due or not self.rollup.is_done:
            self.rollup.advance(now.epoch, self.time_limit_s)
        if due:
            site.write_file(
                PEOPLE_PAGE, facts, self.render_page(self.rollup, cards, people, site.assets_version, now), now
            )

    def save(self) -> None:
        """Keep the sums for the next builder."""
        if self.rollup:
            self.rollup.save()

    def render_page(
        self, sums: UsageRollup, cards: Mapping[str, SummarizedHost], people: PeopleDirectory, version: str, now: Now
    ) -> bytes:
        """What it says."""
        windows = [one for one in sums.state.windows if 0 <= now.epoch - one.until < MAX_WINDOW_AGE_S]
        known = PeopleDirectory(people.aliases, {*people.logins, *totals.list_usage_names(windows)})
        told = ((host, one.summary.people.usage, one.summary.people.gpu_counts) for host, one in cards.items())
        present = totals.sum_fleet_usage(told)
        trouble = f"{self.history.problem.where}: {self.history.problem.what}" if self.history.problem else ""
        shown = self.settings.privacy.users
        page = people_page.PeoplePageContent(
            totals.list_person_summaries(present, windows, known) if shown else [],
            totals.build_fleet_balance(present, windows),
            [totals.build_window_coverage(one) for one in windows],
            shown,
            trouble,
            sums.render_months(
                self.build_fingerprint(cards, people), lambda months: self.render_tables(months, cards, people)
            ),
        )
        return people_page.render_people_page(page, version, now)

    def build_fingerprint(self, cards: Mapping[str, SummarizedHost], people: PeopleDirectory) -> bytes:
        """What tells one set of tables from another, beside the months themselves."""
        settings = self.settings
        names = (sorted(people.aliases.items()), sorted(people.logins), list(cards))
        facts = (CODE_FINGERPRINT, settings.privacy.users, str(settings.zone), settings.limits.held_after, names)
        return repr(facts).encode("utf-8", "replace")

    def render_tables(
        self, months: Sequence[MonthUsage], cards: Mapping[str, SummarizedHost], people: PeopleDirectory
    ) -> str:
        """The GPU-hours, which change once an hour."""
        there = [one for one in months if one.seen_by_place]
        known = PeopleDirectory(people.aliases, {*people.logins, *totals.list_usage_names(there)})
        told = [build_month_tables(one, known, cards) for one in there]
        settings = self.settings
        return people_page.render_month_tables(
            told, settings.privacy.users, settings.limits.held_after, cards.keys(), settings.zone
        )

    def count_unseen(
        self, shapes: Iterable[GpuSetChange], first: date, until: int, seen: Mapping[HostModel, StateMinutes]
    ) -> dict[HostModel, int]:
        """The minutes of a month in which GPUs should have been seen and were not."""
        since = totals.find_midnight(first, self.history.zone)
        minutes = {place: one.seen for place, one in seen.items()}
        return totals.count_unseen_minutes(totals.find_gpu_stays(shapes), minutes, since, until)


def build_month_tables(month: MonthUsage, people: PeopleDirectory, hosts: Container[str]) -> people_page.MonthTables:
    """A month in lines; hosts that are not on the board, since they are hidden or gone, are named no more."""
    persons = {name: totals.share_to_sums(share) for name, share in month.shares.items()}
    places: dict[totals.MonthHostModel, totals.UsageSums] = {}
    for (first, host, model), sums in totals.sum_month_by_place(month).items():
        place = (first, host if host in hosts else OTHER_HOSTS, model)
        places[place] = totals.add_sums([places[place], sums]) if place in places else sums
    rows = {by: totals.build_usage_table(persons, places, people, by) for by in ("person", "model", "host")}
    return people_page.MonthTables(month.first, month.since, month.until, rows["person"], rows["model"], rows["host"])


FLEET_PAGE, REPORTS_FOLDER = "fleet.html", "reports"
# Seconds after which it is looked whether there is something new. The page's script takes one of 65 minutes for old.
CHECK_INTERVAL_S = 60
# Until the first hour is added up, the page is made of minutes, once in so many seconds.
FIRST_HOUR_INTERVAL_S = 600
PERIOD_DAYS = {"the last 24 hours": 1, "the last 7 days": 7, "the last 30 days": 30}
WEEK_DAYS, MONTH_DAYS = 7, 30
# Hours in a step of a month's line.
COURSE_STEP_HOURS = 6
# Two years of them.
MAX_REPORTS = 106
REPORT_FILE_NAME = re.compile(r"[0-9]{4}-W[0-9]{2}\.html")
# What a report begins with where it names people.
NAMED_REPORT_START = b"<!doctype html>\n<html lang=en data-people>"
NO_HISTORY_YET = "There is no history yet: come back in some minutes."


class FleetPage:
    """The page, looked at now and then."""

    def __init__(self, settings: Settings, past: HistoryReader) -> None:
        """Nothing was looked at yet."""
        self.settings = settings
        self.history = past
        self.checked_at = -float("inf")

    def write(self, site: SiteFiles, people: PeopleDirectory, now: Now) -> None:
        """Write it where there is something new."""
        if 0 <= now.epoch - self.checked_at < CHECK_INTERVAL_S:
            return
        self.checked_at = now.epoch
        until = reader.find_rolled_up_end(self.history, now.epoch)
        reports = list_reports(self.settings.www, self.settings.privacy.users)
        moment = until if until is not None else int(now.epoch) // FIRST_HOUR_INTERVAL_S * FIRST_HOUR_INTERVAL_S
        told = (
            moment,
            str(self.history.problem),
            reports,
            site.assets_version,
            str(now.zone),
            sorted(people.aliases.items()),
        )
        facts = compute_digest(repr((told, CODE_FINGERPRINT)).encode("utf-8", "replace"))
        if not site.published.is_unchanged(FLEET_PAGE, facts):
            fleet = self.collect_content(until, people, now)._replace(reports=reports)
            site.write_file(FLEET_PAGE, facts, fleet_page.render_fleet_page(fleet, site.assets_version, now), now)

    def collect_content(self, until: int | None, people: PeopleDirectory, now: Now) -> fleet_page.FleetPageContent:
        """What it tells."""
        if until is None:
            start, end = int(now.epoch) - DAY, int(now.epoch)
            found = self.history.read_hourly_usage(start, end + 1)
            seen, had = found.seen, [sum_shares_by_person(found.shares), {}]
        else:
            start, end = until - MONTH_DAYS * DAY, until
            seen = reader.read_hourly_minutes(self.history, start, end)
            weeks = [until - back * WEEK_DAYS * DAY for back in range(3)]
            had = [
                reader.read_person_shares(self.history, since, to)
                for since, to in ((weeks[1], weeks[0]), (weeks[2], weeks[1]))
            ]
        trouble = f"{self.history.problem.where}: {self.history.problem.what}" if self.history.problem else ""
        if not seen:
            return fleet_page.FleetPageContent((), (), (), (), None, None, trouble or NO_HISTORY_YET, ())
        last = datetime.fromtimestamp(end - 1, now.zone).date()
        days, month = fleet_trends.list_days_until(last, WEEK_DAYS), fleet_trends.list_days_until(last, MONTH_DAYS)
        return fleet_page.FleetPageContent(
            [build_model_table(title, count, seen, end, month, now) for title, count in PERIOD_DAYS.items()],
            days,
            fleet_trends.build_heatmap_cells(seen, days, now.zone),
            month,
            compare_last_weeks(seen, had, end, people),
            end,
            trouble,
            (),
        )


def sum_shares_by_person(shares: Mapping[tuple[int, str, str], UsageShare]) -> dict[str, UsageShare]:
    """Shares by person."""
    found: dict[str, UsageShare] = {}
    for (_, _, person), one in shares.items():
        found[person] = UsageShare(*map(sum, zip(found.get(person, UsageShare(0, 0, 0, 0)), one)))
    return found


def select_hours(
    seen: Mapping[tuple[int, str], StateMinutes], since: int, until: int
) -> dict[tuple[int, str], StateMinutes]:
    """What was seen from one moment to another."""
    return {key: one for key, one in seen.items() if since <= key[0] < until}


def build_model_table(  # each is one thing
    title: str, count: int, seen: Mapping[tuple[int, str], StateMinutes], end: int, month: Sequence[date], now: Now
) -> fleet_page.ModelTable:
    """A table of models over so many days, and those that were seen only before; the longest has lines."""
    some = select_hours(seen, end - count * DAY, end)
    models = fleet_trends.summarize_by_model(some, fleet_trends.count_hour_minutes)
    if count < MONTH_DAYS:
        missing = sorted({model for _, model in seen} - {model for _, model in some})
        models.update(
            dict.fromkeys(missing[: max(0, fleet_trends.MAX_MODELS - len(models))], fleet_trends.NOTHING_SEEN)
        )
        return fleet_page.ModelTable(title, models, summarize_period(some, count, 0), {})
    own = fleet_trends.split_by_model(some)
    courses = {
        model: fleet_trends.build_course(own[model], month, COURSE_STEP_HOURS, now.zone)
        for model in models
        if model in own
    }
    return fleet_page.ModelTable(title, models, summarize_period(some, count, 0), courses)


def summarize_period(seen: Mapping[tuple[int, str], StateMinutes], days: int, people: int) -> PeriodUse:
    """So many days in sums."""
    models = fleet_trends.summarize_by_model(seen, fleet_trends.count_hour_minutes)
    return PeriodUse(fleet_trends.summarize_total(models, seen.values()), days * DAY // 60, people)


def compare_last_weeks(
    seen: Mapping[tuple[int, str], StateMinutes],
    had: Sequence[Mapping[str, UsageShare]],
    end: int,
    people: PeopleDirectory,
) -> PeriodComparison:
    """The last week against the one before it."""
    both = []
    for back, shares in enumerate(had):
        until = end - back * WEEK_DAYS * DAY
        known = PeopleDirectory(people.aliases, {*people.logins, *shares})
        users = {known.resolve_user(name) for name, share in shares.items() if share.used}
        both.append(summarize_period(select_hours(seen, until - WEEK_DAYS * DAY, until), WEEK_DAYS, len(users)))
    return fleet_trends.compare_periods(both[0], both[1])


def list_reports(www: Path, users: bool) -> list[str]:
    """The weeks of which there is a report, the newest first; where users are not shown, those that name them go."""
    found: list[str] = []
    with suppress(OSError):
        for path in sorted((www / REPORTS_FOLDER).iterdir(), reverse=True):
            if not REPORT_FILE_NAME.fullmatch(path.name) or path.is_symlink() or not path.is_file():
                continue
            if not users and has_people_names(path):
                path.unlink(missing_ok=True)
            else:
                found.append(path.stem)
    return found[:MAX_REPORTS]


def has_people_names(path: Path) -> bool:
    """Whether a report was made for those who may see who did what."""
    with path.open("rb") as file:
        return file.read(len(NAMED_REPORT_START)) == NAMED_REPORT_START
