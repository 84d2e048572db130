"""The desk of a board on another machine, over HTTP: the token goes to that board and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

from site_builder.bookings.policy import NotYours, Refused
from site_builder.client.model import Failed
from site_builder.core import board_client
from site_builder.core.board_client import CHECK, odd, origin

STATUS = "status.json"
WHO_ARE_YOU = "the board does not know who you are: ask its admin for a token"


class Remote:
    """A board and its desk; `status` is fetched once."""

    def __init__(self, url: str, token: str | None, login: str | None = None) -> None:
        """Where the board is, and what says who we are: a login opens the board too, and then a token has no place."""
        self.url = url
        self.token = None if login else token
        self.login = login
        self.fetched: dict[str, Any] | None = None
        self.ahead = 0.0  # by how many seconds the server's clock is before ours

    def status(self) -> dict[str, Any]:
        """status.json of the board."""
        if self.fetched is None:
            found = self.ask(urljoin(self.url, STATUS), None, with_token=False)
            if "schema" not in found or not isinstance(found.get("hosts"), list):
                message = f"{self.url}{STATUS} is not that of a gpuboard: {CHECK}"
                raise Failed(message)
            self.fetched = found
        return self.fetched

    def desk(self) -> str:
        """Where bookings are made."""
        book = self.status().get("book")
        if not isinstance(book, str) or not book:
            message = f"the board at {self.url} takes no bookings: its admin must set GPUBOARD_BOOK_URL there"
            raise Failed(message)
        place = urljoin(self.url, book)
        if origin(place) != origin(self.url):
            message = f"the board at {self.url} sends bookings to another server, and nothing was sent there"
            raise Failed(message)
        return place

    def listed(self) -> dict[str, Any]:
        """All bookings that are not over, and who we are."""
        found = self.ask(self.desk(), None)
        if not isinstance(found.get("bookings"), list):
            raise Failed(odd(self.desk()))
        return found

    def do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the desk answers to a request."""
        found = self.ask(self.desk(), json.dumps(request).encode())
        if not isinstance(found.get("said"), str) or not isinstance(found.get("bookings"), list):
            raise Failed(odd(self.desk()))
        return found

    def ask(self, url: str, body: bytes | None, with_token: bool = True) -> dict[str, Any]:
        """One request, and the object that is its answer."""
        headers = {} if body is None else {"Content-Type": "application/json", "X-Gpuboard": "1"}
        if self.token and with_token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            answer = board_client.ask(url, body, headers, self.login)
        except board_client.Refused as why:
            raise self.refused(why, url) from None
        self.ahead = answer.ahead
        return parsed(answer.content, url)

    def refused(self, why: board_client.Refused, url: str) -> Exception:
        """What an answer other than 200 means."""
        if why.asks:
            return Failed(board_client.login_refused(why, url))
        if why.status == 401:
            hint = "GPUBOARD_TOKEN is what was sent" if self.token else "GPUBOARD_TOKEN is where it belongs"
            return Failed(f"{why.said or WHO_ARE_YOU}; {hint}")
        if why.status == 403:
            return NotYours(why.said or f"{url} does not let you do that")
        if why.status == 409:
            return Refused(why.said or f"{url} refused it")
        if why.status == 429:
            return Failed(why.said or f"{url} has had too many requests: wait a minute, and try again")
        return Failed(board_client.refused(why, url))


def parsed(content: bytes, url: str) -> dict[str, Any]:
    """The object that an answer is."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Failed(odd(url))
    return found
