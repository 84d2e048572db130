"""Render alerts and notifications as text, HTML and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo

from site_builder.alerts import model
from site_builder.alerts.model import Alert, AlertMessage, Condition, Notification, parse_person_receiver
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.html import Html, escape_html
from site_builder.core.terminal_text import flatten_terminal_text, replace_unprintable

# What a title says of one GPU, host or booking, while a condition exists and after it.
ACTIVE_PHRASES = {
    "host-down": "is down",
    "host-failed": "has failed",
    "host-new": "is new on the board",
    "gpu-lost": "is lost",
    "gpu-hot": "is too hot",
    "gpu-error": "has an error",
    "gpu-xid": "has an Xid error",
    "gpu-held": "is held idle",
    "booking-begins": "has begun",
    "booking-ends": "has ended",
    "booking-broken": "is in conflict",
    "booking-unused": "is unused",
}
OVER_PHRASES = {
    "host-down": "is back",
    "host-failed": "works again",
    "gpu-lost": "is back",
    "gpu-hot": "has cooled down",
    "gpu-error": "has recovered from an error",
    "gpu-held": "is no longer held idle",
    "booking-broken": "is no longer in conflict",
    "booking-unused": "is used",
}
PLURAL_VERBS = {"is": "are", "has": "have", "works": "work"}
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
    if condition.rule == model.WEEKLY_REPORT_RULE:
        return f"weekly report {condition.about}"
    if condition.rule == model.WATCH_RULE:
        free = condition.what.partition(";")[0]
        return shorten_alert_line(f"{reader}: {free}" if reader else free)
    place, owners = format_alert_place(condition.host, condition.gpus), formatting.format_names(condition.owners)
    if condition.rule == "gpu-held":  # who holds it comes first
        if step == model.STEP_OVER:
            return f"{place} {OVER_PHRASES['gpu-held']}"
        if reader:
            return f"{reader}: you hold {place} idle"
        if not owners:
            return f"{place} {ACTIVE_PHRASES['gpu-held']}"
        return f"{owners} hold{'' if len(condition.owners) > 1 else 's'} {place} idle"
    if condition.rule in model.HOST_RULES:
        subject = condition.host
    elif condition.rule in model.BOOKING_RULES:
        subject = f"the booking of {place} by {owners}" if owners else f"a booking of {place}"
        if reader:
            subject = f"{reader}: your booking of {place}"
    else:
        subject = f"{f'GPU {condition.gpus[0]}' if len(condition.gpus) == 1 else 'a GPU'} of {condition.host}"
    if step == model.STEP_OVER:
        after = "" if lasted is None else f", after {formatting.format_duration(max(lasted, 1))}"
        return shorten_alert_line(f"{subject} {OVER_PHRASES.get(condition.rule, 'is over')}{after}")
    begins, ends = condition.since, condition.until
    phrase = ACTIVE_PHRASES.get(condition.rule, "has a problem")
    if condition.rule == "booking-begins" and begins is not None and begins > now.epoch:
        phrase = f"begins at {format_alert_time(begins, now)}"
    if condition.rule == "booking-ends" and ends is not None and ends > now.epoch:
        phrase = f"ends at {format_alert_time(ends, now)}"
    return shorten_alert_line(f"{subject} {phrase}")


def format_alert_place(host: str, gpus: Sequence[str]) -> str:
    """Format `atlas:0,1`, as commands take it."""
    return f"{host}:{','.join(gpus)}" if gpus else host


def format_alert_time(epoch: float, now: Now) -> str:
    """Format a time: `18:00`, `tomorrow 09:00`."""
    return formatting.format_moment(datetime.fromtimestamp(epoch, now.zone), now)


def format_notification_headline(alerts: Sequence[Alert], omitted_count: int = 0) -> str:
    """Format the title of a notification: `atlas is down`, `5 hosts are down: atlas, boreas and 3 more`."""
    if alerts[0].rule in model.GPU_RULES:  # a GPU may have several errors
        alerts = list(
            {(alert.rule, alert.step, alert.host, alert.gpus or alert.about): alert for alert in alerts}.values()
        )
    count = len(alerts) + omitted_count
    if count == 1:
        return alerts[0].title
    kinds = {(alert.rule, alert.step) for alert in alerts}
    rule, step = alerts[0].rule, alerts[0].step
    phrase = (OVER_PHRASES if step == model.STEP_OVER else ACTIVE_PHRASES).get(rule)
    if len(kinds) > 1 or phrase is None or rule in model.BOOKING_RULES:
        return shorten_alert_line(f"{count} alerts: {'; '.join(alert.title for alert in alerts)}")
    verb, _, rest = phrase.partition(" ")
    phrase = f"{PLURAL_VERBS.get(verb, verb)} {rest}"
    hosts = list(dict.fromkeys(alert.host for alert in alerts if alert.host))
    if rule in model.HOST_RULES:
        return shorten_alert_line(f"{count} hosts {phrase}: {format_alert_name_list(hosts, count)}")
    if len(hosts) == 1:
        numbers = [number for alert in alerts for number in alert.gpus]
        return shorten_alert_line(f"{count} GPUs of {hosts[0]} {phrase}: {format_alert_name_list(numbers, count)}")
    places = [format_alert_place(alert.host, alert.gpus) for alert in alerts]
    return shorten_alert_line(f"{count} GPUs {phrase}: {format_alert_name_list(places, count)}")


def format_alert_name_list(names: Sequence[str], count: int) -> str:
    """Format `a, b and 3 more`; `count` includes those that have no name."""
    if count <= MAX_NAMES and len(names) == count:
        return ", ".join(names)
    listed = names[: MAX_NAMES - 1]
    return f"{', '.join(listed)} and {count - len(listed)} more"


def shorten_alert_line(text: str, max_characters: int = MAX_TITLE_CHARACTERS) -> str:
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"


def render_notification(notification: Notification, zone: tzinfo, shows_users: bool = True) -> AlertMessage:
    """Render a notification; where people are hidden, nobody reads of another."""
    alerts = notification.alerts
    if not shows_users:
        reader = parse_person_receiver(notification.to)
        alerts = tuple(
            alert._replace(people=tuple(person for person in alert.people if person == reader)) for alert in alerts
        )
    # all listed alerts may be over before it is sent, while those without room are not
    title = f"{notification.omitted_count} alerts"
    if alerts:
        title = clean_notification_line(format_notification_headline(alerts, notification.omitted_count))
    listed = alerts[:MAX_LISTED_ALERTS]
    omitted_count = len(alerts) - len(listed) + notification.omitted_count
    render_alert = render_listed_alert if len(listed) + omitted_count > 1 else render_single_alert
    texts, htmls = zip(*(render_alert(alert, zone) for alert in listed)) if listed else ((), ())
    text, html = "\n".join(texts), "".join(htmls)
    if omitted_count:
        rest = f"and {omitted_count} more" if listed else "`gpuboard alerts list` shows them."
        text += f"\n\n{rest}" if text else rest
        html += f"{PARAGRAPH_START}{rest}</p>"
    rules = list(dict.fromkeys(alert.rule for alert in alerts))
    footer = "Sent by gpuboard"  # and why the reader gets this
    if any(alert.step == model.STEP_TEST for alert in alerts):
        footer += ", as a test"
    elif rules:
        footer += f", by the rule{'s' * (len(rules) > 1)} {', '.join(rules)}"
    html += f'<p style="font-size:13px;opacity:.75">{escape_html(footer)}.</p>'
    return AlertMessage(
        title=title,
        text=f"{text}\n\n{footer}.",
        html=f'<div style="font:15px/1.5 sans-serif">{html}</div>',
        hook_json=render_alert_json(alerts[0]) if alerts else b"",
    )


def render_single_alert(alert: Alert, zone: tzinfo) -> tuple[str, Html]:
    """Render the only alert of a notification as text without its title, and for a mail."""
    lines = [format_alert_sentence(alert.what)] if alert.what else []
    lines += [f"{label}: {value}" for label, value in list_alert_facts(alert, zone)]
    html_lines = [Html(f"<b>{escape_html(clean_notification_line(alert.title))}</b>"), *map(escape_html, lines)]
    if alert.link:
        lines.append(clean_notification_line(alert.link))
        page = f"The page of {alert.host}" if alert.host else "The board"
        html_lines.append(Html(f'<a href="{escape_html(lines[-1])}">{escape_html(page)}</a>'))
    return "\n".join(lines), Html(f"{PARAGRAPH_START}{'<br>'.join(html_lines)}</p>")


def render_listed_alert(alert: Alert, zone: tzinfo) -> tuple[str, Html]:
    """Render one of several alerts: as a line of text with its link below, and for a mail with its title as link."""
    sentences = [format_alert_sentence(alert.what)] if alert.what else []
    place = format_alert_place(alert.host, alert.gpus)
    is_in_title = alert.host in alert.title and (len(alert.gpus) < 2 or place in alert.title)
    for label, value in list_alert_facts(alert, zone):
        if label != "On" or not is_in_title:
            sentences.append(f"{label}: {value}.")
    rest = " ".join(sentences)
    text = f"- {format_alert_sentence(alert.title, capital=False)} {rest}".rstrip()
    title = escape_html(clean_notification_line(alert.title))
    if alert.link:
        link = clean_notification_line(alert.link)
        text += f"\n{link}"
        title = Html(f'<a href="{escape_html(link)}">{title}</a>')
    return text, Html(f"{TIGHT_PARAGRAPH_START}<b>{title}</b><br>{escape_html(rest)}</p>")


def list_alert_facts(alert: Alert, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Yield since when, where, and who is affected, as far as known."""
    if alert.since is not None and alert.until is not None:
        first, last = to_notification_zone(alert.since, zone), to_notification_zone(alert.until, zone)
        begin, end = format_alert_moment(alert.since, zone), format_alert_moment(alert.until, zone)
        if first.date() == last.date() and first.tzname() == last.tzname():
            begin, end = f"{formatting.format_weekday_date(first)} {first:%H:%M}", f"{last:%H:%M} {last.tzname()}"
        yield "When", f"{begin} to {end} ({formatting.format_duration(alert.until - alert.since)})"
    elif alert.since is not None:
        label = "Since" if alert.step in (model.STEP_BEGUN, model.STEP_OVER) else "When"
        yield label, format_alert_moment(alert.since, zone)
    elif alert.step != model.STEP_TEST:
        yield "Noticed", format_alert_moment(alert.at, zone)
    if alert.host:
        gpus = f", GPU{'s' * (len(alert.gpus) > 1)} {', '.join(alert.gpus)}" if alert.gpus else ""
        yield "On", clean_notification_line(f"{alert.host}{gpus}")
    if alert.people:
        names = ", ".join(alert.people[:MAX_LISTED_PEOPLE])
        omitted_count = len(alert.people) - MAX_LISTED_PEOPLE
        yield "Affected", clean_notification_line(f"{names} and {omitted_count} more" if omitted_count > 0 else names)


