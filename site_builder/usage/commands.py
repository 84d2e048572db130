"""`gpuboard stats`: who had how many GPU-hours."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from site_builder.bookings.command_common import No
from site_builder.config.commands import printable
from site_builder.core.command_options import Failure, tell, with_loaded

if TYPE_CHECKING:
    from site_builder.config.conf_file import Loaded
    from site_builder.config.settings import Settings
    from site_builder.history.reader import Past
    from site_builder.usage.render import Told
    from site_builder.usage.totals import Period

Answer = TypeVar("Answer")
MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")


class Days(NamedTuple):
    """Which days are asked for, and in which words."""

    first: date
    last: date
    said: str


def of_day(ctx: click.Context, option: click.Parameter, text: str | None) -> date | None:  # noqa: ARG001 # click's own form
    """A day as 2026-10-31."""
    from site_builder.core.timeparse import dates  # noqa: PLC0415 # --help needs none of it

    found = None if text is None else dates.day(text)
    if text is not None and found is None:
        message = f"'{text}' is not a day from 1970 to 2200: write it like 2026-10-31"
        raise click.BadParameter(message)
    return found


def of_month(ctx: click.Context, option: click.Parameter, text: str | None) -> date | None:  # noqa: ARG001 # the same
    """The first day of a month as 2026-10."""
    from site_builder.core.timeparse import dates  # noqa: PLC0415 # --help needs none of it

    found = dates.day(f"{text}-01") if MONTH.fullmatch(text or "") else None
    if text is not None and found is None:
        message = f"'{text}' is not a month from 1970 to 2200: write it like 2026-10"
        raise click.BadParameter(message)
    return found


@click.command()
@click.option("--month", metavar="YYYY-MM", callback=of_month, help="A whole month.  [default: this one, so far]")
@click.option("--since", metavar="DAY", callback=of_day, help="From that day on, like 2026-10-01.")
@click.option("--until", metavar="DAY", callback=of_day, help="Up to the end of that day.  [default: today]")
@click.option(
    "--by",
    type=click.Choice(["person", "model", "host", "month"]),
    default="person",
    show_default=True,
    help="What each line is of.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, for spreadsheets.")
@with_loaded
def stats(  # noqa: PLR0913, PLR0917 # one for each option
    loaded: Loaded, month: date | None, since: date | None, until: date | None, by: str, as_json: bool, as_csv: bool
) -> None:
    """Tell who had how many GPU-hours, from state/history.db on the web host.

    used: on a GPU, of several people there each an equal part; held: of it, idle for 2 h or longer; booked: promised;
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
    days = asked(month, since, until, datetime.fromtimestamp(now, loaded.settings.zone).date())
    told = found(loaded, days, by, now)
    from site_builder.usage import render  # noqa: PLC0415 # --help needs none of it

    if as_json:
        click.echo(render.json(told))
    elif as_csv:
        click.echo("".join(render.csv(told)), nl=False)
    else:
        from site_builder.client.list_command import across  # noqa: PLC0415

        click.echo("\n".join(map(printable, render.table(told, across()))))


def asked(month: date | None, since: date | None, until: date | None, today: date) -> Days:
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
        raise Failure(f"{said} has not come yet: it is {today}")
    if month:
        return Days(first, min(today, (month + timedelta(days=31)).replace(day=1) - timedelta(days=1)), said)
    last = min(today, until or today)
    if last < first:
        message = f"--until {last} is before --since {first}"
        raise click.UsageError(message)
    return Days(first, last, said if first == last else f"{first} to {last}")


def found(loaded: Loaded, days: Days, by: str, now: float) -> Told:
    """What history has of these days, or in one sentence why it has none."""
    from site_builder.history.reader import Past  # noqa: PLC0415
    from site_builder.usage.totals import Period  # noqa: PLC0415 # --help needs none of it

    settings = loaded.settings
    past = Past(settings.state, settings.zone)
    try:
        if not past.exists:
            raise Failure(none_here(loaded, past))
        return read(past, settings, Period(days.first, days.last, settings.zone, now), days.said, by)
    except OSError as error:
        raise Failure(f"{past.path.absolute()} could not be read: {error.strerror}") from None
    finally:
        past.close()


def read(past: Past, settings: Settings, period: Period, said: str, by: str) -> Told:
    """The lines of these days."""
    from site_builder.bookings.data_files import Names  # noqa: PLC0415
    from site_builder.core.people import People  # noqa: PLC0415
    from site_builder.history import rollups  # noqa: PLC0415
    from site_builder.usage import totals  # noqa: PLC0415 # the same
    from site_builder.usage.render import Told  # noqa: PLC0415

    tallies = checked(past, lambda: past.tallies(period.first, period.last, period.now))
    begun = checked(past, lambda: rollups.first_day(past))
    if not tallies.seen:
        since = "nothing is in it yet" if begun is None else f"it begins with {begun}"
        raise No(f"there is no history of {said} in {past.path.absolute()}: {since}")
    stays = totals.stays(checked(past, lambda: rollups.shapes(past)))
    people = People(Names(settings.data, None).read()[0], {row.person for row in tallies.shares})
    if begun and begun > period.first:
        tell(f"history begins with {begun}: what was before is not in it")
        period = period._replace(first=begun)
    persons, places = totals.added(tallies.shares, tallies.seen, totals.unseen_in(stays, tallies.seen, period))
    lines = totals.usage(persons, places, people, by)
    return Told(lines, period.first, period.last, str(settings.zone))


def checked(past: Past, ask: Callable[[], Answer]) -> Answer:
    """An answer, unless the file could not be read."""
    answer = ask()
    if past.trouble:
        raise Failure(f"{past.path.absolute()}: {past.trouble.what}")
    return answer


def none_here(loaded: Loaded, past: Past) -> str:
    """Why there is no history, and what to do."""
    given = loaded.given
    local = any(given[name].origin != "default" for name in ("GPUBOARD_DATA", "GPUBOARD_STATE"))
    if loaded.settings.url and not local:
        return f"history is kept where the board is built: run this on the web host of {loaded.settings.url}"
    return f"there is no history yet: `gpuboard build` begins {past.path.absolute()}, or --state names another folder"
