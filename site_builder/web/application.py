"""The WSGI application of `gpuboard serve`: static files, bookings, passwords and the check of the Host header."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from site_builder.config.settings import Settings
from site_builder.core.command_options import CommandError, print_message
from site_builder.web.basic_auth import BasicAuth, PasswordFile, PasswordFileError
from site_builder.web.minute_history import MinuteHistory
from site_builder.web.server import HostHeaderCheck, build_server_url, is_local_only
from site_builder.web.static_files import StaticSite

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

CLEARTEXT_WARNING = (
    "passwords cross the network in the clear: let it listen on 127.0.0.1, and put a web server with TLS before it "
    "(docs/webservers.md)"
)
CHOOSE_ADDRESS_HINT = "choose another with --listen or GPUBOARD_LISTEN"


def build_application(www: Path, settings: Settings) -> WSGIApplication:
    """Build all that answers requests: under the board's own names, and behind a password if the settings name a file."""
    return HostHeaderCheck(add_basic_auth(build_board_application(www, settings), settings), settings, www)


def add_basic_auth(site: StaticSite, settings: Settings) -> WSGIApplication:
    """Ask for a password before the site if the settings name a file of passwords."""
    if not settings.htpasswd:
        return site
    try:
        return BasicAuth(site, PasswordFile(Path(settings.htpasswd), print_message), settings.booking_policy)
    except PasswordFileError as error:
        raise CommandError(str(error)) from None


def build_board_application(www: Path, settings: Settings) -> StaticSite:
    """Serve the files of www/, and the booking service if the settings give it a URL."""
    history = MinuteHistory(settings)
    if settings.booking_policy.url is None:
        return StaticSite(www, print_message, minutes=history)
    from site_builder.web.booking_app import (
        BookingApplication,
        ConcurrencyLimit,
    )

    booking_service = ConcurrencyLimit(BookingApplication(settings, print_message))
    return StaticSite(www, print_message, (settings.booking_policy.url, booking_service), history)


def list_start_messages(sock: socket.socket, settings: Settings) -> list[str]:
    """Say where the board is, and who can read it if not this machine alone."""
    url = f"the board is at {build_server_url(sock)} until Ctrl-C"
    if is_local_only(sock):
        return [url]
    readers = f"everybody on the network {'with a password ' if settings.htpasswd else ''}can read it"
    return [url, readers, *list_open_booking_warnings(sock, settings)]


def list_password_warnings(sock: socket.socket, settings: Settings) -> list[str]:
    """Warn if passwords cross the network unencrypted."""
    return [CLEARTEXT_WARNING] if settings.htpasswd and not is_local_only(sock) else []


def list_open_booking_warnings(sock: socket.socket, settings: Settings) -> list[str]:
    """Warn if anybody on the network may book."""
    policy = settings.booking_policy
    is_open = policy.url is not None and policy.is_open and not settings.htpasswd and not is_local_only(sock)
    return ["anybody who reaches it may book, under any name: GPUBOARD_BOOK_OPEN=no ends that"] if is_open else []


def describe_listen_error(error: OSError, address: str, port: int) -> str:
    """Say why nothing can listen there, and what to do."""
    place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is taken by another program: {CHOOSE_ADDRESS_HINT}"
    if error.errno == errno.EACCES:
        return f"only root may listen on port {port}: choose one from 1024 on with --listen or GPUBOARD_LISTEN"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{address} is not an address of this machine: {CHOOSE_ADDRESS_HINT}"
    return f"cannot listen on {place}: {error.strerror or error}; {CHOOSE_ADDRESS_HINT}"
