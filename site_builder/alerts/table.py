"""What `gpuboard alerts` shows: tables for a terminal, and JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from site_builder.alerts.model import Alert, AlertRule, Letter, Matter, Message, Outcome, Told
from site_builder.alerts.status import COMING, TOLD, UNTOLD, WAITS, Standing, called, why_waits
from site_builder.config.types import duration_of
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.terminal_text import cut, fit, one_line, width, wrap

SCHEMA = 1
GAP = "  "
NONE = "-"
LEAST_ROOM = 20
# Titles of one letter that are written out; --json has all.
MOST_TITLES = 5
SAID = {WAITS: "waits", UNTOLD: "no"}


class Row(NamedTuple):
    """A line of a table, and what is written below it."""

    cells: tuple[str, ...]
    below: tuple[str, ...] = ()


class Place(NamedTuple):
    """A receiver: as rules call it, its address masked, and why it cannot be used."""

    name: str
    shown: str
    problem: str | None = None


class Listed(NamedTuple):
    """All that `gpuboard alerts list` tells."""

    standings: Sequence[Standing]
    letters: Sequence[Letter]
    silences: Mapping[str, int]
    places: Sequence[Place]
    rules: Sequence[AlertRule]


class Trial(NamedTuple):
    """What `gpuboard alerts run --dry-run` tells: letters in words, where each goes, and how far all is told then."""

    letters: Sequence[tuple[Letter, Message, str]]
    standings: Sequence[Standing]


# In a terminal


def receiver(name: str) -> str:
    """A receiver as people call it; the mail server of the lab is the way to all of them."""
    return "people" if name == "mail" else called(name).rstrip(":")


def listed(found: Listed, now: Now, across: int | None) -> list[str]:
    """What is the matter first, then what waits, who is silent, and by which rules."""
    so = [one for one in found.standings if one.state != COMING]
    lines = [f"What is the matter: {len(so) or 'nothing'}"]
    lines += table(("since", "rule", "where", "told"), [standing(one, now) for one in so], across)
    lines += coming(found.standings, now, across)
    if found.letters:
        lines += ["", f"Letters that wait: {len(found.letters)}", *letters(found.letters, now, across)]
    if found.silences:
        lines += ["", "Silent"]
        lines += [f"{GAP}{host} until {clock(until, now)}" for host, until in sorted(found.silences.items())]
    lines += ["", f"Where alerts go{'' if found.places else ': nowhere yet'}"]
    lines += table(
        (),
        [Row((receiver(one.name), one.shown), (one.problem,) if one.problem else ()) for one in found.places],
        across,
    )
    lines += [
        "",
        "Rules",
        *table(("rule", "when", "to", "quiet", "an hour"), [rule(one) for one in found.rules], across),
    ]
    return lines


def standing(one: Standing, now: Now) -> Row:
    """Something that is the matter."""
    known, matter = one.known, one.known.matter
    told = clock(known.told, now) if one.state == TOLD and known.told is not None else SAID[one.state]
    below = [matter.what]
    if matter.people:
        below.append(f"affects {formatting.names(matter.people)}")
    if one.why:
        below.append(one.why)
    if known.gone is not None:
        below.append(f"over since {clock(known.gone, now)}")
    return Row((clock(one.at, now), matter.rule, place(matter), told), ("; ".join(filter(None, below)),))


def coming(several: Iterable[Standing], now: Now, across: int | None) -> list[str]:
    """What will be told, if it is so then."""
    rows = [
        Row(
            (
                clock(one.at, now),
                one.known.matter.rule,
                place(one.known.matter),
                formatting.names(one.known.matter.whose),
            )
        )
        for one in several
        if one.state == COMING
    ]
    return ["", f"To come: {len(rows)}", *table(("at", "rule", "where", "whose"), rows, across)] if rows else []


def letters(several: Iterable[Letter], now: Now, across: int | None) -> list[str]:
    """Letters, with what is in them."""
    rows = []
    for one in several:
        due = "being sent" if one.claimed else "now" if one.due <= now.epoch else clock(one.due, now)
        below = (
            *titles(one.alerts, one.more),
            *([f"tried {times(one.tries)}: {one.why or 'nobody knows why not'}"] if one.tries else []),
        )
        rows.append(Row((clock(one.made, now), called(one.to), due), below))
    return table(("written", "to", "leaves"), rows, across)


def rehearsed(found: Trial, now: Now, across: int | None) -> list[str]:
    """Letter by letter what would be sent, and why; then what would not be, and what comes."""
    lines = [f"Would be sent: {plural(len(found.letters), 'letter')}"]
    same: dict[tuple[str, ...], list[str]] = {}  # one that goes to several is shown once
    for one, message, address in found.letters:
        whys = dict.fromkeys(f"why: {alert.why}" for alert in one.alerts if alert.why)
        text = "\n".join((message.title, message.text.strip()))
        to = ", ".join(filter(None, (f"to {called(one.to)}", address, why_waits(one, now))))
        same.setdefault((text, *whys), []).append(to)
    for (text, *reasons), several in same.items():
        lines += ["", *(line for to in several for line in wrapped(to, across, GAP))]
        for line in text.splitlines():
            lines += [f"{GAP}| {part}" for part in broken(line, across, 2 * len(GAP))] or [f"{GAP}|"]
        lines += [line for why in reasons for line in wrapped(why, across, GAP)]
    untold = [unsaid(one, now) for one in found.standings if one.state == UNTOLD]
    lines += ["", f"Would not be told: {len(untold) or 'nothing'}", *table(("since", "rule", "where"), untold, across)]
    return [*lines, *coming(found.standings, now, across)]


def unsaid(one: Standing, now: Now) -> Row:
    """Something of which no letter would be written."""
    row = standing(one, now)
    return row._replace(cells=row.cells[:-1])


def history(several: Sequence[Told], now: Now, across: int | None) -> list[str]:
    """What was told, and how that went."""
    rows = []
    for one in several:
        tries = f", after {one.tries} tries" if one.tries > 1 else ""
        below = (*titles(one.alerts), *([one.why] if one.why else []))
        rows.append(Row((clock(one.at, now), called(one.to), f"{one.how}{tries}"), below))
    return table(("when", "to", "how"), rows, across)


def rule(one: AlertRule) -> Row:
    """A rule in force."""
    if not one.on:
        return Row((one.name, "off"))
    quiet = f"{minute(one.quiet[0])}-{minute(one.quiet[1])}" if one.quiet else NONE
    return Row((one.name, when(one), ", ".join(one.to) or NONE, quiet, str(one.most)))


def when(one: AlertRule) -> str:
    """From when on it counts, and is over."""
    if one.at:
        return f"{formatting.DAYS[one.at[0]]} {minute(one.at[1])}"
    told = [
        f"{duration_of(one.before)} before"
        if one.before
        else f"after {duration_of(one.hold)}"
        if one.hold
        else "at once"
    ]
    if one.recovery and one.over:
        told.append(f"over after {duration_of(one.over)}")
    return ", ".join(told)


def minute(of_day: int) -> str:
    """`07:30`."""
    return f"{of_day // 60:02}:{of_day % 60:02}"


def titles(alerts: Sequence[Alert], more: int = 0) -> list[str]:
    """What is in a letter, a line each."""
    told = [one.title for one in alerts[:MOST_TITLES]]
    more += len(alerts) - len(told)
    return [*told, *([f"and {more} more"] if more else [])]


def place(matter: Matter) -> str:
    """Where it is: `atlas:0,3`, or of what is on no host, what it is about."""
    return f"{matter.host}:{','.join(matter.gpus)}" if matter.gpus else matter.host or matter.about


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"


def clock(epoch: float, now: Now) -> str:
    """That moment, as people read it."""
    return formatting.clock(datetime.fromtimestamp(epoch, now.zone), now)


def table(head: Sequence[str], rows: Sequence[Row], across: int | None) -> list[str]:
    """Columns, and below each line what it is about, in as many lines as that takes; None cuts nothing."""
    if not rows:
        return []
    cells = [tuple(map(one_line, row.cells)) for row in rows]
    every = [*([tuple(head)] if head else []), *cells]
    widths = [
        max((width(line[at]) for line in every if at < len(line)), default=0) for at in range(max(map(len, every)))
    ]
    found = [side_by_side(head, widths, across)] if head else []
    for row, line in zip(rows, cells):
        found.append(side_by_side(line, widths, across))
        for text in row.below:
            found += wrapped(text, across)
    return found


def side_by_side(cells: Sequence[str], widths: Sequence[int], across: int | None) -> str:
    """Cells in columns."""
    line = GAP + GAP.join(fit(text, one) for text, one in zip(cells, widths)).rstrip()
    return line if across is None else cut(line, across)


def wrapped(text: str, across: int | None, indent: str = GAP * 3) -> Iterator[str]:
    """A text below a line."""
    for line in broken(text, across, len(indent)):
        yield indent + line


def broken(text: str, across: int | None, indent: int) -> list[str]:
    """A text in as many lines as it takes; None breaks nothing."""
    text = one_line(text)
    return wrap(text, max(LEAST_ROOM, across - indent)) if across is not None else [text] if text else []


def plural(count: int, word: str) -> str:
    """`1 letter`, `3 letters`, `no letters`."""
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def outcome(to: str, how: Outcome) -> str:
    """How a test went: `lab: sent`."""
    said = {"sent": "sent", "failed": "not sent", "refused": "refused", "unsure": "nobody knows whether it arrived"}
    return f"{called(to)}: {said.get(how.how, how.how)}" + (f": {how.why}" if how.why and how.how != "sent" else "")


def sent(letter: Letter, how: Outcome) -> list[str]:
    """How a letter went, and what is in it."""
    return [outcome(letter.to, how), *(f"{GAP * 3}{title}" for title in titles(letter.alerts, letter.more))]


# For programs


def json(told: Mapping[str, Any]) -> bytes:
    """All of it, with the version of its form."""
    return orjson.dumps({"schema": SCHEMA, **told}, option=orjson.OPT_INDENT_2)


def listed_json(found: Listed) -> bytes:
    """The same for programs."""
    return json(
        {
            "matters": [matter_json(one) for one in found.standings],
            "letters": [letter_json(one) for one in found.letters],
            "silences": [{"host": host, "until": until} for host, until in sorted(found.silences.items())],
            "places": [one._asdict() for one in found.places],
            "rules": [one._asdict() for one in found.rules],
        }
    )


def matter_json(one: Standing) -> dict[str, Any]:
    """Something that is the matter."""
    known, matter = one.known, one.known.matter
    return {
        **{key: getattr(matter, key) for key in ("rule", "host", "about", "gpus", "what", "since", "people")},
        "seen": known.seen,
        "at": one.at,
        "state": one.state,
        "told": known.told,
        "over_since": known.gone,
        "why": one.why,
    }


def letter_json(one: Letter) -> dict[str, Any]:
    """A letter that waits."""
    return {
        "to": one.to,
        "via": one.via,
        "written": one.made,
        "leaves": one.due,
        "being_sent": bool(one.claimed),
        "tries": one.tries,
        "why": one.why,
        "alerts": [alert._asdict() for alert in one.alerts],
        "more": one.more,
    }


def rehearsed_json(found: Trial) -> bytes:
    """The same of what would be sent."""
    letters = [
        {**letter_json(one), "address": address, "title": message.title, "text": message.text}
        for one, message, address in found.letters
    ]
    return json({"letters": letters, "matters": [matter_json(one) for one in found.standings]})


def told_json(several: Iterable[Told]) -> bytes:
    """The history."""
    lines = [{**one._asdict(), "alerts": [alert._asdict() for alert in one.alerts]} for one in several]
    return json({"history": lines})


def outcomes_json(several: Iterable[tuple[str, Outcome]]) -> bytes:
    """How tests went."""
    return json({"tests": [{"to": to, "how": how.how, "why": how.why} for to, how in several]})
