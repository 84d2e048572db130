"""The report of a week as plain text, for a mail: no line is longer than 78 letters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from site_builder.charts import svg
from site_builder.core.formatting import join_names
from site_builder.core.terminal_text import fit_text, flatten_text, truncate_text
from site_builder.health import events
from site_builder.reports import page, rules
from site_builder.reports.rules import WastedGpu, WeeklyReport
from site_builder.usage import fleet_page
from site_builder.usage.fleet_trends import UseSummary, ValueChange

TEXT_WIDTH = 78
BAR_CHARACTERS = 30
# A letter for each part of a bar; what was free is blank.
BAR_LETTERS = {"working": "#", "held": "=", "booked": ".", "unclear": "?"}
MAX_PEOPLE, MAX_WASTED, MAX_EVENTS, MAX_HOSTS = 25, 8, 20, 10
WASTE_HEADINGS = {"held": "Held: taken, but idle", "booked": "Booked, and nobody on it", "unused": "Never used"}


def render_report_text(week: WeeklyReport, url: str = "") -> str:
    """All of it."""
    parts = [
        (
            "",
            [
                f"gpuboard: {page.format_week_title(week)[0].lower()}{page.format_week_title(week)[1:]}",
                page.format_week_days(week),
            ],
        ),
        ("", [line for note in page.list_notes(week) for line in wrap_sentence(note)]),
        ("In short", list(format_summary_lines(week))),
        ("Use by day", list(format_day_lines(week))),
        ("Use by model", list(format_model_lines(week))),
        ("People", list(format_people_lines(week))),
        ("Waste", list(format_waste_lines(week))),
        ("Health", list(format_health_lines(week))),
        ("", [f"With charts: {url}"] if url else []),
    ]
    lines: list[str] = []
    for title, several in parts:
        if several:
            lines += [""] if lines else []
            lines += [title, "-" * len(title)] if title else []
            lines += several
    return "".join(f"{truncate_text(replace_unprintable(line), TEXT_WIDTH).rstrip()}\n" for line in lines)


def replace_unprintable(line: str) -> str:
    """A line that does nothing to a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def wrap_sentence(sentence: str, indent: str = "", first: str = "") -> list[str]:
    """A sentence in several lines."""
    return textwrap.wrap(flatten_text(sentence), TEXT_WIDTH, initial_indent=first, subsequent_indent=indent)


def format_text_row(name: str, room: int, *cells: tuple[str, int]) -> str:
    """A name and numbers at the right of their columns."""
    return fit_text(flatten_text(name), room) + "".join(text.rjust(wide) for text, wide in cells)


def format_ascii_change(change: ValueChange) -> str:
    """`+9 %`, in letters that every mail has."""
    return page.format_change(change).replace("−", "-").replace("–", "-")  # noqa: RUF001


def format_summary_lines(week: WeeklyReport) -> Iterator[str]:
    """The sums, and what they were in the week before."""
    changes = rules.compare_weeks(week)
    for what, change, digits in (
        ("GPU-hours used", changes.used, 1),
        ("people who used GPUs", changes.people, 0),
        ("GPU-hours held idle or booked and unused", changes.wasted, 1),
    ):
        was = "" if change.before is None else f"was {change.before:,.{digits}f}"
        yield format_text_row(what, 42, (f"{change.now:,.{digits}f}", 10), (format_ascii_change(change), 9), (was, 16))
    now, before = changes.taken_percents
    was = "" if before is None else f"was {fleet_page.format_share(before)}"
    yield format_text_row("taken, of all that was seen", 42, (fleet_page.format_share(now), 10), ("", 9), (was, 16))


def format_day_lines(week: WeeklyReport) -> Iterator[str]:
    """A bar for each day."""
    yield format_text_row("", 11, ("", BAR_CHARACTERS + 2), ("taken", 9), ("held", 8), ("GPU-hours", 12))
    for day, use in week.usage.days.items():
        name = svg.format_day_label(day)
        if use.seen:
            told = (
                fleet_page.format_share(use.share("taken")),
                fleet_page.format_share(use.share("held")),
                fleet_page.format_gpu_hours(use.taken),
            )
            yield format_text_row(name, 11, (f"|{draw_text_bar(use)}|", BAR_CHARACTERS + 2), *zip(told, (9, 8, 12)))
        else:
            yield format_text_row(name, 11, (f"|{svg.NO_DATA.ljust(BAR_CHARACTERS)}|", BAR_CHARACTERS + 2))
    yield "# taken   = of it held idle   . booked, nobody on it   ? lost or not known"


def draw_text_bar(use: UseSummary) -> str:
    """The parts of what was seen side by side."""
    minutes = {"working": use.taken - use.held, "held": use.held, "booked": use.booked, "unclear": use.unclear}
    found, at = "", 0.0
    for part, letter in BAR_LETTERS.items():
        at += minutes[part] * BAR_CHARACTERS / use.seen
        found += letter * (round(at) - len(found))
    return found.ljust(BAR_CHARACTERS)


