"""A letter in words: what happened, since when, on what, who is affected, and where to look; and an alert as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo

from site_builder.alerts.model import BEGUN, OVER, PERSON, TEST, Alert, Letter, Message
from site_builder.alerts.titles import headline, place
from site_builder.core import formatting
from site_builder.core.html import Html, escaped
from site_builder.core.terminal_text import one_line

SCHEMA = 1
# What a letter lists one by one; a host can claim anything, and a chat shows less than that.
MOST = 40
MOST_PEOPLE = 12
LONGEST = 600
PARAGRAPH = Html('<p style="margin:0 0 12px">')
CLOSER = Html('<p style="margin:0 0 6px">')


def message(letter: Letter, zone: tzinfo, users: bool = True) -> Message:
    """A letter as it is sent; where people are not shown, nobody reads of another."""
    alerts = tuple(shown(alert, letter.to, users) for alert in letter.alerts)
    # what was listed may be over before it is sent, and what had no room is not
    title = cleaned(headline(alerts, letter.more)) if alerts else f"{letter.more} alerts"
    several = len(alerts) + letter.more > 1
    listed = alerts[:MOST]
    more = len(alerts) - len(listed) + letter.more
    text = "\n".join("\n".join((line_of if several else lines)(alert, zone)) for alert in listed)
    html = "".join((item if several else part)(alert, zone) for alert in listed)
    if more:
        rest = f"and {more} more" if listed else "`gpuboard alerts list` shows them."
        text += f"\n\n{rest}" if text else rest
        html += f"{PARAGRAPH}{rest}</p>"
    foot = footer(alerts)
    page = (
        f'<div style="font:15px/1.5 sans-serif">{html}<p style="font-size:13px;opacity:.75">{escaped(foot)}</p></div>'
    )
    return Message(title, f"{text}\n\n{foot}", page, document(alerts[0]) if alerts else b"")


def shown(alert: Alert, to: str, users: bool) -> Alert:
    """An alert with nobody in it but the reader, unless all are shown."""
    reader = to[len(PERSON) :] if to.startswith(PERSON) else None
    return alert if users else alert._replace(people=tuple(one for one in alert.people if one == reader))


def lines(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """What is told of an alert that is alone: its title stands above already."""
    if alert.what:
        yield sentence(alert.what)
    yield from (f"{label}: {value}" for label, value in facts(alert, zone))
    if alert.link:
        yield cleaned(alert.link)


def part(alert: Alert, zone: tzinfo) -> Html:
    """The same for a mail program; nothing in it needs a style sheet or a picture."""
    told = [Html(f"<b>{escaped(cleaned(alert.title))}</b>")]
    if alert.what:
        told.append(escaped(sentence(alert.what)))
    told += [Html(f"{label}: {escaped(value)}") for label, value in facts(alert, zone)]
    if alert.link:
        where = f"The page of {alert.host}" if alert.host else "The board"
        told.append(Html(f'<a href="{escaped(cleaned(alert.link))}">{escaped(where)}</a>'))
    return Html(f"{PARAGRAPH}{'<br>'.join(told)}</p>")


def line_of(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """One of several: all of it in a line, and its link in another."""
    yield f"- {sentence(alert.title, capital=False)} {' '.join(said(alert, zone))}".rstrip()
    if alert.link:
        yield cleaned(alert.link)


def item(alert: Alert, zone: tzinfo) -> Html:
    """The same for a mail program; its title is its link."""
    title = escaped(cleaned(alert.title))
    if alert.link:
        title = Html(f'<a href="{escaped(cleaned(alert.link))}">{title}</a>')
    return Html(f"{CLOSER}<b>{title}</b><br>{escaped(' '.join(said(alert, zone)))}</p>")


def said(alert: Alert, zone: tzinfo) -> Iterator[str]:
    """What its title does not say, in sentences."""
    if alert.what:
        yield sentence(alert.what)
    named = alert.host in alert.title and (len(alert.gpus) < 2 or place(alert.host, alert.gpus) in alert.title)
    yield from (f"{label}: {value}." for label, value in facts(alert, zone) if label != "On" or not named)


def facts(alert: Alert, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Since when, on what, and who is affected, as far as it is known."""
    if alert.since is not None and alert.until is not None:
        yield "When", f"{span(alert.since, alert.until, zone)}"
    elif alert.since is not None:
        yield "Since" if alert.step in (BEGUN, OVER) else "When", moment(alert.since, zone)
    elif alert.step != TEST:
        yield "Noticed", moment(alert.at, zone)
    if alert.host:
        gpus = ", ".join(alert.gpus)
        yield "On", cleaned(f"{alert.host}, GPU{'s' * (len(alert.gpus) > 1)} {gpus}" if gpus else alert.host)
    if alert.people:
        more = len(alert.people) - MOST_PEOPLE
        names = ", ".join(alert.people[:MOST_PEOPLE])
        yield "Affected", cleaned(f"{names} and {more} more" if more > 0 else names)


def span(since: int, until: int, zone: tzinfo) -> str:
    """`Tue 17 Nov 14:02 to 16:02 UTC (2 h)`."""
    first, last = here(since, zone), here(until, zone)
    if first.date() == last.date() and first.tzname() == last.tzname():
        begin, end = day_and_clock(first), f"{last:%H:%M} {last.tzname()}"
    else:
        begin, end = moment(since, zone), moment(until, zone)
    return f"{begin} to {end} ({formatting.duration(until - since)})"


def moment(epoch: int, zone: tzinfo) -> str:
    """`Tue 17 Nov 14:02 UTC`: whoever reads it may be elsewhere."""
    local = here(epoch, zone)
    return f"{day_and_clock(local)} {local.tzname()}"


def day_and_clock(local: datetime) -> str:
    """`Tue 17 Nov 14:02`."""
    return f"{formatting.DAYS[local.weekday()]} {local.day} {formatting.MONTHS[local.month - 1]} {local:%H:%M}"


def here(epoch: int, zone: tzinfo) -> datetime:
    """A time in the zone of the board; a host can claim any."""
    return datetime.fromtimestamp(min(max(epoch, 0), 2**33), zone)


def sentence(what: str, capital: bool = True) -> str:
    """What is the matter, as a sentence of its own; a name at its begin, such as `atlas:0`, keeps its letters."""
    text = cleaned(what)
    first = text[:1].upper() if capital and ":" not in text.partition(" ")[0] else text[:1]
    return f"{first}{text[1:]}" + ("" if text.endswith((".", "!", "?", "…")) else ".")


def footer(alerts: tuple[Alert, ...]) -> str:
    """Why somebody gets this."""
    rules = list(dict.fromkeys(alert.rule for alert in alerts))
    if any(alert.step == TEST for alert in alerts):
        return "Sent by gpuboard, as a test."
    return (
        f"Sent by gpuboard, by the rule{'s' * (len(rules) > 1)} {', '.join(rules)}." if rules else "Sent by gpuboard."
    )


def cleaned(text: str) -> str:
    """Any text in one line, with nothing in it that steers, of a length that leaves room for others."""
    line = "".join(letter if letter.isprintable() else "?" for letter in one_line(text))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def document(alert: Alert) -> bytes:
    """An alert as JSON in one line, as docs/alert.schema.json has it."""
    told = {"schema": SCHEMA, **alert._asdict(), "title": cleaned(alert.title), "what": cleaned(alert.what)}
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
