"""The desk of a board on another machine, over HTTP: the token goes to that board and nowhere else."""

from __future__ import annotations

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
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from site_builder.booking.desk import Failed
from site_builder.decide.rules import NotYours, Refused
from site_builder.readers.form import clean

PATIENCE = 10
# All of an answer, however slowly it comes.
LONGEST_WAIT = 60
# status.json of a thousand hosts has some 10 MB.
LIMIT = 64 * 1024 * 1024
CHUNK = 65536
STATUS = "status.json"
WHO_ARE_YOU = "the board does not know who you are: ask its admin for a token"
CHECK = "check GPUBOARD_URL"


class Elsewhere(Exception):
    """The board sends us to another place."""


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


class Remote:
    """A board and its desk; `status` is fetched once."""

    def __init__(self, url: str, token: str | None) -> None:
        """Where the board is, and what says who we are."""
        self.url = url
        self.token = token
        self.opener = urllib.request.build_opener(SameBoard)
        self.fetched: dict[str, Any] | None = None

    def status(self) -> dict[str, Any]:
        """status.json of the board."""
        if self.fetched is None:
            found = self.ask(urljoin(self.url, STATUS), None, with_token=False)
            if "schema" not in found or not isinstance(found.get("hosts"), list):
                message = f"{self.url}{STATUS} is not that of a gpuboard: {CHECK}"
                raise Failed(message)
            self.fetched = found
        return self.fetched

    def desk(self) -> str:
        """Where bookings are made."""
        book = self.status().get("book")
        if not isinstance(book, str) or not book:
            message = f"the board at {self.url} takes no bookings: its admin must set GPUBOARD_BOOK_URL there"
            raise Failed(message)
        place = urljoin(self.url, book)
        if origin(place) != origin(self.url):
            message = f"the board at {self.url} sends bookings to another server, and nothing was sent there"
            raise Failed(message)
        return place

    def listed(self) -> dict[str, Any]:
        """All bookings that are not over, and who we are."""
        found = self.ask(self.desk(), None)
        if not isinstance(found.get("bookings"), list):
            raise Failed(odd(self.desk()))
        return found

    def do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the desk answers to a request."""
        found = self.ask(self.desk(), json.dumps(request).encode())
        if not isinstance(found.get("said"), str) or not isinstance(found.get("bookings"), list):
            raise Failed(odd(self.desk()))
        return found

    def ask(self, url: str, body: bytes | None, with_token: bool = True) -> dict[str, Any]:
        """One request, and the object that is its answer."""
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "gpuboard"}
        if body is not None:
            headers |= {"Content-Type": "application/json", "X-Gpuboard": "1"}
        if self.token and with_token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(url, body, headers)  # noqa: S310 # the setting takes nothing but http and https
        try:
            with self.opener.open(request, timeout=PATIENCE) as answer:
                content = read(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise self.refused(error, url) from None
        except Elsewhere as place:
            message = f"{url} leads to {clean(str(place))[:200]}, and nothing was sent there: {CHECK}"
            raise Failed(message) from None
        except (OSError, http.client.HTTPException, zlib.error) as error:
            unsure = "; `gpuboard bookings` tells whether it was done" if body and is_unsure(error) else ""
            raise Failed(unreachable(error, url) + unsure) from None
        return parsed(content, url)

    def refused(self, error: urllib.error.HTTPError, url: str) -> Exception:
        """What an answer other than 200 means."""
        said = sentence(error)
        if error.code == 401:
            hint = "GPUBOARD_TOKEN is what was sent" if self.token else "GPUBOARD_TOKEN is where it belongs"
            return Failed(f"{said or WHO_ARE_YOU}; {hint}")
        if error.code == 403:
            return NotYours(said or f"{url} does not let you do that")
        if error.code == 409:
            return Refused(said or f"{url} refused it")
        if error.code == 404:
            return Failed(f"there is nothing at {url}: {CHECK}")
        if error.code == 429:
            return Failed(said or f"{url} has had too many requests: wait a minute, and try again")
        return Failed(said or f"{url} answered {error.code} {clean(str(error.reason))[:80]}: try again later")


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


def parsed(content: bytes, url: str) -> dict[str, Any]:
    """The object that an answer is."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Failed(odd(url))
    return found


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
