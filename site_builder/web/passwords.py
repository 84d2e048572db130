"""The file of `--htpasswd`: who may see the board. It is read again when it changes."""

from __future__ import annotations

import hmac
import os
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from site_builder.core import files
from site_builder.web import htpasswd

if TYPE_CHECKING:
    from passlib.context import CryptContext

LIMIT = 4 * 1024 * 1024
SCHEMES = ("bcrypt", "sha512_crypt", "sha256_crypt", "apr_md5_crypt", "ldap_sha1")
# Of a password for bcrypt so many bytes count; htpasswd itself cuts it off.
BCRYPT_BYTES = 72
# As htpasswd has it: below it bcrypt refuses to look, and far above it one login would take hours.
BCRYPT_COSTS = range(4, 18)
MOST_KEPT = 1000


class Unusable(Exception):
    """Why a file of passwords cannot be used, in one sentence."""


class Unreadable(Unusable):
    """The same of a file that cannot even be read, which may pass without a change of the file."""


class Users:
    """Those of one content of the file, and who has shown the right password since.

    A hash is slow so that nobody can guess, and an open page asks every 10 seconds: what was right once is
    remembered, as a keyed hash of this process alone.
    """

    def __init__(self, hashes: Mapping[str, str], context: CryptContext) -> None:
        """With nobody seen yet."""
        self.hashes = hashes
        self.context = context
        self.key = secrets.token_bytes(32)
        self.lock = Lock()
        self.seen: OrderedDict[bytes, None] = OrderedDict()

    def digest(self, name: str, password: bytes) -> bytes:
        """What is kept of a login."""
        return hmac.digest(self.key, name.encode() + b"\0" + password, "sha256")

    def has_seen(self, name: str, password: bytes) -> bool:
        """Whether this very login was right before; it costs nothing."""
        digest = self.digest(name, password)
        with self.lock:
            found = digest in self.seen
            if found:
                self.seen.move_to_end(digest)
        return found

    def is_right(self, name: str, password: bytes) -> bool:
        """Whether the password is that of this name; a name that is not there takes as long as one that is."""
        several = sorted(self.hashes)
        expected = self.hashes.get(name) or self.hashes[several[zlib.crc32(name.encode()) % len(several)]]
        if b"\0" in password:
            return False
        cut = password[:BCRYPT_BYTES] if expected.startswith("$2") else password
        right: bool = self.context.verify(cut, expected)
        if not right or name not in self.hashes:
            return False
        with self.lock:
            self.seen[self.digest(name, password)] = None
            while len(self.seen) > MOST_KEPT:
                self.seen.popitem(last=False)
        return True


class Passwords:
    """The file, as it is now or as it was last good."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        """Read it; `Unusable` says why that cannot be. Later `tell` gets the sentence, and what was there counts."""
        from passlib.context import CryptContext  # noqa: PLC0415 # slow to import

        self.context = CryptContext(schemes=SCHEMES)
        self.path = path.absolute()
        self.tell = tell
        self.lock = Lock()
        self.told = ""
        self.signature, self.users = self.read()

    def now(self) -> Users:
        """Those who count at this moment."""
        signature = self.look()
        if signature != self.signature:
            with self.lock:
                if signature != self.signature:
                    self.renew(signature)
        return self.users

    def renew(self, signature: files.Signature | None) -> None:
        """Take up what stands there now, if it is any good; else it is told once.

        What could not be read is tried again each time: somebody may be waiting to be out.
        """
        try:
            self.signature, self.users = self.read()
            self.told = ""
        except Unusable as why:
            if not isinstance(why, Unreadable):
                self.signature = signature
            if self.told != str(why):
                self.told = str(why)
                self.tell(f"{why}; until then the passwords of before count")

    def look(self) -> files.Signature | None:
        """What tells this content from the next; the file that the admin names may be a link."""
        try:
            return files.Signature.of(self.path.stat())
        except OSError:
            return None

    def read(self) -> tuple[files.Signature | None, Users]:
        """The file as it is, or why not."""
        real = Path(os.path.realpath(self.path))
        try:
            folder = os.open(real.parent, files.TOP)
            try:
                signature, content = files.read(real.name, folder, LIMIT)
            finally:
                os.close(folder)
        except (OSError, files.Refused) as error:
            why = getattr(error, "strerror", None) or error
            message = (
                f"the passwords in {self.path} cannot be read: {why}; make the file with `htpasswd -B -c FILE NAME`"
            )
            raise Unreadable(message) from None
        try:
            hashes = htpasswd.read(content)
            for name, hashed in hashes.items():
                self.check(name, hashed)
        except htpasswd.Odd as why:
            message = f"the passwords in {self.path} cannot be used: {why}"
            raise Unusable(message) from None
        return signature, Users(hashes, self.context)

    def check(self, name: str, hashed: str) -> None:
        """Refuse a hash that looks like one and that no password can be held against."""
        if hashed.startswith("$2") and int(hashed.split("$")[2]) not in BCRYPT_COSTS:
            first, last = BCRYPT_COSTS[0], BCRYPT_COSTS[-1]
            message = f"the cost in the hash of {name} is not one from {first} to {last}: {htpasswd.ANEW}"
            raise htpasswd.Odd(message)
        try:
            self.context.needs_update(hashed)
        except ValueError:
            message = f"the hash of {name} is damaged: {htpasswd.ANEW}"
            raise htpasswd.Odd(message) from None
