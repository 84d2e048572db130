"""The rules of alerts.conf: their defaults, keys and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from site_builder.alerts.model import ALL_RULES, WATCH_RULE, WEEKLY_REPORT_RULE, AlertRule
from site_builder.config.types import (
    RESERVED_CHANNEL_NAMES,
    SettingType,
    check_setting_range,
    duration_between,
    format_short_duration,
)
from site_builder.core.formatting import DAY, DAY_NAMES, HOUR, MINUTE, join_names
from site_builder.core.terminal_text import decode_text, limit_problems
from site_builder.core.timeparse.moments import FULL_DAY_NAMES

ALL_SECTION = "all"
LAB_RECEIVERS, PERSON_RECEIVERS = ("all", "hooks"), ("person", "hooks")
DEFAULT_RULES = {
    rule.name: rule
    for rule in (
        # after an outage of the web host itself, every host looks down until it pushes again
        AlertRule("host-down", delay=2 * MINUTE, resolve_after=5 * MINUTE, to=LAB_RECEIVERS),
        AlertRule("host-failed", delay=5 * MINUTE, resolve_after=5 * MINUTE, to=LAB_RECEIVERS),
        AlertRule("host-new", to=LAB_RECEIVERS),
        AlertRule("gpu-lost", delay=2 * MINUTE, resolve_after=5 * MINUTE, to=LAB_RECEIVERS),
        AlertRule("gpu-hot", delay=10 * MINUTE, resolve_after=15 * MINUTE, to=LAB_RECEIVERS),
        AlertRule("gpu-error", resolve_after=15 * MINUTE, send_resolved=False, to=LAB_RECEIVERS),
        AlertRule("gpu-held", delay=5 * MINUTE, resolve_after=15 * MINUTE, send_resolved=False, to=PERSON_RECEIVERS),
        AlertRule("booking-begins", to=PERSON_RECEIVERS),
        AlertRule("booking-ends", to=PERSON_RECEIVERS, before=30 * MINUTE),
        AlertRule("booking-broken", delay=5 * MINUTE, resolve_after=15 * MINUTE, to=PERSON_RECEIVERS),
        AlertRule("booking-unused", delay=HOUR, resolve_after=15 * MINUTE, send_resolved=False, to=PERSON_RECEIVERS),
        AlertRule(WATCH_RULE, to=PERSON_RECEIVERS),
        AlertRule(WEEKLY_REPORT_RULE, on=False, to=("all",), at=(0, 8 * 60)),
    )
}
COMMON_KEYS = ("on", "to", "quiet_hours", "max_per_hour")
LASTING_KEYS = ("delay", "resolve_after", "send_resolved")
# Keys of older versions, and what they are called now.
RENAMED_KEYS = {
    "hold": "delay",
    "most": "max_per_hour",
    "over": "resolve_after",
    "quiet": "quiet_hours",
    "recovery": "send_resolved",
}
BOOKING_TIME_RULES = ("booking-begins", "booking-ends")
# Conditions of these rules have happened when they are seen: they need not last, and are never over.
MOMENTARY_RULES = ("host-new", *BOOKING_TIME_RULES, WATCH_RULE, WEEKLY_REPORT_RULE)
SECTION_PATTERN = re.compile(r"\[\s*([^\[\]]*?)\s*\]")
KEY_VALUE_PATTERN = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")
COMMENT_PATTERN = re.compile(r"(?:^|\s)[#;].*")
RECEIVER_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
CLOCK_PATTERN = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
QUIET_HOURS_PATTERN = re.compile(r"([0-9:]+) ?(?:-|–|to|until) ?([0-9:]+)")
TRUE_WORDS, FALSE_WORDS = ("yes", "true", "on", "1"), ("no", "false", "off", "0")
MAX_LINE_CHARACTERS = 1000
MAX_QUOTED_CHARACTERS = 32
# The lead is not longer than that of alerts.conditions.
MAX_DURATION_S, MAX_LEAD_S = 7 * DAY, DAY


def parse_rules(data: bytes) -> tuple[dict[str, AlertRule], list[str]]:
    """Return every rule as it is in force, and what is wrong with the file; a line that cannot be read is ignored."""
    sections: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    section: str | None = None
    for number, line in enumerate(decode_text(data).lstrip("\ufeff").split("\n"), 1):
        text = COMMENT_PATTERN.sub("", line[:MAX_LINE_CHARACTERS]).strip()
        problem = ""
        if head := SECTION_PATTERN.fullmatch(text):
            section = head[1].lower().replace("_", "-")
            if section != ALL_SECTION and section not in DEFAULT_RULES:
                hint = suggest_rule_word(section, (ALL_SECTION, *ALL_RULES))
                section, problem = (
                    "",
                    f"there is no rule {quote_rule_value(head[1])}; {hint}",
                )  # ignore the lines below it
        elif text and section is None:
            example = f"begin with [{ALL_SECTION}], or with a rule such as [{ALL_RULES[0]}]"
            problem = f"this stands before any section: {example}"
        elif text and section:
            problem = parse_rule_line(text, section, sections.setdefault(section, {}))
        if problem:
            problems.append(f"line {number}: {problem}")
    rules = {name: apply_rule_values(rule, sections) for name, rule in DEFAULT_RULES.items()}
    return rules, list(limit_problems(problems))


def parse_rule_line(text: str, section: str, values: dict[str, Any]) -> str:
    """Add the value of a line to `values`; return what is wrong with it."""
    pair = KEY_VALUE_PATTERN.fullmatch(text)
    if not pair:
        return "it is neither a [section] nor `key = value`"
    key, value = pair[1].lower(), " ".join(pair[2].split())
    allowed = tuple(RULE_KEYS) if section == ALL_SECTION else list_rule_keys(section)
    if key in RENAMED_KEYS:
        return f"{key} is called {RENAMED_KEYS[key]} now: rename it, for this line does not count"
    if key not in RULE_KEYS:
        return f"there is no key {quote_rule_value(key)}; {suggest_rule_word(key, allowed)}"
    if key not in allowed:
        return f"{key} means nothing to {section}, which has {', '.join(allowed)}"
    is_repeated = key in values
    try:
        values[key] = RULE_KEYS[key].value_type.parse(value)
    except ValueError:
        return f"{key} is {quote_rule_value(value)}, {RULE_KEYS[key].value_type.refusal}"
    return f"{key} stands there twice for {section}; the last one counts" if is_repeated else ""


def apply_rule_values(rule: AlertRule, sections: Mapping[str, Mapping[str, Any]]) -> AlertRule:
    """Apply the values of [all], then those of the rule's own section."""
    for_all = dict(sections.get(ALL_SECTION, {}))
    if "person" in rule.to:  # what is for a person goes to others only by a line of its own section
        for_all.pop("to", None)
    if for_all.get("on"):  # a rule that is off by default is switched on by its own name
        del for_all["on"]
    values = {**for_all, **sections.get(rule.name, {})}
    return rule._replace(**{key: value for key, value in values.items() if key in list_rule_keys(rule.name)})


