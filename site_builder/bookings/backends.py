"""The desk of a board on another machine, over HTTP: the token goes to that board and nowhere else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urljoin

from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.core import board_client
from site_builder.core.board_client import (
    CHECK_URL_HINT,
    FleetUnavailableError,
    describe_unexpected_response,
    parse_origin,
)
from site_builder.core.command_options import CommandError, print_message

if TYPE_CHECKING:
    from site_builder.bookings.transaction import BookingUser
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.config.settings import Settings

STATUS_FILE = "status.json"
BookingResponse = dict[str, Any]
UNKNOWN_USER_MESSAGE = "the board does not know who you are: ask its admin for a token"


class RemoteBoard:
    """A board and its desk; `status` is fetched once."""

    def __init__(self, url: str, token: str | None, login: str | None = None) -> None:
        """Where the board is, and what says who we are: a login opens the board too, and then a token has no place."""
        self.url = url
        self.token = None if login else token
        self.login = login
        self.cached_status: dict[str, Any] | None = None
        self.clock_ahead_s = 0.0  # by how many seconds the server's clock is before ours

    def read_status(self) -> dict[str, Any]:
        """status.json of the board."""
        if self.cached_status is None:
            found = self.request_json(urljoin(self.url, STATUS_FILE), None, with_token=False)
            if "schema" not in found or not isinstance(found.get("hosts"), list):
                message = f"{self.url}{STATUS_FILE} is not that of a gpuboard: {CHECK_URL_HINT}"
                raise FleetUnavailableError(message)
            self.cached_status = found
        return self.cached_status

    def find_booking_url(self) -> str:
        """Where bookings are made."""
        book = self.read_status().get("book")
        if not isinstance(book, str) or not book:
            message = f"the board at {self.url} takes no bookings: its admin must set GPUBOARD_BOOK_URL there"
            raise FleetUnavailableError(message)
        place = urljoin(self.url, book)
        if parse_origin(place) != parse_origin(self.url):
            message = f"the board at {self.url} sends bookings to another server, and nothing was sent there"
            raise FleetUnavailableError(message)
        return place

    def list_bookings(self) -> dict[str, Any]:
        """All bookings that are not over, and who we are."""
        found = self.request_json(self.find_booking_url(), None)
        if not isinstance(found.get("bookings"), list):
            raise FleetUnavailableError(describe_unexpected_response(self.find_booking_url()))
        return found

    def send(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the desk answers to a request."""
        found = self.request_json(self.find_booking_url(), json.dumps(request).encode())
        if not isinstance(found.get("said"), str) or not isinstance(found.get("bookings"), list):
            raise FleetUnavailableError(describe_unexpected_response(self.find_booking_url()))
        return found

    def request_json(self, url: str, body: bytes | None, with_token: bool = True) -> dict[str, Any]:
        """One request, and the object that is its answer."""
        headers = {} if body is None else {"Content-Type": "application/json", "X-Gpuboard": "1"}
        if self.token and with_token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            answer = board_client.send_board_request(url, body, headers, self.login)
        except board_client.BoardResponseError as why:
            raise self.build_error(why, url) from None
        self.clock_ahead_s = answer.clock_ahead_s
        return parse_json_object(answer.content, url)

    def build_error(self, why: board_client.BoardResponseError, url: str) -> Exception:
        """What an answer other than 200 means."""
        if why.is_login_required:
            return FleetUnavailableError(board_client.describe_login_error(why, url))
        if why.status == 401:
            hint = "GPUBOARD_TOKEN is what was sent" if self.token else "GPUBOARD_TOKEN is where it belongs"
            return FleetUnavailableError(f"{why.message or UNKNOWN_USER_MESSAGE}; {hint}")
        if why.status == 403:
            return BookingForbiddenError(why.message or f"{url} does not let you do that")
        if why.status == 409:
            return BookingRefusedError(why.message or f"{url} refused it")
        if why.status == 429:
            return FleetUnavailableError(
                why.message or f"{url} has had too many requests: wait a minute, and try again"
            )
        return FleetUnavailableError(board_client.describe_response_error(why, url))


