"""The weekly report as an alert: when it is due, and the message that carries it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import date, datetime, timedelta

from site_builder.alerts import model
from site_builder.alerts.model import Alert, AlertMessage, AlertRule, Condition, Notification
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY
from site_builder.history.reader import HistoryReader, read_first_history_day
from site_builder.reports import collect
from site_builder.reports.collect import CollectedReport, ReportCollectionError

# For how long after its time a builder that did not run then still sends it. The alert state remembers for longer
# that a report was sent.
MAX_DELAY_S = 2 * DAY


def find_due_report(settings: Settings, now: float, rule: AlertRule) -> Condition | None:
    """Return the report of the last week once the rule's time has come; None if there is none to send."""
    if not rule.on or rule.at is None:
        return None
    day, minute = rule.at
    today = datetime.fromtimestamp(now, settings.zone).date()
    monday = today - timedelta(days=today.weekday())
    for first in (monday, monday - timedelta(days=7)):
        midnight = datetime.combine(first + timedelta(days=day), datetime.min.time(), settings.zone)
        due_at = midnight.replace(hour=minute // 60, minute=minute % 60).timestamp()
        if due_at <= now < due_at + MAX_DELAY_S:
            with closing(HistoryReader(settings.state, settings.zone)) as history:
                first_day = read_first_history_day(history) if history.exists else None
                # if history cannot be read now, the sender tries again
                if not history.problem and (first_day is None or first_day >= first):
                    return None
            week = first - timedelta(days=7)
            year, number, _ = week.isocalendar()
            return Condition(
                model.WEEKLY_REPORT_RULE,
                about=collect.format_report_week(week),
                what=f"week {number} of {year} is over",
                since=int(due_at),
                is_lasting=False,
            )
    return None


def build_report_message(settings: Settings, first: date, now: float) -> AlertMessage | None:
    """Build the report of the week that begins with this Monday; return None if history has nothing of it."""
    with closing(HistoryReader(settings.state, settings.zone)) as history:
        try:
            report = collect.collect_report(settings, history, first, now) if history.exists else None
        except OSError as error:
            raise ReportCollectionError(error.strerror or str(error)) from None
    return render_report_message(report, settings, now) if report else None


def render_report_message(report: CollectedReport, settings: Settings, now: float) -> AlertMessage:
    from site_builder.reports import render  # noqa: PLC0415 # slow to import, and the builder only asks when it is due

    page = collect.find_report_url(settings, report.first)
    return AlertMessage(
        title=render.format_report_subject(report),
        text=render.render_report_text(report, page),
        html=render.render_report_mail(report, Now(now, settings.zone), settings.url or "", page),
        short_text=render.render_report_brief(report, page),
    )


def list_report_receivers(rule: AlertRule, channels: Sequence[str]) -> list[str]:
    """List the channels of the rule; a report goes to no person."""
    return [f"{model.CHANNEL_PREFIX}{name}" for name in channels if name in rule.to or "all" in rule.to]


def build_report_notification(first: date, to: str, at: int) -> Notification:
    week = collect.format_report_week(first)
    alert = Alert(
        id=f"{model.WEEKLY_REPORT_RULE} {week} {at}",
        rule=model.WEEKLY_REPORT_RULE,
        step=model.STEP_HAPPENED,
        title=f"weekly report {week}",
        what="",
        at=at,
        about=week,
    )
    return Notification(id=alert.id, to=to, alerts=(alert,), created_at=at, due_at=at)
