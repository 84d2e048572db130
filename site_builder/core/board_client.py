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

from site_builder.client.model import Failed, Unsure
from site_builder.snapshots.envelope import clean

PATIENCE = 10
# All of an answer, however slowly it comes.
LONGEST_WAIT = 60
# status.json of a thousand hosts has some 10 MB.
LIMIT = 64 * 1024 * 1024
CHUNK = 65536
# Clocks that differ by less are one: a date has no parts of a second, and an answer takes some time.
SAME = 5
CHECK = "check GPUBOARD_URL"


class Refused(Exception):
    """An answer other than 200: its number, and what the board says of it, if it is a board.

    `asks` is whether it asks for a name and a password, and `login` whether some were sent.
    """

    def __init__(self, status: int, said: str, reason: str, asks: bool = False, login: bool = False) -> None:
        """As the server tells them."""
        super().__init__(said)
        self.status = status
        self.said = said
        self.reason = reason
        self.asks = asks
        self.login = login


class Elsewhere(Exception):
    """The board sends us to another place."""


class Answer(NamedTuple):
    """A body, and by how many seconds the clock of the server is ahead of ours."""

    content: bytes
    ahead: float


class Seen(NamedTuple):
    """An answer as it came, whatever its number: its headers, and of its body as much as was asked for."""

    status: int
    headers: Message
    content: bytes
    ahead: float = 0.0


