"""Show how much of the fleet is used, by model, by hour and against the week before: fleet.html, and in reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import NamedTuple

from site_builder.charts import svg
from site_builder.charts.svg import NO_DATA, UNKNOWN
from site_builder.core.clock import Now
from site_builder.core.formatting import HOUR, MONTH_NAMES, format_gpu_hours, format_weekday_date
from site_builder.core.html import EMPTY_HTML, Html, build_time_html, escape_html, load_compact_html_template
from site_builder.history.usage_sums import StateMinutes
from site_builder.usage.totals import (
    MINUTES_PER_HOUR,
    PeriodComparison,
    PeriodTotals,
    UsageChange,
    UseSummary,
    describe_usage_coverage,
    find_usage_midnight,
    format_usage_share,
)

HOURS_PER_DAY = 24
HOUR_NAMES = [f"{hour:02}" for hour in range(HOURS_PER_DAY)]
# Tints of a heat map.
TINT_COUNT = 10
# Sizes of the bar and of the line of a row, in CSS pixels.
BAR_WIDTH, BAR_HEIGHT = 160, 12
LINE_WIDTH, LINE_HEIGHT = 240, 40
NOT_SEEN_BEFORE = "no data for the time before"
MinutesByHour = Mapping[tuple[int, str], StateMinutes]  # by the start of an hour, and by model


class UsageCell(NamedTuple):
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
    cells: Sequence[HeatmapCell]


class FleetPageCourse(NamedTuple):
    """Taken part over some days: in percent in steps of some hours, and by day."""

    percents: list[float | None]
    days: list[UsageCell]


class FleetPageRow(NamedTuple):
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


class FleetPageModelTable(NamedTuple):
    """Table of models over a period; the longest period has the course of each model."""

    title: str
    use_by_model: Mapping[str, UseSummary]
    period: PeriodTotals
    courses_by_model: Mapping[str, FleetPageCourse]


class FleetPageContent(NamedTuple):
    """Content of the page; `until` is the end of the last hour in it."""

    problem: str
    periods: Sequence[FleetPageModelTable] = ()
    days: Sequence[date] = ()
    cells: Sequence[Sequence[UsageCell]] = ()
    month: Sequence[date] = ()
    changes: PeriodComparison | None = None
    until: float | None = None
    reports: Sequence[str] = ()


# Sums, in GPU-minutes


def count_fleet_hour_minutes(_: int) -> int:
    return MINUTES_PER_HOUR


def build_fleet_day_length(zone: tzinfo) -> Callable[[date], int]:
    """Return a function for the number of minutes in a day: it may have 23 hours, or 25."""
    return lambda day: (find_usage_midnight(day + timedelta(days=1), zone) - find_usage_midnight(day, zone)) // 60


def list_fleet_days_until(last: date, count: int) -> list[date]:
    return [last - timedelta(days=back) for back in reversed(range(count))]


def build_fleet_heatmap_cells(seen: MinutesByHour, days: Sequence[date], zone: tzinfo) -> list[list[UsageCell]]:
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for (at, _), row in seen.items():
        sums[at][0] += row.seen
        sums[at][1] += row.busy + row.held + row.conflict
    return build_fleet_cells_from_sums(sums, days, zone)


def build_fleet_cells_from_sums(
    sums: Mapping[int, Sequence[int]], days: Sequence[date], zone: tzinfo
) -> list[list[UsageCell]]:
    """Build the rows from minutes that were seen and taken by hour; an hour that begins at 17:30 is in 17."""
    cells = {(day, hour): [0, 0, 0] for day in days for hour in range(HOURS_PER_DAY)}
    start, end = (
        find_usage_midnight(days[0], zone) // HOUR * HOUR,
        find_usage_midnight(days[-1] + timedelta(days=1), zone),
    )
    for at in range(start, end, HOUR):
        local = datetime.fromtimestamp(at, zone)
        cell = cells.get((local.date(), local.hour))
        if cell:
            seen, taken = sums.get(at, (0, 0))
            cell[:] = cell[0] + 1, cell[1] + seen, cell[2] + taken
    return [[UsageCell(*cells[day, hour]) for hour in range(HOURS_PER_DAY)] for day in days]


def build_fleet_page_course(
    seen: MinutesByHour, days: Sequence[date], step_hours: int, zone: tzinfo
) -> FleetPageCourse:
    rows = build_fleet_heatmap_cells(seen, days, zone)
    cells = [cell for row in rows for cell in row]
    steps = (cells[start : start + step_hours] for start in range(0, len(cells), step_hours))
    return FleetPageCourse(
        [join_heatmap_cells(step).share for step in steps], [join_heatmap_cells(row) for row in rows]
    )


def join_heatmap_cells(cells: Iterable[UsageCell]) -> UsageCell:
    return UsageCell(*map(sum, zip(UsageCell(0, 0, 0), *cells)))


# The page


def render_fleet_page(fleet: FleetPageContent, version: str, now: Now) -> bytes:
    until = None if fleet.until is None else datetime.fromtimestamp(fleet.until, now.zone)
    courses = fleet.periods[-1].courses_by_model if fleet.periods else {}
    text = load_compact_html_template("fleet.html").render(
        version=version,
        built=build_time_html(now, "minutes"),
        until=f"{format_weekday_date(until.date())} {until:%H:%M}" if until else "",
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        problem=fleet.problem,
        changes=describe_fleet_page_comparison(fleet.changes) if fleet.changes else [],
        hour_names=HOUR_NAMES,
        hourly_rows=build_heatmap_hourly_rows(fleet.days, fleet.cells, until),
        month_days=[f"{day.day} {MONTH_NAMES[day.month - 1]}" for day in fleet.month],
        daily_rows=build_heatmap_daily_rows({model: course.days for model, course in courses.items()}, fleet.month),
        periods=[
            {
                "title": table.title,
                "rows": [
                    build_fleet_page_row(
                        model, use, render_fleet_page_course(table.courses_by_model.get(model), fleet.month, model)
                    )
                    for model, use in table.use_by_model.items()
                ],
                "total": build_fleet_page_row("All GPUs", table.period.use),
                "coverage": describe_usage_coverage(table.period),
            }
            for table in fleet.periods
        ],
        reports=fleet.reports,
    )
    return text.encode("utf-8", "replace")


def build_fleet_page_row(name: str, use: UseSummary, line: Html = EMPTY_HTML) -> FleetPageRow:
    return FleetPageRow(
        name=name,
        gpus=str(use.gpus) if use.seen else UNKNOWN,
        hours=format_gpu_hours(use.taken) if use.seen else UNKNOWN,
        **{part: format_usage_share(use.share(part)) for part in ("taken", "held", "booked", "free", "unclear")},
        use_percent=format_usage_share(use.use_percent),
        bar=render_fleet_page_bar(use),
        line=line,
    )


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
        f"{format_usage_share(use.share('taken'))} taken, of all {format_usage_share(use.share('held'))} held; "
        f"{format_usage_share(use.share('booked'))} booked and unused; {format_usage_share(use.share('free'))} free"
    )
    return Html(
        f'<svg class=share width={BAR_WIDTH} height={BAR_HEIGHT} viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}" '
        f"aria-hidden=true><title>{escape_html(title)}</title>"
        f"<rect class=track width={BAR_WIDTH} height={BAR_HEIGHT} />{''.join(pieces)}</svg>"
    )


def render_fleet_page_course(course: FleetPageCourse | None, days: Sequence[date], name: str) -> Html:
    """Draw the taken part over some days, from 0 to 100 %, with the value of each day on hover."""
    mean = join_heatmap_cells(course.days).share if course else None
    if course is None or mean is None:
        return EMPTY_HTML
    highest = max(percent for percent in course.percents if percent is not None)
    shares = f"{format_usage_share(mean)} on average, {format_usage_share(highest)} at most"
    label = f"{name}, taken over {len(days)} days: {shares}"
    edges = svg.compute_svg_edges(len(days), LINE_WIDTH)
    hits = []
    for day, cell, start, end in zip(days, course.days, edges, edges[1:]):
        value = svg.NO_DATA if cell.share is None else f"{format_usage_share(cell.share)} taken"
        box = svg.SvgBox(start, 0, end - start, LINE_HEIGHT)
        hits.append(svg.render_svg_rect(box, "", f"{format_weekday_date(day)}: {value}"))
    return Html(
        f'<svg class=course width={LINE_WIDTH} height={LINE_HEIGHT} viewBox="0 0 {LINE_WIDTH} {LINE_HEIGHT}" role=img '
        f'aria-label="{escape_html(label)}">'
        f'<path class=axis d="M0 {LINE_HEIGHT}h{LINE_WIDTH}M0 0h{LINE_WIDTH}"/>'
        f'<path class=line d="{svg.build_svg_line_path(course.percents, LINE_WIDTH, LINE_HEIGHT, 100)}"/>'
        f"<g class=hits>{''.join(hits)}</g></svg>"
    )


def describe_fleet_page_comparison(changes: PeriodComparison) -> list[tuple[str, str, str]]:
    """Describe each change: what it is of, the value, and how it compares with the one before."""
    share, share_before = changes.taken_percents
    return [
        ("GPU-hours used", f"{changes.used.now:,.1f}", describe_fleet_page_change(changes.used)),
        (
            "taken, of all that was seen",
            format_usage_share(share),
            NOT_SEEN_BEFORE if share_before is None else f"{format_usage_share(share_before)} before",
        ),
        ("people who used GPUs", f"{changes.people.now:.0f}", describe_fleet_page_change(changes.people, 0)),
        (
            "GPU-hours held idle or booked and unused",
            f"{changes.wasted.now:,.1f}",
            describe_fleet_page_change(changes.wasted),
        ),
    ]


def describe_fleet_page_change(change: UsageChange, digits: int = 1) -> str:
    """Describe a change like `12 % more than before (1,102.0)`."""
    if change.before is None:
        return NOT_SEEN_BEFORE
    before = f"{change.before:,.{digits}f}"
    if change.percent is None:
        return f"{before} before"
    if f"{change.percent:.0f}" in ("0", "-0"):
        return f"as before ({before})"
    return f"{abs(change.percent):,.0f} % {'more' if change.percent > 0 else 'less'} than before ({before})"


# Heat maps


def build_heatmap_hourly_rows(
    days: Sequence[date], cells: Sequence[Sequence[UsageCell]], until: datetime | None = None
) -> list[HeatmapRow]:
    """Build rows of days; `until` is the local time up to which they have come."""
    end = until.replace(tzinfo=None) if until else datetime.max
    rows = []
    for day, row in zip(days, cells):
        start = datetime.combine(day, datetime.min.time())
        has_begun = [start.replace(hour=hour) < end for hour in range(HOURS_PER_DAY)]
        row_cells = [build_heatmap_hour_cell(day, hour, row[hour], has_begun[hour]) for hour in range(HOURS_PER_DAY)]
        rows.append(HeatmapRow(format_weekday_date(day), row_cells))
    return rows


def build_heatmap_daily_rows(
    cells_by_name: Mapping[str, Sequence[UsageCell]], days: Sequence[date]
) -> list[HeatmapRow]:
    return [
        HeatmapRow(
            name,
            [build_heatmap_cell(f"{name}, {format_weekday_date(day)}", cell) for day, cell in zip(days, cells)],
        )
        for name, cells in cells_by_name.items()
    ]


def build_heatmap_hour_cell(day: date, hour: int, cell: UsageCell, has_begun: bool) -> HeatmapCell:
    when = f"{format_weekday_date(day)} {hour:02}:00"
    if not cell.hour_count:
        return HeatmapCell("", "", f"{when}: the clocks left this hour out")
    if not has_begun and cell.share is None:
        return HeatmapCell("", "", f"{when}: still to come")
    if cell.hour_count > 1:
        when = f"{when} (this hour came twice)"
    return build_heatmap_cell(when, cell)


def build_heatmap_cell(when: str, cell: UsageCell) -> HeatmapCell:
    """Build the cell of an hour or a day; numbers of GPUs are means over the minutes that were seen."""
    if cell.share is None:
        return HeatmapCell("", UNKNOWN, f"{when}: {NO_DATA}")
    gpus, seen_gpus = (f"{minutes / 60 / cell.hour_count:.1f}" for minutes in (cell.taken, cell.seen))
    return HeatmapCell(
        f"t{round(cell.share / 100 * TINT_COUNT)}",
        f"{cell.share:.0f}",
        f"{when}: {cell.share:.0f} % taken, {gpus} of {seen_gpus} GPUs on average",
    )
