"""The queue of notifications: build, claim, finish, retry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta, tzinfo
from itertools import groupby
from typing import NamedTuple

from site_builder.alerts import render
from site_builder.alerts.model import (
    CHANNEL_PREFIX,
    HOOK_PREFIX,
    PERSON_PREFIX,
    STEP_BEGUN,
    STEP_HAPPENED,
    STEP_OVER,
    Alert,
    AlertRule,
    AlertState,
    Condition,
    DeliveryOutcome,
    DeliveryRecord,
    Notification,
)
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.formatting import HOUR

SENT, FAILED, REFUSED, UNSURE, GIVEN_UP = "sent", "failed", "refused", "unsure", "given up"
# Seconds until a letter is tried again that did not arrive; the last counts for all further ones.
RETRY_DELAYS_S = (30, 60, 120, 300, 600, 1800, 3600)
# Seconds after which nobody wants to hear of it any more, and the longest that a receiver can make us wait.
MAX_AGE_S = 24 * 3600
MAX_RETRY_AFTER_S = 6 * 3600
# Seconds for which another builder's claim is believed: no send takes as long.
CLAIM_TIMEOUT_S = 900
# Seconds after which we look whether a sender on this machine still lives.
LOCAL_CLAIM_TIMEOUT_S = 120
# Seconds after which a letter that nobody took up is told of.
OVERDUE_AFTER_S = 600
# How much of the past is kept.
MAX_HISTORY = 1000
HISTORY_RETENTION_S = 90 * 86400
MAX_REASON_CHARACTERS = 300
# People of whom each has a sentence.
MAX_NAMED_PEOPLE = 3


def list_due_notifications(book: AlertState, now: int) -> list[Notification]:
    """The letters that can be sent now, the oldest of each receiver first, and those before whose go well."""
    waiting = sorted(
        (one for one in book.notifications if not one.claimed_by and one.due_at <= now), key=lambda one: one.created_at
    )
    failing = {build_receiver_key(one) for one in book.notifications if one.tries}
    return sorted(waiting, key=lambda one: build_receiver_key(one) in failing)


def has_due_work(book: AlertState, ours: str | None, now: int) -> bool:
    """Whether there is anything to do: a letter to send, or one whose sender may be gone (`ours` as in written_off)."""
    return any(
        one.due_at <= now
        and (
            not one.claimed_by
            or abs(now - one.claimed_at) >= (LOCAL_CLAIM_TIMEOUT_S if is_claimed_here(one, ours) else CLAIM_TIMEOUT_S)
        )
        for one in book.notifications
    )


def is_claimed_here(letter: Notification, ours: str | None) -> bool:
    """Whether a sender on this machine claimed it."""
    return ours is None or letter.claimed_by.startswith(ours)


def build_receiver_key(letter: Notification) -> tuple[str, str]:
    """Whom it is for, and by which way."""
    return letter.to, letter.via


def claim_notification(book: AlertState, name: str, who: str, now: int) -> AlertState:
    """The letter of that name in somebody's hand, if nobody else has it."""
    taken = (
        one._replace(claimed_by=who, claimed_at=now) if one.id == name and not one.claimed_by else one
        for one in book.notifications
    )
    return book._replace(notifications=tuple(taken))


def find_claimed_notification(book: AlertState, name: str, who: str) -> Notification | None:
    """The letter, if it is theirs."""
    return next((one for one in book.notifications if one.id == name and one.claimed_by == who), None)


def record_outcome(book: AlertState, name: str, who: str, outcome: DeliveryOutcome, now: int) -> AlertState:
    """What comes of a letter that somebody had in hand; one that is no longer theirs was written off by another."""
    letter = find_claimed_notification(book, name, who)
    if letter is None:
        return book
    tries, why = letter.tries + 1, outcome.reason[:MAX_REASON_CHARACTERS]
    if outcome.status == FAILED:
        return schedule_retry(book, letter._replace(tries=tries, last_error=why), outcome.retry_after_s, now)
    how = GIVEN_UP if outcome.status == REFUSED else outcome.status
    return finish_notification(book, letter._replace(tries=tries), how, why, now)


def schedule_retry(book: AlertState, letter: Notification, wait: int | None, now: int) -> AlertState:
    """One that did not arrive waits, and with it all others for the same receiver; until it is too old."""
    pause = RETRY_DELAYS_S[min(letter.tries, len(RETRY_DELAYS_S)) - 1]
    again = now + max(pause, min(wait or 0, MAX_RETRY_AFTER_S))
    held = {
        one.id
        for one in book.notifications
        if build_receiver_key(one) == build_receiver_key(letter) and not one.claimed_by
    }
    book = replace_notification(book, letter._replace(claimed_by="", claimed_at=0))
    for one in [one for one in book.notifications if one.id in held or one.id == letter.id]:
        if again - one.created_at > MAX_AGE_S:
            book = finish_notification(book, one, GIVEN_UP, letter.last_error, now)
        else:
            book = replace_notification(book, one._replace(due_at=max(one.due_at, again)))
    return book


