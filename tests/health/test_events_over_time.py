"""What happened where nobody looked, where clocks are wrong, and that nothing is told twice, whatever a host tells."""

from __future__ import annotations

from datetime import timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from site_builder.health import events
from site_builder.health.events import DAY, HOUR, LATE_SNAPSHOT_S, compare_health
from site_builder.health.model import COUNT_NAMES, GpuHealthMetrics, HealthEvent, HostCheck, HostHealthMetrics
from tests.support.health_fixtures import NOON, A, B, Watch, gpu, said

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


def test_what_comes_and_goes_is_not_said_to_go_on_where_nobody_looked() -> None:
    watch = Watch(gpu())
    watch.look(gpu(heat=True))
    watch.look(gpu(heat=True), after=3 * HOUR)
    assert [(one.ended_at, one.ended_before, one.began_after) for one in watch.told.values()] == [
        (NOON + 60, NOON + 60 + 3 * HOUR, None),
        (None, None, NOON + 60),
    ]


def test_what_lasts_is_said_to_go_on_where_nobody_looked() -> None:
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


def test_a_snapshot_that_is_older_than_the_last_one_tells_nothing() -> None:
    watch = Watch(gpu())
    watch.look(gpu(failed=True))
    late = HostCheck("atlas", watch.at + 20, watch.at, float(watch.at - 30))
    assert compare_health(watch.state, HostHealthMetrics("590.1", (gpu(),)), late, {}) == (watch.state, [])


def test_a_clock_that_was_set_back_is_believed() -> None:
    watch = Watch(gpu())
    watch.look(gpu(failed=True), after=365 * DAY)
    back = HostCheck("atlas", NOON + 120, NOON + 60, float(NOON + 120))
    state, found = compare_health(watch.state, HostHealthMetrics("590.1", (gpu(failed=True, heat=True),)), back, {})
    assert [(one.kind, one.began_at) for one in found] == [("failed", NOON + 120), ("heat", NOON + 120)]
    later = HostCheck("atlas", NOON + 120 + LATE_SNAPSHOT_S, NOON + 120, float(NOON + 120 + LATE_SNAPSHOT_S))
    assert [
        one.kind for one in compare_health(state, HostHealthMetrics("590.1", (gpu(failed=True),)), later, {})[1]
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


@settings(deadline=None)
@given(LOOKS)
def test_whatever_is_told_no_event_ends_before_it_begins_and_none_is_told_twice(looks: list[Any]) -> None:
    state, at = None, NOON
    kept: dict[int, HealthEvent] = {}
    for step, gap, driver, gpus, whole in looks:
        at += step // 60 * 60
        look = HostCheck("atlas", at, None if gap is None else at - gap, float(at))
        signs = HostHealthMetrics(driver, gpus, whole)
        number = state.last_event_number if state else 0
        after, found = compare_health(state, signs, look, {})
        assert len({one.number for one in found}) == len(found)
        assert [one.number for one in found if one.number > number] == sorted(
            one.number for one in found if one.number > number
        )
        for one in found:
            known = kept.get(one.number)
            assert known is None or known.kind == one.kind
            assert one.ended_at is None or one.ended_at >= one.began_at
            assert one.ended_before is None or (one.ended_at is not None and one.ended_before >= one.ended_at)
            assert one.began_after is None or one.began_after <= one.began_at
            assert events.describe_event(one)
            assert events.format_event_time(one, timezone.utc)
            events.format_event_duration(one)
        kept.update({one.number: one for one in found})
        again, nothing = compare_health(after, signs, look, {})
        assert nothing == []
        assert again.last_event_number == after.last_event_number
        state = after
