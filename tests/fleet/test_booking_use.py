"""Kept or broken: whether a booking that runs is used, by whom, how much, and when its GPU comes free again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from site_builder.board import card, pages
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import (
    Booking,
    BookingPolicy,
    BookingStatus,
    DiscoveredHost,
    GpuBookingUse,
    GpuStatus,
    HostSnapshot,
    PrivacySettings,
    SoonFreeGpu,
    StateLimits,
)
from site_builder.core.people import PeopleDirectory
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.host_state import HostStatusSources, decide_host_status
from site_builder.fleet.summary import summarize_host
from tests.support.generated_fleet import (
    NOON,
    NOW,
    booking,
    gpu,
    host_data,
    now,
    only_gpu,
    person,
    process,
    used_by,
)

EMPTY = host_data()


class Follower:
    """A builder's memory over several snapshots of one host."""

    def __init__(
        self, *bookings: Booking, shown: PrivacySettings | None = None, limits: StateLimits | None = None
    ) -> None:
        self.bookings = bookings
        self.rules = StateRules(
            limits or StateLimits(), PeopleDirectory({}, ("alice", "bob", "carol")), shown or PrivacySettings()
        )
        self.kept: dict[str, GpuBookingUse] = {}

    def see(
        self, after: float, data: HostSnapshot, taken: float | None = None, stamp: float | None = None
    ) -> GpuStatus:
        """What is said of the GPU so many seconds after noon, by a snapshot that was taken then, and says so."""
        taken = after if taken is None else taken
        stamp = int(NOW + (taken if stamp is None else stamp))
        moved: dict[str, Any] = {"taken_at": {file: at + taken for file, at in data.taken_at.items()}}
        for name in ("gpus", "ps_rows"):
            dump = getattr(data, name)
            moved[name] = replace(dump, header=dump.header._replace(time=stamp))
        snapshot = replace(data, last_seen=(data.last_seen or 0) + taken, **moved)
        case = HostStatusSources(DiscoveredHost("atlas"), bookings=self.bookings, booking_uses=self.kept)
        host_status = decide_host_status(case, snapshot, self.rules, now(after))
        learned = summarize_host(host_status, snapshot.taken_at["gpus.csv"]).booking_uses
        self.kept = self.kept if learned is None else learned
        (gpu_status,) = host_status.gpus
        return gpu_status

    def each(self, *moments: tuple[float, HostSnapshot]) -> BookingStatus:
        """The first booking, after all these."""
        for after, data in moments:
            gpu_status = self.see(after, data)
        return gpu_status.bookings[0]


def use(percent: float | None) -> HostSnapshot:
    """Alice is on the GPU, and uses so much of it."""
    return used_by("alice", gpus=[gpu(used=7000, use=percent)])


def steady(percent: float, until: float, begin: float = 0, every: float = 60) -> list[tuple[float, HostSnapshot]]:
    """The same at each minute."""
    return [(begin + step * every, use(percent)) for step in range(int((until - begin) / every) + 1)]


# Unused


def test_a_booking_is_unused_since_the_first_look_that_found_nobody() -> None:
    booking_status = Follower(booking("alice", begins=-1)).each((0, EMPTY), (20, EMPTY), (40, EMPTY))
    assert booking_status.unused_since == NOW


def test_a_booking_is_not_unused_before_it_began() -> None:
    follower = Follower(booking("bob", begins=-3, ends=0.5), booking("alice", begins=0.5, ends=2))
    for minute in range(0, 40, 5):
        gpu_status = follower.see(minute * MINUTE, EMPTY)
    (current,) = (booking_status for booking_status in gpu_status.bookings if booking_status.phase == "now")
    assert (current.name, current.unused_since) == ("alice", NOW + 1800)


def test_a_booking_that_was_used_is_unused_since_its_user_left() -> None:
    booking_status = Follower(booking("alice", begins=-1)).each((0, use(90)), (20, use(90)), (40, EMPTY), (60, EMPTY))
    assert booking_status.unused_since == NOW + 40


def test_a_booking_that_is_used_is_not_unused() -> None:
    assert Follower(booking("alice", begins=-1)).each((0, EMPTY), (20, use(90))).unused_since is None


def test_a_gpu_that_is_held_idle_is_not_called_unused() -> None:
    assert Follower(booking("alice", begins=-1)).each((0, EMPTY), (20, use(0))).unused_since is None


@pytest.mark.parametrize(("gap", "expected"), [(600, NOW), (601, NOW + 601)])
def test_what_happened_while_nothing_was_heard_nobody_knows(gap: float, expected: float) -> None:
    assert Follower(booking("alice", begins=-1)).each((0, EMPTY), (gap, EMPTY)).unused_since == expected


