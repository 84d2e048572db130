"""state/tokens.json: who may book over the web by a token. The tokens themselves are nowhere.

A token is 32 random bytes, which nobody can guess, so that one round of SHA-256 is all that its hash needs: the slow
hashes are for passwords, which people choose.
"""

from __future__ import annotations

import hmac
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.bookings.store import Unwritable
from site_builder.core import locked_file, own_files
from site_builder.core.model import Problem
from site_builder.core.names import folded

FILE = "tokens.json"
# So that people, and programs that look for secrets in files, know what it is.
BEGINS = "gpuboard_"
LIMIT = 4 * 1024 * 1024


class Token(NamedTuple):
    """Whose it is, when it was made (epoch), and its SHA-256."""

    name: str
    made: int
    digest: str


class Tokens:
    """The tokens that count; one person may have several."""

    def __init__(self, state: Path) -> None:
        """The folder in which they are kept."""
        self.path = state / FILE
        self.problem = ""  # what was wrong when they were last read

    def all(self) -> list[Token]:
        """Each of them; a damaged file is no reason to forget them.

        One that is empty, as a full disk may leave it, is answered by the last good copy. One that somebody has edited
        is not: they may have taken a token away.
        """
        content, self.problem = locked_file.read(self.path, LIMIT), ""
        if not content.strip() and self.path.exists():
            content = own_files.read_copy(self.path, LIMIT)
            if not content:
                message = f"{self.path} is empty: put your copy of it back, or remove it and make all tokens anew"
                raise Unwritable(message)
            self.problem = f"is empty: {own_files.USED}"
        try:
            return parse_tokens(content) if content else []
        except own_files.WRONG_SHAPE:
            message = f"{self.path} is damaged: mend it, or remove it and make all tokens anew"
            raise Unwritable(message) from None

    def make(self, name: str, now: float) -> str:
        """A new one, which is told this once."""
        token = BEGINS + secrets.token_urlsafe(32)
        with locked_file.alone(self.path):
            self.write([*self.all(), Token(name, int(now), digest_of(token))])
        return token

    def revoke(self, name: str) -> int:
        """Take away all tokens of a person; how many there were."""
        with locked_file.alone(self.path):
            found = self.all()
            rest = [one for one in found if folded(one.name) != folded(name)]
            if len(rest) < len(found):
                self.write(rest)
        return len(found) - len(rest)

    def name_of(self, token: str) -> str | None:
        """Whose it is; however wrong it is, looking takes the same time."""
        digest = digest_of(token)
        found = [one.name for one in self.all() if hmac.compare_digest(one.digest.encode(), digest.encode())]
        return found[0] if found else None

    def write(self, several: list[Token]) -> None:
        """All of them anew."""
        rows = [{"name": one.name, "made": one.made, "sha256": one.digest} for one in several]
        content = orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        # the copy first: one that is older than the file would bring back a token that was taken away
        locked_file.replace(own_files.copy_of(self.path), content)
        locked_file.replace(self.path, content)

    def keep_copy(self) -> None:
        """Keep a copy of what an older gpuboard, or somebody by hand, has written."""
        with suppress(OSError, Unwritable, *own_files.WRONG_SHAPE):
            content = locked_file.read(self.path, LIMIT)
            if content.strip() and content != own_files.read_copy(self.path, LIMIT):
                with locked_file.alone(self.path):
                    parse_tokens(content := locked_file.read(self.path, LIMIT))
                    locked_file.replace(own_files.copy_of(self.path), content)


def check_tokens(state: Path) -> list[Problem]:
    """Return what is wrong with the file, for the page; and keep a copy of one that is good."""
    tokens = Tokens(state)
    if not tokens.path.exists():
        return []
    try:
        tokens.all()
    except Unwritable as why:
        return [Problem(f"state/{FILE}", str(why).replace(f"{tokens.path} ", ""))]
    if not tokens.problem:
        tokens.keep_copy()
    return [Problem(f"state/{FILE}", tokens.problem)] if tokens.problem else []


def parse_tokens(content: bytes) -> list[Token]:
    """Return the tokens in a file; see own_files.WRONG_SHAPE for what it raises."""
    return [Token(str(one["name"]), int(one["made"]), str(one["sha256"])) for one in orjson.loads(content)]


def digest_of(token: str) -> str:
    """What is kept of it."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()
