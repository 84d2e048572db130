"""The rules of alerts.conf, and which conditions begin or end an alert by them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from site_builder.alerts import model
from site_builder.alerts.conditions import HEALTH_RULES, explain_muted_condition, find_condition_start_time
from site_builder.alerts.model import AlertContext, AlertRule, AlertState, Condition, ConditionChange, TrackedCondition
from site_builder.alerts.queue import HISTORY_RETENTION_S, NotificationQueueBuilder
from site_builder.config.schema import (
    RESERVED_CHANNEL_NAMES,
    build_duration_type,
    check_setting_range,
    format_duration_setting,
    match_setting_text,
)
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, DAY_NAMES, HOUR, MINUTE, format_count, format_duration, format_names
from site_builder.core.terminal_text import decode_text, limit_problems
from site_builder.core.timeparse.moments import FULL_DAY_NAMES
from site_builder.health.model import UNNAMED_KEY_PREFIX

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
        AlertRule("gpu-xid", to=LAB_RECEIVERS),
        AlertRule("gpu-held", delay=5 * MINUTE, resolve_after=15 * MINUTE, send_resolved=False, to=PERSON_RECEIVERS),
        AlertRule("booking-begins", to=PERSON_RECEIVERS),
        AlertRule("booking-ends", to=PERSON_RECEIVERS, before=30 * MINUTE),
        AlertRule("booking-broken", delay=5 * MINUTE, resolve_after=15 * MINUTE, to=PERSON_RECEIVERS),
        AlertRule("booking-unused", delay=HOUR, resolve_after=15 * MINUTE, send_resolved=False, to=PERSON_RECEIVERS),
        AlertRule(model.WATCH_RULE, to=PERSON_RECEIVERS),
        AlertRule(model.WEEKLY_REPORT_RULE, on=False, to=("all",), at=(0, 8 * 60)),
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
MOMENTARY_RULES = ("host-new", "gpu-xid", *BOOKING_TIME_RULES, *model.OTHER_RULES)
SECTION_PATTERN = re.compile(r"\[\s*([^\[\]]*?)\s*\]")
KEY_VALUE_PATTERN = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")
COMMENT_PATTERN = re.compile(r"(?:^|\s)[#;].*")
RECEIVER_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
CLOCK_PATTERN = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
QUIET_HOURS_PATTERN = re.compile(r"([0-9:]+) ?(?:-|–|to|until) ?([0-9:]+)")
HOURLY_LIMIT_PATTERN = re.compile("[0-9]{1,4}")
FLAG_WORDS = {**dict.fromkeys(("yes", "true", "on", "1"), True), **dict.fromkeys(("no", "false", "off", "0"), False)}
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
                hint = suggest_rule_word(section, (ALL_SECTION, *model.ALL_RULES))
                problem = f"there is no rule {quote_rule_value(head[1])}; {hint}"
                section = ""  # ignore the lines below it
        elif text and section is None:
            example = f"start with [{ALL_SECTION}] or a rule such as [{model.ALL_RULES[0]}]"
            problem = f"this is before any section: {example}"
        elif text and section:
            problem = parse_rule_line(text, section, sections.setdefault(section, {}))
        if problem:
            problems.append(f"line {number}: {problem}")
    rules = {}
    for name, rule in DEFAULT_RULES.items():
        for_all = dict(sections.get(ALL_SECTION, {}))
        if "person" in rule.to:  # what is for a person goes to others only by a line of its own section
            for_all.pop("to", None)
        if for_all.get("on"):  # a rule that is off by default is switched on by its own name
            del for_all["on"]
        values = {**for_all, **sections.get(name, {})}
        rules[name] = rule._replace(**{key: value for key, value in values.items() if key in list_rule_keys(name)})
    return rules, list(limit_problems(problems))


def parse_rule_line(text: str, section: str, values: dict[str, Any]) -> str:
    """Add the value of a line to `values`; return what is wrong with it."""
    pair = KEY_VALUE_PATTERN.fullmatch(text)
    if not pair:
        return "must be a [section] or `key = value`"
    key, value = pair[1].lower(), " ".join(pair[2].split())
    allowed = tuple(RULE_KEYS) if section == ALL_SECTION else list_rule_keys(section)
    if key in RENAMED_KEYS:
        return f"{key} is now called {RENAMED_KEYS[key]}: rename it; until then this line is ignored"
    if key not in RULE_KEYS:
        return f"there is no key {quote_rule_value(key)}; {suggest_rule_word(key, allowed)}"
    if key not in allowed:
        return f"{key} does not apply to {section}, which has {', '.join(allowed)}"
    is_repeated = key in values
    try:
        values[key] = RULE_KEYS[key].parse(value)
    except (ValueError, KeyError):
        return f"{key} is {quote_rule_value(value)}, {RULE_KEYS[key].refusal}"
    return f"{key} is set twice for {section}; the last value counts" if is_repeated else ""


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
        f"{format_names(rule_names)} should go to {word}, but GPUBOARD_NOTIFY has no such channel; "
        f"{suggest_rule_word(word, (*channels, *sorted(RESERVED_CHANNEL_NAMES)))}"
        for word, rule_names in rules_by_missing.items()
    ]
    return kept_rules, list(limit_problems(problems))


def format_rule_values(rule: AlertRule) -> dict[str, str]:
    return {key: RULE_KEYS[key].format_value(getattr(rule, key)) for key in list_rule_keys(rule.name)}


def list_rule_keys(rule_name: str) -> tuple[str, ...]:
    keys = COMMON_KEYS if rule_name in MOMENTARY_RULES else (*COMMON_KEYS, *LASTING_KEYS)
    if rule_name in BOOKING_TIME_RULES:
        return (*keys, "before")
    return (*keys, "at") if rule_name == model.WEEKLY_REPORT_RULE else keys


def suggest_rule_word(word: str, allowed: Collection[str]) -> str:
    close = get_close_matches(word, allowed, 1)
    return f"did you mean {close[0]}?" if close else f"allowed: {', '.join(allowed)}"


def quote_rule_value(text: str) -> str:
    """Quote a wrong value, unless it may be an address with a password."""
    if len(text) > MAX_QUOTED_CHARACTERS or ":/" in text or "@" in text or not text.isprintable():
        return "something else"
    return f"'{text}'"


def parse_rule_receivers(text: str) -> tuple[str, ...]:
    """Parse names with blanks or commas between them; `none` is nobody."""
    words = tuple(dict.fromkeys(text.lower().replace(",", " ").split()))
    if not words or any(not RECEIVER_NAME.fullmatch(word) for word in words) or ("none" in words and len(words) > 1):
        raise ValueError(text)
    return () if words == ("none",) else words


def parse_rule_minute_of_day(text: str) -> int:
    clock = match_setting_text(CLOCK_PATTERN, text)
    return int(clock[1]) * 60 + int(clock[2])


def parse_rule_quiet_hours(text: str) -> tuple[int, int] | None:
    """Parse `22:00-07:00`, or `none`."""
    if text.lower() in ("", "none", "no"):
        return None
    hours = match_setting_text(QUIET_HOURS_PATTERN, text.lower())
    first, last = parse_rule_minute_of_day(hours[1]), parse_rule_minute_of_day(hours[2])
    if first == last:  # never or all day is unclear; `none` and `on = no` say it
        raise ValueError(text)
    return first, last


def parse_rule_weekly_time(text: str) -> tuple[int, int]:
    """Parse `Mon 08:00` as the day, with Monday as 0, and the minute of the day."""
    day, _, clock = text.lower().partition(" ")
    for number, name in enumerate(FULL_DAY_NAMES):
        if len(day) > 2 and name.startswith(day):
            return number, parse_rule_minute_of_day(clock)
    raise ValueError(text)


def format_rule_minute_of_day(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


class RuleKey(NamedTuple):
    """A key of alerts.conf: why a value is refused, how it is parsed, and how it is written in the file."""

    refusal: str
    parse: Callable[[str], Any]
    format_value: Callable[[Any], str]


def build_rule_duration_key(most: int) -> RuleKey:
    duration = build_duration_type(0, most)
    return RuleKey(duration.refusal, duration.parse, format_duration_setting)


YES_NO_KEY = RuleKey(
    "but must be yes or no", lambda text: FLAG_WORDS[text.lower()], lambda value: "yes" if value else "no"
)
RULE_KEYS: Mapping[str, RuleKey] = {
    "on": YES_NO_KEY,
    "to": RuleKey(
        "but must be names of channels separated by spaces, or all, person, hooks or none",
        parse_rule_receivers,
        lambda value: " ".join(value) or "none",
    ),
    "quiet_hours": RuleKey(
        "but must be two times such as 22:00-07:00, or none",
        parse_rule_quiet_hours,
        lambda value: "-".join(map(format_rule_minute_of_day, value)) if value else "none",
    ),
    "max_per_hour": RuleKey(
        "but must be a number from 1 to 1000",
        lambda text: check_setting_range(int(match_setting_text(HOURLY_LIMIT_PATTERN, text)[0]), 1, 1000),
        str,
    ),
    "delay": build_rule_duration_key(MAX_DURATION_S),
    "resolve_after": build_rule_duration_key(MAX_DURATION_S),
    "send_resolved": YES_NO_KEY,
    "before": build_rule_duration_key(MAX_LEAD_S),
    "at": RuleKey(
        "but must be a day and a time such as Mon 08:00",
        parse_rule_weekly_time,
        lambda value: f"{DAY_NAMES[value[0]]} {format_rule_minute_of_day(value[1])}",
    ),
}


# From conditions to changes of the alert state

NEW_HOST_RULE = "host-new"
# How long it is remembered that a condition was reported which is reported once: longer than it can be seen.
REPORTED_RETENTION_S = 7 * DAY
RETENTION_BY_RULE_S = {
    "gpu-error": 6 * HOUR,
    "booking-begins": 2 * DAY,
    "booking-ends": 2 * DAY,
    NEW_HOST_RULE: 60 * DAY,
}
# Whoever books later than this before the begin knows that it begins.
MIN_BOOKING_NOTICE_S = 300
# A host can claim anything, and any number of hosts can be named.
MAX_TRACKED = 5000
MAX_TRACKED_PER_HOST = 200
MAX_REPORTED_ONCE = 20_000
# How long an alert waits for others of its rule: hosts behind one switch go down one after another.
GROUPING_DELAY_S = 60
# Without data from a host, it is unknown whether these are over.
FRESH_HOST_RULES = frozenset({*model.GPU_RULES, "host-failed", "booking-broken", "booking-unused"})


def apply_alert_rules(
    state: AlertState, conditions: Iterable[Condition], rules: Mapping[str, AlertRule], context: AlertContext, now: Now
) -> AlertState:
    """Return the alert state after a build, with new notifications; the same object if nothing changed."""
    evaluation = AlertRuleEvaluation(state, rules, context, now)
    evaluation.update_conditions(conditions)
    now_s, queue_builder, reported_once = evaluation.now_s, evaluation.queue_builder, evaluation.reported_once
    queue_builder.build_notifications()
    queue_builder.defer_to_quiet_end(rules)
    if len(reported_once) > MAX_REPORTED_ONCE:
        reported_once = dict(sorted(reported_once.items(), key=lambda item: item[1])[-MAX_REPORTED_ONCE:])
    updated = state._replace(
        started_at=now_s if state.started_at is None else state.started_at,
        conditions=evaluation.conditions,
        reported_once=reported_once,
        notifications=tuple(queue_builder.notifications),
        silences={host: until for host, until in state.silences.items() if until > now_s or not context.expires},
        history=tuple(
            record for record in state.history if now_s - record.at < HISTORY_RETENTION_S or not context.expires
        ),
        sent_times=queue_builder.sent_times,
        id_counter=queue_builder.id_counter,
    )
    return state if updated == state else updated


class AlertRuleEvaluation:
    """Compares the conditions of one build with those in the alert state."""

    def __init__(self, state: AlertState, rules: Mapping[str, AlertRule], context: AlertContext, now: Now) -> None:
        self.state, self.rules, self.context = state, rules, context
        self.now_s = int(now.epoch)
        self.is_first_run = state.started_at is None
        self.conditions: dict[str, TrackedCondition] = {}
        self.upcoming: set[tuple[str, str]] = set()
        self.reported_once = {
            key: until for key, until in state.reported_once.items() if until > self.now_s or not context.expires
        }
        self.queue_builder = NotificationQueueBuilder(state, context, now)

    def find_new_hosts(self) -> Iterator[Condition]:
        """Find hosts that the board did not show before; remember them even if the rule is off."""
        rule = self.rules.get(NEW_HOST_RULE)
        half_life = self.now_s + RETENTION_BY_RULE_S[NEW_HOST_RULE] // 2
        for host, (_, gpu_count) in self.context.hosts.items():
            condition = Condition(NEW_HOST_RULE, host, is_lasting=False)
            # the first test alone decides for most of a thousand hosts
            if self.reported_once.get(condition.key, 0) > half_life or self.was_reported(condition):
                continue
            if self.is_first_run or rule is None or not rule.on:
                self.remember_reported(condition)
            else:
                what = f"it has {format_count(gpu_count, 'GPU')}" if gpu_count else "it has not reported any GPU yet"
                yield condition._replace(what=what)

    def was_reported(self, condition: Condition) -> bool:
        """Return True if a condition was reported that is reported once; remember that for as long as it is seen."""
        # one that has expired since the last build, perhaps because the clock was set, still counts
        if condition.key not in self.state.reported_once and condition.key not in self.reported_once:
            return False
        retention = RETENTION_BY_RULE_S.get(condition.rule, REPORTED_RETENTION_S)
        if self.reported_once.get(condition.key, 0) - self.now_s < retention // 2:
            self.remember_reported(condition)
        return True

    def remember_reported(self, condition: Condition) -> None:
        retention = RETENTION_BY_RULE_S.get(condition.rule, REPORTED_RETENTION_S)
        self.reported_once[condition.key] = self.now_s + retention

    def update_conditions(self, found: Iterable[Condition]) -> None:
        """Track the conditions of this build, and handle those that are no longer there."""
        conditions: dict[str, Condition] = {}
        for condition in (*found, *self.find_new_hosts()):
            rule = self.rules.get(condition.rule)
            is_shown = not condition.host or condition.host in self.context.hosts
            if rule and rule.on and is_shown and (condition.is_lasting or not self.was_reported(condition)):
                conditions[condition.key] = condition
        self.upcoming = set(self.find_upcoming(conditions))
        for key, tracked in self.state.conditions.items():
            if key not in conditions:
                self.handle_cleared(key, tracked)
        counts = Counter(tracked.condition.host for tracked in self.conditions.values())
        for key, condition in conditions.items():
            previous = self.state.conditions.get(key)
            counts[condition.host] += 1
            is_host_full = condition.host and counts[condition.host] > MAX_TRACKED_PER_HOST
            is_full = len(self.conditions) >= MAX_TRACKED or is_host_full
            if previous or not is_full or condition.rule in model.HOST_RULES:
                self.handle_active(key, condition, previous)

    def find_upcoming(self, conditions: Mapping[str, Condition]) -> Iterator[tuple[str, str]]:
        """Find the rules and steps of which another alert will be due within the grouping delay."""
        for key, tracked in self.state.conditions.items():
            rule, seconds_left, step = self.rules.get(tracked.condition.rule), 0, model.STEP_BEGUN
            if rule and tracked.condition.is_lasting and not tracked.is_suppressed:
                if key in conditions and tracked.reported_at is None:
                    seconds_left = tracked.first_seen_at + rule.delay - self.now_s
                elif key not in conditions and tracked.cleared_at is not None:
                    seconds_left, step = tracked.cleared_at + rule.resolve_after - self.now_s, model.STEP_OVER
            if rule and 0 < seconds_left <= GROUPING_DELAY_S and not self.is_muted(tracked.condition):
                yield rule.name, step

    def find_grouping_delay(self, rule: AlertRule, step: str) -> int:
        return GROUPING_DELAY_S if (rule.name, step) in self.upcoming else 0

    def handle_active(self, key: str, condition: Condition, previous: TrackedCondition | None) -> None:
        """Track a condition of this build, and report it once it has lasted long enough."""
        rule = self.rules[condition.rule]
        start_time = find_condition_start_time(condition, rule)
        if previous:
            tracked = self.renew(previous, condition)
        else:
            is_suppressed = self.is_preexisting(condition, start_time)
            tracked = TrackedCondition(condition, self.now_s, is_suppressed=is_suppressed)
        tracked = self.retract_if_muted(tracked, rule)
        if tracked.is_suppressed and not condition.is_lasting:
            self.remember_reported(condition)
            return
        due_at = tracked.first_seen_at + rule.delay + self.find_grouping_delay(rule, model.STEP_BEGUN)
        is_handled = tracked.is_suppressed or tracked.reported_at is not None
        if is_handled or self.now_s < max(start_time, due_at) or self.is_muted(condition):
            self.conditions[key] = tracked
            return
        since = tracked.first_seen_at if condition.since is None else condition.since
        if condition.is_lasting:
            lasted, delay = format_rule_time(self.now_s - tracked.first_seen_at), format_rule_time(rule.delay)
            reason = f"rule {rule.name}: it has lasted {lasted} (delay {delay})"
            self.queue_builder.add_change(ConditionChange(condition, model.STEP_BEGUN, since, None, reason), rule)
            # keep the condition as reported, so that its end names the same
            self.conditions[key] = tracked._replace(condition=condition, reported_at=self.now_s)
        else:
            change = ConditionChange(condition, model.STEP_HAPPENED, since, condition.until, f"rule {rule.name}")
            self.queue_builder.add_change(change, rule)
            self.remember_reported(condition)

    def renew(self, tracked: TrackedCondition, condition: Condition) -> TrackedCondition:
        """Update a condition that still exists: a booking may have been extended, or the clock set."""
        first_seen_at = min(tracked.first_seen_at, self.now_s)  # a clock set back must not make it last for ever
        since = condition.since if tracked.reported_at is None and condition.is_lasting else None
        if since is not None and first_seen_at < since <= self.now_s:
            first_seen_at = since  # it was over and began again between two builds
        condition = tracked.condition._replace(until=condition.until)
        return tracked._replace(condition=condition, first_seen_at=first_seen_at, cleared_at=None)

    def is_preexisting(self, condition: Condition, start_time: int) -> bool:
        """Return True if a condition that is new to us is not news: it existed before, or was just booked."""
        if condition.rule == model.WATCH_RULE:  # people who wait are notified, even at first start
            return False
        if condition.rule == "booking-begins":
            return self.now_s > start_time - MIN_BOOKING_NOTICE_S
        # in a large fleet, history needs some builds to see everything that existed before it
        if condition.rule in HEALTH_RULES and condition.is_lasting and condition.since is None:
            return self.state.started_at is None or self.now_s - self.state.started_at < HOUR
        return self.is_first_run and self.now_s >= start_time

    def is_muted(self, condition: Condition) -> bool:
        return bool(explain_muted_condition(condition, self.state.silences, self.context, self.now_s))

    def retract_if_muted(self, tracked: TrackedCondition, rule: AlertRule) -> TrackedCondition:
        """Treat a condition as not reported if its alerts still wait and its host has been muted since."""
        condition, was_reported = tracked.condition, tracked.reported_at is not None
        if was_reported and self.is_muted(condition) and self.queue_builder.withdraw_if_unsent(condition, rule):
            return tracked._replace(reported_at=None)
        return tracked

    def handle_cleared(self, key: str, tracked: TrackedCondition) -> None:
        """Report the end of a condition that is not in this build, once it has been over long enough."""
        condition, context = tracked.condition, self.context
        rule = self.rules.get(condition.rule)
        host_state = context.hosts.get(condition.host, ("unseen", 0))[0] if condition.host else "fresh"
        has_ended = condition.until is not None and self.now_s >= condition.until
        gpu_host: str | None = condition.host  # for a lost GPU the host that has it now, or None
        if condition.rule == "gpu-lost" and not condition.about.startswith(UNNAMED_KEY_PREFIX):
            gpu_host = context.find_gpu_host(condition.about) if context.find_gpu_host else condition.host
        has_moved = gpu_host not in {None, condition.host}
        if rule is None or not rule.on or host_state == "unseen" or has_ended or has_moved:
            self.queue_builder.withdraw_alert(key)
            return
        if (
            gpu_host is None  # a builder that started after a GPU was lost sees no condition: it is not back for that
            or condition.host in context.failed_hosts
            or condition.rule in context.unreadable_rules
            or (condition.rule in FRESH_HOST_RULES and host_state != "fresh")
            or (condition.rule == "host-down" and host_state in {"stale", "maintenance"})
        ):  # it is unknown whether it is over
            self.conditions[key] = self.retract_if_muted(tracked, rule)
            return
        if not condition.is_lasting or (tracked.reported_at is None and not tracked.is_suppressed):
            return
        cleared_at = self.now_s if tracked.cleared_at is None else min(tracked.cleared_at, self.now_s)
        over_delay = rule.resolve_after + self.find_grouping_delay(rule, model.STEP_OVER)
        if self.now_s - cleared_at < over_delay or self.is_muted(condition):
            self.conditions[key] = tracked._replace(cleared_at=cleared_at)
        elif tracked.reported_at is not None and rule.send_resolved:
            since = tracked.first_seen_at if condition.since is None else condition.since
            lasted, resolve_after = format_rule_time(self.now_s - cleared_at), format_rule_time(rule.resolve_after)
            reason = f"rule {rule.name}: it has been over for {lasted} (resolve_after {resolve_after})"
            ended = condition._replace(what=f"until then: {condition.what}" if condition.what else "")
            change = ConditionChange(ended, model.STEP_OVER, since, cleared_at, reason, tracked.reported_at)
            self.queue_builder.add_change(change, rule)
        else:
            self.queue_builder.withdraw_alert(key)


def format_rule_time(seconds: int) -> str:
    """Format a duration: `0 s`, `40 s`, `2 min`."""
    return f"{max(seconds, 0)} s" if seconds < MINUTE else format_duration(seconds)
