"""Texts in columns of a terminal: how many cells one takes, and how it is made to fit."""

from __future__ import annotations

import unicodedata

CUT = "…"
# Unicode's categories of what stands on the letter before it, or nowhere.
NO_CELL = frozenset({"Mn", "Me", "Cf"})


def width(text: str) -> int:
    """How many cells a text takes: a Chinese letter two, an accent of its own none."""
    return len(text) if text.isascii() else sum(map(cells, text))


def cells(letter: str) -> int:
    """The same of one letter."""
    if unicodedata.category(letter) in NO_CELL:
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
