"""`gpuboard serve`: the board for browsers, with no other web server."""

from __future__ import annotations

import errno
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.client import completion
from site_builder.core.command_options import Failure, tell, with_settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from site_builder.config.settings import Settings
    from site_builder.web.server import Site

IN_THE_CLEAR = (
    "passwords cross the network in the clear: let it listen on 127.0.0.1, and put a web server with TLS before it "
    "(docs/webservers.md)"
)
CHOOSE = "choose another with --listen or GPUBOARD_LISTEN"


def named(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """The file; a name that is empty, as of a variable that nobody set, must not open the board to all."""
    if value is not None and not value.strip():
        raise Failure(
            "--htpasswd names no file: write `--htpasswd FILE`, or leave it out for a board without passwords"
        )
    return value


@click.command()
@click.option("--listen", metavar="ADDRESS:PORT", help="Where to listen.  [default: 127.0.0.1:8080]")
@click.option(
    "--htpasswd",
    metavar="FILE",
    help="Who may see it, with passwords.",
    callback=named,
    shell_complete=completion.files,
)
@with_settings
def serve(settings: Settings) -> None:
    """Serve the site in www/ until Ctrl-C.

    It hands out the files that `gpuboard build` writes, to this machine alone unless --listen says otherwise. Where
    GPUBOARD_BOOK_URL is set, it takes bookings there: docs/booking-service.md. With --htpasswd it asks for a name and
    a password before all of it, by a file that `htpasswd -B` writes: docs/webservers.md.

    \b
    gpuboard serve
    gpuboard serve --listen 0.0.0.0:8080
    gpuboard serve --htpasswd users
    """
    from site_builder.web.server import Server, listen  # noqa: PLC0415 # --help needs none of it

    where = settings.www.absolute()
    if not where.is_dir():
        raise Failure(f"there is no folder {where}: run `gpuboard build` first, or set GPUBOARD_WWW")
    site = site_of(where, settings)
    address, port = settings.listen
    try:
        sock = listen(address, port)
    except OSError as error:
        raise Failure(refused(error, address, port)) from None
    server = Server(site, sock, settings.rules.proxy)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.close())
    for sentence in opening(sock, settings) if sys.stderr.isatty() else ():  # cron would mail it
        tell(sentence)
    for sentence in warnings(sock, settings):
        tell(sentence)
    server.run()


def site_of(www: Path, settings: Settings) -> WSGIApplication:
    """All that is answered, under the board's own names, behind a password where the settings name a file of them."""
    from site_builder.web.host_header import HostCheck  # noqa: PLC0415

    return HostCheck(with_login(board_of(www, settings), settings), settings, www)


def with_login(site: Site, settings: Settings) -> WSGIApplication:
    """Ask for a password before the site, where the settings name a file of them."""
    if not settings.htpasswd:
        return site
    from site_builder.web.basic_auth import Login  # noqa: PLC0415
    from site_builder.web.passwords import Passwords, Unusable  # noqa: PLC0415

    try:
        return Login(site, Passwords(Path(settings.htpasswd), tell), settings.rules)
    except Unusable as why:
        raise Failure(str(why)) from None


def board_of(www: Path, settings: Settings) -> Site:
    """The files of www/, and the desk where the settings give it an address."""
    from site_builder.web.host_history import Minutes  # noqa: PLC0415
    from site_builder.web.server import Site  # noqa: PLC0415

    minutes = Minutes(settings)
    if settings.rules.url is None:
        return Site(www, tell, minutes=minutes)
    from site_builder.bookings.concurrency_limit import Door  # noqa: PLC0415
    from site_builder.bookings.web import Booking  # noqa: PLC0415

    return Site(www, tell, (settings.rules.url, Door(Booking(settings, tell))), minutes)


def opening(sock: socket.socket, settings: Settings) -> list[str]:
    """What is said at the start: where the board is, and who can read it if not this machine alone."""
    from site_builder.web.server import is_private, url_of  # noqa: PLC0415

    found = [f"the board is at {url_of(sock)} until Ctrl-C"]
    who = f"everybody on the network {'with a password ' if settings.htpasswd else ''}can read it"
    return found if is_private(sock) else [*found, who, *danger(sock, settings)]


def warnings(sock: socket.socket, settings: Settings) -> list[str]:
    """What is said in any case, and once."""
    from site_builder.web.server import is_private  # noqa: PLC0415

    return [IN_THE_CLEAR] if settings.htpasswd and not is_private(sock) else []


def danger(sock: socket.socket, settings: Settings) -> list[str]:
    """What is said where the desk is open to more than this machine."""
    from site_builder.web.server import is_private  # noqa: PLC0415

    is_open = settings.rules.url is not None and settings.rules.open and not settings.htpasswd and not is_private(sock)
    return ["anybody who reaches it may book, under any name: GPUBOARD_BOOK_OPEN=no ends that"] if is_open else []


def refused(error: OSError, address: str, port: int) -> str:
    """Why nothing can listen there, and what to do."""
    place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is taken by another program: {CHOOSE}"
    if error.errno == errno.EACCES:
        return f"only root may listen on port {port}: choose one from 1024 on with --listen or GPUBOARD_LISTEN"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{address} is not an address of this machine: {CHOOSE}"
    return f"cannot listen on {place}: {error.strerror or error}; {CHOOSE}"
