"""Operations on bookings: book, change, release, undo, and edit the whole file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from site_builder.bookings import gpu_selection, policy, request, times
from site_builder.bookings.json_edit import JsonEntry, is_readable_json
from site_builder.bookings.parser import LoggedEntry, booking_time_to_entry, booking_to_entry, parse_booking
from site_builder.bookings.policy import BookingRefusedError, format_booking_places
from site_builder.bookings.request import MAX_TIME_CHARACTERS, JsonRequest, UnclearRequestError
from site_builder.bookings.transaction import BookingTransaction, BookingUser, merge_transactions
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.data_folder import BOOKINGS_FILE
from site_builder.core.model import RUN_ID_PREFIX, Booking
from site_builder.core.timeparse import dates, recurrence
from site_builder.core.timeparse.recurrence import end_recurrence_rule

MAX_NAMED_CHANGES = 3
MAX_COMMENT_CHARACTERS = 500
UNDO_NOUNS = {"book": "booking"}
REQUEST_KEYS = {
    "book": {"gpus", "any", "model", "from", "until", "for", "name", "comment", "rrule", "run", "check"},
    "change": {"id", "host", "from", "until", "for", "name", "comment", "check"},
    "release": {"id", "host", "gpus", "check"},
    "undo": {"undoes", "check"},
}
RUN_ID = re.compile(rf"{RUN_ID_PREFIX}[a-z0-9]{{6,20}}")


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
            places = gpu_selection.choose_bookable_gpus(transaction, wanted, self.count, self.model)
        else:
            places = gpu_selection.resolve_selected_gpus(transaction, self.targets)
        transaction.check_may_book_for(wanted.name)
        policy.refuse_past_start(wanted.since or now.local, now)
        is_own_name = transaction.resolve_person(wanted.name) == transaction.resolve_person(user.name)
        booked_by = None if user.is_open or is_own_name else user.name
        others = [stored.booking for stored in transaction.list_bookings()]
        ids = {host: transaction.create_id(self.run_id) for host in dict.fromkeys(host for host, _ in places)}
        new = [replace(wanted, host=host, gpu=gpu, id=ids[host], booked_by=booked_by) for host, gpu in places]
        if wanted.rrule:
            spans = times.list_booking_spans(wanted, wanted.since or now.local, times.CONFLICT_HORIZON)
            if any(end >= next_start for (_, end), (next_start, _) in zip(spans, spans[1:])):
                raise BookingRefusedError(
                    "the next repeat would start before this one ends: book the whole time at once"
                )
            bounds, ahead = times.find_booking_time_bounds(wanted), transaction.limits.max_ahead_s
            last = bounds.last if bounds else wanted.since
            if ahead and (last is None or last.timestamp() > now.epoch + ahead):
                length = formatting.format_duration(ahead)
                raise BookingRefusedError(f"bookings can be made {length} ahead at most: end the repeats by then")
        transaction.check_bookings(new, others)
        for host in ids:
            host_bookings = [booking for booking in new if booking.host == host]
            entries = [(booking.gpu, booking_to_entry(booking, now)) for booking in host_bookings]
            transaction.replace_ended_bookings(host, *entries)
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
        since = request.parse_request_time_field(self.times, "from", now)
        until = request.parse_request_end_fields(self.times, since or booking.since or now.local, now)
        values = {"since": since, "until": until, "name": self.name, "comment": self.comment}
        changes: dict[str, Any] = {field: value for field, value in values.items() if value is not None}
        if not changes:
            raise UnclearRequestError("nothing to change: give `from`, `until`, `for`, `name` or `comment`")
        transaction.check_may_change(booking)
        if self.name is not None:
            transaction.check_may_book_for(self.name)
        policy.refuse_ended_booking(booking, now)
        is_moved = since is not None or until is not None
        if booking.rrule and is_moved:
            raise BookingRefusedError(
                f"booking {booking.id} repeats, so its times cannot change: release it and book again"
            )
        has_begun = booking.since is None or booking.since.timestamp() <= now.epoch
        if has_begun and since is not None and since != booking.since:
            raise BookingRefusedError(f"booking {booking.id} has started, so its start cannot change")
        if since is not None and not has_begun:
            policy.refuse_past_start(since, now)
        new = [replace(stored.booking, **changes) for stored in entries]
        stored_bookings = [stored.booking for stored in transaction.list_bookings()]
        others = [other for other in stored_bookings if (other.host, other.id) != (booking.host, booking.id)]
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
        ids = {stored.booking.id for stored in transaction.list_bookings()}
        is_id = self.booking_id in ids or self.booking_id not in transaction.hosts.list_hosts()
        if self.booking_id and is_id:
            released = transaction.find_by_id(self.booking_id, self.host)
        else:
            released = gpu_selection.find_selected_booking(transaction, self.targets or [self.booking_id])
        for stored in released:
            transaction.check_may_change(stored.booking)
            policy.refuse_ended_booking(stored.booking, now)
        # the GPUs that stay booked keep the id of the booking
        kept = [stored.booking for stored in transaction.list_bookings() if stored not in released]
        kept = [booking for booking in kept if not times.has_booking_ended(booking, now)]
        kept_ids = {(booking.host, booking.id) for booking in kept}
        split_ids = kept_ids & {(stored.booking.host, stored.booking.id) for stored in released}
        new_ids = {split_id: transaction.create_id() for split_id in split_ids}
        for stored in released:
            booking = stored.booking
            new_id = new_ids.get((booking.host, booking.id))
            changed_id = {"id": new_id} if new_id else {}
            if booking.since and times.booking_time_to_epoch(booking.since) > now.epoch - formatting.MINUTE:
                transaction.remove_booking(stored)
            elif booking.rrule:
                transaction.update_booking(stored, {"rrule": end_recurrence_rule(booking.rrule, now), **changed_id})
            else:
                end = booking_time_to_entry(now.local.replace(microsecond=0), now)
                transaction.update_booking(stored, {"date": end, **changed_id})
        transaction.affected = [stored.booking for stored in released]
        booking = released[0].booking
        what = format_booking_places((booking.host, booking.gpu) for booking in transaction.affected)
        what += f" of {booking.name}" if transaction.can_see(booking) else ""
        if booking.rrule:
            return f"{what} will no longer repeat; a repeat that has started runs to its end"
        since = ""
        if booking.since is not None and times.booking_time_to_epoch(booking.since) > now.epoch:
            since = f"from {times.format_booking_moment(booking.since, now, in_full=True)} "
        return f"{what} released (was {since}until {times.format_booking_moment(booking.until, now, in_full=True)})"


@dataclass(frozen=True)
class UndoOperation:
    """Undo the last change that the user made and has not undone; for an admin, that anybody made.

    `change_id` is the change that was shown before: if another came in between, nothing is taken back.
    """

    kind: ClassVar[str] = "undo"
    change_id: str | None = None

    def apply(self, transaction: BookingTransaction) -> str:
        now = transaction.now
        line, replaced = find_operation_to_undo(transaction)
        if self.change_id and line["change"] != self.change_id:
            raise BookingRefusedError(f"another change was made since, by {line['who']}: check the bookings again")
        transaction.undone_change = line["change"]
        stored_bookings, removed = transaction.list_bookings(), []
        for host, gpu, content in line["after"]:
            matches = [stored for stored in stored_bookings if stored.to_logged_entry() == [host, gpu, content]]
            if not matches and [host, gpu, content] in replaced:
                booking, _ = parse_booking(JsonEntry(host, gpu, content, 0, 0), now.zone)
                removed += [replace(booking, id=str(content.get("id") or ""))] if booking else []
                continue
            if not matches:
                raise BookingRefusedError(f"the booking of {host}:{gpu} has changed since and cannot be undone")
            removed.append(matches[0].booking)
            transaction.remove_booking(matches[0])
        present = transaction.list_logged_entries()
        for host, gpu, content in line["before"]:
            if [host, gpu, content] in present:
                raise BookingRefusedError(f"{host}:{gpu} already has this booking")
            transaction.add_entries(host, (gpu, content))
        restored, current, others = find_undone_bookings(transaction)
        changed = [*restored, *removed]
        if changed and all(times.has_booking_ended(booking, now) for booking in changed):
            policy.refuse_ended_booking(changed[0], now)
        changed_at = dates.parse_date_with_offset(line["when"])
        transaction.check_conflicts(current, others, given_up=changed_at.timestamp() if changed_at else None)
        for name in {booking.name for booking in current}:
            transaction.check_share([booking for booking in current if booking.name == name], others)
        # a booking may have stood in the place of one that had ended, which is back now
        transaction.affected = restored if current else []
        if current:
            groups: dict[object, list[Booking]] = {}  # what differs only in the GPU is one sentence
            for booking in restored:
                groups.setdefault((booking.name, booking.since, booking.until, booking.rrule), []).append(booking)
            result = "; ".join(describe_operation_result(group, transaction) for group in groups.values())
        else:
            places = format_booking_places((host, gpu) for host, gpu, _ in transaction.entries_before)
            result = f"{places} no longer booked"
        whose = line["who"] if transaction.can_see_names else "somebody"
        when = times.format_booking_moment(changed_at, now, in_full=True) if changed_at else line["when"][:16]
        return f"undo of the {UNDO_NOUNS.get(line['what'], line['what'])} by {whose}, {when}: {result}"


def find_operation_to_undo(transaction: BookingTransaction) -> tuple[dict[str, Any], list[LoggedEntry]]:
    """Return the line of the log that is to be taken back, and the ended entries whose places later bookings took."""
    undone: list[object] = []  # entries of the log may be of any type
    replaced: list[LoggedEntry] = []
    user, present = transaction.user, transaction.list_logged_entries()
    for line in transaction.store.read_log():
        undone += [line.get("undoes"), line.get("instead")]
        replaced += line["before"] if line["what"] == "book" and line["change"] not in undone else []
        is_own = user.is_admin or transaction.resolve_person(line["who"]) == transaction.resolve_person(user.name)
        can_undo = line["what"] in {"book", "change", "release", "edit"} and (line["before"] or line["after"])
        if not (is_own and can_undo) or line["change"] in undone:
            continue
        if line["before"] and all(entry in present for entry in line["before"]):
            continue
        # the file must have what the line left, or a later form of it: a change may have been logged, but not written
        changed_ids = [(host, content.get("id")) for host, _, content in line["after"]]
        present_ids = [(host, content.get("id")) for host, _, content in present]
        is_there = all(entry in present or entry in replaced for entry in line["after"])
        if is_there or any(key in changed_ids for key in present_ids):
            return line, replaced
    raise BookingRefusedError(f"no change by {user.name} can be undone")


def find_undone_bookings(transaction: BookingTransaction) -> tuple[list[Booking], list[Booking], list[Booking]]:
    """Return the bookings that were put back, those of them that have not ended, and all others of the file."""
    bookings = transaction.list_bookings()
    restored = [stored.booking for stored in bookings if stored.to_logged_entry() in transaction.entries_after]
    current = [booking for booking in restored if not times.has_booking_ended(booking, transaction.now)]
    current_ids = {(booking.host, booking.id) for booking in current}
    others = [stored.booking for stored in bookings if (stored.booking.host, stored.booking.id) not in current_ids]
    return restored, current, others


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
                raise BookingRefusedError(f"{path} was repaired by somebody else in the meantime")
            merge_transactions(merged, replace(transaction, content=self.original), transaction)
        entries = transaction.list_logged_entries() if is_readable_json(transaction.content) else []
        before, after = (Counter(map(json.dumps, side)) for side in (entries, merged.list_logged_entries()))
        transaction.document = merged.document
        transaction.entries_before = [json.loads(entry) for entry in (before - after).elements()]
        transaction.entries_after = [json.loads(entry) for entry in (after - before).elements()]
        removed, added = (
            {format_booking_places([(host, gpu)]): None for host, gpu, _ in side}
            for side in (transaction.entries_before, transaction.entries_after)
        )
        changes = [
            f"{place} {'changed' if place in removed and place in added else 'new' if place in added else 'gone'}"
            for place in {**removed, **added}
        ]
        more = [f"{len(changes) - MAX_NAMED_CHANGES} more"] if len(changes) > MAX_NAMED_CHANGES else []
        return ", ".join(changes[:MAX_NAMED_CHANGES] + more) or "no booking changed"


def describe_operation_result(bookings: Sequence[Booking], transaction: BookingTransaction) -> str:
    """Describe bookings: `atlas:0,1 for alice from now until Fri 20 Nov 18:00 (4 d 4 h)`."""
    booking, now = bookings[0], transaction.now
    what = format_booking_places((member.host, member.gpu) for member in bookings)
    what += f" for {booking.name}" if transaction.can_see(booking) else ""
    since = booking.since
    if booking.rrule and since:
        rule = times.describe_repeats(booking, now, with_end=True)
        return f"{what} {rule}, first {times.format_booking_moment(since, now, in_full=True)}"
    if since is None or times.booking_time_to_epoch(since) <= now.epoch:
        start, start_text = now.epoch, "now"
    else:
        start, start_text = times.booking_time_to_epoch(since), times.format_booking_moment(since, now, in_full=True)
    length = formatting.format_duration(times.booking_time_to_epoch(booking.until) - start)
    return f"{what} from {start_text} until {times.format_booking_moment(booking.until, now, in_full=True)} ({length})"


def parse_operation(fields: JsonRequest, now: Now, user: BookingUser) -> Operation:
    text = partial(request.parse_request_text_field, fields)
    kind = request.parse_request_kind(fields, REQUEST_KEYS)
    if kind == "undo":
        return UndoOperation(text("undoes") or None)
    booking_id = text("id")
    host = text("host") or None
    if kind == "release":
        targets = request.parse_request_text_list(fields, "gpus")
        if bool(booking_id) == bool(targets):
            raise UnclearRequestError("no booking named: give its `id`, or the GPUs")
        return ReleaseOperation(booking_id, host, targets)
    if kind == "change":
        has_comment = fields.get("comment") is not None
        texts = {key: text(key, MAX_TIME_CHARACTERS) for key in ("from", "until", "for")}
        name = text("name") or None
        comment = text("comment", MAX_COMMENT_CHARACTERS) if has_comment else None
        return ChangeOperation(booking_id, host, texts, name, comment)
    since = request.parse_request_time_field(fields, "from", now) or now.local.replace(second=0, microsecond=0)
    until = request.parse_request_end_fields(fields, since, now)
    if until is None:
        raise UnclearRequestError("no end: give `until` or `for`")
    rrule = text("rrule", MAX_COMMENT_CHARACTERS)
    if rrule:
        rrule, fault = recurrence.parse_recurrence_rule(rrule, now.zone)
        if fault:
            raise UnclearRequestError(f'the rrule "{fields["rrule"]}" {fault}')
        first = times.find_first_booking_time(rrule, since)
        if first is None:
            raise UnclearRequestError("it would not occur within a year")
        since, until = first, first + (until - since)
    run_id = text("run")
    if run_id and not RUN_ID.fullmatch(run_id):
        raise UnclearRequestError(f"`run` must be an id such as {RUN_ID_PREFIX}b2c3d4")
    targets = request.parse_request_text_list(fields, "gpus")
    count = fields.get("any")
    is_count = isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= gpu_selection.MAX_GPUS
    if count is not None and not is_count:
        raise UnclearRequestError("`any` must be a number of GPUs")
    if bool(targets) == bool(count):
        raise UnclearRequestError("no GPU named: give a host, some of its GPUs such as atlas:0,1, or `any`")
    name = text("name") or user.name
    comment = text("comment", MAX_COMMENT_CHARACTERS)
    model = text("model")
    wanted = Booking("", "", name, until, since, comment, rrule=rrule or None)
    return BookOperation(wanted, targets, count or 0, model, run_id or None)
