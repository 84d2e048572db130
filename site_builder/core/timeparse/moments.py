"""Parse times and durations as people type them: `2d3h`, `fri 18:00`, `20 Nov 6pm`."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import NamedTuple

from site_builder.core.formatting import DAY, DAY_NAMES, HOUR, MINUTE, MONTH_NAMES, format_weekday_date
from site_builder.core.timeparse import dates

MAX_DAYS = 3653  # ten years
AMOUNT = r"\d+(?:\.\d{1,3})? ?(?:weeks?|wks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|months?|mos?|m|years?|yrs?|y)"
DURATION_PATTERN = re.compile(rf"(?:\+ ?|in |for )?({AMOUNT}(?:(?: and | ?){AMOUNT})*)((?<=h)\d\d)?", re.IGNORECASE)
DURATION_PARTS = re.compile(r"(\d+)(?:\.(\d+))? ?([a-z]+)")
BARE_NUMBER = re.compile(r"\d{1,3}")
AM_OR_PM = r"[ap]\.?m\b\.?"
CLOCK_PATTERN = (
    r"(?:at )?(?:(?P<word>noon|midnight)|(?P<hour>\d{1,2})(?:"
    rf"(?P<dot>[:.])(?P<minute>\d\d)(?::(?P<second>\d\d))?(?: ?(?P<half>{AM_OR_PM})|h)?"
    rf"| ?(?P<only_half>{AM_OR_PM})| ?h(?P<h_minute>\d\d)?))"
)
CLOCK_AT_END = re.compile(rf"(?:^|(?<= )){CLOCK_PATTERN}$", re.IGNORECASE)
CLOCK_AT_START = re.compile(rf"{CLOCK_PATTERN}(?= |$)", re.IGNORECASE)
CLOCK_EXAMPLES = ("18:00", "6pm")
# Written out, because Python's own names follow the language of the machine.
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
DAY_MONTH = re.compile(r"(?:the )?(?P<number>\d{1,2})(?:st|nd|rd|th|\.)?(?: of)? ?(?P<name>[a-z]+)\.?", re.IGNORECASE)
MONTH_DAY = re.compile(r"(?P<name>[a-z]+)\.? ?(?:the )?(?P<number>\d{1,2})(?:st|nd|rd|th)?", re.IGNORECASE)
NUMERIC_DAY = re.compile(r"(\d{1,2})[/.-](\d{1,2})\.?")
ISO_DAY = re.compile(r"\d{4}-\d\d-\d\d")
ISO_DATE_T = re.compile(r"(\d{4}-\d\d-\d\d)t(?=\d)", re.IGNORECASE)
YEAR = re.compile(r"\d{4}")
HAS_CLOCK = re.compile(r":|\d ?(?:h|am|pm)\b|\dt\d", re.IGNORECASE)
ONE_SECOND, ONE_DAY, ONE_WEEK = timedelta(seconds=1), timedelta(days=1), timedelta(weeks=1)
AGO_SUFFIX = " ago"


class UnclearTimeError(Exception):
    """Why a time is unclear, in words that follow the quoted text, with what to write in its place."""

    def __init__(self, reason: str, *examples: str) -> None:
        super().__init__(f"{reason}: write " + " or ".join(f'"{example}"' for example in examples))
        self.examples = examples


class Duration(NamedTuple):
    """Days that end at the same clock time as they began, and then exact seconds."""

    days: int
    seconds: int

    def add_to(self, start: datetime, zone: tzinfo) -> datetime:
        """Return the end; a day that would end at a time which the clock skips ends at the jump."""
        end = self.shift(start, zone, 1)
        if dates.find_date_fault(end, zone):
            raise UnclearTimeError("is too far in the future", "2h", "1d")
        return end

    def shift(self, start: datetime, zone: tzinfo, sign: int) -> datetime:
        if self.days:
            start = find_first_wall_clock_moment(to_wall_clock(start, zone) + sign * timedelta(days=self.days), zone)
        return (start.astimezone(timezone.utc) + sign * timedelta(seconds=self.seconds)).astimezone(zone)


class ClockTime(NamedTuple):
    """A time of the day; 24:00 is its end, and the word midnight is either end."""

    hour: int
    minute: int = 0
    second: int = 0
    is_midnight: bool = False
    has_dot: bool = False

    def __str__(self) -> str:
        """Format as `18:00`, with seconds if there are any."""
        return f"{self.hour:02}:{self.minute:02}" + (f":{self.second:02}" if self.second else "")

    def on_day(self, day: date) -> datetime:
        """Return what the wall clock shows on that day at that time."""
        try:
            return datetime.combine(day, time()) + timedelta(hours=self.hour, minutes=self.minute, seconds=self.second)
        except OverflowError:
            raise UnclearTimeError("is too far in the future", *CLOCK_EXAMPLES) from None

    def check_dot(self) -> None:
        """Refuse `3.12` without a day beside it: it could be a date."""
        if self.has_dot and 1 <= self.hour <= 31 and 1 <= self.minute <= 12:
            date_too = f"{self.hour} {MONTH_NAMES[self.minute - 1]}"
            raise UnclearTimeError(f"could be the time {self} or the day {date_too}", str(self), f"{date_too} 18:00")


class TimeContext(NamedTuple):
    """How to read a text: `base` is from when on `the next` counts, `is_end` if it is the end of a period."""

    now: datetime
    base: datetime
    is_end: bool
    zone: tzinfo
    is_about_past: bool = False

    def has_come(self, moment: datetime) -> bool:
        """Compare timestamps: within one zone Python compares wall clocks, which may show a time twice."""
        return moment.timestamp() <= self.now.timestamp()

    def today(self) -> date:
        return to_wall_clock(self.now, self.zone).date()

    def base_day(self) -> date:
        return to_wall_clock(self.base, self.zone).date()

    def examples(self) -> tuple[str, str]:
        """Return texts that are always clear."""
        if self.is_about_past:
            return "7d", str(self.today() - ONE_WEEK)
        return "2h", f"{self.today() + ONE_WEEK} 18:00"

    def example_clock(self, clock: ClockTime | None) -> str:
        """Return the clock time for an example: that of the text, else the likely edge of the day."""
        return ("24:00" if self.is_end else "00:00") if clock is None or clock.is_midnight else str(clock)


def parse_duration(text: str) -> Duration:
    """Parse the value of `--for`."""
    text = normalize_time_text(text, "2h", "1d")
    if duration := try_parse_duration(text):
        return duration
    if BARE_NUMBER.fullmatch(text) and int(text):
        raise UnclearTimeError("has no unit", f"{int(text)}h", f"{int(text)}d")
    raise UnclearTimeError("is not a duration", "2h", "1d 12h")


def parse_moment(text: str, now: datetime, *, start: datetime | None = None, end: bool = False) -> datetime:
    """Parse a moment; an end must come after its `start`, from where a duration counts."""
    base = start if end and start else now
    context = TimeContext(now, max(now, base, key=datetime.timestamp), end, now.tzinfo or timezone.utc)
    text = ISO_DATE_T.sub(r"\1 ", normalize_time_text(text, *context.examples()))
    if text.lower() == "now":
        return check_moment(now, context)
    if duration := try_parse_duration(text):
        return check_moment(duration.add_to(base, context.zone), context)
    day, clock = split_clock_time(text)
    if clock and not day:  # the next to come
        clock.check_dot()
        clock = clock._replace(is_midnight=False)  # without a day, it can only be the next
        next_day = context.base_day()
        if not is_moment_ahead(next_day, clock, context):
            next_day += timedelta(days=1)
        return check_moment(resolve_moment_day(next_day, clock, context), context)
    moment = (
        parse_moment_on_near_day(day, clock, context)
        or parse_moment_on_weekday(day, clock, context)
        or parse_moment_on_yearly_day(day, clock, context)
        or parse_moment_on_full_date(day, clock, context)
    )
    return check_moment(moment, context)


def parse_past_moment(text: str, now: datetime, *, end: bool = False) -> datetime:
    """Parse a moment that is not after `now`; a duration counts back from there."""
    context = TimeContext(now, now, end, now.tzinfo or timezone.utc, is_about_past=True)
    text = ISO_DATE_T.sub(r"\1 ", normalize_time_text(text, *context.examples()))
    text = text[: -len(AGO_SUFFIX)] if text.lower().endswith(AGO_SUFFIX) else text
    if text.lower() == "now":
        return check_moment(now, context)
    if duration := try_parse_duration(text.lstrip("-")):
        if text.lower().startswith(("+", "in ")):
            raise UnclearTimeError("has not come yet", *context.examples())
        # a day ago is at the same clock time
        return check_moment(duration.shift(now, context.zone, -1), context)
    day, clock = split_clock_time(text)
    moment = parse_past_moment_day(day, clock, context) or parse_moment_on_full_date(day, clock, context)
    if context.has_come(moment):
        return check_moment(moment, context)
    if not end:
        raise UnclearTimeError("has not come yet", *context.examples())
    midnight = resolve_moment_clock(ClockTime(24).on_day(context.today()), context.zone)
    if (clock is None or clock.is_midnight) and moment == midnight:
        raise UnclearTimeError("could be the beginning of that day or this moment", f"{context.today()} 00:00", "now")
    return check_moment(now, context)


def describe_moment_in_full(moment: datetime, now: datetime) -> str:
    """Format as `Fri 20 Nov 18:00`, with another year, and with the offset if the clock shows it twice."""
    zone = now.tzinfo or timezone.utc
    local = moment.astimezone(zone)
    year = "" if local.year == now.year else f" {local.year}"
    twice = len(find_wall_clock_moments(local.replace(tzinfo=None, fold=0), zone)) > 1
    offset = f" ({local.isoformat()[-6:]})" if twice else ""
    return f"{format_weekday_date(local)}{year} {local.hour:02}:{local.minute:02}{offset}"


def check_moment(moment: datetime, context: TimeContext) -> datetime:
    """Refuse a moment that is out of bounds, however it was written."""
    if fault := dates.find_date_fault(moment, context.zone):
        raise UnclearTimeError(fault.partition(":")[0], *context.examples())
    return moment


def normalize_time_text(text: str, *examples: str) -> str:
    """Return the text with single blanks; refuse what cannot be a time."""
    text = text.strip()
    if not text:
        raise UnclearTimeError("is empty", *examples)
    if len(text) > 100:
        raise UnclearTimeError("is too long for a time", *examples)
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise UnclearTimeError("contains control characters", *examples)
    text = " ".join(text.replace(", ", " ").rstrip(",").split())  # blanks of any kind, as in pasted text
    if not text.isascii() or not text:
        raise UnclearTimeError("contains characters that no time has", *examples)
    return text


def try_parse_duration(text: str) -> Duration | None:
    """Parse a normalized text as a duration; None if it is something else."""
    match = DURATION_PATTERN.fullmatch(text.lstrip("-").lower())
    if not match:
        return None
    if text.startswith("-"):
        raise UnclearTimeError("is in the past", "2h", "1d")
    amounts: Counter[str] = Counter()  # in thousandths of the unit: exact, unlike floats
    for whole, fraction, word in DURATION_PARTS.findall(match[1].lower()):
        unit = word[0]
        if unit == "y" or word.startswith("mo"):
            raise UnclearTimeError("has a unit of varying length", "4w", "30d")
        if unit in amounts:
            raise UnclearTimeError("names a unit twice", "2h", "1d 12h")
        amounts[unit] = int(whole + fraction.ljust(3, "0"))
    if match[2]:  # the 30 of 1h30
        if "m" in amounts:
            raise UnclearTimeError("names a unit twice", "1h30", "1h 30m")
        amounts["m"] = int(match[2]) * 1000
    days, day_fraction = divmod(amounts["w"] * 7 + amounts["d"], 1000)
    seconds = (day_fraction * DAY + amounts["h"] * HOUR + amounts["m"] * MINUTE) // 1000
    if not days and not seconds:
        raise UnclearTimeError("is zero", "2h", "1d")
    if days + seconds // DAY > MAX_DAYS:
        raise UnclearTimeError("is more than ten years", "2h", "1d")
    return Duration(days, seconds)


def split_clock_time(text: str) -> tuple[str, ClockTime | None]:
    """Split a text into day and clock time, which may stand at either end."""
    match = CLOCK_AT_END.search(text) or CLOCK_AT_START.match(text)
    if not match:
        return text, None
    day = (text[: match.start()] + text[match.end() :]).strip()
    if match["word"]:
        return day, ClockTime(12) if match["word"].lower() == "noon" else ClockTime(0, is_midnight=True)
    hour, minute = int(match["hour"]), int(match["minute"] or match["h_minute"] or 0)
    second, am_or_pm = int(match["second"] or 0), (match["half"] or match["only_half"] or "").lower()
    is_valid = (hour, minute, second) <= (24, 0, 0) and minute <= 59 and second <= 59
    if am_or_pm:
        is_valid = is_valid and 1 <= hour <= 12
        hour = hour % 12 + (12 if am_or_pm[0] == "p" else 0)
    if not is_valid:
        raise UnclearTimeError("is not a time of day", *CLOCK_EXAMPLES)
    return day, ClockTime(hour, minute, second, has_dot=match["dot"] == "." and not am_or_pm)


def parse_moment_on_near_day(day: str, clock: ClockTime | None, context: TimeContext) -> datetime | None:
    """Parse `today`, `tonight` or `tomorrow`."""
    name, today = day.lower(), context.today()
    if name == "today":
        if not clock and not context.is_end:
            raise UnclearTimeError("could be from now on or the whole day", "now", "today 00:00")
        return resolve_moment_day(today, clock, context, name)
    if name == "tonight":
        if not clock:
            raise UnclearTimeError("has no time of day", "today 20:00", "today 24:00")
        if not clock.is_midnight and clock.hour < 17:
            raise UnclearTimeError("could be today or tomorrow", f"today {clock}", f"tomorrow {clock}")
        return resolve_moment_day(today, ClockTime(24) if clock.is_midnight else clock, context)
    return resolve_moment_day(today + timedelta(days=1), clock, context, name) if name == "tomorrow" else None


def parse_moment_on_weekday(text: str, clock: ClockTime | None, context: TimeContext) -> datetime | None:
    """Parse a weekday: the next to come, or today if the time is still ahead."""
    match = DAY_NAME.fullmatch(text)
    weekday = WEEKDAY_NUMBERS.get(match[2].lower()) if match else None
    if not match or weekday is None:
        return None
    if clock:
        clock.check_dot()
    if (match[1] or "").lower() == "next":  # the coming one or the one after; on a Friday, `next fri` is the latter
        coming = context.today() + timedelta(days=(weekday - context.today().weekday()) % 7)
        later = coming + ONE_WEEK
        if coming == context.today():
            return resolve_moment_day(later, clock, context)
        reason = f"could be {format_weekday_date(coming)} or {format_weekday_date(later)}"
        raise UnclearTimeError(reason, *(f"{day} {context.example_clock(clock)}" for day in (coming, later)))
    day = context.base_day()
    day += timedelta(days=(weekday - day.weekday()) % 7)
    if clock and not clock.is_midnight:
        return resolve_moment_day(day if is_moment_ahead(day, clock, context) else day + ONE_WEEK, clock, context)
    if day == context.base_day():
        reason = f"could be {format_weekday_date(day)} or {format_weekday_date(day + ONE_WEEK)}"
        first_example = f"{day} 24:00" if context.is_end else "now"
        raise UnclearTimeError(reason, first_example, f"{day + ONE_WEEK} {context.example_clock(clock)}")
    return resolve_moment_day(day, clock, context)


def parse_moment_on_yearly_day(text: str, clock: ClockTime | None, context: TimeContext) -> datetime | None:
    """Parse `20 Nov` or `Nov 20`, with a weekday or without: the next to come; refuse `3/4`."""
    date_text, weekday = split_moment_weekday(text)
    if numeric := NUMERIC_DAY.fullmatch(date_text):
        first, second = int(numeric[1]), int(numeric[2])
        days = [
            day
            for number, month in dict.fromkeys(((first, second), (second, first)))
            if 1 <= month <= 12
            for day in list_yearly_moment_days(number, month, context.base_day())[:1]
        ]
        if not days:
            raise UnclearTimeError("is not a date of any year", *context.examples())
        either = "could be " + " or ".join(map(format_weekday_date, days))
        reason = either if len(days) > 1 else "has no month name"
        raise UnclearTimeError(reason, *(f"{day} {context.example_clock(clock)}" for day in days))
    match = DAY_MONTH.fullmatch(date_text) or MONTH_DAY.fullmatch(date_text)
    month = MONTH_NUMBERS.get(match["name"].lower()) if match else None
    if not match or not month:
        return None
    number, today = int(match["number"]), context.today()
    days = list_yearly_moment_days(number, month, context.base_day())
    if clock and not clock.is_midnight:
        days = [day for day in days if is_moment_ahead(day, clock, context)]
    if not days:
        raise UnclearTimeError("is not a date of any year", *context.examples())
    check_moment_weekday(days[0], weekday, clock, context)
    if (today.month, today.day) == (month, number) and (days[0] != today or not (clock or context.is_end)):
        later_day = days[0] if days[0] != today else days[1]
        reason = f"could be today or {format_weekday_date(later_day)} {later_day.year}"
        first_example = f"today {clock}" if clock and not clock.is_midnight else "now"
        raise UnclearTimeError(reason, first_example, f"{later_day} {context.example_clock(clock)}")
    return resolve_moment_day(days[0], clock, context)


def list_yearly_moment_days(number: int, month: int, first: date) -> list[date]:
    """List that day in the years from `first` on; eight years may pass between two leap days."""
    days = []
    for year in range(first.year, first.year + 17):
        with suppress(ValueError):
            days.append(date(year, month, number))
    return [day for day in days if day >= first]


def parse_moment_on_full_date(text: str, clock: ClockTime | None, context: TimeContext) -> datetime:
    """Parse a date with its year, in any form that is clear."""
    date_text, weekday = split_moment_weekday(text)
    if not YEAR.search(date_text) or (clock and HAS_CLOCK.search(date_text)):
        raise build_unknown_time_error(text, clock, context)
    moment, reason = dates.parse_date(date_text, context.zone)
    if moment is None and clock and not clock.is_midnight:
        # dateutil understands a zone only after the time
        moment, _ = dates.parse_date(f"{clock} {date_text}", context.zone)
    if moment is None:
        fault = reason.partition(":")[0]
        if candidates := ISO_DAY.findall(reason):
            raise UnclearTimeError(fault, *(f"{day} {context.example_clock(clock)}" for day in candidates))
        if reason in {dates.OUT_OF_RANGE, dates.BAD_OFFSET} or "zone" in reason:
            raise UnclearTimeError(fault, *context.examples())
        raise build_unknown_time_error(text, clock, context)
    wall_clock = moment.replace(tzinfo=None)
    check_moment_weekday(wall_clock.date(), weekday, clock, context)
    if moment.tzinfo is not context.zone:
        moment_with_clock = clock.on_day(wall_clock.date()).replace(tzinfo=moment.tzinfo) if clock else moment
        return moment_with_clock.astimezone(context.zone)
    if clock is None and (HAS_CLOCK.search(date_text) or wall_clock.time() != datetime.min.time()):
        return resolve_moment_clock(wall_clock, context.zone)
    return resolve_moment_day(wall_clock.date(), clock, context)


def split_moment_weekday(text: str) -> tuple[str, int | None]:
    """Split a date into the text without a weekday, and the weekday."""
    date_words, weekdays = [], []
    for word in text.split():
        name = word.lower().rstrip(".")
        if name in WEEKDAY_NUMBERS:
            weekdays.append(WEEKDAY_NUMBERS[name])
        elif word.lower() != "on":
            date_words.append(word)
    return (" ".join(date_words), weekdays[0]) if len(weekdays) == 1 else (text, None)


def check_moment_weekday(day: date, weekday: int | None, clock: ClockTime | None, context: TimeContext) -> None:
    """Refuse a date that falls on another weekday than it says."""
    if weekday is not None and day.weekday() != weekday:
        coming_day = context.base_day() + timedelta(days=1)
        coming_day += timedelta(days=(weekday - coming_day.weekday()) % 7)
        clock_text = context.example_clock(clock)
        date_text = f"{day.day} {MONTH_NAMES[day.month - 1]} {day.year}"
        reason = f"says {DAY_NAMES[weekday]}, but {date_text} is a {DAY_NAMES[day.weekday()]}"
        raise UnclearTimeError(reason, f"{day} {clock_text}", f"{coming_day} {clock_text}")


def build_unknown_time_error(text: str, clock: ClockTime | None, context: TimeContext) -> UnclearTimeError:
    """Explain a text that no parser understands; a number alone is the commonest."""
    last_word = text.rsplit(maxsplit=1)[-1] if text else ""
    hour = int(last_word) if last_word.isdigit() and len(last_word) < 3 else None
    if hour is None or clock:
        return UnclearTimeError("is not understood", *context.examples())
    if last_word != text:
        reason = f"has the number {hour}, which could be an hour, a day or a year"
        return UnclearTimeError(reason, *context.examples())
    if hour > 24:
        return UnclearTimeError("has no unit", f"{hour}m", f"{hour}h")
    examples = (f"{hour}:00", f"{hour}h") if hour else ("0:00",)
    return UnclearTimeError("could be an hour of the day or a number of hours" if hour else "has no unit", *examples)


def parse_past_moment_day(day: str, clock: ClockTime | None, context: TimeContext) -> datetime | None:
    """Parse `today`, `yesterday` or a weekday, which is the last of that name; a clock time alone is today's."""
    name, today = day.lower(), context.today()
    if name in {"", "today"}:
        return resolve_moment_day(today, clock, context, name) if clock or name else None
    if name == "yesterday":
        return resolve_moment_day(today - timedelta(days=1), clock, context, name)
    match = DAY_NAME.fullmatch(day)
    weekday = WEEKDAY_NUMBERS.get(match[2].lower()) if match and not match[1] else None
    if weekday is None:
        return None
    last = today - timedelta(days=(today.weekday() - weekday) % 7)
    moment = resolve_moment_day(last, clock, context, str(last))
    if context.has_come(moment) or (context.is_end and (clock is None or clock.is_midnight)):
        return moment
    return resolve_moment_day(last - ONE_WEEK, clock, context, str(last - ONE_WEEK))


