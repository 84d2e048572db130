"""Which GPUs somebody means: by name, by what they have booked, or any that are free."""

from __future__ import annotations

import re
from collections.abc import Sequence

from site_builder.bookings import policy
from site_builder.bookings.operations import is_over
from site_builder.bookings.policy import Refused
from site_builder.bookings.service import begins_soon
from site_builder.bookings.transaction import Found, Turn, Wish
from site_builder.core.clock import Now
from site_builder.core.model import BoardGpu, Booking
from site_builder.fleet import select
from site_builder.fleet.host_state import only_gpus
from site_builder.snapshots.envelope import clean

TARGET = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,127})(?::([A-Za-z0-9*,:/-]{1,2000}))?")
RANGE = re.compile(r"(\d{1,3})-(\d{1,3})")
MOST_PLACES = 256
# Of a host that has told nothing yet, GPUs up to this number may be booked.
MOST_UNSEEN = 64


class Unclear(Exception):
    """Why a request cannot be understood, in one sentence."""


def booked_by(found: Turn, wanted: Sequence[str]) -> list[Found]:
    """What somebody has booked of some GPUs, if that is one booking; of an admin, what anybody has."""
    pairs = chosen(found, wanted)
    hosts = {host: policy.Keys(found.lab.gpus(host)) for host, _ in pairs}
    there = [
        one
        for one in found.found()
        if not is_over(one.booking, found.now)
        and any(one.booking.host == host and hosts[host].meet(key, one.booking.gpu) for host, key in pairs)
    ]
    mine = [one for one in there if found.is_mine(one.booking)]
    mine = mine or (there if found.who.admin or found.who.open else [])
    if not mine:
        whose = f"; it is booked by {there[0].booking.name}" if there and found.names_shown else ""
        message = f"you have not booked {' '.join(wanted)}{whose}"
        raise Refused(message)
    ids = {(one.booking.host, one.booking.id): told(one.booking, found.now) for one in mine}
    if len({host for host, _ in ids}) < len(ids):
        message = "that could be " + " or ".join(f"{one} ({at})" for (_, one), at in ids.items()) + ": name its id"
        raise Refused(message)
    for one in mine:
        if one.booking.gpu == "*" and not any(host == one.booking.host and key == "*" for host, key in pairs):
            message = f"booking {one.booking.id} is of all GPUs of {one.booking.host}: release it whole"
            raise Refused(message)
    return mine


def told(one: Booking, now: Now) -> str:
    """When it is, in short."""
    return f"until {policy.clock(one.until.timestamp(), now)}"


def chosen(found: Turn, wanted: Sequence[str]) -> list[tuple[str, str]]:
    """Hosts and keys of GPUs, from what people write: `atlas`, `atlas:0,1`, `atlas:0-3`, `atlas:GPU-5a1b`; `atlas:0:1`
    is an instance."""
    pairs: dict[tuple[str, str], None] = {}
    for one in wanted:
        target = TARGET.fullmatch(one.strip())
        if not target:
            message = f'"{clean(one)[:80]}" is no GPU: write a host, or atlas:0,1'
            raise Unclear(message)
        host = found.lab.find(target[1])
        for key in (target[2] or "*").split(","):
            pairs.update(dict.fromkeys((host, each) for each in keys_of(found, host, key)))
        if len(pairs) > MOST_PLACES:
            message = f"that is more than {MOST_PLACES} GPUs at once"
            raise Unclear(message)
    whole = {host for host, key in pairs if key == "*"}
    once: dict[tuple[str, str], tuple[str, str]] = {}  # by index and by UUID it is one GPU
    for host, key in pairs:
        if key == "*" or host not in whole:
            once.setdefault((host, policy.Keys(found.lab.gpus(host)).gpu(key)), (host, key))
    # who names a GPU has named its instances
    return [pair for (host, key), pair in once.items() if ":" not in key or (host, key.partition(":")[0]) not in once]


def keys_of(found: Turn, host: str, text: str) -> list[str]:
    """The keys that one word means; a GPU that the host does not have is refused."""
    gpus = found.lab.gpus(host)
    if text == "*":
        return ["*"]
    several = RANGE.fullmatch(text)
    if several:
        wanted = [str(index) for index in range(int(several[1]), int(several[2]) + 1)]
        if not wanted:
            message = f"{text} counts backwards: write {several[2]}-{several[1]}"
            raise Unclear(message)
    else:
        wanted = [str(int(text)) if text.isdecimal() else text]
    there = [one for gpu in gpus for one in (gpu, gpu.parent) if one]
    known = {gpu.label for gpu in there if gpu.number is not None}
    uuids = {gpu.uuid for gpu in there if gpu.uuid}
    keys = []
    for key in wanted:
        begins = [uuid for uuid in uuids if len(key) > 3 and uuid.lower().startswith(key.lower())]
        if key.lower() in known or (key.isdecimal() and not gpus and int(key) < MOST_UNSEEN):
            keys.append(key.lower())
        elif len(begins) == 1:
            keys.append(begins[0])
        else:
            has = f", only {only_gpus([gpu for gpu in gpus if gpu.number is not None])}" if known else ""
            message = f"{host} has no GPU {key[:80]}{has}"
            raise Refused(message)
    return keys


def free_ones(found: Turn, wish: Wish, count: int, model: str) -> list[tuple[str, str]]:
    """So many GPUs of one host, free for all of that time; of several hosts the one with the fewest to spare.

    Instances are taken where whole GPUs do not do: of a profile that is asked for, or where one is enough.
    """
    bookings = [one.booking for one in found.found()]
    later = not begins_soon(Booking("", "", "", wish.until, wish.since), found.now)
    boards = found.lab.look(found.lab.hosts().keys(), bookings, found.now)
    wholes: dict[str, list[str]] = {}
    parts: dict[str, list[str]] = {}
    for host, board in boards.items():
        there = [one for one in bookings if one.host == host]
        keys = policy.Keys([gpu.gpu for gpu in board.gpus])
        for gpu in board.gpus:
            right = select.is_model(model, gpu.model, gpu.gpu.name)
            if right and gpu.gpu.number is not None and (gpu.state == "free" or (later and board.state == "fresh")):
                new = Booking(host, gpu.gpu.label, wish.name, wish.until, wish.since, rrule=wish.rrule)
                if is_free(new, there, keys, gpu, found.now):
                    kind = parts if gpu.gpu.parent else wholes
                    if kind is wholes or count == 1 or select.is_profile(model, gpu.gpu.profile):
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
    raise Refused(message)


def is_free(new: Booking, there: Sequence[Booking], keys: policy.Keys, gpu: BoardGpu, now: Now) -> bool:
    """Whether nobody is promised it in that time, and nothing is so wrong with it that it should not be used."""
    if gpu.state in {"lost", "unknown"} or gpu.avoid:
        return False
    try:
        policy.check_overlap(new, there, keys, now)
    except Refused:
        return False
    return True
