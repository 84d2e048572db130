"""`gpuboard export`: history for notebooks and spreadsheets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from site_builder.client import completion
from site_builder.core.command_options import CommandError, NegativeResultError, print_message, with_loaded_settings

if TYPE_CHECKING:
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.history.export import ExportRow, PeopleNames
    from site_builder.history.reader import HistoryReader

# Seconds of one host that are read at once.
READ_LENGTH_S = {60: 3600, 300: 86400, 3600: 32 * 86400}
STEP_NAMES = {60: "minutes", 300: "steps of 5 minutes", 3600: "hours"}
LINES_PER_WRITE = 1000  # that are written at once


class ExportPeriod(NamedTuple):
    """The slots that begin from one moment on and before another, each so many seconds long."""

    since: int
    until: int
    step: int

    def split(self) -> Iterator[tuple[int, int]]:
        """From when to when it is read at once."""
        covers = READ_LENGTH_S[self.step]
        edges = [self.since, *range(self.since // covers * covers + covers, self.until, covers), self.until]
        return zip(edges, edges[1:])


CheckedResult = TypeVar("CheckedResult")


@click.command()
@click.option("--since", metavar="TIME", required=True, help="From then on: 7d, yesterday, mon, 2026-10-01.")
@click.option("--until", metavar="TIME", help="Up to then.  [default: now]")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Only this host; may be repeated.",
    shell_complete=completion.complete_hosts,
)
@click.option(
    "--step",
    type=click.Choice(["60", "300", "3600"]),
    help="Seconds of a row.  [default: as fine as it is kept that far back]",
)
@click.option("--csv", "as_csv", is_flag=True, help="As CSV.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list, with one row to a line.")
@with_loaded_settings
def export(  # one for each option
    loaded: LoadedSettings,
    since: str,
    until: str | None,
    hosts: Sequence[str],
    step: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Export the history of each GPU as CSV or JSON.

    It reads state/history.db on the web host. A row is a GPU in a slot of time: its state, use, memory, temperature and power, who was on it and who had booked
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
    from site_builder.history.reader import HistoryReader  # noqa: PLC0415

    settings = loaded.settings
    span = parse_export_period(since, until, step, datetime.now(settings.zone))
    past = HistoryReader(settings.state, settings.zone)
    try:
        called, names = load_people_and_hosts(loaded, past, hosts)
        rows = (row for host in names for row in read_export_rows(past, host, span, called, settings.zone))
        first = list(islice(rows, 1))
        every = chain(first, rows)
        write_export(history_export.render_export_csv(every) if as_csv else history_export.render_export_json(every))
    finally:
        past.close()
    if not first:
        raise NegativeResultError("nothing was seen in that time")


def parse_export_period(since: str, until: str | None, step: str | None, now: datetime) -> ExportPeriod:
    """What is meant; where it is not kept that finely, that is told, and it is coarser."""
    from site_builder.core.timeparse import moments  # noqa: PLC0415 # --help needs none of it
    from site_builder.core.timeparse.moments import UnclearTimeError  # noqa: PLC0415
    from site_builder.history.reader import RETENTION_DAYS, choose_finest_step  # noqa: PLC0415

    told = []
    for name, text, end in (("since", since, False), ("until", until or "now", True)):
        try:
            told.append(moments.parse_past_moment(text, now, end=end).timestamp())
        except UnclearTimeError as why:
            message = f'--{name}: "{text}" {why}'
            raise click.UsageError(message) from None
    if told[0] >= told[1]:
        message = f"--until {until or 'now'} is not after --since {since}"
        raise click.UsageError(message)
    finest = choose_finest_step(told[0], now.timestamp())
    wanted = int(step or finest)
    if wanted < finest:
        print_message(
            f"{STEP_NAMES[wanted]} are kept for {RETENTION_DAYS[wanted]} days: since {since} these are {STEP_NAMES[finest]}"
        )
    chosen = max(wanted, finest)
    # a slot counts where it begins: what one export ends with, the next does not begin with
    first, last = (int(-(-one // chosen)) * chosen for one in told)
    return ExportPeriod(first, last, chosen)


def load_people_and_hosts(
    loaded: LoadedSettings, past: HistoryReader, hosts: Sequence[str]
) -> tuple[PeopleNames, list[str]]:
    """What people are called, and which hosts are meant; in one sentence why there is nothing."""
    from site_builder.core.names import natural_sort_key  # noqa: PLC0415
    from site_builder.core.people import PeopleDirectory  # noqa: PLC0415
    from site_builder.fleet.gpu_models import NameFiles  # noqa: PLC0415
    from site_builder.history.export import PeopleNames  # noqa: PLC0415

    try:
        if not past.exists:
            raise CommandError(explain_missing_history(loaded, past))
    except OSError as error:
        raise CommandError(f"{past.path.absolute()} could not be read: {error.strerror}") from None
    there = sorted(check_query(past, past.list_hosts), key=natural_sort_key)
    for name in hosts:
        if name not in there:
            more = f" and {len(there) - 20} more" if len(there) > 20 else ""
            raise CommandError(f"history knows no host {name!r}: it has {', '.join(there[:20]) or 'none yet'}{more}")
    names = check_query(past, past.list_people)
    aliases, problems = NameFiles(loaded.settings.data, None).alias_file.read()
    for problem in problems:
        print_message(f"{problem.where}: {problem.what}")
    return PeopleNames(PeopleDirectory(dict(aliases), names), names), list(dict.fromkeys(hosts or there))


def read_export_rows(
    past: HistoryReader, host: str, span: ExportPeriod, called: PeopleNames, zone: tzinfo
) -> Iterator[ExportRow]:
    """The rows of a host, of which few are in memory at a time."""
    from site_builder.history import export as history_export  # noqa: PLC0415

    for since, until in span.split():
        if span.step == 60:
            minutes = check_query(past, partial(past.read_minutes, host, 60, until - 1, since))
            yield from history_export.build_minute_rows(minutes, called, zone)
        else:
            drawn = check_query(past, partial(past.read_host, host, since, until, span.step))
            yield from history_export.build_bucket_rows(host, since, span.step, drawn.gpus, called, zone)


def write_export(lines: Iterator[str]) -> None:
    """To stdout, in UTF-8 wherever that leads to."""
    out = sys.stdout.buffer
    try:
        while some := "".join(islice(lines, LINES_PER_WRITE)):
            out.write(some.encode())
        out.flush()
    except BrokenPipeError:  # whoever reads it has enough
        raise
    except OSError as error:
        raise CommandError(f"the rows could not be written: {error.strerror}") from None


def check_query(past: HistoryReader, ask: Callable[[], CheckedResult]) -> CheckedResult:
    """An answer, unless the file could not be read."""
    answer = ask()
    if past.problem:
        raise CommandError(f"{past.path.absolute()}: {past.problem.what}")
    return answer


def explain_missing_history(loaded: LoadedSettings, past: HistoryReader) -> str:
    """Why there is no history, and what to do."""
    given = loaded.given
    local = any(given[name].origin != "default" for name in ("GPUBOARD_DATA", "GPUBOARD_STATE"))
    if loaded.settings.url and not local:
        return f"history is kept where the board is built: run this on the web host of {loaded.settings.url}"
    return f"there is no history yet: `gpuboard build` begins {past.path.absolute()}, or --state names another folder"
