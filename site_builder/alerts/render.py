"""Render alerts and notifications as text, HTML and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo

from site_builder.alerts.model import (
    BOOKING_RULES,
    HOST_RULES,
    STEP_BEGUN,
    STEP_OVER,
    STEP_TEST,
    WATCH_RULE,
    WEEKLY_REPORT_RULE,
    Alert,
    Condition,
    Message,
    Notification,
    find_person,
)
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.html import Html, escape_html
from site_builder.core.terminal_text import flatten_text

# What a title says of one GPU, host or booking, while a condition exists and after it.
ACTIVE_PHRASES = {
    "host-down": "is down",
    "host-failed": "has failed",
    "host-new": "is new on the board",
    "gpu-lost": "is lost",
    "gpu-hot": "is hot",
    "gpu-error": "has an error",
    "gpu-held": "is held idle",
    "booking-begins": "has begun",
    "booking-ends": "has ended",
    "booking-broken": "is broken",
    "booking-unused": "stands unused",
}
OVER_PHRASES = {
    "host-down": "is back",
    "host-failed": "works again",
    "gpu-lost": "is back",
    "gpu-hot": "has cooled down",
    "gpu-error": "has one error less",
    "gpu-held": "is no longer held idle",
    "booking-broken": "is no longer broken",
    "booking-unused": "is used",
}
PLURAL_VERBS = {"is": "are", "has": "have", "works": "work", "stands": "stand"}
MAX_NAMES = 5
MAX_TITLE_CHARACTERS = 200
ALERT_SCHEMA = 1
# A host can claim anything, and a chat shows less than this.
MAX_LISTED_ALERTS = 40
MAX_LISTED_PEOPLE = 12
MAX_LINE_CHARACTERS = 600
PARAGRAPH_START = Html('<p style="margin:0 0 12px">')
TIGHT_PARAGRAPH_START = Html('<p style="margin:0 0 6px">')


def format_alert_title(condition: Condition, step: str, lasted: int | None, reader: str | None, now: Now) -> str:
    """Format an alert in one line; `reader` is the person who alone reads it, and `lasted` counts seconds."""
    if condition.rule == WEEKLY_REPORT_RULE:
        return f"the report of {condition.about}"
    if condition.rule == WATCH_RULE:
        free = condition.what.partition(";")[0]
        return shorten_title(f"{reader}: {free}" if reader else free)
    if condition.rule == "gpu-held":
        return format_held_title(condition, step, reader)
    subject = describe_subject(condition, reader)
    if step != STEP_OVER:
        return shorten_title(f"{subject} {describe_condition(condition, now)}")
    after = "" if lasted is None else f", after {formatting.format_duration(max(lasted, 1))}"
    return shorten_title(f"{subject} {OVER_PHRASES.get(condition.rule, 'is over')}{after}")


def format_held_title(condition: Condition, step: str, reader: str | None) -> str:
    """Format the title of a GPU held idle; who holds it comes first."""
    gpu = format_alert_place(condition.host, condition.gpus)
    if step == STEP_OVER:
        return f"{gpu} {OVER_PHRASES['gpu-held']}"
    if reader:
        return f"{reader}: you hold {gpu} idle"
    if not condition.owners:
        return f"{gpu} {ACTIVE_PHRASES['gpu-held']}"
    return f"{formatting.join_names(condition.owners)} hold{'' if len(condition.owners) > 1 else 's'} {gpu} idle"


def describe_condition(condition: Condition, now: Now) -> str:
    begins, ends = condition.since, condition.until
    if condition.rule == "booking-begins" and begins is not None and begins > now.epoch:
        return f"begins at {format_epoch(begins, now)}"
    if condition.rule == "booking-ends" and ends is not None and ends > now.epoch:
        return f"ends at {format_epoch(ends, now)}"
    return ACTIVE_PHRASES.get(condition.rule, "is the matter")


def describe_subject(condition: Condition, reader: str | None) -> str:
    """Describe what an alert is about: `atlas`, `GPU 3 of atlas`, `alice: your booking of atlas:0,1`."""
    if condition.rule in HOST_RULES:
        return condition.host
    if condition.rule in BOOKING_RULES:
        place = format_alert_place(condition.host, condition.gpus)
        if reader:
            return f"{reader}: your booking of {place}"
        if not condition.owners:
            return f"a booking of {place}"
        return f"the booking of {place} by {formatting.join_names(condition.owners)}"
    return f"GPU {condition.gpus[0]} of {condition.host}" if len(condition.gpus) == 1 else f"a GPU of {condition.host}"


def format_alert_place(host: str, gpus: Sequence[str]) -> str:
    """Format `atlas:0,1`, as commands take it."""
    return f"{host}:{','.join(gpus)}" if gpus else host


def format_epoch(epoch: float, now: Now) -> str:
    """Format a time: `18:00`, `tomorrow 09:00`."""
    return formatting.format_moment(datetime.fromtimestamp(epoch, now.zone), now)


def format_headline(alerts: Sequence[Alert], omitted_count: int = 0) -> str:
    """Format the title of a notification: `atlas is down`, `5 hosts are down: atlas, boreas and 3 more`."""
    count = len(alerts) + omitted_count
    if count == 1:
        return alerts[0].title
    kinds = {(alert.rule, alert.step) for alert in alerts}
    rule, step = alerts[0].rule, alerts[0].step
    phrase = (OVER_PHRASES if step == STEP_OVER else ACTIVE_PHRASES).get(rule)
    if len(kinds) > 1 or phrase is None or rule in BOOKING_RULES:
        return shorten_title(f"{count} alerts: {'; '.join(alert.title for alert in alerts)}")
    verb, _, rest = phrase.partition(" ")
    phrase = f"{PLURAL_VERBS.get(verb, verb)} {rest}"
    hosts = list(dict.fromkeys(alert.host for alert in alerts if alert.host))
    if rule in HOST_RULES:
        return shorten_title(f"{count} hosts {phrase}: {format_name_list(hosts, count)}")
    if len(hosts) == 1:
        numbers = [number for alert in alerts for number in alert.gpus]
        return shorten_title(f"{count} GPUs of {hosts[0]} {phrase}: {format_name_list(numbers, count)}")
    places = [format_alert_place(alert.host, alert.gpus) for alert in alerts]
    return shorten_title(f"{count} GPUs {phrase}: {format_name_list(places, count)}")


def format_name_list(names: Sequence[str], count: int) -> str:
    """Format `a, b and 3 more`; `count` includes those that have no name."""
    if count <= MAX_NAMES and len(names) == count:
        return ", ".join(names)
    listed = names[: MAX_NAMES - 1]
    return f"{', '.join(listed)} and {count - len(listed)} more"


def shorten_title(text: str) -> str:
    return text if len(text) <= MAX_TITLE_CHARACTERS else f"{text[: MAX_TITLE_CHARACTERS - 1]}…"


def render_notification(notification: Notification, zone: tzinfo, shows_users: bool = True) -> Message:
    """Render a notification; where people are hidden, nobody reads of another."""
    alerts = notification.alerts
    if not shows_users:
        reader = find_person(notification.to)
        alerts = tuple(
            alert._replace(people=tuple(person for person in alert.people if person == reader)) for alert in alerts
        )
    # all listed alerts may be over before it is sent, while those without room are not
    title = f"{notification.omitted_count} alerts"
    if alerts:
        title = clean_line(format_headline(alerts, notification.omitted_count))
    is_list = len(alerts) + notification.omitted_count > 1
    listed = alerts[:MAX_LISTED_ALERTS]
    omitted_count = len(alerts) - len(listed) + notification.omitted_count
    format_alert, render_alert = format_single_alert, render_single_alert
    if is_list:
        format_alert, render_alert = format_listed_alert, render_listed_alert
    text = "\n".join("\n".join(format_alert(alert, zone)) for alert in listed)
    html = "".join(render_alert(alert, zone) for alert in listed)
    if omitted_count:
        rest = f"and {omitted_count} more" if listed else "`gpuboard alerts list` shows them."
        text += f"\n\n{rest}" if text else rest
        html += f"{PARAGRAPH_START}{rest}</p>"
    footer = format_footer(alerts)
    html += f'<p style="font-size:13px;opacity:.75">{escape_html(footer)}</p>'
    return Message(
        title=title,
        text=f"{text}\n\n{footer}",
        html=f'<div style="font:15px/1.5 sans-serif">{html}</div>',
        hook_json=alert_to_json(alerts[0]) if alerts else b"",
    )


def format_single_alert(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """Format the only alert of a notification, whose title stands above."""
    if alert.what:
        yield format_sentence(alert.what)
    yield from (f"{label}: {value}" for label, value in list_alert_facts(alert, zone))
    if alert.link:
        yield clean_line(alert.link)


def render_single_alert(alert: Alert, zone: tzinfo) -> Html:
    """Render the only alert of a mail; it needs no style sheet and no picture."""
    lines = [Html(f"<b>{escape_html(clean_line(alert.title))}</b>")]
    if alert.what:
        lines.append(escape_html(format_sentence(alert.what)))
    lines += [Html(f"{label}: {escape_html(value)}") for label, value in list_alert_facts(alert, zone)]
    if alert.link:
        page = f"The page of {alert.host}" if alert.host else "The board"
        lines.append(Html(f'<a href="{escape_html(clean_line(alert.link))}">{escape_html(page)}</a>'))
    return Html(f"{PARAGRAPH_START}{'<br>'.join(lines)}</p>")


def format_listed_alert(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """Format one of several alerts: everything in a line, and its link in another."""
    yield f"- {format_sentence(alert.title, capital=False)} {' '.join(describe_alert(alert, zone))}".rstrip()
    if alert.link:
        yield clean_line(alert.link)


def render_listed_alert(alert: Alert, zone: tzinfo) -> Html:
    """Render one of several alerts of a mail; its title is its link."""
    title = escape_html(clean_line(alert.title))
    if alert.link:
        title = Html(f'<a href="{escape_html(clean_line(alert.link))}">{title}</a>')
    return Html(f"{TIGHT_PARAGRAPH_START}<b>{title}</b><br>{escape_html(' '.join(describe_alert(alert, zone)))}</p>")


def describe_alert(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """Yield sentences with what the title does not say."""
    if alert.what:
        yield format_sentence(alert.what)
    place = format_alert_place(alert.host, alert.gpus)
    is_in_title = alert.host in alert.title and (len(alert.gpus) < 2 or place in alert.title)
    for label, value in list_alert_facts(alert, zone):
        if label != "On" or not is_in_title:
            yield f"{label}: {value}."


def list_alert_facts(alert: Alert, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Yield since when, where, and who is affected, as far as known."""
    if alert.since is not None and alert.until is not None:
        yield "When", format_period(alert.since, alert.until, zone)
    elif alert.since is not None:
        yield "Since" if alert.step in (STEP_BEGUN, STEP_OVER) else "When", format_zoned_moment(alert.since, zone)
    elif alert.step != STEP_TEST:
        yield "Noticed", format_zoned_moment(alert.at, zone)
    if alert.host:
        gpus = ", ".join(alert.gpus)
        yield "On", clean_line(f"{alert.host}, GPU{'s' * (len(alert.gpus) > 1)} {gpus}" if gpus else alert.host)
    if alert.people:
        names = ", ".join(alert.people[:MAX_LISTED_PEOPLE])
        omitted_count = len(alert.people) - MAX_LISTED_PEOPLE
        yield "Affected", clean_line(f"{names} and {omitted_count} more" if omitted_count > 0 else names)


