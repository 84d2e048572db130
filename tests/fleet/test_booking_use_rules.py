"""Which bookings count, which of their repeats are shown, and what is remembered of their use, rule by rule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from site_builder.core.faults import FAULT_NOTE
from site_builder.core.model import (
    Booking,
    DiscoveredHost,
    GpuBookingUse,
    GpuStatus,
    HostSnapshot,
    PrivacySettings,
    Problem,
    StateLimits,
)
from site_builder.core.people import PeopleDirectory
from site_builder.fleet import host_state
from site_builder.fleet.booking_use import (
    MAX_BOOKINGS_PER_HOST,
    build_failed_booking_problem,
    build_fleet_booking_statuses,
    find_gpu_bookings,
    group_fleet_bookings_by_host,
    list_current_bookers,
    list_fleet_booking_times,
)
from site_builder.fleet.gpu_state import StateRules
from tests.support.generated_fleet import NOON, NOW, PARIS, booking, gpu, host_data, now, used_by

PLACE = "data/comments.json"
TODAY = datetime(2026, 11, 16, tzinfo=PARIS)


# Hosts


def test_bookings_stand_under_the_name_of_their_host_in_any_case() -> None:
    first, second = booking("alice"), booking("bob", host="ATLAS")
    assert group_fleet_bookings_by_host([first, second], ["atlas", "zeus"], now()) == ({"atlas": [first, second]}, [])


def test_500_bookings_of_a_host_count_and_more_are_a_problem() -> None:
    bookings = [booking(id=str(number)) for number in range(MAX_BOOKINGS_PER_HOST + 1)]
    grouped, problems = group_fleet_bookings_by_host(bookings[:-1], ["atlas"], now())
    assert (grouped["atlas"], problems) == (bookings[:-1], [])
    grouped, problems = group_fleet_bookings_by_host(bookings, ["atlas"], now())
    assert grouped["atlas"] == bookings[:-1]
    assert problems == [Problem(PLACE, "atlas has more than 500 bookings; the rest is ignored")]


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("atlsa", "no host atlsa; did you mean Atlas?"),
        ("quux", "no host quux"),
        ("x" * 90, f"no host {'x' * 80}"),
    ],
)
def test_a_booking_of_a_host_that_does_not_exist_is_a_problem_with_a_hint(host: str, what: str) -> None:
    assert group_fleet_bookings_by_host([booking(host=host)], ["Atlas", "zeus"], now()) == ({}, [Problem(PLACE, what)])


def test_an_old_booking_of_a_host_that_does_not_exist_is_no_problem() -> None:
    gone = booking(host="quux", begins=-60, ends=-48)
    assert group_fleet_bookings_by_host([gone], ["atlas"], now()) == ({}, [])
    for late in (booking(host="quux", begins=-60, ends=-47.9), booking(host="quux", ends=-48, rrule="FREQ=DAILY")):
        assert len(group_fleet_bookings_by_host([late], ["atlas"], now())[1]) == 1


def test_only_the_first_twenty_problems_have_a_hint() -> None:
    _, problems = group_fleet_bookings_by_host([booking(host=f"atlas{n}") for n in range(21)], ["atlas"], now())
    assert ["did you mean atlas?" in problem.what for problem in problems] == [True] * 20 + [False]


@pytest.mark.parametrize(
    ("failed", "what"),
    [
        (booking("alice"), "atlas, GPU 0: the booking of alice is ignored"),
        (booking("", gpu="*"), "atlas, all GPUs: the booking of nobody is ignored"),
        (
            booking("n" * 90, host="h" * 90, gpu="g" * 90),
            f"{'h' * 80}, GPU {'g' * 80}: the booking of {'n' * 80} is ignored",
        ),
    ],
)
def test_a_booking_that_fails_is_named(failed: Booking, what: str) -> None:
    assert build_failed_booking_problem(failed, "here") == Problem(PLACE, f"{what}: {FAULT_NOTE} (here)")


# What is shown


@pytest.mark.parametrize(("key", "is_its"), [("*", True), ("0", True), ("GPU-0", True), ("gpu-0", True), ("1", False)])
def test_a_booking_is_one_of_a_gpu_by_its_number_its_uuid_or_the_whole_host(key: str, is_its: bool) -> None:
    booked = booking(gpu=key)
    assert find_gpu_bookings([booked], gpu()) == ([booked] if is_its else [])


@pytest.mark.parametrize(("users", "expected"), [(True, ("alice", "a thesis", "k7m2xp")), (False, (None, None, None))])
def test_who_booked_and_why_is_shown_with_the_users_alone(users: bool, expected: tuple[str | None, ...]) -> None:
    shown = booking("alice", comment="a thesis", id="k7m2xp")
    (status,) = build_fleet_booking_statuses([shown], PrivacySettings(users=users), now())
    assert (status.name, status.comment, status.id) == expected


@pytest.mark.parametrize(
    ("gpu_key", "whole_gpu", "whole_host"),
    [("0", True, False), ("GPU-0", True, False), ("*", False, True), ("MIG-a", False, False)],
)
def test_a_booking_of_an_instance_may_be_one_of_its_gpu_or_host(
    gpu_key: str, whole_gpu: bool, whole_host: bool
) -> None:
    (status,) = build_fleet_booking_statuses([booking(gpu=gpu_key)], PrivacySettings(), now(), gpu())
    assert (status.is_whole_gpu, status.is_whole_host) == (whole_gpu, whole_host)


def test_current_bookings_come_first_then_the_next_and_those_that_ended() -> None:
    ended, late, soon, current = booking(begins=-3, ends=-1), booking(begins=5), booking(begins=3), booking(ends=1)
    statuses = build_fleet_booking_statuses([ended, late, soon, current], PrivacySettings(), now())
    assert [status.since for status in statuses] == [None, soon.since, late.since, ended.since]
    assert [status.phase for status in statuses] == ["now", "coming", "coming", "ended"]


@pytest.mark.parametrize(("ends", "count"), [(-47.9, 1), (-48, 0)])
def test_a_booking_is_shown_for_two_days_after_its_end(ends: float, count: int) -> None:
    assert len(build_fleet_booking_statuses([booking(ends=ends)], PrivacySettings(), now())) == count


def test_bookers_are_those_of_now() -> None:
    bookings = [booking("alice"), booking("bob", begins=1), booking("carol", ends=0), booking("alice", begins=0)]
    assert list_current_bookers(bookings, now()) == ["alice", "alice"]


# Repeats


def times_of(begins: timedelta, length: timedelta, rrule: str = "FREQ=DAILY") -> list[datetime | None]:
    since = TODAY + begins
    repeated = Booking("atlas", "0", "alice", until=since + length, since=since, rrule=rrule)
    times = list_fleet_booking_times(repeated, now())
    assert {until - start for start, until in times if start} == {length}
    return [start for start, _ in times]


def test_what_repeats_is_listed_from_three_days_ago_to_two_weeks_ahead() -> None:
    times = times_of(timedelta(days=-100, hours=9), timedelta(hours=1))
    assert (times[0], times[-1]) == (TODAY + timedelta(days=-3, hours=9), TODAY + timedelta(days=14, hours=9))


def test_a_long_repeat_that_began_earlier_is_listed_until_it_has_ended() -> None:
    times = times_of(timedelta(days=-99), timedelta(days=4), "FREQ=WEEKLY")
    assert times[0] == TODAY - timedelta(days=1)
    times = times_of(timedelta(days=-98), timedelta(days=7), "FREQ=WEEKLY")
    assert times[0] == TODAY - timedelta(days=7)


def test_of_many_repeats_thirty_before_and_thirty_from_today_are_listed() -> None:
    times = times_of(timedelta(days=-100), timedelta(days=60))
    assert (times[0], times[29], times[30]) == (
        TODAY - timedelta(days=30),
        TODAY - timedelta(days=1),
        TODAY,
    )
    assert times[-1] == TODAY + timedelta(days=14)


@pytest.mark.parametrize(("days", "repeats"), [(366, True), (367, False)])
def test_what_lasts_longer_than_a_year_does_not_repeat(days: int, repeats: bool) -> None:
    times = times_of(timedelta(days=-800), timedelta(days=days), "FREQ=MONTHLY")
    assert (len(times) > 1) is repeats
    assert (times == [TODAY - timedelta(days=800)]) is not repeats


def test_a_rule_that_cannot_be_counts_once() -> None:
    assert times_of(timedelta(hours=9), timedelta(hours=1), "FREQ=DAILY;UNTIL=20261132T000000Z") == [
        TODAY + timedelta(hours=9)
    ]


# Use


def check_use(
    data: HostSnapshot, *bookings: Booking, before: Mapping[str, Any] | None = None, users: bool = True
) -> GpuStatus:
    """Decide a host whose GPU was remembered so."""
    remembered: dict[str, Any] = {
        "checked_at": int(NOW) - 100,
        "empty_since": None,
        "others_since": {},
        "use_by_booking": {},
    }
    uses = {} if before is None else {"GPU-0": GpuBookingUse(**{**remembered, **before})}
    sources = host_state.HostStatusSources(DiscoveredHost("atlas"), bookings=bookings, booking_uses=uses)
    rules = StateRules(StateLimits(), PeopleDirectory({}, ["alice", "bob"]), PrivacySettings(users=users))
    (gpu_status,) = host_state.decide_host_status(sources, data, rules, now()).gpus
    return gpu_status


def use_of(gpu_status: GpuStatus) -> GpuBookingUse:
    assert gpu_status.booking_use is not None
    return gpu_status.booking_use


@pytest.mark.parametrize("users", [True, False])
def test_the_use_of_a_booking_is_remembered_by_its_start_and_name_whoever_may_see_them(users: bool) -> None:
    since = int((NOON - timedelta(hours=1)).timestamp())
    status = check_use(used_by("alice"), booking("alice"), booking("bob", begins=-1), booking(""), users=users)
    unused = (int(NOW), 0.0, 0.0)
    assert use_of(status).use_by_booking == {" alice": unused, f"{since} bob": unused, " ": unused}


def test_the_mean_use_of_a_booking_has_a_decimal() -> None:
    before = {"use_by_booking": {" alice": (int(NOW) - 299, 299.0, 1000.0)}}
    status = check_use(used_by("alice"), booking("alice"), before=before)
    assert use_of(status).use_by_booking == {" alice": (int(NOW) - 299, 399.0, 10_000.0)}
    assert [item.mean_use for item in status.bookings] == [25.1]


def test_the_time_while_a_host_was_silent_does_not_count() -> None:
    before = {"checked_at": int(NOW) - 601, "use_by_booking": {" alice": (int(NOW) - 900, 299.0, 1000.0)}}
    status = check_use(used_by("alice"), booking("alice"), before=before)
    assert use_of(status).use_by_booking == {" alice": (int(NOW) - 900, 299.0, 1000.0)}
    assert [item.mean_use for item in status.bookings] == [None]


def test_a_snapshot_older_than_the_last_counts_no_time_and_turns_no_clock_back() -> None:
    before = {"checked_at": int(NOW) + 50, "use_by_booking": {" alice": (int(NOW) - 400, 400.0, 400.0)}}
    use = use_of(check_use(used_by("alice"), booking("alice"), before=before))
    assert (use.checked_at, use.use_by_booking) == (int(NOW) + 50, {" alice": (int(NOW) - 400, 400.0, 400.0)})


@pytest.mark.parametrize(("claimed", "counted"), [(250, 100), (None, 0)])
def test_no_claim_of_a_host_counts_more_than_full_use(claimed: float | None, counted: float) -> None:
    before = {"use_by_booking": {" alice": (int(NOW) - 400, 400.0, 0.0)}}
    use = use_of(check_use(used_by("alice", gpus=[gpu(used=7000, use=claimed)]), booking("alice"), before=before))
    assert use.use_by_booking[" alice"][2] == counted * 100


def test_others_are_remembered_of_a_conflict_alone() -> None:
    others = use_of(check_use(used_by("bob"), booking("alice"))).others_since
    assert others == {"bob": int(NOW) - 3600}
    lost = check_use(used_by("bob", gpus=[gpu(used=7000, lost="GPU is lost")]), booking("alice"))
    assert (lost.state, use_of(lost).others_since) == ("lost", {})


def test_an_unused_booking_is_unused_since_it_was_first_seen_so() -> None:
    assert use_of(check_use(host_data(), booking("alice"))).empty_since == int(NOW)
    before = {"empty_since": int(NOW) - 70}
    status = check_use(host_data(), booking("alice", begins=-1), before=before)
    assert (use_of(status).empty_since, status.bookings[0].unused_since) == (int(NOW) - 70, int(NOW) - 70)
    late = check_use(host_data(), booking("alice", begins=-0.01), before=before)
    assert late.bookings[0].unused_since == int(NOW) - 36


# When a GPU is free again


def free_again(*bookings: Booking) -> float | None:
    end = check_use(used_by("alice"), *bookings).free_again
    return None if end is None else (end - NOW) / 3600


@pytest.mark.parametrize(
    ("bookings", "expected"),
    [
        ([booking("alice", ends=2)], 2),
        ([booking("alice", ends=2), booking("bob", begins=3, ends=5)], 5),
        ([booking("alice", ends=2), booking("bob", begins=3.01, ends=5)], 2),
        ([booking("alice", ends=9), booking("bob", begins=3, ends=5)], 9),
        ([booking("alice", ends=2), booking("bob", begins=2, ends=4), booking("bob", begins=5, ends=6)], 6),
        ([booking("alice", begins=-1, ends=2, rrule="FREQ=DAILY")], 2),
        ([booking("alice", begins=-12, ends=12, rrule="FREQ=DAILY")], None),
        # what ends an hour before the midnight until which repeats are listed, by the clock of the board
        ([booking("alice", begins=-1, ends=15 * 24 - 13, rrule="FREQ=MONTHLY")], None),
        ([booking("alice", begins=-1, ends=15 * 24 - 14, rrule="FREQ=MONTHLY")], 15 * 24 - 14),
        ([booking("alice", begins=-1, ends=15 * 24 - 13)], 15 * 24 - 13),
    ],
)
def test_a_gpu_is_free_again_after_the_last_of_the_bookings_that_follow_each_other(
    bookings: list[Booking], expected: float | None
) -> None:
    assert free_again(*bookings) == expected