def test_a_host_that_is_not_fresh_shows_no_booking_use_and_forgets_none() -> None:
    follower = Follower(booking("alice", begins=-1))
    follower.see(0, EMPTY)
    silent = follower.see(300, EMPTY, taken=0)
    assert silent.bookings == only_gpu(host_data(ages={"host.txt": 300}), *follower.bookings).bookings
    assert (silent.bookings[0].unused_since, silent.bookings[0].mean_use) == (None, None)
    assert silent.free_again is None
    assert follower.see(320, EMPTY).bookings[0].unused_since == NOW


UNKNOWN = (
    pytest.param(host_data(processes=None), id="processes are not told"),
    pytest.param(host_data([gpu(lost="GPU is lost")]), id="lost"),
    pytest.param(host_data(processes=[process(on="GPU-9")]), id="a process on a GPU that is not told"),
)


@pytest.mark.parametrize("data", UNKNOWN)
def test_a_gpu_of_which_nobody_knows_whether_it_is_used_is_not_called_unused(data: HostSnapshot) -> None:
    follower = Follower(booking("alice", begins=-1))
    follower.see(0, EMPTY)
    gpu_status = follower.see(20, data)
    assert (gpu_status.bookings[0].unused_since, gpu_status.bookings[0].used_by_since, gpu_status.free_again) == (
        None,
        None,
        None,
    )
    assert follower.see(40, EMPTY).bookings[0].unused_since == NOW + 40


def test_a_booking_without_a_beginning_is_unused_since_it_was_first_seen() -> None:
    assert Follower(booking("alice")).each((0, EMPTY), (20, EMPTY)).unused_since == NOW


@pytest.mark.parametrize("begins", [1, None])
def test_only_a_booking_that_runs_is_judged(begins: float | None) -> None:
    alice_booking = booking("alice", begins=begins, ends=2 if begins else -1)
    booking_status = Follower(alice_booking).each((0, EMPTY), (20, EMPTY))
    assert (
        booking_status.unused_since,
        booking_status.used_by,
        booking_status.used_by_since,
        booking_status.mean_use,
    ) == (None, None, None, None)


def test_a_gpu_that_moved_to_another_place_is_known_by_its_uuid() -> None:
    follower = Follower(booking("alice", begins=-1, gpu="*"))
    follower.see(0, host_data([gpu(0, uuid="GPU-a")]))
    assert follower.see(20, host_data([gpu(3, uuid="GPU-a")])).bookings[0].unused_since == NOW


def test_a_booking_that_is_made_longer_is_the_same() -> None:
    follower = Follower(booking("alice", begins=-1, ends=1, id="~1"))
    follower.see(0, EMPTY)
    follower.bookings = (booking("alice", begins=-1, ends=9, id="~2"),)
    assert follower.see(20, EMPTY).bookings[0].unused_since == NOW


# Used by somebody else


def by_bob(elapsed: int | None = 3600, *other_users: str) -> HostSnapshot:
    data = used_by("bob", *other_users)
    assert data.ps_rows
    process_rows = tuple(row._replace(elapsed=elapsed) for row in data.ps_rows.rows)
    return replace(data, ps_rows=replace(data.ps_rows, rows=process_rows))


def test_who_else_is_on_it_is_named_since_their_process_began() -> None:
    booking_status = Follower(booking("alice", begins=-3)).each((0, by_bob(1800)))
    assert (booking_status.used_by, booking_status.used_by_since, booking_status.unused_since) == (
        ("bob",),
        NOW - 1800,
        None,
    )


def test_nobody_breaks_a_booking_before_it_began() -> None:
    assert Follower(booking("alice", begins=-1)).each((0, by_bob(9000))).used_by_since == NOW - 3600


def test_nobody_breaks_a_booking_without_a_beginning_before_it_was_seen() -> None:
    assert Follower(booking("alice")).each((0, by_bob(9000)), (20, by_bob(9020))).used_by_since == NOW


def test_without_a_start_time_use_counts_from_the_first_check() -> None:
    assert Follower(booking("alice", begins=-3)).each((0, by_bob(None)), (20, by_bob(None))).used_by_since == NOW


def test_who_starts_one_process_after_the_other_is_on_it_since_the_first() -> None:
    assert Follower(booking("alice", begins=-3)).each((0, by_bob(60)), (300, by_bob(5))).used_by_since == NOW - 60