def drop_unknown_channels(
    rules: Mapping[str, AlertRule], channels: Collection[str]
) -> tuple[dict[str, AlertRule], list[str]]:
    """Remove channels that do not exist; a rule without receivers gets its default ones."""
    kept_rules: dict[str, AlertRule] = {}
    rules_by_missing: dict[str, list[str]] = {}
    for name, rule in rules.items():
        kept = tuple(word for word in rule.to if word in channels or word in RESERVED_CHANNEL_NAMES)
        for word in rule.to:
            if word not in kept:
                rules_by_missing.setdefault(word, []).append(name)
        kept_rules[name] = rule if kept == rule.to else rule._replace(to=kept or DEFAULT_RULES[name].to)
    problems = [
        f"{join_names(rule_names)} should go to {word}, but GPUBOARD_NOTIFY has no such channel; "
        f"{suggest_rule_word(word, (*channels, *sorted(RESERVED_CHANNEL_NAMES)))}"
        for word, rule_names in rules_by_missing.items()
    ]
    return kept_rules, list(limit_problems(problems))


def format_rule_values(rule: AlertRule) -> dict[str, str]:
    """Format each value of a rule as it is written in the file."""
    return {key: RULE_KEYS[key].format_value(getattr(rule, key)) for key in list_rule_keys(rule.name)}


