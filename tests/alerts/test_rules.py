"""What is told and what is not: one step after the other, from matters to letters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from site_builder.alerts.config_files import DEFAULT_RULES
from site_builder.alerts.model import ALL_RULES, STEP_OVER, AlertState, Condition, TrackedCondition
from site_builder.alerts.queue import AlertContext
from site_builder.alerts.render import format_headline
from site_builder.alerts.rules import MAX_TRACKED, MAX_TRACKED_PER_HOST, explain_unreported, update_alert_state
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
    Desk,
    begins,
    down,
    ends,
    ruled,
)
from tests.support.generated_fleet import PARIS

# What is so, holds, and is over


def test_what_is_so_is_told_once_and_its_end_once() -> None:
    desk = Desk()
    assert desk.titles(down()) == ["atlas is down"]
    assert desk.titles(down()) == desk.titles(down()) == []
    assert desk.titles() == ["atlas is back, after 14 min"]
    assert desk.titles() == []
    assert desk.titles(down()) == ["atlas is down"]


def test_what_was_so_when_anybody_first_looked_is_known_but_not_told_nor_its_end() -> None:
    desk = Desk(begun=False)
    assert desk.titles(down(), LOST, HELD) == []
    assert len(desk.book.conditions) == 3
    assert all(one.is_suppressed for one in desk.book.conditions.values())
    assert desk.titles() == []
    assert desk.titles(down()) == ["atlas is down"]


def test_what_history_finds_to_be_so_before_it_began_is_not_told_for_an_hour() -> None:
    before = LOST._replace(since=None)
    desk = Desk()
    assert desk.titles(before) == desk.titles() == []
    assert desk.titles(before, after=2 * HOUR) == ["GPU 3 of atlas is lost"]  # of a host that is new


def test_a_host_that_claims_anything_leaves_room_for_others() -> None:
    desk = Desk(hosts={"atlas": ("fresh", 4), "boreas": ("fresh", 4)}, find_gpu_host=lambda _: None)
    for round_ in range(60):  # each time its GPUs have other names
        desk.look(*(LOST._replace(about=f"GPU-{round_}-{number}") for number in range(100)))
    assert len(desk.book.conditions) == MAX_TRACKED_PER_HOST
    assert "boreas is down" in desk.titles(down("boreas"), LOST._replace(host="boreas"))
    full = desk.book._replace(
        conditions={str(key): TrackedCondition(down(str(key)), START, START) for key in range(MAX_TRACKED)}
    )
    busy = Desk(book=full, begun=False)
    assert busy.titles(down()) == ["atlas is down"]


def test_a_state_must_hold_and_what_flaps_is_not_told() -> None:
    desk = Desk(ruled(delay=5 * MINUTE))
    for _ in range(10):
        assert desk.titles(down(), after=2 * MINUTE) == desk.titles() == []
    assert [desk.titles(down()) for _ in range(6)][-1] == ["atlas is down"]


def test_what_is_over_for_a_moment_is_not_over() -> None:
    desk = Desk(ruled(resolve_after=5 * MINUTE))
    assert desk.titles(down()) == ["atlas is down"]
    for _ in range(5):
        assert desk.titles(after=4 * MINUTE) == desk.titles(down()) == []
    assert [desk.titles() for _ in range(6)][-1] == ["atlas is back, after 37 min"]


def test_the_end_is_not_told_where_the_rule_says_so() -> None:
    desk = Desk(ruled(send_resolved=False))
    assert desk.titles(down()) == ["atlas is down"]
    assert desk.titles() == []
    assert not desk.book.conditions


def test_a_rule_that_is_off_tells_nothing() -> None:
    assert Desk(ruled(on=False)).titles(down()) == []


def test_the_same_book_comes_out_where_nothing_is_new() -> None:
    desk = Desk()
    desk.look(down())
    for after in (1, 60, 86400):
        now = Now(desk.at + after, PARIS)
        assert update_alert_state(desk.book, [down()], desk.rules, desk.scene, now) is desk.book


def test_what_is_said_of_something_that_nobody_is_told_of_yet_changes_no_book() -> None:
    desk = Desk(ruled("gpu-held", delay=HOUR), begun=False)
    desk.look(LOST)
    desk.look(LOST, HELD)
    before = desk.book
    desk.look(LOST._replace(what="lost, and hot"), HELD._replace(what="8 GiB taken"))
    assert desk.book == before
    (letter,) = desk.look(LOST, HELD._replace(what="9 GiB taken"), after=HOUR)
    assert letter.alerts[0].what == "9 GiB taken"


# What nobody can know


@pytest.mark.parametrize("state", ["stale", "down", "failed", "maintenance"])
def test_what_a_gpu_was_is_not_over_because_nothing_is_heard_of_its_host(state: str) -> None:
    desk = Desk()
    assert len(desk.titles(HELD, LOST)) == 2
    desk.state("atlas", state)
    assert [desk.titles() for _ in range(60)] == [[]] * 60
    desk.state("atlas", "fresh")
    assert len(desk.titles()) == 2


def test_a_host_that_is_down_is_not_back_while_it_is_stale() -> None:
    desk = Desk()
    desk.look(down())
    desk.state("atlas", "stale")
    assert desk.titles() == []
    desk.state("atlas", "fresh")
    assert desk.titles() == ["atlas is back, after 13 min"]


def test_where_history_cannot_be_read_no_gpu_is_well_again() -> None:
    desk = Desk()
    assert desk.titles(LOST) == ["GPU 3 of atlas is lost"]
    scene = desk.scene
    desk.scene = scene._replace(unreadable_rules=frozenset({"gpu-lost"}))
    assert desk.titles() == []
    desk.scene = scene
    assert desk.titles() == ["GPU 3 of atlas is back, after 3 min"]


def test_a_gpu_that_is_gone_is_back_only_where_its_host_has_it_again() -> None:
    desk = Desk(find_gpu_host={"GPU-7": "atlas"}.get)
    assert desk.titles(LOST) == ["GPU 3 of atlas is lost"]
    assert desk.titles() == desk.titles() == []  # another builder, which never saw it
    desk.scene = desk.scene._replace(find_gpu_host={"GPU-3": "atlas"}.get)
    assert desk.titles() == ["GPU 3 of atlas is back, after 4 min"]
    assert desk.titles(LOST) == ["GPU 3 of atlas is lost"]
    desk.scene = desk.scene._replace(find_gpu_host={"GPU-3": "boreas"}.get)
    assert desk.titles() == []
    assert not desk.book.conditions


def test_a_host_at_which_we_fail_is_not_back() -> None:
    desk = Desk()
    assert desk.titles(down(), HELD._replace(until=None)) != []
    desk.scene = desk.scene._replace(failed_hosts=frozenset({"atlas"}))
    assert desk.titles() == desk.titles() == []
    desk.scene = desk.scene._replace(failed_hosts=frozenset())
    assert "atlas is back, after 14 min" in desk.titles()


def test_what_begins_anew_after_nothing_was_heard_must_hold_anew() -> None:
    unused = HELD._replace(rule="booking-unused", since=START)
    desk = Desk(ruled("booking-unused", delay=HOUR))
    desk.look(unused)
    desk.state("atlas", "down")
    desk.look(after=2 * HOUR)
    desk.state("atlas", "fresh")
    again = unused._replace(since=desk.at + MINUTE)
    assert desk.titles(again) == desk.titles(again, after=59 * MINUTE) == []
    assert len(desk.titles(again)) == 1


def test_a_booking_that_was_made_longer_is_still_no_longer_broken() -> None:
    broken = HELD._replace(rule="booking-broken", until=START + HOUR)
    desk = Desk()
    assert len(desk.titles(broken)) == 1
    assert desk.titles(broken._replace(until=START + 4 * HOUR)) == []
    assert desk.titles(after=2 * HOUR) == ["alice: your booking of atlas:0 is no longer broken, after 2 h 2 min"]


def test_a_host_that_is_no_longer_shown_is_not_back() -> None:
    desk = Desk()
    desk.look(down())
    desk.scene = desk.scene._replace(hosts={"boreas": ("fresh", 8)})
    assert desk.titles(down()) == desk.titles() == []
    assert not desk.book.conditions


# Maintenance and silence


def test_a_host_in_maintenance_is_quiet_and_what_began_meanwhile_is_told_afterwards() -> None:
    desk = Desk()
    desk.state("atlas", "maintenance")
    assert desk.titles(LOST, begins(START + 10 * MINUTE)) == []
    desk.state("atlas", "fresh")
    assert desk.titles(LOST) == ["GPU 3 of atlas is lost"]
    assert desk.alerts[0].since == LOST.since


def test_what_is_over_before_a_silence_ends_is_not_told() -> None:
    desk = Desk()
    desk.book = desk.book._replace(silences={"atlas": desk.at + 10 * MINUTE})
    assert desk.titles(down(), down("boreas")) == ["boreas is down"]
    assert desk.titles(down("boreas")) == []
    assert desk.titles(down("boreas"), after=HOUR) == []
    assert not desk.book.silences


def test_an_end_waits_for_the_end_of_a_silence() -> None:
    desk = Desk()
    desk.look(down())
    desk.book = desk.book._replace(silences={"atlas": desk.at + 10 * MINUTE})
    assert desk.titles() == desk.titles() == []
    assert desk.titles(after=HOUR) == ["atlas is back, after 12 min"]


def test_a_silence_holds_back_what_waits_for_the_morning() -> None:
    desk = Desk(ruled(quiet_hours=NIGHT))
    desk.look(down(), after=11 * HOUR)
    assert len(desk.book.notifications) == 1
    desk.book = desk.book._replace(silences={"atlas": desk.at + 12 * HOUR})
    assert desk.titles(down()) == desk.titles(down(), after=9 * HOUR) == []
    assert desk.book.notifications == ()
    assert desk.titles(down(), after=4 * HOUR) == ["atlas is down"]
    assert len(desk.titles()) == 1


def test_maintenance_holds_back_what_waits_for_the_morning() -> None:
    desk = Desk(ruled(quiet_hours=NIGHT))
    desk.look(down(), after=11 * HOUR)
    desk.state("atlas", "maintenance")
    assert desk.titles() == desk.titles(after=9 * HOUR) == []
    desk.state("atlas", "fresh")
    assert desk.titles() == []
    assert desk.book.conditions == {}


def test_a_silence_keeps_no_reminder_from_whom_it_is_for() -> None:
    desk = Desk()
    desk.book = desk.book._replace(silences={"atlas": desk.at + 10 * HOUR})
    watch = Condition(
        "watch", "atlas", "w1", ("0",), "atlas:0 is free; you waited", owners=("alice",), is_lasting=False
    )
    assert desk.titles(watch, ends(START + 10 * MINUTE)) == [
        "alice: atlas:0 is free",
        "alice: your booking of atlas:0,1 ends at 12:10",
    ]


# Bookings and what happens


def test_a_booking_that_begins_is_told_when_it_does_and_not_before() -> None:
    desk, at = Desk(), START + 30 * MINUTE
    assert [desk.titles(begins(at)) for _ in range(29)] == [[]] * 29
    assert desk.titles(begins(at), after=2 * MINUTE) == ["alice: your booking of atlas:0,1 has begun"]
    assert [desk.titles(begins(at)) for _ in range(29)] == [[]] * 29


def test_a_booking_is_announced_as_long_ahead_as_the_rule_says() -> None:
    desk, at = Desk(ruled("booking-begins", before=15 * MINUTE)), START + 30 * MINUTE
    told = [title for _ in range(40) for title in desk.titles(begins(at))]
    assert told == ["alice: your booking of atlas:0,1 begins at 12:30"]


@pytest.mark.parametrize("ahead", [-60, 0, 30, 240])
def test_whoever_books_from_now_on_is_not_told_that_it_begins(ahead: int) -> None:
    desk = Desk()
    desk.look(begins(desk.at + ahead))
    assert [desk.titles(begins(START + ahead)) for _ in range(20)] == [[]] * 20


def test_a_booking_that_ends_is_told_ahead_and_again_if_it_was_made_longer() -> None:
    desk, at = Desk(), START + HOUR
    told = [title for _ in range(31) for title in desk.titles(ends(at))]
    assert told == ["alice: your booking of atlas:0,1 ends at 13:00"]
    longer = at + HOUR
    told = [title for _ in range(80) for title in desk.titles(ends(longer, at - 4 * HOUR))]
    assert told == ["alice: your booking of atlas:0,1 ends at 14:00"]


def test_of_a_short_booking_half_is_over_before_its_end_is_told() -> None:
    desk, at = Desk(), START + 20 * MINUTE
    told = [(minute, title) for minute in range(20) for title in desk.titles(ends(at, START))]
    assert told == [(9, "alice: your booking of atlas:0,1 ends at 12:20")]


def test_errors_that_go_on_are_told_once_and_again_after_hours_without_any() -> None:
    error = Condition(
        "gpu-error", "atlas", "GPU-3 uncorrected", ("3",), "uncorrected ECC errors: 2 more", is_lasting=False
    )
    desk = Desk()
    assert desk.titles(error) == ["GPU 3 of atlas has an error"]
    assert [desk.titles(error, after=10 * MINUTE) for _ in range(200)] == [[]] * 200
    assert desk.titles(after=2 * HOUR) == desk.titles(error) == []
    assert desk.titles(after=7 * HOUR) == []
    assert desk.titles(error) == ["GPU 3 of atlas has an error"]


def test_a_new_host_is_told_once_and_not_those_that_were_there() -> None:
    desk = Desk()
    desk.state("hydra", "unseen")
    assert desk.titles() == ["hydra is new on the board"]
    assert desk.alerts[0].what == "it has 4 GPUs"
    there = desk.scene
    desk.scene = there._replace(hosts=FRESH)
    assert desk.titles() == []
    desk.scene = there
    assert desk.titles(after=30 * DAY) == desk.titles(after=300 * DAY) == []


def test_a_watch_fires_once_also_if_it_comes_true_on_another_host_and_at_the_first_look() -> None:
    watch = Condition(
        "watch", "atlas", "w1", ("0",), "atlas:0 is free; you waited for it", owners=("alice",), is_lasting=False
    )
    desk = Desk(begun=False)
    (letter,) = desk.look(watch._replace(via="mail"))
    assert (letter.to, letter.via) == ("person:alice", "mail")
    assert desk.look(watch._replace(host="boreas")) == []


# Clocks


def test_a_clock_that_was_set_back_neither_repeats_nor_keeps_anything() -> None:
    desk = Desk(ruled(delay=5 * MINUTE, quiet_hours=NIGHT))
    desk.look(after=11 * HOUR)
    desk.look(down())
    desk.look(down(), after=10 * MINUTE)
    assert len(desk.book.notifications) == 1
    assert desk.titles(down(), after=-400 * DAY - 11 * HOUR) == ["atlas is down"]
    assert [desk.titles(down()) for _ in range(10)] == [[]] * 10
    assert desk.titles(down(), down("boreas")) == []
    assert desk.titles(down(), down("boreas"), after=5 * MINUTE) == ["boreas is down"]


def test_a_clock_that_jumps_ahead_makes_no_host_new() -> None:
    desk = Desk()
    assert desk.titles(after=1000 * DAY) == []
    assert desk.titles(after=-1000 * DAY) == []


# Words


def test_why_something_is_not_told_is_said() -> None:
    desk = Desk(ruled(delay=5 * MINUTE), begun=False)
    desk.look(LOST)
    desk.state("boreas", "maintenance")
    desk.look(LOST, down(), down("boreas"), begins(START + HOUR))
    said = {
        one.condition.key: explain_unreported(one, desk.rules, desk.book.silences, desk.scene, Now(desk.at + 60, PARIS))
        for one in desk.book.conditions.values()
    }
    assert list(said.values()) == [
        "it was so before anybody looked",
        "it is told at 12:06, if it is still so",
        "boreas is under maintenance",
        "its time is 13:00",
    ]


def test_every_rule_has_a_title_for_one_and_for_several() -> None:
    for rule in ALL_RULES:
        desk = Desk(
            {
                rule: DEFAULT_RULES[rule]._replace(
                    on=True, delay=0, resolve_after=0, send_resolved=True, to=("all", "person")
                )
            }
        )
        lasting = rule not in {"host-new", "watch", "weekly-report", "booking-begins", "booking-ends"}
        several = [
            Condition(rule, host, "x", ("1",), "so it is", START - DAY, ("alice",), ("alice",), lasting)._replace(
                until=START + 3 if rule == "booking-ends" else None
            )
            for host in FRESH
        ]
        if rule == "booking-begins":
            several = [one._replace(since=START + HOUR) for one in several]
        if rule == "host-new":
            several = []
            desk.scene = desk.scene._replace(hosts={**FRESH, "hydra": ("fresh", 1), "ixion": ("fresh", 1)})
        told = [*desk.look(*several, after=2), *desk.look(*several, after=HOUR), *desk.look()]
        assert told, rule
        for letter in told:
            for one in (*(alert.title for alert in letter.alerts), format_headline(letter.alerts)):
                assert 5 < len(one) <= 200
                assert "the matter" not in one, rule
        assert not lasting or any(one.step == STEP_OVER for letter in told for one in letter.alerts)


# Whatever happens


@settings(deadline=None, max_examples=100)
@given(looks=st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=40), hold=st.integers(0, 3600))
def test_nothing_is_told_that_did_not_hold(looks: list[tuple[int, bool]], hold: int) -> None:
    desk = Desk(ruled(delay=hold, resolve_after=hold))
    since: int | None = None
    gone: int | None = None
    is_told = False
    for after, so in looks:
        told = desk.titles(*([down()] if so else []), after=after)
        since, gone = (since or desk.at, None) if so else (None, gone or desk.at)
        must = since is not None and not is_told and desk.at - since >= hold
        end = gone is not None and is_told and desk.at - gone >= hold
        assert len(told) == (must or end)
        is_told = must or (is_told and not end)


def test_a_scene_without_anybody_to_tell_is_remembered_all_the_same() -> None:
    now = Now(START, PARIS)
    book = update_alert_state(AlertState(), [down()], AT_ONCE, AlertContext(FRESH, PARIS), now)
    assert (book.started_at, len(book.conditions), book.notifications) == (START, 1, ())
