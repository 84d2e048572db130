"""What people are told: matters that are so, rules on which of them count, alerts, and the letters that carry them."""

from __future__ import annotations

from typing import NamedTuple

HOST_RULES = ("host-down", "host-failed", "host-new")
GPU_RULES = ("gpu-lost", "gpu-hot", "gpu-error", "gpu-held")
BOOKING_RULES = ("booking-begins", "booking-ends", "booking-broken", "booking-unused")
OTHER_RULES = ("watch", "weekly-report")
ALL_RULES = (*HOST_RULES, *GPU_RULES, *BOOKING_RULES, *OTHER_RULES)
# What an alert tells: that something is so, that it is over, that it happened; or that alerts arrive.
STEP_BEGUN, STEP_OVER, STEP_HAPPENED, STEP_TEST = "begun", "over", "happened", "test"
# Whom a letter is for; what stands behind it is the name.
CHANNEL_PREFIX, PERSON_PREFIX, HOOK_PREFIX = "channel:", "person:", "hook:"


class Condition(NamedTuple):
    """Something that is so at a moment, and that a rule may want told.

    `about` tells it from others of the same rule and host: the key of a GPU, of a booking, of a watch. `gpus` are
    numbers as people call them. `what` is a sentence without a name in front: `no snapshot since 14:02`. `whose` are
    those whom the rule calls the person: who booked, or holds. `people` are all whom it affects. What is not `lasting`
    has happened when it is seen, and is never over. `via` is by which way they want to hear of it, where they said so.
    `until` is when it ends, where that is known before.
    """

    rule: str
    host: str = ""
    about: str = ""
    gpus: tuple[str, ...] = ()
    what: str = ""
    since: int | None = None
    owners: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    is_lasting: bool = True
    via: str = ""
    until: int | None = None

    @property
    def key(self) -> str:
        """What it is known by, from one build to the next and from one builder to the other.

        A watch is the same on whichever host it comes true.
        """
        return f"{self.rule} {'' if self.rule == 'watch' else self.host} {self.about}"


class AlertRule(NamedTuple):
    """What of one kind is told: how long it must be so before it counts and be over before that does, in seconds.

    `to` has names of channels or `all` of them, `person` for whose it is, and `hooks` for every hook; empty is nobody.
    `quiet_hours` is from when until when nothing is sent, in minutes of the day. At most `max_per_hour` notifications go to each receiver.
    `before` is how long ahead of the begin or the end of a booking it is told.
    """

    name: str
    on: bool = True
    delay: int = 0
    resolve_after: int = 0
    send_resolved: bool = True
    to: tuple[str, ...] = ("all",)
    quiet_hours: tuple[int, int] | None = None
    max_per_hour: int = 20
    before: int = 0
    at: tuple[int, int] | None = None  # of what comes once a week: the day from Monday on, and the minute of it


class Alert(NamedTuple):
    """What somebody is told, and what a hook gets as JSON; `step` is begun, over, happened or test.

    `title` is all of it in a line: `atlas is down`. `why` is for `gpuboard alerts`: which rule, and what held how long.
    """

    id: str
    rule: str
    step: str
    title: str
    what: str
    at: int
    host: str = ""
    gpus: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    people: tuple[str, ...] = ()
    link: str | None = None
    about: str = ""
    why: str = ""


class Notification(NamedTuple):
    """Alerts on their way to one receiver; the address is looked up when it is sent, and never kept here.

    `claimed` is who sends it just now, and `claimed_at` since when. `why` is what went wrong the last time. `more` is
    how many alerts there would be beside these, for which it has no room.
    """

    id: str
    to: str
    alerts: tuple[Alert, ...]
    created_at: int
    due_at: int
    via: str = ""
    tries: int = 0
    claimed_by: str = ""
    claimed_at: int = 0
    last_error: str = ""
    omitted_count: int = 0


class TrackedCondition(NamedTuple):
    """What is remembered of a matter: since when it is seen, when it was told, since when it is no longer so.

    One that was there before anybody looked is `unsaid`: neither it nor its end is told.
    """

    condition: Condition
    first_seen_at: int
    reported_at: int | None = None
    cleared_at: int | None = None
    is_suppressed: bool = False


class DeliveryRecord(NamedTuple):
    """A line of the history: a letter that arrived (`sent`), was given up, or of which nobody knows (`unsure`)."""

    at: int
    to: str
    status: str
    alerts: tuple[Alert, ...]
    reason: str = ""
    tries: int = 1


class AlertState(NamedTuple):
    """All that the alerts remember, in one document.

    `silences` has until when each host is silent, `once` until when it is remembered that something was told that is
    told only once, `sent` when letters went to each receiver in the last hour, `begun` when anybody first looked, and
    `number` counts alerts and letters, so that no two have one id.
    """

    started_at: int | None = None
    conditions: dict[str, TrackedCondition] = {}  # noqa: RUF012 # never changed in place: each step makes a new book
    reported_once: dict[str, int] = {}  # noqa: RUF012
    notifications: tuple[Notification, ...] = ()
    silences: dict[str, int] = {}  # noqa: RUF012
    sent_times: dict[str, tuple[int, ...]] = {}  # noqa: RUF012
    history: tuple[DeliveryRecord, ...] = ()
    id_counter: int = 0


class Message(NamedTuple):
    """A letter in words; `html` is for ways that can show it, and `data` its alert as JSON, for hooks.

    `brief` is for chats, where the text is too long; mostly it is not, and there is none.
    """

    title: str
    text: str
    html: str
    hook_json: bytes = b""
    short_text: str = ""


class DeliveryOutcome(NamedTuple):
    """How it went: `sent`, `failed` (it did not arrive: again later), `refused` (never again), or `unsure`.

    `wait` is how many seconds the receiver wants us to wait. `why` has no secrets in it.
    """

    status: str
    reason: str = ""
    retry_after_s: int | None = None
