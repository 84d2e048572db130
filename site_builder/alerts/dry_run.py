"""What people would be told now: decided as a build does it, and nothing of it kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from site_builder.alerts.engine import WHERE, Alerts
from site_builder.alerts.model import AlertRule, Book, Matter
from site_builder.alerts.rules import Scene
from site_builder.alerts.store import PATIENCE, AlertBook, Change
from site_builder.board.host_pipeline import make
from site_builder.bookings.host_lookup import Lab
from site_builder.client.loader import bookings_of
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.model import Problem
from site_builder.health.store import Events
from site_builder.history.reader import Past
from site_builder.watches.build import Watches


class Rehearsed(NamedTuple):
    """The book as it is, as the next build would leave it, and by what that was decided."""

    before: Book
    after: Book
    rules: dict[str, AlertRule]
    scene: Scene
    problems: list[Problem]


class Unwritten(AlertBook):
    """A book that is read, and changed only for whoever asks."""

    def __init__(self, book: AlertBook) -> None:
        """The one that is kept."""
        self.book, self.where, self.problem = book, book.where, book.problem

    def read(self) -> Book:
        """As it is."""
        return self.book.read()

    def change(self, change: Change, patience: float = PATIENCE) -> Book:  # noqa: ARG002 # nobody is waited for
        """As it would be."""
        return change(self.read())


class Unkept(Watches):
    """Watches that are looked at, and stay as they are."""

    def keep(self) -> None:
        """Since when they come true is the builder's to remember."""

    def forget(self, matters: Iterable[Matter], book: Book, expires: bool = True) -> None:
        """None of them was told."""


def rehearse(settings: Settings, now: Now) -> Rehearsed:
    """Look at all hosts as a build would; OSError and `fleet.Failed` say why that cannot be."""
    lab = Lab(settings)
    shown = [name for name, one in lab.hosts().items() if not one.hidden]
    found = lab.gather(shown, bookings_of(settings), now, remembered=True)
    cards = {host.known.name: make(host, found.rules, lab.gpu_names, now.apart()) for host in found.hosts}
    past = Past(settings.state, settings.zone)
    try:
        alerts = Alerts(settings, Events(past))
        alerts.book, alerts.watches = Unwritten(alerts.book), Unkept(settings)
        before, after = alerts.book.read(), alerts.decided(cards, now)
        scene = alerts.scene({host: (card.summary.state, len(card.summary.gpus)) for host, card in cards.items()})
        ruled = alerts.files.read()
    finally:
        past.close()
    troubles = [*ruled.problems, *alerts.watches.problems, *([past.trouble] if past.trouble else [])]
    if alerts.failed:
        troubles.append(Problem(WHERE, alerts.failed))
    return Rehearsed(before, after, ruled.rules, scene, troubles)
