"""Move bookings that are long over from comments.json to state/bookings-past.jsonl, and back on request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from site_builder.bookings import parser
from site_builder.bookings.json_edit import JsonEntry
from site_builder.bookings.operations import find_undone_bookings
from site_builder.bookings.parser import ParsedBooking
from site_builder.bookings.policy import BookingRefusedError, format_booking_places
from site_builder.bookings.service import BookingService
from site_builder.bookings.store import ARCHIVE_FILE, ARCHIVE_TAIL_BYTES, BookingsUnreadableError, append_archive_lines
from site_builder.bookings.times import compute_booking_end_time, has_booking_ended
from site_builder.bookings.transaction import BookingTransaction, BookingUser
from site_builder.config.settings import Settings
from site_builder.core import clock_check, files, locks
from site_builder.core.faults import describe_fault
from site_builder.core.model import Booking, Problem
from site_builder.core.timeparse import moments

# Says until when restored bookings stay in comments.json, though they are over.
RESTORED_FILE = "bookings-restored.json"
ALL_BOOKINGS = "all"
BUILDER_USER = BookingUser("gpuboard", is_admin=True, via="build")
# Moved at a time, so that nobody who books waits for it; the next build takes the rest.
MAX_MOVED_AT_ONCE = 100


def archive_ended_bookings(settings: Settings, bookings: Iterable[Booking], epoch: float, doubt: str) -> list[Problem]:
    """Move bookings that ended longer ago than the retention; return what prevents it, such as doubts of the clock."""
    fault = "old bookings could not be moved to the archive"
    try:
        if not settings.booking_policy.retention_s or not list_bookings_to_archive(settings, bookings, epoch):
            return []
        if doubt:
            consequence = "bookings that seem to be over stay in comments.json"
            return [Problem("clock", clock_check.describe_clock_doubt(doubt, consequence))]
        BookingService(settings, lambda: epoch).execute(BUILDER_USER, ArchiveOperation(settings))
    except BookingsUnreadableError:
        return []  # the board reports it already
    except (locks.LockedFileError, OSError) as error:
        return [Problem("data/comments.json", f"{fault}: {error}")]
    except Exception as error:  # a fault of ours: the builder goes on
        return [Problem("data/comments.json", describe_fault(fault, error))]
    return []


@dataclass(frozen=True)
class ArchiveOperation:
    """Move bookings that are long over to the archive."""

    kind: ClassVar[str] = "expire"
    settings: Settings

    def apply(self, transaction: BookingTransaction) -> str:
        bookings = [stored.booking for stored in transaction.list_bookings()]
        due = set(list_bookings_to_archive(self.settings, bookings, transaction.now.epoch))
        moved = [stored for stored in transaction.list_bookings() if stored.booking in due][:MAX_MOVED_AT_ONCE]
        append_archive_lines(self.settings.state / ARCHIVE_FILE, moved)
        for stored in moved:
            transaction.remove_booking(stored)
        return f"{len(moved)} ended"


def list_bookings_to_archive(settings: Settings, bookings: Iterable[Booking], epoch: float) -> list[Booking]:
    """List bookings that ended longer ago than the retention, without those that somebody restored."""
    ended_before = epoch - settings.booking_policy.retention_s
    ended = [booking for booking in bookings if compute_booking_end_time(booking) <= ended_before]
    restored = read_archive_restores(settings.state) if ended else {}
    return [booking for booking in ended if restored.get(build_restored_key(booking), 0) <= epoch]


def read_archive(settings: Settings) -> list[ParsedBooking]:
    """Return the archived bookings, the newest first and each once; OSError if they cannot be read."""
    try:
        handle = os.open(settings.state / ARCHIVE_FILE, files.READ_FLAGS)
    except FileNotFoundError:
        return []
    with os.fdopen(handle, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - ARCHIVE_TAIL_BYTES))
        lines = file.read().splitlines()
    archived: dict[bytes, ParsedBooking] = {}
    for line in reversed(lines):
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            fields = json.loads(line)
            entry = JsonEntry(str(fields["host"]), str(fields["gpu"]), dict(fields["entry"]), 0, 0)
            booking, _ = parser.parse_booking(entry, settings.zone)
            if booking:
                archived.setdefault(line, ParsedBooking(entry, replace(booking, id=str(fields["id"]))))
    return list(archived.values())


@dataclass(frozen=True)
class ArchiveRestoreOperation:
    """Put bookings of the archive back into comments.json."""

    kind: ClassVar[str] = "restore"
    settings: Settings
    archive: Sequence[ParsedBooking]
    wanted: str
    is_check: bool

    def apply(self, transaction: BookingTransaction) -> str:
        now, wanted = transaction.now, self.wanted
        present = transaction.list_logged_entries()

        def is_wanted(booking: Booking) -> bool:
            return booking.id == wanted or (wanted == ALL_BOOKINGS and not has_booking_ended(booking, now))

        chosen = [archived for archived in self.archive if is_wanted(archived.booking)]
        chosen = [archived for archived in chosen if archived.to_logged_entry() not in present]
        if not chosen:
            what = "booking that has not ended" if wanted == ALL_BOOKINGS else f"booking {wanted[:80]}"
            raise BookingRefusedError(f"no {what} in the archive: `gpuboard bookings --past` lists it")
        for archived in chosen:
            transaction.check_may_change(archived.booking)
            transaction.add_entries(archived.booking.host, (archived.booking.gpu, archived.entry.content))
        restored, current, others = find_undone_bookings(transaction)
        for booking in current:
            given_up = booking.since.timestamp() if booking.since else None
            transaction.check_conflicts([booking], others, given_up=given_up)
        if not self.is_check:  # before the file is written, so that the next build does not move them away again
            # they stay for as long as bookings that have just ended
            until = now.epoch + self.settings.booking_policy.retention_s
            stays = {key: end for key, end in read_archive_restores(self.settings.state).items() if end > now.epoch}
            stays |= {build_restored_key(booking): until for booking in restored}
            files.write_atomically(self.settings.state / RESTORED_FILE, json.dumps(stays).encode(), 0o600)
        transaction.affected = restored
        if len({booking.id for booking in restored}) > 1:
            return f"{len(restored)} bookings are back in comments.json"
        booking, places = restored[0], format_booking_places((booking.host, booking.gpu) for booking in restored)
        end = moments.describe_moment_in_full(booking.until, now.local)
        return f"the booking of {places} for {booking.name} until {end} is back"


def build_restored_key(booking: Booking) -> str:
    return f"{booking.id} {booking.gpu} {booking.until.isoformat()}"


def read_archive_restores(state: Path) -> dict[str, float]:
    try:
        return {str(key): float(until) for key, until in json.loads((state / RESTORED_FILE).read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
