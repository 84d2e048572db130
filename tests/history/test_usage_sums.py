"""Who had how much: sums that a lab can bill by."""

from __future__ import annotations

from collections import Counter
from datetime import date, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from site_builder.core.formatting import DAY, HOUR
from site_builder.history.block_format import PackedSample
from site_builder.history.model import GPU_STATES
from site_builder.history.usage_sums import UNITS_PER_MINUTE
from site_builder.history.writer import HistoryWriter
from tests.support.history_fixtures import A100, epoch, gpu, host, minutes, record, roll, used
from tests.support.hypothesis_profiles import examples

PARIS, KOLKATA = ZoneInfo("Europe/Paris"), ZoneInfo("Asia/Kolkata")
MARCH = (date(2026, 3, 1), date(2026, 3, 31))
NOON = epoch("2026-03-10T12:00")
LATE = NOON + 30 * DAY


@pytest.mark.parametrize("rolled", [False, True])
def test_a_fleet_that_was_added_up_by_hand(history: HistoryWriter, rolled: bool) -> None:
    """Ninety minutes of four GPUs; each sum below was worked out on paper."""
    first = [
        host(
            gpu("busy", ["alice"], index=0, use=80),
            gpu("held", ["alice", "bob"], index=1, use=0),
            gpu("booked", [], ["carol"], index=2),
            gpu("free", index=3),
        )
    ]
    then = [
        host(
            gpu("conflict", ["bob"], ["carol"], index=0, use=60),
            gpu("busy", ["alice", "bob", "carol"], index=1, use=50),
            gpu("busy", ["carol"], ["carol"], index=2, use=None),
            gpu("lost", [], ["dave"], index=3, use=None),
        )
    ]
    last = [host(gpu("busy", [], index=0, use=10), gpu("unknown", index=1, use=None))]
    record(history, NOON, 40, first)
    record(history, NOON + 40 * 60, 30, then)
    record(history, NOON + 70 * 60, 20, last)
    if rolled:
        roll(history, LATE)
    daily_usage = history.read_daily_usage(*MARCH, LATE)
    assert used(daily_usage) == {"alice": 40 + 20 + 10, "bob": 20 + 30 + 10, "carol": 10 + 30}
    assert used(daily_usage, "held") == {"alice": 20, "bob": 20}
    assert used(daily_usage, "booked") == {"carol": 40 + 30 + 30, "dave": 30}
    assert used(daily_usage, "unused") == {"carol": 40 + 30}
    (row,) = daily_usage.seen
    assert row.seen._asdict() == {
        "seen": 160 + 120 + 40,
        "unknown": 20,
        "lost": 30,
        "conflict": 30,
        "held": 40,
        "busy": 40 + 30 + 30 + 20,
        "booked": 40,
        "free": 40,
        "unowned": 20,
        "told": 160 + 60 + 20,
        "use": 2 * (40 * 80 + 30 * 60 + 30 * 50 + 20 * 10),
        "taken_told": 40 + 40 + 30 + 30 + 20,
        "taken_use": 2 * (40 * 80 + 30 * 60 + 30 * 50 + 20 * 10),
    }
    assert {(seen_day.day, seen_day.host, seen_day.model) for seen_day in daily_usage.seen} == {
        (date(2026, 3, 10), "atlas", A100)
    }


def test_minutes_of_a_gap_belong_to_nobody(history: HistoryWriter) -> None:
    record(history, NOON, 10, [host(gpu("busy", ["alice"]))])
    record(history, NOON + 3000, 10, [host(gpu("busy", ["alice"]))])
    roll(history, LATE)
    daily_usage = history.read_daily_usage(*MARCH, LATE)
    assert used(daily_usage) == {"alice": 20}
    assert minutes(daily_usage) == 20


