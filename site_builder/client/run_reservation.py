"""Hold the GPUs of a run: locks on this machine, and a booking."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.transaction import ID_ALPHABET, ID_LENGTH, RUN_ID_PREFIX
from site_builder.core.board_client import FleetUnavailableError, OutcomeUnknownError

SOCKET_PREFIX = "gpuboard/run/"
SOCKET_TABLE = Path("/proc/net/unix")


def claim_gpu(uuid: str) -> int | None:
    """Take a GPU for as long as this handle is open somewhere; None if another has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        try:
            taken.bind(f"\0{build_socket_name(uuid)}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            message = f"no GPU can be taken on this machine: {error.strerror}"
            raise FleetUnavailableError(message) from None
        return taken.detach()


def build_socket_name(uuid: str) -> str:
    """The name of a GPU, short and plain whatever a board calls it."""
    return f"{SOCKET_PREFIX}{blake2b(uuid.encode('utf-8', 'replace'), digest_size=16).hexdigest()}"


class ClaimedGpus:
    """All that are taken at this moment."""

    def __init__(self) -> None:
        """Look."""
        try:
            lines = SOCKET_TABLE.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        names = (line.rpartition(" ")[2] for line in lines)
        self.socket_names = frozenset(name[1:] for name in names if name.startswith(f"@{SOCKET_PREFIX}"))

    def __contains__(self, uuid: object) -> bool:
        """Whether a GPU is."""
        return isinstance(uuid, str) and build_socket_name(uuid) in self.socket_names


BookingsResponse = Mapping[str, Any]
# Bookings that are longer end at a whole minute, as those that people make.
MIN_ROUNDED_DURATION = timedelta(minutes=5)
ONE_MINUTE = timedelta(minutes=1)
# A gap that is shorter is not worth a booking.
MIN_GAP = timedelta(seconds=1)


class BookingEndpoint(Protocol):
    """Where bookings are made."""

    def send(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What is answered to a request."""

    def list_bookings(self) -> dict[str, Any]:
        """All bookings that are not over."""


class ReservedGpu(NamedTuple):
    """A GPU of a run, by both of the names that a booking may have for it; an instance also by those of its GPU."""

    number: int | str
    uuid: str
    parent_keys: tuple[str, ...] = ()


class GpusBookedError(Exception):
    """GPUs that somebody else is promised in that time, as the desk tells it now."""

    def __init__(self, cards: Sequence[ReservedGpu]) -> None:
        """Which ones."""
        super().__init__("promised to somebody else")
        self.gpus = tuple(cards)


class BookedSpan(NamedTuple):
    """From when until when somebody is promised a GPU; `booking` is its id, None if it is not for this run."""

    since: datetime
    until: datetime
    booking_id: str | None


class RunReservation:
    """Sees to it that some GPUs of a host are promised for so many seconds from now on, as often as it is asked."""

    def __init__(
        self, desk: BookingEndpoint, host: str, cards: Sequence[ReservedGpu], length: float, comment: str
    ) -> None:
        """Nothing is booked yet."""
        self.backend = desk
        self.host = host
        self.gpus = tuple(cards)
        self.duration = timedelta(seconds=length)
        self.comment = comment
        self.own_bookings: dict[str, tuple[ReservedGpu, ...]] = {}  # what we have booked, by its id

    def begin(self, now: datetime) -> None:
        """Book all of it, or nothing: a GPU that others are promised meanwhile is `GpusBookedError`."""
        listed = self.list_host_bookings()
        until = self.find_wanted_end(now)
        taken = [
            card
            for card in self.gpus
            if any(
                one.booking_id is None and one.since < until and one.until > now
                for one in self.list_gpu_spans(card, listed)
            )
        ]
        if taken:
            raise GpusBookedError(taken)
        self.book_missing(now, listed)

    def extend_if_needed(self, now: datetime) -> datetime | None:
        """Book it for longer where less than half of the time is left; if others come before the end, when they do."""
        listed = self.list_host_bookings()
        ends = [self.find_covered_end(self.list_gpu_spans(card, listed), now)[0] for card in self.gpus]
        return self.book_missing(now, listed) if min(ends) < now + self.duration / 2 else None

    def book_missing(self, now: datetime, listed: BookingsResponse) -> datetime | None:
        """Book what is missing of each GPU, up to where somebody else is promised it, or oneself is."""
        wanted = self.find_wanted_end(now)
        missing: dict[tuple[datetime, datetime, str | None], list[ReservedGpu]] = {}
        others = None
        for card in self.gpus:
            spans = self.list_gpu_spans(card, listed)
            since, last = self.find_covered_end(spans, now)
            coming = min((one for one in spans if one.since > since), default=None, key=lambda one: one.since)
            until = min(wanted, coming.since) if coming else wanted
            if coming and coming.booking_id is None and coming.since < wanted:
                others = min(others or coming.since, coming.since)
            if until - since >= MIN_GAP:
                missing.setdefault((since, until, last if last in self.own_bookings else None), []).append(card)
        for (since, until, booking), cards in missing.items():
            if booking and set(self.own_bookings[booking]) == set(cards):
                self.backend.send({"do": "change", "id": booking, "host": self.host, "until": until.isoformat()})
            else:
                self.create_booking(cards, since if since > now else None, until)
        return others

    def create_booking(self, cards: Sequence[ReservedGpu], since: datetime | None, until: datetime) -> None:
        """A booking of ours; we name it, and so can release it whatever becomes of the answer."""
        booking = RUN_ID_PREFIX + "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))
        self.own_bookings[booking] = tuple(cards)
        where = f"{self.host}:{','.join(str(one.number) for one in cards)}"
        request = {"do": "book", "gpus": [where], "until": until.isoformat(), "comment": self.comment, "run": booking}
        try:
            self.backend.send({**request, "from": since.isoformat()} if since else request)
        except (BookingRefusedError, FleetUnavailableError) as why:
            if not isinstance(why, OutcomeUnknownError):  # it is not there
                del self.own_bookings[booking]
            raise

    def release(self) -> None:
        """Give back what is left of ours; what is over, or was never made, is refused and forgotten."""
        while self.own_bookings:
            booking = next(reversed(self.own_bookings))
            with suppress(BookingRefusedError):
                self.backend.send({"do": "release", "id": booking, "host": self.host})
            del self.own_bookings[booking]

    def find_wanted_end(self, now: datetime) -> datetime:
        """Until when it should be booked."""
        until = now + self.duration
        return until.replace(second=0, microsecond=0) if self.duration >= MIN_ROUNDED_DURATION else until

    # What is booked

    def list_host_bookings(self) -> BookingsResponse:
        """The bookings of the host, and who we are."""
        found = self.backend.list_bookings()
        return {"who": found["who"], "bookings": [one for one in found["bookings"] if one["host"] == self.host]}

    def list_gpu_spans(self, card: ReservedGpu, listed: BookingsResponse) -> list[BookedSpan]:
        """When a GPU is promised to whom."""
        return [
            BookedSpan(since, until, str(one["id"]) if self.is_own_booking(one, listed["who"]) else None)
            for one in listed["bookings"]
            if {"*", str(card.number), card.uuid.lower(), *card.parent_keys} & {str(key).lower() for key in one["gpus"]}
            for since, until in iterate_booking_times(one)
        ]

    def is_own_booking(self, one: BookingsResponse, who: str | None) -> bool:
        """Whether it is one's own; what one booked for others is not, nor what another run did."""
        booking = str(one["id"] or "")
        own = bool(one["mine"]) and not (one["by"] and one["by"] == who)
        return own and (booking in self.own_bookings or not booking.startswith(RUN_ID_PREFIX))

    @staticmethod
    def find_covered_end(spans: Sequence[BookedSpan], now: datetime) -> tuple[datetime, str | None]:
        """Until when a GPU is promised to us without a gap, now at the least, and by which booking at the last."""
        end, last = now, None
        for one in sorted((one for one in spans if one.booking_id is not None), key=lambda one: one.since):
            if one.since <= end < one.until:
                end, last = one.until, one.booking_id
        return end, last


def iterate_booking_times(one: BookingsResponse) -> Iterator[tuple[datetime, datetime]]:
    """From when until when it is; of one that repeats, each of the times that are told."""
    if one.get("spans"):
        for since, until in one["spans"]:
            yield datetime.fromtimestamp(since, timezone.utc), datetime.fromtimestamp(until, timezone.utc)
        return
    since = datetime.fromisoformat(one["from"]) if one["from"] else datetime.fromtimestamp(0, timezone.utc)
    yield since.astimezone(timezone.utc), datetime.fromisoformat(one["date"]).astimezone(timezone.utc)
