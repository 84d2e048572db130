"""What `gpuboard alerts` shows: tables for a terminal, and JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from site_builder.alerts.model import (
    Alert,
    AlertRule,
    Condition,
    DeliveryOutcome,
    DeliveryRecord,
    Message,
    Notification,
)
from site_builder.alerts.rules import (
    STATUS_REPORTED,
    STATUS_UNREPORTED,
    STATUS_UPCOMING,
    STATUS_WAITING,
    ConditionStatus,
    describe_departure,
    format_receiver_name,
)
from site_builder.config.types import format_short_duration
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.terminal_text import fit_text, flatten_text, measure_width, truncate_text, wrap_text

LIST_SCHEMA = 1
COLUMN_GAP = "  "
EMPTY_CELL = "-"
MIN_TEXT_WIDTH = 20
# Titles of one letter that are written out; --json has all.
MAX_TITLES = 5
REPORTED_CELLS = {STATUS_WAITING: "waits", STATUS_UNREPORTED: "no"}


class AlertTableRow(NamedTuple):
    """A line of a table, and what is written below it."""

    cells: tuple[str, ...]
    details: tuple[str, ...] = ()


class ListedReceiver(NamedTuple):
    """A receiver: as rules call it, its address masked, and why it cannot be used."""

    name: str
    masked_address: str
    problem: str | None = None


class AlertList(NamedTuple):
    """All that `gpuboard alerts list` tells."""

    conditions: Sequence[ConditionStatus]
    notifications: Sequence[Notification]
    silences: Mapping[str, int]
    receivers: Sequence[ListedReceiver]
    rules: Sequence[AlertRule]


class DryRunList(NamedTuple):
    """What `gpuboard alerts run --dry-run` tells: letters in words, where each goes, and how far all is told then."""

    notifications: Sequence[tuple[Notification, Message, str]]
    conditions: Sequence[ConditionStatus]


# In a terminal


def format_receiver_cell(name: str) -> str:
    """A receiver as people call it; the mail server of the lab is the way to all of them."""
    return "people" if name == "mail" else format_receiver_name(name).rstrip(":")


def format_alert_list(found: AlertList, now: Now, across: int | None) -> list[str]:
    """What is the matter first, then what waits, who is silent, and by which rules."""
    so = [one for one in found.conditions if one.state != STATUS_UPCOMING]
    lines = [f"What is the matter: {len(so) or 'nothing'}"]
    lines += format_alert_table(
        ("since", "rule", "where", "told"), [format_condition_row(one, now) for one in so], across
    )
    lines += format_upcoming_conditions(found.conditions, now, across)
    if found.notifications:
        lines += [
            "",
            f"Letters that wait: {len(found.notifications)}",
            *format_queued_notifications(found.notifications, now, across),
        ]
    if found.silences:
        lines += ["", "Silent"]
        lines += [
            f"{COLUMN_GAP}{host} until {format_time_cell(until, now)}" for host, until in sorted(found.silences.items())
        ]
    lines += ["", f"Where alerts go{'' if found.receivers else ': nowhere yet'}"]
    lines += format_alert_table(
        (),
        [
            AlertTableRow((format_receiver_cell(one.name), one.masked_address), (one.problem,) if one.problem else ())
            for one in found.receivers
        ],
        across,
    )
    lines += [
        "",
        "Rules",
        *format_alert_table(
            ("rule", "when", "to", "quiet", "an hour"), [format_rule_row(one) for one in found.rules], across
        ),
    ]
    return lines


def format_condition_row(one: ConditionStatus, now: Now) -> AlertTableRow:
    """Something that is the matter."""
    known, matter = one.tracked, one.tracked.condition
    told = (
        format_time_cell(known.reported_at, now)
        if one.state == STATUS_REPORTED and known.reported_at is not None
        else REPORTED_CELLS[one.state]
    )
    below = [matter.what]
    if matter.people:
        below.append(f"affects {formatting.join_names(matter.people)}")
    if one.reason:
        below.append(one.reason)
    if known.cleared_at is not None:
        below.append(f"over since {format_time_cell(known.cleared_at, now)}")
    return AlertTableRow(
        (format_time_cell(one.at, now), matter.rule, format_condition_place(matter), told),
        ("; ".join(filter(None, below)),),
    )


def format_upcoming_conditions(several: Iterable[ConditionStatus], now: Now, across: int | None) -> list[str]:
    """What will be told, if it is so then."""
    rows = [
        AlertTableRow(
            (
                format_time_cell(one.at, now),
                one.tracked.condition.rule,
                format_condition_place(one.tracked.condition),
                formatting.join_names(one.tracked.condition.owners),
            )
        )
        for one in several
        if one.state == STATUS_UPCOMING
    ]
    return (
        ["", f"To come: {len(rows)}", *format_alert_table(("at", "rule", "where", "whose"), rows, across)]
        if rows
        else []
    )


def format_queued_notifications(several: Iterable[Notification], now: Now, across: int | None) -> list[str]:
    """Letters, with what is in them."""
    rows = []
    for one in several:
        due = (
            "being sent" if one.claimed_by else "now" if one.due_at <= now.epoch else format_time_cell(one.due_at, now)
        )
        below = (
            *list_alert_titles(one.alerts, one.omitted_count),
            *([f"tried {format_attempts(one.tries)}: {one.last_error or 'nobody knows why not'}"] if one.tries else []),
        )
        rows.append(AlertTableRow((format_time_cell(one.created_at, now), format_receiver_name(one.to), due), below))
    return format_alert_table(("written", "to", "leaves"), rows, across)


def format_dry_run(found: DryRunList, now: Now, across: int | None) -> list[str]:
    """Letter by letter what would be sent, and why; then what would not be, and what comes."""
    lines = [f"Would be sent: {format_notification_count(len(found.notifications), 'letter')}"]
    same: dict[tuple[str, ...], list[str]] = {}  # one that goes to several is shown once
    for one, message, address in found.notifications:
        whys = dict.fromkeys(f"why: {alert.why}" for alert in one.alerts if alert.why)
        text = "\n".join((message.title, message.text.strip()))
        to = ", ".join(filter(None, (f"to {format_receiver_name(one.to)}", address, describe_departure(one, now))))
        same.setdefault((text, *whys), []).append(to)
    for (text, *reasons), several in same.items():
        lines += ["", *(line for to in several for line in indent_wrapped_text(to, across, COLUMN_GAP))]
        for line in text.splitlines():
            lines += [f"{COLUMN_GAP}| {part}" for part in break_text(line, across, 2 * len(COLUMN_GAP))] or [
                f"{COLUMN_GAP}|"
            ]
        lines += [line for why in reasons for line in indent_wrapped_text(why, across, COLUMN_GAP)]
    untold = [format_unreported_row(one, now) for one in found.conditions if one.state == STATUS_UNREPORTED]
    lines += [
        "",
        f"Would not be told: {len(untold) or 'nothing'}",
        *format_alert_table(("since", "rule", "where"), untold, across),
    ]
    return [*lines, *format_upcoming_conditions(found.conditions, now, across)]


def format_unreported_row(one: ConditionStatus, now: Now) -> AlertTableRow:
    """Something of which no letter would be written."""
    row = format_condition_row(one, now)
    return row._replace(cells=row.cells[:-1])


def format_delivery_history(several: Sequence[DeliveryRecord], now: Now, across: int | None) -> list[str]:
    """What was told, and how that went."""
    rows = []
    for one in several:
        tries = f", after {one.tries} tries" if one.tries > 1 else ""
        below = (*list_alert_titles(one.alerts), *([one.reason] if one.reason else []))
        rows.append(
            AlertTableRow((format_time_cell(one.at, now), format_receiver_name(one.to), f"{one.status}{tries}"), below)
        )
    return format_alert_table(("when", "to", "how"), rows, across)


def format_rule_row(one: AlertRule) -> AlertTableRow:
    """A rule in force."""
    if not one.on:
        return AlertTableRow((one.name, "off"))
    quiet = (
        f"{format_minute_cell(one.quiet_hours[0])}-{format_minute_cell(one.quiet_hours[1])}"
        if one.quiet_hours
        else EMPTY_CELL
    )
    return AlertTableRow(
        (one.name, describe_rule_timing(one), ", ".join(one.to) or EMPTY_CELL, quiet, str(one.max_per_hour))
    )


def describe_rule_timing(one: AlertRule) -> str:
    """From when on it counts, and is over."""
    if one.at:
        return f"{formatting.DAY_NAMES[one.at[0]]} {format_minute_cell(one.at[1])}"
    told = [
        f"{format_short_duration(one.before)} before"
        if one.before
        else f"after {format_short_duration(one.delay)}"
        if one.delay
        else "at once"
    ]
    if one.send_resolved and one.resolve_after:
        told.append(f"over after {format_short_duration(one.resolve_after)}")
    return ", ".join(told)


def format_minute_cell(of_day: int) -> str:
    """`07:30`."""
    return f"{of_day // 60:02}:{of_day % 60:02}"


def list_alert_titles(alerts: Sequence[Alert], more: int = 0) -> list[str]:
    """What is in a letter, a line each."""
    told = [one.title for one in alerts[:MAX_TITLES]]
    more += len(alerts) - len(told)
    return [*told, *([f"and {more} more"] if more else [])]


def format_condition_place(matter: Condition) -> str:
    """Where it is: `atlas:0,3`, or of what is on no host, what it is about."""
    return f"{matter.host}:{','.join(matter.gpus)}" if matter.gpus else matter.host or matter.about


def format_attempts(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"


def format_time_cell(epoch: float, now: Now) -> str:
    """That moment, as people read it."""
    return formatting.format_moment(datetime.fromtimestamp(epoch, now.zone), now)


def format_alert_table(head: Sequence[str], rows: Sequence[AlertTableRow], across: int | None) -> list[str]:
    """Columns, and below each line what it is about, in as many lines as that takes; None cuts nothing."""
    if not rows:
        return []
    cells = [tuple(map(flatten_text, row.cells)) for row in rows]
    every = [*([tuple(head)] if head else []), *cells]
    widths = [
        max((measure_width(line[at]) for line in every if at < len(line)), default=0)
        for at in range(max(map(len, every)))
    ]
    found = [join_cells(head, widths, across)] if head else []
    for row, line in zip(rows, cells):
        found.append(join_cells(line, widths, across))
        for text in row.details:
            found += indent_wrapped_text(text, across)
    return found


def join_cells(cells: Sequence[str], widths: Sequence[int], across: int | None) -> str:
    """Cells in columns."""
    line = COLUMN_GAP + COLUMN_GAP.join(fit_text(text, one) for text, one in zip(cells, widths)).rstrip()
    return line if across is None else truncate_text(line, across)


def indent_wrapped_text(text: str, across: int | None, indent: str = COLUMN_GAP * 3) -> Iterator[str]:
    """A text below a line."""
    for line in break_text(text, across, len(indent)):
        yield indent + line


def break_text(text: str, across: int | None, indent: int) -> list[str]:
    """A text in as many lines as it takes; None breaks nothing."""
    text = flatten_text(text)
    return wrap_text(text, max(MIN_TEXT_WIDTH, across - indent)) if across is not None else [text] if text else []


def format_notification_count(count: int, word: str) -> str:
    """`1 letter`, `3 letters`, `no letters`."""
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def format_outcome(to: str, how: DeliveryOutcome) -> str:
    """How a test went: `lab: sent`."""
    said = {"sent": "sent", "failed": "not sent", "refused": "refused", "unsure": "nobody knows whether it arrived"}
    return f"{format_receiver_name(to)}: {said.get(how.status, how.status)}" + (
        f": {how.reason}" if how.reason and how.status != "sent" else ""
    )


def format_sent_notification(letter: Notification, how: DeliveryOutcome) -> list[str]:
    """How a letter went, and what is in it."""
    return [
        format_outcome(letter.to, how),
        *(f"{COLUMN_GAP * 3}{title}" for title in list_alert_titles(letter.alerts, letter.omitted_count)),
    ]


# For programs


def dump_alert_json(told: Mapping[str, Any]) -> bytes:
    """All of it, with the version of its form."""
    return orjson.dumps({"schema": LIST_SCHEMA, **told}, option=orjson.OPT_INDENT_2)


def alert_list_to_json(found: AlertList) -> bytes:
    """The same for programs."""
    return dump_alert_json(
        {
            "conditions": [condition_to_json(one) for one in found.conditions],
            "notifications": [notification_to_json(one) for one in found.notifications],
            "silences": [{"host": host, "until": until} for host, until in sorted(found.silences.items())],
            "receivers": [
                {"name": one.name, "address": one.masked_address, "problem": one.problem} for one in found.receivers
            ],
            "rules": [one._asdict() for one in found.rules],
        }
    )


def condition_to_json(one: ConditionStatus) -> dict[str, Any]:
    """Something that is the matter."""
    known, matter = one.tracked, one.tracked.condition
    return {
        **{key: getattr(matter, key) for key in ("rule", "host", "about", "gpus", "what", "since", "people")},
        "first_seen": known.first_seen_at,
        "at": one.at,
        "state": one.state,
        "reported": known.reported_at,
        "cleared": known.cleared_at,
        "reason": one.reason,
    }


def notification_to_json(one: Notification) -> dict[str, Any]:
    """A letter that waits."""
    return {
        "to": one.to,
        "via": one.via,
        "created": one.created_at,
        "due": one.due_at,
        "being_sent": bool(one.claimed_by),
        "tries": one.tries,
        "last_error": one.last_error,
        "alerts": [alert._asdict() for alert in one.alerts],
        "omitted": one.omitted_count,
    }


def dry_run_to_json(found: DryRunList) -> bytes:
    """The same of what would be sent."""
    letters = [
        {**notification_to_json(one), "address": address, "title": message.title, "text": message.text}
        for one, message, address in found.notifications
    ]
    return dump_alert_json(
        {"notifications": letters, "conditions": [condition_to_json(one) for one in found.conditions]}
    )


def delivery_history_to_json(several: Iterable[DeliveryRecord]) -> bytes:
    """The history."""
    lines = [
        {
            "at": one.at,
            "to": one.to,
            "status": one.status,
            "alerts": [alert._asdict() for alert in one.alerts],
            "reason": one.reason,
            "tries": one.tries,
        }
        for one in several
    ]
    return dump_alert_json({"history": lines})


def outcomes_to_json(several: Iterable[tuple[str, DeliveryOutcome]]) -> bytes:
    """How tests went."""
    return dump_alert_json({"tests": [{"to": to, "status": how.status, "reason": how.reason} for to, how in several]})
