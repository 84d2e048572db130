"""The report of a week as a letter: when it is due, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta

from site_builder.alerts.model import CHANNEL, HAPPENED, Alert, AlertRule, Letter, Matter, Message
from site_builder.config.settings import Settings
from site_builder.core.timeparse import weeks
from site_builder.history import rollups
from site_builder.history.reader import DAY, Past
from site_builder.reports import collect
from site_builder.reports.collect import Unread
from site_builder.reports.rules import Week

RULE = "weekly-report"
# A builder that did not run when it was due sends it up to so many seconds later.
LATE = 2 * DAY


def due(settings: Settings, now: float, rule: AlertRule) -> Matter | None:
    """The report of the week that is over, from the time at which the rule wants it; None where there is none to send.

    It is due for two days: whoever asks must remember for longer that it was told.
    """
    if not rule.on or rule.at is None:
        return None
    day, minute = rule.at
    here = datetime.fromtimestamp(now, settings.zone)
    monday = here.date() - timedelta(days=here.weekday())
    for first in (monday, monday - timedelta(days=7)):
        midnight = datetime.combine(first + timedelta(days=day), datetime.min.time(), settings.zone)
        at = midnight.replace(hour=minute // 60, minute=minute % 60).timestamp()
        if at <= now < at + LATE:
            week = first - timedelta(days=7)
            return matter(week, int(at)) if known(settings, week) else None
    return None


def matter(first: date, at: int) -> Matter:
    """The week that begins with this Monday, as what people are told."""
    year, number, _ = first.isocalendar()
    return Matter(RULE, about=weeks.name(first), what=f"week {number} of {year} is over", since=at, lasting=False)


def known(settings: Settings, first: date) -> bool:
    """Whether history goes back to that week; what cannot be read now is tried when it is sent."""
    past = Past(settings.state, settings.zone)
    try:
        begun = rollups.first_day(past) if past.exists else None
        return bool(past.trouble) or (begun is not None and begun < first + timedelta(days=7))
    finally:
        past.close()


def message(settings: Settings, first: date, now: float) -> Message | None:
    """The report of the week that begins with this Monday; None where history has nothing of it.

    `first` is `weeks.read(alert.about)`. Where history cannot be read now, that is Unread, with a sentence.
    """
    past = Past(settings.state, settings.zone)
    try:
        week = collect.gather(settings, past, first, now) if past.exists else None
    except OSError as error:
        raise Unread(error.strerror or str(error)) from None
    finally:
        past.close()
    return worded(week, settings, now) if week else None


def worded(week: Week, settings: Settings, now: float) -> Message:
    """A week in words: all of it as text, with charts for mail programs, and its sums for chats."""
    from site_builder.core.clock import Now  # noqa: PLC0415 # the builder asks only when it is due
    from site_builder.reports import mail  # noqa: PLC0415
    from site_builder.reports.text import text  # noqa: PLC0415

    page = collect.address(settings, week.first)
    body = mail.html(week, Now(now, settings.zone), settings.url or "", page)
    return Message(mail.subject(week), text(week, page), body, brief=mail.brief(week, page))


def receivers(rule: AlertRule, channels: Sequence[str]) -> list[str]:
    """The channels of the rule, as letters name them; a report is nobody's own."""
    return [f"{CHANNEL}{name}" for name in channels if name in rule.to or "all" in rule.to]


def letter(first: date, to: str, at: int) -> Letter:
    """A letter of somebody who sends it by hand."""
    name = weeks.name(first)
    alert = Alert(f"{RULE} {name} {at}", RULE, HAPPENED, f"the report of {name}", "", at, about=name)
    return Letter(alert.id, to, (alert,), at, at)
