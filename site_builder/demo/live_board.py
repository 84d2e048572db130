"""A board that lives while a command runs: snapshots, a builder and a server, of which Ctrl-C leaves nothing."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from site_builder.core.command_options import Failure, tell

if TYPE_CHECKING:
    import socket

    from _typeshed.wsgi import WSGIApplication

ANYWHERE = ("127.0.0.1", 8080)
PORTS_TRIED = 50
BUILD_EVERY = 5
FIRST_PAGE_WITHIN = 60
PACKAGE = Path(__file__).parent.parent.parent
PR_SET_PDEATHSIG = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What the scripts take for the path of their spool.
PLAIN = re.compile(r"[A-Za-z0-9/._-]+")


def first_free(listen: tuple[str, int], tries: int) -> socket.socket:
    """A socket on that port, or on the next that is free; with one try on that port alone."""
    from site_builder.web.commands import refused  # noqa: PLC0415
    from site_builder.web.server import listen as open_socket  # noqa: PLC0415

    address, first = listen
    for port in range(first, min(first + tries, 65536)):
        try:
            found = open_socket(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or tries == 1:
                raise Failure(refused(error, address, port)) from None
        else:
            if port != first:
                tell(f"port {first} is taken, so it is {port}")
            return found
    raise Failure(f"no port from {first} to {port} is free on {address}: choose another with --listen")


def start_builder(settings: Mapping[str, str], *options: str, **more: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    """`gpuboard build` by this very program, with these settings and no other.

    Python looks for modules where it is started, and where we are there may be anybody's.
    """
    command = [sys.executable, "-m", "site_builder", "build", *options]
    return subprocess.Popen(command, cwd=PACKAGE, env=environment_of(settings), **more)


def environment_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Ours, with these settings and no other."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    return {**kept, **settings}


def end_with_parent() -> None:
    """In the child: end when the parent does, even if that is killed."""
    import ctypes  # noqa: PLC0415 # only here

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def builder(settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A builder of its own, which no Ctrl-C in the terminal reaches before us."""
    process = start_builder(
        settings,
        "--every",
        str(BUILD_EVERY),
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,  # no thread runs yet
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def server(site: WSGIApplication, sock: socket.socket) -> Iterator[None]:
    """A server beside us, for as long as that is needed."""
    from site_builder.web.server import Server  # noqa: PLC0415

    running = Server(site, sock)
    thread = Thread(target=running.run)
    thread.start()
    try:
        yield
    finally:
        running.close()
        thread.join()


class Ended(BaseException):
    """Somebody wants us to end."""


@contextmanager
def until_told_to_end() -> Iterator[None]:
    """Around all that leaves something behind: the first signal ends it, and no second one cuts the clean-up short."""

    def end(*_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise Ended

    for number in SIGNALS:
        signal.signal(number, end)
    with suppress(Ended):
        yield
        return
    tell("ended")


@contextmanager
def backstage() -> Iterator[Path]:
    """A folder of our own that goes when we do; its path is one that the scripts take for a spool."""
    parent = tempfile.gettempdir() if PLAIN.fullmatch(tempfile.gettempdir()) else "/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="gpuboard-", dir=parent) as path:
        yield Path(path)


def show(
    www: Path,
    listen: tuple[str, int] | None,
    settings: Callable[[], Mapping[str, str]],
    turn: Callable[[], float],
    ready: Callable[[str], None],
) -> None:
    """Take snapshots by `turn`, which says how long to wait for the next; build and serve; `ready` is told the URL.

    Without `listen` the first port from 8080 on that is free will do. `settings` are asked for after the first turn.
    """
    from site_builder.bookings.web import settings_of  # noqa: PLC0415
    from site_builder.web.commands import danger, site_of  # noqa: PLC0415
    from site_builder.web.server import url_of  # noqa: PLC0415

    with first_free(listen or ANYWHERE, 1 if listen else PORTS_TRIED) as sock:
        began = time.monotonic()
        wait = turn()
        www.mkdir(parents=True, exist_ok=True)
        given = settings()
        parsed = settings_of(environment_of(given))
        with builder(given) as process:
            wait_for_page(www, process)
            with server(site_of(www, parsed), sock):
                ready(url_of(sock))
                for sentence in danger(sock, parsed):
                    tell(sentence)
                while process.poll() is None:
                    time.sleep(max(0.0, began + wait - time.monotonic()))
                    began = time.monotonic()
                    wait = turn()
    message = "the builder has ended, and with it the board"
    raise Failure(message)


def wait_for_page(www: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the builder has written its first page, so that nobody sees an older one."""
    began, end = time.time(), time.monotonic() + FIRST_PAGE_WITHIN
    page = www / "index.html"
    while time.monotonic() < end and process.poll() is None:
        if page.exists() and page.stat().st_mtime >= began - 1:
            return
        time.sleep(0.05)
    raise Failure("the builder wrote no page")
