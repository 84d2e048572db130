"""How GPUs are worn: runs of minutes that are used, idle or empty, and promises that nobody kept."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.formatting import DAY, HOUR
from site_builder.core.records import encode_record
from site_builder.history import idle_runs
from site_builder.history.idle_runs import (
    RUN_EMPTY,
    RUN_IDLE,
    RUN_USED,
    BookedRun,
    build_fleet_gpu_key,
    find_current_idle_run,
    read_idle_history,
)
from site_builder.history.writer import HistoryWriter
from tests.support.history_fixtures import epoch, gpu, host, record, roll
from tests.support.idle_run_fixtures import known, wear, worn_by

NOON = epoch("2026-03-10T12:00")
YEAR = 365 * DAY
ALICE, BOB = gpu("busy", ["alice"], use=0), gpu("held", ["bob"], use=2)
BUSY, FREE, LOST = gpu("busy", ["alice"], use=90), gpu("free"), gpu("lost", use=None)
BOOKED, CAROLS = gpu("booked", (), ["alice"]), gpu("booked", (), ["carol"])


# Runs


def test_a_run_begins_with_its_first_minute_and_counts_all_that_follow() -> None:
    idle_run = known(NOON, lambda slot: BUSY if slot < 20 else ALICE, ALICE)
    assert (idle_run.kind, idle_run.since, idle_run.minutes, idle_run.people) == (
        RUN_IDLE,
        NOON + 20 * 60,
        40 + 60,
        ("alice",),
    )
    assert (idle_run.first_seen, idle_run.last_seen, idle_run.last_taken) == (NOON, NOON + 119 * 60, NOON + 119 * 60)


@pytest.mark.parametrize("gap", [None, LOST, gpu("unknown")])
def test_what_was_not_seen_or_is_not_clear_neither_ends_a_run_nor_counts(gap: object) -> None:
    idle_run = known(NOON, ALICE, gap, gap, ALICE)  # type: ignore[arg-type]
    assert (idle_run.kind, idle_run.since, idle_run.minutes) == (RUN_IDLE, NOON, 120)


@pytest.mark.parametrize(("other", "run"), [(BUSY, RUN_USED), (FREE, RUN_EMPTY), (BOOKED, RUN_EMPTY)])
def test_one_minute_of_something_else_ends_a_run(other: object, run: int) -> None:
    idle_run = known(NOON, ALICE, lambda slot: other if slot == 59 else ALICE)  # type: ignore[arg-type, return-value]
    assert (idle_run.kind, idle_run.since, idle_run.minutes, idle_run.people) == (run, NOON + 119 * 60, 1, ())
    assert known(NOON, ALICE, lambda slot: other if slot == 0 else ALICE).minutes == 59  # type: ignore[arg-type, return-value]


def test_use_just_below_the_limit_is_idle_and_use_at_it_is_not() -> None:
    assert known(NOON, gpu("busy", ["alice"], use=4.5)).kind == RUN_IDLE
    assert known(NOON, gpu("busy", ["alice"], use=5)).kind == RUN_USED


def test_use_that_is_not_reported_neither_ends_idleness_nor_counts_but_somebody_is_there() -> None:
    untold = gpu("busy", ["alice"], use=None)
    idle = known(NOON, ALICE, untold, ALICE)
    assert (idle.kind, idle.since, idle.minutes) == (RUN_IDLE, NOON, 120)
    assert known(NOON, FREE, untold).kind == RUN_USED
    assert known(NOON, untold).kind == RUN_USED


def test_the_next_person_does_not_inherit_idle_time() -> None:
    idle_run = known(NOON, ALICE, BOB)
    assert (idle_run.since, idle_run.minutes, idle_run.people) == (NOON + HOUR, 60, ("bob",))


@pytest.mark.parametrize("then", [["alice", "bob"], ["ALICE"], []])
def test_a_run_goes_on_for_those_who_stay_in_any_spelling_and_where_nobody_knows(then: list[str]) -> None:
    idle_run = known(NOON, ALICE, gpu("busy", then, use=0), ALICE)
    assert (idle_run.since, idle_run.minutes) == (NOON, 180)


def test_a_gpu_in_conflict_and_idle_is_idle() -> None:
    assert known(NOON, gpu("conflict", ["bob"], ["alice"], use=0)).kind == RUN_IDLE


# Moved, renamed, told twice


def test_a_gpu_that_moved_keeps_its_run() -> None:
    idle_run = known(NOON + HOUR, ALICE, before=known(NOON, ALICE), name="hydra")
    assert (idle_run.host, idle_run.since, idle_run.minutes) == ("hydra", NOON, 120)


def test_minutes_that_two_hosts_report_count_once() -> None:
    idle_run = known(NOON, FREE, before=known(NOON, FREE), name="hydra")
    assert (idle_run.host, idle_run.minutes) == ("atlas", 60)


def test_minutes_on_which_two_hosts_disagree_do_not_count() -> None:
    idle_run = known(
        NOON, lambda slot: BUSY if slot < 30 else None, before=known(NOON - HOUR, FREE, FREE), name="hydra"
    )
    assert (idle_run.kind, idle_run.since, idle_run.minutes, idle_run.last_taken) == (
        RUN_EMPTY,
        NOON + 30 * 60,
        30,
        NOON + 29 * 60,
    )


def test_a_gpu_without_a_uuid_is_known_by_its_place_on_its_host() -> None:
    assert build_fleet_gpu_key("atlas", "index 0") != build_fleet_gpu_key("hydra", "index 0")
    assert build_fleet_gpu_key("atlas", "GPU-1") == build_fleet_gpu_key("hydra", "GPU-1")


# Clocks


def test_a_clock_that_ran_a_year_ahead_leaves_the_run_as_it_was() -> None:
    before = known(NOON, ALICE, ALICE)
    ahead = known(NOON + YEAR, FREE, FREE, before=before)
    assert find_current_idle_run(ahead, NOON + 2 * HOUR) == before
    idle_run = known(NOON + 2 * HOUR, ALICE, before=ahead)
    assert (idle_run.kind, idle_run.since, idle_run.minutes) == (RUN_IDLE, NOON, 180)


def test_a_clock_that_was_a_year_behind_leaves_the_run_as_it_was() -> None:
    behind = known(NOON - YEAR, FREE, FREE, before=known(NOON, ALICE, ALICE))
    idle_run = known(NOON + 4 * HOUR, ALICE, before=behind)
    assert (idle_run.kind, idle_run.since, idle_run.minutes) == (RUN_IDLE, NOON, 180)


def test_after_a_year_without_power_a_run_goes_on() -> None:
    idle_run = known(NOON + YEAR, FREE, before=known(NOON, FREE))
    assert (idle_run.kind, idle_run.since, idle_run.minutes) == (RUN_EMPTY, NOON, 120)


def test_a_clock_that_goes_back_an_hour_counts_no_minute_twice() -> None:
    idle_run = known(NOON, ALICE, before=known(NOON, ALICE, ALICE))
    assert (idle_run.since, idle_run.minutes) == (NOON, 120)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from([ALICE, BOB, BUSY, FREE, LOST, BOOKED])), max_size=12))
def test_whatever_is_reported_in_whatever_order_no_run_has_more_minutes_than_it_lasted(
    hourly_samples: list[tuple[int, object]],
) -> None:
    idle_run = None
    for hours, sample in hourly_samples:
        idle_run, ended = worn_by(NOON + hours * HOUR, sample, before=idle_run)  # type: ignore[arg-type]
        assert all(0 < each.minutes * 60 <= each.until - each.since for each in ended)
        if idle_run:
            assert 0 <= idle_run.minutes * 60 <= idle_run.last_seen + 60 - idle_run.since
            assert idle_runs.parse_idle_run(orjson.loads(encode_record(idle_run))) == idle_run


# Promises


def test_an_unused_booking_is_reported_when_it_is_over() -> None:
    _, ended = worn_by(NOON, FREE, lambda slot: BOOKED if slot >= 15 else FREE, BOOKED, FREE)
    assert [
        (ended_booking.people, ended_booking.since, ended_booking.until, ended_booking.minutes)
        for ended_booking in ended
    ] == [(("alice",), NOON + 75 * 60, NOON + 3 * HOUR, 105)]


def test_a_running_booking_is_not_over() -> None:
    idle_run, ended = worn_by(NOON, BOOKED, BOOKED)
    assert not ended
    assert idle_run
    assert idle_run.booked_run == BookedRun(NOON, NOON + 119 * 60, 120, 0, ("alice",))


@pytest.mark.parametrize("used", [gpu("busy", ["alice"], ["alice"], use=50), gpu("conflict", ["bob"], ["alice"])])
def test_a_booking_that_was_used_for_a_minute_is_not_unused(used: object) -> None:
    _, ended = worn_by(NOON, BOOKED, lambda slot: used if slot == 7 else BOOKED, FREE)  # type: ignore[arg-type, return-value]
    assert not ended


def test_unseen_minutes_of_a_booking_do_not_count() -> None:
    _, ended = worn_by(NOON, BOOKED, None, LOST, BOOKED, FREE)
    assert [(ended_booking.since, ended_booking.until, ended_booking.minutes) for ended_booking in ended] == [
        (NOON, NOON + 4 * HOUR, 120)
    ]


def test_two_people_one_after_the_other_have_two_bookings() -> None:
    _, ended = worn_by(NOON, BOOKED, CAROLS, FREE)
    assert [(ended_booking.people, ended_booking.minutes) for ended_booking in ended] == [
        (("alice",), 60),
        (("carol",), 60),
    ]


def test_overlapping_bookings_count_no_minute_twice() -> None:
    _, ended = worn_by(NOON, BOOKED, gpu("booked", (), ["alice", "carol"]), CAROLS, FREE)
    assert [(ended_booking.people, ended_booking.minutes) for ended_booking in ended] == [(("alice", "carol"), 180)]


# In history.db


def test_idle_runs_are_written_with_the_hours_and_each_minute_once(history: HistoryWriter) -> None:
    record(history, NOON, 30, [host(ALICE)])
    roll(history, NOON + HOUR)
    record(history, NOON + 30 * 60, 60, [host(ALICE)])  # told late
    roll(history, NOON + 2 * HOUR)
    idle_history = read_idle_history(history, ["GPU-0"], 1, 0, NOON + DAY)
    assert (idle_history.runs["GPU-0"].since, idle_history.runs["GPU-0"].minutes, idle_history.first_at) == (
        NOON,
        90,
        NOON,
    )


def test_the_limit_of_idleness_is_that_of_the_settings(history: HistoryWriter) -> None:
    history.idle_percent = 30
    wear(history, NOON, 1, host(gpu("busy", ["alice"], use=29)))
    assert read_idle_history(history, ["GPU-0"], 1, 0, NOON).runs["GPU-0"].kind == RUN_IDLE


def test_only_those_that_are_asked_for_or_empty_for_long_are_read(history: HistoryWriter) -> None:
    wear(history, NOON, 1, host(gpu(index=0), gpu("busy", ["alice"], index=1, use=0)))
    wear(history, NOON, 2, host(gpu(index=2), name="hydra"))
    assert set(read_idle_history(history, ["GPU-1"], 120, 0, NOON).runs) == {"GPU-1", "GPU-2"}


def test_a_booking_that_only_a_clock_ahead_ended_goes_on(history: HistoryWriter) -> None:
    wear(history, NOON, 2, host(BOOKED))
    wear(history, NOON + YEAR, 1, host(FREE))
    assert read_idle_history(history, [], 1, 0, NOON + DAY).unused_bookings
    wear(history, NOON + 2 * HOUR, 1, host(BOOKED))
    assert not read_idle_history(history, [], 1, 0, NOON + DAY).unused_bookings
    wear(history, NOON + 3 * HOUR, 1, host(FREE))
    (unused_booking,) = read_idle_history(history, [], 1, 0, NOON + DAY).unused_bookings
    assert (unused_booking.since, unused_booking.until, unused_booking.minutes) == (NOON, NOON + 3 * HOUR, 180)


def test_unused_bookings_are_kept_for_some_weeks_and_gpus_for_two_years(history: HistoryWriter) -> None:
    record(history, NOON - 70 * DAY, 1, [host(BOOKED)])
    record(history, NOON - 70 * DAY + 60, 1, [host(FREE)])
    for day in range(40):
        record(history, NOON - 40 * DAY + day * DAY, 1, [host(FREE)])
    roll(history, NOON)
    idle_history = read_idle_history(history, ["GPU-0"], 1, 0, NOON)
    assert not idle_history.unused_bookings
    assert idle_history.runs["GPU-0"].minutes == 42


def test_a_damaged_row_costs_that_gpu_alone(history: HistoryWriter) -> None:
    wear(history, NOON, 1, host(gpu(index=0), gpu(index=1)))
    history.connect().execute("UPDATE card SET told='[1' WHERE key='GPU-0'")
    assert set(read_idle_history(history, ["GPU-0", "GPU-1"], 1, 0, NOON).runs) == {"GPU-1"}
    wear(history, NOON + HOUR, 1, host(gpu(index=0), gpu(index=1)))
    assert read_idle_history(history, ["GPU-0"], 1, 0, NOON).runs["GPU-0"].minutes == 60
    history.connect().execute("UPDATE card SET told='{\"a\": 1}' WHERE key='GPU-0'")
    assert set(read_idle_history(history, ["GPU-0", "GPU-1"], 1, 0, NOON).runs) == {"GPU-1"}
