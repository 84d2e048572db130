"""A board on another machine, over HTTP: what is asked goes to that board and nowhere else."""

from __future__ import annotations

import base64
import email.utils
import http.client
import ipaddress
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from email.message import Message
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from site_builder.core.terminal_text import clean_text

REQUEST_TIMEOUT_S = 10
# All of an answer, however slowly it comes.
RESPONSE_TIMEOUT_S = 60
# status.json of a thousand hosts has some 10 MB.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 65536
# Clocks that differ by less are one: a date has no parts of a second, and an answer takes some time.
CLOCK_TOLERANCE_S = 5
CHECK_URL_HINT = "check GPUBOARD_URL"


class BoardResponseError(Exception):
    """An answer other than 200: its number, and what the board says of it, if it is a board.

    `asks` is whether it asks for a name and a password, and `login` whether some were sent.
    """

    def __init__(self, status: int, said: str, reason: str, asks: bool = False, login: bool = False) -> None:
        """As the server tells them."""
        super().__init__(said)
        self.status = status
        self.message = said
        self.reason = reason
        self.is_login_required = asks
        self.was_login_sent = login


class ForeignRedirectError(Exception):
    """The board sends us to another place."""


class BoardResponse(NamedTuple):
    """A body, and by how many seconds the clock of the server is ahead of ours."""

    content: bytes
    clock_ahead_s: float


class RawResponse(NamedTuple):
    """An answer as it came, whatever its number: its headers, and of its body as much as was asked for."""

    status: int
    headers: Message
    content: bytes
    clock_ahead_s: float = 0.0


class SameOriginRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows a redirect within the board alone, and never one of a booking."""

    def redirect_request(  # urllib's own form
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request for the new place, if it is one of the same board."""
        if req.data is not None or parse_origin(newurl) != parse_origin(req.full_url):
            raise ForeignRedirectError(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def send_board_request(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, login: str | None = None
) -> BoardResponse:
    """One request, and its answer; `login` is `name:password`, for a board that asks for them."""
    ours = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "gpuboard"}
    ours["Cache-Control"] = "no-cache"  # of a cache between us, the board may be long gone
    ours.update(build_auth_header(login))
    request = urllib.request.Request(url, body, {**ours, **(headers or {})})  # noqa: S310 # the setting takes http and https
    try:
        with urllib.request.build_opener(SameOriginRedirectHandler).open(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return BoardResponse(
                read_response(answer), measure_clock_ahead(answer.headers.get("Date"), answer.headers.get("Age"))
            )
    except urllib.error.HTTPError as error:
        with error:
            asks = error.headers.get("WWW-Authenticate", "").lower().startswith("basic")
            told = error.code, parse_error_message(error), clean_text(str(error.reason))[:80]
            raise BoardResponseError(*told, error.code == 401 and asks, bool(login)) from None
    except ForeignRedirectError as place:
        message = f"{url} leads to {clean_text(str(place))[:200]}, and nothing was sent there: {CHECK_URL_HINT}"
        raise FleetUnavailableError(message) from None
    except (OSError, http.client.HTTPException, zlib.error) as error:
        if body and is_outcome_unknown(error):
            message = f"{describe_connection_error(error, url)}; `gpuboard bookings` tells whether it was done"
            raise OutcomeUnknownError(message) from None
        raise FleetUnavailableError(describe_connection_error(error, url)) from None


def build_auth_header(login: str | None) -> dict[str, str]:
    """The header that says who asks, of `name:password`."""
    if not login:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(login.encode('utf-8', 'surrogateescape')).decode()}"}


