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
from site_builder.web.identity import InMemoryRateLimiter, find_client_address
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
MAX_HTPASSWD_BYTES = 4 * 1024 * 1024
HASH_SCHEMES = ("bcrypt", "sha512_crypt", "sha256_crypt", "apr_md5_crypt", "ldap_sha1")
# bcrypt takes only so many bytes of a password, as htpasswd does.
MAX_BCRYPT_BYTES = 72
# As htpasswd allows: bcrypt refuses lower costs, and with much higher ones a login would take hours.
BCRYPT_COSTS = range(4, 18)
MAX_CACHED_LOGINS = 1000
AUTHENTICATE_HEADER = ("WWW-Authenticate", 'Basic realm="GPU board", charset="UTF-8"')
# An address may have 60 requests a minute: so 10 wrong passwords, and then one every 6 seconds.
WRONG_PASSWORD_COST = 6
# Of the server's 64 threads, how many verify a new password, and how many more may wait for them.
MAX_ACTIVE, MAX_WAITING = 2, 30
MAX_LOGIN_BYTES = 1024  # bytes of a name and a password
LOGIN_MESSAGE = "This board asks for a name and a password."
WRONG_PASSWORD_MESSAGE = "This name and this password do not belong together here."  # noqa: S105
RATE_LIMIT_MESSAGE = "Too many wrong passwords came from your address: try again in {} s."
OVERLOADED_MESSAGE = "Too many log in just now: try again in a moment."


class HtpasswdError(Exception):
    """Why a file is refused, in words that name the line, but never a hash."""


def parse_htpasswd(content: bytes) -> Mapping[str, str]:
    """Return the hash of each name; one bad line refuses the file, since somebody relies on it."""
    hashes: dict[str, str] = {}
    lines: dict[str, int] = {}
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise HtpasswdError(f"line {number} is no UTF-8: write the names in it anew") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, rest = line.rstrip("\r").partition(":")
        if not colon or not NAME_PATTERN.fullmatch(name):
            raise HtpasswdError(f"line {number} has no name, a colon and a hash: {RENEW_HINT}")
        hashed = rest.partition(":")[0]  # nginx allows a comment after another colon
        if not HASH_PATTERN.fullmatch(hashed):
            message = (
                f"line {number}: the password of {name} stands there in plain text, or as a hash that is not taken"
            )
            raise HtpasswdError(f"{message}: {RENEW_HINT}")
        if name in hashes:
            message = f"line {number}: {name} stands in line {lines[name]} already: remove one of them"
            raise HtpasswdError(message)
        hashes[name], lines[name] = hashed, number
    if not hashes:
        raise HtpasswdError("nobody stands in it: `htpasswd -B` adds a person")
    return hashes


class PasswordFileError(Exception):
    """Why a password file cannot be used, in one sentence."""


class PasswordFileReadError(PasswordFileError):
    """The file cannot even be read, which may pass without a change of the file."""


class PasswordVerifier:
    """Verifies logins against the hashes of one version of the file.

    A hash is slow so that nobody can guess, and an open page polls every 10 seconds: a correct login is remembered, as
    a keyed hash of this process alone.
    """

    def __init__(self, hashes: Mapping[str, str], context: CryptContext) -> None:
        self.hashes = hashes
        self.hash_context = context
        self.digest_key = secrets.token_bytes(32)
        self.lock = Lock()
        self.verified_digests: OrderedDict[bytes, None] = OrderedDict()

    def digest_login(self, name: str, password: bytes) -> bytes:
        return hmac.digest(self.digest_key, name.encode() + b"\0" + password, "sha256")

    def was_verified(self, name: str, password: bytes) -> bool:
        """Return True if this very login was correct before; it costs nothing."""
        digest = self.digest_login(name, password)
        with self.lock:
            if digest not in self.verified_digests:
                return False
            self.verified_digests.move_to_end(digest)
            return True

    def is_correct(self, name: str, password: bytes) -> bool:
        """Return True if the password is that of this name; an unknown name takes as long as a known one."""
        names = sorted(self.hashes)
        expected = self.hashes.get(name) or self.hashes[names[zlib.crc32(name.encode()) % len(names)]]
        if b"\0" in password:
            return False
        significant = password[:MAX_BCRYPT_BYTES] if expected.startswith("$2") else password
        if not self.hash_context.verify(significant, expected) or name not in self.hashes:
            return False
        with self.lock:
            self.verified_digests[self.digest_login(name, password)] = None
            while len(self.verified_digests) > MAX_CACHED_LOGINS:
                self.verified_digests.popitem(last=False)
        return True


