"""Handle booking requests: JSON in, an operation on comments.json, JSON out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from site_builder.bookings import consul_store
from site_builder.bookings.host_lookup import HostLookup
from site_builder.bookings.operations import BookOperation, ChangeOperation, Operation, parse_operation
from site_builder.bookings.policy import format_booking_places
from site_builder.bookings.request import JsonRequest
from site_builder.bookings.store import BookingStore, keep_replaced_bookings
from site_builder.bookings.times import (
    booking_time_to_epoch,
    compute_booking_phase,
    describe_repeats,
    format_booking_moment,
    is_booking_starting_soon,
    list_remaining_booking_spans,
)
from site_builder.bookings.transaction import BookingTransaction, BookingUser
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.data_folder import find_bookings_file_in_data
from site_builder.core.locks import LockedFileError
from site_builder.core.model import Booking

MAX_ATTEMPTS = 5
# A booking that ends later than this is probably mistyped.
UNUSUAL_DAYS = 366
WARNING_STATES = frozenset({"busy", "held", "conflict", "lost", "unknown"})
# Number of coming times that are listed for a repeating booking.
MAX_OCCURRENCES = 40


class BookingService:
    """Applies one operation after the other; each sees the file as it is when it has the lock."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock

    def now(self, user: BookingUser | None = None) -> Now:
        return Now(self.clock(), self.settings.zone, user.zone if user else None)

    def begin_read(self, user: BookingUser) -> BookingTransaction:
        """Read the file without the lock, for requests that change nothing."""
        booking_store = consul_store.open_consul_or_local_store(self.settings.data, self.settings.kv)
        return self.begin_transaction(booking_store, booking_store.read_unlocked(), user)

    def begin_transaction(self, booking_store: BookingStore, content: bytes, user: BookingUser) -> BookingTransaction:
        return BookingTransaction(booking_store, content, HostLookup(self.settings), self.now(user), user)

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
                    keep_replaced_bookings(self.settings.state, transaction.replaced)
                    return transaction
        path = find_bookings_file_in_data(self.settings.data)
        raise LockedFileError(f"{path} keeps being changed by others: try again")


def find_service_warnings(transaction: BookingTransaction) -> list[str]:
    """Warn of GPUs that are in use or broken when a booking begins soon, and of hosts that do not report."""
    if not transaction.entries_after:
        return []
    affected, now = transaction.affected, transaction.now
    warnings = []
    viewer_now = Now(now.epoch, now.viewer_zone)  # the reasons name times
    statuses = transaction.hosts.decide_hosts({booking.host for booking in affected}, (), viewer_now).statuses
    for host, status in statuses.items():
        if status.state != "fresh":
            warnings.append(f"{host} is {status.state}: {status.reason}")
            continue
        starting = [booking for booking in affected if is_booking_starting_soon(booking.since, now)]
        keys = {booking.gpu.lower() for booking in starting if booking.host == host}
        for gpu_status in status.gpus:
            if gpu_status.state in WARNING_STATES and keys & {"*", *gpu_status.gpu.booking_keys}:
                warnings.append(f"{host}:{gpu_status.gpu.label} is {gpu_status.state}: {gpu_status.reason}")
    return warnings


def find_unusual_values(operation: Operation, transaction: BookingTransaction) -> list[str]:
    """Describe what somebody has probably mistyped: an end more than a year ahead, a name that is not known."""
    if not (transaction.affected and isinstance(operation, (BookOperation, ChangeOperation))):
        return []
    booking, unusual = transaction.affected[0], []
    changes = operation if isinstance(operation, ChangeOperation) else None
    has_new_end = changes is None or bool(changes.times.get("until") or changes.times.get("for"))
    if has_new_end and booking_time_to_epoch(booking.until) > transaction.now.epoch + UNUSUAL_DAYS * formatting.DAY:
        end = format_booking_moment(booking.until, transaction.now, in_full=True)
        unusual.append(f"it ends more than a year from now, {end}")
    if (changes is None or changes.name) and not transaction.is_known_person(booking.name):
        unusual.append(f"no user of these hosts is known as {booking.name}")
    return unusual


def handle_service_request(service: BookingService, request: JsonRequest, user: BookingUser) -> dict[str, Any]:
    """Do what a request asks for, or with `check` say what would be done."""
    operation = parse_operation(request, service.now(user), user)
    transaction = service.execute(user, operation, is_check=request.get("check") is True)
    unusual = find_unusual_values(operation, transaction)
    response = {
        "said": transaction.message,
        "warnings": [*unusual, *find_service_warnings(transaction)],
        "bookings": show_service_bookings(transaction.affected, transaction),
    }
    optional = {"confirm": unusual, "change": transaction.change_id, "undoes": transaction.undone_change}
    return {**response, **{key: value for key, value in optional.items() if value}}


def list_service_bookings(
    transaction: BookingTransaction, host: str | None = None, person: str | None = None
) -> dict[str, Any]:
    """List the bookings that have not ended, of the fleet, a host or a person, and which are the user's own.

    With `person` (where names are hidden, whatever it is) the user's own are listed too.
    """
    now, user = transaction.now, transaction.user

    def is_of_person(booking: Booking) -> bool:
        names = {transaction.resolve_person(name) for name in (booking.name, booking.booked_by) if name}
        is_named = bool(person) and transaction.can_see_names and transaction.resolve_person(person) in names
        return is_named or transaction.is_own(booking.name, booking.booked_by)

    current = [
        stored.booking
        for stored in transaction.list_bookings()
        if (host is None or stored.booking.host == host)
        and (person is None or is_of_person(stored.booking))
        and compute_booking_phase(stored.booking, now) != "ended"
    ]
    bookings = show_service_bookings(current, transaction)
    bookings.sort(key=lambda booking: (booking["phase"] != "now", booking["from"] or "", booking["where"]))
    return {"who": user.name or None, "admin": user.is_admin, "bookings": bookings}


def group_service_bookings(bookings: Sequence[Booking], now: Now) -> list[dict[str, Any]]:
    """Return bookings for programs; those of the same id and host are one, over all its GPUs."""
    groups: dict[tuple[str, str | None], list[Booking]] = {}
    for booking in bookings:
        groups.setdefault((booking.host, booking.id), []).append(booking)
    rows = []
    for group in groups.values():
        booking = group[0]
        rrule, since, until = booking.rrule, booking.since, booking.until
        row: dict[str, Any] = {
            "id": booking.id,
            "host": booking.host,
            "gpus": [member.gpu for member in group],
            "where": format_booking_places((member.host, member.gpu) for member in group),
            "name": booking.name,
            "from": since and now.to_local(since).isoformat(timespec="seconds"),
            "date": now.to_local(until).isoformat(timespec="seconds"),
            "comment": booking.comment,
            "rrule": rrule,
            "repeats": describe_repeats(booking, now),
            "by": booking.booked_by,
            "phase": compute_booking_phase(booking, now),
        }
        if rrule:
            row["spans"] = list_remaining_booking_spans(booking, now)[:MAX_OCCURRENCES]
        rows.append(row)
    return rows


def show_service_bookings(bookings: Sequence[Booking], transaction: BookingTransaction) -> list[dict[str, Any]]:
    """Return bookings for the user: their own are marked, and where people are not named, the others are nobody's."""
    shown = group_service_bookings(bookings, transaction.now)
    for booking in shown:
        booking["mine"] = transaction.is_own(booking["name"], booking["by"])
        booking["person"] = transaction.hosts.people.display_name(booking["name"])
        if not (transaction.can_see_names or booking["mine"]):
            booking.update(id=None, name=None, person=None, comment=None, by=None)
    return shown
