"""What happened to GPUs between two looks: each kind, and its near miss."""

from __future__ import annotations

from datetime import timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.formatting import DAY, HOUR
from site_builder.health import events
from site_builder.health.events import LATE_SNAPSHOT_S, MAX_COUNT, MAX_GONE_GPUS, REJOIN_WITHIN_S, find_health_events
from site_builder.health.model import (
    BEFORE_FIRST_CHECK,
    COUNT_NAMES,
    SPAN_KINDS,
    GpuHealthMetrics,
    HealthCheckTimes,
    HealthEvent,
    HostHealthMetrics,
)
from tests.support.health_fixtures import NOON, A, B, Watch, gpu, said

# Nothing


def test_a_host_that_is_well_has_no_events() -> None:
    watch = Watch(gpu(), gpu(B, index=1, bus="20:00.0"))
    assert watch.look(gpu(), gpu(B, index=1, bus="20:00.0")) == []
    assert watch.told == {}


def test_what_is_counted_before_the_first_look_is_no_event() -> None:
    assert Watch(gpu(uncorrected=7, rows_corrected=3)).told == {}


def test_what_went_on_before_the_first_look_began_before_it() -> None:
    watch = Watch(gpu(failed=True))
    assert (watch.only.kind, watch.only.began_at, watch.only.began_after) == ("failed", NOON, BEFORE_FIRST_CHECK)
    assert said(watch.only) == "since 10 Mar 2026 12:00 or earlier: a memory repair failed"


# Lost and back


def test_a_lost_gpu_is_reported_once_and_until_when() -> None:
    watch = Watch(gpu())
    for _ in range(3):
        watch.look(gpu(lost="GPU is lost"))
    assert said(watch.only) == "since 10 Mar 2026 12:01: lost: the driver could not reach it: GPU is lost"
    watch.look(gpu())
    assert said(watch.only) == "10 Mar 2026 12:01 – 12:04: lost: the driver could not reach it: GPU is lost"
    assert events.format_event_duration(watch.only) == "3 min"


def test_a_gpu_that_is_lost_again_within_minutes_is_lost_once() -> None:
    watch = Watch(gpu())
    for _ in range(8):
        watch.look(gpu(lost="GPU is lost"))
        watch.look(gpu())
    assert (watch.only.began_at, watch.only.ended_at) == (NOON + 60, NOON + 16 * 60)


def test_a_gpu_that_is_lost_again_later_is_lost_twice() -> None:
    watch = Watch(gpu())
    watch.look(gpu(lost="GPU is lost"))
    watch.look(gpu())
    watch.look(gpu(), after=REJOIN_WITHIN_S)
    watch.look(gpu(lost="GPU is lost"))
    assert watch.kinds == ["lost", "lost"]


@pytest.mark.parametrize("place", [{"bus": "17:00.0", "index": None}, {"bus": None, "index": 0}])
def test_a_lost_gpu_that_reports_no_name_is_the_one_that_sat_there(place: dict[str, Any]) -> None:
    watch = Watch(gpu(), gpu(B, index=1, bus="20:00.0"))
    nameless = gpu("index 0", lost="Unknown Error", recovery=None, **place)
    watch.look(nameless, gpu(B, index=1, bus="20:00.0"))
    assert (watch.only.gpu_key, watch.only.index, watch.only.kind) == (A, 0, "lost")
    watch.look(gpu(), gpu(B, index=1, bus="20:00.0"))
    assert watch.only.ended_at == NOON + 120


def test_a_gpu_that_had_no_name_at_first_gets_its_own_when_it_is_back() -> None:
    watch = Watch(gpu("index 0", lost="Unknown Error"))
    watch.look(gpu())
    assert (watch.only.gpu_key, watch.only.kind, watch.only.ended_at) == (A, "lost", NOON + 60)


def test_a_gpu_without_a_name_that_is_not_lost_is_not_taken_for_another() -> None:
    watch = Watch(gpu())
    watch.look(gpu("index 0"))
    assert watch.kinds == ["new", "gone"]


# Gone, new, moved


def test_a_gpu_that_is_gone_and_back_is_so_once() -> None:
    watch = Watch(gpu(), gpu(B, index=1, bus="20:00.0"))
    watch.look(gpu())
    assert (watch.only.gpu_key, watch.only.kind, watch.only.ended_at) == (B, "gone", None)
    watch.look(gpu(), gpu(B, index=1, bus="20:00.0"), after=DAY)
    assert watch.kinds == ["gone"]
    assert watch.only.ended_at is not None


