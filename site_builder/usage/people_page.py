"""Show who has how much now, had on average, and how many GPU-hours in each month: users.html."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import date, datetime, tzinfo
from typing import NamedTuple
from urllib.parse import quote

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.html import build_time_html, load_compact_html_template
from site_builder.history.rollups import RollupWindow
from site_builder.history.usage_sums import UNITS_PER_MINUTE
from site_builder.usage.totals import (
    NO_USAGE,
    UNKNOWN,
    UNUSED_PARTS,
    FleetBalance,
    PersonTotals,
    UsageRow,
    UsageTable,
    UsageTotals,
    add_usage_totals,
    compute_usage_percent_seen,
    usage_total_to_hours,
)

# Hosts of one person that are named; the others are counted.
MAX_HOSTS = 12
UNUSED_PART_LABELS = {name: label.capitalize() for name, label in UNUSED_PARTS.items()}
PERSON_COLUMN_LABELS = {"used": "Used", "held": "Held idle", "booked": "Booked", "unused": "Booked, unused"}
PLACE_COLUMN_LABELS = {**PERSON_COLUMN_LABELS, "free": "Free"}
FULL_MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


class PeopleMonthTables(NamedTuple):
    """Month since a day and up to a moment, by person, model and host."""

    first: date
    since: date
    until: float
    by_person: UsageTable
    by_model: UsageTable
    by_host: UsageTable


class PeoplePageContent(NamedTuple):
    """Content of the page; `tables` are the GPU-hours, as HTML."""

    people: Sequence[PersonTotals]
    balance: FleetBalance
    windows: Sequence[RollupWindow]
    are_users_shown: bool
    problem: str
    tables: str


class PersonRow(NamedTuple):
    """What a person has now, and had on average over each window; `link` is empty if the search cannot find them."""

    name: str
    link: str
    means: Sequence[str]
    gpus: str = "0"
    memory: str = ""
    processes: str = ""
    hosts: Sequence[tuple[str, int]] = ()
    omitted_hosts: int = 0


class PeopleTableRow(NamedTuple):
    """Row of numbers; `link` is empty if its name leads nowhere."""

    name: str
    link: str
    cells: Sequence[str]


class PeopleTable(NamedTuple):
    title: str
    first_head: str
    groups: Sequence[tuple[str, int]]
    heads: Sequence[str]
    rows: Sequence[PeopleTableRow]
    foot: Sequence[PeopleTableRow] = ()


def render_people_page(content: PeoplePageContent, version: str, now: Now) -> bytes:
    text = load_compact_html_template("users.html").render(
        version=version,
        built=build_time_html(now, "minutes"),
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        are_users_shown=content.are_users_shown,
        problem=content.problem,
        windows=[format_people_window(window, now) for window in content.windows],
        people=[build_person_row(person) for person in content.people],
        balance_rows=build_people_balance_rows(content.balance),
        tables=content.tables,
    )
    return text.encode("utf-8", "replace")


def render_month_tables(
    months: Sequence[PeopleMonthTables], are_users_shown: bool, held_after: float, hosts: Container[str], zone: tzinfo
) -> str:
    """Render the GPU-hours of months, the newest first; `hosts` are those that have a page."""
    two = months[:2]
    tables = []
    if two:
        groups = [(format_people_month_heading(month, zone), len(PLACE_COLUMN_LABELS) + 1) for month in two]
        tables = [
            *([build_person_table(two, zone)] if are_users_shown else []),
            build_people_balance_table(two, zone),
            build_people_place_table("By model", "Model", [month.by_model for month in two], groups),
            build_people_place_table("By host", "Host", [month.by_host for month in two], groups, hosts),
            build_month_table(months),
        ]
    return load_compact_html_template("sums.html").render(tables=tables, held=formatting.format_duration(held_after))


# Now, and on average


def format_people_window(window: RollupWindow, now: Now) -> dict[str, str]:
    """Format the name, start and coverage of a window: `7 days`, `10 Nov 12:00` and `98 %`, rounded down."""
    hours = round((window.until - window.since) / formatting.HOUR)
    start = datetime.fromtimestamp(window.since, now.zone)
    day = "" if start.date() == now.local.date() else f"{formatting.DAY_NAMES[start.weekday()]} "
    if now.epoch - window.since > 6 * formatting.DAY:
        day = f"{start.day} {formatting.MONTH_NAMES[start.month - 1]} "
    minutes = (window.until - window.since) // formatting.MINUTE
    return {
        "name": f"{round(hours / 24)} days" if hours > 36 else "24 h" if hours > 12 else "2 h",
        "start": f"{day}{start:%H:%M}",
        "coverage": f"{min(100, window.seen_minutes * 100 // minutes)} %" if minutes else UNKNOWN,
    }


def build_person_row(person: PersonTotals) -> PersonRow:
    usage = person.usage
    row = PersonRow(person.name, build_people_search_link(person.name), format_people_means(person.mean_gpus))
    if not usage.process_count:
        return row
    gpus = usage.gpu_units / UNITS_PER_MINUTE
    memory = UNKNOWN
    if usage.unknown_memory_count < usage.process_count:
        # with some processes unknown, the sum is a lower limit
        memory = f"{'≥ ' if usage.unknown_memory_count else ''}{formatting.format_size(usage.memory_mib)}"
    return row._replace(
        gpus=f"{gpus:.0f}" if gpus == int(gpus) else format_people_decimal(gpus),
        memory=memory,
        processes=str(usage.process_count),
        hosts=person.gpus_by_host[:MAX_HOSTS],
        omitted_hosts=len(person.gpus_by_host[MAX_HOSTS:]),
    )


def format_people_decimal(number: float) -> str:
    """Format a number with one decimal; a small one is never 0."""
    return "<0.1" if 0 < number < 0.05 else f"{number:,.1f}"


def format_people_means(means: Sequence[float | None]) -> list[str]:
    return [UNKNOWN if mean is None else format_people_decimal(mean) for mean in means]


def build_people_balance_rows(balance: FleetBalance) -> list[dict[str, object]]:
    """Build the rows below the people: all of them, and the GPUs that nobody uses."""
    titles = {"used": "All people", **UNUSED_PART_LABELS, "seen": "All GPUs that are seen"}
    if balance.now["unseen"]:
        titles["unseen"] = "On hosts of which nothing is heard"
    unknown = [None] * len(balance.means.get("seen", ()))
    return [
        {
            "id": name,
            "title": title,
            "gpus": balance.now[name],
            "means": format_people_means(balance.means.get(name, unknown)),
        }
        for name, title in titles.items()
    ]


def build_people_search_link(name: str) -> str:
    """Link to the search for a person; a name that the search cannot find leads nowhere."""
    if '"' in name or not name.strip():
        return ""
    query = f'user:"{name}"' if len(name.split()) > 1 or name != name.strip() else f"user:{name}"
    return f"index.html?q={quote(query, safe='', errors='replace')}"


# GPU-hours


def format_people_month_heading(month: PeopleMonthTables, zone: tzinfo) -> str:
    """Format `October 2026`, or `November 2026, from 3 Nov up to 17 Nov 14:00` if that is not all of it."""
    limits = [format_people_month_name(month)]
    if month.since > month.first:
        limits.append(f"from {month.since.day} {formatting.MONTH_NAMES[month.since.month - 1]}")
    until = datetime.fromtimestamp(month.until, zone)
    if until.date().replace(day=1) == month.first:
        limits.append(f"up to {until.day} {formatting.MONTH_NAMES[until.month - 1]} {until:%H:%M}")
    return ", ".join(filter(None, (limits[0], " ".join(limits[1:]))))


def format_people_month_name(month: PeopleMonthTables) -> str:
    """Format `October 2026`."""
    return f"{FULL_MONTH_NAMES[month.first.month - 1]} {month.first.year}"


def build_person_table(months: Sequence[PeopleMonthTables], zone: tzinfo) -> PeopleTable:
    tables = [month.by_person for month in months]
    rows = [
        PeopleTableRow(
            row.name, build_people_search_link(row.name), format_people_sums_cells(sums_list, PERSON_COLUMN_LABELS)
        )
        for row, sums_list in merge_people_tables(tables)
    ]
    totals = [add_usage_totals(row.sums for row in table.rows) for table in tables]
    return PeopleTable(
        title="GPU-hours by person",
        first_head="Person",
        groups=[(format_people_month_heading(month, zone), len(PERSON_COLUMN_LABELS)) for month in months],
        heads=[*PERSON_COLUMN_LABELS.values()] * len(months),
        rows=rows,
        foot=[PeopleTableRow("All people", "", format_people_sums_cells(totals, PERSON_COLUMN_LABELS))],
    )


def merge_people_tables(tables: Sequence[UsageTable]) -> list[tuple[UsageRow, list[UsageTotals]]]:
    """Put the rows of several tables side by side, in the order of the first that has each."""
    first_rows: dict[str, UsageRow] = {}
    sums_by_key: dict[str, list[UsageTotals]] = {}
    for position, table in enumerate(tables):
        for row in table.rows:
            first_rows.setdefault(row.key, row)
            sums_by_key.setdefault(row.key, [NO_USAGE] * len(tables))[position] = row.sums
    return [(row, sums_by_key[key]) for key, row in first_rows.items()]


def format_people_sums_cells(sums_list: Sequence[UsageTotals], columns: Mapping[str, str]) -> list[str]:
    return [format_people_decimal_hours(getattr(sums, name)) for sums in sums_list for name in columns]


def format_people_decimal_hours(units: int) -> str:
    return format_people_decimal(usage_total_to_hours(units))


def build_people_balance_table(months: Sequence[PeopleMonthTables], zone: tzinfo) -> PeopleTable:
    """Build the table of where all GPU-hours went."""
    month_sums = [month.by_model.total for month in months]
    parts = {title: [getattr(sums, name) for sums in month_sums] for name, title in UNUSED_PART_LABELS.items()}
    seen = [sums.seen for sums in month_sums]
    used = [total - sum(units) for total, *units in zip(seen, *parts.values())]
    return PeopleTable(
        title="All GPU-hours",
        first_head="What",
        groups=(),
        heads=[format_people_month_heading(month, zone) for month in months],
        rows=[
            PeopleTableRow(title, "", [*map(format_people_decimal_hours, units)])
            for title, units in {"Used by people": used, **parts}.items()
        ],
        foot=[
            PeopleTableRow("All that was seen", "", [*map(format_people_decimal_hours, seen)]),
            PeopleTableRow("Not seen", "", [format_people_decimal_hours(sums.unseen) for sums in month_sums]),
            PeopleTableRow("Seen of all", "", [*map(format_people_percent_seen, month_sums)]),
        ],
    )


def format_people_percent_seen(sums: UsageTotals) -> str:
    seen = compute_usage_percent_seen(sums)
    return UNKNOWN if seen is None else f"{seen} %"


def build_people_place_table(
    title: str,
    first_head: str,
    tables: Sequence[UsageTable],
    groups: Sequence[tuple[str, int]],
    hosts: Container[str] = (),
) -> PeopleTable:
    """Build a table of models or hosts; of a month in which one was not seen nothing is known."""
    rows = []
    for row, sums_list in merge_people_tables(tables):
        cells: list[str] = []
        for sums in sums_list:
            if sums.seen:
                cells += [*format_people_sums_cells([sums], PLACE_COLUMN_LABELS), format_people_percent_seen(sums)]
            else:
                cells += [UNKNOWN] * (len(PLACE_COLUMN_LABELS) + 1)
        rows.append(PeopleTableRow(row.name, f"hosts/{quote(row.name)}.html" if row.name in hosts else "", cells))
    return PeopleTable(title, first_head, groups, [*PLACE_COLUMN_LABELS.values(), "Seen of all"] * len(tables), rows)


def build_month_table(months: Sequence[PeopleMonthTables]) -> PeopleTable:
    heads = [*PLACE_COLUMN_LABELS.values(), "All seen", "Seen of all"]
    rows = []
    for month in months:
        sums = month.by_model.total
        cells = [
            *format_people_sums_cells([sums], PLACE_COLUMN_LABELS),
            format_people_decimal_hours(sums.seen),
            format_people_percent_seen(sums),
        ]
        rows.append(PeopleTableRow(format_people_month_name(month), "", cells))
    return PeopleTable("By month", "Month", (), heads, rows)
