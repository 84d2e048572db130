"""Where a command books: in a data folder of this machine, or on a board over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Union
from urllib.parse import urljoin

from site_builder.bookings import archive, consul_store, parser, service
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.config.settings import LoadedSettings, Settings
from site_builder.core import board_client
from site_builder.core.board_client import CHECK_URL_HINT, describe_unexpected_board_response, parse_board_origin
from site_builder.core.command_options import CommandError, print_cleartext_warning, print_command_message
from site_builder.core.data_folder import find_bookings_file_in_data
from site_builder.core.model import FleetUnavailableError
from site_builder.core.people import fold_login
from site_builder.snapshots.local_machine import find_local_login, find_local_login_by_uid

STATUS_FILE = "status.json"
MAX_STATUS_AGE_S = 600
BookingResponse = dict[str, Any]


class LocalBookingBackend:
    """Bookings in a data folder of this machine."""

    clock_ahead_s = 0.0

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.service = BookingService(settings)
        self.user = identify_backend_user(settings)

    def send(self, request: Mapping[str, Any]) -> BookingResponse:
        return service.handle_service_request(self.service, request, self.user)

    def list_bookings(self) -> BookingResponse:
        return service.list_service_bookings(self.service.begin_read(self.user))

    def read_status(self) -> BookingResponse:
        """Return status.json of the site, if it was built in the last minutes."""
        try:
            status: BookingResponse = json.loads((self.settings.www / STATUS_FILE).read_bytes())
            is_fresh = status["built"] > self.service.clock() - MAX_STATUS_AGE_S
        except (OSError, ValueError, TypeError, KeyError):
            return {}
        return status if is_fresh else {}

    def list_problems(self) -> list[str]:
        content = consul_store.open_consul_or_local_store(self.settings.data, self.settings.kv).read_unlocked()
        path = find_bookings_file_in_data(self.settings.data)
        return [f"{path}: {problem}" for problem in parser.parse_bookings(content, self.settings.zone).problems]


class RemoteBookingBackend:
    """Bookings of a board on another machine; the token is sent to that board and nowhere else."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.settings, self.url = settings, url
        self.token = None if settings.login else settings.token  # both would need the same header
        self.clock_ahead_s = 0.0  # as the last response showed
        self.cached_status: BookingResponse | None = None
        self.has_open_booking: bool | None = None
        self.was_zone_reported = False
        if self.token:
            print_cleartext_warning(url, "token")

    def send(self, request: Mapping[str, Any]) -> BookingResponse:
        """Send a request; print a note if the board is in another time zone."""
        if self.has_open_booking is None and not self.settings.token:
            self.list_bookings()
        if self.has_open_booking:  # the board takes any name for granted
            request = {**request, "as": find_backend_person()}
        url = self.find_booking_url()
        response = self.request_json(url, json.dumps(request).encode())
        if not isinstance(response.get("said"), str) or not isinstance(response.get("bookings"), list):
            raise FleetUnavailableError(describe_unexpected_board_response(url))
        if not self.was_zone_reported:
            self.was_zone_reported = True
            for booking in response["bookings"][:1]:
                moment = datetime.fromisoformat(booking["date"])
                if moment.utcoffset() != moment.astimezone(self.settings.zone).utcoffset():
                    print_command_message(f"the board's time zone is {moment:%z}; its times are in that zone")
        return response

    def list_bookings(self) -> BookingResponse:
        """List the bookings; on an open board, mark as own those of the login here."""
        url = self.find_booking_url()
        response = self.request_json(url, None)
        if not isinstance(response.get("bookings"), list):
            raise FleetUnavailableError(describe_unexpected_board_response(url))
        self.has_open_booking = response.get("how") == "open"
        if self.has_open_booking:
            response["who"] = find_backend_person()
            for booking in response["bookings"]:
                booking["mine"] = response["who"] in (booking["name"], booking["by"])
        return response

    def read_status(self) -> BookingResponse:
        """Return status.json of the board, which is fetched once."""
        if self.cached_status is None:
            status = self.request_json(urljoin(self.url, STATUS_FILE), None, with_token=False)
            if "schema" not in status or not isinstance(status.get("hosts"), list):
                raise FleetUnavailableError(f"{self.url}{STATUS_FILE} is not from a gpuboard: {CHECK_URL_HINT}")
            self.cached_status = status
        return self.cached_status

    def list_problems(self) -> list[str]:
        return [
            f"{problem['where']}: {problem['what']}"
            for problem in self.read_status().get("problems") or []
            if problem.get("where") == "data/comments.json"
        ]

    def find_booking_url(self) -> str:
        book = self.read_status().get("book")
        if not isinstance(book, str) or not book:
            message = f"the board at {self.url} takes no bookings: its admin must set GPUBOARD_BOOK_URL there"
            raise FleetUnavailableError(message)
        url = urljoin(self.url, book)
        if parse_board_origin(url) != parse_board_origin(self.url):
            message = f"the board at {self.url} sends bookings to another server; nothing was sent there"
            raise FleetUnavailableError(message)
        return url

    def request_json(self, url: str, body: bytes | None, with_token: bool = True) -> BookingResponse:
        headers = {} if body is None else {"Content-Type": "application/json", "X-Gpuboard": "1"}
        if self.token and with_token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            response = board_client.send_board_request(url, body, headers, self.settings.login)
        except board_client.BoardResponseError as error:
            raise self.translate_error(error, url) from None
        self.clock_ahead_s = response.clock_ahead_s
        try:
            content = json.loads(response.content)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise FleetUnavailableError(describe_unexpected_board_response(url))
        return content

    def translate_error(self, error: board_client.BoardResponseError, url: str) -> Exception:
        if error.status == 401 and not error.is_login_required:
            message = error.message or "the board does not know who you are: ask its admin for a token"
            hint = "GPUBOARD_TOKEN was sent" if self.token else "set GPUBOARD_TOKEN to it"
            return FleetUnavailableError(f"{message}; {hint}")
        if error.status == 403:
            return BookingForbiddenError(error.message or f"{url} does not let you do that")
        if error.status == 409:
            return BookingRefusedError(error.message or f"{url} refused it")
        if error.status == 429:
            message = f"{url} received too many requests: wait a minute, and try again"
            return FleetUnavailableError(error.message or message)
        return error


