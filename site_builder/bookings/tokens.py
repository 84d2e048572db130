"""Store in state/tokens.json who may book over the web with a token; only its hash is kept."""

from __future__ import annotations

import hmac
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.core import files, locks
from site_builder.core.locks import LockedFileError
from site_builder.core.model import Problem
from site_builder.core.people import fold_login

TOKENS_FILE = "tokens.json"
# So that people, and programs that look for secrets in files, know what it is.
TOKEN_PREFIX = "gpuboard_"  # noqa: S105
MAX_TOKENS_BYTES = 4 * 1024 * 1024


class UnknownTokenError(Exception):
    """A token that is nobody's."""


class BookingToken(NamedTuple):
    """Whose token it is, when it was created (epoch), and its SHA-256."""

    name: str
    created_at: int
    digest: str


class TokenStore:
    """The valid tokens; one person may have several."""

    def __init__(self, state: Path) -> None:
        self.path = state / TOKENS_FILE
        self.problem = ""  # what was wrong when they were last read

    def list_tokens(self) -> list[BookingToken]:
        """List all tokens; raise LockedFileError if the file is damaged, so that none is forgotten.

        If it is empty, as a full disk may leave it, the last good copy is used. If somebody has edited it, it is not:
        they may have removed a token.
        """
        content, self.problem = locks.read_locked_file(self.path, MAX_TOKENS_BYTES), ""
        if not content.strip() and self.path.exists():
            content = files.read_file_copy(self.path, MAX_TOKENS_BYTES)
            if not content:
                message = f"{self.path} is empty: restore your copy, or remove it and create all tokens again"
                raise LockedFileError(message)
            self.problem = f"is empty: {files.COPY_USED_MESSAGE}"
        try:
            return parse_booking_tokens(content) if content else []
        except files.PARSE_ERRORS:
            raise LockedFileError(
                f"{self.path} is damaged: repair it, or remove it and create all tokens again"
            ) from None

    def create_token(self, name: str, now: float) -> str:
        """Create a token, and return it; it is stored only as a hash."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        with locks.hold_file_lock(self.path):
            self.write_tokens([*self.list_tokens(), BookingToken(name, int(now), hash_booking_token(token))])
        return token

    def revoke_tokens(self, name: str) -> int:
        """Remove all tokens of a person, and return their number."""
        with locks.hold_file_lock(self.path):
            tokens = self.list_tokens()
            kept_tokens = [token for token in tokens if fold_login(token.name) != fold_login(name)]
            if len(kept_tokens) < len(tokens):
                self.write_tokens(kept_tokens)
        return len(tokens) - len(kept_tokens)

    def find_token_owner(self, token: str) -> str | None:
        """Return whose token it is; the comparison takes the same time however wrong it is."""
        digest = hash_booking_token(token).encode()
        names = [entry.name for entry in self.list_tokens() if hmac.compare_digest(entry.digest.encode(), digest)]
        return names[0] if names else None

    def write_tokens(self, tokens: list[BookingToken]) -> None:
        rows = [{"name": token.name, "made": token.created_at, "sha256": token.digest} for token in tokens]
        content = orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        # the copy first: one that is older than the file would bring back a token that was taken away
        locks.write_locked_file(files.find_copy_file(self.path), content)
        locks.write_locked_file(self.path, content)


def find_booking_token_problems(state: Path) -> list[Problem]:
    """Return what is wrong with the file, for the page, and keep a copy of a good one."""
    tokens = TokenStore(state)
    if not tokens.path.exists():
        return []
    try:
        tokens.list_tokens()
    except LockedFileError as error:
        return [Problem(f"state/{TOKENS_FILE}", str(error).replace(f"{tokens.path} ", ""))]
    if tokens.problem:
        return [Problem(f"state/{TOKENS_FILE}", tokens.problem)]
    # an older gpuboard, or somebody by hand, may have written it without a copy
    with suppress(OSError, LockedFileError, *files.PARSE_ERRORS):
        content = locks.read_locked_file(tokens.path, MAX_TOKENS_BYTES)
        if content.strip() and content != files.read_file_copy(tokens.path, MAX_TOKENS_BYTES):
            with locks.hold_file_lock(tokens.path):
                parse_booking_tokens(content := locks.read_locked_file(tokens.path, MAX_TOKENS_BYTES))
                locks.write_locked_file(files.find_copy_file(tokens.path), content)
    return []


def parse_booking_tokens(content: bytes) -> list[BookingToken]:
    """Parse the tokens of a file; raises files.WRONG_SHAPE."""
    return [BookingToken(str(row["name"]), int(row["made"]), str(row["sha256"])) for row in orjson.loads(content)]


def hash_booking_token(token: str) -> str:
    """Hash a token once, which is enough for 32 random bytes: slow hashes are for passwords, which people choose."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()
