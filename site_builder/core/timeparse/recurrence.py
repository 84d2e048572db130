"""Parse recurring bookings: `every weekday`, RRULE."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo

from site_builder.core import formatting
from site_builder.core.formatting import DAY_NAMES, MONTH_NAMES
from site_builder.core.timeparse import dates
from site_builder.core.timeparse.moments import WEEKDAY_NUMBERS, UnclearTimeError

RRULE_PARTS = {
    "FREQ": re.compile(r"DAILY|WEEKLY|MONTHLY|YEARLY"),
    "INTERVAL": re.compile(r"[1-9]\d{0,2}"),
    "COUNT": re.compile(r"[1-9]\d{0,4}"),
    "UNTIL": re.compile(r"\d{8}T\d{6}Z"),
    "WKST": re.compile(r"MO|SU"),
    "BYDAY": re.compile(r"([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)(,([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)){0,20}"),
    # every month has these, so that no rule waits for the 30th of February
    "BYMONTHDAY": re.compile(r"-?([1-9]|1\d|2[0-8])(,-?([1-9]|1\d|2[0-8])){0,30}"),
}


def parse_rrule(text: str, zone: tzinfo = timezone.utc) -> tuple[str, str]:
    """The rule, or why it does not count; the last day of it ends in `zone`."""
    rule = text.strip().upper()
    if rule.startswith("RRULE:"):
        rule = rule[6:]
    told = dict(part.partition("=")[::2] for part in rule.rstrip(";").split(";"))
    until = told.get("UNTIL")
    if until and "T" not in until:
        told["UNTIL"] = format_day_end(until, zone)
    if told.get("FREQ") == "DAILY" and "BYDAY" in told and told.get("INTERVAL", "1") == "1":
        told["FREQ"] = "WEEKLY"  # which says the same
    why = find_rrule_fault(told, zone)
    return ("", why) if why else (";".join(f"{key}={value}" for key, value in told.items()), "")


def format_day_end(day: str, zone: tzinfo) -> str:
    """The end of a day, where people are; one that is no day stays as it is."""
    try:
        last = datetime.strptime(f"{day}T235959", "%Y%m%dT%H%M%S").replace(tzinfo=zone)
        return f"{last.astimezone(timezone.utc):{dates.STAMP}}"
    except (ValueError, OverflowError):
        return f"{day}T235959Z"


def find_rrule_fault(told: dict[str, str], zone: tzinfo) -> str:
    """What is wrong with a rule, if anything."""
    if told.get("FREQ") in {"SECONDLY", "MINUTELY", "HOURLY"}:
        return "repeats too often: once a day at most"
    if "FREQ" not in told or not RRULE_PARTS["FREQ"].fullmatch(told["FREQ"]):
        return "cannot be understood: write FREQ=DAILY, WEEKLY, MONTHLY or YEARLY first"
    for key, value in told.items():
        if key not in RRULE_PARTS:
            return f"has {key[:20]}, but only {', '.join(RRULE_PARTS)} are understood"
        why = "" if RRULE_PARTS[key].fullmatch(value) else "cannot be understood"
        if key == "UNTIL" and not why:
            why = dates.stamp(value, zone)[1]
        if why:
            return f"has {key}={value[:40]}, which {why}"
    if "COUNT" in told and "UNTIL" in told:  # which iCalendar forbids, and programs that read our feeds refuse
        return "has COUNT and UNTIL: only one of them may say when it ends"
    return "would never, or hardly ever, come to its next time" if is_unsatisfiable(told) else ""


def is_unsatisfiable(told: dict[str, str]) -> bool:
    """Whether its parts may exclude each other: the search for the next time would go on to the year 9999."""
    days, month_days = told.get("BYDAY", ""), told.get("BYMONTHDAY", "")
    if told["FREQ"] in {"MONTHLY", "YEARLY"}:
        return bool(days and month_days)
    return bool(month_days or any(sign in days for sign in "1234") or (days and told["FREQ"] == "DAILY"))


DAY_CODES = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
FREQUENCIES = {"day": "DAILY", "week": "WEEKLY", "month": "MONTHLY", "year": "YEARLY"}
FREQUENCIES |= {"daily": "DAILY", "weekly": "WEEKLY", "monthly": "MONTHLY", "yearly": "YEARLY"}
DAY_GROUPS = {"weekday": DAY_CODES[:5], "workday": DAY_CODES[:5], "weekend": DAY_CODES[5:]}
DAY_RANGE = re.compile(r"([a-z]+)-([a-z]+)")
NUMBERED_DAY_CODE = re.compile(r"([+-]?\d)?([A-Z]{2})")
FREQUENCY_UNITS = {"DAILY": "day", "WEEKLY": "week", "MONTHLY": "month", "YEARLY": "year"}
ORDINAL_ENDINGS = {"1": "st", "2": "nd", "3": "rd"}


def parse_recurrence(text: str, last: datetime | None = None, zone: tzinfo = timezone.utc) -> str:
    """The rule that a text says, of which the last time begins by then."""
    found = parse_raw_rrule(text, zone) if "=" in text else parse_plain_recurrence(text)
    if last is None:
        return found
    if re.search(r"\b(?:UNTIL|COUNT)=", found):
        raise UnclearTimeError("says itself how long it repeats", text.partition(";")[0])
    return f"{found};UNTIL={last.astimezone(timezone.utc):{dates.STAMP}}"


def parse_raw_rrule(text: str, zone: tzinfo) -> str:
    """A rule of iCalendar, as it is."""
    found, why = parse_rrule(text, zone)
    if why:
        raise UnclearTimeError(why.partition(":")[0], "FREQ=WEEKLY;BYDAY=TU")
    return found


def parse_plain_recurrence(text: str) -> str:
    """A rule in words."""
    told = re.sub(r"^every |\band\b|[,&+]", " ", text.strip().lower()).split()
    if len(told) == 1 and told[0] in FREQUENCIES:
        return f"FREQ={FREQUENCIES[told[0]]}"
    days = [code for word in told for code in parse_weekday_codes(word)]
    if not days:
        raise build_recurrence_error()
    return f"FREQ=WEEKLY;BYDAY={','.join(code for code in DAY_CODES if code in days)}"


def parse_weekday_codes(word: str) -> tuple[str, ...]:
    """The days of the week that a word names."""
    if word.rstrip("s") in DAY_GROUPS:
        return DAY_GROUPS[word.rstrip("s")]
    several = DAY_RANGE.fullmatch(word)
    if several:
        at, to = (DAY_CODES.index(parse_weekday_code(name)) for name in several.groups())
        return DAY_CODES[at : to + 1] if at <= to else DAY_CODES[at:] + DAY_CODES[: to + 1]
    return (parse_weekday_code(word),)


def parse_weekday_code(name: str) -> str:
    """One day of the week."""
    day = WEEKDAY_NUMBERS.get(name, WEEKDAY_NUMBERS.get(name.rstrip("s.")))
    if day is None:
        raise build_recurrence_error()
    return DAY_CODES[day]


def build_recurrence_error() -> UnclearTimeError:
    """What is said of a text that is no way to repeat."""
    return UnclearTimeError("is no way to repeat", "daily", "mon,wed")


def extend_to_day_end(found: datetime, zone: tzinfo) -> datetime:
    """Of a day the last moment: whoever says `until 30 June` means that day too."""
    local = found.astimezone(zone)
    if local.time() != datetime.min.time():
        return found
    return local + timedelta(days=1) - timedelta(seconds=1)


def describe_recurrence(rule: str, since: datetime, until: datetime, zone: tzinfo) -> str:
    """`every Tue 09:00 to 12:00 until 30 Jun 2027`."""
    return describe_recurrence_hours(rule, since, until, zone) + describe_recurrence_end(split_rrule(rule), zone)


def describe_recurrence_hours(rule: str, since: datetime, until: datetime, zone: tzinfo) -> str:
    """`every Tue 09:00 to 12:00`."""
    begins, ends = since.astimezone(zone), until.astimezone(zone)
    length = until.timestamp() - since.timestamp()
    ending = f"to {ends:%H:%M}" if length <= formatting.DAY else f"for {formatting.format_duration(length)}"
    return f"{describe_frequency(split_rrule(rule), begins)} {begins:%H:%M} {ending}"


def split_rrule(rule: str) -> dict[str, str]:
    """A rule by its parts."""
    return dict(part.partition("=")[::2] for part in rule.split(";"))


def describe_frequency(told: dict[str, str], begins: datetime) -> str:
    """`every Mon, Wed`, `every 2nd week on Tue`, `every month on the 1st Tue`."""
    often = told.get("FREQ", "")
    count = told.get("INTERVAL", "1")
    unit = (
        f"every {FREQUENCY_UNITS.get(often, often)}"
        if count == "1"
        else f"every {format_ordinal(count)} {FREQUENCY_UNITS.get(often, often)}"
    )
    days = ", ".join(describe_weekday(code) for code in told.get("BYDAY", "").split(",") if code)
    if often == "WEEKLY":
        days = days or DAY_NAMES[begins.weekday()]
        return f"every {days}" if count == "1" else f"{unit} on {days}"
    if days:
        return f"{unit} on {days}"
    if often == "MONTHLY":
        numbers = told.get("BYMONTHDAY", str(begins.day)).split(",")
        return f"{unit} on the {', '.join(map(format_ordinal, numbers))}"
    return f"{unit} on {begins.day} {MONTH_NAMES[begins.month - 1]}" if often == "YEARLY" else unit


def describe_weekday(code: str) -> str:
    """`Tue`, `the 1st Tue`, `the last Tue`."""
    found = NUMBERED_DAY_CODE.fullmatch(code)
    if not found or found[2] not in DAY_CODES:
        return code
    name = DAY_NAMES[DAY_CODES.index(found[2])]
    return f"the {format_ordinal(found[1].lstrip('+'))} {name}" if found[1] else name


def format_ordinal(number: str) -> str:
    """`1st`, `2nd`, `12th`; `last` and `2nd last`."""
    if number == "-1":
        return "last"
    if number.startswith("-"):
        return f"{format_ordinal(number[1:])} last"
    return number + ("th" if number[-2:-1] == "1" else ORDINAL_ENDINGS.get(number[-1], "th"))


def describe_recurrence_end(told: dict[str, str], zone: tzinfo) -> str:
    """How long it repeats."""
    if "COUNT" in told:
        return f", {told['COUNT']} times"
    if "UNTIL" not in told:
        return ""
    found, _ = dates.stamp(told["UNTIL"], zone)
    if found is None:
        return ""
    last = found.astimezone(zone)
    return f" until {last.day} {MONTH_NAMES[last.month - 1]} {last.year}"
