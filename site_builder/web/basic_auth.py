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
from typing import TYPE_CHECKING

from site_builder.core import files
from site_builder.core.model import BookingPolicy
from site_builder.web import static_files
from site_builder.web.identity import find_client_address
from site_builder.web.rate_limit import InMemoryRateLimiter
from site_builder.web.static_files import StaticResponse, build_static_error_response

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
RENEW_HINT = "create it again with `htpasswd -B`"
MAX_HTPASSWD_BYTES = 4 * 1024 * 1024
HASH_SCHEMES = ("bcrypt", "sha512_crypt", "sha256_crypt", "apr_md5_crypt", "ldap_sha1")
# bcrypt uses only this many bytes of a password, as htpasswd does.
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
LOGIN_MESSAGE = "This board asks for a name and password."
WRONG_PASSWORD_MESSAGE = "Wrong name or password."  # noqa: S105
OVERLOADED_MESSAGE = "Too many people are logging in: try again in a moment."


class PasswordFileError(Exception):
    """Why a password file cannot be used, in words that name the line, but never a hash."""


class PasswordFileReadError(PasswordFileError):
    """The file cannot even be read, which may pass without a change of the file."""


def parse_htpasswd(content: bytes) -> Mapping[str, str]:
    """Return the hash of each name; one bad line refuses the file, since somebody relies on it."""
    hashes: dict[str, str] = {}
    lines: dict[str, int] = {}
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise PasswordFileError(f"line {number} is not UTF-8: write its name again") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, rest = line.rstrip("\r").partition(":")
        if not colon or not NAME_PATTERN.fullmatch(name):
            raise PasswordFileError(f"line {number} is not NAME:HASH: {RENEW_HINT}")
        hashed = rest.partition(":")[0]  # nginx allows a comment after another colon
        if not HASH_PATTERN.fullmatch(hashed):
            raise PasswordFileError(
                f"line {number}: the password of {name} is in plain text or has an unsupported hash: {RENEW_HINT}"
            )
        if name in hashes:
            raise PasswordFileError(f"line {number}: {name} is also in line {lines[name]}: remove one of them")
        hashes[name], lines[name] = hashed, number
    if not hashes:
        raise PasswordFileError("it is empty: `htpasswd -B` adds a person")
    return hashes


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
        """Return the verifier of the file as it is now, or report once why the previous one is still used."""
        try:
            signature = files.FileSignature.from_stat(self.path.stat())  # of the file that a link leads to
        except OSError:
            signature = None
        if signature == self.signature:
            return self.verifier
        with self.lock:
            if signature == self.signature:
                return self.verifier
            try:
                self.signature, self.verifier = self.read_passwords()
                self.last_message = ""
            except PasswordFileError as error:
                # a file that cannot be read is tried again each time: it may remove somebody's access
                if not isinstance(error, PasswordFileReadError):
                    self.signature = signature
                if self.last_message != str(error):
                    self.last_message = str(error)
                    self.report(f"{error}; until then the previous passwords are used")
            return self.verifier

    def read_passwords(self) -> tuple[files.FileSignature | None, PasswordVerifier]:
        """Read the file, and refuse hashes of the right form that no password can be verified against."""
        real = Path(os.path.realpath(self.path))
        try:
            folder = os.open(real.parent, files.ROOT_FOLDER_FLAGS)
            try:
                signature, content = files.read_file(real.name, folder, MAX_HTPASSWD_BYTES)
            finally:
                os.close(folder)
        except (OSError, files.FileRefusedError) as error:
            reason = getattr(error, "strerror", None) or error
            problem = f"the passwords in {self.path} cannot be read: {reason}"
            raise PasswordFileReadError(f"{problem}; make the file with `htpasswd -B -c FILE NAME`") from None
        try:
            hashes = parse_htpasswd(content)
            for name, hashed in hashes.items():
                if hashed.startswith("$2") and int(hashed.split("$")[2]) not in BCRYPT_COSTS:
                    costs = f"from {BCRYPT_COSTS[0]} to {BCRYPT_COSTS[-1]}"
                    raise PasswordFileError(f"the cost in the hash of {name} is not {costs}: {RENEW_HINT}")
                try:
                    self.hash_context.needs_update(hashed)
                except ValueError:
                    raise PasswordFileError(f"the hash of {name} is damaged: {RENEW_HINT}") from None
        except PasswordFileError as error:
            raise PasswordFileError(f"the passwords in {self.path} cannot be used: {error}") from None
        return signature, PasswordVerifier(hashes, self.hash_context)


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
        if refusal := self.check_login(environ):
            return static_files.send_static_response(environ, start_response, refusal)
        return self.application(environ, start_response)

    def check_login(self, environ: WSGIEnvironment) -> StaticResponse | None:
        """Return the refusal of a missing or wrong login; set REMOTE_USER for a correct one."""
        credentials = parse_credentials(environ)
        if credentials is None:
            return build_static_error_response(401, AUTHENTICATE_HEADER, sentence=LOGIN_MESSAGE)
        if not self.password_file.refresh().was_verified(*credentials):
            if not self.admitted.acquire(blocking=False):
                retry_header = ("Retry-After", static_files.RETRY_AFTER_S)
                return build_static_error_response(503, retry_header, sentence=OVERLOADED_MESSAGE)
            try:
                with self.active:
                    refusal = self.check_password(find_client_address(environ, self.booking_policy), *credentials)
            finally:
                self.admitted.release()
            if refusal:
                return refusal
        # as a web server does: a character for each byte
        environ["REMOTE_USER"], environ["AUTH_TYPE"] = credentials[0].encode().decode("latin-1"), "Basic"
        return None

    def check_password(self, address: str, name: str, password: bytes) -> StaticResponse | None:
        """Return the refusal of a wrong password; a browser sends its first login several times at once."""
        verifier = self.password_file.refresh()
        if verifier.was_verified(name, password):
            return None
        if wait_s := self.rate_limiter.find_wait_s(address, WRONG_PASSWORD_COST):
            sentence = f"Too many wrong passwords came from your address: try again in {wait_s} s."
            return build_static_error_response(429, ("Retry-After", str(wait_s)), sentence=sentence)
        if verifier.is_correct(name, password):
            return None
        self.rate_limiter.penalize(address, WRONG_PASSWORD_COST)
        return build_static_error_response(401, AUTHENTICATE_HEADER, sentence=WRONG_PASSWORD_MESSAGE)


def parse_credentials(environ: WSGIEnvironment) -> tuple[str, bytes] | None:
    """Return name and password in `Authorization: Basic`."""
    scheme, _, encoded = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    if scheme.lower() != "basic" or len(encoded) > 2 * MAX_LOGIN_BYTES:
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon and len(name + password) <= MAX_LOGIN_BYTES else None
    except (binascii.Error, ValueError):
        return None
