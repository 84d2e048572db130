"""Render notifications as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo

from site_builder.alerts.model import (
    BOOKING_RULES,
    HOST_RULES,
    PERSON_PREFIX,
    STEP_BEGUN,
    STEP_OVER,
    STEP_TEST,
    Alert,
    Condition,
    Message,
    Notification,
)
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.html import Html, escape_html
from site_builder.core.terminal_text import flatten_text

# Of each rule: what is so, and what is said when it is over. Of several, the verb is another.
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
# The names that a title has room for.
MAX_NAMES = 5
MAX_TITLE_CHARACTERS = 200


def format_alert_title(matter: Condition, step: str, lasted: int | None, reader: str | None, now: Now) -> str:
    """An alert in a line; of what is over, with how many seconds it `lasted`. `reader` is who alone reads it, if so."""
    if matter.rule == "weekly-report":
        return f"the report of {matter.about}"
    if matter.rule == "watch":
        free = matter.what.partition(";")[0]
        return shorten_title(f"{reader}: {free}" if reader else free)
    if matter.rule == "gpu-held":
        return format_held_title(matter, step, reader)
    said = OVER_PHRASES.get(matter.rule, "is over") if step == STEP_OVER else describe_condition(matter, now)
    after = f", after {formatting.format_duration(max(lasted, 1))}" if step == STEP_OVER and lasted is not None else ""
    return shorten_title(f"{describe_subject(matter, reader)} {said}{after}")


def format_held_title(matter: Condition, step: str, reader: str | None) -> str:
    """Of a GPU that is held idle, whose doing it is stands first."""
    gpu = format_alert_place(matter.host, matter.gpus)
    if step == STEP_OVER:
        return f"{gpu} {OVER_PHRASES['gpu-held']}"
    if reader:
        return f"{reader}: you hold {gpu} idle"
    if not matter.owners:
        return f"{gpu} {ACTIVE_PHRASES['gpu-held']}"
    return f"{formatting.join_names(matter.owners)} hold{'' if len(matter.owners) > 1 else 's'} {gpu} idle"


def describe_condition(matter: Condition, now: Now) -> str:
    """What is so; of a booking also what comes."""
    begins, ends = matter.since, matter.until
    if matter.rule == "booking-begins" and begins is not None and begins > now.epoch:
        return f"begins at {format_epoch(begins, now)}"
    if matter.rule == "booking-ends" and ends is not None and ends > now.epoch:
        return f"ends at {format_epoch(ends, now)}"
    return ACTIVE_PHRASES.get(matter.rule, "is the matter")


def describe_subject(matter: Condition, reader: str | None) -> str:
    """What it is about: `atlas`, `GPU 3 of atlas`, `alice: your booking of atlas:0,1`."""
    if matter.rule in HOST_RULES:
        return matter.host
    if matter.rule in BOOKING_RULES:
        of = format_alert_place(matter.host, matter.gpus)
        if reader:
            return f"{reader}: your booking of {of}"
        return (
            f"the booking of {of} by {formatting.join_names(matter.owners)}" if matter.owners else f"a booking of {of}"
        )
    if len(matter.gpus) == 1:
        return f"GPU {matter.gpus[0]} of {matter.host}"
    return f"a GPU of {matter.host}"


def format_alert_place(host: str, gpus: Sequence[str]) -> str:
    """`atlas:0,1`, as commands take it."""
    return f"{host}:{','.join(gpus)}" if gpus else host


def format_epoch(at: int, now: Now) -> str:
    """`18:00`, `tomorrow 09:00`."""
    return formatting.format_moment(datetime.fromtimestamp(at, now.zone), now)


def format_headline(alerts: Sequence[Alert], more: int = 0) -> str:
    """All of a letter in a line: `atlas is down`, `5 hosts are down: atlas, boreas and 3 more`, `4 alerts: …`."""
    counted = len(alerts) + more
    if counted == 1:
        return alerts[0].title
    kinds = {(one.rule, one.step) for one in alerts}
    rule, step = alerts[0].rule, alerts[0].step
    said = (OVER_PHRASES if step == STEP_OVER else ACTIVE_PHRASES).get(rule)
    if len(kinds) > 1 or said is None or rule in BOOKING_RULES:
        return shorten_title(f"{counted} alerts: {'; '.join(one.title for one in alerts)}")
    verb, _, rest = said.partition(" ")
    said = f"{PLURAL_VERBS.get(verb, verb)} {rest}"
    hosts = list(dict.fromkeys(one.host for one in alerts if one.host))
    if rule in HOST_RULES:
        return shorten_title(f"{counted} hosts {said}: {format_name_list(hosts, counted)}")
    if len(hosts) == 1:
        numbers = [number for one in alerts for number in one.gpus]
        return shorten_title(f"{counted} GPUs of {hosts[0]} {said}: {format_name_list(numbers, counted)}")
    places = [format_alert_place(one.host, one.gpus) for one in alerts]
    return shorten_title(f"{counted} GPUs {said}: {format_name_list(places, counted)}")


def format_name_list(names: Sequence[str], count: int) -> str:
    """`a, b and 3 more` of so many in all."""
    if count <= MAX_NAMES and len(names) == count:
        return ", ".join(names)
    some = names[: MAX_NAMES - 1]
    return f"{', '.join(some)} and {count - len(some)} more"


def shorten_title(text: str) -> str:
    """As much as a title has room for."""
    return text if len(text) <= MAX_TITLE_CHARACTERS else f"{text[: MAX_TITLE_CHARACTERS - 1]}…"


ALERT_SCHEMA = 1
# What a letter lists one by one; a host can claim anything, and a chat shows less than that.
MAX_LISTED_ALERTS = 40
MAX_LISTED_PEOPLE = 12
MAX_LINE_CHARACTERS = 600
PARAGRAPH_START = Html('<p style="margin:0 0 12px">')
TIGHT_PARAGRAPH_START = Html('<p style="margin:0 0 6px">')


def render_notification(letter: Notification, zone: tzinfo, users: bool = True) -> Message:
    """A letter as it is sent; where people are not shown, nobody reads of another."""
    alerts = tuple(hide_other_people(alert, letter.to, users) for alert in letter.alerts)
    # what was listed may be over before it is sent, and what had no room is not
    title = clean_line(format_headline(alerts, letter.omitted_count)) if alerts else f"{letter.omitted_count} alerts"
    several = len(alerts) + letter.omitted_count > 1
    listed = alerts[:MAX_LISTED_ALERTS]
    more = len(alerts) - len(listed) + letter.omitted_count
    text = "\n".join(
        "\n".join((format_listed_alert if several else format_single_alert)(alert, zone)) for alert in listed
    )
    html = "".join((render_listed_alert if several else render_single_alert)(alert, zone) for alert in listed)
    if more:
        rest = f"and {more} more" if listed else "`gpuboard alerts list` shows them."
        text += f"\n\n{rest}" if text else rest
        html += f"{PARAGRAPH_START}{rest}</p>"
    foot = format_footer(alerts)
    page = f'<div style="font:15px/1.5 sans-serif">{html}<p style="font-size:13px;opacity:.75">{escape_html(foot)}</p></div>'
    return Message(title, f"{text}\n\n{foot}", page, alert_to_json(alerts[0]) if alerts else b"")


def hide_other_people(alert: Alert, to: str, users: bool) -> Alert:
    """An alert with nobody in it but the reader, unless all are shown."""
    reader = to[len(PERSON_PREFIX) :] if to.startswith(PERSON_PREFIX) else None
    return alert if users else alert._replace(people=tuple(one for one in alert.people if one == reader))


def format_single_alert(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """What is told of an alert that is alone: its title stands above already."""
    if alert.what:
        yield format_sentence(alert.what)
    yield from (f"{label}: {value}" for label, value in list_alert_facts(alert, zone))
    if alert.link:
        yield clean_line(alert.link)


def render_single_alert(alert: Alert, zone: tzinfo) -> Html:
    """The same for a mail program; nothing in it needs a style sheet or a picture."""
    told = [Html(f"<b>{escape_html(clean_line(alert.title))}</b>")]
    if alert.what:
        told.append(escape_html(format_sentence(alert.what)))
    told += [Html(f"{label}: {escape_html(value)}") for label, value in list_alert_facts(alert, zone)]
    if alert.link:
        where = f"The page of {alert.host}" if alert.host else "The board"
        told.append(Html(f'<a href="{escape_html(clean_line(alert.link))}">{escape_html(where)}</a>'))
    return Html(f"{PARAGRAPH_START}{'<br>'.join(told)}</p>")


def format_listed_alert(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """One of several: all of it in a line, and its link in another."""
    yield f"- {format_sentence(alert.title, capital=False)} {' '.join(describe_alert(alert, zone))}".rstrip()
    if alert.link:
        yield clean_line(alert.link)


def render_listed_alert(alert: Alert, zone: tzinfo) -> Html:
    """The same for a mail program; its title is its link."""
    title = escape_html(clean_line(alert.title))
    if alert.link:
        title = Html(f'<a href="{escape_html(clean_line(alert.link))}">{title}</a>')
    return Html(f"{TIGHT_PARAGRAPH_START}<b>{title}</b><br>{escape_html(' '.join(describe_alert(alert, zone)))}</p>")


def describe_alert(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """What its title does not say, in sentences."""
    if alert.what:
        yield format_sentence(alert.what)
    named = alert.host in alert.title and (
        len(alert.gpus) < 2 or format_alert_place(alert.host, alert.gpus) in alert.title
    )
    yield from (f"{label}: {value}." for label, value in list_alert_facts(alert, zone) if label != "On" or not named)


def list_alert_facts(alert: Alert, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Since when, on what, and who is affected, as far as it is known."""
    if alert.since is not None and alert.until is not None:
        yield "When", f"{format_period(alert.since, alert.until, zone)}"
    elif alert.since is not None:
        yield "Since" if alert.step in (STEP_BEGUN, STEP_OVER) else "When", format_zoned_moment(alert.since, zone)
    elif alert.step != STEP_TEST:
        yield "Noticed", format_zoned_moment(alert.at, zone)
    if alert.host:
        gpus = ", ".join(alert.gpus)
        yield "On", clean_line(f"{alert.host}, GPU{'s' * (len(alert.gpus) > 1)} {gpus}" if gpus else alert.host)
    if alert.people:
        more = len(alert.people) - MAX_LISTED_PEOPLE
        names = ", ".join(alert.people[:MAX_LISTED_PEOPLE])
        yield "Affected", clean_line(f"{names} and {more} more" if more > 0 else names)


