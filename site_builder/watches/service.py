"""Who wants to be told when GPUs are free: made and ended at the desk, by whoever may book there."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from site_builder.alerts.config_files import RulesFile, load_contacts
from site_builder.alerts.model import WATCH_RULE
from site_builder.bookings.gpu_selection import UnclearRequestError
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.request import JsonRequest, is_check_only, parse_text_field, parse_time_field
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import ID_ALPHABET, ID_LENGTH, BookingTransaction, BookingUser
from site_builder.core import clock_check
from site_builder.core.formatting import format_duration, join_names
from site_builder.core.model import HostStatus
from site_builder.core.timeparse import moments
from site_builder.fleet import summary
from site_builder.fleet.gpu_models import is_matching_model
from site_builder.watches import parser
from site_builder.watches.build import FreeGpuIndex, format_gpu_places
from site_builder.watches.parser import Watch, WatchRequest
from site_builder.watches.store import WatchEntries, WatchStore

WATCH_REQUEST_KEYS: dict[str, set[str]] = {"watch": {"when", "via", "until", "check"}, "unwatch": {"id", "check"}}
NO_CHANNELS_MESSAGE = (
    "this board sends no mail and no messages, so that it could tell nobody: its admin must set GPUBOARD_MAIL or "
    "GPUBOARD_NOTIFY"
)
RULE_OFF_MESSAGE = "the admin of this board has turned this off (the rule `watch`): nobody is told until it is on again"
NOT_CONFIGURED_MESSAGE = "the settings here do not say that this board tells anybody anything"


def handle_watch_request(desk: BookingService, request: JsonRequest, who: BookingUser) -> dict[str, Any]:
    """Watch, or stop to; with `check` it is only said."""
    found = desk.begin_read(who)
    act = create_watch if request["do"] == "watch" else end_watch
    one, said, warnings = act(found, request)
    return {"said": said, "warnings": warnings, "bookings": [], "watches": [watch_to_response(one, found)]}


def open_watch_store(found: BookingTransaction) -> WatchStore:
    """Where they are kept."""
    settings = found.hosts.settings
    return WatchStore(settings.data, settings.kv)


# To watch


def create_watch(found: BookingTransaction, request: JsonRequest) -> tuple[Watch, str, list[str]]:
    """Remember what somebody waits for."""
    heard = found.hosts.settings.alerts.is_enabled
    if not heard and found.user.via.startswith("web"):  # others may not read the settings of who builds
        raise BookingRefusedError(NO_CHANNELS_MESSAGE)
    if not parser.is_person_name(found.user.name):
        message = "the desk does not know who you are"
        raise BookingRefusedError(message)
    now, wish = int(found.now.epoch), parse_wanted_gpus(found, request)
    one = Watch("", found.user.name, wish, now, parse_watch_end(found, request), parse_via(request))
    boards = list_host_statuses(found)
    warnings = [
        *find_availability_warnings(boards, wish, found),
        *(find_reach_warnings(one, found) if heard else [NOT_CONFIGURED_MESSAGE]),
    ]
    made = add_watch(found, one, is_check_only(request))
    by = f" by {one.via}" if one.via else ""
    verb = "is" if wish.gpu_count == 1 else "are"
    end = moments.format_full_moment(datetime.fromtimestamp(one.until, found.now.zone), found.now.local)
    return (
        one._replace(id=made),
        f"{one.name} is told{by} when there {verb} {parser.format_watch_request(wish)}, until {end}",
        warnings,
    )


def parse_wanted_gpus(found: BookingTransaction, request: JsonRequest) -> WatchRequest:
    """What is wanted, with hosts that there are."""
    written = parse_text_field(request, "when", parser.MAX_TEXT_CHARACTERS)
    try:
        wish = parser.parse_watch_request(written)
    except moments.UnclearTimeError as why:
        message = f'"{written}" {why}' if written else 'for what? Give `when`, such as "2 A100 free on one host"'
        raise UnclearRequestError(message) from None
    ahead = found.hosts.settings.limits.soon
    if wish.duration_s > ahead:
        message = f"the board looks no further ahead than {format_duration(ahead)}: ask for a shorter time"
        raise BookingRefusedError(message)
    wish = wish._replace(hosts=tuple(dict.fromkeys(found.hosts.find_host(host).lower() for host in wish.hosts)))
    try:
        return parser.parse_watch_request(parser.format_watch_request(wish))
    except moments.UnclearTimeError:  # a host is called as no text can name it
        message = f"there is no way to say {', '.join(wish.hosts)[:80]} here: leave the host out"
        raise UnclearRequestError(message) from None


def parse_watch_end(found: BookingTransaction, request: JsonRequest) -> int:
    """Until when it counts, at the longest a month."""
    last = int(found.now.epoch) + parser.MAX_LIFETIME_S
    until = parse_time_field(request, "until", found.now)
    if until is None:
        return last
    if until.timestamp() <= found.now.epoch:
        message = f'"{request["until"]}" is over already'
        raise UnclearRequestError(message)
    if until.timestamp() > last:
        message = f"nobody is told after more than {parser.MAX_DAYS} days: choose an earlier end"
        raise UnclearRequestError(message)
    return int(until.timestamp())


def parse_via(request: JsonRequest) -> str:
    """By which way."""
    via = parse_text_field(request, "via", 20).lower()
    if via and not parser.VIA_PATTERN.fullmatch(via):
        message = f'"{via}" is no way to tell somebody: write mail, slack, or the first word of another address'
        raise UnclearRequestError(message)
    return via


def list_host_statuses(found: BookingTransaction) -> Sequence[HostStatus]:
    """The hosts as they stand."""
    bookings = [one.booking for one in found.list_bookings()]
    hosts = [name for name, one in found.hosts.list_hosts().items() if not one.is_hidden]
    return list(found.hosts.decide_statuses(hosts, bookings, found.now, remembered=False).values())


def find_availability_warnings(
    boards: Sequence[HostStatus], wish: WatchRequest, found: BookingTransaction
) -> list[str]:
    """What somebody should know beside it: that it is so already, or never will be as the fleet is."""
    free = FreeGpuIndex((gpu for board in boards for gpu in summary.list_free_gpus(board)), found.now.epoch)
    there = free.find_gpus(wish)
    if there:
        return [f"that is so already: {format_gpu_places(there)}"]
    models = {gpu.model for board in boards for gpu in board.gpus}
    if wish.model and models and not any(is_matching_model(wish.model, model) for model in models):
        return [f"no GPU of the board is called {wish.model} now; there are {', '.join(sorted(models))[:200]}"]
    most = max((len(board.gpus) for board in boards), default=0)
    if wish.is_on_one_host and most and wish.gpu_count > most:
        return [f"no host of the board has {wish.gpu_count} GPUs now; the most that one has is {most}"]
    return []


def find_reach_warnings(one: Watch, found: BookingTransaction) -> list[str]:
    """That nobody knows how to tell them, or is to, where whoever serves the desk may read rules and contacts."""
    settings = found.hosts.settings
    rules, _ = RulesFile(settings.alerts, (settings.data, settings.www), None).read()
    if not (rules[WATCH_RULE].on and rules[WATCH_RULE].to):
        return [RULE_OFF_MESSAGE]
    contacts = load_contacts(settings)
    ways = contacts.find_contacts(one.name, one.via)
    if not ways and contacts.is_complete:
        return [f"the board knows no way to tell {one.name}: its admin can add one to the contacts (GPUBOARD_CONTACTS)"]
    if ways and one.via and one.via not in {way.kind for way in ways}:
        return [
            f"the board knows no way by {one.via} to {one.name}, but {join_names(sorted({way.kind for way in ways}))}"
        ]
    return []


def add_watch(found: BookingTransaction, one: Watch, check: bool) -> str:
    """Put it into the file, or only see whether that could be; its id."""
    now = int(found.now.epoch)
    made = ""

    def make(entries: WatchEntries) -> WatchEntries:
        nonlocal made
        kept = [entry for entry in entries if not is_watch_expired(entry, now)]
        stay = kept if clock_check.is_believed(found.hosts.settings.state, now) else entries
        there = list(parser.parse_watches(parser.serialize_watches(kept)).rows)
        mine = [other for other in there if found.resolve_person(other.name) == found.resolve_person(one.name)]
        same = [other for other in mine if (other.request, other.via) == (one.request, one.via)]
        if same:
            message = f"you wait for that already (watch {same[0].id})"
            raise BookingRefusedError(message)
        if len(mine) >= parser.MAX_WATCHES_PER_PERSON:
            message = f"you wait for {len(mine)} things already, and {parser.MAX_WATCHES_PER_PERSON} are the most: end one of them first"
            raise BookingRefusedError(message)
        if len(kept) >= parser.MAX_WATCHES:
            message = f"{parser.MAX_WATCHES} watches are the most that a board has: try again when some are over"
            raise BookingRefusedError(message)
        if check:
            return entries
        taken = {other.id for other in parser.parse_watches(parser.serialize_watches(stay)).rows}
        while (made := "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))) in taken:
            pass
        return [*stay, parser.watch_to_entry(one._replace(id=made))]

    open_watch_store(found).change(make)
    return made


def is_watch_expired(entry: object, now: int) -> bool:
    """Whether an entry counts no longer; of one that cannot be understood nobody knows."""
    one, _ = parser.parse_watch(entry)
    return one is not None and one.until <= now


# To stop


def end_watch(found: BookingTransaction, request: JsonRequest) -> tuple[Watch, str, list[str]]:
    """Wait no longer."""
    wanted = parse_text_field(request, "id", 40)
    if not wanted:
        message = "which one? Give its `id`"
        raise UnclearRequestError(message)
    gone: list[Watch] = []

    def make(entries: WatchEntries) -> WatchEntries:
        gone[:] = [one for one in (parser.parse_watch(entry)[0] for entry in entries) if one and one.id == wanted]
        if not gone or not can_see_watch(gone[0], found):
            message = f"there is no watch {wanted} of yours: `gpuboard notify list` lists them"
            raise BookingRefusedError(message)
        if not (is_own_watch(gone[0], found) or found.user.is_admin or found.user.is_open):
            message = f"watch {wanted} is {gone[0].name}'s, and only they or an admin may end it"
            raise BookingForbiddenError(message)
        return [entry for entry in entries if not (isinstance(entry, dict) and entry.get("id") == wanted)]

    def look(entries: WatchEntries) -> WatchEntries:
        make(entries)
        return entries

    open_watch_store(found).change(look if is_check_only(request) else make)
    return (
        gone[0],
        f"{gone[0].name} is not told of this any more: {parser.format_watch_request(gone[0].request)}",
        [],
    )


# What is told of them


def list_visible_watches(found: BookingTransaction) -> list[dict[str, Any]]:
    """One's own that still count; all of them for an admin, and at an open desk, where nobody knows whose they are."""
    now = found.now.epoch
    several = parser.parse_watches(open_watch_store(found).read_local_or_empty()).rows
    return [watch_to_response(one, found) for one in several if one.until > now and can_see_watch(one, found)]


def is_own_watch(one: Watch, found: BookingTransaction) -> bool:
    """Whether whoever stands here made it."""
    return bool(found.user.name) and found.resolve_person(one.name) == found.resolve_person(found.user.name)


def can_see_watch(one: Watch, found: BookingTransaction) -> bool:
    """Whether they may know of it."""
    return (
        is_own_watch(one, found)
        or found.user.is_admin
        or (found.hosts.settings.booking_policy.is_open and found.can_see_names)
    )


def watch_to_response(one: Watch, found: BookingTransaction) -> dict[str, Any]:
    """A watch as programs read it."""
    times = {
        key: datetime.fromtimestamp(at, found.now.zone).isoformat()
        for key, at in (("made", one.created_at), ("until", one.until))
    }
    its_id = {
        "id": one.id or None,
        "name": one.name,
        "when": parser.format_watch_request(one.request),
        "via": one.via or None,
    }
    return {**its_id, **times, "mine": is_own_watch(one, found)}
