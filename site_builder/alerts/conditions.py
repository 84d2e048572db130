"""Find the conditions of hosts, GPUs and bookings that alerts report, and from when on they count."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from site_builder.alerts.model import WATCH_RULE, AlertContext, AlertRule, Condition
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import (
    RUN_ID_PREFIX,
    Booking,
    BookingStatus,
    GpuStatus,
    HostSnapshot,
    HostStatus,
    PrivacySettings,
)
from site_builder.core.people import PeopleDirectory, fold_alias, fold_login, parse_login_uid
from site_builder.fleet import booking_use, processes
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.summary import HostSummary
from site_builder.health.events import describe_event
from site_builder.health.model import BEFORE_FIRST_CHECK, CRITICAL_KINDS, INFO, SEVERITIES, SPAN_KINDS, HealthEvent

# Rules whose conditions come from history; while it cannot be read, it is unknown whether they are over.
HEALTH_RULES = frozenset({"gpu-lost", "gpu-hot", "gpu-error", "gpu-xid"})
# A silenced host does not suppress these: they do not say that anything is wrong.
REMINDER_RULES = frozenset({WATCH_RULE, "booking-begins", "booking-ends"})
# How long an event that has no end counts.
LOOKBACK_S = HOUR
LOST_KINDS, HOT_KINDS = frozenset({"lost", "gone"}), frozenset({"hot", "heat"})
ERROR_KINDS = (CRITICAL_KINDS | {"pending"}) - LOST_KINDS
# How far ahead of its begin and end a booking is a condition: no rule may look further.
BOOKING_LEAD_S = DAY
# How long after its begin that is still worth reporting.
BOOKING_BEGIN_WINDOW_S = HOUR
# A host can claim anything.
MAX_CONDITIONS_PER_HOST = 100
MAX_PEOPLE = 50
MAX_PEOPLE_PER_GPU = 8
MAX_NAME_CHARACTERS = 100
MAX_MESSAGE_CHARACTERS = 500
SHOW_EVERYTHING = PrivacySettings()


class HostConditions(Protocol):
    """What alerts and watches need of a host; board.host_pipeline.BuiltHost has it."""

    @property
    def summary(self) -> HostSummary: ...

    @property
    def conditions(self) -> tuple[Condition, ...] | None: ...  # None where they could not be found

    @property
    def people(self) -> tuple[str, ...]: ...  # who is on its GPUs


class ConditionBookedGpu(NamedTuple):
    """A booking of a GPU, or of a host whose GPUs are unknown; `shown_booking` respects the privacy settings."""

    gpu: GpuStatus | None
    booking: BookingStatus
    shown_booking: BookingStatus

    @property
    def end(self) -> int:
        return int(self.booking.until.timestamp())


def find_conditions(
    host_status: HostStatus, bookings: Sequence[Booking], snapshot: HostSnapshot | None, rules: StateRules, now: Now
) -> tuple[Condition, ...]:
    """Find all conditions of a host and its bookings; most hosts have none."""
    conditions: list[Condition] = []
    booked_gpus = list(list_condition_booked_gpus(host_status, bookings, rules, now)) if bookings else []
    if host_status.state in {"down", "failed"}:
        conditions.append(build_host_condition(host_status, snapshot, booked_gpus, rules))
    if booked_gpus:
        conditions += find_booking_conditions(host_status, booked_gpus, rules, now)
    for gpu in host_status.gpus:
        if gpu.state == "held":
            holders = resolve_condition_people(gpu.people.users, rules.people)[:MAX_PEOPLE_PER_GPU]
            conditions.append(
                Condition(
                    rule="gpu-held",
                    host=host_status.name,
                    about=gpu.key[:MAX_NAME_CHARACTERS],
                    gpus=list_condition_gpu_label(gpu),
                    what=gpu.reason,
                    since=None if gpu.idle_since is None else int(gpu.idle_since),
                    owners=holders,
                    people=holders,
                )
            )
    if len(conditions) > MAX_CONDITIONS_PER_HOST:  # lasting ones first: without room, they would seem to be over
        conditions.sort(key=lambda condition: not condition.is_lasting)
    return tuple(conditions[:MAX_CONDITIONS_PER_HOST])


def build_host_condition(
    host_status: HostStatus, snapshot: HostSnapshot | None, booked_gpus: list[ConditionBookedGpu], rules: StateRules
) -> Condition:
    """Build the condition of a host that is down or has failed; it affects its last users and who has booked it."""
    names: list[str] = []
    if snapshot and snapshot.processes is not None:
        ps_rows = snapshot.ps_rows.rows if snapshot.ps_rows else ()
        by_gpu = processes.build_processes_by_gpu(snapshot, ps_rows, rules)
        names = [login for gpu_processes in by_gpu.values() for _, login in gpu_processes if login]
    bookings = [booked.booking for booked in booked_gpus]
    names += [booking.name for booking in bookings if booking.phase == "now" and booking.name]
    people = resolve_condition_people(names, rules.people)
    is_down = host_status.state == "down"
    since = int(host_status.last_seen) if host_status.last_seen is not None and is_down else None
    rule, name, reason = f"host-{host_status.state}", host_status.name, host_status.reason
    return Condition(rule, name, what=reason, since=since, owners=people, people=people)


def find_booking_conditions(
    host_status: HostStatus, booked_gpus: list[ConditionBookedGpu], rules: StateRules, now: Now
) -> Iterator[Condition]:
    """Find bookings that begin, end, are used by others or by nobody; a booking of several GPUs counts once."""
    groups: dict[tuple[str, int | None], list[ConditionBookedGpu]] = {}
    for booked in booked_gpus:
        begin = int(booked.booking.since.timestamp()) if booked.booking.since else None
        booking_id = booked.booking.id or rules.people.resolve_person(booked.booking.name or "")
        groups.setdefault((booking_id, begin), []).append(booked)
    for (booking_id, begin), group in groups.items():
        key = f"{booking_id} {begin}".encode("utf-8", "replace")
        condition = Condition(
            rule="",
            host=host_status.name,
            about=hashlib.blake2b(key, digest_size=8).hexdigest(),  # it names nobody
            since=begin,
            owners=resolve_condition_people([booked.booking.name or "" for booked in group], rules.people),
            until=max(booked.end for booked in group),
        )
        if not booking_id.startswith(RUN_ID_PREFIX):  # a run books for itself, for as long as it lasts
            # its begin and ends, from a day ahead on: only a rule knows when they count
            is_fresh = host_status.state == "fresh"
            what = "" if is_fresh else f"{host_status.name} is {host_status.state}: {host_status.reason}"
            timed = condition._replace(is_lasting=False, what=what, people=condition.owners)
            if (
                begin is not None
                and now.has_passed(begin - BOOKING_LEAD_S)
                and not now.has_passed(begin + BOOKING_BEGIN_WINDOW_S)
            ):
                yield timed._replace(rule="booking-begins", gpus=list_condition_booked_labels(group))
            running = [booked for booked in group if booked.booking.phase == "now"]
            for end in sorted({booked.end for booked in running}):
                if now.has_passed(end - BOOKING_LEAD_S):
                    gpus = list_condition_booked_labels([booked for booked in running if booked.end == end])
                    about = f"{condition.about} {end}"  # a booking that is extended ends again
                    yield timed._replace(rule="booking-ends", about=about, gpus=gpus, until=end)
            unused = [booked for booked in group if booked.shown_booking.unused_since is not None]
            if unused:
                yield condition._replace(
                    rule="booking-unused",
                    gpus=list_condition_booked_labels(unused),
                    what="it is not in use",
                    since=min(booked.shown_booking.unused_since or 0 for booked in unused),
                    people=condition.owners,
                )
        broken = [booked for booked in group if booked.gpu and booked.shown_booking.used_by_since is not None]
        if broken:
            used_gpus = [booked.gpu for booked in broken if booked.gpu]
            users = [user for gpu in used_gpus for user in gpu.people.users]
            yield condition._replace(
                rule="booking-broken",
                gpus=list_condition_booked_labels(broken),
                what="; ".join(dict.fromkeys(gpu.reason for gpu in used_gpus))[:MAX_MESSAGE_CHARACTERS],
                since=min(booked.shown_booking.used_by_since or 0 for booked in broken),
                people=resolve_condition_people([*condition.owners, *users], rules.people),
            )


def list_condition_booked_gpus(
    host_status: HostStatus, bookings: Sequence[Booking], rules: StateRules, now: Now
) -> Iterator[ConditionBookedGpu]:
    """Yield each booking of each GPU that is not over, and those of a host whose GPUs are unknown."""
    if not host_status.gpus:
        statuses = host_status.bookings
        if not rules.privacy.users:
            statuses = booking_use.build_fleet_booking_statuses(bookings, SHOW_EVERYTHING, now)
        yield from (ConditionBookedGpu(None, booking, booking) for booking in statuses if booking.phase != "ended")
    for gpu in host_status.gpus:
        statuses = gpu.bookings
        if statuses and not rules.privacy.users:
            gpu_bookings = booking_use.find_gpu_bookings(bookings, gpu.gpu)
            statuses = booking_use.build_fleet_booking_statuses(gpu_bookings, SHOW_EVERYTHING, now)
        for booking, shown_booking in zip(statuses, gpu.bookings):
            if booking.phase != "ended":
                yield ConditionBookedGpu(gpu, booking, shown_booking)


def list_condition_gpu_label(gpu: GpuStatus) -> tuple[str, ...]:
    return () if gpu.gpu.number is None else (gpu.gpu.label,)


def list_condition_booked_labels(group: Sequence[ConditionBookedGpu]) -> tuple[str, ...]:
    if all(booked.booking.is_whole_host for booked in group):
        return ()
    return tuple(
        dict.fromkeys(label for booked in group if booked.gpu for label in list_condition_gpu_label(booked.gpu))
    )


def resolve_condition_people(names: Iterable[str], people: PeopleDirectory) -> tuple[str, ...]:
    """Return each person once, by a login if known, since contacts are found by that."""
    logins: dict[str, str] = {}
    for name in names:
        person = people.find_person(name)
        if person is None and parse_login_uid(name) is not None:
            continue  # an unknown person
        person = person or people.resolve_person(name)
        if not person or person in logins:
            continue
        login = fold_login(name.strip())
        if login not in people.known_names and fold_alias(name.strip()) not in people.aliases:
            names_of_person = [known for known in people.known_names if people.resolve_person(known) == person]
            login = min(
                names_of_person, key=lambda known: (parse_login_uid(known) is not None, known), default=name.strip()
            )
        logins[person] = login[:MAX_NAME_CHARACTERS]
    return tuple(sorted(logins.values())[:MAX_PEOPLE])


def list_condition_host_users(host_status: HostStatus) -> tuple[str, ...]:
    """Return who is on the GPUs of a host; unknown if it is not fresh."""
    users = {user for gpu in host_status.gpus for user in gpu.people.users}
    return tuple(sorted(users)[:MAX_PEOPLE]) if users else ()


def find_health_conditions(
    events: Iterable[HealthEvent], hosts: Mapping[str, HostConditions], now: Now
) -> list[Condition]:
    """Find conditions in GPU events; their numbers are not part of a key: another builder has its own history."""
    conditions: dict[str, Condition] = {}
    counts: Counter[str] = Counter()
    for event in events:
        rule = choose_health_rule(event)
        is_lasting = event.kind in SPAN_KINDS
        is_over = event.ended_at is not None and (is_lasting or now.epoch - event.ended_at > LOOKBACK_S)
        is_only_shown = (
            not event.gpu_key
            or (rule == "gpu-error" and event.kind not in ERROR_KINDS)
            or (rule == "gpu-xid" and event.severity == INFO)  # of a program: the GPU is well
        )
        if is_over or is_only_shown or counts[event.host] >= MAX_CONDITIONS_PER_HOST:
            continue
        if event.kind == "gone" and find_condition_gpu_host(hosts, event.gpu_key) is not None:
            continue  # it was moved
        counts[event.host] += 1
        people = hosts[event.host].people if event.host in hosts else ()
        about = event.gpu_key if rule in {"gpu-lost", "gpu-hot"} else f"{event.gpu_key} {event.kind}"
        condition = Condition(
            rule=rule,
            host=event.host,
            about=f"{about} {event.began_at}" if rule == "gpu-xid" else about,  # each is reported once
            gpus=() if event.index is None else (str(event.index),),
            what=describe_event(event),
            since=None if event.began_after == BEFORE_FIRST_CHECK else min(event.began_at, int(now.epoch)),
            owners=people,
            people=people,
            is_lasting=is_lasting,
            event_severity=event.severity,
        )
        previous = conditions.get(condition.key)
        if previous:  # hot, and slowed down by that
            since = None
            if previous.since is not None and condition.since is not None:
                since = min(previous.since, condition.since)
            worst = min(previous.severity, condition.severity, key=SEVERITIES.index)
            what = f"{previous.what}; {condition.what}"
            condition = previous._replace(what=what, since=since, event_severity=worst)
        conditions[condition.key] = condition
    return list(conditions.values())


def choose_health_rule(event: HealthEvent) -> str:
    """Return the rule that an event is about."""
    if event.kind in LOST_KINDS:
        return "gpu-lost"
    if event.kind in HOT_KINDS:
        return "gpu-hot"
    return "gpu-xid" if event.is_xid else "gpu-error"


def find_condition_start_time(condition: Condition, rule: AlertRule) -> int:
    """Return from when on a condition counts: for a booking, ahead of its begin or end as the rule says."""
    if condition.rule == "booking-begins" and condition.since is not None:
        return condition.since - rule.before
    if condition.rule == "booking-ends" and condition.until is not None:
        # for a short booking, not before half of it is over
        half = rule.before if condition.since is None else max(0, condition.until - condition.since) // 2
        return condition.until - min(rule.before, half)
    return 0


def explain_muted_condition(condition: Condition, silences: Mapping[str, int], context: AlertContext, now: int) -> str:
    """Explain why nothing about a host is reported now; empty if it is."""
    if not condition.host or condition.rule == WATCH_RULE:
        return ""
    if context.hosts.get(condition.host, ("", 0))[0] == "maintenance":
        return f"{condition.host} is under maintenance"
    is_silenced = silences.get(condition.host, 0) > now and condition.rule not in REMINDER_RULES
    return f"{condition.host} is silenced" if is_silenced else ""


def find_condition_gpu_host(hosts: Mapping[str, HostConditions], uuid: str) -> str | None:
    """Find the host of a GPU by a search, since that is rare."""
    for name, host in hosts.items():
        if any(uuid in {gpu.uuid, gpu.parent_uuid} for gpu in host.summary.gpu_identities):
            return name
    return None
