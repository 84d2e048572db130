"""Parse times and durations as people type them: `2d3h`, `fri 18:00`, `20 Nov 6pm`."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import NamedTuple

from site_builder.core.formatting import DAY_NAMES, MONTH_NAMES
from site_builder.core.timeparse import dates

UNIT_SECONDS = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60}
MAX_DAYS = 3653  # days: ten years
DURATION_PART = (
    r"\d+(?:\.\d{1,3})? ?(?:weeks?|wks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|months?|mos?|m|years?|yrs?|y)"
)
DURATION_PATTERN = re.compile(
    rf"(?:\+ ?|in |for )?({DURATION_PART}(?:(?: and | ?){DURATION_PART})*)((?<=h)\d\d)?", re.IGNORECASE
)
DURATION_PARTS = re.compile(r"(\d+)(?:\.(\d+))? ?([a-z]+)")
BARE_NUMBER = re.compile(r"\d{1,3}")


class UnclearTimeError(Exception):
    """Why a time cannot be known, in words that follow the quoted text, with what to write in its place."""

    def __init__(self, why: str, *examples: str) -> None:
        """The reason, and texts that would be understood."""
        super().__init__(f"{why}: write " + " or ".join(f'"{example}"' for example in examples))
        self.examples = examples


class Duration(NamedTuple):
    """Days that end at the same clock time as they began, and then exact seconds."""

    days: int
    seconds: int

    def add_to(self, start: datetime, zone: tzinfo) -> datetime:
        """That much later; a day that would end at a time that the clock leaps over ends where it leaps."""
        if self.days:
            start = dates.find_first_moment(dates.to_wall_clock(start, zone) + timedelta(days=self.days), zone)
        end = (start.astimezone(timezone.utc) + timedelta(seconds=self.seconds)).astimezone(zone)
        if dates.fault(end, zone):
            raise UnclearTimeError("leads too far into the future", "2h", "1d")
        return end


def parse_duration(text: str) -> Duration:
    """The length of time, for `--for`."""
    text = normalize_time_text(text, "2h", "1d")
    found = match_duration(text)
    if found:
        return found
    if BARE_NUMBER.fullmatch(text) and int(text):
        raise UnclearTimeError("has no unit", f"{int(text)}h", f"{int(text)}d")
    raise UnclearTimeError("is not a length of time", "2h", "1d 12h")


def normalize_time_text(text: str, *examples: str) -> str:
    """The text with single blanks, refused where it can be no time at all."""
    text = text.strip()
    if not text:
        raise UnclearTimeError("is empty", *examples)
    if len(text) > 100:
        raise UnclearTimeError("is too long for a time", *examples)
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise UnclearTimeError("has control characters in it", *examples)
    text = " ".join(text.replace(", ", " ").rstrip(",").split())  # blanks of any kind: they come with what is pasted
    if not text.isascii() or not text:
        raise UnclearTimeError("has letters in it that no time has", *examples)
    return text


def match_duration(text: str) -> Duration | None:
    """The length that a tidy text says; None where it says something else."""
    found = DURATION_PATTERN.fullmatch(text.lstrip("-").lower())
    if not found:
        return None
    if text.startswith("-"):
        raise UnclearTimeError("leads into the past", "2h", "1d")
    told: dict[str, int] = {}
    for whole, part, word in DURATION_PARTS.findall(found[1].lower()):
        unit = word[0]
        if unit == "y" or word.startswith("mo"):
            raise UnclearTimeError("has a unit that is not always equally long", "4w", "30d")
        if unit in told:
            raise UnclearTimeError("names a unit twice", "2h", "1d 12h")
        told[unit] = int(whole + part.ljust(3, "0"))  # thousandths: exact, where a float is not
    if found[2]:
        if "m" in told:
            raise UnclearTimeError("names a unit twice", "1h30", "1h 30m")
        told["m"] = int(found[2]) * 1000
    return build_duration(told)


def build_duration(told: dict[str, int]) -> Duration:
    """The sum of thousandths of each unit, if somebody can mean it."""
    days, rest = divmod(told.get("w", 0) * 7 + told.get("d", 0), 1000)
    exact = rest * UNIT_SECONDS["d"] + told.get("h", 0) * UNIT_SECONDS["h"] + told.get("m", 0) * UNIT_SECONDS["m"]
    seconds = exact // 1000
    if not days and not seconds:
        raise UnclearTimeError("is no time at all", "2h", "1d")
    if days + seconds // UNIT_SECONDS["d"] > MAX_DAYS:
        raise UnclearTimeError("is more than ten years", "2h", "1d")
    return Duration(days, seconds)


AM_OR_PM = r"[ap]\.?m\b\.?"
CLOCK_PATTERN = (
    r"(?:at )?(?:(?P<word>noon|midnight)|(?P<hour>\d{1,2})(?:"
    rf"(?P<dot>[:.])(?P<minute>\d\d)(?::(?P<second>\d\d))?(?: ?(?P<half>{AM_OR_PM})|h)?"
    rf"| ?(?P<only_half>{AM_OR_PM})| ?h(?P<h_minute>\d\d)?))"
)
CLOCK_AT_END = re.compile(rf"(?:^|(?<= )){CLOCK_PATTERN}$", re.IGNORECASE)
CLOCK_AT_START = re.compile(rf"{CLOCK_PATTERN}(?= |$)", re.IGNORECASE)
CLOCK_EXAMPLES = ("18:00", "6pm")


class ClockTime(NamedTuple):
    """A time of the day; 24:00 is its end, and the word midnight is either."""

    hour: int
    minute: int = 0
    second: int = 0
    is_midnight: bool = False
    has_dot: bool = False

    def __str__(self) -> str:
        """`18:00`, with seconds where there are some."""
        return f"{self.hour:02}:{self.minute:02}" + (f":{self.second:02}" if self.second else "")

    def on_day(self, day: date) -> datetime:
        """What the wall shows on that day at that time."""
        try:
            return datetime.combine(day, time()) + timedelta(hours=self.hour, minutes=self.minute, seconds=self.second)
        except OverflowError:
            raise UnclearTimeError("lies too far away", *CLOCK_EXAMPLES) from None

    def check_dot(self) -> None:
        """Refuse `3.12` where no day is named beside it: it is a date as well."""
        if self.has_dot and 1 <= self.hour <= 31 and 1 <= self.minute <= 12:
            date_too = f"{self.hour} {MONTH_NAMES[self.minute - 1]}"
            raise UnclearTimeError(f"could be the time {self} or the day {date_too}", str(self), f"{date_too} 18:00")


def split_clock_time(text: str) -> tuple[str, ClockTime | None]:
    """The day and the time of a text; the text itself where no time stands at either end."""
    found = CLOCK_AT_END.search(text) or CLOCK_AT_START.match(text)
    if not found:
        return text, None
    return (text[: found.start()] + text[found.end() :]).strip(), build_clock_time(found)


def build_clock_time(found: re.Match[str]) -> ClockTime:
    """The time in what was found, refused where no clock shows it."""
    word = (found["word"] or "").lower()
    if word:
        return ClockTime(12) if word == "noon" else ClockTime(0, is_midnight=True)
    hour, minute = int(found["hour"]), int(found["minute"] or found["h_minute"] or 0)
    second, half = int(found["second"] or 0), (found["half"] or found["only_half"] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            raise UnclearTimeError("is not a time of the day", *CLOCK_EXAMPLES)
        hour = hour % 12 + (12 if half[0] == "p" else 0)
    if (hour, minute, second) > (24, 0, 0) or minute > 59 or second > 59:
        raise UnclearTimeError("is not a time of the day", *CLOCK_EXAMPLES)
    return ClockTime(hour, minute, second, has_dot=found["dot"] == "." and not half)


# Written out: the names that Python knows follow the language of the machine.
FULL_DAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
FULL_MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAY_NUMBERS = {name.lower(): at for names in (FULL_DAY_NAMES, DAY_NAMES) for at, name in enumerate(names)}
WEEKDAY_NUMBERS |= {"tues": 1, "weds": 2, "thur": 3, "thurs": 3}
MONTH_NUMBERS = {name.lower(): at for names in (FULL_MONTH_NAMES, MONTH_NAMES) for at, name in enumerate(names, 1)}
MONTH_NUMBERS["sept"] = 9
DAY_NAME = re.compile(r"(?:on )?(?:(this|coming|next) )?([a-z]+)\.?", re.IGNORECASE)
DAY_MONTH = re.compile(r"(?:the )?(\d{1,2})(?:st|nd|rd|th|\.)?(?: of)? ?([a-z]+)\.?", re.IGNORECASE)
MONTH_DAY = re.compile(r"([a-z]+)\.? ?(?:the )?(\d{1,2})(?:st|nd|rd|th)?", re.IGNORECASE)
NUMERIC_DAY = re.compile(r"(\d{1,2})[/.-](\d{1,2})\.?")
ISO_DAY = re.compile(r"\d{4}-\d\d-\d\d")
ISO_DATE_T = re.compile(r"(\d{4}-\d\d-\d\d)t(?=\d)", re.IGNORECASE)
YEAR = re.compile(r"\d{4}")
HAS_CLOCK = re.compile(r":|\d ?(?:h|am|pm)\b|\dt\d", re.IGNORECASE)
ONE_WEEK = timedelta(days=7)


class TimeContext(NamedTuple):
    """For whom a text is read: the moment, from when on `the next` is looked for, and whether it is an end."""

    now: datetime
    base: datetime
    is_end: bool
    zone: tzinfo

    def today(self) -> date:
        """The day of now."""
        return dates.to_wall_clock(self.now, self.zone).date()

    def base_day(self) -> date:
        """The day of the base."""
        return dates.to_wall_clock(self.base, self.zone).date()

    def examples(self) -> tuple[str, str]:
        """What can always be written."""
        return "2h", f"{self.today() + ONE_WEEK} 18:00"

    def example_clock(self, told: ClockTime | None) -> str:
        """The clock time for an example: the one that was told, else the edge of the day that is likely meant."""
        return ("24:00" if self.is_end else "00:00") if told is None or told.is_midnight else str(told)


def parse_moment(text: str, now: datetime, *, start: datetime | None = None, end: bool = False) -> datetime:
    """The moment that a text says; an end is looked for after its `start`, and a length counts from there."""
    base = start if end and start else now
    asked = TimeContext(now, max(now, base, key=datetime.timestamp), end, now.tzinfo or timezone.utc)
    return check_moment(parse_future_text(text, base, asked), asked)


def check_moment(moment: datetime, asked: TimeContext) -> datetime:
    """Refuse a moment that is out of bounds, however it was written."""
    why = dates.fault(moment, asked.zone)
    if why:
        raise UnclearTimeError(why.partition(":")[0], *asked.examples())
    return moment


def parse_future_text(text: str, base: datetime, asked: TimeContext) -> datetime:
    """Parse a text, by the first reading that fits."""
    text = ISO_DATE_T.sub(r"\1 ", normalize_time_text(text, *asked.examples()))
    if text.lower() == "now":
        return asked.now
    amount = match_duration(text)
    if amount:
        return amount.add_to(base, asked.zone)
    day, clock = split_clock_time(text)
    for read in (parse_bare_clock, parse_near_day, parse_weekday, parse_day_of_year, refuse_numeric_day):
        found = read(day, clock, asked)
        if found:
            return found
    return parse_full_date(day, clock, asked)


def format_full_moment(moment: datetime, now: datetime) -> str:
    """`Fri 20 Nov 18:00`, with the year where it is not this one, and the offset where the clock shows it twice."""
    zone = now.tzinfo or timezone.utc
    local = moment.astimezone(zone)
    year = "" if local.year == now.year else f" {local.year}"
    twice = len(dates.find_moments(local.replace(tzinfo=None, fold=0), zone)) > 1
    offset = f" ({local.isoformat()[-6:]})" if twice else ""
    day = f"{DAY_NAMES[local.weekday()]} {local.day} {MONTH_NAMES[local.month - 1]}{year}"
    return f"{day} {local.hour:02}:{local.minute:02}{offset}"


def resolve_wall_clock(shown: datetime, zone: tzinfo) -> datetime:
    """The moment when the clock shows this, refused where that is none or two; a day always begins once."""
    if not dates.is_year(shown.year):
        raise UnclearTimeError(dates.TOO_FAR, "2h", "2d")
    if shown.time() == datetime.min.time():
        return dates.find_first_moment(shown, zone)
    found = dates.find_moments(shown, zone)
    if not found:
        leap = dates.find_clock_jump(shown, zone)
        then = f"from {dates.find_time_before_jump(leap):%H:%M} to {leap:%H:%M}"
        raise UnclearTimeError(f"does not exist, because the clocks jump {then} on that day", f"{leap:%Y-%m-%d %H:%M}")
    if len(found) > 1:
        exact = (twin.isoformat(timespec="seconds" if shown.second else "minutes") for twin in found)
        raise UnclearTimeError("comes twice, because the clocks are set back on that day", *exact)
    return found[0]


def resolve_day(day: date, clock: ClockTime | None, asked: TimeContext, name: str = "") -> datetime:
    """That day at that time; without one its beginning, but an end may also mean that of the day."""
    if clock and not clock.is_midnight:
        return resolve_wall_clock(clock.on_day(day), asked.zone)
    if asked.is_end and day == asked.today():  # its beginning is over
        return resolve_wall_clock(ClockTime(24).on_day(day), asked.zone)
    if clock or asked.is_end:
        name = name or str(day)
        raise UnclearTimeError("could be the beginning or the end of that day", f"{name} 00:00", f"{name} 24:00")
    return resolve_wall_clock(ClockTime(0).on_day(day), asked.zone)


def is_ahead(day: date, clock: ClockTime, asked: TimeContext) -> bool:
    """Whether the clock will show this after the base, be it for the second time."""
    shown = clock.on_day(day)
    second = shown.replace(tzinfo=asked.zone, fold=1)
    return shown > dates.to_wall_clock(asked.base, asked.zone) or second.timestamp() > asked.base.timestamp()


def parse_bare_clock(day: str, clock: ClockTime | None, asked: TimeContext) -> datetime | None:
    """A clock time alone: the next to come."""
    if day or not clock:
        return None
    clock.check_dot()
    clock = clock._replace(is_midnight=False)  # with no day named, it can only be the next
    today = asked.base_day()
    return resolve_day(today if is_ahead(today, clock, asked) else today + timedelta(days=1), clock, asked)


def parse_near_day(day: str, clock: ClockTime | None, asked: TimeContext) -> datetime | None:
    """`today`, `tonight` or `tomorrow`."""
    name, today = day.lower(), asked.today()
    if name == "today":
        if not clock and not asked.is_end:
            raise UnclearTimeError("could be from now on or the whole day", "now", "today 00:00")
        return resolve_day(today, clock, asked, name)
    if name == "tonight":
        if not clock:
            raise UnclearTimeError("does not say at which hour", "today 20:00", "today 24:00")
        if not clock.is_midnight and clock.hour < 17:
            raise UnclearTimeError("could be today or tomorrow", f"today {clock}", f"tomorrow {clock}")
        return resolve_day(today, ClockTime(24) if clock.is_midnight else clock, asked)
    return resolve_day(today + timedelta(days=1), clock, asked, name) if name == "tomorrow" else None


def parse_weekday(text: str, clock: ClockTime | None, asked: TimeContext) -> datetime | None:
    """The next such day to come, today where the time is still ahead."""
    found = DAY_NAME.fullmatch(text)
    wanted = WEEKDAY_NUMBERS.get(found[2].lower()) if found else None
    if not found or wanted is None:
        return None
    if clock:
        clock.check_dot()
    if (found[1] or "").lower() == "next":
        return parse_next_weekday(wanted, clock, asked)
    day = asked.base_day()
    day += timedelta(days=(wanted - day.weekday()) % 7)
    if clock and not clock.is_midnight:
        return resolve_day(day if is_ahead(day, clock, asked) else day + ONE_WEEK, clock, asked)
    if day == asked.base_day():
        this = f"{day} 24:00" if asked.is_end else "now"
        raise UnclearTimeError(
            f"could be {format_day(day)} or {format_day(day + ONE_WEEK)}",
            this,
            f"{day + ONE_WEEK} {asked.example_clock(clock)}",
        )
    return resolve_day(day, clock, asked)


def parse_next_weekday(wanted: int, clock: ClockTime | None, asked: TimeContext) -> datetime:
    """`next fri` is said of the coming one and of the one after it; on a Friday only the latter is left."""
    coming = asked.today() + timedelta(days=(wanted - asked.today().weekday()) % 7)
    if coming == asked.today():
        return resolve_day(coming + ONE_WEEK, clock, asked)
    both = (coming, coming + ONE_WEEK)
    raise UnclearTimeError(
        f"could be {format_day(both[0])} or {format_day(both[1])}",
        *(f"{day} {asked.example_clock(clock)}" for day in both),
    )


def parse_day_of_year(text: str, clock: ClockTime | None, asked: TimeContext) -> datetime | None:
    """`20 Nov` or `Nov 20`, with a weekday or without: the coming one."""
    rest, wanted = split_weekday(text)
    first, second = DAY_MONTH.fullmatch(rest), MONTH_DAY.fullmatch(rest)
    number, name = (first[1], first[2]) if first else (second[2], second[1]) if second else ("", "")
    month = MONTH_NUMBERS.get(name.lower())
    if not month:
        return None
    today = asked.today()
    days = list_yearly_days(int(number), month, asked.base_day())
    if clock and not clock.is_midnight:
        days = [day for day in days if is_ahead(day, clock, asked)]
    if not days:
        raise UnclearTimeError("is not a day of any year", *asked.examples())
    check_weekday(days[0], wanted, clock, asked)
    if (today.month, today.day) == (month, int(number)) and (days[0] != today or not (clock or asked.is_end)):
        later = days[0] if days[0] != today else days[1]
        this = f"today {clock}" if clock and not clock.is_midnight else "now"
        raise UnclearTimeError(
            f"could be today or {format_day(later)} {later.year}", this, f"{later} {asked.example_clock(clock)}"
        )
    return resolve_day(days[0], clock, asked)


def list_yearly_days(number: int, month: int, first: date) -> list[date]:
    """That day of the coming years, from the given day on; eight years may go by between two leap days."""
    found = []
    for year in range(first.year, first.year + 17):
        try:
            found.append(date(year, month, number))
        except ValueError:
            continue
    return [day for day in found if day >= first]


def refuse_numeric_day(text: str, clock: ClockTime | None, asked: TimeContext) -> datetime | None:
    """`3/4` is never guessed: it is refused with what it could be."""
    found = NUMERIC_DAY.fullmatch(split_weekday(text)[0])
    if not found:
        return None
    pairs = dict.fromkeys(((int(found[1]), int(found[2])), (int(found[2]), int(found[1]))))
    coming = [list_yearly_days(*pair, asked.base_day())[:1] for pair in pairs if 1 <= pair[1] <= 12]
    days = [day for several in coming for day in several]
    if not days:
        raise UnclearTimeError("is not a day of any year", *asked.examples())
    why = "could be " + " or ".join(format_day(day) for day in days) if len(days) > 1 else "has no name of a month"
    raise UnclearTimeError(why, *(f"{day} {asked.example_clock(clock)}" for day in days))


def parse_full_date(text: str, clock: ClockTime | None, asked: TimeContext) -> datetime:
    """A date with its year, in any form that is clear."""
    rest, wanted = split_weekday(text)
    if not YEAR.search(rest) or (clock and HAS_CLOCK.search(rest)):
        raise build_unknown_time_error(text, clock, asked)
    found, why = dates.parse_date(rest, asked.zone)
    if found is None and clock and not clock.is_midnight:
        found, _ = dates.parse_date(f"{clock} {rest}", asked.zone)  # a zone is understood only after the time
    if found is None:
        both = ISO_DAY.findall(why)
        if both:
            raise UnclearTimeError(why.partition(":")[0], *(f"{day} {asked.example_clock(clock)}" for day in both))
        if why in {dates.TOO_FAR, dates.BAD_OFFSET} or "zone" in why:
            raise UnclearTimeError(why.partition(":")[0], *asked.examples())
        raise build_unknown_time_error(text, clock, asked)
    shown = found.replace(tzinfo=None)
    check_weekday(shown.date(), wanted, clock, asked)
    if found.tzinfo is not asked.zone:
        exact = clock.on_day(shown.date()).replace(tzinfo=found.tzinfo) if clock else found
        return exact.astimezone(asked.zone)
    if clock is None and (HAS_CLOCK.search(rest) or shown.time() != datetime.min.time()):
        return resolve_wall_clock(shown, asked.zone)
    return resolve_day(shown.date(), clock, asked)


def split_weekday(text: str) -> tuple[str, int | None]:
    """A date without the weekday that stands in it, and that."""
    words = text.split()
    named = [WEEKDAY_NUMBERS[word.lower().rstrip(".")] for word in words if word.lower().rstrip(".") in WEEKDAY_NUMBERS]
    rest = [word for word in words if word.lower().rstrip(".") not in WEEKDAY_NUMBERS and word.lower() != "on"]
    return (" ".join(rest), named[0]) if len(named) == 1 else (text, None)


def check_weekday(day: date, wanted: int | None, clock: ClockTime | None, asked: TimeContext) -> None:
    """A date that falls on another weekday than it says is a slip in one of the two."""
    if wanted is not None and day.weekday() != wanted:
        other = asked.base_day() + timedelta(days=1)
        other += timedelta(days=(wanted - other.weekday()) % 7)
        why = f"says {DAY_NAMES[wanted]}, but {day.day} {MONTH_NAMES[day.month - 1]} {day.year} is a {DAY_NAMES[day.weekday()]}"
        raise UnclearTimeError(why, *(f"{either} {asked.example_clock(clock)}" for either in (day, other)))


def build_unknown_time_error(text: str, clock: ClockTime | None, asked: TimeContext) -> UnclearTimeError:
    """What is said of a text that is none of all this; a number alone is the commonest."""
    last = text.rsplit(maxsplit=1)[-1] if text else ""
    hour = int(last) if last.isdigit() and len(last) < 3 else None
    if hour is None or clock:
        return UnclearTimeError("is not understood", *asked.examples())
    if last != text:
        why = f"has the number {hour}, which could be an hour, a day or a year"
        return UnclearTimeError(why, *asked.examples())
    if hour > 24:
        return UnclearTimeError("has no unit", f"{hour}m", f"{hour}h")
    either = (f"{hour}:00", f"{hour}h") if hour else ("0:00",)
    return UnclearTimeError("could be an hour of the day or a number of hours" if hour else "has no unit", *either)


def format_day(day: date) -> str:
    """`Fri 20 Nov`."""
    return f"{DAY_NAMES[day.weekday()]} {day.day} {MONTH_NAMES[day.month - 1]}"


AGO_SUFFIX = " ago"
FUTURE_PREFIXES = ("+", "in ")


class PastTimeContext(TimeContext):
    """For whom a text is read."""

    def examples(self) -> tuple[str, str]:
        """What can always be written."""
        return "7d", str(self.today() - ONE_WEEK)


def parse_past_moment(text: str, now: datetime, *, end: bool = False) -> datetime:
    """The moment that a text says, which is not after `now`; a length counts back from there."""
    asked = PastTimeContext(now, now, end, now.tzinfo or timezone.utc)
    return check_moment(parse_past_text(text, asked), asked)


def parse_past_text(text: str, asked: PastTimeContext) -> datetime:
    """Parse a text, by the first reading that fits."""
    now, end = asked.now, asked.is_end
    text = ISO_DATE_T.sub(r"\1 ", normalize_time_text(text, *asked.examples()))
    bare = text[: -len(AGO_SUFFIX)] if text.lower().endswith(AGO_SUFFIX) else text
    if bare.lower() == "now":
        return now
    amount = match_duration(bare.lstrip("-"))
    if amount:
        if bare.lower().startswith(FUTURE_PREFIXES):
            raise UnclearTimeError("has not come yet", *asked.examples())
        return subtract_duration(amount, asked)
    day, clock = split_clock_time(bare)
    found = parse_past_day(day, clock, asked) or parse_full_date(day, clock, asked)
    if is_past(found, asked):
        return found
    if not end:
        raise UnclearTimeError("has not come yet", *asked.examples())
    if is_whole_day(clock) and found == resolve_wall_clock(ClockTime(24).on_day(asked.today()), asked.zone):
        raise UnclearTimeError("could be the beginning of that day or this moment", f"{asked.today()} 00:00", "now")
    return now


def is_past(moment: datetime, asked: PastTimeContext) -> bool:
    """Whether it has come; of two times in one zone, Python compares what the clock shows, which it may show twice."""
    return moment.timestamp() <= asked.now.timestamp()


def is_whole_day(clock: ClockTime | None) -> bool:
    """Whether a day is named with none of its hours."""
    return clock is None or clock.is_midnight


def subtract_duration(amount: Duration, asked: PastTimeContext) -> datetime:
    """That much earlier; a day ago is at the same clock time."""
    now, zone = asked.now, asked.zone
    start = (
        dates.find_first_moment(dates.to_wall_clock(now, zone) - timedelta(days=amount.days), zone)
        if amount.days
        else now
    )
    return (start.astimezone(timezone.utc) - timedelta(seconds=amount.seconds)).astimezone(zone)


def parse_past_day(day: str, clock: ClockTime | None, asked: PastTimeContext) -> datetime | None:
    """`today`, `yesterday`, or the last day of that name; a clock time alone is that of today."""
    name, today = day.lower(), asked.today()
    if name in {"", "today"}:
        return resolve_day(today, clock, asked, name) if clock or name else None
    if name == "yesterday":
        return resolve_day(today - timedelta(days=1), clock, asked, name)
    found = DAY_NAME.fullmatch(day)
    wanted = WEEKDAY_NUMBERS.get(found[2].lower()) if found and not found[1] else None
    if wanted is None:
        return None
    last = today - timedelta(days=(today.weekday() - wanted) % 7)
    told = resolve_day(last, clock, asked, str(last))
    if is_past(told, asked) or (asked.is_end and is_whole_day(clock)):
        return told
    return resolve_day(last - ONE_WEEK, clock, asked, str(last - ONE_WEEK))
