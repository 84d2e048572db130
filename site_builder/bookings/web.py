"""The desk on the web: a WSGI application with one address, for `gpuboard serve`, CGI and any WSGI server.

It keeps nothing in the process, so that any number of processes may answer at once.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from site_builder.bookings import api, csrf, identity, json_edit
from site_builder.bookings.csrf import Refusal
from site_builder.bookings.identity import Caller
from site_builder.bookings.policy import NotYours, Refused
from site_builder.bookings.rate_limit import LOOKS, Attempts
from site_builder.bookings.service import Broken, Desk
from site_builder.bookings.store import Unwritable
from site_builder.bookings.tokens import Tokens
from site_builder.config import conf_file, settings
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.web.static_files import ALWAYS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HEADERS = (*ALWAYS, ("Content-Type", "application/json"), ("Cache-Control", "no-store"))
ALLOWED = ("Allow", "GET, POST")
LOGIN = ("WWW-Authenticate", 'Bearer realm="gpuboard"')
SOON = ("Retry-After", "10")
MOST_TOLD = 100
# Of a body that is too long, a CGI program reads so much.
MOST_DISCARDED = 1 << 20
# Of the 60 that an address may ask for in a minute: so 30 bookings, 60 questions, or 10 wrong tokens.
BOOKING, QUESTION, GUESS = 2, 1, 6
# The same of lists, which are counted apart: who has booked too often may look, and who looked too often may book.
LOOK = 0.25
MOST_FIELDS = 20
WHO_ARE_YOU = (
    "the desk does not know who you are: log in to the board, or book with a token, which its admin makes by "
    "`gpuboard token NAME`"
)
WRONG_TOKEN = "this token is not known here, or not any more; the admin can make a new one"  # noqa: S105 # a sentence
NO_NAME = "say who you are: `name`, or `as` where you do not book"
TOO_MANY_FIELDS = "the address asks for too many things: ?host=NAME is all that is understood"
NOT_SET_UP = "the desk is not set up right; the admin can read in the server's log what is wrong"
FAILED = "something went wrong at the desk; the admin can read what in the server's log"


def to_stderr(sentence: str) -> None:
    """Where a web server keeps what its programs say."""
    sys.stderr.write(f"gpuboard: {sentence}\n")
    sys.stderr.flush()


class Booking:
    """The WSGI application."""

    def __init__(
        self, settings: Settings, tell: Callable[[str], None] = to_stderr, clock: Callable[[], float] = time.time
    ) -> None:
        """For these bookings; `tell` gets a sentence about each thing that an admin must mend."""
        self.settings = settings
        self.tell = tell
        self.told: set[str] = set()
        self.desk = Desk(settings, clock)
        self.tokens = Tokens(settings.state)
        self.attempts = Attempts(settings.state, clock)
        self.looks = Attempts(settings.state, clock, LOOKS)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One answer."""
        try:
            return sent(environ, start_response, 200, self.answer(environ))
        except Refusal as why:
            return sent(environ, start_response, why.status, {"error": str(why)}, *why.headers)
        except Exception as error:  # whoever asks never sees where it happened
            self.tell_once(f"a booking failed: {type(error).__name__}: {error}; this should not happen")
            return sent(environ, start_response, 500, {"error": FAILED})

    def answer(self, environ: WSGIEnvironment) -> dict[str, Any]:
        """What this request gets, or why it gets nothing."""
        method = environ["REQUEST_METHOD"]
        if method not in ("GET", "POST"):
            raise Refusal(405, "only GET and POST are answered here", ALLOWED)
        try:
            return self.listed(environ) if method == "GET" else self.done(environ)
        except identity.OddName as why:
            raise Refusal(403, str(why)) from None
        except api.Unclear as why:
            raise Refusal(400, str(why)) from None
        except NotYours as why:
            raise Refusal(403, str(why)) from None
        except (Refused, json_edit.Odd) as why:
            raise Refusal(409, str(why)) from None
        except (Broken, Unwritable) as why:
            self.tell_once(str(why))
            raise Refusal(503, self.without_folders(str(why)), SOON) from None

    def listed(self, environ: WSGIEnvironment) -> dict[str, Any]:
        """All bookings, and who asks."""
        self.refuse_many(self.looks.count(identity.address_of(environ, self.settings.rules), LOOK))
        caller = self.caller(environ)
        try:
            wanted = parse_qs(str(environ.get("QUERY_STRING", "")), max_num_fields=MOST_FIELDS).get("host")
        except ValueError:
            raise Refusal(400, TOO_MANY_FIELDS) from None
        now, rules = self.desk.now(), self.settings.rules
        found = api.listed(self.desk, caller.who, wanted[0] if wanted else None)
        about = {
            "who": found["who"],
            "how": caller.how,
            "admin": found["admin"],
            "zone": getattr(now.zone, "key", None) or now.local.tzname(),
            "for_others": rules.for_others or caller.who.admin or caller.how == "open",
        }
        return {**about, "bookings": found["bookings"], "watches": found["watches"]}

    def done(self, environ: WSGIEnvironment) -> dict[str, Any]:
        """A booking made, changed or released."""
        csrf.check(environ, self.settings)
        body = csrf.body_of(environ)
        address = identity.address_of(environ, self.settings.rules)
        try:
            request = csrf.request_of(body)
        except Refusal:
            self.count(address, BOOKING)
            raise
        cost = QUESTION if request.get("check") is True else BOOKING
        self.count(address, cost)
        caller = self.caller(environ, cost)
        someone = caller.who
        if caller.how is None:
            raise Refusal(401, WHO_ARE_YOU, LOGIN)
        if caller.how == "open":
            csrf.check_name(environ, self.settings)
            someone = identity.by_own_word(request)
            request.pop("as", None)
            if not someone.name:
                raise Refusal(400, NO_NAME)
        return api.do(self.desk, request, someone)

    def caller(self, environ: WSGIEnvironment, counted: int = 0) -> Caller:
        """Who asks; a wrong token counts as much as several requests."""
        address = identity.address_of(environ, self.settings.rules)
        if not counted and identity.token_of(environ) is not None:
            self.refuse_many(self.attempts.wait(address, QUESTION))
        try:
            caller = identity.known(environ, self.settings.rules, self.tokens)
            if self.tokens.problem:
                self.tell_once(f"{self.tokens.path} {self.tokens.problem}")
            return caller
        except identity.WrongToken:
            self.attempts.punish(address, GUESS - counted)
            raise Refusal(401, WRONG_TOKEN, LOGIN) from None

    def count(self, address: str, cost: int) -> None:
        """Refuse those who ask too often."""
        self.refuse_many(self.attempts.count(address, cost))

    def refuse_many(self, seconds: int) -> None:
        """Refuse, if there is something to wait for."""
        if seconds:
            message = f"too many requests from your address: try again in {seconds} s"
            raise Refusal(429, message, ("Retry-After", str(seconds)))

    def without_folders(self, sentence: str) -> str:
        """For people elsewhere, whom the folders of this machine do not concern."""
        return formatting.hide_paths(sentence, {str(getattr(self.settings, name)): name for name in ("data", "state")})

    def tell_once(self, sentence: str) -> None:
        """Tell it the first time; nobody who asks can fill a log."""
        if sentence not in self.told and len(self.told) < MOST_TOLD:
            self.told.add(sentence)
            self.tell(sentence)


