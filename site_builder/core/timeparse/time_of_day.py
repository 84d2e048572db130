"""The time of the day as people write it: `18:00`, `6pm`, `18h30`, `18.30`, `noon`; before the day or after it."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from typing import NamedTuple

from site_builder.core.formatting import MONTHS
from site_builder.core.timeparse.durations import Unclear

HALF = r"[ap]\.?m\b\.?"
CLOCK = (
    r"(?:at )?(?:(?P<word>noon|midnight)|(?P<hour>\d{1,2})(?:"
    rf"(?P<dot>[:.])(?P<minute>\d\d)(?::(?P<second>\d\d))?(?: ?(?P<half>{HALF})|h)?"
    rf"| ?(?P<only_half>{HALF})| ?h(?P<h_minute>\d\d)?))"
)
LAST = re.compile(rf"(?:^|(?<= )){CLOCK}$", re.IGNORECASE)
FIRST = re.compile(rf"{CLOCK}(?= |$)", re.IGNORECASE)
EXAMPLES = ("18:00", "6pm")


class Clock(NamedTuple):
    """A time of the day; 24:00 is its end, and the word midnight is either."""

    hour: int
    minute: int = 0
    second: int = 0
    midnight: bool = False
    dot: bool = False

    def __str__(self) -> str:
        """`18:00`, with seconds where there are some."""
        return f"{self.hour:02}:{self.minute:02}" + (f":{self.second:02}" if self.second else "")

    def on(self, day: date) -> datetime:
        """What the wall shows on that day at that time."""
        try:
            return datetime.combine(day, time()) + timedelta(hours=self.hour, minutes=self.minute, seconds=self.second)
        except OverflowError:
            raise Unclear("lies too far away", *EXAMPLES) from None

    def check_dot(self) -> None:
        """Refuse `3.12` where no day is named beside it: it is a date as well."""
        if self.dot and 1 <= self.hour <= 31 and 1 <= self.minute <= 12:
            date_too = f"{self.hour} {MONTHS[self.minute - 1]}"
            raise Unclear(f"could be the time {self} or the day {date_too}", str(self), f"{date_too} 18:00")


def parted(text: str) -> tuple[str, Clock | None]:
    """The day and the time of a text; the text itself where no time stands at either end."""
    found = LAST.search(text) or FIRST.match(text)
    if not found:
        return text, None
    return (text[: found.start()] + text[found.end() :]).strip(), clock_of(found)


def clock_of(found: re.Match[str]) -> Clock:
    """The time in what was found, refused where no clock shows it."""
    word = (found["word"] or "").lower()
    if word:
        return Clock(12) if word == "noon" else Clock(0, midnight=True)
    hour, minute = int(found["hour"]), int(found["minute"] or found["h_minute"] or 0)
    second, half = int(found["second"] or 0), (found["half"] or found["only_half"] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            raise Unclear("is not a time of the day", *EXAMPLES)
        hour = hour % 12 + (12 if half[0] == "p" else 0)
    if (hour, minute, second) > (24, 0, 0) or minute > 59 or second > 59:
        raise Unclear("is not a time of the day", *EXAMPLES)
    return Clock(hour, minute, second, dot=found["dot"] == "." and not half)
