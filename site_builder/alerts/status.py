"""How far people know of what is the matter, for `gpuboard alerts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from site_builder.alerts.model import CHANNEL, PERSON, AlertRule, Book, Known, Letter
from site_builder.alerts.rules import Scene, counts_from, why_not
from site_builder.core import formatting
from site_builder.core.clock import Now

TOLD, WAITS, UNTOLD, COMING = "told", "waits", "untold", "coming"


class Standing(NamedTuple):
    """Something that is the matter, and how far people know of it: `told`, `waits` or `untold`, and the words why.

    What only comes is `coming`. `at` is since when it is so, or when it will be told.
    """

    known: Known
    state: str
    why: str
    at: int


def standings(book: Book, rules: Mapping[str, AlertRule], scene: Scene, now: Now) -> list[Standing]:
    """All that is the matter, the latest first; of what comes, the next."""
    waiting: dict[tuple[str, str, str], list[Letter]] = {}
    for letter in book.letters:
        for alert in letter.alerts:
            waiting.setdefault((alert.rule, alert.host, alert.about), []).append(letter)
    found = []
    for known in book.known.values():
        matter = known.matter
        since = known.seen if matter.since is None else matter.since
        letters = waiting.get((matter.rule, matter.host, matter.about))
        rule = rules.get(matter.rule)
        if letters:
            found.append(Standing(known, WAITS, why_waiting(letters, now), since))
        elif known.told is not None:
            found.append(Standing(known, TOLD, "", since))
        elif rule and rule.on and (comes := counts_from(matter, rule)) > now.epoch:
            found.append(Standing(known, COMING, "", comes))
        else:
            found.append(Standing(known, UNTOLD, why_not(known, rules, book.silences, scene, now), since))
    return sorted(found, key=lambda one: (one.at if one.state == COMING else -one.at, one.known.matter.key))


def why_waiting(several: Iterable[Letter], now: Now) -> str:
    """Why letters have not left yet."""
    found: dict[str, list[str]] = {}
    for letter in several:
        found.setdefault(why_waits(letter, now), []).append(called(letter.to))
    return "; ".join(
        f"the letter{'s' * (len(names) > 1)} to {formatting.names(names)} {'are' if len(names) > 1 else 'is'} {why}"
        for why, names in found.items()
    )


def why_waits(letter: Letter, now: Now) -> str:
    """The same of one, after `it is`."""
    if letter.claimed:
        return "being sent"
    if letter.due <= now.epoch:
        return "due"
    at = formatting.clock(datetime.fromtimestamp(letter.due, now.zone), now)
    when = f"tried again at {at}" if letter.tries else f"to leave at {at}"
    return f"{when} ({letter.why})" if letter.why else when


def called(to: str) -> str:
    """A receiver as rules and people call it."""
    return to[len(CHANNEL) :] if to.startswith(CHANNEL) else to[len(PERSON) :] if to.startswith(PERSON) else to
