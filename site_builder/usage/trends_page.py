"""fleet.html: how much of the fleet is used, by model and by hour; and the pieces of it that a report has too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import NamedTuple

from site_builder.charts import heatmap, svg
from site_builder.charts.heatmap import UNKNOWN
from site_builder.core.clock import Now
from site_builder.core.formatting import MONTHS
from site_builder.core.html import NOTHING, Html, escaped
from site_builder.core.templates import escaping
from site_builder.usage.trends import MINUTES, Cell, Change, Changes, Course, Span, Use, joined

NO_DATA = Html(heatmap.NO_DATA)
# The bar of a row, in CSS pixels, and what it shows from left to right: all parts but for what was free.
BAR, BAR_HEIGHT = 160, 12
PARTS = ("working", "held", "booked", "unclear")
LINE, LINE_HEIGHT = 240, 40
NOT_SEEN = "no data for the time before"


class Row(NamedTuple):
    """Some GPUs as a table has them."""

    name: str
    gpus: str
    hours: str
    taken: str
    held: str
    booked: str
    free: str
    unclear: str
    percent: str
    bar: Html
    line: Html = NOTHING


class Period(NamedTuple):
    """A table of models over some time; the longest has the course of each."""

    title: str
    models: Mapping[str, Use]
    span: Span
    courses: Mapping[str, Course]


class Fleet(NamedTuple):
    """All that the page is made of; `until` is the end of the last hour in it."""

    periods: Sequence[Period]
    days: Sequence[date]
    cells: Sequence[Sequence[Cell]]
    month: Sequence[date]
    changes: Changes | None
    until: float | None
    trouble: str
    reports: Sequence[str]


def page(fleet: Fleet, version: str, now: Now) -> bytes:
    """The whole page."""
    until = None if fleet.until is None else datetime.fromtimestamp(fleet.until, now.zone)
    text = escaping("fleet.html").render(
        version=version,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "minutes"), f"{now.local:%H:%M}"),
        until=f"{heatmap.day_name(until.date())} {until:%H:%M}" if until else "",
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        trouble=fleet.trouble,
        changes=told(fleet.changes) if fleet.changes else [],
        hours=heatmap.HOUR_NAMES,
        heat=heatmap.rows(fleet.days, fleet.cells, until),
        month=[f"{day.day} {MONTHS[day.month - 1]}" for day in fleet.month],
        daily=heatmap.by_day({name: one.days for name, one in courses_of(fleet).items()}, fleet.month),
        periods=[(one.title, rows(one, fleet.month), total(one), seen_of(one.span)) for one in fleet.periods],
        reports=fleet.reports,
    )
    return text.encode("utf-8", "replace")


def courses_of(fleet: Fleet) -> Mapping[str, Course]:
    """Those of the longest time."""
    return fleet.periods[-1].courses if fleet.periods else {}


def rows(period: Period, month: Sequence[date]) -> list[Row]:
    """Its models."""
    found = []
    for model, use in period.models.items():
        course = period.courses.get(model)
        found.append(row(model, use, line(course, month, model) if course else NOTHING))
    return found


def total(period: Period) -> Row:
    """The last row of a table."""
    return row("All GPUs", period.span.use)


def row(name: str, use: Use, picture: Html = NOTHING) -> Row:
    """Some GPUs; all numbers but the last are parts of what was seen."""
    shares = {what: percent(use.share(what)) for what in ("taken", "held", "booked", "free", "unclear")}
    return Row(
        name,
        str(use.gpus) if use.seen else UNKNOWN,
        hours(use.taken) if use.seen else UNKNOWN,
        **shares,
        percent=percent(use.percent),
        bar=bar(use),
        line=picture,
    )


def percent(value: float | None) -> str:
    """`61 %`; what is there but would be 0 is `<1 %`."""
    if value is None:
        return UNKNOWN
    return "<1 %" if 0 < value < 0.5 else f"{value:.0f} %"


def hours(minutes: float) -> str:
    """GPU-hours of GPU-minutes, with one decimal: `1,234.5`."""
    return f"{minutes / MINUTES:,.1f}"


def seen_of(span: Span) -> str:
    """How much of the time was seen, where it was not all."""
    if span.seen is None:
        return "Nothing was seen"
    return "" if span.seen >= 99.5 else f"{percent(span.seen)} of the time of these GPUs was seen"


def bar(use: Use) -> Html:
    """The parts of what was seen side by side; the cells beside it tell them too."""
    if not use.seen:
        return NO_DATA
    minutes = {"working": use.taken - use.held, "held": use.held, "booked": use.booked, "unclear": use.unclear}
    pieces, at = [], 0.0
    for part in PARTS:
        begin, at = at, at + minutes[part] * BAR / use.seen
        box = svg.Box(round(begin), 0, round(at) - round(begin), BAR_HEIGHT)
        if box.width:
            pieces.append(svg.rect(box, f"class={part}"))
            if part != "working":
                pieces.append(svg.rect(box, f'fill="url(#_{part})"'))
    said = (
        f"{percent(use.share('taken'))} taken, of all {percent(use.share('held'))} held; "
        f"{percent(use.share('booked'))} booked and unused; {percent(use.share('free'))} free"
    )
    return Html(
        f'<svg class=share width={BAR} height={BAR_HEIGHT} viewBox="0 0 {BAR} {BAR_HEIGHT}" aria-hidden=true>'
        f"<title>{escaped(said)}</title>"
        f"<rect class=track width={BAR} height={BAR_HEIGHT} />{''.join(pieces)}</svg>"
    )


def line(course: Course, days: Sequence[date], name: str) -> Html:
    """How much was taken over some days, from 0 to 100 %; each day tells its own on hover, and a table has them too."""
    whole = joined(course.days)
    if whole.share is None:
        return NOTHING
    most = max(one for one in course.slots if one is not None)
    said = f"{name}, taken over {len(days)} days: {percent(whole.share)} on average, {percent(most)} at most"
    across = svg.edges(len(days), LINE)
    hits = []
    for place, (day, cell) in enumerate(zip(days, course.days)):
        mean = heatmap.NO_DATA if cell.share is None else f"{percent(cell.share)} taken"
        box = svg.Box(across[place], 0, across[place + 1] - across[place], LINE_HEIGHT)
        hits.append(svg.rect(box, "", f"{heatmap.day_name(day)}: {mean}"))
    return Html(
        f'<svg class=course width={LINE} height={LINE_HEIGHT} viewBox="0 0 {LINE} {LINE_HEIGHT}" role=img '
        f'aria-label="{escaped(said)}">'
        f'<path class=axis d="M0 {LINE_HEIGHT}h{LINE}M0 0h{LINE}"/>'
        f'<path class=line d="{svg.line(course.slots, LINE, LINE_HEIGHT, 100)}"/>'
        f"<g class=hits>{''.join(hits)}</g></svg>"
    )


def told(changes: Changes) -> list[tuple[str, str, str]]:
    """Each change: what, how much, and against what it was before."""
    return [
        ("GPU-hours used", f"{changes.used.now:,.1f}", against(changes.used)),
        ("taken, of all that was seen", percent(changes.share[0]), before_of(changes.share[1])),
        ("people who used GPUs", f"{changes.people.now:.0f}", against(changes.people, 0)),
        ("GPU-hours held idle or booked and unused", f"{changes.wasted.now:,.1f}", against(changes.wasted)),
    ]


def before_of(share: float | None) -> str:
    """How much it was before."""
    return NOT_SEEN if share is None else f"{percent(share)} before"


def against(change: Change, digits: int = 1) -> str:
    """`12 % more than before (1,102.0)`."""
    if change.before is None:
        return NOT_SEEN
    was = f"{change.before:,.{digits}f}"
    if change.percent is None:
        return f"{was} before"
    if f"{change.percent:.0f}" in ("0", "-0"):
        return f"as before ({was})"
    return f"{abs(change.percent):,.0f} % {'more' if change.percent > 0 else 'less'} than before ({was})"
