"""Run a board for as long as a command runs: snapshots, a builder and a server, all ended by Ctrl-C."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
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
from site_builder.web.booking_app import load_environment_settings
from site_builder.web.server import (
    WebServer,
    build_application,
    build_server_url,
    describe_listen_error,
    list_open_booking_warnings,
    open_listening_socket,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

DEFAULT_LISTEN = ("127.0.0.1", 8080)
MAX_PORTS_TRIED = 50
BUILD_INTERVAL_S = 5
FIRST_PAGE_TIMEOUT_S = 60
SOURCE_FOLDER = Path(__file__).parent.parent.parent
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The scripts accept only such a path for their spool.
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")


def open_free_port(listen: tuple[str, int], tries: int) -> socket.socket:
    """Listen on that port or on one of the next, up to so many tries."""
    address, first = listen
    for port in range(first, min(first + tries, 65536)):
        try:
            sock = open_listening_socket(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or tries == 1:
                raise CommandError(describe_listen_error(error, address, port)) from None
        else:
            if port != first:
                print_message(f"port {first} is taken, so it is {port}")
            return sock
    raise CommandError(f"no port from {first} to {port} is free on {address}: choose another with --listen")


def start_builder(settings: Mapping[str, str], *options: str, **popen_options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    """Start `gpuboard build` with these settings and no other.

    It starts in our own folder: Python imports modules from the current folder, and that may be anybody's.
    """
    command = [sys.executable, "-m", "site_builder", "build", *options]
    return subprocess.Popen(command, cwd=SOURCE_FOLDER, env=build_environment(settings), **popen_options)


def build_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with these settings and no other."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    return {**kept, **settings}


@contextmanager
def run_builder(settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a builder in a session of its own, so that Ctrl-C in the terminal reaches only us."""
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
    server = WebServer(site, sock)
    thread = Thread(target=server.run)
    thread.start()
    try:
        yield
    finally:
        server.close()
        thread.join()


class StopRequestedError(BaseException):
    """A signal asks us to end."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """End the block at the first signal; further signals do not interrupt its clean-up."""

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
    """Create a temporary folder that the scripts accept for their spool."""
    parent = tempfile.gettempdir() if PLAIN_PATH.fullmatch(tempfile.gettempdir()) else "/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="gpuboard-", dir=parent) as path:
        yield Path(path)


def run_live_board(
    www: Path,
    listen: tuple[str, int] | None,
    read_settings: Callable[[], Mapping[str, str]],
    take_snapshots: Callable[[], float],
    report_ready: Callable[[str], None],
) -> None:
    """Take snapshots, build and serve until a signal; `take_snapshots` returns the seconds until the next ones.

    Without `listen`, use the first free port from 8080 on. The settings are read after the first snapshots.
    """
    with open_free_port(listen or DEFAULT_LISTEN, 1 if listen else MAX_PORTS_TRIED) as sock:
        began = time.monotonic()
        wait_s = take_snapshots()
        www.mkdir(parents=True, exist_ok=True)
        environment = read_settings()
        settings = load_environment_settings(build_environment(environment))
        with run_builder(environment) as process:
            wait_for_first_page(www, process)
            with run_server(build_application(www, settings), sock):
                report_ready(build_server_url(sock))
                for sentence in list_open_booking_warnings(sock, settings):
                    print_message(sentence)
                while process.poll() is None:
                    time.sleep(max(0.0, began + wait_s - time.monotonic()))
                    began = time.monotonic()
                    wait_s = take_snapshots()
    raise CommandError("the builder has ended, and with it the board")


def wait_for_first_page(www: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the builder has written its first page, so that nobody sees an older one."""
    began, end = time.time(), time.monotonic() + FIRST_PAGE_TIMEOUT_S
    page = www / "index.html"
    while time.monotonic() < end and process.poll() is None:
        if page.exists() and page.stat().st_mtime >= began - 1:
            return
        time.sleep(0.05)
    raise CommandError("the builder wrote no page")
