"""`gpuboard serve` and `gpuboard here`."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import click

from site_builder.config.settings import LoadedSettings, Settings, load_settings
from site_builder.core.command_options import (
    CommandError,
    file_option,
    print_command_message,
    with_loaded_settings,
    with_settings,
)
from site_builder.core.files import SCRIPTS_FOLDER, create_protected_folder
from site_builder.core.subprocesses import end_process, end_with_parent, interrupt_on_signals
from site_builder.web import server
from site_builder.web.server import WebServer

MAX_PORTS_TRIED = 50
FIRST_PAGE_TIMEOUT_S = 60
SOURCE_FOLDER = Path(__file__).parent.parent.parent
# The scripts accept only such a path for their spool.
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
SNAPSHOT_INTERVAL_S = 10


def start_served_builder(settings: Mapping[str, str], *options: str, **popen_options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    """Start `gpuboard build` with these settings and no other.

    It starts in our own folder: Python imports modules from the current folder, and that may be anybody's.
    """
    command = [sys.executable, "-m", "site_builder", "build", *options]
    return subprocess.Popen(command, cwd=SOURCE_FOLDER, env=build_served_environment(settings), **popen_options)


def build_served_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with these settings and no other."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    return {**kept, **settings}


class StopServingError(BaseException):
    """A signal asks us to end; after a KeyboardInterrupt, Popen would not wait for its process."""


@contextmanager
def stop_serving_on_signals() -> Iterator[None]:
    """End the block at the first signal; further signals do not interrupt its clean-up."""
    with interrupt_on_signals(StopServingError):
        try:
            yield
        except StopServingError:
            print_command_message("ended")


@contextmanager
def create_served_spool_folder() -> Iterator[Path]:
    """Create a temporary folder that the scripts accept for their spool."""
    parent = tempfile.gettempdir() if PLAIN_PATH.fullmatch(tempfile.gettempdir()) else "/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="gpuboard-", dir=parent) as path:
        yield Path(path)


def serve_live_board(
    www: Path,
    listen: tuple[str, int] | None,
    read_settings: Callable[[], Mapping[str, str]],
    take_snapshots: Callable[[], float],
    report_ready: Callable[[str], None],
) -> None:
    """Take snapshots, build and serve until a signal; `take_snapshots` returns the seconds until the next ones.

    Without `listen`, use the first free port from 8080 on. The settings are read after the first snapshots.
    """
    with server.open_free_server_port(listen or ("127.0.0.1", 8080), 1 if listen else MAX_PORTS_TRIED) as sock:
        began = time.monotonic()
        wait_s = take_snapshots()
        www.mkdir(parents=True, exist_ok=True)
        environment = read_settings()
        settings = load_settings(None, {}, build_served_environment(environment)).settings
        # in a session of its own, so that Ctrl-C in the terminal reaches only us; no thread runs yet
        preexec = partial(end_with_parent, signal.SIGTERM) if sys.platform == "linux" else None
        process = start_served_builder(environment, "--every", "5", start_new_session=True, preexec_fn=preexec)
        try:
            # wait for its first page, so that nobody sees an older one
            started_at, deadline, page = time.time(), time.monotonic() + FIRST_PAGE_TIMEOUT_S, www / "index.html"
            while True:
                if time.monotonic() >= deadline or process.poll() is not None:
                    raise CommandError("the builder wrote no page")
                if page.exists() and page.stat().st_mtime >= started_at - 1:
                    break
                time.sleep(0.05)
            web_server = WebServer(server.build_server_application(www, settings), sock)
            thread = Thread(target=web_server.run)
            thread.start()
            try:
                report_ready(server.build_server_url(sock))
                for sentence in server.list_server_booking_warnings(sock, settings):
                    print_command_message(sentence)
                while process.poll() is None:
                    time.sleep(max(0.0, began + wait_s - time.monotonic()))
                    began = time.monotonic()
                    wait_s = take_snapshots()
            finally:
                web_server.stop()
                thread.join()
        finally:
            end_process(process, 10)
    raise CommandError("the builder has ended, so the board is no longer served")


def check_htpasswd_option(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name, as of a variable that is not set: it must not open the board to everybody."""
    if value is not None and not value.strip():
        hint = "write `--htpasswd FILE`, or leave it out for a board without passwords"
        raise CommandError(f"--htpasswd names no file: {hint}")
    return value


