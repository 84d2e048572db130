"""`gpuboard serve` and `gpuboard here`."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import click

from site_builder.client import completion
from site_builder.config.conf_file import LoadedSettings
from site_builder.config.settings import Settings
from site_builder.core.command_options import CommandError, print_message, with_loaded_settings, with_settings
from site_builder.core.files import find_scripts_folder, make_closed
from site_builder.web import server
from site_builder.web.live_board import create_spool_folder, run_live_board, stop_on_signals

SNAPSHOT_INTERVAL_S = 10


def check_htpasswd_option(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name, as of a variable that is not set: it must not open the board to everybody."""
    if value is not None and not value.strip():
        raise CommandError(
            "--htpasswd names no file: write `--htpasswd FILE`, or leave it out for a board without passwords"
        )
    return value


@click.command()
@click.option("--listen", metavar="ADDRESS:PORT", help="Where to listen.  [default: 127.0.0.1:8080]")
@click.option(
    "--htpasswd",
    metavar="FILE",
    help="Who may see it, with passwords.",
    callback=check_htpasswd_option,
    shell_complete=completion.complete_files,
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
    www = settings.www.absolute()
    if not www.is_dir():
        raise CommandError(f"there is no folder {www}: run `gpuboard build` first, or set GPUBOARD_WWW")
    application = server.build_application(www, settings)
    address, port = settings.listen
    try:
        sock = server.open_listening_socket(address, port)
    except OSError as error:
        raise CommandError(server.describe_listen_error(error, address, port)) from None
    web_server = server.WebServer(application, sock, settings.booking_policy.proxy)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: web_server.close())
    messages = server.list_start_messages(sock, settings) if sys.stderr.isatty() else []  # cron would mail it
    for sentence in (*messages, *server.list_password_warnings(sock, settings)):
        print_message(sentence)
    web_server.run()


@click.command()
@click.option("--listen", metavar="ADDRESS:PORT", help="Where.  [default: 127.0.0.1, from 8080 on]")
@with_loaded_settings
def here(loaded: LoadedSettings) -> None:
    """Show the GPUs of this machine until Ctrl-C.

    Takes a snapshot every 10 seconds as a GPU host does, builds the site, and serves it on a port that is free.
    Other hosts that push to data/ are on it too.

    \b
    gpuboard here
    gpuboard here --listen 0.0.0.0:8080
    """
    settings = loaded.settings
    listen = None if loaded.given["GPUBOARD_LISTEN"].origin == "default" else settings.listen
    name = platform.node().partition(".")[0]
    script = str(find_scripts_folder() / "gpu-run.sh")
    conf = str(Path(loaded.conf.path).absolute()) if loaded.conf.path else os.devnull
    folders = {f"GPUBOARD_{key.upper()}": str(getattr(settings, key).absolute()) for key in ("data", "www", "state")}
    builder_settings = {
        **{key: value for key, value in os.environ.items() if key.startswith(("GPUBOARD_", "CONSUL_"))},
        **folders,
        "GPUBOARD_CONF": conf,
    }

    with stop_on_signals(), create_spool_folder() as spool:
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
            print_message(f"the board of {name} is at {url} until Ctrl-C")
            print_message(f"to book a GPU, edit {folders['GPUBOARD_DATA']}/comments.json")

        try:
            make_closed(settings.data)
            run_live_board(Path(folders["GPUBOARD_WWW"]), listen, lambda: builder_settings, take_snapshot, report_ready)
        except OSError as error:
            place = error.filename or folders["GPUBOARD_WWW"]
            raise CommandError(f"{place} cannot be written: {error.strerror}") from None
