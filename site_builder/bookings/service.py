"""Where bookings are made: lock, read again, check, log, write. Nothing else writes comments.json."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from site_builder.bookings import consul_store, json_edit, merge, operations, parser, policy, store
from site_builder.bookings.host_lookup import HostLookup
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.transaction import (
    BookingChanges,
    BookingRequest,
    BookingTransaction,
    BookingUser,
    StoredBooking,
)
from site_builder.config.settings import Settings
from site_builder.core import formatting, locks
from site_builder.core.clock import Now
from site_builder.core.files import find_bookings_file
from site_builder.core.model import Booking
from site_builder.core.timeparse import moments, recurrence

MAX_ATTEMPTS = 5
BUSY_STATES = frozenset({"busy", "held", "conflict"})


class BookingsUnreadableError(Exception):
    """Why the file cannot be read, so that nothing is written: the line, and what helps."""


class BookingResult(NamedTuple):
    """What was done, or would be: in words, what to know beside it, and the bookings that it is about."""

    message: str
    warnings: tuple[str, ...]
    bookings: tuple[Booking, ...]
    undone_change: str | None = None


class BookingService:
    """Takes one wish after the other; each sees the file as it is when its turn comes."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """Whose bookings, and by which clock."""
        self.settings = settings
        self.clock = clock

    def now(self) -> Now:
        """This moment."""
        return Now(self.clock(), self.settings.zone)

    def begin_read(self, who: BookingUser) -> BookingTransaction:
        """The file as it is, for somebody who wants to know; what cannot be read is `BookingsUnreadableError`."""
        return self.begin_transaction(
            consul_store.open_booking_store(self.settings.data, self.settings.kv).read_unlocked(), who
        )

    def begin_transaction(self, content: bytes, who: BookingUser) -> BookingTransaction:
        """A turn with this content."""
        try:
            file = json_edit.BookingDocument.from_bytes(content)
        except parser.BookingFileError as why:
            path = find_bookings_file(self.settings.data)
            good = path.with_name(store.LAST_GOOD_FILE)
            kept = f"; {store.LAST_GOOD_FILE} beside it could be read last" if good.exists() else ""
            message = f"{path} cannot be read, and is left as it is: {why}{kept}"
            raise BookingsUnreadableError(message) from None
        return BookingTransaction(file, HostLookup(self.settings), self.now(), self.settings.booking_policy, who)

    def run_operation(
        self,
        who: BookingUser,
        what: str,
        act: Callable[[BookingTransaction], str],
        check: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> BookingResult:
        """One turn: `act` changes the file and says what it did; with `check` it is only said."""

        def make(content: bytes) -> tuple[BookingTransaction, str]:
            found = self.begin_transaction(content, who)
            return found, act(found)

        if check:
            return self.build_result(
                *make(consul_store.open_booking_store(self.settings.data, self.settings.kv).read_unlocked())
            )
        return self.write_locked(who, what, make, {} if more is None else more)  # undo fills it in `act`

    def replace_file(self, who: BookingUser, original: bytes, edited: bytes) -> BookingResult:
        """The whole file as somebody edited it, with what others changed meanwhile; it may repair a broken one."""

        def make(content: bytes) -> tuple[BookingTransaction, str]:
            found = self.begin_transaction(edited, who)
            if content != original:
                if not is_readable_content(original):
                    message = f"{find_bookings_file(self.settings.data)} was repaired by somebody else meanwhile"
                    raise BookingRefusedError(message)
                merge.merge_edits(found, *(self.begin_transaction(one, who) for one in (original, content)))
            before = (
                merge.list_logged_entries(self.begin_transaction(content, who)) if is_readable_content(content) else []
            )
            found.entries_before, found.entries_after = merge.find_entry_differences(
                before, merge.list_logged_entries(found)
            )
            return found, merge.describe_entry_changes(found.entries_before, found.entries_after)

        return self.write_locked(who, "edit", make, {})

    def write_locked(
        self,
        who: BookingUser,
        what: str,
        make: Callable[[bytes], tuple[BookingTransaction, str]],
        more: Mapping[str, Any],
    ) -> BookingResult:
        """Under the lock: `make` makes of the file what it shall be, and says what that is."""
        for _ in range(MAX_ATTEMPTS):
            with consul_store.hold_booking_lock(self.settings.data, self.settings.kv) as book:
                found, said = make(book.read())
                check_new_content(
                    found, min(book.max_bytes, store.MAX_BOOKED_BYTES if what == "book" else store.MAX_BOOKINGS_BYTES)
                )
                line = {
                    "change": secrets.token_hex(4),
                    "when": found.now.local.isoformat(" ", "seconds"),
                    "who": who.name,
                    "via": who.via,
                    "what": what,
                    **more,
                    "before": found.entries_before,
                    "after": found.entries_after,
                }
                book.append_log(line)
                if book.write(found.document.content):
                    return self.build_result(found, said)
                # somebody wrote it by hand between our two looks, or at another web host
                book.append_log({**line, "what": "nothing", "before": [], "after": [], "instead": line["change"]})
        message = (
            f"{find_bookings_file(self.settings.data)} was changed by others {MAX_ATTEMPTS} times meanwhile: try again"
        )
        raise locks.StorageError(message)

    def build_result(self, found: BookingTransaction, said: str) -> BookingResult:
        """What there is to say of a turn."""
        return BookingResult(said, tuple(find_booking_warnings(found)), tuple(found.affected))

    def book(
        self, who: BookingUser, choose: Callable[[BookingTransaction], BookingRequest], check: bool = False
    ) -> BookingResult:
        """Book what `choose` finds, all of it or nothing."""

        def act(found: BookingTransaction) -> str:
            operations.book_gpus(found, choose(found))
            return describe_booking(found.affected, found)

        return self.run_operation(who, "book", act, check)

    def change(
        self, who: BookingUser, booking: str, changes: BookingChanges, host: str | None = None, check: bool = False
    ) -> BookingResult:
        """Change a booking that is not over."""

        def act(found: BookingTransaction) -> str:
            operations.change_booking(found, found.find_by_id(booking, host), changes)
            return describe_booking(found.affected, found)

        return self.run_operation(who, "change", act, check)

    def release(
        self, who: BookingUser, choose: Callable[[BookingTransaction], Sequence[StoredBooking]], check: bool = False
    ) -> BookingResult:
        """Release what `choose` finds."""

        def act(found: BookingTransaction) -> str:
            operations.release_booking(found, choose(found))
            return describe_release(found.affected, found)

        return self.run_operation(who, "release", act, check)

    def undo(self, who: BookingUser, which: str | None = None, check: bool = False) -> BookingResult:
        """Take back the last change that this person made and has not taken back; an admin, that anybody made.

        `which` is the one that was shown before: where another came in between, nothing is taken back.
        """
        chosen: dict[str, str] = {}

        def act(found: BookingTransaction) -> str:
            line = self.find_last_change(found)
            if which and line["change"] != which:
                message = f"{line['who']} has changed something since: look again"
                raise BookingRefusedError(message)
            chosen["undoes"] = line["change"]
            operations.undo_change(found, line)
            back = "; ".join(describe_booking(one, found) for one in group_alike_bookings(found.affected))
            gone = f"the booking of {format_places((one[0], one[1]) for one in found.entries_before)} is gone again"
            whose = line["who"] if found.can_see_names else "somebody"
            return f"taken back what {whose} did at {line['when'][:16]} ({line['what']}): {back or gone}"

        return self.run_operation(who, "undo", act, check, chosen)._replace(undone_change=chosen["undoes"])

    def find_last_change(self, found: BookingTransaction) -> dict[str, Any]:
        """The line of the log that is to be taken back."""
        undone = set()
        who = found.user
        for line in store.BookingStore(self.settings.data).read_log():
            undone |= {line.get("undoes"), line.get("instead")}
            mine = who.is_admin or found.resolve_person(line["who"]) == found.resolve_person(who.name)
            ours = line["what"] in {"book", "change", "release", "edit"} and (line["before"] or line["after"])
            if mine and ours and line["change"] not in undone and operations.is_change_in_force(found, line):
                return line
        message = f"there is nothing that {who.name} changed and that could be taken back"
        raise BookingRefusedError(message)


def check_new_content(found: BookingTransaction, most: int) -> None:
    """Refuse what could not be read again, or would not count: whoever booked it would have nothing."""
    new = found.document.content
    if len(new) > most:
        message = f"comments.json is full: it may have {most} bytes, and would have {len(new)}"
        raise BookingRefusedError(message)
    there = [[one.booking.host, one.booking.gpu, one.entry.content] for one in found.list_bookings()]
    if not all(one in there for one in found.entries_after):
        message = f"comments.json is full: more than {parser.MAX_BOOKINGS} bookings are not counted"
        raise BookingRefusedError(message)


def describe_booking(several: Sequence[Booking], found: BookingTransaction) -> str:
    """`atlas:0,1 for alice from now until Fri 20 Nov 18:00 (4 d 4 h)`."""
    one, now = several[0], found.now
    whose = f" for {one.name}" if found.can_see(one) else ""
    if one.rrule and one.since:
        again = recurrence.describe_recurrence(one.rrule, one.since, one.until, now.zone)
        return (
            f"{format_booking_places(several)}{whose} {again}, first {moments.format_full_moment(one.since, now.local)}"
        )
    begun = one.since is None or policy.to_epoch(one.since) <= now.epoch
    since = "now" if begun else moments.format_full_moment(one.since or one.until, now.local)
    begins = now.epoch if begun or one.since is None else policy.to_epoch(one.since)
    length = formatting.format_duration(policy.to_epoch(one.until) - begins)
    return f"{format_booking_places(several)}{whose} from {since} until {moments.format_full_moment(one.until, now.local)} ({length})"


def group_alike_bookings(several: Sequence[Booking]) -> list[list[Booking]]:
    """Those that are said in one sentence, because they differ in nothing but the GPU."""
    groups: dict[object, list[Booking]] = {}
    for one in several:
        groups.setdefault((one.name, one.since, one.until, one.rrule), []).append(one)
    return list(groups.values())


def is_readable_content(content: bytes) -> bool:
    """Whether anything of a file can be read."""
    try:
        return bool(json_edit.BookingDocument.from_bytes(content))
    except parser.BookingFileError:
        return False


def describe_release(several: Sequence[Booking], found: BookingTransaction) -> str:
    """What is free again, from when on."""
    one, now = several[0], found.now
    whose = f" of {one.name}" if found.can_see(one) else ""
    if one.rrule:
        return f"{format_booking_places(several)}{whose} is not booked again; what has begun goes on to its end"
    coming = one.since is not None and policy.to_epoch(one.since) > now.epoch
    since = (
        f"the booking from {moments.format_full_moment(one.since, now.local)}"
        if coming and one.since
        else "what is left"
    )
    return f"{format_booking_places(several)}{whose}: {since} until {moments.format_full_moment(one.until, now.local)} is released"


def format_booking_places(several: Sequence[Booking]) -> str:
    """`atlas:0,1 and zeus`."""
    return format_places((one.host, one.gpu) for one in several)


def format_places(pairs: Iterable[tuple[str, str]]) -> str:
    """The same of hosts and GPUs."""
    by_host: dict[str, list[str]] = {}
    for host, gpu in pairs:
        by_host.setdefault(host, []).append(gpu)
    return " and ".join(host if "*" in gpus else f"{host}:{','.join(gpus)}" for host, gpus in by_host.items())


def find_booking_warnings(found: BookingTransaction) -> list[str]:
    """What somebody who books should know: who is on it, and that a host is silent."""
    if not found.entries_after:
        return []
    wanted = {one.host for one in found.affected}
    said = []
    for name, host in found.hosts.decide_statuses(wanted, (), found.now).items():
        if host.state != "fresh":
            said.append(f"{name} is {host.state}: {host.reason}")
            continue
        keys = {one.gpu.lower() for one in found.affected if one.host == name and is_starting_soon(one, found.now)}
        for gpu in host.gpus:
            mine = keys & {"*", *gpu.gpu.booking_keys}
            if mine and gpu.state in BUSY_STATES | {"lost", "unknown"}:
                said.append(f"{name}:{gpu.gpu.label} is {gpu.state}: {gpu.reason}")
    return said


def is_starting_soon(one: Booking, now: Now) -> bool:
    """Whether it matters who is on it now."""
    return one.since is None or one.since.timestamp() <= now.epoch + formatting.HOUR
