"""Format what `gpuboard alerts` prints: tables for a terminal, and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import orjson

from site_builder.alerts import model
from site_builder.alerts.conditions import explain_muted_condition, find_condition_start_time
from site_builder.alerts.model import Alert, AlertRule, AlertState, Condition, DeliveryOutcome, Notification
from site_builder.alerts.render import format_alert_place, format_alert_time
from site_builder.alerts.rules import format_rule_values
from site_builder.core import terminal_text
from site_builder.core.clock import Now
from site_builder.core.formatting import format_names

LIST_SCHEMA = 1
COLUMN_GAP = "  "
EMPTY_CELL = "-"
MIN_TEXT_WIDTH = 20
# Titles of one notification in a table; --json has all.
MAX_TITLES = 5
REPORTED, WAITING, UNREPORTED, UPCOMING = "reported", "waiting", "unreported", "upcoming"
# The cells of a row, and the texts below it.
AlertTableRow = tuple[Sequence[str], Sequence[str]]
# Notifications with their messages and masked addresses.
DryRunNotifications = Sequence[tuple[Notification, model.AlertMessage, str]]
OUTCOME_PHRASES = {
    model.SENT: "sent",
    model.FAILED: "not sent",
    model.REFUSED: "refused",
    model.UNSURE: "may have arrived",
}


class ConditionTableStatus(NamedTuple):
    """How far a condition has been reported; `at` is since when it exists, or when it will be reported."""

    tracked: model.TrackedCondition
    state: str
    reason: str
    at: int


class AlertList(NamedTuple):
    conditions: Sequence[ConditionTableStatus]
    notifications: Sequence[Notification]
    silences: Mapping[str, int]
    receivers: Sequence[model.AlertReceiver]
    rules: Sequence[AlertRule]


def list_condition_table_statuses(
    state: AlertState, rules: Mapping[str, AlertRule], context: model.AlertContext, now: Now
) -> list[ConditionTableStatus]:
    """List all conditions, the latest first, and upcoming ones by their time."""
    waiting: dict[str, list[Notification]] = {}
    for notification in state.notifications:
        for alert in notification.alerts:
            waiting.setdefault(alert.condition_key, []).append(notification)
    statuses = []
    for tracked in state.conditions.values():
        condition, rule = tracked.condition, rules.get(tracked.condition.rule)
        status, reason = UNREPORTED, ""
        at = tracked.first_seen_at if condition.since is None else condition.since
        if notifications := waiting.get(condition.key):
            status, reason = WAITING, explain_waiting_condition(notifications, now)
        elif tracked.reported_at is not None:
            status = REPORTED
        elif rule and rule.on and (start_time := find_condition_start_time(condition, rule)) > now.epoch:
            status, at = UPCOMING, start_time
        elif tracked.is_suppressed:
            reason = "it existed at first start"
        elif rule is None or not rule.on:
            reason = f"the rule {condition.rule} is off"
        elif muted := explain_muted_condition(condition, state.silences, context, int(now.epoch)):
            reason = muted
        elif (due_at := tracked.first_seen_at + rule.delay) > now.epoch:
            reason = f"it will be reported at {format_alert_time(due_at, now)} if it still exists"
        else:
            reason = "the next build reports it"
        statuses.append(ConditionTableStatus(tracked, status, reason, at))
    return sorted(
        statuses,
        key=lambda status: (status.at if status.state == UPCOMING else -status.at, status.tracked.condition.key),
    )


def explain_waiting_condition(notifications: Iterable[Notification], now: Now) -> str:
    receivers_by_state: dict[str, list[str]] = {}
    for notification in notifications:
        departure = describe_table_departure(notification, now)
        receivers_by_state.setdefault(departure, []).append(format_table_receiver(notification.to))
    return "; ".join(
        f"the notification{'s' * (len(names) > 1)} to {format_names(names)} {'are' if len(names) > 1 else 'is'} {state}"
        for state, names in receivers_by_state.items()
    )


def describe_table_departure(notification: Notification, now: Now) -> str:
    """Describe when a notification is sent, after `it is`."""
    if notification.claimed_by:
        return "being sent"
    if notification.due_at <= now.epoch:
        return "due"
    departure = f"{'tried again' if notification.tries else 'due'} at {format_alert_time(notification.due_at, now)}"
    return f"{departure} ({notification.last_error})" if notification.last_error else departure


def format_table_receiver(to: str) -> str:
    """Format a receiver as rules name it: `lab`, `alice`, `hook:page`."""
    return to.partition(":")[2] if to.startswith((model.CHANNEL_PREFIX, model.PERSON_PREFIX)) else to


def format_alert_list(alert_list: AlertList, now: Now, width: int | None) -> list[str]:
    rows = [format_condition_row(status, now) for status in alert_list.conditions if status.state != UPCOMING]
    table = format_alert_table(("since", "rule", "where", "reported"), rows, width)
    lines = [f"Conditions: {len(rows) or 'none'}", *table]
    lines += format_upcoming_conditions(alert_list.conditions, now, width)
    if alert_list.notifications:
        rows = []
        for notification in alert_list.notifications:
            due = "now" if notification.due_at <= now.epoch else format_alert_time(notification.due_at, now)
            due = "being sent" if notification.claimed_by else due
            details = list_table_alert_titles(notification.alerts, notification.omitted_count)
            if notification.tries:
                attempts = "once" if notification.tries == 1 else f"{notification.tries} times"
                details.append(f"tried {attempts}: {notification.last_error or 'reason unknown'}")
            cells = (format_alert_time(notification.created_at, now), format_table_receiver(notification.to), due)
            rows.append((cells, details))
        lines += ["", f"Queued notifications: {len(rows)}"]
        lines += format_alert_table(("created", "to", "due"), rows, width)
    if alert_list.silences:
        silences = sorted(alert_list.silences.items())
        lines += [
            "",
            "Silenced",
            *(f"{COLUMN_GAP}{host} until {format_alert_time(end, now)}" for host, end in silences),
        ]
    rows = []
    for receiver in alert_list.receivers:
        # the mail server of the lab reaches all people
        name = "people" if receiver.name == "mail" else format_table_receiver(receiver.name).rstrip(":")
        rows.append(((name, receiver.masked_address), [receiver.problem] if receiver.problem else []))
    lines += ["", f"Receivers{'' if rows else ': none'}", *format_alert_table((), rows, width)]
    rows = []
    for rule in alert_list.rules:
        if not rule.on:
            rows.append(((rule.name, "off"), ()))
            continue
        values = format_rule_values(rule)
        timing = values.get("at") or "at once"
        if rule.before:
            timing = f"{values['before']} before"
        elif rule.delay:
            timing = f"after {values['delay']}"
        if rule.send_resolved and rule.resolve_after:
            timing += f", over after {values['resolve_after']}"
        quiet = EMPTY_CELL if rule.quiet_hours is None else values["quiet_hours"]
        receivers = ", ".join(rule.to) or EMPTY_CELL
        rows.append(((rule.name, timing, receivers, quiet, values["max_per_hour"]), ()))
    lines += ["", "Rules", *format_alert_table(("rule", "when", "to", "quiet", "an hour"), rows, width)]
    return lines


def format_condition_row(status: ConditionTableStatus, now: Now) -> AlertTableRow:
    tracked, condition = status.tracked, status.tracked.condition
    reported = "no" if status.state == UNREPORTED else status.state
    if status.state == REPORTED and tracked.reported_at is not None:
        reported = format_alert_time(tracked.reported_at, now)
    details = [condition.what]
    if condition.people:
        details.append(f"affects {format_names(condition.people)}")
    details.append(status.reason)
    if tracked.cleared_at is not None:
        details.append(f"over since {format_alert_time(tracked.cleared_at, now)}")
    cells = (format_alert_time(status.at, now), condition.rule, format_table_place(condition), reported)
    return cells, ["; ".join(filter(None, details))]


def format_table_place(condition: Condition) -> str:
    """Format where a condition is: `atlas:0,3`, or what it is about if it is on no host."""
    return format_alert_place(condition.host, condition.gpus) or condition.about


def format_upcoming_conditions(statuses: Iterable[ConditionTableStatus], now: Now, width: int | None) -> list[str]:
    rows: list[AlertTableRow] = []
    for status in statuses:
        if status.state == UPCOMING:
            at, condition = format_alert_time(status.at, now), status.tracked.condition
            rows.append(((at, condition.rule, format_table_place(condition), format_names(condition.owners)), ()))
    if not rows:
        return []
    return ["", f"Upcoming: {len(rows)}", *format_alert_table(("at", "rule", "where", "whose"), rows, width)]


def list_table_alert_titles(alerts: Sequence[Alert], omitted_count: int = 0) -> list[str]:
    titles = [alert.title for alert in alerts[:MAX_TITLES]]
    omitted_count += len(alerts) - len(titles)
    return [*titles, f"and {omitted_count} more"] if omitted_count else titles


def format_dry_run_table(
    notifications: DryRunNotifications, conditions: Sequence[ConditionTableStatus], now: Now, width: int | None
) -> list[str]:
    """List what would be sent and why, then what would not be, and what comes."""
    count = len(notifications)
    lines = [f"Would be sent: {count or 'no'} notification{'' if count == 1 else 's'}"]
    receivers_by_text: dict[tuple[str, ...], list[str]] = {}  # a message to several receivers is shown once
    for notification, message, address in notifications:
        reasons = dict.fromkeys(f"why: {alert.why}" for alert in notification.alerts if alert.why)
        text = "\n".join((message.title, message.text.strip()))
        to, departure = format_table_receiver(notification.to), describe_table_departure(notification, now)
        parts = (f"to {to}", address, departure)
        receivers_by_text.setdefault((text, *reasons), []).append(", ".join(filter(None, parts)))
    for (text, *why), receivers in receivers_by_text.items():
        lines.append("")
        for receiver in receivers:
            lines += wrap_alert_table_text(receiver, width, COLUMN_GAP)
        for line in text.splitlines():
            lines += wrap_alert_table_text(line, width, f"{COLUMN_GAP}| ") or [f"{COLUMN_GAP}|"]
        for reason in why:
            lines += wrap_alert_table_text(reason, width, COLUMN_GAP)
    rows = [
        (cells[:-1], details)
        for cells, details in (format_condition_row(status, now) for status in conditions if status.state == UNREPORTED)
    ]
    lines += ["", f"Would not be reported: {len(rows) or 'nothing'}"]
    lines += format_alert_table(("since", "rule", "where"), rows, width)
    return lines + format_upcoming_conditions(conditions, now, width)


def format_history_table(records: Sequence[model.DeliveryRecord], now: Now, width: int | None) -> list[str]:
    rows = []
    for record in records:
        attempts = f", after {record.tries} tries" if record.tries > 1 else ""
        cells = (format_alert_time(record.at, now), format_table_receiver(record.to), f"{record.status}{attempts}")
        rows.append((cells, [*list_table_alert_titles(record.alerts), *filter(None, [record.reason])]))
    return format_alert_table(("when", "to", "how"), rows, width)


def format_alert_table(head: Sequence[str], rows: Sequence[AlertTableRow], width: int | None) -> list[str]:
    """Format rows in columns, with wrapped details below each; without a width nothing is cut."""
    if not rows:
        return []
    all_rows = [(head, ()), *rows] if head else rows
    all_cells = [tuple(map(terminal_text.flatten_terminal_text, cells)) for cells, _ in all_rows]
    widths = [max(map(terminal_text.measure_width, column)) for column in zip_longest(*all_cells, fillvalue="")]
    lines = []
    for (_, details), cells in zip(all_rows, all_cells):
        line = COLUMN_GAP + COLUMN_GAP.join(map(terminal_text.fit_text, cells, widths)).rstrip()
        lines.append(line if width is None else terminal_text.truncate_terminal_text(line, width))
        for text in details:
            lines += wrap_alert_table_text(text, width, COLUMN_GAP * 3)
    return lines


def wrap_alert_table_text(text: str, width: int | None, indent: str) -> list[str]:
    """Wrap and indent a text; without a width it stays one line."""
    text = terminal_text.flatten_terminal_text(text)
    if width is None:
        return [indent + text] if text else []
    return [indent + line for line in terminal_text.wrap_text(text, max(MIN_TEXT_WIDTH, width - len(indent)))]


def format_table_outcome(to: str, outcome: DeliveryOutcome) -> str:
    line = f"{format_table_receiver(to)}: {OUTCOME_PHRASES.get(outcome.status, outcome.status)}"
    return f"{line}: {outcome.reason}" if outcome.reason and outcome.status != model.SENT else line


# JSON


def dump_alert_table_json(document: Mapping[str, Any]) -> bytes:
    return orjson.dumps(
        {"schema": LIST_SCHEMA, **document}, default=lambda value: value._asdict(), option=orjson.OPT_INDENT_2
    )


def alert_list_to_json(alert_list: AlertList) -> bytes:
    return dump_alert_table_json(
        {
            "conditions": [condition_row_to_json(status) for status in alert_list.conditions],
            "notifications": [notification_row_to_json(notification) for notification in alert_list.notifications],
            "silences": [{"host": host, "until": until} for host, until in sorted(alert_list.silences.items())],
            "receivers": [
                {"name": receiver.name, "address": receiver.masked_address, "problem": receiver.problem}
                for receiver in alert_list.receivers
            ],
            "rules": alert_list.rules,
        }
    )


def condition_row_to_json(status: ConditionTableStatus) -> dict[str, Any]:
    tracked, condition = status.tracked, status.tracked.condition
    return {
        **{key: getattr(condition, key) for key in ("rule", "host", "about", "gpus", "what", "since", "people")},
        "first_seen": tracked.first_seen_at,
        "at": status.at,
        "state": status.state,
        "reported": tracked.reported_at,
        "cleared": tracked.cleared_at,
        "reason": status.reason,
    }


def notification_row_to_json(notification: Notification) -> dict[str, Any]:
    return {
        "to": notification.to,
        "via": notification.via,
        "created": notification.created_at,
        "due": notification.due_at,
        "being_sent": bool(notification.claimed_by),
        "tries": notification.tries,
        "last_error": notification.last_error,
        "alerts": notification.alerts,
        "omitted": notification.omitted_count,
    }


def dry_run_table_to_json(notifications: DryRunNotifications, conditions: Sequence[ConditionTableStatus]) -> bytes:
    rows = [
        {**notification_row_to_json(notification), "address": address, "title": message.title, "text": message.text}
        for notification, message, address in notifications
    ]
    return dump_alert_table_json({"notifications": rows, "conditions": list(map(condition_row_to_json, conditions))})
