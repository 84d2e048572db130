"""Names of hosts, users, GPUs and programs: which are valid, which are equal, and how they are sorted."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# The folder in data/ that is not a host.
BOOKINGS = "bookings"
MAX_PROGRAM_CHARACTERS = 60
DIGITS_OR_TEXT = re.compile(r"[0-9]{1,18}|[^0-9]+")


def is_host_name(name: str) -> bool:
    return HOST_NAME.fullmatch(name) is not None and name != BOOKINGS


def gpu_number_to_index(number: int | str | None) -> int | None:
    """Return the index in a GPU's number: 0 for 0, for its MIG instance 0:1 and for amd0."""
    digits = "" if number is None else str(number).partition(":")[0].lstrip(string.ascii_lowercase)
    return int(digits) if digits.isdecimal() else None


def gpu_number_sort_key(number: int | str | None) -> tuple[bool, bool, list[tuple[int, str]]]:
    """Sort 2 before 10, 0 before 0:1, amd0 after all of these, and None last."""
    text = "" if number is None else str(number)
    return number is None, not text[:1].isdecimal(), natural_sort_key(text)


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Sort gpu2 before gpu10."""
    return [(int(part), "") if part.isdecimal() else (-1, part.lower()) for part in DIGITS_OR_TEXT.findall(name)]


def extract_program_name(command: str) -> str:
    """Return the program of a command, without folders and arguments."""
    first_word = command.split(None, 1)[0] if command.strip() else command
    return first_word.rstrip("/").rpartition("/")[2][:MAX_PROGRAM_CHARACTERS]


class HostNameIndex:
    """The hosts of a board, by whatever people write for one of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)
        self.names_by_lower_case = {name.lower(): name for name in self.names}

    def find(self, written: str) -> str | None:
        """Return a host by its name, its full name, or either in another case."""
        if written in self.names:
            return written
        key = written.strip().lower()
        return self.names_by_lower_case.get(key) or self.names_by_lower_case.get(key.partition(".")[0])
