"""`gpuboard report`: write or send the report of a week."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

import click

from site_builder.alerts import weekly_report as alert_report
from site_builder.alerts.channels import load_channels
from site_builder.alerts.contacts import ContactsAndRules
from site_builder.alerts.model import CHANNEL_PREFIX, PERSON_PREFIX, WEEKLY_REPORT_RULE
from site_builder.alerts.table import format_table_outcome
from site_builder.config.settings import LoadedSettings, Settings
from site_builder.core import command_options, files
from site_builder.core.clock import Now
from site_builder.core.command_options import CommandError, NegativeResultError, with_loaded_settings
from site_builder.core.files import ASSETS_FOLDER
from site_builder.history.reader import HistoryReader, read_first_history_day
from site_builder.reports import collect, render
from site_builder.reports.collect import CollectedReport


@click.command()
@click.option(
    "--week",
    metavar="[YYYY-Www]",
    is_flag=False,
    flag_value="",
    default="",
    help="Week: 2026-W45.  [default: last week]",
)
@click.option("--text", "as_text", is_flag=True, help="Print plain text.")
@command_options.file_option("--out", help="Output file, - for stdout.  [default: in www/reports/]")
@click.option("--mail", is_flag=True, help="Send it to the receivers of the rule weekly-report.")
@click.option(
    "--to", "names", metavar="NAME", multiple=True, help="Send only to this channel or person:LOGIN, with --mail."
)
@with_loaded_settings
def report(loaded: LoadedSettings, week: str, as_text: bool, out: str | None, mail: bool, names: Sequence[str]) -> None:
    """Write the weekly report: use, people, waste and health.

    The report is a single HTML file that can be mailed; fleet.html lists those in www/reports/. A week runs from
    Monday to Sunday in GPUBOARD_ZONE. docs/alerts.md describes the rule weekly-report for --mail, and
    docs/report.md how to get a report every week. Exit 1 if history has nothing of that week, or a mail could not
    be sent.

    \b
    gpuboard report --week
    gpuboard report --week 2026-W45 --out -
    gpuboard report --week --mail --to person:alice
    """
    if mail and (as_text or out is not None):
        raise click.UsageError("--mail sends both the charts and the text: it cannot be combined with --text or --out")
    if names and not mail:
        raise click.UsageError("--to needs --mail")
    settings, now = loaded.settings, time.time()
    first = parse_week_option(week, datetime.fromtimestamp(now, settings.zone).date())
    receivers = choose_report_command_receivers(settings, names) if mail else ()
    weekly_report = load_report_for_command(settings, first, now)
    if mail:
        channels = load_channels(settings)
        report_message = alert_report.render_report_message(weekly_report, settings, now)
        has_failed = False
        for receiver in receivers:
            notification = alert_report.build_report_notification(first, receiver, int(now))
            outcome = channels.send(notification, report_message)
            has_failed = has_failed or outcome.status != "sent"
            click.echo(format_table_outcome(receiver, outcome))
        if has_failed:
            sys.exit(1)
        return
    if as_text:
        text = render.render_report_text(weekly_report, collect.find_report_url(settings, first))
        content = text.encode("utf-8", "replace")
    else:
        content = render_report_command_page(weekly_report, settings, now)
    if out == "-" or (as_text and out is None):
        click.echo(content, nl=False)
        return
    path = settings.www / collect.build_report_path(first) if out is None else Path(out)
    target = path
    try:
        if out is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            target = path.resolve()
        if target.exists() and not target.is_file():  # such as a pipe
            target.write_bytes(content)
        else:
            files.write_atomically(target, content)
    except OSError as error:
        raise CommandError(f"{target} could not be written: {error.strerror}") from None
    if sys.stdout.isatty():
        click.echo(path)


def parse_week_option(week: str, today: date) -> date:
    """Return the Monday of the week; without one, of the last that is over."""
    if not week:
        return collect.find_last_whole_week(today)
    first = collect.parse_report_week(week)
    if first is None:
        example = collect.format_report_week(collect.find_last_whole_week(today))
        raise CommandError(f"'{week}' is not a week: write it like {example}")
    if first > today:
        raise CommandError(
            f"{collect.format_report_week(first)} is in the future: this week is {collect.format_report_week(today)}"
        )
    return first


def load_report_for_command(settings: Settings, first: date, now: float) -> CollectedReport:
    history = HistoryReader(settings.state, settings.zone)
    path = history.path.absolute()
    try:
        if not history.exists:
            raise CommandError(f"{path} does not exist: run this where the board is built, or set --state")
        weekly_report = collect.collect_report(settings, history, first, now)
        if weekly_report is None:
            first_day = read_first_history_day(history)
            since = "nothing is in it yet" if first_day is None else f"it begins on {first_day}"
            raise NegativeResultError(f"there is no history of {collect.format_report_week(first)} in {path}: {since}")
    except (OSError, collect.ReportCollectionError) as error:
        raise CommandError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        history.close()
    return weekly_report


def render_report_command_page(weekly_report: CollectedReport, settings: Settings, now: float) -> bytes:
    """Render the page with its style sheets in it."""
    style = "".join((ASSETS_FOLDER / f"{name}.css").read_text("utf-8") for name in ("board", "fleet"))
    return render.render_report_page(weekly_report, style, Now(now, settings.zone), settings.url or "")


def choose_report_command_receivers(settings: Settings, names: Sequence[str]) -> list[str]:
    """List the receivers named by --to, or else those of the rule, as notifications name them."""
    channels = [name for name, _ in settings.alerts.channels]
    if not names:
        config_files = ContactsAndRules(settings.alerts, settings.data, settings.www, settings.state)
        receivers = alert_report.list_report_receivers(config_files.read_rules()[0][WEEKLY_REPORT_RULE], channels)
        if not receivers:
            hint = "set GPUBOARD_NOTIFY (docs/alerts.md), or use --to person:LOGIN"
            raise CommandError(f"no channel to send it to: {hint}")
        return receivers
    for name in names:
        if name not in channels and not (name.startswith(PERSON_PREFIX) and name != PERSON_PREFIX):
            choices = ", ".join([*channels, f"{PERSON_PREFIX}LOGIN"])
            raise CommandError(f"--to: unknown receiver {name[:80]!r}; there is {choices}")
    return list(dict.fromkeys(name if name.startswith(PERSON_PREFIX) else f"{CHANNEL_PREFIX}{name}" for name in names))