def sent(
    environ: WSGIEnvironment,
    start_response: StartResponse,
    status: int,
    content: Mapping[str, Any],
    *headers: tuple[str, str],
) -> list[bytes]:
    """An answer in JSON."""
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    line = f"{status} {HTTPStatus(status).phrase}"
    start_response(line, [*HEADERS, ("Content-Length", str(len(body))), *headers])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


# For CGI, and for WSGI servers


def settings_of(environment: Mapping[str, str]) -> Settings:
    """The settings in force in this environment; `Wrong` says what is wrong with them."""
    file = conf_file.load(None, environment)
    given = settings.resolve({}, environment, file.values)
    return settings.settings_of(given, lambda name: conf_file.zone_of(name, environment), conf_file.place_of)


class Application:
    """The same, with the settings of this process, which are read when the first request comes."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self.booking: Booking | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One answer; settings that are wrong may be mended meanwhile."""
        if self.booking is None:
            try:
                self.booking = Booking(settings_of(os.environ))
            except settings.Wrong as why:
                to_stderr(str(why))
                return sent(environ, start_response, 503, {"error": NOT_SET_UP}, SOON)
        return self.booking(environ, start_response)


application = Application()


def cgi() -> None:
    """One request, as scripts/book.cgi gets it.

    Its body is read before anything is answered, also one that is refused: a server whose words nobody reads may take
    the end of the program for a failure, and cut our answer short.
    """
    from wsgiref.handlers import BaseCGIHandler, read_environ  # noqa: PLC0415 # no other needs it

    environ, stdin = read_environ(), sys.stdin.buffer
    told = environ.get("CONTENT_LENGTH", "")
    length = int(told) if told.isascii() and told.isdecimal() and len(told) < 10 else 0
    body = stdin.read(min(length, csrf.MOST_BYTES))
    left = min(length, MOST_DISCARDED) - len(body)
    while left > 0 and (more := stdin.read(min(left, 65536))):
        left -= len(more)
    BaseCGIHandler(io.BytesIO(body), sys.stdout.buffer, sys.stderr, environ, False, True).run(application)
