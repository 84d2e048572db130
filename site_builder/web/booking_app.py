"""The booking service over HTTP, as a WSGI application."""

from __future__ import annotations

import io
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from threading import Semaphore
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit
from wsgiref.handlers import BaseCGIHandler, read_environ

import orjson

from site_builder.bookings import json_edit, policy
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.request import UnclearRequestError
from site_builder.bookings.service import BookingService
from site_builder.bookings.store import BookingsUnreadableError
from site_builder.bookings.tokens import TokenStore, UnknownTokenError
from site_builder.config.settings import Settings, SettingsError, load_settings
from site_builder.core import formatting
from site_builder.core.faults import limit_fault_reports
from site_builder.core.locks import LockedFileError
from site_builder.watches import board_requests
from site_builder.web import identity
from site_builder.web.identity import WebCaller, parse_ip_address
from site_builder.web.rate_limit import LISTS_FILE, RateLimiter
from site_builder.web.static_files import SECURITY_HEADERS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

MAX_REQUEST_BYTES = 16 << 10
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
# Nobody can register a name with such an end, or without a dot, to lead a browser to us from a page elsewhere.
LOCAL_SUFFIXES = (".localhost", ".local", ".lan", ".internal", ".home.arpa", ".localdomain", ".test")
RESPONSE_HEADERS = (*SECURITY_HEADERS, ("Content-Type", "application/json"), ("Cache-Control", "no-store"))
AUTHENTICATE_HEADER = ("WWW-Authenticate", 'Bearer realm="gpuboard"')
RETRY_AFTER_HEADER = ("Retry-After", "10")
# A CGI program reads and discards up to this many bytes of a body that is too long.
MAX_DISCARDED_BYTES = 1 << 20
# Costs, of the 60 that an address has in a minute: 30 bookings, 60 checks, or 10 wrong tokens.
BOOKING_COST, CHECK_COST, WRONG_TOKEN_COST = 2, 1, 6
# Lists are counted separately: a caller who has booked too often may still list, and vice versa.
LIST_COST = 0.25
MAX_QUERY_FIELDS = 20
UNKNOWN_CALLER_MESSAGE = (
    "you are not signed in: log in to the board, or use a token, which the admin creates with `gpuboard token NAME`"
)
WRONG_TOKEN_MESSAGE = "unknown or revoked token: ask the admin for a new one"  # noqa: S105 # a sentence
TOO_MANY_FIELDS_MESSAGE = "too many fields in the address: only ?host=NAME and ?person=NAME are allowed"
BAD_SETTINGS_MESSAGE = "the booking service has wrong settings: the server's log has the reason for the admin"
# Of the server's 64 threads, the number that handle bookings at once, and that wait (a class that books at the same
# moment); the others are left for the board.
MAX_ACTIVE, MAX_WAITING = 4, 44
QUEUE_TIMEOUT_S = 15.0
OVERLOADED = {"error": "the booking service is busy: try again in a moment"}


