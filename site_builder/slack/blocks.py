"""An answer as Slack shows it: Block Kit, within all of its limits, and the same as plain text.

Texts between the marks of a section are escaped as Slack wants it. In a title or a cell nobody promises how Slack reads
an escape, so that the three signs by which a text could call somebody are others there, which look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from site_builder.alerts.slack_client import cut, escaped
from site_builder.core.terminal_text import CUT, fit, width
from site_builder.core.terminal_text import cut as cut_cells

MOST_TITLE, MOST_SECTION, MOST_CONTEXT = 150, 3000, 900
MOST_LINE, MOST_NOTE = 1200, 300
# A table has 100 rows with its titles, and all of a message's cells 10,000 letters. Slack refuses a message of some
# 13,000 letters, which it says nowhere: what is beside a table has the rest.
MOST_ROWS, MOST_CELL, MOST_CELLS = 99, 300, 9000
EMPTY = "–"
LOOK_ALIKE = str.maketrans({"<": "‹", ">": "›", "&": "＆"})  # noqa: RUF001
# How wide a phone shows a line of a fixed width.
NARROW, MOST_COLUMN, MOST_PLAIN = 60, 28, 3000
Block = dict[str, Any]


class Table(NamedTuple):
    """Cells under titles; `right` are the columns of numbers, `more` says what is left out: `12 hosts`."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    more: str = "{} more"


class Answer(NamedTuple):
    """What is said: a line that says it all, sentences, a table, notes below it, and where the board is."""

    title: str
    lines: tuple[str, ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()
    link: str | None = None


class Post(NamedTuple):
    """A message: what a notification shows, the blocks, and the same in plain text if Slack does not take them."""

    text: str
    blocks: list[Block]
    plain: str


def post(answer: Answer) -> Post:
    """An answer, ready to be sent."""
    table = answer.table if answer.table and answer.table.rows else None
    shown = fitting(table) if table else ()
    left = len(table.rows) - len(shown) if table else 0
    title = cut(escaped(answer.title.strip()), MOST_NOTE) or EMPTY
    notes = [cut(escaped(one), MOST_NOTE) for one in answer.notes if one.strip()]
    if table and left:
        notes.insert(0, escaped(f"and {table.more.format(left)}"))
    small = [cut(" · ".join(notes), MOST_CONTEXT)] if notes else []
    if answer.link:
        small.append(f"<{answer.link}|the board>")
    said = section_of(answer.lines)
    blocks = [header(answer.title), *([section(said)] if said else [])]
    if table:
        blocks.append(drawn(table, shown))
    if small:
        blocks.append(context(small))
    parts = (f"*{title}*", said, monospaced(table, shown) if table else "", " · ".join(small))
    return Post(title, blocks, "\n".join(filter(None, parts)))


# Blocks


def looking_alike(text: str) -> str:
    """A text in which nothing is a mark, whether Slack looks for marks there or not."""
    return text.translate(LOOK_ALIKE)


def header(text: str) -> Block:
    """The line in large letters."""
    shown = cut_letters(looking_alike(text.strip()), MOST_TITLE) or EMPTY
    return {"type": "header", "text": {"type": "plain_text", "text": shown, "emoji": False}}


def section(text: str) -> Block:
    """Sentences that are escaped already; nothing in them becomes a link by itself."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def context(texts: Sequence[str]) -> Block:
    """A line in small letters; its parts are escaped already."""
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": one, "verbatim": True} for one in texts]}


def section_of(lines: Sequence[str]) -> str:
    """Lines, escaped, as one text; what is too much is counted."""
    kept, room = [], MOST_SECTION - MOST_NOTE
    for number, line in enumerate(lines):
        text = cut(escaped(line.strip()), MOST_LINE)
        room -= len(text) + 1
        if room < 0:
            kept.append(f"… and {len(lines) - number} more")
            break
        kept.append(text)
    return "\n".join(kept).strip()


def fitting(table: Table) -> tuple[tuple[str, ...], ...]:
    """The rows for which there is room, each cell with something in it."""
    kept: list[tuple[str, ...]] = []
    room = MOST_CELLS - sum(map(len, table.titles))
    for row in table.rows[:MOST_ROWS]:
        cells = tuple(cell(one) for one in row)
        room -= sum(map(len, cells))
        if room < 0:
            break
        kept.append(cells)
    return tuple(kept)


def cell(text: str) -> str:
    """What stands in a cell; Slack refuses one with nothing in it."""
    return cut_letters(looking_alike(text.strip()), MOST_CELL) or EMPTY


def cut_letters(text: str, most: int) -> str:
    """A text of at most so many letters, however wide they are."""
    return text if len(text) <= most else f"{text[: most - 1]}{CUT}"


def drawn(table: Table, rows: Sequence[tuple[str, ...]]) -> Block:
    """The table; the last column has what is long, and is wrapped."""
    last = len(table.titles) - 1
    settings = [
        {"align": "right" if number in table.right else "left", "is_wrapped": number == last}
        for number in range(len(table.titles))
    ]
    several = [tuple(cell(one) for one in table.titles), *rows]
    return {
        "type": "table",
        "rows": [[{"type": "raw_text", "text": one} for one in row] for row in several],
        "column_settings": settings,
    }


# Where Slack does not take the blocks


def monospaced(table: Table, rows: Sequence[tuple[str, ...]]) -> str:
    """The same in letters of one width, narrow enough for a phone where that can be."""
    several = [tuple(cell(one) for one in table.titles), *rows]
    room = MOST_PLAIN
    widths = [min(MOST_COLUMN, max(map(width, column))) for column in zip(*several)]
    lines = []
    for row in several:
        told = [fit(one, wide, number in table.right) for number, (one, wide) in enumerate(zip(row, widths))]
        told[-1] = cut_cells(row[-1], NARROW) if len(row) - 1 not in table.right else told[-1]
        line = escaped("  ".join(told).rstrip().replace("`", "'"))
        room -= len(line) + 1
        if room < 0:
            lines.append("…")
            break
        lines.append(line)
    text = "\n".join(lines)
    return f"```{text}```"
