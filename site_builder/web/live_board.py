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
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from site_builder.core.command_options import CommandError, print_message
from site_builder.core.subprocesses import end_with_parent

if TYPE_CHECKING:
    import socket

    from _typeshed.wsgi import WSGIApplication

DEFAULT_LISTEN = ("127.0.0.1", 8080)
MAX_PORTS_TRIED = 50
BUILD_INTERVAL_S = 5
FIRST_PAGE_TIMEOUT_S = 60
SOURCE_FOLDER = Path(__file__).parent.parent.parent
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What the scripts take for the path of their spool.
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")


def open_free_port(listen: tuple[str, int], tries: int) -> socket.socket:
    """A socket on that port, or on the next that is free; with one try on that port alone."""
    from site_builder.web.application import describe_listen_error  # noqa: PLC0415
    from site_builder.web.server import open_listening_socket as open_socket  # noqa: PLC0415

    address, first = listen
    for port in range(first, min(first + tries, 65536)):
        try:
            found = open_socket(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or tries == 1:
                raise CommandError(describe_listen_error(error, address, port)) from None
        else:
            if port != first:
                print_message(f"port {first} is taken, so it is {port}")
            return found
    raise CommandError(f"no port from {first} to {port} is free on {address}: choose another with --listen")


def start_builder(settings: Mapping[str, str], *options: str, **more: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    """`gpuboard build` by this very program, with these settings and no other.

    Python looks for modules where it is started, and where we are there may be anybody's.
    """
    command = [sys.executable, "-m", "site_builder", "build", *options]
    return subprocess.Popen(command, cwd=SOURCE_FOLDER, env=build_environment(settings), **more)


def build_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Ours, with these settings and no other."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    return {**kept, **settings}


@contextmanager
def run_builder(settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A builder of its own, which no Ctrl-C in the terminal reaches before us."""
    process = start_builder(
        settings,
        "--every",
        str(BUILD_INTERVAL_S),
        start_new_session=True,
        # no thread runs yet
        preexec_fn=partial(end_with_parent, signal.SIGTERM) if sys.platform == "linux" else None,
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
def run_server(site: WSGIApplication, sock: socket.socket) -> Iterator[None]:
    """A server beside us, for as long as that is needed."""
    from site_builder.web.server import WebServer  # noqa: PLC0415

    running = WebServer(site, sock)
    thread = Thread(target=running.run)
    thread.start()
    try:
        yield
    finally:
        running.close()
        thread.join()


class StopRequestedError(BaseException):
    """Somebody wants us to end."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Around all that leaves something behind: the first signal ends it, and no second one cuts the clean-up short."""

    def end(*_: object) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise StopRequestedError

    for number in STOP_SIGNALS:
        signal.signal(number, end)
    with suppress(StopRequestedError):
        yield
        return
    print_message("ended")


@contextmanager
def create_spool_folder() -> Iterator[Path]:
    """A folder of our own that goes when we do; its path is one that the scripts take for a spool."""
    parent = tempfile.gettempdir() if PLAIN_PATH.fullmatch(tempfile.gettempdir()) else "/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="gpuboard-", dir=parent) as path:
        yield Path(path)


def run_live_board(
    www: Path,
    listen: tuple[str, int] | None,
    settings: Callable[[], Mapping[str, str]],
    turn: Callable[[], float],
    ready: Callable[[str], None],
) -> None:
    """Take snapshots by `turn`, which says how long to wait for the next; build and serve; `ready` is told the URL.

    Without `listen` the first port from 8080 on that is free will do. `settings` are asked for after the first turn.
    """
    from site_builder.web.application import build_application, list_open_booking_warnings  # noqa: PLC0415
    from site_builder.web.booking_app import load_environment_settings  # noqa: PLC0415
    from site_builder.web.server import build_server_url  # noqa: PLC0415

    with open_free_port(listen or DEFAULT_LISTEN, 1 if listen else MAX_PORTS_TRIED) as sock:
        began = time.monotonic()
        wait = turn()
        www.mkdir(parents=True, exist_ok=True)
        given = settings()
        parsed = load_environment_settings(build_environment(given))
        with run_builder(given) as process:
            wait_for_first_page(www, process)
            with run_server(build_application(www, parsed), sock):
                ready(build_server_url(sock))
                for sentence in list_open_booking_warnings(sock, parsed):
                    print_message(sentence)
                while process.poll() is None:
                    time.sleep(max(0.0, began + wait - time.monotonic()))
                    began = time.monotonic()
                    wait = turn()
    message = "the builder has ended, and with it the board"
    raise CommandError(message)


def wait_for_first_page(www: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the builder has written its first page, so that nobody sees an older one."""
    began, end = time.time(), time.monotonic() + FIRST_PAGE_TIMEOUT_S
    page = www / "index.html"
    while time.monotonic() < end and process.poll() is None:
        if page.exists() and page.stat().st_mtime >= began - 1:
            return
        time.sleep(0.05)
    raise CommandError("the builder wrote no page")
