"""users.html: who has how much now, had how much on average, and how many GPU-hours in which month."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import date, datetime, tzinfo
from typing import NamedTuple
from urllib.parse import quote

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.html import load_template
from site_builder.fleet.summary import PersonUsage
from site_builder.usage.totals import (
    NO_USAGE,
    FleetBalance,
    PersonSummary,
    UsageRow,
    UsageSums,
    UsageTable,
    WindowCoverage,
    add_sums,
    compute_percent_seen,
    units_to_gpus,
    units_to_hours,
)

UNKNOWN = "–"
# Hosts of one person that are named; the others are counted.
MAX_HOSTS = 12
UNUSED_PART_LABELS = {
    "unowned": "Owner not known",
    "booked_idle": "Booked, nobody on it",
    "free": "Free",
    "unclear": "Lost or not clear",
}
PERSON_COLUMN_LABELS = {"used": "Used", "held": "Held idle", "booked": "Booked", "unused": "Booked, unused"}
PLACE_COLUMN_LABELS = {**PERSON_COLUMN_LABELS, "free": "Free"}
FULL_MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


class MonthTables(NamedTuple):
    """A month from a day on and up to a moment, by person, model and host."""

    first: date
    since: date
    until: float
    by_person: UsageTable
    by_model: UsageTable
    by_host: UsageTable


class PeoplePageContent(NamedTuple):
    """All that the page is made of; `tables` are the GPU-hours, as HTML. Where users are not `shown`, it names none."""

    people: Sequence[PersonSummary]
    balance: FleetBalance
    windows: Sequence[WindowCoverage]
    are_users_shown: bool
    problem: str
    tables: str


class PeopleTableRow(NamedTuple):
    """A row of numbers; `link` is where its name leads, if anywhere."""

    name: str
    link: str
    cells: Sequence[str]


class PeopleTable(NamedTuple):
    """Numbers in groups of columns that have a title each, with rows of what they come to."""

    title: str
    first_head: str
    groups: Sequence[tuple[str, int]]
    heads: Sequence[str]
    rows: Sequence[PeopleTableRow]
    foot: Sequence[PeopleTableRow] = ()


def render_people_page(people: PeoplePageContent, version: str, now: Now) -> bytes:
    """The whole page."""
    text = load_template("users.html").render(
        version=version,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "minutes"), f"{now.local:%H:%M}"),
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        shown=people.are_users_shown,
        trouble=people.problem,
        windows=[(format_window_name(one), format_window_start(one.since, now)) for one in people.windows],
        lines=[
            (line.name, build_search_link(line.name), *format_current_usage(line), format_means(line.mean_gpus))
            for line in people.people
        ],
        foot=build_balance_rows(people.balance),
        looked=[UNKNOWN if one.seen_percent is None else f"{one.seen_percent} %" for one in people.windows],
        tables=people.tables,
    )
    return text.encode("utf-8", "replace")


def render_month_tables(
    months: Sequence[MonthTables], shown: bool, held_after: float, hosts: Container[str], zone: tzinfo
) -> str:
    """The GPU-hours of months, the newest first; `hosts` are those that have a page."""
    two = months[:2]
    found = [build_person_table(two, zone)] if shown and two else []
    if two:
        found += [
            build_balance_table(two, zone),
            build_place_table(
                "By model", "Model", [one.by_model for one in two], build_month_groups(two, 6, zone), lambda _: ""
            ),
            build_place_table(
                "By host",
                "Host",
                [one.by_host for one in two],
                build_month_groups(two, 6, zone),
                build_host_linker(hosts),
            ),
            build_month_table(months),
        ]
    return load_template("sums.html").render(tables=found, held=formatting.format_duration(held_after))


# Now, and on average


def format_window_name(window: WindowCoverage) -> str:
    """`2 h`, `24 h`, `7 days`."""
    count = round((window.until - window.since) / formatting.HOUR)
    return f"{round(count / 24)} days" if count > 36 else "24 h" if count > 12 else "2 h"


def format_window_start(at: float, now: Now) -> str:
    """`12:00`, `Mon 12:00`, or of a week ago `10 Nov 12:00`."""
    moment = datetime.fromtimestamp(at, now.zone)
    day = "" if moment.date() == now.local.date() else f"{formatting.DAY_NAMES[moment.weekday()]} "
    if now.epoch - at > 6 * formatting.DAY:
        day = f"{moment.day} {formatting.MONTH_NAMES[moment.month - 1]} "
    return f"{day}{moment:%H:%M}"


def format_current_usage(line: PersonSummary) -> tuple[str, str, str, list[tuple[str, int]], int]:
    """What somebody has: GPUs, memory, processes, and where; and how many hosts more."""
    had = line.usage
    if not had.process_count:
        return "0", "", "", [], 0
    where = list(line.gpus_by_host)
    return (
        format_gpu_count(had.gpu_units),
        format_person_memory(had),
        str(had.process_count),
        where[:MAX_HOSTS],
        max(0, len(where) - MAX_HOSTS),
    )


def format_gpu_count(units: int) -> str:
    """Whole GPUs, or parts of them with one decimal."""
    count = units_to_gpus(units)
    return f"{count:.0f}" if count == int(count) else format_decimal(count)


def format_decimal(count: float) -> str:
    """With one decimal; what is there is never none."""
    return "<0.1" if 0 < count < 0.05 else f"{count:,.1f}"


def format_person_memory(had: PersonUsage) -> str:
    """Of their processes; where some do not tell it, it is at least so much."""
    if had.unknown_memory_count == had.process_count:
        return UNKNOWN
    return f"{'≥ ' if had.unknown_memory_count else ''}{formatting.format_size(had.memory_mib)}"


def format_means(several: Sequence[float | None]) -> list[str]:
    """GPUs on average over each window."""
    return [UNKNOWN if one is None else format_decimal(one) for one in several]


def build_balance_rows(whole: FleetBalance) -> list[tuple[str, str, list[str]]]:
    """What closes the sums: a class, the name and the numbers of each row."""
    rows = {"used": "All people", **UNUSED_PART_LABELS, "seen": "All GPUs that are seen"}
    found = [
        (name, title, [str(whole.now[name]), *format_means(whole.means.get(name, ()))]) for name, title in rows.items()
    ]
    if whole.now["unseen"]:
        none = [UNKNOWN for _ in whole.means.get("seen", ())]
        found.append(("unseen", "On hosts of which nothing is heard", [str(whole.now["unseen"]), *none]))
    return found


def build_search_link(name: str) -> str:
    """Where the board shows what somebody is on; a name that its search cannot tell leads nowhere."""
    if '"' in name or not name.strip():
        return ""
    told = f'user:"{name}"' if len(name.split()) > 1 or name != name.strip() else f"user:{name}"
    return f"index.html?q={quote(told, safe='', errors='replace')}"


# GPU-hours


def format_month_heading(month: MonthTables, zone: tzinfo) -> str:
    """`October 2026`, or `November 2026, from 3 Nov up to 17 Nov 14:00` where history has not all of it."""
    told = [format_month_name(month)]
    if month.since > month.first:
        told.append(f"from {month.since.day} {formatting.MONTH_NAMES[month.since.month - 1]}")
    moment = datetime.fromtimestamp(month.until, zone)
    if moment.date().replace(day=1) == month.first:
        told.append(f"up to {moment.day} {formatting.MONTH_NAMES[moment.month - 1]} {moment:%H:%M}")
    return ", ".join(filter(None, (told[0], " ".join(told[1:]))))


def format_month_name(month: MonthTables) -> str:
    """`October 2026`."""
    return f"{FULL_MONTH_NAMES[month.first.month - 1]} {month.first.year}"


def build_month_groups(months: Sequence[MonthTables], each: int, zone: tzinfo) -> list[tuple[str, int]]:
    """A group of columns a month."""
    return [(format_month_heading(one, zone), each) for one in months]


def build_person_table(months: Sequence[MonthTables], zone: tzinfo) -> PeopleTable:
    """Everybody who had something in one of the months."""
    usages = [one.by_person for one in months]
    rows = [
        PeopleTableRow(one.name, build_search_link(one.name), format_sums_cells(several, PERSON_COLUMN_LABELS))
        for one, several in merge_usage_tables(usages)
    ]
    foot = [
        PeopleTableRow(
            "All people",
            "",
            format_sums_cells([add_sums(row.sums for row in one.rows) for one in usages], PERSON_COLUMN_LABELS),
        )
    ]
    return PeopleTable(
        "GPU-hours by person",
        "Person",
        build_month_groups(months, 4, zone),
        [*PERSON_COLUMN_LABELS.values()] * len(months),
        rows,
        foot,
    )


def merge_usage_tables(usages: Sequence[UsageTable]) -> list[tuple[UsageRow, list[UsageSums]]]:
    """The lines of several tables side by side, in the order of the first that has each."""
    first: dict[str, UsageRow] = {}
    found: dict[str, list[UsageSums]] = {}
    for place, usage in enumerate(usages):
        for row in usage.rows:
            first.setdefault(row.key, row)
            found.setdefault(row.key, [NO_USAGE] * len(usages))[place] = row.sums
    return [(row, found[key]) for key, row in first.items()]


def format_place_cells(sums: UsageSums) -> list[str]:
    """The columns of a model or a host; of a month in which it was not seen nothing is known."""
    return (
        [*format_sums_cells([sums], PLACE_COLUMN_LABELS), format_percent_seen(sums)]
        if sums.seen
        else [UNKNOWN] * (len(PLACE_COLUMN_LABELS) + 1)
    )


def format_sums_cells(several: Sequence[UsageSums], columns: Mapping[str, str]) -> list[str]:
    """The same columns of each."""
    return [format_decimal_hours(getattr(sums, name)) for sums in several for name in columns]


def format_decimal_hours(units: int) -> str:
    """GPU-hours."""
    return format_decimal(units_to_hours(units))


def build_balance_table(months: Sequence[MonthTables], zone: tzinfo) -> PeopleTable:
    """Where all GPU-hours went."""
    totals = [one.by_model.total for one in months]
    used = [
        format_decimal_hours(sums.seen - sum(getattr(sums, name) for name in UNUSED_PART_LABELS)) for sums in totals
    ]
    rows = [PeopleTableRow("Used by people", "", used)]
    rows += [
        PeopleTableRow(title, "", [format_decimal_hours(getattr(sums, name)) for sums in totals])
        for name, title in UNUSED_PART_LABELS.items()
    ]
    foot = [
        PeopleTableRow("All that was seen", "", [format_decimal_hours(sums.seen) for sums in totals]),
        PeopleTableRow("Not seen", "", [format_decimal_hours(sums.unseen) for sums in totals]),
        PeopleTableRow("Seen of all", "", [format_percent_seen(sums) for sums in totals]),
    ]
    return PeopleTable("All GPU-hours", "What", (), [format_month_heading(one, zone) for one in months], rows, foot)


def format_percent_seen(sums: UsageSums) -> str:
    """How much of all was seen."""
    seen = compute_percent_seen(sums)
    return UNKNOWN if seen is None else f"{seen} %"


def build_host_linker(hosts: Container[str]) -> Callable[[str], str]:
    """The page of a host, if it is on the board."""
    return lambda name: f"hosts/{quote(name)}.html" if name in hosts else ""


def build_place_table(
    title: str, first: str, usages: Sequence[UsageTable], groups: Sequence[tuple[str, int]], link: Callable[[str], str]
) -> PeopleTable:
    """Models or hosts."""
    rows = []
    for one, several in merge_usage_tables(usages):
        told = [text for sums in several for text in format_place_cells(sums)]
        rows.append(PeopleTableRow(one.name, link(one.name), told))
    return PeopleTable(title, first, groups, [*PLACE_COLUMN_LABELS.values(), "Seen of all"] * len(usages), rows)


def build_month_table(months: Sequence[MonthTables]) -> PeopleTable:
    """All months of which something is kept."""
    heads = [*PLACE_COLUMN_LABELS.values(), "All seen", "Seen of all"]
    rows = []
    for month in months:
        sums = month.by_model.total
        told = [
            *format_sums_cells([sums], PLACE_COLUMN_LABELS),
            format_decimal_hours(sums.seen),
            format_percent_seen(sums),
        ]
        rows.append(PeopleTableRow(format_month_name(month), "", told))
    return PeopleTable("By month", "Month", (), heads, rows)
