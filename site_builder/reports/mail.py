"""The report of a week as mail programs show it: its charts are tables, so that it needs no picture and no script.

Gmail cuts a mail after 102 KB: so all rows have a limit, and so has what others wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from site_builder.charts import svg
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY_NAMES
from site_builder.core.html import escape_html, load_template
from site_builder.core.terminal_text import flatten_text, truncate_text
from site_builder.health import events
from site_builder.reports import page as reports_page
from site_builder.reports import rules
from site_builder.reports.page import ReportWasteTable
from site_builder.reports.rules import CurrentWaste, WastedGpu, WeeklyReport
from site_builder.reports.text import MAX_EVENTS, MAX_HOSTS, MAX_PEOPLE, MAX_WASTED, WASTE_HEADINGS, replace_unprintable
from site_builder.usage import fleet_page
from site_builder.usage.fleet_trends import UseSummary
from site_builder.usage.totals import UsageSums

# The colours of the board: on white, and where the mail program is dark. Each part is told by a number as well.
COLOURS = {
    "working": ("#2459c9", "#82aaff"),
    "held": ("#9a5b00", "#f0b45a"),
    "booked": ("#7a3ea8", "#cf9df0"),
    "unclear": ("#5a6776", "#9aa7b5"),
    "track": ("#e8ecf1", "#26303a"),
}
PART_LABELS = {
    "working": "taken",
    "held": "of it held idle",
    "booked": "booked, nobody on it",
    "unclear": "lost, or not known",
    "track": "free",
}
CARD_COLOURS = ("#ffffff", "#171e26")
# How much of the colour of what is taken each tint of the heat map has, in percent.
TINT_PERCENTS = (2, 6, 10, 14, 18, 23, 28, 33, 38, 42, 46)
# Rows of models; those that were seen most come first.
MAX_MODELS = 20
# So many letters of a name, of a GPU with its host, and of a sentence; and so many bytes a letter, as far as it goes.
MAX_NAME_CHARACTERS, MAX_GPU_CHARACTERS, MAX_SENTENCE_CHARACTERS, MAX_BYTES_PER_CHARACTER = 40, 68, 160, 2


class BarPiece(NamedTuple):
    """A part of a bar, and its width in percent."""

    part: str
    colour: str
    width: int


class MailRow(NamedTuple):
    """A row of a table with a bar below it."""

    cells: Sequence[str]
    bar: Sequence[BarPiece] = ()


class MailHeatmapCell(NamedTuple):
    """An hour of the heat map; one of which nothing was seen has no tint."""

    text: str
    tint: str
    colour: str


class MailEvent(NamedTuple):
    """What happened to a GPU."""

    severity: str
    gpu: str
    what: str
    when: str


def format_report_subject(week: WeeklyReport) -> str:
    """`gpuboard: week 46 of 2026, 120.0 GPU-hours used`."""
    title = reports_page.format_week_title(week)
    return f"gpuboard: {title[0].lower()}{title[1:]}, {rules.compare_weeks(week).used.now:,.1f} GPU-hours used"


def render_report_brief(week: WeeklyReport, url: str = "") -> str:
    """The sums alone, for a chat."""
    lines = [reports_page.format_week_days(week)]
    lines += [
        f"{number} {what}: {before}"
        for what, number, before in fleet_page.describe_comparison(rules.compare_weeks(week))
    ]
    critical = sum(one.kind in events.CRITICAL_KINDS for one in reports_page.list_report_events(week))
    if critical:
        lines.append(f"{critical} critical {'event' if critical == 1 else 'events'} on GPUs")
    return "\n".join([*lines, *([f"All of it: {url}"] if url else [])])


def render_report_mail(week: WeeklyReport, made: Now, board: str = "", page: str = "") -> str:
    """All of it; `board` and `page` are where the board and the report are, if that is known."""
    several, gaps = reports_page.list_report_events(week), rules.list_unseen_hosts(week)
    rest, together = reports_page.build_people_footer(week)
    return load_template("report_mail.html").render(
        users=week.are_users_shown,
        parts=PART_LABELS,
        colours=COLOURS,
        cards=CARD_COLOURS,
        tints=[mix_tint(place, 1) for place in range(len(TINT_PERCENTS))],
        title=reports_page.format_week_title(week),
        days_of=reports_page.format_week_days(week),
        notes=reports_page.list_notes(week),
        changes=fleet_page.describe_comparison(rules.compare_weeks(week)),
        days=[
            MailRow(format_day_cells(svg.format_day_label(day), use), build_use_bar(use))
            for day, use in week.usage.days.items()
        ],
        total=format_day_cells("All together", week.usage.total),
        dates=[(DAY_NAMES[day.weekday()], day.day) for day in week.days],
        hours=build_mail_heatmap(week),
        models=list(build_model_mail_rows(week)),
        more_models=len(rules.list_models(week)) - MAX_MODELS,
        people=list(build_people_mail_rows(week)),
        more_people=reports_page.format_omitted_people(week.usage.people.rows[MAX_PEOPLE:]),
        rest=rest,
        together=together,
        waste=[build_mail_waste_table(week, kind) for kind in WASTE_HEADINGS if getattr(week.waste, kind)],
        now=[format_current_waste(one) for one in week.current_waste[:MAX_WASTED]],
        more_now=len(week.current_waste) - MAX_WASTED,
        events=[build_mail_event(*reports_page.build_report_event_row(one, week)) for one in several[:MAX_EVENTS]],
        more_events=len(several) - MAX_EVENTS,
        gaps=[
            (shorten_untrusted_text(row.name, MAX_GPU_CHARACTERS), *reports_page.format_host_coverage(row))
            for row in gaps[:MAX_HOSTS]
        ],
        more_gaps=len(gaps) - MAX_HOSTS,
        made=f"{svg.format_day_label(made.today)} {made.today.year} {made.local:%H:%M}",
        board=board,
        page=page,
    )


def shorten_untrusted_text(text: str, most: int = MAX_NAME_CHARACTERS) -> str:
    """What somebody else wrote: in one line, not too long, and without letters that turn others around."""
    line = replace_unprintable(flatten_text(text))
    room = most
    while len(escape_html(found := truncate_text(line, room)).encode()) > most * MAX_BYTES_PER_CHARACTER:
        room -= 4
    return found


def mix_tint(place: int, dark: int) -> str:
    """A tint of the heat map."""
    ink, ground = (bytes.fromhex(one[dark][1:]) for one in (COLOURS["working"], CARD_COLOURS))
    part = TINT_PERCENTS[place] / 100
    return "#" + bytes(round(one * part + other * (1 - part)) for one, other in zip(ink, ground)).hex()


def build_bar(minutes: Iterable[tuple[str, float]], whole: float) -> list[BarPiece]:
    """Parts side by side; what they leave of the whole is the track."""
    found, at, end = [], 0.0, 0
    for part, count in minutes:
        at += 100 * count / whole
        width = min(100, round(at)) - end
        if width > 0:
            found.append(BarPiece(part, COLOURS[part][0], width))
            end += width
    return [*found, BarPiece("track", COLOURS["track"][0], 100 - end)] if end < 100 else found


def build_use_bar(use: UseSummary) -> list[BarPiece]:
    """What was seen of some GPUs."""
    if not use.seen:
        return []
    parts = {"working": use.taken - use.held, "held": use.held, "booked": use.booked, "unclear": use.unclear}
    return build_bar(parts.items(), use.seen)


def build_person_bar(sums: UsageSums, most: int) -> list[BarPiece]:
    """What somebody used, where the one who used most has the whole width."""
    return build_bar((("working", sums.used - sums.held), ("held", sums.held)), most) if most else []


def format_day_cells(name: str, use: UseSummary) -> list[str]:
    """A day."""
    if not use.seen:
        return [name, svg.NO_DATA, *[svg.UNKNOWN] * 3]
    return [
        name,
        fleet_page.format_gpu_hours(use.taken),
        *(fleet_page.format_share(use.share(what)) for what in ("taken", "held", "booked")),
    ]


def build_mail_heatmap(week: WeeklyReport) -> list[tuple[str, list[MailHeatmapCell]]]:
    """The heat map, with an hour in each row: seven columns fit on a phone, and 24 do not."""
    rows = [one.cells for one in svg.build_hourly_rows(week.days, week.cells, reports_page.find_unfinished_end(week))]
    found = []
    for hour, name in enumerate(svg.HOUR_NAMES):
        texts = [row[hour] for row in rows]
        colours = [mix_tint(int(one.tint[1:]), 0) if one.tint else "" for one in texts]
        found.append((name, [MailHeatmapCell(one.text, one.tint, colour) for one, colour in zip(texts, colours)]))
    return found


def build_model_mail_rows(week: WeeklyReport) -> Iterable[MailRow]:
    """Each model, against the week before."""
    for model, use in list(rules.list_models(week).items())[:MAX_MODELS]:
        if not use.seen:
            yield MailRow([shorten_untrusted_text(model), svg.UNKNOWN, svg.NO_DATA, *[svg.UNKNOWN] * 3])
            continue
        told = (fleet_page.format_share(use.share(what)) for what in ("taken", "held"))
        change = reports_page.format_change(rules.compare_model(week, model))
        yield MailRow(
            [shorten_untrusted_text(model), str(use.gpus), fleet_page.format_gpu_hours(use.taken), *told, change],
            build_use_bar(use),
        )


def build_people_mail_rows(week: WeeklyReport) -> Iterable[MailRow]:
    """Who had how much, in GPU-hours."""
    rows = week.usage.people.rows
    most = max((row.sums.used for row in rows), default=0)
    for one, row in zip(reports_page.build_people_rows(week)[:MAX_PEOPLE], rows):
        told = (shorten_untrusted_text(one.name), one.used, one.change, one.held, one.booked, one.unused)
        yield MailRow(told, build_person_bar(row.sums, most))


def build_mail_waste_table(week: WeeklyReport, kind: str) -> ReportWasteTable:
    """One way of wasting GPUs."""
    several: list[WastedGpu] = getattr(week.waste, kind)
    rows = [
        (
            shorten_untrusted_text(reports_page.format_gpu_name(one.host, one.index), MAX_GPU_CHARACTERS),
            shorten_untrusted_text(one.model),
            shorten_untrusted_text(one.person) or svg.UNKNOWN,
            fleet_page.format_gpu_hours(one.minutes),
        )
        for one in several[:MAX_WASTED]
    ]
    left = several[MAX_WASTED:]
    more = (
        f"and {len(left)} more with {fleet_page.format_gpu_hours(sum(one.minutes for one in left))} GPU-hours"
        if left
        else ""
    )
    title = f"{WASTE_HEADINGS[kind]}: {fleet_page.format_gpu_hours(sum(one.minutes for one in several))} GPU-hours"
    return ReportWasteTable(title, week.are_users_shown and kind != "unused", rows, more)


def format_current_waste(one: CurrentWaste) -> tuple[str, str, str]:
    """What is wasted now: where and whose, what, and what to do."""
    gpu, who, hours, what, do = reports_page.build_current_waste_row(one)
    whose = "" if who == svg.UNKNOWN else f" ({shorten_untrusted_text(who)})"
    long = "" if one.hours is None else f", {hours} h"
    return (
        f"{shorten_untrusted_text(gpu, MAX_GPU_CHARACTERS)}{whose}{long}",
        shorten_untrusted_text(what, MAX_SENTENCE_CHARACTERS),
        shorten_untrusted_text(do, MAX_SENTENCE_CHARACTERS),
    )


def build_mail_event(severity: str, when: str, gpu: str, what: str) -> MailEvent:
    """What happened."""
    return MailEvent(
        severity,
        shorten_untrusted_text(gpu, MAX_GPU_CHARACTERS),
        shorten_untrusted_text(what, MAX_SENTENCE_CHARACTERS),
        when,
    )
