"""The states held and conflict of a GPU."""

from __future__ import annotations

import pytest

from site_builder.core.model import (
    GpuProcessRow,
    IdleTimes,
    StateLimits,
)
from site_builder.core.people import PeopleDirectory
from site_builder.fleet.summary import summarize_host
from tests.support.generated_fleet import (
    NOW,
    booking,
    decide,
    gpu,
    host_data,
    idle_for,
    only_gpu,
    reason,
    state,
    used_by,
)
from tests.support.gpu_state_fixtures import IDLE_USE, held_by

# Held


@pytest.mark.parametrize(("seconds", "expected"), [(7199.9, "busy"), (7200, "held")])
def test_a_gpu_is_held_after_two_hours_of_idling(seconds: float, expected: str) -> None:
    assert state(held_by("bob"), idle=idle_for(seconds)) == expected


@pytest.mark.parametrize(("use", "expected"), [(4.9, "held"), (5, "busy"), (None, "busy")])
def test_idle_is_a_known_use_below_5_percent(use: float | None, expected: str) -> None:
    assert state(used_by("bob", gpus=[gpu(used=7000, use=use)]), idle=idle_for(9000)) == expected


def test_the_limits_of_idling_are_settings() -> None:
    data = used_by("bob", gpus=[gpu(used=7000, use=9)])
    assert state(data, idle=idle_for(60), limits=StateLimits(idle_percent=10, held_after=60)) == "held"


def test_memory_that_no_process_explains_can_be_held() -> None:
    state_reason = reason(host_data([gpu(used=7000)]), idle=idle_for(9000))
    assert state_reason == "held: 6.8 GiB taken, idle since 09:30"


def test_idling_begins_when_it_was_first_seen() -> None:
    assert only_gpu(held_by("bob")).idle_since == NOW
    assert only_gpu(used_by("bob", gpus=IDLE_USE, ages={"gpus.csv": 15})).idle_since == NOW - 15


def test_idling_goes_on_from_when_it_was_first_seen() -> None:
    assert only_gpu(held_by("bob"), idle=idle_for(3000)).idle_since == NOW - 3000


@pytest.mark.parametrize(("gap", "expected"), [(600, "held"), (600.1, "busy")])
def test_after_a_gap_in_looking_idling_begins_anew(gap: float, expected: str) -> None:
    assert state(held_by("bob"), idle=idle_for(9000, looked=gap)) == expected


def test_use_ends_idling() -> None:
    assert only_gpu(used_by("bob"), idle=idle_for(9000)).idle_since is None


def test_an_empty_gpu_is_not_idle() -> None:
    assert only_gpu(host_data(), idle=idle_for(9000)).idle_since is None


def test_a_host_that_is_not_fresh_keeps_since_when_its_gpus_idle() -> None:
    gpu_status = only_gpu(used_by("bob", gpus=IDLE_USE, ages={"host.txt": 300}), idle=idle_for(3000))
    assert (gpu_status.state, gpu_status.idle_since) == ("unknown", NOW - 3000)


def test_a_gpu_without_a_uuid_idles_by_its_number() -> None:
    data = host_data([gpu(used=7000, uuid=None)])
    assert state(data, idle=idle_for(9000, key="index 0")) == "held"


def test_what_the_next_build_needs_to_know_of_idling_is_summed_up() -> None:
    board = decide(held_by("bob"), idle=idle_for(3000))
    assert summarize_host(board, NOW).idle_times == IdleTimes(NOW, {"GPU-0": NOW - 3000})


def test_a_host_that_is_not_fresh_leaves_what_is_remembered_of_idling() -> None:
    board = decide(used_by("bob", gpus=IDLE_USE, ages={"host.txt": 300}), idle=idle_for(3000))
    assert summarize_host(board, NOW).idle_times is None


# Conflict


THOMAS = {"tjones": "Thomas", "jones": "Thomas", "thomas": "Thomas"}


@pytest.mark.parametrize("booker", ["jones", "TJones", "thomas", "Thomas ", "THOMAS"])
def test_a_person_who_booked_under_any_of_their_names_may_use_it(booker: str) -> None:
    assert state(used_by("tjones"), booking(booker), aliases=THOMAS) == "busy"


@pytest.mark.parametrize("booker", ["jones", "TJones", "thomas"])
def test_another_user_is_a_conflict_under_any_name_of_a_person(booker: str) -> None:
    state_reason = reason(used_by("bob"), booking(booker), aliases=THOMAS)
    assert state_reason == "conflict: booked by Thomas, used by bob"


def test_a_user_is_named_as_aliases_say() -> None:
    assert reason(used_by("jones"), booking("bob"), aliases=THOMAS) == "conflict: booked by bob, used by Thomas"


def test_case_makes_no_other_person() -> None:
    assert state(used_by("Alice"), booking("aLICE")) == "busy"


