"""Notifications, transports and receivers for tests of the sender."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from site_builder.alerts.model import Alert, AlertMessage, AlertState, DeliveryOutcome, Notification
from site_builder.alerts.store import AlertStore

PATIENCE = 60


def alert(number: int = 1, rule: str = "host-down") -> Alert:
    return Alert(f"a{number}", rule, "begun", f"atlas{number} is down", "no snapshot", 1000, host=f"atlas{number}")


def build_notification(number: int = 1, to: str = "channel:lab", made: int = 1000, **overrides: object) -> Notification:
    return Notification(f"l{number}", to, (alert(number),), made, made)._replace(**overrides)  # type: ignore[arg-type]


def build_state(*notifications: Notification) -> AlertState:
    return AlertState(started_at=900, notifications=notifications)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class FakeTransport:
    """Returns the given outcomes, then `sent`, and remembers what was sent."""

    def __init__(self, *outcomes: DeliveryOutcome) -> None:
        self.outcomes = list(outcomes)
        self.sent: list[str] = []

    def send(self, notification: Notification, message: AlertMessage) -> DeliveryOutcome:
        assert message.title
        self.sent.append(notification.id)
        return self.outcomes.pop(0) if self.outcomes else DeliveryOutcome("sent")


class Receiver(ThreadingHTTPServer):
    """A real web server that gives the `answers`, then 200.

    A status of 0 means no answer until the end of the test, -1 a 200 once `goes_on` is set.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.got: list[bytes] = []
        self.ends, self.goes_on = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
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
        pass


@contextmanager
def run_receiver() -> Iterator[Receiver]:
    """Run a web server."""
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


def store_state(state: Path, content: AlertState) -> AlertStore:
    """Store an alert state, and return the store."""
    store = AlertStore(state)
    store.change(lambda _: content)
    return store