def format_period(since: int, until: int, zone: tzinfo) -> str:
    """`Tue 17 Nov 14:02 to 16:02 UTC (2 h)`."""
    first, last = to_board_zone(since, zone), to_board_zone(until, zone)
    if first.date() == last.date() and first.tzname() == last.tzname():
        begin, end = format_day_and_clock(first), f"{last:%H:%M} {last.tzname()}"
    else:
        begin, end = format_zoned_moment(since, zone), format_zoned_moment(until, zone)
    return f"{begin} to {end} ({formatting.format_duration(until - since)})"


def format_zoned_moment(epoch: int, zone: tzinfo) -> str:
    """`Tue 17 Nov 14:02 UTC`: whoever reads it may be elsewhere."""
    local = to_board_zone(epoch, zone)
    return f"{format_day_and_clock(local)} {local.tzname()}"


def format_day_and_clock(local: datetime) -> str:
    """`Tue 17 Nov 14:02`."""
    return (
        f"{formatting.DAY_NAMES[local.weekday()]} {local.day} {formatting.MONTH_NAMES[local.month - 1]} {local:%H:%M}"
    )


def to_board_zone(epoch: int, zone: tzinfo) -> datetime:
    """A time in the zone of the board; a host can claim any."""
    return datetime.fromtimestamp(min(max(epoch, 0), 2**33), zone)


