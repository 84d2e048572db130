"""Show how much of the fleet is used, by model, by hour and against the week before: fleet.html, and in reports."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import NamedTuple, TypeVar

from site_builder.charts import svg
from site_builder.charts.svg import HOURS_PER_DAY, UNKNOWN, UsageCell
from site_builder.core.clock import Now
from site_builder.core.formatting import HOUR, MONTH_NAMES
from site_builder.core.html import EMPTY_HTML, Html, escape_html, format_build_time, load_compact_template
from site_builder.history.usage_sums import StateMinutes
from site_builder.usage.totals import find_usage_midnight

MINUTES_PER_HOUR = 60
# Models that have a row of their own; a host can claim any number.
MAX_MODELS = 40
OTHER_MODELS = "other models"
# Sizes of the bar and of the line of a row, in CSS pixels.
BAR_WIDTH, BAR_HEIGHT = 160, 12
LINE_WIDTH, LINE_HEIGHT = 240, 40
NOT_SEEN_BEFORE = "no data for the time before"
TimeKey = TypeVar("TimeKey", int, date)
MinutesByHour = Mapping[tuple[int, str], StateMinutes]  # by the start of an hour, and by model


class UseSummary(NamedTuple):
    """Minutes of some GPUs; `gpus` is the most that were seen at once, `use_percent` their use while taken.

    Each minute was taken, booked with nobody on it, free, or unclear; held is a part of taken.
    """

    gpus: int
    seen: int
    taken: int
    held: int
    booked: int
    free: int
    unclear: int
    use_percent: float | None

    def share(self, part: str) -> float | None:
        """Return a part of what was seen, in percent; None where nothing was."""
        minutes: int = getattr(self, part)
        return 100 * minutes / self.seen if self.seen else None

    @property
    def parts(self) -> dict[str, int]:
        """Return the parts of a bar, in their order; the rest was free."""
        return {
            "working": self.taken - self.held,
            "held": self.held,
            "booked": self.booked,
            "unclear": self.unclear,
        }

    @property
    def wasted(self) -> int:
        return self.held + self.booked


NOTHING_SEEN = UseSummary(gpus=0, seen=0, taken=0, held=0, booked=0, free=0, unclear=0, use_percent=None)


class PeriodUse(NamedTuple):
    """Sums of some days; `minutes` is how long each GPU could have been seen."""

    use: UseSummary
    minutes: int
    people: int

    @property
    def seen_percent(self) -> float | None:
        possible = self.use.gpus * self.minutes
        return min(100.0, 100 * self.use.seen / possible) if possible else None


class ValueChange(NamedTuple):
    """Sum, and what it was before; None where that time was not seen."""

    now: float
    before: float | None

    @property
    def percent(self) -> float | None:
        return 100 * (self.now - self.before) / self.before if self.before else None


class PeriodComparison(NamedTuple):
    """Period against the one before it: GPU-hours, the taken part of what was seen, and people."""

    used: ValueChange
    taken_percents: tuple[float | None, float | None]
    people: ValueChange
    wasted: ValueChange


class UsageCourse(NamedTuple):
    """Taken part over some days: in percent in steps of some hours, and by day."""

    percents: list[float | None]
    days: list[UsageCell]


class UseRow(NamedTuple):
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


class ModelTable(NamedTuple):
    """Table of models over a period; the longest period has the course of each model."""

    title: str
    use_by_model: Mapping[str, UseSummary]
    period: PeriodUse
    courses_by_model: Mapping[str, UsageCourse]


class FleetPageContent(NamedTuple):
    """Content of the page; `until` is the end of the last hour in it."""

    problem: str
    periods: Sequence[ModelTable] = ()
    days: Sequence[date] = ()
    cells: Sequence[Sequence[UsageCell]] = ()
    month: Sequence[date] = ()
    changes: PeriodComparison | None = None
    until: float | None = None
    reports: Sequence[str] = ()


# Sums, in GPU-minutes


def sum_state_minutes(rows: Iterable[StateMinutes]) -> StateMinutes:
    return StateMinutes._make(map(sum, zip(StateMinutes._make([0] * len(StateMinutes._fields)), *rows)))


def summarize_use(seen: StateMinutes, gpus: int) -> UseSummary:
    return UseSummary(
        gpus=gpus,
        seen=seen.seen,
        taken=seen.busy + seen.held + seen.conflict,
        held=seen.held,
        booked=seen.booked,
        free=seen.free,
        unclear=seen.unknown + seen.lost,
        use_percent=seen.taken_use / 2 / seen.taken_told if seen.taken_told else None,
    )


def summarize_by_model(
    seen: Mapping[tuple[TimeKey, str], StateMinutes], count_minutes: Callable[[TimeKey], int]
) -> dict[str, UseSummary]:
    """Summarize each model, the most seen first; `count_minutes` returns the length of a time key."""
    rows_by_model: dict[str, list[StateMinutes]] = defaultdict(list)
    gpus_by_model: dict[str, int] = defaultdict(int)
    for (time_key, model), row in seen.items():
        rows_by_model[model].append(row)
        gpus_by_model[model] = max(gpus_by_model[model], math.ceil(row.seen / count_minutes(time_key)))
    models = {
        model: summarize_use(sum_state_minutes(rows), gpus_by_model[model]) for model, rows in rows_by_model.items()
    }
    ordered = sorted(models, key=lambda model: (-models[model].seen, model))
    shown = {model: models[model] for model in ordered[:MAX_MODELS]}
    others = ordered[MAX_MODELS:]
    if others:
        other_rows = (row for model in others for row in rows_by_model[model])
        shown[OTHER_MODELS] = summarize_use(sum_state_minutes(other_rows), sum(map(gpus_by_model.__getitem__, others)))
    return shown


def summarize_total(models: Mapping[str, UseSummary], seen: Iterable[StateMinutes]) -> UseSummary:
    return summarize_use(sum_state_minutes(seen), sum(use.gpus for use in models.values()))


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


def build_usage_course(seen: MinutesByHour, days: Sequence[date], step_hours: int, zone: tzinfo) -> UsageCourse:
    rows = build_fleet_heatmap_cells(seen, days, zone)
    cells = [cell for row in rows for cell in row]
    steps = (cells[start : start + step_hours] for start in range(0, len(cells), step_hours))
    return UsageCourse([join_usage_cells(step).share for step in steps], [join_usage_cells(row) for row in rows])


def join_usage_cells(cells: Iterable[UsageCell]) -> UsageCell:
    return UsageCell(*map(sum, zip(UsageCell(0, 0, 0), *cells)))


def compare_usage_periods(current: PeriodUse, previous: PeriodUse) -> PeriodComparison:
    has_previous = previous.use.seen > 0

    def compare_hours(minutes: int, minutes_before: int) -> ValueChange:
        return ValueChange(minutes / MINUTES_PER_HOUR, minutes_before / MINUTES_PER_HOUR if has_previous else None)

    return PeriodComparison(
        used=compare_hours(current.use.taken, previous.use.taken),
        taken_percents=(current.use.share("taken"), previous.use.share("taken")),
        people=ValueChange(current.people, previous.people if has_previous else None),
        wasted=compare_hours(current.use.wasted, previous.use.wasted),
    )


# The page


def render_fleet_page(fleet: FleetPageContent, version: str, now: Now) -> bytes:
    until = None if fleet.until is None else datetime.fromtimestamp(fleet.until, now.zone)
    courses = fleet.periods[-1].courses_by_model if fleet.periods else {}
    text = load_compact_template("fleet.html").render(
        version=version,
        built=format_build_time(now, "minutes"),
        until=f"{svg.format_heatmap_day_label(until.date())} {until:%H:%M}" if until else "",
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        problem=fleet.problem,
        changes=describe_usage_comparison(fleet.changes) if fleet.changes else [],
        hour_names=svg.HOUR_NAMES,
        hourly_rows=svg.build_heatmap_hourly_rows(fleet.days, fleet.cells, until),
        month_days=[f"{day.day} {MONTH_NAMES[day.month - 1]}" for day in fleet.month],
        daily_rows=svg.build_heatmap_daily_rows({model: course.days for model, course in courses.items()}, fleet.month),
        periods=[
            {
                "title": table.title,
                "rows": [
                    build_use_row(
                        model, use, render_usage_course(table.courses_by_model.get(model), fleet.month, model)
                    )
                    for model, use in table.use_by_model.items()
                ],
                "total": build_use_row("All GPUs", table.period.use),
                "coverage": describe_usage_coverage(table.period),
            }
            for table in fleet.periods
        ],
        reports=fleet.reports,
    )
    return text.encode("utf-8", "replace")


def build_use_row(name: str, use: UseSummary, line: Html = EMPTY_HTML) -> UseRow:
    return UseRow(
        name=name,
        gpus=str(use.gpus) if use.seen else UNKNOWN,
        hours=format_gpu_hours(use.taken) if use.seen else UNKNOWN,
        **{part: format_usage_share(use.share(part)) for part in ("taken", "held", "booked", "free", "unclear")},
        use_percent=format_usage_share(use.use_percent),
        bar=render_usage_bar(use),
        line=line,
    )


def format_usage_share(percent: float | None) -> str:
    """Format `61 %`; a small part that would be 0 is `<1 %`."""
    if percent is None:
        return UNKNOWN
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def format_gpu_hours(minutes: float) -> str:
    """Format GPU-minutes as hours, like `1,234.5`."""
    return f"{minutes / MINUTES_PER_HOUR:,.1f}"


def describe_usage_coverage(period: PeriodUse) -> str:
    """Say how much of the time was seen, if it was not all."""
    seen = period.seen_percent
    if seen is None:
        return "Nothing was seen"
    return "" if seen >= 99.5 else f"{format_usage_share(seen)} of the time of these GPUs was seen"


def render_usage_bar(use: UseSummary) -> Html:
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


def render_usage_course(course: UsageCourse | None, days: Sequence[date], name: str) -> Html:
    """Draw the taken part over some days, from 0 to 100 %, with the value of each day on hover."""
    mean = join_usage_cells(course.days).share if course else None
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
        hits.append(svg.render_svg_rect(box, "", f"{svg.format_heatmap_day_label(day)}: {value}"))
    return Html(
        f'<svg class=course width={LINE_WIDTH} height={LINE_HEIGHT} viewBox="0 0 {LINE_WIDTH} {LINE_HEIGHT}" role=img '
        f'aria-label="{escape_html(label)}">'
        f'<path class=axis d="M0 {LINE_HEIGHT}h{LINE_WIDTH}M0 0h{LINE_WIDTH}"/>'
        f'<path class=line d="{svg.build_svg_line_path(course.percents, LINE_WIDTH, LINE_HEIGHT, 100)}"/>'
        f"<g class=hits>{''.join(hits)}</g></svg>"
    )


def describe_usage_comparison(changes: PeriodComparison) -> list[tuple[str, str, str]]:
    """Describe each change: what it is of, the value, and how it compares with the one before."""
    share, share_before = changes.taken_percents
    return [
        ("GPU-hours used", f"{changes.used.now:,.1f}", describe_usage_change(changes.used)),
        (
            "taken, of all that was seen",
            format_usage_share(share),
            NOT_SEEN_BEFORE if share_before is None else f"{format_usage_share(share_before)} before",
        ),
        ("people who used GPUs", f"{changes.people.now:.0f}", describe_usage_change(changes.people, 0)),
        (
            "GPU-hours held idle or booked and unused",
            f"{changes.wasted.now:,.1f}",
            describe_usage_change(changes.wasted),
        ),
    ]


def describe_usage_change(change: ValueChange, digits: int = 1) -> str:
    """Describe a change like `12 % more than before (1,102.0)`."""
    if change.before is None:
        return NOT_SEEN_BEFORE
    before = f"{change.before:,.{digits}f}"
    if change.percent is None:
        return f"{before} before"
    if f"{change.percent:.0f}" in ("0", "-0"):
        return f"as before ({before})"
    return f"{abs(change.percent):,.0f} % {'more' if change.percent > 0 else 'less'} than before ({before})"
