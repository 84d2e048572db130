"""How a booking repeats: the part of iCalendar's RRULE that always comes to its next time, and soon."""

from __future__ import annotations

import re

PARTS = {
    "FREQ": re.compile(r"DAILY|WEEKLY|MONTHLY|YEARLY"),
    "INTERVAL": re.compile(r"[1-9]\d{0,2}"),
    "COUNT": re.compile(r"[1-9]\d{0,4}"),
    "UNTIL": re.compile(r"\d{8}(T\d{6}Z)?"),
    "WKST": re.compile(r"MO|SU"),
    "BYDAY": re.compile(r"([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)(,([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)){0,20}"),
    # every month has these, so that no rule waits for the 30th of February
    "BYMONTHDAY": re.compile(r"-?([1-9]|1\d|2[0-8])(,-?([1-9]|1\d|2[0-8])){0,30}"),
}


def read(text: str) -> tuple[str, str]:
    """The rule, or why it does not count."""
    rule = text.strip().upper()
    if rule.startswith("RRULE:"):
        rule = rule[6:]
    told = dict(part.partition("=")[::2] for part in rule.rstrip(";").split(";"))
    if told.get("FREQ") in {"SECONDLY", "MINUTELY", "HOURLY"}:
        return "", "repeats too often: once a day at most"
    if "FREQ" not in told or not PARTS["FREQ"].fullmatch(told["FREQ"]):
        return "", "cannot be understood: write FREQ=DAILY, WEEKLY, MONTHLY or YEARLY first"
    for key, value in told.items():
        if key not in PARTS:
            return "", f"has {key[:20]}, but only {', '.join(PARTS)} are understood"
        if not PARTS[key].fullmatch(value):
            return "", f"has a {key} that cannot be understood"
    until = told.get("UNTIL")
    if until and "T" not in until:  # to the end of that day, wherever that is
        told["UNTIL"] = f"{until}T235959Z"
    return ";".join(f"{key}={value}" for key, value in told.items()), ""
