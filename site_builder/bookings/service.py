"""Handle booking requests: JSON in, an operation on comments.json, JSON out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from site_builder.bookings import consul_store, policy
from site_builder.bookings.gpu_selection import MAX_GPUS
from site_builder.bookings.host_lookup import HostLookup
from site_builder.bookings.operations import (
    BookOperation,
    ChangeOperation,
    Operation,
    ReleaseOperation,
    UndoOperation,
    format_operation_bookings,
)
from site_builder.bookings.policy import MAX_NAME_CHARACTERS, is_booking_starting_soon
from site_builder.bookings.request import (
    MAX_TIME_CHARACTERS,
    JsonRequest,
    UnclearRequestError,
    is_check_request,
    parse_request_end_fields,
    parse_request_kind,
    parse_request_text_field,
    parse_request_text_list,
    parse_request_time_field,
)
from site_builder.bookings.store import BookingStore
from site_builder.bookings.transaction import BookingTransaction, BookingUser
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.files import find_bookings_file
from site_builder.core.locks import StorageError
from site_builder.core.model import RUN_ID_PREFIX, Booking
from site_builder.core.timeparse import recurrence

MAX_ATTEMPTS = 5
WARNING_STATES = frozenset({"busy", "held", "conflict", "lost", "unknown"})
MAX_COMMENT_CHARACTERS = 500
# Number of coming times that are listed for a repeating booking.
MAX_OCCURRENCES = 40
REQUEST_KEYS = {
    "book": {"gpus", "any", "model", "from", "until", "for", "name", "comment", "rrule", "run", "check"},
    "change": {"id", "host", "from", "until", "for", "name", "comment", "check"},
    "release": {"id", "host", "gpus", "check"},
    "undo": {"undoes", "check"},
}
RUN_ID = re.compile(rf"{RUN_ID_PREFIX}[a-z0-9]{{6,20}}")


class BookingService:
    """Applies one operation after the other; each sees the file as it is when it has the lock."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock

    def now(self) -> Now:
        return Now(self.clock(), self.settings.zone)

    def begin_read(self, user: BookingUser) -> BookingTransaction:
        """Read the file without the lock, for a user who only looks."""
        booking_store = consul_store.open_consul_or_local_store(self.settings.data, self.settings.kv)
        return self.begin_transaction(booking_store, booking_store.read_unlocked(), user)

    def begin_transaction(self, booking_store: BookingStore, content: bytes, user: BookingUser) -> BookingTransaction:
        hosts = HostLookup(self.settings)
        return BookingTransaction(booking_store, content, hosts, self.now(), self.settings.booking_policy, user)

    def execute(self, user: BookingUser, operation: Operation, is_check: bool = False) -> BookingTransaction:
        """Apply an operation under the lock, log it and write the file; with `is_check`, only say what it would do."""
        if is_check:
            transaction = self.begin_read(user)
            transaction.message = operation.apply(transaction)
            return transaction
        for _ in range(MAX_ATTEMPTS):
            with consul_store.hold_consul_booking_lock(self.settings.data, self.settings.kv) as booking_store:
                transaction = self.begin_transaction(booking_store, booking_store.read(), user)
                transaction.message = operation.apply(transaction)
                if transaction.commit(operation.kind):
                    return transaction
        path = find_bookings_file(self.settings.data)
        raise StorageError(f"{path} was changed by others {MAX_ATTEMPTS} times meanwhile: try again")


def find_service_warnings(transaction: BookingTransaction) -> list[str]:
    """Warn of GPUs that are in use or broken when a booking begins soon, and of hosts that do not report."""
    if not transaction.entries_after:
        return []
    affected, now = transaction.affected, transaction.now
    warnings = []
    statuses = transaction.hosts.decide_hosts({booking.host for booking in affected}, (), now).statuses
    for host, status in statuses.items():
        if status.state != "fresh":
            warnings.append(f"{host} is {status.state}: {status.reason}")
            continue
        keys = {
            booking.gpu.lower()
            for booking in affected
            if booking.host == host and is_booking_starting_soon(booking.since, now)
        }
        for gpu_status in status.gpus:
            if gpu_status.state in WARNING_STATES and keys & {"*", *gpu_status.gpu.booking_keys}:
                warnings.append(f"{host}:{gpu_status.gpu.label} is {gpu_status.state}: {gpu_status.reason}")
    return warnings


def handle_service_request(service: BookingService, request: JsonRequest, user: BookingUser) -> dict[str, Any]:
    """Do what a request asks for, or with `check` say what would be done."""
    operation = parse_operation(request, service.now(), user)
    transaction = service.execute(user, operation, is_check_request(request))
    response = {
        "said": transaction.message,
        "warnings": find_service_warnings(transaction),
        "bookings": show_service_bookings(transaction.affected, transaction),
    }
    return {**response, "undoes": transaction.undone_change} if transaction.undone_change else response


