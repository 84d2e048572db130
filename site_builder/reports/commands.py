"""`gpuboard report`: a week on one page, as text, and by mail."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.bookings.command_common import No
from site_builder.client import completion
from site_builder.core.command_options import Failure, with_loaded

if TYPE_CHECKING:
    from site_builder.config.conf_file import Loaded
    from site_builder.config.settings import Settings
    from site_builder.reports.rules import Week

STDOUT = "-"
STYLES = ("board", "fleet")


@click.command()
@click.option(
    "--week",
    metavar="[YYYY-Www]",
    is_flag=False,
    flag_value="",
    default="",
    help="Which, like 2026-W45, from Monday to Sunday.  [default: the last that is over]",
)
@click.option("--text", "as_text", is_flag=True, help="As plain text, on stdout.")
@click.option(
    "--out",
    metavar="FILE",
    shell_complete=completion.files,
    help="Write it there; - is stdout.  [default: www/reports/YYYY-Www.html]",
)
@click.option("--mail", is_flag=True, help="Send it to where the rule weekly-report says; see docs/alerts.md.")
@click.option(
    "--to", "names", metavar="NAME", multiple=True, help="With --mail: only there, a channel or person:LOGIN."
)
@with_loaded
def report(  # noqa: PLR0913, PLR0917 # each is an option
    loaded: Loaded, week: str, as_text: bool, out: str | None, mail: bool, names: Sequence[str]
) -> None:
    """Write the report of a week: use, people, waste and health, against the week before.

    It is one page that needs nothing beside it, so that it can be mailed; fleet.html lists those in www/reports/.
    --week alone is the last week that is over; days are those of GPUBOARD_ZONE. docs/report.md says how to have it
    every week. Exit 1: history has nothing of that week, or a mail of it did not go.

    \b
    gpuboard report --week
    gpuboard report --week 2026-W45 --out -
    gpuboard report --week --mail --to person:alice
    """
    check(as_text, out, mail, names)
    settings, now = loaded.settings, time.time()
    first = monday_of(week, datetime.fromtimestamp(now, settings.zone).date())
    receivers = receivers_of(settings, names) if mail else ()
    told = gathered(loaded, first, now)
    if mail:
        send(told, settings, receivers, now)
        return
    content = plain(told, settings) if as_text else page(told, settings, now)
    if out == STDOUT or (as_text and out is None):
        click.echo(content, nl=False)
        return
    from site_builder.reports.collect import file_of  # noqa: PLC0415 # --help needs none of it

    path = settings.www / file_of(first) if out is None else Path(out)
    write(path, content, within_site=out is None)
    if sys.stdout.isatty():
        click.echo(path)


def check(as_text: bool, out: str | None, mail: bool, names: Sequence[str]) -> None:
    """Refuse options that do not go together."""
    if mail and (as_text or out is not None):
        message = "--mail sends both the charts and the text: it goes with neither --text nor --out"
        raise click.UsageError(message)
    if names and not mail:
        message = "--to goes with --mail"
        raise click.UsageError(message)


def monday_of(week: str, today: date) -> date:
    """The Monday of the week that is meant."""
    from site_builder.core.timeparse import weeks  # noqa: PLC0415 # the same

    if not week:
        return weeks.last_whole(today)
    first = weeks.read(week)
    if first is None:
        raise Failure(f"'{week}' is not a week: write it like {weeks.name(weeks.last_whole(today))}")
    if first > today:
        raise Failure(f"{weeks.name(first)} has not come yet: it is {weeks.name(today)}")
    return first


def gathered(loaded: Loaded, first: date, now: float) -> Week:
    """What there is to tell, or in one sentence why there is nothing."""
    from site_builder.core.timeparse import weeks  # noqa: PLC0415
    from site_builder.history import rollups  # noqa: PLC0415
    from site_builder.history.reader import Past  # noqa: PLC0415
    from site_builder.reports import collect  # noqa: PLC0415 # the same

    past = Past(loaded.settings.state, loaded.settings.zone)
    where = past.path.absolute()
    try:
        if not past.exists:
            raise Failure(f"{where} is not there: history is kept where the board is built, or --state names it")
        found = collect.gather(loaded.settings, past, first, now)
        if found is None:
            begun = rollups.first_day(past)
            since = "nothing is in it yet" if begun is None else f"it begins with {begun}"
            raise No(f"there is no history of {weeks.name(first)} in {where}: {since}")
    except (OSError, collect.Unread) as error:
        raise Failure(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        past.close()
    return found


def page(week: Week, settings: Settings, now: float) -> bytes:
    """The page, with all of its style in it."""
    from site_builder.core.clock import Now  # noqa: PLC0415 # the same
    from site_builder.core.resources import assets_folder  # noqa: PLC0415
    from site_builder.reports import page as reports_page  # noqa: PLC0415

    style = "".join((assets_folder() / f"{name}.css").read_text("utf-8") for name in STYLES)
    return reports_page.page(week, style, Now(now, settings.zone), settings.url or "")


def plain(week: Week, settings: Settings) -> bytes:
    """The same as text; it says where the page is, if there is one."""
    from site_builder.reports import collect  # noqa: PLC0415 # the same
    from site_builder.reports.text import text  # noqa: PLC0415

    return text(week, collect.address(settings, week.first)).encode("utf-8", "replace")


def receivers_of(settings: Settings, names: Sequence[str]) -> list[str]:
    """Whom it is for, as letters name them: those of --to, or of the rule."""
    from site_builder.alerts.config_files import AlertFiles  # noqa: PLC0415
    from site_builder.alerts.model import CHANNEL, PERSON  # noqa: PLC0415
    from site_builder.reports import build  # noqa: PLC0415 # the same

    channels = [name for name, _ in settings.alerts.channels]
    if not names:
        ruled = AlertFiles(settings.alerts, settings.data, settings.www, settings.state).read()
        found = build.receivers(ruled.rules[build.RULE], channels)
        if not found:
            message = (
                "there is no channel to send it to: set GPUBOARD_NOTIFY (docs/alerts.md), or say --to person:LOGIN"
            )
            raise Failure(message)
        return found
    for name in names:
        if name not in channels and not (name.startswith(PERSON) and name != PERSON):
            there = ", ".join([*channels, f"{PERSON}LOGIN"])
            raise Failure(f"--to: nothing is called {name[:80]!r}; there is {there}")
    return list(dict.fromkeys(name if name.startswith(PERSON) else f"{CHANNEL}{name}" for name in names))


def send(week: Week, settings: Settings, receivers: Sequence[str], now: float) -> None:
    """Send it, and say of each receiver how it went."""
    from site_builder.alerts.sender import ways_of  # noqa: PLC0415
    from site_builder.alerts.table import outcome  # noqa: PLC0415
    from site_builder.reports import build  # noqa: PLC0415 # the same

    ways, message = ways_of(settings), build.worded(week, settings, now)
    failed = False
    for to in receivers:
        how = ways.send(build.letter(week.first, to, int(now)), message)
        failed = failed or how.how != "sent"
        click.echo(outcome(to, how))
    if failed:
        sys.exit(1)


def write(path: Path, content: bytes, within_site: bool) -> None:
    """Put it there whole or not at all; what is no plain file, such as a pipe, is written to."""
    from site_builder.core import files  # noqa: PLC0415 # the same

    try:
        if within_site:
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            path = path.resolve()
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            files.replace(path, content)
    except OSError as error:
        raise Failure(f"{path} could not be written: {error.strerror}") from None
