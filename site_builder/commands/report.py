"""`gpuboard report`: a week on one page, and as text for a mail."""

from __future__ import annotations

import sys
import time
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.commands import hints
from site_builder.commands.booking import No
from site_builder.commands.options import Failure, with_loaded

if TYPE_CHECKING:
    from site_builder.decide.week import Week
    from site_builder.settings import Settings
    from site_builder.sources.conf import Loaded

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
@click.option("--text", "as_text", is_flag=True, help="As plain text on stdout, for a mail.")
@click.option(
    "--out",
    metavar="FILE",
    shell_complete=hints.files,
    help="Write it there; - is stdout.  [default: www/reports/YYYY-Www.html]",
)
@with_loaded
def report(loaded: Loaded, week: str, as_text: bool, out: str | None) -> None:
    """Write the report of a week: use, people, waste and health, against the week before.

    It is one page that needs nothing beside it, so that it can be mailed; fleet.html lists those in www/reports/.
    --week alone is the last week that is over; days are those of GPUBOARD_ZONE. docs/report.md says how to have it
    every week. Exit 1: history has nothing of that week.

    \b
    gpuboard report --week
    gpuboard report --week 2026-W45 --out -
    gpuboard report --week --text | mail -s "GPUs last week" lab@example.org
    """
    settings, now = loaded.settings, time.time()
    first = monday_of(week, datetime.fromtimestamp(now, settings.zone).date())
    told = gathered(loaded, first, now)
    from site_builder.readers import weeks  # noqa: PLC0415 # --help needs none of it

    name = f"reports/{weeks.name(first)}.html"
    content = plain(told, settings, name) if as_text else page(told, settings, now)
    if out == STDOUT or (as_text and out is None):
        click.echo(content, nl=False)
        return
    path = settings.www / name if out is None else Path(out)
    write(path, content, within_site=out is None)
    if sys.stdout.isatty():
        click.echo(path)


def monday_of(week: str, today: date) -> date:
    """The Monday of the week that is meant."""
    from site_builder.readers import weeks  # noqa: PLC0415 # the same

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
    from site_builder import reports  # noqa: PLC0415 # the same
    from site_builder.readers import weeks  # noqa: PLC0415
    from site_builder.sources import sums  # noqa: PLC0415
    from site_builder.sources.past import Past  # noqa: PLC0415

    past = Past(loaded.settings.state, loaded.settings.zone)
    where = past.path.absolute()
    try:
        if not past.exists:
            raise Failure(f"{where} is not there: history is kept where the board is built, or --state names it")
        found = reports.gather(loaded.settings, past, first, now)
        if found is None:
            begun = sums.first_day(past)
            since = "nothing is in it yet" if begun is None else f"it begins with {begun}"
            raise No(f"there is no history of {weeks.name(first)} in {where}: {since}")
    except (OSError, reports.Unread) as error:
        raise Failure(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        past.close()
    return found


def page(week: Week, settings: Settings, now: float) -> bytes:
    """The page, with all of its style in it."""
    from site_builder.now import Now  # noqa: PLC0415 # the same
    from site_builder.places import assets_folder  # noqa: PLC0415
    from site_builder.renderers import report as render  # noqa: PLC0415

    style = "".join((assets_folder() / f"{name}.css").read_text("utf-8") for name in STYLES)
    return render.page(week, style, Now(now, settings.zone), settings.url or "")


def plain(week: Week, settings: Settings, name: str) -> bytes:
    """The same as text; it says where the page is, if there is one."""
    from site_builder.renderers.report_text import text  # noqa: PLC0415 # the same

    url = f"{settings.url.rstrip('/')}/{name}" if settings.url and (settings.www / name).exists() else ""
    return text(week, url).encode("utf-8", "replace")


def write(path: Path, content: bytes, within_site: bool) -> None:
    """Put it there whole or not at all; what is no plain file, such as a pipe, is written to."""
    from site_builder.sources import files  # noqa: PLC0415 # the same

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