def parse_json_object(content: bytes, url: str) -> dict[str, Any]:
    """The object that an answer is."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FleetUnavailableError(describe_unexpected_response(url))
    return found


MAX_STATUS_AGE_S = 600


class BookingBackend(Protocol):
    """Where bookings are made."""

    settings: Settings

    @property
    def clock_ahead_s(self) -> float:
        """By how many seconds its clock is ahead of ours."""

    def send(self, request: Mapping[str, Any]) -> BookingResponse:
        """What is answered to a request."""

    def list_bookings(self) -> BookingResponse:
        """All bookings that are not over."""

    def read_status(self) -> BookingResponse:
        """The fleet as the board tells it; {} where it does not."""

    def list_problems(self) -> list[str]:
        """What is wrong in comments.json."""


class LocalBookings:
    """A data folder of this machine."""

    clock_ahead_s = 0.0

    def __init__(self, settings: Settings) -> None:
        """Whose bookings."""
        from site_builder.bookings.service import BookingService  # noqa: PLC0415 # --help needs none of it

        self.settings = settings
        self.service = BookingService(settings)
        self.user = identify_local_user(settings)

    def send(self, request: Mapping[str, Any]) -> BookingResponse:
        """Do it, with the lock."""
        from site_builder.bookings import api  # noqa: PLC0415

        return api.handle_request(self.service, request, self.user)

    def list_bookings(self) -> BookingResponse:
        """As the file has them."""
        from site_builder.bookings import api  # noqa: PLC0415

        return api.list_bookings(self.service, self.user)

    def read_status(self) -> BookingResponse:
        """That of the site, if it is of the last minutes."""
        import json  # noqa: PLC0415

        try:
            found = json.loads((self.settings.www / "status.json").read_bytes())
            fresh = found["built"] > self.service.clock() - MAX_STATUS_AGE_S
        except (OSError, ValueError, TypeError, KeyError):
            return {}
        return found if fresh else {}

    def list_problems(self) -> list[str]:
        """Each with its line."""
        from site_builder.bookings import consul_store, parser  # noqa: PLC0415
        from site_builder.core.files import find_bookings_file  # noqa: PLC0415

        content = consul_store.open_booking_store(self.settings.data, self.settings.kv).read_unlocked()
        path = find_bookings_file(self.settings.data)
        return [f"{path}: {one}" for one in parser.parse_bookings(content, self.settings.zone).problems]


class RemoteBookings:
    """A board on another machine."""

    def __init__(self, settings: Settings, url: str) -> None:
        """Where it is."""
        from site_builder.core import board_client  # noqa: PLC0415

        self.settings = settings
        self.board = RemoteBoard(url, settings.token, settings.login)
        self.has_open_booking: bool | None = None
        self.was_zone_reported = False
        if self.board.token and board_client.is_cleartext_url(url):
            print_message(f"your token crosses the network in the clear: {url} should be https")

    @property
    def clock_ahead_s(self) -> float:
        """As its last answer told."""
        return self.board.clock_ahead_s

    def send(self, request: Mapping[str, Any]) -> BookingResponse:
        """Ask for it; a board in another zone than ours says so."""
        found = self.board.send({**request, "as": find_person_login()} if self.is_open() else request)
        if not self.was_zone_reported:
            self.was_zone_reported = True
            self.report_zone(found)
        return found

    def report_zone(self, answer: BookingResponse) -> None:
        """The board's times are those of its own zone."""
        for one in answer["bookings"][:1]:
            moment = datetime.fromisoformat(one["date"])
            if moment.utcoffset() != moment.astimezone(self.settings.zone).utcoffset():
                print_message(f"the board's clock is at {moment:%z}, and so are the times that it says")

    def list_bookings(self) -> BookingResponse:
        """As the board tells them."""
        found = self.board.list_bookings()
        self.has_open_booking = found.get("how") == "open"
        if self.has_open_booking:
            found["who"] = find_person_login()
            for one in found["bookings"]:
                one["mine"] = found["who"] in (one["name"], one["by"])
        return found

    def read_status(self) -> BookingResponse:
        """That of the board."""
        return self.board.read_status()

    def list_problems(self) -> list[str]:
        """As the board tells them."""
        several = self.read_status().get("problems") or []
        return [f"{one['where']}: {one['what']}" for one in several if one.get("where") == "data/comments.json"]

    def describe_odd_response(self) -> str:
        """What is said of an answer that no gpuboard gives."""
        from site_builder.core import board_client  # noqa: PLC0415

        return board_client.describe_unexpected_response(self.board.url)

    def is_open(self) -> bool:
        """Whether everybody is there whom they say; then we are whom we are here."""
        if self.has_open_booking is None:
            self.has_open_booking = not self.settings.token and self.board.list_bookings().get("how") == "open"
        return self.has_open_booking


def find_own_login() -> str:
    """The login of the real user: $USER is whatever somebody sets."""
    import pwd  # noqa: PLC0415 # rarely needed

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        why = f"this machine has no login for user {os.getuid()}, and a booking needs a name"
        raise CommandError(f"{why}: book through GPUBOARD_URL with a token") from None


def find_person_login() -> str:
    """The same, and behind sudo the person."""
    from site_builder.client import loader  # noqa: PLC0415 # rarely needed

    return loader.find_login() or find_own_login()


def identify_local_user(settings: Settings) -> BookingUser:
    """Who books on this machine: root is an admin, and behind sudo stands a person."""
    from site_builder.bookings.transaction import BookingUser  # noqa: PLC0415
    from site_builder.core.names import fold_login  # noqa: PLC0415

    name, sudo = find_own_login(), os.environ.get("SUDO_USER", "")
    if os.getuid() == 0:
        return (
            BookingUser(sudo, is_admin=True, via="sudo")
            if sudo not in ("", "root")
            else BookingUser(name, is_admin=True)
        )
    return BookingUser(name, is_admin=fold_login(name) in settings.booking_policy.admins)


def open_booking_backend(loaded: LoadedSettings) -> BookingBackend:
    """Where to book: --url, the data folder that somebody named, GPUBOARD_URL, or data/ here."""
    settings = loaded.settings
    data, url = loaded.given["GPUBOARD_DATA"], loaded.given["GPUBOARD_URL"]
    named = data.origin != "default" and not data.was_empty
    if settings.url and (url.origin == "--url" or not named):
        return RemoteBookings(settings, settings.url)
    if not settings.data.is_dir():
        where = settings.data.absolute()
        message = f"there is no folder {where}"
        if not named:
            message = f"there is no board here ({where}), and none is named"
        raise CommandError(f"{message}: set GPUBOARD_DATA to its data folder, or GPUBOARD_URL to its address")
    return LocalBookings(settings)