def format_alert_moment(epoch: int, zone: tzinfo) -> str:
    """Format `Tue 17 Nov 14:02 UTC`: the reader may be in another zone."""
    local = to_notification_zone(epoch, zone)
    return f"{formatting.format_weekday_date(local)} {local:%H:%M} {local.tzname()}"


def to_notification_zone(epoch: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(min(max(epoch, 0), 2**33), zone)  # a host can claim any time


def format_alert_sentence(text: str, capital: bool = True) -> str:
    """Make a sentence of a phrase; a name at its begin, such as `atlas:0`, gets no capital."""
    text = clean_notification_line(text)
    first = text[:1].upper() if capital and ":" not in text.partition(" ")[0] else text[:1]
    return f"{first}{text[1:]}" + ("" if text.endswith((".", "!", "?", "…")) else ".")


def clean_notification_line(text: str) -> str:
    """Make one line of any text, without control characters and of limited length."""
    return shorten_alert_line(replace_unprintable(flatten_terminal_text(text)), MAX_LINE_CHARACTERS)


def render_alert_json(alert: Alert) -> bytes:
    """Serialize an alert in one line, as docs/alert.schema.json describes."""
    document = {
        "schema": ALERT_SCHEMA,
        **alert._asdict(),
        "title": clean_notification_line(alert.title),
        "what": clean_notification_line(alert.what),
    }
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
