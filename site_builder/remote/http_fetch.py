"""The files of a host that serves them itself: the four names that we know, from the one address that was given.

No proxy, no redirect, no cache in between; what did not change since the last round is not fetched again.
"""

from __future__ import annotations

import email.utils
import http.client
import socket
import ssl
import time
from base64 import b64encode
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from site_builder.core.formatting import duration
from site_builder.remote.target_syntax import Target
from site_builder.remote.writer import FILES, NotPulled
from site_builder.snapshots import envelope
from site_builder.snapshots.store import LIMIT, TASKS

CHUNK = 65536
# A server may end a connection that waits for the next round: then we come again, once.
ENDED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ConnectionAbortedError)
MEANINGS = {
    401: "wants a password: give it as name=https://user:password@host/path/ in a file of your own",
    403: "may not be read: let the web server there serve it to us",
    404: "is not there: is this the folder that the loops of that host push to?",
}


class Kept(NamedTuple):
    """What a server called the last version of a file, so that it can tell whether it has another."""

    etag: str | None
    modified: str | None


class OverHttp:
    """One connection to one server."""

    def __init__(self, target: Target) -> None:
        """Nothing is asked yet."""
        self.parts = urlsplit(target.address)
        self.where = self.parts.netloc.rpartition("@")[2]
        self.line: http.client.HTTPConnection | None = None
        self.closed = False
        self.kept: dict[str, Kept] = {}
        self.taken: tuple[int, int] | None = None  # time and interval of the last host.txt

    def close(self) -> None:
        """End it under whoever waits for it."""
        self.closed = True
        line = self.line
        if line and line.sock:
            with suppress(OSError):
                line.sock.shutdown(socket.SHUT_RDWR)
            line.close()

    def fetch(self, deadline: float) -> dict[str, bytes]:
        """Those that changed; if the newest is old by the server's own clock, none: it must not look fresh here."""
        found = {}
        try:
            for file in FILES:
                content = self.get(file, deadline)
                if content is not None:
                    found[file] = content
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotPulled(self.words(error)) from None
        return found

    def get(self, file: str, deadline: float) -> bytes | None:
        """One file; None if it is the one that we have."""
        for again in (self.line is not None, False):
            line = self.open(deadline)
            try:
                line.request("GET", f"{self.parts.path}{file}", headers=self.headers(file))
                return self.answer(file, line.getresponse(), deadline)
            except ENDED:
                line.close()
                self.line = None
                if not again or self.closed:
                    raise
        raise AssertionError

    def open(self, deadline: float) -> http.client.HTTPConnection:
        """The connection, new or kept, with the time that is left."""
        seconds = deadline - time.monotonic()
        if seconds <= 0 or self.closed:
            raise TimeoutError
        line = self.line
        if line is None:
            host, port = self.parts.hostname or "", self.parts.port
            if self.parts.scheme == "https":
                line = http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
            else:
                line = http.client.HTTPConnection(host, port, timeout=seconds)
            self.line = line
        if line.sock is None:
            line.timeout = seconds
            line.connect()
        line.sock.settimeout(seconds)
        return line

    def headers(self, file: str) -> dict[str, str]:
        """What is asked for."""
        headers = {"User-Agent": "gpuboard", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        if self.parts.username is not None:
            words = f"{unquote(self.parts.username)}:{unquote(self.parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(words.encode()).decode()}"
        kept = self.kept.get(file)
        if kept and kept.etag:
            headers["If-None-Match"] = kept.etag
        elif kept and kept.modified:
            headers["If-Modified-Since"] = kept.modified
        return headers

    def answer(self, file: str, answer: http.client.HTTPResponse, deadline: float) -> bytes | None:
        """What a server says to one question."""
        if answer.status == 304 and file in self.kept:
            answer.read()
            content = None
        elif answer.status == 200:
            content = read(answer, deadline)
            self.kept[file] = Kept(answer.headers.get("ETag"), answer.headers.get("Last-Modified"))
        else:
            raise NotPulled(self.refused(file, answer))
        if file == "host.txt":
            self.check_age(content, answer.headers.get("Date"))
        return content

    def check_age(self, content: bytes | None, date: str | None) -> None:
        """By the clock of the server, which is most often that of the host."""
        header = envelope.header(content, TASKS["host.txt"])[0] if content else None
        if header:
            self.taken = header.time, header.every
        if self.taken is None:
            return
        try:
            now = email.utils.parsedate_to_datetime(date or "").timestamp()
        except (TypeError, ValueError, IndexError, OverflowError):
            now = time.time()
        moment, every = self.taken
        if now - moment > 3 * every + 30:
            message = (
                f"what {self.where} serves is {duration(now - moment)} old: do the loops of gpu-check.sh run there?"
            )
            raise NotPulled(message)

    def refused(self, file: str, answer: http.client.HTTPResponse) -> str:
        """An answer other than the file, in words."""
        place = f"{self.where}{self.parts.path}{file}"
        if 300 <= answer.status < 400:
            to = envelope.one_line(answer.headers.get("Location") or "elsewhere")
            return f"{place} leads to {to}, and nothing was fetched there: give the address itself"
        reason = envelope.one_line(answer.reason or "", 80)
        return f"{place} {MEANINGS.get(answer.status, f'is answered with {answer.status} {reason}')}"

    def words(self, error: Exception) -> str:
        """Why nothing came, and what to do."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the certificate of {self.where} cannot be trusted: {error.verify_message}"
        known: tuple[tuple[type[Exception], str], ...] = (
            (ssl.SSLError, "speaks no TLS that we understand: is it http://?"),
            (socket.timeout, "did not answer in time"),
            (TimeoutError, "did not answer in time"),
            (socket.gaierror, "is not known on this network"),
            (ConnectionRefusedError, "does not answer: does a web server run there?"),
            (http.client.HTTPException, "did not answer as a web server does"),
        )
        for kind, what in known:
            if isinstance(error, kind):
                return f"{self.where} {what}"
        return f"{self.where}: {getattr(error, 'strerror', None) or envelope.one_line(error)}"


def read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """All of a file, within its limits."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        message = "it sends what it was asked not to send: compressed files"
        raise ValueError(message)
    found = bytearray()
    while chunk := answer.read1(CHUNK):
        found += chunk
        if len(found) > LIMIT:
            message = f"it sends more than the {LIMIT >> 20} MiB that are read of a file"
            raise ValueError(message)
        if time.monotonic() > deadline:
            raise TimeoutError
    answer.read()  # nothing is left; but only this frees the connection for the next question, or tells of a torn one
    return bytes(found)