def format_period(since: int, until: int, zone: tzinfo) -> str:
    """Format `Tue 17 Nov 14:02 to 16:02 UTC (2 h)`."""
    first, last = to_board_zone(since, zone), to_board_zone(until, zone)
    if first.date() == last.date() and first.tzname() == last.tzname():
        begin, end = format_day_and_clock(first), f"{last:%H:%M} {last.tzname()}"
    else:
        begin, end = format_zoned_moment(since, zone), format_zoned_moment(until, zone)
    return f"{begin} to {end} ({formatting.format_duration(until - since)})"


def format_zoned_moment(epoch: int, zone: tzinfo) -> str:
    """Format `Tue 17 Nov 14:02 UTC`: the reader may be in another zone."""
    local = to_board_zone(epoch, zone)
    return f"{format_day_and_clock(local)} {local.tzname()}"


def format_day_and_clock(local: datetime) -> str:
    day, month = formatting.DAY_NAMES[local.weekday()], formatting.MONTH_NAMES[local.month - 1]
    return f"{day} {local.day} {month} {local:%H:%M}"


def to_board_zone(epoch: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(min(max(epoch, 0), 2**33), zone)  # a host can claim any time


def format_sentence(text: str, capital: bool = True) -> str:
    """Make a sentence of a phrase; a name at its begin, such as `atlas:0`, gets no capital."""
    text = clean_line(text)
    first = text[:1].upper() if capital and ":" not in text.partition(" ")[0] else text[:1]
    return f"{first}{text[1:]}" + ("" if text.endswith((".", "!", "?", "…")) else ".")


def format_footer(alerts: tuple[Alert, ...]) -> str:
    """Explain why the reader gets this."""
    if any(alert.step == STEP_TEST for alert in alerts):
        return "Sent by gpuboard, as a test."
    rules = list(dict.fromkeys(alert.rule for alert in alerts))
    if not rules:
        return "Sent by gpuboard."
    return f"Sent by gpuboard, by the rule{'s' * (len(rules) > 1)} {', '.join(rules)}."


def clean_line(text: str) -> str:
    """Make one line of any text, without control characters and of limited length."""
    line = "".join(character if character.isprintable() else "?" for character in flatten_text(text))
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[: MAX_LINE_CHARACTERS - 1]}…"


def alert_to_json(alert: Alert) -> bytes:
    """Serialize an alert in one line, as docs/alert.schema.json describes."""
    document = {
        "schema": ALERT_SCHEMA,
        **alert._asdict(),
        "title": clean_line(alert.title),
        "what": clean_line(alert.what),
    }
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