def test_who_is_on_it_beside_the_booker_is_a_conflict() -> None:
    assert reason(used_by("alice", "bob"), booking("alice")) == "conflict: booked by alice, used by bob"


def test_a_login_that_was_never_seen_before_is_a_login() -> None:
    assert state(used_by("zoe"), booking("alice")) == "conflict"


@pytest.mark.parametrize("booker", ["the vision team", "zoe", ""])
def test_a_booking_under_a_name_that_is_no_login_gives_no_verdict(booker: str) -> None:
    assert state(used_by("bob"), booking(booker)) == "busy"


@pytest.mark.parametrize("user", ["1000", None])
def test_a_user_who_is_only_a_number_gives_no_verdict(user: str | None) -> None:
    assert state(used_by(user), booking("alice")) == "busy"


def test_memory_that_no_process_explains_gives_no_verdict() -> None:
    assert state(host_data([gpu(used=7000, use=90)]), booking("alice")) == "busy"


@pytest.mark.parametrize("begins_ends", [(1, 2), (-3, -1)])
def test_a_booking_of_another_time_is_no_conflict(begins_ends: tuple[float, float]) -> None:
    assert state(used_by("bob"), booking("alice", *begins_ends)) == "busy"


def test_a_name_that_ps_cut_is_the_only_person_whose_name_begins_so() -> None:
    logins = ["alexander", "alice"]
    assert state(used_by("alexande+"), booking("alexander"), logins=logins) == "busy"
    assert state(used_by("alexande+"), booking("alice"), logins=logins) == "conflict"


def test_a_name_that_ps_cut_and_that_may_be_two_people_gives_no_verdict() -> None:
    assert state(used_by("alexande+"), booking("alice"), logins=["alexander", "alexandee", "alice"]) == "busy"


def test_a_name_that_ps_cut_and_that_nobody_has_gives_no_verdict() -> None:
    assert state(used_by("alexande+"), booking("alice")) == "busy"


def test_a_name_that_ps_cut_is_looked_for_among_all_names_of_a_person() -> None:
    aliases = {"alexandre.dupont": "Alex", "alex": "Alex"}
    assert state(used_by("alexand+"), booking("Alex"), aliases=aliases) == "busy"
    assert state(used_by("alexand+"), booking("alice"), aliases=aliases) == "conflict"


def test_a_name_to_show_does_not_hide_that_a_cut_name_may_be_two_people() -> None:
    aliases = {"alexandre": "Alex", "alex": "Alex"}
    logins = ["alexandra", "alexandre", "alice"]
    assert state(used_by("alexand+"), booking("alice"), aliases=aliases, logins=logins) == "busy"


def test_a_verdict_on_a_cut_name_is_the_same_at_the_next_build() -> None:
    logins = ["alexander", "alice"]
    first = decide(used_by("alexande+"), [booking("alice")], logins=logins)
    again = decide(used_by("alexande+"), [booking("alice")], logins=[*logins, *first.logins])
    assert [gpu_status.state for gpu_status in (*first.gpus, *again.gpus)] == ["conflict", "conflict"]


def test_cut_names_that_were_once_learned_are_no_people() -> None:
    assert not PeopleDirectory({}, ["alexande+", "1000"]).known_people


def test_either_of_two_bookers_of_the_same_gpu_may_use_it() -> None:
    both = booking("alice"), booking("bob")
    assert state(used_by("bob"), *both) == state(used_by("alice"), *both) == "busy"
    assert reason(used_by("carol"), *both) == "conflict: booked by alice and bob, used by carol"


def test_an_unknown_second_booker_gives_no_conflict() -> None:
    assert state(used_by("carol"), booking("alice"), booking("a guest")) == "busy"


def test_who_booked_twice_is_named_once() -> None:
    twice = booking("alice"), booking("alice", gpu="*", ends=3)
    assert reason(used_by("bob"), *twice) == "conflict: booked by alice, used by bob"
    assert reason(host_data(), *twice) == "booked: booked by alice until 15:00, not in use"


@pytest.mark.parametrize("key", ["*", "0", "GPU-0", "gpu-0"])
def test_a_booking_of_the_host_the_number_or_the_uuid_is_one_of_the_gpu(key: str) -> None:
    assert state(used_by("bob"), booking("alice", gpu=key)) == "conflict"


@pytest.mark.parametrize("key", ["1", "GPU-1", "None", ""])
def test_a_booking_of_another_gpu_is_none_of_this_one(key: str) -> None:
    assert state(used_by("bob"), booking("alice", gpu=key)) == "busy"


def test_a_held_gpu_whose_memory_nobody_reports_has_memory_taken() -> None:
    data = used_by(
        "alice",
        gpus=[gpu(used=None, use=0, memory_total=None)],
        processes=[GpuProcessRow("GPU-0", 42, None, "python")],
    )
    assert reason(data, idle=idle_for(9000)) == "held: memory taken by alice, idle since 09:30"
