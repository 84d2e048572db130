"""Block Kit by its documented limits: what Slack would refuse of a message, and whom its texts would call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MOST_BLOCKS, MOST_ID = 50, 255
MOST_TEXT = {"header": 150, "section": 3000, "context": 3000}
MOST_ELEMENTS, MOST_ROWS, MOST_COLUMNS, MOST_CELLS = 10, 100, 20, 10_000
# Slack documents 40,000 letters of text; messages with blocks of some 13,000 it refuses.
MOST_LETTERS, MOST_MESSAGE = 13_000, 40_000
# What calls somebody, and what is a link.
CALLS = re.compile(r"<(?:!|@|#)[^>]*>")
MARKS = re.compile(r"<([^<>]*)>")
LINK = re.compile(r"https?://[^|<>\s]+(?:\|[^<>|]+)?")
TYPES = {"header", "section", "context", "divider", "table"}


def faults(message: dict[str, Any]) -> list[str]:
    """All that is wrong with the arguments of chat.postMessage."""
    problems = []
    if not isinstance(message.get("text"), str) or not message["text"]:
        problems.append("no text: nobody would see what the notification is about")
    elif len(message["text"]) > MOST_MESSAGE:
        problems.append("msg_too_long")
    problems += [f"text {fault_or_block}" for fault_or_block in marks(str(message.get("text", "")))]
    blocks = message.get("blocks", [])
    if not isinstance(blocks, list) or len(blocks) > MOST_BLOCKS:
        return [*problems, "blocks is no list, or has more than 50"]
    for number, block in enumerate(blocks):
        problems += [f"block {number} {fault_or_block}" for fault_or_block in of_block(block)]
    if sum(fault_or_block.get("type") == "table" for fault_or_block in blocks) > 1:
        problems.append("only_one_table_allowed")
    ids = [fault_or_block["block_id"] for fault_or_block in blocks if "block_id" in fault_or_block]
    if len(ids) != len(set(ids)):
        problems.append("two blocks have one block_id")
    if sum(map(len, texts(blocks))) > MOST_LETTERS:
        problems.append("msg_blocks_too_long")
    return problems


def of_block(block: Any) -> Iterator[str]:  # noqa: ANN401 # anything may stand there
    """What is wrong with one block."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in TYPES:
        yield f"is of no kind that we use: {kind}"
        return
    if len(block.get("block_id", "")) > MOST_ID:
        yield "has too long an id"
    if kind == "table":
        yield from of_table(block)
    elif kind == "header":
        yield from of_text(block.get("text"), MOST_TEXT[kind], ("plain_text",))
    elif kind == "section":
        yield from of_text(block.get("text"), MOST_TEXT[kind])
    elif kind == "context":
        elements = block.get("elements")
        if not isinstance(elements, list) or not 1 <= len(elements) <= MOST_ELEMENTS:
            yield "has no elements, or too many"
            return
        for element in elements:
            yield from of_text(element, MOST_TEXT[kind])


def of_text(text: Any, most: int, kinds: tuple[str, ...] = ("plain_text", "mrkdwn")) -> Iterator[str]:  # noqa: ANN401
    """What is wrong with a text object."""
    if not isinstance(text, dict) or text.get("type") not in kinds:
        yield f"has a text that is not one of {kinds}"
        return
    text_content = text.get("text")
    if not isinstance(text_content, str) or not 1 <= len(text_content) <= most:
        yield f"has a text of {len(text_content or '')} letters, but may have 1 to {most}"
        return
    allowed = {"type", "text", "emoji"} if text["type"] == "plain_text" else {"type", "text", "verbatim"}
    if set(text) - allowed:
        yield f"has a text with {set(text) - allowed}"
    yield from marks(text_content) if text["type"] == "mrkdwn" else bare(text_content)


def of_table(block: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a table."""
    rows = block.get("rows")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_ROWS:
        yield "has no rows, or more than 100"
        return
    if len({len(row) for row in rows}) != 1 or not 1 <= len(rows[0]) <= MOST_COLUMNS:
        yield "has rows of different lengths, or of more than 20 cells"
    for cell in (column_or_cell for row in rows for column_or_cell in row):
        if cell.get("type") != "raw_text" or set(cell) != {"type", "text"}:
            yield f"has a cell of another kind: {cell}"
        elif not cell["text"]:
            yield "has a cell with nothing in it: must be more than 0 characters"
        else:
            yield from bare(cell["text"])
    if sum(len(column_or_cell["text"]) for row in rows for column_or_cell in row) > MOST_CELLS:
        yield "has more than 10,000 letters in its cells"
    settings = block.get("column_settings", [])
    if len(settings) > min(MOST_COLUMNS, len(rows[0])):
        yield "has more settings than columns"
    for column_or_cell in settings:
        if column_or_cell.get("align") not in {"left", "center", "right"} or not isinstance(
            column_or_cell.get("is_wrapped", False), bool
        ):
            yield f"has settings that nobody understands: {column_or_cell}"


def marks(text: str) -> Iterator[str]:
    """What calls somebody in a text with marks, and what is no mark but should be escaped."""
    if CALLS.search(text):
        yield f"calls somebody: {CALLS.findall(text)}"
    for inside in MARKS.findall(text):
        if not LINK.fullmatch(inside):
            yield f"has a mark that is no link: <{inside}>"
    rest = MARKS.sub("", text)
    if "<" in rest or ">" in rest or re.search(r"&(?!amp;|lt;|gt;)", rest):
        yield f"is not escaped: {rest[:60]}"


def bare(text: str) -> Iterator[str]:
    """What could be a mark where there should be none."""
    if CALLS.search(text) or MARKS.search(text):
        yield f"could call somebody: {text[:60]}"


def texts(payload: Any) -> Iterator[str]:  # noqa: ANN401
    """Every text of some blocks."""
    if isinstance(payload, dict):
        if isinstance(payload.get("text"), str):
            yield payload["text"]
        for child in payload.values():
            yield from texts(child) if isinstance(child, (dict, list)) else ()
    elif isinstance(payload, list):
        for child in payload:
            yield from texts(child)
