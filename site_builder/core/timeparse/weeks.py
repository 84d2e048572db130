"""Weeks as people name them: `2026-W45`."""

from __future__ import annotations

import re
from datetime import date, timedelta

from site_builder.core.timeparse import dates

WEEK = re.compile(r"([0-9]{4})-?[Ww]([0-9]{2})")


def read(text: str) -> date | None:
    """The Monday of a week; None if there is no such week."""
    found = WEEK.fullmatch(text.strip())
    try:
        return date.fromisocalendar(int(found[1]), int(found[2]), 1) if found and dates.is_year(int(found[1])) else None
    except ValueError:
        return None


def name(monday: date) -> str:
    """A week by its Monday."""
    year, number, _ = monday.isocalendar()
    return f"{year:04}-W{number:02}"


def last_whole(today: date) -> date:
    """The Monday of the week before the one of this day."""
    return today - timedelta(days=today.weekday() + 7)
