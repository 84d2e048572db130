"""Operations on bookings: book, change, release, undo, and edit the whole file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, ClassVar, Protocol

from site_builder.bookings import json_edit, parser, policy
from site_builder.bookings.gpu_selection import choose_bookable_gpus, find_selected_booking, resolve_selected_gpus
from site_builder.bookings.json_edit import JsonDocument
from site_builder.bookings.parser import JsonEntry
from site_builder.bookings.policy import BookingRefusedError, format_booking_place, has_booking_ended
from site_builder.bookings.request import UnclearRequestError, parse_request_end_fields, parse_request_time_field
from site_builder.bookings.store import BOOKINGS_FILE
from site_builder.bookings.transaction import BookingTransaction
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking
from site_builder.core.timeparse import dates, moments, recurrence

# A start that is this many seconds in the past still counts as now: people need a moment to confirm.
PAST_TOLERANCE_S = 300
MAX_NAMED_CHANGES = 3


class Operation(Protocol):
    """A change of comments.json, called `kind` in bookings.log."""

    kind: ClassVar[str]

    def apply(self, transaction: BookingTransaction) -> str:
        """Change the document of the transaction, and return a sentence that says what was done."""


@dataclass(frozen=True)
class BookOperation:
    """Make the booking `wanted` for GPUs, all or none: named ones (`targets`), or any `count` free ones of a model."""

    kind: ClassVar[str] = "book"
    wanted: Booking
    targets: Sequence[str]
    count: int
    model: str
    run_id: str | None

    def apply(self, transaction: BookingTransaction) -> str:
        wanted, user, now = self.wanted, transaction.user, transaction.now
        if self.count:
            places = choose_bookable_gpus(transaction, wanted, self.count, self.model)
        else:
            places = resolve_selected_gpus(transaction, self.targets)
        transaction.check_may_book_for(wanted.name)
        refuse_past_start(wanted.since or now.local, now)
        is_own_name = transaction.resolve_person(wanted.name) == transaction.resolve_person(user.name)
        booked_by = None if user.is_open or is_own_name else user.name
        others = [stored.booking for stored in transaction.list_bookings()]
        ids = {host: transaction.create_id(self.run_id) for host in dict.fromkeys(host for host, _ in places)}
        new = [replace(wanted, host=host, gpu=gpu, id=ids[host], booked_by=booked_by) for host, gpu in places]
        if wanted.rrule:
            spans = policy.list_booking_spans(wanted, wanted.since or now.local, policy.CONFLICT_HORIZON)
            if any(end >= next_start for (_, end), (next_start, _) in zip(spans, spans[1:])):
                raise BookingRefusedError("it would begin again before it has ended: book the whole time at once")
            bounds, ahead = policy.find_booking_time_bounds(wanted), transaction.limits.max_ahead_s
            last = bounds.last if bounds else wanted.since
            if ahead and (last is None or last.timestamp() > now.epoch + ahead):
                length = formatting.format_duration(ahead)
                raise BookingRefusedError(f"bookings are made {length} ahead: let it repeat no longer than that")
        transaction.check_bookings(new, others)
        for host in ids:
            host_bookings = [booking for booking in new if booking.host == host]
            transaction.add_entries(host, *((booking.gpu, booking_to_entry(booking, now)) for booking in host_bookings))
        transaction.affected = new
        return describe_operation_result(new, transaction)


@dataclass(frozen=True)
class ChangeOperation:
    """Move, lengthen, shorten, rename or hand over a booking that has not ended; None or "" stays as it is.

    `times` are the texts of `from`, `until` and `for`, because an end counts from the booking's own start.
    """

    kind: ClassVar[str] = "change"
    booking_id: str
    host: str | None = None
    times: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    comment: str | None = None

    def apply(self, transaction: BookingTransaction) -> str:
        now = transaction.now
        entries = transaction.find_by_id(self.booking_id, self.host)
        booking = entries[0].booking
        since = parse_request_time_field(self.times, "from", now)
        until = parse_request_end_fields(self.times, since or booking.since or now.local, now)
        values = {"since": since, "until": until, "name": self.name, "comment": self.comment}
        changes: dict[str, Any] = {field: value for field, value in values.items() if value is not None}
        if not changes:
            raise UnclearRequestError("what shall be other? Give `from`, `until`, `for`, `name` or `comment`")
        transaction.check_may_change(booking)
        if self.name is not None:
            transaction.check_may_book_for(self.name)
        refuse_ended_booking(booking, now)
        is_moved = since is not None or until is not None
        if booking.rrule and is_moved:
            raise BookingRefusedError(f"booking {booking.id} repeats, and its times stay: release it, and book anew")
        has_begun = booking.since is None or booking.since.timestamp() <= now.epoch
        if has_begun and since is not None and since != booking.since:
            raise BookingRefusedError(f"booking {booking.id} has begun, and its beginning stays")
        if since is not None and not has_begun:
            refuse_past_start(since, now)
        new = [replace(stored.booking, **changes) for stored in entries]
        others = [
            stored.booking for stored in transaction.list_bookings() if not is_same_booking(stored.booking, booking)
        ]
        if is_moved:
            transaction.check_bookings([replace(each, since=each.since or now.local) for each in new], others)
        elif self.name is not None:
            transaction.check_share(new, others)
        entry = booking_to_entry(new[0], now)
        keys = {"since": "from", "until": "date", "name": "name", "comment": "comment"}
        content = {key: entry.get(key) for field, key in keys.items() if field in changes}
        for stored in entries:
            transaction.update_booking(stored, {**content, "id": booking.id})
        transaction.affected = new
        return describe_operation_result(new, transaction)


@dataclass(frozen=True)
class ReleaseOperation:
    """Give up the rest of a booking, by its id or by its GPUs; what is past stays in the file, and ends now."""

    kind: ClassVar[str] = "release"
    booking_id: str = ""
    host: str | None = None
    targets: Sequence[str] = ()

    def apply(self, transaction: BookingTransaction) -> str:
        now = transaction.now
        # an id may also be the name of a host that looks like one
        is_id = self.booking_id not in transaction.hosts.list_hosts() or any(
            stored.booking.id == self.booking_id for stored in transaction.list_bookings()
        )
        if self.booking_id and is_id:
            released = transaction.find_by_id(self.booking_id, self.host)
        else:
            released = find_selected_booking(transaction, self.targets or [self.booking_id])
        for stored in released:
            transaction.check_may_change(stored.booking)
            refuse_ended_booking(stored.booking, now)
        # the GPUs that stay booked keep the id of the booking
        kept = [
            stored.booking
            for stored in transaction.list_bookings()
            if stored not in released and not has_booking_ended(stored.booking, now)
        ]
        new_ids = {
            (stored.booking.host, stored.booking.id): transaction.create_id()
            for stored in released
            if any(is_same_booking(stored.booking, booking) for booking in kept)
        }
        for stored in released:
            booking = stored.booking
            new_id = new_ids.get((booking.host, booking.id))
            changed_id = {"id": new_id} if new_id else {}
            if booking.since and policy.booking_time_to_epoch(booking.since) > now.epoch - formatting.MINUTE:
                transaction.remove_booking(stored)
            elif booking.rrule:
                transaction.update_booking(stored, {"rrule": end_rrule(booking.rrule, now), **changed_id})
            else:
                end = booking_time_to_entry(now.local.replace(microsecond=0), now)
                transaction.update_booking(stored, {"date": end, **changed_id})
        transaction.affected = [stored.booking for stored in released]
        booking = released[0].booking
        what = format_operation_bookings(transaction.affected)
        what += f" of {booking.name}" if transaction.can_see(booking) else ""
        if booking.rrule:
            return f"{what} is not booked again; what has begun goes on to its end"
        since = "what is left"
        if booking.since is not None and policy.booking_time_to_epoch(booking.since) > now.epoch:
            since = f"the booking from {moments.format_full_moment(booking.since, now.local)}"
        return f"{what}: {since} until {moments.format_full_moment(booking.until, now.local)} is released"


@dataclass(frozen=True)
class UndoOperation:
    """Take back the last change that the user made and has not taken back; for an admin, that anybody made.

    `change_id` is the change that was shown before: if another came in between, nothing is taken back.
    """

    kind: ClassVar[str] = "undo"
    change_id: str | None = None

    def apply(self, transaction: BookingTransaction) -> str:
        now = transaction.now
        line = find_operation_to_undo(transaction)
        if self.change_id and line["change"] != self.change_id:
            raise BookingRefusedError(f"{line['who']} has changed something since: look again")
        transaction.undone_change = line["change"]
        stored_bookings, removed = transaction.list_bookings(), []
        for host, gpu, content in line["after"]:
            matches = [stored for stored in stored_bookings if stored.to_logged_entry() == [host, gpu, content]]
            if not matches:
                raise BookingRefusedError(f"the booking of {host}:{gpu} has been changed since, and is not taken back")
            removed.append(matches[0].booking)
            transaction.remove_booking(matches[0])
        present = transaction.list_logged_entries()
        for host, gpu, content in line["before"]:
            if [host, gpu, content] in present:
                raise BookingRefusedError(f"the booking of {host}:{gpu} is there already")
            transaction.add_entries(host, (gpu, content))
        restored, current, others = find_undone_bookings(transaction)
        changed = [*restored, *removed]
        if changed and all(has_booking_ended(booking, now) for booking in changed):
            refuse_ended_booking(changed[0], now)
        changed_at = dates.exact(line["when"])
        transaction.check_conflicts(current, others, given_up=changed_at.timestamp() if changed_at else None)
        for name in {booking.name for booking in current}:
            transaction.check_share([booking for booking in current if booking.name == name], others)
        transaction.affected = restored
        if restored:
            groups: dict[object, list[Booking]] = {}  # what differs only in the GPU is one sentence
            for booking in restored:
                groups.setdefault((booking.name, booking.since, booking.until, booking.rrule), []).append(booking)
            result = "; ".join(describe_operation_result(group, transaction) for group in groups.values())
        else:
            places = format_operation_places((host, gpu) for host, gpu, _ in transaction.entries_before)
            result = f"the booking of {places} is gone again"
        whose = line["who"] if transaction.can_see_names else "somebody"
        return f"taken back what {whose} did at {line['when'][:16]} ({line['what']}): {result}"


def find_operation_to_undo(transaction: BookingTransaction) -> dict[str, Any]:
    """Return the line of the log that is to be taken back.

    The file must have what the line left, or a later form of it: a change that was logged but never written, because
    the process was killed, or that is gone, does not count.
    """
    undone: list[object] = []  # what stands in the log may be of any type
    user, present = transaction.user, transaction.list_logged_entries()
    for line in transaction.store.read_log():
        undone += [line.get("undoes"), line.get("instead")]
        is_own = user.is_admin or transaction.resolve_person(line["who"]) == transaction.resolve_person(user.name)
        can_undo = line["what"] in {"book", "change", "release", "edit"} and (line["before"] or line["after"])
        if not (is_own and can_undo) or line["change"] in undone:
            continue
        if line["before"] and all(entry in present for entry in line["before"]):
            continue
        changed_ids = [(host, content.get("id")) for host, _, content in line["after"]]
        if all(entry in present for entry in line["after"]) or any(
            (host, content.get("id")) in changed_ids for host, _, content in present
        ):
            return line
    raise BookingRefusedError(f"there is nothing that {user.name} changed and that could be taken back")


def find_undone_bookings(transaction: BookingTransaction) -> tuple[list[Booking], list[Booking], list[Booking]]:
    """Return the bookings that were put back, those of them that have not ended, and all others of the file."""
    bookings = transaction.list_bookings()
    restored = [stored.booking for stored in bookings if stored.to_logged_entry() in transaction.entries_after]
    current = [booking for booking in restored if not has_booking_ended(booking, transaction.now)]
    others = [
        stored.booking
        for stored in bookings
        if not any(is_same_booking(stored.booking, booking) for booking in current)
    ]
    return restored, current, others


def is_same_booking(booking: Booking, other: Booking) -> bool:
    return (booking.host, booking.id) == (other.host, other.id)


def refuse_past_start(since: datetime, now: Now) -> None:
    if since.timestamp() < now.epoch - PAST_TOLERANCE_S:
        message = f"it would begin {policy.format_booking_moment(since.timestamp(), now)}, which is in the past"
        raise BookingRefusedError(message)


def refuse_ended_booking(booking: Booking, now: Now) -> None:
    if has_booking_ended(booking, now):
        end = policy.format_booking_moment(policy.compute_booking_end_time(booking), now)
        raise BookingRefusedError(f"booking {booking.id} ended {end}, and the past stays as it was")


# Editing the whole file


@dataclass(frozen=True)
class EditOperation:
    """Put an edited copy of the file in its place; it may repair a file that cannot be read."""

    kind: ClassVar[str] = "edit"
    original: bytes
    edited: bytes

    def apply(self, transaction: BookingTransaction) -> str:
        merged = replace(transaction, content=self.edited)
        if transaction.content != self.original:
            if not is_readable_json(self.original):
                path = transaction.store.folder / BOOKINGS_FILE
                raise BookingRefusedError(f"{path} was repaired by somebody else meanwhile")
            merge_transactions(merged, replace(transaction, content=self.original), transaction)
        entries = transaction.list_logged_entries() if is_readable_json(transaction.content) else []
        before, after = (Counter(map(json.dumps, side)) for side in (entries, merged.list_logged_entries()))
        transaction.document = merged.document
        transaction.entries_before = [json.loads(entry) for entry in (before - after).elements()]
        transaction.entries_after = [json.loads(entry) for entry in (after - before).elements()]
        removed, added = (
            {format_booking_place(host, gpu): None for host, gpu, _ in side}
            for side in (transaction.entries_before, transaction.entries_after)
        )
        changes = [
            f"{place} {'changed' if place in removed and place in added else 'new' if place in added else 'gone'}"
            for place in {**removed, **added}
        ]
        more = [f"{len(changes) - MAX_NAMED_CHANGES} more"] if len(changes) > MAX_NAMED_CHANGES else []
        return ", ".join(changes[:MAX_NAMED_CHANGES] + more) or "no booking is another"


def is_readable_json(content: bytes) -> bool:
    try:
        return bool(JsonDocument.from_bytes(content))
    except parser.BookingJsonError:
        return False


def merge_transactions(mine: BookingTransaction, original: BookingTransaction, theirs: BookingTransaction) -> None:
    """Change in my copy what others changed since the original; refuse what both changed."""
    before, my_entries, their_entries = (count_json_entries(side.document) for side in (original, mine, theirs))
    for changed_entry in (before - my_entries) & (before - their_entries):
        host, gpu, _ = json.loads(changed_entry)
        my_changes, their_changes = (
            [entry for entry in side - before if json.loads(entry)[:2] == [host, gpu]]
            for side in (my_entries, their_entries)
        )
        if my_changes != their_changes:
            place = format_booking_place(host, gpu)
            raise BookingRefusedError(f"the booking of {place} was changed by somebody else meanwhile, and by you")
    document, added, removed = mine.document, their_entries - before - (my_entries - before), before - their_entries
    if count_json_remarks(theirs.document) != count_json_remarks(original.document):
        if count_json_remarks(mine.document) != count_json_remarks(original.document):
            raise BookingRefusedError("the remarks in the file were changed by somebody else meanwhile, and by you")
        document, added, removed = theirs.document, my_entries - before - (their_entries - before), before - my_entries
    for key in removed.elements():
        entry = next((entry for entry in document.list_entries() if build_json_entry_key(entry) == key), None)
        if entry:
            document = json_edit.remove_json_entry(document, entry)
    for key in added.elements():
        host, gpu, content = json.loads(key)
        document = json_edit.add_json_entries(document, host, [(gpu, content)])
    mine.document = document
    # no new booking of mine where somebody else has made one meanwhile
    known = before | my_entries
    others = [stored.booking for stored in theirs.list_bookings() if build_json_entry_key(stored.entry) not in known]
    for stored in mine.list_bookings():
        key, booking = build_json_entry_key(stored.entry), stored.booking
        if key in my_entries and key not in before:
            host_bookings = [other for other in others if other.host == booking.host]
            keys = policy.GpuKeyMap(mine.hosts.list_gpus(booking.host))
            policy.check_booking_conflicts(booking, host_bookings, keys, mine.now)


def build_json_entry_key(entry: JsonEntry) -> str:
    return json.dumps([entry.host, entry.gpu, entry.content])


def count_json_entries(document: JsonDocument) -> Counter[str]:
    """Count the entries of a file by their keys; two that are equal are two."""
    return Counter(
        build_json_entry_key(entry)
        for entry in document.list_entries()
        if not json_edit.is_empty_json_entry(entry.content)
    )


def count_json_remarks(document: JsonDocument) -> Counter[str]:
    """Count the comments and other values that people wrote beside the entries."""
    tokens = (match[0] for match in parser.STRING_OR_COMMENT.finditer(document.text))
    comments = [token.strip() for token in tokens if not token.startswith('"')]
    others = [
        f"{member.key}: {member.content}"
        for member in document.list_hosts()
        if not isinstance(member.content, (dict, list))
    ]
    return Counter(comments + others)


# Entries of comments.json


def booking_to_entry(booking: Booking, now: Now) -> dict[str, object]:
    """Return a booking as it is written; times have an offset, to mean the same everywhere."""
    start = {"from": booking_time_to_entry(booking.since, now, booking.rrule)} if booking.since else {}
    end = {"date": booking_time_to_entry(booking.until, now, booking.rrule)}
    optional = {"comment": booking.comment, "rrule": booking.rrule, "id": booking.id, "by": booking.booked_by}
    return {"name": booking.name, **start, **end, **{key: value for key, value in optional.items() if value}}


def booking_time_to_entry(moment: datetime, now: Now, rrule: str | None = None) -> str:
    """Format a time for the file, with seconds only if it has some.

    A repeating booking has no offset: 9:00 stays 9:00 when the clocks change.
    """
    local = now.to_local(moment)
    if rrule:
        local = local.replace(tzinfo=None)
    return local.isoformat(" ", "seconds" if local.second else "minutes")


def end_rrule(rrule: str, now: Now) -> str:
    """Return a rule that gives no more times from now on."""
    parts = [part for part in rrule.split(";") if not part.startswith(("COUNT=", "UNTIL="))]
    until = datetime.fromtimestamp(now.epoch, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return ";".join([*parts, f"UNTIL={until}"])


# Sentences


def describe_operation_result(bookings: Sequence[Booking], transaction: BookingTransaction) -> str:
    """Describe bookings: `atlas:0,1 for alice from now until Fri 20 Nov 18:00 (4 d 4 h)`."""
    booking, now = bookings[0], transaction.now
    what = format_operation_bookings(bookings) + (f" for {booking.name}" if transaction.can_see(booking) else "")
    since = booking.since
    if booking.rrule and since:
        rule = recurrence.describe_recurrence(booking.rrule, since, booking.until, now.zone)
        return f"{what} {rule}, first {moments.format_full_moment(since, now.local)}"
    if since is None or policy.booking_time_to_epoch(since) <= now.epoch:
        start, start_text = now.epoch, "now"
    else:
        start, start_text = policy.booking_time_to_epoch(since), moments.format_full_moment(since, now.local)
    length = formatting.format_duration(policy.booking_time_to_epoch(booking.until) - start)
    return f"{what} from {start_text} until {moments.format_full_moment(booking.until, now.local)} ({length})"


def format_operation_bookings(bookings: Sequence[Booking]) -> str:
    """Format the GPUs of bookings: `atlas:0,1 and zeus`."""
    return format_operation_places((booking.host, booking.gpu) for booking in bookings)


def format_operation_places(places: Iterable[tuple[str, str]]) -> str:
    gpus_by_host: dict[str, list[str]] = {}
    for host, gpu in places:
        gpus_by_host.setdefault(host, []).append(gpu)
    return " and ".join(host if "*" in gpus else f"{host}:{','.join(gpus)}" for host, gpus in gpus_by_host.items())
