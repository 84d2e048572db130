"""`gpuboard stats`: who had how many GPU-hours."""

from __future__ import annotations

import re
import time
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import click

from site_builder.core.command_options import CommandError, NegativeResultError, print_message, with_loaded_settings
from site_builder.core.terminal_text import replace_unencodable
from site_builder.history.commands import check_query, explain_missing_history

if TYPE_CHECKING:
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.config.settings import Settings
    from site_builder.history.reader import HistoryReader
    from site_builder.usage.render import UsageStats
    from site_builder.usage.totals import DatePeriod

MONTH_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}")


class RequestedDays(NamedTuple):
    """Which days are asked for, and in which words."""

    first: date
    last: date
    label: str


def parse_day_option(ctx: click.Context, option: click.Parameter, text: str | None) -> date | None:  # noqa: ARG001 # click's own form
    """A day as 2026-10-31."""
    from site_builder.core.timeparse import dates  # noqa: PLC0415 # --help needs none of it

    found = None if text is None else dates.day(text)
    if text is not None and found is None:
        message = f"'{text}' is not a day from 1970 to 2200: write it like 2026-10-31"
        raise click.BadParameter(message)
    return found


def parse_month_option(ctx: click.Context, option: click.Parameter, text: str | None) -> date | None:  # noqa: ARG001 # the same
    """The first day of a month as 2026-10."""
    from site_builder.core.timeparse import dates  # noqa: PLC0415 # --help needs none of it

    found = dates.day(f"{text}-01") if MONTH_PATTERN.fullmatch(text or "") else None
    if text is not None and found is None:
        message = f"'{text}' is not a month from 1970 to 2200: write it like 2026-10"
        raise click.BadParameter(message)
    return found


@click.command()
@click.option(
    "--month", metavar="YYYY-MM", callback=parse_month_option, help="A whole month.  [default: this one, so far]"
)
@click.option("--since", metavar="DAY", callback=parse_day_option, help="From that day on, like 2026-10-01.")
@click.option("--until", metavar="DAY", callback=parse_day_option, help="Up to the end of that day.  [default: today]")
@click.option(
    "--by",
    type=click.Choice(["person", "model", "host", "month"]),
    default="person",
    show_default=True,
    help="What each line is of.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, for spreadsheets.")
@with_loaded_settings
def stats(  # one for each option
    loaded: LoadedSettings,
    month: date | None,
    since: date | None,
    until: date | None,
    by: str,
    as_json: bool,
    as_csv: bool,
) -> None:
    """List GPU-hours by person, model, host or month.

    It reads state/history.db on the web host. used: on a GPU, of several people there each an equal part; held: of it, idle for 2 h or longer; booked: promised;
    unused: of it, with nothing of theirs on the GPU. Names are merged by aliases.csv; days are those of GPUBOARD_ZONE.
    docs/people.md says what each number means, and which sums are closed. Exit 1: nothing was seen on these days.

    \b
    gpuboard stats
    gpuboard stats --month 2026-10 --csv > october.csv
    gpuboard stats --since 2026-10-01 --until 2026-12-31 --by month
    """
    if as_json and as_csv:
        message = "say --json or --csv, not both"
        raise click.UsageError(message)
    now = time.time()
    days = choose_days(month, since, until, datetime.fromtimestamp(now, loaded.settings.zone).date())
    told = load_stats(loaded, days, by, now)
    from site_builder.usage import render  # noqa: PLC0415 # --help needs none of it

    if as_json:
        click.echo(render.render_stats_json(told))
    elif as_csv:
        click.echo("".join(render.render_stats_csv(told)), nl=False)
    else:
        from site_builder.core.terminal_text import find_terminal_width  # noqa: PLC0415

        click.echo("\n".join(map(replace_unencodable, render.render_stats_table(told, find_terminal_width()))))


def choose_days(month: date | None, since: date | None, until: date | None, today: date) -> RequestedDays:
    """The days that are meant; one that has not come is refused."""
    if month and (since or until):
        message = "say --month, or --since and --until, not both"
        raise click.UsageError(message)
    if until and not since:
        message = "--until goes with --since"
        raise click.UsageError(message)
    first = since or month or today.replace(day=1)
    said = f"{first:%Y-%m}" if month else str(first)
    if first > today:
        raise CommandError(f"{said} has not come yet: it is {today}")
    if month:
        return RequestedDays(first, min(today, (month + timedelta(days=31)).replace(day=1) - timedelta(days=1)), said)
    last = min(today, until or today)
    if last < first:
        message = f"--until {last} is before --since {first}"
        raise click.UsageError(message)
    return RequestedDays(first, last, said if first == last else f"{first} to {last}")


def load_stats(loaded: LoadedSettings, days: RequestedDays, by: str, now: float) -> UsageStats:
    """What history has of these days, or in one sentence why it has none."""
    from site_builder.history.reader import HistoryReader  # noqa: PLC0415
    from site_builder.usage.totals import DatePeriod  # noqa: PLC0415 # --help needs none of it

    settings = loaded.settings
    past = HistoryReader(settings.state, settings.zone)
    try:
        if not past.exists:
            raise CommandError(explain_missing_history(loaded, past))
        return read_stats(past, settings, DatePeriod(days.first, days.last, settings.zone, now), days.label, by)
    except OSError as error:
        raise CommandError(f"{past.path.absolute()} could not be read: {error.strerror}") from None
    finally:
        past.close()


def read_stats(past: HistoryReader, settings: Settings, period: DatePeriod, said: str, by: str) -> UsageStats:
    """The lines of these days."""
    from site_builder.core.people import PeopleDirectory  # noqa: PLC0415
    from site_builder.fleet.gpu_models import NameFiles  # noqa: PLC0415
    from site_builder.history import rollups  # noqa: PLC0415
    from site_builder.usage import totals  # noqa: PLC0415 # the same
    from site_builder.usage.render import UsageStats  # noqa: PLC0415

    tallies = check_query(past, lambda: past.read_daily_usage(period.first, period.last, period.now))
    begun = check_query(past, lambda: rollups.read_first_day(past))
    if not tallies.seen:
        since = "nothing is in it yet" if begun is None else f"it begins with {begun}"
        raise NegativeResultError(f"there is no history of {said} in {past.path.absolute()}: {since}")
    stays = totals.find_gpu_stays(check_query(past, lambda: rollups.read_gpu_set_changes(past)))
    people = PeopleDirectory(NameFiles(settings.data, None).read_names()[0], {row.person for row in tallies.shares})
    if begun and begun > period.first:
        print_message(f"history begins with {begun}: what was before is not in it")
        period = period._replace(first=begun)
    persons, places = totals.sum_daily_usage(
        tallies.shares, tallies.seen, totals.count_unseen_by_month(stays, tallies.seen, period)
    )
    lines = totals.build_usage_table(persons, places, people, by)
    return UsageStats(lines, period.first, period.last, str(settings.zone))
