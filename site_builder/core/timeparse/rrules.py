"""How a booking repeats: the part of iCalendar's RRULE that always comes to its next time, and soon."""

from __future__ import annotations

import re
from datetime import datetime, timezone, tzinfo

from site_builder.core.timeparse import dates

PARTS = {
    "FREQ": re.compile(r"DAILY|WEEKLY|MONTHLY|YEARLY"),
    "INTERVAL": re.compile(r"[1-9]\d{0,2}"),
    "COUNT": re.compile(r"[1-9]\d{0,4}"),
    "UNTIL": re.compile(r"\d{8}T\d{6}Z"),
    "WKST": re.compile(r"MO|SU"),
    "BYDAY": re.compile(r"([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)(,([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)){0,20}"),
    # every month has these, so that no rule waits for the 30th of February
    "BYMONTHDAY": re.compile(r"-?([1-9]|1\d|2[0-8])(,-?([1-9]|1\d|2[0-8])){0,30}"),
}


def read(text: str, zone: tzinfo = timezone.utc) -> tuple[str, str]:
    """The rule, or why it does not count; the last day of it ends in `zone`."""
    rule = text.strip().upper()
    if rule.startswith("RRULE:"):
        rule = rule[6:]
    told = dict(part.partition("=")[::2] for part in rule.rstrip(";").split(";"))
    until = told.get("UNTIL")
    if until and "T" not in until:
        told["UNTIL"] = end_of(until, zone)
    if told.get("FREQ") == "DAILY" and "BYDAY" in told and told.get("INTERVAL", "1") == "1":
        told["FREQ"] = "WEEKLY"  # which says the same
    why = fault(told, zone)
    return ("", why) if why else (";".join(f"{key}={value}" for key, value in told.items()), "")


def end_of(day: str, zone: tzinfo) -> str:
    """The end of a day, where people are; one that is no day stays as it is."""
    try:
        last = datetime.strptime(f"{day}T235959", "%Y%m%dT%H%M%S").replace(tzinfo=zone)
        return f"{last.astimezone(timezone.utc):{dates.STAMP}}"
    except (ValueError, OverflowError):
        return f"{day}T235959Z"


def fault(told: dict[str, str], zone: tzinfo) -> str:
    """What is wrong with a rule, if anything."""
    if told.get("FREQ") in {"SECONDLY", "MINUTELY", "HOURLY"}:
        return "repeats too often: once a day at most"
    if "FREQ" not in told or not PARTS["FREQ"].fullmatch(told["FREQ"]):
        return "cannot be understood: write FREQ=DAILY, WEEKLY, MONTHLY or YEARLY first"
    for key, value in told.items():
        if key not in PARTS:
            return f"has {key[:20]}, but only {', '.join(PARTS)} are understood"
        why = "" if PARTS[key].fullmatch(value) else "cannot be understood"
        if key == "UNTIL" and not why:
            why = dates.stamp(value, zone)[1]
        if why:
            return f"has {key}={value[:40]}, which {why}"
    if "COUNT" in told and "UNTIL" in told:  # which iCalendar forbids, and programs that read our feeds refuse
        return "has COUNT and UNTIL: only one of them may say when it ends"
    return "would never, or hardly ever, come to its next time" if never(told) else ""


def never(told: dict[str, str]) -> bool:
    """Whether its parts may exclude each other: the search for the next time would go on to the year 9999."""
    days, month_days = told.get("BYDAY", ""), told.get("BYMONTHDAY", "")
    if told["FREQ"] in {"MONTHLY", "YEARLY"}:
        return bool(days and month_days)
    return bool(month_days or any(sign in days for sign in "1234") or (days and told["FREQ"] == "DAILY"))
