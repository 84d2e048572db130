"""What went over HTTP while a library sent a letter: whether the receiver took it, refused it, or nobody knows."""

from __future__ import annotations

import email.utils
import json
import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from site_builder.alerts.model import Outcome

# For one connection, for one answer, and for all that one letter takes.
CONNECT, READ, LONGEST = 10.0, 20.0, 60.0
BODY = 1024 * 1024
PIECE = 64 * 1024
LONGEST_WAIT = 86400
WORDS = {
    400: "does not understand the letter",
    401: "does not accept its token or password",
    403: "does not accept its token, or forbids it",
    404: "knows no such address",
    410: "has nothing at this address any more",
    413: "finds the letter too large",
    429: "wants fewer letters",
}


class Watch:
    """All requests of one letter; once we gave up waiting, no further one is begun."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.seen: list[Outcome] = []
        self.begun = False
        self.given_up = False

    def request(self, send: Callable[..., Any], adapter: object, request: object, **more: object) -> Any:  # noqa: ANN401 of requests
        """Let one request pass, and note how it went; what the library would wait for or follow fails instead."""
        from requests import RequestException  # noqa: PLC0415 slow to import

        self.begun = True
        if self.given_up:
            raise RequestException
        try:
            response = send(adapter, request, **{**more, "timeout": more.get("timeout") or (CONNECT, READ)})
        except Exception as error:
            self.seen.append(failure(error))
            raise
        body, status = body_of(response), response.status_code
        outcome = judged(status, response.headers, body)
        self.seen.append(outcome)
        # apprise would sleep and ask again after a 429, for as long as the receiver likes
        if status == 429 or outcome.wait or 300 <= status < 400:
            raise RequestException
        return response

    def outcome(self, several: bool) -> Outcome:
        """What a letter's requests come to, where the library says that it failed; `several` if for many receivers."""
        doubtful = [one for one in self.seen if one.how == "unsure"]
        if doubtful:
            return doubtful[-1]
        if several and any(one.how == "sent" for one in self.seen):
            return Outcome("unsure", "some of the receivers in its address took it, and others did not")
        bad = [one for one in self.seen if one.how == "failed"]
        if bad:
            return bad[-1]
        # it was answered well, but in words that mean no; or nothing was asked at all
        return Outcome("unsure", "was answered in words that nobody understands") if self.seen else Outcome("failed")


WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)
LOCK = threading.Lock()


def watched() -> None:
    """Have every request of this process pass by the watch of its thread, if that has one."""
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 slow to import

    with LOCK:
        send = HTTPAdapter.send
        if getattr(send, "is_watched", False):
            return

        def passing(adapter: HTTPAdapter, request: Any, *given: Any, **more: Any) -> Any:  # noqa: ANN401 as requests has it
            watch = WATCH.get()
            if watch is None:
                return send(adapter, request, *given, **more)
            return watch.request(send, adapter, request, **dict(zip(POSITIONS, given)), **more)

        passing.is_watched = True  # type: ignore[attr-defined]
        HTTPAdapter.send = passing  # type: ignore[method-assign, assignment]


POSITIONS = ("stream", "timeout", "verify", "cert", "proxies")


def body_of(response: Any) -> bytes:  # noqa: ANN401 of requests
    """The body of an answer, as far as it is read; one that breaks off does not change what the status says."""
    body = bytearray()
    try:
        for piece in response.iter_content(PIECE):
            body += piece
            if len(body) >= BODY:
                break
    except Exception:  # whatever it is, the status has come
        body.clear()
    response.close()
    response._content, response._content_consumed = bytes(body[:BODY]), True
    return bytes(body[:BODY])


