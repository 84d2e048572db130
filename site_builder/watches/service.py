"""Who wants to be told when GPUs are free: made and ended at the desk, by whoever may book there."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from site_builder.alerts.config_files import RulesFile, contacts_of
from site_builder.bookings.gpu_selection import Unclear
from site_builder.bookings.policy import NotYours, Refused
from site_builder.bookings.request import Request, checks, moment, text
from site_builder.bookings.service import Desk
from site_builder.bookings.transaction import ID_LETTERS, LETTERS, Turn, Who
from site_builder.core import clock_check
from site_builder.core.formatting import duration, names
from site_builder.core.model import BoardHost
from site_builder.core.timeparse import moments
from site_builder.fleet import summary
from site_builder.fleet.select import is_model
from site_builder.watches import parser, request_parser
from site_builder.watches.parser import Watch
from site_builder.watches.request_parser import Wish
from site_builder.watches.rules import Free, places
from site_builder.watches.store import Entries, WatchList

KEYS = {"watch": {"when", "via", "until", "check"}, "unwatch": {"id", "check"}}
RULE = "watch"
TELLS_NOBODY = (
    "this board sends no mail and no messages, so that it could tell nobody: its admin must set GPUBOARD_MAIL or "
    "GPUBOARD_NOTIFY"
)
OFF = "the admin of this board has turned this off (the rule `watch`): nobody is told until it is on again"
UNHEARD = "the settings here do not say that this board tells anybody anything"


def do(desk: Desk, request: Request, who: Who) -> dict[str, Any]:
    """Watch, or stop to; with `check` it is only said."""
    found = desk.look(who)
    act = watch if request["do"] == "watch" else unwatch
    one, said, warnings = act(found, request)
    return {"said": said, "warnings": warnings, "bookings": [], "watches": [told(one, found)]}


def list_of(found: Turn) -> WatchList:
    """Where they are kept."""
    settings = found.lab.settings
    return WatchList(settings.data, settings.kv)


# To watch


def watch(found: Turn, request: Request) -> tuple[Watch, str, list[str]]:
    """Remember what somebody waits for."""
    heard = found.lab.settings.alerts.wanted
    if not heard and found.who.via.startswith("web"):  # others may not read the settings of who builds
        raise Refused(TELLS_NOBODY)
    if not parser.is_name(found.who.name):
        message = "the desk does not know who you are"
        raise Refused(message)
    now, wish = int(found.now.epoch), wish_of(found, request)
    one = Watch("", found.who.name, wish, now, until_of(found, request), via_of(request))
    boards = everything(found)
    warnings = [*notes(boards, wish, found), *(unreachable(one, found) if heard else [UNHEARD])]
    made = add(found, one, checks(request))
    by = f" by {one.via}" if one.via else ""
    verb = "is" if wish.gpus == 1 else "are"
    end = moments.said(datetime.fromtimestamp(one.until, found.now.zone), found.now.local)
    return (
        one._replace(id=made),
        f"{one.name} is told{by} when there {verb} {request_parser.said(wish)}, until {end}",
        warnings,
    )


def wish_of(found: Turn, request: Request) -> Wish:
    """What is wanted, with hosts that there are."""
    written = text(request, "when", request_parser.LONGEST)
    try:
        wish = request_parser.read(written)
    except request_parser.Unclear as why:
        message = f'"{written}" {why}' if written else 'for what? Give `when`, such as "2 A100 free on one host"'
        raise Unclear(message) from None
    ahead = found.lab.settings.limits.soon
    if wish.length > ahead:
        message = f"the board looks no further ahead than {duration(ahead)}: ask for a shorter time"
        raise Refused(message)
    wish = wish._replace(hosts=tuple(dict.fromkeys(found.lab.find(host).lower() for host in wish.hosts)))
    try:
        return request_parser.read(request_parser.said(wish))
    except request_parser.Unclear:  # a host is called as no text can name it
        message = f"there is no way to say {', '.join(wish.hosts)[:80]} here: leave the host out"
        raise Unclear(message) from None


def until_of(found: Turn, request: Request) -> int:
    """Until when it counts, at the longest a month."""
    last = int(found.now.epoch) + parser.SECONDS
    until = moment(request, "until", found.now)
    if until is None:
        return last
    if until.timestamp() <= found.now.epoch:
        message = f'"{request["until"]}" is over already'
        raise Unclear(message)
    if until.timestamp() > last:
        message = f"nobody is told after more than {parser.LONGEST} days: choose an earlier end"
        raise Unclear(message)
    return int(until.timestamp())


def via_of(request: Request) -> str:
    """By which way."""
    via = text(request, "via", 20).lower()
    if via and not parser.VIA.fullmatch(via):
        message = f'"{via}" is no way to tell somebody: write mail, slack, or the first word of another address'
        raise Unclear(message)
    return via


def everything(found: Turn) -> Sequence[BoardHost]:
    """The hosts as they stand."""
    bookings = [one.booking for one in found.found()]
    hosts = [name for name, one in found.lab.hosts().items() if not one.hidden]
    return list(found.lab.look(hosts, bookings, found.now, remembered=False).values())


def notes(boards: Sequence[BoardHost], wish: Wish, found: Turn) -> list[str]:
    """What somebody should know beside it: that it is so already, or never will be as the fleet is."""
    free = Free((gpu for board in boards for gpu in summary.free(board)), found.now.epoch)
    there = free.for_wish(wish)
    if there:
        return [f"that is so already: {places(there)}"]
    models = {gpu.model for board in boards for gpu in board.gpus}
    if wish.model and models and not any(is_model(wish.model, model) for model in models):
        return [f"no GPU of the board is called {wish.model} now; there are {', '.join(sorted(models))[:200]}"]
    most = max((len(board.gpus) for board in boards), default=0)
    if wish.together and most and wish.gpus > most:
        return [f"no host of the board has {wish.gpus} GPUs now; the most that one has is {most}"]
    return []


def unreachable(one: Watch, found: Turn) -> list[str]:
    """That nobody knows how to tell them, or is to, where whoever serves the desk may read rules and contacts."""
    settings = found.lab.settings
    rules, _ = RulesFile(settings.alerts, (settings.data, settings.www), None).read()
    if not (rules[RULE].on and rules[RULE].to):
        return [OFF]
    contacts = contacts_of(settings)
    ways = contacts.ways(one.name, one.via)
    if not ways and contacts.whole:
        return [f"the board knows no way to tell {one.name}: its admin can add one to the contacts (GPUBOARD_CONTACTS)"]
    if ways and one.via and one.via not in {way.kind for way in ways}:
        return [f"the board knows no way by {one.via} to {one.name}, but {names(sorted({way.kind for way in ways}))}"]
    return []


def add(found: Turn, one: Watch, check: bool) -> str:
    """Put it into the file, or only see whether that could be; its id."""
    now = int(found.now.epoch)
    made = ""

    def make(entries: Entries) -> Entries:
        nonlocal made
        kept = [entry for entry in entries if not is_over(entry, now)]
        stay = kept if clock_check.is_believed(found.lab.settings.state, now) else entries
        there = list(parser.read(parser.written(kept)).rows)
        mine = [other for other in there if found.person(other.name) == found.person(one.name)]
        same = [other for other in mine if (other.wish, other.via) == (one.wish, one.via)]
        if same:
            message = f"you wait for that already (watch {same[0].id})"
            raise Refused(message)
        if len(mine) >= parser.MOST_EACH:
            message = (
                f"you wait for {len(mine)} things already, and {parser.MOST_EACH} are the most: end one of them first"
            )
            raise Refused(message)
        if len(kept) >= parser.MOST:
            message = f"{parser.MOST} watches are the most that a board has: try again when some are over"
            raise Refused(message)
        if check:
            return entries
        taken = {other.id for other in parser.read(parser.written(stay)).rows}
        while (made := "".join(secrets.choice(LETTERS) for _ in range(ID_LETTERS))) in taken:
            pass
        return [*stay, parser.entry_of(one._replace(id=made))]

    list_of(found).change(make)
    return made


def is_over(entry: object, now: int) -> bool:
    """Whether an entry counts no longer; of one that cannot be understood nobody knows."""
    one, _ = parser.watch(entry)
    return one is not None and one.until <= now


# To stop


def unwatch(found: Turn, request: Request) -> tuple[Watch, str, list[str]]:
    """Wait no longer."""
    wanted = text(request, "id", 40)
    if not wanted:
        message = "which one? Give its `id`"
        raise Unclear(message)
    gone: list[Watch] = []

    def make(entries: Entries) -> Entries:
        gone[:] = [one for one in map(first, map(parser.watch, entries)) if one and one.id == wanted]
        if not gone or not may_see(gone[0], found):
            message = f"there is no watch {wanted} of yours: `gpuboard notify list` lists them"
            raise Refused(message)
        if not (is_mine(gone[0], found) or found.who.admin or found.who.open):
            message = f"watch {wanted} is {gone[0].name}'s, and only they or an admin may end it"
            raise NotYours(message)
        return [entry for entry in entries if not (isinstance(entry, dict) and entry.get("id") == wanted)]

    def look(entries: Entries) -> Entries:
        make(entries)
        return entries

    list_of(found).change(look if checks(request) else make)
    return gone[0], f"{gone[0].name} is not told of this any more: {request_parser.said(gone[0].wish)}", []


def first(pair: tuple[Watch | None, str]) -> Watch | None:
    """The watch of an entry."""
    return pair[0]


# What is told of them


def listed(found: Turn) -> list[dict[str, Any]]:
    """One's own that still count; all of them for an admin, and at an open desk, where nobody knows whose they are."""
    now = found.now.epoch
    several = parser.read(list_of(found).glance()).rows
    return [told(one, found) for one in several if one.until > now and may_see(one, found)]


def is_mine(one: Watch, found: Turn) -> bool:
    """Whether whoever stands here made it."""
    return bool(found.who.name) and found.person(one.name) == found.person(found.who.name)


def may_see(one: Watch, found: Turn) -> bool:
    """Whether they may know of it."""
    return is_mine(one, found) or found.who.admin or (found.lab.settings.rules.open and found.names_shown)


def told(one: Watch, found: Turn) -> dict[str, Any]:
    """A watch as programs read it."""
    times = {
        key: datetime.fromtimestamp(at, found.now.zone).isoformat()
        for key, at in (("made", one.made), ("until", one.until))
    }
    its_id = {"id": one.id or None, "name": one.name, "when": request_parser.said(one.wish), "via": one.via or None}
    return {**its_id, **times, "mine": is_mine(one, found)}