def replace_notification(book: AlertState, letter: Notification) -> AlertState:
    """The book with a letter in the place of the one of its name."""
    return book._replace(notifications=tuple(letter if one.id == letter.id else one for one in book.notifications))


def finish_notification(book: AlertState, letter: Notification, how: str, why: str, now: int) -> AlertState:
    """A letter that is off our hands, and the line of the history that says how."""
    told = DeliveryRecord(now, letter.to, how, letter.alerts, why, letter.tries)
    letters = tuple(one for one in book.notifications if one.id != letter.id)
    return book._replace(notifications=letters, history=(*book.history, told)[-MAX_HISTORY:])


def recent(history: tuple[DeliveryRecord, ...], now: int) -> tuple[DeliveryRecord, ...]:
    """Return the lines of the history that are not too old to be kept."""
    return tuple(one for one in history if now - one.at < HISTORY_RETENTION_S)


def write_off_lost_claims(book: AlertState, ours: str | None, now: int) -> AlertState:
    """Without those whose sender ended before it could say how it went: they may have arrived, and are not sent again.

    `ours` begins the claims of senders on this machine, of whom none is left; None where all senders are ours.
    """
    for letter in book.notifications:
        if letter.claimed_by and (is_claimed_here(letter, ours) or abs(now - letter.claimed_at) >= CLAIM_TIMEOUT_S):
            why = "whoever sent it was ended in the middle: it may have arrived, and is not sent again"
            book = finish_notification(book, letter._replace(tries=letter.tries + 1), UNSURE, why, now)
    return book


def describe_delivery_problems(book: AlertState, now: int) -> list[str]:
    """What keeps letters from arriving, in a sentence for each receiver."""
    waiting = sorted(
        (one for one in book.notifications if one.tries or now - one.due_at > OVERDUE_AFTER_S), key=lambda one: one.to
    )
    found = [describe_waiting(to, list(letters)) for to, letters in groupby(waiting, key=lambda one: one.to)]
    lately = [one for one in book.history if one.status == GIVEN_UP and now - one.at < MAX_AGE_S]
    names = sorted({one.to for one in lately})
    people = [to for to in names if to.startswith(PERSON_PREFIX)]
    if len(people) > MAX_NAMED_PEOPLE:  # one cause, mostly: nobody has written down how to tell them
        last = next(one for one in reversed(lately) if one.to in people)
        found.append(
            f"letters were given up for {len(people)} people, the last for {format_receiver(last.to)}: {last.reason}"
        )
        names = [to for to in names if to not in people]
    found += [describe_given_up(to, [one for one in lately if one.to == to]) for to in names]
    return found + list(unsure(book, now))


def unsure(book: AlertState, now: int) -> Iterator[str]:
    """Yield a sentence for each receiver of whom it is not known whether notifications of the last day arrived."""
    lately = [one for one in book.history if one.status == UNSURE and abs(now - one.at) < MAX_AGE_S]
    receivers = sorted({one.to for one in lately})
    people = [to for to in receivers if to.startswith(PERSON_PREFIX)]
    if len(people) > MAX_NAMED_PEOPLE:
        last = next(one for one in reversed(lately) if one.to in people)
        about = f"{len(people)} people arrived, the last of them for {format_receiver(last.to)}"
        yield f"it is not known whether notifications for {about}: {last.reason}"
        receivers = [to for to in receivers if to not in people]
    for to in receivers:
        several = [one for one in lately if one.to == to]
        them = "a notification" if len(several) == 1 else f"{len(several)} notifications"
        yield f"it is not known whether {them} for {format_receiver(to)} arrived: {several[-1].reason}"


def describe_waiting(to: str, letters: Collection[Notification]) -> str:
    """Of letters that could not be sent so far."""
    why = next((one.last_error for one in letters if one.last_error), "nobody sends them")
    them = "a letter waits" if len(letters) == 1 else f"{len(letters)} letters wait"
    return f"{them} for {format_receiver(to)}: {why}"


def describe_given_up(to: str, lines: Iterable[DeliveryRecord]) -> str:
    """Of letters that nobody will get."""
    last = list(lines)
    them = "a letter was given up" if len(last) == 1 else f"{len(last)} letters were given up"
    return f"{them} for {format_receiver(to)}: {last[-1].reason}"


