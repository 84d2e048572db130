"""`gpuboard report`: a week on one page, as text, and by mail."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.client import completion
from site_builder.core.command_options import CommandError, NegativeResultError, with_loaded_settings

if TYPE_CHECKING:
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.config.settings import Settings
    from site_builder.reports.rules import WeeklyReport

STDOUT = "-"
STYLE_SHEETS = ("board", "fleet")


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
    shell_complete=completion.complete_files,
    help="Write it there; - is stdout.  [default: www/reports/YYYY-Www.html]",
)
@click.option("--mail", is_flag=True, help="Send it to where the rule weekly-report says; see docs/alerts.md.")
@click.option(
    "--to", "names", metavar="NAME", multiple=True, help="With --mail: only there, a channel or person:LOGIN."
)
@with_loaded_settings
def report(  # each is an option
    loaded: LoadedSettings, week: str, as_text: bool, out: str | None, mail: bool, names: Sequence[str]
) -> None:
    """Write the weekly report: use, people, waste and health.

    It is one page that needs nothing beside it, so that it can be mailed; fleet.html lists those in www/reports/.
    --week alone is the last week that is over; days are those of GPUBOARD_ZONE. docs/report.md says how to have it
    every week. Exit 1: history has nothing of that week, or a mail of it did not go.

    \b
    gpuboard report --week
    gpuboard report --week 2026-W45 --out -
    gpuboard report --week --mail --to person:alice
    """
    check_report_options(as_text, out, mail, names)
    settings, now = loaded.settings, time.time()
    first = parse_week_option(week, datetime.fromtimestamp(now, settings.zone).date())
    receivers = choose_receivers(settings, names) if mail else ()
    told = load_report(loaded, first, now)
    if mail:
        send_report(told, settings, receivers, now)
        return
    content = render_plain_report(told, settings) if as_text else render_standalone_page(told, settings, now)
    if out == STDOUT or (as_text and out is None):
        click.echo(content, nl=False)
        return
    from site_builder.reports.collect import build_report_path  # noqa: PLC0415 # --help needs none of it

    path = settings.www / build_report_path(first) if out is None else Path(out)
    write_report(path, content, within_site=out is None)
    if sys.stdout.isatty():
        click.echo(path)


def check_report_options(as_text: bool, out: str | None, mail: bool, names: Sequence[str]) -> None:
    """Refuse options that do not go together."""
    if mail and (as_text or out is not None):
        message = "--mail sends both the charts and the text: it goes with neither --text nor --out"
        raise click.UsageError(message)
    if names and not mail:
        message = "--to goes with --mail"
        raise click.UsageError(message)


def parse_week_option(week: str, today: date) -> date:
    """The Monday of the week that is meant."""
    from site_builder.reports import rules  # noqa: PLC0415 # the same

    if not week:
        return rules.find_last_whole_week(today)
    first = rules.parse_week(week)
    if first is None:
        raise CommandError(
            f"'{week}' is not a week: write it like {rules.format_week(rules.find_last_whole_week(today))}"
        )
    if first > today:
        raise CommandError(f"{rules.format_week(first)} has not come yet: it is {rules.format_week(today)}")
    return first


def load_report(loaded: LoadedSettings, first: date, now: float) -> WeeklyReport:
    """What there is to tell, or in one sentence why there is nothing."""
    from site_builder.history import rollups  # noqa: PLC0415
    from site_builder.history.reader import HistoryReader  # noqa: PLC0415
    from site_builder.reports import collect, rules

    past = HistoryReader(loaded.settings.state, loaded.settings.zone)
    where = past.path.absolute()
    try:
        if not past.exists:
            raise CommandError(f"{where} is not there: history is kept where the board is built, or --state names it")
        found = collect.collect_report(loaded.settings, past, first, now)
        if found is None:
            begun = rollups.read_first_day(past)
            since = "nothing is in it yet" if begun is None else f"it begins with {begun}"
            raise NegativeResultError(f"there is no history of {rules.format_week(first)} in {where}: {since}")
    except (OSError, collect.HistoryReadError) as error:
        raise CommandError(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        past.close()
    return found


def render_standalone_page(week: WeeklyReport, settings: Settings, now: float) -> bytes:
    """The page, with all of its style in it."""
    from site_builder.core.clock import Now  # noqa: PLC0415 # the same
    from site_builder.core.files import find_assets_folder  # noqa: PLC0415
    from site_builder.reports import page as reports_page  # noqa: PLC0415

    style = "".join((find_assets_folder() / f"{name}.css").read_text("utf-8") for name in STYLE_SHEETS)
    return reports_page.render_report_page(week, style, Now(now, settings.zone), settings.url or "")


def render_plain_report(week: WeeklyReport, settings: Settings) -> bytes:
    """The same as text; it says where the page is, if there is one."""
    from site_builder.reports import collect  # noqa: PLC0415 # the same
    from site_builder.reports.text import render_report_text  # noqa: PLC0415

    return render_report_text(week, collect.find_report_url(settings, week.first)).encode("utf-8", "replace")


def choose_receivers(settings: Settings, names: Sequence[str]) -> list[str]:
    """Whom it is for, as letters name them: those of --to, or of the rule."""
    from site_builder.alerts import build as alert_build  # noqa: PLC0415 # the same
    from site_builder.alerts.config_files import AlertConfigFiles  # noqa: PLC0415
    from site_builder.alerts.model import CHANNEL_PREFIX, PERSON_PREFIX  # noqa: PLC0415

    channels = [name for name, _ in settings.alerts.channels]
    if not names:
        ruled = AlertConfigFiles(settings.alerts, settings.data, settings.www, settings.state).read()
        found = alert_build.list_report_receivers(ruled.rules[alert_build.WEEKLY_REPORT_RULE], channels)
        if not found:
            message = (
                "there is no channel to send it to: set GPUBOARD_NOTIFY (docs/alerts.md), or say --to person:LOGIN"
            )
            raise CommandError(message)
        return found
    for name in names:
        if name not in channels and not (name.startswith(PERSON_PREFIX) and name != PERSON_PREFIX):
            there = ", ".join([*channels, f"{PERSON_PREFIX}LOGIN"])
            raise CommandError(f"--to: nothing is called {name[:80]!r}; there is {there}")
    return list(dict.fromkeys(name if name.startswith(PERSON_PREFIX) else f"{CHANNEL_PREFIX}{name}" for name in names))


def send_report(week: WeeklyReport, settings: Settings, receivers: Sequence[str], now: float) -> None:
    """Send it, and say of each receiver how it went."""
    from site_builder.alerts import build as alert_build  # noqa: PLC0415 # the same
    from site_builder.alerts.sender import load_channels  # noqa: PLC0415
    from site_builder.alerts.table import format_outcome  # noqa: PLC0415

    ways, message = load_channels(settings), alert_build.render_report_message(week, settings, now)
    failed = False
    for to in receivers:
        how = ways.send(alert_build.build_report_notification(week.first, to, int(now)), message)
        failed = failed or how.status != "sent"
        click.echo(format_outcome(to, how))
    if failed:
        sys.exit(1)


def write_report(path: Path, content: bytes, within_site: bool) -> None:
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
            files.write_atomically(path, content)
    except OSError as error:
        raise CommandError(f"{path} could not be written: {error.strerror}") from None
