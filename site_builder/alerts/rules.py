"""Decide which conditions become alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
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
    AlertRule,
    AlertState,
    Condition,
    Notification,
    TrackedCondition,
)
from site_builder.alerts.queue import (
    WATCH_RULE,
    AlertContext,
    ConditionChange,
    NotificationBuilder,
    describe_wait,
    recent,
)
from site_builder.alerts.render import format_epoch
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, HOUR
from site_builder.health.model import UNNAMED_KEY_PREFIX

# What a silence does not keep from whom it is for: neither says that anything is wrong.
REMINDER_RULES = frozenset({WATCH_RULE, "booking-begins", "booking-ends"})
NEW_HOST_RULE = "host-new"
# Seconds for which it is remembered that something was told that is told once: longer than it is a matter.
REPORTED_RETENTION_S = 7 * DAY
RETENTION_BY_RULE_S = {
    "gpu-error": 6 * HOUR,
    "booking-begins": 2 * DAY,
    "booking-ends": 2 * DAY,
    NEW_HOST_RULE: 60 * DAY,
}
# Whoever books less than so many seconds ahead of its beginning knows that it begins.
MIN_BOOKING_NOTICE_S = 300
# A host can claim anything, and there is no end of hosts that can be named.
MAX_TRACKED = 5000
MAX_TRACKED_PER_HOST = 200
# Seconds that what is to be told waits for others of its rule: hosts that one switch takes away go one after another.
GROUPING_DELAY_S = 60
MAX_REPORTED_ONCE = 20_000
# Where nothing is heard of a host, nobody knows whether these are over.
FRESH_HOST_RULES = frozenset({*GPU_RULES, "host-failed", "booking-broken", "booking-unused"})


def update_alert_state(
    book: AlertState, matters: Iterable[Condition], rules: Mapping[str, AlertRule], scene: AlertContext, now: Now
) -> AlertState:
    """The book after a look: what is known, and with it all letters that came of it; the same book if nothing did."""
    found = RuleEvaluator(book, rules, scene, now)
    found.update_conditions({one.key: one for one in (*matters, *found.find_new_hosts()) if found.is_relevant(one)})
    found.builder.build_notifications()
    found.builder.defer_to_quiet_end(rules)
    after = book._replace(
        started_at=found.now_s if book.started_at is None else book.started_at,
        conditions=found.conditions,
        reported_once=found.reported_once
        if len(found.reported_once) <= MAX_REPORTED_ONCE
        else trim_reported_once(found.reported_once),
        notifications=tuple(found.builder.notifications),
        silences={host: until for host, until in book.silences.items() if until > found.now_s or not scene.expires},
        history=recent(book.history, found.now_s) if scene.expires else book.history,
        sent_times=found.builder.sent_times,
        id_counter=found.builder.id_counter,
    )
    return book if after == book else after


def explain_unreported(
    known: TrackedCondition, rules: Mapping[str, AlertRule], silences: Mapping[str, int], scene: AlertContext, now: Now
) -> str:
    """For `gpuboard alerts`: why something that is known is not told; empty where it was."""
    matter, at = known.condition, int(now.epoch)
    rule = rules.get(matter.rule)
    if known.reported_at is not None:
        return ""
    if known.is_suppressed:
        return "it was so before anybody looked"
    if rule is None or not rule.on:
        return f"the rule {matter.rule} is off"
    muted = explain_muted(matter, silences, scene, at)
    if muted:
        return muted
    starts = find_start_time(matter, rule)
    if at < starts:
        return f"its time is {format_epoch(starts, now)}"
    counts = known.first_seen_at + rule.delay
    return f"it is told at {format_epoch(counts, now)}, if it is still so" if at < counts else "the next look tells it"


def explain_muted(matter: Condition, silences: Mapping[str, int], scene: AlertContext, at: int) -> str:
    """Why nothing is told of a host now; empty where it is."""
    if not matter.host or matter.rule == WATCH_RULE:
        return ""
    if scene.hosts.get(matter.host, ("", 0))[0] == "maintenance":
        return f"{matter.host} is under maintenance"
    silent = silences.get(matter.host, 0) > at and matter.rule not in REMINDER_RULES
    return f"{matter.host} is silenced" if silent else ""


def find_start_time(matter: Condition, rule: AlertRule) -> int:
    """From when on a matter is one: of a booking, so long ahead of its beginning or its end as the rule says."""
    if matter.rule == "booking-begins" and matter.since is not None:
        return matter.since - rule.before
    if matter.rule == "booking-ends" and matter.until is not None:
        # of a short one, half is over by then
        half = rule.before if matter.since is None else max(0, matter.until - matter.since) // 2
        return matter.until - min(rule.before, half)
    return 0


def trim_reported_once(once: Mapping[str, int]) -> dict[str, int]:
    """Those that are to be remembered longest."""
    return dict(sorted(once.items(), key=lambda item: item[1])[-MAX_REPORTED_ONCE:])


class RuleEvaluator:
    """One look at all that is the matter."""

    def __init__(self, book: AlertState, rules: Mapping[str, AlertRule], scene: AlertContext, now: Now) -> None:
        """With what is known by now."""
        self.state, self.rules, self.context = book, rules, scene
        self.now_s = int(now.epoch)
        self.is_first_run = book.started_at is None
        self.conditions: dict[str, TrackedCondition] = {}
        self.upcoming: set[tuple[str, str]] = set()
        self.reported_once = {
            key: until for key, until in book.reported_once.items() if until > self.now_s or not scene.expires
        }
        self.builder = NotificationBuilder(book, scene, now)

    def find_new_hosts(self) -> Iterator[Condition]:
        """Hosts that the board did not show before; where nobody is told, they are remembered all the same."""
        rule, soon = self.rules.get(NEW_HOST_RULE), self.now_s + RETENTION_BY_RULE_S[NEW_HOST_RULE] // 2
        for host, (_, gpus) in self.context.hosts.items():
            one = Condition(NEW_HOST_RULE, host, is_lasting=False)
            if self.reported_once.get(one.key, 0) <= soon and not self.was_reported(
                one
            ):  # a thousand hosts, at each look
                if self.is_first_run or rule is None or not rule.on:
                    self.remember_reported(one)
                else:
                    what = f"it has {gpus} GPU{'s' * (gpus != 1)}" if gpus else "it has told no GPU yet"
                    yield one._replace(what=what)

    def is_relevant(self, matter: Condition) -> bool:
        """Whether a rule asks for it, and the board shows its host."""
        rule = self.rules.get(matter.rule)
        shown = not matter.host or matter.host in self.context.hosts
        return rule is not None and rule.on and shown and (matter.is_lasting or not self.was_reported(matter))

    def was_reported(self, matter: Condition) -> bool:
        """Whether something was told that is told once; for as long as it is seen it is remembered."""
        # one that ran out since the last look, with a clock that was set perhaps, counts still
        if matter.key not in self.state.reported_once and matter.key not in self.reported_once:
            return False
        lasts = RETENTION_BY_RULE_S.get(matter.rule, REPORTED_RETENTION_S)
        if self.reported_once.get(matter.key, 0) - self.now_s < lasts // 2:
            self.remember_reported(matter)
        return True

    def remember_reported(self, matter: Condition) -> None:
        """That it was told, or need not be."""
        self.reported_once[matter.key] = self.now_s + RETENTION_BY_RULE_S.get(matter.rule, REPORTED_RETENTION_S)

    def update_conditions(self, matters: Mapping[str, Condition]) -> None:
        """Take up all that is so, and all that was."""
        self.upcoming = set(self.find_upcoming(matters))
        for key, known in self.state.conditions.items():
            if key not in matters:
                self.handle_cleared(key, known)
        counts = Counter(one.condition.host for one in self.conditions.values())
        for key, matter in matters.items():
            before = self.state.conditions.get(key)
            counts[matter.host] += 1
            full = len(self.conditions) >= MAX_TRACKED or (matter.host and counts[matter.host] > MAX_TRACKED_PER_HOST)
            if before or not full or matter.rule in HOST_RULES:
                self.handle_active(key, matter, before)

    def find_upcoming(self, matters: Mapping[str, Condition]) -> Iterator[tuple[str, str]]:
        """Of which rules one more will count within a moment, as begun or as over."""
        for key, known in self.state.conditions.items():
            rule, left, of = self.rules.get(known.condition.rule), 0, STEP_BEGUN
            if rule and known.condition.is_lasting and not known.is_suppressed:
                if key in matters and known.reported_at is None:
                    left = known.first_seen_at + rule.delay - self.now_s
                elif key not in matters and known.cleared_at is not None:
                    left, of = known.cleared_at + rule.resolve_after - self.now_s, STEP_OVER
            if rule and 0 < left <= GROUPING_DELAY_S and not self.is_muted(known.condition):
                yield rule.name, of

    def find_grouping_delay(self, rule: AlertRule, of: str) -> int:
        """For how many seconds what counts waits, so that it is told in one letter with what will in a moment."""
        return GROUPING_DELAY_S if (rule.name, of) in self.upcoming else 0

    def handle_active(self, key: str, matter: Condition, before: TrackedCondition | None) -> None:
        """What is so, and perhaps was before."""
        rule = self.rules[matter.rule]
        starts = find_start_time(matter, rule)
        known = (
            self.renew(before, matter)
            if before
            else TrackedCondition(matter, self.now_s, is_suppressed=self.is_preexisting(matter, starts))
        )
        known = self.retract_if_muted(known, rule)
        if known.is_suppressed or known.reported_at is not None or not self.can_report(known, rule, starts):
            if known.is_suppressed and not matter.is_lasting:
                self.remember_reported(matter)
            else:
                self.conditions[key] = known
            return
        since = known.first_seen_at if matter.since is None else matter.since
        why = f"rule {rule.name}: it was so {describe_wait(self.now_s - known.first_seen_at)}, and had to be {describe_wait(rule.delay)}"
        if matter.is_lasting:
            self.builder.add_change(ConditionChange(matter, STEP_BEGUN, since, None, why), rule)
            # who is told how it is now hears of the same when it is over
            self.conditions[key] = known._replace(condition=matter, reported_at=self.now_s)
        else:
            self.builder.add_change(
                ConditionChange(matter, STEP_HAPPENED, since, matter.until, f"rule {rule.name}"), rule
            )
            self.remember_reported(matter)

    def renew(self, known: TrackedCondition, matter: Condition) -> TrackedCondition:
        """What is known of something that is still so: a booking may be made longer, and a clock be set."""
        seen = min(known.first_seen_at, self.now_s)  # no clock that was set makes it hold for ever
        if (
            known.reported_at is None
            and matter.is_lasting
            and matter.since is not None
            and seen < matter.since <= self.now_s
        ):
            seen = matter.since  # nothing was heard meanwhile, and it has begun anew
        return known._replace(
            condition=known.condition._replace(until=matter.until), first_seen_at=seen, cleared_at=None
        )

    def is_preexisting(self, matter: Condition, starts: int) -> bool:
        """Whether a matter that is new to us is none to others: it was so before, or they have just booked it."""
        if matter.rule == WATCH_RULE:  # who waits is told, also if nobody looked before
            return False
        if matter.rule == "booking-begins":
            return self.now_s > starts - MIN_BOOKING_NOTICE_S
        # in a large fleet, history needs some looks to see all that was there before it
        if matter.rule in HEALTH_RULES and matter.is_lasting and matter.since is None:
            return self.state.started_at is None or self.now_s - self.state.started_at < HOUR
        return self.is_first_run and self.now_s >= starts

    def can_report(self, known: TrackedCondition, rule: AlertRule, starts: int) -> bool:
        """Whether it has been so for long enough, and may be told now."""
        if self.now_s < starts or self.now_s - known.first_seen_at < rule.delay + self.find_grouping_delay(
            rule, STEP_BEGUN
        ):
            return False
        return not self.is_muted(known.condition)

    def is_muted(self, matter: Condition) -> bool:
        """Whether its host is quiet now."""
        return bool(explain_muted(matter, self.state.silences, self.context, self.now_s))

    def retract_if_muted(self, known: TrackedCondition, rule: AlertRule) -> TrackedCondition:
        """What is known, as untold where it was to be told in the morning, and its host has become quiet since."""
        if (
            known.reported_at is not None
            and self.is_muted(known.condition)
            and self.builder.withdraw_if_unsent(known.condition, rule)
        ):
            return known._replace(reported_at=None)
        return known

    def handle_cleared(self, key: str, known: TrackedCondition) -> None:
        """What was so, and is not seen to be so now."""
        matter = known.condition
        rule = self.rules.get(matter.rule)
        state = self.context.hosts.get(matter.host, ("unseen", 0))[0] if matter.host else "fresh"
        ended = matter.until is not None and self.now_s >= matter.until
        home = self.find_current_host(matter)
        if rule is None or not rule.on or state == "unseen" or ended or home not in {None, matter.host}:
            self.builder.withdraw_alert(key)
            return
        # of a GPU that is gone a builder may know nothing that has begun since; it is not back for that
        if home is None or self.is_undecidable(matter, state):
            self.conditions[key] = self.retract_if_muted(known, rule)
            return
        if not matter.is_lasting or (known.reported_at is None and not known.is_suppressed):
            return
        gone = self.now_s if known.cleared_at is None else min(known.cleared_at, self.now_s)
        if self.now_s - gone < rule.resolve_after + self.find_grouping_delay(rule, STEP_OVER) or self.is_muted(matter):
            self.conditions[key] = known._replace(cleared_at=gone)
        elif known.reported_at is not None and rule.send_resolved:
            since = known.first_seen_at if matter.since is None else matter.since
            why = f"rule {rule.name}: it is over {describe_wait(self.now_s - gone)}, and had to be {describe_wait(rule.resolve_after)}"
            was = matter._replace(what=f"until then: {matter.what}" if matter.what else "")
            self.builder.add_change(ConditionChange(was, STEP_OVER, since, gone, why, known.reported_at), rule)
        else:
            self.builder.withdraw_alert(key)

    def find_current_host(self, matter: Condition) -> str | None:
        """Where what is known of a host is now: there, but for a GPU that was lost, which may be nowhere."""
        if (
            matter.rule != "gpu-lost"
            or self.context.find_gpu_host is None
            or matter.about.startswith(UNNAMED_KEY_PREFIX)
        ):
            return matter.host
        return self.context.find_gpu_host(matter.about)

    def is_undecidable(self, matter: Condition, state: str) -> bool:
        """Whether nobody can know if it is over."""
        if matter.host in self.context.failed_hosts or matter.rule in self.context.unreadable_rules:
            return True
        if matter.rule in FRESH_HOST_RULES and state != "fresh":
            return True
        return matter.rule == "host-down" and state in {"stale", "maintenance"}


STATUS_REPORTED, STATUS_WAITING, STATUS_UNREPORTED, STATUS_UPCOMING = (
    "reported",
    "waiting",
    "unreported",
    "upcoming",
)


class ConditionStatus(NamedTuple):
    """Something that is the matter, and how far people know of it: `reported`, `waiting` or `unreported`, and why.

    What is only expected is `upcoming`. `at` is since when it is so, or when it will be told.
    """

    tracked: TrackedCondition
    state: str
    reason: str
    at: int


def list_condition_statuses(
    book: AlertState, rules: Mapping[str, AlertRule], scene: AlertContext, now: Now
) -> list[ConditionStatus]:
    """All that is the matter, the latest first; of what comes, the next."""
    waiting: dict[tuple[str, str, str], list[Notification]] = {}
    for letter in book.notifications:
        for alert in letter.alerts:
            waiting.setdefault((alert.rule, alert.host, alert.about), []).append(letter)
    found = []
    for known in book.conditions.values():
        matter = known.condition
        since = known.first_seen_at if matter.since is None else matter.since
        letters = waiting.get((matter.rule, matter.host, matter.about))
        rule = rules.get(matter.rule)
        if letters:
            found.append(ConditionStatus(known, STATUS_WAITING, explain_waiting(letters, now), since))
        elif known.reported_at is not None:
            found.append(ConditionStatus(known, STATUS_REPORTED, "", since))
        elif rule and rule.on and (comes := find_start_time(matter, rule)) > now.epoch:
            found.append(ConditionStatus(known, STATUS_UPCOMING, "", comes))
        else:
            found.append(
                ConditionStatus(
                    known, STATUS_UNREPORTED, explain_unreported(known, rules, book.silences, scene, now), since
                )
            )
    return sorted(
        found, key=lambda one: (one.at if one.state == STATUS_UPCOMING else -one.at, one.tracked.condition.key)
    )


def explain_waiting(several: Iterable[Notification], now: Now) -> str:
    """Why letters have not left yet."""
    found: dict[str, list[str]] = {}
    for letter in several:
        found.setdefault(describe_departure(letter, now), []).append(format_receiver_name(letter.to))
    return "; ".join(
        f"the letter{'s' * (len(names) > 1)} to {formatting.join_names(names)} {'are' if len(names) > 1 else 'is'} {why}"
        for why, names in found.items()
    )


def describe_departure(letter: Notification, now: Now) -> str:
    """The same of one, after `it is`."""
    if letter.claimed_by:
        return "being sent"
    if letter.due_at <= now.epoch:
        return "due"
    at = formatting.format_moment(datetime.fromtimestamp(letter.due_at, now.zone), now)
    when = f"tried again at {at}" if letter.tries else f"to leave at {at}"
    return f"{when} ({letter.last_error})" if letter.last_error else when


def format_receiver_name(to: str) -> str:
    """A receiver as rules and people call it."""
    return (
        to[len(CHANNEL_PREFIX) :]
        if to.startswith(CHANNEL_PREFIX)
        else to[len(PERSON_PREFIX) :]
        if to.startswith(PERSON_PREFIX)
        else to
    )
