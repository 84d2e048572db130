"""What is done at the desk: book, change, release, and take back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from site_builder.bookings import page, policy
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.transaction import BookingChanges, BookingRequest, BookingTransaction, StoredBooking
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking
from site_builder.core.timeparse import dates

# So many seconds ago is still now: people need a moment to say yes.
PAST_TOLERANCE_S = 300


def book_gpus(turn: BookingTransaction, wish: BookingRequest) -> None:
    """Book what was wished for, all of it or nothing."""
    turn.check_may_book_for(wish.name)
    now = turn.now
    since, until = wish.since, wish.until
    refuse_past_start(since, now)
    by = (
        None
        if turn.user.is_open or turn.resolve_person(wish.name) == turn.resolve_person(turn.user.name)
        else turn.user.name
    )
    others = [one.booking for one in turn.list_bookings()]
    ids = {host: turn.create_id(wish.run_id) for host in dict.fromkeys(host for host, _ in wish.places)}
    new = [
        Booking(
            host=host,
            gpu=gpu,
            name=wish.name,
            until=until,
            since=since,
            comment=wish.comment,
            id=ids[host],
            rrule=wish.rrule,
            booked_by=by,
        )
        for host, gpu in wish.places
    ]
    if wish.rrule:
        check_recurrence(new[0], turn)
    turn.check_bookings(new, others)
    for host in ids:
        turn.add_entries(host, *((one.gpu, booking_to_entry(one, now)) for one in new if one.host == host))
    turn.affected = new


def refuse_past_start(since: datetime, now: Now) -> None:
    """Nothing begins in the past."""
    if since.timestamp() < now.epoch - PAST_TOLERANCE_S:
        message = f"it would begin {policy.format_booking_moment(since.timestamp(), now)}, which is in the past"
        raise BookingRefusedError(message)


def check_recurrence(one: Booking, turn: BookingTransaction) -> None:
    """Refuse what runs into its own next time, or goes on for longer than bookings are made ahead."""
    times = policy.list_spans(one, one.since or turn.now.local, policy.CONFLICT_HORIZON)
    if any(ends >= begins for (_, ends), (begins, _) in zip(times, times[1:])):
        message = "it would begin again before it has ended: book the whole time at once"
        raise BookingRefusedError(message)
    ahead = 0 if turn.user.is_admin else turn.policy.max_ahead_s
    repeats = page.find_recurrence_bounds(one)
    last = repeats.last if repeats else one.since
    if ahead and (last is None or last.timestamp() > turn.now.epoch + ahead):
        message = f"bookings are made {formatting.format_duration(ahead)} ahead: let it repeat no longer than that"
        raise BookingRefusedError(message)


def booking_to_entry(one: Booking, now: Now) -> dict[str, object]:
    """A booking as it is written; times with their offset, so that they mean the same everywhere."""
    found: dict[str, object] = {"name": one.name}
    if one.since:
        found["from"] = format_entry_time(one.since, now, one.rrule)
    found["date"] = format_entry_time(one.until, now, one.rrule)
    optional = {"comment": one.comment, "rrule": one.rrule, "id": one.id, "by": one.booked_by}
    return {**found, **{key: value for key, value in optional.items() if value}}


def format_entry_time(moment: datetime, now: Now, rule: str | None = None) -> str:
    """A time as it stands in the file; to the second only where somebody meant it.

    What repeats has no offset: 9:00 stays 9:00 when the clocks change.
    """
    local = now.to_local(moment)
    if rule:
        local = local.replace(tzinfo=None)
    return local.isoformat(" ", "seconds" if local.second else "minutes")


def change_booking(turn: BookingTransaction, several: Sequence[StoredBooking], changes: BookingChanges) -> None:
    """Move, lengthen, shorten, hand over or rename a booking that is not over."""
    one, now = several[0].booking, turn.now
    turn.check_may_change(one)
    if changes.name is not None:
        turn.check_may_book_for(changes.name)
    refuse_ended(one, now)
    moved = changes.since is not None or changes.until is not None
    if one.rrule and moved:
        message = f"booking {one.id} repeats, and its times stay: release it, and book anew"
        raise BookingRefusedError(message)
    began = one.since is None or one.since.timestamp() <= now.epoch
    if began and changes.since is not None and changes.since != one.since:
        message = f"booking {one.id} has begun, and its beginning stays"
        raise BookingRefusedError(message)
    if changes.since is not None and not began:
        refuse_past_start(changes.since, now)
    told = {key: value for key, value in changes._asdict().items() if value is not None}
    new = [replace(each.booking, **told) for each in several]
    others = [each.booking for each in turn.list_bookings() if not is_same_booking(each.booking, one)]
    if moved:
        turn.check_bookings([replace(each, since=each.since or now.local) for each in new], others)
    elif changes.name is not None and not turn.user.is_admin:
        turn.check_share(new, others, turn.policy)
    written_as = booking_to_entry(new[0], now)
    keys = {"since": "from", "until": "date", "name": "name", "comment": "comment"}
    content = {key: written_as.get(key) for name, key in keys.items() if name in told}
    for each in several:
        turn.update_booking(each, {**content, "id": one.id})
    turn.affected = new


def refuse_ended(one: Booking, now: Now) -> None:
    """Nothing is changed in the past."""
    if has_ended(one, now):
        message = f"booking {one.id} ended {policy.format_booking_moment(compute_final_end(one), now)}, and the past stays as it was"
        raise BookingRefusedError(message)


def compute_final_end(one: Booking) -> float:
    """When it ends, with the last of its times; one that goes on for ever never does."""
    repeats = page.find_recurrence_bounds(one)
    if repeats is None or one.since is None or repeats.first is None:
        return policy.to_epoch(one.until)
    return policy.to_epoch(repeats.last + (one.until - one.since)) if repeats.last else math.inf


def has_ended(one: Booking, now: Now) -> bool:
    """Whether there is nothing of it to come."""
    return compute_final_end(one) <= now.epoch


def release_booking(turn: BookingTransaction, several: Sequence[StoredBooking]) -> None:
    """Give up what is still to come; what has been stays in the file, and ends now."""
    now = turn.now
    for one in several:
        turn.check_may_change(one.booking)
        refuse_ended(one.booking, now)
    # the GPUs that somebody keeps of a booking keep its id
    kept = [one for one in turn.list_bookings() if one not in several and not has_ended(one.booking, now)]
    new_ids = {
        (one.booking.host, one.booking.id): turn.create_id()
        for one in several
        if any(is_same_booking(one.booking, other.booking) for other in kept)
    }
    for one in several:
        booking = one.booking
        mine = new_ids.get((booking.host, booking.id))
        changed = {"id": mine} if mine else {}
        if booking.since and policy.to_epoch(booking.since) > now.epoch - formatting.MINUTE:
            turn.remove_booking(one)
        elif booking.rrule:
            turn.update_booking(one, {"rrule": end_rrule(booking.rrule, now), **changed})
        else:
            turn.update_booking(one, {"date": format_entry_time(now.local.replace(microsecond=0), now), **changed})
    turn.affected = [one.booking for one in several]


def end_rrule(rule: str, now: Now) -> str:
    """A rule that gives no more times from now on."""
    kept = [part for part in rule.split(";") if not part.startswith(("COUNT=", "UNTIL="))]
    until = datetime.fromtimestamp(now.epoch, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return ";".join([*kept, f"UNTIL={until}"])


def is_change_in_force(turn: BookingTransaction, line: Mapping[str, Any]) -> bool:
    """Whether the file has what a line of the log left, or what became of it.

    A change that was logged but never made, because somebody was killed, or that is gone, stands in nobody's way.
    """
    found = turn.list_bookings()
    there = [[one.booking.host, one.booking.gpu, one.entry.content] for one in found]
    if line["before"] and all(one in there for one in line["before"]):
        return False
    left = {(host, content.get("id")) for host, _, content in line["after"]}
    changed = any((one.booking.host, one.entry.content.get("id")) in left for one in found)
    return all(one in there for one in line["after"]) or changed


def undo_change(turn: BookingTransaction, line: Mapping[str, Any]) -> None:
    """Take back what a line of the log tells, where nobody has changed it since."""
    gone = [find_logged_entry(turn, *one) for one in line["after"]]
    for one in gone:
        turn.remove_booking(one)
    there = [[one.booking.host, one.booking.gpu, one.entry.content] for one in turn.list_bookings()]
    for host, gpu, content in line["before"]:
        if [host, gpu, content] in there:
            message = f"the booking of {host}:{gpu} is there already"
            raise BookingRefusedError(message)
        turn.add_entries(host, (gpu, content))
    back = [
        one
        for one in turn.list_bookings()
        if [one.booking.host, one.booking.gpu, one.entry.content] in turn.entries_after
    ]
    touched = [one.booking for one in (*back, *gone)]
    if touched and all(has_ended(one, turn.now) for one in touched):
        refuse_ended(touched[0], turn.now)
    live = [one.booking for one in back if not has_ended(one.booking, turn.now)]
    others = [
        each.booking for each in turn.list_bookings() if not any(is_same_booking(each.booking, one) for one in live)
    ]
    changed = dates.exact(line["when"])
    turn.check_conflicts(live, others, given_up=changed.timestamp() if changed else None)
    for name in {one.name for one in live} if not turn.user.is_admin else ():
        turn.check_share([one for one in live if one.name == name], others, turn.policy)
    turn.affected = [one.booking for one in back]


def is_same_booking(one: Booking, other: Booking) -> bool:
    """Whether both are of one booking."""
    return (one.host, one.id) == (other.host, other.id)


def find_logged_entry(turn: BookingTransaction, host: str, gpu: str, content: Mapping[str, Any]) -> StoredBooking:
    """The entry that a line of the log left in the file."""
    for one in turn.list_bookings():
        if (one.booking.host, one.booking.gpu, one.entry.content) == (host, gpu, content):
            return one
    message = f"the booking of {host}:{gpu} has been changed since, and is not taken back"
    raise BookingRefusedError(message)
