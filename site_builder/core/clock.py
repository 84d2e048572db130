"""The moment of a build: read once, passed on, and asked what has been reached."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, tzinfo


class Now:
    """A moment that remembers until when all that was decided by it holds, so that nothing is decided again in vain."""

    def __init__(self, epoch: float, zone: tzinfo) -> None:
        """The moment in seconds, and the zone in which people read times."""
        self.epoch = epoch
        self.zone = zone
        self.local = datetime.fromtimestamp(epoch, zone)
        self.today = self.local.date()
        tomorrow = datetime.combine(self.today + timedelta(days=1), datetime.min.time(), zone)
        self.midnight = tomorrow.timestamp()
        self.holds_until = math.inf

    def apart(self) -> Now:
        """The same moment, for decisions that hold for a time of their own."""
        other = object.__new__(Now)
        other.__dict__.update(self.__dict__, holds_until=math.inf)
        return other

    def reached(self, moment: float) -> bool:
        """Whether it is that late; if not, what depends on this holds until then at most."""
        if self.epoch >= moment:
            return True
        self.holds_until = min(self.holds_until, moment)
        return False

    def days_until(self, moment: datetime) -> int:
        """How many midnights lie between now and then, in our zone; it holds until the next of them."""
        self.holds_until = min(self.holds_until, self.midnight)
        return (self.here(moment).date() - self.today).days

    def here(self, moment: datetime) -> datetime:
        """That moment in our zone; the last and the first that there are have no other."""
        try:
            return moment.astimezone(self.zone)
        except OverflowError:
            return moment
