"""Files of htpasswd: who may see the board, and the hash of each one's password."""

from __future__ import annotations

import re
from collections.abc import Mapping

# bcrypt, SHA-512 and SHA-256 of crypt, Apache's own MD5, and SHA-1.
HASH = re.compile(
    r"\$2[aby]\$[0-9]{2}\$[./0-9A-Za-z]{53}"
    r"|\$6\$(?:rounds=[0-9]{1,7}\$)?[./0-9A-Za-z]{0,16}\$[./0-9A-Za-z]{86}"
    r"|\$5\$(?:rounds=[0-9]{1,7}\$)?[./0-9A-Za-z]{0,16}\$[./0-9A-Za-z]{43}"
    r"|\$apr1\$[./0-9A-Za-z]{1,8}\$[./0-9A-Za-z]{22}"
    r"|\{SHA\}[+/0-9A-Za-z]{27}="
)
NAME = re.compile(r"[^:\x00-\x20\x7f](?:[^:\x00-\x1f\x7f]{0,98}[^:\x00-\x20\x7f])?")
ANEW = "make it anew with `htpasswd -B`"


class Odd(Exception):
    """Why a file is not taken, in words that name the line, and never what stands in it beside a name."""


def read(content: bytes) -> Mapping[str, str]:
    """Each name with its hash; one line that cannot count refuses the file, for somebody relies on it."""
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        message = f"line {number} is no UTF-8: write the names in it anew"
        raise Odd(message) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, rest = line.rstrip("\r").partition(":")
        if not colon or not NAME.fullmatch(name):
            message = f"line {number} has no name, a colon and a hash: {ANEW}"
            raise Odd(message)
        if not HASH.fullmatch(rest.partition(":")[0]):  # nginx allows a comment behind a further colon
            message = (
                f"line {number}: the password of {name} stands there in plain text, or as a hash that is not taken"
            )
            raise Odd(f"{message}: {ANEW}")
        if name in found:
            message = f"line {number}: {name} stands in line {lines[name]} already: remove one of them"
            raise Odd(message)
        found[name], lines[name] = rest.partition(":")[0], number
    if not found:
        message = "nobody stands in it: `htpasswd -B` adds a person"
        raise Odd(message)
    return found
