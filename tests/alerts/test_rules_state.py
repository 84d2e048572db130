"""Rules: which conditions are reported, build after build."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.alerts.model import ALL_RULES, STEP_OVER, AlertContext, AlertState, Condition, TrackedCondition
from site_builder.alerts.render import format_notification_headline
from site_builder.alerts.rules import DEFAULT_RULES, MAX_TRACKED, MAX_TRACKED_PER_HOST, apply_alert_rules
from site_builder.alerts.table import list_condition_table_statuses
from site_builder.core.clock import Now
from tests.support.alert_fixtures import (
    AT_ONCE,
    DAY,
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

# What is so, holds, and is over


def test_a_condition_is_reported_once_and_its_end_once() -> None:
    simulator = AlertSimulator()
    assert simulator.titles(down()) == ["atlas is down"]
    assert simulator.titles(down()) == simulator.titles(down()) == []
    assert simulator.titles() == ["atlas is back, after 14 min"]
    assert simulator.titles() == []
    assert simulator.titles(down()) == ["atlas is down"]


def test_conditions_at_first_start_are_not_reported_nor_their_end() -> None:
    simulator = AlertSimulator(begun=False)
    assert simulator.titles(down(), LOST, HELD) == []
    assert len(simulator.alert_state.conditions) == 3
    assert all(tracked_condition.is_suppressed for tracked_condition in simulator.alert_state.conditions.values())
    assert simulator.titles() == []
    assert simulator.titles(down()) == ["atlas is down"]


def test_conditions_older_than_history_are_not_reported_for_an_hour() -> None:
    before = LOST._replace(since=None)
    simulator = AlertSimulator()
    assert simulator.titles(before) == simulator.titles() == []
    assert simulator.titles(before, after=2 * HOUR) == ["GPU 3 of atlas is lost"]  # of a host that is new


def test_a_host_that_claims_anything_leaves_room_for_others() -> None:
    simulator = AlertSimulator(hosts={"atlas": ("fresh", 4), "boreas": ("fresh", 4)}, find_gpu_host=lambda _: None)
    for round_ in range(60):  # each time its GPUs have other names
        simulator.run_build(*(LOST._replace(about=f"GPU-{round_}-{number}") for number in range(100)))
    assert len(simulator.alert_state.conditions) == MAX_TRACKED_PER_HOST
    assert "boreas is down" in simulator.titles(down("boreas"), LOST._replace(host="boreas"))
    full = simulator.alert_state._replace(
        conditions={str(key): TrackedCondition(down(str(key)), START, START) for key in range(MAX_TRACKED)}
    )
    busy = AlertSimulator(alert_state=full, begun=False)
    assert busy.titles(down()) == ["atlas is down"]


def test_a_condition_must_last_and_flapping_is_not_reported() -> None:
    simulator = AlertSimulator(ruled(delay=5 * MINUTE))
    for _ in range(10):
        assert simulator.titles(down(), after=2 * MINUTE) == simulator.titles() == []
    assert [simulator.titles(down()) for _ in range(6)][-1] == ["atlas is down"]


def test_a_short_recovery_is_not_an_end() -> None:
    simulator = AlertSimulator(ruled(resolve_after=5 * MINUTE))
    assert simulator.titles(down()) == ["atlas is down"]
    for _ in range(5):
        assert simulator.titles(after=4 * MINUTE) == simulator.titles(down()) == []
    assert [simulator.titles() for _ in range(6)][-1] == ["atlas is back, after 37 min"]


def test_the_end_is_not_reported_without_recovery() -> None:
    simulator = AlertSimulator(ruled(send_resolved=False))
    assert simulator.titles(down()) == ["atlas is down"]
    assert simulator.titles() == []
    assert not simulator.alert_state.conditions


def test_a_rule_that_is_off_reports_nothing() -> None:
    assert AlertSimulator(ruled(on=False)).titles(down()) == []


def test_an_unchanged_state_is_the_same_object() -> None:
    simulator = AlertSimulator()
    simulator.run_build(down())
    for after in (1, 60, 86400):
        now = Now(simulator.at + after, PARIS)
        assert (
            apply_alert_rules(simulator.alert_state, [down()], simulator.rules, simulator.context, now)
            is simulator.alert_state
        )


def test_a_changing_text_before_the_report_changes_no_state() -> None:
    simulator = AlertSimulator(ruled("gpu-held", delay=HOUR), begun=False)
    simulator.run_build(LOST)
    simulator.run_build(LOST, HELD)
    before = simulator.alert_state
    simulator.run_build(LOST._replace(what="lost, and hot"), HELD._replace(what="8 GiB taken"))
    assert simulator.alert_state == before
    (notification,) = simulator.run_build(LOST, HELD._replace(what="9 GiB taken"), after=HOUR)
    assert notification.alerts[0].what == "9 GiB taken"


# What nobody can know


@pytest.mark.parametrize("state", ["stale", "down", "failed", "maintenance"])
def test_gpu_conditions_are_not_over_because_their_host_is_silent(state: str) -> None:
    simulator = AlertSimulator()
    assert len(simulator.titles(HELD, LOST)) == 2
    simulator.state("atlas", state)
    assert [simulator.titles() for _ in range(60)] == [[]] * 60
    simulator.state("atlas", "fresh")
    assert len(simulator.titles()) == 2


def test_a_host_that_is_down_is_not_back_while_it_is_stale() -> None:
    simulator = AlertSimulator()
    simulator.run_build(down())
    simulator.state("atlas", "stale")
    assert simulator.titles() == []
    simulator.state("atlas", "fresh")
    assert simulator.titles() == ["atlas is back, after 13 min"]


def test_where_history_cannot_be_read_no_gpu_is_well_again() -> None:
    simulator = AlertSimulator()
    assert simulator.titles(LOST) == ["GPU 3 of atlas is lost"]
    context = simulator.context
    simulator.context = context._replace(unreadable_rules=frozenset({"gpu-lost"}))
    assert simulator.titles() == []
    simulator.context = context
    assert simulator.titles() == ["GPU 3 of atlas is back, after 3 min"]


def test_a_gone_gpu_is_back_only_when_its_host_has_it_again() -> None:
    simulator = AlertSimulator(find_gpu_host={"GPU-7": "atlas"}.get)
    assert simulator.titles(LOST) == ["GPU 3 of atlas is lost"]
    assert simulator.titles() == simulator.titles() == []  # another builder, which never saw it
    simulator.context = simulator.context._replace(find_gpu_host={"GPU-3": "atlas"}.get)
    assert simulator.titles() == ["GPU 3 of atlas is back, after 4 min"]
    assert simulator.titles(LOST) == ["GPU 3 of atlas is lost"]
    simulator.context = simulator.context._replace(find_gpu_host={"GPU-3": "boreas"}.get)
    assert simulator.titles() == []
    assert not simulator.alert_state.conditions


def test_a_host_at_which_we_fail_is_not_back() -> None:
    simulator = AlertSimulator()
    assert simulator.titles(down(), HELD._replace(until=None)) != []
    simulator.context = simulator.context._replace(failed_hosts=frozenset({"atlas"}))
    assert simulator.titles() == simulator.titles() == []
    simulator.context = simulator.context._replace(failed_hosts=frozenset())
    assert "atlas is back, after 14 min" in simulator.titles()


def test_a_condition_that_begins_again_after_silence_must_last_again() -> None:
    unused = HELD._replace(rule="booking-unused", since=START)
    simulator = AlertSimulator(ruled("booking-unused", delay=HOUR))
    simulator.run_build(unused)
    simulator.state("atlas", "down")
    simulator.run_build(after=2 * HOUR)
    simulator.state("atlas", "fresh")
    again = unused._replace(since=simulator.at + MINUTE)
    assert simulator.titles(again) == simulator.titles(again, after=59 * MINUTE) == []
    assert len(simulator.titles(again)) == 1


def test_a_booking_that_was_made_longer_is_still_no_longer_broken() -> None:
    broken = HELD._replace(rule="booking-broken", until=START + HOUR)
    simulator = AlertSimulator()
    assert len(simulator.titles(broken)) == 1
    assert simulator.titles(broken._replace(until=START + 4 * HOUR)) == []
    assert simulator.titles(after=2 * HOUR) == [
        "alice: your booking of atlas:0 is no longer in conflict, after 2 h 2 min"
    ]


def test_a_host_that_is_no_longer_shown_is_not_back() -> None:
    simulator = AlertSimulator()
    simulator.run_build(down())
    simulator.context = simulator.context._replace(hosts={"boreas": ("fresh", 8)})
    assert simulator.titles(down()) == simulator.titles() == []
    assert not simulator.alert_state.conditions


# Maintenance and silence


def test_conditions_that_begin_in_maintenance_are_reported_after_it() -> None:
    simulator = AlertSimulator()
    simulator.state("atlas", "maintenance")
    assert simulator.titles(LOST, begins(START + 10 * MINUTE)) == []
    simulator.state("atlas", "fresh")
    assert simulator.titles(LOST) == ["GPU 3 of atlas is lost"]
    assert simulator.alerts[0].since == LOST.since


def test_conditions_that_end_during_a_silence_are_not_reported() -> None:
    simulator = AlertSimulator()
    simulator.alert_state = simulator.alert_state._replace(silences={"atlas": simulator.at + 10 * MINUTE})
    assert simulator.titles(down(), down("boreas")) == ["boreas is down"]
    assert simulator.titles(down("boreas")) == []
    assert simulator.titles(down("boreas"), after=HOUR) == []
    assert not simulator.alert_state.silences


def test_an_end_waits_for_the_end_of_a_silence() -> None:
    simulator = AlertSimulator()
    simulator.run_build(down())
    simulator.alert_state = simulator.alert_state._replace(silences={"atlas": simulator.at + 10 * MINUTE})
    assert simulator.titles() == simulator.titles() == []
    assert simulator.titles(after=HOUR) == ["atlas is back, after 12 min"]


def test_a_silence_withdraws_notifications_in_quiet_hours() -> None:
    simulator = AlertSimulator(ruled(quiet_hours=NIGHT))
    simulator.run_build(down(), after=11 * HOUR)
    assert len(simulator.alert_state.notifications) == 1
    simulator.alert_state = simulator.alert_state._replace(silences={"atlas": simulator.at + 12 * HOUR})
    assert simulator.titles(down()) == simulator.titles(down(), after=9 * HOUR) == []
    assert simulator.alert_state.notifications == ()
    assert simulator.titles(down(), after=4 * HOUR) == ["atlas is down"]
    assert len(simulator.titles()) == 1


def test_maintenance_withdraws_notifications_in_quiet_hours() -> None:
    simulator = AlertSimulator(ruled(quiet_hours=NIGHT))
    simulator.run_build(down(), after=11 * HOUR)
    simulator.state("atlas", "maintenance")
    assert simulator.titles() == simulator.titles(after=9 * HOUR) == []
    simulator.state("atlas", "fresh")
    assert simulator.titles() == []
    assert simulator.alert_state.conditions == {}


def test_a_silence_does_not_stop_reminders() -> None:
    simulator = AlertSimulator()
    simulator.alert_state = simulator.alert_state._replace(silences={"atlas": simulator.at + 10 * HOUR})
    watch = Condition(
        "watch", "atlas", "w1", ("0",), "atlas:0 is free; you waited", owners=("alice",), is_lasting=False
    )
    assert simulator.titles(watch, ends(START + 10 * MINUTE)) == [
        "alice: atlas:0 is free",
        "alice: your booking of atlas:0,1 ends at 12:10",
    ]


# Bookings and what happens


def test_the_begin_of_a_booking_is_reported_when_it_begins() -> None:
    simulator, at = AlertSimulator(), START + 30 * MINUTE
    assert [simulator.titles(begins(at)) for _ in range(29)] == [[]] * 29
    assert simulator.titles(begins(at), after=2 * MINUTE) == ["alice: your booking of atlas:0,1 has begun"]
    assert [simulator.titles(begins(at)) for _ in range(29)] == [[]] * 29


def test_a_booking_is_announced_as_long_ahead_as_the_rule_says() -> None:
    simulator, at = AlertSimulator(ruled("booking-begins", before=15 * MINUTE)), START + 30 * MINUTE
    alert_titles = [title for _ in range(40) for title in simulator.titles(begins(at))]
    assert alert_titles == ["alice: your booking of atlas:0,1 begins at 12:30"]


@pytest.mark.parametrize("ahead", [-60, 0, 30, 240])
def test_a_booking_from_now_on_reports_no_begin(ahead: int) -> None:
    simulator = AlertSimulator()
    simulator.run_build(begins(simulator.at + ahead))
    assert [simulator.titles(begins(START + ahead)) for _ in range(20)] == [[]] * 20


def test_the_end_of_a_booking_is_reported_ahead_and_again_if_extended() -> None:
    simulator, at = AlertSimulator(), START + HOUR
    alert_titles = [title for _ in range(31) for title in simulator.titles(ends(at))]
    assert alert_titles == ["alice: your booking of atlas:0,1 ends at 13:00"]
    longer = at + HOUR
    alert_titles = [title for _ in range(80) for title in simulator.titles(ends(longer, at - 4 * HOUR))]
    assert alert_titles == ["alice: your booking of atlas:0,1 ends at 14:00"]


def test_the_end_of_a_short_booking_is_reported_after_half_of_it() -> None:
    simulator, at = AlertSimulator(), START + 20 * MINUTE
    timed_titles = [(minute, title) for minute in range(20) for title in simulator.titles(ends(at, START))]
    assert timed_titles == [(9, "alice: your booking of atlas:0,1 ends at 12:20")]


def test_repeated_errors_are_reported_once_and_again_after_hours() -> None:
    error = Condition(
        "gpu-error", "atlas", "GPU-3 uncorrected", ("3",), "uncorrected ECC errors: 2 more", is_lasting=False
    )
    simulator = AlertSimulator()
    assert simulator.titles(error) == ["GPU 3 of atlas has an error"]
    assert [simulator.titles(error, after=10 * MINUTE) for _ in range(200)] == [[]] * 200
    assert simulator.titles(after=2 * HOUR) == simulator.titles(error) == []
    assert simulator.titles(after=7 * HOUR) == []
    assert simulator.titles(error) == ["GPU 3 of atlas has an error"]


XID = Condition(
    "gpu-xid", "atlas", f"GPU-3 xid-79 {START}", ("3",), "Xid 79: fell off the bus", is_lasting=False
)._replace(event_severity="critical")


def test_each_xid_error_is_reported_once() -> None:
    simulator = AlertSimulator()
    assert simulator.titles(XID) == ["GPU 3 of atlas has an Xid error"]
    assert (simulator.alerts[0].what, simulator.alerts[0].severity) == ("Xid 79: fell off the bus", "critical")
    assert [simulator.titles(XID, after=10 * MINUTE) for _ in range(144)] == [[]] * 144
    assert simulator.titles(after=HOUR) == []  # its end is no news
    assert simulator.titles(XID._replace(about=f"GPU-3 xid-79 {START + DAY}")) == ["GPU 3 of atlas has an Xid error"]


def test_xid_errors_before_the_first_start_are_not_reported() -> None:
    simulator = AlertSimulator(begun=False)
    assert simulator.titles(XID) == simulator.titles(XID) == []


def test_several_errors_of_a_gpu_are_one_gpu_in_the_headline() -> None:
    simulator = AlertSimulator()
    contained = XID._replace(about=f"GPU-3 xid-48 {START}")
    (notification,) = simulator.run_build(XID, contained)
    assert len(notification.alerts) == 2
    assert format_notification_headline(notification.alerts) == "GPU 3 of atlas has an Xid error"
    fourth = XID._replace(about=f"GPU-4 xid-79 {START}", gpus=("4",))
    later = contained._replace(about=f"GPU-3 xid-48 {START + DAY}")
    (notification,) = simulator.run_build(later, fourth, later._replace(about=f"GPU-3 xid-95 {START + DAY}"))
    assert format_notification_headline(notification.alerts) == "2 GPUs of atlas have an Xid error: 3, 4"


def test_only_new_hosts_are_reported_and_once() -> None:
    simulator = AlertSimulator()
    simulator.state("hydra", "unseen")
    assert simulator.titles() == ["hydra is new on the board"]
    assert simulator.alerts[0].what == "it has 4 GPUs"
    there = simulator.context
    simulator.context = there._replace(hosts=FRESH)
    assert simulator.titles() == []
    simulator.context = there
    assert simulator.titles(after=30 * DAY) == simulator.titles(after=300 * DAY) == []


def test_a_watch_fires_once_also_if_it_comes_true_on_another_host_and_at_the_first_look() -> None:
    watch = Condition(
        "watch", "atlas", "w1", ("0",), "atlas:0 is free; you waited for it", owners=("alice",), is_lasting=False
    )
    simulator = AlertSimulator(begun=False)
    (notification,) = simulator.run_build(watch._replace(via="mail"))
    assert (notification.to, notification.via) == ("person:alice", "mail")
    assert simulator.run_build(watch._replace(host="boreas")) == []


# Clocks


def test_a_clock_that_was_set_back_neither_repeats_nor_keeps_anything() -> None:
    simulator = AlertSimulator(ruled(delay=5 * MINUTE, quiet_hours=NIGHT))
    simulator.run_build(after=11 * HOUR)
    simulator.run_build(down())
    simulator.run_build(down(), after=10 * MINUTE)
    assert len(simulator.alert_state.notifications) == 1
    assert simulator.titles(down(), after=-400 * DAY - 11 * HOUR) == ["atlas is down"]
    assert [simulator.titles(down()) for _ in range(10)] == [[]] * 10
    assert simulator.titles(down(), down("boreas")) == []
    assert simulator.titles(down(), down("boreas"), after=5 * MINUTE) == ["boreas is down"]


def test_a_clock_that_jumps_ahead_makes_no_host_new() -> None:
    simulator = AlertSimulator()
    assert simulator.titles(after=1000 * DAY) == []
    assert simulator.titles(after=-1000 * DAY) == []


# Words


def test_unreported_conditions_are_explained() -> None:
    simulator = AlertSimulator(ruled(delay=5 * MINUTE), begun=False)
    simulator.run_build(LOST)
    simulator.state("boreas", "maintenance")
    simulator.run_build(LOST, down(), down("boreas"), begins(START + HOUR))
    statuses = list_condition_table_statuses(
        simulator.alert_state, simulator.rules, simulator.context, Now(simulator.at + 60, PARIS)
    )
    explanations = {status.tracked.condition.key: (status.state, status.reason) for status in statuses}
    assert [explanations[key] for key in simulator.alert_state.conditions] == [
        ("unreported", "it existed at first start"),
        ("unreported", "it will be reported at 12:06 if it still exists"),
        ("unreported", "boreas is under maintenance"),
        ("upcoming", ""),
    ]


def test_every_rule_has_a_title_for_one_and_for_several() -> None:
    for rule in ALL_RULES:
        simulator = AlertSimulator(
            {
                rule: DEFAULT_RULES[rule]._replace(
                    on=True, delay=0, resolve_after=0, send_resolved=True, to=("all", "person")
                )
            }
        )
        lasting = rule not in {"host-new", "watch", "weekly-report", "booking-begins", "booking-ends"}
        conditions = [
            Condition(rule, host, "x", ("1",), "so it is", START - DAY, ("alice",), ("alice",), lasting)._replace(
                until=START + 3 if rule == "booking-ends" else None
            )
            for host in FRESH
        ]
        if rule == "booking-begins":
            conditions = [entry._replace(since=START + HOUR) for entry in conditions]
        if rule == "host-new":
            conditions = []
            simulator.context = simulator.context._replace(
                hosts={**FRESH, "hydra": ("fresh", 1), "ixion": ("fresh", 1)}
            )
        notifications = [
            *simulator.run_build(*conditions, after=2),
            *simulator.run_build(*conditions, after=HOUR),
            *simulator.run_build(),
        ]
        assert notifications, rule
        for notification in notifications:
            for entry in (
                *(alert.title for alert in notification.alerts),
                format_notification_headline(notification.alerts),
            ):
                assert 5 < len(entry) <= 200
                assert "the matter" not in entry, rule
        assert not lasting or any(
            entry.step == STEP_OVER for notification in notifications for entry in notification.alerts
        )


# Whatever happens


@examples(100)
@given(looks=st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=40), hold=st.integers(0, 3600))
def test_only_conditions_that_lasted_are_reported(looks: list[tuple[int, bool]], hold: int) -> None:
    simulator = AlertSimulator(ruled(delay=hold, resolve_after=hold))
    since: int | None = None
    gone: int | None = None
    is_told = False
    for after, so in looks:
        alert_titles = simulator.titles(*([down()] if so else []), after=after)
        since, gone = (since or simulator.at, None) if so else (None, gone or simulator.at)
        must = since is not None and not is_told and simulator.at - since >= hold
        end = gone is not None and is_told and simulator.at - gone >= hold
        assert len(alert_titles) == (must or end)
        is_told = must or (is_told and not end)


def test_conditions_without_receivers_are_remembered() -> None:
    now = Now(START, PARIS)
    alert_state = apply_alert_rules(AlertState(), [down()], AT_ONCE, AlertContext(FRESH), now)
    assert (alert_state.started_at, len(alert_state.conditions), alert_state.notifications) == (START, 1, ())