def test_a_gpu_that_is_gone_again_long_after_is_gone_since_then() -> None:
    watch = Watch(gpu(), gpu(B, index=1))
    watch.look(gpu())
    watch.look(gpu(), gpu(B, index=1))
    watch.at += 5 * HOUR
    watch.look(gpu())
    assert watch.kinds == ["gone", "gone"]
    assert watch.told[2].began_at == watch.at


def test_a_gpu_that_comes_says_where_it_was() -> None:
    watch = Watch(gpu())
    watch.look(gpu(), gpu(B, index=1), where={B: "hydra"})
    assert said(watch.only) == "10 Mar 2026 12:01: new in this host, previously in hydra"


def test_what_was_wrong_with_a_gpu_that_is_gone_is_over() -> None:
    watch = Watch(gpu(), gpu(B, index=1))
    watch.look(gpu(), gpu(B, index=1, failed=True))
    watch.look(gpu())
    assert [(event.kind, event.ended_at) for event in watch.told.values()] == [("failed", NOON + 120), ("gone", None)]


def test_a_gpu_whose_row_could_not_be_understood_is_not_said_to_be_gone() -> None:
    watch = Watch(gpu(), gpu(B, index=1))
    assert watch.look(gpu(), whole=False) == []
    assert watch.look(gpu(), gpu(B, index=1)) == []
    watch.look(gpu())
    assert watch.only.kind == "gone"


def test_a_limited_number_of_gone_gpus_is_remembered() -> None:
    watch = Watch(gpu())
    for number in range(3 * MAX_GONE_GPUS):
        watch.look(gpu(), gpu(f"GPU-{number}", index=1))
    assert watch.state
    assert len(watch.state.gpus) == 2 + MAX_GONE_GPUS


# Counts


@pytest.mark.parametrize("name", [name for name in COUNT_NAMES if not name.endswith("_ever")])
def test_a_count_that_rises_is_reported_with_how_much(name: str) -> None:
    watch = Watch(gpu(**{name: 3}))
    watch.look(gpu(**{name: 5, **({f"{name}_ever": 2} if f"{name}_ever" in COUNT_NAMES else {})}))
    assert watch.only.kind == name
    assert watch.only.value[0] == 2
    assert "2 more" in events.describe_event(watch.only)


def test_counts_that_rise_again_within_minutes_are_one_event() -> None:
    watch = Watch(gpu())
    for number in range(1, 6):
        watch.look(gpu(rows_uncorrected=number))
    assert said(watch.only) == (
        "10 Mar 2026 12:01 – 12:05: memory rows remapped after uncorrected errors: 5 more (now 5)"
    )
    assert events.format_event_duration(watch.only) is None


