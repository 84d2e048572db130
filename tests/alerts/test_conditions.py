"""What is the matter with hosts, GPUs and bookings, whom it concerns, and what history says of their health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from site_builder.alerts.conditions import MOST, MOST_PEOPLE, Parts, matters
from site_builder.alerts.health_conditions import LOOKED_BACK, health_matters
from site_builder.alerts.model import Matter
from site_builder.board.host_pipeline import make
from site_builder.client.model import RUN
from site_builder.core.model import Booking, HostData, Idle, KeptGpu, KnownHost, Limits, Shown
from site_builder.core.people import People
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import Rules
from site_builder.fleet.host_view import Host, matters_of
from site_builder.health.model import BEFORE, Event
from tests.support.generated_fleet import NOW, booking, gpu, host_data, idle_for, now, person, process, used_by

MINUTE, HOUR, DAY = 60, 3600, 86400
START = int(NOW)
HIDDEN = Shown("none", users=False)
SILENT = {"host.txt": 1200.0, "gpus.csv": 1200.0, "processes.csv": 1200.0, "ps.txt": 1200.0}


def found(
    data: HostData | None,
    *bookings: Booking,
    after: float = 0,
    idle: Idle | None = None,
    known: KnownHost | None = None,
    shown: Shown | None = None,
    aliases: Mapping[str, str] | None = None,
    kept: Mapping[str, KeptGpu] | None = None,
) -> list[Matter]:
    """All that is the matter with atlas."""
    rules = Rules(Limits(), People(aliases or {}, ("alice", "bob", "carol")), shown or Shown())
    case = host_state.Case(known or KnownHost("atlas"), data, bookings, idle or Idle(0, {}), {}, kept or {})
    board = host_state.host(case, rules, now(after))
    return list(matters(board, Parts(bookings, lambda: data), rules, now(after)))


def of_rule(several: Sequence[Matter], rule: str) -> Matter:
    """The only one of a rule."""
    (one,) = (one for one in several if one.rule == rule)
    return one


def rules_of(several: Sequence[Matter]) -> list[str]:
    return sorted(one.rule for one in several)


# Hosts


def test_nothing_is_the_matter_with_a_host_that_is_well() -> None:
    assert found(used_by("alice")) == found(host_data()) == []


def test_a_host_that_is_stale_unseen_or_in_maintenance_is_no_matter() -> None:
    assert found(host_data(ages={"host.txt": 300})) == found(None) == []
    assert found(host_data(ages=SILENT), known=KnownHost("atlas", maintenance="new fans")) == []


@pytest.mark.parametrize("shown", [Shown(), HIDDEN])
def test_a_host_that_is_down_concerns_who_was_on_it_and_who_has_booked_it(shown: Shown) -> None:
    data = used_by("alice", "bob", ages=SILENT)
    (one,) = found(data, booking("carol", begins=-30, ends=30), booking("dave", begins=30, ends=40), shown=shown)
    assert (one.rule, one.host, one.since) == ("host-down", "atlas", START - 1200)
    assert one.what == "no snapshot since 11:40"
    assert one.people == one.whose == ("alice", "bob", "carol")


def test_a_host_that_tells_no_gpu_has_failed() -> None:
    (one,) = found(host_data(gpus=[]))
    assert (one.rule, one.what, one.since) == ("host-failed", "nvidia-smi told no GPU", None)


def test_people_are_called_by_a_login_under_whichever_name_they_are_known() -> None:
    data = used_by("ALICE", "asmith", "12345", ages=SILENT)
    several = [booking("Alice Smith", begins=-30, ends=30), booking("the vision group", begins=-30, ends=30)]
    (one,) = found(data, *several, aliases={"asmith": "Alice Smith"})
    assert one.people == ("alice", "asmith", "the vision group")


# GPUs


@pytest.mark.parametrize("shown", [Shown(), HIDDEN])
def test_a_gpu_that_is_held_concerns_who_holds_it(shown: Shown) -> None:
    data = used_by("alice", "bob", gpus=[gpu(used=7000, use=0)])
    (one,) = found(data, idle=idle_for(3 * HOUR), shown=shown)
    assert (one.rule, one.about, one.gpus, one.since) == ("gpu-held", "GPU-0", ("0",), START - 3 * HOUR)
    assert one.whose == one.people == ("alice", "bob")
    assert ("alice" in one.what) == shown.users


# Bookings


def test_a_booking_is_a_matter_from_a_day_before_it_begins_until_an_hour_after() -> None:
    one = booking("alice", begins=30, ends=100, id="b1")
    seen = {hour: rules_of(found(host_data(), one, after=hour * HOUR)) for hour in (5.9, 6.1, 29.9, 30.5, 31.1)}
    # nothing is heard of the host by then, which is no reason to forget whom it was promised to
    begun = {hour: "booking-begins" in rules for hour, rules in seen.items()}
    assert begun == {5.9: False, 6.1: True, 29.9: True, 30.5: True, 31.1: False}


def test_one_booking_of_several_gpus_is_one_and_of_two_people_two() -> None:
    data = host_data(gpus=[gpu(0), gpu(1), gpu(2)])
    several = [
        booking("alice", begins=1, ends=5, gpu="0", id="b1"),
        booking("alice", begins=1, ends=5, gpu="1", id="b1"),
        booking("bob", begins=1, ends=5, gpu="2"),
    ]
    mine, his = found(data, *several)
    assert (mine.gpus, mine.whose, mine.since, mine.until) == (("0", "1"), ("alice",), START + HOUR, START + 5 * HOUR)
    assert (his.gpus, his.whose) == (("2",), ("bob",))
    assert mine.about != his.about
    assert not mine.lasting


def test_a_booking_of_the_whole_host_names_no_gpu() -> None:
    (one,) = found(host_data(gpus=[gpu(0), gpu(1)]), booking("alice", begins=1, ends=5, gpu="*"))
    assert one.gpus == ()


@pytest.mark.parametrize("shown", [Shown(), HIDDEN])
def test_a_booking_that_ends_is_another_matter_when_it_is_made_longer(shown: Shown) -> None:
    here = used_by("alice")
    first = of_rule(found(here, booking("alice", begins=-2, ends=1, id="b"), shown=shown), "booking-ends")
    later = of_rule(found(here, booking("alice", begins=-2, ends=3, id="b"), shown=shown), "booking-ends")
    assert (first.until, later.until, first.whose) == (START + HOUR, START + 3 * HOUR, ("alice",))
    assert first.key != later.key
    assert first.gpus == ("0",)


def test_what_a_run_books_for_itself_is_no_news() -> None:
    assert found(host_data(), booking("alice", begins=-2, ends=1, id=f"{RUN}1")) == []


def test_a_booking_without_a_beginning_or_a_name_ends_all_the_same() -> None:
    one = of_rule(found(used_by("alice"), booking("", ends=1)), "booking-ends")
    assert (one.whose, one.since) == ((), None)


def test_a_booking_of_a_host_that_is_down_says_so() -> None:
    one = of_rule(found(host_data(ages=SILENT), booking("alice", begins=1, ends=5)), "booking-begins")
    assert one.what == "atlas is down: no snapshot since 11:40"


@pytest.mark.parametrize("shown", [Shown(), HIDDEN])
def test_a_booking_that_nobody_uses_and_one_that_another_uses(shown: Shown) -> None:
    mine = booking("alice", begins=-2, ends=9, gpu="*")
    data = host_data(
        gpus=[gpu(0), gpu(1, used=7000, use=90)], processes=[process(7, "GPU-1")], ps=[person(7, "bob", elapsed=600)]
    )
    several = found(data, mine, shown=shown)
    unused, broken = of_rule(several, "booking-unused"), of_rule(several, "booking-broken")
    assert (unused.whose, unused.people, unused.lasting) == (("alice",), ("alice",), True)
    assert unused.since == START
    assert (broken.whose, broken.people, broken.since) == (("alice",), ("alice", "bob"), START - 600)
    assert ("bob" in broken.what) == shown.users
    assert broken.until == START + 9 * HOUR


def test_a_card_has_the_matters_of_its_host_and_holds_until_one_more_comes() -> None:
    rules = Rules(Limits(), People({}, ("alice",)), Shown())
    host = Host(KnownHost("atlas"), None, [booking("alice", begins=30, ends=40)], Idle(0, {}))
    card = make(host, rules, {}, now())
    assert card.matters == ()
    assert card.holds_until <= NOW + 6 * HOUR
    (one,) = make(host, rules, {}, now(6 * HOUR)).matters or ()
    assert one.rule == "booking-begins"


def test_a_booking_at_which_we_fail_costs_no_other_condition() -> None:
    rules = Rules(Limits(), People({}), HIDDEN)
    host = Host(KnownHost("atlas"), None, [object()], Idle(0, {}))  # type: ignore[list-item]
    board = host_state.host(host_state.Case(KnownHost("atlas"), None, [], Idle(0, {}), {}), rules, now())
    assert rules_of(matters_of(host, replace(board, state="down"), rules, now()) or ()) == ["host-down"]


def test_a_fault_of_ours_is_not_taken_for_a_host_without_conditions() -> None:
    rules = Rules(Limits(), People({}), HIDDEN)
    host = Host(KnownHost("atlas"), None, [], Idle(0, {}))
    assert matters_of(host, object(), rules, now()) is None  # type: ignore[arg-type] # nobody knows what is over


def test_what_lasts_is_not_over_because_of_many_bookings_that_come() -> None:
    several = [replace(booking("alice", begins=index / 20, ends=40), id=f"b{index}") for index in range(1, 200)]
    data = host_data(gpus=[gpu(0, used=7000, use=0)], processes=[process(0, "GPU-0")], ps=[person(0, "bob")])
    all_of_it = found(data, *several, idle=Idle(NOW - 20, {"GPU-0": NOW - 3 * HOUR}))
    assert len(all_of_it) == MOST
    assert "gpu-held" in rules_of(all_of_it)


def test_a_host_that_claims_any_number_of_gpus_leaves_room_for_others() -> None:
    several = range(300)
    data = host_data(
        gpus=[gpu(index, used=7000, use=0) for index in several],
        processes=[process(index, f"GPU-{index}") for index in several],
        ps=[person(index, f"user{index}") for index in several],
    )
    idle = Idle(NOW - 20, {f"GPU-{index}": NOW - 3 * HOUR for index in several})
    assert len(found(data, idle=idle)) == MOST
    assert len(health(*(event("lost", f"GPU-{index}") for index in several))) == MOST
    assert len(of_rule(found(replace(data, seen=NOW - DAY)), "host-down").people) == MOST_PEOPLE


# Health


def event(kind: str, gpu: str = "GPU-3", **more: Any) -> Event:  # noqa: ANN401
    """Something that goes on since noon."""
    return Event("atlas", 7, gpu, 3, kind, (2, 5), START)._replace(**more)


def health(*events: Event, after: float = 60, there: Sequence[str] = ()) -> list[Matter]:
    return health_matters(events, lambda _: ("alice",), now(after), there.__contains__)


def test_a_gpu_that_is_lost_then_gone_is_one_matter() -> None:
    (lost,) = health(event("lost", value=("GPU is lost",)))
    (gone,) = health(event("lost", until=START + 60), event("gone", at=START + 60, number=8))
    assert lost.key == gone.key == "gpu-lost atlas GPU-3"
    assert (lost.what, gone.what) == ("lost, the driver could not reach it: GPU is lost", "gone from its host")
    assert (lost.gpus, lost.people, lost.since) == (("3",), ("alice",), START)


def test_a_gpu_that_sits_in_another_host_now_is_not_lost() -> None:
    assert health(event("gone"), there=["GPU-3"]) == []
    assert len(health(event("gone"), event("lost", "GPU-4"), there=["GPU-4"])) == 2


def test_hot_and_slowed_by_it_is_one_matter() -> None:
    (one,) = health(event("heat", at=START - 60), event("hot", value=(93, 90)))
    assert (one.rule, one.since) == ("gpu-hot", START - 60)
    assert one.what == "slowed by heat; too warm: up to 93 °C (limit 90 °C)"


@pytest.mark.parametrize("kind", ["power", "driver", "new", "corrected", "rows_corrected", "pages_corrected"])
def test_what_is_only_worth_a_look_is_not_told(kind: str) -> None:
    assert health(event(kind)) == health(event(kind, until=START)) == []


@pytest.mark.parametrize("kind", ["uncorrected", "rows_uncorrected", "pages_uncorrected"])
def test_errors_are_a_matter_for_an_hour_and_have_happened_then(kind: str) -> None:
    (one,) = health(event(kind, until=START), after=LOOKED_BACK - 60)
    assert (one.key, one.lasting) == (f"gpu-error atlas GPU-3 {kind}", False)
    assert health(event(kind, until=START), after=LOOKED_BACK + 60) == []


@pytest.mark.parametrize("kind", ["recovery", "pending", "failed"])
def test_what_must_be_done_to_a_gpu_is_a_matter_until_it_is_done(kind: str) -> None:
    (one,) = health(event(kind))
    assert (one.rule, one.about, one.lasting) == ("gpu-error", f"GPU-3 {kind}", True)
    assert health(event(kind, until=START)) == []


def test_another_builder_knows_the_same_matter_by_another_number_and_minute() -> None:
    (one,), (other,) = health(event("lost")), health(event("lost", number=70, at=START + 60))
    assert one.key == other.key


def test_what_was_there_before_anybody_looked_has_no_beginning() -> None:
    (one,) = health(event("lost", since=BEFORE))
    assert one.since is None
    (one,) = health(event("lost", at=START + 10 * DAY))
    assert one.since == START + 60
