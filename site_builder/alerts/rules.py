"""Decide which conditions become alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from site_builder.alerts.conditions import HEALTH_RULES
from site_builder.alerts.model import (
    CHANNEL_PREFIX,
    GPU_RULES,
    HOST_RULES,
    PERSON_PREFIX,
    STEP_BEGUN,
    STEP_HAPPENED,
    STEP_OVER,
    WATCH_RULE,
    AlertRule,
    AlertState,
    Condition,
    Notification,
    TrackedCondition,
)
from site_builder.alerts.queue import AlertContext, ConditionChange, NotificationBuilder, drop_old_records
from site_builder.alerts.render import format_epoch
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.health.model import UNNAMED_KEY_PREFIX

# A silenced host does not suppress these: they do not say that anything is wrong.
REMINDER_RULES = frozenset({WATCH_RULE, "booking-begins", "booking-ends"})
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
# Without news from a host, nobody knows whether these are over.
FRESH_HOST_RULES = frozenset({*GPU_RULES, "host-failed", "booking-broken", "booking-unused"})


def update_alert_state(
    state: AlertState, conditions: Iterable[Condition], rules: Mapping[str, AlertRule], context: AlertContext, now: Now
) -> AlertState:
    """Return the alert state after a build, with new notifications; the same object if nothing changed."""
    evaluator = RuleEvaluator(state, rules, context, now)
    now_s = evaluator.now_s
    evaluator.update_conditions(
        {
            condition.key: condition
            for condition in (*conditions, *evaluator.find_new_hosts())
            if evaluator.is_relevant(condition)
        }
    )
    evaluator.builder.build_notifications()
    evaluator.builder.defer_to_quiet_end(rules)
    reported_once = evaluator.reported_once
    if len(reported_once) > MAX_REPORTED_ONCE:
        reported_once = dict(sorted(reported_once.items(), key=lambda item: item[1])[-MAX_REPORTED_ONCE:])
    updated = state._replace(
        started_at=now_s if state.started_at is None else state.started_at,
        conditions=evaluator.conditions,
        reported_once=reported_once,
        notifications=tuple(evaluator.builder.notifications),
        silences={host: until for host, until in state.silences.items() if until > now_s or not context.expires},
        history=drop_old_records(state.history, now_s) if context.expires else state.history,
        sent_times=evaluator.builder.sent_times,
        id_counter=evaluator.builder.id_counter,
    )
    return state if updated == state else updated


class RuleEvaluator:
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
        self.builder = NotificationBuilder(state, context, now)

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
                plural = "s" * (gpu_count != 1)
                what = f"it has {gpu_count} GPU{plural}" if gpu_count else "it has told no GPU yet"
                yield condition._replace(what=what)

    def is_relevant(self, condition: Condition) -> bool:
        """Return True if a rule asks for the condition, and the board shows its host."""
        rule = self.rules.get(condition.rule)
        is_shown = not condition.host or condition.host in self.context.hosts
        return rule is not None and rule.on and is_shown and (condition.is_lasting or not self.was_reported(condition))

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

    def update_conditions(self, conditions: Mapping[str, Condition]) -> None:
        """Track the conditions of this build, and handle those that are no longer there."""
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
            if previous or not is_full or condition.rule in HOST_RULES:
                self.handle_active(key, condition, previous)

    def find_upcoming(self, conditions: Mapping[str, Condition]) -> Iterator[tuple[str, str]]:
        """Find the rules and steps of which another alert will be due within the grouping delay."""
        for key, tracked in self.state.conditions.items():
            rule, seconds_left, step = self.rules.get(tracked.condition.rule), 0, STEP_BEGUN
            if rule and tracked.condition.is_lasting and not tracked.is_suppressed:
                if key in conditions and tracked.reported_at is None:
                    seconds_left = tracked.first_seen_at + rule.delay - self.now_s
                elif key not in conditions and tracked.cleared_at is not None:
                    seconds_left, step = tracked.cleared_at + rule.resolve_after - self.now_s, STEP_OVER
            if rule and 0 < seconds_left <= GROUPING_DELAY_S and not self.is_muted(tracked.condition):
                yield rule.name, step

    def find_grouping_delay(self, rule: AlertRule, step: str) -> int:
        return GROUPING_DELAY_S if (rule.name, step) in self.upcoming else 0

    def handle_active(self, key: str, condition: Condition, previous: TrackedCondition | None) -> None:
        """Track a condition of this build, and report it once it has lasted long enough."""
        rule = self.rules[condition.rule]
        start_time = find_start_time(condition, rule)
        if previous:
            tracked = self.renew(previous, condition)
        else:
            is_suppressed = self.is_preexisting(condition, start_time)
            tracked = TrackedCondition(condition, self.now_s, is_suppressed=is_suppressed)
        tracked = self.retract_if_muted(tracked, rule)
        if tracked.is_suppressed or tracked.reported_at is not None or not self.can_report(tracked, rule, start_time):
            if tracked.is_suppressed and not condition.is_lasting:
                self.remember_reported(condition)
            else:
                self.conditions[key] = tracked
            return
        since = tracked.first_seen_at if condition.since is None else condition.since
        if condition.is_lasting:
            lasted = describe_wait(self.now_s - tracked.first_seen_at)
            reason = f"rule {rule.name}: it was so {lasted}, and had to be {describe_wait(rule.delay)}"
            self.builder.add_change(ConditionChange(condition, STEP_BEGUN, since, None, reason), rule)
            # keep the condition as reported, so that its end names the same
            self.conditions[key] = tracked._replace(condition=condition, reported_at=self.now_s)
        else:
            change = ConditionChange(condition, STEP_HAPPENED, since, condition.until, f"rule {rule.name}")
            self.builder.add_change(change, rule)
            self.remember_reported(condition)

    def renew(self, tracked: TrackedCondition, condition: Condition) -> TrackedCondition:
        """Update a condition that still exists: a booking may have been extended, or the clock set."""
        first_seen_at = min(tracked.first_seen_at, self.now_s)  # a clock set back must not make it last for ever
        if (
            tracked.reported_at is None
            and condition.is_lasting
            and condition.since is not None
            and first_seen_at < condition.since <= self.now_s
        ):
            first_seen_at = condition.since  # it was over and began again between two builds
        condition = tracked.condition._replace(until=condition.until)
        return tracked._replace(condition=condition, first_seen_at=first_seen_at, cleared_at=None)

    def is_preexisting(self, condition: Condition, start_time: int) -> bool:
        """Return True if a condition that is new to us is not news: it existed before, or was just booked."""
        if condition.rule == WATCH_RULE:  # whoever waits is told, even at first start
            return False
        if condition.rule == "booking-begins":
            return self.now_s > start_time - MIN_BOOKING_NOTICE_S
        # in a large fleet, history needs some builds to see everything that existed before it
        if condition.rule in HEALTH_RULES and condition.is_lasting and condition.since is None:
            return self.state.started_at is None or self.now_s - self.state.started_at < HOUR
        return self.is_first_run and self.now_s >= start_time

    def can_report(self, tracked: TrackedCondition, rule: AlertRule, start_time: int) -> bool:
        """Return True if a condition has lasted long enough, and its host is not muted."""
        hold = rule.delay + self.find_grouping_delay(rule, STEP_BEGUN)
        has_lasted = self.now_s >= start_time and self.now_s - tracked.first_seen_at >= hold
        return has_lasted and not self.is_muted(tracked.condition)

    def is_muted(self, condition: Condition) -> bool:
        return bool(explain_muted(condition, self.state.silences, self.context, self.now_s))

    def retract_if_muted(self, tracked: TrackedCondition, rule: AlertRule) -> TrackedCondition:
        """Treat a condition as not reported if its alerts still wait and its host has been muted since."""
        if tracked.reported_at is None or not self.is_muted(tracked.condition):
            return tracked
        return (
            tracked._replace(reported_at=None) if self.builder.withdraw_if_unsent(tracked.condition, rule) else tracked
        )

    def handle_cleared(self, key: str, tracked: TrackedCondition) -> None:
        """Report the end of a condition that is not in this build, once it has been over long enough."""
        condition = tracked.condition
        rule = self.rules.get(condition.rule)
        host_state = self.context.hosts.get(condition.host, ("unseen", 0))[0] if condition.host else "fresh"
        has_ended = condition.until is not None and self.now_s >= condition.until
        current_host = self.find_current_host(condition)
        has_moved = current_host not in {None, condition.host}
        if rule is None or not rule.on or host_state == "unseen" or has_ended or has_moved:
            self.builder.withdraw_alert(key)
            return
        # a builder that started after a GPU was lost sees no condition: the GPU is not back for that
        if current_host is None or self.is_undecidable(condition, host_state):
            self.conditions[key] = self.retract_if_muted(tracked, rule)
            return
        if not condition.is_lasting or (tracked.reported_at is None and not tracked.is_suppressed):
            return
        cleared_at = self.now_s if tracked.cleared_at is None else min(tracked.cleared_at, self.now_s)
        over_delay = rule.resolve_after + self.find_grouping_delay(rule, STEP_OVER)
        if self.now_s - cleared_at < over_delay or self.is_muted(condition):
            self.conditions[key] = tracked._replace(cleared_at=cleared_at)
        elif tracked.reported_at is not None and rule.send_resolved:
            since = tracked.first_seen_at if condition.since is None else condition.since
            lasted = describe_wait(self.now_s - cleared_at)
            reason = f"rule {rule.name}: it is over {lasted}, and had to be {describe_wait(rule.resolve_after)}"
            ended = condition._replace(what=f"until then: {condition.what}" if condition.what else "")
            change = ConditionChange(ended, STEP_OVER, since, cleared_at, reason, tracked.reported_at)
            self.builder.add_change(change, rule)
        else:
            self.builder.withdraw_alert(key)

    def find_current_host(self, condition: Condition) -> str | None:
        """Return the host of a condition; for a lost GPU the host that has it now, or None."""
        find_gpu_host = self.context.find_gpu_host
        if condition.rule != "gpu-lost" or find_gpu_host is None or condition.about.startswith(UNNAMED_KEY_PREFIX):
            return condition.host
        return find_gpu_host(condition.about)

    def is_undecidable(self, condition: Condition, host_state: str) -> bool:
        """Return True if nobody can know whether a condition is over."""
        if condition.host in self.context.failed_hosts or condition.rule in self.context.unreadable_rules:
            return True
        if condition.rule in FRESH_HOST_RULES and host_state != "fresh":
            return True
        return condition.rule == "host-down" and host_state in {"stale", "maintenance"}


def find_start_time(condition: Condition, rule: AlertRule) -> int:
    """Return from when on a condition counts: for a booking, ahead of its begin or end as the rule says."""
    if condition.rule == "booking-begins" and condition.since is not None:
        return condition.since - rule.before
    if condition.rule == "booking-ends" and condition.until is not None:
        # for a short booking, not before half of it is over
        half = rule.before if condition.since is None else max(0, condition.until - condition.since) // 2
        return condition.until - min(rule.before, half)
    return 0


def explain_muted(condition: Condition, silences: Mapping[str, int], context: AlertContext, now: int) -> str:
    """Explain why nothing about a host is reported now; empty if it is."""
    if not condition.host or condition.rule == WATCH_RULE:
        return ""
    if context.hosts.get(condition.host, ("", 0))[0] == "maintenance":
        return f"{condition.host} is under maintenance"
    is_silenced = silences.get(condition.host, 0) > now and condition.rule not in REMINDER_RULES
    return f"{condition.host} is silenced" if is_silenced else ""


def describe_wait(seconds: int) -> str:
    """Format a duration: `at once`, `for 40 s`, `for 2 min`."""
    if seconds <= 0:
        return "at once"
    return f"for {seconds} s" if seconds < MINUTE else f"for {formatting.format_duration(seconds)}"


# For `gpuboard alerts list`

STATUS_REPORTED, STATUS_WAITING, STATUS_UNREPORTED, STATUS_UPCOMING = (
    "reported",
    "waiting",
    "unreported",
    "upcoming",
)


class ConditionStatus(NamedTuple):
    """How far a condition has been reported; `at` is since when it exists, or when it will be reported."""

    tracked: TrackedCondition
    state: str
    reason: str
    at: int


def list_condition_statuses(
    state: AlertState, rules: Mapping[str, AlertRule], context: AlertContext, now: Now
) -> list[ConditionStatus]:
    """List all conditions, the latest first, and upcoming ones by their time."""
    waiting: dict[tuple[str, str, str], list[Notification]] = {}
    for notification in state.notifications:
        for alert in notification.alerts:
            waiting.setdefault((alert.rule, alert.host, alert.about), []).append(notification)
    statuses = []
    for tracked in state.conditions.values():
        condition = tracked.condition
        since = tracked.first_seen_at if condition.since is None else condition.since
        notifications = waiting.get((condition.rule, condition.host, condition.about))
        rule = rules.get(condition.rule)
        if notifications:
            statuses.append(ConditionStatus(tracked, STATUS_WAITING, explain_waiting(notifications, now), since))
        elif tracked.reported_at is not None:
            statuses.append(ConditionStatus(tracked, STATUS_REPORTED, "", since))
        elif rule and rule.on and (start_time := find_start_time(condition, rule)) > now.epoch:
            statuses.append(ConditionStatus(tracked, STATUS_UPCOMING, "", start_time))
        else:
            reason = explain_unreported(tracked, rules, state.silences, context, now)
            statuses.append(ConditionStatus(tracked, STATUS_UNREPORTED, reason, since))
    return sorted(
        statuses,
        key=lambda status: (
            status.at if status.state == STATUS_UPCOMING else -status.at,
            status.tracked.condition.key,
        ),
    )


def explain_unreported(
    tracked: TrackedCondition,
    rules: Mapping[str, AlertRule],
    silences: Mapping[str, int],
    context: AlertContext,
    now: Now,
) -> str:
    """Explain why a condition is not reported; empty if it was."""
    condition, now_s = tracked.condition, int(now.epoch)
    rule = rules.get(condition.rule)
    if tracked.reported_at is not None:
        return ""
    if tracked.is_suppressed:
        return "it was so before anybody looked"
    if rule is None or not rule.on:
        return f"the rule {condition.rule} is off"
    if muted := explain_muted(condition, silences, context, now_s):
        return muted
    start_time = find_start_time(condition, rule)
    if now_s < start_time:
        return f"its time is {format_epoch(start_time, now)}"
    due_at = tracked.first_seen_at + rule.delay
    if now_s < due_at:
        return f"it is told at {format_epoch(due_at, now)}, if it is still so"
    return "the next look tells it"


def explain_waiting(notifications: Iterable[Notification], now: Now) -> str:
    """Explain why notifications have not been sent yet."""
    receivers_by_state: dict[str, list[str]] = {}
    for notification in notifications:
        receiver = format_receiver_name(notification.to)
        receivers_by_state.setdefault(describe_departure(notification, now), []).append(receiver)
    sentences = []
    for state, names in receivers_by_state.items():
        subject, verb = ("letters", "are") if len(names) > 1 else ("letter", "is")
        sentences.append(f"the {subject} to {formatting.join_names(names)} {verb} {state}")
    return "; ".join(sentences)


def describe_departure(notification: Notification, now: Now) -> str:
    """Describe when a notification is sent, after `it is`."""
    if notification.claimed_by:
        return "being sent"
    if notification.due_at <= now.epoch:
        return "due"
    due_at = format_epoch(notification.due_at, now)
    departure = f"tried again at {due_at}" if notification.tries else f"to leave at {due_at}"
    return f"{departure} ({notification.last_error})" if notification.last_error else departure


def format_receiver_name(to: str) -> str:
    """Format a receiver as rules name it: `lab`, `alice`, `hook:page`."""
    return to.partition(":")[2] if to.startswith((CHANNEL_PREFIX, PERSON_PREFIX)) else to