def test_the_first_of_two_other_users_counts_and_one_who_left_does_not() -> None:
    follower = Follower(booking("alice", begins=-3))
    assert follower.each((0, by_bob(60)), (300, by_bob(360, "carol"))).used_by == ("bob", "carol")
    booking_status = follower.each((320, used_by("carol", ps=[person(user="carol", elapsed=20)])))
    assert (booking_status.used_by, booking_status.used_by_since) == (("carol",), NOW - 60)


def test_a_name_that_is_no_login_gives_no_verdict() -> None:
    assert Follower(booking("the vision group", begins=-3)).each((0, by_bob())).used_by is None


def test_who_booked_too_is_no_other() -> None:
    follower = Follower(booking("alice", begins=-3), booking("bob", begins=-2))
    assert follower.each((0, used_by("alice", "bob"))).used_by is None


def test_where_users_are_hidden_the_other_user_is_not_named() -> None:
    booking_status = Follower(booking("alice", begins=-3), shown=PrivacySettings(users=False)).each((0, by_bob(1800)))
    assert (booking_status.name, booking_status.used_by, booking_status.used_by_since) == (None, None, NOW - 1800)


# Mean use


def test_the_mean_is_weighed_by_time() -> None:
    moments = [*steady(90, 300), (600, use(30))]
    assert Follower(booking("alice", begins=-1)).each(*moments).mean_use == 60


def test_the_mean_is_shown_after_five_minutes() -> None:
    follower = Follower(booking("alice", begins=-1))
    assert follower.each(*steady(90, 240)).mean_use is None
    assert follower.each((300, use(90))).mean_use == 90


def test_a_snapshot_counts_once_however_often_it_is_looked_at() -> None:
    follower = Follower(booking("alice", begins=-1))
    follower.each(*steady(80, 600))
    kept = follower.kept
    for later in (605, 610, 615):
        follower.see(later, use(80), taken=600)
    assert follower.kept == kept


def test_a_snapshot_counts_once_though_its_arrival_differs_a_little() -> None:
    follower = Follower(booking("alice", begins=-1))
    follower.each(*steady(80, 600))
    kept = follower.kept
    follower.see(602, use(80), taken=602, stamp=600)
    assert follower.kept == kept


def test_what_was_not_seen_does_not_count() -> None:
    moments = [*steady(90, 600), (2000, use(10)), (2600, use(10))]
    assert Follower(booking("alice", begins=-1)).each(*moments).mean_use == 50


def test_what_the_driver_does_not_report_does_not_count() -> None:
    moments = [*steady(90, 300), (600, use(None)), (660, use(90))]
    assert Follower(booking("alice", begins=-1)).each(*moments).mean_use == 90
    silent = [(minute * 60, use(None)) for minute in range(12)]
    assert Follower(booking("alice", begins=-1)).each(*silent).mean_use is None


def test_time_in_which_nobody_was_on_it_counts_as_0() -> None:
    moments = [*steady(80, 300), (600, EMPTY)]
    assert Follower(booking("alice", begins=-1)).each(*moments).mean_use == 40


def test_a_clock_that_was_set_back_costs_one_step_and_no_more() -> None:
    follower = Follower(booking("alice", begins=-9))
    follower.each(*steady(90, 600))
    follower.see(-7200, use(10))
    assert follower.see(-6600, use(10)).bookings[0].mean_use == 50


@pytest.mark.parametrize("claimed", [1e300, -5.0, float("inf")])
def test_a_use_that_cannot_be_is_bounded(claimed: float) -> None:
    booking_status = Follower(booking("alice", begins=-1)).each(*steady(claimed, 600))
    assert booking_status.mean_use in {0, 100}


def test_each_time_that_a_booking_repeats_counts_anew() -> None:
    daily = booking("alice", begins=-1, ends=1, rrule="FREQ=DAILY")
    follower = Follower(daily)
    follower.each(*steady(90, 600))
    follower.see(2 * HOUR, EMPTY)
    assert follower.kept == {}
    assert follower.each(*steady(20, 23 * HOUR + 600, begin=23 * HOUR)).mean_use == 20


def test_two_bookings_that_run_at_once_have_a_mean_each() -> None:
    follower = Follower(booking("alice", begins=-1), booking("bob", begins=0.2))
    follower.each(*steady(90, 720))
    follower.each(*steady(30, 1440, begin=780))
    first, second = follower.see(1440, use(30)).bookings
    assert (first.mean_use, second.mean_use) == (60, 30)


def test_only_currently_booked_gpus_are_remembered() -> None:
    follower = Follower(booking("alice", begins=-1, ends=0.5))
    follower.see(0, EMPTY)
    assert set(follower.kept) == {"GPU-0"}
    follower.see(1800, EMPTY)
    assert follower.kept == {}


