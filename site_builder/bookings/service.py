"""Apply operations to comments.json: lock, read, change, log, write. Nothing else writes the file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from site_builder.bookings import consul_store
from site_builder.bookings.host_lookup import HostLookup
from site_builder.bookings.operations import Operation
from site_builder.bookings.policy import is_starting_soon
from site_builder.bookings.store import BookingStore
from site_builder.bookings.transaction import BookingTransaction, BookingUser
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.files import find_bookings_file
from site_builder.core.locks import StorageError

MAX_ATTEMPTS = 5
WARNING_STATES = frozenset({"busy", "held", "conflict", "lost", "unknown"})


class BookingResult(NamedTuple):
    """What was done or would be, in a sentence; warnings; and the transaction that did it."""

    message: str
    warnings: list[str]
    transaction: BookingTransaction


class BookingService:
    """Applies one operation after the other; each sees the file as it is when it has the lock."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock

    def now(self) -> Now:
        return Now(self.clock(), self.settings.zone)

    def begin_read(self, user: BookingUser) -> BookingTransaction:
        """Read the file without the lock, for a user who only looks."""
        booking_store = consul_store.open_booking_store(self.settings.data, self.settings.kv)
        return self.begin_transaction(booking_store, booking_store.read_unlocked(), user)

    def begin_transaction(self, booking_store: BookingStore, content: bytes, user: BookingUser) -> BookingTransaction:
        hosts = HostLookup(self.settings)
        return BookingTransaction(booking_store, content, hosts, self.now(), self.settings.booking_policy, user)

    def execute(self, user: BookingUser, operation: Operation, is_check: bool = False) -> BookingResult:
        """Apply an operation under the lock, log it and write the file; with `is_check`, only say what it would do."""
        if is_check:
            transaction = self.begin_read(user)
            message = operation.apply(transaction)
            return BookingResult(message, find_booking_warnings(transaction), transaction)
        for _ in range(MAX_ATTEMPTS):
            with consul_store.hold_booking_lock(self.settings.data, self.settings.kv) as booking_store:
                transaction = self.begin_transaction(booking_store, booking_store.read(), user)
                message = operation.apply(transaction)
                is_written = transaction.commit(operation.kind)
            if is_written:
                return BookingResult(message, find_booking_warnings(transaction), transaction)
        path = find_bookings_file(self.settings.data)
        message = f"{path} was changed by others {MAX_ATTEMPTS} times meanwhile: try again"
        raise StorageError(message)


def find_booking_warnings(transaction: BookingTransaction) -> list[str]:
    """Warn of GPUs that are in use or broken when a booking begins soon, and of hosts that do not report."""
    if not transaction.entries_after:
        return []
    affected, now = transaction.affected, transaction.now
    warnings = []
    statuses = transaction.hosts.decide_statuses({booking.host for booking in affected}, (), now)
    for host, status in statuses.items():
        if status.state != "fresh":
            warnings.append(f"{host} is {status.state}: {status.reason}")
            continue
        keys = {
            booking.gpu.lower() for booking in affected if booking.host == host and is_starting_soon(booking.since, now)
        }
        for gpu_status in status.gpus:
            if gpu_status.state in WARNING_STATES and keys & {"*", *gpu_status.gpu.booking_keys}:
                warnings.append(f"{host}:{gpu_status.gpu.label} is {gpu_status.state}: {gpu_status.reason}")
    return warnings
