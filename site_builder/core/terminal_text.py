"""Texts in columns of a terminal: how many cells one takes, and how it is made to fit."""

from __future__ import annotations

import re
import unicodedata

CUT = "…"
TURNS = re.compile("[\u061c\u200e\u200f]")
# Unicode's categories of what stands on the letter before it, or nowhere.
NO_CELL = frozenset({"Mn", "Me", "Cf"})
# Of those, what terminals show all the same.
ONE_CELL = frozenset("\u00ad\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2")


def one_line(text: str) -> str:
    """A text without line ends, tabs, and marks that turn it around."""
    return " ".join(TURNS.sub("", text).split())


def width(text: str) -> int:
    """How many cells a text takes: a Chinese letter two, an accent of its own none."""
    return len(text) if text.isascii() else sum(map(cells, text))


def cells(letter: str) -> int:
    """The same of one letter."""
    if unicodedata.category(letter) in NO_CELL and letter not in ONE_CELL:
        return 0
    if "\u1160" <= letter <= "\u11ff" or "\ud7b0" <= letter <= "\ud7ff":  # they join the letter before them
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, most: int) -> str:
    """A text of at most so many cells, with the mark of what is left out."""
    if width(text) <= most:
        return text
    if text.isascii():
        return text[: most - 1] + CUT
    kept, room = [], most - 1
    for letter in text:
        room -= cells(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + CUT


def fit(text: str, exactly: int, right: bool = False) -> str:
    """A text of just so many cells, cut or filled up with blanks, at its right end or at its left."""
    if text.isascii():  # a letter a cell
        text = text if len(text) <= exactly else text[: max(0, exactly - 1)] + CUT
        return text.rjust(exactly) if right else text.ljust(exactly)
    text = cut(text, exactly)
    blanks = " " * (exactly - width(text))
    return blanks + text if right else text + blanks


def wrap(text: str, most: int) -> list[str]:
    """A text in lines of at most so many cells; a word that is longer goes on in the next."""
    lines, line = [], ""
    for word in text.split():
        while True:
            longer = f"{line} {word}" if line else word
            if width(longer) <= most:
                line = longer
                break
            if not line:
                head = cut(word, most + 1)[:-1] or word[0]  # as many of its letters as there is room for
                line, word = head, word[len(head) :]  # noqa: PLW2901 # what is left of it
            lines.append(line)
            line = ""
    return [*lines, *([line] if line else [])]
