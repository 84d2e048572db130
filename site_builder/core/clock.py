"""The time of a build: read once, passed on, and compared with."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, tzinfo


class Now:
    """A moment that remembers how long the decisions based on it stay valid, so that none is made again in vain."""

    def __init__(self, epoch: float, zone: tzinfo) -> None:
        self.epoch = epoch
        self.zone = zone
        self.local = datetime.fromtimestamp(epoch, zone)
        self.today = self.local.date()
        tomorrow = datetime.combine(self.today + timedelta(days=1), datetime.min.time(), zone)
        self.next_midnight = tomorrow.timestamp()
        self.valid_until = math.inf

    def copy_with_own_expiry(self) -> Now:
        """Return the same moment, with an expiry of its own."""
        copy = object.__new__(Now)
        copy.__dict__.update(self.__dict__, valid_until=math.inf)
        return copy

    def has_passed(self, moment: float) -> bool:
        """Return True if `moment` has passed; otherwise remember it as the time this decision expires."""
        if self.epoch >= moment:
            return True
        self.valid_until = min(self.valid_until, moment)
        return False

    def days_until(self, moment: datetime) -> int:
        """Count the midnights until `moment` in our zone; the count expires at the next of them."""
        self.valid_until = min(self.valid_until, self.next_midnight)
        return (self.to_local(moment).date() - self.today).days

    def to_local(self, moment: datetime) -> datetime:
        """Convert to our zone; the first and last moments of Python's calendar stay as they are."""
        try:
            return moment.astimezone(self.zone)
        except OverflowError:
            return moment
