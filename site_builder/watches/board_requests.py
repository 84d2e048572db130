"""Handle requests to a board: bookings, and watches that notify somebody when GPUs are free."""

from __future__ import annotations

import secrets
from contextlib import suppress
from datetime import datetime
from typing import Any

from site_builder.alerts.contacts import MAIL_KIND, SLACK_KIND, ContactsAndRules, load_contacts
from site_builder.alerts.model import WATCH_RULE
from site_builder.bookings import service as booking_service
from site_builder.bookings.operations import REQUEST_KEYS
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.request import (
    JsonRequest,
    UnclearRequestError,
    parse_request_kind,
    parse_request_text_field,
    parse_request_time_field,
)
from site_builder.bookings.service import BookingService
from site_builder.bookings.times import format_booking_moment
from site_builder.bookings.transaction import ID_ALPHABET, ID_LENGTH, BookingTransaction, BookingUser
from site_builder.core import clock_check
from site_builder.core.formatting import format_duration, format_names
from site_builder.core.locks import LockedFileError
from site_builder.core.timeparse import moments
from site_builder.fleet import summary
from site_builder.fleet.gpu_models import is_matching_model
from site_builder.watches import store
from site_builder.watches.build import WatchFreeGpuIndex, format_watch_gpu_places
from site_builder.watches.store import Watch, WatchedGpus, WatchEntries, WatchStore

WATCH_REQUEST_KEYS: dict[str, set[str]] = {"watch": {"when", "via", "until", "check"}, "unwatch": {"id", "check"}}

NO_CHANNELS_MESSAGE = "this board cannot send notifications: the admin must set GPUBOARD_MAIL or GPUBOARD_NOTIFY"
RULE_OFF_MESSAGE = "the admin has turned these notifications off (rule `watch`)"
NOT_CONFIGURED_MESSAGE = "this board may not send notifications: the settings on this machine do not show it"


def handle_board_request(service: BookingService, request: JsonRequest, user: BookingUser) -> dict[str, Any]:
    kind = parse_request_kind(request, {**REQUEST_KEYS, **WATCH_REQUEST_KEYS})
    if kind in REQUEST_KEYS:
        return booking_service.handle_service_request(service, request, user)
    transaction = service.begin_read(user)
    operation = handle_create_watch_request if kind == "watch" else handle_end_watch_request
    watch, message, warnings = operation(transaction, request)
    watches = [watch_to_response(watch, transaction)]
    return {"said": message, "warnings": warnings, "bookings": [], "watches": watches}


def answer_board_list_request(
    service: BookingService, user: BookingUser, host: str | None = None, person: str | None = None
) -> dict[str, Any]:
    """List the bookings that have not ended, and the watches that the user may see."""
    transaction = service.begin_read(user)
    content = b""
    with suppress(LockedFileError):  # a file that cannot be read costs no bookings
        content = open_requested_watch_store(transaction).read_local()
    watches = [
        watch_to_response(watch, transaction)
        for watch in store.parse_watches(content).rows
        if watch.until > transaction.now.epoch and can_see_watch(watch, transaction)
    ]
    return {**booking_service.list_service_bookings(transaction, host, person), "watches": watches}


def handle_create_watch_request(transaction: BookingTransaction, request: JsonRequest) -> tuple[Watch, str, list[str]]:
    now, user = transaction.now, transaction.user
    can_notify = transaction.hosts.settings.alerts.is_enabled
    if not can_notify and user.via.startswith("web"):  # others may not read the settings of who builds
        raise BookingRefusedError(NO_CHANNELS_MESSAGE)
    if not store.is_watch_person_name(user.name):
        raise BookingRefusedError("you are not signed in")
    wanted_gpus = parse_board_request_gpus(transaction, request)
    until = latest = int(now.epoch) + store.MAX_LIFETIME_S
    if requested_end := parse_request_time_field(request, "until", now):
        until = int(requested_end.timestamp())
        if requested_end.timestamp() <= now.epoch:
            raise UnclearRequestError(f'"{request["until"]}" has already passed')
        if requested_end.timestamp() > latest:
            raise UnclearRequestError(f"a notification can wait {store.MAX_DAYS} days at most: choose an earlier end")
    via = parse_request_text_field(request, "via", 20).lower()
    if via and not store.VIA_PATTERN.fullmatch(via):
        message = f'"{via}" is not a kind of contact: write mail, slack, or the scheme of a contact such as tgram'
        raise UnclearRequestError(message)
    watch = Watch("", user.name, wanted_gpus, int(now.epoch), until, via)
    reach_warning = check_watch_delivery(watch, transaction) if can_notify else NOT_CONFIGURED_MESSAGE
    warnings = [*filter(None, (find_watch_availability_warning(wanted_gpus, transaction), reach_warning))]
    watch = watch._replace(id=add_requested_watch(transaction, watch, request.get("check") is True))
    by = f" by {via}" if via else ""
    verb = "is" if wanted_gpus.gpu_count == 1 else "are"
    end = format_booking_moment(until, now, in_full=True)
    condition = f"when there {verb} {store.format_watched_gpus(wanted_gpus)}"
    return watch, f"we will notify {watch.name}{by} {condition}, until {end}", warnings


