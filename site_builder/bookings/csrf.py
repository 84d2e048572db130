"""What a request to the desk must look like, so that no page elsewhere can book in the name of whoever opened it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from site_builder.bookings.identity import address
from site_builder.config.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MOST_BYTES = 16 << 10
KIND = "application/json"
PORTS = {"http": ":80", "https": ":443"}
# Nobody can buy a name that ends so, or has no dot: no such name leads a browser to us from a page elsewhere.
LOCAL = (".localhost", ".local", ".lan", ".internal", ".home.arpa", ".localdomain", ".test")


class Refusal(Exception):
    """A request that is not answered: the status, and why in one sentence."""

    def __init__(self, status: int, sentence: str, *headers: tuple[str, str]) -> None:
        """With headers of its own."""
        super().__init__(sentence)
        self.status = status
        self.headers = headers


def check(environ: WSGIEnvironment, settings: Settings) -> None:
    """Refuse what a form or a script of another page could send without being asked."""
    if not environ.get("HTTP_X_GPUBOARD"):
        raise Refusal(403, "the header X-Gpuboard is missing: send X-Gpuboard: 1")
    kind = str(environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()
    if kind != KIND:
        raise Refusal(415, f"the request must be JSON: send Content-Type: {KIND}")
    here = host_of(environ)
    site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    if site is not None and site != "same-origin":
        raise Refusal(403, "this comes from another page than the board: book on the board itself")
    if site is None and origin is not None and not is_same(str(origin), here, str(environ.get("SERVER_PORT", ""))):
        raise Refusal(
            403, "this comes from another page than the board, or a proxy before it hides its Host: book on the board"
        )
    if settings.url and name_of(here) not in {urlsplit(settings.url).hostname, *settings.server_names}:
        raise Refusal(403, f"the board is at {settings.url}: book there")


def check_name(environ: WSGIEnvironment, settings: Settings) -> None:
    """At an open desk, refuse a name by which a page elsewhere could have led a browser here."""
    name = name_of(host_of(environ))
    url = urlsplit(settings.url).hostname if settings.url else None
    own = {socket.gethostname().lower(), url, *settings.server_names}
    if not (name in own or address(name) or "." not in name or name.endswith(LOCAL)):
        raise Refusal(403, "the board does not know that it has this name: the admin can set GPUBOARD_URL to it")


def host_of(environ: WSGIEnvironment) -> str:
    """The name and port under which the board was reached, as a browser sees it.

    X-Forwarded-Host is not read, of no proxy: one that does not set it passes on what a page elsewhere wrote there.
    """
    return str(environ.get("HTTP_HOST", "")).lower()


def name_of(host: str) -> str:
    """Without the port, and without the brackets of an IPv6 address."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_same(origin: str, host: str, port: str) -> bool:
    """Whether a page of this origin is one of ours; Debian's nginx takes the port off the Host, and tells its own."""
    scheme, _, place = origin.lower().partition("://")
    if scheme not in PORTS or not place or not host:
        return False
    usual = PORTS[scheme]
    return without(place, usual) in {without(host, usual), f"{host}:{port or '?'}"}


def without(text: str, end: str) -> str:
    """A text that does not end so."""
    return text[: -len(end)] if text.endswith(end) else text


def body_of(environ: WSGIEnvironment) -> bytes:
    """All that was sent, if its length was told before and is not too much."""
    told = str(environ.get("CONTENT_LENGTH", "")).strip()
    if not told:
        raise Refusal(411, "the request does not say how long it is: send Content-Length")
    if not (told.isascii() and told.isdecimal()):
        raise Refusal(400, "the length of the request is no number")
    if len(told) > 9 or int(told) > MOST_BYTES:
        raise Refusal(413, f"the request is longer than {MOST_BYTES} bytes")
    body: bytes = environ["wsgi.input"].read(int(told))
    if len(body) < int(told):
        raise Refusal(400, "the request ended before its end")
    return body


def request_of(body: bytes) -> dict[str, Any]:
    """A JSON object; orjson takes no more than some 1,000 lists in lists."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refusal(400, "the request is no JSON") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the request must be a JSON object")
    return found
