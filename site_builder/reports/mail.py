"""The report of a week as mail programs show it: its charts are tables, so that it needs no picture and no script.

Gmail cuts a mail after 102 KB: so all rows have a limit, and so has what others wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from site_builder.charts import heatmap
from site_builder.core.clock import Now
from site_builder.core.formatting import DAYS
from site_builder.core.html import escaped
from site_builder.core.templates import escaping
from site_builder.core.terminal_text import cut, one_line
from site_builder.health import descriptions
from site_builder.reports import page as reports_page
from site_builder.reports import rules
from site_builder.reports.rules import Wasted, WastedNow, Week
from site_builder.reports.text import HEADS, MOST_EVENTS, MOST_HOSTS, MOST_PEOPLE, MOST_WASTED, clean
from site_builder.usage import trends_page
from site_builder.usage.totals import Sums
from site_builder.usage.trends import Use

# The colours of the board: on white, and where the mail program is dark. Each part is told by a number as well.
COLOURS = {
    "working": ("#2459c9", "#82aaff"),
    "held": ("#9a5b00", "#f0b45a"),
    "booked": ("#7a3ea8", "#cf9df0"),
    "unclear": ("#5a6776", "#9aa7b5"),
    "track": ("#e8ecf1", "#26303a"),
}
WORDS = {
    "working": "taken",
    "held": "of it held idle",
    "booked": "booked, nobody on it",
    "unclear": "lost, or not known",
    "track": "free",
}
CARDS = ("#ffffff", "#171e26")
# How much of the colour of what is taken each tint of the heat map has, in percent.
TINTS = (2, 6, 10, 14, 18, 23, 28, 33, 38, 42, 46)
# Rows of models; those that were seen most come first.
MOST_MODELS = 20
# So many letters of a name, of a GPU with its host, and of a sentence; and so many bytes a letter, as far as it goes.
NAME, GPU, SENTENCE, BYTES = 40, 68, 160, 2


class Piece(NamedTuple):
    """A part of a bar, and its width in percent."""

    part: str
    colour: str
    width: int


class Line(NamedTuple):
    """A row of a table with a bar below it."""

    cells: Sequence[str]
    bar: Sequence[Piece] = ()


class Cell(NamedTuple):
    """An hour of the heat map; one of which nothing was seen has no tint."""

    text: str
    tint: str
    colour: str


class WasteTable(NamedTuple):
    """GPUs that were wasted in one way; `by` where it is told by whom."""

    title: str
    by: bool
    rows: Sequence[Sequence[str]]
    more: str


class Happened(NamedTuple):
    """What happened to a GPU."""

    weight: str
    gpu: str
    what: str
    when: str


def subject(week: Week) -> str:
    """`gpuboard: week 46 of 2026, 120.0 GPU-hours used`."""
    title = reports_page.title(week)
    return f"gpuboard: {title[0].lower()}{title[1:]}, {rules.changes(week).used.now:,.1f} GPU-hours used"


def brief(week: Week, url: str = "") -> str:
    """The sums alone, for a chat."""
    lines = [reports_page.days_of(week)]
    lines += [f"{number} {what}: {before}" for what, number, before in trends_page.told(rules.changes(week))]
    grave = sum(one.kind in descriptions.GRAVE for one in reports_page.events(week))
    if grave:
        lines.append(f"{grave} grave {'event' if grave == 1 else 'events'} on GPUs")
    return "\n".join([*lines, *([f"All of it: {url}"] if url else [])])


def html(week: Week, made: Now, board: str = "", page: str = "") -> str:
    """All of it; `board` and `page` are where the board and the report are, if that is known."""
    several, gaps = reports_page.events(week), rules.gaps(week)
    rest, together = reports_page.foot(week)
    return escaping("report_mail.html").render(
        users=week.users,
        parts=WORDS,
        colours=COLOURS,
        cards=CARDS,
        tints=[mixed(place, 1) for place in range(len(TINTS))],
        title=reports_page.title(week),
        days_of=reports_page.days_of(week),
        notes=reports_page.notes(week),
        changes=trends_page.told(rules.changes(week)),
        days=[Line(day_cells(heatmap.day_name(day), use), bar_of(use)) for day, use in week.told.days.items()],
        total=day_cells("All together", week.told.total),
        dates=[(DAYS[day.weekday()], day.day) for day in week.days],
        hours=hours(week),
        models=list(models(week)),
        more_models=len(rules.models(week)) - MOST_MODELS,
        people=list(people(week)),
        more_people=reports_page.more(week.told.people.rows[MOST_PEOPLE:]),
        rest=rest,
        together=together,
        waste=[waste_table(week, kind) for kind in HEADS if getattr(week.waste, kind)],
        now=[now_line(one) for one in week.now[:MOST_WASTED]],
        more_now=len(week.now) - MOST_WASTED,
        events=[happened(*reports_page.event_row(one, week)) for one in several[:MOST_EVENTS]],
        more_events=len(several) - MOST_EVENTS,
        gaps=[(said(row.name, GPU), *reports_page.gap(row)) for row in gaps[:MOST_HOSTS]],
        more_gaps=len(gaps) - MOST_HOSTS,
        made=f"{heatmap.day_name(made.today)} {made.today.year} {made.local:%H:%M}",
        board=board,
        page=page,
    )


def said(text: str, most: int = NAME) -> str:
    """What somebody else wrote: in one line, not too long, and without letters that turn others around."""
    line = clean(one_line(text))
    room = most
    while len(escaped(found := cut(line, room)).encode()) > most * BYTES:
        room -= 4
    return found


def mixed(place: int, dark: int) -> str:
    """A tint of the heat map."""
    ink, ground = (bytes.fromhex(one[dark][1:]) for one in (COLOURS["working"], CARDS))
    part = TINTS[place] / 100
    return "#" + bytes(round(one * part + other * (1 - part)) for one, other in zip(ink, ground)).hex()


def bar(minutes: Iterable[tuple[str, float]], whole: float) -> list[Piece]:
    """Parts side by side; what they leave of the whole is the track."""
    found, at, end = [], 0.0, 0
    for part, count in minutes:
        at += 100 * count / whole
        width = min(100, round(at)) - end
        if width > 0:
            found.append(Piece(part, COLOURS[part][0], width))
            end += width
    return [*found, Piece("track", COLOURS["track"][0], 100 - end)] if end < 100 else found


def bar_of(use: Use) -> list[Piece]:
    """What was seen of some GPUs."""
    if not use.seen:
        return []
    parts = {"working": use.taken - use.held, "held": use.held, "booked": use.booked, "unclear": use.unclear}
    return bar(parts.items(), use.seen)


def bar_of_person(sums: Sums, most: int) -> list[Piece]:
    """What somebody used, where the one who used most has the whole width."""
    return bar((("working", sums.used - sums.held), ("held", sums.held)), most) if most else []


def day_cells(name: str, use: Use) -> list[str]:
    """A day."""
    if not use.seen:
        return [name, heatmap.NO_DATA, *[heatmap.UNKNOWN] * 3]
    return [
        name,
        trends_page.hours(use.taken),
        *(trends_page.percent(use.share(what)) for what in ("taken", "held", "booked")),
    ]


def hours(week: Week) -> list[tuple[str, list[Cell]]]:
    """The heat map, with an hour in each row: seven columns fit on a phone, and 24 do not."""
    rows = [one.cells for one in heatmap.rows(week.days, week.cells, reports_page.until_of(week))]
    found = []
    for hour, name in enumerate(heatmap.HOUR_NAMES):
        texts = [row[hour] for row in rows]
        colours = [mixed(int(one.tint[1:]), 0) if one.tint else "" for one in texts]
        found.append((name, [Cell(one.text, one.tint, colour) for one, colour in zip(texts, colours)]))
    return found


def models(week: Week) -> Iterable[Line]:
    """Each model, against the week before."""
    for model, use in list(rules.models(week).items())[:MOST_MODELS]:
        if not use.seen:
            yield Line([said(model), heatmap.UNKNOWN, heatmap.NO_DATA, *[heatmap.UNKNOWN] * 3])
            continue
        told = (trends_page.percent(use.share(what)) for what in ("taken", "held"))
        change = reports_page.signed(rules.model_change(week, model))
        yield Line([said(model), str(use.gpus), trends_page.hours(use.taken), *told, change], bar_of(use))


def people(week: Week) -> Iterable[Line]:
    """Who had how much, in GPU-hours."""
    rows = week.told.people.rows
    most = max((row.sums.used for row in rows), default=0)
    for one, row in zip(reports_page.people(week)[:MOST_PEOPLE], rows):
        told = (said(one.name), one.used, one.against, one.held, one.booked, one.unused)
        yield Line(told, bar_of_person(row.sums, most))


def waste_table(week: Week, kind: str) -> WasteTable:
    """One way of wasting GPUs."""
    several: list[Wasted] = getattr(week.waste, kind)
    rows = [
        (
            said(reports_page.gpu_name(one.host, one.index), GPU),
            said(one.model),
            said(one.who) or heatmap.UNKNOWN,
            trends_page.hours(one.minutes),
        )
        for one in several[:MOST_WASTED]
    ]
    left = several[MOST_WASTED:]
    more = f"and {len(left)} more with {trends_page.hours(sum(one.minutes for one in left))} GPU-hours" if left else ""
    title = f"{HEADS[kind]}: {trends_page.hours(sum(one.minutes for one in several))} GPU-hours"
    return WasteTable(title, week.users and kind != "unused", rows, more)


def now_line(one: WastedNow) -> tuple[str, str, str]:
    """What is wasted now: where and whose, what, and what to do."""
    gpu, who, hours, what, do = reports_page.item_row(one)
    whose = "" if who == heatmap.UNKNOWN else f" ({said(who)})"
    long = "" if one.hours is None else f", {hours} h"
    return f"{said(gpu, GPU)}{whose}{long}", said(what, SENTENCE), said(do, SENTENCE)


def happened(weight: str, when: str, gpu: str, what: str) -> Happened:
    """What happened."""
    return Happened(weight, said(gpu, GPU), said(what, SENTENCE), when)
