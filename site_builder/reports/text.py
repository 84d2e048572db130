"""The report of a week as plain text, for a mail: no line is longer than 78 letters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from site_builder.charts import heatmap
from site_builder.core.formatting import names
from site_builder.core.terminal_text import cut, fit, one_line
from site_builder.health import descriptions
from site_builder.reports import page, rules
from site_builder.reports.rules import Wasted, Week
from site_builder.usage import trends_page
from site_builder.usage.trends import Change, Use

ACROSS = 78
BAR = 30
# A letter for each part of a bar; what was free is blank.
PARTS = {"working": "#", "held": "=", "booked": ".", "unclear": "?"}
MOST_PEOPLE, MOST_WASTED, MOST_EVENTS, MOST_HOSTS = 25, 8, 20, 10
HEADS = {"held": "Held: taken, but idle", "booked": "Booked, and nobody on it", "unused": "Never used"}


def text(week: Week, url: str = "") -> str:
    """All of it."""
    parts = [
        ("", [f"gpuboard: {page.title(week)[0].lower()}{page.title(week)[1:]}", page.days_of(week)]),
        ("", [line for note in page.notes(week) for line in wrapped(note)]),
        ("In short", list(short(week))),
        ("Use by day", list(days(week))),
        ("Use by model", list(models(week))),
        ("People", list(people(week))),
        ("Waste", list(waste(week))),
        ("Health", list(happened(week))),
        ("", [f"With charts: {url}"] if url else []),
    ]
    lines: list[str] = []
    for title, several in parts:
        if several:
            lines += [""] if lines else []
            lines += [title, "-" * len(title)] if title else []
            lines += several
    return "".join(f"{cut(clean(line), ACROSS).rstrip()}\n" for line in lines)


def clean(line: str) -> str:
    """A line that does nothing to a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def wrapped(sentence: str, indent: str = "", first: str = "") -> list[str]:
    """A sentence in several lines."""
    return textwrap.wrap(one_line(sentence), ACROSS, initial_indent=first, subsequent_indent=indent)


def row(name: str, room: int, *cells: tuple[str, int]) -> str:
    """A name and numbers at the right of their columns."""
    return fit(one_line(name), room) + "".join(text.rjust(wide) for text, wide in cells)


def sign(change: Change) -> str:
    """`+9 %`, in letters that every mail has."""
    return page.signed(change).replace("−", "-").replace("–", "-")  # noqa: RUF001


def short(week: Week) -> Iterator[str]:
    """The sums, and what they were in the week before."""
    changes = rules.changes(week)
    for what, change, digits in (
        ("GPU-hours used", changes.used, 1),
        ("people who used GPUs", changes.people, 0),
        ("GPU-hours held idle or booked and unused", changes.wasted, 1),
    ):
        was = "" if change.before is None else f"was {change.before:,.{digits}f}"
        yield row(what, 42, (f"{change.now:,.{digits}f}", 10), (sign(change), 9), (was, 16))
    now, before = changes.share
    was = "" if before is None else f"was {trends_page.percent(before)}"
    yield row("taken, of all that was seen", 42, (trends_page.percent(now), 10), ("", 9), (was, 16))


def days(week: Week) -> Iterator[str]:
    """A bar for each day."""
    yield row("", 11, ("", BAR + 2), ("taken", 9), ("held", 8), ("GPU-hours", 12))
    for day, use in week.told.days.items():
        name = heatmap.day_name(day)
        if use.seen:
            told = (
                trends_page.percent(use.share("taken")),
                trends_page.percent(use.share("held")),
                trends_page.hours(use.taken),
            )
            yield row(name, 11, (f"|{bar(use)}|", BAR + 2), *zip(told, (9, 8, 12)))
        else:
            yield row(name, 11, (f"|{heatmap.NO_DATA.ljust(BAR)}|", BAR + 2))
    yield "# taken   = of it held idle   . booked, nobody on it   ? lost or not known"


def bar(use: Use) -> str:
    """The parts of what was seen side by side."""
    minutes = {"working": use.taken - use.held, "held": use.held, "booked": use.booked, "unclear": use.unclear}
    found, at = "", 0.0
    for part, letter in PARTS.items():
        at += minutes[part] * BAR / use.seen
        found += letter * (round(at) - len(found))
    return found.ljust(BAR)


