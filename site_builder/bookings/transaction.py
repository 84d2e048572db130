"""One turn at the desk: the file as it is found, what somebody may do with it, and what they made of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from site_builder.bookings import json_edit, parser, policy
from site_builder.bookings.host_lookup import HostLookup
from site_builder.bookings.parser import BookingEntry
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking, BookingPolicy

# Letters and digits that nobody takes for each other.
ID_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"
ID_LENGTH = 6
# As an entry stands in the log: its host, its GPU, and itself.
LoggedEntry = list[Any]


class BookingUser(NamedTuple):
    """Who stands at the desk, and how they came; at an `open` one everybody is whom they say."""

    name: str
    is_admin: bool = False
    via: str = "command"
    is_open: bool = False


class BookingRequest(NamedTuple):
    """What somebody wants: hosts and GPUs, from when, until when, for whom, and what for."""

    places: Sequence[tuple[str, str]]
    since: datetime
    until: datetime
    name: str
    comment: str = ""
    rrule: str | None = None
    run_id: str | None = None


class BookingChanges(NamedTuple):
    """What of a booking shall be other; None stays."""

    since: datetime | None = None
    until: datetime | None = None
    name: str | None = None
    comment: str | None = None


class StoredBooking(NamedTuple):
    """An entry that counts, and the booking that it is."""

    entry: BookingEntry
    booking: Booking


@dataclass
class BookingTransaction:
    """The file, and what has been done to it so far."""

    document: json_edit.BookingDocument
    hosts: HostLookup
    now: Now
    policy: BookingPolicy
    user: BookingUser

    def __post_init__(self) -> None:
        """Nothing is done yet."""
        self.entries_before: list[LoggedEntry] = []
        self.entries_after: list[LoggedEntry] = []
        self.affected: list[Booking] = []
        self.parsed: tuple[json_edit.BookingDocument | None, list[StoredBooking]] = (None, [])

    def list_bookings(self) -> list[StoredBooking]:
        """Every booking that counts, under the name by which we know its host."""
        if self.parsed[0] is not self.document:
            self.parsed = self.document, self.parse_bookings()
        return self.parsed[1]

    def parse_bookings(self) -> list[StoredBooking]:
        """The same, read from the file as it is now."""
        names = self.hosts.index_names()
        return [
            StoredBooking(entry, replace(booking, host=names.find(booking.host) or booking.host))
            for entry, booking in parser.iterate_bookings(self.document.plain_json, self.now.zone, [])
        ]

    # Changes to the file

    def add_entries(self, host: str, *several: tuple[str, Mapping[str, object]]) -> None:
        """Entries more, for a host under whatever name it has in the file."""
        keys = [one.key for one in self.document.list_hosts()]
        names = self.hosts.index_names()
        same = [key for key in keys if key != host and names.find(key) == host]
        self.document = json_edit.add_entries(self.document, same[-1] if same and host not in keys else host, several)
        self.entries_after += [[host, gpu, dict(content)] for gpu, content in several]

    def remove_booking(self, one: StoredBooking) -> None:
        """One entry less."""
        self.document = json_edit.remove_entry(self.document, self.find_entry(one))
        self.entries_before.append([one.booking.host, one.booking.gpu, one.entry.content])

    def update_booking(self, one: StoredBooking, content: Mapping[str, object]) -> None:
        """Other values in an entry."""
        entry = self.find_entry(one)
        self.document = json_edit.update_entry(self.document, entry, content)
        gone = {key for key, value in content.items() if value is None}
        new = {key: value for key, value in {**entry.content, **content}.items() if key not in gone}
        self.entries_before.append([one.booking.host, one.booking.gpu, entry.content])
        self.entries_after.append([one.booking.host, one.booking.gpu, new])

    def find_entry(self, one: StoredBooking) -> BookingEntry:
        """Where an entry stands now, after other changes."""
        return next(
            entry
            for entry in self.document.list_entries()
            if (entry.host, entry.gpu, entry.content) == (one.entry.host, one.entry.gpu, one.entry.content)
        )

    # What somebody may do

    def resolve_person(self, name: str | None) -> str:
        """One word for one person."""
        return self.hosts.people.resolve_person(name or "")

    def check_may_book_for(self, name: str) -> None:
        """Refuse a booking under another's name where the lab does not allow that."""
        other = self.resolve_person(name) != self.resolve_person(self.user.name)
        if other and not (self.user.is_open or self.user.is_admin or self.policy.can_book_for_others):
            message = f"you are {self.user.name}: here nobody but an admin books under the name of {name}"
            raise BookingForbiddenError(message)

    @property
    def can_see_names(self) -> bool:
        """Whether people may be named to whoever stands here."""
        return self.hosts.settings.privacy.users or self.user.is_admin

    def is_own(self, one: Booking) -> bool:
        """Whether it is for whoever stands here, or made by them."""
        names = {self.resolve_person(name) for name in (one.name, one.booked_by) if name}
        return bool(self.user.name) and self.resolve_person(self.user.name) in names

    def can_see(self, one: Booking) -> bool:
        """Whether they may be told whose it is."""
        return self.can_see_names or self.is_own(one)

    def check_may_change(self, one: Booking) -> None:
        """Refuse to touch the booking of somebody else."""
        if not (self.is_own(one) or self.user.is_admin or self.user.is_open):
            whose = f"{one.name or 'nobody'}'s" if self.can_see_names else "somebody else's"
            message = f"booking {one.id} is {whose}, and only they or an admin may change it"
            raise BookingForbiddenError(message)

    def find_by_id(self, text: str, host: str | None = None) -> list[StoredBooking]:
        """The entries of a booking; `host` is needed where somebody copied it to another, with its id."""
        found = [one for one in self.list_bookings() if one.booking.id == text and host in {None, one.booking.host}]
        if not found:
            message = f"there is no booking {text[:80]}: `gpuboard bookings` lists them"
            raise BookingRefusedError(message)
        hosts = {one.booking.host for one in found}
        if len(hosts) > 1:
            message = f"booking {text} is on {formatting.join_names(sorted(hosts))}: name the host too"
            raise BookingRefusedError(message)
        return found

    def check_bookings(self, new: Sequence[Booking], others: Iterable[Booking]) -> None:
        """Refuse what clashes with others, is too long, or too much for one person."""
        others = list(others)
        limits = BookingPolicy() if self.user.is_admin else self.policy
        for one in new:
            policy.check_booking_times(one.since or one.until, one.until, limits, self.now)
        self.check_conflicts(new, others)
        self.check_share(new, others, limits)

    def check_share(self, new: Sequence[Booking], others: Sequence[Booking], limits: BookingPolicy) -> None:
        """Refuse what is too much for whoever it is for, or for whoever books it under another's name."""
        if not (limits.max_gpus or limits.max_gpu_hours):
            return
        for person in {self.resolve_person(name) for one in new for name in (one.name, one.booked_by) if name}:
            theirs = [
                one for one in others if person in {self.resolve_person(one.name), self.resolve_person(one.booked_by)}
            ]
            hosts = {one.host for one in (*new, *theirs) if one.gpu == "*"}
            size = policy.build_gpu_counter({host: self.hosts.list_gpus(host) for host in hosts})
            policy.check_share(new, theirs, size, limits, self.now)

    def check_conflicts(
        self, new: Sequence[Booking], others: Sequence[Booking], *, given_up: float | None = None
    ) -> None:
        """Refuse what is promised to somebody else, or was after it was given up."""
        for one in new:
            keys = policy.GpuKeyMap(self.hosts.list_gpus(one.host))
            there = [other for other in others if other.host == one.host]
            policy.check_conflicts(one, there, keys, self.now, self.can_see_names, given_up=given_up)

    def create_id(self, run: str | None = None) -> str:
        """One that no booking has; a run names its own, so that it can release what it never heard of again."""
        taken = {one.booking.id for one in self.list_bookings()}
        if run and run in taken:
            message = f"there is a booking {run} already"
            raise BookingRefusedError(message)
        while run is None and (found := "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))) in taken:
            pass
        return run or found


# With this begins the id of a booking that `gpuboard run` made: it is for that run alone.
RUN_ID_PREFIX = "run-"
