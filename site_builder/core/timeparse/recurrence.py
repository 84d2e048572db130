"""How a booking repeats, as people say it: `daily`, `mon,wed`, `weekdays`; to a rule and back to words."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo

from site_builder.core import formatting
from site_builder.core.formatting import DAYS, MONTHS
from site_builder.core.timeparse import dates, rrules
from site_builder.core.timeparse.durations import Unclear
from site_builder.core.timeparse.moments import WEEKDAYS

CODES = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
OFTEN = {"day": "DAILY", "week": "WEEKLY", "month": "MONTHLY", "year": "YEARLY"}
OFTEN |= {"daily": "DAILY", "weekly": "WEEKLY", "monthly": "MONTHLY", "yearly": "YEARLY"}
GROUPS = {"weekday": CODES[:5], "workday": CODES[:5], "weekend": CODES[5:]}
RANGE = re.compile(r"([a-z]+)-([a-z]+)")
DAY = re.compile(r"([+-]?\d)?([A-Z]{2})")
UNITS = {"DAILY": "day", "WEEKLY": "week", "MONTHLY": "month", "YEARLY": "year"}
ENDS = {"1": "st", "2": "nd", "3": "rd"}


def rule_of(text: str, last: datetime | None = None, zone: tzinfo = timezone.utc) -> str:
    """The rule that a text says, of which the last time begins by then."""
    found = raw(text, zone) if "=" in text else plain(text)
    if last is None:
        return found
    if re.search(r"\b(?:UNTIL|COUNT)=", found):
        raise Unclear("says itself how long it repeats", text.partition(";")[0])
    return f"{found};UNTIL={last.astimezone(timezone.utc):{dates.STAMP}}"


def raw(text: str, zone: tzinfo) -> str:
    """A rule of iCalendar, as it is."""
    found, why = rrules.read(text, zone)
    if why:
        raise Unclear(why.partition(":")[0], "FREQ=WEEKLY;BYDAY=TU")
    return found


def plain(text: str) -> str:
    """A rule in words."""
    told = re.sub(r"^every |\band\b|[,&+]", " ", text.strip().lower()).split()
    if len(told) == 1 and told[0] in OFTEN:
        return f"FREQ={OFTEN[told[0]]}"
    days = [code for word in told for code in days_of(word)]
    if not days:
        raise unknown()
    return f"FREQ=WEEKLY;BYDAY={','.join(code for code in CODES if code in days)}"


def days_of(word: str) -> tuple[str, ...]:
    """The days of the week that a word names."""
    if word.rstrip("s") in GROUPS:
        return GROUPS[word.rstrip("s")]
    several = RANGE.fullmatch(word)
    if several:
        at, to = (CODES.index(day_of(name)) for name in several.groups())
        return CODES[at : to + 1] if at <= to else CODES[at:] + CODES[: to + 1]
    return (day_of(word),)


def day_of(name: str) -> str:
    """One day of the week."""
    day = WEEKDAYS.get(name, WEEKDAYS.get(name.rstrip("s.")))
    if day is None:
        raise unknown()
    return CODES[day]


def unknown() -> Unclear:
    """What is said of a text that is no way to repeat."""
    return Unclear("is no way to repeat", "daily", "mon,wed")


def last_moment(found: datetime, zone: tzinfo) -> datetime:
    """Of a day the last moment: whoever says `until 30 June` means that day too."""
    local = found.astimezone(zone)
    if local.time() != datetime.min.time():
        return found
    return local + timedelta(days=1) - timedelta(seconds=1)


def said(rule: str, since: datetime, until: datetime, zone: tzinfo) -> str:
    """`every Tue 09:00 to 12:00 until 30 Jun 2027`."""
    return hours(rule, since, until, zone) + to_the_last(parts(rule), zone)


def hours(rule: str, since: datetime, until: datetime, zone: tzinfo) -> str:
    """`every Tue 09:00 to 12:00`."""
    begins, ends = since.astimezone(zone), until.astimezone(zone)
    length = until.timestamp() - since.timestamp()
    ending = f"to {ends:%H:%M}" if length <= formatting.DAY else f"for {formatting.duration(length)}"
    return f"{every(parts(rule), begins)} {begins:%H:%M} {ending}"


def parts(rule: str) -> dict[str, str]:
    """A rule by its parts."""
    return dict(part.partition("=")[::2] for part in rule.split(";"))


def every(told: dict[str, str], begins: datetime) -> str:
    """`every Mon, Wed`, `every 2nd week on Tue`, `every month on the 1st Tue`."""
    often = told.get("FREQ", "")
    count = told.get("INTERVAL", "1")
    unit = f"every {UNITS.get(often, often)}" if count == "1" else f"every {nth(count)} {UNITS.get(often, often)}"
    days = ", ".join(day_said(code) for code in told.get("BYDAY", "").split(",") if code)
    if often == "WEEKLY":
        days = days or DAYS[begins.weekday()]
        return f"every {days}" if count == "1" else f"{unit} on {days}"
    if days:
        return f"{unit} on {days}"
    if often == "MONTHLY":
        numbers = told.get("BYMONTHDAY", str(begins.day)).split(",")
        return f"{unit} on the {', '.join(map(nth, numbers))}"
    return f"{unit} on {begins.day} {MONTHS[begins.month - 1]}" if often == "YEARLY" else unit


def day_said(code: str) -> str:
    """`Tue`, `the 1st Tue`, `the last Tue`."""
    found = DAY.fullmatch(code)
    if not found or found[2] not in CODES:
        return code
    name = DAYS[CODES.index(found[2])]
    return f"the {nth(found[1].lstrip('+'))} {name}" if found[1] else name


def nth(number: str) -> str:
    """`1st`, `2nd`, `12th`; `last` and `2nd last`."""
    if number == "-1":
        return "last"
    if number.startswith("-"):
        return f"{nth(number[1:])} last"
    return number + ("th" if number[-2:-1] == "1" else ENDS.get(number[-1], "th"))


def to_the_last(told: dict[str, str], zone: tzinfo) -> str:
    """How long it repeats."""
    if "COUNT" in told:
        return f", {told['COUNT']} times"
    if "UNTIL" not in told:
        return ""
    found, _ = dates.stamp(told["UNTIL"], zone)
    if found is None:
        return ""
    last = found.astimezone(zone)
    return f" until {last.day} {MONTHS[last.month - 1]} {last.year}"
