"""Send HTTP requests to a board on another machine, and to no other server."""

from __future__ import annotations

import base64
import email.utils
import http.client
import json
import socket
import ssl
import time
import urllib.error
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from site_builder.core.model import FleetUnavailableError
from site_builder.core.terminal_text import clean_text

REQUEST_TIMEOUT_S = 10
# For the whole response, however slowly it comes.
RESPONSE_TIMEOUT_S = 60
# status.json of a thousand hosts has some 10 MB.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 65536
# Clocks that differ by less are equal: a date has whole seconds, and a response takes some time.
CLOCK_TOLERANCE_S = 5
CHECK_URL_HINT = "check GPUBOARD_URL"


class OutcomeUnknownError(FleetUnavailableError):
    """No response came, and the request may have been carried out all the same."""


class BoardResponseError(FleetUnavailableError):
    """A response other than 200, in one sentence; `message` is what the board says about it, if it is a board."""

    def __init__(self, sentence: str, status: int, message: str, is_login_required: bool) -> None:
        super().__init__(sentence)
        self.status, self.message, self.is_login_required = status, message, is_login_required


class ForeignRedirectError(Exception):
    """The board redirects to another server."""


class BoardResponse(NamedTuple):
    """A response, and by how many seconds the server's clock is ahead of ours; `content` may be the beginning only."""

    status: int
    headers: Message
    content: bytes
    clock_ahead_s: float = 0.0


def send_board_request(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, login: str | None = None
) -> BoardResponse:
    """Send a request and return the response; `login` is `name:password` for a board that asks for them."""
    own_headers = {
        "Accept": "application/json",
        "Accept-Encoding": "gzip",
        "Cache-Control": "no-cache",  # the board behind a cache may be long gone
    }
    with explain_board_connection_errors(url, ", and nothing was sent there", has_body=bool(body)):
        try:
            with open_board_url(url, body, {**own_headers, **(headers or {})}, login) as response:
                return build_board_response(response, read_response(response))
        except urllib.error.HTTPError as error:
            raise build_board_response_error(error, url, bool(login)) from None


def probe_board_url(url: str, max_bytes: int | None = None, login: str | None = None) -> BoardResponse:
    """Get a URL: all of it, compressed if possible, or its first bytes."""
    with explain_board_connection_errors(url):
        try:
            response = open_board_url(url, None, {} if max_bytes else {"Accept-Encoding": "gzip"}, login)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return build_board_response(response, response.read(max_bytes) if max_bytes else read_response(response))


def open_board_url(url: str, body: bytes | None, headers: Mapping[str, str], login: str | None) -> Any:  # noqa: ANN401 # urllib has no type for it
    all_headers = {"User-Agent": "gpuboard", **headers}
    if login:
        encoded_login = base64.b64encode(login.encode("utf-8", "surrogateescape")).decode()
        all_headers.setdefault("Authorization", f"Basic {encoded_login}")
    request = Request(url, body, all_headers)  # noqa: S310 # the setting takes http and https
    return build_opener(SameOriginRedirectHandler).open(request, timeout=REQUEST_TIMEOUT_S)


class SameOriginRedirectHandler(HTTPRedirectHandler):
    """Follow redirects within the same server only, and none for a booking."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        if req.data is not None or parse_board_origin(newurl) != parse_board_origin(req.full_url):
            fp.close()  # urllib closes only what it follows
            raise ForeignRedirectError(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def build_board_response(response: Any, content: bytes) -> BoardResponse:  # noqa: ANN401 # urllib has no type for it
    """Build a response; its Date, and its Age in a cache, say by how much the server's clock is ahead of ours."""
    headers = response.headers
    try:
        ahead_s = email.utils.parsedate_to_datetime(headers.get("Date") or "").timestamp() - time.time()
        ahead_s += int(headers.get("Age") or 0)
    except (TypeError, ValueError, IndexError, OverflowError):
        ahead_s = 0.0
    return BoardResponse(response.status, headers, content, ahead_s if abs(ahead_s) > CLOCK_TOLERANCE_S else 0.0)


