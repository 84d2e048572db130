"""Move bookings that are long over from comments.json to state/bookings-past.jsonl, and back if somebody asks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from site_builder.bookings import operations, parser
from site_builder.bookings.operations import compute_final_end
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.service import BookingResult, BookingService, BookingsUnreadableError, format_booking_places
from site_builder.bookings.transaction import BookingTransaction, BookingUser, StoredBooking
from site_builder.config.settings import Settings
from site_builder.core import clock_check, files, locks
from site_builder.core.clock import Now
from site_builder.core.faults import describe_fault
from site_builder.core.model import Booking, Problem
from site_builder.core.timeparse import moments

ARCHIVE_FILE = "bookings-past.jsonl"
# Until when bookings that were restored stay in comments.json, though they are over.
RESTORED_FILE = "bookings-restored.json"
ALL_BOOKINGS = "all"
BUILDER_USER = BookingUser("gpuboard", is_admin=True, via="build")
# So many at a time, so that nobody who books waits for it; the next build takes the rest.
MAX_MOVED_AT_ONCE = 100
TAIL_BYTES = 8 * 1024 * 1024


def archive_ended_bookings(
    settings: Settings, bookings: Iterable[Booking], epoch: float, doubt: str = ""
) -> list[Problem]:
    """Move those that have been over for as long as is set, if there are any; what stands in the way is told.

    While the clock is in doubt, for the reason that `doubt` says, nothing is moved.
    """
    keep = settings.booking_policy.retention_s
    if not keep or not list_due_bookings(settings, bookings, epoch):
        return []
    if doubt:
        return [Problem("clock", clock_check.advice(doubt, "bookings that seem to be over stay in comments.json"))]

    def act(found: BookingTransaction) -> str:
        all_due = {
            id(one) for one in list_due_bookings(settings, [one.booking for one in found.list_bookings()], epoch)
        }
        over = [one for one in found.list_bookings() if id(one.booking) in all_due][:MAX_MOVED_AT_ONCE]
        append_archive_lines(settings.state / ARCHIVE_FILE, [build_archive_line(one) for one in over])
        for one in over:
            found.remove_booking(one)
        return f"{len(over)} that are over"

    try:
        BookingService(settings, lambda: epoch).run_operation(BUILDER_USER, "expire", act)
    except BookingsUnreadableError:
        return []  # which the board tells already
    except (locks.StorageError, OSError) as why:
        return [Problem("data/comments.json", f"bookings that are long over could not be moved away: {why}")]
    return []


def list_due_bookings(settings: Settings, bookings: Iterable[Booking], epoch: float) -> list[Booking]:
    """Return those that have been over for as long as is set, without those that somebody restored."""
    over = [one for one in bookings if compute_final_end(one) <= epoch - settings.booking_policy.retention_s]
    stay = read_restored(settings.state) if over else {}
    return [one for one in over if stay.get(build_restored_key(one), 0) <= epoch]


def archive_or_report(settings: Settings, bookings: Iterable[Booking], epoch: float, doubt: str) -> list[Problem]:
    """The same for the builder, to which an exception that nobody foresaw is a problem and no more."""
    try:
        return archive_ended_bookings(settings, bookings, epoch, doubt)
    except Exception as error:
        return [
            Problem("data/comments.json", describe_fault("bookings that are long over could not be moved away", error))
        ]


def build_archive_line(one: StoredBooking) -> dict[str, Any]:
    """An entry with its place, and its times for programs."""
    booking = one.booking
    return {
        "host": booking.host,
        "gpu": booking.gpu,
        "id": booking.id,
        "from": booking.since and booking.since.isoformat(),
        "date": booking.until.isoformat(),
        "entry": one.entry.content,
    }


def append_archive_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append those that are not there yet: whoever was killed between both files moves them again."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | files.READ_FLAGS, 0o600)
    with os.fdopen(handle, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read()
        there = set(tail.split(b"\n"))
        if tail and not tail.endswith(b"\n"):
            file.write(b"\n")
        for line in lines:
            text = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")
            if text not in there:
                file.write(text + b"\n")
        file.flush()
        os.fsync(handle)


# The way back


class ArchivedBooking(NamedTuple):
    """A booking of the archive, and its entry as it stood in comments.json."""

    booking: Booking
    content: dict[str, Any]


def read_archive(settings: Settings) -> list[ArchivedBooking]:
    """Return the bookings that were moved away, the newest first and each once; OSError if they cannot be read."""
    try:
        handle = os.open(settings.state / ARCHIVE_FILE, files.READ_FLAGS)
    except FileNotFoundError:
        return []
    with os.fdopen(handle, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines()
    found: dict[bytes, ArchivedBooking] = {}
    for line in reversed(lines):
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            told = json.loads(line)
            entry = parser.BookingEntry(str(told["host"]), str(told["gpu"]), dict(told["entry"]), 0, 0)
            booking, _ = parser.parse_booking(entry, settings.zone)
            if booking:
                found.setdefault(line, ArchivedBooking(replace(booking, id=str(told["id"])), entry.content))
    return list(found.values())


def restore_bookings(desk: BookingService, who: BookingUser, wanted: str, check: bool = False) -> BookingResult:
    """Put bookings of the archive back: one by its id, or with `all` every one that is not over."""
    archive = read_archive(desk.settings)

    def act(turn: BookingTransaction) -> str:
        there = [[one.booking.host, one.booking.gpu, one.entry.content] for one in turn.list_bookings()]
        gone = [one for one in archive if [one.booking.host, one.booking.gpu, one.content] not in there]
        chosen = [one for one in gone if is_requested_booking(one.booking, wanted, turn.now)]
        if not chosen:
            what = "booking that is not over" if wanted == ALL_BOOKINGS else f"booking {wanted[:80]}"
            raise BookingRefusedError(f"there is no {what} in the archive: `gpuboard bookings --past` lists it")
        for one in chosen:
            turn.check_may_change(one.booking)
            turn.add_entries(one.booking.host, (one.booking.gpu, one.content))
        back = [
            one.booking
            for one in turn.list_bookings()
            if [one.booking.host, one.booking.gpu, one.entry.content] in turn.entries_after
        ]
        live = [one for one in back if not operations.has_ended(one, turn.now)]
        others = [
            one.booking
            for one in turn.list_bookings()
            if not any(operations.is_same_booking(one.booking, other) for other in live)
        ]
        for booking in live:
            turn.check_conflicts([booking], others, given_up=booking.since.timestamp() if booking.since else None)
        if not check:
            save_restored(desk.settings, back, turn.now.epoch)
        turn.affected = back
        return describe_restored(back, turn.now)

    return desk.run_operation(who, "restore", act, check)


def is_requested_booking(one: Booking, wanted: str, now: Now) -> bool:
    """Return whether a booking of the archive is to be restored."""
    return one.id == wanted or (wanted == ALL_BOOKINGS and not operations.has_ended(one, now))


def describe_restored(several: list[Booking], now: Now) -> str:
    """Say what is back."""
    if len({one.id for one in several}) > 1:
        return f"{len(several)} bookings are back in comments.json"
    one = several[0]
    return f"the booking of {format_booking_places(several)} for {one.name} until {moments.format_full_moment(one.until, now.local)} is back"


def build_restored_key(one: Booking) -> str:
    """Return what names a booking in the list of the restored ones."""
    return f"{one.id} {one.gpu} {one.until.isoformat()}"


def read_restored(state: Path) -> dict[str, float]:
    """Return until when each restored booking stays; a damaged file has none."""
    try:
        return {str(key): float(until) for key, until in json.loads((state / RESTORED_FILE).read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def save_restored(settings: Settings, several: Iterable[Booking], epoch: float) -> None:
    """Let restored bookings stay for as long as one that has just ended."""
    stay = {key: until for key, until in read_restored(settings.state).items() if until > epoch}
    stay |= {build_restored_key(one): epoch + settings.booking_policy.retention_s for one in several}
    files.write_atomically(settings.state / RESTORED_FILE, json.dumps(stay).encode(), 0o600)
