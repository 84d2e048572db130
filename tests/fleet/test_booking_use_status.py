"""Bookings as they stand at a moment: now, coming or ended, repeated, and of which host."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo

import pytest
from dateutil import tz
from dateutil.rrule import rrulestr

from site_builder.core.clock import Now
from site_builder.core.model import Booking, BookingStatus, PrivacySettings, Problem, StateLimits
from site_builder.fleet import booking_use
from tests.support.generated_fleet import NOON, NOW, PARIS, booking, decide, gpu, host_data, now, only_gpu
from tests.support.pace import within

DAY = 24
ZONES = pytest.mark.parametrize("zone", [PARIS, tz.gettz("Europe/Paris")], ids=["zoneinfo", "dateutil"])


def at(*bookings: Booking, moment: Now | None = None) -> tuple[BookingStatus, ...]:
    return booking_use.build_fleet_booking_statuses(bookings, PrivacySettings(), moment or now())


def phases(*bookings: Booking) -> list[str]:
    return [booking_status.phase for booking_status in at(*bookings)]


def by_host(host: str, *names: str, ends: float = 2) -> tuple[list[str], list[Problem]]:
    bookings_by_host, problems = booking_use.group_fleet_bookings_by_host(
        [booking("alice", ends=ends, host=host)], names, now()
    )
    return list(bookings_by_host), problems


# Phases


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        (None, 2, "now"),
        (-2, 2, "now"),
        (0, 2, "now"),
        (0.001, 2, "coming"),
        (400 * DAY, 401 * DAY, "coming"),
        (-2, 0, "ended"),
        (None, -1, "ended"),
        (None, -1.99 * DAY, "ended"),
    ],
)
def test_a_booking_is_of_now_coming_or_ended(begins: float | None, ends: float, expected: str) -> None:
    assert phases(booking(begins=begins, ends=ends)) == [expected]


def test_two_days_after_its_end_a_booking_is_gone() -> None:
    assert phases(booking(ends=-2 * DAY)) == []


def test_those_of_now_stand_first_and_then_the_others_as_they_come() -> None:
    names = ["late", "past", "early", "now"]
    times = [(9.0, 10.0), (-9.0, -8.0), (1.0, 2.0), (-1.0, 1.0)]
    booking_statuses = at(*(booking(name, *begins_ends) for name, begins_ends in zip(names, times)))
    assert [booking_status.name for booking_status in booking_statuses] == ["now", "early", "late", "past"]


def test_name_comment_and_id_are_those_of_the_booking() -> None:
    (booking_status,) = at(booking("alice", begins=-1, comment="thesis", id="b1"))
    expected = BookingStatus("alice", NOON - timedelta(hours=1), NOON + timedelta(hours=2), "thesis", "b1", "now")
    assert booking_status == expected


def test_what_is_empty_is_not_available() -> None:
    (booking_status,) = at(booking(""))
    assert (booking_status.name, booking_status.comment, booking_status.id) == (None, None, None)


@pytest.mark.parametrize("end", ["9999-12-31T23:59:59+00:00", "9999-12-31T23:59:59-12:00"])
def test_a_booking_until_the_end_of_all_time_is_of_now(end: str) -> None:
    gpu_status = only_gpu(host_data(), booking("alice", until=datetime.fromisoformat(end)))
    assert (gpu_status.state, gpu_status.reason) == (
        "booked",
        "booked by alice until 31 Dec 9999 23:59, not in use",
    )


def test_a_booking_from_the_beginning_of_all_time_is_of_now() -> None:
    first = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12)))
    assert phases(booking("alice", since=first)) == ["now"]


# Free until


def test_a_free_gpu_that_is_booked_soon_says_until_when() -> None:
    gpu_status = only_gpu(host_data(), booking(begins=3, ends=9))
    assert (gpu_status.state, gpu_status.free_until) == ("free", NOW + 3 * 3600)


def test_a_free_gpu_that_is_booked_twice_is_free_until_the_first() -> None:
    gpu_status = only_gpu(host_data(), booking("bob", begins=7, ends=9), booking(begins=3, ends=4))
    assert gpu_status.free_until == NOW + 3 * 3600


@pytest.mark.parametrize(("begins", "is_soon"), [(2, True), (2.001, False)])
def test_what_is_soon_is_a_setting(begins: float, is_soon: bool) -> None:
    gpu_status = only_gpu(host_data(), booking(begins=begins, ends=9), limits=StateLimits(soon=7200))
    assert (gpu_status.state, gpu_status.free_until is not None) == ("free", is_soon)


def test_a_gpu_that_is_not_free_is_not_free_until_anything() -> None:
    assert only_gpu(host_data([gpu(used=7000)]), booking(begins=3, ends=9)).free_until is None


# Repeated


def weekly(zone: tzinfo, rule: str = "FREQ=WEEKLY") -> Booking:
    """Thursdays from 9 to 18 in Paris, from before the end of summer time on."""
    since = datetime(2026, 10, 15, 9, tzinfo=zone)
    return booking("alice", since=since, until=since.replace(hour=18), rrule=rule)


@ZONES
def test_a_weekly_booking_keeps_its_time_on_the_wall_over_a_change_of_the_clocks(zone: tzinfo) -> None:
    occurrences = at(weekly(zone), moment=Now(datetime(2026, 10, 16, 12, tzinfo=zone).timestamp(), zone))
    times = [
        (occurrence.since.isoformat() if occurrence.since else "", occurrence.until.isoformat())
        for occurrence in occurrences
    ]
    assert times == [
        ("2026-10-22T09:00:00+02:00", "2026-10-22T18:00:00+02:00"),
        ("2026-10-29T09:00:00+01:00", "2026-10-29T18:00:00+01:00"),
        ("2026-10-15T09:00:00+02:00", "2026-10-15T18:00:00+02:00"),
    ]


@ZONES
def test_a_night_in_which_the_clocks_change_ends_at_its_time_on_the_wall(zone: tzinfo) -> None:
    since = datetime(2026, 10, 10, 22, tzinfo=zone)
    nightly = booking("alice", since=since, until=since + timedelta(hours=10), rrule="FREQ=DAILY")
    (occurrence, *_) = at(nightly, moment=Now(datetime(2026, 10, 25, 5, tzinfo=zone).timestamp(), zone))
    assert (occurrence.phase, occurrence.until.isoformat()) == ("now", "2026-10-25T08:00:00+01:00")


def test_two_weeks_of_a_repeating_booking_are_shown() -> None:
    coming_starts = [occurrence.since for occurrence in at(weekly(PARIS)) if occurrence.phase == "coming"]
    assert coming_starts == [datetime(2026, 11, day, 9, tzinfo=PARIS) for day in (19, 26)]


def test_what_is_shown_of_a_booking_that_repeats_is_the_same_until_it_says() -> None:
    every_third_day = booking("alice", begins=-21, ends=-20.5, rrule="FREQ=DAILY;INTERVAL=3")
    moment = now()
    occurrences = at(every_third_day, moment=moment)
    assert moment.valid_until == NOW + 12 * 3600
    assert at(every_third_day, moment=now(12 * 3600 - 1)) == occurrences


def test_a_booking_that_repeats_ends_each_time() -> None:
    daily = booking("alice", begins=-10 * DAY - 1, ends=-10 * DAY + 1, rrule="FREQ=DAILY")
    assert [occurrence.phase for occurrence in at(daily)][:2] == ["now", "coming"]
    assert phases(daily).count("ended") == 2


@pytest.mark.parametrize("rule", ["FREQ=DAILY;COUNT=3", "FREQ=DAILY;UNTIL=20261101T000000Z"])
def test_a_booking_that_repeats_no_more_is_gone(rule: str) -> None:
    assert at(weekly(PARIS, rule)) == ()


def test_a_repeated_booking_is_in_conflict_as_any_other() -> None:
    names = booking_use.list_current_bookers(
        [booking("alice", begins=-10 * DAY - 1, ends=-10 * DAY + 1, rrule="FREQ=DAILY")], now()
    )
    assert names == ["alice"]


@pytest.mark.parametrize("rule", ["FREQ=SECONDLY", "FREQ=MINUTELY", "FREQ=DAILY;INTERVAL=0", "FREQ=HOURLY"])
def test_what_repeats_without_end_takes_no_time_and_no_room(rule: str) -> None:
    since = datetime(1990, 1, 1, tzinfo=PARIS)
    with within(2):
        occurrences = at(booking("alice", since=since, until=since + timedelta(hours=1), rrule=rule))
        assert len(occurrences) <= booking_use.MAX_REPEATS


def test_the_current_occurrence_of_a_frequent_booking_is_kept() -> None:
    often = booking("alice", begins=-9 * DAY, ends=-9 * DAY + 0.5, rrule="FREQ=DAILY;BYHOUR=8,10,12,14,16")
    assert len(at(often)) <= booking_use.MAX_REPEATS
    assert [occurrence.phase for occurrence in at(often)][:2] == ["now", "coming"]


@pytest.mark.parametrize(
    "rule", ["FREQ=DAILY;INTERVAL=3", "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,TH", "FREQ=WEEKLY;COUNT=2000"]
)
def test_what_repeats_for_years_falls_on_the_same_days_as_if_they_were_counted(rule: str) -> None:
    since = datetime(1996, 2, 29, 9, tzinfo=PARIS)
    counted = rrulestr(rule, dtstart=since).between(NOON, NOON + timedelta(days=14))
    occurrences = at(booking("alice", since=since, until=since + timedelta(hours=1), rrule=rule))
    assert [occurrence.since for occurrence in occurrences if occurrence.phase == "coming"] == counted


def test_a_booking_for_ever_that_repeats_is_of_now() -> None:
    ever = datetime(1, 1, 1, tzinfo=timezone.utc), datetime(9999, 12, 31, tzinfo=timezone.utc)
    assert phases(booking("alice", since=ever[0], until=ever[1], rrule="FREQ=DAILY")) == ["now"]


def test_a_rule_that_is_none_repeats_nothing() -> None:
    assert phases(booking("alice", begins=-1, rrule="FREQ=DAILY;UNTIL=20261332T235959Z")) == ["now"]


def test_a_rule_without_a_beginning_repeats_nothing() -> None:
    assert phases(booking("alice", rrule="FREQ=DAILY")) == ["now"]


# Of which GPU


def problems_of(*bookings: Booking, gpus: int = 2) -> list[str]:
    host = decide(host_data([gpu(index) for index in range(gpus)]), bookings)
    return [f"{problem.where}: {problem.what}" for problem in host.problems]


@pytest.mark.parametrize(("gpus", "has"), [(2, "GPUs 0 to 1"), (1, "GPU 0")])
def test_a_booking_of_a_gpu_that_is_not_there_is_a_problem_that_names_those_that_are(gpus: int, has: str) -> None:
    problems = problems_of(booking(gpu="99"), gpus=gpus)
    assert problems == [f"data/comments.json: atlas has no GPU 99, only {has}"]


@pytest.mark.parametrize("key", ["*", "0", "1", "GPU-1", "gpu-1"])
def test_a_booking_of_a_gpu_that_is_there_is_no_problem(key: str) -> None:
    assert problems_of(booking(gpu=key)) == []


def test_a_long_ended_booking_of_a_gpu_that_is_not_there_is_no_problem() -> None:
    assert problems_of(booking(gpu="99", ends=-2 * DAY)) == []


def test_a_booking_of_the_host_is_shown_on_each_of_its_gpus() -> None:
    host = decide(host_data([gpu(0), gpu(1)]), [booking(gpu="*")])
    assert [gpu_status.state for gpu_status in host.gpus] == ["booked", "booked"]


def test_a_booking_of_one_gpu_is_not_shown_on_the_others() -> None:
    host = decide(host_data([gpu(0), gpu(1)]), [booking(gpu="1")])
    assert [gpu_status.state for gpu_status in host.gpus] == ["free", "booked"]


# Of which host


@pytest.mark.parametrize("key", ["atlas", "Atlas", "ATLAS", " atlas ", "atlas.lab.example.org", "Atlas.Lab"])
def test_a_host_may_be_booked_by_its_full_name_and_in_any_case(key: str) -> None:
    assert by_host(key, "atlas", "hydra") == (["atlas"], [])


def test_the_exact_name_wins_among_hosts_that_differ_in_case() -> None:
    assert by_host("Atlas", "atlas", "Atlas")[0] == ["Atlas"]


def test_an_unknown_host_is_a_problem_with_a_hint_where_there_is_one() -> None:
    assert by_host("atlass", "atlas", "hydra")[1] == [
        Problem("data/comments.json", "no host atlass; did you mean atlas?")
    ]
    assert by_host("zebra", "atlas")[1] == [Problem("data/comments.json", "no host zebra")]


def test_an_unknown_host_is_reported_once() -> None:
    bookings = [booking(host="zebra"), booking(host="zebra", gpu="1")]
    assert len(booking_use.group_fleet_bookings_by_host(bookings, ["atlas"], now())[1]) == 1


@pytest.mark.parametrize(("ends", "problem_count"), [(-1, 1), (-1.99 * DAY, 1), (-2 * DAY, 0), (-400 * DAY, 0)])
def test_a_long_ended_booking_of_an_unknown_host_is_no_problem(ends: float, problem_count: int) -> None:
    assert len(by_host("zebra", "atlas", ends=ends)[1]) == problem_count


def test_very_many_unknown_hosts_take_little_time() -> None:
    many = [booking(host=f"gpx{number:05}") for number in range(5000)]
    with within(2):
        _, problems = booking_use.group_fleet_bookings_by_host(
            many, [f"gpu{number:04}" for number in range(1000)], now()
        )
    assert len(problems) == 5000
