"""The queue: receivers, quiet hours, hourly limits, retries and claims."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.alerts import queue
from site_builder.alerts.model import (
    STEP_BEGUN,
    STEP_HAPPENED,
    STEP_OVER,
    AlertContext,
    AlertState,
    Condition,
    DeliveryOutcome,
    DeliveryRecord,
    Notification,
)
from site_builder.alerts.queue import (
    MAX_ALERTS_PER_NOTIFICATION,
    MAX_QUEUED,
    MAX_QUEUED_PER_HOOK,
    NotificationQueueBuilder,
)
from site_builder.alerts.queue import MAX_PEOPLE_PER_HOST as MOST_OF_HOST_TOLD
from site_builder.alerts.render import format_notification_headline
from site_builder.alerts.rules import DEFAULT_RULES, apply_alert_rules
from site_builder.core.clock import Now
from tests.support.alert_fixtures import (
    AT_ONCE,
    FRESH,
    HELD,
    HOUR,
    LOST,
    MINUTE,
    NIGHT,
    START,
    AlertSimulator,
    begins,
    down,
    ends,
    ruled,
)
from tests.support.generated_fleet import PARIS
from tests.support.hypothesis_profiles import examples
from tests.support.sender_fixtures import alert, build_notification, build_state

DAY = 86400

# Clocks that are set


@pytest.mark.parametrize("back", [60, 20 * HOUR, 24 * HOUR, 400 * 24 * HOUR])
def test_a_clock_set_back_delays_no_notification(back: int) -> None:
    notification = Notification("1-1", "channel:lab", (), created_at=int(START), due_at=int(START) + 30)
    queue_builder = NotificationQueueBuilder(
        AlertState(notifications=(notification,)), AlertContext(FRESH), Now(START - back, PARIS)
    )
    assert [
        0 <= queued_notification.due_at - queue_builder.now_s <= 30
        for queued_notification in queue_builder.notifications
    ] == [True]


# To whom


def test_each_rule_goes_to_its_receivers() -> None:
    rules = {**AT_ONCE, "gpu-lost": AT_ONCE["gpu-lost"]._replace(to=("ops",))}
    simulator = AlertSimulator(rules, channels=("lab", "ops"), hooks=("page",))
    got = Counter(notification.to for notification in simulator.run_build(down(), LOST, HELD))
    assert got == {"channel:lab": 1, "channel:ops": 2, "hook:page": 2, "person:alice": 1}


def test_simultaneous_alerts_are_one_notification_but_hooks_get_each() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(5)}
    simulator = AlertSimulator(hosts=hosts, hooks=("page",))
    notifications = simulator.run_build(*(down(host) for host in hosts))
    assert [len(notification.alerts) for notification in notifications if notification.to == "channel:lab"] == [5]
    assert [len(notification.alerts) for notification in notifications if notification.to == "hook:page"] == [1] * 5
    assert format_notification_headline(notifications[0].alerts) == "5 hosts are down: gpu0, gpu1, gpu2, gpu3, gpu4"


def test_hosts_that_go_down_in_a_row_are_one_notification() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(6)}
    simulator = AlertSimulator(ruled(delay=2 * MINUTE, resolve_after=5 * MINUTE), hosts=hosts)
    conditions = [down(name) for name in hosts]
    for count in range(1, 7):  # within a minute
        simulator.run_build(*conditions[:count], after=10)
    first = simulator.at - 50
    while not simulator.sent:
        simulator.run_build(*conditions, after=10)
    assert (len(simulator.alerts), simulator.at - first) == (6, 170)
    for count in range(1, 7):
        simulator.run_build(*conditions[count:], after=10)
    for _ in range(40):
        simulator.run_build(after=10)
    assert [len(notification.alerts) for notification in simulator.sent] == [6, 6]
    simulator.run_build(conditions[0])
    assert len(simulator.titles(conditions[0], after=2 * MINUTE)) == 1


def test_a_thousand_alerts_are_one_notification_with_room_for_some() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(1000)}
    simulator = AlertSimulator(hosts=hosts, hooks=("page",))
    notification, *for_hooks = simulator.run_build(*(down(host) for host in hosts))
    assert (len(notification.alerts), notification.omitted_count) == (
        MAX_ALERTS_PER_NOTIFICATION,
        1000 - MAX_ALERTS_PER_NOTIFICATION,
    )
    assert (
        format_notification_headline(notification.alerts, notification.omitted_count)
        == "1000 hosts are down: gpu0, gpu1, gpu2, gpu3 and 996 more"
    )
    assert len(for_hooks) == MAX_QUEUED_PER_HOOK


def test_hidden_people_are_named_only_to_themselves() -> None:
    simulator = AlertSimulator(ruled("gpu-held", to=("all", "person")), users_shown=False)
    channel, own = simulator.run_build(HELD)
    assert (channel.alerts[0].title, channel.alerts[0].people) == ("atlas:0 is held idle", ())
    assert (own.alerts[0].title, own.alerts[0].people) == ("alice: you hold atlas:0 idle", ("alice",))


def test_a_person_without_contacts_is_notified_only_of_their_watches() -> None:
    simulator = AlertSimulator(ruled("gpu-held", to=("all", "person")), can_reach={"bob"}.__contains__)
    watch = Condition("watch", "", "w1", (), "atlas:0 is free", owners=("alice",), is_lasting=False)
    notifications = simulator.run_build(HELD._replace(owners=("alice", "bob")), watch)
    assert [(notification.to, notification.alerts[0].rule) for notification in notifications] == [
        ("channel:lab", "gpu-held"),
        ("person:bob", "gpu-held"),
        ("person:alice", "watch"),
    ]


@pytest.mark.slow
def test_a_host_that_names_many_people_notifies_few() -> None:
    conditions = [
        HELD._replace(about=f"GPU-{gpu}", owners=tuple(f"user{gpu}-{number}" for number in range(8)))
        for gpu in range(99)
    ]
    simulator = AlertSimulator(hosts={**FRESH, **{f"gpu{number}": ("fresh", 4) for number in range(99)}}, channels=())
    assert len(simulator.run_build(*conditions)) == MOST_OF_HOST_TOLD
    simulator.run_build(
        *(condition._replace(host=f"gpu{number}") for number in range(99) for condition in conditions[number:])
    )
    assert len(simulator.sent) <= MOST_OF_HOST_TOLD + MAX_QUEUED


def test_an_alert_says_since_when_and_links_the_page_of_its_host() -> None:
    simulator = AlertSimulator(url="https://gpus.example.org/")
    (notification,) = simulator.run_build(down(people=("alice",)))
    (told,) = notification.alerts
    assert (told.step, told.since, told.people) == (STEP_BEGUN, START - 600, ("alice",))
    assert told.link == "https://gpus.example.org/hosts/atlas.html"
    (notification,) = simulator.run_build(after=2 * HOUR)
    (told,) = notification.alerts
    assert (told.step, told.since, told.until, told.people) == (STEP_OVER, START - 600, simulator.at, ("alice",))


# Quiet hours, and at most so many an hour


def night() -> AlertSimulator:
    """It is 23:00, and nothing is sent until 7:00."""
    simulator = AlertSimulator(ruled(quiet_hours=NIGHT))
    simulator.run_build(after=11 * HOUR)
    return simulator


def test_a_night_of_many_short_outages_sends_nothing() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(MAX_ALERTS_PER_NOTIFICATION + 50)}
    simulator = AlertSimulator(ruled(quiet_hours=NIGHT), hosts={**hosts, "atlas": ("fresh", 4)})
    assert simulator.titles(down()) == ["atlas is down"]
    simulator.run_build(down(), *map(down, hosts), after=11 * HOUR)
    (notification,) = simulator.alert_state.notifications
    assert (len(notification.alerts), notification.omitted_count) == (MAX_ALERTS_PER_NOTIFICATION, 50)
    simulator.run_build(down(), *map(down, list(hosts)[:50]))
    (notification,) = simulator.alert_state.notifications
    assert len(notification.alerts) + notification.omitted_count == 50
    assert {one.step for one in notification.alerts} == {STEP_BEGUN}
    simulator.run_build()
    (notification,) = simulator.alert_state.notifications
    assert [(one.host, one.step) for one in notification.alerts] == [("atlas", STEP_OVER)]


def test_in_quiet_hours_a_notification_waits_for_their_end() -> None:
    simulator = night()
    assert simulator.titles(down()) == []
    assert simulator.titles(down(), down("boreas"), after=HOUR) == []
    (notification,) = simulator.run_build(down(), down("boreas"), after=7 * HOUR)
    assert [one.title for one in notification.alerts] == ["atlas is down", "boreas is down"]
    assert Now(notification.due_at, PARIS).local.strftime("%a %H:%M") == "Tue 07:00"


def test_a_retry_waits_for_the_end_of_quiet_hours() -> None:
    simulator = AlertSimulator(ruled(quiet_hours=NIGHT), hooks=("page",))
    failed = [one._replace(tries=3, due_at=simulator.at + HOUR) for one in simulator.run_build(down(), after=9 * HOUR)]
    assert [one.to for one in failed] == ["channel:lab", "hook:page"]
    simulator.alert_state = simulator.alert_state._replace(notifications=tuple(failed))
    simulator.run_build(down(), after=HOUR + 30 * MINUTE)
    (notification,) = simulator.alert_state.notifications
    assert Now(notification.due_at, PARIS).local.strftime("%a %H:%M") == "Tue 07:00"
    assert simulator.sent[-1].to == "hook:page"
    same = simulator.alert_state
    simulator.run_build(down())
    assert simulator.alert_state == same
    simulator.rules |= AT_ONCE
    assert simulator.run_build(down(), after=9 * HOUR)[0].id == notification.id


def test_the_weekly_report_is_a_notification_of_its_own() -> None:
    report = Condition("weekly-report", about="2026-W46", is_lasting=False)
    for looks in ([(down(),), (down(), report)], [(report,), (report, down())]):
        simulator = night()
        simulator.rules["weekly-report"] = simulator.rules["weekly-report"]._replace(on=True, quiet_hours=NIGHT)
        for conditions in looks:
            assert simulator.run_build(*conditions) == []
        rules = sorted(
            tuple(one.rule for one in notification.alerts) for notification in simulator.alert_state.notifications
        )
        assert rules == [("host-down",), ("weekly-report",)]


def test_conditions_that_end_in_quiet_hours_are_not_reported() -> None:
    simulator = night()
    simulator.run_build(down(), down("boreas"))
    simulator.run_build(down("boreas"), after=HOUR)
    (notification,) = simulator.run_build(down("boreas"), after=8 * HOUR)
    assert [one.title for one in notification.alerts] == ["boreas is down"]
    assert simulator.run_build() != []
    assert [one.title for one in simulator.alerts if one.host == "atlas"] == []


def test_a_short_recovery_in_quiet_hours_is_not_reported() -> None:
    simulator = AlertSimulator(ruled(quiet_hours=NIGHT))
    assert simulator.titles(down()) == ["atlas is down"]
    simulator.run_build(down(), after=11 * HOUR)
    assert simulator.titles() == simulator.titles(down()) == []
    assert simulator.titles(down(), after=9 * HOUR) == []
    assert len(simulator.titles()) == 1


def test_a_booking_that_ends_in_quiet_hours_is_not_reported() -> None:
    simulator = AlertSimulator(ruled("booking-ends", quiet_hours=NIGHT))
    late = ends(START + 11 * HOUR + 30 * MINUTE)
    assert simulator.titles(late, after=11 * HOUR + 10 * MINUTE) == []
    assert not simulator.alert_state.notifications


@pytest.mark.parametrize(
    ("quiet", "at", "until"),
    [
        ((22 * 60, 7 * 60), "21:59", None),
        ((22 * 60, 7 * 60), "22:00", "Tue 07:00"),
        ((22 * 60, 7 * 60), "06:59", "Mon 07:00"),
        ((22 * 60, 7 * 60), "07:00", None),
        ((12 * 60, 13 * 60 + 30), "12:15", "Mon 13:30"),
    ],
)
def test_quiet_hours_are_those_of_the_day_as_people_read_it(quiet: tuple[int, int], at: str, until: str | None) -> None:
    simulator = AlertSimulator(ruled(quiet_hours=quiet))
    hour, minute = at.split(":")
    simulator.at = int(Now(START, PARIS).local.replace(hour=int(hour), minute=int(minute)).timestamp()) - MINUTE
    sent_notifications = simulator.run_build(down())
    (notification,) = sent_notifications or simulator.alert_state.notifications
    assert bool(sent_notifications) == (until is None)
    assert until is None or Now(notification.due_at, PARIS).local.strftime("%a %H:%M") == until


def test_alerts_over_the_hourly_limit_are_gathered_in_one_notification() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(30)}
    simulator = AlertSimulator(ruled(max_per_hour=3), hosts=hosts)
    bad: list[Condition] = []
    for host in hosts:
        bad.append(down(host))
        simulator.run_build(*bad)
    assert [len(one.alerts) for one in simulator.sent] == [1, 1, 1]
    notifications = [notification for _ in range(90) for notification in simulator.run_build(*bad)]
    assert [len(one.alerts) for one in notifications] == [27]
    assert notifications[0].due_at - simulator.sent[0].due_at == HOUR


def test_the_hourly_limit_respects_quiet_hours() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(3)}
    simulator = AlertSimulator(
        ruled(quiet_hours=NIGHT, max_per_hour=1) | {"gpu-lost": AT_ONCE["gpu-lost"]._replace(max_per_hour=1)},
        hosts=hosts,
    )
    assert len(simulator.run_build(down("gpu0"), after=9 * HOUR + 30 * MINUTE)) == 1
    for conditions in ((down("gpu0"), down("gpu1")), (LOST._replace(host="gpu2"), down("gpu0"), down("gpu1"))):
        assert simulator.run_build(*conditions, after=10 * MINUTE) == []
    rules_by_time = {
        Now(notification.due_at, PARIS).local.strftime("%a %H:%M"): notification.alerts[0].rule
        for notification in simulator.alert_state.notifications
    }
    assert rules_by_time == {"Tue 07:00": "host-down", "Mon 22:30": "gpu-lost"}


def test_the_hourly_limit_is_of_each_receiver() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(6)}
    simulator = AlertSimulator(ruled("gpu-held", max_per_hour=1), hosts=hosts)
    for user in ("alice", "bob", "carol"):
        conditions = [HELD._replace(host=host, owners=(user,)) for host in list(hosts)[:2]]
        assert [notification.to for notification in simulator.run_build(*conditions)] == [f"person:{user}"]
        simulator.run_build()


# Whatever happens


MATTERS = [
    down(),
    down("boreas"),
    LOST,
    HELD,
    begins(START + 2 * HOUR),
    ends(START + 3 * HOUR),
    Condition("gpu-error", "boreas", "GPU-1 uncorrected", ("1",), is_lasting=False),
    Condition("watch", "", "w", is_lasting=False, owners=("bob",)),
]
LOOKS = st.lists(
    st.tuples(
        st.integers(-2 * HOUR, 12 * HOUR) | st.integers(0, 10 * MINUTE),
        st.sets(st.sampled_from(range(len(MATTERS)))),
        st.sampled_from(["fresh", "fresh", "fresh", "stale", "down", "maintenance"]),
    ),
    max_size=30,
)


@pytest.mark.slow
@examples(150)
@given(
    looks=LOOKS,
    quiet=st.sampled_from([None, NIGHT, (0, 1439)]),
    most=st.integers(1, 4),
    begun=st.booleans(),
)
def test_nothing_is_reported_twice_and_no_end_without_a_begin(
    looks: list[tuple[int, set[int], str]], quiet: tuple[int, int] | None, most: int, begun: bool
) -> None:
    rules = {
        name: rule._replace(
            on=True, quiet_hours=quiet, max_per_hour=most, send_resolved=True, to=("all", "person", "hooks")
        )
        for name, rule in DEFAULT_RULES.items()
    }
    simulator = AlertSimulator(rules, begun=begun, hooks=("page",))
    for after, which, state in looks:
        simulator.state("atlas", state)
        before = simulator.alert_state
        for notification in simulator.run_build(*(MATTERS[one] for one in sorted(which)), after=after):
            due = Now(notification.due_at, PARIS).local
            at_night = is_quiet(quiet, due.hour * 60 + due.minute)
            set_back = simulator.at < notification.created_at  # by hours perhaps, and then it waits no longer
            assert notification.to.startswith("hook:") or not at_night or set_back
        assert before.started_at in (None, simulator.alert_state.started_at)
    for to in {notification.to for notification in simulator.sent}:
        notifications = [notification for notification in simulator.sent if notification.to == to]
        ids = [one.id for notification in notifications for one in notification.alerts]
        assert len(ids) == len(set(ids))
        steps_by_condition: dict[str, list[str]] = {}
        for notification in notifications:
            for one in notification.alerts:
                steps_by_condition.setdefault(f"{one.rule} {one.host} {one.about}", []).append(one.step)
        for steps in steps_by_condition.values():
            # begun and over take turns, begun first; what happened stands for itself
            assert (
                steps == [STEP_HAPPENED] * len(steps) or steps == ([STEP_BEGUN, STEP_OVER] * len(steps))[: len(steps)]
            )
    names = [notification.id for notification in simulator.sent]
    assert len(names) == len(set(names))


def is_quiet(quiet: tuple[int, int] | None, minute: int) -> bool:
    if quiet is None:
        return False
    begin, end = quiet
    return begin <= minute < end if begin < end else minute >= begin or minute < end


@examples(100)
@given(looks=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 29)), max_size=60), most=st.integers(1, 5))
def test_nobody_gets_more_notifications_an_hour_than_allowed(looks: list[tuple[int, int]], most: int) -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(30)}
    simulator = AlertSimulator(ruled(max_per_hour=most), hosts=hosts)
    so: set[int] = set()
    for after, which in looks:
        so ^= {which}
        simulator.run_build(*(down(f"gpu{down_host}") for down_host in sorted(so)), after=after)
    simulator.run_build(*(down(f"gpu{down_host}") for down_host in sorted(so)), after=2 * HOUR)
    times = sorted(notification.due_at for notification in simulator.sent)
    assert all(later - earlier >= HOUR for earlier, later in zip(times, times[most:]))


# Delivery


def sent(content: AlertState, *outcomes: DeliveryOutcome, now: int = 1000) -> AlertState:
    """The book after its letters were tried, one after the other."""
    for outcome in outcomes:
        (first, *_) = queue.list_due_notifications(content, now)
        content = queue.record_queue_outcome(
            queue.claim_notification(content, first.id, "me", now), first.id, "me", outcome, now
        )
    return content


def test_a_sent_notification_moves_to_the_history() -> None:
    after = sent(build_state(build_notification(1), build_notification(2)), DeliveryOutcome("sent"), now=1005)
    assert [notification.id for notification in after.notifications] == ["l2"]
    (line,) = after.history
    assert (line.at, line.to, line.status, line.alerts, line.tries) == (1005, "channel:lab", "sent", (alert(1),), 1)


def test_a_failed_notification_is_retried_with_longer_pauses_and_given_up_after_a_day() -> None:
    content, now, waited = build_state(build_notification()), 1000, []
    while content.notifications:
        content = sent(content, DeliveryOutcome("failed", "connection refused"), now=now)
        if content.notifications:
            waited.append(content.notifications[0].due_at - now)
            assert not queue.list_due_notifications(content, content.notifications[0].due_at - 1)
            now = content.notifications[0].due_at
    assert waited[:9] == [30, 60, 120, 300, 600, 1800, 3600, 3600, 3600]
    assert DAY - 3600 <= now - 1000 <= DAY
    (line,) = content.history
    assert (line.status, line.reason, line.tries) == ("given up", "connection refused", len(waited) + 1)


@pytest.mark.parametrize(("wait", "pause"), [(None, 30), (5, 30), (90, 90), (10**9, 6 * 3600), (-5, 30)])
def test_a_receiver_can_ask_for_a_longer_pause_but_not_for_ever(wait: int | None, pause: int) -> None:
    after = sent(build_state(build_notification()), DeliveryOutcome("failed", "429", wait))
    assert after.notifications[0].due_at == 1000 + pause


def test_a_failure_delays_all_notifications_of_its_receiver_only() -> None:
    many = build_state(
        build_notification(1),
        build_notification(2),
        build_notification(3, "channel:ops"),
        build_notification(4, via="mail"),
        build_notification(5, due_at=5000),
    )
    after = sent(many, DeliveryOutcome("failed", "it is down"))
    assert {notification.id: notification.due_at for notification in after.notifications} == {
        "l1": 1030,
        "l2": 1030,
        "l3": 1000,
        "l4": 1000,
        "l5": 5000,
    }
    assert [notification.id for notification in queue.list_due_notifications(after, 1030)] == [
        "l3",
        "l4",
        "l1",
        "l2",
    ]  # those first whose receiver is well
    assert [notification.tries for notification in after.notifications] == [1, 0, 0, 0, 0]


def test_giving_up_a_receiver_includes_notifications_of_the_same_age() -> None:
    many = build_state(build_notification(1), build_notification(2), build_notification(3, made=1000 + DAY))
    after = sent(many, DeliveryOutcome("failed", "it is down"), now=1000 + DAY)
    assert [entry.id for entry in after.notifications] == ["l3"]
    assert [(entry.status, entry.tries) for entry in after.history] == [("given up", 1), ("given up", 0)]


@pytest.mark.parametrize(("how", "expected_status"), [("refused", "given up"), ("unsure", "unsure")])
def test_refused_and_unsure_notifications_are_not_retried(how: str, expected_status: str) -> None:
    after = sent(build_state(build_notification()), DeliveryOutcome(how, "because"))
    assert not after.notifications
    assert (after.history[0].status, after.history[0].reason) == (expected_status, "because")


def test_a_claimed_notification_belongs_to_one_sender() -> None:
    content = queue.claim_notification(build_state(build_notification()), "l1", "me", 1000)
    assert not queue.list_due_notifications(content, 1000)
    assert queue.claim_notification(content, "l1", "you", 1001) == content
    assert queue.record_queue_outcome(content, "l1", "you", DeliveryOutcome("sent"), 1001) == content
    assert queue.find_queued_notification(content, "l1", "me")
    assert not queue.find_queued_notification(content, "l1", "you")


@pytest.mark.parametrize(
    ("claimed", "ours", "later", "is_gone"),
    [
        ("77.ab", None, 0, True),  # where all senders are ours, whoever holds the lock is the only one
        ("one 77.ab", "one ", 0, True),
        ("two 77.ab", "one ", 0, False),  # another machine's sender may live
        ("two 77.ab", "one ", 899, False),
        ("two 77.ab", "one ", 900, True),
        ("one-more 77.ab", "one ", 0, False),
    ],
)
def test_a_claim_whose_sender_is_gone_is_unsure_and_not_sent_again(
    claimed: str, ours: str | None, later: int, is_gone: bool
) -> None:
    content = build_state(build_notification(1, claimed_by=claimed, claimed_at=1000), build_notification(2))
    after = queue.write_off_lost_queue_claims(content, ours, 1000 + later)
    assert [entry.id for entry in after.notifications] == (["l2"] if is_gone else ["l1", "l2"])
    assert [entry.status for entry in after.history] == ["unsure"] * is_gone


def test_due_work_is_a_due_notification_or_a_lost_claim() -> None:
    claimed = build_notification(1, claimed_by="one 77.ab", claimed_at=1000)
    assert queue.has_due_queue_work(build_state(build_notification()), None, 1000)
    assert not queue.has_due_queue_work(build_state(build_notification(due_at=1001)), None, 1000)
    assert [queue.has_due_queue_work(build_state(claimed), None, 1000 + later) for later in (0, 119, 120)] == [
        False,
        False,
        True,
    ]
    assert [queue.has_due_queue_work(build_state(claimed), "two ", 1000 + later) for later in (120, 899, 900)] == [
        False,
        False,
        True,
    ]


@pytest.mark.slow
def test_the_history_is_bounded() -> None:
    content = build_state(*(build_notification(number, made=1000 + number) for number in range(1100)))
    for _ in range(1100):
        content = sent(content, DeliveryOutcome("sent"), now=5000)
    assert [record.alerts[0].id for record in content.history[:2]] == ["a100", "a101"]
    later = sent(content._replace(notifications=(build_notification(9),)), DeliveryOutcome("sent"), now=5000 + 90 * DAY)
    kept = apply_alert_rules(later, [], {}, AlertContext({}), Now(5000 + 90 * DAY, PARIS)).history
    assert len(kept) == 1


@given(st.lists(st.sampled_from(["sent", "failed", "refused", "unsure"]), max_size=60), st.integers(1, 6))
def test_no_notification_is_lost_or_finished_twice(hows: list[str], count: int) -> None:
    content = build_state(*(build_notification(number, f"channel:{number % 2}") for number in range(count)))
    now = 1000
    for how in hows:
        now = max(now, min((entry.due_at for entry in content.notifications), default=now))
        if content.notifications:
            content = sent(content, DeliveryOutcome(how), now=now)
    left, finished_ids = (
        [entry.alerts[0].id for entry in content.notifications],
        [entry.alerts[0].id for entry in content.history],
    )
    assert sorted(left + finished_ids) == [f"a{number}" for number in range(count)]


def test_problems_of_many_people_are_one_sentence() -> None:
    lines = tuple(
        DeliveryRecord(1000 + at, f"person:u{at}", "given up", (alert(1),), f"no way to u{at}") for at in range(4)
    )
    assert queue.describe_queue_problems(AlertState(history=lines), 2000) == [
        "notifications were given up for 4 people, the last for person u3: no way to u3"
    ]
    assert len(queue.describe_queue_problems(AlertState(history=lines[1:]), 2000)) == 3


def test_delivery_problems_are_a_sentence_for_each_receiver() -> None:
    content = build_state(build_notification(1), build_notification(2), build_notification(3, "person:alice"))
    assert queue.describe_queue_problems(content, 1000) == []
    after = sent(
        content, DeliveryOutcome("failed", "connection refused"), DeliveryOutcome("refused", "no way to alice is known")
    )
    assert queue.describe_queue_problems(after, 1000) == [
        "a notification waits for channel lab: connection refused",
        "a notification was given up for person alice: no way to alice is known",
    ]
    assert queue.describe_queue_problems(after, 1000 + DAY) == [
        "2 notifications wait for channel lab: connection refused"
    ]
    assert queue.describe_queue_problems(content, 1700) == [
        "2 notifications wait for channel lab: no process sends them",
        "a notification waits for person alice: no process sends them",
    ]


@pytest.mark.parametrize("status", ["given up", "unsure"])
def test_a_clock_that_was_set_back_keeps_no_delivery_problem_on_the_page(status: str) -> None:
    content = AlertState(history=(DeliveryRecord(1000 + 30 * DAY, "channel:lab", status, (alert(1),), "no answer"),))
    assert len(queue.describe_queue_problems(content, 2000 + 30 * DAY)) == 1
    assert queue.describe_queue_problems(content, 2000) == []
