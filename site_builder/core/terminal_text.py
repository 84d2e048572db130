"""Texts that others wrote, and the width of a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence

ELLIPSIS = "…"
DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f]")
# Unicode's categories of what stands on the letter before it, or nowhere.
ZERO_WIDTH_CATEGORIES = frozenset({"Mn", "Me", "Cf"})
# Of those, what terminals show all the same.
VISIBLE_FORMAT_CHARACTERS = frozenset("\u00ad\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2")


def flatten_text(text: str) -> str:
    """A text without line ends, tabs, and marks that turn it around."""
    return " ".join(DIRECTION_MARKS.sub("", text).split())


def measure_width(text: str) -> int:
    """How many cells a text takes: a Chinese letter two, an accent of its own none."""
    return len(text) if text.isascii() else sum(map(measure_character, text))


def measure_character(letter: str) -> int:
    """The same of one letter."""
    if unicodedata.category(letter) in ZERO_WIDTH_CATEGORIES and letter not in VISIBLE_FORMAT_CHARACTERS:
        return 0
    if "\u1160" <= letter <= "\u11ff" or "\ud7b0" <= letter <= "\ud7ff":  # they join the letter before them
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def truncate_text(text: str, most: int) -> str:
    """A text of at most so many cells, with the mark of what is left out."""
    if measure_width(text) <= most:
        return text
    if text.isascii():
        return text[: most - 1] + ELLIPSIS
    kept, room = [], most - 1
    for letter in text:
        room -= measure_character(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + ELLIPSIS


def fit_text(text: str, exactly: int, right: bool = False) -> str:
    """A text of just so many cells, cut or filled up with blanks, at its right end or at its left."""
    if text.isascii():  # a letter a cell
        text = text if len(text) <= exactly else text[: max(0, exactly - 1)] + ELLIPSIS
        return text.rjust(exactly) if right else text.ljust(exactly)
    text = truncate_text(text, exactly)
    blanks = " " * (exactly - measure_width(text))
    return blanks + text if right else text + blanks


def wrap_text(text: str, most: int) -> list[str]:
    """A text in lines of at most so many cells; a word that is longer goes on in the next."""
    lines, line = [], ""
    for word in text.split():
        while True:
            longer = f"{line} {word}" if line else word
            if measure_width(longer) <= most:
                line = longer
                break
            if not line:
                head = truncate_text(word, most + 1)[:-1] or word[0]  # as many of its letters as there is room for
                line, word = head, word[len(head) :]  # noqa: PLW2901 # what is left of it
            lines.append(line)
            line = ""
    return [*lines, *([line] if line else [])]


DEFAULT_TERMINAL_SIZE = (80, 24)


# A terminal that is narrower still shows what comes first.
MIN_TERMINAL_WIDTH = 40


def find_terminal_width() -> int | None:
    """How wide the terminal is; None where there is none."""
    return (
        max(MIN_TERMINAL_WIDTH, shutil.get_terminal_size(DEFAULT_TERMINAL_SIZE).columns)
        if sys.stdout.isatty()
        else None
    )


def is_coloured() -> bool:
    """Whether there is somebody to see colours, who wants some."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def replace_unencodable(line: str) -> str:
    """A line in which a letter that this terminal does not have is a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "replace").decode(encoding)


CONTROL_BYTES = bytes([*range(9), *range(11, 32), 127])
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_MESSAGES = 50
MAX_PROBLEM_CHARACTERS = 300


def clean_text(text: str) -> str:
    """Without control characters: they would steer a terminal, break a page, or turn a line of it around."""
    return CONTROL_CHARACTERS.sub("?", text) if CONTROL_CHARACTERS.search(text) else text


def clean_excerpt(words: object, longest: int = 200) -> str:
    """What somebody else said, fit to stand in a sentence."""
    return clean_text(" ".join(str(words).split()))[:longest]


def decode_text(data: bytes) -> str:
    """UTF-8, with a mark for each byte that is none; line ends of any kind become newlines."""
    if data.isascii() and len(data.translate(None, CONTROL_BYTES)) == len(data):
        return data.decode("ascii")
    text = data.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return clean_text(text)


JSON_ERROR_MEANINGS = {
    "Expecting ',' delimiter": "a comma is missing before this place, or what was begun is not closed",
    "Expecting ':' delimiter": "a colon is missing before this place",
    "Expecting property name enclosed in double quotes": "a name in double quotes should stand here",
    "Expecting value": "a value should stand here",
    "Unterminated string starting at": "the text that begins here has no closing quotation mark",
    "Extra data": "there is more behind the end",
}


def describe_json_error(error: json.JSONDecodeError) -> str:
    """Where JSON is broken, and how."""
    return f"line {error.lineno}, column {error.colno}: {JSON_ERROR_MEANINGS.get(error.msg, error.msg)}"


def limit_problems(problems: Sequence[str]) -> tuple[str, ...]:
    """As many problems as anybody reads, each no longer than that."""
    cut = (
        what if len(what) <= MAX_PROBLEM_CHARACTERS else f"{what[:MAX_PROBLEM_CHARACTERS]}…"
        for what in problems[:MAX_MESSAGES]
    )
    told = tuple(cut)
    return told if len(problems) <= MAX_MESSAGES else (*told, f"and {len(problems) - MAX_MESSAGES} more problems")
