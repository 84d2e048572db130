"""Write fleet.html: how much of the fleet is in use, by model, by hour and compared with the week before."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import NamedTuple

from site_builder.charts import svg
from site_builder.charts.svg import NO_DATA, UNKNOWN
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.files import compute_digest
from site_builder.core.formatting import DAY, HOUR, MONTH_NAMES, format_gpu_hours, format_weekday_date
from site_builder.core.html import EMPTY_HTML, Html, build_time_html, escape_html, load_compact_html_template
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import CODE_FINGERPRINT, SiteFiles
from site_builder.history.reader import HistoryReader
from site_builder.history.usage_sums import StateMinutes, UsageShareSums
from site_builder.usage import totals
from site_builder.usage.totals import (
    NOTHING_SEEN,
    PastWasteRow,
    PeriodComparison,
    UsageChange,
    UsageTotals,
    UseSummary,
    find_usage_midnight,
    format_usage_share,
)

FLEET_PAGE, REPORTS_FOLDER = "fleet.html", "reports"
# How often the page is checked for something new; its script takes one of 65 minutes for old.
CHECK_INTERVAL_S = 60
# Until the first hour is rolled up, the page shows minutes, and changes this often.
FIRST_HOUR_INTERVAL_S = 600
PERIOD_DAYS = {"the last 24 hours": 1, "the last 7 days": 7, "the last 30 days": 30}
WEEK_DAYS, MONTH_DAYS = 7, 30
COURSE_STEP_HOURS = 6
# Two years.
MAX_REPORTS = 106
REPORT_FILE_NAME = re.compile(r"[0-9]{4}-W[0-9]{2}\.html")
# How a report begins that names people.
NAMED_REPORT_START = b"<!doctype html>\n<html lang=en data-people>"
NO_HISTORY_YET = "No history yet; the first figures appear within a few minutes."
HOURS_PER_DAY = 24
HOUR_NAMES = [f"{hour:02}" for hour in range(HOURS_PER_DAY)]
# Tints of a heat map.
TINT_COUNT = 10
# Sizes of the bar and of the line of a row, in CSS pixels.
BAR_WIDTH, BAR_HEIGHT = 160, 12
LINE_WIDTH, LINE_HEIGHT = 240, 40
# Monday to Friday, from 8 to 18 o'clock.
WORKING_HOURS, LAST_WORKING_DAY = range(8, 18), 4
# A model is full in an hour in which at most this part of its GPU time is free, in percent.
MAX_FREE_PERCENT_OF_FULL = 5
MAX_FULL_MODELS = 3
# The columns of a table of use after the bar; one in which nothing is but zeros is left out.
USE_COLUMNS = (
    ("hours", "GPU-hours"),
    ("taken", "In use"),
    ("held", "Held idle"),
    ("booked", "Booked, idle"),
    ("free", "Free"),
    ("unclear", "Lost, unknown"),
    ("use_percent", "Mean utilisation"),
)
NOTHING = {"", "0", "0.0", "0 %", UNKNOWN}
MinutesByHour = Mapping[tuple[int, str], StateMinutes]  # by the start of an hour, and by model


class HeatmapSums(NamedTuple):
    """Hour of a day; `hour_count` is how often it came: twice or never where clocks change."""

    hour_count: int
    seen: int
    taken: int

    @property
    def share(self) -> float | None:
        """Return how much of what was seen was taken, in percent."""
        return 100 * self.taken / self.seen if self.seen else None


class HeatmapCell(NamedTuple):
    """Cell as the template takes it; `tint` is empty where nothing was seen."""

    tint: str
    text: str
    title: str


class HeatmapRow(NamedTuple):
    name: str
    cells: list[HeatmapCell]


class FleetPageCourse(NamedTuple):
    """Taken part over some days: in percent in steps of some hours, and by day."""

    percents: list[float | None]
    days: list[HeatmapSums]


class FullHours(NamedTuple):
    """Working hours of a model that were monitored, and those of them in which it was full."""

    model: str
    full: int
    monitored: int
    has_several: bool = False


class FleetPageRow(NamedTuple):
    """Use of some GPUs, and its cells ready to be shown."""

    use: UseSummary
    name: str
    gpus: str
    hours: str
    taken: str
    held: str
    booked: str
    free: str
    unclear: str
    use_percent: str
    bar: Html
    line: Html = EMPTY_HTML


# Sums, in GPU-minutes


def select_fleet_hours(seen: MinutesByHour, days: int, end: int) -> MinutesByHour:
    """Return the hours of some days up to a moment."""
    return {key: row for key, row in seen.items() if end - days * DAY <= key[0] < end}


def compare_fleet_weeks(
    seen: MinutesByHour, week_shares: Sequence[Mapping[str, UsageShareSums]], end: int, people: PeopleDirectory
) -> PeriodComparison:
    """Compare the week up to a moment with the one before; `week_shares` are what people had in each."""
    weeks: list[tuple[UseSummary, int]] = []
    for back, shares in enumerate(week_shares):
        week = select_fleet_hours(seen, WEEK_DAYS, end - back * WEEK_DAYS * DAY)
        known_people = PeopleDirectory(people.aliases, {*people.logins, *shares})
        users = {known_people.resolve_user(name) for name, share in shares.items() if share.used}
        weeks.append((totals.summarize_usage_total(totals.summarize_usage_by_model(week), week.values()), len(users)))
    return totals.compare_usage_periods(*weeks[0], *weeks[1])


def count_full_hours(seen: MinutesByHour, zone: tzinfo) -> list[FullHours]:
    """Count the working hours in which a model was full; the fullest of several GPUs come first, then single GPUs."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (at, model), row in seen.items():
        local = datetime.fromtimestamp(at, zone)
        if row.seen and local.weekday() <= LAST_WORKING_DAY and local.hour in WORKING_HOURS:
            is_taken = 2 * (row.busy + row.held + row.conflict + row.booked) >= row.seen
            counts[model][0] += is_taken and 100 * row.free <= MAX_FREE_PERCENT_OF_FULL * row.seen
            counts[model][1] += 1
            counts[model][2] += row.seen
    rows = [FullHours(model, full, hours, minutes > 60 * hours) for model, (full, hours, minutes) in counts.items()]
    rows = [row for row in rows if row.full]
    return sorted(rows, key=lambda row: (not row.has_several, -row.full / row.monitored, -row.monitored, row.model))


