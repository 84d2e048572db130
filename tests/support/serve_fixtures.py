"""`gpuboard serve` for tests: as the real command or in this process, and a site with secrets beside it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from site_builder.config.settings import Settings
from site_builder.web.server import (
    WebServer,
    build_server_application,
    open_listening_socket,
)
from site_builder.web.static_files import StaticSite
from tests.support.browser import ROOT
from tests.support.ports import free_port

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

SECRET = b"nobody-may-read-this"
PAGE = "<!doctype html><title>board</title>" + "<p>atlas is free</p>" * 200
LARGE = 6_000_000
SECURITY = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
}


def clean_environment(**extra_variables: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PRIVATE": SECRET.decode(), **extra_variables}


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Reader:
    """Somebody who asks a server on this machine."""

    port: int

    def get(self, path: str = "/", method: str = "GET", body: bytes | None = None, **headers: str) -> Got:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = line.getresponse()
            return Got(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            line.close()

    def raw(self, request: bytes) -> bytes:
        """What is answered to these very bytes, until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            line.sendall(request)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := line.recv(65536):
                    received += chunk
            return received

    def target(self, target: bytes) -> bytes:
        """The same for a path as it stands on the request line."""
        return self.raw(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


class Running(Reader):
    """The real command in a folder, on a free port of 127.0.0.1."""

    def __init__(self, folder: Path, before: tuple[str, ...] = (), **environment: str) -> None:
        self.port = free_port()
        self.log = folder / "stderr"
        command = [*before, sys.executable, "-m", "site_builder", "serve", "--listen", f"127.0.0.1:{self.port}"]
        variables = clean_environment(**environment)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self.process.wait()
                message = f"it did not start: {self.log.read_text()}"
                raise TimeoutError(message)
            time.sleep(0.02)

    def answers(self) -> bool:
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def running(folder: Path, before: tuple[str, ...] = (), **environment: str) -> Iterator[Running]:
    one = Running(folder, before, **environment)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.stop()


@contextlib.contextmanager
def serve_application(application: WSGIApplication) -> Iterator[Reader]:
    """A server in a thread of this process."""
    listening = open_listening_socket("127.0.0.1", 0)
    reader = Reader()
    reader.port = listening.getsockname()[1]
    server = WebServer(application, listening)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield reader
    finally:
        server.stop()
        thread.join(60)


def serving(folder: Path) -> AbstractContextManager[Reader]:
    """Serve the site in a folder."""
    return serve_application(StaticSite(folder / "www"))


def serve_settings(www: Path, settings: Settings) -> AbstractContextManager[Reader]:
    """Serve a site as `gpuboard serve` does with these settings."""
    return serve_application(build_server_application(www, settings))


def fill(folder: Path) -> None:
    """A site, with secrets beside it and all ways to them that a file system has."""
    www = folder / "www"
    for name in ("assets", "hosts", "states/atlas", "lists", ".git"):
        (www / name).mkdir(parents=True)
    (www / "index.html").write_text(PAGE)
    (www / "hosts/index.html").write_text("<p>hosts")
    (www / "hosts/atlas.html").write_text("<p>atlas")
    (www / "states/index.json").write_text("{}")
    (www / "metrics").write_text("gpuboard_up 1\n")
    (www / "small.txt").write_text("small")
    (www / "empty.txt").write_text("")
    (www / "assets/board.css").write_text("p{color:red}" * 200)
    (www / "picture.png").write_bytes(b"\x89PNG" + bytes(4000))
    (www / "odd%name.txt").write_text("odd")
    for suffix in ("css", "js", "json", "svg", "ico", "csv", "ics", "webmanifest", "xml", "bin", "HTML"):
        (www / f"file.{suffix}").write_text("content")
    (folder / "secret.txt").write_bytes(SECRET)
    (folder / "www-secret").mkdir()
    (folder / "www-secret/secret.txt").write_bytes(SECRET)
    (www / ".hidden").write_bytes(SECRET)
    (www / ".git/config").write_bytes(SECRET)
    (www / "link.txt").symlink_to("../secret.txt")
    (www / "absolute.txt").symlink_to(folder / "secret.txt")
    (www / "up").symlink_to("..")
    (www / "hosts/root").symlink_to("/")
    (www / "lists/index.html").symlink_to("../../secret.txt")
    os.mkfifo(www / "pipe.txt")
    short = os.open(www, os.O_RDONLY)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{short}/socket.txt")
    finally:
        os.close(short)


def serve(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command where it cannot start."""
    command = [sys.executable, "-m", "site_builder", "serve", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def ask_site(site: StaticSite, method: str = "GET") -> bytes:
    """What the application itself answers to somebody who takes gzip."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "REQUEST_URI": "/",
        "HTTP_ACCEPT_ENCODING": "gzip",
        "wsgi.file_wrapper": lambda file: [file.read()],
    }
    return b"".join(site(environ, lambda *_: lambda _: None))
