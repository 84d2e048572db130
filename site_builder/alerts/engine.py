"""Alerts, as the builder has to do with them: after each build it looks what people are to be told.

What is decided stands in the book before anything is sent, and another process sends it. A fault of alerts costs
alerts, never the page.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from site_builder.alerts import queue, sender
from site_builder.alerts.config_files import AlertFiles, contacts_of
from site_builder.alerts.contacts import Contacts
from site_builder.alerts.health_conditions import LOOKED_BACK, RULES, health_matters
from site_builder.alerts.hooks import Hooks
from site_builder.alerts.model import AlertRule, Book, Matter
from site_builder.alerts.rules import Scene, step
from site_builder.alerts.store import Unwritable, book_of
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.faults import split_by_use
from site_builder.core.model import Problem
from site_builder.health.store import Events
from site_builder.watches.build import Watches

if TYPE_CHECKING:
    from site_builder.board.host_pipeline import Card

WHERE = "alerts"
WATCH = "watch"
HOOKS = "GPUBOARD_HOOKS"
FAULT = "a fault of gpuboard's own"
MOST_NAMED = 5
MINUTE = 60
# Seconds that a build waits for somebody else who writes the book.
PATIENCE = 1.0


class Alerts:
    """Looks, and has letters sent."""

    def __init__(self, settings: Settings, events: Events) -> None:
        """Begin with what the last builder left."""
        self.settings, self.events = settings, events
        self.book = book_of(settings.state, settings.kv)
        self.files = AlertFiles(settings.alerts, settings.data, settings.www, settings.state)
        self.hooks = Hooks(settings.alerts.hooks, (settings.data, settings.www))
        self.watches = Watches(settings)
        self.ours = sender.ours(settings)
        self.sender: subprocess.Popen[bytes] | None = None
        self.last: Book | None = None
        self.failed = ""
        self.minute = (-1, -1)
        self.rare: list[Matter] = []  # what is other only in another minute
        self.blind: frozenset[str] = frozenset()
        self.expires = True  # whether the clock is believed: if not, nothing is forgotten because its time is over

    def problems(self, now: Now) -> list[Problem]:
        """What the page says of alerts; a builder that has just begun says what the last one did."""
        try:
            if self.last is None:
                self.begin()
            hooks = [Problem(HOOKS, f"{one.name} {one.problem}".strip()) for one in self.hooks.look() if one.problem]
            troubles = [Problem(WHERE, what) for what in self.troubles(int(now.epoch))]
            return [*self.files.read().problems, *self.watches.problems, *hooks, *troubles]
        except Exception as error:
            return [Problem(WHERE, fault(error))]

    def begin(self) -> None:
        """Take up what the first page needs to know, once: where it cannot be had, the page does not wait for it."""
        self.last = Book()
        _, self.watches.problems = self.watches.file.read()
        with suppress(Unwritable):  # told by the look, which needs it
            self.last = self.book.read()

    def troubles(self, now: int) -> Iterator[str]:
        """What keeps people from being told."""
        yield from queue.troubles(self.last or Book(), now)
        if self.book.problem:
            yield f"{self.book.where} {self.book.problem}"
        if self.failed:
            yield self.failed

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(name for name, _ in self.settings.alerts.channels)

    def look(self, cards: Mapping[str, Card] | None, now: Now, leads: Callable[[], bool]) -> None:
        """Write what is new to the book, and have sent what is due; only who leads does, or all would be told twice.

        Without cards nothing can be decided, and what was decided before is sent.
        """
        is_ours, self.failed = False, ""
        try:
            is_ours = leads()
            self.last = self.decided(cards, now) if is_ours and cards is not None else self.book.read()
        except Unwritable as why:
            self.failed = f"{why}: nothing is told until it can be"
        except Exception as error:
            self.failed = fault(error)
        try:
            if is_ours and self.last and queue.is_due(self.last, self.ours, int(now.epoch)):
                self.send()
        except Exception as error:
            self.failed = fault(error)

    def decided(self, cards: Mapping[str, Card], now: Now) -> Book:
        """The book after this look."""
        rules = self.files.read().rules
        watched = self.part(lambda: self.watches.look(cards, rules[WATCH], now))
        matters = [*chain.from_iterable(card.matters or () for card in cards.values()), *self.rarely(cards, rules, now)]
        matters += watched
        hosts = {host: (card.summary.state, len(card.summary.gpus)) for host, card in cards.items()}
        scene = self.scene(hosts)._replace(home=home_in(cards), reaches=reaching(self.settings), unclear=unclear(cards))
        scene = scene._replace(expires=self.expires)
        if scene.unclear:
            self.failed = f"{FAULT} at {formatting.names(sorted(scene.unclear)[:MOST_NAMED])}: nothing is told of it"
        before = self.book.read()
        try:
            after = step(before, matters, rules, scene, now)
        except Exception:  # what is the matter with one host must not keep people from all else
            matters, scene = self.without_bad(before, matters, rules, scene, now)
            after = step(before, matters, rules, scene, now)
        book = after
        if after != before:
            book = self.book.change(
                lambda found: after if found is before else step(found, matters, rules, scene, now), PATIENCE
            )
        self.part(lambda: self.watches.forget(watched, book, self.expires))
        return book

    def without_bad(
        self, before: Book, matters: list[Matter], rules: Mapping[str, AlertRule], scene: Scene, now: Now
    ) -> tuple[list[Matter], Scene]:
        """Leave out the hosts at which a step fails: nobody knows what of them is over."""
        _, bad = split_by_use(matters, lambda some: step(before, some, rules, scene, now))
        if not bad:
            return matters, scene
        hosts = frozenset(one.host for one, _ in bad)
        named = formatting.names(sorted(filter(None, hosts))[:MOST_NAMED]) or "what concerns no host"
        self.failed = f"{FAULT} at {named} ({bad[0][1]}): nothing is told of it"
        good = [one for one in matters if one.host not in hosts]
        return good, scene._replace(unclear=scene.unclear | hosts)

    def part(self, work: Callable[[], list[Matter] | None]) -> list[Matter]:
        """What one source has to tell; a fault of it costs no other."""
        try:
            return work() or []
        except Exception as error:
            self.failed = fault(error)
            return []

    def scene(self, hosts: Mapping[str, tuple[str, int]]) -> Scene:
        """What a step goes by beside matters and rules."""
        settings = self.settings
        return Scene(
            hosts, settings.zone, self.channels, self.hooks.names(), settings.url, settings.shown.users, self.blind
        )

    def rarely(self, cards: Mapping[str, Card], rules: Mapping[str, AlertRule], now: Now) -> list[Matter]:
        """What history tells, which learns something once a minute."""
        minute = int(now.epoch) // MINUTE, self.events.recorded
        if minute != self.minute:
            self.rare, self.minute, self.blind = [], minute, RULES
            self.rare = self.part(lambda: self.of_health(cards, now)) + self.part(lambda: self.of_week(rules, now))
        return self.rare

    def of_health(self, cards: Mapping[str, Card], now: Now) -> list[Matter]:
        """What happened to GPUs; where history cannot be read, nobody knows what of it is over."""
        happened = self.events.read(now.epoch - LOOKED_BACK, now.epoch + 1)  # with those of this second
        if self.events.past.trouble:
            return []
        found = health_matters(
            happened,
            lambda host: cards[host].people if host in cards else (),
            now.apart(),
            lambda uuid: home_in(cards)(uuid) is not None,
        )
        self.blind = frozenset()
        return found

    def of_week(self, rules: Mapping[str, AlertRule], now: Now) -> list[Matter]:
        """The report of the last week, when it is time for it."""
        rule = rules[sender.WEEKLY]
        if not rule.on:
            return []
        from site_builder.reports import build as report_build  # noqa: PLC0415 # few want it

        report = report_build.due(self.settings, now.epoch, rule)
        return [report] if report else []

    def send(self) -> None:
        """Start somebody who sends, unless the last one still does."""
        if self.sender and self.sender.poll() is None:
            return
        try:
            self.sender = sender.start(self.settings)
        except OSError as error:
            self.failed = f"nothing can be sent: {error.strerror}"
        except Exception as error:
            self.failed = fault(error)


def home_in(cards: Mapping[str, Card]) -> Callable[[str], str | None]:
    """Which host has a GPU, as it told last; it is rarely asked."""
    return lambda uuid: next(
        (host for host, card in cards.items() for one in card.summary.gpus if uuid in {one.uuid, one.of}),
        None,
    )


def unclear(cards: Mapping[str, Card]) -> frozenset[str]:
    """The hosts at which we failed; none is known, and each is a mistake in gpuboard."""
    return frozenset(host for host, card in cards.items() if card.matters is None)


def reaching(settings: Settings) -> Callable[[str], bool]:
    """Whether any way to a person is known; the contacts are read when that is first asked.

    Most labs begin with a channel, and know no addresses: who books there is no letter that is given up.
    """

    @lru_cache(maxsize=1)
    def contacts() -> Contacts:
        return contacts_of(settings)

    return lambda person: not contacts().whole or bool(contacts().ways(person))


def fault(error: Exception) -> str:
    """A fault of ours, by its name alone: an address may stand in its words."""
    return f"{FAULT} ({type(error).__name__}): nothing new is told"
