"""A book of alerts that is looked at again and again, with no file and no sender."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from site_builder.alerts.config_files import DEFAULT_RULES
from site_builder.alerts.model import Alert, AlertRule, AlertState, Condition, Notification
from site_builder.alerts.queue import AlertContext
from site_builder.alerts.rules import update_alert_state
from site_builder.core.clock import Now
from tests.support.generated_fleet import NOW, PARIS

MINUTE, HOUR, DAY = 60, 3600, 86400
START = int(NOW)
NIGHT = (22 * 60, 7 * 60)
FRESH = {"atlas": ("fresh", 4), "boreas": ("fresh", 8)}
# Rules that count at once, so that a test of one thing need not wait for another.
AT_ONCE = {
    name: rule._replace(delay=0, resolve_after=0, send_resolved=True, quiet_hours=None)
    for name, rule in DEFAULT_RULES.items()
}
LOST = Condition("gpu-lost", "atlas", "GPU-3", ("3",), "lost, the driver could not reach it: GPU is lost", START)
HELD = Condition("gpu-held", "atlas", "GPU-0", ("0",), "7 GiB taken", START, ("alice",), ("alice",))


def down(host: str = "atlas", **more: Any) -> Condition:  # noqa: ANN401
    """A host that is down."""
    return Condition("host-down", host, what="no snapshot since 11:50", since=START - 600)._replace(**more)


def begins(at: int, **more: object) -> Condition:
    """A booking of alice's that begins then, for four hours."""
    one = Condition("booking-begins", "atlas", "b", ("0", "1"), "", at, ("alice",), ("alice",), is_lasting=False)
    return one._replace(until=at + 4 * HOUR)._replace(**more)  # type: ignore[arg-type]


def ends(at: int, since: int | None = None) -> Condition:
    """A booking of alice's that ends then."""
    one = begins(at - 4 * HOUR if since is None else since)
    return one._replace(rule="booking-ends", about=f"b {at}", until=at)


def ruled(name: str = "host-down", **more: Any) -> dict[str, AlertRule]:  # noqa: ANN401
    """Rules that count at once, one of them with something else."""
    return {**AT_ONCE, name: AT_ONCE[name]._replace(**more)}


class Desk:
    """A book, looked at after so many seconds each time; letters that are due are taken away as if they were sent."""

    def __init__(
        self,
        rules: Mapping[str, AlertRule] | None = None,
        begun: bool = True,
        book: AlertState | None = None,
        hosts: Mapping[str, tuple[str, int]] = FRESH,
        **scene: Any,  # noqa: ANN401
    ) -> None:
        self.rules = dict(AT_ONCE if rules is None else rules)
        self.scene = AlertContext(hosts, PARIS, **{"channels": ("lab",), **scene})
        self.book = book or AlertState()
        self.at = START - MINUTE
        self.sent: list[Notification] = []
        if begun:
            self.look()

    def look(self, *matters: Condition, after: int = MINUTE) -> list[Notification]:
        """The letters that are due now."""
        self.at += after
        self.book = update_alert_state(self.book, matters, self.rules, self.scene, Now(self.at, PARIS))
        due = [one for one in self.book.notifications if one.due_at <= self.at]
        self.book = self.book._replace(
            notifications=tuple(one for one in self.book.notifications if one.due_at > self.at)
        )
        self.sent += due
        return due

    def titles(self, *matters: Condition, after: int = MINUTE) -> list[str]:
        """What is told now."""
        return [one.title for letter in self.look(*matters, after=after) for one in letter.alerts]

    def state(self, host: str, state: str) -> None:
        """From now on a host is in another state."""
        self.scene = self.scene._replace(hosts={**self.scene.hosts, host: (state, 4)})

    @property
    def alerts(self) -> list[Alert]:
        """All that was told."""
        return [one for letter in self.sent for one in letter.alerts]
