"""`gpuboard export`: history for notebooks and spreadsheets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import click

from site_builder.bookings.command_common import No
from site_builder.client import completion
from site_builder.core.command_options import Failure, tell, with_loaded

if TYPE_CHECKING:
    from site_builder.config.conf_file import Loaded
    from site_builder.history.export_rows import Called, Row
    from site_builder.history.reader import Past

# Seconds of one host that are read at once.
AT_ONCE = {60: 3600, 300: 86400, 3600: 32 * 86400}
WORDS = {60: "minutes", 300: "steps of 5 minutes", 3600: "hours"}
LINES = 1000  # that are written at once


class Span(NamedTuple):
    """The slots that begin from one moment on and before another, each so many seconds long."""

    since: int
    until: int
    step: int

    def parts(self) -> Iterator[tuple[int, int]]:
        """From when to when it is read at once."""
        covers = AT_ONCE[self.step]
        edges = [self.since, *range(self.since // covers * covers + covers, self.until, covers), self.until]
        return zip(edges, edges[1:])


@click.command()
@click.option("--since", metavar="TIME", required=True, help="From then on: 7d, yesterday, mon, 2026-10-01.")
@click.option("--until", metavar="TIME", help="Up to then.  [default: now]")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Only this host; may be repeated.",
    shell_complete=completion.hosts,
)
@click.option(
    "--step",
    type=click.Choice(["60", "300", "3600"]),
    help="Seconds of a row.  [default: as fine as it is kept that far back]",
)
@click.option("--csv", "as_csv", is_flag=True, help="As CSV.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list, with one row to a line.")
@with_loaded
def export(  # noqa: PLR0913, PLR0917 # one for each option
    loaded: Loaded,
    since: str,
    until: str | None,
    hosts: Sequence[str],
    step: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Write what state/history.db on the web host has of each GPU.

    A row is a GPU in a slot of time: its state, use, memory, temperature and power, who was on it and who had booked
    it. Where nothing was seen there is no row; if there is none at all, exit 1. Minutes are kept for two days, steps of
    5 minutes for five weeks, hours for two years. docs/history.md names the columns, and reads them in a notebook.

    \b
    gpuboard export --since 7d --csv > week.csv
    gpuboard export --since 2026-10-01 --until '2026-10-31 24:00' --json
    """
    if as_csv == as_json:
        message = "say --csv or --json"
        raise click.UsageError(message)
    from site_builder.history import export as history_export  # noqa: PLC0415 # --help needs none of it
    from site_builder.history.reader import Past  # noqa: PLC0415

    settings = loaded.settings
    span = asked(since, until, step, datetime.now(settings.zone))
    past = Past(settings.state, settings.zone)
    try:
        called, names = known(loaded, past, hosts)
        rows = (row for host in names for row in rows_of(past, host, span, called, settings.zone))
        first = list(islice(rows, 1))
        every = chain(first, rows)
        write(history_export.csv(every) if as_csv else history_export.json(every))
    finally:
        past.close()
    if not first:
        raise No("nothing was seen in that time")


def asked(since: str, until: str | None, step: str | None, now: datetime) -> Span:
    """What is meant; where it is not kept that finely, that is told, and it is coarser."""
    from site_builder.core.timeparse import past_moments  # noqa: PLC0415 # --help needs none of it
    from site_builder.core.timeparse.durations import Unclear  # noqa: PLC0415
    from site_builder.history.reader import DAYS, step_for  # noqa: PLC0415

    told = []
    for name, text, end in (("since", since, False), ("until", until or "now", True)):
        try:
            told.append(past_moments.moment(text, now, end=end).timestamp())
        except Unclear as why:
            message = f'--{name}: "{text}" {why}'
            raise click.UsageError(message) from None
    if told[0] >= told[1]:
        message = f"--until {until or 'now'} is not after --since {since}"
        raise click.UsageError(message)
    finest = step_for(told[0], now.timestamp())
    wanted = int(step or finest)
    if wanted < finest:
        tell(f"{WORDS[wanted]} are kept for {DAYS[wanted]} days: since {since} these are {WORDS[finest]}")
    chosen = max(wanted, finest)
    # a slot counts where it begins: what one export ends with, the next does not begin with
    first, last = (int(-(-one // chosen)) * chosen for one in told)
    return Span(first, last, chosen)


def known(loaded: Loaded, past: Past, hosts: Sequence[str]) -> tuple[Called, list[str]]:
    """What people are called, and which hosts are meant; in one sentence why there is nothing."""
    from site_builder.bookings.data_files import Names  # noqa: PLC0415
    from site_builder.core.names import natural  # noqa: PLC0415
    from site_builder.core.people import People  # noqa: PLC0415
    from site_builder.history.export_rows import Called  # noqa: PLC0415
    from site_builder.usage.commands import checked, none_here  # noqa: PLC0415 # --help needs none of it

    try:
        if not past.exists:
            raise Failure(none_here(loaded, past))
    except OSError as error:
        raise Failure(f"{past.path.absolute()} could not be read: {error.strerror}") from None
    there = sorted(checked(past, past.hosts), key=natural)
    for name in hosts:
        if name not in there:
            more = f" and {len(there) - 20} more" if len(there) > 20 else ""
            raise Failure(f"history knows no host {name!r}: it has {', '.join(there[:20]) or 'none yet'}{more}")
    names = checked(past, past.people)
    aliases, problems = Names(loaded.settings.data, None).aliases.read()
    for problem in problems:
        tell(f"{problem.where}: {problem.what}")
    return Called(People(dict(aliases), names), names), list(dict.fromkeys(hosts or there))


def rows_of(past: Past, host: str, span: Span, called: Called, zone: tzinfo) -> Iterator[Row]:
    """The rows of a host, of which few are in memory at a time."""
    from site_builder.history import export_rows  # noqa: PLC0415
    from site_builder.usage.commands import checked  # noqa: PLC0415 # as above

    for since, until in span.parts():
        if span.step == 60:
            minutes = checked(past, partial(past.minutes, host, 60, until - 1, since))
            yield from export_rows.of_minutes(minutes, called, zone)
        else:
            drawn = checked(past, partial(past.series, host, since, until, span.step))
            yield from export_rows.of_slots(host, since, span.step, drawn.gpus, called, zone)


def write(lines: Iterator[str]) -> None:
    """To stdout, in UTF-8 wherever that leads to."""
    out = sys.stdout.buffer
    try:
        while some := "".join(islice(lines, LINES)):
            out.write(some.encode())
        out.flush()
    except BrokenPipeError:  # whoever reads it has enough
        raise
    except OSError as error:
        raise Failure(f"the rows could not be written: {error.strerror}") from None
