"""Names: what may be that of a host, which is a folder, a file and a word in commands; and which logins are one."""

from __future__ import annotations

import re
import string

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# A folder in data/ that is no host.
BOOKINGS = "bookings"
DIGITS_OR_TEXT = re.compile(r"[0-9]{1,18}|[^0-9]+")
ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def fold_login(login: str) -> str:
    """A login for comparisons: of ASCII letters alone the case makes no difference.

    `lower` makes a k of the sign for kelvin, and with it one person of another.
    """
    return login.lower() if login.isascii() else login.translate(ASCII_LOWER)


def fold_alias(name: str) -> str:
    """A name as aliases.csv has it, in lower case; a letter that is not of ASCII never becomes one that is."""
    if name.isascii():
        return name.lower()
    return "".join(one if not one.isascii() and one.lower().isascii() else one.lower() for one in name)


def parse_gpu_index(number: int | str | None) -> int | None:
    """Return the index of a GPU by what it is called: a MIG instance 0:1 has that of its GPU, amd0 has 0."""
    digits = "" if number is None else str(number).partition(":")[0].lstrip(string.ascii_lowercase)
    return int(digits) if digits.isdecimal() else None


def is_host_name(name: str) -> bool:
    """Whether it can be one."""
    return HOST_NAME.fullmatch(name) is not None and name != BOOKINGS


def gpu_number_sort_key(number: int | str | None) -> tuple[bool, bool, list[tuple[int, str]]]:
    """What sorts 2 before 10, 0 before 0:1, and amd0 behind all of these; None comes last."""
    text = "" if number is None else str(number)
    return number is None, not text[:1].isdecimal(), natural_sort_key(text)


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """What sorts gpu2 before gpu10."""
    return [(int(part), "") if part.isdecimal() else (-1, part.lower()) for part in DIGITS_OR_TEXT.findall(name)]
