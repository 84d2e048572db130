"""A board that lives while a command runs: snapshots, a builder and a server, of which Ctrl-C leaves nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from site_builder.commands.options import Failure, tell

if TYPE_CHECKING:
    import socket

ANYWHERE = ("127.0.0.1", 8080)
PORTS_TRIED = 50
BUILD_EVERY = 5
FIRST_PAGE_WITHIN = 60
PACKAGE = Path(__file__).parent.parent.parent
PR_SET_PDEATHSIG = 1


def first_free(listen: tuple[str, int], tries: int) -> socket.socket:
    """A socket on that port, or on the next that is free; with one try on that port alone."""
    from site_builder.commands.serve import refused  # noqa: PLC0415
    from site_builder.server import listen as open_socket  # noqa: PLC0415

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


def builder_command(*options: str) -> list[str]:
    """`gpuboard build` by this very program."""
    return [sys.executable, "-m", "site_builder", "build", *options]


def builder_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Ours, with these settings and no other, and with this very program wherever it is started."""
    path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    return {**kept, "PYTHONPATH": path, **settings}


def end_with_parent() -> None:
    """In the child: end when the parent does, even if that is killed."""
    import ctypes  # noqa: PLC0415 # only here

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def builder(settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A builder of its own, which no Ctrl-C in the terminal reaches before us."""
    process = subprocess.Popen(
        builder_command("--every", str(BUILD_EVERY)),
        env=builder_environment(settings),
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 # no thread runs yet
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
def server(www: Path, sock: socket.socket) -> Iterator[None]:
    """A server beside us, for as long as that is needed."""
    from site_builder.server import Server, Site  # noqa: PLC0415

    site = Server(Site(www, tell), sock)
    thread = Thread(target=site.run)
    thread.start()
    try:
        yield
    finally:
        site.close()
        thread.join()


def until_ctrl_c(
    www: Path,
    listen: tuple[str, int] | None,
    settings: Mapping[str, str],
    turn: Callable[[], float],
    ready: Callable[[str], None],
) -> None:
    """Take snapshots by `turn`, which says how long to wait for the next; build and serve; `ready` is told the URL.

    Without `listen` the first port from 8080 on that is free will do.
    """
    from site_builder.server import url_of  # noqa: PLC0415

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with first_free(listen or ANYWHERE, 1 if listen else PORTS_TRIED) as sock:
            began = time.monotonic()
            wait = turn()
            www.mkdir(parents=True, exist_ok=True)
            with builder(settings) as process:
                wait_for_page(www, process)
                with server(www, sock):
                    ready(url_of(sock))
                    while process.poll() is None:
                        time.sleep(max(0.0, began + wait - time.monotonic()))
                        began = time.monotonic()
                        wait = turn()
        message = "the builder has ended, and with it the board"
        raise Failure(message)
    except KeyboardInterrupt:
        tell("ended")


def wait_for_page(www: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the builder has written its first page, so that nobody sees an older one."""
    began, end = time.time(), time.monotonic() + FIRST_PAGE_WITHIN
    page = www / "index.html"
    while time.monotonic() < end and process.poll() is None:
        if page.exists() and page.stat().st_mtime >= began - 1:
            return
        time.sleep(0.05)
    raise Failure("the builder wrote no page")
