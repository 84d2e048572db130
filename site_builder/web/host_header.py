"""Answer only requests whose Host header names this board: a page elsewhere may lead its own name here."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from site_builder.bookings.identity import address
from site_builder.config.settings import Settings
from site_builder.web import compat_routes
from site_builder.web.static_files import ABSOLUTE, Answer, parts_of, path_of, refusal, sent

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9_.-]{1,254}))(?::[0-9]{0,5})?")
LOOKUP_PATIENCE = 2.0  # seconds that a request waits for the first DNS answer of this process
NOT_OURS = (
    "The board does not answer under this name. Its admin can add the name to GPUBOARD_SERVER_NAMES, "
    "or set GPUBOARD_URL to the address that people use."
)


class OwnNames:
    """The names of this machine; DNS is asked once, in the background, since it may take long to fail."""

    def __init__(self) -> None:
        """Start to look up the full name."""
        self.host = socket.gethostname().lower().rstrip(".")
        self.short = self.host.partition(".")[0]
        self.names = {self.host, self.short, f"{self.short}.local"} - {"", ".local"}
        self.lookup = Thread(target=self.look_up, daemon=True)
        self.lookup.start()

    def look_up(self) -> None:
        """Add the full name."""
        with suppress(OSError, UnicodeError):  # a host name can be one that DNS does not allow
            self.names = self.names | {socket.getfqdn(self.host).lower().rstrip(".")}

    def has(self, name: str) -> bool:
        """Return True if this machine is called so; wait for DNS only where its answer can make a difference."""
        if name not in self.names and name.startswith(f"{self.short}."):
            self.lookup.join(LOOKUP_PATIENCE)
        return name in self.names


class HostCheck:
    """A WSGI application that lets requests through to another if their Host header is a name of the board."""

    def __init__(self, inner: WSGIApplication, settings: Settings, www: Path) -> None:
        """Take the names from the settings and this machine, and those of GPU hosts from www/."""
        self.inner = inner
        self.own_names = OwnNames()
        self.states = www / compat_routes.STATES
        url = urlsplit(settings.url or "").hostname or "localhost"
        self.names = {"localhost", settings.listen[0].lower(), url.rstrip("."), *settings.server_names}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        refused = self.check_host(environ)
        return sent(environ, start_response, refused) if refused else self.inner(environ, start_response)

    def check_host(self, environ: WSGIEnvironment) -> Answer | None:
        """Return the refusal of a request under another name; X-Forwarded-Host is not read, anybody can send it."""
        hosts = [str(environ.get("HTTP_HOST", ""))]
        if not hosts[0]:
            if environ["SERVER_PROTOCOL"] != "HTTP/1.0":
                return refusal(400)
            hosts = []  # no browser: each sends a Host
        target = ABSOLUTE.match(environ["REQUEST_URI"])
        if target:  # a name there counts more than the header (RFC 9112, 3.2.2), so that both must be ours
            hosts.append(target[0].partition("//")[2])
        for host in hosts:
            name = parse_host(host)
            if name is None:
                return refusal(400)
            if not self.is_allowed(name, environ):
                return refusal(421, sentence=NOT_OURS)
        return None

    def is_allowed(self, name: str, environ: WSGIEnvironment) -> bool:
        """Return True if it is a name of the board, or on a route of older clients one of a GPU host."""
        is_local = name in self.names or name.endswith(".localhost") or address(name) is not None
        return is_local or self.own_names.has(name) or (is_older_route(environ) and self.is_gpu_host(name))

    def is_gpu_host(self, name: str) -> bool:
        """Return True if the board shows a host of this name."""
        try:
            return any(folder.name.lower() == name for folder in self.states.iterdir())
        except OSError:
            return False


def parse_host(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case and without port; None if it is not well formed."""
    parts = HOST.fullmatch(host.lower())
    if not parts:
        return None
    name = parts[1] or parts[2].rstrip(".")
    is_valid = bool(name) and ".." not in name and not name.startswith(".") and not (parts[1] and not address(name))
    return name if is_valid else None


def is_older_route(environ: WSGIEnvironment) -> bool:
    """Return True for addresses that clients of other systems use."""
    path, query = path_of(environ)
    return compat_routes.is_compatible(path, parts_of(path), query)