def resolve_moment_day(day: date, clock: ClockTime | None, context: TimeContext, name: str = "") -> datetime:
    """Return that day at that time; without a time its beginning, but an end may also mean the end of the day."""
    if clock and not clock.is_midnight:
        return resolve_moment_clock(clock.on_day(day), context.zone)
    if context.is_end and day == context.today():  # its beginning has passed
        return resolve_moment_clock(ClockTime(24).on_day(day), context.zone)
    if clock or context.is_end:
        name = name or str(day)
        raise UnclearTimeError("could be the beginning or the end of that day", f"{name} 00:00", f"{name} 24:00")
    return resolve_moment_clock(ClockTime(0).on_day(day), context.zone)


def resolve_moment_clock(wall_clock: datetime, zone: tzinfo) -> datetime:
    """Return the moment when the clock shows this; refuse none or two, except for the beginning of a day."""
    if not dates.is_accepted_year(wall_clock.year):
        raise UnclearTimeError(dates.OUT_OF_RANGE, "2h", "2d")
    if wall_clock.time() == datetime.min.time():
        return find_first_wall_clock_moment(wall_clock, zone)
    moments = find_wall_clock_moments(wall_clock, zone)
    if not moments:
        jump = find_clock_change_moment(wall_clock, zone)
        second = timedelta(seconds=1)
        before = to_wall_clock(jump.astimezone(timezone.utc) - second, zone) + second  # what it would show
        hours = f"from {before:%H:%M} to {jump:%H:%M}"
        raise UnclearTimeError(f"does not exist, because the clocks jump {hours} on that day", f"{jump:%Y-%m-%d %H:%M}")
    if len(moments) > 1:
        exact = (moment.isoformat(timespec="seconds" if wall_clock.second else "minutes") for moment in moments)
        raise UnclearTimeError("occurs twice, because the clocks are set back on that day", *exact)
    return moments[0]