def parse_board_request_gpus(transaction: BookingTransaction, request: JsonRequest) -> WatchedGpus:
    """Parse which GPUs somebody waits for; the hosts must exist."""
    text = parse_request_text_field(request, "when", store.MAX_TEXT_CHARACTERS)
    try:
        wanted_gpus = store.parse_watched_gpus(text)
    except moments.UnclearTimeError as error:
        message = f'"{text}" {error}' if text else 'no GPUs named: give `when`, such as "2 A100 free on one host"'
        raise UnclearRequestError(message) from None
    ahead = transaction.hosts.settings.limits.soon
    if wanted_gpus.duration_s > ahead:
        limit = f"the board looks at most {format_duration(ahead)} ahead"
        raise BookingRefusedError(f"{limit}: ask for a shorter time")
    hosts = dict.fromkeys(transaction.hosts.find_host(host).lower() for host in wanted_gpus.hosts)
    wanted_gpus = wanted_gpus._replace(hosts=tuple(hosts))
    try:
        return store.parse_watched_gpus(store.format_watched_gpus(wanted_gpus))
    except moments.UnclearTimeError:  # a host has a name that no text can contain
        raise UnclearRequestError(f"the host {', '.join(hosts)[:80]} cannot be used here: omit it") from None


def find_watch_availability_warning(wanted_gpus: WatchedGpus, transaction: BookingTransaction) -> str | None:
    """Warn if the GPUs are free already, or never will be as the fleet is."""
    bookings = [stored.booking for stored in transaction.list_bookings()]
    names = [name for name, host in transaction.hosts.list_hosts().items() if not host.is_hidden]
    statuses = list(transaction.hosts.decide_hosts(names, bookings, transaction.now).statuses.values())
    free_gpus = (gpu for status in statuses for gpu in summary.summarize_free_gpus(status))
    if matches := WatchFreeGpuIndex(free_gpus, transaction.now.epoch).find_gpus(wanted_gpus):
        return f"free already: {format_watch_gpu_places(matches)}"
    model = wanted_gpus.model
    models = {gpu.model for status in statuses for gpu in status.gpus}
    if model and models and not any(is_matching_model(model, gpu_model) for gpu_model in models):
        return f"no GPU here is called {model}; there are {', '.join(sorted(models))[:200]}"
    most = max((len(status.gpus) for status in statuses), default=0)
    if wanted_gpus.is_on_one_host and most and wanted_gpus.gpu_count > most:
        return f"no host has {wanted_gpus.gpu_count} GPUs; the largest has {most}"
    return None


def check_watch_delivery(watch: Watch, transaction: BookingTransaction) -> str | None:
    """Refuse a notification that cannot be delivered; warn if delivery is uncertain or of another kind."""
    settings = transaction.hosts.settings
    rules, _ = ContactsAndRules(settings.alerts, settings.data, settings.www).read_rules()
    if not (rules[WATCH_RULE].on and rules[WATCH_RULE].to):
        raise BookingRefusedError(RULE_OFF_MESSAGE)
    contacts = load_contacts(settings)
    person_contacts = contacts.find_contacts(watch.name, watch.via)
    if not person_contacts and not contacts.is_complete:
        return f"there may be no contact for {watch.name}: the contacts cannot be read here"
    alerts = settings.alerts
    can_send = {MAIL_KIND: bool(alerts.mail_url), SLACK_KIND: bool(alerts.slack.bot_token)}
    kinds = {contact.kind for contact in person_contacts if contact.is_url or can_send[contact.kind]}
    if not kinds:
        raise BookingRefusedError(f"no contact for {watch.name}: ask the admin to add one (GPUBOARD_CONTACTS)")
    if watch.via and watch.via not in kinds:
        return f"no contact of {watch.name} by {watch.via}: {format_names(sorted(kinds))} will be used"
    return None


