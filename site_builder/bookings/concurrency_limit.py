"""The door of the desk where one process serves the board too: whoever books never keeps a reader waiting."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Semaphore
from typing import TYPE_CHECKING

from site_builder.bookings.web import SOON, sent

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# Of the server's 64 threads, so many work at the desk at once, and so many more wait, a class that books at the same
# moment; the others are left for the board.
AT_ONCE, WAITING = 4, 44
PATIENCE = 15.0
FULL = "too many are at the desk just now: try again in a moment"


class Door:
    """A WSGI application that lets few into another at a time."""

    def __init__(self, inner: WSGIApplication, patience: float = PATIENCE) -> None:
        """Before that application; who waits for longer than `patience` in seconds is sent away."""
        self.inner = inner
        self.patience = patience
        self.room = Semaphore(AT_ONCE + WAITING)
        self.places = Semaphore(AT_ONCE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One answer."""
        if not self.room.acquire(blocking=False):
            return full(environ, start_response)
        try:
            if not self.places.acquire(timeout=self.patience):
                return full(environ, start_response)
            try:
                return self.inner(environ, start_response)
            finally:
                self.places.release()
        finally:
            self.room.release()


def full(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """What those get for whom there is no place."""
    return sent(environ, start_response, 503, {"error": FULL}, SOON)
