"""The booking service as a web application, and who asks it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from site_builder.core.model import BookingPolicy, PrivacySettings
from site_builder.web.booking_app import (
    BookingApplication,
)
from tests.support.board_fixture import Lab, gpu

NOW = 1_900_000_000.0


BOOK = {"do": "book", "gpus": ["atlas:0"], "for": "2h"}


LOGIN: dict[str, Any] = {"AUTH_TYPE": "Basic", "REMOTE_USER": "alice"}


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    said: dict[str, Any]

    @property
    def error(self) -> str:
        return str(self.said["error"])


class Web:
    """The application in a lab, at a moment that a test sets."""

    def __init__(self, folder: Path, **changes: Any) -> None:  # noqa: ANN401
        self.lab = Lab(folder)
        self.lab.host("atlas", gpu(0) + gpu(1))
        self.time = NOW
        self.told: list[str] = []
        self.set(**changes)

    def set(self, shown: PrivacySettings | None = None, url: str | None = None, **rules: Any) -> None:  # noqa: ANN401
        settings = self.lab.settings(
            privacy=shown or PrivacySettings(), url=url, booking_policy=BookingPolicy(url="book", **rules)
        )
        self.app = BookingApplication(settings, self.told.append, lambda: self.time)

    def ask(self, method: str, body: bytes = b"", /, **environ: str | None) -> Got:
        """A request as a WSGI server hands it over; what is None is left out."""
        plain: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "REMOTE_ADDR": "192.0.2.7",
            "HTTP_HOST": "web:8080",
            "QUERY_STRING": "",
            "wsgi.input": io.BytesIO(body),
            **environ,
        }
        heard: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
            heard.append((status, headers))
            return lambda _: None

        wsgi_environ = {key: value for key, value in plain.items() if value is not None}
        answer = b"".join(self.app(wsgi_environ, start))
        ((status, headers),) = heard
        return Got(int(status[:3]), dict(headers), json.loads(answer) if answer else {})

    def get(self, query: str = "", **environ: str | None) -> Got:
        return self.ask("GET", QUERY_STRING=query, **environ)

    def post(self, request: object = BOOK, **environ: str | None) -> Got:
        body = request if isinstance(request, bytes) else orjson.dumps(request)
        right = {
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_X_GPUBOARD": "1",
        }
        return self.ask("POST", body, **{**right, **environ})

    def names(self) -> list[str]:
        """Who has booked something, by the file."""
        path = self.lab.data / "comments.json"
        hosts = json.loads(path.read_text()) if path.exists() else {}
        return [booking["name"] for gpus in hosts.values() for booking in gpus.values()]

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.lab.data / "bookings.log").read_text().splitlines()]
