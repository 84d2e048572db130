"""What is wasted: each kind is told, its near miss is not, and no GPU-hour counts twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import pytest

from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import (
    BookingStatus,
    Gpu,
    GpuBookingUse,
    GpuPeople,
    GpuStatus,
    HostStatus,
    PrivacySettings,
    ProcessStatus,
    SharedMemory,
    StateLimits,
)
from site_builder.core.people import PeopleDirectory
from site_builder.fleet.gpu_state import StateRules
from site_builder.history.idle_runs import (
    RUN_EMPTY,
    RUN_IDLE,
    RUN_USED,
    BookedRun,
    IdleRun,
    IdleRunHistory,
    UnusedBookingRun,
)
from site_builder.waste import rules as waste_rules
from site_builder.waste.render import group_waste_items, sum_waste_hours
from site_builder.waste.rules import WasteCandidate, WasteItem

NOW = 1_790_000_000
LAST = NOW - 60  # the last minute that history knows
RULES = StateRules(StateLimits(), PeopleDirectory({"asmith": "Alice"}, ["alice", "bob"]), PrivacySettings())
HELD = WasteCandidate("held", "atlas", "GPU-0", 0, "A100", ("alice",), NOW - 3 * HOUR, None, "31 GiB")
BOOKING = WasteCandidate("booking", "atlas", "GPU-0", 0, "A100", ("alice",), NOW - 3 * HOUR, NOW - 3 * HOUR)
UNKEPT = UnusedBookingRun("atlas", "GPU-0", 0, "A100", ("alice",), NOW - 2 * DAY, NOW - DAY, 24 * 60)
PLACE = WasteCandidate("vacant", "atlas", "GPU-0", 0, "A100")
MONTH = 30 * 24 * 60


def worn(run: int = RUN_IDLE, minutes: int = 600, **overrides: object) -> IdleRun:
    """A GPU as history knows it; its run has no gaps."""
    run_fields = {
        "host": "atlas",
        "first_seen": 0,
        "last_seen": LAST,
        "last_taken": LAST,
        "since": LAST - (minutes - 1) * 60,
        **overrides,
    }
    return IdleRun(kind=run, minutes=minutes, **run_fields)  # type: ignore[arg-type]


def found(
    *marks: WasteCandidate,
    past: IdleRun | None = None,
    unkept: Sequence[UnusedBookingRun] = (),
    empty: Sequence[WasteCandidate] = (),
    odd: dict[str, int] | None = None,
    rules: StateRules = RULES,
) -> list[WasteItem]:
    """What is told of one GPU; what is odd is so for long, unless it is said."""
    runs_by_gpu = {} if past is None else {"GPU-0": past}
    lasts = {f"{candidate.kind} {candidate.gpu_key}": NOW - DAY for candidate in marks} if odd is None else odd
    return waste_rules.find_waste(
        marks, empty, IdleRunHistory(None, dict(runs_by_gpu), tuple(unkept)), rules, lasts, NOW
    )


def only(*marks: WasteCandidate, **options: object) -> WasteItem:
    (waste_item,) = found(*marks, **options)  # type: ignore[arg-type]
    return waste_item


# Held


def test_a_gpu_that_is_held_is_reported_with_who_since_when_how_much_and_whom_to_ask() -> None:
    waste_item = only(HELD)
    assert (
        waste_item.kind,
        waste_item.host,
        waste_item.index,
        waste_item.people,
        waste_item.since,
        waste_item.hours,
    ) == (("held", "atlas", 0, ("alice",), NOW - 3 * HOUR, 3.0))
    assert (waste_item.what, waste_item.advice) == (
        "31 GiB held, idle",
        "Ask alice whether it is still needed.",
    )


def test_a_gpu_that_is_idle_for_less_than_two_hours_is_not_held() -> None:
    assert not found(HELD._replace(since=NOW - 2 * HOUR + 60))
    assert found(
        HELD._replace(since=NOW - HOUR),
        rules=RULES.__class__(StateLimits(held_after=600), RULES.people, PrivacySettings()),
    )


def test_history_says_since_when_where_the_builder_has_forgotten() -> None:
    waste_item = only(HELD._replace(since=LAST - 120), past=worn(minutes=600))
    assert (waste_item.since, waste_item.hours) == (LAST - 599 * 60, 10.0)


def test_a_gap_is_not_idleness() -> None:
    waste_item = only(HELD._replace(since=LAST), past=worn(minutes=300, since=NOW - 7 * DAY))
    assert (waste_item.since, waste_item.hours) == (NOW - 7 * DAY, 5.0)


def test_time_between_history_and_the_builders_memory_is_unknown() -> None:
    assert not found(HELD._replace(since=NOW - 60), past=worn(last_seen=NOW - HOUR))


@pytest.mark.parametrize("run", [RUN_USED, RUN_EMPTY])
def test_history_of_a_gpu_that_was_not_idle_makes_it_no_older(run: int) -> None:
    assert only(HELD, past=worn(run)).hours == 3.0
    assert not found(HELD._replace(since=LAST), past=worn(run))


def test_time_held_by_another_person_does_not_count_for_the_next() -> None:
    assert not found(HELD._replace(since=LAST), past=worn(people=("bob",)))
    theirs = only(HELD._replace(since=NOW - 3 * DAY), past=worn(minutes=180, since=NOW - 3 * HOUR, people=("alice",)))
    assert (theirs.since, theirs.hours) == (NOW - 3 * HOUR, 3.0)


def test_a_clock_that_ran_a_year_ahead_does_not_say_since_when() -> None:
    before = worn(minutes=600)
    ahead = before._replace(last_seen=NOW + 365 * DAY, since=NOW + 364 * DAY, minutes=9000, run_before_jump=before)
    waste_item = only(HELD._replace(since=LAST), past=ahead)
    assert (waste_item.since, waste_item.hours) == (before.since, 10.0)


# Dead, ownerless, unexplained


@pytest.mark.parametrize(
    ("kind", "pids", "command"),
    [
        ("dead", (43, 44), "kill 43 44"),
        ("ownerless", (7, 9), "ps -o pid,user,args -p 7,9"),
        ("ownerless", (), ""),
        ("unexplained", (), "fuser -v /dev/nvidia0"),
    ],
)
def test_an_anomaly_is_reported_with_the_command_that_helps(kind: str, pids: tuple[int, ...], command: str) -> None:
    waste_item = only(HELD._replace(kind=kind, pids=pids))
    assert (waste_item.kind, waste_item.command, waste_item.hours, waste_item.pids) == (kind, command, 3.0, pids)
    assert "atlas" in waste_item.advice


def test_hours_that_nobody_can_know_are_none_and_come_last() -> None:
    used = HELD._replace(kind="dead", gpu_key="GPU-1", index=1, since=None, pids=(43,))
    first, last = found(HELD, used)
    assert (first.kind, last.kind, last.hours, last.since) == ("held", "dead", None, NOW - DAY)
    assert sum_waste_hours([first, last]) == (3.0, 1)


@pytest.mark.parametrize("kind", ["dead", "ownerless", "unexplained"])
def test_a_brief_anomaly_is_reported_only_once_it_lasts(kind: str) -> None:
    odd: dict[str, int] = {}
    mark = HELD._replace(kind=kind)
    assert not found(mark, odd=odd)
    assert odd == {f"{kind} GPU-0": NOW}
    assert found(mark, odd={f"{kind} GPU-0": NOW - 300})
    assert not found(odd=odd)
    assert odd == {}


# A booking


def test_a_booking_that_runs_unused_is_reported() -> None:
    waste_item = only(BOOKING)
    assert (waste_item.kind, waste_item.people, waste_item.since, waste_item.until, waste_item.hours) == (
        "booking",
        ("alice",),
        BOOKING.booking_start,
        None,
        3.0,
    )
    assert waste_item.advice == "Ask alice to use it or release it."


def test_a_booking_that_began_a_moment_ago_is_not_reported() -> None:
    assert not found(BOOKING._replace(since=NOW - 3000, booking_start=NOW - 3000))


def test_a_booking_of_which_the_builder_forgot_the_beginning_is_reported_from_history() -> None:
    promise = BookedRun(NOW - 10 * HOUR, LAST, 540, 0, ("alice",))
    late = BOOKING._replace(booking_start=NOW - 10 * HOUR, since=LAST)
    assert only(late, past=worn(RUN_EMPTY, last_taken=None, booked_run=promise)).hours == 9.0
    assert not found(late)
    assert not found(
        late, past=worn(RUN_EMPTY, last_taken=NOW - 9 * HOUR, booked_run=promise._replace(taken_minutes=1))
    )
    assert not found(late, past=worn(RUN_EMPTY, last_seen=NOW - 2 * HOUR, last_taken=None, booked_run=promise))


def test_a_booking_right_after_another_of_the_same_person_counts_for_itself() -> None:
    promise = BookedRun(NOW - 20 * HOUR, LAST, 20 * 60, 30, ("alice",))
    late = BOOKING._replace(booking_start=NOW - 10 * HOUR, since=LAST)
    assert only(late, past=worn(RUN_EMPTY, last_taken=NOW - 15 * HOUR, booked_run=promise)).hours == 10.0
    with_gap = promise._replace(minutes=19 * 60)
    assert not found(late, past=worn(RUN_EMPTY, last_taken=NOW - 15 * HOUR, booked_run=with_gap))


def test_a_booking_that_is_over_and_was_never_used_is_reported_with_the_minutes_that_were_seen() -> None:
    waste_item = only(unkept=[UNKEPT._replace(minutes=600)])
    assert (waste_item.kind, waste_item.since, waste_item.until, waste_item.hours) == (
        "booking",
        UNKEPT.since,
        UNKEPT.until,
        10.0,
    )


def test_a_booking_that_was_given_back_soon_is_no_waste() -> None:
    assert not found(unkept=[UNKEPT._replace(minutes=59)])


def test_a_booking_that_is_over_and_goes_on_after_all_counts_once() -> None:
    promise = BookedRun(UNKEPT.since, LAST, 2000, 0, ("alice",))
    assert not found(unkept=[UNKEPT], past=worn(RUN_EMPTY, booked_run=promise))


def test_a_booking_that_somebody_else_took_over_counts_no_hour_of_theirs_again() -> None:
    """alice booked the GPU 5 hours ago, and 2 hours ago bob was put in her place: the booking began when it did."""
    began = NOW - 5 * HOUR
    alices = UNKEPT._replace(since=began, until=NOW - 2 * HOUR, minutes=180)
    promise = BookedRun(NOW - 2 * HOUR, LAST, 120, 0, ("bob",))
    mark = BOOKING._replace(people=("bob",), booking_start=began, since=began)
    waste_items = found(mark, unkept=[alices], past=worn(RUN_EMPTY, last_taken=None, booked_run=promise))
    assert {waste_item.people: waste_item.hours for waste_item in waste_items} == {("alice",): 3.0, ("bob",): 2.0}


# Never used


def test_a_gpu_that_nobody_was_on_for_30_days_that_were_seen_is_reported() -> None:
    waste_item = only(empty=[PLACE], past=worn(RUN_EMPTY, MONTH, last_taken=None, since=NOW - 40 * DAY))
    assert (waste_item.kind, waste_item.since, waste_item.hours, waste_item.people) == (
        "vacant",
        NOW - 40 * DAY,
        720.0,
        (),
    )
    assert waste_item.what == "never used in 30 days monitored"
    assert "not used for 30 days monitored" in only(empty=[PLACE], past=worn(RUN_EMPTY, MONTH, last_taken=5)).what


def test_29_days_that_were_seen_in_60_are_not_30() -> None:
    assert not found(empty=[PLACE], past=worn(RUN_EMPTY, MONTH - 1, last_taken=None, since=NOW - 60 * DAY))


def test_a_gpu_that_is_taken_now_is_not_reported_to_be_unused() -> None:
    assert not found(past=worn(RUN_EMPTY, MONTH))


def test_what_bookings_count_an_unused_gpu_does_not() -> None:
    waste_items = found(BOOKING, unkept=[UNKEPT], empty=[PLACE], past=worn(RUN_EMPTY, MONTH, last_taken=None))
    assert {waste_item.kind: waste_item.hours for waste_item in waste_items} == {
        "booking": 3.0,
        "vacant": 720.0 - 24 - 3,
    }
    assert sum_waste_hours(waste_items) == (720.0, 0)


def test_a_gpu_that_moved_is_unused_no_second_time_where_it_was_booked() -> None:
    there = UNKEPT._replace(host="hydra")
    waste_items = found(unkept=[there], empty=[PLACE], past=worn(RUN_EMPTY, MONTH, last_taken=None))
    assert [(waste_item.host, waste_item.hours) for waste_item in waste_items] == [("atlas", 696.0), ("hydra", 24.0)]


def test_a_gpu_that_two_hosts_report_counts_for_neither() -> None:
    marks = [HELD, HELD._replace(host="hydra")]
    waste_items = waste_rules.find_waste(marks, [], IdleRunHistory(None, {}, ()), RULES, {}, NOW)
    assert [(waste_item.host, waste_item.hours) for waste_item in waste_items] == [("atlas", None), ("hydra", None)]


# People, and the order


def test_names_of_one_person_are_one_and_nobody_is_named_where_people_are_hidden() -> None:
    assert only(HELD._replace(people=("alice", "asmith"))).people == ("Alice",)
    hidden = only(HELD, rules=StateRules(StateLimits(), RULES.people, PrivacySettings(users=False)))
    assert hidden.people == ()
    assert "alice" not in repr(hidden)


def test_the_most_hours_come_first() -> None:
    candidates = [HELD._replace(gpu_key=f"GPU-{n}", index=n, since=NOW - n * HOUR) for n in (3, 12, 5)]
    assert [waste_item.index for waste_item in found(*candidates)] == [12, 5, 3]


def test_gpus_that_differ_in_their_numbers_alone_are_one_line() -> None:
    waste_items = found(
        *[HELD._replace(gpu_key=f"GPU-{n}", index=n) for n in range(3)],
        HELD._replace(gpu_key="GPU-9", memory_text="1 GiB"),
    )
    assert [(waste_group.gpu_label, waste_group.hours) for waste_group in group_waste_items(waste_items)] == [
        ("atlas:0,1,2", 9.0),
        ("atlas:0", 3.0),
    ]


# What a host tells

BUSY = GpuStatus(Gpu(0, "GPU-0", "A100", 31744.0, 81920.0, 0.0), "A100", "busy", "", idle_since=NOW - 60.0)
ON_IT = ProcessStatus(42, "alice", "python", 7000.0, None, None)


def marked(*gpus: GpuStatus, state: str = "fresh", others: tuple[ProcessStatus, ...] = ()) -> list[tuple[str, str]]:
    host = HostStatus("atlas", None, (), state, "", gpus=gpus, unmatched_processes=others)
    return [(candidate.kind, candidate.gpu_key) for candidate in waste_rules.find_waste_candidates(host)]


@pytest.mark.parametrize(
    ("gpu", "kind"),
    [
        (BUSY._replace(processes=(ON_IT._replace(is_zombie=True, children=(43,)),)), "dead"),
        (BUSY._replace(processes=(ON_IT,), people=GpuPeople(("alice",))), "held"),
        (BUSY._replace(processes=(ON_IT,), ownerless_pids=(42,)), "ownerless"),
        (
            BUSY._replace(state="held", processes=(ON_IT, ON_IT), ownerless_pids=(42,), people=GpuPeople(("alice",))),
            "held",
        ),
        (BUSY._replace(has_unexplained_memory=True), "unexplained"),
        (BUSY._replace(idle_since=None, processes=(ON_IT,), people=GpuPeople(("alice",))), None),
        (BUSY._replace(state="free", idle_since=None), None),
        (BUSY._replace(state="lost"), None),
    ],
)
def test_a_gpu_is_one_kind_at_most(gpu: GpuStatus, kind: str | None) -> None:
    assert marked(gpu) == ([(kind, "GPU-0")] if kind else [])
    assert marked(gpu, state="stale") == []


@pytest.mark.parametrize(
    ("sizes", "memory_text"),
    [((7000.0, 3000.0), "9.8 GiB"), ((7000.0, None), "6.8 GiB"), ((None,), "memory"), ((), "memory")],
)
def test_of_shared_memory_only_that_of_the_processes_on_the_gpu_is_held(
    sizes: tuple[float | None, ...], memory_text: str
) -> None:
    shared = BUSY.gpu._replace(shared_memory=SharedMemory(is_all=True))
    gpu = BUSY._replace(gpu=shared, processes=tuple(ON_IT._replace(used_memory=size) for size in sizes))
    (candidate,) = waste_rules.find_waste_candidates(HostStatus("atlas", None, (), "fresh", "", gpus=(gpu,)))
    assert candidate.memory_text == memory_text


def test_memory_is_not_unexplained_where_processes_are_on_a_gpu_that_is_not_reported() -> None:
    assert marked(BUSY._replace(has_unexplained_memory=True), others=(ON_IT,)) == [("held", "GPU-0")]


def test_gpus_under_one_name_are_kept_apart_as_history_does() -> None:
    assert marked(BUSY, BUSY) == [("held", "GPU-0"), ("held", "GPU-0 #2")]


def test_a_gpu_that_is_booked_and_unused_is_marked_with_when_that_began() -> None:
    now = datetime.fromtimestamp(NOW, timezone.utc)
    booking = BookingStatus("alice", now - timedelta(hours=2), now, None, None, "now", unused_since=NOW - HOUR)
    kept = GpuBookingUse(NOW, NOW - HOUR, {}, {"x": (NOW - HOUR, 0.0, 0.0)})
    gpu = BUSY._replace(state="booked", bookings=(booking,), booking_use=kept, people=GpuPeople((), ("alice",)))
    host = HostStatus("atlas", None, (), "fresh", "", gpus=(gpu,))
    (candidate,) = waste_rules.find_waste_candidates(host)
    assert (candidate.kind, candidate.people, candidate.since, candidate.booking_start) == (
        "booking",
        ("alice",),
        NOW - HOUR,
        NOW - 2 * HOUR,
    )
    assert not marked(gpu._replace(bookings=(booking._replace(unused_since=None),)))
