"""fleet.html of www/: when it is due, and what it is made of. Once an hour, when the last one is added up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path

from site_builder.board.host_pipeline import CODE
from site_builder.board.site_writer import Site
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.people import People
from site_builder.core.published_files import digest
from site_builder.history import hourly
from site_builder.history.gpu_minutes import Seen, Share
from site_builder.history.reader import DAY, Past
from site_builder.usage import trends, trends_page
from site_builder.usage.totals import person_of
from site_builder.usage.trends import Changes, Span

PAGE, REPORTS = "fleet.html", "reports"
# Seconds after which it is looked whether there is something new. The page's script takes one of 65 minutes for old.
LOOK_EVERY = 60
# Until the first hour is added up, the page is made of minutes, once in so many seconds.
FIRST_HOUR = 600
PERIODS = {"the last 24 hours": 1, "the last 7 days": 7, "the last 30 days": 30}
WEEK, MONTH = 7, 30
# Hours in a step of a month's line.
STEP = 6
# Two years of them.
MOST_REPORTS = 106
WEEK_FILE = re.compile(r"[0-9]{4}-W[0-9]{2}\.html")
# What a report begins with where it names people.
NAMES_PEOPLE = b"<!doctype html>\n<html lang=en data-people>"
NONE_YET = "There is no history yet: come back in some minutes."


class FleetPage:
    """The page, looked at now and then."""

    def __init__(self, settings: Settings, past: Past) -> None:
        """Nothing was looked at yet."""
        self.settings = settings
        self.past = past
        self.looked = -float("inf")

    def write(self, site: Site, people: People, now: Now) -> None:
        """Write it where there is something new."""
        if 0 <= now.epoch - self.looked < LOOK_EVERY:
            return
        self.looked = now.epoch
        until = hourly.whole_until(self.past, now.epoch)
        reports = reports_in(self.settings.www, self.settings.shown.users)
        moment = until if until is not None else int(now.epoch) // FIRST_HOUR * FIRST_HOUR
        told = (moment, str(self.past.trouble), reports, site.version, str(now.zone), sorted(people.aliases.items()))
        facts = digest(repr((told, CODE)).encode("utf-8", "replace"))
        if not site.published.says(PAGE, facts):
            fleet = self.fleet(until, people, now)._replace(reports=reports)
            site.write(PAGE, facts, trends_page.page(fleet, site.version, now), now)

    def fleet(self, until: int | None, people: People, now: Now) -> trends_page.Fleet:
        """What it tells."""
        if until is None:
            start, end = int(now.epoch) - DAY, int(now.epoch)
            found = self.past.by_hour(start, end + 1)
            seen, had = found.seen, [sum_of(found.shares), {}]
        else:
            start, end = until - MONTH * DAY, until
            seen = hourly.seen(self.past, start, end)
            weeks = [until - back * WEEK * DAY for back in range(3)]
            had = [hourly.people(self.past, since, to) for since, to in ((weeks[1], weeks[0]), (weeks[2], weeks[1]))]
        trouble = f"{self.past.trouble.where}: {self.past.trouble.what}" if self.past.trouble else ""
        if not seen:
            return trends_page.Fleet((), (), (), (), None, None, trouble or NONE_YET, ())
        last = datetime.fromtimestamp(end - 1, now.zone).date()
        days, month = trends.days_to(last, WEEK), trends.days_to(last, MONTH)
        return trends_page.Fleet(
            [period(title, count, seen, end, month, now) for title, count in PERIODS.items()],
            days,
            trends.heat(seen, days, now.zone),
            month,
            changes(seen, had, end, people),
            end,
            trouble,
            (),
        )


def sum_of(shares: Mapping[tuple[int, str, str], Share]) -> dict[str, Share]:
    """Shares by person."""
    found: dict[str, Share] = {}
    for (_, _, person), one in shares.items():
        found[person] = Share(*map(sum, zip(found.get(person, Share(0, 0, 0, 0)), one)))
    return found


def within(seen: Mapping[tuple[int, str], Seen], since: int, until: int) -> dict[tuple[int, str], Seen]:
    """What was seen from one moment to another."""
    return {key: one for key, one in seen.items() if since <= key[0] < until}


def period(  # noqa: PLR0913, PLR0917 # each is one thing
    title: str, count: int, seen: Mapping[tuple[int, str], Seen], end: int, month: Sequence[date], now: Now
) -> trends_page.Period:
    """A table of models over so many days, and those that were seen only before; the longest has lines."""
    some = within(seen, end - count * DAY, end)
    models = trends.by_model(some, trends.an_hour)
    if count < MONTH:
        missing = sorted({model for _, model in seen} - {model for _, model in some})
        models.update(dict.fromkeys(missing[: max(0, trends.MOST_MODELS - len(models))], trends.NOT_SEEN))
        return trends_page.Period(title, models, span(some, count, 0), {})
    own = trends.apart(some)
    courses = {model: trends.course(own[model], month, STEP, now.zone) for model in models if model in own}
    return trends_page.Period(title, models, span(some, count, 0), courses)


def span(seen: Mapping[tuple[int, str], Seen], days: int, people: int) -> Span:
    """So many days in sums."""
    models = trends.by_model(seen, trends.an_hour)
    return Span(trends.total(models, seen.values()), days * DAY // 60, people)


def changes(
    seen: Mapping[tuple[int, str], Seen], had: Sequence[Mapping[str, Share]], end: int, people: People
) -> Changes:
    """The last week against the one before it."""
    both = []
    for back, shares in enumerate(had):
        until = end - back * WEEK * DAY
        known = People(people.aliases, {*people.logins, *shares})
        users = {person_of(name, known) for name, share in shares.items() if share.used}
        both.append(span(within(seen, until - WEEK * DAY, until), WEEK, len(users)))
    return trends.changes(both[0], both[1])


def reports_in(www: Path, users: bool) -> list[str]:
    """The weeks of which there is a report, the newest first; where users are not shown, those that name them go."""
    found: list[str] = []
    with suppress(OSError):
        for path in sorted((www / REPORTS).iterdir(), reverse=True):
            if not WEEK_FILE.fullmatch(path.name) or path.is_symlink() or not path.is_file():
                continue
            if not users and names_people(path):
                path.unlink(missing_ok=True)
            else:
                found.append(path.stem)
    return found[:MOST_REPORTS]


def names_people(path: Path) -> bool:
    """Whether a report was made for those who may see who did what."""
    with path.open("rb") as file:
        return file.read(len(NAMES_PEOPLE)) == NAMES_PEOPLE
