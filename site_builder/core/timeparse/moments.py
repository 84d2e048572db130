"""Times as people say them: `2d3h`, `fri 18:00`, `20 Nov 6pm`; what could mean two things is refused with both."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from site_builder.core.formatting import DAYS, MONTHS
from site_builder.core.timeparse import dates, dst, durations
from site_builder.core.timeparse.durations import Length, Unclear, length
from site_builder.core.timeparse.time_of_day import Clock, parted

__all__ = ["Length", "Unclear", "length", "moment", "said"]

# Written out: the names that Python knows follow the language of the machine.
FULL_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
FULL_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAYS = {name.lower(): at for names in (FULL_DAYS, DAYS) for at, name in enumerate(names)}
WEEKDAYS |= {"tues": 1, "weds": 2, "thur": 3, "thurs": 3}
MONTH_OF = {name.lower(): at for names in (FULL_MONTHS, MONTHS) for at, name in enumerate(names, 1)}
MONTH_OF["sept"] = 9
DAY_NAME = re.compile(r"(?:on )?(?:(this|coming|next) )?([a-z]+)\.?", re.IGNORECASE)
DAY_MONTH = re.compile(r"(?:the )?(\d{1,2})(?:st|nd|rd|th|\.)?(?: of)? ?([a-z]+)\.?", re.IGNORECASE)
MONTH_DAY = re.compile(r"([a-z]+)\.? ?(?:the )?(\d{1,2})(?:st|nd|rd|th)?", re.IGNORECASE)
IN_NUMBERS = re.compile(r"(\d{1,2})[/.-](\d{1,2})\.?")
ISO_DAY = re.compile(r"\d{4}-\d\d-\d\d")
ISO_T = re.compile(r"(\d{4}-\d\d-\d\d)t(?=\d)", re.IGNORECASE)
YEAR = re.compile(r"\d{4}")
HAS_CLOCK = re.compile(r":|\d ?(?:h|am|pm)\b|\dt\d", re.IGNORECASE)
WEEK = timedelta(days=7)


class Asked(NamedTuple):
    """For whom a text is read: the moment, from when on `the next` is looked for, and whether it is an end."""

    now: datetime
    base: datetime
    end: bool
    zone: tzinfo

    def today(self) -> date:
        """The day of now."""
        return dst.here(self.now, self.zone).date()

    def from_day(self) -> date:
        """The day of the base."""
        return dst.here(self.base, self.zone).date()

    def examples(self) -> tuple[str, str]:
        """What can always be written."""
        return "2h", f"{self.today() + WEEK} 18:00"

    def clock(self, told: Clock | None) -> str:
        """The clock time for an example: the one that was told, else the edge of the day that is likely meant."""
        return ("24:00" if self.end else "00:00") if told is None or told.midnight else str(told)


def moment(text: str, now: datetime, *, start: datetime | None = None, end: bool = False) -> datetime:
    """The moment that a text says; an end is looked for after its `start`, and a length counts from there."""
    base = start if end and start else now
    asked = Asked(now, max(now, base, key=datetime.timestamp), end, now.tzinfo or timezone.utc)
    return checked(moment_of(text, base, asked), asked)


def checked(moment: datetime, asked: Asked) -> datetime:
    """Refuse a moment that is out of bounds, however it was written."""
    why = dates.fault(moment, asked.zone)
    if why:
        raise Unclear(why.partition(":")[0], *asked.examples())
    return moment


def moment_of(text: str, base: datetime, asked: Asked) -> datetime:
    """Parse a text, by the first reading that fits."""
    text = ISO_T.sub(r"\1 ", durations.tidy(text, *asked.examples()))
    if text.lower() == "now":
        return asked.now
    amount = durations.find(text)
    if amount:
        return amount.after(base, asked.zone)
    day, clock = parted(text)
    for read in (no_day, near_day, weekday, day_of_year, in_numbers):
        found = read(day, clock, asked)
        if found:
            return found
    return full_date(day, clock, asked)


def said(moment: datetime, now: datetime) -> str:
    """`Fri 20 Nov 18:00`, with the year where it is not this one, and the offset where the clock shows it twice."""
    zone = now.tzinfo or timezone.utc
    local = moment.astimezone(zone)
    year = "" if local.year == now.year else f" {local.year}"
    twice = len(dst.moments(local.replace(tzinfo=None, fold=0), zone)) > 1
    offset = f" ({local.isoformat()[-6:]})" if twice else ""
    day = f"{DAYS[local.weekday()]} {local.day} {MONTHS[local.month - 1]}{year}"
    return f"{day} {local.hour:02}:{local.minute:02}{offset}"


def settled(shown: datetime, zone: tzinfo) -> datetime:
    """The moment when the clock shows this, refused where that is none or two; a day always begins once."""
    if not dates.is_year(shown.year):
        raise Unclear(dates.TOO_FAR, "2h", "2d")
    if shown.time() == datetime.min.time():
        return dst.first(shown, zone)
    found = dst.moments(shown, zone)
    if not found:
        leap = dst.jump(shown, zone)
        then = f"from {dst.shown_before(leap):%H:%M} to {leap:%H:%M}"
        raise Unclear(f"does not exist, because the clocks jump {then} on that day", f"{leap:%Y-%m-%d %H:%M}")
    if len(found) > 1:
        exact = (twin.isoformat(timespec="seconds" if shown.second else "minutes") for twin in found)
        raise Unclear("comes twice, because the clocks are set back on that day", *exact)
    return found[0]


def at(day: date, clock: Clock | None, asked: Asked, name: str = "") -> datetime:
    """That day at that time; without one its beginning, but an end may also mean that of the day."""
    if clock and not clock.midnight:
        return settled(clock.on(day), asked.zone)
    if asked.end and day == asked.today():  # its beginning is over
        return settled(Clock(24).on(day), asked.zone)
    if clock or asked.end:
        name = name or str(day)
        raise Unclear("could be the beginning or the end of that day", f"{name} 00:00", f"{name} 24:00")
    return settled(Clock(0).on(day), asked.zone)


def ahead(day: date, clock: Clock, asked: Asked) -> bool:
    """Whether the clock will show this after the base, be it for the second time."""
    shown = clock.on(day)
    second = shown.replace(tzinfo=asked.zone, fold=1)
    return shown > dst.here(asked.base, asked.zone) or second.timestamp() > asked.base.timestamp()


def no_day(day: str, clock: Clock | None, asked: Asked) -> datetime | None:
    """A clock time alone: the next to come."""
    if day or not clock:
        return None
    clock.check_dot()
    clock = clock._replace(midnight=False)  # with no day named, it can only be the next
    today = asked.from_day()
    return at(today if ahead(today, clock, asked) else today + timedelta(days=1), clock, asked)


def near_day(day: str, clock: Clock | None, asked: Asked) -> datetime | None:
    """`today`, `tonight` or `tomorrow`."""
    name, today = day.lower(), asked.today()
    if name == "today":
        if not clock and not asked.end:
            raise Unclear("could be from now on or the whole day", "now", "today 00:00")
        return at(today, clock, asked, name)
    if name == "tonight":
        if not clock:
            raise Unclear("does not say at which hour", "today 20:00", "today 24:00")
        if not clock.midnight and clock.hour < 17:
            raise Unclear("could be today or tomorrow", f"today {clock}", f"tomorrow {clock}")
        return at(today, Clock(24) if clock.midnight else clock, asked)
    return at(today + timedelta(days=1), clock, asked, name) if name == "tomorrow" else None


def weekday(text: str, clock: Clock | None, asked: Asked) -> datetime | None:
    """The next such day to come, today where the time is still ahead."""
    found = DAY_NAME.fullmatch(text)
    wanted = WEEKDAYS.get(found[2].lower()) if found else None
    if not found or wanted is None:
        return None
    if clock:
        clock.check_dot()
    if (found[1] or "").lower() == "next":
        return next_weekday(wanted, clock, asked)
    day = asked.from_day()
    day += timedelta(days=(wanted - day.weekday()) % 7)
    if clock and not clock.midnight:
        return at(day if ahead(day, clock, asked) else day + WEEK, clock, asked)
    if day == asked.from_day():
        this = f"{day} 24:00" if asked.end else "now"
        raise Unclear(f"could be {plain(day)} or {plain(day + WEEK)}", this, f"{day + WEEK} {asked.clock(clock)}")
    return at(day, clock, asked)


def next_weekday(wanted: int, clock: Clock | None, asked: Asked) -> datetime:
    """`next fri` is said of the coming one and of the one after it; on a Friday only the latter is left."""
    coming = asked.today() + timedelta(days=(wanted - asked.today().weekday()) % 7)
    if coming == asked.today():
        return at(coming + WEEK, clock, asked)
    both = (coming, coming + WEEK)
    raise Unclear(f"could be {plain(both[0])} or {plain(both[1])}", *(f"{day} {asked.clock(clock)}" for day in both))


def day_of_year(text: str, clock: Clock | None, asked: Asked) -> datetime | None:
    """`20 Nov` or `Nov 20`, with a weekday or without: the coming one."""
    rest, wanted = without_weekday(text)
    first, second = DAY_MONTH.fullmatch(rest), MONTH_DAY.fullmatch(rest)
    number, name = (first[1], first[2]) if first else (second[2], second[1]) if second else ("", "")
    month = MONTH_OF.get(name.lower())
    if not month:
        return None
    today = asked.today()
    days = same_days(int(number), month, asked.from_day())
    if clock and not clock.midnight:
        days = [day for day in days if ahead(day, clock, asked)]
    if not days:
        raise Unclear("is not a day of any year", *asked.examples())
    check_weekday(days[0], wanted, clock, asked)
    if (today.month, today.day) == (month, int(number)) and (days[0] != today or not (clock or asked.end)):
        later = days[0] if days[0] != today else days[1]
        this = f"today {clock}" if clock and not clock.midnight else "now"
        raise Unclear(f"could be today or {plain(later)} {later.year}", this, f"{later} {asked.clock(clock)}")
    return at(days[0], clock, asked)


def same_days(number: int, month: int, first: date) -> list[date]:
    """That day of the coming years, from the given day on; eight years may go by between two leap days."""
    found = []
    for year in range(first.year, first.year + 17):
        try:
            found.append(date(year, month, number))
        except ValueError:
            continue
    return [day for day in found if day >= first]


def in_numbers(text: str, clock: Clock | None, asked: Asked) -> datetime | None:
    """`3/4` is never guessed: it is refused with what it could be."""
    found = IN_NUMBERS.fullmatch(without_weekday(text)[0])
    if not found:
        return None
    pairs = dict.fromkeys(((int(found[1]), int(found[2])), (int(found[2]), int(found[1]))))
    coming = [same_days(*pair, asked.from_day())[:1] for pair in pairs if 1 <= pair[1] <= 12]
    days = [day for several in coming for day in several]
    if not days:
        raise Unclear("is not a day of any year", *asked.examples())
    why = "could be " + " or ".join(plain(day) for day in days) if len(days) > 1 else "has no name of a month"
    raise Unclear(why, *(f"{day} {asked.clock(clock)}" for day in days))


def full_date(text: str, clock: Clock | None, asked: Asked) -> datetime:
    """A date with its year, in any form that is clear."""
    rest, wanted = without_weekday(text)
    if not YEAR.search(rest) or (clock and HAS_CLOCK.search(rest)):
        raise unknown(text, clock, asked)
    found, why = dates.read(rest, asked.zone)
    if found is None and clock and not clock.midnight:
        found, _ = dates.read(f"{clock} {rest}", asked.zone)  # a zone is understood only after the time
    if found is None:
        both = ISO_DAY.findall(why)
        if both:
            raise Unclear(why.partition(":")[0], *(f"{day} {asked.clock(clock)}" for day in both))
        if why in {dates.TOO_FAR, dates.BAD_OFFSET} or "zone" in why:
            raise Unclear(why.partition(":")[0], *asked.examples())
        raise unknown(text, clock, asked)
    shown = found.replace(tzinfo=None)
    check_weekday(shown.date(), wanted, clock, asked)
    if found.tzinfo is not asked.zone:
        exact = clock.on(shown.date()).replace(tzinfo=found.tzinfo) if clock else found
        return exact.astimezone(asked.zone)
    if clock is None and (HAS_CLOCK.search(rest) or shown.time() != datetime.min.time()):
        return settled(shown, asked.zone)
    return at(shown.date(), clock, asked)


def without_weekday(text: str) -> tuple[str, int | None]:
    """A date without the weekday that stands in it, and that."""
    words = text.split()
    named = [WEEKDAYS[word.lower().rstrip(".")] for word in words if word.lower().rstrip(".") in WEEKDAYS]
    rest = [word for word in words if word.lower().rstrip(".") not in WEEKDAYS and word.lower() != "on"]
    return (" ".join(rest), named[0]) if len(named) == 1 else (text, None)


def check_weekday(day: date, wanted: int | None, clock: Clock | None, asked: Asked) -> None:
    """A date that falls on another weekday than it says is a slip in one of the two."""
    if wanted is not None and day.weekday() != wanted:
        other = asked.from_day() + timedelta(days=1)
        other += timedelta(days=(wanted - other.weekday()) % 7)
        why = f"says {DAYS[wanted]}, but {day.day} {MONTHS[day.month - 1]} {day.year} is a {DAYS[day.weekday()]}"
        raise Unclear(why, *(f"{either} {asked.clock(clock)}" for either in (day, other)))


def unknown(text: str, clock: Clock | None, asked: Asked) -> Unclear:
    """What is said of a text that is none of all this; a number alone is the commonest."""
    last = text.rsplit(maxsplit=1)[-1] if text else ""
    hour = int(last) if last.isdigit() and len(last) < 3 else None
    if hour is None or clock:
        return Unclear("is not understood", *asked.examples())
    if last != text:
        why = f"has the number {hour}, which could be an hour, a day or a year"
        return Unclear(why, *asked.examples())
    if hour > 24:
        return Unclear("has no unit", f"{hour}m", f"{hour}h")
    either = (f"{hour}:00", f"{hour}h") if hour else ("0:00",)
    return Unclear("could be an hour of the day or a number of hours" if hour else "has no unit", *either)


def plain(day: date) -> str:
    """`Fri 20 Nov`."""
    return f"{DAYS[day.weekday()]} {day.day} {MONTHS[day.month - 1]}"
