"""HTTP basic authentication by an htpasswd file."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import secrets
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Lock, Semaphore
from typing import TYPE_CHECKING, NamedTuple

from site_builder.core import files
from site_builder.core.model import BookingPolicy
from site_builder.web.identity import find_client_address
from site_builder.web.rate_limit import InMemoryRateLimiter
from site_builder.web.static_files import RETRY_AFTER_S, HttpResponse, build_error_response, send_response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from passlib.context import CryptContext

# bcrypt, SHA-512 and SHA-256 of crypt, Apache's own MD5, and SHA-1.
HASH_PATTERN = re.compile(
    r"\$2[aby]\$[0-9]{2}\$[./0-9A-Za-z]{53}"
    r"|\$6\$(?:rounds=[0-9]{1,7}\$)?[./0-9A-Za-z]{0,16}\$[./0-9A-Za-z]{86}"
    r"|\$5\$(?:rounds=[0-9]{1,7}\$)?[./0-9A-Za-z]{0,16}\$[./0-9A-Za-z]{43}"
    r"|\$apr1\$[./0-9A-Za-z]{1,8}\$[./0-9A-Za-z]{22}"
    r"|\{SHA\}[+/0-9A-Za-z]{27}="
)
NAME_PATTERN = re.compile(r"[^:\x00-\x20\x7f](?:[^:\x00-\x1f\x7f]{0,98}[^:\x00-\x20\x7f])?")
RENEW_HINT = "make it anew with `htpasswd -B`"


class HtpasswdError(Exception):
    """Why a file is not taken, in words that name the line, and never what stands in it beside a name."""


def parse_htpasswd(content: bytes) -> Mapping[str, str]:
    """Each name with its hash; one line that cannot count refuses the file, for somebody relies on it."""
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        message = f"line {number} is no UTF-8: write the names in it anew"
        raise HtpasswdError(message) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, rest = line.rstrip("\r").partition(":")
        if not colon or not NAME_PATTERN.fullmatch(name):
            message = f"line {number} has no name, a colon and a hash: {RENEW_HINT}"
            raise HtpasswdError(message)
        if not HASH_PATTERN.fullmatch(rest.partition(":")[0]):  # nginx allows a comment behind a further colon
            message = (
                f"line {number}: the password of {name} stands there in plain text, or as a hash that is not taken"
            )
            raise HtpasswdError(f"{message}: {RENEW_HINT}")
        if name in found:
            message = f"line {number}: {name} stands in line {lines[name]} already: remove one of them"
            raise HtpasswdError(message)
        found[name], lines[name] = rest.partition(":")[0], number
    if not found:
        message = "nobody stands in it: `htpasswd -B` adds a person"
        raise HtpasswdError(message)
    return found


MAX_HTPASSWD_BYTES = 4 * 1024 * 1024
HASH_SCHEMES = ("bcrypt", "sha512_crypt", "sha256_crypt", "apr_md5_crypt", "ldap_sha1")
# Of a password for bcrypt so many bytes count; htpasswd itself cuts it off.
MAX_BCRYPT_BYTES = 72
# As htpasswd has it: below it bcrypt refuses to look, and far above it one login would take hours.
BCRYPT_COSTS = range(4, 18)
MAX_CACHED_LOGINS = 1000


class PasswordFileError(Exception):
    """Why a file of passwords cannot be used, in one sentence."""


class PasswordFileReadError(PasswordFileError):
    """The same of a file that cannot even be read, which may pass without a change of the file."""


class PasswordVerifier:
    """Those of one content of the file, and who has shown the right password since.

    A hash is slow so that nobody can guess, and an open page asks every 10 seconds: what was right once is
    remembered, as a keyed hash of this process alone.
    """

    def __init__(self, hashes: Mapping[str, str], context: CryptContext) -> None:
        """With nobody seen yet."""
        self.hashes = hashes
        self.hash_context = context
        self.digest_key = secrets.token_bytes(32)
        self.lock = Lock()
        self.verified_digests: OrderedDict[bytes, None] = OrderedDict()

    def digest_login(self, name: str, password: bytes) -> bytes:
        """What is kept of a login."""
        return hmac.digest(self.digest_key, name.encode() + b"\0" + password, "sha256")

    def was_verified(self, name: str, password: bytes) -> bool:
        """Whether this very login was right before; it costs nothing."""
        digest = self.digest_login(name, password)
        with self.lock:
            found = digest in self.verified_digests
            if found:
                self.verified_digests.move_to_end(digest)
        return found

    def is_correct(self, name: str, password: bytes) -> bool:
        """Whether the password is that of this name; a name that is not there takes as long as one that is."""
        several = sorted(self.hashes)
        expected = self.hashes.get(name) or self.hashes[several[zlib.crc32(name.encode()) % len(several)]]
        if b"\0" in password:
            return False
        cut = password[:MAX_BCRYPT_BYTES] if expected.startswith("$2") else password
        right: bool = self.hash_context.verify(cut, expected)
        if not right or name not in self.hashes:
            return False
        with self.lock:
            self.verified_digests[self.digest_login(name, password)] = None
            while len(self.verified_digests) > MAX_CACHED_LOGINS:
                self.verified_digests.popitem(last=False)
        return True


class PasswordFile:
    """The file, as it is now or as it was last good."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        """Read it; `Unusable` says why that cannot be. Later `tell` gets the sentence, and what was there counts."""
        from passlib.context import CryptContext  # noqa: PLC0415 # slow to import

        self.hash_context = CryptContext(schemes=HASH_SCHEMES)
        self.path = path.absolute()
        self.report = tell
        self.lock = Lock()
        self.last_message = ""
        self.signature, self.verifier = self.read_passwords()

    def refresh(self) -> PasswordVerifier:
        """Those who count at this moment."""
        signature = self.read_signature()
        if signature != self.signature:
            with self.lock:
                if signature != self.signature:
                    self.reload(signature)
        return self.verifier

    def reload(self, signature: files.FileSignature | None) -> None:
        """Take up what stands there now, if it is any good; else it is told once.

        What could not be read is tried again each time: somebody may be waiting to be out.
        """
        try:
            self.signature, self.verifier = self.read_passwords()
            self.last_message = ""
        except PasswordFileError as why:
            if not isinstance(why, PasswordFileReadError):
                self.signature = signature
            if self.last_message != str(why):
                self.last_message = str(why)
                self.report(f"{why}; until then the passwords of before count")

    def read_signature(self) -> files.FileSignature | None:
        """What tells this content from the next; the file that the admin names may be a link."""
        try:
            return files.FileSignature.from_stat(self.path.stat())
        except OSError:
            return None

    def read_passwords(self) -> tuple[files.FileSignature | None, PasswordVerifier]:
        """The file as it is, or why not."""
        real = Path(os.path.realpath(self.path))
        try:
            folder = os.open(real.parent, files.ROOT_FOLDER_FLAGS)
            try:
                signature, content = files.read_file(real.name, folder, MAX_HTPASSWD_BYTES)
            finally:
                os.close(folder)
        except (OSError, files.FileRefusedError) as error:
            why = getattr(error, "strerror", None) or error
            message = (
                f"the passwords in {self.path} cannot be read: {why}; make the file with `htpasswd -B -c FILE NAME`"
            )
            raise PasswordFileReadError(message) from None
        try:
            hashes = parse_htpasswd(content)
            for name, hashed in hashes.items():
                self.check_hash(name, hashed)
        except HtpasswdError as why:
            message = f"the passwords in {self.path} cannot be used: {why}"
            raise PasswordFileError(message) from None
        return signature, PasswordVerifier(hashes, self.hash_context)

    def check_hash(self, name: str, hashed: str) -> None:
        """Refuse a hash that looks like one and that no password can be held against."""
        if hashed.startswith("$2") and int(hashed.split("$")[2]) not in BCRYPT_COSTS:
            first, last = BCRYPT_COSTS[0], BCRYPT_COSTS[-1]
            message = f"the cost in the hash of {name} is not one from {first} to {last}: {RENEW_HINT}"
            raise HtpasswdError(message)
        try:
            self.hash_context.needs_update(hashed)
        except ValueError:
            message = f"the hash of {name} is damaged: {RENEW_HINT}"
            raise HtpasswdError(message) from None


AUTHENTICATE_HEADER = ("WWW-Authenticate", 'Basic realm="GPU board", charset="UTF-8"')
# Of the 60 that an address may ask for in a minute: so 10 wrong passwords, and then one every 6 seconds.
WRONG_PASSWORD_COST = 6
# Of the server's 64 threads, so many look at a password that was not seen before, and so many more wait for them.
MAX_ACTIVE, MAX_WAITING = 2, 30
MAX_LOGIN_BYTES = 1024  # bytes of a name and a password
LOGIN_MESSAGE = "This board asks for a name and a password."
WRONG_PASSWORD_MESSAGE = "This name and this password do not belong together here."  # noqa: S105
RATE_LIMIT_MESSAGE = "Too many wrong passwords came from your address: try again in {} s."
OVERLOADED_MESSAGE = "Too many log in just now: try again in a moment."


class Credentials(NamedTuple):
    """Who somebody says to be."""

    name: str
    password: bytes


class BasicAuth:
    """A WSGI application before another, to which it says who asks."""

    def __init__(
        self,
        inner: WSGIApplication,
        passwords: PasswordFile,
        rules: BookingPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Before that application; `rules` say which proxy is believed about addresses."""
        self.application = inner
        self.password_file = passwords
        self.booking_policy = rules
        self.rate_limiter = InMemoryRateLimiter(clock)
        self.admitted = Semaphore(MAX_ACTIVE + MAX_WAITING)
        self.active = Semaphore(MAX_ACTIVE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One answer."""
        claim = parse_credentials(environ)
        if claim is None:
            return send_response(
                environ, start_response, build_error_response(401, AUTHENTICATE_HEADER, sentence=LOGIN_MESSAGE)
            )
        refused = self.check_credentials(claim, find_client_address(environ, self.booking_policy))
        if refused:
            return send_response(environ, start_response, refused)
        # as a web server tells it: a letter for each byte
        environ["REMOTE_USER"], environ["AUTH_TYPE"] = claim.name.encode().decode("latin-1"), "Basic"
        return self.application(environ, start_response)

    def check_credentials(self, claim: Credentials, address: str) -> HttpResponse | None:
        """Why somebody is not let in; None for whoever is."""
        if self.password_file.refresh().was_verified(*claim):
            return None
        if not self.admitted.acquire(blocking=False):
            return build_error_response(503, ("Retry-After", RETRY_AFTER_S), sentence=OVERLOADED_MESSAGE)
        try:
            with self.active:
                return self.check_new_credentials(claim, address)
        finally:
            self.admitted.release()

    def check_new_credentials(self, claim: Credentials, address: str) -> HttpResponse | None:
        """The same of a login that was not seen before; a browser sends the first one several times at once."""
        users = self.password_file.refresh()
        if users.was_verified(*claim):
            return None
        seconds = self.rate_limiter.find_wait_s(address, WRONG_PASSWORD_COST)
        if seconds:
            return build_error_response(429, ("Retry-After", str(seconds)), sentence=RATE_LIMIT_MESSAGE.format(seconds))
        if users.is_correct(*claim):
            return None
        self.rate_limiter.penalize(address, WRONG_PASSWORD_COST)
        return build_error_response(401, AUTHENTICATE_HEADER, sentence=WRONG_PASSWORD_MESSAGE)


def parse_credentials(environ: WSGIEnvironment) -> Credentials | None:
    """What stands behind `Authorization: Basic`."""
    scheme, _, told = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    if scheme.lower() != "basic" or len(told) > 2 * MAX_LOGIN_BYTES:
        return None
    try:
        name, colon, password = base64.b64decode(told.strip(), validate=True).partition(b":")
        return Credentials(name.decode(), password) if colon and len(name + password) <= MAX_LOGIN_BYTES else None
    except (binascii.Error, ValueError):
        return None
