"""Types of alerts: conditions, rules, alerts, the notifications that carry them, and how deliveries end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from site_builder.health.model import CRITICAL, INFO, WARNING

WATCH_RULE, WEEKLY_REPORT_RULE = "watch", "weekly-report"
HOST_RULES = ("host-down", "host-failed", "host-new")
GPU_RULES = ("gpu-lost", "gpu-hot", "gpu-error", "gpu-xid", "gpu-held")
BOOKING_RULES = ("booking-begins", "booking-ends", "booking-broken", "booking-unused")
OTHER_RULES = (WATCH_RULE, WEEKLY_REPORT_RULE)
ALL_RULES = (*HOST_RULES, *GPU_RULES, *BOOKING_RULES, *OTHER_RULES)
# The severity of what these rules report; that of a GPU's condition is its event's, and all others are info.
RULE_SEVERITIES = {"host-down": CRITICAL, "host-failed": CRITICAL, "booking-broken": WARNING}
# What an alert reports: a condition has begun, is over, or happened; or it is a test.
STEP_BEGUN, STEP_OVER, STEP_HAPPENED, STEP_TEST = "begun", "over", "happened", "test"
# Kinds of receivers; the name follows.
CHANNEL_PREFIX, PERSON_PREFIX, HOOK_PREFIX = "channel:", "person:", "hook:"
# How an attempt ends: it arrived, did not arrive (try again), never will (do not), or may have (do not either).
SENT, FAILED, REFUSED, UNSURE = "sent", "failed", "refused", "unsure"
GIVEN_UP = "given up"  # in the history: refused, or failed for too long


class Condition(NamedTuple):
    """Something that is true of a host, GPU, booking or watch, and that a rule may report."""

    rule: str
    host: str = ""
    about: str = ""  # the key of a GPU, booking or watch: it distinguishes conditions of one rule and host
    gpus: tuple[str, ...] = ()  # GPU numbers as people write them
    what: str = ""  # a sentence without a subject: `no snapshot since 14:02`
    since: int | None = None
    owners: tuple[str, ...] = ()  # whom a rule calls `person`: who booked, or holds a GPU
    people: tuple[str, ...] = ()  # all who are affected
    is_lasting: bool = True  # if not, it has happened when it is seen, and is never over
    via: str = ""  # the kind of contact that the owners asked for
    until: int | None = None  # its end, if known in advance
    event_severity: str = ""  # of the GPU event that it is about

    @property
    def severity(self) -> str:
        return self.event_severity or RULE_SEVERITIES.get(self.rule, INFO)

    @property
    def key(self) -> str:
        """Return a key that is the same in every build and on every builder; a watch has one for all hosts."""
        return f"{self.rule} {'' if self.rule == WATCH_RULE else self.host} {self.about}"


class AlertRule(NamedTuple):
    """When conditions of one kind are reported, and to whom; the fields are the keys of alerts.conf."""

    name: str
    on: bool = True
    delay: int = 0  # how many seconds a condition must last before it is reported
    resolve_after: int = 0  # how many seconds it must be over before that is reported
    send_resolved: bool = True
    to: tuple[str, ...] = ("all",)  # channels, or `all`; `person` for the owners; `hooks`; empty means nobody
    quiet_hours: tuple[int, int] | None = None  # minutes of the day between which nothing is sent
    max_per_hour: int = 20  # notifications to each receiver
    before: int = 0  # how many seconds ahead of the begin or end of a booking it is reported
    at: tuple[int, int] | None = None  # for a weekly rule: the day, with Monday as 0, and the minute of the day


class Alert(NamedTuple):
    """One alert for one receiver; hooks get it as JSON (docs/alert.schema.json)."""

    id: str
    rule: str
    step: str
    title: str  # a whole line: `atlas is down`
    what: str
    at: int
    host: str = ""
    gpus: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    people: tuple[str, ...] = ()
    link: str | None = None
    about: str = ""
    why: str = ""  # for `gpuboard alerts`: the rule, and how long the condition held
    severity: str = INFO

    @property
    def condition_key(self) -> str:
        return Condition(self.rule, self.host, self.about).key


class Notification(NamedTuple):
    """Alerts queued for one receiver, whose address is looked up when it is sent and never stored here."""

    id: str
    to: str
    alerts: tuple[Alert, ...]
    created_at: int
    due_at: int
    via: str = ""
    tries: int = 0
    claimed_by: str = ""  # the sender that is sending it now
    claimed_at: int = 0
    last_error: str = ""
    omitted_count: int = 0  # further alerts for which it has no room


def parse_person_receiver(to: str) -> str | None:
    return to[len(PERSON_PREFIX) :] if to.startswith(PERSON_PREFIX) else None


class TrackedCondition(NamedTuple):
    """A condition in the alert state; a suppressed one existed at first start: neither it nor its end is reported."""

    condition: Condition
    first_seen_at: int
    reported_at: int | None = None
    cleared_at: int | None = None
    is_suppressed: bool = False


class DeliveryRecord(NamedTuple):
    """An entry of the history: a notification that was sent, was given up, or may have arrived (unsure)."""

    at: int
    to: str
    status: str
    alerts: tuple[Alert, ...]
    reason: str = ""
    tries: int = 1


class AlertState(NamedTuple):
    """Everything that alerts remember, in one document; never changed in place: each update makes a new one."""

    started_at: int | None = None
    conditions: dict[str, TrackedCondition] = {}  # noqa: RUF012
    reported_once: dict[str, int] = {}  # noqa: RUF012 # conditions reported only once, and until when to remember that
    notifications: tuple[Notification, ...] = ()
    silences: dict[str, int] = {}  # noqa: RUF012 # until when each host is silenced
    sent_times: dict[str, tuple[int, ...]] = {}  # noqa: RUF012 # when each receiver got notifications in the last hour
    history: tuple[DeliveryRecord, ...] = ()
    id_counter: int = 0  # numbers alerts and notifications


class AlertMessage(NamedTuple):
    """A rendered notification; hooks get `hook_json`, and chats `short_text` where the text is too long for them."""

    title: str
    text: str
    html: str
    hook_json: bytes = b""
    short_text: str = ""


class DeliveryOutcome(NamedTuple):
    """How one attempt ended; `reason` contains no secrets, and `retry_after_s` is what the receiver asked for."""

    status: str
    reason: str = ""
    retry_after_s: int | None = None


class AlertReceiver(NamedTuple):
    """A receiver as it may be shown: its name as in `Notification.to`, and why it cannot be used."""

    name: str
    masked_address: str
    problem: str | None = None


class AlertContext(NamedTuple):
    hosts: Mapping[str, tuple[str, int]]  # those on the board, with their state and number of GPUs
    channels: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    url: str | None = None
    users_shown: bool = True
    unreadable_rules: frozenset[str] = frozenset()  # their conditions cannot be read: what of them is over is unknown
    find_gpu_host: Callable[[str], str | None] | None = None  # by the UUID of a GPU
    can_reach: Callable[[str], bool] | None = None  # whether a person has any contact
    failed_hosts: frozenset[str] = frozenset()  # their conditions could not be found: what of them is over is unknown
    expires: bool = True  # False while the clock is in doubt: then nothing is forgotten


class ConditionChange(NamedTuple):
    """A condition that has begun, is over or happened; `reported_at` is when its begin was reported."""

    condition: Condition
    step: str
    since: int | None
    until: int | None
    reason: str
    reported_at: int | None = None