def test_a_gpu_does_not_count_while_it_is_not_seen(history: HistoryWriter) -> None:
    here = [host(gpu("busy", ["alice"])), host(gpu("busy", ["bob"]), name="hydra")]
    record(history, NOON, 60, lambda number: here[: 1 if 20 <= number < 50 else 2])
    roll(history, LATE)
    assert used(history.read_daily_usage(*MARCH, LATE)) == {"alice": 60, "bob": 30}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("day", "hours"), [("2026-10-24", 24), ("2026-10-25", 25), ("2026-10-26", 24), ("2026-03-29", 23)]
)
def test_days_follow_the_local_clock(state: Path, day: str, hours: int) -> None:
    history = HistoryWriter(state, PARIS)
    start = epoch(f"{day}T00:00", PARIS) - 2 * HOUR
    record(history, start, 29 * 60, [host(gpu("busy", ["alice"]))])
    roll(history, start + 3 * DAY)
    only = date.fromisoformat(day)
    assert used(history.read_daily_usage(only, only, start + 3 * DAY)) == {"alice": hours * 60}
    history.close()


def test_months_follow_the_local_clock(state: Path) -> None:
    history = HistoryWriter(state, PARIS)
    end = epoch("2026-11-01T00:00", PARIS)
    record(history, end - 600, 15, [host(gpu("busy", ["alice"]))])
    for _ in range(2):
        october = history.read_daily_usage(date(2026, 10, 1), date(2026, 10, 31), end + DAY)
        november = history.read_daily_usage(date(2026, 11, 1), date(2026, 11, 30), end + DAY)
        assert (used(october), used(november)) == ({"alice": 10}, {"alice": 5})
        roll(history, end + DAY)
    history.close()


def test_midnight_may_be_at_half_past(state: Path) -> None:
    history = HistoryWriter(state, KOLKATA)
    midnight = epoch("2026-03-11T00:00", KOLKATA)
    assert midnight % HOUR == 1800
    record(history, midnight - 600, 30, [host(gpu("busy", ["alice"]))])
    roll(history, midnight + DAY)
    minutes_by_day = {
        row.day.day: row.share.used / UNITS_PER_MINUTE
        for row in history.read_daily_usage(*MARCH, midnight + DAY).shares
    }
    assert minutes_by_day == {10: 10, 11: 20}
    history.close()


def test_a_host_that_gets_another_name_is_billed_under_both_and_once(history: HistoryWriter) -> None:
    record(history, NOON, 10, [host(gpu("busy", ["alice"]), name="old")])
    record(history, NOON + 600, 10, [host(gpu("busy", ["alice"]), name="new")])
    roll(history, LATE)
    daily_usage = history.read_daily_usage(*MARCH, LATE)
    assert {row.host: row.share.used / UNITS_PER_MINUTE for row in daily_usage.shares} == {"old": 10, "new": 10}


def test_minutes_of_a_clock_that_ran_ahead_are_replaced_when_they_come(history: HistoryWriter) -> None:
    both = [host(gpu("busy", ["alice"])), host(gpu("busy", ["bob"], key="GPU-h"), name="hydra")]
    record(history, NOON + 3 * HOUR, 5, both)
    record(history, NOON, 1, both)
    record(history, NOON + 3 * HOUR, 5, both[:1])  # hydra is down
    assert used(history.read_daily_usage(*MARCH, NOON + 4 * HOUR)) == {"alice": 6, "bob": 1}


def test_models_are_kept_apart(history: HistoryWriter) -> None:
    record(history, NOON, 10, [host(gpu("busy", ["alice"]), gpu("busy", ["alice"], index=1, model="H100"))])
    roll(history, LATE)
    daily_usage = history.read_daily_usage(*MARCH, LATE)
    assert {row.model: row.share.used / UNITS_PER_MINUTE for row in daily_usage.shares} == {A100: 10, "H100": 10}


