"""Conditions, and a simulator that applies the rules without files and sender."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from site_builder.alerts.contacts import SLACK_KIND, Contacts
from site_builder.alerts.model import Alert, AlertContext, AlertRule, AlertState, Condition, Notification
from site_builder.alerts.rules import DEFAULT_RULES, apply_alert_rules
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
LOST = Condition("gpu-lost", "atlas", "GPU-3", ("3",), "lost: the driver could not reach it: GPU is lost", START)
HELD = Condition("gpu-held", "atlas", "GPU-0", ("0",), "7 GiB taken", START, ("alice",), ("alice",))


def list_addresses(contacts: Contacts, person: str, via: str = "") -> tuple[str, ...]:
    """List the addresses of a person as they are written in the file."""
    return tuple(
        f"slack:{contact.address}" if contact.kind == SLACK_KIND and not contact.is_url else contact.address
        for contact in contacts.find_contacts(person, via)
    )


def down(host: str = "atlas", **overrides: Any) -> Condition:  # noqa: ANN401
    return Condition("host-down", host, what="no snapshot since 11:50", since=START - 600)._replace(**overrides)


def begins(at: int, **overrides: object) -> Condition:
    """Build the condition of a booking of alice that begins then, for four hours."""
    condition = Condition("booking-begins", "atlas", "b", ("0", "1"), "", at, ("alice",), ("alice",), is_lasting=False)
    return condition._replace(until=at + 4 * HOUR)._replace(**overrides)  # type: ignore[arg-type]


def ends(at: int, since: int | None = None) -> Condition:
    """Build the condition of a booking of alice that ends then."""
    condition = begins(at - 4 * HOUR if since is None else since)
    return condition._replace(rule="booking-ends", about=f"b {at}", until=at)


def ruled(name: str = "host-down", **overrides: Any) -> dict[str, AlertRule]:  # noqa: ANN401
    """Return rules that count at once, one of them with other values."""
    return {**AT_ONCE, name: AT_ONCE[name]._replace(**overrides)}


class AlertSimulator:
    """Applies the rules again and again; notifications that are due are removed as if they were sent."""

    def __init__(
        self,
        rules: Mapping[str, AlertRule] | None = None,
        begun: bool = True,
        alert_state: AlertState | None = None,
        hosts: Mapping[str, tuple[str, int]] = FRESH,
        **context: Any,  # noqa: ANN401
    ) -> None:
        self.rules = dict(AT_ONCE if rules is None else rules)
        self.context = AlertContext(hosts, **{"channels": ("lab",), **context})
        self.alert_state = alert_state or AlertState()
        self.at = START - MINUTE
        self.sent: list[Notification] = []
        if begun:
            self.run_build()

    def run_build(self, *conditions: Condition, after: int = MINUTE) -> list[Notification]:
        """Apply the rules some seconds later, and return the notifications that are due then."""
        self.at += after
        self.alert_state = apply_alert_rules(
            self.alert_state, conditions, self.rules, self.context, Now(self.at, PARIS)
        )
        due = [queued for queued in self.alert_state.notifications if queued.due_at <= self.at]
        self.alert_state = self.alert_state._replace(
            notifications=tuple(queued for queued in self.alert_state.notifications if queued.due_at > self.at)
        )
        self.sent += due
        return due

    def titles(self, *conditions: Condition, after: int = MINUTE) -> list[str]:
        return [
            alert.title for notification in self.run_build(*conditions, after=after) for alert in notification.alerts
        ]

    def state(self, host: str, state: str) -> None:
        self.context = self.context._replace(hosts={**self.context.hosts, host: (state, 4)})

    @property
    def alerts(self) -> list[Alert]:
        return [alert for notification in self.sent for alert in notification.alerts]