def to_wall_clock(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def find_wall_clock_moments(wall_clock: datetime, zone: tzinfo) -> list[datetime]:
    """Return the moments at which the wall clock shows this: one, or in the nights when it jumps none or two."""
    first, second = wall_clock.replace(tzinfo=zone, fold=0), wall_clock.replace(tzinfo=zone, fold=1)
    if to_wall_clock(first.astimezone(timezone.utc), zone) != wall_clock:
        return []
    return [first] if first.utcoffset() == second.utcoffset() else [first, second]


def find_first_wall_clock_moment(wall_clock: datetime, zone: tzinfo) -> datetime:
    """Return the first moment at which the wall clock shows this or, where it skips it, later."""
    moments = find_wall_clock_moments(wall_clock, zone)
    return moments[0] if moments else find_clock_change_moment(wall_clock, zone)


def find_clock_change_moment(wall_clock: datetime, zone: tzinfo) -> datetime:
    """Return the moment at which the wall clock skips a time that it never shows."""
    as_utc = wall_clock.replace(tzinfo=timezone.utc, microsecond=0)
    # no zone is more than a day from UTC, and none jumps by more than a day
    low, high = as_utc - 2 * ONE_DAY, as_utc + 2 * ONE_DAY
    while high - low > ONE_SECOND:
        middle = low + (high - low) // 2 // ONE_SECOND * ONE_SECOND
        low, high = (low, middle) if to_wall_clock(middle, zone) > wall_clock else (middle, high)
    return high.astimezone(zone)


def is_moment_ahead(day: date, clock: ClockTime, context: TimeContext) -> bool:
    """Return True if the clock will show this after the base, even for the second time."""
    wall_clock = clock.on_day(day)
    second = wall_clock.replace(tzinfo=context.zone, fold=1)
    return wall_clock > to_wall_clock(context.base, context.zone) or second.timestamp() > context.base.timestamp()
