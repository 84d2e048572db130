"""Parse, describe and list recurring bookings: `every weekday`, `mon,wed`, RRULE."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY_NAMES, MONTH_NAMES, format_ordinal
from site_builder.core.timeparse import dates
from site_builder.core.timeparse.moments import WEEKDAY_NUMBERS, UnclearTimeError

RRULE_PARTS = {
    "FREQ": re.compile(r"DAILY|WEEKLY|MONTHLY|YEARLY"),
    "INTERVAL": re.compile(r"[1-9]\d{0,2}"),
    "COUNT": re.compile(r"[1-9]\d{0,4}"),
    "UNTIL": re.compile(r"\d{8}T\d{6}Z"),
    "WKST": re.compile(r"MO|SU"),
    "BYDAY": re.compile(r"([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)(,([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)){0,20}"),
    # days that every month has, so that no rule waits for the 30th of February
    "BYMONTHDAY": re.compile(r"-?([1-9]|1\d|2[0-8])(,-?([1-9]|1\d|2[0-8])){0,30}"),
}
DAY_CODES = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
FREQUENCIES = {"day": "DAILY", "week": "WEEKLY", "month": "MONTHLY", "year": "YEARLY"}
FREQUENCIES |= {"daily": "DAILY", "weekly": "WEEKLY", "monthly": "MONTHLY", "yearly": "YEARLY"}
DAY_GROUPS = {"weekday": "mon-fri", "workday": "mon-fri", "weekend": "sat-sun"}
DAY_RANGE = re.compile(r"([a-z]+)-([a-z]+)")
NOT_RECURRING, RECURRENCE_EXAMPLES = "is not a valid repetition", ("daily", "mon,wed")
NUMBERED_DAY_CODE = re.compile(r"([+-]?\d)?([A-Z]{2})")
FREQUENCY_UNITS = {"DAILY": "day", "WEEKLY": "week", "MONTHLY": "month", "YEARLY": "year"}
# How many repeats of a rule are examined to find those of some days.
MAX_EXAMINED_REPEATS = 20_000
DAILY_OR_WEEKLY = re.compile(r"FREQ=(?:DAILY|WEEKLY)\b", re.IGNORECASE)
RRULE_INTERVAL = re.compile(r"INTERVAL=0*([1-9]\d{0,3})\b", re.IGNORECASE)


def parse_recurrence(text: str, last: datetime | None = None, zone: tzinfo = timezone.utc) -> str:
    """Return the RRULE that a text describes; no repetition begins after `last`."""
    if "=" in text:
        rule, fault = parse_recurrence_rule(text, zone)
        if fault:
            raise UnclearTimeError(fault.partition(":")[0], "FREQ=WEEKLY;BYDAY=TU")
    else:
        rule = parse_plain_recurrence(text)
    if last is None:
        return rule
    if re.search(r"\b(?:UNTIL|COUNT)=", rule):
        raise UnclearTimeError("already says how long it repeats", text.partition(";")[0])
    return f"{rule};UNTIL={last.astimezone(timezone.utc):{dates.ICALENDAR_FORMAT}}"


def parse_plain_recurrence(text: str) -> str:
    """Parse a rule in words: a frequency, or days such as `weekday`, `mon-fri`, `tue`."""
    words = re.sub(r"^every |\band\b|[,&+]", " ", text.strip().lower()).split()
    if len(words) == 1 and words[0] in FREQUENCIES:
        return f"FREQ={FREQUENCIES[words[0]]}"
    codes: set[str] = set()
    for word in words:
        days = DAY_GROUPS.get(word.rstrip("s"), word)
        day_range = DAY_RANGE.fullmatch(days)
        names = day_range.groups() if day_range else (days, days)
        first, last = (WEEKDAY_NUMBERS.get(name, WEEKDAY_NUMBERS.get(name.rstrip("s."))) for name in names)
        if first is None or last is None:
            raise UnclearTimeError(NOT_RECURRING, *RECURRENCE_EXAMPLES)
        codes.update(DAY_CODES[first : last + 1] if first <= last else DAY_CODES[first:] + DAY_CODES[: last + 1])
    if not codes:
        raise UnclearTimeError(NOT_RECURRING, *RECURRENCE_EXAMPLES)
    return f"FREQ=WEEKLY;BYDAY={','.join(code for code in DAY_CODES if code in codes)}"


def parse_recurrence_rule(text: str, zone: tzinfo = timezone.utc) -> tuple[str, str]:
    """Return the normalized rule, or why it is refused."""
    rule = text.strip().upper()
    if rule.startswith("RRULE:"):
        rule = rule[6:]
    parts = split_recurrence_rule(rule.rstrip(";"))
    until = parts.get("UNTIL")
    if until and "T" not in until:  # a day, which ends in `zone`
        parts["UNTIL"] = f"{until}T235959Z"
        with suppress(ValueError, OverflowError):
            last = datetime.strptime(f"{until}T235959", "%Y%m%dT%H%M%S").replace(tzinfo=zone)
            parts["UNTIL"] = f"{last.astimezone(timezone.utc):{dates.ICALENDAR_FORMAT}}"
    if parts.get("FREQ") == "DAILY" and "BYDAY" in parts and parts.get("INTERVAL", "1") == "1":
        parts["FREQ"] = "WEEKLY"  # the same rule, as other programs write it
    fault = find_recurrence_fault(parts, zone)
    return ("", fault) if fault else (";".join(f"{key}={value}" for key, value in parts.items()), "")


def split_recurrence_rule(rule: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in rule.split(";"))


def find_recurrence_fault(parts: dict[str, str], zone: tzinfo) -> str:
    frequency = parts.get("FREQ", "")
    if frequency in {"SECONDLY", "MINUTELY", "HOURLY"}:
        return "repeats too often: once a day at most"
    if not RRULE_PARTS["FREQ"].fullmatch(frequency):
        return "cannot be understood: write FREQ=DAILY, WEEKLY, MONTHLY or YEARLY first"
    for key, value in parts.items():
        if key not in RRULE_PARTS:
            return f"has {key[:20]}, but only {', '.join(RRULE_PARTS)} are supported"
        fault = "" if RRULE_PARTS[key].fullmatch(value) else "cannot be understood"
        if key == "UNTIL" and not fault:
            fault = dates.parse_icalendar_time(value, zone)[1]
        if fault:
            return f"has {key}={value[:40]}, which {fault}"
    if "COUNT" in parts and "UNTIL" in parts:  # iCalendar forbids it, and programs that read our feeds refuse it
        return "has both COUNT and UNTIL: use only one"
    # parts that exclude each other: the search for the next time would go on to the year 9999
    days, month_days = parts.get("BYDAY", ""), parts.get("BYMONTHDAY", "")
    if frequency in {"MONTHLY", "YEARLY"}:
        is_unsatisfiable = bool(days and month_days)
    else:
        has_numbered_day = any(digit in days for digit in "1234")
        is_unsatisfiable = bool(month_days or has_numbered_day or (days and frequency == "DAILY"))
    return "would never, or hardly ever, occur again" if is_unsatisfiable else ""


def extend_recurrence_to_day_end(moment: datetime, zone: tzinfo) -> datetime:
    """Return the last moment of the day if this is its midnight: `until 30 June` includes that day."""
    local = moment.astimezone(zone)
    return moment if local.time() != datetime.min.time() else local + timedelta(days=1) - timedelta(seconds=1)


def describe_recurrence(rule: str, since: datetime, until: datetime, zone: tzinfo) -> str:
    """Describe as `every Tue 09:00 to 12:00 until 30 Jun 2027`."""
    hours, parts = describe_recurrence_hours(rule, since, until, zone), split_recurrence_rule(rule)
    if "COUNT" in parts:
        return f"{hours}, {parts['COUNT']} times"
    moment, _ = dates.parse_icalendar_time(parts.get("UNTIL", ""), zone)
    if moment is None:
        return hours
    last = moment.astimezone(zone)
    return f"{hours} until {last.day} {MONTH_NAMES[last.month - 1]} {last.year}"


def describe_recurrence_hours(rule: str, since: datetime, until: datetime, zone: tzinfo) -> str:
    """Describe as `every Tue 09:00 to 12:00`."""
    start, end = since.astimezone(zone), until.astimezone(zone)
    duration_s = until.timestamp() - since.timestamp()
    ending = f"to {end:%H:%M}" if duration_s <= formatting.DAY else f"for {formatting.format_duration(duration_s)}"
    return f"{describe_recurrence_days(split_recurrence_rule(rule), start)} {start:%H:%M} {ending}"


def describe_recurrence_days(parts: dict[str, str], start: datetime) -> str:
    """Describe as `every Mon, Wed`, `every 2nd week on Tue` or `every month on the 1st Tue`."""
    frequency = parts.get("FREQ", "")
    interval = parts.get("INTERVAL", "1")
    ordinal = "" if interval == "1" else f"{format_ordinal(interval)} "
    unit = f"every {ordinal}{FREQUENCY_UNITS.get(frequency, frequency)}"
    days = ", ".join(describe_recurrence_weekday(code) for code in parts.get("BYDAY", "").split(",") if code)
    if frequency == "WEEKLY":
        days = days or DAY_NAMES[start.weekday()]
        return f"every {days}" if interval == "1" else f"{unit} on {days}"
    if days:
        return f"{unit} on {days}"
    if frequency == "MONTHLY":
        numbers = parts.get("BYMONTHDAY", str(start.day)).split(",")
        return f"{unit} on the {', '.join(map(format_ordinal, numbers))}"
    return f"{unit} on {start.day} {MONTH_NAMES[start.month - 1]}" if frequency == "YEARLY" else unit


def describe_recurrence_weekday(code: str) -> str:
    """Describe as `Tue`, `the 1st Tue` or `the last Tue`."""
    match = NUMBERED_DAY_CODE.fullmatch(code)
    if not match or match[2] not in DAY_CODES:
        return code
    name = DAY_NAMES[DAY_CODES.index(match[2])]
    return f"the {format_ordinal(match[1].lstrip('+'))} {name}" if match[1] else name


# The same for each GPU and each build of a day.
@lru_cache(maxsize=4096)
def list_repeat_starts(rule: str, since: datetime, first: datetime, last: datetime) -> tuple[datetime, ...] | None:
    """Return the starts between two days of a booking that repeats; None where its rule is impossible."""
    from dateutil.rrule import rrulestr  # noqa: PLC0415 # slow to import, and rarely needed

    try:
        repeats = rrulestr(rule, dtstart=advance_recurrence(since, rule, first))
    except ValueError:  # one that repeats until the 32nd, say
        return None
    examined = islice(repeats, MAX_EXAMINED_REPEATS)
    starts = takewhile(lambda start: start < last and dates.is_accepted_year(start.year), examined)
    return tuple(start for start in starts if start >= first)


def advance_recurrence(since: datetime, rule: str, first: datetime, periods_before: int = 0) -> datetime:
    """Return a later start of the same repeats, near `first`: to count the days of years would take long."""
    interval = RRULE_INTERVAL.search(rule)
    period = timedelta(weeks=int(interval[1]) if interval else 1)
    first -= periods_before * period
    if since >= first or not DAILY_OR_WEEKLY.search(rule) or "COUNT" in rule.upper():
        return since
    return since + (first - since) // period * period


def end_recurrence_rule(rrule: str, now: Now) -> str:
    """Return a rule that gives no more times from now on."""
    parts = [part for part in rrule.split(";") if not part.startswith(("COUNT=", "UNTIL="))]
    until = datetime.fromtimestamp(now.epoch, timezone.utc)
    return ";".join([*parts, f"UNTIL={until:{dates.ICALENDAR_FORMAT}}"])


class RecurrenceBounds(NamedTuple):
    """The first and last time that a rule gives; with no first it gives none, with no last it goes on."""

    first: datetime | None
    last: datetime | None


@lru_cache(maxsize=4096)
def compute_recurrence_bounds(rule: str, since: datetime) -> RecurrenceBounds | None:
    """Return the bounds of a rule, which a calendar program follows from the first time that it gives."""
    from dateutil.rrule import rrulestr  # noqa: PLC0415 # slow to import, and rarely needed

    try:
        first = next(iter(rrulestr(rule, dtstart=since)), None)
        if "COUNT=" not in rule and "UNTIL=" not in rule:
            return RecurrenceBounds(first, None)
        end, _ = dates.parse_icalendar_time(split_recurrence_rule(rule).get("UNTIL", ""), since.tzinfo or timezone.utc)
        # start shortly before it, so that the last time is soon found: two periods have at least one
        start = advance_recurrence(since, rule, end, periods_before=2) if end else since
        repeats = iter(rrulestr(rule, dtstart=start))
    except ValueError:  # one that repeats until the 32nd, say
        return None
    examined, last = 0, first
    for examined, last in enumerate(islice(repeats, MAX_EXAMINED_REPEATS), 1):  # noqa: B007
        if not dates.is_accepted_year(last.year):
            return RecurrenceBounds(first, None)
    return RecurrenceBounds(first, None if examined == MAX_EXAMINED_REPEATS else last)