def open_requested_watch_store(transaction: BookingTransaction) -> WatchStore:
    settings = transaction.hosts.settings
    return WatchStore(settings.data, settings.kv)


def add_requested_watch(transaction: BookingTransaction, watch: Watch, is_check: bool) -> str:
    """Add a watch to the file and return its id; with `is_check`, only refuse what could not be added."""
    now = int(transaction.now.epoch)
    watch_id = ""

    def add_entry(entries: WatchEntries) -> WatchEntries:
        nonlocal watch_id
        parsed = [(entry, store.parse_watch(entry)[0]) for entry in entries]
        current = [entry for entry, other in parsed if other is None or other.until > now]
        person = transaction.resolve_person(watch.name)
        own_watches = [
            other
            for other in store.parse_watches(store.serialize_watches(current)).rows
            if transaction.resolve_person(other.name) == person
        ]
        for own_watch in own_watches:
            if (own_watch.request, own_watch.via) == (watch.request, watch.via):
                raise BookingRefusedError(f"you have this notification already ({own_watch.id})")
        if len(own_watches) >= store.MAX_WATCHES_PER_PERSON:
            limit = f"{store.MAX_WATCHES_PER_PERSON} is the limit: cancel one first"
            raise BookingRefusedError(f"you have {len(own_watches)} notifications, and {limit}")
        if len(current) >= store.MAX_WATCHES:
            message = f"{store.MAX_WATCHES} notifications is the limit of a board: try again later"
            raise BookingRefusedError(message)
        if is_check:
            return entries
        is_clock_right = clock_check.is_clock_trusted(transaction.hosts.settings.state, now)
        kept_entries = current if is_clock_right else entries
        taken = [entry.get("id") for entry in kept_entries if isinstance(entry, dict)]  # of any type
        while (watch_id := "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))) in taken:
            pass
        return [*kept_entries, store.watch_to_entry(watch._replace(id=watch_id))]

    open_requested_watch_store(transaction).change(add_entry)
    return watch_id


def handle_end_watch_request(transaction: BookingTransaction, request: JsonRequest) -> tuple[Watch, str, list[str]]:
    watch_id = parse_request_text_field(request, "id", 40)
    if not watch_id:
        raise UnclearRequestError("no notification named: give its `id`")
    ended: list[Watch] = []

    def remove_entry(entries: WatchEntries) -> WatchEntries:
        watches = (store.parse_watch(entry)[0] for entry in entries)
        ended[:] = [watch for watch in watches if watch and watch.id == watch_id]
        if not ended or not can_see_watch(ended[0], transaction):
            raise BookingRefusedError(f"no notification {watch_id} of yours: list them with `gpuboard notify list`")
        user = transaction.user
        if not (is_callers_watch(ended[0], transaction) or user.is_admin or user.is_open):
            raise BookingForbiddenError(
                f"notification {watch_id} is {ended[0].name}'s: only they or an admin may cancel it"
            )
        if request.get("check") is True:
            return entries
        return [entry for entry in entries if not (isinstance(entry, dict) and entry.get("id") == watch_id)]

    open_requested_watch_store(transaction).change(remove_entry)
    watch = ended[0]
    return watch, f"we will no longer notify {watch.name} of {store.format_watched_gpus(watch.request)}", []


def is_callers_watch(watch: Watch, transaction: BookingTransaction) -> bool:
    user_name = transaction.user.name
    return bool(user_name) and transaction.resolve_person(watch.name) == transaction.resolve_person(user_name)


def can_see_watch(watch: Watch, transaction: BookingTransaction) -> bool:
    if is_callers_watch(watch, transaction) or transaction.user.is_admin:
        return True
    return transaction.hosts.settings.booking_policy.is_open and transaction.can_see_names


def watch_to_response(watch: Watch, transaction: BookingTransaction) -> dict[str, Any]:
    zone = transaction.now.zone
    return {
        "id": watch.id or None,
        "name": watch.name,
        "when": store.format_watched_gpus(watch.request),
        "via": watch.via or None,
        "made": datetime.fromtimestamp(watch.created_at, zone).isoformat(),
        "until": datetime.fromtimestamp(watch.until, zone).isoformat(),
        "mine": is_callers_watch(watch, transaction),
    }