def test_what_is_remembered_of_a_gpu_is_bounded() -> None:
    follower = Follower(*(booking(f"alice{n}", begins=-1) for n in range(400)))
    follower.see(0, EMPTY)
    assert len(follower.kept["GPU-0"].use_by_booking) <= 20


# Free again


def again(*bookings: Booking, data: HostSnapshot = EMPTY) -> float | None:
    free_at = only_gpu(data, *bookings).free_again
    return None if free_at is None else (free_at - NOW) / HOUR


@pytest.mark.parametrize(
    ("bookings", "hours"),
    [
        ([booking("alice", ends=2)], 2),
        ([booking("alice", ends=2), booking("bob", begins=2, ends=5)], 5),
        ([booking("alice", ends=2), booking("bob", begins=3, ends=5)], 5),
        ([booking("alice", ends=2), booking("bob", begins=3.1, ends=5)], 2),
        ([booking("alice", ends=2), booking("bob", ends=4)], 4),
        ([booking("bob", begins=5, ends=9), booking("alice", ends=2), booking("carol", begins=2, ends=4.5)], 9),
        ([booking("alice", ends=9), booking("bob", begins=1, ends=2)], 9),
        ([booking("alice", begins=1, ends=2)], None),
        ([], None),
        ([booking("alice", begins=-23, ends=1, rrule="FREQ=DAILY")], None),
        ([booking("alice", begins=-1, ends=1, rrule="FREQ=DAILY")], 1),
    ],
)
def test_a_gpu_comes_free_when_the_bookings_end_that_follow_each_other(
    bookings: Sequence[Booking], hours: float | None
) -> None:
    assert again(*bookings) == hours


def test_a_gpu_that_is_used_without_a_booking_has_no_known_end() -> None:
    assert again(data=used_by("bob")) is None


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_a_gpu_that_is_booked_and_used_comes_free_when_its_booking_ends(user: str) -> None:
    assert again(booking("alice"), data=used_by(user)) == 2


# What the board says


def cell(booking_status: BookingStatus) -> str:
    return re.sub(r"<[^>]*>", "", card.build_card_booking(booking_status, now()).use_html)


FACTS = BookingStatus("alice", NOON - timedelta(days=1), NOON + timedelta(days=1), None, None, "now")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ""),
        ({"unused_since": int(NOW) - 3300}, "unused since 11:05"),
        ({"unused_since": int(NOW) - 3300, "mean_use": 2.0}, "unused since 11:05"),
        ({"unused_since": int(NOW) - 3300, "mean_use": 41.0}, "unused since 11:05 · 40 % used on average"),
        ({"used_by": ("bob",), "used_by_since": int(NOW) - 600}, "used by bob since 11:50"),
        ({"used_by": ("<b>",), "used_by_since": int(NOW) - 600}, "used by &lt;b&gt; since 11:50"),
        ({"used_by": ("bob", "carol"), "used_by_since": int(NOW)}, "used by bob and carol since 12:00"),
        ({"used_by_since": int(NOW)}, "used by another since 12:00"),
        ({"mean_use": 83.2}, "85 % used on average"),
        ({"mean_use": 0.4}, "0 % used on average"),
        ({"phase": "coming", "unused_since": 5}, ""),
    ],
)
def test_the_board_says_whether_a_booking_is_kept(facts: dict[str, Any], expected: str) -> None:
    assert cell(FACTS._replace(**facts)) == expected


def top(*coming: SoonFreeGpu) -> str:
    summary: Any = SimpleNamespace(
        state="fresh", state_counts={}, free_gpus=(), soon_free_gpus=coming, models=(), available_gpus=()
    )
    fleet: Any = {"atlas": SimpleNamespace(summary=summary)}
    settings: Any = SimpleNamespace(notice=None, booking_policy=BookingPolicy())
    return re.sub(r"<[^>]*>", "", pages.render_board_parts(fleet, [], None, settings, now()).top.decode())


def test_where_no_gpu_is_free_the_page_says_which_come_next() -> None:
    at = int(NOW)
    top_text = top(
        SoonFreeGpu(at + 4 * DAY, "zeus", 2),
        SoonFreeGpu(at + 6 * HOUR, "atlas", 0),
        SoonFreeGpu(at + 6 * HOUR, "atlas", 1),
    )
    assert "No GPU is free. Next: atlas:0,1 18:00 zeus:2 Fri 12:00" in top_text


def test_no_more_than_five_are_named() -> None:
    assert top(*(SoonFreeGpu(int(NOW) + n, f"h{n}", 0) for n in range(9))).count("12:00") == 5


def test_no_free_again_time_without_a_known_end() -> None:
    assert "No GPU is free." in top()
    assert "Next" not in top()
