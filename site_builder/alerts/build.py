"""What the builder does for alerts, once a build."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Protocol

from site_builder.alerts import queue, sender
from site_builder.alerts.conditions import HEALTH_RULES, LOOKBACK_S, HostReport, find_health_conditions
from site_builder.alerts.config_files import AlertConfigFiles, Contacts, load_contacts
from site_builder.alerts.delivery import HookFolder
from site_builder.alerts.model import (
    CHANNEL_PREFIX,
    STEP_HAPPENED,
    Alert,
    AlertRule,
    AlertState,
    Condition,
    Message,
    Notification,
)
from site_builder.alerts.queue import AlertContext
from site_builder.alerts.rules import update_alert_state
from site_builder.alerts.store import AlertStateError, open_alert_store
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.faults import split_by_success
from site_builder.core.formatting import DAY
from site_builder.core.model import Problem
from site_builder.health.store import EventReader
from site_builder.history import rollups
from site_builder.history.reader import HistoryReader
from site_builder.reports import collect
from site_builder.reports import rules as report_rules
from site_builder.reports.collect import HistoryReadError
from site_builder.reports.rules import WeeklyReport

WEEKLY_REPORT_RULE = "weekly-report"
# A builder that did not run when it was due sends it up to so many seconds later.
MAX_DELAY_S = 2 * DAY


def find_due_report(settings: Settings, now: float, rule: AlertRule) -> Condition | None:
    """The report of the week that is over, from the time at which the rule wants it; None where there is none to send.

    It is due for two days: whoever asks must remember for longer that it was told.
    """
    if not rule.on or rule.at is None:
        return None
    day, minute = rule.at
    here = datetime.fromtimestamp(now, settings.zone)
    monday = here.date() - timedelta(days=here.weekday())
    for first in (monday, monday - timedelta(days=7)):
        midnight = datetime.combine(first + timedelta(days=day), datetime.min.time(), settings.zone)
        at = midnight.replace(hour=minute // 60, minute=minute % 60).timestamp()
        if at <= now < at + MAX_DELAY_S:
            week = first - timedelta(days=7)
            return build_report_condition(week, int(at)) if has_history_of_week(settings, week) else None
    return None


def build_report_condition(first: date, at: int) -> Condition:
    """The week that begins with this Monday, as what people are told."""
    year, number, _ = first.isocalendar()
    return Condition(
        WEEKLY_REPORT_RULE,
        about=report_rules.format_week(first),
        what=f"week {number} of {year} is over",
        since=at,
        is_lasting=False,
    )


def has_history_of_week(settings: Settings, first: date) -> bool:
    """Whether history goes back to that week; what cannot be read now is tried when it is sent."""
    past = HistoryReader(settings.state, settings.zone)
    try:
        begun = rollups.read_first_day(past) if past.exists else None
        return bool(past.problem) or (begun is not None and begun < first + timedelta(days=7))
    finally:
        past.close()


def build_report_message(settings: Settings, first: date, now: float) -> Message | None:
    """The report of the week that begins with this Monday; None where history has nothing of it.

    `first` is `weeks.read(alert.about)`. Where history cannot be read now, that is Unread, with a sentence.
    """
    past = HistoryReader(settings.state, settings.zone)
    try:
        week = collect.collect_report(settings, past, first, now) if past.exists else None
    except OSError as error:
        raise HistoryReadError(error.strerror or str(error)) from None
    finally:
        past.close()
    return render_report_message(week, settings, now) if week else None


def render_report_message(week: WeeklyReport, settings: Settings, now: float) -> Message:
    """A week in words: all of it as text, with charts for mail programs, and its sums for chats."""
    from site_builder.core.clock import Now  # noqa: PLC0415 # the builder asks only when it is due
    from site_builder.reports import render as report_render  # noqa: PLC0415

    page = collect.find_report_url(settings, week.first)
    body = report_render.render_report_mail(week, Now(now, settings.zone), settings.url or "", page)
    return Message(
        report_render.format_report_subject(week),
        report_render.render_report_text(week, page),
        body,
        short_text=report_render.render_report_brief(week, page),
    )


def list_report_receivers(rule: AlertRule, channels: Sequence[str]) -> list[str]:
    """The channels of the rule, as letters name them; a report is nobody's own."""
    return [f"{CHANNEL_PREFIX}{name}" for name in channels if name in rule.to or "all" in rule.to]


def build_report_notification(first: date, to: str, at: int) -> Notification:
    """A letter of somebody who sends it by hand."""
    name = report_rules.format_week(first)
    alert = Alert(
        f"{WEEKLY_REPORT_RULE} {name} {at}",
        WEEKLY_REPORT_RULE,
        STEP_HAPPENED,
        f"the report of {name}",
        "",
        at,
        about=name,
    )
    return Notification(alert.id, to, (alert,), at, at)


PROBLEM_WHERE = "alerts"
WATCH_RULE = "watch"
HOOKS_SETTING = "GPUBOARD_HOOKS"
INTERNAL_ERROR = "a fault of gpuboard's own"
MAX_NAMED_HOSTS = 5
MINUTE_S = 60
# Seconds that a build waits for somebody else who writes the book.
BUILD_LOCK_TIMEOUT_S = 1.0


