"""Which hosts somebody means, and where each is: `atlas`, `lab@atlas`, `atlas=10.0.0.7`, `atlas=https://web/spool/`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from site_builder.consul.catalog import NUMBERS
from site_builder.core.names import is_host
from site_builder.snapshots.envelope import clean, text_of

URLS = ("http://", "https://")
# What stands at the place of a port and is none: a password of which a `#` or a comma has cut the rest.
SECRET = re.compile(r"(://[^/:]*:)(?![0-9]{1,5}(?:/|$))[^/]*")
MACHINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
NAMED = re.compile(r"([^=@:/\s]+)=(.*)", re.DOTALL)


class Target(NamedTuple):
    """A host: a URL at which it serves its files, or whatever ssh understands; and its name, where somebody says it."""

    address: str
    given: str | None = None

    @property
    def name(self) -> str:
        """What it is called on the board, unless the host itself says something else."""
        if self.given or not self.is_url:
            return self.given or (self.address.partition("://")[2] or self.address).rpartition("@")[2].partition(":")[0]
        return urlsplit(self.address).hostname or ""

    @property
    def is_url(self) -> bool:
        """Whether it serves its files itself."""
        return self.address.startswith(URLS)


def is_machine(name: str) -> bool:
    """Whether it can be the name or the address of a machine, and nothing besides."""
    return MACHINE.fullmatch(name) is not None


def one(word: str) -> Target | str:
    """A host as somebody names it, or what is wrong with that, in words."""
    named = NAMED.fullmatch(word)
    given, address = named.groups() if named else (None, word)
    shown = clean(SECRET.sub(r"\1…", word.rpartition("@")[2]) if "://" in word else word)[:80]
    if not address or address.startswith(("-", ".", "/")) or " " in address or not address.isprintable():
        return f"'{shown}' is not a host"
    if given is not None and not is_host(given):
        return f"'{clean(given)[:80]}' cannot be a host's name on the board"
    if address.startswith(URLS):
        return at_url(given, address, shown)
    if "://" in address and not address.startswith("ssh://"):
        return f"'{shown}' is neither a host nor a URL of http, https or ssh"
    return Target(address, given)


def at_url(given: str | None, url: str, shown: str) -> Target | str:
    """A folder of files at a URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.query or parts.fragment:
        return f"'{shown}' is not the URL of a folder"
    return Target(url if parts.path.endswith("/") else f"{url}/", given)


def read(data: bytes) -> tuple[list[Target], list[str]]:
    """Those of a file: a host a line, before the first comma, so that hosts.txt can be one; `#` begins a comment."""
    lines = (line.partition("#")[0].partition(",")[0].strip() for line in text_of(data).split("\n"))
    return chosen((number, line) for number, line in enumerate(lines, 1) if line)


def of_the_board(target: Target) -> Target:
    """A bare name in a list is the one on the board, as in hosts.txt."""
    bare = is_host(target.address) and not NUMBERS.fullmatch(target.address)
    return Target(target.address, target.address) if bare and not target.given else target


def chosen(words: Iterable[tuple[int, str]]) -> tuple[list[Target], list[str]]:
    """Each host once, and what is wrong with the rest; the number is that of a line, or 0."""
    found: list[Target] = []
    problems: list[str] = []
    for number, word in words:
        target = one(word)
        if isinstance(target, Target) and number:
            target = of_the_board(target)
        if isinstance(target, Target) and target.given and any(other.given == target.given for other in found):
            target = f"the name {target.given} is there twice"
        if isinstance(target, Target):
            found.append(target)
        else:
            problems.append(f"line {number}: {target}" if number else target)
    return found, problems
