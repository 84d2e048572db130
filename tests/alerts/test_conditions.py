"""Conditions of hosts, GPUs and bookings, and whom they affect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from site_builder.alerts.conditions import (
    LOOKBACK_S,
    MAX_CONDITIONS_PER_HOST,
    MAX_PEOPLE,
    HostConditions,
    find_conditions,
    find_health_conditions,
)
from site_builder.alerts.model import Condition
from site_builder.board.host_pipeline import find_pipeline_conditions, run_host_pipeline
from site_builder.core.model import (
    RUN_ID_PREFIX,
    Booking,
    DiscoveredHost,
    GpuBookingUse,
    HostSnapshot,
    IdleTimes,
    PrivacySettings,
    StateLimits,
)
from site_builder.core.people import PeopleDirectory
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.host_state import BuiltHostStatus, HostStatusSources
from site_builder.health.model import BEFORE_FIRST_CHECK, HealthEvent
from tests.support.generated_fleet import NOW, booking, gpu, host_data, idle_for, now, person, process, used_by

MINUTE, HOUR, DAY = 60, 3600, 86400
START = int(NOW)
HIDDEN = PrivacySettings("none", users=False)
SILENT = {"host.txt": 1200.0, "gpus.csv": 1200.0, "processes.csv": 1200.0, "ps.txt": 1200.0}


def found(
    data: HostSnapshot | None,
    *bookings: Booking,
    after: float = 0,
    idle: IdleTimes | None = None,
    known: DiscoveredHost | None = None,
    shown: PrivacySettings | None = None,
    aliases: Mapping[str, str] | None = None,
    kept: Mapping[str, GpuBookingUse] | None = None,
) -> list[Condition]:
    """All that is the matter with atlas."""
    rules = StateRules(
        StateLimits(), PeopleDirectory(aliases or {}, ("alice", "bob", "carol")), shown or PrivacySettings()
    )
    case = HostStatusSources(known or DiscoveredHost("atlas"), None, bookings, idle or IdleTimes(0, {}), kept or {})
    board = host_state.decide_host_status(case, data or HostSnapshot("atlas"), rules, now(after))
    return list(find_conditions(board, bookings, data, rules, now(after)))


def of_rule(conditions: Sequence[Condition], rule: str) -> Condition:
    """The only one of a rule."""
    (condition,) = (condition for condition in conditions if condition.rule == rule)
    return condition


def rules_of(conditions: Sequence[Condition]) -> list[str]:
    return sorted(condition.rule for condition in conditions)


# Hosts


def test_a_healthy_host_has_no_condition() -> None:
    assert found(used_by("alice")) == found(host_data()) == []


def test_a_stale_unseen_or_maintained_host_has_no_condition() -> None:
    assert found(host_data(ages={"host.txt": 300})) == found(None) == []
    assert found(host_data(ages=SILENT), known=DiscoveredHost("atlas", maintenance="new fans")) == []


@pytest.mark.parametrize("shown", [PrivacySettings(), HIDDEN])
def test_a_host_that_is_down_affects_its_users_and_who_booked_it(shown: PrivacySettings) -> None:
    data = used_by("alice", "bob", ages=SILENT)
    (condition,) = found(data, booking("carol", begins=-30, ends=30), booking("dave", begins=30, ends=40), shown=shown)
    assert (condition.rule, condition.host, condition.since) == ("host-down", "atlas", START - 1200)
    assert condition.what == "no snapshot since 11:40"
    assert condition.people == condition.owners == ("alice", "bob", "carol")


def test_a_host_without_gpu_data_has_failed() -> None:
    (condition,) = found(host_data(gpus=[]))
    assert (condition.rule, condition.what, condition.since) == ("host-failed", "nvidia-smi reported no GPU", None)


def test_people_are_called_by_a_login_under_whichever_name_they_are_known() -> None:
    data = used_by("ALICE", "asmith", "12345", ages=SILENT)
    bookings = [booking("Alice Smith", begins=-30, ends=30), booking("the vision group", begins=-30, ends=30)]
    (condition,) = found(data, *bookings, aliases={"asmith": "Alice Smith"})
    assert condition.people == ("alice", "asmith", "the vision group")


# GPUs


@pytest.mark.parametrize("shown", [PrivacySettings(), HIDDEN])
def test_a_held_gpu_affects_who_holds_it(shown: PrivacySettings) -> None:
    data = used_by("alice", "bob", gpus=[gpu(used=7000, use=0)])
    (condition,) = found(data, idle=idle_for(3 * HOUR), shown=shown)
    assert (condition.rule, condition.about, condition.gpus, condition.since) == (
        "gpu-held",
        "GPU-0",
        ("0",),
        START - 3 * HOUR,
    )
    assert condition.owners == condition.people == ("alice", "bob")
    assert ("alice" in condition.what) == shown.users


# Bookings


def test_a_booking_is_a_condition_from_a_day_before_until_an_hour_after_its_begin() -> None:
    alice_booking = booking("alice", begins=30, ends=100, id="b1")
    seen = {
        hour: rules_of(found(host_data(), alice_booking, after=hour * HOUR)) for hour in (5.9, 6.1, 29.9, 30.5, 31.1)
    }
    # nothing is heard of the host by then, which is no reason to forget whom it was promised to
    begun = {hour: "booking-begins" in rules for hour, rules in seen.items()}
    assert begun == {5.9: False, 6.1: True, 29.9: True, 30.5: True, 31.1: False}


def test_a_booking_of_several_gpus_is_one_condition_and_of_two_people_two() -> None:
    data = host_data(gpus=[gpu(0), gpu(1), gpu(2)])
    bookings = [
        booking("alice", begins=1, ends=5, gpu="0", id="b1"),
        booking("alice", begins=1, ends=5, gpu="1", id="b1"),
        booking("bob", begins=1, ends=5, gpu="2"),
    ]
    mine, his = found(data, *bookings)
    assert (mine.gpus, mine.owners, mine.since, mine.until) == (("0", "1"), ("alice",), START + HOUR, START + 5 * HOUR)
    assert (his.gpus, his.owners) == (("2",), ("bob",))
    assert mine.about != his.about
    assert not mine.is_lasting


def test_a_booking_of_the_whole_host_names_no_gpu() -> None:
    (condition,) = found(host_data(gpus=[gpu(0), gpu(1)]), booking("alice", begins=1, ends=5, gpu="*"))
    assert condition.gpus == ()


@pytest.mark.parametrize("shown", [PrivacySettings(), HIDDEN])
def test_an_extended_booking_ends_again(shown: PrivacySettings) -> None:
    here = used_by("alice")
    first = of_rule(found(here, booking("alice", begins=-2, ends=1, id="b"), shown=shown), "booking-ends")
    later = of_rule(found(here, booking("alice", begins=-2, ends=3, id="b"), shown=shown), "booking-ends")
    assert (first.until, later.until, first.owners) == (START + HOUR, START + 3 * HOUR, ("alice",))
    assert first.key != later.key
    assert first.gpus == ("0",)


def test_a_run_reservation_neither_begins_nor_ends() -> None:
    assert found(host_data(), booking("alice", begins=-2, ends=1, id=f"{RUN_ID_PREFIX}1")) == []


def test_a_booking_without_a_beginning_or_a_name_ends_all_the_same() -> None:
    condition = of_rule(found(used_by("alice"), booking("", ends=1)), "booking-ends")
    assert (condition.owners, condition.since) == ((), None)


def test_a_booking_of_a_host_that_is_down_says_so() -> None:
    condition = of_rule(found(host_data(ages=SILENT), booking("alice", begins=1, ends=5)), "booking-begins")
    assert condition.what == "atlas is down: no snapshot since 11:40"


@pytest.mark.parametrize("shown", [PrivacySettings(), HIDDEN])
def test_a_booking_that_nobody_uses_and_one_that_another_uses(shown: PrivacySettings) -> None:
    mine = booking("alice", begins=-2, ends=9, gpu="*")
    data = host_data(
        gpus=[gpu(0), gpu(1, used=7000, use=90)], processes=[process(7, "GPU-1")], ps=[person(7, "bob", elapsed=600)]
    )
    conditions = found(data, mine, shown=shown)
    unused, broken = of_rule(conditions, "booking-unused"), of_rule(conditions, "booking-broken")
    assert (unused.owners, unused.people, unused.is_lasting) == (("alice",), ("alice",), True)
    assert unused.since == START
    assert (broken.owners, broken.people, broken.since) == (("alice",), ("alice", "bob"), START - 600)
    assert ("bob" in broken.what) == shown.users
    assert broken.until == START + 9 * HOUR


def test_a_built_host_has_conditions_and_expires_when_the_next_one_is_due() -> None:
    rules = StateRules(StateLimits(), PeopleDirectory({}, ("alice",)), PrivacySettings())
    host = HostStatusSources(DiscoveredHost("atlas"), None, [booking("alice", begins=30, ends=40)], IdleTimes(0, {}))
    card, _ = run_host_pipeline(host, rules, now())
    assert card.conditions == ()
    assert card.valid_until <= NOW + 6 * HOUR
    (condition,) = run_host_pipeline(host, rules, now(6 * HOUR))[0].conditions or ()
    assert condition.rule == "booking-begins"


def test_a_booking_at_which_we_fail_costs_no_other_condition() -> None:
    rules = StateRules(StateLimits(), PeopleDirectory({}), HIDDEN)
    host = HostStatusSources(DiscoveredHost("atlas"), None, [object()], IdleTimes(0, {}))  # type: ignore[list-item]
    sources = HostStatusSources(DiscoveredHost("atlas"))
    board = host_state.decide_host_status(sources, HostSnapshot("atlas"), rules, now())
    decided = BuiltHostStatus(replace(board, state="down"))
    assert rules_of(find_pipeline_conditions(host, decided, rules, now()) or ()) == ["host-down"]


def test_a_fault_of_ours_is_not_taken_for_a_host_without_conditions() -> None:
    rules = StateRules(StateLimits(), PeopleDirectory({}), HIDDEN)
    host = HostStatusSources(DiscoveredHost("atlas"), None, [], IdleTimes(0, {}))
    decided = BuiltHostStatus(object())  # type: ignore[arg-type]
    assert find_pipeline_conditions(host, decided, rules, now()) is None  # nobody knows what is over


def test_lasting_conditions_come_before_many_bookings() -> None:
    bookings = [replace(booking("alice", begins=index / 20, ends=40), id=f"b{index}") for index in range(1, 200)]
    data = host_data(gpus=[gpu(0, used=7000, use=0)], processes=[process(0, "GPU-0")], ps=[person(0, "bob")])
    all_of_it = found(data, *bookings, idle=IdleTimes(NOW - 20, {"GPU-0": NOW - 3 * HOUR}))
    assert len(all_of_it) == MAX_CONDITIONS_PER_HOST
    assert "gpu-held" in rules_of(all_of_it)


def test_a_host_that_claims_any_number_of_gpus_leaves_room_for_others() -> None:
    gpu_indexes = range(300)
    data = host_data(
        gpus=[gpu(index, used=7000, use=0) for index in gpu_indexes],
        processes=[process(index, f"GPU-{index}") for index in gpu_indexes],
        ps=[person(index, f"user{index}") for index in gpu_indexes],
    )
    idle = IdleTimes(NOW - 20, {f"GPU-{index}": NOW - 3 * HOUR for index in gpu_indexes})
    assert len(found(data, idle=idle)) == MAX_CONDITIONS_PER_HOST
    assert len(health(*(event("lost", f"GPU-{index}") for index in gpu_indexes))) == MAX_CONDITIONS_PER_HOST
    assert len(of_rule(found(replace(data, last_seen=NOW - DAY)), "host-down").people) == MAX_PEOPLE


# Health


def event(kind: str, gpu: str = "GPU-3", **overrides: Any) -> HealthEvent:  # noqa: ANN401
    """Something that goes on since noon."""
    return HealthEvent("atlas", 7, gpu, 3, kind, (2, 5), START)._replace(**overrides)


def health(*events: HealthEvent, after: float = 60, there: Sequence[str] = ()) -> list[Condition]:
    gpus = [SimpleNamespace(uuid=uuid, parent_uuid=None) for uuid in there]
    host = SimpleNamespace(people=("alice",), summary=SimpleNamespace(gpu_identities=gpus))
    return find_health_conditions(events, {event.host: cast("HostConditions", host) for event in events}, now(after))


def test_a_gpu_that_is_lost_then_gone_is_one_condition() -> None:
    (lost,) = health(event("lost", value=("GPU is lost",)))
    (gone,) = health(event("lost", ended_at=START + 60), event("gone", began_at=START + 60, number=8))
    assert lost.key == gone.key == "gpu-lost atlas GPU-3"
    assert (lost.what, gone.what) == ("lost: the driver could not reach it: GPU is lost", "no longer in its host")
    assert (lost.gpus, lost.people, lost.since) == (("3",), ("alice",), START)


def test_a_gpu_that_sits_in_another_host_now_is_not_lost() -> None:
    assert health(event("gone"), there=["GPU-3"]) == []
    assert len(health(event("gone"), event("lost", "GPU-4"), there=["GPU-4"])) == 2


def test_hot_and_slowed_down_is_one_condition() -> None:
    (condition,) = health(event("heat", began_at=START - 60), event("hot", value=(93, 90)))
    assert (condition.rule, condition.since) == ("gpu-hot", START - 60)
    assert condition.what == "slowed by heat; too hot: up to 93 °C (limit 90 °C)"


def test_an_xid_error_is_a_condition_that_happened_and_each_is_another() -> None:
    first = event("xid-79", value=(1, "", None), ended_at=START)
    (condition,) = health(first)
    assert (condition.rule, condition.about, condition.is_lasting) == ("gpu-xid", f"GPU-3 xid-79 {START}", False)
    assert (condition.what, condition.severity) == ("Xid 79: fell off the bus", "critical")
    (longer,) = health(first._replace(ended_at=START + HOUR, value=(9, "", None)), after=HOUR)
    assert longer.key == condition.key
    later = first._replace(number=8, began_at=START + HOUR, ended_at=START + HOUR)
    assert len({found.key for found in health(first, later, after=HOUR)}) == 2


@pytest.mark.parametrize(("code", "severity"), [(48, "critical"), (63, "warning"), (998, "warning")])
def test_an_xid_error_has_the_severity_of_its_code(code: int, severity: str) -> None:
    (condition,) = health(event(f"xid-{code}", value=(1, "", None), ended_at=START))
    assert condition.severity == severity


def test_xid_errors_of_programs_of_no_gpu_and_of_the_past_are_no_condition() -> None:
    assert health(*(event(f"xid-{code}", ended_at=START) for code in (13, 31, 43, 45, 154))) == []
    assert health(event("xid-79", gpu="", ended_at=START)) == []
    assert health(event("xid-79", began_at=START - DAY, ended_at=START), after=2 * HOUR) == []


@pytest.mark.parametrize("kind", ["power", "driver", "new", "corrected", "rows_corrected", "pages_corrected"])
def test_warnings_and_infos_are_no_condition(kind: str) -> None:
    assert health(event(kind)) == health(event(kind, ended_at=START)) == []


@pytest.mark.parametrize("kind", ["uncorrected", "rows_uncorrected", "pages_uncorrected"])
def test_errors_are_a_condition_for_an_hour(kind: str) -> None:
    (condition,) = health(event(kind, ended_at=START), after=LOOKBACK_S - 60)
    assert (condition.key, condition.is_lasting) == (f"gpu-error atlas GPU-3 {kind}", False)
    assert health(event(kind, ended_at=START), after=LOOKBACK_S + 60) == []


@pytest.mark.parametrize("kind", ["recovery", "pending", "failed"])
def test_a_needed_reset_is_a_condition_until_it_is_done(kind: str) -> None:
    (condition,) = health(event(kind))
    assert (condition.rule, condition.about, condition.is_lasting) == ("gpu-error", f"GPU-3 {kind}", True)
    assert health(event(kind, ended_at=START)) == []


def test_the_key_of_a_condition_is_the_same_on_another_builder() -> None:
    (first_condition,), (second_condition,) = (
        health(event("lost")),
        health(event("lost", number=70, began_at=START + 60)),
    )
    assert first_condition.key == second_condition.key


def test_an_event_from_before_the_first_check_has_no_begin() -> None:
    (condition,) = health(event("lost", began_after=BEFORE_FIRST_CHECK))
    assert condition.since is None
    (condition,) = health(event("lost", began_at=START + 10 * DAY))
    assert condition.since == START + 60
