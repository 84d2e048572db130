"""Build the content of the report's page, mail and text: sentences, notes, and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from site_builder.charts import svg
from site_builder.core.formatting import format_gpu_hours, format_names, format_weekday_date
from site_builder.core.html import Html, escape_html
from site_builder.core.model import GpuNumber
from site_builder.core.names import natural_sort_key
from site_builder.core.terminal_text import flatten_terminal_text, replace_unprintable, truncate_terminal_text
from site_builder.health import events
from site_builder.health.model import CRITICAL, INFO, SEVERITIES, HealthEvent
from site_builder.reports.collect import CollectedReport, CollectedUsage, CollectedWastedGpu
from site_builder.usage import fleet_page, totals
from site_builder.usage.fleet_page import build_fleet_page_row
from site_builder.usage.totals import NOTHING_SEEN, PeriodComparison, UsageChange, UsageRow, UsageTotals, UseSummary
from site_builder.waste.rules import WasteItem

PERSON_COLUMNS = (
    ("used", "Used"),
    ("change", "Change"),
    ("held", "Held idle"),
    ("booked", "Booked"),
    ("unused", "Booked, unused"),
)
# They would fill the report, and nobody has to act on them.
OMITTED_EVENT_KINDS = frozenset({"power"})
MAX_NAME_CHARACTERS, MAX_GPU_CHARACTERS, MAX_SENTENCE_CHARACTERS = 40, 68, 160
# A name whose characters need more bytes than this on average is cut earlier.
MAX_BYTES_PER_CHARACTER = 2


class ContentFormat(NamedTuple):
    """Number of rows in each table of a form of the report, its titles, and whether long names are cut."""

    waste_titles: Mapping[str, str]
    max_people: int
    max_wasted: int
    max_events: int
    max_hosts: int
    max_models: int | None = None
    are_names_cut: bool = False

    def shorten(self, text: str, limit: int = MAX_NAME_CHARACTERS) -> str:
        """Cut text of unknown origin to one harmless line, if this form needs it."""
        if not self.are_names_cut:
            return text
        line, room = replace_unprintable(flatten_terminal_text(text)), limit
        while (
            len(escape_html(shortened := truncate_terminal_text(line, room)).encode()) > limit * MAX_BYTES_PER_CHARACTER
        ):
            room -= 4
        return shortened


PAGE = ContentFormat(
    waste_titles={
        "held": "Held idle",
        "booked": "Booked, idle",
        "unused": "Not used all week",
    },
    max_people=300,
    max_wasted=25,
    max_events=100,
    max_hosts=50,
)
TEXT = ContentFormat(
    waste_titles={
        "held": "Held idle: {hours} GPU-hours",
        "booked": "Booked, idle: {hours} GPU-hours",
        "unused": "Not used all week: {hours} GPU-hours",
    },
    max_people=25,
    max_wasted=8,
    max_events=20,
    max_hosts=10,
)
# Gmail cuts a mail after 102 KB.
MAIL = TEXT._replace(max_models=20, are_names_cut=True)


def build_report_content(report: CollectedReport, form: ContentFormat) -> dict[str, Any]:
    """Build what the templates show, in the order of their sections."""
    models, people = list_content_models(report), report.usage.people
    omitted_people = people.rows[form.max_people :]
    omitted_hours = format_report_hours(sum(row.sums.used for row in omitted_people))
    previous = report.compared_usage
    previous_use = {row.key: row.sums.used for row in previous.people.rows} if previous else None
    report_events, hosts = list_content_events(report), list_content_unseen_hosts(report)
    comparison = compare_report_weeks(report)
    use_change = Html(totals.format_usage_change(comparison.used))
    day_rows = [build_fleet_page_row(format_weekday_date(day), report.usage.days[day]) for day in report.days]
    model_rows, person_rows = [], []
    for model, use in models[: form.max_models]:
        before_use = previous.models.get(model) if previous else None
        hours_before = before_use.taken / totals.MINUTES_PER_HOUR if before_use else None
        change = totals.format_usage_change(UsageChange(use.taken / totals.MINUTES_PER_HOUR, hours_before))
        model_rows.append(build_fleet_page_row(form.shorten(model), use, Html(change)))
    for row in people.rows[: form.max_people] if report.are_users_shown else ():
        hours_before = None if previous_use is None else totals.usage_total_to_hours(previous_use.get(row.key, 0))
        hours_change = UsageChange(totals.usage_total_to_hours(row.sums.used), hours_before)
        person_rows.append(build_content_person(form.shorten(row.name), row.sums, row.sums.used, hours_change))
    return {
        "title": build_content_title(report),
        "date_range": build_content_date_range(report),
        "notes": list_report_notes(report),
        "sentences": describe_report_in_sentences(report),
        "use_columns": fleet_page.list_filled_columns(fleet_page.USE_COLUMNS, [*model_rows, *day_rows]),
        "person_columns": [
            (name, label)
            for name, label in PERSON_COLUMNS
            if name == "used" or any(person[name] not in fleet_page.NOTHING for person in person_rows)
        ],
        "days": day_rows,
        "all_gpus": build_fleet_page_row("All GPUs", report.usage.total, use_change),
        "hour_names": fleet_page.HOUR_NAMES,
        "heat": fleet_page.build_heatmap_hourly_rows(report.days, report.cells, report.unfinished_until),
        "models": model_rows,
        "omitted_models": 0 if form.max_models is None else len(models) - form.max_models,
        "users": report.are_users_shown,
        "people": person_rows,
        "most_used": max((row.sums.used for row in people.rows), default=0),
        "omitted_people": f"and {len(omitted_people)} more with {omitted_hours} GPU-hours" if omitted_people else "",
        "unowned_hours": format_report_hours(people.total.unowned) if people.total.unowned else "",
        "total": build_content_person(
            "All people", people.total, people.total.used + people.total.unowned, comparison.used
        ),
        "waste": [build_content_waste(report, form, kind) for kind in form.waste_titles if getattr(report.waste, kind)],
        "current_waste": [build_content_current_waste(item, form) for item in report.current_waste[: form.max_wasted]],
        "omitted_current_waste": len(report.current_waste) - form.max_wasted,
        "events": [
            {
                "severity": event.severity,
                "is_critical": event.severity == CRITICAL,
                "when": events.format_event_time(event, report.zone),
                "gpu": format_content_gpu(form, event.host, event.index if event.gpu_key else None),
                "what": form.shorten(events.describe_event(event), MAX_SENTENCE_CHARACTERS),
            }
            for event in report_events[: form.max_events]
        ],
        "omitted_events": len(report_events) - form.max_events,
        "hosts": [
            {
                "name": form.shorten(row.name, MAX_GPU_CHARACTERS),
                "seen": totals.format_usage_percent_seen(row.sums),
                "unseen_hours": format_report_hours(row.sums.unseen),
            }
            for row in hosts[: form.max_hosts]
        ],
        "omitted_hosts": len(hosts) - form.max_hosts,
        "no_data": svg.NO_DATA,
    }


def build_content_title(report: CollectedReport) -> str:
    """Format `Week 46 of 2026`."""
    year, number, _ = report.first.isocalendar()
    return f"Week {number} of {year}"


def build_content_date_range(report: CollectedReport) -> str:
    """Format `Mon 9 Nov to Sun 15 Nov 2026, Europe/Paris`."""
    last = report.days[-1]
    year = "" if report.first.year == last.year else f" {report.first.year}"
    zone = getattr(report.zone, "key", None) or datetime.fromtimestamp(report.until, report.zone).tzname()
    first_label, last_label = format_weekday_date(report.first), format_weekday_date(last)
    return f"{first_label}{year} to {last_label} {last.year}, {zone}"


def list_report_notes(report: CollectedReport) -> list[str]:
    """List what a reader must know to understand the numbers."""
    notes = []
    until, seen, before = report.unfinished_until, report.usage.seen_percent, report.previous_usage
    if until:
        notes.append(
            f"This week is not over: figures are up to {format_weekday_date(until.date())} {until:%H:%M}, "
            "and not compared with other weeks."
        )
    if seen is not None and seen < 100:
        notes.append(f"Coverage: {seen} % of GPU time was monitored; all other figures are for that time.")
    if report.usage.history_start:
        start = format_weekday_date(report.usage.history_start)
        notes.append(f"History begins on {start}; earlier days are missing.")
    if until:
        return notes
    if before is None:
        notes.append("There is no data for the previous week.")
    elif before.history_start:
        start = format_weekday_date(before.history_start)
        notes.append(f"History begins on {start}: the previous week is not complete.")
    elif before.seen_percent is not None and before.seen_percent < 95:
        notes.append(f"Coverage of the previous week was only {before.seen_percent} %.")
    return notes


def format_content_gpu(form: ContentFormat, host: str, index: GpuNumber) -> str:
    """Format `atlas:3`."""
    return form.shorten(host if index is None else f"{host}:{index}", MAX_GPU_CHARACTERS)


def format_report_hours(units: int) -> str:
    return f"{totals.usage_total_to_hours(units):,.1f}"


def build_content_person(name: str, sums: UsageTotals, used: int, change: UsageChange) -> dict[str, Any]:
    hours = {part: format_report_hours(getattr(sums, part)) for part in ("held", "booked", "unused")}
    return {
        "name": name,
        "sums": sums,
        "used": format_report_hours(used),
        "change": totals.format_usage_change(change),
        **hours,
    }


def build_content_waste(report: CollectedReport, form: ContentFormat, kind: str) -> dict[str, Any]:
    """Build the table of GPUs that were wasted in one way."""
    gpus: list[CollectedWastedGpu] = getattr(report.waste, kind)
    omitted = gpus[form.max_wasted :]
    omitted_hours = format_gpu_hours(sum(gpu.minutes for gpu in omitted))
    return {
        "title": form.waste_titles[kind].format(hours=format_gpu_hours(sum(gpu.minutes for gpu in gpus))),
        "has_people": report.are_users_shown and kind != "unused",
        "rows": [
            {
                "gpu": format_content_gpu(form, gpu.host, gpu.index),
                "model": form.shorten(gpu.model),
                "person": form.shorten(gpu.person),
                "hours": format_gpu_hours(gpu.minutes),
            }
            for gpu in gpus[: form.max_wasted]
        ],
        "omitted_count": len(omitted),
        "omitted": f"and {len(omitted)} more with {omitted_hours} GPU-hours" if omitted else "",
    }


def build_content_current_waste(item: WasteItem, form: ContentFormat) -> dict[str, str]:
    """Build the row of a GPU wasted when the report was made; hours and people are empty where they are not known."""
    gpu, people = format_content_gpu(form, item.host, item.index), form.shorten(format_names(item.people))
    hours = "" if item.hours is None else f"{item.hours:,.1f}"
    return {
        "gpu": gpu,
        "people": people,
        "hours": hours,
        "subject": f"{gpu}{f' ({people})' if people else ''}{f', {hours} h' if hours else ''}",
        "what": form.shorten(item.what, MAX_SENTENCE_CHARACTERS),
        "advice": form.shorten(f"{item.advice} {item.command}".strip(), MAX_SENTENCE_CHARACTERS),
    }


def list_content_events(report: CollectedReport) -> list[HealthEvent]:
    """List the events of the week, the most severe first."""
    shown = [
        event
        for event in report.events
        if event.kind not in OMITTED_EVENT_KINDS and not (event.is_xid and event.severity == INFO)
    ]
    return sorted(shown, key=lambda event: (SEVERITIES.index(event.severity), event.began_at, event.host, event.number))


def describe_report_in_sentences(report: CollectedReport) -> list[str]:
    return fleet_page.describe_use_in_sentences(compare_report_weeks(report), "the previous week", report.full_hours)


def compare_report_weeks(report: CollectedReport) -> PeriodComparison:
    previous = report.compared_usage
    return totals.compare_usage_periods(
        report.usage.total,
        count_report_users(report.usage),
        previous.total if previous else NOTHING_SEEN,
        count_report_users(previous) if previous else 0,
    )


def count_report_users(usage: CollectedUsage) -> int:
    return sum(row.sums.used > 0 for row in usage.people.rows)


def list_content_models(report: CollectedReport) -> list[tuple[str, UseSummary]]:
    """List the models of the week, and those that were seen only in the week before."""
    models = dict(report.usage.models)
    for model in report.previous_usage.models if report.previous_usage else ():
        if len(models) < totals.MAX_MODELS:
            models.setdefault(model, NOTHING_SEEN)
    return list(models.items())


def list_content_unseen_hosts(report: CollectedReport) -> list[UsageRow]:
    """List the hosts that were not monitored all the time, the least monitored first."""
    rows = [row for row in report.usage.hosts.rows if (totals.compute_usage_percent_seen(row.sums) or 0) < 99]
    return sorted(rows, key=lambda row: (-row.sums.unseen, natural_sort_key(row.name)))