def list_fleet_days_until(last: date, count: int) -> list[date]:
    return [last - timedelta(days=back) for back in reversed(range(count))]


def build_fleet_heatmap_cells(seen: MinutesByHour, days: Sequence[date], zone: tzinfo) -> list[list[HeatmapSums]]:
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for (at, _), row in seen.items():
        sums[at][0] += row.seen
        sums[at][1] += row.busy + row.held + row.conflict
    return build_fleet_cells_from_sums(sums, days, zone)


def build_fleet_cells_from_sums(
    sums: Mapping[int, Sequence[int]], days: Sequence[date], zone: tzinfo
) -> list[list[HeatmapSums]]:
    """Build the rows from minutes that were seen and taken by hour; an hour that begins at 17:30 is in 17."""
    cells = {(day, hour): [0, 0, 0] for day in days for hour in range(HOURS_PER_DAY)}
    end = find_usage_midnight(days[-1] + timedelta(days=1), zone)
    for at in range(find_usage_midnight(days[0], zone) // HOUR * HOUR, end, HOUR):
        local = datetime.fromtimestamp(at, zone)
        cell = cells.get((local.date(), local.hour))
        if cell:
            seen, taken = sums.get(at, (0, 0))
            cell[:] = cell[0] + 1, cell[1] + seen, cell[2] + taken
    return [[HeatmapSums(*cells[day, hour]) for hour in range(HOURS_PER_DAY)] for day in days]


def build_fleet_page_course(seen: MinutesByHour, days: Sequence[date], zone: tzinfo) -> FleetPageCourse:
    rows = build_fleet_heatmap_cells(seen, days, zone)
    cells = [cell for row in rows for cell in row]
    steps = (cells[start : start + COURSE_STEP_HOURS] for start in range(0, len(cells), COURSE_STEP_HOURS))
    return FleetPageCourse([join_heatmap_sums(step).share for step in steps], [join_heatmap_sums(row) for row in rows])


def join_heatmap_sums(cells: Iterable[HeatmapSums]) -> HeatmapSums:
    return HeatmapSums(*map(sum, zip(HeatmapSums(0, 0, 0), *cells)))


# The page


class FleetPageBuilder:
    """Writes fleet.html when there is something new."""

    def __init__(self, settings: Settings, history: HistoryReader) -> None:
        self.settings, self.history = settings, history
        self.checked_at = -float("inf")

    def write(
        self,
        site: SiteFiles,
        people: PeopleDirectory,
        now: Now,
        past_waste: Sequence[tuple[str, Sequence[PastWasteRow]]] = (),
    ) -> None:
        if 0 <= now.epoch - self.checked_at < CHECK_INTERVAL_S:
            return
        self.checked_at = now.epoch
        until = self.history.find_rolled_up_end(now.epoch)
        reports = list_fleet_page_reports(self.settings.www, self.settings.privacy.users)
        inputs = (
            until if until is not None else int(now.epoch) // FIRST_HOUR_INTERVAL_S * FIRST_HOUR_INTERVAL_S,
            str(self.history.problem),
            reports,
            site.assets_version,
            str(now.zone),
            sorted(people.aliases.items()),
            # without the hours, which change each minute
            [(row.gpu, row.people) for _, rows in past_waste for row in rows],
        )
        fingerprint = compute_digest(repr((inputs, CODE_FINGERPRINT)).encode("utf-8", "replace"))
        if not site.published.is_unchanged(FLEET_PAGE, fingerprint):
            page = self.render_page(until, reports, people, past_waste, site.assets_version, now)
            site.write_file(FLEET_PAGE, fingerprint, page, now)

    def render_page(
        self,
        until: int | None,
        reports: Sequence[str],
        people: PeopleDirectory,
        past_waste: Sequence[tuple[str, Sequence[PastWasteRow]]],
        version: str,
        now: Now,
    ) -> bytes:
        """Render what was monitored up to the end of the last hour that is rolled up; before the first, up to now."""
        end = int(now.epoch) if until is None else until
        seen: MinutesByHour
        if until is None:
            usage = self.history.read_hourly_usage(end - DAY, end + 1)
            shares: dict[str, UsageShareSums] = {}
            for (_, _, person), share in usage.shares.items():
                shares[person] = UsageShareSums(*map(sum, zip(shares.get(person, UsageShareSums(0, 0, 0, 0)), share)))
            seen, week_shares = usage.seen, [shares, {}]
        else:
            seen = self.history.read_hourly_minutes(end - MONTH_DAYS * DAY, end)
            week_ends = (end, end - WEEK_DAYS * DAY)
            week_shares = [self.history.read_person_shares(moment - WEEK_DAYS * DAY, moment) for moment in week_ends]
        last_day = datetime.fromtimestamp(end - 1, now.zone).date()
        week, month = (list_fleet_days_until(last_day, count) for count in (WEEK_DAYS, MONTH_DAYS))
        month_seen = select_fleet_hours(seen, MONTH_DAYS, end)
        hours_by_model: dict[str, dict[tuple[int, str], StateMinutes]] = defaultdict(dict)
        for key, row in month_seen.items():
            hours_by_model[key[1]][key] = row
        courses = {
            model: build_fleet_page_course(hours_by_model[model], month, now.zone)
            for model in totals.summarize_usage_by_model(month_seen)
            if model in hours_by_model
        }
        lines = {model: render_fleet_page_course(course, month, model) for model, course in courses.items()}
        end_time = datetime.fromtimestamp(end, now.zone)
        text = load_compact_html_template("fleet.html").render(
            version=version,
            built=build_time_html(now, "minutes"),
            until=f"{format_weekday_date(end_time.date())} {end_time:%H:%M}" if seen else "",
            zone=getattr(now.zone, "key", None) or now.local.tzname(),
            problem=self.history.problem_text or ("" if seen else NO_HISTORY_YET),
            sentences=describe_use_in_sentences(
                compare_fleet_weeks(seen, week_shares, end, people),
                "the previous 7 days",
                count_full_hours(select_fleet_hours(seen, WEEK_DAYS, end), now.zone),
            ),
            past_waste=past_waste,
            hour_names=HOUR_NAMES,
            hourly_rows=build_heatmap_hourly_rows(week, build_fleet_heatmap_cells(seen, week, now.zone), end_time),
            month_days=[f"{day.day} {MONTH_NAMES[day.month - 1]}" for day in month],
            daily_rows=[build_heatmap_daily_row(model, course.days, month) for model, course in courses.items()],
            periods=[
                build_fleet_page_period(title, days, seen, end, lines) for title, days in PERIOD_DAYS.items() if seen
            ],
            reports=reports,
        )
        return text.encode("utf-8", "replace")


def build_fleet_page_period(
    title: str, days: int, seen: MinutesByHour, end: int, lines: Mapping[str, Html]
) -> dict[str, object]:
    """Build a table of models over some days, with those that were seen only before; the longest has lines."""
    period_seen = select_fleet_hours(seen, days, end)
    models = totals.summarize_usage_by_model(period_seen)
    total = totals.summarize_usage_total(models, period_seen.values())
    if days < MONTH_DAYS:
        lines = {}
        missing = sorted({model for _, model in seen} - {model for _, model in period_seen})
        models.update(dict.fromkeys(missing[: max(0, totals.MAX_MODELS - len(models))], NOTHING_SEEN))
    rows = [build_fleet_page_row(model, use, lines.get(model, EMPTY_HTML)) for model, use in models.items()]
    return {
        "title": title,
        "rows": rows,
        "total": build_fleet_page_row("All GPUs", total),
        "columns": list_filled_columns(USE_COLUMNS, rows),
        "coverage": totals.describe_usage_coverage(total, days),
    }


def list_fleet_page_reports(www: Path, are_users_shown: bool) -> list[str]:
    """List the weeks with a report, the newest first; delete those that name people who are not to be shown."""
    weeks: list[str] = []
    with suppress(OSError):
        for path in sorted((www / REPORTS_FOLDER).iterdir(), reverse=True):
            if REPORT_FILE_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                with suppress(OSError):  # one that cannot be read costs no other
                    if are_users_shown or not is_naming_report(path):
                        weeks.append(path.stem)
                    else:
                        path.unlink(missing_ok=True)
    return weeks[:MAX_REPORTS]


def is_naming_report(path: Path) -> bool:
    """Return True if a report names people."""
    with path.open("rb") as file:
        return file.read(len(NAMED_REPORT_START)) == NAMED_REPORT_START


def build_fleet_page_row(name: str, use: UseSummary, line: Html = EMPTY_HTML) -> FleetPageRow:
    return FleetPageRow(
        use=use,
        name=name,
        gpus=str(use.gpus) if use.seen else UNKNOWN,
        hours=format_gpu_hours(use.taken) if use.seen else UNKNOWN,
        **{part: format_usage_share(use.share(part)) for part in ("taken", "held", "booked", "free", "unclear")},
        use_percent=format_usage_share(use.use_percent),
        bar=render_fleet_page_bar(use),
        line=line,
    )


def list_filled_columns(
    columns: Sequence[tuple[str, str]], rows: Sequence[FleetPageRow], kept: int = 2
) -> list[tuple[str, str]]:
    """List the columns that have something other than zeros in a row, and the first ones in any case."""
    return [
        (name, label)
        for position, (name, label) in enumerate(columns)
        if position < kept or any(getattr(row, name) not in NOTHING for row in rows)
    ]


def render_fleet_page_bar(use: UseSummary) -> Html:
    """Draw the parts of what was seen side by side; the cells beside it have them in words."""
    if not use.seen:
        return Html(svg.NO_DATA)
    pieces, position = [], 0.0
    for part, minutes in use.parts.items():
        start, position = position, position + minutes * BAR_WIDTH / use.seen
        box = svg.SvgBox(round(start), 0, round(position) - round(start), BAR_HEIGHT)
        if box.width:
            pieces.append(svg.render_svg_rect(box, f"class={part}"))
            if part != "working":
                pieces.append(svg.render_svg_rect(box, f'fill="url(#_{part})"'))
    title = (
        f"{format_usage_share(use.share('taken'))} in use, including {format_usage_share(use.share('held'))} held "
        f"idle; {format_usage_share(use.share('booked'))} booked, idle; {format_usage_share(use.share('free'))} free"
    )
    return Html(
        f'<svg class=share width={BAR_WIDTH} height={BAR_HEIGHT} viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}" '
        f"aria-hidden=true><title>{escape_html(title)}</title>"
        f"<rect class=track width={BAR_WIDTH} height={BAR_HEIGHT} />{''.join(pieces)}</svg>"
    )


def render_person_bar(sums: UsageTotals | UsageShareSums, most: int) -> Html:
    """Draw what a person used and held; the person who used `most` gets the whole width."""
    if not sums.used:
        return EMPTY_HTML
    used = max(1, round(sums.used * BAR_WIDTH / most))
    held = round(sums.held * BAR_WIDTH / most)
    box = svg.SvgBox(used - held, 0, held, BAR_HEIGHT)
    pieces = [svg.render_svg_rect(svg.SvgBox(0, 0, used, BAR_HEIGHT), "class=working")]
    if held:
        pieces += [svg.render_svg_rect(box, "class=held"), svg.render_svg_rect(box, 'fill="url(#_held)"')]
    return Html(f"<svg class=share width={BAR_WIDTH} height={BAR_HEIGHT} aria-hidden=true>{''.join(pieces)}</svg>")


def render_fleet_page_course(course: FleetPageCourse, days: Sequence[date], name: str) -> Html:
    """Draw the taken part over some days, from 0 to 100 %, with the value of each day on hover."""
    mean = join_heatmap_sums(course.days).share
    if mean is None:
        return EMPTY_HTML
    highest = max(percent for percent in course.percents if percent is not None)
    shares = f"mean {format_usage_share(mean)}, highest {format_usage_share(highest)}"
    label = f"{name}, in use over {len(days)} days: {shares}"
    edges = svg.compute_svg_edges(len(days), LINE_WIDTH)
    hits = []
    for day, cell, start, end in zip(days, course.days, edges, edges[1:]):
        value = svg.NO_DATA if cell.share is None else f"{format_usage_share(cell.share)} in use"
        box = svg.SvgBox(start, 0, end - start, LINE_HEIGHT)
        hits.append(svg.render_svg_rect(box, "", f"{format_weekday_date(day)}: {value}"))
    return Html(
        f'<svg class=course width={LINE_WIDTH} height={LINE_HEIGHT} viewBox="0 0 {LINE_WIDTH} {LINE_HEIGHT}" role=img '
        f'aria-label="{escape_html(label)}">'
        f'<path class=axis d="M0 {LINE_HEIGHT}h{LINE_WIDTH}M0 0h{LINE_WIDTH}"/>'
        f'<path class=line d="{svg.build_svg_line_path(course.percents, LINE_WIDTH, LINE_HEIGHT, 100)}"/>'
        f"<g class=hits>{''.join(hits)}</g></svg>"
    )


def describe_use_in_sentences(
    changes: PeriodComparison, previous: str, full_hours: Sequence[FullHours] = ()
) -> list[str]:
    """Describe a period in sentences; `previous` is what the one before it is called."""
    share, share_before = map(format_usage_share, changes.taken_percents)
    if changes.taken_percents[1] is None:
        comparison = ""
    elif share == share_before:
        comparison = f", about the same as in {previous}"
    else:
        is_more = (changes.taken_percents[0] or 0) > changes.taken_percents[1]
        comparison = f", {'up' if is_more else 'down'} from {share_before} in {previous}"
    sentences = [f"{share} of GPU time was in use{comparison}."]
    if full_hours:
        (model, full, monitored, _), *others = full_hours[:MAX_FULL_MODELS]
        more = "".join(
            f", {other.model} in {other.full}{f' of {other.monitored}' if other.monitored != monitored else ''}"
            for other in others
        )
        hours = f"{full} of {monitored} working hours (Mon to Fri, 8 to 18 h)"
        sentences.append(f"{model} GPUs were full in {hours}{more}.")
    people = f"{changes.people.now:.0f} {'person' if changes.people.now == 1 else 'people'}"
    if changes.people.before is not None and changes.people.before != changes.people.now:
        people += f" ({changes.people.before:.0f} before)"
    used, wasted = (f"{change.now:,.1f} GPU-hours" for change in (changes.used, changes.wasted))
    sentences.append(f"{people} used {used}{describe_use_change(changes.used, previous)}.")
    sentences.append(f"{wasted} were held or booked but idle{describe_use_change(changes.wasted, previous)}.")
    return sentences


def describe_use_change(change: UsageChange, previous: str) -> str:
    """Describe a change like `, up 12 % from the previous week`; empty if nothing is known of the period before."""
    if change.before is None:
        return ""
    if change.percent is None or f"{change.percent:.0f}" in ("0", "-0"):
        return f", about the same as in {previous}" if change.percent is not None or not change.now else ""
    return f", {'up' if change.percent > 0 else 'down'} {abs(change.percent):,.0f} % from {previous}"


# Heat maps


def build_heatmap_hourly_rows(
    days: Sequence[date], cells: Sequence[Sequence[HeatmapSums]], until: datetime | None = None
) -> list[HeatmapRow]:
    """Build rows of days; `until` is the local time up to which they have come."""
    end = until.replace(tzinfo=None) if until else datetime.max
    rows = []
    for day, day_cells in zip(days, cells):
        row = HeatmapRow(format_weekday_date(day), [])
        for hour, cell in enumerate(day_cells):
            when = f"{row.name} {hour:02}:00"
            if not cell.hour_count:
                row.cells.append(HeatmapCell("", "", f"{when}: skipped by the clock change"))
            elif cell.share is None and datetime(day.year, day.month, day.day, hour) >= end:
                row.cells.append(HeatmapCell("", "", f"{when}: not yet"))
            else:
                row.cells.append(
                    build_heatmap_cell(f"{when} (twice, by the clock change)" if cell.hour_count > 1 else when, cell)
                )
        rows.append(row)
    return rows


def build_heatmap_daily_row(name: str, sums: Sequence[HeatmapSums], days: Sequence[date]) -> HeatmapRow:
    titles = (f"{name}, {format_weekday_date(day)}" for day in days)
    return HeatmapRow(name, list(map(build_heatmap_cell, titles, sums)))


def build_heatmap_cell(when: str, cell: HeatmapSums) -> HeatmapCell:
    """Build the cell of an hour or a day; numbers of GPUs are means over monitored time."""
    if cell.share is None:
        return HeatmapCell("", UNKNOWN, f"{when}: {NO_DATA}")
    gpus, seen_gpus = (f"{minutes / 60 / cell.hour_count:.1f}" for minutes in (cell.taken, cell.seen))
    return HeatmapCell(
        f"t{round(cell.share / 100 * TINT_COUNT)}",
        f"{cell.share:.0f}",
        f"{when}: {cell.share:.0f} % in use, {gpus} of {seen_gpus} GPUs on average",
    )
