"""What is wasted: a section of the board, a table for terminals, and waste.json for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson

from site_builder.board.card import moment_at
from site_builder.board.outputs.plain import index_of
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.html import Html
from site_builder.core.templates import escaping
from site_builder.core.terminal_text import cut, fit, one_line, width
from site_builder.waste.model import Item, Line, Wasted, lines, totals

SCHEMA = 1
# Lines on the board; `gpuboard waste` has all.
MOST_LINES = 25
HEAD = ("GPU-hours", "GPU", "kind", "since", "who")
LEAST_NAME, MOST_NAME = 8, 24
GAP = "  "
UNKNOWN = "?"


def hours(value: float | None) -> str:
    """`312`, `7.5`, `0.4`; `?` where nobody can know."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


# On the board


def in_short(found: Wasted | None) -> str:
    """For the bar, where only a word has room; nothing where nothing is wasted."""
    if not found or not found.items:
        return ""
    return f"{hours(totals(found.items)[0])} GPU-hours wasted"


def section(found: Wasted | None, now: Now) -> bytes:
    """The worst; nothing where nothing is wasted."""
    if not found or not found.items:
        return b""
    total, unknown = totals(found.items)
    told = lines(found.items)
    html = escaping("waste.html").render(
        hours=hours(total),
        short=in_short(found),
        unknown=unknown,
        lines=[(one.first, hours(one.hours), one.place, when(one.first, now)) for one in told[:MOST_LINES]],
        names=formatting.names,
        more=max(0, len(told) - MOST_LINES),
    )
    return html.encode()


def when(one: Item, now: Now) -> Html:
    """Since when, and until when if it is over."""
    if one.since is None:
        return Html("")
    if one.until is None:
        return Html(f"since {moment_at(one.since, now)}")
    return Html(f"{moment_at(one.since, now)} to {moment_at(one.until, now)}")


# For programs


def json(found: Wasted) -> bytes:
    """All of it; docs/waste.schema.json has the form."""
    total, unknown = totals(found.items)
    told = {
        "schema": SCHEMA,
        "built": found.built,
        "every": found.every,
        "history_since": found.watched,
        "trouble": found.trouble,
        "gpu_hours": total,
        "hours_not_known": unknown,
        "hosts": found.hosts,
        "items": [item(one) for one in found.items],
    }
    return orjson.dumps(told, option=orjson.OPT_INDENT_2)


def item(one: Item) -> dict[str, Any]:
    """A line."""
    return {
        "kind": one.kind,
        "host": one.host,
        "index": index_of(one.index),
        **({"place": one.index} if isinstance(one.index, str) else {}),
        "uuid": None if one.key.startswith("index ") else one.key,
        "model": one.model,
        "who": one.who,
        "since": one.since,
        "until": one.until,
        "gpu_hours": one.hours,
        "pids": one.pids,
        "what": one.what,
        "do": one.do,
        "command": one.command or None,
    }


# In a terminal


def table(items: Sequence[Item], now: Now, across: int | None = None) -> list[str]:
    """Each in two lines or more, for a terminal that is so many cells across; with None nothing is cut."""
    told = lines(items)
    rows = [row(one, now) for one in told]
    widths = [max(map(width, column)) for column in zip(HEAD, *rows)]
    if across is not None:
        widths[1] = min(widths[1], max(LEAST_NAME, min(MOST_NAME, across // 4)))
    found = [side_by_side(HEAD, widths, across)]
    for one, cells in zip(told, rows):
        found.append(side_by_side(cells, widths, across))
        found += below(one.first, len(GAP) + widths[0], across)
    total, unknown = totals(items)
    found += ["", side_by_side((hours(total), "together"), [widths[0], len("together")], across)]
    if unknown:
        more = "for 1 more nobody can know" if unknown == 1 else f"for {unknown} more nobody can know"
        found.append(side_by_side((UNKNOWN, more), [widths[0], width(more)], across))
    return found


def row(line: Line, now: Now) -> tuple[str, ...]:
    """The cells of a line."""
    one = line.first
    since = UNKNOWN if one.since is None else formatting.clock(datetime.fromtimestamp(one.since, now.zone), now)
    return hours(line.hours), one_line(line.place), one.kind, since, one_line(formatting.names(one.who))


def side_by_side(cells: Sequence[str], widths: Sequence[int], across: int | None) -> str:
    """Cells in columns, the hours at the right of theirs."""
    first, *rest = cells
    line = GAP.join([fit(first, widths[0], right=True), *(fit(text, one) for text, one in zip(rest, widths[1:]))])
    return line.rstrip() if across is None else cut(line.rstrip(), across)


def below(one: Item, indent: int, across: int | None) -> Iterator[str]:
    """What it is and what to do, in as many lines as that takes; a command is never cut, so that it can be copied."""
    told = one_line(f"{one.model}: {one.what}. {one.do}")
    room = None if across is None else across - indent
    for line in [told] if room is None else textwrap.wrap(told, max(20, room)):
        yield " " * indent + line
    if one.command:
        yield " " * (indent + 2) + one_line(one.command)