def format_receiver(to: str) -> str:
    """A receiver as people call it: `channel lab`."""
    kind, _, name = to.partition(":")
    return f"{kind} {name}"


# What somebody asked for, and what is a letter of its own: its sender makes it of more than its alert.
WATCH_RULE = "watch"
# Alerts that one letter has room for, and letters that wait for one hook.
MAX_ALERTS_PER_NOTIFICATION = 100
MAX_QUEUED_PER_HOOK = 200
# Letters that wait for people, who are named by hosts; and so many people hear of one host at a time.
MAX_QUEUED = 1000
MAX_PEOPLE_PER_HOST = 100
# No letter waits for longer, in seconds: quiet hours are those of a day, which may have 25.
MAX_WAIT_S = 26 * HOUR
# What is a whole letter by itself, made when it is sent.
WEEKLY_REPORT_RULE = "weekly-report"
# What takes each other back, where the first was not sent yet.
OPPOSITE_STEPS = {STEP_OVER: STEP_BEGUN, STEP_BEGUN: STEP_OVER}


class AlertContext(NamedTuple):
    """What a step goes by beside matters and rules.

    `hosts` are those that the board shows, with their state and how many GPUs each has (of a card: `summary.state` and
    `len(summary.gpus)`). `channels` and `hooks` are names. `blind` are rules of which nobody can look now whether what
    they tell of is still so. `home` tells which host has a GPU now, by its UUID, `reaches` whether any
    way to a person is known. `unclear` are hosts of which nobody knows what is the matter, by a fault of ours.
    `expires` is False while the clock is in doubt: then nothing is forgotten because its time is over.
    """

    hosts: Mapping[str, tuple[str, int]]
    zone: tzinfo
    channels: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    url: str | None = None
    users_shown: bool = True
    unreadable_rules: frozenset[str] = frozenset()
    find_gpu_host: Callable[[str], str | None] | None = None
    can_reach: Callable[[str], bool] | None = None
    failed_hosts: frozenset[str] = frozenset()
    expires: bool = True


class ConditionChange(NamedTuple):
    """What is to be told of a matter: that it is so, is over or happened, and from when until when.

    `told` is when it was to be told that what is over was so.
    """

    condition: Condition
    step: str
    since: int | None
    until: int | None
    reason: str
    reported_at: int | None = None