@click.command()
@click.option("--listen", metavar="ADDRESS:PORT", help="Listening address.  [default: 127.0.0.1:8080]")
@file_option("--htpasswd", help="File with names and passwords of viewers.", callback=check_htpasswd_option)
@with_settings
def serve(settings: Settings) -> None:
    """Serve the site in www/ until Ctrl-C.

    By default only this machine can connect; --listen changes that. If GPUBOARD_BOOK_URL is set, it takes bookings
    too: docs/booking-service.md. With --htpasswd, everything needs a name and password from a file written by
    `htpasswd -B`: docs/webservers.md.

    \b
    gpuboard serve
    gpuboard serve --listen 0.0.0.0:8080
    gpuboard serve --htpasswd users
    """
    www = settings.www.absolute()
    if not www.is_dir():
        raise CommandError(f"there is no folder {www}: run `gpuboard build` first, or set GPUBOARD_WWW")
    application = server.build_server_application(www, settings)
    sock = server.open_free_server_port(settings.listen)
    web_server = WebServer(application, sock, settings.booking_policy.proxy)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: web_server.stop())
    # cron would mail all but warnings
    for sentence in server.list_server_start_messages(sock, settings, sys.stderr.isatty()):
        print_command_message(sentence)
    web_server.run()


@click.command()
@click.option("--listen", metavar="ADDRESS:PORT", help="Listening address.  [default: 127.0.0.1, from 8080 on]")
@with_loaded_settings
def here(loaded: LoadedSettings) -> None:
    """Show the GPUs of this machine until Ctrl-C.

    Takes a snapshot every 10 seconds as a GPU host does, builds the site, and serves it on a free port. Other hosts
    that push to data/ are shown too.

    \b
    gpuboard here
    gpuboard here --listen 0.0.0.0:8080
    """
    settings = loaded.settings
    listen = None if loaded.given["GPUBOARD_LISTEN"].origin == "default" else settings.listen
    name = platform.node().partition(".")[0]
    script = str(SCRIPTS_FOLDER / "gpu-run.sh")
    conf = str(Path(loaded.conf.path).absolute()) if loaded.conf.path else os.devnull
    folders = {f"GPUBOARD_{key.upper()}": str(getattr(settings, key).absolute()) for key in ("data", "www", "state")}
    builder_settings = {
        **{key: value for key, value in os.environ.items() if key.startswith(("GPUBOARD_", "CONSUL_"))},
        **folders,
        "GPUBOARD_CONF": conf,
    }

    with stop_serving_on_signals(), create_served_spool_folder() as spool:
        environment = {
            **os.environ,
            "HOST": name,
            "GPUBOARD_CONF": conf,
            "GPUBOARD_SPOOL": str(spool),
            "GPUBOARD_DEST": folders["GPUBOARD_DATA"],
            **{f"GPUBOARD_{task}_EVERY": str(SNAPSHOT_INTERVAL_S) for task in ("GPUS", "PROCESSES", "PS")},
        }

        def take_snapshot() -> float:
            ended = subprocess.run([script, "once"], env=environment, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise CommandError(f"no snapshot of this machine could be taken: {ended.stderr.strip()}")
            return SNAPSHOT_INTERVAL_S

        def report_ready(url: str) -> None:
            print_command_message(f"the board of {name} is at {url} until Ctrl-C")
            print_command_message(f"to book a GPU, edit {folders['GPUBOARD_DATA']}/comments.json")

        try:
            create_protected_folder(settings.data)
            serve_live_board(settings.www.absolute(), listen, lambda: builder_settings, take_snapshot, report_ready)
        except OSError as error:
            place = error.filename or settings.www.absolute()
            raise CommandError(f"{place} cannot be written: {error.strerror}") from None