class PasswordFile:
    """The password file, as it is now or as it was last valid."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """Read the file or raise PasswordFileError; later `report` gets the sentence, and the old passwords count."""
        from passlib.context import CryptContext  # noqa: PLC0415 # slow to import

        self.hash_context = CryptContext(schemes=HASH_SCHEMES)
        self.path = path.absolute()
        self.report = report
        self.lock = Lock()
        self.last_message = ""
        self.signature, self.verifier = self.read_passwords()

    def refresh(self) -> PasswordVerifier:
        """Return the verifier of the file as it is now."""
        signature = self.read_signature()
        if signature != self.signature:
            with self.lock:
                if signature != self.signature:
                    self.reload(signature)
        return self.verifier

    def reload(self, signature: files.FileSignature | None) -> None:
        """Load the file if it is valid, or report once why not.

        A file that cannot be read is tried again each time: it may remove somebody's access.
        """
        try:
            self.signature, self.verifier = self.read_passwords()
            self.last_message = ""
        except PasswordFileError as error:
            if not isinstance(error, PasswordFileReadError):
                self.signature = signature
            if self.last_message != str(error):
                self.last_message = str(error)
                self.report(f"{error}; until then the passwords of before count")

    def read_signature(self) -> files.FileSignature | None:
        """Return the signature of the file, which may be a link."""
        try:
            return files.FileSignature.from_stat(self.path.stat())
        except OSError:
            return None

    def read_passwords(self) -> tuple[files.FileSignature | None, PasswordVerifier]:
        real = Path(os.path.realpath(self.path))
        try:
            folder = os.open(real.parent, files.ROOT_FOLDER_FLAGS)
            try:
                signature, content = files.read_file(real.name, folder, MAX_HTPASSWD_BYTES)
            finally:
                os.close(folder)
        except (OSError, files.FileRefusedError) as error:
            reason = getattr(error, "strerror", None) or error
            message = (
                f"the passwords in {self.path} cannot be read: {reason}; make the file with `htpasswd -B -c FILE NAME`"
            )
            raise PasswordFileReadError(message) from None
        try:
            hashes = parse_htpasswd(content)
            for name, hashed in hashes.items():
                self.check_hash(name, hashed)
        except HtpasswdError as error:
            raise PasswordFileError(f"the passwords in {self.path} cannot be used: {error}") from None
        return signature, PasswordVerifier(hashes, self.hash_context)

    def check_hash(self, name: str, hashed: str) -> None:
        """Refuse a hash that has the right form, but that no password can be verified against."""
        if hashed.startswith("$2") and int(hashed.split("$")[2]) not in BCRYPT_COSTS:
            first, last = BCRYPT_COSTS[0], BCRYPT_COSTS[-1]
            message = f"the cost in the hash of {name} is not one from {first} to {last}: {RENEW_HINT}"
            raise HtpasswdError(message)
        try:
            self.hash_context.needs_update(hashed)
        except ValueError:
            raise HtpasswdError(f"the hash of {name} is damaged: {RENEW_HINT}") from None


class Credentials(NamedTuple):
    name: str
    password: bytes


class BasicAuth:
    """A WSGI application that lets requests with a correct login through to another one."""

    def __init__(
        self,
        application: WSGIApplication,
        password_file: PasswordFile,
        booking_policy: BookingPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Protect `application`; `booking_policy` names the proxy that is trusted about addresses."""
        self.application = application
        self.password_file = password_file
        self.booking_policy = booking_policy
        self.rate_limiter = InMemoryRateLimiter(clock)
        self.admitted = Semaphore(MAX_ACTIVE + MAX_WAITING)
        self.active = Semaphore(MAX_ACTIVE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        credentials = parse_credentials(environ)
        if credentials is None:
            response = build_error_response(401, AUTHENTICATE_HEADER, sentence=LOGIN_MESSAGE)
            return send_response(environ, start_response, response)
        refusal = self.check_credentials(credentials, find_client_address(environ, self.booking_policy))
        if refusal:
            return send_response(environ, start_response, refusal)
        # as a web server does: a character for each byte
        environ["REMOTE_USER"], environ["AUTH_TYPE"] = credentials.name.encode().decode("latin-1"), "Basic"
        return self.application(environ, start_response)

    def check_credentials(self, credentials: Credentials, address: str) -> HttpResponse | None:
        """Return the refusal of wrong credentials; None for correct ones."""
        if self.password_file.refresh().was_verified(*credentials):
            return None
        if not self.admitted.acquire(blocking=False):
            return build_error_response(503, ("Retry-After", RETRY_AFTER_S), sentence=OVERLOADED_MESSAGE)
        try:
            with self.active:
                return self.check_new_credentials(credentials, address)
        finally:
            self.admitted.release()

    def check_new_credentials(self, credentials: Credentials, address: str) -> HttpResponse | None:
        """Verify credentials that were new when they arrived; a browser sends its first ones several times at once."""
        verifier = self.password_file.refresh()
        if verifier.was_verified(*credentials):
            return None
        seconds = self.rate_limiter.find_wait_s(address, WRONG_PASSWORD_COST)
        if seconds:
            return build_error_response(429, ("Retry-After", str(seconds)), sentence=RATE_LIMIT_MESSAGE.format(seconds))
        if verifier.is_correct(*credentials):
            return None
        self.rate_limiter.penalize(address, WRONG_PASSWORD_COST)
        return build_error_response(401, AUTHENTICATE_HEADER, sentence=WRONG_PASSWORD_MESSAGE)


def parse_credentials(environ: WSGIEnvironment) -> Credentials | None:
    """Return the credentials in `Authorization: Basic`."""
    scheme, _, encoded = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    if scheme.lower() != "basic" or len(encoded) > 2 * MAX_LOGIN_BYTES:
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return Credentials(name.decode(), password) if colon and len(name + password) <= MAX_LOGIN_BYTES else None
    except (binascii.Error, ValueError):
        return None
