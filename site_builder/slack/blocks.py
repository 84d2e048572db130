"""Render an answer for Slack: as Block Kit within all of its limits, and as plain text.

The text of a section is escaped. Slack does not document how it reads escapes in a title or a cell, so there the three
characters by which a text could mention somebody are replaced by others that look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from site_builder.alerts.slack_client import escape_for_slack_api, truncate_for_slack_api
from site_builder.core.terminal_text import ELLIPSIS, fit_text, measure_width, truncate_terminal_text

MAX_TITLE_CHARACTERS, MAX_SECTION_CHARACTERS, MAX_CONTEXT_CHARACTERS = 150, 3000, 900
MAX_LINE_CHARACTERS, MAX_NOTE_CHARACTERS = 1200, 300
# A table may have 100 rows including its titles, and the cells of a message 10,000 characters. Slack also refuses a
# message of some 13,000 characters, which is not documented: the rest is for what is beside a table.
MAX_ROWS, MAX_CELL_CHARACTERS, MAX_TABLE_CHARACTERS = 99, 300, 9000
EMPTY_CELL = "–"
LOOKALIKE_CHARACTERS = str.maketrans({"<": "‹", ">": "›", "&": "＆"})  # noqa: RUF001
# How wide a monospaced line may be on a phone.
NARROW_WIDTH, MAX_COLUMN_WIDTH, MAX_PLAIN_CHARACTERS = 60, 28, 3000
SlackBlock = dict[str, Any]


class AnswerTable(NamedTuple):
    """A table; `more_text` says what is left out: `{} more hosts`."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right_aligned: frozenset[int] = frozenset()
    more_text: str = "{} more"


class SlackAnswer(NamedTuple):
    """An answer; the title says it all, and `link` is the board."""

    title: str
    lines: tuple[str, ...] = ()
    table: AnswerTable | None = None
    notes: tuple[str, ...] = ()
    link: str | None = None


class RenderedBlocks(NamedTuple):
    """A message; `text` is what a notification shows, `plain_text` is for when Slack refuses the blocks."""

    text: str
    blocks: list[SlackBlock]
    plain_text: str


def render_answer_blocks(answer: SlackAnswer) -> RenderedBlocks:
    table = answer.table if answer.table and answer.table.rows else None
    rows = fit_slack_table_rows(table) if table else []
    omitted_count = len(table.rows) + 1 - len(rows) if table else 0
    title = truncate_for_slack_api(escape_for_slack_api(answer.title.strip()), MAX_NOTE_CHARACTERS) or EMPTY_CELL
    notes = [
        truncate_for_slack_api(escape_for_slack_api(note), MAX_NOTE_CHARACTERS) for note in answer.notes if note.strip()
    ]
    if table and omitted_count:
        notes.insert(0, escape_for_slack_api(f"and {table.more_text.format(omitted_count)}"))
    footer = [truncate_for_slack_api(" · ".join(notes), MAX_CONTEXT_CHARACTERS)] if notes else []
    if answer.link:
        footer.append(f"<{answer.link}|the board>")
    section = join_slack_section_lines(answer.lines)
    header = truncate_slack_text(replace_block_markup(answer.title.strip()), MAX_TITLE_CHARACTERS) or EMPTY_CELL
    blocks: list[SlackBlock] = [{"type": "header", "text": {"type": "plain_text", "text": header, "emoji": False}}]
    if section:
        blocks.append({"type": "section", "text": build_slack_markdown(section)})
    if table:
        last = len(table.titles) - 1  # this column has long texts, and is wrapped
        settings = [
            {"align": "right" if column in table.right_aligned else "left", "is_wrapped": column == last}
            for column in range(len(table.titles))
        ]
        cells = [[{"type": "raw_text", "text": cell} for cell in row] for row in rows]
        blocks.append({"type": "table", "rows": cells, "column_settings": settings})
    if footer:
        blocks.append({"type": "context", "elements": [build_slack_markdown(text) for text in footer]})
    parts = (f"*{title}*", section, format_slack_monospaced_table(table, rows) if table else "", " · ".join(footer))
    return RenderedBlocks(title, blocks, "\n".join(filter(None, parts)))


def build_slack_markdown(text: str) -> dict[str, Any]:
    """Build the element of an escaped text; nothing in it becomes a link by itself."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def replace_block_markup(text: str) -> str:
    return text.translate(LOOKALIKE_CHARACTERS)


def join_slack_section_lines(lines: Sequence[str]) -> str:
    """Escape and join lines; count those that have no room."""
    kept, room = [], MAX_SECTION_CHARACTERS - MAX_NOTE_CHARACTERS
    for number, line in enumerate(lines):
        text = truncate_for_slack_api(escape_for_slack_api(line.strip()), MAX_LINE_CHARACTERS)
        room -= len(text) + 1
        if room < 0:
            kept.append(f"… and {len(lines) - number} more")
            break
        kept.append(text)
    return "\n".join(kept).strip()


def fit_slack_table_rows(table: AnswerTable) -> list[tuple[str, ...]]:
    """Return the titles and the rows that have room; no cell is empty."""
    fitting = [tuple(map(format_block_cell, table.titles))]
    room = MAX_TABLE_CHARACTERS - sum(map(len, table.titles))
    for row in table.rows[:MAX_ROWS]:
        cells = tuple(map(format_block_cell, row))
        room -= sum(map(len, cells))
        if room < 0:
            break
        fitting.append(cells)
    return fitting


def format_block_cell(text: str) -> str:
    """Format a cell; Slack refuses an empty one."""
    return truncate_slack_text(replace_block_markup(text.strip()), MAX_CELL_CHARACTERS) or EMPTY_CELL


def truncate_slack_text(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}{ELLIPSIS}"


def format_slack_monospaced_table(table: AnswerTable, rows: Sequence[tuple[str, ...]]) -> str:
    """Format a table for plain text, narrow enough for a phone if possible."""
    room = MAX_PLAIN_CHARACTERS
    widths = [min(MAX_COLUMN_WIDTH, max(map(measure_width, column))) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [
            fit_text(cell, width, column in table.right_aligned)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        if len(row) - 1 not in table.right_aligned:
            cells[-1] = truncate_terminal_text(row[-1], NARROW_WIDTH)
        line = escape_for_slack_api("  ".join(cells).rstrip().replace("`", "'"))
        room -= len(line) + 1
        if room < 0:
            lines.append("…")
            break
        lines.append(line)
    text = "\n".join(lines)
    return f"```{text}```"
