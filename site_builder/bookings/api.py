"""A request to the desk as programs make it, and its answer: one form for the command line, the page and the web."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from site_builder.bookings import policy
from site_builder.bookings.gpu_selection import Unclear, booked_by, chosen, free_ones
from site_builder.bookings.request import Request, checks, end, moment, number, text, texts
from site_builder.bookings.service import Desk, Done, places
from site_builder.bookings.transaction import Changes, Turn, Who, Wish
from site_builder.client.model import RUN
from site_builder.core.clock import Now
from site_builder.core.model import Booking
from site_builder.core.timeparse import recurrence, rrules
from site_builder.fleet.active_bookings import beginnings
from site_builder.snapshots.envelope import clean
from site_builder.watches import service as watche_service

LONGEST_NAME = 80
LONGEST_COMMENT = 500
FIRST_WITHIN = timedelta(days=366)
# Of a booking that repeats, so many of its next times are told.
MOST_TIMES = 40
KEYS = {
    "book": {"gpus", "any", "model", "from", "until", "for", "name", "comment", "rrule", "run", "check"},
    "change": {"id", "host", "from", "until", "for", "name", "comment", "check"},
    "release": {"id", "host", "gpus", "check"},
    "undo": {"undoes", "check"},
    **watche_service.KEYS,
}
RUN_ID = re.compile(rf"{RUN}[a-z0-9]{{6,20}}")
__all__ = ["Unclear", "do", "end", "listed", "moment"]


def do(desk: Desk, request: Request, who: Who) -> dict[str, Any]:
    """Do what is asked, or with `check` say what would be done."""
    kind = request.get("do")
    if not isinstance(kind, str) or kind not in KEYS:
        message = f"`do` must be {', '.join(KEYS)}"
        raise Unclear(message)
    odd = sorted(set(map(str, request)) - KEYS[kind] - {"do"})
    if odd:
        message = f"{kind} knows no `{clean(odd[0])[:40]}`"
        raise Unclear(message)
    if not isinstance(request.get("check", False), bool):
        message = "`check` must be true or false"
        raise Unclear(message)
    if kind in watche_service.KEYS:
        return watche_service.do(desk, request, who)
    done = {"book": book, "change": change, "release": release, "undo": undo}[kind](desk, request, who)
    several = grouped(done.bookings, desk.now())
    hide(several, desk.look(who))
    answer = {"said": done.words, "warnings": list(done.warnings), "bookings": several}
    return {**answer, "undoes": done.undoes} if done.undoes else answer


def undo(desk: Desk, request: Request, who: Who) -> Done:
    """Take back the last change, if it is still the one that `undoes` names."""
    return desk.undo(who, text(request, "undoes", LONGEST_NAME) or None, checks(request))


def book(desk: Desk, request: Request, who: Who) -> Done:
    """What `gpus` names, or `any` so many that are free, from when until when."""
    found = desk.look(who)
    since = moment(request, "from", found.now) or found.now.local.replace(second=0, microsecond=0)
    until = end(request, since, found.now)
    if until is None:
        message = "until when? Give `until` or `for`"
        raise Unclear(message)
    name = text(request, "name", LONGEST_NAME) or who.name
    rule = text(request, "rrule", LONGEST_COMMENT)
    if rule:
        rule, why = rrules.read(rule, found.now.zone)
        if why:
            message = f'the rrule "{request["rrule"]}" {why}'
            raise Unclear(message)
    if rule:
        since, until = first_time(rule, since, until)
    comment = text(request, "comment", LONGEST_COMMENT)
    wish = Wish((), since, until, name, comment, rule or None, run_of(request))
    wanted, model = texts(request, "gpus"), text(request, "model", LONGEST_NAME)
    count = number(request["any"]) if request.get("any") is not None else 0
    if bool(wanted) == bool(count):
        message = "which GPU? Name a host, or some of its GPUs such as atlas:0,1, or give `any`"
        raise Unclear(message)

    def choose(found: Turn) -> Wish:
        return wish._replace(places=free_ones(found, wish, count, model) if count else chosen(found, wanted))

    return desk.book(who, choose, checks(request))


def run_of(request: Request) -> str | None:
    """The id that a run gives its booking."""
    found = text(request, "run", LONGEST_NAME)
    if found and not RUN_ID.fullmatch(found):
        message = f"`run` must be an id such as {RUN}b2c3d4"
        raise Unclear(message)
    return found or None


def first_time(rule: str, since: datetime, until: datetime) -> tuple[datetime, datetime]:
    """The first time that a rule gives: on Monday, what repeats on Tuesdays begins tomorrow."""
    found = beginnings(rule, since, since, since + FIRST_WITHIN)
    if not found:
        message = "it would not happen once within a year"
        raise Unclear(message)
    return found[0], found[0] + (until - since)


def change(desk: Desk, request: Request, who: Who) -> Done:
    """What of a booking shall be other."""
    found = desk.look(who)
    host = text(request, "host", LONGEST_NAME) or None
    booking = found.of_id(text(request, "id", LONGEST_NAME), host)[0].booking
    since = moment(request, "from", found.now)
    until = end(request, since or booking.since or found.now.local, found.now)
    name = text(request, "name", LONGEST_NAME) or None
    comment = None if request.get("comment") is None else text(request, "comment", LONGEST_COMMENT)
    changes = Changes(since, until, name, comment)
    if changes == Changes():
        message = "what shall be other? Give `from`, `until`, `for`, `name` or `comment`"
        raise Unclear(message)
    return desk.change(who, str(booking.id), changes, host, checks(request))


def release(desk: Desk, request: Request, who: Who) -> Done:
    """A booking by its id, or what one has booked of some GPUs."""
    booking = text(request, "id", LONGEST_NAME)
    wanted = texts(request, "gpus")
    if bool(booking) == bool(wanted):
        message = "which booking? Give its `id`, or the GPUs"
        raise Unclear(message)
    if booking and not is_host(desk.look(who), booking):
        host = text(request, "host", LONGEST_NAME) or None
        return desk.release(who, lambda found: found.of_id(booking, host), checks(request))
    wanted = wanted or [booking]
    return desk.release(who, lambda found: booked_by(found, wanted), checks(request))


def is_host(found: Turn, word: str) -> bool:
    """Whether it is no booking, but a host whose name looks like one."""
    return word in found.lab.hosts() and not any(one.booking.id == word for one in found.found())


# What is answered


def grouped(several: Sequence[Booking], now: Now) -> list[dict[str, Any]]:
    """Bookings as programs read them: those of one id and host are one."""
    groups: dict[tuple[str, str | None], list[Booking]] = {}
    for one in several:
        groups.setdefault((one.host, one.id), []).append(one)
    return [booking_of(group, now) for group in groups.values()]


def booking_of(group: Sequence[Booking], now: Now) -> dict[str, Any]:
    """One booking over all its GPUs."""
    one = group[0]
    return {
        "id": one.id,
        "host": one.host,
        "gpus": [each.gpu for each in group],
        "where": places(group),
        "name": one.name,
        "from": one.since and now.here(one.since).isoformat(timespec="seconds"),
        "date": now.here(one.until).isoformat(timespec="seconds"),
        "comment": one.comment,
        "rrule": one.rrule,
        "repeats": recurrence.hours(one.rrule, one.since, one.until, now.zone) if one.rrule and one.since else None,
        "by": one.by,
        "phase": phase_of(one, now),
        **({"spans": coming(one, now)[:MOST_TIMES]} if one.rrule else {}),
    }


def phase_of(one: Booking, now: Now) -> str:
    """Whether it holds now, is coming or has ended; one that repeats is coming between two of its times."""
    left = coming(one, now)
    return "ended" if not left else "now" if left[0][0] <= now.epoch else "coming"


def coming(one: Booking, now: Now) -> list[tuple[float, float]]:
    """Its times that are not over, in seconds since 1970."""
    today = datetime.combine(
        now.today, datetime.min.time(), now.zone
    )  # the same all day, so that it is worked out once
    return [(since, until) for since, until in policy.spans(one, today, policy.REPEATS_CLASH) if until > now.epoch]


def listed(desk: Desk, who: Who, host: str | None = None) -> dict[str, Any]:
    """All bookings that are not over, of the fleet or of a host, and which are one's own."""
    found = desk.look(who)
    wanted = [
        one.booking
        for one in found.found()
        if (host is None or one.booking.host == host) and phase_of(one.booking, found.now) != "ended"
    ]
    several = grouped(wanted, found.now)
    hide(several, found)
    several.sort(key=lambda one: (one["phase"] != "now", one["from"] or "", one["where"]))
    watches = watche_service.listed(found)
    return {"who": who.name or None, "admin": who.admin, "bookings": several, "watches": watches}


def hide(several: Sequence[dict[str, Any]], found: Turn) -> None:
    """Say of each booking whether it is one's own, and where people are not named, no more of any other."""
    for one in several:
        names = {found.person(name) for name in (one["name"], one["by"]) if name}
        one["mine"] = bool(found.who.name) and found.person(found.who.name) in names
        if not (found.names_shown or one["mine"]):
            one.update(id=None, name=None, comment=None, by=None)