def judged(status: int, headers: Any, body: bytes) -> Outcome:  # noqa: ANN401 of requests
    """What an answer means; a gateway that got no answer itself knows no more than we do."""
    if status == 504:
        return Outcome("unsure", "answered 504: nobody knows whether it arrived behind that")
    if 200 <= status < 300:
        return (
            Outcome("failed", "refused it in its answer", wait_of(headers, body)) if says_no(body) else Outcome("sent")
        )
    if 300 <= status < 400:
        return Outcome("failed", f"answered {status}: the address leads elsewhere, which is not followed")
    words = WORDS.get(status) or ("has an error of its own" if status >= 500 else "did not take it")
    return Outcome("failed", f"{words} (HTTP {status})", wait_of(headers, body) if status in (429, 503) else None)


def says_no(body: bytes) -> bool:
    """Whether an answer that is fine as HTTP says in JSON that nothing was taken, as Slack and others do."""
    told = object_in(body)
    return told.get("ok") is False or told.get("success") is False or bool(told.get("errcode"))


def object_in(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty if it is none."""
    try:
        told = json.loads(body) if body[:1] == b"{" else None
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def wait_of(headers: Any, body: bytes) -> int | None:  # noqa: ANN401 of requests
    """How many seconds we are to wait: by the header, or as Telegram and Matrix write it."""
    told = str(headers.get("Retry-After") or "").strip()
    found = object_in(body)
    inner = found.get("parameters")
    several = [
        seconds_of(told),
        found.get("retry_after"),
        inner.get("retry_after") if isinstance(inner, dict) else None,
    ]
    millis = found.get("retry_after_ms")
    several.append(millis / 1000 if isinstance(millis, (int, float)) else None)
    seconds = next((one for one in several if isinstance(one, (int, float)) and math.isfinite(one)), None)
    return None if seconds is None else int(min(max(seconds, 1), LONGEST_WAIT))


def seconds_of(told: str) -> float | None:
    """What Retry-After says: a number, or a date."""
    if told.isascii() and told.isdigit():
        return int(told[:9])
    try:
        return email.utils.parsedate_to_datetime(told).timestamp() - time.time()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def failure(error: Exception) -> Outcome:
    """What it means that no answer came: before the connection stood nothing was sent, after that nobody knows."""
    from requests import exceptions as known  # noqa: PLC0415 slow to import

    reason = type(getattr(error.args[0] if error.args else None, "reason", None)).__name__
    if reason == "NameResolutionError":
        return Outcome("failed", "is not known on this network")
    if reason == "NewConnectionError":
        return Outcome("failed", "cannot be reached: nothing answers there")
    meanings: tuple[tuple[type[Exception], str, str], ...] = (
        (known.ReadTimeout, "unsure", "did not answer in time"),
        (known.ConnectTimeout, "failed", "cannot be reached in time"),
        (known.SSLError, "failed", "cannot be reached by TLS, or its certificate cannot be trusted"),
        (known.ProxyError, "failed", "cannot be reached by the proxy"),
        (known.ConnectionError, "unsure", "ended the connection without an answer"),
        (ValueError, "failed", "has an address that cannot be used"),  # all that requests finds wrong with one
    )
    for kind, how, why in meanings:
        if isinstance(error, kind):
            return Outcome(how, why)
    return Outcome("unsure", f"was sent to, and that broke off ({type(error).__name__})")


class Begins(Protocol):
    """A work that says whether it may have begun to send, and begins no more once it was given up."""

    begun: bool
    given_up: bool


class Asked:
    """The same for what cannot say it: it may have begun at once."""

    begun, given_up = True, False


def within(seconds: float, work: Callable[[], Outcome], sending: Begins) -> Outcome:
    """What a work comes to, in a thread for which nobody waits longer: no limit of a library ends a drip of bytes."""
    done: list[Outcome] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # a letter never costs the sender; the error's own words may hold an address
            how = "unsure" if sending.begun else "failed"
            done.append(Outcome(how, f"could not be sent to ({type(error).__name__})"))

    thread = threading.Thread(target=run, name="send", daemon=True)
    thread.start()
    thread.join(seconds)
    sending.given_up = True  # and only then looked at: either it has begun, or it sees this and never does
    return done[0] if done else Outcome("unsure" if sending.begun else "failed", f"did not end within {seconds:.0f} s")