def parse_operation(request: JsonRequest, now: Now, user: BookingUser) -> Operation:
    """Turn a request into the operation that it asks for."""
    kind = parse_request_kind(request, REQUEST_KEYS)
    if kind == "book":
        return parse_book_operation(request, now, user)
    if kind == "undo":
        return UndoOperation(parse_request_text_field(request, "undoes", MAX_NAME_CHARACTERS) or None)
    booking_id = parse_request_text_field(request, "id", MAX_NAME_CHARACTERS)
    host = parse_request_text_field(request, "host", MAX_NAME_CHARACTERS) or None
    if kind == "release":
        targets = parse_request_text_list(request, "gpus")
        if bool(booking_id) == bool(targets):
            raise UnclearRequestError("which booking? Give its `id`, or the GPUs")
        return ReleaseOperation(booking_id, host, targets)
    has_comment = request.get("comment") is not None
    return ChangeOperation(
        booking_id=booking_id,
        host=host,
        times={key: parse_request_text_field(request, key, MAX_TIME_CHARACTERS) for key in ("from", "until", "for")},
        name=parse_request_text_field(request, "name", MAX_NAME_CHARACTERS) or None,
        comment=parse_request_text_field(request, "comment", MAX_COMMENT_CHARACTERS) if has_comment else None,
    )


def parse_book_operation(request: JsonRequest, now: Now, user: BookingUser) -> BookOperation:
    since = parse_request_time_field(request, "from", now) or now.local.replace(second=0, microsecond=0)
    until = parse_request_end_fields(request, since, now)
    if until is None:
        raise UnclearRequestError("until when? Give `until` or `for`")
    rrule = parse_request_text_field(request, "rrule", MAX_COMMENT_CHARACTERS)
    if rrule:
        rrule, fault = recurrence.parse_rrule(rrule, now.zone)
        if fault:
            raise UnclearRequestError(f'the rrule "{request["rrule"]}" {fault}')
        first = policy.find_first_booking_time(rrule, since)
        if first is None:
            raise UnclearRequestError("it would not happen once within a year")
        since, until = first, first + (until - since)
    run_id = parse_request_text_field(request, "run", MAX_NAME_CHARACTERS)
    if run_id and not RUN_ID.fullmatch(run_id):
        raise UnclearRequestError(f"`run` must be an id such as {RUN_ID_PREFIX}b2c3d4")
    targets = parse_request_text_list(request, "gpus")
    count = request.get("any")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_GPUS):
        raise UnclearRequestError("`any` must be a number of GPUs")
    if bool(targets) == bool(count):
        raise UnclearRequestError("which GPU? Name a host, or some of its GPUs such as atlas:0,1, or give `any`")
    wanted = Booking(
        host="",
        gpu="",
        name=parse_request_text_field(request, "name", MAX_NAME_CHARACTERS) or user.name,
        until=until,
        since=since,
        comment=parse_request_text_field(request, "comment", MAX_COMMENT_CHARACTERS),
        rrule=rrule or None,
    )
    model = parse_request_text_field(request, "model", MAX_NAME_CHARACTERS)
    return BookOperation(wanted, targets, count or 0, model, run_id or None)


def list_service_bookings(service: BookingService, user: BookingUser, host: str | None = None) -> dict[str, Any]:
    return build_service_booking_list(service.begin_read(user), host)


def build_service_booking_list(transaction: BookingTransaction, host: str | None = None) -> dict[str, Any]:
    """List the bookings that have not ended, of the fleet or of a host, and which are the user's own."""
    now, user = transaction.now, transaction.user
    current = [
        stored.booking
        for stored in transaction.list_bookings()
        if (host is None or stored.booking.host == host)
        and policy.compute_booking_phase(stored.booking, now) != "ended"
    ]
    bookings = show_service_bookings(current, transaction)
    bookings.sort(key=lambda booking: (booking["phase"] != "now", booking["from"] or "", booking["where"]))
    return {"who": user.name or None, "admin": user.is_admin, "bookings": bookings}


def group_service_bookings(bookings: Sequence[Booking], now: Now) -> list[dict[str, Any]]:
    """Return bookings for programs; those of the same id and host are one, over all its GPUs."""
    groups: dict[tuple[str, str | None], list[Booking]] = {}
    for booking in bookings:
        groups.setdefault((booking.host, booking.id), []).append(booking)
    return [booking_to_json(group, now) for group in groups.values()]


def booking_to_json(group: Sequence[Booking], now: Now) -> dict[str, Any]:
    booking = group[0]
    rrule, since, until = booking.rrule, booking.since, booking.until
    return {
        "id": booking.id,
        "host": booking.host,
        "gpus": [member.gpu for member in group],
        "where": format_operation_bookings(group),
        "name": booking.name,
        "from": since and now.to_local(since).isoformat(timespec="seconds"),
        "date": now.to_local(until).isoformat(timespec="seconds"),
        "comment": booking.comment,
        "rrule": rrule,
        "repeats": recurrence.describe_recurrence_hours(rrule, since, until, now.zone) if rrule and since else None,
        "by": booking.booked_by,
        "phase": policy.compute_booking_phase(booking, now),
        **({"spans": policy.list_remaining_booking_spans(booking, now)[:MAX_OCCURRENCES]} if rrule else {}),
    }


def show_service_bookings(bookings: Sequence[Booking], transaction: BookingTransaction) -> list[dict[str, Any]]:
    """Return bookings for the user: their own are marked, and where people are not named, the others are nobody's."""
    shown = group_service_bookings(bookings, transaction.now)
    for booking in shown:
        booking["mine"] = transaction.is_own(booking["name"], booking["by"])
        if not (transaction.can_see_names or booking["mine"]):
            booking.update(id=None, name=None, comment=None, by=None)
    return shown
