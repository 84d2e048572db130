"""The queue of notifications: build them from condition changes, claim, retry and finish them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, tzinfo
from itertools import groupby

from site_builder.alerts import model, render
from site_builder.alerts.model import Alert, AlertContext, AlertRule, AlertState, Condition, Notification
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, HOUR

MAX_ALERTS_PER_NOTIFICATION = 100
MAX_QUEUED_PER_HOOK = 200
# Limits for people, whom hosts name: notifications in the queue, and people notified about one host at a time.
MAX_QUEUED = 1000
MAX_PEOPLE_PER_HOST = 100
# No notification waits for longer: quiet hours are part of a day, which may have 25 hours.
MAX_WAIT_S = 26 * HOUR
# The steps that cancel each other while the first is not sent yet.
OPPOSITE_STEPS = {model.STEP_OVER: model.STEP_BEGUN, model.STEP_BEGUN: model.STEP_OVER}
# Pauses before a failed notification is tried again; the last is for all further tries.
RETRY_DELAYS_S = (30, 60, 120, 300, 600, 1800, 3600)
# A notification is given up after this time; a receiver can ask for a pause of this length at most.
MAX_AGE_S = DAY
MAX_RETRY_AFTER_S = 6 * HOUR
# How long another builder's claim is believed (no delivery takes as long), and one of a sender on this machine.
CLAIM_TIMEOUT_S = 900
LOCAL_CLAIM_TIMEOUT_S = 120
# A notification that nobody has sent after this time is a problem of the board.
OVERDUE_AFTER_S = 600
MAX_HISTORY = 1000
HISTORY_RETENTION_S = 90 * DAY
MAX_REASON_CHARACTERS = 300
MAX_NAMED_PEOPLE = 3
UNKNOWN_ARRIVAL = "unknown whether {} for {} arrived"


class NotificationQueueBuilder:
    """Adds notifications to a queue: collects the changes of one update, then batches them by receiver."""

    def __init__(self, state: AlertState, context: AlertContext, now: Now) -> None:
        self.context, self.now, self.now_s = context, now, int(now.epoch)
        self.notifications = list(state.notifications)
        for index, queued in enumerate(state.notifications):
            # where the clock was set back since, it waits no longer than intended
            if queued.due_at > self.now_s + MAX_WAIT_S:
                self.notifications[index] = queued._replace(due_at=self.now_s)
            elif queued.created_at > self.now_s:
                due_at = self.now_s + max(0, queued.due_at - queued.created_at)
                self.notifications[index] = queued._replace(created_at=self.now_s, due_at=due_at)
        self.sent_times = state.sent_times
        self.id_counter = state.id_counter
        self.new_alerts: dict[tuple[str, str, str], list[Alert]] = {}
        self.rules: dict[str, AlertRule] = {}
        self.people_by_host: dict[str, set[str]] = {}

    def add_change(self, change: model.ConditionChange, rule: AlertRule) -> None:
        """Collect an alert for each receiver of the rule, or cancel the opposite alert that is not sent yet."""
        self.id_counter += 1
        self.rules[rule.name] = rule
        condition = change.condition
        for to in self.list_receivers(condition, rule):
            if not self.cancel_pending_alert(to, condition.key, OPPOSITE_STEPS.get(change.step), change.reported_at):
                via = condition.via if to.startswith(model.PERSON_PREFIX) else ""
                self.new_alerts.setdefault((to, via, rule.name), []).append(self.build_alert(change, to))

    def list_receivers(self, condition: Condition, rule: AlertRule) -> Iterator[str]:
        for name in self.context.channels:
            if "all" in rule.to or name in rule.to:
                yield model.CHANNEL_PREFIX + name
        if "person" in rule.to:
            # whoever asked for a watch sees in the history that nobody could reach them
            can_reach = None if condition.rule == model.WATCH_RULE else self.context.can_reach
            # a host can claim any users: limit how many people are notified about one host
            people = self.people_by_host.setdefault(condition.host, set()) if condition.host else set()
            for person in condition.owners:
                if not condition.host or len(people) < MAX_PEOPLE_PER_HOST:
                    people.add(person)
                if person in people and (can_reach is None or can_reach(person)):
                    yield model.PERSON_PREFIX + person
        if "hooks" in rule.to:
            yield from (model.HOOK_PREFIX + name for name in self.context.hooks)

    def build_alert(self, change: model.ConditionChange, to: str) -> Alert:
        """Build the alert for one receiver; where people are hidden, each reads only of themselves."""
        condition, reader = change.condition, model.parse_person_receiver(to)
        if not self.context.users_shown:
            people = (reader,) if reader else ()
            condition = condition._replace(owners=people, people=people)
        board_url = self.context.url if condition.host else None
        lasted = None if change.since is None or change.until is None else change.until - change.since
        return Alert(
            id=f"{self.now_s}-{self.id_counter}",
            rule=condition.rule,
            step=change.step,
            title=render.format_alert_title(condition, change.step, lasted, reader, self.now),
            what=condition.what,
            at=self.now_s,
            host=condition.host,
            gpus=condition.gpus,
            since=change.since,
            until=change.until,
            people=condition.people,
            link=f"{board_url.rstrip('/')}/hosts/{condition.host}.html" if board_url else None,
            about=condition.about,
            why=change.reason,
            severity=condition.severity,
        )

    def cancel_pending_alert(self, to: str, key: str, step: str | None, reported_at: int | None = None) -> bool:
        """Remove an alert of this condition and step from a notification that is not due yet; return True if done.

        `reported_at` is when it was queued: one that had no room is then only counted in its notification.
        """
        for index, notification in enumerate(self.notifications):
            if notification.to != to or not self.is_pending(notification):
                continue
            alerts = tuple(alert for alert in notification.alerts if alert.step != step or alert.condition_key != key)
            if len(alerts) == len(notification.alerts):
                if not notification.omitted_count or reported_at is None or reported_at < notification.created_at:
                    continue
                self.notifications[index] = notification._replace(omitted_count=notification.omitted_count - 1)
                return True
            if not alerts and notification.omitted_count:  # it must name something besides a number
                return False
            self.notifications[index : index + 1] = [notification._replace(alerts=alerts)] if alerts else []
            return True
        return False

    def withdraw_alert(self, key: str) -> None:
        for to in {notification.to for notification in self.notifications}:
            self.cancel_pending_alert(to, key, model.STEP_BEGUN)

    def withdraw_if_unsent(self, condition: Condition, rule: AlertRule) -> bool:
        """Withdraw the alerts of a condition if no receiver has got one yet."""
        key = condition.key
        pending_receivers = {
            notification.to
            for notification in self.notifications
            if self.is_pending(notification)
            for alert in notification.alerts
            if alert.step == model.STEP_BEGUN and alert.condition_key == key
        }
        receivers = set(self.list_receivers(condition, rule))
        if not pending_receivers or not receivers <= pending_receivers:
            return False
        self.withdraw_alert(key)
        return True

    def is_pending(self, notification: Notification) -> bool:
        return notification.due_at > self.now_s and not notification.tries and not notification.claimed_by

    def build_notifications(self) -> None:
        """Turn the collected alerts into notifications, or add them to some that wait."""
        for (to, via, rule_name), alerts in self.new_alerts.items():
            if not to.startswith(model.HOOK_PREFIX):
                self.add_or_merge(to, via, self.rules[rule_name], alerts)
                continue
            # a program gets one alert at a time, at once, and not more than it can handle
            room = max(0, MAX_QUEUED_PER_HOOK - sum(queued.to == to for queued in self.notifications))
            for index, alert in enumerate(alerts[:room]):
                omitted_count = len(alerts) - room if index == room - 1 else 0
                self.append_notification(to, "", (alert,), self.now_s, omitted_count)

    def add_or_merge(self, to: str, via: str, rule: AlertRule, alerts: list[Alert]) -> None:
        """Queue alerts in a notification that waits for quiet hours or the hourly limit, or in a new one."""
        send_at = self.find_send_time(to, rule)
        # what will be over by then is not reported
        ends = [alert.until if alert.step == model.STEP_HAPPENED else None for alert in alerts]
        alerts = [alert for alert, end in zip(alerts, ends) if end is None or send_at < end]
        if not alerts:
            return
        can_merge = send_at > self.now_s and rule.name != model.WEEKLY_REPORT_RULE
        for index, waiting in enumerate(self.notifications if can_merge else ()):
            if (waiting.to, waiting.via) != (to, via) or not self.is_pending(waiting):
                continue
            if any(alert.rule == model.WEEKLY_REPORT_RULE for alert in waiting.alerts):  # a notification of its own
                continue
            quiet_end = find_queue_quiet_end(rule.quiet_hours, waiting.due_at, self.now.zone)
            if waiting.due_at == quiet_end <= send_at + HOUR:
                merged = (*waiting.alerts, *alerts)
                self.notifications[index] = waiting._replace(
                    alerts=merged[:MAX_ALERTS_PER_NOTIFICATION],
                    omitted_count=waiting.omitted_count + max(0, len(merged) - MAX_ALERTS_PER_NOTIFICATION),
                )
                return
        if to.startswith(model.PERSON_PREFIX) and len(self.notifications) >= MAX_QUEUED:
            return
        self.sent_times = {
            receiver: tuple(times)
            for receiver in self.sent_times
            if (times := self.list_recent_sends(receiver, self.now_s))
        }
        self.sent_times[to] = (*self.sent_times.get(to, ()), send_at)
        omitted_count = max(0, len(alerts) - MAX_ALERTS_PER_NOTIFICATION)
        self.append_notification(to, via, tuple(alerts[:MAX_ALERTS_PER_NOTIFICATION]), send_at, omitted_count)

    def append_notification(
        self, to: str, via: str, alerts: tuple[Alert, ...], due_at: int, omitted_count: int
    ) -> None:
        self.id_counter += 1
        new_id = f"{self.now_s}-{self.id_counter}"
        self.notifications.append(
            Notification(new_id, to, alerts, self.now_s, due_at, via, omitted_count=omitted_count)
        )

    def find_send_time(self, to: str, rule: AlertRule) -> int:
        send_at = self.now_s
        while True:
            # the hour before and the hour after must have room for one more: some may wait for the latter
            at, limit = send_at, rule.max_per_hour
            while len(times := [time for time in self.list_recent_sends(to, at) if time < at + HOUR]) >= limit > 0:
                at = times[-limit] + HOUR
            later = find_queue_quiet_end(rule.quiet_hours, at, self.now.zone)
            if later <= send_at:
                return send_at
            send_at = later

    def list_recent_sends(self, to: str, at: int) -> list[int]:
        """List when a receiver got notifications in the hour before, or will; ignore times of a clock set back."""
        return sorted(time for time in self.sent_times.get(to, ()) if at - HOUR < time <= self.now_s + MAX_WAIT_S)

    def defer_to_quiet_end(self, rules: Mapping[str, AlertRule]) -> None:
        """Defer what could not be sent before quiet hours, unless one of its rules has none."""
        for index, notification in enumerate(self.notifications):
            its_rules = [rules[alert.rule] for alert in notification.alerts if alert.rule in rules]
            if its_rules and not notification.claimed_by and not notification.to.startswith(model.HOOK_PREFIX):
                due_at = max(notification.due_at, self.now_s)
                later = min(find_queue_quiet_end(rule.quiet_hours, due_at, self.now.zone) for rule in its_rules)
                if later > due_at:
                    self.notifications[index] = notification._replace(due_at=later)


def find_queue_quiet_end(quiet: tuple[int, int] | None, at: int, zone: tzinfo) -> int:
    """Return when the quiet hours around a moment end; the moment itself if it is not in any."""
    if quiet is None or quiet[0] == quiet[1]:
        return at
    begin, end = quiet
    local = datetime.fromtimestamp(at, zone)
    minute = local.hour * 60 + local.minute
    is_quiet = begin <= minute < end if begin < end else minute >= begin or minute < end
    if not is_quiet:
        return at
    day = local.date() + timedelta(days=int(begin > end and minute >= begin))
    moment = datetime.combine(day, datetime.min.time(), zone).replace(hour=end // 60, minute=end % 60)
    return max(at, int(moment.timestamp()))


# What the sender does with the queue


def has_due_queue_work(state: AlertState, claim_prefix: str | None, now: int) -> bool:
    """Return True if a notification is due, or has a claim whose sender may be gone."""
    return any(
        queued.due_at <= now
        and (not queued.claimed_by or is_claim_over(queued, claim_prefix, now, LOCAL_CLAIM_TIMEOUT_S))
        for queued in state.notifications
    )


def is_claim_over(notification: Notification, claim_prefix: str | None, now: int, local_timeout_s: int) -> bool:
    is_local = claim_prefix is None or notification.claimed_by.startswith(claim_prefix)
    return abs(now - notification.claimed_at) >= (local_timeout_s if is_local else CLAIM_TIMEOUT_S)


def write_off_lost_queue_claims(state: AlertState, claim_prefix: str | None, now: int) -> AlertState:
    """Finish notifications whose sender ended while it sent them: they may have arrived, and are not sent again.

    The claims of senders on this machine begin with `claim_prefix`, and none of these senders is left; None means
    that there are no other machines.
    """
    for queued in state.notifications:
        if queued.claimed_by and is_claim_over(queued, claim_prefix, now, local_timeout_s=0):
            reason = "the sender was stopped while it sent: it may have arrived and is not sent again"
            tried = queued._replace(tries=queued.tries + 1)
            state = finish_notification(state, tried, model.UNSURE, reason, now)
    return state


def list_due_notifications(state: AlertState, now: int) -> list[Notification]:
    """List what can be sent now, the oldest first; receivers that failed before come last."""
    failing = {(queued.to, queued.via) for queued in state.notifications if queued.tries}
    due = (queued for queued in state.notifications if not queued.claimed_by and queued.due_at <= now)
    return sorted(due, key=lambda queued: ((queued.to, queued.via) in failing, queued.created_at))


def claim_notification(state: AlertState, notification_id: str, claim_name: str, now: int) -> AlertState:
    unclaimed = find_queued_notification(state, notification_id, "")
    if unclaimed is None:
        return state
    return replace_notification(state, unclaimed._replace(claimed_by=claim_name, claimed_at=now))


def find_queued_notification(state: AlertState, notification_id: str, claim_name: str) -> Notification | None:
    matches = (
        queued for queued in state.notifications if (queued.id, queued.claimed_by) == (notification_id, claim_name)
    )
    return next(matches, None)


def record_queue_outcome(
    state: AlertState, notification_id: str, claim_name: str, outcome: model.DeliveryOutcome, now: int
) -> AlertState:
    """Finish a claimed notification or schedule its retry; one that is no longer ours was written off by another."""
    notification = find_queued_notification(state, notification_id, claim_name)
    if notification is None:
        return state
    reason = outcome.reason[:MAX_REASON_CHARACTERS]
    notification = notification._replace(tries=notification.tries + 1)
    if outcome.status != model.FAILED:
        status = model.GIVEN_UP if outcome.status == model.REFUSED else outcome.status
        return finish_notification(state, notification, status, reason, now)
    # all others for its receiver wait with it, and those that are too old are given up
    pause = RETRY_DELAYS_S[min(notification.tries, len(RETRY_DELAYS_S)) - 1]
    retry_at = now + max(pause, min(outcome.retry_after_s or 0, MAX_RETRY_AFTER_S))
    state = replace_notification(state, notification._replace(last_error=reason, claimed_by="", claimed_at=0))
    for queued in state.notifications:
        if (queued.to, queued.via) != (notification.to, notification.via) or queued.claimed_by:
            continue
        if retry_at - queued.created_at > MAX_AGE_S:
            state = finish_notification(state, queued, model.GIVEN_UP, reason, now)
        else:
            state = replace_notification(state, queued._replace(due_at=max(queued.due_at, retry_at)))
    return state


def replace_notification(state: AlertState, notification: Notification) -> AlertState:
    notifications = (notification if queued.id == notification.id else queued for queued in state.notifications)
    return state._replace(notifications=tuple(notifications))


def finish_notification(
    state: AlertState, notification: Notification, status: str, reason: str, now: int
) -> AlertState:
    record = model.DeliveryRecord(now, notification.to, status, notification.alerts, reason, notification.tries)
    notifications = tuple(queued for queued in state.notifications if queued.id != notification.id)
    return state._replace(notifications=notifications, history=(*state.history, record)[-MAX_HISTORY:])


def describe_queue_problems(state: AlertState, now: int) -> list[str]:
    sentences = []
    waiting = [queued for queued in state.notifications if queued.tries or now - queued.due_at > OVERDUE_AFTER_S]
    for to, group in groupby(sorted(waiting, key=lambda queued: queued.to), key=lambda queued: queued.to):
        queue = list(group)
        reason = next((queued.last_error for queued in queue if queued.last_error), "no process sends them")
        subject = "a notification waits" if len(queue) == 1 else f"{len(queue)} notifications wait"
        sentences.append(f"{subject} for {to.replace(':', ' ', 1)}: {reason}")
    for status, singular, plural, sentence, last in (
        (model.GIVEN_UP, "a notification was", "notifications were", "{} given up for {}", "the last"),
        (model.UNSURE, "a notification", "notifications", UNKNOWN_ARRIVAL, "the last of them"),
    ):
        records = [record for record in state.history if record.status == status and abs(now - record.at) < MAX_AGE_S]
        people = [record for record in records if model.parse_person_receiver(record.to)]
        count = len({record.to for record in people})
        if count > MAX_NAMED_PEOPLE:  # mostly one cause: no contacts are written down
            summary = sentence.format(plural, f"{count} people")
            sentences.append(f"{summary}, {last} for {people[-1].to.replace(':', ' ', 1)}: {people[-1].reason}")
            records = [record for record in records if not model.parse_person_receiver(record.to)]
        for to in sorted({record.to for record in records}):
            reasons = [record.reason for record in records if record.to == to]
            subject = singular if len(reasons) == 1 else f"{len(reasons)} {plural}"
            sentences.append(f"{sentence.format(subject, to.replace(':', ' ', 1))}: {reasons[-1]}")
    return sentences
