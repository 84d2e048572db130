"""Names: what may be that of a host, which is a folder, a file and a word in commands; and which logins are one."""

from __future__ import annotations

import re
import string

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# A folder in data/ that is no host.
BOOKINGS = "bookings"
PARTS = re.compile(r"[0-9]{1,18}|[^0-9]+")
LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(login: str) -> str:
    """A login for comparisons: of ASCII letters alone the case makes no difference.

    `lower` makes a k of the sign for kelvin, and with it one person of another.
    """
    return login.lower() if login.isascii() else login.translate(LOWER)


def lowered(name: str) -> str:
    """A name as aliases.csv has it, in lower case; a letter that is not of ASCII never becomes one that is."""
    if name.isascii():
        return name.lower()
    return "".join(one if not one.isascii() and one.lower().isascii() else one.lower() for one in name)


def is_host(name: str) -> bool:
    """Whether it can be one."""
    return HOST.fullmatch(name) is not None and name != BOOKINGS


def in_order(number: int | str | None) -> tuple[bool, bool, list[tuple[int, str]]]:
    """What sorts 2 before 10, 0 before 0:1, and amd0 behind all of these; None comes last."""
    text = "" if number is None else str(number)
    return number is None, not text[:1].isdecimal(), natural(text)


def natural(name: str) -> list[tuple[int, str]]:
    """What sorts gpu2 before gpu10."""
    return [(int(part), "") if part.isdecimal() else (-1, part.lower()) for part in PARTS.findall(name)]
