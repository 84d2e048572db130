"""An answer as Slack shows it: Block Kit, within all of its limits, and the same as plain text.

Texts between the marks of a section are escaped as Slack wants it. In a title or a cell nobody promises how Slack reads
an escape, so that the three signs by which a text could call somebody are others there, which look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from site_builder.alerts.slack_client import escape_slack_text, truncate_escaped_text
from site_builder.core.terminal_text import ELLIPSIS, fit_text, measure_width
from site_builder.core.terminal_text import truncate_text as cut_cells

MAX_TITLE_CHARACTERS, MAX_SECTION_CHARACTERS, MAX_CONTEXT_CHARACTERS = 150, 3000, 900
MAX_LINE_CHARACTERS, MAX_NOTE_CHARACTERS = 1200, 300
# A table has 100 rows with its titles, and all of a message's cells 10,000 letters. Slack refuses a message of some
# 13,000 letters, which it says nowhere: what is beside a table has the rest.
MAX_ROWS, MAX_CELL_CHARACTERS, MAX_TABLE_CHARACTERS = 99, 300, 9000
EMPTY_CELL = "–"
LOOKALIKE_CHARACTERS = str.maketrans({"<": "‹", ">": "›", "&": "＆"})  # noqa: RUF001
# How wide a phone shows a line of a fixed width.
NARROW_WIDTH, MAX_COLUMN_WIDTH, MAX_PLAIN_CHARACTERS = 60, 28, 3000
SlackBlock = dict[str, Any]


class AnswerTable(NamedTuple):
    """Cells under titles; `right` are the columns of numbers, `more` says what is left out: `12 hosts`."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right_aligned: frozenset[int] = frozenset()
    more_text: str = "{} more"


class SlackAnswer(NamedTuple):
    """What is said: a line that says it all, sentences, a table, notes below it, and where the board is."""

    title: str
    lines: tuple[str, ...] = ()
    table: AnswerTable | None = None
    notes: tuple[str, ...] = ()
    link: str | None = None


class RenderedAnswer(NamedTuple):
    """A message: what a notification shows, the blocks, and the same in plain text if Slack does not take them."""

    text: str
    blocks: list[SlackBlock]
    plain_text: str


def render_answer(answer: SlackAnswer) -> RenderedAnswer:
    """An answer, ready to be sent."""
    table = answer.table if answer.table and answer.table.rows else None
    shown = fit_table_rows(table) if table else ()
    left = len(table.rows) - len(shown) if table else 0
    title = truncate_escaped_text(escape_slack_text(answer.title.strip()), MAX_NOTE_CHARACTERS) or EMPTY_CELL
    notes = [truncate_escaped_text(escape_slack_text(one), MAX_NOTE_CHARACTERS) for one in answer.notes if one.strip()]
    if table and left:
        notes.insert(0, escape_slack_text(f"and {table.more_text.format(left)}"))
    small = [truncate_escaped_text(" · ".join(notes), MAX_CONTEXT_CHARACTERS)] if notes else []
    if answer.link:
        small.append(f"<{answer.link}|the board>")
    said = join_section_lines(answer.lines)
    blocks = [build_header_block(answer.title), *([build_section_block(said)] if said else [])]
    if table:
        blocks.append(build_table_block(table, shown))
    if small:
        blocks.append(build_context_block(small))
    parts = (f"*{title}*", said, format_monospaced_table(table, shown) if table else "", " · ".join(small))
    return RenderedAnswer(title, blocks, "\n".join(filter(None, parts)))


# Blocks


def replace_markup_characters(text: str) -> str:
    """A text in which nothing is a mark, whether Slack looks for marks there or not."""
    return text.translate(LOOKALIKE_CHARACTERS)


def build_header_block(text: str) -> SlackBlock:
    """The line in large letters."""
    shown = truncate_characters(replace_markup_characters(text.strip()), MAX_TITLE_CHARACTERS) or EMPTY_CELL
    return {"type": "header", "text": {"type": "plain_text", "text": shown, "emoji": False}}


def build_section_block(text: str) -> SlackBlock:
    """Sentences that are escaped already; nothing in them becomes a link by itself."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def build_context_block(texts: Sequence[str]) -> SlackBlock:
    """A line in small letters; its parts are escaped already."""
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": one, "verbatim": True} for one in texts]}


def join_section_lines(lines: Sequence[str]) -> str:
    """Lines, escaped, as one text; what is too much is counted."""
    kept, room = [], MAX_SECTION_CHARACTERS - MAX_NOTE_CHARACTERS
    for number, line in enumerate(lines):
        text = truncate_escaped_text(escape_slack_text(line.strip()), MAX_LINE_CHARACTERS)
        room -= len(text) + 1
        if room < 0:
            kept.append(f"… and {len(lines) - number} more")
            break
        kept.append(text)
    return "\n".join(kept).strip()


def fit_table_rows(table: AnswerTable) -> tuple[tuple[str, ...], ...]:
    """The rows for which there is room, each cell with something in it."""
    kept: list[tuple[str, ...]] = []
    room = MAX_TABLE_CHARACTERS - sum(map(len, table.titles))
    for row in table.rows[:MAX_ROWS]:
        cells = tuple(format_block_cell(one) for one in row)
        room -= sum(map(len, cells))
        if room < 0:
            break
        kept.append(cells)
    return tuple(kept)


def format_block_cell(text: str) -> str:
    """What stands in a cell; Slack refuses one with nothing in it."""
    return truncate_characters(replace_markup_characters(text.strip()), MAX_CELL_CHARACTERS) or EMPTY_CELL


def truncate_characters(text: str, most: int) -> str:
    """A text of at most so many letters, however wide they are."""
    return text if len(text) <= most else f"{text[: most - 1]}{ELLIPSIS}"


def build_table_block(table: AnswerTable, rows: Sequence[tuple[str, ...]]) -> SlackBlock:
    """The table; the last column has what is long, and is wrapped."""
    last = len(table.titles) - 1
    settings = [
        {"align": "right" if number in table.right_aligned else "left", "is_wrapped": number == last}
        for number in range(len(table.titles))
    ]
    several = [tuple(format_block_cell(one) for one in table.titles), *rows]
    return {
        "type": "table",
        "rows": [[{"type": "raw_text", "text": one} for one in row] for row in several],
        "column_settings": settings,
    }


# Where Slack does not take the blocks


def format_monospaced_table(table: AnswerTable, rows: Sequence[tuple[str, ...]]) -> str:
    """The same in letters of one width, narrow enough for a phone where that can be."""
    several = [tuple(format_block_cell(one) for one in table.titles), *rows]
    room = MAX_PLAIN_CHARACTERS
    widths = [min(MAX_COLUMN_WIDTH, max(map(measure_width, column))) for column in zip(*several)]
    lines = []
    for row in several:
        told = [
            fit_text(one, wide, number in table.right_aligned) for number, (one, wide) in enumerate(zip(row, widths))
        ]
        told[-1] = cut_cells(row[-1], NARROW_WIDTH) if len(row) - 1 not in table.right_aligned else told[-1]
        line = escape_slack_text("  ".join(told).rstrip().replace("`", "'"))
        room -= len(line) + 1
        if room < 0:
            lines.append("…")
            break
        lines.append(line)
    text = "\n".join(lines)
    return f"```{text}```"
