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
        self.next_midnight = tomorrow.timestamp()
        self.valid_until = math.inf

    def copy_with_own_expiry(self) -> Now:
        """The same moment, for decisions that hold for a time of their own."""
        other = object.__new__(Now)
        other.__dict__.update(self.__dict__, valid_until=math.inf)
        return other

    def has_passed(self, moment: float) -> bool:
        """Whether it is that late; if not, what depends on this holds until then at most."""
        if self.epoch >= moment:
            return True
        self.valid_until = min(self.valid_until, moment)
        return False

    def days_until(self, moment: datetime) -> int:
        """How many midnights lie between now and then, in our zone; it holds until the next of them."""
        self.valid_until = min(self.valid_until, self.next_midnight)
        return (self.to_local(moment).date() - self.today).days

    def to_local(self, moment: datetime) -> datetime:
        """That moment in our zone; the last and the first that there are have no other."""
        try:
            return moment.astimezone(self.zone)
        except OverflowError:
            return moment
