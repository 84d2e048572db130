"""The report of a week as one page that needs nothing beside it: it is mailed as well as served."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from site_builder.charts import heatmap, svg
from site_builder.charts.heatmap import UNKNOWN
from site_builder.core.clock import Now
from site_builder.core.formatting import names
from site_builder.core.html import NOTHING, Html
from site_builder.core.templates import escaping
from site_builder.health import descriptions
from site_builder.health.model import Event
from site_builder.reports import rules
from site_builder.reports.rules import Wasted, WastedNow, Week
from site_builder.usage import trends_page
from site_builder.usage.totals import Row, Sums, percent_seen
from site_builder.usage.totals import hours as hours_of
from site_builder.usage.trends import Change

# Rows of a table; whoever has more begins with the first.
MOST_PEOPLE, MOST_WASTED, MOST_EVENTS, MOST_HOSTS = 300, 25, 100, 50
WASTED = {
    "held": "Held: taken, but idle",
    "booked": "Booked, and nobody on it",
    "unused": "Never used in this week",
}
WEIGHTS = ((descriptions.GRAVE, "grave"), (descriptions.WORTH_A_LOOK, "worth a look"))
TOLD_ONLY = "for your information"
# It would fill the page, and is nothing to act on.
NOT_TOLD = frozenset({"power"})


class Person(NamedTuple):
    """A person as the table has them."""

    name: str
    bar: Html
    used: str
    against: str
    held: str
    booked: str
    unused: str


class WasteTable(NamedTuple):
    """GPUs that were wasted in one way; `by` where it is told by whom."""

    title: str
    by: bool
    rows: list[tuple[str, str, str, str]]
    more: str


def page(week: Week, style: str, made: Now, url: str = "") -> bytes:
    """The whole page; `style` is all that it looks like."""
    rest, together = foot(week)
    text = escaping("report.html").render(
        users=week.users,
        style=Html(style),
        digest=b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        title=title(week),
        days_of=days_of(week),
        notes=notes(week),
        changes=trends_page.told(rules.changes(week)),
        days=[trends_page.row(heatmap.day_name(day), week.told.days[day]) for day in week.days],
        total=trends_page.row("All GPUs", week.told.total),
        hours=heatmap.HOUR_NAMES,
        heat=heatmap.rows(week.days, week.cells, until_of(week)),
        models=[
            trends_page.row(model, use, Html(signed(rules.model_change(week, model))))
            for model, use in rules.models(week).items()
        ],
        all_models=trends_page.row("All GPUs", week.told.total, Html(signed(rules.changes(week).used))),
        people=people(week),
        more_people=more(week.told.people.rows[MOST_PEOPLE:]),
        rest=rest,
        together=together,
        waste=[waste_table(week, kind) for kind in WASTED if getattr(week.waste, kind)],
        now=[item_row(one) for one in week.now[:MOST_WASTED]],
        more_now=len(week.now) - MOST_WASTED,
        gaps=[(row.name, *gap(row)) for row in rules.gaps(week)[:MOST_HOSTS]],
        events=[event_row(one, week) for one in events(week)[:MOST_EVENTS]],
        more_events=len(events(week)) - MOST_EVENTS,
        made=f"{heatmap.day_name(made.today)} {made.today.year} {made.local:%H:%M}",
        url=url,
    )
    return text.encode("utf-8", "replace")


# What both forms of the report tell


def title(week: Week) -> str:
    """`Week 46 of 2026`."""
    year, number, _ = week.first.isocalendar()
    return f"Week {number} of {year}"


def days_of(week: Week) -> str:
    """`Mon 9 Nov to Sun 15 Nov 2026, Europe/Paris`."""
    last = week.days[-1]
    year = "" if week.first.year == last.year else f" {week.first.year}"
    zone = getattr(week.zone, "key", None) or datetime.fromtimestamp(week.until, week.zone).tzname()
    return f"{heatmap.day_name(week.first)}{year} to {heatmap.day_name(last)} {last.year}, {zone}"


def until_of(week: Week) -> datetime | None:
    """Up to when it is told, where it is not over."""
    return None if week.over else datetime.fromtimestamp(week.until, week.zone)


def notes(week: Week) -> list[str]:
    """What one must know to read the numbers."""
    found = []
    until = until_of(week)
    if until:
        found.append(
            f"This week is not over: it is told up to {heatmap.day_name(until.date())} {until:%H:%M}, "
            "and compared with none."
        )
    seen = week.told.seen
    if seen is not None and seen < 100:
        found.append(f"{seen} % of the time of these GPUs was seen; all else is of that time.")
    if week.told.begins:
        found.append(f"History begins with {heatmap.day_name(week.told.begins)}: of the days before nothing is known.")
    if week.before is None and not until:
        found.append("Of the week before nothing was seen.")
    elif week.before and not until:
        found += notes_before(week.before)
    return found


def notes_before(before: rules.Told) -> list[str]:
    """What one must know to compare."""
    if before.begins:
        return [f"History begins with {heatmap.day_name(before.begins)}: the week before is not whole."]
    if before.seen is not None and before.seen < 95:
        return [f"Of the week before only {before.seen} % was seen."]
    return []


def signed(change: Change) -> str:
    """`+9 %`: how much more or less than the week before."""
    if change.before is None:
        return UNKNOWN
    if change.percent is None:
        return "new" if change.now else "0 %"
    return f"{change.percent:+,.0f} %".replace("-0 %", "0 %").replace("+0 %", "0 %").replace("-", "−")  # noqa: RUF001


def gpu_name(host: str, index: int | str | None) -> str:
    """`atlas:3`."""
    return host if index is None else f"{host}:{index}"


def number(units: int) -> str:
    """GPU-hours."""
    return f"{hours_of(units):,.1f}"


def people(week: Week) -> list[Person]:
    """Who had how much."""
    if not week.users:
        return []
    rows, before = week.told.people.rows, rules.used_before(week)
    most = max((row.sums.used for row in rows), default=0)
    found = []
    for row in rows[:MOST_PEOPLE]:
        was = None if before is None else hours_of(before.get(row.key, 0))
        told = (number(one) for one in (row.sums.held, row.sums.booked, row.sums.unused))
        against = signed(Change(hours_of(row.sums.used), was))
        found.append(Person(row.name, person_bar(row.sums, most), number(row.sums.used), against, *told))
    return found


def more(rows: Sequence[Row]) -> str:
    """Those who are left out, in one line."""
    return f"and {len(rows)} more with {number(sum(row.sums.used for row in rows))} GPU-hours" if rows else ""


def foot(week: Week) -> tuple[str, Person]:
    """What was used by nobody that is known, and all together."""
    total = week.told.people.total
    told = (number(one) for one in (total.held, total.booked, total.unused))
    against = signed(rules.changes(week).used)
    whole = Person("All together", NOTHING, number(total.used + total.unowned), against, *told)
    return number(total.unowned) if total.unowned else "", whole


def gap(row: Row) -> tuple[str, str]:
    """How much of a host was seen, and how much was not."""
    seen = percent_seen(row.sums)
    return UNKNOWN if seen is None else f"{seen} %", number(row.sums.unseen)


def events(week: Week) -> list[Event]:
    """What happened: what is grave first, and then in its order."""
    found = [one for one in week.events if one.kind not in NOT_TOLD]
    return sorted(found, key=lambda one: (weight(one)[0], one.at, one.host, one.number))


def weight(event: Event) -> tuple[int, str]:
    """How grave it is."""
    for place, (kinds, word) in enumerate(WEIGHTS):
        if event.kind in kinds:
            return place, word
    return len(WEIGHTS), TOLD_ONLY


# Of the page alone


def person_bar(sums: Sums, most: int) -> Html:
    """What somebody used, of it held, where the one who used most has the whole width."""
    if not sums.used:
        return NOTHING
    whole = max(1, round(sums.used * trends_page.BAR / most))
    held = round(sums.held * trends_page.BAR / most)
    box = svg.Box(whole - held, 0, held, trends_page.BAR_HEIGHT)
    pieces = [svg.rect(svg.Box(0, 0, whole, trends_page.BAR_HEIGHT), "class=working")]
    if held:
        pieces += [svg.rect(box, "class=held"), svg.rect(box, 'fill="url(#_held)"')]
    return Html(
        f"<svg class=share width={trends_page.BAR} height={trends_page.BAR_HEIGHT} aria-hidden=true>"
        f"{''.join(pieces)}</svg>"
    )


def waste_table(week: Week, kind: str) -> WasteTable:
    """One way of wasting GPUs."""
    several: list[Wasted] = getattr(week.waste, kind)
    rows = [
        (gpu_name(one.host, one.index), one.model, one.who or UNKNOWN, f"{one.minutes / 60:,.1f}")
        for one in several[:MOST_WASTED]
    ]
    left = several[MOST_WASTED:]
    more = f"and {len(left)} more with {sum(one.minutes for one in left) / 60:,.1f} GPU-hours" if left else ""
    return WasteTable(WASTED[kind], week.users and kind != "unused", rows, more)


def item_row(one: WastedNow) -> tuple[str, str, str, str, str]:
    """What is wasted now."""
    hours = UNKNOWN if one.hours is None else f"{one.hours:,.1f}"
    return gpu_name(one.host, one.index), names(one.who) or UNKNOWN, hours, one.what, one.do


def event_row(event: Event, week: Week) -> tuple[str, str, str, str]:
    """What happened."""
    where = gpu_name(event.host, event.index if event.gpu else None)
    return weight(event)[1], descriptions.when(event, week.zone), where, descriptions.sentence(event)
