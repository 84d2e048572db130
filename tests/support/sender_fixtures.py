"""Letters, and those who carry and get them, for the tests of the post office."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from site_builder.alerts.model import Alert, AlertState, DeliveryOutcome, Message, Notification
from site_builder.alerts.store import AlertStore

PATIENCE = 60


def alert(number: int = 1, rule: str = "host-down") -> Alert:
    """That a host is down."""
    return Alert(f"a{number}", rule, "begun", f"atlas{number} is down", "no snapshot", 1000, host=f"atlas{number}")


def letter(number: int = 1, to: str = "channel:lab", made: int = 1000, **more: object) -> Notification:
    """A letter with one alert in it."""
    return Notification(f"l{number}", to, (alert(number),), made, made)._replace(**more)  # type: ignore[arg-type]


def book(*letters: Notification) -> AlertState:
    """A book with letters."""
    return AlertState(started_at=900, notifications=letters)


def waits_for(what: Callable[[], object]) -> None:
    """Wait until it is so."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Carrier:
    """Ways that do what a test says, and remember what they carried."""

    def __init__(self, *outcomes: DeliveryOutcome) -> None:
        self.outcomes = list(outcomes)
        self.sent: list[str] = []

    def send(self, letter: Notification, message: Message) -> DeliveryOutcome:
        assert message.title
        self.sent.append(letter.id)
        return self.outcomes.pop(0) if self.outcomes else DeliveryOutcome("sent")


class Receiver(ThreadingHTTPServer):
    """A real web server; `answers` are what it says one after the other, then 200.

    To a 0 it says nothing until it ends, and to a -1 that all is well, when it goes on.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.got: list[bytes] = []
        self.ends, self.goes_on = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        """As apprise has it."""
        return f"json://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    """One request."""

    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, headers = self.server.answers.pop(0) if self.server.answers else (200, {})
        if status < 400:
            self.server.got.append(body)
        if status == 0:
            self.server.ends.wait()
            return
        if status == -1:
            self.server.goes_on.wait(PATIENCE)
        self.send_response(status if status > 0 else 200)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def receiver() -> Iterator[Receiver]:
    """One that listens."""
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ends.set()
        server.shutdown()
        server.server_close()
        thread.join()


def put(state: Path, content: AlertState) -> AlertStore:
    """A book in a file."""
    found = AlertStore(state)
    found.change(lambda _: content)
    return found
