"""What may be the name of a host: it is a folder in data/, a file in www/ and a word in commands."""

from __future__ import annotations

import re

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
PARTS = re.compile(r"[0-9]{1,18}|[^0-9]+")


def is_host(name: str) -> bool:
    """Whether it can be one."""
    return HOST.fullmatch(name) is not None


def natural(name: str) -> list[tuple[int, str]]:
    """What sorts gpu2 before gpu10."""
    return [(int(part), "") if part.isdecimal() else (-1, part.lower()) for part in PARTS.findall(name)]
