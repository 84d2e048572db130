"""The report of a week as one page that needs nothing beside it: it is mailed as well as served."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from site_builder.charts import svg
from site_builder.charts.svg import UNKNOWN
from site_builder.core.clock import Now
from site_builder.core.formatting import join_names
from site_builder.core.html import EMPTY_HTML, Html, load_template
from site_builder.health import events
from site_builder.health.model import HealthEvent
from site_builder.reports import rules
from site_builder.reports.rules import CurrentWaste, WastedGpu, WeeklyReport
from site_builder.usage import fleet_page
from site_builder.usage.fleet_trends import ValueChange
from site_builder.usage.totals import UsageRow, UsageSums, compute_percent_seen
from site_builder.usage.totals import units_to_hours as hours_of

# Rows of a table; whoever has more begins with the first.
MAX_PEOPLE, MAX_WASTED, MAX_EVENTS, MAX_HOSTS = 300, 25, 100, 50
WASTE_TITLES = {
    "held": "Held: taken, but idle",
    "booked": "Booked, and nobody on it",
    "unused": "Never used in this week",
}
SEVERITIES = ((events.CRITICAL_KINDS, "critical"), (events.WARNING_KINDS, "warning"))
INFO_LABEL = "for your information"
# It would fill the page, and is nothing to act on.
OMITTED_EVENT_KINDS = frozenset({"power"})


class PersonRow(NamedTuple):
    """A person as the table has them."""

    name: str
    bar: Html
    used: str
    change: str
    held: str
    booked: str
    unused: str


class ReportWasteTable(NamedTuple):
    """GPUs that were wasted in one way; `by` where it is told by whom."""

    title: str
    has_people: bool
    rows: Sequence[Sequence[str]]
    omitted: str


def render_report_page(week: WeeklyReport, style: str, made: Now, url: str = "") -> bytes:
    """The whole page; `style` is all that it looks like."""
    rest, together = build_people_footer(week)
    text = load_template("report.html").render(
        users=week.are_users_shown,
        style=Html(style),
        digest=b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        title=format_week_title(week),
        days_of=format_week_days(week),
        notes=list_notes(week),
        changes=fleet_page.describe_comparison(rules.compare_weeks(week)),
        days=[fleet_page.build_use_row(svg.format_day_label(day), week.usage.days[day]) for day in week.days],
        total=fleet_page.build_use_row("All GPUs", week.usage.total),
        hours=svg.HOUR_NAMES,
        heat=svg.build_hourly_rows(week.days, week.cells, find_unfinished_end(week)),
        models=[
            fleet_page.build_use_row(model, use, Html(format_change(rules.compare_model(week, model))))
            for model, use in rules.list_models(week).items()
        ],
        all_models=fleet_page.build_use_row(
            "All GPUs", week.usage.total, Html(format_change(rules.compare_weeks(week).used))
        ),
        people=build_people_rows(week),
        more_people=format_omitted_people(week.usage.people.rows[MAX_PEOPLE:]),
        rest=rest,
        together=together,
        waste=[build_page_waste_table(week, kind) for kind in WASTE_TITLES if getattr(week.waste, kind)],
        now=[build_current_waste_row(one) for one in week.current_waste[:MAX_WASTED]],
        more_now=len(week.current_waste) - MAX_WASTED,
        gaps=[(row.name, *format_host_coverage(row)) for row in rules.list_unseen_hosts(week)[:MAX_HOSTS]],
        events=[build_report_event_row(one, week) for one in list_report_events(week)[:MAX_EVENTS]],
        more_events=len(list_report_events(week)) - MAX_EVENTS,
        made=f"{svg.format_day_label(made.today)} {made.today.year} {made.local:%H:%M}",
        url=url,
    )
    return text.encode("utf-8", "replace")


# What both forms of the report tell


def format_week_title(week: WeeklyReport) -> str:
    """`Week 46 of 2026`."""
    year, number, _ = week.first.isocalendar()
    return f"Week {number} of {year}"


def format_week_days(week: WeeklyReport) -> str:
    """`Mon 9 Nov to Sun 15 Nov 2026, Europe/Paris`."""
    last = week.days[-1]
    year = "" if week.first.year == last.year else f" {week.first.year}"
    zone = getattr(week.zone, "key", None) or datetime.fromtimestamp(week.until, week.zone).tzname()
    return f"{svg.format_day_label(week.first)}{year} to {svg.format_day_label(last)} {last.year}, {zone}"


def find_unfinished_end(week: WeeklyReport) -> datetime | None:
    """Up to when it is told, where it is not over."""
    return None if week.is_over else datetime.fromtimestamp(week.until, week.zone)


def list_notes(week: WeeklyReport) -> list[str]:
    """What one must know to read the numbers."""
    found = []
    until = find_unfinished_end(week)
    if until:
        found.append(
            f"This week is not over: it is told up to {svg.format_day_label(until.date())} {until:%H:%M}, "
            "and compared with none."
        )
    seen = week.usage.seen_percent
    if seen is not None and seen < 100:
        found.append(f"{seen} % of the time of these GPUs was seen; all else is of that time.")
    if week.usage.history_start:
        found.append(
            f"History begins with {svg.format_day_label(week.usage.history_start)}: of the days before nothing is known."
        )
    if week.previous_usage is None and not until:
        found.append("Of the week before nothing was seen.")
    elif week.previous_usage and not until:
        found += list_comparison_notes(week.previous_usage)
    return found


def list_comparison_notes(before: rules.WeekUsage) -> list[str]:
    """What one must know to compare."""
    if before.history_start:
        return [f"History begins with {svg.format_day_label(before.history_start)}: the week before is not whole."]
    if before.seen_percent is not None and before.seen_percent < 95:
        return [f"Of the week before only {before.seen_percent} % was seen."]
    return []


def format_change(change: ValueChange) -> str:
    """`+9 %`: how much more or less than the week before."""
    if change.before is None:
        return UNKNOWN
    if change.percent is None:
        return "new" if change.now else "0 %"
    return f"{change.percent:+,.0f} %".replace("-0 %", "0 %").replace("+0 %", "0 %").replace("-", "−")  # noqa: RUF001


def format_gpu_name(host: str, index: int | str | None) -> str:
    """`atlas:3`."""
    return host if index is None else f"{host}:{index}"


def format_report_hours(units: int) -> str:
    """GPU-hours."""
    return f"{hours_of(units):,.1f}"


def build_people_rows(week: WeeklyReport) -> list[PersonRow]:
    """Who had how much."""
    if not week.are_users_shown:
        return []
    rows, before = week.usage.people.rows, rules.find_previous_use(week)
    most = max((row.sums.used for row in rows), default=0)
    found = []
    for row in rows[:MAX_PEOPLE]:
        was = None if before is None else hours_of(before.get(row.key, 0))
        told = (format_report_hours(one) for one in (row.sums.held, row.sums.booked, row.sums.unused))
        against = format_change(ValueChange(hours_of(row.sums.used), was))
        found.append(
            PersonRow(row.name, render_person_bar(row.sums, most), format_report_hours(row.sums.used), against, *told)
        )
    return found


def format_omitted_people(rows: Sequence[UsageRow]) -> str:
    """Those who are left out, in one line."""
    return (
        f"and {len(rows)} more with {format_report_hours(sum(row.sums.used for row in rows))} GPU-hours" if rows else ""
    )


def build_people_footer(week: WeeklyReport) -> tuple[str, PersonRow]:
    """What was used by nobody that is known, and all together."""
    total = week.usage.people.total
    told = (format_report_hours(one) for one in (total.held, total.booked, total.unused))
    against = format_change(rules.compare_weeks(week).used)
    whole = PersonRow("All together", EMPTY_HTML, format_report_hours(total.used + total.unowned), against, *told)
    return format_report_hours(total.unowned) if total.unowned else "", whole


def format_host_coverage(row: UsageRow) -> tuple[str, str]:
    """How much of a host was seen, and how much was not."""
    seen = compute_percent_seen(row.sums)
    return UNKNOWN if seen is None else f"{seen} %", format_report_hours(row.sums.unseen)


def list_report_events(week: WeeklyReport) -> list[HealthEvent]:
    """What happened: what is critical first, and then in its order."""
    found = [one for one in week.events if one.kind not in OMITTED_EVENT_KINDS]
    return sorted(found, key=lambda one: (find_severity(one)[0], one.began_at, one.host, one.number))


def find_severity(event: HealthEvent) -> tuple[int, str]:
    """Return its severity."""
    for place, (kinds, word) in enumerate(SEVERITIES):
        if event.kind in kinds:
            return place, word
    return len(SEVERITIES), INFO_LABEL


# Of the page alone


def render_person_bar(sums: UsageSums, most: int) -> Html:
    """What somebody used, of it held, where the one who used most has the whole width."""
    if not sums.used:
        return EMPTY_HTML
    whole = max(1, round(sums.used * fleet_page.BAR_WIDTH / most))
    held = round(sums.held * fleet_page.BAR_WIDTH / most)
    box = svg.SvgBox(whole - held, 0, held, fleet_page.BAR_HEIGHT)
    pieces = [svg.render_rect(svg.SvgBox(0, 0, whole, fleet_page.BAR_HEIGHT), "class=working")]
    if held:
        pieces += [svg.render_rect(box, "class=held"), svg.render_rect(box, 'fill="url(#_held)"')]
    return Html(
        f"<svg class=share width={fleet_page.BAR_WIDTH} height={fleet_page.BAR_HEIGHT} aria-hidden=true>"
        f"{''.join(pieces)}</svg>"
    )


def build_page_waste_table(week: WeeklyReport, kind: str) -> ReportWasteTable:
    """One way of wasting GPUs."""
    several: list[WastedGpu] = getattr(week.waste, kind)
    rows = [
        (format_gpu_name(one.host, one.index), one.model, one.person or UNKNOWN, f"{one.minutes / 60:,.1f}")
        for one in several[:MAX_WASTED]
    ]
    left = several[MAX_WASTED:]
    more = f"and {len(left)} more with {sum(one.minutes for one in left) / 60:,.1f} GPU-hours" if left else ""
    return ReportWasteTable(WASTE_TITLES[kind], week.are_users_shown and kind != "unused", rows, more)


def build_current_waste_row(one: CurrentWaste) -> tuple[str, str, str, str, str]:
    """What is wasted now."""
    hours = UNKNOWN if one.hours is None else f"{one.hours:,.1f}"
    return format_gpu_name(one.host, one.index), join_names(one.people) or UNKNOWN, hours, one.what, one.advice


def build_report_event_row(event: HealthEvent, week: WeeklyReport) -> tuple[str, str, str, str]:
    """What happened."""
    where = format_gpu_name(event.host, event.index if event.gpu_key else None)
    return (
        find_severity(event)[1],
        events.format_event_time(event, week.zone),
        where,
        events.describe_event(event),
    )