class SameBoard(urllib.request.HTTPRedirectHandler):
    """Follows a redirect within the board alone, and never one of a booking."""

    def redirect_request(  # noqa: PLR0913, PLR0917 # urllib's own form
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request for the new place, if it is one of the same board."""
        if req.data is not None or origin(newurl) != origin(req.full_url):
            raise Elsewhere(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def ask(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, login: str | None = None
) -> Answer:
    """One request, and its answer; `login` is `name:password`, for a board that asks for them."""
    ours = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "gpuboard"}
    ours["Cache-Control"] = "no-cache"  # of a cache between us, the board may be long gone
    ours.update(proof(login))
    request = urllib.request.Request(url, body, {**ours, **(headers or {})})  # noqa: S310 # the setting takes http and https
    try:
        with urllib.request.build_opener(SameBoard).open(request, timeout=PATIENCE) as answer:
            return Answer(read(answer), ahead(answer.headers.get("Date"), answer.headers.get("Age")))
    except urllib.error.HTTPError as error:
        with error:
            asks = error.headers.get("WWW-Authenticate", "").lower().startswith("basic")
            told = error.code, sentence(error), clean(str(error.reason))[:80]
            raise Refused(*told, error.code == 401 and asks, bool(login)) from None
    except Elsewhere as place:
        message = f"{url} leads to {clean(str(place))[:200]}, and nothing was sent there: {CHECK}"
        raise Failed(message) from None
    except (OSError, http.client.HTTPException, zlib.error) as error:
        if body and is_unsure(error):
            message = f"{unreachable(error, url)}; `gpuboard bookings` tells whether it was done"
            raise Unsure(message) from None
        raise Failed(unreachable(error, url)) from None


def proof(login: str | None) -> dict[str, str]:
    """The header that says who asks, of `name:password`."""
    if not login:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(login.encode('utf-8', 'surrogateescape')).decode()}"}


def look(url: str, most: int | None = None, login: str | None = None) -> Seen:
    """One look at an address: all of it, compressed where the server can, or the first bytes of it."""
    headers = {"User-Agent": "gpuboard", **({} if most else {"Accept-Encoding": "gzip"}), **proof(login)}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 # the same
    try:
        try:
            answer = urllib.request.build_opener(SameBoard).open(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            told = answer.headers
            content = answer.read(most) if most else read(answer)
            return Seen(answer.status, told, content, ahead(told.get("Date"), told.get("Age")))
    except Elsewhere as place:
        message = f"{url} leads to {clean(str(place))[:200]}: {CHECK}"
        raise Failed(message) from None
    except (OSError, http.client.HTTPException, zlib.error) as error:
        raise Failed(unreachable(error, url)) from None


def ahead(told: str | None, age: str | None) -> float:
    """By how much a server's clock is ahead of ours, by the date that it tells, and how long a cache kept that."""
    try:
        off = email.utils.parsedate_to_datetime(told or "").timestamp() - time.time()
        off += int(age or 0)
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    return off if abs(off) > SAME else 0.0


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Which server an address is of."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def is_in_the_clear(url: str) -> bool:
    """Whether others on the network could read what is sent there."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    if parts.scheme == "https" or name == "localhost":
        return False
    try:
        return not ipaddress.ip_address(name).is_loopback
    except ValueError:
        return True


def read(answer: Any) -> bytes:  # noqa: ANN401 # urllib has no type for it
    """All of an answer, as long as it is not too long."""
    unpack = zlib.decompressobj(31) if answer.headers.get("Content-Encoding") == "gzip" else None
    end = time.monotonic() + LONGEST_WAIT
    found = bytearray()
    while chunk := answer.read1(CHUNK):
        found += unpack.decompress(chunk, LIMIT + 1) if unpack else chunk
        if len(found) > LIMIT:
            message = f"the answer is longer than the {LIMIT >> 20} MiB that are read"
            raise OSError(message)
        if time.monotonic() > end:
            raise TimeoutError
    return bytes(found)


def odd(url: str) -> str:
    """What is said of an answer that no gpuboard gives."""
    return f"{url} did not answer as a gpuboard does: {CHECK}"


def sentence(error: urllib.error.HTTPError) -> str:
    """What the board says of its refusal, if it is a board."""
    try:
        found = json.loads(read(error))
    except (OSError, ValueError, RecursionError, http.client.HTTPException, zlib.error):
        return ""
    said = found.get("error") if isinstance(found, dict) else None
    return " ".join(clean(said).split())[:1000] if isinstance(said, str) else ""


def is_unsure(error: Exception) -> bool:
    """Whether the board may have done what it was asked for, though no answer came: urllib wraps what fails before."""
    return not isinstance(error, urllib.error.URLError)


def unreachable(error: Exception, url: str) -> str:
    """Why nothing came back, and what to do."""
    why = error.reason if isinstance(error, urllib.error.URLError) else error
    where = urlsplit(url).netloc
    if isinstance(why, ssl.SSLCertVerificationError):
        return f"the certificate of {where} cannot be trusted: {why.verify_message}; nothing was sent"
    known: tuple[tuple[type[BaseException], str], ...] = (
        (ssl.SSLError, f"{where} speaks no TLS that we understand: is it http://?"),
        (socket.timeout, f"{where} did not answer within {PATIENCE} s: try again later"),
        (TimeoutError, f"{where} did not answer in time: try again later"),
        (socket.gaierror, f"{where} is not known on this network: {CHECK}"),
        (ConnectionRefusedError, f"nothing answers at {where}: is the board being served there?"),
        (http.client.HTTPException, odd(url)),
        (zlib.error, odd(url)),
    )
    for kind, sentence_of in known:
        if isinstance(why, kind):
            return sentence_of
    return f"{where} cannot be reached: {getattr(why, 'strerror', None) or clean(str(why))[:200]}"


def refused(why: Refused, url: str) -> str:
    """What an answer other than 200 means, where nothing more is known of it."""
    if why.asks:
        return login_refused(why, url)
    if why.status == 421:
        where = urlsplit(url).netloc
        return f"the board does not answer as {where}: its admin can add that name to GPUBOARD_SERVER_NAMES"
    if why.status == 404:
        return f"there is nothing at {url}: {CHECK}"
    return why.said or f"{url} answered {why.status} {why.reason}: try again later"


def login_refused(why: Refused, url: str) -> str:
    """What to do about a board behind a password."""
    where = urlsplit(url).netloc
    if why.login:
        return f"{where} does not take the name and the password in GPUBOARD_LOGIN"
    return f"{where} asks for a name and a password: set GPUBOARD_LOGIN=name:password, in a file that only you can read"