def format_sentence(what: str, capital: bool = True) -> str:
    """What is the matter, as a sentence of its own; a name at its begin, such as `atlas:0`, keeps its letters."""
    text = clean_line(what)
    first = text[:1].upper() if capital and ":" not in text.partition(" ")[0] else text[:1]
    return f"{first}{text[1:]}" + ("" if text.endswith((".", "!", "?", "…")) else ".")


def format_footer(alerts: tuple[Alert, ...]) -> str:
    """Why somebody gets this."""
    rules = list(dict.fromkeys(alert.rule for alert in alerts))
    if any(alert.step == STEP_TEST for alert in alerts):
        return "Sent by gpuboard, as a test."
    return (
        f"Sent by gpuboard, by the rule{'s' * (len(rules) > 1)} {', '.join(rules)}." if rules else "Sent by gpuboard."
    )


def clean_line(text: str) -> str:
    """Any text in one line, with nothing in it that steers, of a length that leaves room for others."""
    line = "".join(letter if letter.isprintable() else "?" for letter in flatten_text(text))
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[: MAX_LINE_CHARACTERS - 1]}…"


def alert_to_json(alert: Alert) -> bytes:
    """An alert as JSON in one line, as docs/alert.schema.json has it."""
    told = {"schema": ALERT_SCHEMA, **alert._asdict(), "title": clean_line(alert.title), "what": clean_line(alert.what)}
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