def test_usage_by_the_hour_agrees_with_usage_by_day(history: HistoryWriter) -> None:
    record(history, NOON + 1800, 60, [host(gpu("busy", ["alice", "bob"], use=50)), host(gpu(), name="hydra")])
    for _ in range(2):
        hourly_usage = history.read_hourly_usage(NOON, NOON + 2 * HOUR)
        assert (
            hourly_usage.shares[NOON, A100, "alice"].used
            == hourly_usage.shares[NOON + HOUR, A100, "bob"].used
            == 15 * UNITS_PER_MINUTE
        )
        assert hourly_usage.seen[NOON, A100].seen == 60
        assert hourly_usage.seen[NOON, A100].use == 30 * 100
        roll(history, NOON + HOUR)
        roll(history, NOON + 2 * HOUR)


def test_a_person_with_more_than_ten_companions_loses_nothing(history: HistoryWriter) -> None:
    people = [f"user{number:02}" for number in range(13)]
    record(history, NOON, 7, [host(gpu("busy", people))])
    roll(history, LATE)
    assert sum(row.share.used for row in history.read_daily_usage(*MARCH, LATE).shares) == 7 * UNITS_PER_MINUTE


PEOPLE = ["alice", "bob", "Łukasz", "x" * 60]
GPUS = st.builds(
    gpu,
    state=st.sampled_from(GPU_STATES),
    users=st.lists(st.sampled_from(PEOPLE), unique=True, max_size=4),
    bookers=st.lists(st.sampled_from(PEOPLE), unique=True, max_size=2),
    use=st.one_of(st.none(), st.floats(0, 100)),
)
HOSTS = st.dictionaries(st.sampled_from(["atlas", "hydra", "gpu01"]), GPUS, max_size=3)
FLEETS = st.lists(HOSTS, min_size=1, max_size=8)


@examples(25)
@example(fleets=[{}, {}, {}, {}, {}, {"atlas": gpu("unknown", use=None)}], starts=[60, 0, 65], rolls=[])
@given(fleets=FLEETS, starts=st.lists(st.integers(0, 200), min_size=1, max_size=5), rolls=st.lists(st.integers(0, 5)))
def test_sums_are_the_minutes_that_were_recorded(
    fleets: list[dict[str, object]], starts: list[int], rolls: list[int]
) -> None:
    """Whatever the fleet did, in whatever order the clock went, and whenever it was rolled up."""
    with TemporaryDirectory() as path:
        history = HistoryWriter(Path(path), timezone.utc)
        kept: dict[tuple[int, str], str] = {}
        pending: set[int] = set()
        ahead: set[int] = set()  # minutes of a clock that ran ahead are replaced when they come
        for turn, start in enumerate(starts):
            for number, fleet in enumerate(fleets):
                at = NOON + 60 * (start + number)
                host_samples: list[PackedSample] = [host(gpu_sample, name=name) for name, gpu_sample in fleet.items()]  # type: ignore[arg-type]
                recorded = history.recorded_at != at
                history.record(host_samples, at)
                if not recorded:
                    continue
                ahead |= {minute for minute in pending if minute > at + HOUR}
                if at in ahead:
                    ahead.discard(at)
                    kept = {key: state for key, state in kept.items() if key[0] != at}
                pending.add(at)
                # hosts of one part share a minute, and these three are in parts of their own
                for name, gpu_sample in fleet.items():
                    kept.setdefault((at, name), gpu_sample.occupancy.state)  # type: ignore[attr-defined]
            if turn in rolls:
                now = NOON + 60 * start + HOUR
                history.roll_up(now, 9)
                pending = {minute for minute in pending if minute >= now // HOUR * HOUR}
                ahead &= pending
        expected = Counter(kept.values())
        for _ in range(2):
            daily_usage = history.read_daily_usage(*MARCH, LATE)
            assert minutes(daily_usage) == len(kept)
            assert {state: minutes(daily_usage, state) for state in GPU_STATES} == {
                state: expected[state] for state in GPU_STATES
            }
            taken = sum(minutes(daily_usage, state) for state in ("conflict", "held", "busy"))
            assert (
                sum(row.share.used for row in daily_usage.shares)
                == (taken - minutes(daily_usage, "unowned")) * UNITS_PER_MINUTE
            )
            assert history.roll_up(LATE, 9)
        history.close()