class NotificationBuilder:
    """The letters of a book while a step adds to them; `number` counts on."""

    def __init__(self, book: AlertState, scene: AlertContext, now: Now) -> None:
        """With those that wait already."""
        self.context, self.now, self.now_s = scene, now, int(now.epoch)
        self.notifications = [self.rebased(one) for one in book.notifications]
        self.sent_times = book.sent_times
        self.id_counter = book.id_counter
        self.new_alerts: dict[tuple[str, str, str], list[Alert]] = {}
        self.rules: dict[str, AlertRule] = {}
        self.people_by_host: dict[str, set[str]] = {}

    def rebased(self, letter: Notification) -> Notification:
        """Return a letter as of now if the clock was set back since it was made: it waits no longer than was meant."""
        if letter.due_at > self.now_s + MAX_WAIT_S:
            return letter._replace(due_at=self.now_s)
        if letter.created_at <= self.now_s:
            return letter
        return letter._replace(created_at=self.now_s, due_at=self.now_s + max(0, letter.due_at - letter.created_at))

    def add_change(self, news: ConditionChange, rule: AlertRule) -> None:
        """Tell all who are to be told."""
        self.id_counter += 1
        self.rules[rule.name] = rule
        for to in self.list_receivers(news.condition, rule):
            if not self.cancel_pending_alert(to, news.condition.key, OPPOSITE_STEPS.get(news.step), news.reported_at):
                via = news.condition.via if to.startswith(PERSON_PREFIX) else ""
                self.new_alerts.setdefault((to, via, rule.name), []).append(self.build_alert(news, to))

    def withdraw_alert(self, key: str) -> None:
        """Tell nobody any more that something is so."""
        for to in {one.to for one in self.notifications}:
            self.cancel_pending_alert(to, key, STEP_BEGUN)

    def withdraw_if_unsent(self, matter: Condition, rule: AlertRule) -> bool:
        """Tell nobody, if nobody was told so far: every letter that says it still waits."""
        told = {to for to in self.list_receivers(matter, rule) if not self.is_alert_pending(to, matter.key)}
        if told or not any(self.is_alert_pending(one.to, matter.key) for one in self.notifications):
            return False
        self.withdraw_alert(matter.key)
        return True

    def is_alert_pending(self, to: str, key: str) -> bool:
        """Whether a letter waits for its time that tells somebody of it."""
        return any(
            one.step == STEP_BEGUN and build_condition_key(one) == key
            for letter in self.notifications
            if letter.to == to and self.is_pending(letter)
            for one in letter.alerts
        )

    def list_receivers(self, matter: Condition, rule: AlertRule) -> Iterator[str]:
        """Whom a rule names."""
        for name in self.context.channels:
            if "all" in rule.to or name in rule.to:
                yield CHANNEL_PREFIX + name
        if "person" in rule.to:
            yield from (
                PERSON_PREFIX + name
                for name in matter.owners
                if self.has_room_for_person(name, matter) and self.can_reach(name, matter)
            )
        if "hooks" in rule.to:
            yield from (HOOK_PREFIX + name for name in self.context.hooks)

    def can_reach(self, name: str, matter: Condition) -> bool:
        """Whether a letter to somebody can arrive; whoever asked for one sees in the history that it did not."""
        return self.context.can_reach is None or matter.rule == WATCH_RULE or self.context.can_reach(name)

    def has_room_for_person(self, name: str, matter: Condition) -> bool:
        """Whether one more may hear of a host: it can claim that anybody is on it."""
        told = self.people_by_host.setdefault(matter.host, set()) if matter.host else {name}
        if len(told) < MAX_PEOPLE_PER_HOST:
            told.add(name)
        return name in told

    def cancel_pending_alert(self, to: str, key: str, step: str | None, told: int | None = None) -> bool:
        """Whether a letter that still waits for its time would have said the contrary; it no longer does.

        `told` is when that was decided, where it was.
        """
        for place, letter in enumerate(self.notifications):
            if letter.to != to or not self.is_pending(letter):
                continue
            kept = tuple(one for one in letter.alerts if one.step != step or build_condition_key(one) != key)
            if len(kept) == len(letter.alerts):
                if not letter.omitted_count or told is None or told < letter.created_at:
                    continue
                # one for which the letter had no room
                self.notifications[place] = letter._replace(omitted_count=letter.omitted_count - 1)
                return True
            if not kept and letter.omitted_count:  # it must say something, beside how much more there is
                return False
            self.notifications[place] = letter._replace(alerts=kept)
            if not kept:
                del self.notifications[place]
            return True
        return False

    def is_pending(self, letter: Notification) -> bool:
        """Whether nobody has begun to send it, nor should."""
        return letter.due_at > self.now_s and not letter.tries and not letter.claimed_by

    def build_alert(self, news: ConditionChange, to: str) -> Alert:
        """What one receiver is told; where people are not shown, each reads of nobody but themselves."""
        matter = news.condition
        reader = to[len(PERSON_PREFIX) :] if to.startswith(PERSON_PREFIX) else None
        if not self.context.users_shown:
            mine = (reader,) if reader else ()
            matter = matter._replace(owners=mine, people=mine)
        link = f"{self.context.url.rstrip('/')}/hosts/{matter.host}.html" if self.context.url and matter.host else None
        lasted = None if news.since is None or news.until is None else news.until - news.since
        return Alert(
            f"{self.now_s}-{self.id_counter}",
            matter.rule,
            news.step,
            render.format_alert_title(matter, news.step, lasted, reader, self.now),
            matter.what,
            self.now_s,
            matter.host,
            matter.gpus,
            news.since,
            news.until,
            matter.people,
            link,
            matter.about,
            news.reason,
        )

    def defer_to_quiet_end(self, rules: Mapping[str, AlertRule]) -> None:
        """What could not be sent before the night waits for its end, unless one of its rules knows no night."""
        for place, letter in enumerate(self.notifications):
            known = [rules[one.rule] for one in letter.alerts if one.rule in rules]
            if known and not letter.claimed_by and not letter.to.startswith(HOOK_PREFIX):
                due = max(letter.due_at, self.now_s)
                later = min(self.find_rule_quiet_end(rule, due) for rule in known)
                if later > due:
                    self.notifications[place] = letter._replace(due_at=later)

    def build_notifications(self) -> None:
        """Make letters of all that was added."""
        for (to, via, name), alerts in self.new_alerts.items():
            if to.startswith(HOOK_PREFIX):
                self.add_for_hook(to, alerts)
            else:
                self.add_or_merge(to, via, self.rules[name], alerts)

    def add_for_hook(self, to: str, alerts: list[Alert]) -> None:
        """A letter an alert, at once: a program needs no sleep. It is not meant for more than it can get through."""
        waiting = sum(one.to == to for one in self.notifications)
        room = max(0, MAX_QUEUED_PER_HOOK - waiting)
        for place, one in enumerate(alerts[:room]):
            last = place == room - 1
            self.append_notification(to, "", (one,), self.now_s, len(alerts) - room if last else 0)

    def add_or_merge(self, to: str, via: str, rule: AlertRule, alerts: list[Alert]) -> None:
        """One letter, or a part of one that waits: for the end of quiet hours, or until the hour allows one more."""
        when = self.find_send_time(to, rule)
        # what will be past by then is no news
        alerts = [one for one in alerts if one.step != STEP_HAPPENED or one.until is None or when < one.until]
        if not alerts:
            return
        for place, letter in enumerate(
            self.notifications if when > self.now_s and rule.name != WEEKLY_REPORT_RULE else ()
        ):
            if (letter.to, letter.via) != (to, via) or any(one.rule == WEEKLY_REPORT_RULE for one in letter.alerts):
                continue
            if (
                self.is_pending(letter)
                and letter.due_at == self.find_rule_quiet_end(rule, letter.due_at) <= when + HOUR
            ):
                several = (*letter.alerts, *alerts)
                more = letter.omitted_count + max(0, len(several) - MAX_ALERTS_PER_NOTIFICATION)
                self.notifications[place] = letter._replace(
                    alerts=several[:MAX_ALERTS_PER_NOTIFICATION], omitted_count=more
                )
                return
        if to.startswith(PERSON_PREFIX) and len(self.notifications) >= MAX_QUEUED:
            return
        self.sent_times = {
            one: tuple(times) for one in self.sent_times if (times := self.list_recent_sends(one, self.now_s))
        }
        self.sent_times[to] = (*self.sent_times.get(to, ()), when)
        self.append_notification(
            to,
            via,
            tuple(alerts[:MAX_ALERTS_PER_NOTIFICATION]),
            when,
            max(0, len(alerts) - MAX_ALERTS_PER_NOTIFICATION),
        )

    def append_notification(self, to: str, via: str, alerts: tuple[Alert, ...], due: int, more: int) -> None:
        """A letter more."""
        self.id_counter += 1
        self.notifications.append(
            Notification(f"{self.now_s}-{self.id_counter}", to, alerts, self.now_s, due, via, omitted_count=more)
        )

    def list_recent_sends(self, to: str, when: int) -> list[int]:
        """When letters went to somebody in the hour before, or will; a clock that was set does not count."""
        return sorted(one for one in self.sent_times.get(to, ()) if when - HOUR < one <= self.now_s + MAX_WAIT_S)

    def find_rule_quiet_end(self, rule: AlertRule, when: int) -> int:
        """When quiet hours are over, or at once where there are none then."""
        return find_quiet_end(rule.quiet_hours, when, self.now.zone)

    def find_send_time(self, to: str, rule: AlertRule) -> int:
        """From when on there is room in the hour, and that is not at night."""
        when = self.now_s
        while (later := self.find_rule_quiet_end(rule, self.apply_hourly_limit(to, rule.max_per_hour, when))) > when:
            when = later
        return when

    def apply_hourly_limit(self, to: str, most: int, when: int) -> int:
        """From when on the hour has room for one more, and the hour after it too, for which some may wait."""
        while len(times := [one for one in self.list_recent_sends(to, when) if one < when + HOUR]) >= most > 0:
            when = times[-most] + HOUR
        return when


def build_condition_key(alert: Alert) -> str:
    """The key of the matter that it tells of."""
    return Condition(alert.rule, alert.host, alert.about).key


def find_quiet_end(quiet: tuple[int, int] | None, at: int, zone: tzinfo) -> int:
    """When quiet hours are over, or at once where there are none then."""
    if quiet is None or quiet[0] == quiet[1]:
        return at
    begin, end = quiet
    local = datetime.fromtimestamp(at, zone)
    minute = local.hour * 60 + local.minute
    inside = begin <= minute < end if begin < end else minute >= begin or minute < end
    if not inside:
        return at
    day = local.date() + timedelta(days=int(begin > end and minute >= begin))
    moment = datetime.combine(day, datetime.min.time(), zone).replace(hour=end // 60, minute=end % 60)
    return max(at, int(moment.timestamp()))


def describe_wait(seconds: int) -> str:
    """How long something was so: `at once`, `for 40 s`, `for 2 min`."""
    if seconds <= 0:
        return "at once"
    return f"for {seconds} s" if seconds < formatting.MINUTE else f"for {formatting.format_duration(seconds)}"
