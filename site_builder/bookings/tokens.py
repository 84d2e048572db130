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

from site_builder.core import files, locks
from site_builder.core.locks import StorageError
from site_builder.core.model import Problem
from site_builder.core.names import fold_login

TOKENS_FILE = "tokens.json"
# So that people, and programs that look for secrets in files, know what it is.
TOKEN_PREFIX = "gpuboard_"  # noqa: S105
MAX_TOKENS_BYTES = 4 * 1024 * 1024


class BookingToken(NamedTuple):
    """Whose it is, when it was made (epoch), and its SHA-256."""

    name: str
    created_at: int
    digest: str


class TokenStore:
    """The tokens that count; one person may have several."""

    def __init__(self, state: Path) -> None:
        """The folder in which they are kept."""
        self.path = state / TOKENS_FILE
        self.problem = ""  # what was wrong when they were last read

    def list_tokens(self) -> list[BookingToken]:
        """Each of them; a damaged file is no reason to forget them.

        One that is empty, as a full disk may leave it, is answered by the last good copy. One that somebody has edited
        is not: they may have taken a token away.
        """
        content, self.problem = locks.read_locked_file(self.path, MAX_TOKENS_BYTES), ""
        if not content.strip() and self.path.exists():
            content = files.read_copy(self.path, MAX_TOKENS_BYTES)
            if not content:
                message = f"{self.path} is empty: put your copy of it back, or remove it and make all tokens anew"
                raise StorageError(message)
            self.problem = f"is empty: {files.USED}"
        try:
            return parse_tokens(content) if content else []
        except files.WRONG_SHAPE:
            message = f"{self.path} is damaged: mend it, or remove it and make all tokens anew"
            raise StorageError(message) from None

    def create_token(self, name: str, now: float) -> str:
        """A new one, which is told this once."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        with locks.hold_file_lock(self.path):
            self.write_tokens([*self.list_tokens(), BookingToken(name, int(now), hash_token(token))])
        return token

    def revoke_tokens(self, name: str) -> int:
        """Take away all tokens of a person; how many there were."""
        with locks.hold_file_lock(self.path):
            found = self.list_tokens()
            rest = [one for one in found if fold_login(one.name) != fold_login(name)]
            if len(rest) < len(found):
                self.write_tokens(rest)
        return len(found) - len(rest)

    def find_token_owner(self, token: str) -> str | None:
        """Whose it is; however wrong it is, looking takes the same time."""
        digest = hash_token(token)
        found = [one.name for one in self.list_tokens() if hmac.compare_digest(one.digest.encode(), digest.encode())]
        return found[0] if found else None

    def write_tokens(self, several: list[BookingToken]) -> None:
        """All of them anew."""
        rows = [{"name": one.name, "made": one.created_at, "sha256": one.digest} for one in several]
        content = orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        # the copy first: one that is older than the file would bring back a token that was taken away
        locks.write_locked_file(files.copy_of(self.path), content)
        locks.write_locked_file(self.path, content)

    def keep_copy(self) -> None:
        """Keep a copy of what an older gpuboard, or somebody by hand, has written."""
        with suppress(OSError, StorageError, *files.WRONG_SHAPE):
            content = locks.read_locked_file(self.path, MAX_TOKENS_BYTES)
            if content.strip() and content != files.read_copy(self.path, MAX_TOKENS_BYTES):
                with locks.hold_file_lock(self.path):
                    parse_tokens(content := locks.read_locked_file(self.path, MAX_TOKENS_BYTES))
                    locks.write_locked_file(files.copy_of(self.path), content)


def check_tokens(state: Path) -> list[Problem]:
    """Return what is wrong with the file, for the page; and keep a copy of one that is good."""
    tokens = TokenStore(state)
    if not tokens.path.exists():
        return []
    try:
        tokens.list_tokens()
    except StorageError as why:
        return [Problem(f"state/{TOKENS_FILE}", str(why).replace(f"{tokens.path} ", ""))]
    if not tokens.problem:
        tokens.keep_copy()
    return [Problem(f"state/{TOKENS_FILE}", tokens.problem)] if tokens.problem else []


def parse_tokens(content: bytes) -> list[BookingToken]:
    """Return the tokens in a file; see own_files.WRONG_SHAPE for what it raises."""
    return [BookingToken(str(one["name"]), int(one["made"]), str(one["sha256"])) for one in orjson.loads(content)]


def hash_token(token: str) -> str:
    """What is kept of it."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()