def list_rule_keys(rule_name: str) -> tuple[str, ...]:
    keys = COMMON_KEYS if rule_name in MOMENTARY_RULES else (*COMMON_KEYS, *LASTING_KEYS)
    if rule_name in BOOKING_TIME_RULES:
        return (*keys, "before")
    return (*keys, "at") if rule_name == WEEKLY_REPORT_RULE else keys


def suggest_rule_word(word: str, allowed: Collection[str]) -> str:
    """Suggest what may have been meant."""
    close = get_close_matches(word, allowed, 1)
    return f"is it {close[0]}?" if close else f"there are {', '.join(allowed)}"


def quote_rule_value(text: str) -> str:
    """Quote a wrong value, unless it may be an address with a password."""
    if len(text) > MAX_QUOTED_CHARACTERS or ":/" in text or "@" in text or not text.isprintable():
        return "something else"
    return f"'{text}'"


def parse_rule_flag(text: str) -> bool:
    if text.lower() not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ValueError(text)
    return text.lower() in TRUE_WORDS


def parse_rule_receivers(text: str) -> tuple[str, ...]:
    """Parse names with blanks or commas between them; `none` is nobody."""
    words = tuple(dict.fromkeys(text.lower().replace(",", " ").split()))
    if not words or any(not RECEIVER_NAME.fullmatch(word) for word in words) or ("none" in words and len(words) > 1):
        raise ValueError(text)
    return () if words == ("none",) else words


def parse_rule_minute_of_day(text: str) -> int:
    """Parse `7:30` as the minute of the day."""
    clock = CLOCK_PATTERN.fullmatch(text)
    if not clock:
        raise ValueError(text)
    return int(clock[1]) * 60 + int(clock[2])


def parse_rule_quiet_hours(text: str) -> tuple[int, int] | None:
    """Parse `22:00-07:00`, or `none`."""
    if text.lower() in ("", "none", "no"):
        return None
    hours = QUIET_HOURS_PATTERN.fullmatch(text.lower())
    if not hours:
        raise ValueError(text)
    first, last = parse_rule_minute_of_day(hours[1]), parse_rule_minute_of_day(hours[2])
    if first == last:  # never or all day is unclear; `none` and `on = no` say it
        raise ValueError(text)
    return first, last


def parse_rule_hourly_limit(text: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", text):
        raise ValueError(text)
    return int(check_setting_range(int(text), 1, 1000))


def parse_rule_weekly_time(text: str) -> tuple[int, int]:
    """Parse `Mon 08:00` as the day, with Monday as 0, and the minute of the day."""
    day, _, clock = text.lower().partition(" ")
    for number, name in enumerate(FULL_DAY_NAMES):
        if len(day) > 2 and name.startswith(day):
            return number, parse_rule_minute_of_day(clock)
    raise ValueError(text)


def format_rule_minute_of_day(minute: int) -> str:
    """Format a minute of the day as `07:30`."""
    return f"{minute // 60:02}:{minute % 60:02}"


class RuleKey(NamedTuple):
    value_type: SettingType
    format_value: Callable[[Any], str]


YES_NO_KEY = RuleKey(SettingType("but must be yes or no", parse_rule_flag), lambda value: "yes" if value else "no")
DURATION_KEY = RuleKey(duration_between(0, MAX_DURATION_S), format_short_duration)
RULE_KEYS: Mapping[str, RuleKey] = {
    "on": YES_NO_KEY,
    "to": RuleKey(
        SettingType(
            "but must be names of channels with blanks between them, or all, person, hooks or none",
            parse_rule_receivers,
        ),
        lambda value: " ".join(value) or "none",
    ),
    "quiet_hours": RuleKey(
        SettingType("but must be two times such as 22:00-07:00, or none", parse_rule_quiet_hours),
        lambda value: "-".join(map(format_rule_minute_of_day, value)) if value else "none",
    ),
    "max_per_hour": RuleKey(SettingType("but must be a number from 1 to 1000", parse_rule_hourly_limit), str),
    "delay": DURATION_KEY,
    "resolve_after": DURATION_KEY,
    "send_resolved": YES_NO_KEY,
    "before": RuleKey(duration_between(0, MAX_LEAD_S), format_short_duration),
    "at": RuleKey(
        SettingType("but must be a day and a time such as Mon 08:00", parse_rule_weekly_time),
        lambda value: f"{DAY_NAMES[value[0]]} {format_rule_minute_of_day(value[1])}",
    ),
}
