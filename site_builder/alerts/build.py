"""What the builder does for alerts, once a build: collect conditions, and decide which become alerts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from site_builder.alerts import queue, sender
from site_builder.alerts.conditions import (
    HEALTH_RULES,
    LOOKBACK_S,
    HostConditions,
    find_condition_gpu_host,
    find_health_conditions,
)
from site_builder.alerts.contacts import ContactsAndRules, load_contacts
from site_builder.alerts.hooks import HookFolder
from site_builder.alerts.model import WATCH_RULE, WEEKLY_REPORT_RULE, AlertContext, AlertRule, AlertState, Condition
from site_builder.alerts.rules import apply_alert_rules
from site_builder.alerts.store import AlertStateError, open_alert_store
from site_builder.alerts.weekly_report import find_due_report
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.faults import split_by_fault
from site_builder.core.formatting import MINUTE
from site_builder.core.model import Problem
from site_builder.health.store import StoredEventReader

if TYPE_CHECKING:  # it imports this package
    from site_builder.watches.build import WatchConditions

PROBLEM_WHERE = "alerts"
HOOKS_SETTING = "GPUBOARD_HOOKS"
INTERNAL_ERROR = "internal error in gpuboard"
MAX_NAMED_HOSTS = 5
# How long a build waits for another writer of the alert state.
BUILD_LOCK_TIMEOUT_S = 1.0
Collected = TypeVar("Collected")


class AlertEngine:
    """Updates the alert state once a build, and starts the sender."""

    def __init__(self, settings: Settings, events: StoredEventReader, watches: WatchConditions) -> None:
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
            self.failure = f"{error}: no alerts are sent until then"
        except Exception as error:
            self.failure = describe_alert_fault(error)
        try:
            is_sending = self.sender_process is not None and self.sender_process.poll() is None
            state = self.last_state or AlertState()
            if is_leader and not is_sending and queue.has_due_queue_work(state, self.claim_prefix, int(now.epoch)):
                self.sender_process = sender.start_sender_process(self.settings)
        except OSError as error:
            self.failure = f"no notifications can be sent: {error.strerror}"
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
            names = formatting.format_names(sorted(failed_hosts)[:MAX_NAMED_HOSTS])
            self.failure = f"{INTERNAL_ERROR} at {names}: no alerts are sent about it"
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
            after = apply_alert_rules(before, conditions, rules, context, now)
        except Exception:  # an error at one host must not keep everything else from being reported
            _, failing = split_by_fault(conditions, lambda some: apply_alert_rules(before, some, rules, context, now))
            if failing:  # what of these hosts is over is unknown
                failing_hosts = frozenset(condition.host for condition, _ in failing)
                names = formatting.format_names(sorted(filter(None, failing_hosts))[:MAX_NAMED_HOSTS])
                where = names or "alerts about no host"
                self.failure = f"{INTERNAL_ERROR} at {where} ({failing[0][1]}): no alerts are sent about it"
                conditions = [condition for condition in conditions if condition.host not in failing_hosts]
                context = context._replace(failed_hosts=failed_hosts | failing_hosts)
            after = apply_alert_rules(before, conditions, rules, context, now)
        if dry_run:
            return after
        self.collect_safely(self.watches.save_fulfilled_since)
        state = after
        if after != before:
            state = self.store.change(
                lambda stored: (
                    after if stored is before else apply_alert_rules(stored, conditions, rules, context, now)
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
            self.minute_conditions += self.collect_safely(
                lambda: [*filter(None, [find_due_report(self.settings, now.epoch, rule)])]
            )
        return self.minute_conditions

    def read_health_conditions(self, hosts: Mapping[str, HostConditions], now: Now) -> list[Condition]:
        """Find conditions in GPU events; if history cannot be read, it is unknown which of them are over."""
        events = self.events.read_events(now.epoch - LOOKBACK_S, now.epoch + 1)  # including those of this second
        if self.events.reader.problem:
            return []
        conditions = find_health_conditions(events, hosts, now.copy_with_own_expiry())
        self.unreadable_rules = frozenset()
        return conditions

    def collect_safely(self, collect: Callable[[], list[Collected] | None]) -> list[Collected]:
        """Collect conditions from one source; an error there costs no other source."""
        try:
            return collect() or []
        except Exception as error:
            self.failure = describe_alert_fault(error)
            return []

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
    return f"{INTERNAL_ERROR} ({type(error).__name__}): no new alerts are sent"
