"""alerts.conf: what is told, when and to whom, in sections of `key = value`; what it does not say is as by default.

Python's own reader of such files tells neither in which line a value stands nor what else it has, once a line is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from site_builder.alerts.model import RULES, AlertRule
from site_builder.config.types import NO_CHANNELS, Kind, duration, duration_of, within
from site_builder.core.formatting import DAYS, names
from site_builder.snapshots.envelope import bounded, text_of

ALL = "all"
LAB, PERSON = ("all", "hooks"), ("person", "hooks")
MINUTE, HOUR = 60, 3600
DEFAULTS = {
    rule.name: rule
    for rule in (
        # after an outage of the web host itself, every host looks down until it pushes again
        AlertRule("host-down", hold=2 * MINUTE, over=5 * MINUTE, to=LAB),
        AlertRule("host-failed", hold=5 * MINUTE, over=5 * MINUTE, to=LAB),
        AlertRule("host-new", to=LAB),
        AlertRule("gpu-lost", hold=2 * MINUTE, over=5 * MINUTE, to=LAB),
        AlertRule("gpu-hot", hold=10 * MINUTE, over=15 * MINUTE, to=LAB),
        AlertRule("gpu-error", over=15 * MINUTE, recovery=False, to=LAB),
        AlertRule("gpu-held", hold=5 * MINUTE, over=15 * MINUTE, recovery=False, to=PERSON),
        AlertRule("booking-begins", to=PERSON),
        AlertRule("booking-ends", to=PERSON, before=30 * MINUTE),
        AlertRule("booking-broken", hold=5 * MINUTE, over=15 * MINUTE, to=PERSON),
        AlertRule("booking-unused", hold=HOUR, over=15 * MINUTE, recovery=False, to=PERSON),
        AlertRule("watch", to=PERSON),
        AlertRule("weekly-report", on=False, to=("all",), at=(0, 8 * 60)),
    )
}
EVERY = ("on", "to", "quiet", "most")
LASTING = ("hold", "over", "recovery")
BOOKED = ("booking-begins", "booking-ends")
# What has happened when it is seen: it need not last, and is never over.
AT_ONCE = ("host-new", *BOOKED, "watch", "weekly-report")
SECTION = re.compile(r"\[\s*([^\[\]]*?)\s*\]")
PAIR = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")
COMMENT = re.compile(r"(?:^|\s)[#;].*")
WORD = re.compile(r"[a-z][a-z0-9-]{0,31}")
CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
SPAN = re.compile(r"([0-9:]+) ?(?:-|–|to|until) ?([0-9:]+)")
WHOLE_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
YES, NO = ("yes", "true", "on", "1"), ("no", "false", "off", "0")
LONGEST_LINE = 1000
LONGEST_SHOWN = 32
# Seconds: of what lasts, and ahead of a booking, which becomes a matter that early (decide/matters.py).
LONGEST_TIME, LONGEST_AHEAD = 7 * 86400, 86400


def read(data: bytes) -> tuple[dict[str, AlertRule], list[str]]:
    """Every rule as it is in force, and what is wrong with the file; a line that cannot be read costs that line."""
    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    section: str | None = None
    for number, line in enumerate(text_of(data).lstrip("\ufeff").split("\n"), 1):
        text = COMMENT.sub("", line[:LONGEST_LINE]).strip()
        problem = ""
        if head := SECTION.fullmatch(text):
            section, problem = section_of(head[1])
        elif text and section is None:
            problem = f"this stands before any section: begin with [{ALL}], or with a rule such as [{RULES[0]}]"
        elif text and section:
            problem = take(text, section, found.setdefault(section, {}))
        if problem:
            problems.append(f"line {number}: {problem}")
    return {name: in_force(rule, found) for name, rule in DEFAULTS.items()}, list(bounded(problems))


def section_of(text: str) -> tuple[str, str]:
    """The rule that a section is of, or `all`; or nothing and why: what stands below it is then passed over."""
    name = text.lower().replace("_", "-")
    if name == ALL or name in DEFAULTS:
        return name, ""
    return "", f"there is no rule {quoted(text)}; {hint(name, (ALL, *RULES))}"


def take(text: str, section: str, found: dict[str, Any]) -> str:
    """Understand one line of a section; or why it does not count."""
    pair = PAIR.fullmatch(text)
    if not pair:
        return "it is neither a [section] nor `key = value`"
    key, value = pair[1].lower(), " ".join(pair[2].split())
    allowed = tuple(KEYS) if section == ALL else keys_of(section)
    if key not in KEYS:
        return f"there is no key {quoted(key)}; {hint(key, allowed)}"
    if key not in allowed:
        return f"{key} means nothing to {section}, which has {', '.join(allowed)}"
    again = key in found
    try:
        found[key] = KEYS[key].kind.parse(value)
    except ValueError:
        return f"{key} is {quoted(value)}, {KEYS[key].kind.refusal}"
    return f"{key} stands there twice for {section}; the last one counts" if again else ""


def in_force(rule: AlertRule, found: Mapping[str, Mapping[str, Any]]) -> AlertRule:
    """A rule with what the file says of all, and of it."""
    for_all = dict(found.get(ALL, {}))
    if "person" in rule.to:  # what is a person's own goes to others only by a line of its own section
        for_all.pop("to", None)
    if for_all.get("on"):  # so is every rule; what is off by default is switched on by its own name
        del for_all["on"]
    said = {**for_all, **found.get(rule.name, {})}
    return rule._replace(**{key: value for key, value in said.items() if key in keys_of(rule.name)})


def with_channels(rules: Mapping[str, AlertRule], channels: Collection[str]) -> tuple[dict[str, AlertRule], list[str]]:
    """The rules without channels that are not there; what nobody would hear of goes where it does by default."""
    found: dict[str, AlertRule] = {}
    missing: dict[str, list[str]] = {}
    for name, rule in rules.items():
        there = tuple(word for word in rule.to if word in channels or word in NO_CHANNELS)
        for word in rule.to:
            if word not in there:
                missing.setdefault(word, []).append(name)
        found[name] = rule if there == rule.to else rule._replace(to=there or DEFAULTS[name].to)
    problems = [
        f"{names(several)} should go to {word}, but GPUBOARD_NOTIFY has no such channel; "
        f"{hint(word, (*channels, *sorted(NO_CHANNELS)))}"
        for word, several in missing.items()
    ]
    return found, list(bounded(problems))


def shown(rule: AlertRule) -> dict[str, str]:
    """Each key of a rule with its value, as it is written in the file."""
    return {key: KEYS[key].shown(getattr(rule, key)) for key in keys_of(rule.name)}


def keys_of(rule: str) -> tuple[str, ...]:
    """Which keys a rule has."""
    lasting = () if rule in AT_ONCE else LASTING
    return (*EVERY, *lasting, *("before",) * (rule in BOOKED), *("at",) * (rule == "weekly-report"))


def hint(word: str, allowed: Collection[str]) -> str:
    """What somebody may have meant."""
    close = get_close_matches(word, allowed, 1)
    return f"is it {close[0]}?" if close else f"there are {', '.join(allowed)}"


def quoted(text: str) -> str:
    """What is wrong, fit to be shown: an address that somebody has put here may hold a password."""
    if len(text) > LONGEST_SHOWN or ":/" in text or "@" in text or not text.isprintable():
        return "something else"
    return f"'{text}'"


def truth_of(text: str) -> bool:
    """`yes` or `no`, and what else people write for them."""
    if text.lower() not in (*YES, *NO):
        raise ValueError(text)
    return text.lower() in YES


def receivers_of(text: str) -> tuple[str, ...]:
    """Names with blanks or commas between them, each once; `none` is nobody."""
    words = tuple(dict.fromkeys(text.lower().replace(",", " ").split()))
    if not words or any(not WORD.fullmatch(word) for word in words) or ("none" in words and len(words) > 1):
        raise ValueError(text)
    return () if words == ("none",) else words


def minute_of(text: str) -> int:
    """The minute of the day of `7:30`."""
    found = CLOCK.fullmatch(text)
    if not found:
        raise ValueError(text)
    return int(found[1]) * 60 + int(found[2])


def quiet_of(text: str) -> tuple[int, int] | None:
    """From when until when, `22:00-07:00`; nothing is None."""
    if text.lower() in ("", "none", "no"):
        return None
    found = SPAN.fullmatch(text.lower())
    if not found:
        raise ValueError(text)
    first, last = minute_of(found[1]), minute_of(found[2])
    if first == last:  # never, or all day? whoever wants either has `none`, and `on = no`
        raise ValueError(text)
    return first, last


def most_of(text: str) -> int:
    """How many an hour."""
    if not re.fullmatch("[0-9]{1,4}", text):
        raise ValueError(text)
    return int(within(int(text), 1, 1000))


def at_of(text: str) -> tuple[int, int]:
    """`Mon 08:00`: the day from Monday on, and the minute of it."""
    day, _, clock = text.lower().partition(" ")
    several = [number for number, whole in enumerate(WHOLE_DAYS) if len(day) > 2 and whole.startswith(day)]
    if not several:
        raise ValueError(text)
    return several[0], minute_of(clock)


def clock_shown(minute: int) -> str:
    """`07:30`."""
    return f"{minute // 60:02}:{minute % 60:02}"


class Key(NamedTuple):
    """What a value of a key may be, and how it is written."""

    kind: Kind
    shown: Callable[[Any], str]


TRUTH = Key(Kind("but must be yes or no", truth_of), lambda value: "yes" if value else "no")
TIME = Key(duration(0, LONGEST_TIME), duration_of)
KEYS: Mapping[str, Key] = {
    "on": TRUTH,
    "to": Key(
        Kind("but must be names of channels with blanks between them, or all, person, hooks or none", receivers_of),
        lambda value: " ".join(value) or "none",
    ),
    "quiet": Key(
        Kind("but must be two times such as 22:00-07:00, or none", quiet_of),
        lambda value: "-".join(map(clock_shown, value)) if value else "none",
    ),
    "most": Key(Kind("but must be a number from 1 to 1000", most_of), str),
    "hold": TIME,
    "over": TIME,
    "recovery": TRUTH,
    "before": Key(duration(0, LONGEST_AHEAD), duration_of),
    "at": Key(
        Kind("but must be a day and a time such as Mon 08:00", at_of),
        lambda value: f"{DAYS[value[0]]} {clock_shown(value[1])}",
    ),
}
