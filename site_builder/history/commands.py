"""`gpuboard export`: history for notebooks and spreadsheets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import partial
from itertools import chain, islice
from typing import TypeVar

import click

from site_builder.config.settings import LoadedSettings
from site_builder.core.command_options import (
    CommandError,
    NegativeResultError,
    print_command_message,
    with_loaded_settings,
)
from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory, PeopleNames
from site_builder.core.timeparse import moments
from site_builder.core.timeparse.moments import UnclearTimeError
from site_builder.fleet.gpu_models import NameFiles
from site_builder.history import export as history_export
from site_builder.history.buckets import CHUNK_LENGTH_S, RETENTION_DAYS, choose_finest_bucket_step
from site_builder.history.export import ExportRow
from site_builder.history.reader import HistoryReader
from site_builder.snapshots.completion import complete_hosts

STEP_NAMES = {60: "minutes", 300: "steps of 5 minutes", 3600: "hours"}
LINES_PER_WRITE = 1000
CheckedResult = TypeVar("CheckedResult")
# Buckets that begin from one moment on and before another, and how many seconds each has.
ExportPeriod = tuple[int, int, int]


@click.command()
@click.option("--since", metavar="TIME", required=True, help="Start: 7d, yesterday, mon, 2026-10-01.")
@click.option("--until", metavar="TIME", help="End.  [default: now]")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Only this host; may be repeated.",
    shell_complete=complete_hosts,
)
@click.option(
    "--step",
    type=click.Choice(["60", "300", "3600"]),
    help="Seconds per row.  [default: the finest kept]",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one row per line.")
@with_loaded_settings
def export(
    loaded: LoadedSettings,
    since: str,
    until: str | None,
    hosts: Sequence[str],
    step: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Export the history of each GPU as CSV or JSON.

    Reads state/history.db on the web host. Each row is one GPU in one time slot: state, use, memory, temperature,
    power, users and bookings. Times without data have no row; exit 1 if there are none at all. One-minute rows are
    kept for two days, 5-minute rows for five weeks, hourly rows for two years. docs/history.md describes the
    columns.

    \b
    gpuboard export --since 7d --csv > week.csv
    gpuboard export --since 2026-10-01 --until '2026-10-31 24:00' --json
    """
    if as_csv == as_json:
        message = "use either --csv or --json"
        raise click.UsageError(message)
    settings = loaded.settings
    period = parse_export_period(since, until, step, datetime.now(settings.zone))
    history = HistoryReader(settings.state, settings.zone)
    try:
        people_names, host_names = load_people_for_export_command(loaded, history, hosts)
        rows = (
            row
            for host in host_names
            for row in read_export_command_rows(history, host, period, people_names, settings.zone)
        )
        first = list(islice(rows, 1))
        all_rows = chain(first, rows)
        render = history_export.render_export_csv if as_csv else history_export.render_export_json
        write_export_command_output(render(all_rows))
    finally:
        history.close()
    if not first:
        raise NegativeResultError("nothing was recorded in that time")


def parse_export_period(since: str, until: str | None, step: str | None, now: datetime) -> ExportPeriod:
    """Parse the options; where history is coarser than wanted, say so and take that."""
    edges = []
    for name, text, end in (("since", since, False), ("until", until or "now", True)):
        try:
            edges.append(moments.parse_past_moment(text, now, end=end).timestamp())
        except UnclearTimeError as error:
            message = f'--{name}: "{text}" {error}'
            raise click.UsageError(message) from None
    start, end_time = edges
    if start >= end_time:
        message = f"--until {until or 'now'} is not after --since {since}"
        raise click.UsageError(message)
    finest = choose_finest_bucket_step(start, now.timestamp())
    wanted = int(step or finest)
    if wanted < finest:
        print_command_message(
            f"{STEP_NAMES[wanted]} are kept for {RETENTION_DAYS[wanted]} days: "
            f"since {since} these are {STEP_NAMES[finest]}"
        )
    chosen = max(wanted, finest)
    # a bucket counts where it begins, so that the next export does not begin with the last bucket of this one
    return int(-(-start // chosen)) * chosen, int(-(-end_time // chosen)) * chosen, chosen


def load_people_for_export_command(
    loaded: LoadedSettings, history: HistoryReader, hosts: Sequence[str]
) -> tuple[PeopleNames, list[str]]:
    """Load the names of people and the hosts that are asked for, or explain why there is nothing."""
    try:
        if not history.exists:
            raise CommandError(explain_missing_history(loaded, history))
    except OSError as error:
        raise CommandError(f"{history.path.absolute()} could not be read: {error.strerror}") from None
    known_hosts = sorted(check_history_command_query(history, history.list_hosts), key=natural_sort_key)
    for host in hosts:
        if host not in known_hosts:
            shown = ", ".join(known_hosts[:20]) or "none yet"
            omitted = f" and {len(known_hosts) - 20} more" if len(known_hosts) > 20 else ""
            raise CommandError(f"history has no host {host!r}: it has {shown}{omitted}")
    names = check_history_command_query(history, history.list_people)
    aliases, problems = NameFiles(loaded.settings.data, None).alias_file.read()
    for problem in problems:
        print_command_message(f"{problem.where}: {problem.what}")
    return PeopleNames(PeopleDirectory(dict(aliases), names), names), list(dict.fromkeys(hosts or known_hosts))


def read_export_command_rows(
    history: HistoryReader, host: str, period: ExportPeriod, people_names: PeopleNames, zone: tzinfo
) -> Iterator[ExportRow]:
    """Yield the rows of a host, with few of them in memory at a time."""
    first, last, step = period
    length = CHUNK_LENGTH_S[step]
    edges = [first, *range(first // length * length + length, last, length), last]
    for since, until in zip(edges, edges[1:]):
        if step == 60:
            samples = check_history_command_query(history, partial(history.read_minutes, host, 60, until - 1, since))
            yield from history_export.build_export_minute_rows(samples, people_names, zone)
        else:
            host_history = check_history_command_query(history, partial(history.read_host, host, since, until, step))
            yield from history_export.build_export_bucket_rows(host_history, people_names, zone)


def write_export_command_output(lines: Iterator[str]) -> None:
    """Write to stdout, in UTF-8 whatever the locale."""
    out = sys.stdout.buffer
    try:
        while text := "".join(islice(lines, LINES_PER_WRITE)):
            out.write(text.encode())
        out.flush()
    except BrokenPipeError:  # the reader has enough
        raise
    except OSError as error:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 # or Python tries the rest again at its end
            os.dup2(nowhere.fileno(), out.fileno())
        raise CommandError(f"the rows could not be written: {error.strerror}") from None


def check_history_command_query(history: HistoryReader, run_query: Callable[[], CheckedResult]) -> CheckedResult:
    """Return the result of a query, unless the file could not be read."""
    result = run_query()
    if history.problem:
        raise CommandError(f"{history.path.absolute()}: {history.problem.what}")
    return result


def explain_missing_history(loaded: LoadedSettings, history: HistoryReader) -> str:
    is_local = any(loaded.given[name].origin != "default" for name in ("GPUBOARD_DATA", "GPUBOARD_STATE"))
    if loaded.settings.url and not is_local:
        return f"history is on the machine that builds the board: run this on the web host of {loaded.settings.url}"
    return (
        f"there is no history yet: `gpuboard build` creates {history.path.absolute()}; for another folder use --state"
    )
