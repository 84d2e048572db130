"""Render the report of a week as a page, as a mail, and as plain text."""

from __future__ import annotations

import hashlib
import textwrap
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from site_builder.charts import svg
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY_NAMES, format_weekday_date
from site_builder.core.html import Html, load_compact_html_template, load_html_template
from site_builder.core.terminal_text import fit_text, flatten_terminal_text, replace_unprintable, truncate_terminal_text
from site_builder.health.model import CRITICAL
from site_builder.reports import content
from site_builder.reports.collect import CollectedReport
from site_builder.reports.content import build_report_content
from site_builder.usage import fleet_page
from site_builder.usage.totals import UseSummary

# Colours of the mail: those of the board, on white and where the mail program is dark.
COLOURS = {
    "working": ("#2459c9", "#82aaff"),
    "held": ("#9a5b00", "#f0b45a"),
    "booked": ("#7a3ea8", "#cf9df0"),
    "unclear": ("#5a6776", "#9aa7b5"),
    "track": ("#e8ecf1", "#26303a"),
}
PART_LABELS = {
    "working": "in use",
    "held": "held idle",
    "booked": "booked, idle",
    "unclear": "lost or unknown",
    "track": "free",
}
CARD_COLOURS = ("#ffffff", "#171e26")
# How much of the colour of taken GPUs each tint of the heat map has, in percent.
TINT_PERCENTS = (2, 6, 10, 14, 18, 23, 28, 33, 38, 42, 46)
TEXT_WIDTH = 78
BAR_CHARACTERS = 30
# A character for each part of a bar in the text; free time is blank.
BAR_LETTERS = {"working": "#", "held": "=", "booked": ".", "unclear": "?"}


def format_report_made_at(made: Now) -> str:
    return f"{format_weekday_date(made.today)} {made.today.year} {made.local:%H:%M}"


# The page


def render_report_page(report: CollectedReport, style: str, made: Now, url: str = "") -> bytes:
    """Render a page that needs no other file; `style` is its style sheet."""
    form = build_report_content(report, content.PAGE)
    text = load_compact_html_template("report.html").render(
        **form,
        style=Html(style),
        digest=b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        draw_bar=partial(fleet_page.render_person_bar, most=form["most_used"]),
        made=format_report_made_at(made),
        url=url,
    )
    return text.encode("utf-8", "replace")


# The mail: its charts are tables, so that it needs no picture and no script


class ReportBarPiece(NamedTuple):
    """Part of a bar, and its width in percent."""

    part: str
    colour: str
    width: int


def format_report_subject(report: CollectedReport) -> str:
    """Format `gpuboard: week 46 of 2026, 120.0 GPU-hours used`."""
    title = content.build_content_title(report)
    return (
        f"gpuboard: {title[0].lower()}{title[1:]}, {content.compare_report_weeks(report).used.now:,.1f} GPU-hours used"
    )


def render_report_brief(report: CollectedReport, url: str = "") -> str:
    """Render the summary alone, for a chat."""
    lines = [content.build_content_date_range(report), *content.describe_report_in_sentences(report)]
    critical_count = sum(event.severity == CRITICAL for event in content.list_content_events(report))
    if critical_count:
        lines.append(f"{critical_count} critical {'event' if critical_count == 1 else 'events'} on GPUs")
    return "\n".join([*lines, *([f"Full report: {url}"] if url else [])])


def render_report_mail(report: CollectedReport, made: Now, board: str = "", page: str = "") -> str:
    """Render the mail; `board` and `page` are the addresses of the board and of the report, if known."""
    form = build_report_content(report, content.MAIL)
    light_tints, dark_tints = (
        {f"t{number}": mix_report_tint(percent, ink, ground) for number, percent in enumerate(TINT_PERCENTS)}
        for ink, ground in zip(COLOURS["working"], CARD_COLOURS)
    )
    return load_compact_html_template("report_mail.html").render(
        **form,
        parts=PART_LABELS,
        colours=COLOURS,
        cards=CARD_COLOURS,
        light_tints=light_tints,
        dark_tints=dark_tints,
        dates=[(DAY_NAMES[day.weekday()], day.day) for day in report.days],
        draw_use_bar=lambda use: build_report_bar(use.parts, use.seen),
        draw_person_bar=lambda sums: build_report_bar(
            {"working": sums.used - sums.held, "held": sums.held}, form["most_used"]
        ),
        pick_cells=lambda person, columns: [person[name] for name, _ in columns],
        made=format_report_made_at(made),
        board=board,
        page=page,
    )


def mix_report_tint(percent: int, ink: str, ground: str) -> str:
    """Mix a colour of the heat map: so much of the ink, on the ground."""
    pairs = zip(bytes.fromhex(ink[1:]), bytes.fromhex(ground[1:]))
    return "#" + bytes(round(dark * percent / 100 + light * (1 - percent / 100)) for dark, light in pairs).hex()


def build_report_bar(minutes_by_part: Mapping[str, float], whole: float) -> list[ReportBarPiece]:
    """Put parts side by side; the rest of the whole is the track."""
    if not whole:
        return []
    pieces, position, end = [], 0.0, 0
    for part, minutes in minutes_by_part.items():
        position += 100 * minutes / whole
        width = min(100, round(position)) - end
        if width > 0:
            pieces.append(ReportBarPiece(part, COLOURS[part][0], width))
            end += width
    return [*pieces, ReportBarPiece("track", COLOURS["track"][0], 100 - end)] if end < 100 else pieces


# The text: no line is longer than 78 characters


def render_report_text(report: CollectedReport, url: str = "") -> str:
    text = load_html_template("report.txt").render(
        **build_report_content(report, content.TEXT),
        fit=lambda text, width: fit_text(flatten_terminal_text(text), width),
        wrap=wrap_report_sentence,
        draw_bar=draw_report_text_bar,
        url=url,
    )
    lines = (truncate_terminal_text(replace_unprintable(line), TEXT_WIDTH).rstrip() for line in text.split("\n"))
    return "".join(f"{line}\n" for line in lines)


def wrap_report_sentence(sentence: str, indent: str = "", first: str = "") -> str:
    text = flatten_terminal_text(sentence)
    return textwrap.fill(text, TEXT_WIDTH, initial_indent=first, subsequent_indent=indent)


def draw_report_text_bar(use: UseSummary) -> str:
    bar, position = "", 0.0
    for part, minutes in use.parts.items() if use.seen else ():
        position += minutes * BAR_CHARACTERS / use.seen
        bar += BAR_LETTERS[part] * (round(position) - len(bar))
    return f"|{(bar if use.seen else svg.NO_DATA).ljust(BAR_CHARACTERS)}|"
