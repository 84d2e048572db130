"""Keep the GPUs of a run booked."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from site_builder.bookings.backends import BookingBackend
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.transaction import ID_ALPHABET, ID_LENGTH
from site_builder.core.board_client import OutcomeUnknownError
from site_builder.core.model import RUN_ID_PREFIX, FleetUnavailableError

# Longer bookings end at a whole minute, as those that people make.
MIN_ROUNDED_DURATION = timedelta(minutes=5)
# A shorter gap is not worth a booking.
MIN_GAP = timedelta(seconds=1)


class ReservedGpu(NamedTuple):
    """A GPU of a run, by both names that a booking may have for it; an instance also by those of its GPU."""

    number: int | str
    uuid: str
    parent_keys: tuple[str, ...] = ()


class ReservationSpan(NamedTuple):
    """From when until when a GPU is booked; `booking_id` is None if it is not for this run."""

    since: datetime
    until: datetime
    booking_id: str | None


SpansByGpu = dict[ReservedGpu, list[ReservationSpan]]


class RunReservation:
    """Keeps GPUs of a host booked for some time from now on, as often as it is called."""

    def __init__(
        self, backend: BookingBackend, host: str, gpus: Sequence[ReservedGpu], duration_s: float, comment: str
    ) -> None:
        self.backend = backend
        self.host = host
        self.gpus = tuple(gpus)
        self.duration = timedelta(seconds=duration_s)
        self.comment = comment
        self.own_bookings: dict[str, tuple[ReservedGpu, ...]] = {}  # by id

    def read_clock(self) -> datetime:
        """Return the time on the machine where bookings are made."""
        return datetime.now(timezone.utc) + timedelta(seconds=self.backend.clock_ahead_s)

    def begin(self, now: datetime) -> list[ReservedGpu]:
        """Book all GPUs, or none and return those that others have booked in that time, as the board says now."""
        spans_by_gpu, until = self.list_spans(), self.find_wanted_end(now)
        booked_gpus = [
            gpu
            for gpu, spans in spans_by_gpu.items()
            if any(span.booking_id is None and span.since < until and span.until > now for span in spans)
        ]
        if not booked_gpus:
            self.book_missing(now, spans_by_gpu)
        return booked_gpus

    def extend_if_needed(self, now: datetime) -> datetime | None:
        """Extend the booking if less than half of the time is left; return when others come before its end."""
        spans_by_gpu = self.list_spans()
        first_end = min(self.find_covered_end(spans, now)[0] for spans in spans_by_gpu.values())
        return self.book_missing(now, spans_by_gpu) if first_end < now + self.duration / 2 else None

    def book_missing(self, now: datetime, spans_by_gpu: SpansByGpu) -> datetime | None:
        """Book what is missing of each GPU, up to where it is booked by somebody else, or by the user."""
        wanted_end = self.find_wanted_end(now)
        missing: dict[tuple[datetime, datetime, str | None], list[ReservedGpu]] = {}
        other_start = None
        for gpu, spans in spans_by_gpu.items():
            since, last_booking = self.find_covered_end(spans, now)
            next_span = min((span for span in spans if span.since > since), default=None, key=lambda span: span.since)
            until = min(wanted_end, next_span.since) if next_span else wanted_end
            if next_span and next_span.booking_id is None and next_span.since < wanted_end:
                other_start = min(other_start or next_span.since, next_span.since)
            if until - since >= MIN_GAP:
                booking_id = last_booking if last_booking in self.own_bookings else None
                missing.setdefault((since, until, booking_id), []).append(gpu)
        for (since, until, booking_id), gpus in missing.items():
            if booking_id and set(self.own_bookings[booking_id]) == set(gpus):
                self.backend.send({"do": "change", "id": booking_id, "host": self.host, "until": until.isoformat()})
            else:
                self.create_booking(gpus, since if since > now else None, until)
        return other_start

    def create_booking(self, gpus: Sequence[ReservedGpu], since: datetime | None, until: datetime) -> None:
        """Make a booking under an id that we choose, to be able to release it if the response is lost."""
        booking_id = RUN_ID_PREFIX + "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))
        self.own_bookings[booking_id] = tuple(gpus)
        target = f"{self.host}:{','.join(str(gpu.number) for gpu in gpus)}"
        request = {"do": "book", "gpus": [target], "comment": self.comment, "run": booking_id}
        times = {"from": since.isoformat()} if since else {}
        try:
            self.backend.send({**request, **times, "until": until.isoformat()})
        except (BookingRefusedError, FleetUnavailableError) as error:
            if not isinstance(error, OutcomeUnknownError):  # it is not there
                del self.own_bookings[booking_id]
            raise

    def release(self) -> None:
        """Release the rest of our bookings; one that has ended or was never made is refused and forgotten."""
        while self.own_bookings:
            booking_id = next(reversed(self.own_bookings))
            with suppress(BookingRefusedError):
                self.backend.send({"do": "release", "id": booking_id, "host": self.host})
            del self.own_bookings[booking_id]

    def find_wanted_end(self, now: datetime) -> datetime:
        until = now + self.duration
        return until.replace(second=0, microsecond=0) if self.duration >= MIN_ROUNDED_DURATION else until

    def list_spans(self) -> SpansByGpu:
        """List when each GPU is booked, as the board says now.

        A booking that the user made for others is not theirs, nor is that of another run.
        """
        spans_by_gpu: SpansByGpu = {gpu: [] for gpu in self.gpus}
        response = self.backend.list_bookings()
        for booking in response["bookings"]:
            if booking["host"] != self.host:
                continue
            own_id = str(booking["id"] or "")
            is_mine = bool(booking["mine"]) and not (booking["by"] and booking["by"] == response["who"])
            is_of_other_run = own_id.startswith(RUN_ID_PREFIX) and own_id not in self.own_bookings
            booking_id = own_id if is_mine and not is_of_other_run else None
            booked_keys = {str(key).lower() for key in booking["gpus"]}
            for gpu, spans in spans_by_gpu.items():
                if {"*", str(gpu.number), gpu.uuid.lower(), *gpu.parent_keys} & booked_keys:
                    times = iterate_reservation_booking_times(booking)
                    spans += [ReservationSpan(since, until, booking_id) for since, until in times]
        return spans_by_gpu

    @staticmethod
    def find_covered_end(spans: Sequence[ReservationSpan], now: datetime) -> tuple[datetime, str | None]:
        """Return until when a GPU is booked for us without a gap, now at the least, and by which booking at the end."""
        end, last_booking = now, None
        for span in sorted((span for span in spans if span.booking_id is not None), key=lambda span: span.since):
            if span.since <= end < span.until:
                end, last_booking = span.until, span.booking_id
        return end, last_booking


def iterate_reservation_booking_times(booking: Mapping[str, Any]) -> Iterator[tuple[datetime, datetime]]:
    """Yield from when until when a booking is; each listed time of one that repeats."""
    if booking.get("spans"):
        for since, until in booking["spans"]:
            yield datetime.fromtimestamp(since, timezone.utc), datetime.fromtimestamp(until, timezone.utc)
        return
    since = datetime.fromisoformat(booking["from"]) if booking["from"] else datetime.fromtimestamp(0, timezone.utc)
    yield since.astimezone(timezone.utc), datetime.fromisoformat(booking["date"]).astimezone(timezone.utc)
