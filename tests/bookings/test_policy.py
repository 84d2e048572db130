"""The rules of booking, from bookings and a moment alone: no GPU twice, nothing in the past, nobody past a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from site_builder.bookings.policy import (
    BookingNameError,
    BookingRefusedError,
    GpuKeyMap,
    check_booking_conflicts,
    check_booking_name,
    check_policy_limits,
    check_share,
    find_booking_span_overlap,
    find_conflict,
    format_booking_places,
    refuse_ended_booking,
    refuse_past_start,
)
from site_builder.bookings.times import TimeSpan
from site_builder.core.model import Booking, BookingPolicy
from tests.support.generated_fleet import NOON, NOW, PARIS, booking, gpu, now

KEYS = GpuKeyMap([gpu(0), gpu(1)])
HOUR, DAY = 3600, 86400


def daily(name: str = "alice", begins: float = 1, ends: float = 2, **fields: object) -> Booking:
    return booking(name, begins, ends, **{"rrule": "FREQ=DAILY", **fields})


def hours(begins: float, ends: float) -> TimeSpan:
    return NOW + begins * HOUR, NOW + ends * HOUR


# Names

NOT_A_LINE = "this name cannot be used: it must be one line of at most 80 characters"
NOT_SEEN = "this name cannot be used: it has invisible or look-alike characters"


@pytest.mark.parametrize("name", ["alice", "the vision team", "Zoë", "x" * 80])
def test_a_name_on_one_line_may_book(name: str) -> None:
    assert check_booking_name(f" {name} ") == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", NOT_A_LINE),
        (" ", NOT_A_LINE),
        ("x" * 81, NOT_A_LINE),
        ("the  team", NOT_A_LINE),
        ("the\tteam", NOT_A_LINE),
        ("al\u200bice", NOT_SEEN),
        ("\ufb01na", NOT_SEEN),  # a ligature
    ],
)
def test_a_name_that_could_be_taken_for_another_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(BookingNameError) as raised:
        check_booking_name(name)
    assert str(raised.value) == why


# Keys of GPUs


@pytest.mark.parametrize("key", ["0", "GPU-0", "gpu-0"])
def test_every_key_of_a_gpu_means_it(key: str) -> None:
    assert KEYS.normalize_key(key) == "0"


def test_a_key_of_no_gpu_is_compared_without_regard_to_case() -> None:
    assert KEYS.normalize_key("GPU-Other") == "gpu-other"


def test_a_uuid_with_capital_letters_is_its_gpu() -> None:
    assert GpuKeyMap([gpu(3, uuid="GPU-ABC")]).normalize_key("gpu-abc") == "3"


def test_a_gpu_without_a_number_is_known_by_its_uuid_alone() -> None:
    assert GpuKeyMap([gpu(None, uuid="GPU-x"), gpu(1, uuid=None)]).label_by_uuid == {}


def test_the_uuid_of_a_gpu_with_instances_is_its_number() -> None:
    mig_instance = gpu(0, uuid="MIG-a", place="1:0", parent=gpu(0))
    assert GpuKeyMap([mig_instance]).label_by_uuid == {"mig-a": mig_instance.label, "gpu-0": "0"}


@pytest.mark.parametrize(
    ("key", "other_key", "expected"),
    [
        ("*", "0", True),
        ("0", "*", True),
        ("0", "GPU-0", True),
        ("0", "1", False),
        ("0", "0:1", True),
        ("0:1", "0", True),
        ("0:1", "0:2", False),
        ("1", "10", False),
        ("10", "1", False),
        ("1", "10:1", False),
    ],
)
def test_two_keys_overlap_if_a_gpu_is_in_both(key: str, other_key: str, expected: bool) -> None:
    assert KEYS.is_overlapping(key, other_key) is expected


# Overlaps of times


@pytest.mark.parametrize(
    ("spans", "other_spans", "expected"),
    [
        ([(0, 2)], [(1, 3)], (1, 3)),
        ([(1, 3)], [(0, 2)], (0, 2)),
        ([(0, 1)], [(1, 2)], None),
        ([(1, 2)], [(0, 1)], None),
        ([(0, 1), (4, 6)], [(2, 3), (5, 7)], (5, 7)),
        ([(4, 6)], [(0, 1), (2, 3), (5, 7)], (5, 7)),
        ([(0, 1), (2, 3), (5, 7)], [(4, 6)], (4, 6)),
        ([(0, 2), (3, 4)], [(2, 2), (3, 5)], (3, 5)),
        ([], [(0, 1)], None),
        ([(0, 1)], [], None),
    ],
)
def test_the_first_of_the_other_spans_that_overlaps(
    spans: Sequence[TimeSpan], other_spans: Sequence[TimeSpan], expected: TimeSpan | None
) -> None:
    assert find_booking_span_overlap(spans, other_spans) == expected


# Conflicts


@pytest.mark.parametrize(
    ("new", "other", "expected"),
    [
        pytest.param(booking(begins=1, ends=3), booking(begins=2, ends=4), hours(2, 4), id="overlap"),
        pytest.param(booking(begins=1, ends=2), booking(begins=2, ends=3), None, id="one after the other"),
        pytest.param(booking(begins=1, ends=3), booking(begins=2, ends=4, gpu="1"), None, id="another GPU"),
        pytest.param(booking(begins=1, ends=3), booking(begins=2, ends=4, host="zeus"), None, id="another host"),
        pytest.param(booking(begins=1, ends=3, gpu="*"), booking(begins=2, ends=4), hours(2, 4), id="whole host"),
        pytest.param(booking(), booking(begins=-1, ends=0), None, id="it ends this moment"),
        pytest.param(booking(), booking(), (-math.inf, NOW + 2 * HOUR), id="both from ever"),
        pytest.param(booking(begins=-2, ends=1), booking(begins=-2, ends=-1), None, id="the past does not count"),
        pytest.param(daily(), booking(begins=49, ends=50), hours(49, 50), id="a repeat"),
        pytest.param(booking(begins=49, ends=50), daily(), hours(49, 50), id="of a repeat"),
        pytest.param(booking(begins=50, ends=51), daily(), None, id="between repeats"),
        pytest.param(daily(), daily(begins=1.5, ends=3), hours(1.5, 3), id="two that repeat"),
        pytest.param(daily(), daily(begins=2, ends=3), None, id="two that repeat, one after the other"),
        pytest.param(daily(), daily(begins=-47, ends=-46), hours(1, 2), id="one that has long begun"),
        pytest.param(daily(), daily(begins=721, ends=722), hours(721, 722), id="one that begins in a month"),
    ],
)
def test_a_conflict_is_a_booking_of_the_same_gpu_at_the_same_time(
    new: Booking, other: Booking, expected: TimeSpan | None
) -> None:
    conflict = find_conflict(new, [other], KEYS, now())
    assert conflict == (None if expected is None else (other, expected))


def test_the_first_booking_in_conflict_is_found_behind_others_that_are_not() -> None:
    others = [booking(host="zeus"), booking(begins=-3, ends=-1), booking(gpu="1"), booking(begins=5, ends=6)]
    taken = booking("bob", begins=1, ends=3)
    assert find_conflict(booking(begins=1, ends=3), [*others, taken], KEYS, now()) == (taken, hours(1, 3))


def test_two_that_repeat_are_compared_for_a_year_from_where_both_have_begun() -> None:
    yearly = booking("bob", 24 * 400, 24 * 400 + 1, rrule="FREQ=YEARLY")
    for new in (daily(begins=0.5), daily(begins=24 * 400 + 0.5, ends=24 * 400 + 2)):
        conflict = find_conflict(new, [yearly], KEYS, now())
        assert conflict and conflict[0] == yearly
    every_second_year = booking("alice", 1, 2, rrule="FREQ=YEARLY;INTERVAL=2")
    every_third_year = booking("bob", 24 * 365 + 1, 24 * 365 + 2, rrule="FREQ=YEARLY;INTERVAL=3")
    assert find_conflict(every_second_year, [every_third_year], KEYS, now()) is None  # they meet in four years


def test_one_that_repeats_is_compared_with_a_long_one_to_its_end() -> None:
    every_second_year = booking("bob", -24 * 300, -24 * 300 + 1, rrule="FREQ=YEARLY;INTERVAL=2")
    long = booking("alice", 1, 24 * 500)
    assert find_conflict(long, [every_second_year], KEYS, now())


def test_what_somebody_had_since_a_booking_was_given_up_is_a_conflict() -> None:
    other = booking("bob", begins=-3, ends=-1)
    new = booking("alice", begins=-4, ends=2)
    assert find_conflict(new, [other], KEYS, now()) is None
    assert find_conflict(new, [other], KEYS, now(), NOW - 2 * HOUR) == (other, hours(-3, -1))
    assert find_conflict(new, [other], KEYS, now(), NOW - 1 * HOUR) is None
    assert find_conflict(new, [other], KEYS, now(), NOW + HOUR) is None  # given up later than now counts from now


def refuse_conflict(new: Booking, other: Booking, *, names_shown: bool = True, given_up: float | None = None) -> str:
    with pytest.raises(BookingRefusedError) as raised:
        check_booking_conflicts(new, [other], KEYS, now(), names_shown, given_up)
    return str(raised.value)


def test_a_conflict_is_refused_with_the_gpu_the_name_and_the_time() -> None:
    other = booking("bob", begins=2, ends=4, id="k7m2xp")
    new = booking(begins=1, ends=3)
    assert refuse_conflict(new, other) == "atlas:0 is booked by bob from 14:00 until 16:00 (booking k7m2xp)"
    hidden = "atlas:0 is booked from 14:00 until 16:00 (booking k7m2xp)"
    assert refuse_conflict(new, other, names_shown=False) == hidden
    assert refuse_conflict(new, replace(other, name="")) == hidden
    assert refuse_conflict(new, replace(other, since=None)) == "atlas:0 is booked by bob until 16:00 (booking k7m2xp)"


def test_a_conflict_of_a_whole_host_names_the_gpu_that_is_booked() -> None:
    other = booking("bob", begins=2, ends=4, gpu="1", id="k7m2xp")
    assert refuse_conflict(booking(begins=1, ends=3, gpu="*"), other).startswith("atlas:1 is booked")
    whole = replace(other, gpu="*")
    assert refuse_conflict(booking(begins=1, ends=3), whole).startswith("atlas:0 is booked")


def test_a_conflict_that_is_over_was_one() -> None:
    other = booking("bob", begins=-3, ends=-1, id="k7m2xp")
    refusal = refuse_conflict(booking(begins=-4, ends=2), other, given_up=NOW - 2 * HOUR)
    assert refusal == "atlas:0 was booked by bob from 09:00 until 11:00 (booking k7m2xp)"


def test_a_conflict_that_ends_this_moment_was_one() -> None:
    other = booking("bob", begins=-3, ends=0, id="k7m2xp")
    refusal = refuse_conflict(booking(begins=-4, ends=2), other, given_up=NOW - 2 * HOUR)
    assert refusal == "atlas:0 was booked by bob from 09:00 until 12:00 (booking k7m2xp)"


def test_without_a_conflict_nothing_is_refused() -> None:
    check_booking_conflicts(booking(begins=1, ends=2), [booking(begins=2, ends=3)], KEYS, now(), names_shown=True)


def test_gpus_are_named_by_their_hosts() -> None:
    places = [("atlas", "0"), ("zeus", "1"), ("atlas", "1"), ("zeus", "*")]
    assert format_booking_places(places) == "atlas:0,1 and zeus"


# Limits of a booking


def refuse_limits(since: datetime, until: datetime, **limits: float) -> str:
    with pytest.raises(BookingRefusedError) as raised:
        check_policy_limits(since, until, BookingPolicy(**limits), now())  # type: ignore[arg-type]
    return str(raised.value)


def after(**time: float) -> datetime:
    return NOON + timedelta(**time)


@pytest.mark.parametrize(
    ("since", "until", "limits", "why"),
    [
        (after(hours=2), after(hours=1), {}, "the end (13:00) is before the start (14:00)"),
        (after(hours=1), after(hours=1), {}, "the end (13:00) is before the start (13:00)"),
        (after(hours=-2), after(hours=-1), {}, "the end (11:00) is in the past"),
        (after(hours=-2), after(), {}, "the end (12:00) is in the past"),
        (
            after(),
            after(hours=2, minutes=1),
            {"max_duration_s": 2 * HOUR},
            "a booking may last 2 h at most; this one would last 2 h 1 min",
        ),
        (
            after(),
            after(seconds=2),
            {"max_duration_s": 1},
            "a booking may last 1 min at most; this one would last 1 min",
        ),
        (
            after(days=2, minutes=1),
            after(days=3),
            {"max_ahead_s": 2 * DAY},
            "bookings can start 2 d ahead at most; this one would start Wed 12:01",
        ),
        (
            after(seconds=2),
            after(days=3),
            {"max_ahead_s": 1},
            "bookings can start 1 min ahead at most; this one would start 12:00",
        ),
        (after(), datetime(2201, 1, 2, tzinfo=PARIS), {}, "2201-01-02 is outside the years 1970 to 2200"),
        (datetime(1969, 1, 2, tzinfo=PARIS), after(hours=1), {}, "1969-01-02 is outside the years 1970 to 2200"),
        (
            after(),
            datetime(2200, 12, 31, 23, 30, tzinfo=timezone.utc),
            {},
            "2200-12-31 is outside the years 1970 to 2200",  # in Paris
        ),
    ],
)
def test_a_booking_beyond_a_limit_is_refused_with_the_reason(
    since: datetime, until: datetime, limits: dict[str, float], why: str
) -> None:
    assert refuse_limits(since, until, **limits) == why


@pytest.mark.parametrize(
    ("since", "until", "limits"),
    [
        (after(hours=-2), after(seconds=1), {}),
        (after(), after(hours=2), {"max_duration_s": 2 * HOUR}),
        (after(days=2), after(days=3), {"max_ahead_s": 2 * DAY}),
        (after(days=900), after(days=1900), {}),
    ],
)
def test_a_booking_within_its_limits_is_not_refused(since: datetime, until: datetime, limits: dict[str, float]) -> None:
    check_policy_limits(since, until, BookingPolicy(**limits), now())  # type: ignore[arg-type]


# What a person has together


def check_together(new: Sequence[Booking], others: Sequence[Booking], **limits: float) -> str:
    """Return why the bookings together are refused; empty where they are not."""
    try:
        check_share(new, others, lambda item: 4 if item.gpu == "*" else 1, BookingPolicy(**limits), now())  # type: ignore[arg-type]
    except BookingRefusedError as error:
        return str(error)
    return ""


TOO_MANY = "one person may book {} GPUs at a time; this would make {}"


@pytest.mark.parametrize(
    ("new", "others", "limit", "peak"),
    [
        pytest.param([booking(begins=1)], [], 1, 0, id="as many as allowed"),
        pytest.param([booking(begins=1), booking(begins=1, gpu="1")], [], 1, 2, id="two at once"),
        pytest.param([booking(begins=1)], [booking(begins=1, gpu="1")], 1, 2, id="beside an earlier one"),
        pytest.param([booking(begins=1, ends=3)], [booking(begins=2, ends=4)], 1, 2, id="that begins later"),
        pytest.param([booking(begins=2, ends=3)], [booking(begins=1, ends=2)], 1, 0, id="one after the other"),
        pytest.param([booking(begins=1, ends=2)], [booking(begins=2, ends=3)], 1, 0, id="one before the other"),
        pytest.param(
            [booking(begins=1, ends=2)],
            [booking(begins=2, ends=3), booking(begins=2, ends=3, gpu="1")],
            1,
            0,
            id="too many after it",
        ),
        pytest.param([booking(begins=1, gpu="*")], [], 3, 4, id="a whole host"),
        pytest.param([booking(begins=-2)], [booking(begins=-3, ends=-1)], 1, 0, id="the past does not count"),
        pytest.param([booking(begins=5, ends=6)], [booking(), booking(gpu="1")], 1, 0, id="too many before it"),
        pytest.param([booking(), booking(begins=5, ends=6)], [booking(gpu="*")], 4, 5, id="the most of all moments"),
        pytest.param([daily()], [booking(begins=49, ends=50)], 1, 2, id="a repeat"),
        pytest.param([booking(begins=49, ends=50)], [daily()], 1, 2, id="beside a repeat"),
        pytest.param([booking(begins=720, ends=721)], [daily(begins=0, ends=1)], 1, 2, id="a month ahead"),
        pytest.param([booking(begins=24, ends=26)], [daily(begins=-23, ends=-22)], 1, 2, id="beside an old series"),
    ],
)
def test_a_person_has_no_more_gpus_at_a_time_than_allowed(
    new: list[Booking], others: list[Booking], limit: int, peak: int
) -> None:
    assert check_together(new, others, max_gpus=limit) == (TOO_MANY.format(limit, peak) if peak else "")


TOO_LONG = "one person may book {} GPU-hours; this would make {}"


@pytest.mark.parametrize(
    ("new", "others", "limit", "total"),
    [
        pytest.param([booking(begins=1, ends=3)], [], 2, 0, id="as many as allowed"),
        pytest.param([booking(begins=1, ends=3)], [booking(begins=5, ends=6)], 2, 3, id="with earlier ones"),
        pytest.param([booking(begins=1, ends=3, gpu="*")], [], 7, 8, id="a whole host"),
        pytest.param([booking(begins=-5, ends=3)], [booking(begins=-9, ends=-1)], 3, 0, id="only what is left"),
        pytest.param([booking(begins=None, ends=3)], [], 2, 3, id="from ever"),
        pytest.param([daily()], [], 27, 28, id="what repeats, for four weeks"),
        pytest.param([daily(begins=-47, ends=-46)], [], 27, 28, id="what has long begun, for four weeks"),
        pytest.param([daily(begins=49, ends=50)], [], 27, 28, id="what begins later, for four weeks from there"),
        pytest.param([booking(begins=1, ends=1.5)], [], 0.25, 0.5, id="minutes"),
    ],
)
def test_a_person_has_no_more_gpu_hours_than_allowed(
    new: list[Booking], others: list[Booking], limit: float, total: float
) -> None:
    expected = TOO_LONG.format(f"{limit:.0f}", f"{total:.0f}") if total else ""
    assert check_together(new, others, max_gpu_hours=limit) == expected


def test_without_limits_nobody_has_too_much() -> None:
    assert check_together([daily(gpu="*")] * 9, []) == ""


# The past


def test_a_start_may_be_five_minutes_in_the_past() -> None:
    refuse_past_start(after(minutes=-5), now())
    with pytest.raises(BookingRefusedError) as raised:
        refuse_past_start(after(minutes=-5, seconds=-1), now())
    assert str(raised.value) == "the start (11:54) is in the past"


def test_an_ended_booking_is_not_touched() -> None:
    refuse_ended_booking(booking(begins=-2, ends=0.1), now())
    refuse_ended_booking(daily(begins=-48, ends=-47), now())
    with pytest.raises(BookingRefusedError) as raised:
        refuse_ended_booking(booking(begins=-2, ends=-1, id="k7m2xp"), now())
    assert str(raised.value) == "booking k7m2xp ended 11:00 and can no longer change"