def format_model_lines(week: WeeklyReport) -> Iterator[str]:
    """Each model, against the week before."""
    yield format_text_row("", 28, ("GPUs", 6), ("taken", 8), ("held", 8), ("GPU-hours", 12), ("change", 10))
    several = [(model, use, rules.compare_model(week, model)) for model, use in rules.list_models(week).items()]
    for model, use, change in (*several, ("All GPUs", week.usage.total, rules.compare_weeks(week).used)):
        if use.seen:
            told = (str(use.gpus), *(fleet_page.format_share(use.share(what)) for what in ("taken", "held")))
            yield format_text_row(
                model,
                28,
                *zip((*told, fleet_page.format_gpu_hours(use.taken), format_ascii_change(change)), (6, 8, 8, 12, 10)),
            )
        else:
            yield format_text_row(model, 28, (svg.NO_DATA, 14))


def format_people_lines(week: WeeklyReport) -> Iterator[str]:
    """Who had how much, in GPU-hours."""
    rest, together = page.build_people_footer(week)
    widths = (12, 10, 10, 10, 10)
    if not week.are_users_shown:
        yield from wrap_sentence(f"People are not shown. All together used {together.used} GPU-hours.")
        return
    yield format_text_row("GPU-hours", 26, *zip(("used", "change", "held", "booked", "unused"), widths))
    for one in page.build_people_rows(week)[:MAX_PEOPLE]:
        told = (one.used, replace_dashes(one.change), one.held, one.booked, one.unused)
        yield format_text_row(one.name, 26, *zip(told, widths))
    more = page.format_omitted_people(week.usage.people.rows[MAX_PEOPLE:])
    if more:
        yield more
    if rest:
        yield format_text_row("owner not known", 26, (rest, 12))
    told = (together.used, replace_dashes(together.change), together.held, together.booked, together.unused)
    yield format_text_row(together.name, 26, *zip(told, widths))


def replace_dashes(told: str) -> str:
    """A change in letters that every mail has."""
    return told.replace("−", "-").replace("–", "-")  # noqa: RUF001


def format_waste_lines(week: WeeklyReport) -> Iterator[str]:
    """What was wasted, and what is now."""
    for kind, title in WASTE_HEADINGS.items():
        several: list[WastedGpu] = getattr(week.waste, kind)
        if several:
            yield f"{title}: {sum(one.minutes for one in several) / 60:,.1f} GPU-hours"
            yield from format_wasted_gpu_lines(several)
    if week.current_waste:
        yield "When this report was made:"
        for one in week.current_waste[:MAX_WASTED]:
            hours = "" if one.hours is None else f", {one.hours:,.1f} h"
            who = f" ({join_names(one.people)})" if one.people else ""
            gpu = page.format_gpu_name(one.host, one.index)
            yield from wrap_sentence(f"{gpu}{who}{hours}: {one.what}. {one.advice}", "    ", "  ")
        if len(week.current_waste) > MAX_WASTED:
            yield f"  and {len(week.current_waste) - MAX_WASTED} more: gpuboard waste lists them"
    if not any(week.waste) and not week.current_waste:
        yield "Nothing was wasted for an hour or longer."


def format_wasted_gpu_lines(several: Sequence[WastedGpu]) -> Iterator[str]:
    """GPUs that were wasted in one way."""
    for one in several[:MAX_WASTED]:
        name = f"  {page.format_gpu_name(one.host, one.index)}"
        yield (
            fit_text(name, 20)
            + fit_text(flatten_text(one.model), 26)
            + fit_text(flatten_text(one.person), 20)
            + f"{one.minutes / 60:10,.1f}"
        )
    if len(several) > MAX_WASTED:
        yield f"  and {len(several) - MAX_WASTED} more"


def format_health_lines(week: WeeklyReport) -> Iterator[str]:
    """What happened to GPUs, and which hosts were not seen."""
    several = page.list_report_events(week)
    for one in several[:MAX_EVENTS]:
        _, when, gpu, what = page.build_report_event_row(one, week)
        mark = "!" if one.kind in events.CRITICAL_KINDS else "-"
        yield from wrap_sentence(f"{mark} {gpu}: {what} ({when})", "  ")
    if len(several) > MAX_EVENTS:
        yield f"and {len(several) - MAX_EVENTS} more"
    if not several:
        yield "Nothing happened to a GPU that was told."
    gaps = rules.list_unseen_hosts(week)
    for host in gaps[:MAX_HOSTS]:
        seen, unseen = page.format_host_coverage(host)
        yield from wrap_sentence(f"- {host.name} was seen {seen} of the time; {unseen} GPU-hours were not", "  ")
    if len(gaps) > MAX_HOSTS:
        yield f"and {len(gaps) - MAX_HOSTS} more hosts"
