"""A request to the desk as programs make it, and its answer: one form for the command line, the page and the web."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from site_builder.bookings import policy
from site_builder.bookings.gpu_selection import UnclearRequestError, choose_free_gpus, find_own_booking, resolve_targets
from site_builder.bookings.policy import MAX_NAME_CHARACTERS
from site_builder.bookings.request import (
    JsonRequest,
    is_check_only,
    parse_end_fields,
    parse_gpu_count,
    parse_text_field,
    parse_text_list_field,
    parse_time_field,
)
from site_builder.bookings.service import BookingResult, BookingService, format_booking_places
from site_builder.bookings.transaction import (
    RUN_ID_PREFIX,
    BookingChanges,
    BookingRequest,
    BookingTransaction,
    BookingUser,
)
from site_builder.core.clock import Now
from site_builder.core.model import Booking
from site_builder.core.terminal_text import clean_text
from site_builder.core.timeparse import recurrence
from site_builder.fleet.booking_use import list_repeat_starts
from site_builder.watches import service as watch_service

MAX_COMMENT_CHARACTERS = 500
FIRST_OCCURRENCE_WINDOW = timedelta(days=366)
# Of a booking that repeats, so many of its next times are told.
MAX_OCCURRENCES = 40
REQUEST_KEYS = {
    "book": {"gpus", "any", "model", "from", "until", "for", "name", "comment", "rrule", "run", "check"},
    "change": {"id", "host", "from", "until", "for", "name", "comment", "check"},
    "release": {"id", "host", "gpus", "check"},
    "undo": {"undoes", "check"},
    **watch_service.WATCH_REQUEST_KEYS,
}
RUN_ID = re.compile(rf"{RUN_ID_PREFIX}[a-z0-9]{{6,20}}")


def handle_request(desk: BookingService, request: JsonRequest, who: BookingUser) -> dict[str, Any]:
    """Do what is asked, or with `check` say what would be done."""
    kind = request.get("do")
    if not isinstance(kind, str) or kind not in REQUEST_KEYS:
        message = f"`do` must be {', '.join(REQUEST_KEYS)}"
        raise UnclearRequestError(message)
    odd = sorted(set(map(str, request)) - REQUEST_KEYS[kind] - {"do"})
    if odd:
        message = f"{kind} knows no `{clean_text(odd[0])[:40]}`"
        raise UnclearRequestError(message)
    if not isinstance(request.get("check", False), bool):
        message = "`check` must be true or false"
        raise UnclearRequestError(message)
    if kind in watch_service.WATCH_REQUEST_KEYS:
        return watch_service.handle_watch_request(desk, request, who)
    done = {"book": handle_book, "change": handle_change, "release": handle_release, "undo": handle_undo}[kind](
        desk, request, who
    )
    several = group_bookings(done.bookings, desk.now())
    apply_privacy(several, desk.begin_read(who))
    answer = {"said": done.message, "warnings": list(done.warnings), "bookings": several}
    return {**answer, "undoes": done.undone_change} if done.undone_change else answer


def handle_undo(desk: BookingService, request: JsonRequest, who: BookingUser) -> BookingResult:
    """Take back the last change, if it is still the one that `undoes` names."""
    return desk.undo(who, parse_text_field(request, "undoes", MAX_NAME_CHARACTERS) or None, is_check_only(request))


def handle_book(desk: BookingService, request: JsonRequest, who: BookingUser) -> BookingResult:
    """What `gpus` names, or `any` so many that are free, from when until when."""
    found = desk.begin_read(who)
    since = parse_time_field(request, "from", found.now) or found.now.local.replace(second=0, microsecond=0)
    until = parse_end_fields(request, since, found.now)
    if until is None:
        message = "until when? Give `until` or `for`"
        raise UnclearRequestError(message)
    name = parse_text_field(request, "name", MAX_NAME_CHARACTERS) or who.name
    rule = parse_text_field(request, "rrule", MAX_COMMENT_CHARACTERS)
    if rule:
        rule, why = recurrence.parse_rrule(rule, found.now.zone)
        if why:
            message = f'the rrule "{request["rrule"]}" {why}'
            raise UnclearRequestError(message)
    if rule:
        since, until = find_first_occurrence(rule, since, until)
    comment = parse_text_field(request, "comment", MAX_COMMENT_CHARACTERS)
    wish = BookingRequest((), since, until, name, comment, rule or None, parse_run_id(request))
    wanted, model = parse_text_list_field(request, "gpus"), parse_text_field(request, "model", MAX_NAME_CHARACTERS)
    count = parse_gpu_count(request["any"]) if request.get("any") is not None else 0
    if bool(wanted) == bool(count):
        message = "which GPU? Name a host, or some of its GPUs such as atlas:0,1, or give `any`"
        raise UnclearRequestError(message)

    def choose(found: BookingTransaction) -> BookingRequest:
        return wish._replace(
            places=choose_free_gpus(found, wish, count, model) if count else resolve_targets(found, wanted)
        )

    return desk.book(who, choose, is_check_only(request))


def parse_run_id(request: JsonRequest) -> str | None:
    """The id that a run gives its booking."""
    found = parse_text_field(request, "run", MAX_NAME_CHARACTERS)
    if found and not RUN_ID.fullmatch(found):
        message = f"`run` must be an id such as {RUN_ID_PREFIX}b2c3d4"
        raise UnclearRequestError(message)
    return found or None


def find_first_occurrence(rule: str, since: datetime, until: datetime) -> tuple[datetime, datetime]:
    """The first time that a rule gives: on Monday, what repeats on Tuesdays begins tomorrow."""
    found = list_repeat_starts(rule, since, since, since + FIRST_OCCURRENCE_WINDOW)
    if not found:
        message = "it would not happen once within a year"
        raise UnclearRequestError(message)
    return found[0], found[0] + (until - since)


def handle_change(desk: BookingService, request: JsonRequest, who: BookingUser) -> BookingResult:
    """What of a booking shall be other."""
    found = desk.begin_read(who)
    host = parse_text_field(request, "host", MAX_NAME_CHARACTERS) or None
    booking = found.find_by_id(parse_text_field(request, "id", MAX_NAME_CHARACTERS), host)[0].booking
    since = parse_time_field(request, "from", found.now)
    until = parse_end_fields(request, since or booking.since or found.now.local, found.now)
    name = parse_text_field(request, "name", MAX_NAME_CHARACTERS) or None
    comment = None if request.get("comment") is None else parse_text_field(request, "comment", MAX_COMMENT_CHARACTERS)
    changes = BookingChanges(since, until, name, comment)
    if changes == BookingChanges():
        message = "what shall be other? Give `from`, `until`, `for`, `name` or `comment`"
        raise UnclearRequestError(message)
    return desk.change(who, str(booking.id), changes, host, is_check_only(request))


def handle_release(desk: BookingService, request: JsonRequest, who: BookingUser) -> BookingResult:
    """A booking by its id, or what one has booked of some GPUs."""
    booking = parse_text_field(request, "id", MAX_NAME_CHARACTERS)
    wanted = parse_text_list_field(request, "gpus")
    if bool(booking) == bool(wanted):
        message = "which booking? Give its `id`, or the GPUs"
        raise UnclearRequestError(message)
    if booking and not is_host_not_booking(desk.begin_read(who), booking):
        host = parse_text_field(request, "host", MAX_NAME_CHARACTERS) or None
        return desk.release(who, lambda found: found.find_by_id(booking, host), is_check_only(request))
    wanted = wanted or [booking]
    return desk.release(who, lambda found: find_own_booking(found, wanted), is_check_only(request))


def is_host_not_booking(found: BookingTransaction, word: str) -> bool:
    """Whether it is no booking, but a host whose name looks like one."""
    return word in found.hosts.list_hosts() and not any(one.booking.id == word for one in found.list_bookings())


# What is answered


def group_bookings(several: Sequence[Booking], now: Now) -> list[dict[str, Any]]:
    """Bookings as programs read them: those of one id and host are one."""
    groups: dict[tuple[str, str | None], list[Booking]] = {}
    for one in several:
        groups.setdefault((one.host, one.id), []).append(one)
    return [booking_to_json(group, now) for group in groups.values()]


def booking_to_json(group: Sequence[Booking], now: Now) -> dict[str, Any]:
    """One booking over all its GPUs."""
    one = group[0]
    return {
        "id": one.id,
        "host": one.host,
        "gpus": [each.gpu for each in group],
        "where": format_booking_places(group),
        "name": one.name,
        "from": one.since and now.to_local(one.since).isoformat(timespec="seconds"),
        "date": now.to_local(one.until).isoformat(timespec="seconds"),
        "comment": one.comment,
        "rrule": one.rrule,
        "repeats": recurrence.describe_recurrence_hours(one.rrule, one.since, one.until, now.zone)
        if one.rrule and one.since
        else None,
        "by": one.booked_by,
        "phase": compute_phase(one, now),
        **({"spans": list_remaining_spans(one, now)[:MAX_OCCURRENCES]} if one.rrule else {}),
    }


def compute_phase(one: Booking, now: Now) -> str:
    """Whether it holds now, is coming or has ended; one that repeats is coming between two of its times."""
    left = list_remaining_spans(one, now)
    return "ended" if not left else "now" if left[0][0] <= now.epoch else "coming"


def list_remaining_spans(one: Booking, now: Now) -> list[tuple[float, float]]:
    """Its times that are not over, in seconds since 1970."""
    today = datetime.combine(
        now.today, datetime.min.time(), now.zone
    )  # the same all day, so that it is worked out once
    return [
        (since, until) for since, until in policy.list_spans(one, today, policy.CONFLICT_HORIZON) if until > now.epoch
    ]


def list_bookings(desk: BookingService, who: BookingUser, host: str | None = None) -> dict[str, Any]:
    """All bookings that are not over, of the fleet or of a host, and which are one's own."""
    found = desk.begin_read(who)
    wanted = [
        one.booking
        for one in found.list_bookings()
        if (host is None or one.booking.host == host) and compute_phase(one.booking, found.now) != "ended"
    ]
    several = group_bookings(wanted, found.now)
    apply_privacy(several, found)
    several.sort(key=lambda one: (one["phase"] != "now", one["from"] or "", one["where"]))
    watches = watch_service.list_visible_watches(found)
    return {"who": who.name or None, "admin": who.is_admin, "bookings": several, "watches": watches}


def apply_privacy(several: Sequence[dict[str, Any]], found: BookingTransaction) -> None:
    """Say of each booking whether it is one's own, and where people are not named, no more of any other."""
    for one in several:
        names = {found.resolve_person(name) for name in (one["name"], one["by"]) if name}
        one["mine"] = bool(found.user.name) and found.resolve_person(found.user.name) in names
        if not (found.can_see_names or one["mine"]):
            one.update(id=None, name=None, comment=None, by=None)