def parse_board_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def read_response(response: Any) -> bytes:  # noqa: ANN401 # urllib has no type for it
    """Read a whole response, up to limits of size and time."""
    decompressor = zlib.decompressobj(31) if response.headers.get("Content-Encoding") == "gzip" else None
    deadline = time.monotonic() + RESPONSE_TIMEOUT_S
    content = bytearray()
    while chunk := response.read1(CHUNK_BYTES):
        content += decompressor.decompress(chunk, MAX_RESPONSE_BYTES + 1) if decompressor else chunk
        if len(content) > MAX_RESPONSE_BYTES:
            raise OSError(f"the answer is larger than {MAX_RESPONSE_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(content)


def describe_unexpected_board_response(url: str) -> str:
    return f"{url} did not answer like a gpuboard: {CHECK_URL_HINT}"


@contextmanager
def explain_board_connection_errors(url: str, redirect_note: str = "", has_body: bool = False) -> Iterator[None]:
    """Raise FleetUnavailableError if no response comes: why, and what to do."""
    server = urlsplit(url).netloc
    try:
        yield
    except ForeignRedirectError as redirect:
        target = clean_text(str(redirect))[:200]
        raise FleetUnavailableError(f"{url} redirects to {target}{redirect_note}: {CHECK_URL_HINT}") from None
    except (OSError, http.client.HTTPException, zlib.error) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        flaw = getattr(cause, "verify_message", "")
        sentences: tuple[tuple[Any, str], ...] = (
            (ssl.SSLCertVerificationError, f"the certificate of {server} is not trusted: {flaw}; nothing was sent"),
            (ssl.SSLError, f"{server} does not speak TLS: should it be http://?"),
            (socket.timeout, f"{server} did not answer within {REQUEST_TIMEOUT_S} s: try again later"),
            (TimeoutError, f"{server} did not answer in time: try again later"),
            (socket.gaierror, f"{server} is not known on this network: {CHECK_URL_HINT}"),
            (ConnectionRefusedError, f"nothing answers at {server}: is the board being served there?"),
            ((http.client.HTTPException, zlib.error), describe_unexpected_board_response(url)),
            (object, f"{server} cannot be reached: {getattr(cause, 'strerror', None) or clean_text(str(cause))[:200]}"),
        )
        reason = next(sentence for error_type, sentence in sentences if isinstance(cause, error_type))
        if has_body and not isinstance(error, urllib.error.URLError):  # urllib wraps what fails before it is sent
            raise OutcomeUnknownError(f"{reason}; `gpuboard bookings` shows whether it was done") from None
        raise FleetUnavailableError(reason) from None


def build_board_response_error(error: urllib.error.HTTPError, url: str, has_login: bool) -> BoardResponseError:
    """Say what a response other than 200 means."""
    reply, server = None, urlsplit(url).netloc
    with error, suppress(OSError, ValueError, RecursionError, http.client.HTTPException, zlib.error):
        reply = json.loads(read_response(error))
    own_words = reply.get("error") if isinstance(reply, dict) else None
    message = " ".join(clean_text(own_words).split())[:1000] if isinstance(own_words, str) else ""
    asks_basic = error.headers.get("WWW-Authenticate", "").lower().startswith("basic")
    is_login_required = error.code == 401 and asks_basic
    if is_login_required and has_login:
        sentence = f"{server} rejects the name and password in GPUBOARD_LOGIN"
    elif is_login_required:
        hint = "set GPUBOARD_LOGIN=name:password, in a file that only you can read"
        sentence = f"{server} asks for a name and password: {hint}"
    elif error.code == 421:
        sentence = f"the board does not answer as {server}: its admin can add that name to GPUBOARD_SERVER_NAMES"
    elif error.code == 404:
        sentence = f"there is nothing at {url}: {CHECK_URL_HINT}"
    else:
        reason = clean_text(str(error.reason))[:80]
        sentence = message or f"{url} answered {error.code} {reason}: try again later"
    return BoardResponseError(sentence, error.code, message, is_login_required)
