"""Sums that go on from build to build: always those of all that was recorded, and no build waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timezone
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.formatting import DAY, HOUR
from site_builder.history.reader import GpuSetChange
from site_builder.history.rollups import SUMS_FILE, HostModel, MonthUsage, RollupWindow, UsageRollup
from site_builder.history.usage_sums import UNITS_PER_MINUTE, StateMinutes
from site_builder.history.writer import HistoryWriter
from tests.support.history_fixtures import epoch, gpu, host, record, roll, used
from tests.support.hypothesis_profiles import examples
from tests.support.pace import check, took

NOON = epoch("2026-03-10T12:00")
HOURS = (2, 24)
BERLIN = ZoneInfo("Europe/Berlin")


def none(_: Iterable[GpuSetChange], __: date, ___: int, ____: dict[HostModel, StateMinutes]) -> dict[HostModel, int]:
    """Nothing is missed."""
    return {}


def running(history: HistoryWriter) -> UsageRollup:
    return UsageRollup(history, HOURS, 13, none)


class RecentRollups(NamedTuple):
    windows: tuple[RollupWindow, ...]
    months: tuple[MonthUsage, ...]


def recent(sums: UsageRollup) -> RecentRollups:
    return RecentRollups(sums.state.windows, tuple(sums.load_months()))


def done(sums: UsageRollup, now: float) -> RecentRollups:
    """All that is to do."""
    sums.advance(now, 60)
    assert sums.is_done
    return recent(sums)


def minutes(lately: RecentRollups, place: int = 0) -> dict[str, float]:
    """What each person had in a window."""
    return {name: share.used / UNITS_PER_MINUTE for name, share in lately.windows[place].shares.items() if share.used}


def of_month(month: MonthUsage) -> dict[str, float]:
    return {name: share.used / UNITS_PER_MINUTE for name, share in month.shares.items() if share.used}


# Windows


def test_a_window_has_the_minutes_that_are_rolled_up_and_those_that_are_not(history: HistoryWriter) -> None:
    record(history, NOON, 90, [host(gpu("busy", ["alice", "bob"]), gpu(index=1))])
    sums = running(history)
    now = NOON + 90 * 60
    for _ in range(2):
        rollups = done(sums, now)
        assert minutes(rollups) == {"alice": 45, "bob": 45}
        assert (
            rollups.windows[0].seen_minutes,
            rollups.windows[0].state_minutes.seen,
            rollups.windows[0].state_minutes.free,
        ) == (90, 180, 90)
        assert rollups.windows[0].since == NOON
        roll(history, now)


def test_a_window_leaves_out_what_was_before_it(history: HistoryWriter) -> None:
    record(history, NOON - 5 * HOUR, 60, [host(gpu("busy", ["alice"]))])
    record(history, NOON, 90, [host(gpu("busy", ["bob"]))])
    roll(history, NOON + 90 * 60)
    rollups = done(running(history), NOON + 90 * 60)
    assert minutes(rollups, 0) == {"bob": 90}
    assert minutes(rollups, 1) == {"alice": 60, "bob": 90}
    assert rollups.windows[1].seen_minutes == 150


def test_each_minute_is_added_as_it_comes_and_none_is_read_twice(history: HistoryWriter, state: Path) -> None:
    sums = running(history)
    for number in range(75):
        history.record([host(gpu("busy", ["alice"]))], NOON + 60 * number)
        assert minutes(done(sums, NOON + 60 * number))["alice"] == number + 1
        history.roll_up(NOON + 60 * number, 9)
        if number % 20 == 0:  # another builder goes on
            sums.save()
            sums = running(history)
    assert sum(bin(pending_hour.minute_bits).count("1") for pending_hour in sums.state.pending_hours.values()) == 15
    assert (state / SUMS_FILE).stat().st_mode & 0o777 == 0o600  # it names people


def test_a_minute_that_has_not_come_does_not_count(history: HistoryWriter) -> None:
    record(history, NOON, 10, [host(gpu("busy", ["alice"]))])
    record(history, NOON + 365 * DAY, 5, [host(gpu("busy", ["carol"]))])
    assert minutes(done(running(history), NOON + 600)) == {"alice": 10}


def test_a_minute_without_hosts_counts_as_seen(history: HistoryWriter) -> None:
    record(history, NOON, 60, lambda number: [host(gpu("busy", ["alice"]))] if number < 30 else [])
    (window, _) = done(running(history), NOON + HOUR - 1).windows
    assert (window.seen_minutes, window.state_minutes.seen) == (60, 30)


# Months


def test_months_are_those_of_the_lab_and_of_all_hours_that_are_over(state: Path) -> None:
    history = HistoryWriter(state, BERLIN)
    midnight = epoch("2026-03-01T00:00", BERLIN)
    record(history, midnight - 2 * HOUR, 5 * 60 + 20, [host(gpu("busy", ["alice"])), host(gpu(key="x"), name="hydra")])
    now = midnight + 3 * HOUR + 20 * 60
    roll(history, now)
    march, february = done(running(history), now).months
    assert (march.first, march.until, of_month(march)) == (date(2026, 3, 1), midnight + 3 * HOUR, {"alice": 180})
    assert (february.first, february.until, of_month(february)) == (date(2026, 2, 1), midnight, {"alice": 120})
    assert {host for host, _ in march.seen_by_place} == {"atlas", "hydra"}
    assert (march.since, february.since) == (date(2026, 3, 1), date(2026, 2, 28))  # with which history begins
    assert used(history.read_daily_usage(date(2026, 2, 1), date(2026, 2, 28), now)) == of_month(february)
    history.close()


def test_old_months_are_reduced_to_their_people_and_their_sums(history: HistoryWriter) -> None:
    for start in ("2026-01-10T12:00", "2026-02-10T12:00", "2026-03-10T12:00"):
        record(history, epoch(start), 60, [host(gpu("busy", ["alice"])), host(gpu(key="x"), name="hydra")])
    roll(history, NOON + HOUR)
    march, february, january = done(running(history), NOON + HOUR).months
    assert (of_month(march), of_month(february), of_month(january)) == ({"alice": 60}, {"alice": 60}, {"alice": 60})
    assert january.shares_by_place["", ""].used == 60 * UNITS_PER_MINUTE
    assert (january.seen_by_place["", ""].seen, january.seen_by_place["", ""].free) == (120, 60)


def test_a_month_waits_until_all_hosts_are_rolled_up(history: HistoryWriter) -> None:
    record(history, NOON, 60, [host(gpu("busy", ["alice"])), host(gpu("busy", ["bob"], key="x"), name="hydra")])
    sums = running(history)
    assert done(sums, NOON + HOUR + 60).months == ()
    roll(history, NOON + HOUR + 60)
    assert of_month(done(sums, NOON + HOUR + 60).months[0]) == {"alice": 60, "bob": 60}


def test_an_hour_that_comes_late_is_added_to_a_month_that_was_over(history: HistoryWriter) -> None:
    record(history, epoch("2026-02-10T12:00"), 60, [host(gpu("busy", ["alice"]))])
    roll(history, NOON)
    sums = running(history)
    assert of_month(done(sums, NOON).months[1]) == {"alice": 60}
    record(history, epoch("2026-02-11T12:00"), 60, [host(gpu("busy", ["alice"]))])
    done(sums, NOON + 60)
    roll(history, NOON + 60)
    assert of_month(done(sums, NOON + 120).months[1]) == {"alice": 120}


# Whatever happens


def test_another_history_is_begun_anew(history: HistoryWriter, state: Path) -> None:
    record(history, NOON - 2 * DAY, 90, [host(gpu("busy", ["alice"]))])
    roll(history, NOON)
    sums = running(history)
    assert of_month(done(sums, NOON).months[0]) == {"alice": 90}
    history.close()
    for path in state.glob("history.db*"):
        path.unlink()
    record(history, NOON, 90, [host(gpu("busy", ["bob"]))])
    roll(history, NOON + 2 * HOUR)
    rollups = done(sums, NOON + 2 * HOUR)
    assert (of_month(rollups.months[0]), minutes(rollups, 1)) == ({"bob": 90}, {"bob": 90})


@pytest.mark.parametrize("content", [b"", b"\x80\x05nonsense", b"(dp0\n."])
def test_damaged_sums_are_added_up_again(history: HistoryWriter, state: Path, content: bytes) -> None:
    record(history, NOON, 10, [host(gpu("busy", ["alice"]))])
    (state / SUMS_FILE).write_bytes(content)
    assert minutes(done(running(history), NOON + 600)) == {"alice": 10}


def test_implausible_sums_cost_no_build(history: HistoryWriter) -> None:
    record(history, NOON, 10, [host(gpu("busy", ["alice"]))])
    sums = running(history)
    done(sums, NOON + 600)
    sums.state.pending_hours = None  # type: ignore[assignment]
    sums.advance(NOON + 600, 9)
    assert history.problem
    assert "the totals could not be updated" in history.problem.what
    assert minutes(done(sums, NOON + 600)) == {"alice": 10}
    assert not history.problem


def test_the_last_gpus_of_a_host_are_known_however_long_ago_it_was_seen(history: HistoryWriter) -> None:
    record(history, NOON - 1000 * DAY, 2, [host(gpu())])
    record(history, NOON - 900 * DAY, 2, [host(gpu(), gpu(index=1)), host(gpu(key="x"), name="hydra")])
    record(history, NOON, 2, [host(gpu(), gpu(index=1))])
    days = [(NOON - day * DAY, 0, 1) for day in range(800)]
    history.connect().executemany("INSERT INTO rolled VALUES(?,?,?)", days)
    roll(history, NOON + HOUR)
    host_rows = history.connect().execute("SELECT host, at FROM told ORDER BY host, at").fetchall()
    assert host_rows == [("atlas", NOON - 900 * DAY), ("hydra", NOON - 900 * DAY)]


def test_without_history_there_is_nothing(history: HistoryWriter) -> None:
    assert recent(running(history)) == RecentRollups((), ())
    sums = running(history)
    sums.advance(NOON, 1)
    assert recent(sums) == RecentRollups((), ())


def test_a_damaged_minute_is_a_gap(history: HistoryWriter) -> None:
    record(history, NOON, 10, [host(gpu("busy", ["alice"]))])
    history.connect().execute("UPDATE minute SET block=x'00' WHERE at=?", (NOON + 60,))
    assert minutes(done(running(history), NOON + 600)) == {"alice": 9}


@pytest.mark.slow
def test_a_build_does_no_more_than_it_has_time_for_and_the_next_builder_goes_on(history: HistoryWriter) -> None:
    hosts = [host(gpu("busy", ["alice"], key=f"GPU-{n}"), name=f"gpu{n:02}") for n in range(32)]
    record(history, NOON, 20, hosts)
    rollups, goes = RecentRollups((), ()), 0
    while not rollups.windows:
        sums = running(history)
        sums.advance(NOON + 1200, 0)
        rollups = recent(sums)
        sums.save()
        goes += 1
    assert minutes(rollups) == {"alice": 32 * 20}
    assert goes > 100


PEOPLE = ["alice", "bob", "Łukasz"]
GPUS = st.builds(
    gpu,
    state=st.sampled_from(["lost", "conflict", "held", "busy", "booked", "free"]),
    users=st.lists(st.sampled_from(PEOPLE), unique=True, max_size=3),
    bookers=st.lists(st.sampled_from(PEOPLE), unique=True, max_size=2),
)
FLEETS = st.lists(st.dictionaries(st.sampled_from(["atlas", "hydra", "gpu01"]), GPUS, max_size=3), min_size=1)


@examples(20)
@given(
    fleets=FLEETS, begins=st.integers(0, 119), rolls=st.sets(st.integers(0, 80)), builders=st.sets(st.integers(0, 80))
)
def test_windows_and_months_are_what_was_recorded(
    tmp_path_factory: pytest.TempPathFactory,
    fleets: list[dict[str, object]],
    begins: int,
    rolls: set[int],
    builders: set[int],
) -> None:
    """Whenever it is rolled up, and however often another builder comes."""
    history = HistoryWriter(tmp_path_factory.mktemp("state"), timezone.utc)
    sums = running(history)
    for number in range(80):
        now = NOON - HOUR + 60 * (begins + number)
        fleet = fleets[number % len(fleets)]
        history.record([host(usage, name=name) for name, usage in fleet.items()], now)  # type: ignore[arg-type]
        if number in rolls:
            history.roll_up(now, 9)
        if number in builders:
            sums.advance(now, 0)
            sums.save()
            sums = running(history)
    daily_usage = history.read_daily_usage(date(2026, 3, 1), date(2026, 3, 31), now)
    rollups = done(sums, now)
    assert {name: round(usage, 6) for name, usage in minutes(rollups, 1).items()} == used(daily_usage)
    assert rollups.windows[1].seen_minutes == 80
    assert history.roll_up(now + HOUR, 9)
    rollups = done(sums, now + HOUR)
    assert {name: round(usage, 6) for name, usage in of_month(rollups.months[0]).items()} == used(daily_usage)
    history.close()


@pytest.mark.slow
def test_a_minute_of_a_thousand_hosts_is_added_in_a_moment(history: HistoryWriter) -> None:
    hosts = [
        host(*(gpu("busy", [f"user{(n + g) % 300}"], index=g, key=f"GPU-{n}-{g}") for g in range(8)), name=f"gpu{n:04}")
        for n in range(1000)
    ]
    record(history, NOON, 3, hosts)
    sums = running(history)
    done(sums, NOON + 120)
    for number in range(3, 6):
        history.record(hosts, NOON + 60 * number)
    check(took(lambda: done(sums, NOON + 300)) / 3, 0.3)
