"""The booking of a run: made when it starts, longer while it goes on, released at its end."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, Protocol

from site_builder.bookings.policy import Refused
from site_builder.bookings.transaction import ID_LETTERS, LETTERS
from site_builder.client.model import RUN, Failed, Unsure

Answer = Mapping[str, Any]
# Bookings that are longer end at a whole minute, as those that people make.
ROUNDED = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
# A gap that is shorter is not worth a booking.
SHORTEST = timedelta(seconds=1)


class Desk(Protocol):
    """Where bookings are made."""

    def do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What is answered to a request."""

    def listed(self) -> dict[str, Any]:
        """All bookings that are not over."""


class Card(NamedTuple):
    """A GPU of a run, by both of the names that a booking may have for it; an instance also by those of its GPU."""

    number: int | str
    uuid: str
    of: tuple[str, ...] = ()


class Promised(Exception):
    """GPUs that somebody else is promised in that time, as the desk tells it now."""

    def __init__(self, cards: Sequence[Card]) -> None:
        """Which ones."""
        super().__init__("promised to somebody else")
        self.cards = tuple(cards)


class Span(NamedTuple):
    """From when until when somebody is promised a GPU; `booking` is its id, None if it is not for this run."""

    since: datetime
    until: datetime
    booking: str | None


class Keeper:
    """Sees to it that some GPUs of a host are promised for so many seconds from now on, as often as it is asked."""

    def __init__(self, desk: Desk, host: str, cards: Sequence[Card], length: float, comment: str) -> None:
        """Nothing is booked yet."""
        self.desk = desk
        self.host = host
        self.cards = tuple(cards)
        self.length = timedelta(seconds=length)
        self.comment = comment
        self.ours: dict[str, tuple[Card, ...]] = {}  # what we have booked, by its id

    def begin(self, now: datetime) -> None:
        """Book all of it, or nothing: a GPU that others are promised meanwhile is `Promised`."""
        listed = self.listed()
        until = self.end(now)
        taken = [
            card
            for card in self.cards
            if any(one.booking is None and one.since < until and one.until > now for one in self.spans(card, listed))
        ]
        if taken:
            raise Promised(taken)
        self.extend(now, listed)

    def go_on(self, now: datetime) -> datetime | None:
        """Book it for longer where less than half of the time is left; if others come before the end, when they do."""
        listed = self.listed()
        ends = [self.covered(self.spans(card, listed), now)[0] for card in self.cards]
        return self.extend(now, listed) if min(ends) < now + self.length / 2 else None

    def extend(self, now: datetime, listed: Answer) -> datetime | None:
        """Book what is missing of each GPU, up to where somebody else is promised it, or oneself is."""
        wanted = self.end(now)
        missing: dict[tuple[datetime, datetime, str | None], list[Card]] = {}
        others = None
        for card in self.cards:
            spans = self.spans(card, listed)
            since, last = self.covered(spans, now)
            coming = min((one for one in spans if one.since > since), default=None, key=lambda one: one.since)
            until = min(wanted, coming.since) if coming else wanted
            if coming and coming.booking is None and coming.since < wanted:
                others = min(others or coming.since, coming.since)
            if until - since >= SHORTEST:
                missing.setdefault((since, until, last if last in self.ours else None), []).append(card)
        for (since, until, booking), cards in missing.items():
            if booking and set(self.ours[booking]) == set(cards):
                self.desk.do({"do": "change", "id": booking, "host": self.host, "until": until.isoformat()})
            else:
                self.book(cards, since if since > now else None, until)
        return others

    def book(self, cards: Sequence[Card], since: datetime | None, until: datetime) -> None:
        """A booking of ours; we name it, and so can release it whatever becomes of the answer."""
        booking = RUN + "".join(secrets.choice(LETTERS) for _ in range(ID_LETTERS))
        self.ours[booking] = tuple(cards)
        where = f"{self.host}:{','.join(str(one.number) for one in cards)}"
        request = {"do": "book", "gpus": [where], "until": until.isoformat(), "comment": self.comment, "run": booking}
        try:
            self.desk.do({**request, "from": since.isoformat()} if since else request)
        except (Refused, Failed) as why:
            if not isinstance(why, Unsure):  # it is not there
                del self.ours[booking]
            raise

    def release(self) -> None:
        """Give back what is left of ours; what is over, or was never made, is refused and forgotten."""
        while self.ours:
            booking = next(reversed(self.ours))
            with suppress(Refused):
                self.desk.do({"do": "release", "id": booking, "host": self.host})
            del self.ours[booking]

    def end(self, now: datetime) -> datetime:
        """Until when it should be booked."""
        until = now + self.length
        return until.replace(second=0, microsecond=0) if self.length >= ROUNDED else until

    # What is booked

    def listed(self) -> Answer:
        """The bookings of the host, and who we are."""
        found = self.desk.listed()
        return {"who": found["who"], "bookings": [one for one in found["bookings"] if one["host"] == self.host]}

    def spans(self, card: Card, listed: Answer) -> list[Span]:
        """When a GPU is promised to whom."""
        return [
            Span(since, until, str(one["id"]) if self.is_for_us(one, listed["who"]) else None)
            for one in listed["bookings"]
            if {"*", str(card.number), card.uuid.lower(), *card.of} & {str(key).lower() for key in one["gpus"]}
            for since, until in times(one)
        ]

    def is_for_us(self, one: Answer, who: str | None) -> bool:
        """Whether it is one's own; what one booked for others is not, nor what another run did."""
        booking = str(one["id"] or "")
        own = bool(one["mine"]) and not (one["by"] and one["by"] == who)
        return own and (booking in self.ours or not booking.startswith(RUN))

    @staticmethod
    def covered(spans: Sequence[Span], now: datetime) -> tuple[datetime, str | None]:
        """Until when a GPU is promised to us without a gap, now at the least, and by which booking at the last."""
        end, last = now, None
        for one in sorted((one for one in spans if one.booking is not None), key=lambda one: one.since):
            if one.since <= end < one.until:
                end, last = one.until, one.booking
        return end, last


def times(one: Answer) -> Iterator[tuple[datetime, datetime]]:
    """From when until when it is; of one that repeats, each of the times that are told."""
    if one.get("spans"):
        for since, until in one["spans"]:
            yield datetime.fromtimestamp(since, timezone.utc), datetime.fromtimestamp(until, timezone.utc)
        return
    since = datetime.fromisoformat(one["from"]) if one["from"] else datetime.fromtimestamp(0, timezone.utc)
    yield since.astimezone(timezone.utc), datetime.fromisoformat(one["date"]).astimezone(timezone.utc)
