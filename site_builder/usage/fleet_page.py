"""fleet.html: how much of the fleet is used, by model and by hour; and the pieces of it that a report has too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import NamedTuple

from site_builder.charts import svg
from site_builder.charts.svg import UNKNOWN, UsageCell
from site_builder.core.clock import Now
from site_builder.core.formatting import MONTH_NAMES
from site_builder.core.html import EMPTY_HTML, Html, escape_html, load_template
from site_builder.usage.fleet_trends import (
    MINUTES_PER_HOUR,
    PeriodComparison,
    PeriodUse,
    UsageCourse,
    UseSummary,
    ValueChange,
    join_usage_cells,
)

NO_DATA_HTML = Html(svg.NO_DATA)
# The bar of a row, in CSS pixels, and what it shows from left to right: all parts but for what was free.
BAR_WIDTH, BAR_HEIGHT = 160, 12
BAR_PARTS = ("working", "held", "booked", "unclear")
LINE_WIDTH, LINE_HEIGHT = 240, 40
NOT_SEEN_BEFORE = "no data for the time before"


class UseRow(NamedTuple):
    """Some GPUs as a table has them."""

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
    """A table of models over some time; the longest has the course of each."""

    title: str
    use_by_model: Mapping[str, UseSummary]
    period: PeriodUse
    courses_by_model: Mapping[str, UsageCourse]


class FleetPageContent(NamedTuple):
    """All that the page is made of; `until` is the end of the last hour in it."""

    periods: Sequence[ModelTable]
    days: Sequence[date]
    cells: Sequence[Sequence[UsageCell]]
    month: Sequence[date]
    changes: PeriodComparison | None
    until: float | None
    problem: str
    reports: Sequence[str]


def render_fleet_page(fleet: FleetPageContent, version: str, now: Now) -> bytes:
    """The whole page."""
    until = None if fleet.until is None else datetime.fromtimestamp(fleet.until, now.zone)
    text = load_template("fleet.html").render(
        version=version,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "minutes"), f"{now.local:%H:%M}"),
        until=f"{svg.format_day_label(until.date())} {until:%H:%M}" if until else "",
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        trouble=fleet.problem,
        changes=describe_comparison(fleet.changes) if fleet.changes else [],
        hours=svg.HOUR_NAMES,
        heat=svg.build_hourly_rows(fleet.days, fleet.cells, until),
        month=[f"{day.day} {MONTH_NAMES[day.month - 1]}" for day in fleet.month],
        daily=svg.build_daily_rows({name: one.days for name, one in find_longest_courses(fleet).items()}, fleet.month),
        periods=[
            (one.title, build_model_rows(one, fleet.month), build_total_row(one), describe_coverage(one.period))
            for one in fleet.periods
        ],
        reports=fleet.reports,
    )
    return text.encode("utf-8", "replace")


def find_longest_courses(fleet: FleetPageContent) -> Mapping[str, UsageCourse]:
    """Those of the longest time."""
    return fleet.periods[-1].courses_by_model if fleet.periods else {}


def build_model_rows(period: ModelTable, month: Sequence[date]) -> list[UseRow]:
    """Its models."""
    found = []
    for model, use in period.use_by_model.items():
        course = period.courses_by_model.get(model)
        found.append(build_use_row(model, use, render_course(course, month, model) if course else EMPTY_HTML))
    return found


def build_total_row(period: ModelTable) -> UseRow:
    """The last row of a table."""
    return build_use_row("All GPUs", period.period.use)


def build_use_row(name: str, use: UseSummary, picture: Html = EMPTY_HTML) -> UseRow:
    """Some GPUs; all numbers but the last are parts of what was seen."""
    return UseRow(
        name=name,
        gpus=str(use.gpus) if use.seen else UNKNOWN,
        hours=format_gpu_hours(use.taken) if use.seen else UNKNOWN,
        taken=format_share(use.share("taken")),
        held=format_share(use.share("held")),
        booked=format_share(use.share("booked")),
        free=format_share(use.share("free")),
        unclear=format_share(use.share("unclear")),
        use_percent=format_share(use.use_percent),
        bar=render_use_bar(use),
        line=picture,
    )


def format_share(value: float | None) -> str:
    """`61 %`; what is there but would be 0 is `<1 %`."""
    if value is None:
        return UNKNOWN
    return "<1 %" if 0 < value < 0.5 else f"{value:.0f} %"


def format_gpu_hours(minutes: float) -> str:
    """GPU-hours of GPU-minutes, with one decimal: `1,234.5`."""
    return f"{minutes / MINUTES_PER_HOUR:,.1f}"


def describe_coverage(span: PeriodUse) -> str:
    """How much of the time was seen, where it was not all."""
    if span.seen_percent is None:
        return "Nothing was seen"
    return "" if span.seen_percent >= 99.5 else f"{format_share(span.seen_percent)} of the time of these GPUs was seen"


def render_use_bar(use: UseSummary) -> Html:
    """The parts of what was seen side by side; the cells beside it tell them too."""
    if not use.seen:
        return NO_DATA_HTML
    minutes = {"working": use.taken - use.held, "held": use.held, "booked": use.booked, "unclear": use.unclear}
    pieces, at = [], 0.0
    for part in BAR_PARTS:
        begin, at = at, at + minutes[part] * BAR_WIDTH / use.seen
        box = svg.SvgBox(round(begin), 0, round(at) - round(begin), BAR_HEIGHT)
        if box.width:
            pieces.append(svg.render_rect(box, f"class={part}"))
            if part != "working":
                pieces.append(svg.render_rect(box, f'fill="url(#_{part})"'))
    said = (
        f"{format_share(use.share('taken'))} taken, of all {format_share(use.share('held'))} held; "
        f"{format_share(use.share('booked'))} booked and unused; {format_share(use.share('free'))} free"
    )
    return Html(
        f'<svg class=share width={BAR_WIDTH} height={BAR_HEIGHT} viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}" aria-hidden=true>'
        f"<title>{escape_html(said)}</title>"
        f"<rect class=track width={BAR_WIDTH} height={BAR_HEIGHT} />{''.join(pieces)}</svg>"
    )


def render_course(course: UsageCourse, days: Sequence[date], name: str) -> Html:
    """How much was taken over some days, from 0 to 100 %; each day tells its own on hover, and a table has them too."""
    whole = join_usage_cells(course.days)
    if whole.share is None:
        return EMPTY_HTML
    most = max(one for one in course.percents if one is not None)
    said = f"{name}, taken over {len(days)} days: {format_share(whole.share)} on average, {format_share(most)} at most"
    across = svg.compute_edges(len(days), LINE_WIDTH)
    hits = []
    for place, (day, cell) in enumerate(zip(days, course.days)):
        mean = svg.NO_DATA if cell.share is None else f"{format_share(cell.share)} taken"
        box = svg.SvgBox(across[place], 0, across[place + 1] - across[place], LINE_HEIGHT)
        hits.append(svg.render_rect(box, "", f"{svg.format_day_label(day)}: {mean}"))
    return Html(
        f'<svg class=course width={LINE_WIDTH} height={LINE_HEIGHT} viewBox="0 0 {LINE_WIDTH} {LINE_HEIGHT}" role=img '
        f'aria-label="{escape_html(said)}">'
        f'<path class=axis d="M0 {LINE_HEIGHT}h{LINE_WIDTH}M0 0h{LINE_WIDTH}"/>'
        f'<path class=line d="{svg.build_line_path(course.percents, LINE_WIDTH, LINE_HEIGHT, 100)}"/>'
        f"<g class=hits>{''.join(hits)}</g></svg>"
    )


def describe_comparison(changes: PeriodComparison) -> list[tuple[str, str, str]]:
    """Each change: what, how much, and against what it was before."""
    return [
        ("GPU-hours used", f"{changes.used.now:,.1f}", describe_change(changes.used)),
        (
            "taken, of all that was seen",
            format_share(changes.taken_percents[0]),
            describe_previous_share(changes.taken_percents[1]),
        ),
        ("people who used GPUs", f"{changes.people.now:.0f}", describe_change(changes.people, 0)),
        ("GPU-hours held idle or booked and unused", f"{changes.wasted.now:,.1f}", describe_change(changes.wasted)),
    ]


def describe_previous_share(share: float | None) -> str:
    """How much it was before."""
    return NOT_SEEN_BEFORE if share is None else f"{format_share(share)} before"


def describe_change(change: ValueChange, digits: int = 1) -> str:
    """`12 % more than before (1,102.0)`."""
    if change.before is None:
        return NOT_SEEN_BEFORE
    was = f"{change.before:,.{digits}f}"
    if change.percent is None:
        return f"{was} before"
    if f"{change.percent:.0f}" in ("0", "-0"):
        return f"as before ({was})"
    return f"{abs(change.percent):,.0f} % {'more' if change.percent > 0 else 'less'} than before ({was})"
