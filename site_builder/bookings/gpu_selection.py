"""Find the GPUs that a request means: by name, by the user's own bookings, or any that are free."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from site_builder.bookings import policy
from site_builder.bookings.parser import ParsedBooking
from site_builder.bookings.policy import BookingRefusedError, GpuKeyMap, Place
from site_builder.bookings.request import UnclearRequestError
from site_builder.bookings.times import format_booking_moment, has_booking_ended, is_booking_starting_soon
from site_builder.bookings.transaction import BookingTransaction
from site_builder.core.clock import Now
from site_builder.core.model import Booking, GpuStatus
from site_builder.core.terminal_text import clean_text
from site_builder.fleet.gpu_models import format_gpu_labels, is_matching_model, is_matching_model_profile
from site_builder.fleet.topology import GpuPlace, choose_connected_gpus, is_nvlink_group, locate_gpu

TARGET_PATTERN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,127})(?::([A-Za-z0-9*,:/-]{1,2000}))?")
INDEX_RANGE = re.compile(r"(\d{1,3})-(\d{1,3})")
MAX_GPUS = 256
# On a host that has reported nothing yet, GPUs up to this number may be booked.
MAX_UNSEEN_GPUS = 64


class BookableGpu(NamedTuple):
    """A GPU that can be booked: what bookings call it, and where it is on its host."""

    label: str
    place: GpuPlace


def find_selected_booking(transaction: BookingTransaction, targets: Sequence[str]) -> list[ParsedBooking]:
    """Find the user's booking of some GPUs, which must be one per host; for an admin, anybody's."""
    places = resolve_selected_gpus(transaction, targets)
    keys_by_host = {host: GpuKeyMap(transaction.hosts.list_gpus(host)) for host, _ in places}

    def is_selected(booking: Booking) -> bool:
        keys = [key for host, key in places if host == booking.host]
        return any(keys_by_host[booking.host].is_overlapping(key, booking.gpu) for key in keys)

    current = [stored for stored in transaction.list_bookings() if is_selected(stored.booking)]
    current = [stored for stored in current if not has_booking_ended(stored.booking, transaction.now)]
    matches = [stored for stored in current if transaction.is_own(stored.booking.name, stored.booking.booked_by)]
    if not matches and (transaction.user.is_admin or transaction.user.is_open):
        matches = current
    if not matches:
        whose = f"; it is booked by {current[0].booking.name}" if current and transaction.can_see_names else ""
        raise BookingRefusedError(f"you have not booked {' '.join(targets)}{whose}")
    bookings = {(stored.booking.host, stored.booking.id): stored.booking for stored in matches}
    if len({host for host, _ in bookings}) < len(bookings):
        choices = " or ".join(
            f"{booking.id} (until {format_booking_moment(booking.until.timestamp(), transaction.now)})"
            for booking in bookings.values()
        )
        raise BookingRefusedError(f"more than one booking matches: give the id {choices}")
    for stored in matches:
        if stored.booking.gpu == "*" and (stored.booking.host, "*") not in places:
            booking = stored.booking
            raise BookingRefusedError(
                f"booking {booking.id} covers all GPUs of {booking.host}: release the whole booking"
            )
    return matches


def resolve_selected_gpus(transaction: BookingTransaction, targets: Sequence[str]) -> list[Place]:
    """Resolve what people write: `atlas`, `atlas:0,1`, `atlas:0-3`, `atlas:GPU-5a1b`, `atlas:0:1` for an instance."""
    places: dict[Place, None] = {}
    for target in targets:
        match = TARGET_PATTERN.fullmatch(target.strip())
        if not match:
            raise UnclearRequestError(f'"{clean_text(target)[:80]}" is not a GPU: write a host, or atlas:0,1')
        host = transaction.hosts.find_host(match[1])
        for text in (match[2] or "*").split(","):
            places.update(dict.fromkeys((host, key) for key in resolve_booking_gpu_keys(transaction, host, text)))
        if len(places) > MAX_GPUS:
            raise UnclearRequestError(f"more than {MAX_GPUS} GPUs at once: book them in parts")
    whole_hosts = {host for host, key in places if key == "*"}
    place_by_gpu: dict[Place, Place] = {}  # an index and a UUID may name the same GPU
    for host, key in places:
        if key == "*" or host not in whole_hosts:
            gpu = GpuKeyMap(transaction.hosts.list_gpus(host)).normalize_key(key)
            place_by_gpu.setdefault((host, gpu), (host, key))
    return [
        place
        for (host, gpu), place in place_by_gpu.items()
        if ":" not in gpu or (host, gpu.partition(":")[0]) not in place_by_gpu  # a GPU includes its instances
    ]


def resolve_booking_gpu_keys(transaction: BookingTransaction, host: str, text: str) -> list[str]:
    """Return the keys that `*`, an index, a range or (the beginning of) a UUID means; refuse GPUs the host lacks."""
    if text == "*":
        return ["*"]
    gpus = transaction.hosts.list_gpus(host)
    index_range = INDEX_RANGE.fullmatch(text)
    if index_range:
        wanted_keys = [str(index) for index in range(int(index_range[1]), int(index_range[2]) + 1)]
        if not wanted_keys:
            raise UnclearRequestError(f"{text} is in the wrong order: write {index_range[2]}-{index_range[1]}")
    else:
        wanted_keys = [str(int(text)) if text.isdecimal() else text]
    all_gpus = [gpu for instance in gpus for gpu in (instance, instance.parent) if gpu]
    labels = {gpu.label for gpu in all_gpus if gpu.number is not None}
    uuids = {gpu.uuid for gpu in all_gpus if gpu.uuid}
    keys = []
    for key in wanted_keys:
        matching_uuids = [uuid for uuid in uuids if len(key) > 3 and uuid.lower().startswith(key.lower())]
        if key.lower() in labels or (key.isdecimal() and not gpus and int(key) < MAX_UNSEEN_GPUS):
            keys.append(key.lower())
        elif len(matching_uuids) == 1:
            keys.append(matching_uuids[0])
        else:
            has = ""
            if labels:
                has = f", only {format_gpu_labels([gpu for gpu in gpus if gpu.number is not None])}"
            raise BookingRefusedError(f"{host} has no GPU {key[:80]}{has}")
    return keys


def choose_bookable_gpus(transaction: BookingTransaction, wanted: Booking, count: int, model: str) -> list[Place]:
    """Choose GPUs of one host that are free when `wanted` is.

    A host with NVLinks between them is preferred, then the host with the fewest to spare.
    """
    now = transaction.now
    bookings = [stored.booking for stored in transaction.list_bookings()]
    is_later = not is_booking_starting_soon(wanted.since, now)
    statuses = transaction.hosts.decide_hosts(transaction.hosts.list_hosts().keys(), bookings, now).statuses
    whole_gpus: dict[str, list[BookableGpu]] = {}
    instances: dict[str, list[BookableGpu]] = {}
    for host, status in statuses.items():
        topology = status.facts.topology if status.facts else None
        host_bookings = [booking for booking in bookings if booking.host == host]
        keys = GpuKeyMap([gpu_status.gpu for gpu_status in status.gpus])
        for gpu_status in status.gpus:
            gpu = gpu_status.gpu
            is_available = gpu_status.state == "free" or (is_later and status.state == "fresh")
            if gpu.number is None or not (is_available and is_matching_model(model, gpu_status.model, gpu.name)):
                continue
            new = replace(wanted, host=host, gpu=gpu.label)
            if not can_book_gpu(new, host_bookings, keys, gpu_status, now):
                continue
            bookable_gpu = BookableGpu(gpu.label, locate_gpu(topology, gpu))
            if not gpu.parent:
                whole_gpus.setdefault(host, []).append(bookable_gpu)
            elif count == 1 or is_matching_model_profile(model, gpu.profile):
                instances.setdefault(host, []).append(bookable_gpu)
    for free_gpus in (whole_gpus, instances):  # instances only if there are not enough whole GPUs
        candidates: list[tuple[bool, int, list[Place]]] = []
        for host, host_gpus in free_gpus.items():
            if len(host_gpus) >= count:
                model_counts = Counter(gpu.place.model for gpu in host_gpus)
                # first those of which there are enough: a small card for the display is no reason to break a pair
                gpus = sorted(host_gpus, key=lambda gpu: model_counts[gpu.place.model] < count)
                places = [gpu.place for gpu in gpus]
                chosen = choose_connected_gpus(places, count)
                is_linked = is_nvlink_group([places[position] for position in chosen])
                candidates.append((not is_linked, len(gpus), [(host, gpus[position].label) for position in chosen]))
        if candidates:
            return min(candidates, key=lambda candidate: candidate[:2])[2]
    what = f"{count} free {model or 'GPU' + 's' * (count > 1)}".strip()
    free_labels = {
        host: [gpu.label for gpu in (*whole_gpus.get(host, ()), *instances.get(host, ()))] for host in statuses
    }
    rest = ", ".join(f"{host}:{','.join(labels)}" for host, labels in free_labels.items() if labels)
    raise BookingRefusedError(f"no host has {what} for that time" + (f"; free are {rest[:300]}" if rest else ""))


def can_book_gpu(new: Booking, others: Sequence[Booking], keys: GpuKeyMap, gpu_status: GpuStatus, now: Now) -> bool:
    """Return whether a GPU is not booked in that time, and has no problem for which it should be avoided."""
    is_usable = gpu_status.state not in {"lost", "unknown"} and not gpu_status.is_avoided
    return is_usable and policy.find_conflict(new, others, keys, now) is None
