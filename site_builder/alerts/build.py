"""What the builder does for alerts, once a build: collect conditions, and decide which become alerts."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from typing import Protocol, TypeVar

from site_builder.alerts import model, queue, sender
from site_builder.alerts.conditions import (
    HEALTH_RULES,
    LOOKBACK_S,
    HostConditions,
    describe_condition_wait,
    explain_muted_condition,
    find_condition_gpu_host,
    find_condition_start_time,
    find_health_conditions,
)
from site_builder.alerts.contacts import ContactsAndRules, load_contacts
from site_builder.alerts.http_mail_hooks import HookFolder
from site_builder.alerts.model import (
    WATCH_RULE,
    WEEKLY_REPORT_RULE,
    AlertContext,
    AlertRule,
    AlertState,
    Condition,
    ConditionChange,
    TrackedCondition,
)
from site_builder.alerts.queue import HISTORY_RETENTION_S, NotificationQueueBuilder
from site_builder.alerts.store import AlertStateError, open_alert_store
from site_builder.alerts.weekly_report import find_due_report
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.faults import split_by_success
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import Problem
from site_builder.health.model import UNNAMED_KEY_PREFIX
from site_builder.health.store import StoredEventReader

PROBLEM_WHERE = "alerts"
HOOKS_SETTING = "GPUBOARD_HOOKS"
INTERNAL_ERROR = "a fault of gpuboard's own"
MAX_NAMED_HOSTS = 5
# How long a build waits for another writer of the alert state.
BUILD_LOCK_TIMEOUT_S = 1.0
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
FRESH_HOST_RULES = frozenset({*model.GPU_RULES, "host-failed", "booking-broken", "booking-unused"})
Collected = TypeVar("Collected")


class AlertWatchSource(Protocol):
    """The watches of a board (watches.build.WatchConditions)."""

    problems: list[Problem]

    def read_problems(self) -> None:
        """Read what is wrong with their file."""

    def find_conditions(self, hosts: Mapping[str, HostConditions], rule: AlertRule, now: Now) -> list[Condition]:
        """Find the watches that are fulfilled."""

    def save_fulfilled_since(self) -> None:
        """Save since when those that find_conditions() found are fulfilled."""

    def remove_finished(self, conditions: Iterable[Condition], state: AlertState, expires: bool = True) -> None:
        """Remove watches that were reported, and those that are over."""


class AlertEngine:
    """Updates the alert state once a build, and starts the sender."""

    def __init__(self, settings: Settings, events: StoredEventReader, watches: AlertWatchSource) -> None:
        self.settings, self.events, self.watches = settings, events, watches
        self.store = open_alert_store(settings.state, settings.kv)
        self.config_files = ContactsAndRules(settings.alerts, settings.data, settings.www, settings.state)
        self.hook_folder = HookFolder(settings.alerts.hooks_folder, (settings.data, settings.www))
        self.claim_prefix = sender.build_sender_claim_prefix(settings)
        self.sender_process: subprocess.Popen[bytes] | None = None
        self.last_state: AlertState | None = None
        self.failure = ""
        self.last_minute = (-1, -1)
        self.minute_conditions: list[Condition] = []  # those that change once a minute
        self.unreadable_rules: frozenset[str] = frozenset()
        self.expires = True  # False while the clock is in doubt: then nothing is forgotten because its time is over

    def process_build(self, hosts: Mapping[str, HostConditions] | None, now: Now, leads: Callable[[], bool]) -> None:
        """Update the alert state and send what is due, if this builder leads: others would report everything twice.

        Without hosts nothing can be decided, and what was queued before is sent.
        """
        is_leader, self.failure = False, ""
        try:
            is_leader = leads()
            self.last_state = self.update_state(hosts, now) if is_leader and hosts is not None else self.store.read()
        except AlertStateError as error:
            self.failure = f"{error}: nothing is told until it can be"
        except Exception as error:
            self.failure = describe_alert_fault(error)
        try:
            is_sending = self.sender_process is not None and self.sender_process.poll() is None
            state = self.last_state or AlertState()
            if is_leader and not is_sending and queue.has_due_work(state, self.claim_prefix, int(now.epoch)):
                self.sender_process = sender.start_sender_process(self.settings)
        except OSError as error:
            self.failure = f"nothing can be sent: {error.strerror}"
        except Exception as error:
            self.failure = describe_alert_fault(error)

    def update_state(self, hosts: Mapping[str, HostConditions], now: Now, dry_run: bool = False) -> AlertState:
        """Collect the conditions of this build, apply the rules, and store the new alert state, unless `dry_run`."""
        rules, _ = self.config_files.read_rules()
        watched = self.collect_safely(lambda: self.watches.find_conditions(hosts, rules[WATCH_RULE], now))
        conditions = [
            *chain.from_iterable(host.conditions or () for host in hosts.values()),
            *self.find_minute_conditions(hosts, rules, now),
            *watched,
        ]
        failed_hosts = frozenset(name for name, host in hosts.items() if host.conditions is None)
        if failed_hosts:
            names = formatting.join_names(sorted(failed_hosts)[:MAX_NAMED_HOSTS])
            self.failure = f"{INTERNAL_ERROR} at {names}: nothing is told of it"
        # only once somebody is asked for; most labs begin with a channel and know no addresses: a booking there must
        # not queue a notification to be given up
        load = lru_cache(maxsize=1)(lambda: load_contacts(self.settings))
        context = self.build_context(hosts)._replace(
            find_gpu_host=partial(find_condition_gpu_host, hosts),
            can_reach=lambda person: not load().is_complete or bool(load().find_contacts(person)),
            failed_hosts=failed_hosts,
            expires=self.expires,
        )
        before = self.store.read()
        try:
            after = update_alert_state(before, conditions, rules, context, now)
        except Exception:  # an error at one host must not keep everything else from being reported
            conditions, context = self.drop_failing_hosts(before, conditions, rules, context, now)
            after = update_alert_state(before, conditions, rules, context, now)
        if dry_run:
            return after
        self.collect_safely(self.watches.save_fulfilled_since)
        state = after
        if after != before:
            state = self.store.change(
                lambda stored: (
                    after if stored is before else update_alert_state(stored, conditions, rules, context, now)
                ),
                BUILD_LOCK_TIMEOUT_S,
            )
        self.collect_safely(lambda: self.watches.remove_finished(watched, state, self.expires))
        return state

    def build_context(self, hosts: Mapping[str, HostConditions]) -> AlertContext:
        return AlertContext(
            hosts={name: (host.summary.state, len(host.summary.gpu_identities)) for name, host in hosts.items()},
            channels=tuple(name for name, _ in self.settings.alerts.channels),
            hooks=self.hook_folder.list_runnable_names(),
            url=self.settings.url,
            users_shown=self.settings.privacy.users,
            unreadable_rules=self.unreadable_rules,
        )

    def find_minute_conditions(
        self, hosts: Mapping[str, HostConditions], rules: Mapping[str, AlertRule], now: Now
    ) -> list[Condition]:
        """Find the conditions that come from history, which changes once a minute, and the weekly report."""
        minute = int(now.epoch) // MINUTE, self.events.recorded_minute
        if minute != self.last_minute:
            self.minute_conditions, self.last_minute, self.unreadable_rules = [], minute, HEALTH_RULES
            self.minute_conditions = self.collect_safely(lambda: self.read_health_conditions(hosts, now))
            rule = rules[WEEKLY_REPORT_RULE]
            report = self.collect_safely(lambda: [find_due_report(self.settings, now.epoch, rule)])
            self.minute_conditions += [condition for condition in report if condition]
        return self.minute_conditions

    def read_health_conditions(self, hosts: Mapping[str, HostConditions], now: Now) -> list[Condition]:
        """Find conditions in GPU events; where history cannot be read, nobody knows which of them are over."""
        events = self.events.read_events(now.epoch - LOOKBACK_S, now.epoch + 1)  # including those of this second
        if self.events.reader.problem:
            return []
        conditions = find_health_conditions(
            events,
            lambda host: hosts[host].people if host in hosts else (),
            now.copy_with_own_expiry(),
            lambda uuid: find_condition_gpu_host(hosts, uuid) is not None,
        )
        self.unreadable_rules = frozenset()
        return conditions

    def collect_safely(self, collect: Callable[[], list[Collected] | None]) -> list[Collected]:
        """Collect conditions from one source; an error there costs no other source."""
        try:
            return collect() or []
        except Exception as error:
            self.failure = describe_alert_fault(error)
            return []

    def drop_failing_hosts(
        self,
        state: AlertState,
        conditions: list[Condition],
        rules: Mapping[str, AlertRule],
        context: AlertContext,
        now: Now,
    ) -> tuple[list[Condition], AlertContext]:
        """Leave out the hosts whose conditions make the rules fail: what of them is over is unknown."""
        _, failing = split_by_success(conditions, lambda some: update_alert_state(state, some, rules, context, now))
        if not failing:
            return conditions, context
        hosts = frozenset(condition.host for condition, _ in failing)
        names = formatting.join_names(sorted(filter(None, hosts))[:MAX_NAMED_HOSTS]) or "what concerns no host"
        self.failure = f"{INTERNAL_ERROR} at {names} ({failing[0][1]}): nothing is told of it"
        remaining = [condition for condition in conditions if condition.host not in hosts]
        return remaining, context._replace(failed_hosts=context.failed_hosts | hosts)

    def list_problems(self, now: Now) -> list[Problem]:
        """List what the page says about alerts; a builder that has just started says what the last one did."""
        try:
            if self.last_state is None:
                self.last_state = AlertState()
                self.watches.read_problems()
                with suppress(AlertStateError):  # the first page does not wait for it; process_build() reports it
                    self.last_state = self.store.read()
            hook_problems = [
                Problem(HOOKS_SETTING, f"{hook.name} {hook.problem}".strip())
                for hook in self.hook_folder.check_hooks()
                if hook.problem
            ]
            failures = queue.describe_queue_problems(self.last_state, int(now.epoch))
            failures += [f"{self.store.where} {self.store.problem}"] if self.store.problem else []
            failures += [self.failure] if self.failure else []
            problems = [*self.config_files.list_problems(), *self.watches.problems, *hook_problems]
            return problems + [Problem(PROBLEM_WHERE, failure) for failure in failures]
        except Exception as error:
            return [Problem(PROBLEM_WHERE, describe_alert_fault(error))]


def describe_alert_fault(error: Exception) -> str:
    """Describe an error of ours by its type alone: its message may contain an address."""
    return f"{INTERNAL_ERROR} ({type(error).__name__}): nothing new is told"


def update_alert_state(
    state: AlertState, conditions: Iterable[Condition], rules: Mapping[str, AlertRule], context: AlertContext, now: Now
) -> AlertState:
    """Return the alert state after a build, with new notifications; the same object if nothing changed."""
    state_builder = AlertStateBuilder(state, rules, context, now)
    now_s = state_builder.now_s
    state_builder.update_conditions(conditions)
    state_builder.queue_builder.build_notifications()
    state_builder.queue_builder.defer_to_quiet_end(rules)
    reported_once = state_builder.reported_once
    if len(reported_once) > MAX_REPORTED_ONCE:
        reported_once = dict(sorted(reported_once.items(), key=lambda item: item[1])[-MAX_REPORTED_ONCE:])
    updated = state._replace(
        started_at=now_s if state.started_at is None else state.started_at,
        conditions=state_builder.conditions,
        reported_once=reported_once,
        notifications=tuple(state_builder.queue_builder.notifications),
        silences={host: until for host, until in state.silences.items() if until > now_s or not context.expires},
        history=tuple(
            record for record in state.history if now_s - record.at < HISTORY_RETENTION_S or not context.expires
        ),
        sent_times=state_builder.queue_builder.sent_times,
        id_counter=state_builder.queue_builder.id_counter,
    )
    return state if updated == state else updated


class AlertStateBuilder:
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
                plural = "s" * (gpu_count != 1)
                what = f"it has {gpu_count} GPU{plural}" if gpu_count else "it has told no GPU yet"
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
        if tracked.is_suppressed or tracked.reported_at is not None:
            self.conditions[key] = tracked
            return
        due_at = tracked.first_seen_at + rule.delay + self.find_grouping_delay(rule, model.STEP_BEGUN)
        if self.now_s < max(start_time, due_at) or self.is_muted(condition):
            self.conditions[key] = tracked
            return
        since = tracked.first_seen_at if condition.since is None else condition.since
        if condition.is_lasting:
            lasted = describe_condition_wait(self.now_s - tracked.first_seen_at)
            reason = f"rule {rule.name}: it was so {lasted}, and had to be {describe_condition_wait(rule.delay)}"
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
        if condition.rule == model.WATCH_RULE:  # whoever waits is told, even at first start
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
        ):  # nobody can know whether it is over
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
            lasted = describe_condition_wait(self.now_s - cleared_at)
            reason = (
                f"rule {rule.name}: it is over {lasted}, and had to be {describe_condition_wait(rule.resolve_after)}"
            )
            ended = condition._replace(what=f"until then: {condition.what}" if condition.what else "")
            change = ConditionChange(ended, model.STEP_OVER, since, cleared_at, reason, tracked.reported_at)
            self.queue_builder.add_change(change, rule)
        else:
            self.queue_builder.withdraw_alert(key)