class WatchSource(Protocol):
    """The watches of a board (watches.build.WatchConditions)."""

    problems: list[Problem]

    def read_problems(self) -> None:
        """Read what is wrong with their file."""

    def find_conditions(self, cards: Mapping[str, HostReport], rule: AlertRule, now: Now) -> list[Condition]:
        """Find the watches that are fulfilled."""

    def remove_reported(self, matters: Iterable[Condition], book: AlertState, expires: bool = True) -> None:
        """Remove those that were reported, and those that are over."""


class AlertEngine:
    """Looks, and has letters sent."""

    def __init__(self, settings: Settings, events: EventReader, watches: WatchSource) -> None:
        """Begin with what the last builder left."""
        self.settings, self.events = settings, events
        self.store = open_alert_store(settings.state, settings.kv)
        self.config_files = AlertConfigFiles(settings.alerts, settings.data, settings.www, settings.state)
        self.hook_folder = HookFolder(settings.alerts.hooks_folder, (settings.data, settings.www))
        self.watches = watches
        self.claim_prefix = sender.build_claim_prefix(settings)
        self.sender_process: subprocess.Popen[bytes] | None = None
        self.last_state: AlertState | None = None
        self.failure = ""
        self.last_minute = (-1, -1)
        self.minute_conditions: list[Condition] = []  # what is other only in another minute
        self.unreadable_rules: frozenset[str] = frozenset()
        self.expires = True  # whether the clock is believed: if not, nothing is forgotten because its time is over

    def list_problems(self, now: Now) -> list[Problem]:
        """What the page says of alerts; a builder that has just begun says what the last one did."""
        try:
            if self.last_state is None:
                self.load_last_state()
            hooks = [
                Problem(HOOKS_SETTING, f"{one.name} {one.problem}".strip())
                for one in self.hook_folder.check_hooks()
                if one.problem
            ]
            troubles = [Problem(PROBLEM_WHERE, what) for what in self.describe_failures(int(now.epoch))]
            return [*self.config_files.read().problems, *self.watches.problems, *hooks, *troubles]
        except Exception as error:
            return [Problem(PROBLEM_WHERE, describe_internal_error(error))]

    def load_last_state(self) -> None:
        """Take up what the first page needs to know, once: where it cannot be had, the page does not wait for it."""
        self.last_state = AlertState()
        self.watches.read_problems()
        with suppress(AlertStateError):  # told by the look, which needs it
            self.last_state = self.store.read()

    def describe_failures(self, now: int) -> Iterator[str]:
        """What keeps people from being told."""
        yield from queue.describe_delivery_problems(self.last_state or AlertState(), now)
        if self.store.problem:
            yield f"{self.store.where} {self.store.problem}"
        if self.failure:
            yield self.failure

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(name for name, _ in self.settings.alerts.channels)

    def process_build(self, cards: Mapping[str, HostReport] | None, now: Now, leads: Callable[[], bool]) -> None:
        """Write what is new to the book, and have sent what is due; only who leads does, or all would be told twice.

        Without cards nothing can be decided, and what was decided before is sent.
        """
        is_ours, self.failure = False, ""
        try:
            is_ours = leads()
            self.last_state = self.update_state(cards, now) if is_ours and cards is not None else self.store.read()
        except AlertStateError as why:
            self.failure = f"{why}: nothing is told until it can be"
        except Exception as error:
            self.failure = describe_internal_error(error)
        try:
            if is_ours and self.last_state and queue.has_due_work(self.last_state, self.claim_prefix, int(now.epoch)):
                self.start_sender()
        except Exception as error:
            self.failure = describe_internal_error(error)

    def update_state(self, cards: Mapping[str, HostReport], now: Now) -> AlertState:
        """The book after this look."""
        rules = self.config_files.read().rules
        watched = self.collect_safely(lambda: self.watches.find_conditions(cards, rules[WATCH_RULE], now))
        matters = [
            *chain.from_iterable(card.conditions or () for card in cards.values()),
            *self.find_minute_conditions(cards, rules, now),
        ]
        matters += watched
        hosts = {host: (card.summary.state, len(card.summary.gpu_identities)) for host, card in cards.items()}
        scene = self.build_context(hosts)._replace(
            find_gpu_host=build_gpu_finder(cards),
            can_reach=build_reach_check(self.settings),
            failed_hosts=find_failed_hosts(cards),
        )
        scene = scene._replace(expires=self.expires)
        if scene.failed_hosts:
            self.failure = f"{INTERNAL_ERROR} at {formatting.join_names(sorted(scene.failed_hosts)[:MAX_NAMED_HOSTS])}: nothing is told of it"
        before = self.store.read()
        try:
            after = update_alert_state(before, matters, rules, scene, now)
        except Exception:  # what is the matter with one host must not keep people from all else
            matters, scene = self.without_bad(before, matters, rules, scene, now)
            after = update_alert_state(before, matters, rules, scene, now)
        book = after
        if after != before:
            book = self.store.change(
                lambda found: after if found is before else update_alert_state(found, matters, rules, scene, now),
                BUILD_LOCK_TIMEOUT_S,
            )
        self.collect_safely(lambda: self.watches.remove_reported(watched, book, self.expires))
        return book

    def without_bad(
        self,
        before: AlertState,
        matters: list[Condition],
        rules: Mapping[str, AlertRule],
        scene: AlertContext,
        now: Now,
    ) -> tuple[list[Condition], AlertContext]:
        """Leave out the hosts at which a step fails: nobody knows what of them is over."""
        _, bad = split_by_success(matters, lambda some: update_alert_state(before, some, rules, scene, now))
        if not bad:
            return matters, scene
        hosts = frozenset(one.host for one, _ in bad)
        named = formatting.join_names(sorted(filter(None, hosts))[:MAX_NAMED_HOSTS]) or "what concerns no host"
        self.failure = f"{INTERNAL_ERROR} at {named} ({bad[0][1]}): nothing is told of it"
        good = [one for one in matters if one.host not in hosts]
        return good, scene._replace(failed_hosts=scene.failed_hosts | hosts)

    def collect_safely(self, work: Callable[[], list[Condition] | None]) -> list[Condition]:
        """What one source has to tell; a fault of it costs no other."""
        try:
            return work() or []
        except Exception as error:
            self.failure = describe_internal_error(error)
            return []

    def build_context(self, hosts: Mapping[str, tuple[str, int]]) -> AlertContext:
        """What a step goes by beside matters and rules."""
        settings = self.settings
        return AlertContext(
            hosts,
            settings.zone,
            self.channel_names,
            self.hook_folder.list_runnable_names(),
            settings.url,
            settings.privacy.users,
            self.unreadable_rules,
        )

    def find_minute_conditions(
        self, cards: Mapping[str, HostReport], rules: Mapping[str, AlertRule], now: Now
    ) -> list[Condition]:
        """What history tells, which learns something once a minute."""
        minute = int(now.epoch) // MINUTE_S, self.events.recorded_minute
        if minute != self.last_minute:
            self.minute_conditions, self.last_minute, self.unreadable_rules = [], minute, HEALTH_RULES
            self.minute_conditions = self.collect_safely(
                lambda: self.read_health_conditions(cards, now)
            ) + self.collect_safely(lambda: self.find_report_condition(rules, now))
        return self.minute_conditions

    def read_health_conditions(self, cards: Mapping[str, HostReport], now: Now) -> list[Condition]:
        """What happened to GPUs; where history cannot be read, nobody knows what of it is over."""
        happened = self.events.read_events(now.epoch - LOOKBACK_S, now.epoch + 1)  # with those of this second
        if self.events.past.problem:
            return []
        found = find_health_conditions(
            happened,
            lambda host: cards[host].people if host in cards else (),
            now.copy_with_own_expiry(),
            lambda uuid: build_gpu_finder(cards)(uuid) is not None,
        )
        self.unreadable_rules = frozenset()
        return found

    def find_report_condition(self, rules: Mapping[str, AlertRule], now: Now) -> list[Condition]:
        """The report of the last week, when it is time for it."""
        rule = rules[sender.WEEKLY_REPORT_RULE]
        if not rule.on:
            return []

        report = find_due_report(self.settings, now.epoch, rule)
        return [report] if report else []

    def start_sender(self) -> None:
        """Start somebody who sends, unless the last one still does."""
        if self.sender_process and self.sender_process.poll() is None:
            return
        try:
            self.sender_process = sender.start_sender_process(self.settings)
        except OSError as error:
            self.failure = f"nothing can be sent: {error.strerror}"
        except Exception as error:
            self.failure = describe_internal_error(error)


def build_gpu_finder(cards: Mapping[str, HostReport]) -> Callable[[str], str | None]:
    """Which host has a GPU, as it told last; it is rarely asked."""
    return lambda uuid: next(
        (
            host
            for host, card in cards.items()
            for one in card.summary.gpu_identities
            if uuid in {one.uuid, one.parent_uuid}
        ),
        None,
    )


def find_failed_hosts(cards: Mapping[str, HostReport]) -> frozenset[str]:
    """The hosts at which we failed; none is known, and each is a mistake in gpuboard."""
    return frozenset(host for host, card in cards.items() if card.conditions is None)


def build_reach_check(settings: Settings) -> Callable[[str], bool]:
    """Whether any way to a person is known; the contacts are read when that is first asked.

    Most labs begin with a channel, and know no addresses: who books there is no letter that is given up.
    """

    @lru_cache(maxsize=1)
    def contacts() -> Contacts:
        return load_contacts(settings)

    return lambda person: not contacts().is_complete or bool(contacts().find_contacts(person))


def describe_internal_error(error: Exception) -> str:
    """A fault of ours, by its name alone: an address may stand in its words."""
    return f"{INTERNAL_ERROR} ({type(error).__name__}): nothing new is told"
