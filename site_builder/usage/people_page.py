"""Write users.html: who has which GPUs now, and how many GPU-hours of the last 7 days and of each month."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import NamedTuple
from urllib.parse import quote

from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.files import compute_digest
from site_builder.core.html import EMPTY_HTML, Html, build_time_html, load_compact_html_template
from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory, group_spellings
from site_builder.core.published_files import CODE_FINGERPRINT, SiteFiles
from site_builder.core.terminal_text import clean_text
from site_builder.fleet.summary import GpuUseSummary, PersonUseSummary, SummarizedHost
from site_builder.history.reader import GpuSetChange, HistoryReader
from site_builder.history.rollups import HostModel, MonthUsage, RollupWindow, UsageRollup
from site_builder.history.usage_sums import UNITS_PER_MINUTE, StateMinutes, UsageShareSums
from site_builder.usage import totals
from site_builder.usage.fleet_page import NOTHING, render_person_bar
from site_builder.usage.totals import (
    NO_USAGE,
    UNKNOWN,
    UNUSED_PARTS,
    UsageChange,
    UsageRow,
    UsageTable,
    UsageTotals,
)

PEOPLE_PAGE = "users.html"
# A little less than a minute, or every other build of cron would come too early.
WRITE_INTERVAL_S = 55
# Seconds that one build of many spends on sums, and those of a single build.
ROLLUP_TIME_LIMIT_S, ROLLUP_TIME_LIMIT_ALONE_S = 0.03, 1.0
WINDOW_HOURS = (2, 24, 168)
MONTH_COUNT = 13
# Older averages are not shown: nobody has added up since.
MAX_WINDOW_AGE_S = 1800
OTHER_HOSTS = "not on the board"
# Hosts of one person that are named; the others are counted.
MAX_HOSTS = 6
NO_SHARE = UsageShareSums(0, 0, 0, 0)
# By what a change from nothing is sorted, in percent.
MAX_CHANGE = 1e6
UNUSED_PART_LABELS = {name: label.capitalize() for name, label in UNUSED_PARTS.items()}
PERSON_COLUMN_LABELS = {"used": "Used", "held": "Held idle", "booked": "Booked", "unused": "Booked, unused"}
# Squares that are drawn for the GPUs of a person, and their size in CSS pixels.
MAX_SQUARES, SQUARE_SIZE, SQUARE_STEP = 16, 9, 12
PLACE_COLUMN_LABELS = {**PERSON_COLUMN_LABELS, "free": "Free"}
FULL_MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


class PeopleCell(NamedTuple):
    """Cell of a table that can be sorted: its text, and the number that it is sorted by."""

    text: str
    number: float = 0


class PersonRow(NamedTuple):
    """What a person has now, had in the last 7 days and in the newest month, and on average over each window.

    `link` is empty if the search cannot find them; the page finds its reader by `names`.
    """

    key: str
    name: str
    names: str
    link: str
    gpus: PeopleCell
    squares: Html
    memory: PeopleCell
    processes: str
    hosts: Sequence[tuple[str, int]]
    omitted_hosts: int
    means: Sequence[str]
    week: PeopleCell
    week_bar: Html
    week_idle: str
    month: Mapping[str, PeopleCell]


class PersonMonth(NamedTuple):
    """GPU-hours of each person in a month, by their keys, and of all of them under an empty key."""

    id: str
    name: str
    title: str
    columns: Sequence[tuple[str, str]]
    names: Mapping[str, tuple[str, str]]
    cells: Mapping[str, Mapping[str, PeopleCell]]


class PeopleMonthTables(NamedTuple):
    month: MonthUsage
    by_model: UsageTable
    by_host: UsageTable


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


class PeoplePageBuilder:
    def __init__(self, settings: Settings, history: HistoryReader, patient: bool = False) -> None:
        self.settings, self.history = settings, history
        self.time_limit_s = ROLLUP_TIME_LIMIT_ALONE_S if patient else ROLLUP_TIME_LIMIT_S
        self.rollup: UsageRollup | None = None

    def write(self, site: SiteFiles, hosts: Mapping[str, SummarizedHost], people: PeopleDirectory, now: Now) -> None:
        # the hosts are part of it: one that is hidden must disappear at once
        inputs = (CODE_FINGERPRINT, site.assets_version, self.settings.privacy.users, str(now.zone), list(hosts))
        fingerprint = compute_digest(repr(inputs).encode())
        age = now.epoch - site.find_write_time(PEOPLE_PAGE)
        is_due = not 0 <= age < WRITE_INTERVAL_S or not site.published.is_unchanged(PEOPLE_PAGE, fingerprint)
        if self.rollup is None:
            self.rollup = UsageRollup(self.history, WINDOW_HOURS, MONTH_COUNT, self.count_unseen)
        if is_due or not self.rollup.is_done:
            self.rollup.advance(now.epoch, self.time_limit_s)
        if is_due:
            page = self.render_page(self.rollup, hosts, people, site.assets_version, now)
            site.write_file(PEOPLE_PAGE, fingerprint, page, now)

    def save(self) -> None:
        if self.rollup:
            self.rollup.save()

    def render_page(
        self, rollup: UsageRollup, hosts: Mapping[str, SummarizedHost], people: PeopleDirectory, version: str, now: Now
    ) -> bytes:
        settings, are_users_shown = self.settings, self.settings.privacy.users
        windows = [window for window in rollup.state.windows if 0 <= now.epoch - window.until < MAX_WINDOW_AGE_S]
        newest_months = [month for month in rollup.load_months(2) if month.seen_by_place]
        known_people = totals.add_usage_names(people, newest_months)
        months = build_person_months(newest_months, known_people, settings.zone) if are_users_shown else []
        names = (sorted(people.aliases.items()), sorted(people.logins), list(hosts))
        inputs = (CODE_FINGERPRINT, are_users_shown, str(settings.zone), settings.limits.held_after, names)
        text = load_compact_html_template("users.html").render(
            version=version,
            built=build_time_html(now, "minutes"),
            zone=getattr(now.zone, "key", None) or now.local.tzname(),
            are_users_shown=are_users_shown,
            problem=self.history.problem_text,
            windows=[format_people_window(window, now) for window in windows],
            people=list_person_rows(hosts, windows, people, newest_months, months) if are_users_shown else [],
            month=months[0] if months else None,
            total_gpus=format_person_gpus(sum(map(count_used_units, hosts.values())) / UNITS_PER_MINUTE),
            total_week=build_hours_cell(sum(share.used for share in windows[-1].shares.values()) if windows else 0),
            balance_rows=build_people_balance_rows(hosts, windows),
            tables=rollup.render_months(
                repr(inputs).encode("utf-8", "replace"),
                lambda months: render_people_month_tables(months, hosts, people, settings),
            ),
        )
        return text.encode("utf-8", "replace")

    def count_unseen(
        self, changes: Iterable[GpuSetChange], first: date, until: int, seen: Mapping[HostModel, StateMinutes]
    ) -> dict[HostModel, int]:
        """Count the minutes of a month in which GPUs should have been seen and were not."""
        minutes = {place: row.seen for place, row in seen.items()}
        midnight = totals.find_usage_midnight(first, self.history.zone)
        return totals.count_unseen_usage_minutes(totals.find_usage_gpu_stays(changes), minutes, midnight, until)


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


def list_person_rows(
    hosts: Mapping[str, SummarizedHost],
    windows: Sequence[RollupWindow],
    people: PeopleDirectory,
    newest_months: Sequence[MonthUsage] = (),
    months: Sequence[PersonMonth] = (),
) -> list[PersonRow]:
    """List everybody who is on a GPU or was, the one who has most first."""
    usage_by_name: dict[str, list[tuple[str, PersonUseSummary]]] = defaultdict(list)
    for host_name, host in hosts.items():
        for name, host_usage in host.summary.use_by_person.items():
            usage_by_name[name].append((host_name, host_usage))
    all_shares = [window.shares for window in windows] + [month.shares for month in newest_months]
    past_users = {name for shares in all_shares for name, share in shares.items() if any(share)}
    known_people = totals.add_usage_names(people, [*windows, *newest_months])
    groups = group_spellings({*usage_by_name, *past_users}, known_people)
    week_shares = windows[-1].shares if windows else {}
    week_by_key = {
        key: UsageShareSums(*map(sum, zip(NO_SHARE, *(week_shares[name] for name in names if name in week_shares))))
        for key, names in groups.items()
    }
    most = max((share.used for share in week_by_key.values()), default=0)
    aliases: dict[str, list[str]] = defaultdict(list)
    for alias in people.aliases:
        aliases[known_people.resolve_user(alias)].append(alias)
    rows = []
    for key, names in groups.items():
        usage, gpus_by_host = PersonUseSummary(), Counter[str]()
        for name in names:
            for host_name, host_usage in usage_by_name.get(name, ()):
                usage = usage.add(host_usage)
                gpus_by_host[host_name] += host_usage.gpu_count
        shown_hosts = sorted(gpus_by_host.items(), key=lambda item: (-item[1], natural_sort_key(item[0])))
        means = []
        for window in windows:
            units = sum(window.shares[name].used for name in names if name in window.shares)
            means.append(compute_people_mean_gpus(units, window))
        memory = UNKNOWN if usage.process_count else ""
        week_share = week_by_key.get(key, NO_SHARE)
        if usage.unknown_memory_count < usage.process_count:
            # with some processes unknown, the sum is a lower limit
            memory = f"{'≥ ' if usage.unknown_memory_count else ''}{formatting.format_size(usage.memory_mib)}"
        gpus = usage.gpu_units / UNITS_PER_MINUTE
        name = clean_text(known_people.choose_display_name(names))
        row = PersonRow(
            key=key,
            name=name,
            names="\n".join(dict.fromkeys(spelling.lower() for spelling in (name, key, *names, *aliases[key]))),
            link=build_people_search_link(name),
            gpus=format_person_gpus(gpus),
            squares=render_person_squares(gpus),
            memory=PeopleCell(memory, usage.memory_mib),
            processes=str(usage.process_count or ""),
            hosts=shown_hosts[:MAX_HOSTS],
            omitted_hosts=len(shown_hosts[MAX_HOSTS:]),
            means=[format_people_decimal(mean) for mean in means],
            week=build_hours_cell(week_share.used),
            week_bar=render_person_bar(week_share, most),
            week_idle=totals.format_usage_share(100 * week_share.held / week_share.used) if week_share.held else "",
            month=months[0].cells.get(key, {}) if months else {},
        )
        order = (-usage.gpu_units, -usage.gpu_count, [-(mean or 0) for mean in means], natural_sort_key(name), name)
        rows.append((order, row))
    return [row for _, row in sorted(rows, key=lambda item: item[0])]


def format_person_gpus(gpus: float) -> PeopleCell:
    return PeopleCell(f"{gpus:.0f}" if gpus == int(gpus) else format_people_decimal(gpus), gpus)


def render_person_squares(gpus: float) -> Html:
    """Draw a square for each GPU, the last as wide as the part of it; the number beside them has all."""
    if not gpus:
        return EMPTY_HTML
    shown = min(gpus, MAX_SQUARES)
    widths = [min(1.0, shown - position) * SQUARE_SIZE for position in range(math.ceil(shown))]
    path = "".join(
        f"M{position * SQUARE_STEP} 0h{width:g}v{SQUARE_SIZE}h-{width:g}z"
        for position, width in enumerate(max(2, round(width)) for width in widths)
    )
    size = f"width={len(widths) * SQUARE_STEP} height={SQUARE_SIZE}"
    return Html(f'<svg class=squares {size} aria-hidden=true><path d="{path}"/></svg>')


def count_used_units(host: SummarizedHost) -> int:
    return sum(usage.gpu_units for usage in host.summary.use_by_person.values())


def build_hours_cell(units: int) -> PeopleCell:
    return PeopleCell(format_people_hours(units), units)


def compute_people_mean_gpus(units: int, window: RollupWindow) -> float | None:
    """Return GPUs on average over the minutes that were seen; None if no GPU was seen in any of them."""
    return units / UNITS_PER_MINUTE / window.seen_minutes if window.seen_minutes and window.state_minutes.seen else None


def format_people_decimal(number: float | None) -> str:
    """Format a number with one decimal; a small one is never 0."""
    if number is None:
        return UNKNOWN
    return "<0.1" if 0 < number < 0.05 else f"{number:,.1f}"


def build_people_balance_rows(
    hosts: Mapping[str, SummarizedHost], windows: Sequence[RollupWindow]
) -> list[dict[str, object]]:
    """Build the rows below the people: all of them, and the GPUs that nobody uses, now and on average."""
    host_counts = (host.summary.gpu_use for host in hosts.values())
    counts = GpuUseSummary(*map(sum, zip(GpuUseSummary(), *host_counts)))._asdict()
    counts["seen"] = sum(counts.values()) - counts["unseen"]
    titles = {"used": "All people", **UNUSED_PART_LABELS, "seen": "All GPUs"}
    means: dict[str, list[str]] = defaultdict(list)
    for window in windows:
        sums = totals.state_minutes_to_usage_totals(window.state_minutes)
        sums = sums._replace(used=sums.seen - sum(getattr(sums, part) for part in UNUSED_PARTS))
        for name in titles:
            means[name].append(format_people_decimal(compute_people_mean_gpus(getattr(sums, name), window)))
    if counts["unseen"]:
        titles["unseen"] = "On unreachable hosts"
        means["unseen"] = [UNKNOWN] * len(windows)
    return [{"id": name, "title": title, "gpus": counts[name], "means": means[name]} for name, title in titles.items()]


# GPU-hours of people in a month


def build_person_months(months: Sequence[MonthUsage], people: PeopleDirectory, zone: tzinfo) -> list[PersonMonth]:
    """Build the sums of each person in each month, with the change from the month before."""
    tables, days = [], []
    for month in months:
        sums_by_name = {name: UsageTotals(*share) for name, share in month.shares.items()}
        table = totals.build_usage_totals_table(sums_by_name, {}, people)
        total = totals.add_usage_totals(row.sums for row in table.rows)
        tables.append({**{row.key: row for row in table.rows}, "": UsageRow("", "All people", total)})
        seconds = month.until - totals.find_usage_midnight(max(month.first, month.since), zone)
        days.append(seconds / formatting.DAY)
    person_months = []
    for position, (month, rows) in enumerate(zip(months, tables)):
        day_before = month.first - timedelta(days=1)
        is_known = position + 1 < len(months) and months[position + 1].first == day_before.replace(day=1)
        before = tables[position + 1] if is_known else None
        cells: dict[str, Mapping[str, PeopleCell]] = {}
        for key, row in rows.items():
            change = UsageChange(row.sums.used / max(days[position], 0.001), None)
            if before is not None:
                used_before = before[key].sums.used if key in before else 0
                change = change._replace(before=used_before / max(days[position + 1], 0.001))
            rank = change.percent if change.percent is not None else (MAX_CHANGE if change.now and before else 0)
            hours = {name: build_hours_cell(getattr(row.sums, name)) for name in PERSON_COLUMN_LABELS}
            cells[key] = {**hours, "change": PeopleCell(totals.format_usage_change(change), round(rank, 1))}
        person_months.append(
            PersonMonth(
                id=f"{month.first:%Y-%m}",
                name=format_people_month_name(month),
                title=format_people_month_heading(month, zone),
                columns=[
                    (name, label)
                    for name, label in (*PERSON_COLUMN_LABELS.items(), ("change", "Change"))
                    if name == "used" or any(row[name].text not in NOTHING for row in cells.values())
                ],
                names={key: (row.name, build_people_search_link(row.name)) for key, row in rows.items() if key},
                cells=cells,
            )
        )
    return person_months


def build_people_search_link(name: str) -> str:
    """Link to the search for a person; a name that the search cannot find leads nowhere."""
    if '"' in name or not name.strip():
        return ""
    query = f'user:"{name}"' if len(name.split()) > 1 or name != name.strip() else f"user:{name}"
    return f"index.html?q={quote(query, safe='', errors='replace')}"


# GPU-hours of months


def render_people_month_tables(
    months: Sequence[MonthUsage], hosts: Container[str], people: PeopleDirectory, settings: Settings
) -> str:
    """Render the GPU-hours, which change once an hour; `hosts` are those that have a page."""
    seen_months = [month for month in months if month.seen_by_place]
    known_people = totals.add_usage_names(people, seen_months)
    month_tables = [build_people_month_tables(month, known_people, hosts) for month in seen_months]
    newest = month_tables[:2]
    tables = []
    if newest:
        headings = [format_people_month_heading(table.month, settings.zone) for table in newest]
        groups = [(heading, len(PLACE_COLUMN_LABELS) + 1) for heading in headings]
        tables = [
            build_people_balance_table([table.by_model.total for table in newest], headings),
            build_people_place_table("By model", "Model", [table.by_model for table in newest], groups),
            build_people_place_table("By host", "Host", [table.by_host for table in newest], groups, hosts),
            build_people_month_table(month_tables),
        ]
    return load_compact_html_template("sums.html").render(
        tables=[drop_empty_columns(table) for table in tables],
        months=build_person_months(seen_months, known_people, settings.zone) if settings.privacy.users else [],
        held=formatting.format_duration(settings.limits.held_after),
    )


def drop_empty_columns(table: PeopleTable) -> PeopleTable:
    """Leave out a column that has nothing but zeros, in each group of columns; the first of a group stays."""
    size = table.groups[0][1] if table.groups else len(table.heads)
    rows = [row.cells for row in (*table.rows, *table.foot)]
    kept = [
        place
        for place in range(size)
        if not place or any(cell not in NOTHING for cells in rows for cell in cells[place::size])
    ]

    def keep(cells: Sequence[str]) -> list[str]:
        return [cells[start + place] for start in range(0, len(cells), size) for place in kept]

    return table._replace(
        groups=[(title, len(kept)) for title, _ in table.groups],
        heads=keep(table.heads),
        rows=[row._replace(cells=keep(row.cells)) for row in table.rows],
        foot=[row._replace(cells=keep(row.cells)) for row in table.foot],
    )


def build_people_month_tables(month: MonthUsage, people: PeopleDirectory, hosts: Container[str]) -> PeopleMonthTables:
    """Build the tables of a month; hosts that are not on the board, hidden or gone, are not named."""

    def name_place(place: HostModel) -> totals.MonthHostModel:
        return month.first, place[0] if place[0] in hosts else OTHER_HOSTS, place[1]

    _, sums_by_place = totals.total_daily_usage(
        ((*name_place(place), "", share) for place, share in month.shares_by_place.items()),
        ((*name_place(place), minutes) for place, minutes in month.seen_by_place.items()),
        ((name_place(place), minutes) for place, minutes in month.unseen_by_place.items()),
    )
    tables = (totals.build_usage_totals_table({}, sums_by_place, people, by) for by in ("model", "host"))
    return PeopleMonthTables(month, *tables)


def format_people_month_heading(month: MonthUsage, zone: tzinfo) -> str:
    """Format `October 2026`, or `November 2026, from 3 Nov up to 17 Nov 14:00` if that is not all of it."""
    limits = []
    if month.since > month.first:
        limits.append(f"from {month.since.day} {formatting.MONTH_NAMES[month.since.month - 1]}")
    until = datetime.fromtimestamp(month.until, zone)
    if until.date().replace(day=1) == month.first:
        limits.append(f"up to {until.day} {formatting.MONTH_NAMES[until.month - 1]} {until:%H:%M}")
    return ", ".join(filter(None, (format_people_month_name(month), " ".join(limits))))


def format_people_month_name(month: MonthUsage) -> str:
    """Format `October 2026`."""
    return f"{FULL_MONTH_NAMES[month.first.month - 1]} {month.first.year}"


def merge_people_tables(tables: Sequence[UsageTable]) -> list[tuple[UsageRow, list[UsageTotals]]]:
    """Put the rows of several tables side by side, in the order of the first that has each."""
    first_rows: dict[str, UsageRow] = {}
    sums_by_key: dict[str, list[UsageTotals]] = {}
    for position, table in enumerate(tables):
        for row in table.rows:
            first_rows.setdefault(row.key, row)
            sums_by_key.setdefault(row.key, [NO_USAGE] * len(tables))[position] = row.sums
    return [(row, sums_by_key[key]) for key, row in first_rows.items()]


def format_people_sums(sums_list: Sequence[UsageTotals], columns: Iterable[str] = PERSON_COLUMN_LABELS) -> list[str]:
    return [format_people_hours(getattr(sums, name)) for sums in sums_list for name in columns]


def format_people_hours(units: int) -> str:
    return format_people_decimal(totals.usage_total_to_hours(units))


def build_people_balance_table(month_sums: Sequence[UsageTotals], headings: Sequence[str]) -> PeopleTable:
    """Build the table of where all GPU-hours went."""
    parts = {title: [getattr(sums, name) for sums in month_sums] for name, title in UNUSED_PART_LABELS.items()}
    seen = [sums.seen for sums in month_sums]
    used = [total - sum(units) for total, *units in zip(seen, *parts.values())]
    unseen = [sums.unseen for sums in month_sums]
    rows = [
        PeopleTableRow(title, "", [*map(format_people_hours, units)])
        for title, units in {"Used by people": used, **parts, "All monitored": seen, "Not monitored": unseen}.items()
    ]
    percent_row = PeopleTableRow("Coverage", "", [*map(totals.format_usage_percent_seen, month_sums)])
    return PeopleTable("All GPU-hours", "Part", (), headings, rows[:-2], [*rows[-2:], percent_row])


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
                cells += [*format_people_sums([sums], PLACE_COLUMN_LABELS), totals.format_usage_percent_seen(sums)]
            else:
                cells += [UNKNOWN] * (len(PLACE_COLUMN_LABELS) + 1)
        rows.append(PeopleTableRow(row.name, f"hosts/{quote(row.name)}.html" if row.name in hosts else "", cells))
    return PeopleTable(title, first_head, groups, [*PLACE_COLUMN_LABELS.values(), "Coverage"] * len(tables), rows)


def build_people_month_table(month_tables: Sequence[PeopleMonthTables]) -> PeopleTable:
    heads = [*PLACE_COLUMN_LABELS.values(), "All monitored", "Coverage"]
    rows = []
    for month, *_, by_host in month_tables:
        cells = format_people_sums([by_host.total], (*PLACE_COLUMN_LABELS, "seen"))
        percent = totals.format_usage_percent_seen(by_host.total)
        rows.append(PeopleTableRow(format_people_month_name(month), "", [*cells, percent]))
    return PeopleTable("By month", "Month", (), heads, rows)