def probe_url(url: str, most: int | None = None, login: str | None = None) -> RawResponse:
    """One look at an address: all of it, compressed where the server can, or the first bytes of it."""
    headers = {"User-Agent": "gpuboard", **({} if most else {"Accept-Encoding": "gzip"}), **build_auth_header(login)}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 # the same
    try:
        try:
            answer = urllib.request.build_opener(SameOriginRedirectHandler).open(request, timeout=REQUEST_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            told = answer.headers
            content = answer.read(most) if most else read_response(answer)
            return RawResponse(answer.status, told, content, measure_clock_ahead(told.get("Date"), told.get("Age")))
    except ForeignRedirectError as place:
        message = f"{url} leads to {clean_text(str(place))[:200]}: {CHECK_URL_HINT}"
        raise FleetUnavailableError(message) from None
    except (OSError, http.client.HTTPException, zlib.error) as error:
        raise FleetUnavailableError(describe_connection_error(error, url)) from None


def measure_clock_ahead(told: str | None, age: str | None) -> float:
    """By how much a server's clock is ahead of ours, by the date that it tells, and how long a cache kept that."""
    try:
        off = email.utils.parsedate_to_datetime(told or "").timestamp() - time.time()
        off += int(age or 0)
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    return off if abs(off) > CLOCK_TOLERANCE_S else 0.0


def parse_origin(url: str) -> tuple[str, str | None, int | None]:
    """Which server an address is of."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def is_cleartext_url(url: str) -> bool:
    """Whether others on the network could read what is sent there."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    if parts.scheme == "https" or name == "localhost":
        return False
    try:
        return not ipaddress.ip_address(name).is_loopback
    except ValueError:
        return True


def read_response(answer: Any) -> bytes:  # noqa: ANN401 # urllib has no type for it
    """All of an answer, as long as it is not too long."""
    unpack = zlib.decompressobj(31) if answer.headers.get("Content-Encoding") == "gzip" else None
    end = time.monotonic() + RESPONSE_TIMEOUT_S
    found = bytearray()
    while chunk := answer.read1(CHUNK_BYTES):
        found += unpack.decompress(chunk, MAX_RESPONSE_BYTES + 1) if unpack else chunk
        if len(found) > MAX_RESPONSE_BYTES:
            message = f"the answer is longer than the {MAX_RESPONSE_BYTES >> 20} MiB that are read"
            raise OSError(message)
        if time.monotonic() > end:
            raise TimeoutError
    return bytes(found)


def describe_unexpected_response(url: str) -> str:
    """What is said of an answer that no gpuboard gives."""
    return f"{url} did not answer as a gpuboard does: {CHECK_URL_HINT}"


def parse_error_message(error: urllib.error.HTTPError) -> str:
    """What the board says of its refusal, if it is a board."""
    try:
        found = json.loads(read_response(error))
    except (OSError, ValueError, RecursionError, http.client.HTTPException, zlib.error):
        return ""
    said = found.get("error") if isinstance(found, dict) else None
    return " ".join(clean_text(said).split())[:1000] if isinstance(said, str) else ""


def is_outcome_unknown(error: Exception) -> bool:
    """Whether the board may have done what it was asked for, though no answer came: urllib wraps what fails before."""
    return not isinstance(error, urllib.error.URLError)


def describe_connection_error(error: Exception, url: str) -> str:
    """Why nothing came back, and what to do."""
    why = error.reason if isinstance(error, urllib.error.URLError) else error
    where = urlsplit(url).netloc
    if isinstance(why, ssl.SSLCertVerificationError):
        return f"the certificate of {where} cannot be trusted: {why.verify_message}; nothing was sent"
    known: tuple[tuple[type[BaseException], str], ...] = (
        (ssl.SSLError, f"{where} speaks no TLS that we understand: is it http://?"),
        (socket.timeout, f"{where} did not answer within {REQUEST_TIMEOUT_S} s: try again later"),
        (TimeoutError, f"{where} did not answer in time: try again later"),
        (socket.gaierror, f"{where} is not known on this network: {CHECK_URL_HINT}"),
        (ConnectionRefusedError, f"nothing answers at {where}: is the board being served there?"),
        (http.client.HTTPException, describe_unexpected_response(url)),
        (zlib.error, describe_unexpected_response(url)),
    )
    for kind, sentence_of in known:
        if isinstance(why, kind):
            return sentence_of
    return f"{where} cannot be reached: {getattr(why, 'strerror', None) or clean_text(str(why))[:200]}"


def describe_response_error(why: BoardResponseError, url: str) -> str:
    """What an answer other than 200 means, where nothing more is known of it."""
    if why.is_login_required:
        return describe_login_error(why, url)
    if why.status == 421:
        where = urlsplit(url).netloc
        return f"the board does not answer as {where}: its admin can add that name to GPUBOARD_SERVER_NAMES"
    if why.status == 404:
        return f"there is nothing at {url}: {CHECK_URL_HINT}"
    return why.message or f"{url} answered {why.status} {why.reason}: try again later"


def describe_login_error(why: BoardResponseError, url: str) -> str:
    """What to do about a board behind a password."""
    where = urlsplit(url).netloc
    if why.was_login_sent:
        return f"{where} does not take the name and the password in GPUBOARD_LOGIN"
    return f"{where} asks for a name and a password: set GPUBOARD_LOGIN=name:password, in a file that only you can read"


class FleetUnavailableError(Exception):
    """Why there is no fleet to be had, or its board does not answer as it should, in one sentence."""


class OutcomeUnknownError(FleetUnavailableError):
    """No answer came to what was asked for, and it may have been done all the same."""
