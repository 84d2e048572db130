"""Which GPUs somebody means: by name, by what they have booked, or any that are free."""

from __future__ import annotations

import re
from collections.abc import Sequence

from site_builder.bookings import policy
from site_builder.bookings.operations import has_ended
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.service import is_starting_soon
from site_builder.bookings.transaction import BookingRequest, BookingTransaction, StoredBooking
from site_builder.core.clock import Now
from site_builder.core.model import Booking, GpuStatus
from site_builder.core.terminal_text import clean_text
from site_builder.fleet import gpu_models
from site_builder.fleet.host_state import format_gpu_labels

TARGET_PATTERN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,127})(?::([A-Za-z0-9*,:/-]{1,2000}))?")
INDEX_RANGE = re.compile(r"(\d{1,3})-(\d{1,3})")
MAX_GPUS = 256
# Of a host that has told nothing yet, GPUs up to this number may be booked.
MAX_UNSEEN_GPUS = 64


class UnclearRequestError(Exception):
    """Why a request cannot be understood, in one sentence."""


def find_own_booking(found: BookingTransaction, wanted: Sequence[str]) -> list[StoredBooking]:
    """What somebody has booked of some GPUs, if that is one booking; of an admin, what anybody has."""
    pairs = resolve_targets(found, wanted)
    hosts = {host: policy.GpuKeyMap(found.hosts.list_gpus(host)) for host, _ in pairs}
    there = [
        one
        for one in found.list_bookings()
        if not has_ended(one.booking, found.now)
        and any(one.booking.host == host and hosts[host].is_overlapping(key, one.booking.gpu) for host, key in pairs)
    ]
    mine = [one for one in there if found.is_own(one.booking)]
    mine = mine or (there if found.user.is_admin or found.user.is_open else [])
    if not mine:
        whose = f"; it is booked by {there[0].booking.name}" if there and found.can_see_names else ""
        message = f"you have not booked {' '.join(wanted)}{whose}"
        raise BookingRefusedError(message)
    ids = {(one.booking.host, one.booking.id): format_booking_end(one.booking, found.now) for one in mine}
    if len({host for host, _ in ids}) < len(ids):
        message = "that could be " + " or ".join(f"{one} ({at})" for (_, one), at in ids.items()) + ": name its id"
        raise BookingRefusedError(message)
    for one in mine:
        if one.booking.gpu == "*" and not any(host == one.booking.host and key == "*" for host, key in pairs):
            message = f"booking {one.booking.id} is of all GPUs of {one.booking.host}: release it whole"
            raise BookingRefusedError(message)
    return mine


def format_booking_end(one: Booking, now: Now) -> str:
    """When it is, in short."""
    return f"until {policy.format_booking_moment(one.until.timestamp(), now)}"


def resolve_targets(found: BookingTransaction, wanted: Sequence[str]) -> list[tuple[str, str]]:
    """Hosts and keys of GPUs, from what people write: `atlas`, `atlas:0,1`, `atlas:0-3`, `atlas:GPU-5a1b`; `atlas:0:1`
    is an instance."""
    pairs: dict[tuple[str, str], None] = {}
    for one in wanted:
        target = TARGET_PATTERN.fullmatch(one.strip())
        if not target:
            message = f'"{clean_text(one)[:80]}" is no GPU: write a host, or atlas:0,1'
            raise UnclearRequestError(message)
        host = found.hosts.find_host(target[1])
        for key in (target[2] or "*").split(","):
            pairs.update(dict.fromkeys((host, each) for each in resolve_gpu_keys(found, host, key)))
        if len(pairs) > MAX_GPUS:
            message = f"that is more than {MAX_GPUS} GPUs at once"
            raise UnclearRequestError(message)
    whole = {host for host, key in pairs if key == "*"}
    once: dict[tuple[str, str], tuple[str, str]] = {}  # by index and by UUID it is one GPU
    for host, key in pairs:
        if key == "*" or host not in whole:
            once.setdefault((host, policy.GpuKeyMap(found.hosts.list_gpus(host)).normalize_key(key)), (host, key))
    # who names a GPU has named its instances
    return [pair for (host, key), pair in once.items() if ":" not in key or (host, key.partition(":")[0]) not in once]


