"""`gpuboard stats`: list who had how many GPU-hours."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import click
import orjson

from site_builder.config.settings import LoadedSettings, Settings
from site_builder.core import command_options, terminal_text
from site_builder.core.command_options import CommandError, NegativeResultError, with_loaded_settings
from site_builder.core.formatting import MONTH_NAMES
from site_builder.core.people import PeopleDirectory
from site_builder.core.terminal_text import fit_text, flatten_terminal_text, measure_width, truncate_terminal_text
from site_builder.core.timeparse import dates
from site_builder.fleet.gpu_models import NameFiles
from site_builder.history.commands import check_history_command_query, explain_missing_history
from site_builder.history.export import CsvCell, format_csv_lines
from site_builder.history.reader import HistoryReader, read_first_history_day, read_history_gpu_set_changes
from site_builder.usage import totals
from site_builder.usage.totals import GROUPINGS, UNUSED_PARTS, UsageTable, UsageTotals, compute_usage_percent_seen

MONTH_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}")
STATS_SCHEMA = 1
PERSON_COLUMNS = ("used", "held", "booked", "unused")
PLACE_COLUMNS = (*PERSON_COLUMNS, "free", "seen")
MIN_NAME_WIDTH = 10
COLUMN_GAP = "  "
# Sums above have no decimals: they do not matter, and would not fit.
MANY_HOURS = 100_000
# Decimals for programs: a person's share of a minute is exact to the last of them.
EXACT_DIGITS = 6


class StatsDays(NamedTuple):
    first: date
    last: date
    label: str


class UsageStats(NamedTuple):
    """Table of GPU-hours, and its days, including the last."""

    table: UsageTable
    first: date
    last: date
    zone: str


def parse_stats_date_option(_: click.Context, option: click.Parameter, text: str | None) -> date | None:
    """Parse a day like 2026-10-31, or a month like 2026-10 as its first day."""
    if text is None:
        return None
    what, example, day = "day", "2026-10-31", text
    if option.name == "month":
        what, example, day = "month", "2026-10", f"{text}-01" if MONTH_PATTERN.fullmatch(text) else ""
    parsed = dates.parse_day(day)
    if parsed is None:
        raise click.BadParameter(f"'{text}' is not a {what} from 1970 to 2200: write it like {example}")
    return parsed


@click.command()
@click.option(
    "--month", metavar="YYYY-MM", callback=parse_stats_date_option, help="Month.  [default: this month so far]"
)
@click.option("--since", metavar="DAY", callback=parse_stats_date_option, help="First day: 2026-10-01.")
@click.option("--until", metavar="DAY", callback=parse_stats_date_option, help="Last day.  [default: today]")
@click.option("--by", type=click.Choice(GROUPINGS), default="person", show_default=True, help="What each line counts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@with_loaded_settings
def stats(
    loaded: LoadedSettings,
    month: date | None,
    since: date | None,
    until: date | None,
    by: str,
    as_json: bool,
    as_csv: bool,
) -> None:
    """List GPU-hours by person, model, host or month.

    Reads state/history.db on the web host. used: with a process of theirs, shared GPUs in equal parts; held: part
    of used, idle for 2 h or longer; booked: reserved; unused: part of booked, not used by the person who booked.
    Names are merged by aliases.csv; days are those of GPUBOARD_ZONE. docs/people.md explains each number. Exit 1 if
    there are no data for these days.

    \b
    gpuboard stats
    gpuboard stats --month 2026-10 --csv > october.csv
    gpuboard stats --since 2026-10-01 --until 2026-12-31 --by month
    """
    if as_json and as_csv:
        raise click.UsageError("use either --json or --csv")
    now = time.time()
    settings = loaded.settings
    days = choose_stats_days(month, since, until, datetime.fromtimestamp(now, settings.zone).date())
    history = HistoryReader(settings.state, settings.zone)
    try:
        if not history.exists:
            raise CommandError(explain_missing_history(loaded, history))
        usage_stats = read_usage_stats(history, settings, days, by, now)
    except OSError as error:
        raise CommandError(f"{history.path.absolute()} could not be read: {error.strerror}") from None
    finally:
        history.close()
    if as_json:
        click.echo(render_usage_stats_json(usage_stats))
    elif as_csv:
        click.echo("".join(render_usage_stats_csv(usage_stats)), nl=False)
    else:
        lines = render_usage_stats_table(usage_stats, terminal_text.find_terminal_width())
        click.echo("\n".join(map(terminal_text.replace_unencodable, lines)))


def choose_stats_days(month: date | None, since: date | None, until: date | None, today: date) -> StatsDays:
    """Return the days that the options mean; refuse those of the future."""
    if month and (since or until):
        raise click.UsageError("use either --month, or --since and --until")
    if until and not since:
        raise click.UsageError("--until needs --since")
    first = since or month or today.replace(day=1)
    label = f"{first:%Y-%m}" if month else str(first)
    if first > today:
        raise CommandError(f"{label} is in the future: today is {today}")
    if month:
        return StatsDays(first, min(today, (month + timedelta(days=31)).replace(day=1) - timedelta(days=1)), label)
    last = min(today, until or today)
    if last < first:
        raise click.UsageError(f"--until {last} is before --since {first}")
    return StatsDays(first, last, label if first == last else f"{first} to {last}")


def read_usage_stats(history: HistoryReader, settings: Settings, days: StatsDays, by: str, now: float) -> UsageStats:
    first, last, label = days
    usage = check_history_command_query(history, lambda: history.read_daily_usage(first, last, now))
    first_day = check_history_command_query(history, lambda: read_first_history_day(history))
    if not usage.seen:
        since = "nothing is in it yet" if first_day is None else f"it begins on {first_day}"
        raise NegativeResultError(f"there is no history of {label} in {history.path.absolute()}: {since}")
    changes = check_history_command_query(history, lambda: read_history_gpu_set_changes(history))
    people = PeopleDirectory(NameFiles(settings.data, None).read_names()[0], {row.person for row in usage.shares})
    if first_day and first_day > first:
        command_options.print_command_message(f"history begins on {first_day}: nothing before that is included")
        first = first_day
    unseen = totals.count_unseen_usage_by_month(changes, usage.seen, (first, last), settings.zone, now)
    sums_by_name, sums_by_place = totals.total_daily_usage(usage.shares, usage.seen, unseen.items())
    table = totals.build_usage_totals_table(sums_by_name, sums_by_place, people, by)
    return UsageStats(table, first, last, str(settings.zone))


# The table


def render_usage_stats_table(stats: UsageStats, width: int | None = None) -> list[str]:
    """Render the table for a terminal; without a width nothing is cut."""
    table, total = stats.table, stats.table.total
    columns = PERSON_COLUMNS if table.by == "person" else PLACE_COLUMNS
    titles = ["monitored" if name == "seen" else name for name in columns]
    digits = 0 if totals.usage_total_to_hours(total.seen) >= MANY_HOURS else 1
    seen = compute_usage_percent_seen(total)
    coverage = "" if seen is None else f"; monitored {seen} % of the time"
    rows = [
        (table.by, (*titles, "of all") if columns is PLACE_COLUMNS else titles),
        *((flatten_terminal_text(row.name), format_stats_cells(row.sums, columns, digits)) for row in table.rows),
        ("total", format_stats_cells(total, columns, digits)),
    ]
    # what is added to used time, up to all that was monitored; and what was not
    remainder = {f"+ {label}": getattr(total, name) for name, label in UNUSED_PARTS.items()}
    remainder |= {"= monitored": total.seen, **({"including conflicts": total.conflict} if total.conflict else {})}
    remainder["not monitored"] = total.unseen
    lines = [
        f"GPU-hours, {format_stats_day_range(stats.first, stats.last)}{coverage}",
        "",
        *align_stats_table_rows(rows, width),
        "",
        *align_stats_table_rows(
            [(name, (format_stats_hours(units, digits),)) for name, units in remainder.items()], width
        ),
    ]
    return lines if width is None else [truncate_terminal_text(line, width) for line in lines]


def align_stats_table_rows(rows: Sequence[tuple[str, Sequence[str]]], width: int | None) -> list[str]:
    """Put cells into columns; names are cut where there is no room for them."""
    widths = [max(map(len, column)) for column in zip(*(cells for _, cells in rows))]
    name_width = max(measure_width(name) for name, _ in rows)
    if width is not None:
        cells_width = sum(len(COLUMN_GAP) + cell_width for cell_width in widths)
        name_width = min(name_width, max(MIN_NAME_WIDTH, width - cells_width))
    return [
        COLUMN_GAP.join([fit_text(name, name_width), *map(str.rjust, cells, widths)]).rstrip() for name, cells in rows
    ]


def format_stats_day_range(first: date, last: date) -> str:
    """Format `3 Nov 2026`, or `1 to 16 Nov 2026`, or `28 Oct 2026 to 3 Nov 2026`."""
    end = f"{last.day} {MONTH_NAMES[last.month - 1]} {last.year}"
    if first == last:
        return end
    if (first.year, first.month) == (last.year, last.month):
        return f"{first.day} to {end}"
    return f"{first.day} {MONTH_NAMES[first.month - 1]} {first.year} to {end}"


def format_stats_cells(sums: UsageTotals, columns: Sequence[str], digits: int) -> tuple[str, ...]:
    cells = tuple(format_stats_hours(getattr(sums, name), digits) for name in columns)
    return cells if columns is PERSON_COLUMNS else (*cells, totals.format_usage_percent_seen(sums, "?"))


def format_stats_hours(units: int, digits: int) -> str:
    return f"{totals.usage_total_to_hours(units):.{digits}f}"


# For spreadsheets and programs


def render_usage_stats_csv(stats: UsageStats) -> Iterator[str]:
    """Render rows; by person, unused time follows: the sum of `hours` without `unseen` is all that was seen."""
    table, total = stats.table, stats_totals_to_hours(stats.table.total)
    rows: list[tuple[CsvCell, ...]]
    if table.by != "person":
        rows = [(row.name, *stats_totals_to_hours(row.sums).values()) for row in table.rows]
        return format_csv_lines((table.by, *UsageTotals._fields), rows)
    hours_by_row = [(row.name, stats_totals_to_hours(row.sums)) for row in table.rows]
    rows = [(name, "person", *(hours[column] for column in PERSON_COLUMNS)) for name, hours in hours_by_row]
    rows += [("", name, total[name], None, None, None) for name in (*UNUSED_PARTS, "unseen")]
    return format_csv_lines(("person", "kind", "hours", "held", "booked", "unused"), rows)


def render_usage_stats_json(stats: UsageStats) -> bytes:
    """Render all of it; docs/stats.schema.json describes it."""
    table = stats.table
    rows: list[dict[str, Any]] = []
    for row in table.rows:
        hours = stats_totals_to_hours(row.sums)
        if table.by == "person":
            rows.append({"name": row.name, "names": row.names, **{name: hours[name] for name in PERSON_COLUMNS}})
        else:
            rows.append({"name": row.name, **hours})
    document = {
        "schema": STATS_SCHEMA,
        "since": stats.first.isoformat(),
        "until": stats.last.isoformat(),
        "zone": stats.zone,
        "by": table.by,
        "rows": rows,
        "total": stats_totals_to_hours(table.total),
        "seen_percent": compute_usage_percent_seen(table.total),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def stats_totals_to_hours(sums: UsageTotals) -> dict[str, float]:
    return {name: round(totals.usage_total_to_hours(units), EXACT_DIGITS) for name, units in sums._asdict().items()}
