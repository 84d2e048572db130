"""What install/look.sh tells of a host: lines of a word and a value, none of them trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from site_builder.core.names import is_host
from site_builder.snapshots.envelope import clean

# Nothing else than one such key is ever taken from a host, or given to one.
PUBLIC = re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]{40,3500}={0,3})(?: .*)?")
ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}")
NEEDED_BY_NOBODY = ("nvidia-smi",)
# As look.sh itself bounds them.
LONGEST, MOST_LINES = 4000, 50
LONGEST_PROGRAM = 20


class Unclear(Exception):
    """What cannot be understood of an answer, in one sentence."""


@dataclass
class Facts:
    """A host as it is before anything is done."""

    own: str = ""
    name: str = ""
    home: str = ""
    seen_from: str = ""  # our address, as the host sees it
    reach: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    installed: str = ""
    scripts: str = ""
    version: str = ""
    crontab: str = ""
    dest: str = ""
    key: str = ""
    key_before: str = ""  # that of the name under which it is installed
    known: list[str] = field(default_factory=list)
    loops: str = ""

    @property
    def lacks(self) -> list[str]:
        """The programs without which nothing works."""
        return [program for program in self.missing if program not in NEEDED_BY_NOBODY]

    @property
    def has_driver(self) -> bool:
        """Whether there is an nvidia-smi, or a tool of another maker: look.sh names the first for all."""
        return "nvidia-smi" not in self.missing


def public_key(line: str) -> str:
    """The type and the key of a line, or nothing where it is none."""
    found = PUBLIC.fullmatch(line.strip())
    return f"{found[1]} {found[2]}" if found else ""


def read(answer: bytes) -> Facts:
    """All that was told between the first and the last line; before them a login shell may say anything."""
    lines = answer.decode(errors="replace").split("\n")
    if "gpuboard-look 1" not in lines or "end 1" not in lines:
        message = "its answer is not whole: does its login shell let `ssh HOST sh -s` through?"
        raise Unclear(message)
    facts = Facts()
    for line in lines[lines.index("gpuboard-look 1") + 1 : lines.index("end 1")]:
        word, _, value = line.partition(" ")
        note(facts, word, clean(value[:LONGEST]).strip())
    if not is_host(facts.name):
        message = (
            f"it is called '{facts.name[:63]}', which cannot be a host's name on the board: NAME=HOST gives it one"
        )
        raise Unclear(message)
    return facts


def note(facts: Facts, word: str, value: str) -> None:
    """One fact."""
    if word in ("key", "key-before"):
        setattr(facts, word.replace("-", "_"), public_key(value))
    elif word == "seen":
        first = value.partition(" ")[0]
        facts.seen_from = first if ADDRESS.fullmatch(first) else ""
    elif word == "reach":
        name, _, addresses = value.partition(" ")
        facts.reach[name] = tuple(addresses.split())
    elif word == "missing":
        facts.missing = [*facts.missing, value[:LONGEST_PROGRAM]][:MOST_LINES]
    elif word == "known":
        facts.known = [*facts.known, value][:MOST_LINES]
    elif word in ("own", "name", "home", "installed", "scripts", "version", "crontab", "dest", "loops"):
        setattr(facts, word, value)