def models(week: Week) -> Iterator[str]:
    """Each model, against the week before."""
    yield row("", 28, ("GPUs", 6), ("taken", 8), ("held", 8), ("GPU-hours", 12), ("change", 10))
    several = [(model, use, rules.model_change(week, model)) for model, use in rules.models(week).items()]
    for model, use, change in (*several, ("All GPUs", week.told.total, rules.changes(week).used)):
        if use.seen:
            told = (str(use.gpus), *(trends_page.percent(use.share(what)) for what in ("taken", "held")))
            yield row(model, 28, *zip((*told, trends_page.hours(use.taken), sign(change)), (6, 8, 8, 12, 10)))
        else:
            yield row(model, 28, (heatmap.NO_DATA, 14))


def people(week: Week) -> Iterator[str]:
    """Who had how much, in GPU-hours."""
    rest, together = page.foot(week)
    widths = (12, 10, 10, 10, 10)
    if not week.users:
        yield from wrapped(f"People are not shown. All together used {together.used} GPU-hours.")
        return
    yield row("GPU-hours", 26, *zip(("used", "change", "held", "booked", "unused"), widths))
    for one in page.people(week)[:MOST_PEOPLE]:
        told = (one.used, ascii_of(one.against), one.held, one.booked, one.unused)
        yield row(one.name, 26, *zip(told, widths))
    more = page.more(week.told.people.rows[MOST_PEOPLE:])
    if more:
        yield more
    if rest:
        yield row("owner not known", 26, (rest, 12))
    told = (together.used, ascii_of(together.against), together.held, together.booked, together.unused)
    yield row(together.name, 26, *zip(told, widths))


def ascii_of(told: str) -> str:
    """A change in letters that every mail has."""
    return told.replace("−", "-").replace("–", "-")  # noqa: RUF001


def waste(week: Week) -> Iterator[str]:
    """What was wasted, and what is now."""
    for kind, title in HEADS.items():
        several: list[Wasted] = getattr(week.waste, kind)
        if several:
            yield f"{title}: {sum(one.minutes for one in several) / 60:,.1f} GPU-hours"
            yield from wasted(several)
    if week.now:
        yield "When this report was made:"
        for one in week.now[:MOST_WASTED]:
            hours = "" if one.hours is None else f", {one.hours:,.1f} h"
            who = f" ({names(one.who)})" if one.who else ""
            gpu = page.gpu_name(one.host, one.index)
            yield from wrapped(f"{gpu}{who}{hours}: {one.what}. {one.do}", "    ", "  ")
        if len(week.now) > MOST_WASTED:
            yield f"  and {len(week.now) - MOST_WASTED} more: gpuboard waste lists them"
    if not any(week.waste) and not week.now:
        yield "Nothing was wasted for an hour or longer."


def wasted(several: Sequence[Wasted]) -> Iterator[str]:
    """GPUs that were wasted in one way."""
    for one in several[:MOST_WASTED]:
        name = f"  {page.gpu_name(one.host, one.index)}"
        yield fit(name, 20) + fit(one_line(one.model), 26) + fit(one_line(one.who), 20) + f"{one.minutes / 60:10,.1f}"
    if len(several) > MOST_WASTED:
        yield f"  and {len(several) - MOST_WASTED} more"


def happened(week: Week) -> Iterator[str]:
    """What happened to GPUs, and which hosts were not seen."""
    several = page.events(week)
    for one in several[:MOST_EVENTS]:
        _, when, gpu, what = page.event_row(one, week)
        mark = "!" if one.kind in descriptions.GRAVE else "-"
        yield from wrapped(f"{mark} {gpu}: {what} ({when})", "  ")
    if len(several) > MOST_EVENTS:
        yield f"and {len(several) - MOST_EVENTS} more"
    if not several:
        yield "Nothing happened to a GPU that was told."
    gaps = rules.gaps(week)
    for host in gaps[:MOST_HOSTS]:
        seen, unseen = page.gap(host)
        yield from wrapped(f"- {host.name} was seen {seen} of the time; {unseen} GPU-hours were not", "  ")
    if len(gaps) > MOST_HOSTS:
        yield f"and {len(gaps) - MOST_HOSTS} more hosts"
