"""A name and a password before all that `gpuboard serve` answers."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterable
from threading import Semaphore
from typing import TYPE_CHECKING, NamedTuple

from site_builder.bookings.identity import address_of
from site_builder.bookings.rate_limit import Remembered
from site_builder.core.model import BookingRules
from site_builder.web.passwords import Passwords
from site_builder.web.static_files import SOON, Answer, refusal, sent

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

ASK = ("WWW-Authenticate", 'Basic realm="GPU board", charset="UTF-8"')
# Of the 60 that an address may ask for in a minute: so 10 wrong passwords, and then one every 6 seconds.
GUESS = 6
# Of the server's 64 threads, so many look at a password that was not seen before, and so many more wait for them.
AT_ONCE, WAITING = 2, 30
LONGEST = 1024  # bytes of a name and a password
WHO = "This board asks for a name and a password."
WRONG = "This name and this password do not belong together here."
MANY = "Too many wrong passwords came from your address: try again in {} s."
FULL = "Too many log in just now: try again in a moment."


class Claim(NamedTuple):
    """Who somebody says to be."""

    name: str
    password: bytes


class Login:
    """A WSGI application before another, to which it says who asks."""

    def __init__(
        self,
        inner: WSGIApplication,
        passwords: Passwords,
        rules: BookingRules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Before that application; `rules` say which proxy is believed about addresses."""
        self.inner = inner
        self.passwords = passwords
        self.rules = rules
        self.guesses = Remembered(clock)
        self.room = Semaphore(AT_ONCE + WAITING)
        self.places = Semaphore(AT_ONCE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One answer."""
        claim = claim_of(environ)
        if claim is None:
            return sent(environ, start_response, refusal(401, ASK, sentence=WHO))
        refused = self.refused(claim, address_of(environ, self.rules))
        if refused:
            return sent(environ, start_response, refused)
        # as a web server tells it: a letter for each byte
        environ["REMOTE_USER"], environ["AUTH_TYPE"] = claim.name.encode().decode("latin-1"), "Basic"
        return self.inner(environ, start_response)

    def refused(self, claim: Claim, address: str) -> Answer | None:
        """Why somebody is not let in; None for whoever is."""
        if self.passwords.now().has_seen(*claim):
            return None
        if not self.room.acquire(blocking=False):
            return refusal(503, ("Retry-After", SOON), sentence=FULL)
        try:
            with self.places:
                return self.checked(claim, address)
        finally:
            self.room.release()

    def checked(self, claim: Claim, address: str) -> Answer | None:
        """The same of a login that was not seen before; a browser sends the first one several times at once."""
        users = self.passwords.now()
        if users.has_seen(*claim):
            return None
        seconds = self.guesses.wait(address, GUESS)
        if seconds:
            return refusal(429, ("Retry-After", str(seconds)), sentence=MANY.format(seconds))
        if users.is_right(*claim):
            return None
        self.guesses.punish(address, GUESS)
        return refusal(401, ASK, sentence=WRONG)


def claim_of(environ: WSGIEnvironment) -> Claim | None:
    """What stands behind `Authorization: Basic`."""
    scheme, _, told = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    if scheme.lower() != "basic" or len(told) > 2 * LONGEST:
        return None
    try:
        name, colon, password = base64.b64decode(told.strip(), validate=True).partition(b":")
        return Claim(name.decode(), password) if colon and len(name + password) <= LONGEST else None
    except (binascii.Error, ValueError):
        return None
