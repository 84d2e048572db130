"""A transaction on comments.json: its content as it was read, what a user may do with it, and what was changed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import cached_property
from typing import NamedTuple

from site_builder.bookings import json_edit, parser, policy, store
from site_builder.bookings.host_lookup import HostLookup
from site_builder.bookings.json_edit import BookingJsonError, JsonDocument, JsonEntry
from site_builder.bookings.parser import LoggedEntry, ParsedBooking
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError, format_booking_places
from site_builder.bookings.store import BookingStore, BookingsUnreadableError
from site_builder.bookings.times import has_booking_ended
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.data_folder import BOOKINGS_FILE
from site_builder.core.model import Booking, BookingPolicy
from site_builder.core.people import PeopleDirectory

# Letters and digits that cannot be mistaken for each other.
ID_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"
ID_LENGTH = 6


class BookingUser(NamedTuple):
    """Who makes a request, how, and in which time zone; on an open board (`is_open`) the name is what they claim."""

    name: str
    is_admin: bool = False
    via: str = "command"
    is_open: bool = False
    zone: tzinfo | None = None


@dataclass
class BookingTransaction:
    """The content of comments.json that was read for a user, and the changes made to it so far."""

    store: BookingStore
    content: bytes
    hosts: HostLookup
    now: Now
    user: BookingUser

    message: str = field(default="", init=False)
    entries_before: list[LoggedEntry] = field(default_factory=list, init=False)
    entries_after: list[LoggedEntry] = field(default_factory=list, init=False)
    replaced: list[ParsedBooking] = field(default_factory=list, init=False)  # ended ones, in whose place others are
    affected: list[Booking] = field(default_factory=list, init=False)
    undone_change: str | None = field(default=None, init=False)
    change_id: str | None = field(default=None, init=False)  # once it is written
    parsed: tuple[JsonDocument | None, list[ParsedBooking]] = field(default=(None, []), init=False)

    @cached_property
    def document(self) -> JsonDocument:
        """Parse the file when it is first needed; each change puts a new document in its place."""
        try:
            return JsonDocument.from_bytes(self.content)
        except BookingJsonError as error:
            path = self.store.folder / BOOKINGS_FILE
            last_good = path.with_name(store.LAST_GOOD_FILE)
            hint = f"; {store.LAST_GOOD_FILE} beside it is the last good copy" if last_good.exists() else ""
            raise BookingsUnreadableError(f"{path} cannot be read and was not changed: {error}{hint}") from None

    def list_bookings(self) -> list[ParsedBooking]:
        """List the bookings of the file in its present form, under the names by which we know their hosts."""
        if self.parsed[0] is not self.document:
            bookings = []
            for entry, booking in parser.iterate_parsed_bookings(self.document.plain_json, self.now.zone, []):
                host = self.hosts.host_names.find(booking.host) or booking.host
                bookings.append(ParsedBooking(entry, replace(booking, host=host)))
            self.parsed = self.document, bookings
        return self.parsed[1]

    def list_logged_entries(self) -> list[LoggedEntry]:
        return [stored.to_logged_entry() for stored in self.list_bookings()]

    def find_by_id(self, booking_id: str, host: str | None = None) -> list[ParsedBooking]:
        """Return the entries of a booking; `host` is needed if somebody copied it to another host with its id."""
        matches = [stored for stored in self.list_bookings() if stored.booking.id == booking_id]
        matches = [stored for stored in matches if host in {None, stored.booking.host}]
        if not matches:
            raise BookingRefusedError(f"no booking {booking_id[:80]}: list them with `gpuboard bookings`")
        hosts = {stored.booking.host for stored in matches}
        if len(hosts) > 1:
            message = f"booking {booking_id} is on {formatting.format_names(sorted(hosts))}: name the host too"
            raise BookingRefusedError(message)
        return matches

    def create_id(self, run_id: str | None = None) -> str:
        """Return an id that no booking has; a run chooses its own, to release a booking whose response was lost."""
        taken = {stored.booking.id for stored in self.list_bookings()}
        if run_id and run_id in taken:
            raise BookingRefusedError(f"booking {run_id} already exists")
        while not run_id or run_id in taken:
            run_id = "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))
        return run_id

    def find_host_key(self, host: str) -> str:
        """Return the host's name as written in the file."""
        keys = [member.key for member in self.document.list_hosts()]
        other_names = [key for key in keys if key != host and self.hosts.host_names.find(key) == host]
        return other_names[-1] if other_names and host not in keys else host

    def add_entries(self, host: str, *entries: tuple[str, Mapping[str, object]]) -> None:
        """Add entries under the host's name as written in the file."""
        self.document = json_edit.add_json_entries(self.document, self.find_host_key(host), entries)
        self.entries_after += [[host, gpu, dict(content)] for gpu, content in entries]

    def replace_ended_bookings(self, host: str, *entries: tuple[str, Mapping[str, object]]) -> None:
        """Add entries, in the place of bookings of these GPUs that have all ended.

        The page of the original gpu-monitor reads one object per GPU, and no list.
        """
        key, bookings = self.find_host_key(host), self.list_bookings()
        members = [json_edit.find_json_gpu(self.document, key, gpu) for gpu, _ in entries]
        cleared = []
        for member in members:
            if member is None or json_edit.is_empty_json_entry(member.content):
                continue
            contents = member.content if isinstance(member.content, list) else [member.content]
            ended = [
                stored
                for stored in bookings
                if member.value_start <= stored.entry.start < member.end and has_booking_ended(stored.booking, self.now)
            ]
            # what is no booking stays, and so do remarks
            text = self.document.text[member.value_start : member.end]
            if len(ended) == len(contents) and json_edit.blank_json_comments(text) == text:
                cleared.append(member)
                self.replaced += ended
                self.entries_before += [stored.to_logged_entry() for stored in ended]
        if cleared:
            self.document = json_edit.clear_json_gpus(self.document, cleared)
        self.add_entries(host, *entries)

    def remove_booking(self, stored: ParsedBooking) -> None:
        self.document = json_edit.remove_json_entry(self.document, self.find_entry(stored))
        self.entries_before.append(stored.to_logged_entry())

    def update_booking(self, stored: ParsedBooking, content: Mapping[str, object]) -> None:
        """Change values of an entry; None removes one."""
        entry = self.find_entry(stored)
        self.document = json_edit.update_json_entry(self.document, entry, content)
        updated = {**entry.content, **content}
        new_content = {key: value for key, value in updated.items() if content.get(key, "") is not None}
        self.entries_before.append([stored.booking.host, stored.booking.gpu, entry.content])
        self.entries_after.append([stored.booking.host, stored.booking.gpu, new_content])

    def find_entry(self, stored: ParsedBooking) -> JsonEntry:
        """Find the position of an entry after other changes."""
        old_entry = stored.entry[:3]  # host, GPU and content
        return next(entry for entry in self.document.list_entries() if entry[:3] == old_entry)

    def commit(self, kind: str) -> bool:
        """Log the change and write the file; return False if somebody else has written it meanwhile."""
        content = self.document.content
        limit = min(self.store.max_bytes, store.MAX_BOOKED_BYTES if kind == "book" else store.MAX_BOOKINGS_BYTES)
        if len(content) > limit:
            message = f"comments.json is full: the limit is {limit} bytes, but it would have {len(content)}"
            raise BookingRefusedError(message)
        entries = self.list_logged_entries()
        if not all(entry in entries for entry in self.entries_after):
            message = f"comments.json is full: more than {parser.MAX_BOOKINGS} bookings do not fit"
            raise BookingRefusedError(message)
        line = {
            "change": secrets.token_hex(4),
            "when": self.now.local.isoformat(" ", "seconds"),
            "who": self.user.name,
            "via": self.user.via,
            "what": kind,
            **({"undoes": self.undone_change} if self.undone_change else {}),
            "before": self.entries_before,
            "after": self.entries_after,
        }
        self.store.append_log(line)
        if self.store.write(content):
            self.change_id = str(line["change"])
            return True
        # somebody edited the file since it was read, or booked on another web host
        self.store.append_log({**line, "what": "nothing", "before": [], "after": [], "instead": line["change"]})
        return False

    def resolve_person(self, name: str | None) -> str:
        """Return the same word for every name of a person."""
        return self.hosts.people.resolve_person(name or "")

    def is_known_person(self, name: str) -> bool:
        """Return True if the name is the user's, was seen on a host, is in aliases.csv, or has other bookings."""
        if not self.user.is_open and self.is_own(name, None):
            return True
        if PeopleDirectory(self.hosts.people.aliases, self.hosts.list_seen_logins()).is_known(name):
            return True
        others = (
            stored.booking for stored in self.list_bookings() if stored.to_logged_entry() not in self.entries_after
        )
        return any(self.resolve_person(other.name) == self.resolve_person(name) for other in others)

    @property
    def can_see_names(self) -> bool:
        return self.hosts.settings.privacy.users or self.user.is_admin

    @property
    def limits(self) -> BookingPolicy:
        """Return the limits that hold for the user; an admin has none."""
        return BookingPolicy() if self.user.is_admin else self.hosts.settings.booking_policy

    def is_own(self, name: str | None, booked_by: str | None) -> bool:
        """Return whether a booking is the user's, or made by them for somebody else."""
        names = {self.resolve_person(person) for person in (name, booked_by) if person}
        return bool(self.user.name) and self.resolve_person(self.user.name) in names

    def can_see(self, booking: Booking) -> bool:
        return self.can_see_names or self.is_own(booking.name, booking.booked_by)

    def check_may_book_for(self, name: str) -> None:
        """Refuse a booking under another's name where the policy does not allow it."""
        is_other = self.resolve_person(name) != self.resolve_person(self.user.name)
        if is_other and not (self.user.is_open or self.user.is_admin or self.limits.can_book_for_others):
            message = f"you are {self.user.name}: only an admin may book for {name}"
            raise BookingForbiddenError(message)

    def check_may_change(self, booking: Booking) -> None:
        if not (self.is_own(booking.name, booking.booked_by) or self.user.is_admin or self.user.is_open):
            whose = f"{booking.name or 'nobody'}'s" if self.can_see_names else "somebody else's"
            raise BookingForbiddenError(f"booking {booking.id} is {whose}: only they or an admin may change it")

    def check_bookings(self, new: Sequence[Booking], others: Sequence[Booking]) -> None:
        """Refuse bookings that overlap others, are too long, or exceed one person's share."""
        for booking in new:
            policy.check_policy_limits(booking.since or booking.until, booking.until, self.limits, self.now)
        self.check_conflicts(new, others)
        self.check_share(new, others)

    def check_share(self, new: Sequence[Booking], others: Sequence[Booking]) -> None:
        """Refuse bookings that exceed the share of who they are for, or of who books them under another's name."""
        if not (self.limits.max_gpus or self.limits.max_gpu_hours):
            return
        names = (name for booking in new for name in (booking.name, booking.booked_by) if name)
        for person in {self.resolve_person(name) for name in names}:
            person_bookings = [
                booking
                for booking in others
                if person in {self.resolve_person(booking.name), self.resolve_person(booking.booked_by)}
            ]
            policy.check_share(new, person_bookings, self.count_gpus, self.limits, self.now)

    def count_gpus(self, booking: Booking) -> int:
        """Count the GPUs of a booking; a host without known GPUs counts as one, an instance too."""
        if booking.gpu != "*":
            return 1
        return max(1, len({(gpu.parent or gpu).key for gpu in self.hosts.list_gpus(booking.host)}))

    def check_conflicts(self, new: Sequence[Booking], others: Sequence[Booking], given_up: float | None = None) -> None:
        """Refuse GPUs that are booked by somebody else, or were after `given_up`."""
        for booking in new:
            keys = policy.GpuKeyMap(self.hosts.list_gpus(booking.host))
            policy.check_booking_conflicts(booking, others, keys, self.now, self.can_see_names, given_up)