def test_counts_that_never_cease_to_rise_are_reported_day_by_day() -> None:
    watch = Watch(gpu())
    for number in range(1, 3 * DAY // 300):
        watch.look(gpu(corrected=number, corrected_ever=number), after=300)
    assert watch.kinds == ["corrected"] * 3
    assert sum(int(event.value[0] or 0) for event in watch.told.values()) == 3 * DAY // 300 - 1


def test_a_count_since_the_driver_was_loaded_that_begins_again_is_no_event() -> None:
    watch = Watch(gpu(uncorrected=9, uncorrected_ever=None))
    assert watch.look(gpu(uncorrected=0, uncorrected_ever=None)) == []
    watch.look(gpu(uncorrected=2, uncorrected_ever=None))
    assert watch.only.value == (2, 2)


def test_after_a_new_start_of_the_driver_what_came_since_counts() -> None:
    watch = Watch(gpu(uncorrected=9, uncorrected_ever=None))
    watch.look(gpu(uncorrected=2, uncorrected_ever=None))
    assert watch.only.value == (2, 2)


def test_rows_and_pages_never_begin_again() -> None:
    watch = Watch(gpu(rows_corrected=9, pages_uncorrected=4))
    assert watch.look(gpu(rows_corrected=2, pages_uncorrected=1)) == []


def test_an_error_in_two_counters_is_one_event() -> None:
    watch = Watch(gpu(uncorrected=0, uncorrected_ever=40))
    watch.look(gpu(uncorrected=1, uncorrected_ever=41))
    watch.look(gpu(uncorrected=0, uncorrected_ever=41))
    assert watch.only.value == (1, 41)


def test_an_error_is_one_event_if_one_of_its_counters_comes_and_goes() -> None:
    watch = Watch(gpu(uncorrected=0, uncorrected_ever=40))
    watch.look(gpu(uncorrected=1, uncorrected_ever=None))
    watch.look(gpu(uncorrected=1, uncorrected_ever=41))
    assert watch.only.value == (1, 1)


def test_a_count_that_is_not_available_is_no_event_and_no_zero() -> None:
    watch = Watch(gpu(uncorrected=5, uncorrected_ever=5))
    nothing = dict.fromkeys(COUNT_NAMES)
    assert watch.look(gpu(**nothing)) == []
    assert watch.look(gpu(uncorrected=5, uncorrected_ever=5)) == []
    watch.look(gpu(**nothing))
    watch.look(gpu(uncorrected=7, uncorrected_ever=7))
    assert watch.only.value == (2, 7)


def test_counts_that_nobody_can_believe_stay_within_bounds() -> None:
    watch = Watch(gpu())
    for _ in range(40):
        watch.look(gpu(corrected_ever=MAX_COUNT - 1, corrected=0))
        watch.look(gpu())
    assert watch.only.value[0] == MAX_COUNT


# What lasts


@pytest.mark.parametrize(
    ("sign", "kind"),
    [
        ({"pending": True}, "pending"),
        ({"failed": True}, "failed"),
        ({"recovery": "Reset"}, "recovery"),
        ({"heat": True}, "heat"),
        ({"hot": (93, 92)}, "hot"),
        ({"power": True}, "power"),
    ],
)
def test_each_health_metric_has_begin_and_end(sign: dict[str, Any], kind: str) -> None:
    watch = Watch(gpu())
    watch.look(gpu(**sign))
    watch.look(gpu(**sign))
    watch.look(gpu())
    assert (watch.only.kind, watch.only.began_at, watch.only.ended_at) == (kind, NOON + 60, NOON + 180)
    assert kind in SPAN_KINDS
    assert events.format_event_duration(watch.only) == "2 min"


@pytest.mark.parametrize("sign", ["pending", "failed", "recovery"])
def test_a_needed_reset_continues_while_it_is_not_reported(sign: str) -> None:
    watch = Watch(gpu())
    watch.look(gpu(**{sign: "Reset" if sign == "recovery" else True}))
    assert watch.look(gpu(**{sign: None})) == []
    assert watch.only.ended_at is None


@pytest.mark.parametrize("sign", ["heat", "power", "hot"])
def test_a_passing_problem_ends_when_it_is_not_reported(sign: str) -> None:
    watch = Watch(gpu())
    watch.look(gpu(**{sign: (95, 90) if sign == "hot" else True}))
    watch.look(gpu(**{sign: None}))
    assert watch.only.ended_at == NOON + 120


def test_a_hot_gpu_event_has_the_highest_temperature() -> None:
    watch = Watch(gpu())
    for degrees in (91, 95, 92):
        watch.look(gpu(hot=(degrees, 90)))
    assert events.describe_event(watch.only) == "too hot: up to 95 °C (limit 90 °C)"


def test_power_limit_time_is_summed_up() -> None:
    watch = Watch(gpu())
    for _ in range(4):
        for on in (True, True, False):
            watch.look(gpu(power=on))
        watch.look(gpu(), after=HOUR)
    assert events.describe_event(watch.only) == "power-throttled, 4 times, 8 min in total"
    assert (watch.only.value[0], watch.only.value[1]) == (4, 480)
    watch.look(gpu(power=True))
    assert events.describe_event(watch.only) == "power-throttled, 5 times, ongoing"


def test_power_limit_time_is_reported_by_day() -> None:
    watch = Watch(gpu())
    for number in range(3 * 24 * 6):
        watch.look(gpu(power=bool(number % 2)), after=600)
    assert watch.kinds == ["power"] * 3


def test_the_driver_of_the_host_is_reported_where_it_changes() -> None:
    watch = Watch(gpu())
    assert watch.look(gpu(), driver=None) == []
    assert watch.look(gpu()) == []
    watch.look(gpu(), driver="595.7")
    assert (watch.only.gpu_key, events.describe_event(watch.only)) == ("", "driver changed from 590.1 to 595.7")


# Where nobody looked


def test_what_came_where_nobody_looked_came_between() -> None:
    watch = Watch(gpu())
    watch.look(gpu(failed=True), after=2 * HOUR)
    assert said(watch.only).startswith("since between 10 Mar 2026 12:00 and 14:00:")
    watch.look(gpu(), after=DAY)
    assert said(watch.only).startswith(
        "from between 10 Mar 2026 12:00 and 14:00 until between 14:00 and 11 Mar 2026 14:00:"
    )
    assert events.format_event_duration(watch.only) is None


def test_a_passing_problem_does_not_continue_over_a_gap() -> None:
    watch = Watch(gpu())
    watch.look(gpu(heat=True))
    watch.look(gpu(heat=True), after=3 * HOUR)
    assert [(event.ended_at, event.ended_before, event.began_after) for event in watch.told.values()] == [
        (NOON + 60, NOON + 60 + 3 * HOUR, None),
        (None, None, NOON + 60),
    ]


def test_a_lasting_problem_continues_over_a_gap() -> None:
    watch = Watch(gpu())
    watch.look(gpu(lost="GPU is lost"))
    assert watch.look(gpu(lost="GPU is lost"), after=3 * DAY) == []


def test_the_power_limit_counts_only_while_somebody_looked() -> None:
    watch = Watch(gpu())
    watch.look(gpu(power=True))
    watch.look(gpu(power=True), after=HOUR)
    watch.look(gpu())
    assert watch.only.value[:2] == (2, 60)


# Clocks and builders that are late


def test_a_snapshot_that_is_older_than_the_last_one_reports_nothing() -> None:
    watch = Watch(gpu())
    watch.look(gpu(failed=True))
    late = HealthCheckTimes("atlas", watch.at + 20, watch.at, float(watch.at - 30))
    assert find_health_events(watch.state, HostHealthMetrics("590.1", (gpu(),)), late, {}) == (watch.state, [])


def test_a_clock_that_was_set_back_is_believed() -> None:
    watch = Watch(gpu())
    watch.look(gpu(failed=True), after=365 * DAY)
    back = HealthCheckTimes("atlas", NOON + 120, NOON + 60, float(NOON + 120))
    state, found = find_health_events(watch.state, HostHealthMetrics("590.1", (gpu(failed=True, heat=True),)), back, {})
    assert [(event.kind, event.began_at) for event in found] == [("failed", NOON + 120), ("heat", NOON + 120)]
    later = HealthCheckTimes("atlas", NOON + 120 + LATE_SNAPSHOT_S, NOON + 120, float(NOON + 120 + LATE_SNAPSHOT_S))
    assert [
        event.kind for event in find_health_events(state, HostHealthMetrics("590.1", (gpu(failed=True),)), later, {})[1]
    ] == ["heat"]


# Whatever a host tells

KEYS = st.sampled_from([A, B, "index 0", "index None"])
COUNT = st.none() | st.integers(0, 10**15)
MAYBE = st.none() | st.booleans()
SIGNS = st.builds(
    GpuHealthMetrics,
    KEYS,
    st.none() | st.integers(0, 3),
    st.sampled_from([None, "17:00.0", "20:00.0"]),
    st.sampled_from([None, "GPU is lost"]),
    st.tuples(*[COUNT] * len(COUNT_NAMES)),
    st.sampled_from([None, "", "Reset"]),
    MAYBE,
    MAYBE,
    MAYBE,
    MAYBE,
    st.sampled_from([None, (), (95, 90), (120, 90)]),
)
GPUS = st.lists(SIGNS, max_size=3, unique_by=lambda one: one.key).map(tuple)
STEPS = st.integers(-2 * DAY, 2 * DAY) | st.sampled_from([0, 60, 300, 660, 366 * DAY, -366 * DAY])
LOOKS = st.lists(
    st.tuples(STEPS, st.none() | st.integers(0, 2 * DAY), st.sampled_from([None, "1", "2"]), GPUS, st.booleans()),
    max_size=8,
)


@pytest.mark.slow
@given(LOOKS)
def test_no_event_ends_before_it_begins_or_is_reported_twice(looks: list[Any]) -> None:
    state, at = None, NOON
    kept: dict[int, HealthEvent] = {}
    for step, gap, driver, gpus, whole in looks:
        at += step // 60 * 60
        look = HealthCheckTimes("atlas", at, None if gap is None else at - gap, float(at))
        signs = HostHealthMetrics(driver, gpus, whole)
        number = state.last_event_number if state else 0
        after, found = find_health_events(state, signs, look, {})
        assert len({event.number for event in found}) == len(found)
        assert [event.number for event in found if event.number > number] == sorted(
            event.number for event in found if event.number > number
        )
        for event in found:
            earlier_event = kept.get(event.number)
            assert earlier_event is None or earlier_event.kind == event.kind
            assert event.ended_at is None or event.ended_at >= event.began_at
            assert event.ended_before is None or (event.ended_at is not None and event.ended_before >= event.ended_at)
            assert event.began_after is None or event.began_after <= event.began_at
            assert events.describe_event(event)
            assert events.format_event_time(event, timezone.utc)
            events.format_event_duration(event)
        kept.update({event.number: event for event in found})
        again, nothing = find_health_events(after, signs, look, {})
        assert nothing == []
        assert again.last_event_number == after.last_event_number
        state = after