class BookingHttpError(Exception):
    """A refused request: the status, and the reason in one sentence."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def check_request_origin(environ: WSGIEnvironment, settings: Settings) -> None:
    """Refuse what a form or a script of another page could send without the user's will.

    X-Forwarded-Host is never read: a proxy that does not set it passes on what a page elsewhere wrote there.
    """
    if not environ.get("HTTP_X_GPUBOARD"):
        raise BookingHttpError(403, "the header X-Gpuboard is missing: send X-Gpuboard: 1")
    content_type = str(environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise BookingHttpError(415, "the request must be JSON: send Content-Type: application/json")
    fetch_site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    if fetch_site is not None and fetch_site != "same-origin":
        raise BookingHttpError(403, "this request comes from another page: book on the board itself")
    if fetch_site is None and origin is not None:
        scheme, _, place = str(origin).lower().partition("://")
        host, port_suffix = str(environ.get("HTTP_HOST", "")).lower(), DEFAULT_PORTS.get(scheme)
        # Debian's nginx removes the port from Host, and sends its own
        host_with_port = f"{host}:{environ.get('SERVER_PORT') or '?'}"
        names = {host.removesuffix(port_suffix or ""), host_with_port}
        if not (port_suffix and place and host) or place.removesuffix(port_suffix) not in names:
            problem = "this request comes from another page, or a proxy hides the Host of the board"
            raise BookingHttpError(403, f"{problem}: book on the board")
    if settings.url:
        board_names = {urlsplit(settings.url).hostname, *settings.server_names}
        if parse_booking_host_header(environ) not in board_names:
            raise BookingHttpError(403, f"the board is at {settings.url}: book there")


def parse_booking_host_header(environ: WSGIEnvironment) -> str:
    """Return the Host without its port, and without the brackets of an IPv6 address."""
    try:
        return urlsplit(f"//{str(environ.get('HTTP_HOST', '')).lower()}").hostname or ""
    except ValueError:
        return ""


def read_booking_request_body(environ: WSGIEnvironment) -> bytes:
    """Read the body, if its length was given and is not too much."""
    length_text = str(environ.get("CONTENT_LENGTH", "")).strip()
    if not length_text:
        raise BookingHttpError(411, "the request has no length: send Content-Length")
    if not (length_text.isascii() and length_text.isdecimal()):
        raise BookingHttpError(400, "the Content-Length is not a number")
    if len(length_text) > 9 or int(length_text) > MAX_REQUEST_BYTES:
        raise BookingHttpError(413, f"the request is longer than {MAX_REQUEST_BYTES} bytes")
    body: bytes = environ["wsgi.input"].read(int(length_text))
    if len(body) < int(length_text):
        raise BookingHttpError(400, "the request was cut off")
    return body


def write_booking_app_stderr(message: str) -> None:
    """Write a line to where a web server keeps what its programs report."""
    sys.stderr.write(f"gpuboard: {message}\n")
    sys.stderr.flush()


def refuse_if_limited(wait_s: int) -> None:
    if wait_s:
        message = f"too many requests from your address: try again in {wait_s} s"
        raise BookingHttpError(429, message, ("Retry-After", str(wait_s)))


class BookingApplication:
    def __init__(
        self,
        settings: Settings,
        report: Callable[[str], None] = write_booking_app_stderr,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Serve these bookings; `report` gets a sentence about each fault that an admin must mend."""
        self.settings = settings
        self.report_once = limit_fault_reports(report)
        self.service = BookingService(settings, clock)
        self.tokens = TokenStore(settings.state)
        self.request_limiter = RateLimiter(settings.state, clock)
        self.list_limiter = RateLimiter(settings.state, clock, LISTS_FILE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return send_booking_json(environ, start_response, 200, self.build_response(environ))
        except BookingHttpError as error:
            return send_booking_json(environ, start_response, error.status, {"error": str(error)}, *error.headers)
        except Exception as error:  # the caller never sees where it happened
            self.report_once(f"a booking failed: {type(error).__name__}: {error}; this is a bug")
            message = "internal error: the server's log has the reason for the admin"
            return send_booking_json(environ, start_response, 500, {"error": message})

    def build_response(self, environ: WSGIEnvironment) -> dict[str, Any]:
        method = environ["REQUEST_METHOD"]
        if method not in ("GET", "POST"):
            raise BookingHttpError(405, "only GET and POST are allowed here", ("Allow", "GET, POST"))
        try:
            return self.handle_get(environ) if method == "GET" else self.handle_post(environ)
        except UnclearRequestError as error:
            raise BookingHttpError(400, str(error)) from None
        except (policy.BookingNameError, BookingForbiddenError) as error:
            raise BookingHttpError(403, str(error)) from None
        except (BookingRefusedError, json_edit.EntryPlacementError) as error:
            raise BookingHttpError(409, str(error)) from None
        except (BookingsUnreadableError, LockedFileError) as error:
            self.report_once(str(error))
            # the folders of this machine do not concern people elsewhere
            folders = {str(self.settings.data): "data", str(self.settings.state): "state"}
            raise BookingHttpError(503, formatting.hide_paths(str(error), folders), RETRY_AFTER_HEADER) from None

    def handle_get(self, environ: WSGIEnvironment) -> dict[str, Any]:
        """List all bookings, and who asks."""
        booking_policy = self.settings.booking_policy
        address = identity.find_client_address(environ, booking_policy)
        refuse_if_limited(self.list_limiter.count_request(address, LIST_COST))
        caller = self.identify_caller(environ, address)
        try:
            query_string = str(environ.get("QUERY_STRING", ""))
            query = parse_qs(query_string, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        except ValueError:
            raise BookingHttpError(400, TOO_MANY_FIELDS_MESSAGE) from None
        now, user = self.service.now(), caller.user._replace(zone=identity.find_viewer_zone(environ))
        listed = board_requests.answer_board_list_request(
            self.service, user, query.get("host", [""])[0] or None, query.get("person", [None])[0]
        )
        return {
            "who": listed["who"],
            "how": caller.auth_method,
            "admin": listed["admin"],
            "zone": getattr(now.zone, "key", None) or now.local.tzname(),
            "viewer_zone": user.zone is not None,
            "for_others": booking_policy.can_book_for_others or user.is_admin or caller.auth_method == "open",
            "bookings": listed["bookings"],
            "watches": listed["watches"],
        }

    def handle_post(self, environ: WSGIEnvironment) -> dict[str, Any]:
        """Make, change or release a booking, or a watch."""
        check_request_origin(environ, self.settings)
        body = read_booking_request_body(environ)
        address = identity.find_client_address(environ, self.settings.booking_policy)
        problem = "the request must be a JSON object"
        try:
            request = orjson.loads(body)  # it takes no more than some 1,000 nested lists
        except orjson.JSONDecodeError:
            request, problem = None, "the request is not JSON"
        is_check = isinstance(request, dict) and request.get("check") is True
        cost = CHECK_COST if is_check else BOOKING_COST
        refuse_if_limited(self.request_limiter.count_request(address, cost))
        if not isinstance(request, dict):
            raise BookingHttpError(400, problem)
        caller = self.identify_caller(environ, address, cost)
        user = caller.user
        if caller.auth_method is None:
            raise BookingHttpError(401, UNKNOWN_CALLER_MESSAGE, AUTHENTICATE_HEADER)
        if caller.auth_method == "open":
            # by a name that the board does not have, a page elsewhere could have led a browser here
            name = parse_booking_host_header(environ)
            url = urlsplit(self.settings.url).hostname if self.settings.url else None
            own = {socket.gethostname().lower(), url, *self.settings.server_names}
            if not (name in own or parse_ip_address(name) or "." not in name or name.endswith(LOCAL_SUFFIXES)):
                message = "the board does not know this address as its own: the admin must set GPUBOARD_URL to it"
                raise BookingHttpError(403, message)
            user = identity.identify_open_user(request)
            request.pop("as", None)
            if not user.name:
                raise BookingHttpError(400, "no name: give `name`, or `as` for a request that books nothing")
        user = user._replace(zone=identity.find_viewer_zone(environ))
        return board_requests.handle_board_request(self.service, request, user)

    def identify_caller(self, environ: WSGIEnvironment, address: str, counted_cost: int = 0) -> WebCaller:
        """Identify the caller; a wrong token counts as much as several requests."""
        if not counted_cost and identity.parse_bearer_token(environ) is not None:
            refuse_if_limited(self.request_limiter.find_wait_s(address, CHECK_COST))
        try:
            caller = identity.identify_caller(environ, self.settings.booking_policy, self.tokens)
            if self.tokens.problem:
                self.report_once(f"{self.tokens.path} {self.tokens.problem}")
            return caller
        except UnknownTokenError:
            self.request_limiter.penalize(address, WRONG_TOKEN_COST - counted_cost)
            raise BookingHttpError(401, WRONG_TOKEN_MESSAGE, AUTHENTICATE_HEADER) from None


def send_booking_json(
    environ: WSGIEnvironment,
    start_response: StartResponse,
    status: int,
    content: Mapping[str, Any],
    *headers: tuple[str, str],
) -> list[bytes]:
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    status_line = f"{status} {HTTPStatus(status).phrase}"
    start_response(status_line, [*RESPONSE_HEADERS, ("Content-Length", str(len(body))), *headers])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


# For CGI and WSGI servers


@lru_cache(maxsize=1)
def load_booking_application() -> BookingApplication:
    """Build the application with the settings of this process; raises SettingsError."""
    return BookingApplication(load_settings(None, {}, os.environ).settings)


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Handle a request with the settings of this process; wrong ones are read again, since they may be mended."""
    try:
        return load_booking_application()(environ, start_response)
    except SettingsError as error:
        write_booking_app_stderr(str(error))
        return send_booking_json(environ, start_response, 503, {"error": BAD_SETTINGS_MESSAGE}, RETRY_AFTER_HEADER)


def run_cgi() -> None:
    """Handle one request, as scripts/book.cgi gets it.

    Its body is read before anything is answered, also one that is refused: a server whose words nobody reads may take
    the end of the program for a failure, and cut our answer short.
    """
    environ, stdin = read_environ(), sys.stdin.buffer
    length_text = environ.get("CONTENT_LENGTH", "")
    length = int(length_text) if length_text.isascii() and length_text.isdecimal() and len(length_text) < 10 else 0
    body = stdin.read(min(length, MAX_REQUEST_BYTES))
    discard_bytes = min(length, MAX_DISCARDED_BYTES) - len(body)
    while discard_bytes > 0 and (chunk := stdin.read(min(discard_bytes, 65536))):
        discard_bytes -= len(chunk)
    BaseCGIHandler(io.BytesIO(body), sys.stdout.buffer, sys.stderr, environ, False, True).run(application)


class BookingConcurrencyLimit:
    """A WSGI application that lets few requests into another at a time."""

    def __init__(self, application: WSGIApplication, timeout_s: float = QUEUE_TIMEOUT_S) -> None:
        self.application = application
        self.timeout_s = timeout_s
        self.admitted = Semaphore(MAX_ACTIVE + MAX_WAITING)
        self.active = Semaphore(MAX_ACTIVE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if self.admitted.acquire(blocking=False):
            try:
                if self.active.acquire(timeout=self.timeout_s):
                    try:
                        return self.application(environ, start_response)
                    finally:
                        self.active.release()
            finally:
                self.admitted.release()
        return send_booking_json(environ, start_response, 503, OVERLOADED, RETRY_AFTER_HEADER)