BookingBackend = Union[LocalBookingBackend, RemoteBookingBackend]


def find_backend_login() -> str:
    """Return the login of the real user, since $USER may be anything."""
    login = find_local_login_by_uid(os.getuid())
    if login is None:
        message = f"this machine has no login for user {os.getuid()}, but a booking needs a name"
        raise CommandError(f"{message}: book through GPUBOARD_URL with a token")
    return login


def find_backend_person() -> str:
    """Return the login of the user, and behind sudo that of the person."""
    return find_local_login() or find_backend_login()


def identify_backend_user(settings: Settings) -> BookingUser:
    """Return who books on this machine: root is an admin, and behind sudo a person."""
    login, sudo_login = find_backend_login(), os.environ.get("SUDO_USER", "")
    if os.getuid() != 0:
        return BookingUser(login, is_admin=fold_login(login) in settings.booking_policy.admins)
    if sudo_login not in ("", "root"):
        return BookingUser(sudo_login, is_admin=True, via="sudo")
    return BookingUser(login, is_admin=True)


def open_booking_backend(
    loaded: LoadedSettings, local_class: type[LocalBookingBackend] = LocalBookingBackend
) -> BookingBackend:
    """Choose where to book: --url, a data folder that was set, GPUBOARD_URL, or data/ here."""
    settings = loaded.settings
    data, url = loaded.given["GPUBOARD_DATA"], loaded.given["GPUBOARD_URL"]
    is_data_set = data.origin != "default" and not data.was_empty
    if settings.url and (url.origin == "--url" or not is_data_set):
        return RemoteBookingBackend(settings, settings.url)
    if not settings.data.is_dir():
        folder = settings.data.absolute()
        message = f"there is no board here ({folder}), and none is set"
        if is_data_set:
            message = f"there is no folder {folder}"
        raise CommandError(f"{message}: set GPUBOARD_DATA to its data folder, or GPUBOARD_URL to its address")
    return local_class(settings)


class ArchivedBookingBackend(LocalBookingBackend):
    """The bookings that left comments.json, which only the machine of the builder has."""

    def list_bookings(self) -> BookingResponse:
        """List the archived bookings, the newest first."""
        transaction = self.service.begin_read(self.user)
        with self.translate_errors():
            archived = [entry.booking for entry in archive.read_archive(self.settings)]
        return {"who": self.user.name or None, "bookings": service.show_service_bookings(archived, transaction)}

    def send(self, request: Mapping[str, Any]) -> BookingResponse:
        """Restore bookings, or with `check` say what would be done."""
        is_check = request.get("check") is True
        with self.translate_errors():
            archived = archive.read_archive(self.settings)
            operation = archive.ArchiveRestoreOperation(self.settings, archived, str(request["id"]), is_check)
            transaction = self.service.execute(self.user, operation, is_check)
            warnings = service.find_service_warnings(transaction)
        restored = service.group_service_bookings(transaction.affected, transaction.now)
        return {"said": transaction.message, "warnings": warnings, "bookings": restored}

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = error.filename or self.settings.state
            raise CommandError(f"{where} cannot be used: {error.strerror}; run this as the user who builds") from None
