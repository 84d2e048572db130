"""Make text from others safe to show, and fit text into a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence

ELLIPSIS = "…"
DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f]")
# Unicode categories of characters that stand on the one before them, or take no space.
ZERO_WIDTH_CATEGORIES = frozenset({"Mn", "Me", "Cf"})
# Those of them that terminals show all the same.
VISIBLE_FORMAT_CHARACTERS = frozenset("\u00ad\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2")
# In a narrower terminal, lines are wrapped by the terminal itself.
MIN_TERMINAL_WIDTH = 40
CONTROL_BYTES = bytes([*range(9), *range(11, 32), 127])
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_MESSAGES = 50
MAX_PROBLEM_CHARACTERS = 300


def flatten_terminal_text(text: str) -> str:
    """Remove line ends, tabs and marks that change the direction of text."""
    return " ".join(DIRECTION_MARKS.sub("", text).split())


def clean_text(text: str) -> str:
    """Replace control characters: they could steer a terminal, break a page or reverse a line."""
    return CONTROL_CHARACTERS.sub("?", text) if CONTROL_CHARACTERS.search(text) else text


def clean_excerpt(text: object, max_characters: int = 200) -> str:
    """Shorten a text from elsewhere to one clean line that can be quoted in a sentence."""
    return clean_text(" ".join(str(text).split()))[:max_characters]


def decode_text(data: bytes) -> str:
    """Decode UTF-8 with a mark for each invalid byte; line ends of any kind become newlines."""
    if data.isascii() and len(data.translate(None, CONTROL_BYTES)) == len(data):
        return data.decode("ascii")
    text = data.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return clean_text(text)


def replace_unprintable(text: str) -> str:
    """Replace by a question mark what is no printable character in a line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def replace_unencodable(line: str) -> str:
    """Replace characters that this terminal cannot show by question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "replace").decode(encoding)


def limit_problems(problems: Sequence[str]) -> tuple[str, ...]:
    """Keep as many problems as anybody reads, and shorten long ones."""
    shown = tuple(
        problem if len(problem) <= MAX_PROBLEM_CHARACTERS else f"{problem[:MAX_PROBLEM_CHARACTERS]}…"
        for problem in problems[:MAX_MESSAGES]
    )
    return shown if len(problems) <= MAX_MESSAGES else (*shown, f"and {len(problems) - MAX_MESSAGES} more problems")


def measure_width(text: str) -> int:
    """Count the cells of a text: two for a Chinese character, none for a combining accent."""
    return len(text) if text.isascii() else sum(map(measure_character, text))


def measure_character(character: str) -> int:
    if unicodedata.category(character) in ZERO_WIDTH_CATEGORIES and character not in VISIBLE_FORMAT_CHARACTERS:
        return 0
    if "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7ff":  # they join the character before them
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def truncate_terminal_text(text: str, width: int) -> str:
    """Cut a text to at most this many cells, with an ellipsis for the rest."""
    if measure_width(text) <= width:
        return text
    if text.isascii():
        return text[: width - 1] + ELLIPSIS
    characters, room = [], width - 1
    for character in text:
        room -= measure_character(character)
        if room < 0:
            break
        characters.append(character)
    return "".join(characters) + ELLIPSIS


def fit_text(text: str, width: int, right: bool = False) -> str:
    """Cut or pad a text to exactly this many cells."""
    if text.isascii():  # one cell per character
        text = text if len(text) <= width else text[: max(0, width - 1)] + ELLIPSIS
        return text.rjust(width) if right else text.ljust(width)
    text = truncate_terminal_text(text, width)
    blanks = " " * (width - measure_width(text))
    return blanks + text if right else text + blanks


def wrap_text(text: str, width: int) -> list[str]:
    """Wrap a text to lines of at most this many cells; a longer word continues on the next line."""
    lines, line = [], ""
    for word in text.split():
        while True:
            longer = f"{line} {word}" if line else word
            if measure_width(longer) <= width:
                line = longer
                break
            if not line:
                head = truncate_terminal_text(word, width + 1)[:-1] or word[0]  # as much of the word as fits
                line, word = head, word[len(head) :]  # noqa: PLW2901 # the rest of it
            lines.append(line)
            line = ""
    return [*lines, line] if line else lines


def find_terminal_width() -> int | None:
    """Return the width of the terminal; None if stdout is none."""
    return max(MIN_TERMINAL_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def is_coloured() -> bool:
    """Return True if stdout is a terminal whose user has not turned colours off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
