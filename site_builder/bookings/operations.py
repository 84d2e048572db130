"""What is done at the desk: book, change, release, and take back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from site_builder.bookings import calendar, policy
from site_builder.bookings.policy import Refused
from site_builder.bookings.transaction import Changes, Found, Turn, Wish
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking
from site_builder.core.timeparse import dates

# So many seconds ago is still now: people need a moment to say yes.
JUST_NOW = 300


def book(turn: Turn, wish: Wish) -> None:
    """Book what was wished for, all of it or nothing."""
    turn.may_name(wish.name)
    now = turn.now
    since, until = wish.since, wish.until
    refuse_past(since, now)
    by = None if turn.who.open or turn.person(wish.name) == turn.person(turn.who.name) else turn.who.name
    others = [one.booking for one in turn.found()]
    ids = {host: turn.new_id(wish.run) for host in dict.fromkeys(host for host, _ in wish.places)}
    new = [
        Booking(host, gpu, wish.name, until, since, wish.comment, ids[host], wish.rrule, by)
        for host, gpu in wish.places
    ]
    if wish.rrule:
        check_series(new[0], turn)
    turn.check(new, others)
    for host in ids:
        turn.add(host, *((one.gpu, content_of(one, now)) for one in new if one.host == host))
    turn.touched = new


def refuse_past(since: datetime, now: Now) -> None:
    """Nothing begins in the past."""
    if since.timestamp() < now.epoch - JUST_NOW:
        message = f"it would begin {policy.clock(since.timestamp(), now)}, which is in the past"
        raise Refused(message)


def check_series(one: Booking, turn: Turn) -> None:
    """Refuse what runs into its own next time, or goes on for longer than bookings are made ahead."""
    times = policy.spans(one, one.since or turn.now.local, policy.REPEATS_CLASH)
    if any(ends >= begins for (_, ends), (begins, _) in zip(times, times[1:])):
        message = "it would begin again before it has ended: book the whole time at once"
        raise Refused(message)
    ahead = 0 if turn.who.admin else turn.rules.ahead
    repeats = calendar.repeats_of(one)
    last = repeats.last if repeats else one.since
    if ahead and (last is None or last.timestamp() > turn.now.epoch + ahead):
        message = f"bookings are made {formatting.duration(ahead)} ahead: let it repeat no longer than that"
        raise Refused(message)


def content_of(one: Booking, now: Now) -> dict[str, object]:
    """A booking as it is written; times with their offset, so that they mean the same everywhere."""
    found: dict[str, object] = {"name": one.name}
    if one.since:
        found["from"] = written(one.since, now, one.rrule)
    found["date"] = written(one.until, now, one.rrule)
    optional = {"comment": one.comment, "rrule": one.rrule, "id": one.id, "by": one.by}
    return {**found, **{key: value for key, value in optional.items() if value}}


def written(moment: datetime, now: Now, rule: str | None = None) -> str:
    """A time as it stands in the file; to the second only where somebody meant it.

    What repeats has no offset: 9:00 stays 9:00 when the clocks change.
    """
    local = now.here(moment)
    if rule:
        local = local.replace(tzinfo=None)
    return local.isoformat(" ", "seconds" if local.second else "minutes")


def change(turn: Turn, several: Sequence[Found], changes: Changes) -> None:
    """Move, lengthen, shorten, hand over or rename a booking that is not over."""
    one, now = several[0].booking, turn.now
    turn.may_change(one)
    if changes.name is not None:
        turn.may_name(changes.name)
    refuse_over(one, now)
    moved = changes.since is not None or changes.until is not None
    if one.rrule and moved:
        message = f"booking {one.id} repeats, and its times stay: release it, and book anew"
        raise Refused(message)
    began = one.since is None or one.since.timestamp() <= now.epoch
    if began and changes.since is not None and changes.since != one.since:
        message = f"booking {one.id} has begun, and its beginning stays"
        raise Refused(message)
    if changes.since is not None and not began:
        refuse_past(changes.since, now)
    told = {key: value for key, value in changes._asdict().items() if value is not None}
    new = [replace(each.booking, **told) for each in several]
    others = [each.booking for each in turn.found() if not is_same(each.booking, one)]
    if moved:
        turn.check([replace(each, since=each.since or now.local) for each in new], others)
    elif changes.name is not None and not turn.who.admin:
        turn.check_share(new, others, turn.rules)
    written_as = content_of(new[0], now)
    keys = {"since": "from", "until": "date", "name": "name", "comment": "comment"}
    content = {key: written_as.get(key) for name, key in keys.items() if name in told}
    for each in several:
        turn.replace(each, {**content, "id": one.id})
    turn.touched = new


def refuse_over(one: Booking, now: Now) -> None:
    """Nothing is changed in the past."""
    if is_over(one, now):
        message = f"booking {one.id} ended {policy.clock(ended_at(one), now)}, and the past stays as it was"
        raise Refused(message)


def ended_at(one: Booking) -> float:
    """When it ends, with the last of its times; one that goes on for ever never does."""
    repeats = calendar.repeats_of(one)
    if repeats is None or one.since is None or repeats.first is None:
        return policy.epoch(one.until)
    return policy.epoch(repeats.last + (one.until - one.since)) if repeats.last else math.inf


def is_over(one: Booking, now: Now) -> bool:
    """Whether there is nothing of it to come."""
    return ended_at(one) <= now.epoch


def release(turn: Turn, several: Sequence[Found]) -> None:
    """Give up what is still to come; what has been stays in the file, and ends now."""
    now = turn.now
    for one in several:
        turn.may_change(one.booking)
        refuse_over(one.booking, now)
    # the GPUs that somebody keeps of a booking keep its id
    kept = [one for one in turn.found() if one not in several and not is_over(one.booking, now)]
    new_ids = {
        (one.booking.host, one.booking.id): turn.new_id()
        for one in several
        if any(is_same(one.booking, other.booking) for other in kept)
    }
    for one in several:
        booking = one.booking
        mine = new_ids.get((booking.host, booking.id))
        changed = {"id": mine} if mine else {}
        if booking.since and policy.epoch(booking.since) > now.epoch - formatting.MINUTE:
            turn.remove(one)
        elif booking.rrule:
            turn.replace(one, {"rrule": ended(booking.rrule, now), **changed})
        else:
            turn.replace(one, {"date": written(now.local.replace(microsecond=0), now), **changed})
    turn.touched = [one.booking for one in several]


def ended(rule: str, now: Now) -> str:
    """A rule that gives no more times from now on."""
    kept = [part for part in rule.split(";") if not part.startswith(("COUNT=", "UNTIL="))]
    until = datetime.fromtimestamp(now.epoch, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return ";".join([*kept, f"UNTIL={until}"])


def in_force(turn: Turn, line: Mapping[str, Any]) -> bool:
    """Whether the file has what a line of the log left, or what became of it.

    A change that was logged but never made, because somebody was killed, or that is gone, stands in nobody's way.
    """
    found = turn.found()
    there = [[one.booking.host, one.booking.gpu, one.entry.content] for one in found]
    if line["before"] and all(one in there for one in line["before"]):
        return False
    left = {(host, content.get("id")) for host, _, content in line["after"]}
    changed = any((one.booking.host, one.entry.content.get("id")) in left for one in found)
    return all(one in there for one in line["after"]) or changed


def undo(turn: Turn, line: Mapping[str, Any]) -> None:
    """Take back what a line of the log tells, where nobody has changed it since."""
    gone = [find(turn, *one) for one in line["after"]]
    for one in gone:
        turn.remove(one)
    there = [[one.booking.host, one.booking.gpu, one.entry.content] for one in turn.found()]
    for host, gpu, content in line["before"]:
        if [host, gpu, content] in there:
            message = f"the booking of {host}:{gpu} is there already"
            raise Refused(message)
        turn.add(host, (gpu, content))
    back = [one for one in turn.found() if [one.booking.host, one.booking.gpu, one.entry.content] in turn.after]
    touched = [one.booking for one in (*back, *gone)]
    if touched and all(is_over(one, turn.now) for one in touched):
        refuse_over(touched[0], turn.now)
    live = [one.booking for one in back if not is_over(one.booking, turn.now)]
    others = [each.booking for each in turn.found() if not any(is_same(each.booking, one) for one in live)]
    changed = dates.exact(line["when"])
    turn.check_free(live, others, given_up=changed.timestamp() if changed else None)
    for name in {one.name for one in live} if not turn.who.admin else ():
        turn.check_share([one for one in live if one.name == name], others, turn.rules)
    turn.touched = [one.booking for one in back]


def is_same(one: Booking, other: Booking) -> bool:
    """Whether both are of one booking."""
    return (one.host, one.id) == (other.host, other.id)


def find(turn: Turn, host: str, gpu: str, content: Mapping[str, Any]) -> Found:
    """The entry that a line of the log left in the file."""
    for one in turn.found():
        if (one.booking.host, one.booking.gpu, one.entry.content) == (host, gpu, content):
            return one
    message = f"the booking of {host}:{gpu} has been changed since, and is not taken back"
    raise Refused(message)