def merge_transactions(mine: BookingTransaction, original: BookingTransaction, theirs: BookingTransaction) -> None:
    """Change in my copy what others changed since the original; refuse what both changed."""
    before, my_entries, their_entries = (
        json_edit.count_json_entries(side.document) for side in (original, mine, theirs)
    )
    for changed_entry in (before - my_entries) & (before - their_entries):
        host, gpu, _ = json.loads(changed_entry)
        my_changes, their_changes = (
            [entry for entry in side - before if json.loads(entry)[:2] == [host, gpu]]
            for side in (my_entries, their_entries)
        )
        if my_changes != their_changes:
            place = format_booking_places([(host, gpu)])
            raise BookingRefusedError(
                f"the booking of {place} was changed by you and by somebody else at the same time"
            )
    document, added, removed = mine.document, their_entries - before - (my_entries - before), before - their_entries
    if json_edit.count_json_remarks(theirs.document) != json_edit.count_json_remarks(original.document):
        if json_edit.count_json_remarks(mine.document) != json_edit.count_json_remarks(original.document):
            raise BookingRefusedError(
                "the remarks in the file were changed by you and by somebody else at the same time"
            )
        document, added, removed = theirs.document, my_entries - before - (their_entries - before), before - my_entries
    for key in removed.elements():
        entry = next((entry for entry in document.list_entries() if json_edit.build_json_entry_key(entry) == key), None)
        if entry:
            document = json_edit.remove_json_entry(document, entry)
    for key in added.elements():
        host, gpu, content = json.loads(key)
        document = json_edit.add_json_entries(document, host, [(gpu, content)])
    mine.document = document
    # no new booking of mine where somebody else has made one meanwhile
    known = before | my_entries
    others = [
        stored.booking for stored in theirs.list_bookings() if json_edit.build_json_entry_key(stored.entry) not in known
    ]
    for entry, booking in mine.list_bookings():
        key = json_edit.build_json_entry_key(entry)
        if key in my_entries and key not in before:
            keys = policy.GpuKeyMap(mine.hosts.list_gpus(booking.host))
            policy.check_booking_conflicts(booking, others, keys, mine.now, names_shown=True)
