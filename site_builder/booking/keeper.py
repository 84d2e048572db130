"""The booking of a run: made when it starts, longer while it goes on, released at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from site_builder.fleet import RUN
from site_builder.settings import Settings

Answer = Mapping[str, Any]
# Seconds by which a booking may end before what was wanted: they begin and end at whole minutes.
ROUNDED = 60


class Place(Protocol):
    """Where bookings are made; its clock may be ahead of ours by some seconds."""

    settings: Settings

    @property
    def ahead(self) -> float:
        """So many."""

    def do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What is answered to a request."""

    def listed(self) -> dict[str, Any]:
        """All bookings that are not over."""


class Wanted(NamedTuple):
    """A GPU of a run, by both of the names that a booking may have for it."""

    index: int  # type: ignore[assignment] # nvidia-smi's word
    uuid: str


class Promised(Exception):
    """GPUs that somebody else is promised in that time, as the place tells it now."""

    def __init__(self, gpus: Sequence[Wanted]) -> None:
        """Which ones."""
        super().__init__("promised to somebody else")
        self.gpus = tuple(gpus)


class Keeper:
    """Sees to it that somebody is promised some GPUs of a host for so many seconds from now on, when it is asked."""

    def __init__(self, place: Place, host: str, gpus: Sequence[Wanted], length: float, comment: str) -> None:
        """Nothing is booked yet."""
        self.place = place
        self.host = host
        self.gpus = tuple(gpus)
        self.length = length
        self.comment = comment
        self.ids: list[str] = []

    def ensure(self) -> None:
        """Book what is not booked, and longer what ends too soon; a refusal comes from the place itself.

        Where one's own booking holds a GPU already, or will, that stays, and ours begins where it ends, or ends there.
        """
        listed = [one for one in self.place.listed()["bookings"] if one["host"] == self.host]
        now = datetime.now(self.place.settings.zone) + timedelta(seconds=self.place.ahead)
        until = now + timedelta(seconds=self.length)
        if self.length > ROUNDED:
            until = until.replace(second=0, microsecond=0)
        if not self.ids:
            self.refuse_promised(listed, now, until)
        enough = until - timedelta(seconds=ROUNDED if self.length > ROUNDED else 0)
        new: dict[tuple[datetime, datetime], list[Wanted]] = {}
        longer: dict[str, datetime] = {}
        for gpu in self.gpus:
            mine = [one for one in listed if self.is_mine(one) and is_of(one, gpu)]
            end, booking = self.covered(mine, now)
            gap_ends = min([until, *(since for since, _ in map(times, mine) if since and since > end)])
            if end >= enough or gap_ends <= end:
                continue
            if booking in self.ids:
                longer[booking] = min(gap_ends, longer.get(booking, gap_ends))
            else:
                new.setdefault((end, gap_ends), []).append(gpu)
        for (since, ends), gpus in new.items():
            self.book(gpus, since if since > now else None, ends)
        for booking, ends in longer.items():
            self.place.do({"do": "change", "id": booking, "host": self.host, "until": ends.isoformat()})

    def book(self, gpus: Sequence[Wanted], since: datetime | None, until: datetime) -> None:
        """A booking of ours."""
        where = f"{self.host}:{','.join(str(one.index) for one in gpus)}"
        request = {"do": "book", "gpus": [where], "until": until.isoformat(), "comment": self.comment, "run": True}
        done = self.place.do({**request, "from": since.isoformat()} if since else request)
        self.ids.append(str(done["bookings"][0]["id"]))

    def covered(self, mine: Sequence[Answer], now: datetime) -> tuple[datetime, str]:
        """Until when these hold without a gap, now at the least, and which of them to the last."""
        end, last = now, ""
        for one in sorted(mine, key=lambda one: one["from"] or ""):
            if one["rrule"] and one["phase"] == "now":  # when this time of it ends is not told
                return now + timedelta(seconds=self.length), str(one["id"])
            since, until = times(one)
            if (since is None or since <= end) and until > end and not one["rrule"]:
                end, last = until, str(one["id"])
        return end, last

    def is_mine(self, one: Answer) -> bool:
        """Whether a booking is one's own; that of another run is not to be used."""
        booking = str(one["id"] or "")
        return bool(one["mine"]) and (booking in self.ids or not booking.startswith(RUN))

    def refuse_promised(self, listed: Sequence[Answer], now: datetime, until: datetime) -> None:
        """What a board told some seconds ago may be somebody else's by now."""
        others = [one for one in listed if not self.is_mine(one)]
        taken = [gpu for gpu in self.gpus if any(is_of(one, gpu) and meets(one, now, until) for one in others)]
        if taken:
            raise Promised(taken)

    def release(self) -> None:
        """Give back what is left of ours; one that is released stays so."""
        while self.ids:
            self.place.do({"do": "release", "id": self.ids[-1], "host": self.host})
            self.ids.pop()


def is_of(one: Answer, gpu: Wanted) -> bool:
    """Whether a booking is of a GPU."""
    return bool({"*", str(gpu.index), gpu.uuid.lower()} & {str(key).lower() for key in one["gpus"]})


def times(one: Answer) -> tuple[datetime | None, datetime]:
    """From when until when it is."""
    return datetime.fromisoformat(one["from"]) if one["from"] else None, datetime.fromisoformat(one["date"])


def meets(one: Answer, now: datetime, until: datetime) -> bool:
    """Whether a booking has some of that time; of one that repeats only the present time is told."""
    if one["rrule"]:
        return bool(one["phase"] == "now")
    since, end = times(one)
    return (since is None or since < until) and end > now