def resolve_gpu_keys(found: BookingTransaction, host: str, text: str) -> list[str]:
    """The keys that one word means; a GPU that the host does not have is refused."""
    gpus = found.hosts.list_gpus(host)
    if text == "*":
        return ["*"]
    several = INDEX_RANGE.fullmatch(text)
    if several:
        wanted = [str(index) for index in range(int(several[1]), int(several[2]) + 1)]
        if not wanted:
            message = f"{text} counts backwards: write {several[2]}-{several[1]}"
            raise UnclearRequestError(message)
    else:
        wanted = [str(int(text)) if text.isdecimal() else text]
    there = [one for gpu in gpus for one in (gpu, gpu.parent) if one]
    known = {gpu.label for gpu in there if gpu.number is not None}
    uuids = {gpu.uuid for gpu in there if gpu.uuid}
    keys = []
    for key in wanted:
        begins = [uuid for uuid in uuids if len(key) > 3 and uuid.lower().startswith(key.lower())]
        if key.lower() in known or (key.isdecimal() and not gpus and int(key) < MAX_UNSEEN_GPUS):
            keys.append(key.lower())
        elif len(begins) == 1:
            keys.append(begins[0])
        else:
            has = f", only {format_gpu_labels([gpu for gpu in gpus if gpu.number is not None])}" if known else ""
            message = f"{host} has no GPU {key[:80]}{has}"
            raise BookingRefusedError(message)
    return keys


def choose_free_gpus(found: BookingTransaction, wish: BookingRequest, count: int, model: str) -> list[tuple[str, str]]:
    """So many GPUs of one host, free for all of that time; of several hosts the one with the fewest to spare.

    Instances are taken where whole GPUs do not do: of a profile that is asked for, or where one is enough.
    """
    bookings = [one.booking for one in found.list_bookings()]
    later = not is_starting_soon(Booking("", "", "", wish.until, wish.since), found.now)
    boards = found.hosts.decide_statuses(found.hosts.list_hosts().keys(), bookings, found.now)
    wholes: dict[str, list[str]] = {}
    parts: dict[str, list[str]] = {}
    for host, board in boards.items():
        there = [one for one in bookings if one.host == host]
        keys = policy.GpuKeyMap([gpu.gpu for gpu in board.gpus])
        for gpu in board.gpus:
            right = gpu_models.is_matching_model(model, gpu.model, gpu.gpu.name)
            if right and gpu.gpu.number is not None and (gpu.state == "free" or (later and board.state == "fresh")):
                new = Booking(host, gpu.gpu.label, wish.name, wish.until, wish.since, rrule=wish.rrule)
                if can_book_gpu(new, there, keys, gpu, found.now):
                    kind = parts if gpu.gpu.parent else wholes
                    if kind is wholes or count == 1 or gpu_models.is_matching_profile(model, gpu.gpu.profile):
                        kind.setdefault(host, []).append(new.gpu)
    for suitable in (wholes, parts):
        enough = [host for host, several in suitable.items() if len(several) >= count]
        if enough:
            host = min(enough, key=lambda one: len(suitable[one]))
            return [(host, key) for key in suitable[host][:count]]
    what = f"{count} free {model or 'GPU' + 's' * (count > 1)}".strip()
    both = {host: [*wholes.get(host, ()), *parts.get(host, ())] for host in boards if host in wholes or host in parts}
    rest = ", ".join(f"{host}:{','.join(several)}" for host, several in both.items())
    message = f"no host has {what} for that time" + (f"; free are {rest[:300]}" if rest else "")
    raise BookingRefusedError(message)


def can_book_gpu(new: Booking, there: Sequence[Booking], keys: policy.GpuKeyMap, gpu: GpuStatus, now: Now) -> bool:
    """Whether nobody is promised it in that time, and nothing is so wrong with it that it should not be used."""
    if gpu.state in {"lost", "unknown"} or gpu.is_avoided:
        return False
    try:
        policy.check_conflicts(new, there, keys, now)
    except BookingRefusedError:
        return False
    return True
