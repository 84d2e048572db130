"""The booking service over HTTP, as a WSGI application."""

from __future__ import annotations

import io
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from threading import Semaphore
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import orjson

from site_builder.bookings import api, json_edit, policy
from site_builder.bookings.gpu_selection import UnclearRequestError
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.service import BookingService, BookingsUnreadableError
from site_builder.bookings.tokens import TokenStore
from site_builder.config import conf_file, settings
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.locks import StorageError
from site_builder.web import identity
from site_builder.web.http_headers import SECURITY_HEADERS
from site_builder.web.identity import WebCaller, parse_ip_address
from site_builder.web.rate_limit import LISTS_FILE, RateLimiter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

MAX_REQUEST_BYTES = 16 << 10
JSON_CONTENT_TYPE = "application/json"
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
# Nobody can buy a name that ends so, or has no dot: no such name leads a browser to us from a page elsewhere.
LOCAL_SUFFIXES = (".localhost", ".local", ".lan", ".internal", ".home.arpa", ".localdomain", ".test")


class HttpError(Exception):
    """A request that is not answered: the status, and why in one sentence."""

    def __init__(self, status: int, sentence: str, *headers: tuple[str, str]) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers


def check_request_origin(environ: WSGIEnvironment, settings: Settings) -> None:
    """Refuse what a form or a script of another page could send without being asked."""
    if not environ.get("HTTP_X_GPUBOARD"):
        raise HttpError(403, "the header X-Gpuboard is missing: send X-Gpuboard: 1")
    kind = str(environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()
    if kind != JSON_CONTENT_TYPE:
        raise HttpError(415, f"the request must be JSON: send Content-Type: {JSON_CONTENT_TYPE}")
    here = read_host_header(environ)
    site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    if site is not None and site != "same-origin":
        raise HttpError(403, "this comes from another page than the board: book on the board itself")
    if (
        site is None
        and origin is not None
        and not is_same_origin(str(origin), here, str(environ.get("SERVER_PORT", "")))
    ):
        raise HttpError(
            403, "this comes from another page than the board, or a proxy before it hides its Host: book on the board"
        )
    if settings.url and parse_host_name(here) not in {urlsplit(settings.url).hostname, *settings.server_names}:
        raise HttpError(403, f"the board is at {settings.url}: book there")


def check_host_header(environ: WSGIEnvironment, settings: Settings) -> None:
    """At an open desk, refuse a name by which a page elsewhere could have led a browser here."""
    name = parse_host_name(read_host_header(environ))
    url = urlsplit(settings.url).hostname if settings.url else None
    own = {socket.gethostname().lower(), url, *settings.server_names}
    if not (name in own or parse_ip_address(name) or "." not in name or name.endswith(LOCAL_SUFFIXES)):
        raise HttpError(403, "the board does not know that it has this name: the admin can set GPUBOARD_URL to it")


def read_host_header(environ: WSGIEnvironment) -> str:
    """Return the name and port under which the board was reached, as a browser sees it.

    X-Forwarded-Host is not read: a proxy that does not set it passes on what another page wrote there.
    """
    return str(environ.get("HTTP_HOST", "")).lower()


def parse_host_name(host: str) -> str:
    """Return a host without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_same_origin(origin: str, host: str, port: str) -> bool:
    """Return True if a page of this origin is ours; Debian's nginx removes the port from Host, and sends its own."""
    scheme, _, place = origin.lower().partition("://")
    if scheme not in DEFAULT_PORTS or not place or not host:
        return False
    usual = DEFAULT_PORTS[scheme]
    return strip_suffix(place, usual) in {strip_suffix(host, usual), f"{host}:{port or '?'}"}


def strip_suffix(text: str, end: str) -> str:
    return text[: -len(end)] if text.endswith(end) else text


def read_request_body(environ: WSGIEnvironment) -> bytes:
    """Read the body, if Content-Length allows it."""
    told = str(environ.get("CONTENT_LENGTH", "")).strip()
    if not told:
        raise HttpError(411, "the request does not say how long it is: send Content-Length")
    if not (told.isascii() and told.isdecimal()):
        raise HttpError(400, "the length of the request is no number")
    if len(told) > 9 or int(told) > MAX_REQUEST_BYTES:
        raise HttpError(413, f"the request is longer than {MAX_REQUEST_BYTES} bytes")
    body: bytes = environ["wsgi.input"].read(int(told))
    if len(body) < int(told):
        raise HttpError(400, "the request ended before its end")
    return body


def parse_request_body(body: bytes) -> dict[str, Any]:
    """Parse a JSON object; orjson limits its depth."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise HttpError(400, "the request is no JSON") from None
    if not isinstance(found, dict):
        raise HttpError(400, "the request must be a JSON object")
    return found


RESPONSE_HEADERS = (*SECURITY_HEADERS, ("Content-Type", "application/json"), ("Cache-Control", "no-store"))
ALLOW_HEADER = ("Allow", "GET, POST")
AUTHENTICATE_HEADER = ("WWW-Authenticate", 'Bearer realm="gpuboard"')
RETRY_AFTER_HEADER = ("Retry-After", "10")
MAX_LOGGED_MESSAGES = 100
# Bytes of a body that is too long that a CGI program reads.
MAX_DISCARDED_BYTES = 1 << 20
# An address may spend 60 a minute: so 30 bookings, 60 checks, or 10 wrong tokens.
BOOKING_COST, CHECK_COST, WRONG_TOKEN_COST = 2, 1, 6
# Lists are counted separately: who has booked too often may still list, and the other way round.
LIST_COST = 0.25
MAX_QUERY_FIELDS = 20
UNKNOWN_CALLER_MESSAGE = (
    "the desk does not know who you are: log in to the board, or book with a token, which its admin makes by "
    "`gpuboard token NAME`"
)
WRONG_TOKEN_MESSAGE = "this token is not known here, or not any more; the admin can make a new one"  # noqa: S105 # a sentence
NO_NAME_MESSAGE = "say who you are: `name`, or `as` where you do not book"
TOO_MANY_FIELDS_MESSAGE = "the address asks for too many things: ?host=NAME is all that is understood"
BAD_SETTINGS_MESSAGE = "the desk is not set up right; the admin can read in the server's log what is wrong"
INTERNAL_ERROR_MESSAGE = "something went wrong at the desk; the admin can read what in the server's log"


def write_stderr_line(sentence: str) -> None:
    """Write to stderr, which web servers log."""
    sys.stderr.write(f"gpuboard: {sentence}\n")
    sys.stderr.flush()


class BookingApplication:
    """Answers booking requests, as a WSGI application."""

    def __init__(
        self,
        settings: Settings,
        tell: Callable[[str], None] = write_stderr_line,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Serve these bookings; `tell` gets a sentence about each thing that an admin must fix."""
        self.settings = settings
        self.report = tell
        self.reported: set[str] = set()
        self.service = BookingService(settings, clock)
        self.tokens = TokenStore(settings.state)
        self.request_limiter = RateLimiter(settings.state, clock)
        self.list_limiter = RateLimiter(settings.state, clock, LISTS_FILE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return send_json(environ, start_response, 200, self.build_response(environ))
        except HttpError as why:
            return send_json(environ, start_response, why.status, {"error": str(why)}, *why.headers)
        except Exception as error:  # whoever asks never sees where it happened
            self.report_once(f"a booking failed: {type(error).__name__}: {error}; this should not happen")
            return send_json(environ, start_response, 500, {"error": INTERNAL_ERROR_MESSAGE})

    def build_response(self, environ: WSGIEnvironment) -> dict[str, Any]:
        """Return the content of the response, or raise HttpError."""
        method = environ["REQUEST_METHOD"]
        if method not in ("GET", "POST"):
            raise HttpError(405, "only GET and POST are answered here", ALLOW_HEADER)
        try:
            return self.handle_get(environ) if method == "GET" else self.handle_post(environ)
        except policy.InvalidNameError as why:
            raise HttpError(403, str(why)) from None
        except UnclearRequestError as why:
            raise HttpError(400, str(why)) from None
        except BookingForbiddenError as why:
            raise HttpError(403, str(why)) from None
        except (BookingRefusedError, json_edit.EntryPlacementError) as why:
            raise HttpError(409, str(why)) from None
        except (BookingsUnreadableError, StorageError) as why:
            self.report_once(str(why))
            raise HttpError(503, self.hide_folders(str(why)), RETRY_AFTER_HEADER) from None

    def handle_get(self, environ: WSGIEnvironment) -> dict[str, Any]:
        """List all bookings, and who asks."""
        self.refuse_if_limited(
            self.list_limiter.count_request(
                identity.find_client_address(environ, self.settings.booking_policy), LIST_COST
            )
        )
        caller = self.identify_caller(environ)
        try:
            wanted = parse_qs(str(environ.get("QUERY_STRING", "")), max_num_fields=MAX_QUERY_FIELDS).get("host")
        except ValueError:
            raise HttpError(400, TOO_MANY_FIELDS_MESSAGE) from None
        now, rules = self.service.now(), self.settings.booking_policy
        found = api.list_bookings(self.service, caller.user, wanted[0] if wanted else None)
        about = {
            "who": found["who"],
            "how": caller.auth_method,
            "admin": found["admin"],
            "zone": getattr(now.zone, "key", None) or now.local.tzname(),
            "for_others": rules.can_book_for_others or caller.user.is_admin or caller.auth_method == "open",
        }
        return {**about, "bookings": found["bookings"], "watches": found["watches"]}

    def handle_post(self, environ: WSGIEnvironment) -> dict[str, Any]:
        """Make, change or release a booking."""
        check_request_origin(environ, self.settings)
        body = read_request_body(environ)
        address = identity.find_client_address(environ, self.settings.booking_policy)
        try:
            request = parse_request_body(body)
        except HttpError:
            self.count_request(address, BOOKING_COST)
            raise
        cost = CHECK_COST if request.get("check") is True else BOOKING_COST
        self.count_request(address, cost)
        caller = self.identify_caller(environ, cost)
        someone = caller.user
        if caller.auth_method is None:
            raise HttpError(401, UNKNOWN_CALLER_MESSAGE, AUTHENTICATE_HEADER)
        if caller.auth_method == "open":
            check_host_header(environ, self.settings)
            someone = identity.identify_open_user(request)
            request.pop("as", None)
            if not someone.name:
                raise HttpError(400, NO_NAME_MESSAGE)
        return api.handle_request(self.service, request, someone)

    def identify_caller(self, environ: WSGIEnvironment, counted: int = 0) -> WebCaller:
        """Identify the caller; a wrong token counts as much as several requests."""
        address = identity.find_client_address(environ, self.settings.booking_policy)
        if not counted and identity.parse_bearer_token(environ) is not None:
            self.refuse_if_limited(self.request_limiter.find_wait_s(address, CHECK_COST))
        try:
            caller = identity.identify_caller(environ, self.settings.booking_policy, self.tokens)
            if self.tokens.problem:
                self.report_once(f"{self.tokens.path} {self.tokens.problem}")
            return caller
        except identity.UnknownTokenError:
            self.request_limiter.penalize(address, WRONG_TOKEN_COST - counted)
            raise HttpError(401, WRONG_TOKEN_MESSAGE, AUTHENTICATE_HEADER) from None

    def count_request(self, address: str, cost: int) -> None:
        """Refuse those who ask too often."""
        self.refuse_if_limited(self.request_limiter.count_request(address, cost))

    def refuse_if_limited(self, seconds: int) -> None:
        """Refuse the request if the client has to wait."""
        if seconds:
            message = f"too many requests from your address: try again in {seconds} s"
            raise HttpError(429, message, ("Retry-After", str(seconds)))

    def hide_folders(self, sentence: str) -> str:
        """Replace the folders of this machine by their names."""
        return formatting.hide_paths(sentence, {str(getattr(self.settings, name)): name for name in ("data", "state")})

    def report_once(self, sentence: str) -> None:
        """Report a sentence the first time; no client can fill a log."""
        if sentence not in self.reported and len(self.reported) < MAX_LOGGED_MESSAGES:
            self.reported.add(sentence)
            self.report(sentence)


def send_json(
    environ: WSGIEnvironment,
    start_response: StartResponse,
    status: int,
    content: Mapping[str, Any],
    *headers: tuple[str, str],
) -> list[bytes]:
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    line = f"{status} {HTTPStatus(status).phrase}"
    start_response(line, [*RESPONSE_HEADERS, ("Content-Length", str(len(body))), *headers])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


# For CGI, and for WSGI servers


def load_environment_settings(environment: Mapping[str, str]) -> Settings:
    """Load the settings of this environment, or raise SettingsError."""
    file = conf_file.load_conf_file(None, environment)
    given = settings.resolve_setting_values({}, environment, file.values)
    return settings.build_settings(given, lambda name: conf_file.find_zone(name, environment), conf_file.resolve_folder)


class LazyBookingApplication:
    """A BookingApplication that reads the settings of this process at the first request."""

    def __init__(self) -> None:
        self.application: BookingApplication | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request; wrong settings are read again at the next one."""
        if self.application is None:
            try:
                self.application = BookingApplication(load_environment_settings(os.environ))
            except settings.SettingsError as why:
                write_stderr_line(str(why))
                return send_json(environ, start_response, 503, {"error": BAD_SETTINGS_MESSAGE}, RETRY_AFTER_HEADER)
        return self.application(environ, start_response)


application = LazyBookingApplication()


def run_cgi() -> None:
    """Answer one request, for scripts/book.cgi.

    The body is read before the response, even if it is refused: else a web server may take the end of the program for a
    failure, and cut the response short.
    """
    from wsgiref.handlers import BaseCGIHandler, read_environ  # noqa: PLC0415 # no other needs it

    environ, stdin = read_environ(), sys.stdin.buffer
    told = environ.get("CONTENT_LENGTH", "")
    length = int(told) if told.isascii() and told.isdecimal() and len(told) < 10 else 0
    body = stdin.read(min(length, MAX_REQUEST_BYTES))
    left = min(length, MAX_DISCARDED_BYTES) - len(body)
    while left > 0 and (more := stdin.read(min(left, 65536))):
        left -= len(more)
    BaseCGIHandler(io.BytesIO(body), sys.stdout.buffer, sys.stderr, environ, False, True).run(application)


# Of the server's 64 threads, how many handle bookings at once, and how many more may wait, as when a whole class books
# at the same moment; the others are left for the board.
MAX_ACTIVE, MAX_WAITING = 4, 44
QUEUE_TIMEOUT_S = 15.0
OVERLOADED_MESSAGE = "too many are at the desk just now: try again in a moment"


class ConcurrencyLimit:
    """A WSGI application that lets few requests at a time into another one."""

    def __init__(self, inner: WSGIApplication, patience: float = QUEUE_TIMEOUT_S) -> None:
        """Limit `inner`; a request that waits for longer than `patience` in seconds is refused."""
        self.application = inner
        self.timeout_s = patience
        self.admitted = Semaphore(MAX_ACTIVE + MAX_WAITING)
        self.active = Semaphore(MAX_ACTIVE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not self.admitted.acquire(blocking=False):
            return send_overloaded(environ, start_response)
        try:
            if not self.active.acquire(timeout=self.timeout_s):
                return send_overloaded(environ, start_response)
            try:
                return self.application(environ, start_response)
            finally:
                self.active.release()
        finally:
            self.admitted.release()


def send_overloaded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return send_json(environ, start_response, 503, {"error": OVERLOADED_MESSAGE}, RETRY_AFTER_HEADER)
